//! Reading the values of flags as Go's `flag` package does, so that what etcd accepts is accepted
//! here, and what it refuses is refused with the same words.

use super::url::Endpoint;

/// How the text of a flag is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Go's spellings of true and false; on the command line the value may be left out.
    Bool,
    /// Anything.
    Text,
    /// A signed 64-bit number in Go's notation (`0x`, `0b`, `0o` and `_` allowed).
    Int,
    /// An unsigned 64-bit number in Go's notation.
    Uint,
    /// An unsigned 32-bit number in Go's notation.
    Uint32,
    /// A Go duration such as `1h30m`.
    Duration,
    /// Comma-separated URLs, or one of the texts given here.
    Urls(&'static [&'static str]),
    /// Comma-separated texts.
    List,
    /// One of the given texts.
    Choice(&'static [&'static str]),
    /// Comma-separated, each one of the given texts.
    Choices(&'static [&'static str]),
    /// Feature gates, `Name=true,Other=false`.
    Gates,
    /// Accepted with or without any value, never read.
    Retired,
}

/// The feature gates of etcd 3.7.
const GATES: &[&str] = &[
    "AllAlpha",
    "AllBeta",
    "CompactHashCheck",
    "FastLeaseKeepAlive",
    "InitialCorruptCheck",
    "LeaseCheckpoint",
    "LeaseCheckpointPersist",
    "PriorityRequest",
    "SetMemberLocalAddr",
    "StopGRPCServiceOnDefrag",
    "TxnModeWriteWithSharedBuffer",
];

impl Kind {
    /// Whether the command line may leave the value out.
    pub fn is_switch(self) -> bool {
        matches!(self, Kind::Bool | Kind::Retired)
    }

    /// Checks `text`.
    ///
    /// # Errors
    /// What is wrong with it, in etcd's words.
    pub fn check(self, text: &str) -> Result<(), String> {
        match self {
            Kind::Text | Kind::List | Kind::Retired => Ok(()),
            Kind::Bool => parse_bool(text).map(drop).ok_or_else(|| "parse error".into()),
            Kind::Int => parse_int(text).map(drop).map_err(String::from),
            Kind::Uint => parse_uint(text).map(drop).map_err(String::from),
            Kind::Uint32 => parse_uint(text)
                .and_then(|n| u32::try_from(n).map_err(|_| OUT_OF_RANGE))
                .map(drop)
                .map_err(|why| {
                    let why = if why == PARSE_ERROR { "invalid syntax" } else { why };
                    format!("strconv.ParseUint: parsing {text:?}: {why}")
                }),
            Kind::Duration => parse_duration(text).map(drop).map_err(|_| PARSE_ERROR.into()),
            Kind::Urls(allowed) => {
                if allowed.contains(&text) {
                    return Ok(());
                }
                text.split(',').try_for_each(|url| Endpoint::parse(url).map(drop))
            }
            Kind::Choice(allowed) => {
                if allowed.contains(&text) {
                    Ok(())
                } else {
                    Err("invalid value".into())
                }
            }
            Kind::Choices(allowed) => match text.split(',').find(|part| !allowed.contains(part)) {
                Some(part) => Err(format!("invalid value {part:?}")),
                None => Ok(()),
            },
            Kind::Gates => check_gates(text),
        }
    }
}

const PARSE_ERROR: &str = "parse error";
const OUT_OF_RANGE: &str = "value out of range";

fn check_gates(text: &str) -> Result<(), String> {
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) =
            part.split_once('=').ok_or_else(|| format!("missing bool value for {part}"))?;
        let (name, value) = (name.trim(), value.trim());
        if parse_bool(value).is_none() {
            return Err(format!(
                "invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax"
            ));
        }
        if !GATES.contains(&name) {
            return Err(format!("unrecognized feature gate: {name}"));
        }
    }
    Ok(())
}

/// What is said of each feature gate that is named, the last word of each.
pub fn gates(text: &str) -> impl Iterator<Item = (&'static str, bool)> {
    let said = |of: &&'static str| {
        let pairs = text.split(',').filter_map(|part| part.split_once('='));
        let mine = pairs.filter(|(name, _)| name.trim() == *of);
        let on = mine.filter_map(|(_, value)| parse_bool(value.trim())).next_back();
        on.map(|on| (*of, on))
    };
    GATES.iter().filter_map(said)
}

/// Whether etcd has a feature gate on unless told otherwise.
pub fn gate_default(name: &str) -> bool {
    ["FastLeaseKeepAlive", "TxnModeWriteWithSharedBuffer"].contains(&name)
}

/// Whether a feature gate that is off by default, and not for everybody yet ("alpha"), is on. What is said of it
/// itself counts more than what is said of all; of several, the last.
pub fn alpha_gate(text: &str, name: &str) -> bool {
    let said = |of: &str| gates(text).find(|(name, _)| *name == of).map(|(_, on)| on);
    said(name).or_else(|| said("AllAlpha")).unwrap_or(false)
}

/// Go's `strconv.ParseBool`.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Go's `strconv.ParseUint(text, 0, 64)`.
pub fn parse_uint(text: &str) -> Result<u64, &'static str> {
    let lower = text.to_ascii_lowercase();
    let (digits, radix, prefixed) = match lower.get(..2) {
        Some("0x") => (&lower[2..], 16, true),
        Some("0b") => (&lower[2..], 2, true),
        Some("0o") => (&lower[2..], 8, true),
        _ if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8, true),
        _ => (lower.as_str(), 10, false),
    };
    let misplaced =
        digits.ends_with('_') || digits.contains("__") || (!prefixed && digits.starts_with('_'));
    let plain: String = digits.chars().filter(|&c| c != '_').collect();
    if misplaced || plain.is_empty() || !plain.chars().all(|c| c.is_digit(radix)) {
        return Err(PARSE_ERROR);
    }
    u64::from_str_radix(&plain, radix).map_err(|_| OUT_OF_RANGE)
}

/// Go's `strconv.ParseInt(text, 0, 64)`.
pub fn parse_int(text: &str) -> Result<i64, &'static str> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = i128::from(parse_uint(digits)?);
    i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| OUT_OF_RANGE)
}

/// Go's `time.ParseDuration`, in nanoseconds.
///
/// # Errors
/// Go's text, without the leading `time: `.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("invalid duration {text:?}");
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_len);
        let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(invalid());
        }
        let nanos = match unit {
            "" => return Err(format!("missing unit in duration {text:?}")),
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000_i128,
            _ => return Err(format!("unknown unit {unit:?} in duration {text:?}")),
        };
        total += scaled(whole, fraction, nanos).ok_or_else(invalid)?;
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// `whole.fraction` times `nanos`, rounded down; none when it is far beyond 64 bits.
fn scaled(whole: &str, fraction: &str, nanos: i128) -> Option<i128> {
    let whole = if whole.is_empty() { 0 } else { i128::from(whole.parse::<u64>().ok()?) };
    // Digits beyond the eighteenth are below a nanosecond even for hours.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = if fraction.is_empty() {
        0
    } else {
        i128::from(fraction.parse::<u64>().ok()?) * nanos
            / 10_i128.pow(u32::try_from(fraction.len()).ok()?)
    };
    Some(whole * nanos + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_counts_for_itself_first() {
        for (text, on) in [
            ("", false),
            ("CompactHashCheck=true", true),
            ("InitialCorruptCheck=true", false),
            (" CompactHashCheck = 1 , InitialCorruptCheck=false", true),
            ("AllAlpha=true", true),
            ("AllAlpha=true,CompactHashCheck=false", false),
            ("CompactHashCheck=true,AllAlpha=false", true),
            ("CompactHashCheck=true,CompactHashCheck=false", false),
        ] {
            assert_eq!(alpha_gate(text, "CompactHashCheck"), on, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, want) in [
            ("0", Ok(0)),
            ("128", Ok(128)),
            ("0x1F", Ok(31)),
            ("0b101", Ok(5)),
            ("0o17", Ok(15)),
            ("010", Ok(8)),
            ("1_000", Ok(1000)),
            ("_1", Err(PARSE_ERROR)),
            ("1__0", Err(PARSE_ERROR)),
            ("08", Err(PARSE_ERROR)),
            ("", Err(PARSE_ERROR)),
            ("-1", Err(PARSE_ERROR)),
            ("1e3", Err(PARSE_ERROR)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(OUT_OF_RANGE)),
        ] {
            assert_eq!(parse_uint(text), want, "{text}");
        }
        assert_eq!(parse_int("-5"), Ok(-5));
        assert_eq!(parse_int("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(parse_int("9223372036854775808"), Err(OUT_OF_RANGE));
        assert_eq!(parse_int("--5"), Err(PARSE_ERROR));
        assert_eq!(
            Kind::Uint32.check("-1"),
            Err("strconv.ParseUint: parsing \"-1\": invalid syntax".into())
        );
        assert_eq!(
            Kind::Uint32.check("4294967296"),
            Err("strconv.ParseUint: parsing \"4294967296\": value out of range".into())
        );
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, want) in [
            ("0", 0),
            ("1h30m", 5_400_000_000_000),
            ("100ms", 100_000_000),
            (".5s", 500_000_000),
            ("1.5h", 5_400_000_000_000),
            ("-2s", -2_000_000_000),
            ("+3us", 3_000),
            ("3µs", 3_000),
            ("1.s", 1_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(want), "{text}");
        }
        for text in ["", "-", "5", "s", "1.2.3s", ".s", "5x", "1h5", "9999999999h", "1 s", "٣s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration("5"), Err("missing unit in duration \"5\"".into()));
        assert_eq!(parse_duration("5x"), Err("unknown unit \"x\" in duration \"5x\"".into()));
    }

    #[test]
    fn gates_are_checked_by_name() {
        assert_eq!(Kind::Gates.check("CompactHashCheck=true, AllBeta=false"), Ok(()));
        assert_eq!(Kind::Gates.check("Foo=true"), Err("unrecognized feature gate: Foo".into()));
        assert_eq!(Kind::Gates.check("Foo"), Err("missing bool value for Foo".into()));
    }
}
