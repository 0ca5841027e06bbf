//! From a message in its wire encoding to JSON, by the message's shape.
//!
//! As etcd's gateway writes it: fields by their names in the contract, what has its default left out,
//! 64-bit integers as strings, bytes as base64, enum values by name.

use base64::display::Base64Display;
use base64::prelude::BASE64_STANDARD;
use leaseway_proto::schema::{Field, Kind, Message};
use prost::encoding::decode_varint;
use std::io::Write;

/// Messages within each other. Answers are no deeper than the requests that asked for them.
const DEPTH_MAX: usize = 200;

/// Bytes that are not the message they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer cannot be written as JSON")]
pub struct Malformed;

/// A field's value as it is on the wire.
#[derive(Clone, Copy, Debug)]
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

/// Writes a message behind what is in `out`.
///
/// # Errors
/// [`Malformed`]; `out` then ends with a part of the message.
pub fn print(message: &'static Message, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    print_at(message, bytes, out, 0)
}

fn print_at(
    message: &'static Message,
    bytes: &[u8],
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Malformed> {
    if depth == DEPTH_MAX {
        return Err(Malformed);
    }
    let mut values = read(message, bytes)?;
    // In the order of the contract, and the values of one field together.
    values.sort_by_key(|(index, _)| *index);
    out.push(b'{');
    let (mut rest, mut first) = (&values[..], true);
    while let Some((index, last)) = rest.first() {
        let field = &message.fields[*index];
        let length = rest.iter().take_while(|(other, _)| other == index).count();
        let (own, others) = rest.split_at(length);
        rest = others;
        // A field that is not repeated has its last value.
        let last = own.last().map_or(*last, |(_, value)| *value);
        if !field.repeated && field.oneof.is_none() && is_default(field, last) {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        out.push(b'"');
        out.extend_from_slice(field.name.as_bytes());
        out.extend_from_slice(b"\":");
        if !field.repeated {
            print_value(field, last, out, depth)?;
            continue;
        }
        out.push(b'[');
        for (at, (_, value)) in own.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            print_value(field, *value, out, depth)?;
        }
        out.push(b']');
    }
    out.push(b'}');
    Ok(())
}

/// The values of the known fields of a message, in the order in which they come.
fn read<'a>(
    message: &'static Message,
    mut bytes: &'a [u8],
) -> Result<Vec<(usize, Wire<'a>)>, Malformed> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let key = decode_varint(&mut bytes).map_err(|_| Malformed)?;
        let value = match key & 7 {
            0 => Wire::Varint(decode_varint(&mut bytes).map_err(|_| Malformed)?),
            2 => {
                let length = decode_varint(&mut bytes).map_err(|_| Malformed)?;
                let length = usize::try_from(length).map_err(|_| Malformed)?;
                let (value, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
                bytes = rest;
                Wire::Bytes(value)
            }
            _ => return Err(Malformed),
        };
        let known = message.fields.iter().position(|field| u64::from(field.number) == key >> 3);
        let Some(index) = known else { continue };
        let field = &message.fields[index];
        match value {
            Wire::Bytes(mut packed) if field.repeated && field.kind.is_varint() => {
                while !packed.is_empty() {
                    let value = decode_varint(&mut packed).map_err(|_| Malformed)?;
                    values.push((index, Wire::Varint(value)));
                }
            }
            value => values.push((index, value)),
        }
    }
    Ok(values)
}

fn is_default(field: &Field, value: Wire<'_>) -> bool {
    match value {
        // Of a number in 32 bits the upper half does not count.
        Wire::Varint(value) => match field.kind {
            Kind::Int32 | Kind::Uint32 | Kind::Enum(_) => value as u32 == 0,
            _ => value == 0,
        },
        Wire::Bytes(bytes) => bytes.is_empty() && !matches!(field.kind, Kind::Message(_)),
    }
}

fn print_value(
    field: &Field,
    value: Wire<'_>,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Malformed> {
    // Writing to memory does not fail.
    let mut write = |text: std::fmt::Arguments<'_>| out.write_fmt(text).map_err(|_| Malformed);
    match (field.kind, value) {
        (Kind::Bool, Wire::Varint(value)) => write(format_args!("{}", value != 0)),
        (Kind::Int32, Wire::Varint(value)) => write(format_args!("{}", value as i32)),
        (Kind::Uint32, Wire::Varint(value)) => write(format_args!("{}", value as u32)),
        (Kind::Int64, Wire::Varint(value)) => write(format_args!("\"{}\"", value as i64)),
        (Kind::Uint64, Wire::Varint(value)) => write(format_args!("\"{value}\"")),
        (Kind::Enum(values), Wire::Varint(value)) => {
            match values.iter().find(|(_, number)| *number == value as i32) {
                Some((name, _)) => write(format_args!("\"{name}\"")),
                None => write(format_args!("{}", value as i32)),
            }
        }
        (Kind::String, Wire::Bytes(bytes)) => {
            let text = std::str::from_utf8(bytes).map_err(|_| Malformed)?;
            serde_json::to_writer(out, text).map_err(|_| Malformed)
        }
        (Kind::Bytes, Wire::Bytes(bytes)) => {
            write(format_args!("\"{}\"", Base64Display::new(bytes, &BASE64_STANDARD)))
        }
        (Kind::Message(inner), Wire::Bytes(bytes)) => print_at(inner, bytes, out, depth + 1),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests;
