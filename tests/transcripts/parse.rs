//! What a step asks for.

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use leaseway_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use leaseway_proto::etcdserverpb::request_op::Request;

/// One step.
#[derive(Clone, Debug)]
pub enum Action {
    /// `put`, `get`, `del`, `txn`.
    Request(Request),
    /// `compact REVISION`.
    Compact(i64),
    /// `grant ID --ttl=SECONDS`; `--session=N` is for the machine alone, by default the id.
    Grant { id: i64, ttl: i64, session: u64 },
    /// `revoke ID`.
    Revoke(i64),
    /// `leases`: all of them with their keys.
    Leases,
    /// `alarm raise|disarm MEMBER NOSPACE|CORRUPT`.
    Alarm { raise: bool, member: u64, alarm: i32 },
    /// `alarms`: all that are raised.
    Alarms,
    /// `history FROM [--prev]`: what a watcher of all keys from that revision on is told.
    History { from: i64, prev: bool },
    /// What no client can ask for.
    Inner(Inner),
}

/// A step that needs the machine itself.
#[derive(Clone, Debug)]
pub enum Inner {
    /// `expire ID --session=N --renewals=N`.
    Expire { id: i64, session: u64, renewals: u64 },
    /// `renewed ID --session=N`.
    Renewed { id: i64, session: u64 },
    /// `checkpoint ID --session=N --renewals=N --seconds=N`.
    Checkpoint { id: i64, session: u64, renewals: u64, seconds: i64 },
    /// `lease ID`: all that is known of one.
    Lease(i64),
    /// `rows`: what is stored.
    Rows,
    /// `restart`: goes on from what is stored.
    Restart,
    /// `group` with the group's commands indented below: applied together, committed together.
    /// A `get` in it is what a reader sees meanwhile.
    Group(Vec<Action>),
}

/// A line with the lines indented below it.
struct Block<'a> {
    line: &'a str,
    below: Vec<Block<'a>>,
}

type Parsed<T> = Result<T, String>;

/// Reads a step's input.
pub fn action(input: &str) -> Parsed<Action> {
    let lines: Vec<&str> = input.lines().collect();
    match &blocks(&lines, 0)?[..] {
        [one] => read(one),
        _ => Err("one command a step".into()),
    }
}

fn blocks<'a>(lines: &[&'a str], depth: usize) -> Parsed<Vec<Block<'a>>> {
    let mut found = Vec::new();
    let mut rest = lines;
    while let Some((first, after)) = rest.split_first() {
        let indent = first.len() - first.trim_start().len();
        if indent != 2 * depth {
            return Err(format!("indented by {indent}, not {}: {first}", 2 * depth));
        }
        let deeper = |line: &&&str| line.starts_with(&" ".repeat(2 * depth + 1));
        let below = after.iter().take_while(deeper).count();
        found.push(Block { line: first.trim(), below: blocks(&after[..below], depth + 1)? });
        rest = &after[below..];
    }
    Ok(found)
}

fn read(block: &Block<'_>) -> Parsed<Action> {
    let words = Words::of(block.line)?;
    let renewals = || words.number("renewals");
    let session = || words.number("session").map(|number| number as u64);
    let id = || words.integer(1);
    let parsed = match words.at(0)? {
        "put" | "get" | "del" | "txn" => return Ok(Action::Request(request(block)?)),
        "compact" => Action::Compact(words.integer(1)?),
        "grant" => {
            let session = words.option("session").map_or_else(id, |_| words.number("session"))?;
            Action::Grant { id: id()?, ttl: words.number("ttl")?, session: session as u64 }
        }
        "revoke" => Action::Revoke(id()?),
        "leases" => Action::Leases,
        "alarm" => {
            let alarm = pb::AlarmType::from_str_name(words.at(3)?).ok_or("no such alarm")? as i32;
            let member = words.integer(2)? as u64;
            Action::Alarm { raise: words.at(1)? == "raise", member, alarm }
        }
        "alarms" => Action::Alarms,
        "history" => Action::History { from: words.integer(1)?, prev: words.has("prev") },
        "expire" => {
            let renewals = renewals()? as u64;
            Action::Inner(Inner::Expire { id: id()?, session: session()?, renewals })
        }
        "renewed" => Action::Inner(Inner::Renewed { id: id()?, session: session()? }),
        "checkpoint" => Action::Inner(Inner::Checkpoint {
            id: id()?,
            session: session()?,
            renewals: renewals()? as u64,
            seconds: words.number("seconds")?,
        }),
        "lease" => Action::Inner(Inner::Lease(id()?)),
        "rows" => Action::Inner(Inner::Rows),
        "restart" => Action::Inner(Inner::Restart),
        "group" => {
            let commands: Parsed<Vec<Action>> = block.below.iter().map(read).collect();
            return Ok(Action::Inner(Inner::Group(commands?)));
        }
        other => return Err(format!("no such command: {other}")),
    };
    words.all_used()?;
    nothing_below(block)?;
    Ok(parsed)
}

fn request(block: &Block<'_>) -> Parsed<Request> {
    let words = Words::of(block.line)?;
    let request = match words.at(0)? {
        "put" => Request::RequestPut(pb::PutRequest {
            key: bytes(words.at(1)?)?,
            value: words.optional(2).map_or(Ok(Vec::new().into()), bytes)?,
            lease: words.option("lease").map_or(Ok(0), |_| words.number("lease"))?,
            prev_kv: words.has("prev"),
            ignore_value: words.has("ignore-value"),
            ignore_lease: words.has("ignore-lease"),
        }),
        "get" => Request::RequestRange(range(&words)?),
        "del" => {
            let (key, range_end) = keys(words.at(1)?)?;
            let prev_kv = words.has("prev");
            Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv })
        }
        "txn" => return Ok(Request::RequestTxn(txn(&block.below)?)),
        other => return Err(format!("not for a transaction: {other}")),
    };
    words.all_used()?;
    nothing_below(block)?;
    Ok(request)
}

fn nothing_below(block: &Block<'_>) -> Parsed<()> {
    match &block.below[..] {
        [] => Ok(()),
        _ => Err(format!("nothing may be indented below {}", block.line)),
    }
}

fn range(words: &Words) -> Parsed<pb::RangeRequest> {
    let (key, range_end) = keys(words.at(1)?)?;
    let number = |name| words.option(name).map_or(Ok(0), |_| words.number(name));
    let order = words.option("order").unwrap_or("NONE");
    let target = words.option("sort-by").unwrap_or("KEY");
    Ok(pb::RangeRequest {
        key,
        range_end,
        limit: number("limit")?,
        revision: number("rev")?,
        sort_order: SortOrder::from_str_name(order).ok_or("no such order")? as i32,
        sort_target: SortTarget::from_str_name(target).ok_or("no such target")? as i32,
        keys_only: words.has("keys-only"),
        count_only: words.has("count-only"),
        min_mod_revision: number("min-mod-rev")?,
        max_mod_revision: number("max-mod-rev")?,
        min_create_revision: number("min-create-rev")?,
        max_create_revision: number("max-create-rev")?,
        ..Default::default()
    })
}

fn txn(parts: &[Block<'_>]) -> Parsed<pb::TxnRequest> {
    let mut txn = pb::TxnRequest::default();
    for part in parts {
        let mut ops = part.below.iter().map(|op| Ok(pb::RequestOp { request: Some(request(op)?) }));
        match part.line.split_once(' ') {
            Some(("if", condition)) => txn.compare.push(compare(condition)?),
            None if part.line == "then" => txn.success = ops.by_ref().collect::<Parsed<_>>()?,
            None if part.line == "else" => txn.failure = ops.by_ref().collect::<Parsed<_>>()?,
            _ => return Err(format!("not a part of a transaction: {}", part.line)),
        }
        if ops.next().is_some() {
            return Err(format!("nothing may be indented below {}", part.line));
        }
    }
    Ok(txn)
}

/// `TARGET(KEYS) = != < > OPERAND`
fn compare(condition: &str) -> Parsed<pb::Compare> {
    let words = Words::of(condition)?;
    let (target, rest) = words.at(0)?.split_once('(').ok_or("no target")?;
    let (key, range_end) = keys(rest.strip_suffix(')').ok_or("no )")?)?;
    let result = match words.at(1)? {
        "=" => CompareResult::Equal,
        "!=" => CompareResult::NotEqual,
        "<" => CompareResult::Less,
        ">" => CompareResult::Greater,
        other => return Err(format!("not a comparison: {other}")),
    };
    let number = || words.integer(2);
    let (target, union) = match target {
        "version" => (CompareTarget::Version, TargetUnion::Version(number()?)),
        "create" => (CompareTarget::Create, TargetUnion::CreateRevision(number()?)),
        "mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number()?)),
        "value" => (CompareTarget::Value, TargetUnion::Value(bytes(words.at(2)?)?)),
        "lease" => (CompareTarget::Lease, TargetUnion::Lease(number()?)),
        other => return Err(format!("not to be compared: {other}")),
    };
    words.all_used()?;
    let (result, target) = (result as i32, target as i32);
    Ok(pb::Compare { result, target, key, range_end, target_union: Some(union) })
}

type Bytes = bytes::Bytes;

/// `KEY`, `FROM..TO` without `TO`, `FROM..` to the end, `..` for all.
fn keys(word: &str) -> Parsed<(Bytes, Bytes)> {
    let Some((from, to)) = word.split_once("..") else { return Ok((bytes(word)?, Bytes::new())) };
    let open =
        |word: &str| if word.is_empty() { Ok(Bytes::from_static(b"\0")) } else { bytes(word) };
    Ok((open(from)?, open(to)?))
}

/// `\0`, `\xHH` and `\\` are bytes that could not be written.
fn bytes(word: &str) -> Parsed<Bytes> {
    let mut out = Vec::new();
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'0') => out.push(0),
            Some(b'\\') => out.push(b'\\'),
            Some(b'x') => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                let digits = String::from_utf8_lossy(&digits).into_owned();
                out.push(u8::from_str_radix(&digits, 16).map_err(|_| "two digits after \\x")?);
            }
            _ => return Err(format!("not an escape in {word}")),
        }
    }
    Ok(out.into())
}

/// The words of a line; each must be used.
struct Words<'a> {
    plain: Vec<&'a str>,
    options: Vec<(&'a str, &'a str)>,
    used: std::cell::RefCell<std::collections::HashSet<&'a str>>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Parsed<Self> {
        let (options, plain): (Vec<&str>, Vec<&str>) =
            line.split_whitespace().partition(|word| word.starts_with("--"));
        let option = |word: &'a str| word[2..].split_once('=').unwrap_or((&word[2..], ""));
        let options = options.into_iter().map(option).collect();
        Ok(Self { plain, options, used: Default::default() })
    }

    fn at(&self, place: usize) -> Parsed<&'a str> {
        self.optional(place).ok_or(format!("too few words: {:?}", self.plain))
    }

    fn optional(&self, place: usize) -> Option<&'a str> {
        let word = self.plain.get(place)?;
        self.used.borrow_mut().insert(word);
        Some(word)
    }

    fn integer(&self, place: usize) -> Parsed<i64> {
        self.at(place)?.parse().map_err(|_| format!("not a number: {:?}", self.plain))
    }

    fn option(&self, name: &'a str) -> Option<&'a str> {
        self.used.borrow_mut().insert(name);
        Some(self.options.iter().find(|(option, _)| *option == name)?.1)
    }

    fn number(&self, name: &'a str) -> Parsed<i64> {
        let value = self.option(name).ok_or(format!("no --{name}"))?;
        value.parse().map_err(|_| format!("--{name} takes a number"))
    }

    fn has(&self, name: &'a str) -> bool {
        self.option(name).is_some()
    }

    fn all_used(&self) -> Parsed<()> {
        let used = self.used.borrow();
        let names = self.options.iter().map(|(name, _)| name).chain(&self.plain);
        match names.copied().find(|word| !used.contains(word)) {
            Some(word) => Err(format!("what is {word}?")),
            None => Ok(()),
        }
    }
}
