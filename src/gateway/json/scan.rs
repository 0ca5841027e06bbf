//! Finds where a JSON value ends in bytes that come in pieces.
//!
//! Errors are told in the words of the implementation behind etcd. Nesting is bounded, and costs
//! heap, not stack.

use std::ops::Range;

/// Arrays and objects within each other.
const DEPTH_MAX: usize = 10_000;

/// What a container holds next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Key,
    Member,
    Element,
}

/// What the next byte may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    AfterValue,
    InString,
    Escape,
    /// Hexadecimal digits that are still to come.
    Hex(u8),
    Negative,
    Zero,
    Digits,
    Dot,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// A word, and how much of it has come.
    Word(&'static str, usize),
}

/// Whether a value goes on behind a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    On,
    /// The value ends with this byte.
    Ended,
    /// The value ended before this byte.
    EndedBefore,
}

/// Looks for the end of one value after the other.
#[derive(Debug)]
pub struct Scanner {
    open: Vec<Open>,
    state: State,
    /// Where the value began.
    start: Option<usize>,
    /// Bytes that have been looked at.
    at: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { open: Vec::new(), state: State::Value, start: None, at: 0 }
    }
}

impl Scanner {
    /// The place of the next value in `text`, which is what was there at the last call and whatever has
    /// come since; `None` if its end is not there yet, or there is none any more. Behind a value the
    /// caller takes away what lies before its end.
    ///
    /// # Errors
    /// What is wrong with the text; with `ended`, also that it ends within a value.
    pub fn next(&mut self, text: &[u8], ended: bool) -> Result<Option<Range<usize>>, String> {
        while let Some(&byte) = text.get(self.at) {
            let begun = self.start.is_some();
            if !begun && is_space(byte) {
                self.at += 1;
                continue;
            }
            let start = *self.start.get_or_insert(self.at);
            if self.state == State::InString {
                let plain = text[self.at..].iter().take_while(|&&byte| is_plain(byte)).count();
                if plain > 0 {
                    self.at += plain;
                    continue;
                }
            }
            match self.step(byte)? {
                Step::On => self.at += 1,
                Step::Ended => return Ok(Some(self.finish(start, self.at + 1))),
                Step::EndedBefore => return Ok(Some(self.finish(start, self.at))),
            }
        }
        let Some(start) = self.start.filter(|_| ended) else { return Ok(None) };
        // A number ends only with what follows it.
        match self.step(b' ') {
            Ok(Step::EndedBefore) => Ok(Some(self.finish(start, self.at))),
            _ => Err("unexpected EOF".to_owned()),
        }
    }

    fn finish(&mut self, start: usize, end: usize) -> Range<usize> {
        *self = Self::default();
        start..end
    }

    fn step(&mut self, byte: u8) -> Result<Step, String> {
        match self.state {
            State::Value | State::ValueOrEnd => {
                if is_space(byte) {
                    return Ok(Step::On);
                }
                if byte == b']' && self.state == State::ValueOrEnd {
                    return Ok(self.close());
                }
                self.begin(byte)
            }
            State::Key | State::KeyOrEnd => match byte {
                _ if is_space(byte) => Ok(Step::On),
                b'}' if self.state == State::KeyOrEnd => Ok(self.close()),
                b'"' => self.become_(State::InString),
                _ => Err(invalid(byte, "looking for beginning of object key string")),
            },
            State::AfterValue => self.after_value(byte),
            State::InString => match byte {
                b'"' => Ok(self.value_ended()),
                b'\\' => self.become_(State::Escape),
                0..0x20 => Err(invalid(byte, "in string literal")),
                _ => Ok(Step::On),
            },
            State::Escape => match byte {
                b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {
                    self.become_(State::InString)
                }
                b'u' => self.become_(State::Hex(4)),
                _ => Err(invalid(byte, "in string escape code")),
            },
            State::Hex(left) => match byte {
                _ if !byte.is_ascii_hexdigit() => {
                    Err(invalid(byte, "in \\u hexadecimal character escape"))
                }
                _ if left == 1 => self.become_(State::InString),
                _ => self.become_(State::Hex(left - 1)),
            },
            State::Word(word, matched) => {
                let expected = word.as_bytes().get(matched).copied().unwrap_or_default();
                if byte != expected {
                    let expected = char::from(expected);
                    let context = format!("in literal {word} (expecting '{expected}')");
                    return Err(invalid(byte, &context));
                }
                if matched + 1 == word.len() {
                    return Ok(self.value_ended());
                }
                self.become_(State::Word(word, matched + 1))
            }
            _ => self.number(byte),
        }
    }

    fn become_(&mut self, state: State) -> Result<Step, String> {
        self.state = state;
        Ok(Step::On)
    }

    fn begin(&mut self, byte: u8) -> Result<Step, String> {
        let state = match byte {
            b'{' | b'[' => {
                if self.open.len() == DEPTH_MAX {
                    return Err(invalid(byte, "exceeded max depth"));
                }
                let object = byte == b'{';
                self.open.push(if object { Open::Key } else { Open::Element });
                if object { State::KeyOrEnd } else { State::ValueOrEnd }
            }
            b'"' => State::InString,
            b'-' => State::Negative,
            b'0' => State::Zero,
            b'1'..=b'9' => State::Digits,
            b't' => State::Word("true", 1),
            b'f' => State::Word("false", 1),
            b'n' => State::Word("null", 1),
            _ => return Err(invalid(byte, "looking for beginning of value")),
        };
        self.become_(state)
    }

    fn number(&mut self, byte: u8) -> Result<Step, String> {
        use State::{
            Digits, Dot, Exponent, ExponentDigits, ExponentSign, Fraction, Negative, Zero,
        };
        let (state, digit) = (self.state, byte.is_ascii_digit());
        let next = match (state, byte) {
            (Negative, b'0') => Zero,
            (Negative, _) if digit => Digits,
            (Negative, _) => return Err(invalid(byte, "in numeric literal")),
            (Digits, _) if digit => Digits,
            (Zero | Digits, b'.') => Dot,
            (Dot | Fraction, _) if digit => Fraction,
            (Dot, _) => return Err(invalid(byte, "after decimal point in numeric literal")),
            (Zero | Digits | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => ExponentSign,
            (Exponent | ExponentSign | ExponentDigits, _) if digit => ExponentDigits,
            (Exponent | ExponentSign, _) => {
                return Err(invalid(byte, "in exponent of numeric literal"));
            }
            _ => {
                // The number has ended, and this byte belongs to what follows.
                return match self.value_ended() {
                    Step::Ended => Ok(Step::EndedBefore),
                    _ => self.after_value(byte),
                };
            }
        };
        self.become_(next)
    }

    fn after_value(&mut self, byte: u8) -> Result<Step, String> {
        if is_space(byte) {
            return Ok(Step::On);
        }
        match (self.open.last_mut(), byte) {
            (Some(open @ Open::Key), b':') => {
                *open = Open::Member;
                self.become_(State::Value)
            }
            (Some(Open::Key), _) => Err(invalid(byte, "after object key")),
            (Some(open @ Open::Member), b',') => {
                *open = Open::Key;
                self.become_(State::Key)
            }
            (Some(Open::Member), b'}') | (Some(Open::Element), b']') => Ok(self.close()),
            (Some(Open::Member), _) => Err(invalid(byte, "after object key:value pair")),
            (Some(Open::Element), b',') => self.become_(State::Value),
            (Some(Open::Element), _) => Err(invalid(byte, "after array element")),
            (None, _) => Err(invalid(byte, "after top-level value")),
        }
    }

    fn close(&mut self) -> Step {
        self.open.pop();
        self.value_ended()
    }

    fn value_ended(&mut self) -> Step {
        self.state = State::AfterValue;
        if self.open.is_empty() { Step::Ended } else { Step::On }
    }
}

/// Whether a byte within a string stands for itself, and nothing else.
fn is_plain(byte: u8) -> bool {
    byte >= 0x20 && byte != b'"' && byte != b'\\'
}

/// Whether JSON allows the byte between its parts.
pub fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn invalid(byte: u8, context: &str) -> String {
    let shown = match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        0x07 => r"'\a'".to_owned(),
        0x08 => r"'\b'".to_owned(),
        0x0b => r"'\v'".to_owned(),
        0x0c => r"'\f'".to_owned(),
        0x00..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        0x80..=0xa0 | 0xad => format!("'\\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    };
    format!("invalid character {shown} {context}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All values of a text, given in pieces of one size, and the error at its end.
    fn values(text: &str, size: usize) -> (Vec<String>, Option<String>) {
        let (mut scanner, mut buffer, mut found) = (Scanner::default(), Vec::new(), Vec::new());
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
        for at in 0..=pieces.len() {
            let ended = at == pieces.len();
            buffer.extend_from_slice(pieces.get(at).copied().unwrap_or_default());
            loop {
                match scanner.next(&buffer, ended) {
                    Ok(Some(place)) => {
                        let value = buffer[place.clone()].to_vec();
                        found.push(String::from_utf8(value).unwrap());
                        buffer.drain(..place.end);
                    }
                    Ok(None) => break,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    }

    #[test]
    fn values_are_found_however_the_text_is_cut() {
        let text = " {\"a\":[1,-2.5e+3,{}],\"\\u00e9\\\"}\":\"]\"}\n[]12 null true\t\"x\" 0";
        let want = [
            "{\"a\":[1,-2.5e+3,{}],\"\\u00e9\\\"}\":\"]\"}",
            "[]",
            "12",
            "null",
            "true",
            "\"x\"",
            "0",
        ];
        for size in 1..=text.len() {
            let (found, error) = values(text, size);
            assert_eq!((&found[..], error), (&want.map(str::to_owned)[..], None), "in {size}");
        }
    }

    #[test]
    fn errors_name_the_character_and_its_place() {
        for (text, want) in [
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{]", "invalid character ']' looking for beginning of object key string"),
            ("{\"a\" 1", "invalid character '1' after object key"),
            ("{\"a\":1 2", "invalid character '2' after object key:value pair"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("[1 2", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("\"\n", "invalid character '\\n' in string literal"),
            ("\"some more\n", "invalid character '\\n' in string literal"),
            ("\"\\x", "invalid character 'x' in string escape code"),
            ("\"\\u00g", "invalid character 'g' in \\u hexadecimal character escape"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("[01]", "invalid character '1' after array element"),
            ("{", "unexpected EOF"),
            ("\"a", "unexpected EOF"),
            ("tru", "unexpected EOF"),
            ("1.", "unexpected EOF"),
        ] {
            for size in [1, 64] {
                assert_eq!(values(text, size).1.as_deref(), Some(want), "{text} in {size}");
            }
        }
        assert_eq!(values("  \n ", 2), (Vec::new(), None));
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(values(&nested(DEPTH_MAX), 4096).1, None);
        let error = values(&nested(DEPTH_MAX + 1), 4096).1;
        assert_eq!(error.as_deref(), Some("invalid character '[' exceeded max depth"));
    }
}
