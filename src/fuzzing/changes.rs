//! Changes of inputs. Those of any bytes break most forms at their outermost layer, so that what lies
//! deeper is seldom reached; others know a form, and change what it is made of.

use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use rand::Rng;
use rand::rngs::StdRng;

/// Bytes that mean something somewhere.
const BYTES: &[u8] =
    b"\0\x01\x02\x08\x0a\x12\x1a\x22\x7f\x80\xfe\xff\"\\{}[]:,0-9eu=/_ \n#&*|>'!%@";
/// Numbers at which something may turn.
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    127,
    128,
    4096,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 53,
    i64::MAX as u64,
    1 << 63,
];

fn any<'a, T>(of: &'a [T], random: &mut StdRng) -> &'a T {
    &of[random.random_range(0..of.len())]
}

/// Any bytes: something is left out, repeated, overwritten, or taken from another input.
pub fn bytes(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut StdRng) {
    let at = random.random_range(0..=input.len());
    let end = (at + random.random_range(1..9)).min(input.len());
    match random.random_range(0..8) {
        0 => drop(input.drain(at..end)),
        1 => input.truncate(at),
        2 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
        3 => input[at..end].fill(*any(BYTES, random)),
        4 => {
            let piece = input[at..end].to_vec();
            drop(input.splice(at..at, piece));
        }
        5 => {
            let other = any(others, random);
            let from = random.random_range(0..=other.len());
            let to = (from + random.random_range(1..33)).min(other.len());
            drop(input.splice(at..end, other[from..to].iter().copied()));
        }
        6 if at < input.len() => input[at] = random.random(),
        _ => input.insert(at, *any(BYTES, random)),
    }
}

/// A number that is near to this one, or known for trouble.
fn number(old: u64, random: &mut StdRng) -> u64 {
    match random.random_range(0..4) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old ^ 1 << random.random_range(0..64),
        _ => *any(NUMBERS, random),
    }
}

/// A field of a message in its wire encoding.
#[derive(Clone, Debug, PartialEq)]
struct Field {
    number: u32,
    value: Value,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(Vec<u8>),
}

/// The fields of a message, whatever it is; nothing if these bytes are none.
fn fields(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).ok()?;
        let mut take = |length: usize| {
            let (taken, rest) = bytes.split_at_checked(length)?;
            bytes = rest;
            Some(taken)
        };
        let value = match wire {
            WireType::SixtyFourBit => Value::Fixed64(take(8)?.try_into().ok()?),
            WireType::ThirtyTwoBit => Value::Fixed32(take(4)?.try_into().ok()?),
            WireType::Varint => Value::Varint(decode_varint(&mut bytes).ok()?),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                let (taken, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Value::Bytes(taken.to_vec())
            }
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        fields.push(Field { number, value });
    }
    Some(fields)
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Field { number, value } in fields {
        match value {
            Value::Varint(value) => {
                encode_key(*number, WireType::Varint, &mut bytes);
                encode_varint(*value, &mut bytes);
            }
            Value::Fixed64(value) => {
                encode_key(*number, WireType::SixtyFourBit, &mut bytes);
                bytes.extend_from_slice(value);
            }
            Value::Fixed32(value) => {
                encode_key(*number, WireType::ThirtyTwoBit, &mut bytes);
                bytes.extend_from_slice(value);
            }
            Value::Bytes(value) => {
                encode_key(*number, WireType::LengthDelimited, &mut bytes);
                encode_varint(value.len() as u64, &mut bytes);
                bytes.extend_from_slice(value);
            }
        }
    }
    bytes
}

/// A message in its wire encoding, or one within it: fields go, come, move and get other values, and every
/// length is right again. What is no message is changed as any bytes are.
pub fn message(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut StdRng) {
    let Some(mut fields) = fields(input) else { return bytes(input, others, random) };
    let whole = input.clone();
    if fields.is_empty() || random.random_range(0..8) == 0 {
        // A field of another message, or this message within itself.
        let other = any(others, random).get(1..).and_then(self::fields).unwrap_or_default();
        let number = random.random_range(1..20);
        let added = match random.random_range(0..3) {
            0 => Field { number, value: Value::Bytes(whole) },
            1 if !other.is_empty() => any(&other, random).clone(),
            _ => Field { number, value: Value::Varint(*any(NUMBERS, random)) },
        };
        fields.insert(random.random_range(0..=fields.len()), added);
    } else {
        let at = random.random_range(0..fields.len());
        match random.random_range(0..12) {
            0 => drop(fields.remove(at)),
            1 => fields.insert(random.random_range(0..=at), fields[at].clone()),
            2 => {
                let with = random.random_range(0..fields.len());
                fields.swap(at, with);
            }
            3 => fields[at].number = random.random_range(1..20),
            _ => value(&mut fields[at].value, others, random),
        }
    }
    *input = encode(&fields);
}

fn value(value: &mut Value, others: &[Vec<u8>], random: &mut StdRng) {
    match value {
        Value::Varint(old) => *old = number(*old, random),
        Value::Fixed64(old) => *old = number(u64::from_le_bytes(*old), random).to_le_bytes(),
        Value::Fixed32(old) => {
            *old = (number(u32::from_le_bytes(*old).into(), random) as u32).to_le_bytes();
        }
        // Whether it is a message can't be told: text may look like one.
        Value::Bytes(inner) => match random.random_range(0..8) {
            0 => inner.clear(),
            1 => bytes(inner, others, random),
            2 if inner.len() < 64 => *inner = inner.repeat(40),
            _ => message(inner, others, random),
        },
    }
}

/// Bytes of a page of the files in the corpus.
const PAGE: usize = 4096;
/// Bytes before its elements, and of each of them.
const ELEMENT: usize = 16;
const META: u16 = 4;

/// Changes what etcd's storage engine gives a meaning in its file: a number of a page's head, of an
/// element or of a meta, or the bytes of a key or value. Nothing moves.
pub fn page(file: &mut [u8], random: &mut StdRng) {
    let used = |at: &usize| file[at * PAGE + 8..at * PAGE + 12].iter().any(|byte| *byte != 0);
    let pages: Vec<usize> = (0..file.len() / PAGE).filter(used).collect();
    if pages.is_empty() {
        return;
    }
    let page = &mut file[any(&pages, random) * PAGE..][..PAGE];
    let short = |at: usize| u16::from_le_bytes([page[at], page[at + 1]]);
    let (kind, count) = (short(8), usize::from(short(10)));
    // The metas have numbers of 4 and 8 bytes where others have elements.
    let count = if kind == META { 4 } else { count.min(PAGE / ELEMENT - 1) };
    let element = ELEMENT + ELEMENT * random.random_range(0..count.max(1));
    match random.random_range(0..8) {
        // Its kind, the number of elements, and how many more pages belong to it.
        0 => change_number(page, *any(&[8, 10], random), 2, random),
        1 => change_number(page, 12, 4, random),
        2..=4 => change_number(page, element + 4 * random.random_range(0..4), 4, random),
        _ => {
            let field = |at: usize| {
                let bytes = [page[at], page[at + 1], page[at + 2], page[at + 3]];
                u32::from_le_bytes(bytes) as usize
            };
            // A leaf's element says after 4 bytes where its key is, and then the lengths of both.
            let start = element.saturating_add(field(element + 4)).min(PAGE - 1);
            let length = field(element + 8).saturating_add(field(element + 12));
            let end = start.saturating_add(length).clamp(start + 1, PAGE);
            let at = random.random_range(start..end);
            page[at] = match random.random_range(0..3) {
                0 => page[at] ^ 1 << random.random_range(0..8),
                1 => page[at].wrapping_add(1),
                _ => *any(BYTES, random),
            };
        }
    }
}

fn change_number(page: &mut [u8], at: usize, length: usize, random: &mut StdRng) {
    let mut bytes = [0; 8];
    bytes[..length].copy_from_slice(&page[at..at + length]);
    let new = if random.random_range(0..3) == 0 {
        // The number of something else there.
        let from = 8 + 4 * random.random_range(0..32);
        page[from..from + length].to_vec()
    } else {
        number(u64::from_le_bytes(bytes), random).to_le_bytes()[..length].to_vec()
    };
    page[at..at + length].copy_from_slice(&new);
}
