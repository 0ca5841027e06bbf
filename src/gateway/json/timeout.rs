//! How long a call may take: the header is read by the rule of etcd's gateway, which is another than
//! gRPC's.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use tonic::Status;

const NAME: HeaderName = HeaderName::from_static("grpc-timeout");
/// Units and their nanoseconds, the shortest first.
const UNITS: [(u8, i64); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60_000_000_000),
    (b'H', 3_600_000_000_000),
];
/// Above what gRPC's header can hold: it has eight digits.
const AMOUNT_END: u64 = 100_000_000;

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// As long as it likes.
    Never,
    /// So many nanoseconds, not 0.
    In(u64),
    /// The time is over before the call.
    Passed,
}

impl Timeout {
    /// What the headers of a request say. Any number of digits will do, and a sign; what does not fit
    /// into 64 bits of nanoseconds loses its upper bits.
    ///
    /// # Errors
    /// A timeout that is none.
    pub fn of(headers: &HeaderMap) -> Result<Self, Status> {
        let text = headers.get(NAME).map_or(&b""[..], HeaderValue::as_bytes);
        if text.is_empty() {
            return Ok(Self::Never);
        }
        let Some(nanos) = nanos(text) else {
            let text = String::from_utf8_lossy(text);
            return Err(Status::invalid_argument(format!("invalid grpc-timeout: {text}")));
        };
        Ok(match u64::try_from(nanos) {
            Ok(0) => Self::Never,
            Ok(nanos) => Self::In(nanos),
            Err(_) => Self::Passed,
        })
    }

    /// Whether nothing of it is left so long after it began.
    pub fn is_over(self, elapsed: Duration) -> bool {
        match self {
            Self::Never => false,
            Self::In(nanos) => elapsed >= Duration::from_nanos(nanos),
            Self::Passed => true,
        }
    }

    /// Tells a call of it, as gRPC does: rounded up to what has eight digits.
    pub fn put_into(self, metadata: &mut HeaderMap) {
        let Self::In(nanos) = self else { return };
        let told = UNITS.iter().find_map(|(unit, length)| {
            let amount = nanos.div_ceil(length.unsigned_abs());
            let text = || format!("{amount}{}", char::from(*unit));
            (amount < AMOUNT_END).then(|| HeaderValue::try_from(text()).ok()).flatten()
        });
        if let Some(told) = told {
            metadata.insert(NAME, told);
        }
    }
}

fn nanos(text: &[u8]) -> Option<i64> {
    let (unit, digits) = text.split_last()?;
    let (_, length) = UNITS.iter().find(|(known, _)| known == unit)?;
    let amount: i64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(amount.wrapping_mul(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> Result<Timeout, String> {
        let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_static(text))]);
        Timeout::of(&headers).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn timeouts_are_read_as_by_the_gateway_of_etcd() {
        for (text, want) in [
            ("1S", Timeout::In(1_000_000_000)),
            ("+5m", Timeout::In(5_000_000)),
            ("1000000000n", Timeout::In(1_000_000_000)),
            ("", Timeout::Never),
            ("0S", Timeout::Never),
            ("-0H", Timeout::Never),
            ("-1S", Timeout::Passed),
            // More than 64 bits hold.
            ("99999999H", Timeout::Passed),
        ] {
            assert_eq!(read(text), Ok(want), "{text:?}");
        }
        for text in ["x", "1", "S", "1s", "--1S", "1.5S", "9223372036854775808n"] {
            assert_eq!(read(text), Err(format!("invalid grpc-timeout: {text}")), "{text:?}");
        }
        assert_eq!(Timeout::of(&HeaderMap::new()).ok(), Some(Timeout::Never));
    }

    #[test]
    fn calls_are_told_of_them_in_eight_digits() {
        for (timeout, want) in [
            (Timeout::In(1), Some("1n")),
            (Timeout::In(99_999_999), Some("99999999n")),
            (Timeout::In(100_000_001), Some("100001u")),
            (Timeout::In(i64::MAX.unsigned_abs()), Some("2562048H")),
            (Timeout::Never, None),
            (Timeout::Passed, None),
        ] {
            let mut metadata = HeaderMap::new();
            timeout.put_into(&mut metadata);
            let told = metadata.get(NAME).map(|value| value.to_str().expect("text"));
            assert_eq!(told, want, "{timeout:?}");
        }
    }
}
