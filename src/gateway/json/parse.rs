//! From a JSON object to a message in its wire encoding, by the message's shape.
//!
//! What is taken and what is refused is what etcd's gateway takes and refuses, in its words: unknown
//! fields and unknown names of enum values are skipped, `null` is as good as nothing, a field may be
//! there once, under either of its names.

use super::scan::is_space;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use leaseway_proto::schema::{Field, Kind, Message};
use prost::encoding::encode_varint;

/// Messages within each other; the decoder of the wire encoding goes no deeper.
const DEPTH_MAX: usize = 100;

/// Bytes of an escape of a code unit, `\u0000`.
const ESCAPE_LENGTH: usize = 6;
/// The error at the end of a text that goes on.
const CUT_OFF: &str = "proto: unexpected EOF";

const fn engine(alphabet: &alphabet::Alphabet, padding: DecodePaddingMode) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(padding)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(alphabet, config)
}

const PADDED: GeneralPurpose = engine(&alphabet::STANDARD, DecodePaddingMode::RequireCanonical);
const UNPADDED: GeneralPurpose = engine(&alphabet::STANDARD, DecodePaddingMode::RequireNone);
const URL_PADDED: GeneralPurpose = engine(&alphabet::URL_SAFE, DecodePaddingMode::RequireCanonical);
const URL_UNPADDED: GeneralPurpose = engine(&alphabet::URL_SAFE, DecodePaddingMode::RequireNone);

/// Encodes the message that a JSON value describes. The value is whole: its end has been found by a
/// [`Scanner`](super::scan::Scanner).
///
/// # Errors
/// What is wrong with it, for people.
pub fn parse(message: &'static Message, text: &[u8]) -> Result<Vec<u8>, String> {
    let mut parser = Parser { text, at: 0 };
    let mut out = Vec::with_capacity(text.len());
    parser.message(message, 0, &mut out)?;
    Ok(out)
}

/// A value that is neither object nor array.
enum Scalar {
    Null,
    Bool(bool),
    Number,
    String(String),
    /// An object or array.
    Nested,
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn message(
        &mut self,
        message: &'static Message,
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if depth == DEPTH_MAX {
            return Err("proto: exceeded max recursion depth".to_owned());
        }
        if self.peek() != Some(b'{') {
            return Err(self.unexpected());
        }
        self.at += 1;
        let (mut seen, mut oneofs) = (0_u64, 0_u64);
        loop {
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'"') => {
                    let start = self.at;
                    let name = self.string()?;
                    let raw = start..self.at;
                    if self.peek() == Some(b':') {
                        self.at += 1;
                    }
                    let Some((index, field)) = find(message, &name) else {
                        self.skip()?;
                        continue;
                    };
                    let bit = 1 << (index % 64);
                    if seen & bit != 0 {
                        return Err(
                            self.error(start, &format!("duplicate field {}", self.raw(raw)))
                        );
                    }
                    seen |= bit;
                    if self.peek() == Some(b'n') {
                        self.word();
                        continue;
                    }
                    if let Some((oneof, name)) = field.oneof {
                        let bit = 1 << (oneof % 64);
                        if oneofs & bit != 0 {
                            let raw = self.raw(raw);
                            let text = format!("error parsing {raw}, oneof {name} is already set");
                            return Err(self.error(start, &text));
                        }
                        oneofs |= bit;
                    }
                    self.field(field, depth, out)?;
                }
                _ => return Err(self.unexpected()),
            }
        }
    }

    fn field(
        &mut self,
        field: &'static Field,
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if !field.repeated {
            return self.value(field, depth, out);
        }
        if self.peek() != Some(b'[') {
            return Err(self.unexpected());
        }
        self.at += 1;
        loop {
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                None => return Err(self.unexpected()),
                Some(_) => self.value(field, depth, out)?,
            }
        }
    }

    fn value(
        &mut self,
        field: &'static Field,
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        const VARINT: u32 = 0;
        const BYTES: u32 = 2;
        let key =
            |wire: u32, out: &mut Vec<u8>| encode_varint(u64::from(field.number << 3 | wire), out);
        let bytes = |bytes: &[u8], out: &mut Vec<u8>| {
            key(BYTES, out);
            encode_varint(bytes.len() as u64, out);
            out.extend_from_slice(bytes);
        };
        if let Kind::Message(inner) = field.kind {
            let mut encoded = Vec::new();
            self.message(inner, depth + 1, &mut encoded)?;
            bytes(&encoded, out);
            return Ok(());
        }
        self.peek();
        let start = self.at;
        let scalar = self.scalar()?;
        let raw = &self.text[start..self.at];
        let number = match &scalar {
            Scalar::Number => integer(raw),
            Scalar::String(text) => number_in(text),
            _ => None,
        };
        let signed = |bits: u32| number.filter(|number| fits(*number, bits));
        let unsigned = |max: u64| number.filter(|number| (0..=i128::from(max)).contains(number));
        let varint = match (field.kind, &scalar) {
            (Kind::Bool, Scalar::Bool(value)) => Some(u64::from(*value)),
            (Kind::Int32, _) => signed(32).map(|number| number as i64 as u64),
            (Kind::Int64, _) => signed(64).map(|number| number as i64 as u64),
            (Kind::Uint32, _) => unsigned(u64::from(u32::MAX)).map(|number| number as u64),
            (Kind::Uint64, _) => unsigned(u64::MAX).map(|number| number as u64),
            (Kind::Enum(values), Scalar::String(name)) => {
                match values.iter().find(|(known, _)| known == name) {
                    Some((_, number)) => Some(i64::from(*number) as u64),
                    None => return Ok(()),
                }
            }
            (Kind::Enum(_), Scalar::Number) => signed(32).map(|number| number as i64 as u64),
            (Kind::String, Scalar::String(text)) => {
                bytes(text.as_bytes(), out);
                return Ok(());
            }
            (Kind::Bytes, Scalar::String(text)) => match decode(text) {
                Some(decoded) => {
                    bytes(&decoded, out);
                    return Ok(());
                }
                None => None,
            },
            _ => None,
        };
        match varint {
            Some(varint) => {
                key(VARINT, out);
                encode_varint(varint, out);
                Ok(())
            }
            None => {
                let (kind, name, raw) =
                    (field.kind.name(), field.json_name, self.raw(start..self.at));
                let text = format!("invalid value for {kind} field {name}: {raw}");
                Err(self.error(start, &text))
            }
        }
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).copied().is_some_and(is_space) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Reads a scalar, or the first byte of what is none.
    fn scalar(&mut self) -> Result<Scalar, String> {
        Ok(match self.peek() {
            Some(b'"') => Scalar::String(self.string()?),
            Some(b'{' | b'[') | None => {
                self.at = self.text.len().min(self.at + 1);
                Scalar::Nested
            }
            Some(first) => {
                let start = self.at;
                self.word();
                if self.at == start {
                    // Never left standing: a caller may try again.
                    self.at += 1;
                    return Ok(Scalar::Nested);
                }
                match first {
                    b'n' => Scalar::Null,
                    b't' => Scalar::Bool(true),
                    b'f' => Scalar::Bool(false),
                    _ => Scalar::Number,
                }
            }
        })
    }

    /// Goes behind a number or a word.
    fn word(&mut self) {
        while self.text.get(self.at).copied().is_some_and(is_inner) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let start = self.at;
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let rest = &self.text[self.at.min(self.text.len())..];
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
            let plain = plain.unwrap_or(rest.len());
            out.extend_from_slice(&rest[..plain]);
            self.at += plain;
            match rest.get(plain) {
                Some(b'\\') => self.escape(start, &mut out)?,
                Some(_) => {
                    self.at += 1;
                    break;
                }
                None => return Err(CUT_OFF.to_owned()),
            }
        }
        String::from_utf8(out).map_err(|_| self.syntax(start, "invalid UTF-8 in string"))
    }

    fn escape(&mut self, start: usize, out: &mut Vec<u8>) -> Result<(), String> {
        let code = self.text.get(self.at + 1).copied().unwrap_or_default();
        let plain = match code {
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            other => other,
        };
        if code != b'u' {
            out.push(plain);
            self.at += 2;
            return Ok(());
        }
        let first = self.unit(self.at);
        self.at += ESCAPE_LENGTH;
        let decoded = match first {
            Some(0xd800..0xe000) if self.text.len() < self.at + ESCAPE_LENGTH => {
                return Err(CUT_OFF.to_owned());
            }
            Some(high @ 0xd800..0xe000) => {
                let pair = self.unit(self.at).map(|low| [high, low]);
                let decoded = pair.and_then(|pair| char::decode_utf16(pair).next()?.ok());
                if decoded.is_some() {
                    self.at += ESCAPE_LENGTH;
                }
                decoded
            }
            Some(unit) => char::from_u32(u32::from(unit)),
            None => None,
        };
        let Some(decoded) = decoded else {
            let end = self.text.len().min(self.at + ESCAPE_LENGTH);
            let raw = String::from_utf8_lossy(&self.text[self.at.min(end)..end]).into_owned();
            return Err(self.syntax(start, &format!("invalid escape code {raw:?} in string")));
        };
        out.extend_from_slice(decoded.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    /// The code unit of a `\u` escape at a place.
    fn unit(&self, at: usize) -> Option<u16> {
        let digits = self.text.get(at..at + ESCAPE_LENGTH)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    /// Goes behind a value, whatever it is. Its strings have to be right all the same.
    fn skip(&mut self) -> Result<(), String> {
        let mut open = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'{' | b'[' => {
                    open += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    open = open.saturating_sub(1);
                    self.at += 1;
                }
                b'"' => drop(self.string()?),
                _ if is_inner(byte) => self.word(),
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            if open == 0 {
                break;
            }
        }
        Ok(())
    }

    fn raw(&self, place: std::ops::Range<usize>) -> String {
        String::from_utf8_lossy(self.text.get(place).unwrap_or_default()).into_owned()
    }

    /// Line and column of a place, from 1.
    fn position(&self, at: usize) -> (usize, usize) {
        let before = &self.text[..at.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        (line, String::from_utf8_lossy(&before[start..]).chars().count() + 1)
    }

    fn error(&self, at: usize, text: &str) -> String {
        let (line, column) = self.position(at);
        format!("proto: (line {line}:{column}): {text}")
    }

    fn syntax(&self, at: usize, text: &str) -> String {
        let (line, column) = self.position(at);
        format!("proto: syntax error (line {line}:{column}): {text}")
    }

    fn unexpected(&mut self) -> String {
        self.peek();
        let start = self.at;
        match self.scalar() {
            Ok(_) => {
                let raw = self.raw(start..self.at);
                self.syntax(start, &format!("unexpected token {raw}"))
            }
            Err(error) => error,
        }
    }
}

fn find(message: &'static Message, name: &str) -> Option<(usize, &'static Field)> {
    let mut fields = message.fields.iter().enumerate();
    fields.find(|(_, field)| field.json_name == name || field.name == name)
}

fn is_inner(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_')
}

fn fits(number: i128, bits: u32) -> bool {
    match bits {
        32 => i32::try_from(number).is_ok(),
        _ => i64::try_from(number).is_ok(),
    }
}

/// The integer at the beginning of a string; what follows a space or punctuation is not looked at.
fn number_in(text: &str) -> Option<i128> {
    if text.trim() != text {
        return None;
    }
    let bytes = text.as_bytes();
    let end = bytes.iter().position(|byte| !is_inner(*byte)).unwrap_or(bytes.len());
    is_number(&bytes[..end]).then(|| integer(&bytes[..end]))?
}

/// Whether JSON takes it for a number.
fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut rest = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(rest);
    if whole == 0 || (rest[0] == b'0' && whole > 1) {
        return false;
    }
    rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let length = digits(fraction);
        if length == 0 {
            return false;
        }
        rest = &fraction[length..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = match exponent {
            [b'+' | b'-', exponent @ ..] => exponent,
            exponent => exponent,
        };
        let length = digits(exponent);
        if length == 0 {
            return false;
        }
        rest = &exponent[length..];
    }
    rest.is_empty()
}

/// The value of a number that is an integer, however it is written, if it has at most 20 digits.
fn integer(text: &[u8]) -> Option<i128> {
    const DIGITS_MAX: i64 = 20;
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let (whole, fraction) = (if whole == "0" { "" } else { whole }, fraction.trim_end_matches('0'));
    if whole.is_empty() && fraction.is_empty() {
        return Some(0);
    }
    let exponent = i64::from(exponent.map_or(Ok(0), str::parse::<i32>).ok()?);
    let (whole_len, fraction_len) = (whole.len() as i64, fraction.len() as i64);
    let digits = if exponent >= 0 {
        if fraction_len > exponent || whole_len + exponent > DIGITS_MAX {
            return None;
        }
        let zeros = "0".repeat(usize::try_from(exponent - fraction_len).ok()?);
        [whole, fraction, &zeros].concat()
    } else {
        let end = usize::try_from(whole_len + exponent).ok()?;
        if !fraction.is_empty() || whole[end..].bytes().any(|byte| byte != b'0') {
            return None;
        }
        whole[..end].to_owned()
    };
    if digits.len() > 39 {
        return None;
    }
    let value: i128 = digits.parse().ok()?;
    Some(if negative { -value } else { value })
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let url = text.bytes().any(|byte| matches!(byte, b'-' | b'_'));
    let engine = match (url, text.len().is_multiple_of(4)) {
        (false, true) => &PADDED,
        (false, false) => &UNPADDED,
        (true, true) => &URL_PADDED,
        (true, false) => &URL_UNPADDED,
    };
    // Line breaks are allowed anywhere.
    if text.bytes().any(|byte| matches!(byte, b'\r' | b'\n')) {
        let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        return engine.decode(text).ok();
    }
    engine.decode(text).ok()
}

#[cfg(test)]
mod tests;
