//! Errors below the API, in the words of the gRPC implementation that etcd uses.
//!
//! Clients match on some of these texts (the size limit above all), so what our gRPC library says
//! is translated in this one place.

use http::HeaderValue;
use tonic::{Code, Status};

use crate::telemetry::methods::Flow;

/// Translates an error that our gRPC library made while receiving a message; none if it is not one
/// of these. In a stream, in either direction, the same errors have other words than in a unary
/// call.
pub fn translate(status: &Status, flow: Flow) -> Option<Status> {
    let decoding = match flow {
        Flow::Unary => "error unmarshalling request",
        Flow::ServerStream | Flow::BidiStream => "failed to unmarshal the received message",
    };
    let message = status.message();
    match status.code() {
        Code::OutOfRange => {
            let rest = message.strip_prefix("Error, decoded message length too large: found ")?;
            let (found, rest) = rest.split_once(" bytes, the limit is: ")?;
            let limit = rest.strip_suffix(" bytes")?;
            let text = format!("grpc: received message larger than max ({found} vs. {limit})");
            Some(Status::resource_exhausted(text))
        }
        Code::Unimplemented => {
            let rest = message.strip_prefix("Content is compressed with `")?;
            let (encoding, _) = rest.split_once('`')?;
            Some(Status::unimplemented(format!(
                "grpc: Decompressor is not installed for grpc-encoding {encoding:?}"
            )))
        }
        Code::ResourceExhausted => {
            let rest = message.strip_prefix("Error decompressing: size limit, of ")?;
            let (limit, _) = rest.split_once(' ')?;
            Some(Status::resource_exhausted(format!(
                "grpc: received message after decompression larger than max {limit}"
            )))
        }
        Code::Internal => translate_internal(message, decoding),
        _ => None,
    }
}

fn translate_internal(message: &str, decoding: &str) -> Option<Status> {
    if message.starts_with("failed to decode Protobuf message: ") {
        let why = if message.contains("UTF-8") {
            "string field contains invalid UTF-8"
        } else {
            "proto: cannot parse invalid wire-format data"
        };
        return Some(Status::internal(format!("grpc: {decoding}: {why}")));
    }
    if message.starts_with("protocol error: received message with compressed-flag but no") {
        let text = "grpc: compressed flag set with identity or empty encoding";
        return Some(Status::internal(text));
    }
    let flag = "protocol error: received message with invalid compression flag: ";
    if let Some(rest) = message.strip_prefix(flag) {
        let format = rest.split(' ').next().unwrap_or_default();
        return Some(Status::internal(format!(
            "grpc: received unexpected payload format {format}"
        )));
    }
    if let Some(rest) = message.strip_prefix("Error decompressing: ") {
        let why = match rest.split(", while").next().unwrap_or(rest) {
            "invalid gzip header" => "gzip: invalid header",
            "unexpected end of file" => "unexpected EOF",
            other => other,
        };
        return Some(Status::internal(format!("grpc: failed to decompress the message: {why}")));
    }
    match message {
        "Unexpected EOF decoding stream." => Some(Status::unknown("unexpected EOF")),
        "Missing request message." => Some(Status::unknown("EOF")),
        _ => None,
    }
}

/// A refusal before any service is asked, with the HTTP status that grpc-go gives it.
#[derive(Debug)]
pub struct Refusal {
    /// The HTTP status.
    pub http: http::StatusCode,
    /// The gRPC status.
    pub status: Status,
}

/// Checks that a request is a gRPC call in form.
///
/// # Errors
/// The refusal to answer with.
pub fn check_call(request: &http::request::Parts) -> Result<(), Refusal> {
    let content_type = request.headers.get(http::header::CONTENT_TYPE);
    if !content_type.is_some_and(is_grpc) {
        let text = content_type.map_or("", |value| value.to_str().unwrap_or(""));
        return Err(Refusal {
            http: http::StatusCode::UNSUPPORTED_MEDIA_TYPE,
            status: Status::invalid_argument(format!("invalid gRPC request content-type {text:?}")),
        });
    }
    if request.method != http::Method::POST {
        return Err(Refusal {
            http: http::StatusCode::METHOD_NOT_ALLOWED,
            status: Status::internal(format!(
                "Received a HEADERS frame with :method {:?} which should be POST",
                request.method.as_str()
            )),
        });
    }
    Ok(())
}

/// Whether a request's content type mentions gRPC: as etcd tells gRPC from HTTP over TLS.
pub fn claims_grpc(headers: &http::HeaderMap) -> bool {
    let content_type = headers.get(http::header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let name = b"application/grpc";
    content_type.is_some_and(|text| text.windows(name.len()).any(|part| part == name))
}

/// Whether a content type is gRPC's: alone, with a `+codec` or with `;parameters`.
fn is_grpc(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    let name = b"application/grpc";
    bytes.len() >= name.len()
        && bytes[..name.len()].eq_ignore_ascii_case(name)
        && matches!(bytes.get(name.len()), None | Some(b'+' | b';'))
}

/// Reads the time that the client allows for a call.
///
/// # Errors
/// The refusal to answer with when the header makes no sense.
pub fn timeout(headers: &http::HeaderMap) -> Result<Option<std::time::Duration>, Refusal> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let text = value.to_str().unwrap_or("");
    let refuse = |why: String| Refusal {
        http: http::StatusCode::BAD_REQUEST,
        status: Status::internal(format!("malformed grpc-timeout: {why}")),
    };
    if text.len() < 2 {
        return Err(refuse(format!("transport: timeout string is too short: {text:?}")));
    }
    if text.len() > 9 {
        return Err(refuse(format!("transport: timeout string is too long: {text:?}")));
    }
    let (digits, unit) = text.split_at_checked(text.len() - 1).unwrap_or((text, ""));
    let nanos_per_unit: u64 = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return Err(refuse(format!("transport: timeout unit is not recognized: {text:?}"))),
    };
    let amount: u64 = digits
        .parse()
        .map_err(|_| refuse(format!("strconv.ParseUint: parsing {digits:?}: invalid syntax")))?;
    Ok(Some(std::time::Duration::from_nanos(amount.saturating_mul(nanos_per_unit))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn library_texts_become_those_of_grpc_go() {
        for (code, message, want_code, want) in [
            (
                Code::OutOfRange,
                "Error, decoded message length too large: found 9 bytes, the limit is: 5 bytes",
                Code::ResourceExhausted,
                "grpc: received message larger than max (9 vs. 5)",
            ),
            (
                Code::Internal,
                "failed to decode Protobuf message: unexpected end group tag",
                Code::Internal,
                "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
            ),
            (
                Code::Internal,
                "failed to decode Protobuf message: AuthenticateRequest.name: invalid string value: data is not UTF-8 encoded",
                Code::Internal,
                "grpc: error unmarshalling request: string field contains invalid UTF-8",
            ),
            (
                Code::Unimplemented,
                "Content is compressed with `zstd` which isn't supported",
                Code::Unimplemented,
                "grpc: Decompressor is not installed for grpc-encoding \"zstd\"",
            ),
            (
                Code::ResourceExhausted,
                "Error decompressing: size limit, of 5 bytes, exceeded while decompressing message",
                Code::ResourceExhausted,
                "grpc: received message after decompression larger than max 5",
            ),
            (Code::Internal, "Missing request message.", Code::Unknown, "EOF"),
            (Code::Internal, "Unexpected EOF decoding stream.", Code::Unknown, "unexpected EOF"),
        ] {
            let status = translate(&Status::new(code, message), Flow::Unary).expect(message);
            assert_eq!((status.code(), status.message()), (want_code, want));
        }
        for (code, message) in [
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            (Code::Internal, "something else"),
            (Code::InvalidArgument, "failed to decode Protobuf message: x"),
        ] {
            assert!(translate(&Status::new(code, message), Flow::Unary).is_none(), "{message}");
        }
        let status = Status::internal("failed to decode Protobuf message: x");
        let status = translate(&status, Flow::BidiStream).expect("translated");
        let want = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data";
        assert_eq!(status.message(), want);
    }

    #[test]
    fn timeouts_are_read_or_refused() {
        let read = |text: &'static str| {
            let mut headers = http::HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            timeout(&headers).map_err(|refusal| refusal.status.message().to_owned())
        };
        assert_eq!(read("1S"), Ok(Some(Duration::from_secs(1))));
        assert_eq!(read("250m"), Ok(Some(Duration::from_millis(250))));
        assert_eq!(read("99999999H"), Ok(Some(Duration::from_nanos(u64::MAX))));
        assert_eq!(
            read("xx"),
            Err("malformed grpc-timeout: transport: timeout unit is not recognized: \"xx\"".into())
        );
        for bad in ["", "1", "S", "-1S", "123456789S", "1.5S"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_grpc_content_types_pass() {
        for (text, ok) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC;charset=x", true),
            ("application/grpc-web", false),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(is_grpc(&HeaderValue::from_static(text)), ok, "{text}");
        }
    }
}
