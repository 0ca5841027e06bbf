//! Field-by-field comparison of normalised answers.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage, Value};

use crate::client::{Answer, End};

/// The remaining time of a lease is read at slightly different moments; in whole seconds.
const TTL_WINDOW: i64 = 2;

/// The first place in which two answers differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The path to the field, such as `kvs[1].version`.
    pub path: String,
    /// What the reference has there.
    pub reference: String,
    /// What the subject has there.
    pub subject: String,
}

impl Mismatch {
    /// A mismatch at `path`.
    pub fn new(path: &str, reference: impl ToString, subject: impl ToString) -> Mismatch {
        Mismatch {
            path: path.to_owned(),
            reference: reference.to_string(),
            subject: subject.to_string(),
        }
    }
}

/// Compares all that two servers gave back for one call.
pub fn answers(reference: &Answer, subject: &Answer) -> Option<Mismatch> {
    if let Some(mismatch) = ends(&reference.end, &subject.end) {
        return Some(mismatch);
    }
    for (index, (left, right)) in reference.messages.iter().zip(&subject.messages).enumerate() {
        if let Some(mut mismatch) = messages(left, right) {
            if reference.messages.len() > 1 {
                mismatch.path = format!("answer {index}: {}", mismatch.path);
            }
            return Some(mismatch);
        }
    }
    let (left, right) = (reference.messages.len(), subject.messages.len());
    if left != right {
        return Some(Mismatch::new("number of messages", left, right));
    }
    (reference.http != subject.http).then(|| Mismatch::new("HTTP", &reference.http, &subject.http))
}

fn ends(reference: &End, subject: &End) -> Option<Mismatch> {
    if reference == subject {
        return None;
    }
    let text = |end: &End| match end {
        End::Ok => "OK".to_owned(),
        End::Failed(code, message, details) if details.is_empty() => format!("{code} {message}"),
        End::Failed(code, message, details) => {
            format!("{code} {message} details \"{}\"", details.escape_ascii())
        }
        End::Timeout => "no answer".to_owned(),
        End::Unreadable(error) => format!("an unreadable message: {error}"),
    };
    Some(Mismatch::new("status", text(reference), text(subject)))
}

/// Compares two messages of the same type.
pub fn messages(reference: &DynamicMessage, subject: &DynamicMessage) -> Option<Mismatch> {
    for field in reference.descriptor().fields() {
        let (left, right) = (reference.has_field(&field), subject.has_field(&field));
        if field.supports_presence() && left != right {
            let text = |message: &DynamicMessage, has| match has {
                true => value_text(&field, &message.get_field(&field)),
                false => "absent".to_owned(),
            };
            return Some(Mismatch::new(field.name(), text(reference, left), text(subject, right)));
        }
        if !left && !right {
            continue;
        }
        let (left, right) = (reference.get_field(&field), subject.get_field(&field));
        if let Some(mismatch) = values(&field, field.name(), &left, &right) {
            return Some(mismatch);
        }
    }
    let unknown = |m: &DynamicMessage| m.unknown_fields().map(|f| f.number()).collect::<Vec<_>>();
    let (left, right) = (unknown(reference), unknown(subject));
    let texts = || (format!("{left:?}"), format!("{right:?}"));
    (left != right).then(|| Mismatch::new("unknown fields", texts().0, texts().1))
}

fn values(field: &FieldDescriptor, path: &str, left: &Value, right: &Value) -> Option<Mismatch> {
    match (left, right) {
        (Value::Message(left), Value::Message(right)) => messages(left, right).map(|mut inner| {
            inner.path = format!("{path}.{}", inner.path);
            inner
        }),
        (Value::List(left), Value::List(right)) => {
            for (index, (l, r)) in left.iter().zip(right).enumerate() {
                if let Some(mismatch) = values(field, &format!("{path}[{index}]"), l, r) {
                    return Some(mismatch);
                }
            }
            let differs = left.len() != right.len();
            differs.then(|| Mismatch::new(&format!("number of {path}"), left.len(), right.len()))
        }
        _ if left == right || within_window(field, left, right) => None,
        _ => Some(Mismatch::new(path, value_text(field, left), value_text(field, right))),
    }
}

fn within_window(field: &FieldDescriptor, left: &Value, right: &Value) -> bool {
    let is_remaining =
        field.parent_message().name() == "LeaseTimeToLiveResponse" && field.name() == "TTL";
    match (left.as_i64(), right.as_i64()) {
        (Some(left), Some(right)) if is_remaining => {
            left >= 0 && right >= 0 && left.abs_diff(right) <= TTL_WINDOW as u64
        }
        _ => false,
    }
}

fn value_text(field: &FieldDescriptor, value: &Value) -> String {
    let text = match (value, field.kind()) {
        (Value::Bytes(bytes), _) => format!("\"{}\"", bytes.escape_ascii()),
        (Value::String(text), _) => format!("{text:?}"),
        (Value::Message(message), _) => format!("{{{}}}", crate::ops::message_text(message)),
        (Value::EnumNumber(number), Kind::Enum(names)) => names
            .get_value(*number)
            .map_or_else(|| number.to_string(), |value| value.name().to_owned()),
        (other, _) => crate::token::print(&other.to_string()),
    };
    crate::report::shortened(&text, 300)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::schema::Schema;

    fn output(method: &str, text: &str) -> DynamicMessage {
        DynamicMessage::parse_text_format(Schema::known(method).output.clone(), text).unwrap()
    }

    fn difference(method: &str, left: &str, right: &str) -> Option<(String, String, String)> {
        messages(&output(method, left), &output(method, right))
            .map(|m| (m.path, m.reference, m.subject))
    }

    fn at(path: &str, left: &str, right: &str) -> Option<(String, String, String)> {
        Some((path.into(), left.into(), right.into()))
    }

    #[test]
    fn equal_answers_have_no_mismatch() {
        let text = r#"header{revision:3},kvs:[{key:"a",version:1}],count:1"#;
        assert_eq!(difference("KV.Range", text, text), None);
    }

    #[test]
    fn the_first_differing_field_is_named() {
        let left = r#"kvs:[{key:"a"},{key:"b",version:1}],count:2"#;
        let right = r#"kvs:[{key:"a"},{key:"b",version:2}],count:3"#;
        assert_eq!(difference("KV.Range", left, right), at("kvs[1].version", "1", "2"));
        let right = r#"kvs:[{key:"a"}],count:2"#;
        assert_eq!(difference("KV.Range", left, right), at("number of kvs", "2", "1"));
    }

    #[test]
    fn an_empty_message_is_not_an_absent_one() {
        let found = difference("KV.Put", "prev_kv{}", "header{}");
        assert_eq!(found, at("header", "absent", "{}"));
        assert_eq!(difference("KV.Put", "", "prev_kv{}"), at("prev_kv", "absent", "{}"));
    }

    #[test]
    fn only_the_remaining_time_has_a_window() {
        let ttl = |n: i64| format!("ID:1,TTL:{n},grantedTTL:9");
        assert_eq!(difference("Lease.LeaseTimeToLive", &ttl(9), &ttl(8)), None);
        assert!(difference("Lease.LeaseTimeToLive", &ttl(9), &ttl(5)).is_some());
        assert!(difference("Lease.LeaseTimeToLive", &ttl(0), &ttl(-1)).is_some());
        assert!(difference("Lease.LeaseGrant", "TTL:9", "TTL:8").is_some());
    }

    #[test]
    fn codes_texts_and_numbers_of_messages_count() {
        let ok = Answer::ended(End::Ok);
        let failed = |code, text: &str| Answer::ended(End::Failed(code, text.into(), Bytes::new()));
        assert_eq!(answers(&failed(3, "a"), &failed(3, "a")), None);
        assert!(answers(&failed(3, "a"), &failed(3, "b")).is_some());
        assert!(answers(&failed(3, "a"), &failed(5, "a")).is_some());
        assert!(answers(&ok, &failed(3, "a")).is_some());
        let one = Answer { messages: vec![output("KV.Put", "")], ..ok.clone() };
        assert!(answers(&ok, &one).is_some());
        let created = Answer { http: "201".into(), ..ok.clone() };
        assert!(answers(&ok, &created).is_some());
    }
}
