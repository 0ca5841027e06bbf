//! What a developer reads when the servers differ.

use std::fmt::Write;

use crate::client::{Answer, End};
use crate::compare::Mismatch;
use crate::ops::{Sequence, message_text};

/// The first difference of a sequence.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The index of the operation; the number of operations for what is compared after the last.
    pub index: usize,
    /// The operation's kind, such as `KV.Put`.
    pub kind: String,
    /// The operation as text.
    pub operation: String,
    /// All of the reference's answer.
    pub reference: String,
    /// All of the subject's answer.
    pub subject: String,
    /// The first differing field.
    pub mismatch: Mismatch,
}

impl Difference {
    /// What differences of the same cause have in common: operation, field without indices, and for
    /// errors their texts.
    pub fn signature(&self) -> String {
        let mut path = String::new();
        for c in self.mismatch.path.chars() {
            match c {
                '0'..='9' if path.ends_with('#') => {}
                '0'..='9' => path.push('#'),
                other => path.push(other),
            }
        }
        let kind = if self.kind.starts_with("watch ") { "watch" } else { &self.kind };
        let mut signature = format!("{kind} at {path}");
        if self.mismatch.path == "status" {
            let _ = write!(signature, ": {} / {}", self.mismatch.reference, self.mismatch.subject);
        }
        signature
    }

    /// The report: the transcript up to the difference, both answers, the field.
    pub fn report(&self, sequence: &Sequence) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "--- {} differs from etcd: {}", sequence.name, self.signature());
        for (index, line) in sequence.to_text().lines().enumerate() {
            if index < 60 {
                let _ = writeln!(out, "    {}", shortened(line, 400));
            }
        }
        let _ =
            writeln!(out, "  at operation {}: {}", self.index + 1, shortened(&self.operation, 400));
        let _ = writeln!(out, "  etcd:    {}", shortened(&self.reference, 1500));
        let _ = writeln!(out, "  subject: {}", shortened(&self.subject, 1500));
        let Mismatch { path, reference, subject } = &self.mismatch;
        let _ = writeln!(out, "  first difference: {path}: {reference} in etcd, {subject} here");
        out
    }
}

/// An answer on one line.
pub fn answer_text(answer: &Answer) -> String {
    let mut parts: Vec<String> =
        answer.messages.iter().map(|m| format!("{{{}}}", message_text(m))).collect();
    match &answer.end {
        End::Ok => parts.push("OK".into()),
        End::Failed(code, message, _) => parts.push(format!("error {code} {message:?}")),
        End::Timeout => parts.push("no answer".into()),
        End::Unreadable(error) => parts.push(format!("unreadable: {error}")),
    }
    if !answer.http.is_empty() {
        parts.push(format!("[HTTP {}]", answer.http));
    }
    parts.join(" ")
}

/// `text`, cut in the middle when it is longer than `length_max`.
pub fn shortened(text: &str, length_max: usize) -> String {
    let length = text.chars().count();
    if length <= length_max {
        return text.to_owned();
    }
    let head: String = text.chars().take(length_max * 2 / 3).collect();
    let tail: String = text.chars().skip(length - length_max / 3).collect();
    format!("{head} [... {} characters ...] {tail}", length - length_max)
}
