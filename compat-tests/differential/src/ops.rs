//! A sequence of operations, and its text form.
//!
//! A sequence file has one operation a line:
//!
//! ```text
//! # why this case exists
//! !burst
//! KV.Put {key:"a",value:"1"}
//! watch s {create_request {key:"a",start_revision:@+1}}
//! keepalive k {ID:$lease1}
//! close s
//! await-expiry $lease1
//! as ann annpw
//! raw /etcdserverpb.KV/Nope "\001"
//! json POST /v3/kv/range application/json "{}"
//! restart
//! kill
//! ```
//!
//! `{...}` is the request in protobuf's text format, with the tokens of [`crate::token`].

use std::fmt::Write;

use bytes::Bytes;
use prost_reflect::DynamicMessage;
use prost_reflect::text_format::FormatOptions;

use crate::json;
use crate::login::Who;
use crate::schema::{Method, Schema};
use crate::token;

/// One step of a sequence, done on both servers.
#[derive(Debug, Clone)]
pub enum Op {
    /// A call with one request; all answers are compared.
    Call {
        /// The method called.
        method: &'static Method,
        /// Its request, with tokens.
        request: DynamicMessage,
    },
    /// Any bytes as a request of any method.
    Raw {
        /// The HTTP/2 path.
        path: String,
        /// The message as sent.
        body: Bytes,
    },
    /// Any HTTP request to the JSON gateway.
    Json(json::Raw),
    /// A request on a named watch stream, which is opened when first used.
    Watch {
        /// The stream's name.
        stream: String,
        /// A `WatchRequest`.
        request: DynamicMessage,
    },
    /// Ends the sending side of a watch stream.
    Close {
        /// The stream's name.
        stream: String,
    },
    /// A request on a named keep-alive stream, and its answer.
    KeepAlive {
        /// The stream's name.
        stream: String,
        /// A `LeaseKeepAliveRequest`.
        request: DynamicMessage,
    },
    /// Waits until both servers say that a lease has ended.
    AwaitExpiry {
        /// The lease, as a number or a token.
        lease: i64,
    },
    /// From here on somebody else asks; streams that are open stay whose they are.
    As {
        /// Who.
        who: Who,
    },
    /// Stops both servers and starts them again on their data; streams are lost.
    Restart {
        /// With SIGKILL, instead of an orderly stop.
        kill: bool,
    },
}

/// Operations with what they need to be run.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    /// Where it comes from: a file's name, or a seed.
    pub name: String,
    /// The comment at the head of its file.
    pub comment: String,
    /// `!burst`: nothing waits for watch events between operations; batches and the header
    /// revisions of event answers then depend on timing, and are not compared.
    pub burst: bool,
    /// `!fresh`: begins on two new, empty servers.
    pub fresh: bool,
    /// `!discard`: leaves a state that the next sequence must not find.
    pub discard: bool,
    /// The operations in order.
    pub ops: Vec<Op>,
}

impl Op {
    /// A call of `Service.Method`, which must be in the contract.
    pub fn call(name: &str, request: &impl prost::Message) -> Op {
        let method = Schema::known(name);
        Op::Call { method, request: method.request(request) }
    }

    /// The operation's name, without its arguments.
    pub fn kind(&self) -> String {
        match self {
            Op::Call { method, .. } => method.name.clone(),
            Op::Raw { path, .. } => format!("raw {path}"),
            Op::Json(request) => format!("json {} {}", request.verb, request.path),
            Op::Watch { .. } => "watch".into(),
            Op::Close { .. } => "close".into(),
            Op::KeepAlive { .. } => "keepalive".into(),
            Op::AwaitExpiry { .. } => "await-expiry".into(),
            Op::As { .. } => "as".into(),
            Op::Restart { kill } => if *kill { "kill" } else { "restart" }.into(),
        }
    }

    /// The message that the operation carries.
    pub fn request(&self) -> Option<&DynamicMessage> {
        match self {
            Op::Call { request, .. }
            | Op::Watch { request, .. }
            | Op::KeepAlive { request, .. } => Some(request),
            _ => None,
        }
    }

    /// The same operation with another message.
    pub fn with_request(&self, new: DynamicMessage) -> Op {
        let mut op = self.clone();
        if let Op::Call { request, .. }
        | Op::Watch { request, .. }
        | Op::KeepAlive { request, .. } = &mut op
        {
            *request = new;
        }
        op
    }

    /// The operation as a line of a sequence file.
    pub fn to_text(&self) -> String {
        match self {
            Op::Call { method, request } => {
                format!("{} {{{}}}", method.name, message_text(request))
            }
            Op::Raw { path, body } => format!("raw {path} \"{}\"", body.escape_ascii()),
            Op::Json(json::Raw { verb, path, content_type, body }) => {
                let content_type = if content_type.is_empty() { "-" } else { content_type };
                format!("json {verb} {path} {content_type} \"{}\"", body.escape_ascii())
            }
            Op::Watch { stream, request } => {
                format!("watch {stream} {{{}}}", message_text(request))
            }
            Op::Close { stream } => format!("close {stream}"),
            Op::KeepAlive { stream, request } => {
                format!("keepalive {stream} {{{}}}", message_text(request))
            }
            Op::AwaitExpiry { lease } => token::print(&format!("await-expiry {lease}")),
            Op::As { who } => format!("as {}", who.to_text()),
            Op::Restart { .. } => self.kind(),
        }
    }

    fn parse(line: &str) -> Result<Op, String> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "restart" => Ok(Op::Restart { kill: false }),
            "kill" => Ok(Op::Restart { kill: true }),
            "as" => Ok(Op::As { who: Who::parse(rest)? }),
            "close" => Ok(Op::Close { stream: rest.to_owned() }),
            "await-expiry" => {
                let lease = token::parse(rest)?.parse().map_err(|e| format!("{rest}: {e}"))?;
                Ok(Op::AwaitExpiry { lease })
            }
            "raw" => {
                let (path, body) = rest.split_once(' ').ok_or("raw takes a path and a string")?;
                Ok(Op::Raw { path: path.to_owned(), body: parse_string(body)? })
            }
            "json" => parse_json(rest),
            "watch" => {
                let (stream, message) = rest.split_once(' ').ok_or("watch takes a name")?;
                let request = parse_message(Schema::known("Watch.Watch"), message)?;
                Ok(Op::Watch { stream: stream.to_owned(), request })
            }
            "keepalive" => {
                let (stream, message) = rest.split_once(' ').ok_or("keepalive takes a name")?;
                let request = parse_message(Schema::known("Lease.LeaseKeepAlive"), message)?;
                Ok(Op::KeepAlive { stream: stream.to_owned(), request })
            }
            name => {
                let method = Schema::get().method(name).ok_or(format!("no method {name}"))?;
                Ok(Op::Call { method, request: parse_message(method, rest)? })
            }
        }
    }
}

/// A message in text format, on one line, with tokens.
pub fn message_text(message: &DynamicMessage) -> String {
    let options = FormatOptions::new().skip_unknown_fields(false);
    token::print(&message.to_text_format_with_options(&options))
}

fn parse_message(method: &Method, text: &str) -> Result<DynamicMessage, String> {
    let inner = text.trim().strip_prefix('{').and_then(|t| t.strip_suffix('}'));
    let inner = token::parse(inner.ok_or("a message is written in braces")?)?;
    DynamicMessage::parse_text_format(method.input.clone(), &inner).map_err(|e| e.to_string())
}

fn parse_json(text: &str) -> Result<Op, String> {
    let mut words = text.splitn(4, ' ');
    let mut word = || words.next().ok_or("json takes a verb, a path, a content type and a string");
    let (verb, path, content_type) = (word()?.into(), word()?.into(), word()?);
    let content_type = if content_type == "-" { "" } else { content_type }.into();
    let body = parse_string(word()?)?;
    Ok(Op::Json(json::Raw { verb, path, content_type, body }))
}

/// Reads a string as [`slice::escape_ascii`] writes it.
fn parse_string(text: &str) -> Result<Bytes, String> {
    let inner = text.trim().strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    let mut rest = inner.ok_or("a string is written in quotes")?.bytes();
    let mut out = Vec::new();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b't') => out.push(b'\t'),
            Some(b'x') => {
                let hex: Vec<u8> = rest.by_ref().take(2).collect();
                let digits = std::str::from_utf8(&hex).map_err(|e| e.to_string())?;
                out.push(u8::from_str_radix(digits, 16).map_err(|e| e.to_string())?);
            }
            Some(other) => out.push(other),
            None => return Err("a backslash ends the string".into()),
        }
    }
    Ok(out.into())
}

impl Sequence {
    /// Reads a sequence file.
    pub fn parse(name: &str, text: &str) -> Result<Sequence, String> {
        let mut sequence = Sequence { name: name.to_owned(), ..Sequence::default() };
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            match line {
                "" => {}
                "!burst" => sequence.burst = true,
                "!fresh" => sequence.fresh = true,
                "!discard" => sequence.discard = true,
                _ if line.starts_with('#') => {
                    sequence.comment.push_str(line.trim_start_matches('#').trim());
                    sequence.comment.push('\n');
                }
                _ => {
                    let op = Op::parse(line).map_err(|e| format!("{name}:{}: {e}", number + 1))?;
                    sequence.ops.push(op);
                }
            }
        }
        Ok(sequence)
    }

    /// The text of a sequence file.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for line in self.comment.lines() {
            let _ = writeln!(out, "# {line}");
        }
        for (set, word) in
            [(self.burst, "!burst"), (self.fresh, "!fresh"), (self.discard, "!discard")]
        {
            if set {
                let _ = writeln!(out, "{word}");
            }
        }
        for op in &self.ops {
            let _ = writeln!(out, "{}", op.to_text());
        }
        out
    }

    /// The same sequence with other operations.
    pub fn with_ops(&self, ops: Vec<Op>) -> Sequence {
        Sequence { ops, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# a comment
!burst
!discard
KV.Put {key:"a\000",value:"1",lease:$lease1}
KV.Range {key:"a",revision:@-1,sort_order:9}
watch s {create_request{key:"a",start_revision:@+1,filters:[NOPUT,7]}}
keepalive k {ID:-5}
close s
await-expiry $lease1
raw /etcdserverpb.KV/Nope "\x01\"a\\"
json POST /v3/kv/range - "{\"key\":1}\xff"
as ann annpw
as token x.1
as nobody
restart
kill
"#;

    #[test]
    fn a_file_reads_as_it_is_written() {
        let sequence = Sequence::parse("test", TEXT).unwrap();
        assert_eq!(sequence.ops.len(), 13);
        assert!(sequence.burst && sequence.discard && !sequence.fresh);
        let written = sequence.to_text();
        assert_eq!(Sequence::parse("test", &written).unwrap().to_text(), written);
        assert_eq!(written, TEXT);
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let error = Sequence::parse("f", "KV.Put {}\nKV.Nope {}").unwrap_err();
        assert_eq!(error, "f:2: no method KV.Nope");
        assert!(Sequence::parse("f", "KV.Put {ky:\"a\"}").is_err());
    }
}
