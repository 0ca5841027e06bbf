//! Requests in JSON, made by their shapes: valid ones in any spelling that there is for them, and changes of a text that
//! keep most of its form.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE};
use leaseway_proto::schema::{Field, Kind, Message};
use prost::encoding::{WireType, encode_key, encode_varint};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Messages within each other.
const DEPTH_MAX: usize = 4;
const REPEATED_MAX: usize = 3;
/// Texts that are spelled in more than one way, or have to be.
const TEXTS: &[&str] = &["", "a", "k/\u{e4}\u{1f511}", "\"\\/\u{8}\n\0", "null", "12", "{}[],:"];
/// Tokens that mean something somewhere, or nothing anywhere.
const TOKENS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e2",
    "1.0",
    "0.5",
    "-0",
    "00",
    "1e",
    "+1",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "1e400",
    "\"\"",
    "\"1\"",
    "\"AA==\"",
    "\"AA\"",
    "\"_-8=\"",
    "\"\\ud83d\\udd11\"",
    "\"\\ud83d\"",
    "\"\\u00\"",
    "\"",
    "\"key\"",
    "\"range_end\"",
    "\"PUT\"",
    "nan",
    "//",
];

fn any<'a, T>(of: &'a [T], random: &mut StdRng) -> &'a T {
    &of[random.random_range(0..of.len())]
}

fn space(text: &mut String, random: &mut StdRng) {
    if random.random_range(0..4) == 0 {
        text.push_str(any::<&str>(&[" ", "\n", "\t", "\r\n "], random));
    }
}

/// Adds a message to a text, and the same to its wire encoding.
pub fn message(
    shape: &'static Message,
    depth: usize,
    text: &mut String,
    wire: &mut Vec<u8>,
    random: &mut StdRng,
) {
    let (mut groups, mut first) = (BTreeSet::new(), true);
    let mut member = |text: &mut String, name: &str, random: &mut StdRng| {
        if !std::mem::take(&mut first) {
            text.push(',');
        }
        space(text, random);
        quoted(text, name, random);
        space(text, random);
        text.push(':');
        space(text, random);
    };
    text.push('{');
    let begin = random.random_range(0..shape.fields.len().max(1));
    for at in 0..shape.fields.len() {
        let field = &shape.fields[(begin + at) % shape.fields.len()];
        let deep = matches!(field.kind, Kind::Message(_)) && depth == DEPTH_MAX;
        let name = if random.random() { field.name } else { field.json_name };
        match random.random_range(0..8) {
            0 | 1 => {}
            2 => {
                member(text, name, random);
                text.push_str("null");
            }
            3 => {
                member(text, "a name of nothing", random);
                text.push_str(any::<&str>(
                    &["{\"a\": [1, {}]}", "[]", "\"x\"", "-1e9", "null"],
                    random,
                ));
                // Once is enough: names may not come again, known or not to us.
                break;
            }
            _ if deep || field.oneof.is_some_and(|(group, _)| !groups.insert(group)) => {}
            _ => {
                member(text, name, random);
                values(field, depth, text, wire, random);
            }
        }
    }
    space(text, random);
    text.push('}');
}

fn values(field: &Field, depth: usize, text: &mut String, wire: &mut Vec<u8>, random: &mut StdRng) {
    if !field.repeated {
        return value(field, depth, text, wire, random);
    }
    text.push('[');
    for at in 0..random.random_range(0..=REPEATED_MAX) {
        if at > 0 {
            text.push(',');
        }
        value(field, depth, text, wire, random);
    }
    text.push(']');
}

fn value(field: &Field, depth: usize, text: &mut String, wire: &mut Vec<u8>, random: &mut StdRng) {
    let bytes = |bytes: &[u8], wire: &mut Vec<u8>| {
        encode_key(field.number, WireType::LengthDelimited, wire);
        encode_varint(bytes.len() as u64, wire);
        wire.extend_from_slice(bytes);
    };
    let number = match field.kind {
        Kind::Message(inner) => {
            let mut encoded = Vec::new();
            message(inner, depth + 1, text, &mut encoded, random);
            return bytes(&encoded, wire);
        }
        Kind::String => {
            let given = *any(TEXTS, random);
            quoted(text, given, random);
            return bytes(given.as_bytes(), wire);
        }
        Kind::Bytes => {
            let length = random.random_range(0..9);
            let given: Vec<u8> = (0..length).map(|_| random.random()).collect();
            let engine = any(&[BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE], random);
            quoted(text, &engine.encode(&given), random);
            return bytes(&given, wire);
        }
        Kind::Bool => {
            let given: bool = random.random();
            text.push_str(if given { "true" } else { "false" });
            i128::from(given)
        }
        Kind::Enum(known) => {
            let (name, number) = any(known, random);
            if random.random() {
                quoted(text, name, random);
            } else {
                digits(text, i128::from(*number), false);
            }
            i128::from(*number)
        }
        Kind::Int32 => integer(text, i128::from(i32::MIN), i128::from(i32::MAX), random),
        Kind::Int64 => integer(text, i128::from(i64::MIN), i128::from(i64::MAX), random),
        Kind::Uint32 => integer(text, 0, i128::from(u32::MAX), random),
        Kind::Uint64 => integer(text, 0, i128::from(u64::MAX), random),
    };
    encode_key(field.number, WireType::Varint, wire);
    // Negative numbers have all 64 bits on the wire, whatever their type.
    encode_varint(number as u64, wire);
}

fn integer(text: &mut String, min: i128, max: i128, random: &mut StdRng) -> i128 {
    let number = *any(&[0, 1, 100, 2_000_000_000, min, max, max - 1, min / 2], random);
    let (quote, hundreds) = (random.random(), random.random::<bool>() && number % 100 == 0);
    match hundreds {
        true if quote => write!(text, "\"{}e2\"", number / 100).unwrap_or_default(),
        true => write!(text, "{}e2", number / 100).unwrap_or_default(),
        false => digits(text, number, quote),
    }
    number
}

fn digits(text: &mut String, number: i128, quote: bool) {
    let quote = if quote { "\"" } else { "" };
    let _ = write!(text, "{quote}{number}{quote}");
}

/// A string with those of its characters escaped that have to be, and some others.
fn quoted(text: &mut String, given: &str, random: &mut StdRng) {
    text.push('"');
    for character in given.chars() {
        let must = character < ' ' || matches!(character, '"' | '\\');
        match character {
            '\n' if random.random() => text.push_str("\\n"),
            '"' | '\\' | '/' if random.random() => text.extend(['\\', character]),
            _ if must || random.random_range(0..8) == 0 => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
            _ => text.push(character),
        }
    }
    text.push('"');
}

/// What a text is made of: strings, numbers and words, and every other byte.
fn tokens(text: &[u8]) -> Vec<&[u8]> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.first() {
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-+._".contains(byte);
        let length = match first {
            b'"' => {
                let mut escaped = false;
                let end = rest[1..].iter().position(|byte| {
                    let end = *byte == b'"' && !escaped;
                    escaped = *byte == b'\\' && !escaped;
                    end
                });
                end.map_or(rest.len(), |end| end + 2)
            }
            byte if inner(byte) => rest.iter().take_while(|byte| inner(byte)).count(),
            _ => 1,
        };
        let (token, behind) = rest.split_at(length);
        tokens.push(token);
        rest = behind;
    }
    tokens
}

/// Changes a text: tokens go, come again, change places, or are others'.
pub fn change(input: &mut Vec<u8>, random: &mut StdRng) {
    let whole = std::mem::take(input);
    let mut tokens = tokens(&whole);
    if tokens.is_empty() {
        tokens.push(b"{}");
    }
    let at = random.random_range(0..tokens.len());
    let end = (at + random.random_range(1..12)).min(tokens.len());
    let scalar = |token: &&[u8]| token.len() > 1 || token[0].is_ascii_alphanumeric();
    match random.random_range(0..8) {
        0 => drop(tokens.remove(at)),
        1 => {
            let piece = tokens[at..end].to_vec();
            drop(tokens.splice(at..at, piece));
        }
        2 => {
            let with = random.random_range(0..tokens.len());
            tokens.swap(at, with);
        }
        3 => tokens[at] = any(TOKENS, random).as_bytes(),
        4 => {
            let pairs = [("[", "]"), ("{", "}"), ("{\"a\":", "}")];
            let (before, behind) = *any(&pairs, random);
            tokens.insert(end, behind.as_bytes());
            tokens.insert(at, before.as_bytes());
        }
        // A value in the place of another, which is mostly of another kind.
        _ => {
            let scalars: Vec<usize> = (0..tokens.len()).filter(|at| scalar(&tokens[*at])).collect();
            if !scalars.is_empty() {
                let (to, from) = (*any(&scalars, random), *any(&scalars, random));
                tokens[to] =
                    if random.random() { tokens[from] } else { any(TOKENS, random).as_bytes() };
            }
        }
    }
    *input = tokens.concat();
}
