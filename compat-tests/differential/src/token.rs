//! Numbers that mean something else in every run: a revision relative to where the sequence began,
//! a lease id that the server chose, the server's own member id.
//!
//! In a message they are ordinary integers from ranges that nothing else uses; in text they are
//! `@+3` (three revisions after the beginning), `$lease1` (the first generated lease id) and `$self`.

use bytes::Bytes;

const REVISION: i64 = 1_000_000_000_000;
const LEASE: i64 = 2_000_000_000_000;
/// The server's own member id.
pub const SELF: i64 = 3_000_000_000_000;
const HALF_WIDTH: i64 = 100_000_000_000;

/// What a token stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// So many revisions after (or before) the beginning of the sequence.
    Revision(i64),
    /// The n-th generated lease id, from 1.
    Lease(usize),
    /// The server's own member id.
    OwnId,
}

/// The integer that stands for a revision relative to the beginning.
pub fn revision(offset: i64) -> i64 {
    REVISION + offset
}

/// The integer that stands for the n-th generated lease id, from 1.
pub fn lease(n: usize) -> i64 {
    LEASE + n as i64
}

/// What `value` stands for, unless it is a plain number.
pub fn decode(value: i64) -> Option<Token> {
    if value == SELF {
        Some(Token::OwnId)
    } else if (REVISION - HALF_WIDTH..REVISION + HALF_WIDTH).contains(&value) {
        Some(Token::Revision(value - REVISION))
    } else if value > LEASE && value < LEASE + HALF_WIDTH {
        Some(Token::Lease((value - LEASE) as usize))
    } else {
        None
    }
}

/// Replaces the tokens of a text message by their integers.
pub fn parse(text: &str) -> Result<String, String> {
    map_outside_quotes(text, |rest| {
        if let Some(after) = rest.strip_prefix("$self") {
            return Ok(Some((SELF.to_string(), rest.len() - after.len())));
        }
        if let Some(after) = rest.strip_prefix("$lease") {
            let digits = digits_of(after);
            let n: usize = after[..digits].parse().map_err(|_| "a number must follow $lease")?;
            return Ok(Some((lease(n).to_string(), "$lease".len() + digits)));
        }
        if let Some(after) = rest.strip_prefix('@') {
            let sign = usize::from(after.starts_with(['+', '-']));
            let digits = digits_of(&after[sign..]);
            let offset: i64 =
                after[..sign + digits].parse().map_err(|_| "a number must follow @")?;
            return Ok(Some((revision(offset).to_string(), 1 + sign + digits)));
        }
        Ok(None)
    })
}

/// Replaces integers that stand for something by their tokens.
pub fn print(text: &str) -> String {
    let mut previous_is_word = false;
    let mapped = map_outside_quotes(text, |rest| {
        let was_word = previous_is_word;
        previous_is_word = rest.starts_with(|c: char| c.is_ascii_alphanumeric());
        let digits = digits_of(rest);
        if digits == 0 || was_word {
            return Ok(None);
        }
        let token = rest[..digits].parse().ok().and_then(decode).map(name);
        Ok(token.map(|t| (t, digits)))
    });
    mapped.unwrap_or_else(|_| text.to_owned())
}

fn name(token: Token) -> String {
    match token {
        Token::Revision(offset) => format!("@{offset:+}"),
        Token::Lease(n) => format!("$lease{n}"),
        Token::OwnId => "$self".to_owned(),
    }
}

fn digits_of(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Calls `replace` at every position outside of a quoted string; it answers with a replacement and
/// the number of bytes that it replaces.
fn map_outside_quotes(
    text: &str,
    mut replace: impl FnMut(&str) -> Result<Option<(String, usize)>, &'static str>,
) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let (mut at, mut quoted) = (0, false);
    while let Some(c) = text[at..].chars().next() {
        if quoted && c == '\\' {
            let escaped = text[at + 1..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&text[at..at + 1 + escaped]);
            at += 1 + escaped;
            continue;
        }
        if c == '"' {
            quoted = !quoted;
        } else if !quoted && let Some((new, taken)) = replace(&text[at..])? {
            out.push_str(&new);
            at += taken;
            continue;
        }
        out.push(c);
        at += c.len_utf8();
    }
    Ok(out)
}

/// Expands `<fill:N>` to N bytes, so that a sequence with a large value stays readable.
pub fn expand(value: &Bytes) -> Option<Bytes> {
    let inner = value.strip_prefix(b"<fill:")?.strip_suffix(b">")?;
    let count: usize = std::str::from_utf8(inner).ok()?.parse().ok()?;
    Some(Bytes::from(vec![b'x'; count.min(64 << 20)]))
}

/// The reverse of [`expand`]: a long value of nothing but fill is named by its length.
pub fn collapse(value: &Bytes) -> Option<Bytes> {
    // Every byte equals the one before it: compared as blocks, since values of megabytes come by often.
    let fills = value.len() > 64 && value[0] == b'x' && value[1..] == value[..value.len() - 1];
    fills.then(|| Bytes::from(format!("<fill:{}>", value.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_integers_convert_both_ways() {
        let text = r#"revision:@-2,lease:$lease3,ID:$self,key:"@+1 \" $self",limit:12"#;
        let numbers = parse(text).unwrap();
        assert!(numbers.contains(&format!("revision:{}", revision(-2))), "{numbers}");
        assert!(numbers.contains(r#"key:"@+1 \" $self""#), "{numbers}");
        assert_eq!(print(&numbers), text);
    }

    #[test]
    fn plain_numbers_stand_for_themselves() {
        for value in [0, 1, -1, i64::MAX, i64::MIN, 9_000_000_000] {
            assert_eq!(decode(value), None);
        }
        assert!(parse("revision:@x").is_err());
    }

    #[test]
    fn a_fill_is_expanded() {
        assert_eq!(expand(&Bytes::from("<fill:3>")), Some(Bytes::from("xxx")));
        assert_eq!(expand(&Bytes::from("fill")), None);
        let long = expand(&Bytes::from("<fill:100>")).unwrap();
        assert_eq!(collapse(&long), Some(Bytes::from("<fill:100>")));
        assert_eq!(collapse(&Bytes::from("xxx")), None);
    }
}
