//! Between a sequence's messages and one server's: tokens become that server's numbers in requests,
//! and in answers that server's numbers become tokens again.
//!
//! [`Binding::normalise`] is the complete list of what is not compared as it is.

use prost_reflect::{DynamicMessage, FieldDescriptor, ReflectMessage, Value};

use crate::token::{self, Token};

/// What tokens stand for on one server.
#[derive(Debug, Clone, Default)]
pub struct Binding {
    /// The revision at which the sequence began.
    pub base: i64,
    /// The server's own member id.
    pub member_id: u64,
    /// The lease ids that the server generated, in order.
    pub leases: Vec<i64>,
    /// True when keys carry generated lease ids, which the hash of the keyspace covers.
    pub hash_depends_on_leases: bool,
    /// True when the order of leases that end at the same time is arbitrary in etcd.
    pub lease_order_is_arbitrary: bool,
}

impl Binding {
    /// The number that `value` stands for on this server.
    pub fn number(&self, value: i64) -> i64 {
        match token::decode(value) {
            Some(Token::Revision(offset)) => self.base + offset,
            Some(Token::Lease(n)) => self.leases.get(n - 1).copied().unwrap_or(value),
            Some(Token::OwnId) => self.member_id as i64,
            None => value,
        }
    }

    /// A request as this server gets it.
    pub fn request(&self, message: &DynamicMessage) -> DynamicMessage {
        let mut message = message.clone();
        for_each_value(&mut message, &mut |_, value| match value {
            Value::I64(n) => *n = self.number(*n),
            Value::U64(n) if *n <= i64::MAX as u64 => *n = self.number(*n as i64) as u64,
            Value::Bytes(bytes) => {
                if let Some(expanded) = token::expand(bytes) {
                    *bytes = expanded;
                }
            }
            _ => {}
        });
        message
    }

    /// An answer without what may differ between two servers that behave the same.
    pub fn normalise(&self, message: &mut DynamicMessage) {
        for_each_value(message, &mut |field, value| {
            match (field.parent_message().name(), field.name()) {
                // Identity and Raft's own numbers: only whether they are there.
                ("ResponseHeader", "cluster_id" | "member_id" | "raft_term")
                | ("StatusResponse", "leader" | "raftIndex" | "raftTerm" | "raftAppliedIndex")
                // Sizes of the storage.
                | ("StatusResponse", "dbSize" | "dbSizeInUse")
                | ("SnapshotResponse", "remaining_bytes" | "blob") => presence(value),
                ("Member", "ID") => self.member(value),
                ("AlarmMember", "memberID") => self.own_id(value),
                ("StatusResponse", "errors") => {
                    if let Value::String(text) = value {
                        *text = one_space(&self.text(text));
                    }
                }
                ("AuthenticateResponse", "token") => presence(value),
                ("KeyValue", "lease")
                | ("LeaseGrantResponse" | "LeaseKeepAliveResponse", "ID")
                | ("LeaseTimeToLiveResponse" | "LeaseStatus", "ID") => self.lease(value),
                ("HashKVResponse", "hash") if self.hash_depends_on_leases => presence(value),
                // Says the same in fewer bytes.
                _ => {
                    if let Value::Bytes(bytes) = value
                        && let Some(short) = token::collapse(bytes)
                    {
                        *bytes = short;
                    }
                }
            }
        });
        self.sort_what_has_no_order(message);
    }

    /// etcd takes these lists from hash maps, so that their order is a different one each time.
    fn sort_what_has_no_order(&self, message: &mut DynamicMessage) {
        let number = |value: &Value, field: &str| -> Option<i64> {
            let field = value.as_message()?.get_field_by_name(field)?;
            field.as_i64().or(field.as_u64().map(|n| n as i64))
        };
        match message.descriptor().name() {
            "LeaseTimeToLiveResponse" => sort_list(message, "keys", |v| v.as_bytes().cloned()),
            "LeaseLeasesResponse" if self.lease_order_is_arbitrary => {
                sort_list(message, "leases", |value| number(value, "ID"));
            }
            "AlarmResponse" => {
                let alarm = |value: &Value| {
                    value.as_message()?.get_field_by_name("alarm")?.as_enum_number()
                };
                sort_list(message, "alarms", |value| (number(value, "memberID"), alarm(value)));
            }
            "StatusResponse" => {
                sort_list(message, "errors", |value| value.as_str().map(str::to_owned));
            }
            _ => {}
        }
    }

    /// An error's or an alarm's text with the member's own id named. In the texts of Go's protobuf
    /// library a space may be a non-breaking one, decided by a hash of the program.
    pub fn text(&self, text: &str) -> String {
        text.replace('\u{a0}', " ")
            .replace(&self.member_id.to_string(), "$self")
            .replace(&format!("{:x}", self.member_id), "$self")
    }

    fn lease(&self, value: &mut Value) {
        if let Value::I64(id) = value
            && let Some(n) = self.leases.iter().position(|known| known == id)
        {
            *id = token::lease(n + 1);
        }
    }

    fn own_id(&self, value: &mut Value) {
        if let Value::U64(id) = value
            && *id == self.member_id
        {
            *id = token::SELF as u64;
        }
    }

    /// Ids of members are made from the time and the cluster's name.
    fn member(&self, value: &mut Value) {
        self.own_id(value);
        if *value != Value::U64(token::SELF as u64) {
            presence(value);
        }
    }
}

/// Go's protobuf library puts one or two spaces between the fields of a message's text, decided by a
/// hash of the program.
fn one_space(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn presence(value: &mut Value) {
    match value {
        Value::I64(n) => *n = n.signum(),
        Value::U64(n) => *n = u64::from(*n != 0),
        Value::U32(n) => *n = u32::from(*n != 0),
        Value::Bytes(bytes) => bytes.truncate(1),
        Value::String(text) if !text.is_empty() => "some".clone_into(text),
        _ => {}
    }
}

fn sort_list<K: Ord>(message: &mut DynamicMessage, field: &str, key: impl Fn(&Value) -> K) {
    if let Some(Value::List(items)) = message.get_field_by_name_mut(field) {
        items.sort_by_key(key);
    }
}

/// Visits every scalar of a message, at any depth, and every element of its lists.
fn for_each_value(
    message: &mut DynamicMessage,
    visit: &mut impl FnMut(&FieldDescriptor, &mut Value),
) {
    for (field, value) in message.fields_mut() {
        visit_value(&field, value, visit);
    }
}

fn visit_value(
    field: &FieldDescriptor,
    value: &mut Value,
    visit: &mut impl FnMut(&FieldDescriptor, &mut Value),
) {
    match value {
        Value::Message(message) => for_each_value(message, visit),
        Value::List(items) => {
            for item in items {
                visit_value(field, item, visit);
            }
        }
        scalar => visit(field, scalar),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Sequence, message_text};

    fn binding() -> Binding {
        Binding { base: 100, member_id: 77, leases: vec![5005, 6006], ..Binding::default() }
    }

    fn request(line: &str) -> DynamicMessage {
        let sequence = Sequence::parse("test", line).unwrap();
        binding().request(sequence.ops[0].request().unwrap())
    }

    #[test]
    fn tokens_become_numbers() {
        let put = request(r#"KV.Put {key:"<fill:3>",lease:$lease2}"#);
        assert_eq!(message_text(&put), r#"key:"xxx",lease:6006"#);
        let range = request(r#"KV.Range {key:"a",revision:@-1,limit:-3}"#);
        assert_eq!(message_text(&range), r#"key:"a",limit:-3,revision:99"#);
        assert_eq!(
            message_text(&request("Maintenance.MoveLeader {targetID:$self}")),
            "targetID:77"
        );
    }

    #[test]
    fn numbers_become_tokens() {
        let method = crate::schema::Schema::known("KV.Range");
        let text = r#"header{cluster_id:9,member_id:77,revision:3},kvs:[{lease:6006},{lease:7}]"#;
        let mut answer = DynamicMessage::parse_text_format(method.output.clone(), text).unwrap();
        binding().normalise(&mut answer);
        let expected =
            r#"header{cluster_id:1,member_id:1,revision:3},kvs:[{lease:$lease2},{lease:7}]"#;
        assert_eq!(message_text(&answer), expected);
        assert_eq!(binding().text("memberID:77 alarm:NOSPACE"), "memberID:$self alarm:NOSPACE");
    }
}
