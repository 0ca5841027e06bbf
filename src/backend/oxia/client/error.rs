//! Every way in which a call to Oxia can fail, and how an answer of the server is told apart.
//!
//! Servers up to 0.16 answer with status codes of their own, 100 and above. gRPC libraries know
//! no such codes, and show each as `Unknown`; newer servers use the standard ones, but one code for
//! several causes. What both have in common is the text, so the text decides, and the code only
//! where the text says nothing.

use tonic::{Code, Status};

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// At this moment no leader of the shard is known to this client, or none can be reached.
    NoLeader,
    /// The node that was asked doesn't lead the shard, or is about to stop leading it.
    NotLeader,
    /// The leader, or the connection to it, was replaced before the call was complete.
    LeaderChanged,
    /// The session is unknown: never created, expired, or closed.
    SessionNotFound,
    /// The session's timeout is below 2 s or above the server's maximum.
    SessionTimeout,
    /// The namespace isn't configured in the cluster.
    NamespaceNotFound,
    /// The namespace is configured without notifications.
    NoNotifications,
    /// The server doesn't know this call.
    Unimplemented,
    /// Refused here: a record or a request above the limits, or an answer above what is accepted.
    TooLarge,
    /// Refused here: the queue of writes is full.
    Busy,
    /// Refused here or there: the request makes no sense, or would harm the shard.
    Invalid,
    /// The server wants other credentials.
    Unauthenticated,
    /// The node can't be reached, or isn't ready.
    Unavailable,
    /// The connection broke, or was closed by the node.
    Lost,
    /// No answer within the time that was given.
    Timeout,
    /// The server's answer isn't what the contract says.
    Protocol,
    /// The client was closed.
    Closed,
    /// Anything else that the server reports.
    Other,
}

/// A failed call: the kind to act on, and the words for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Error {
    /// What to act on.
    pub kind: Kind,
    /// For people.
    pub detail: String,
}

impl Error {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Error {
        Error { kind, detail: detail.into() }
    }

    pub(super) fn timeout(what: &str) -> Error {
        Error::new(Kind::Timeout, format!("oxia: no answer in time to {what}"))
    }

    /// Whether the same call may succeed at another time or at another node.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            Kind::NoLeader
                | Kind::NotLeader
                | Kind::LeaderChanged
                | Kind::Busy
                | Kind::Unavailable
                | Kind::Lost
                | Kind::Timeout
        )
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        let detail = if status.message().is_empty() {
            format!("oxia: {}", status.code())
        } else {
            format!("oxia: {}", status.message().trim_start_matches("oxia: "))
        };
        Error { kind: classify(&status), detail }
    }
}

/// What the servers' texts mean, old and new; the first that is contained decides.
const TEXTS: [(&str, Kind); 16] = [
    // Old: code 106 "node is not leader for shard 3". New: Aborted, "oxia: node is not leader".
    ("node is not leader", Kind::NotLeader),
    // Old, code 102: a leader that has been fenced, or isn't ready yet.
    ("Received message in the wrong state", Kind::NotLeader),
    ("invalid status", Kind::NotLeader),
    ("invalid term", Kind::NotLeader),
    // Old, code 104: the leader's part of this node is going away.
    ("resource is already closed", Kind::NotLeader),
    ("node is not a member", Kind::NotLeader),
    ("node is not follower", Kind::NotLeader),
    ("shard not found", Kind::NotLeader),
    // Old: code 108. New: NotFound, as is an unknown namespace.
    ("session not found", Kind::SessionNotFound),
    ("invalid session timeout", Kind::SessionTimeout),
    ("namespace not found", Kind::NamespaceNotFound),
    ("notifications not enabled", Kind::NoNotifications),
    ("server not initialized", Kind::Unavailable),
    ("operation was cancelled", Kind::Unavailable),
    ("operation was aborted", Kind::Unavailable),
    ("resource unavailable", Kind::Unavailable),
];

fn classify(status: &Status) -> Kind {
    // A lost connection appears under many codes. What tells it from an answer of the server is
    // that something in this process caused it.
    if std::error::Error::source(status).is_some() {
        return Kind::Lost;
    }
    let text = status.message();
    if let Some((_, kind)) = TEXTS.iter().find(|(part, _)| text.contains(part)) {
        return *kind;
    }
    match status.code() {
        Code::Unimplemented => Kind::Unimplemented,
        Code::Unauthenticated | Code::PermissionDenied => Kind::Unauthenticated,
        Code::InvalidArgument => Kind::Invalid,
        // What tonic says of a message above the limit set here, and Go of one above the server's.
        Code::OutOfRange | Code::ResourceExhausted => Kind::TooLarge,
        Code::DeadlineExceeded => Kind::Timeout,
        Code::Unavailable | Code::Cancelled | Code::Aborted => Kind::Unavailable,
        _ => Kind::Other,
    }
}

/// Why a write has no result, with the one distinction that matters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// It never left this process: it has not been applied and never will be.
    #[error("not sent: {0}")]
    NotSent(Error),
    /// It was handed to the transport. It may have been applied, may be applied later, or never.
    #[error("outcome unknown: {0}")]
    Unknown(Error),
}

impl WriteError {
    /// What went wrong, whichever of the two.
    pub fn error(&self) -> &Error {
        match self {
            WriteError::NotSent(error) | WriteError::Unknown(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts and codes as recorded from servers of both generations.
    #[test]
    fn tells_the_servers_answers_apart() {
        let table = [
            (Code::Unknown, "node is not leader for shard 0", Kind::NotLeader),
            (Code::Aborted, "oxia: node is not leader", Kind::NotLeader),
            (
                Code::Unknown,
                "Received message in the wrong state. In FENCED, should be LEADER.",
                Kind::NotLeader,
            ),
            (Code::FailedPrecondition, "oxia: invalid status", Kind::NotLeader),
            (Code::Unknown, "oxia: resource is already closed", Kind::NotLeader),
            (Code::Unknown, "oxia: session not found", Kind::SessionNotFound),
            (Code::NotFound, "oxia: session not found", Kind::SessionNotFound),
            (Code::NotFound, "oxia: namespace not found", Kind::NamespaceNotFound),
            (Code::Unknown, "oxia: namespace not found", Kind::NamespaceNotFound),
            (Code::Unknown, "timeoutMs=1: oxia: invalid session timeout", Kind::SessionTimeout),
            (
                Code::FailedPrecondition,
                "oxia: notifications not enabled on namespace",
                Kind::NoNotifications,
            ),
            (Code::Unknown, "oxia: server not initialized yet", Kind::Unavailable),
            (Code::Unavailable, "oxia: server not initialized yet", Kind::Unavailable),
            (
                Code::Unimplemented,
                "unknown service io.oxia.proto.v1.OxiaClient",
                Kind::Unimplemented,
            ),
            (Code::OutOfRange, "Error, decoded message length too large", Kind::TooLarge),
            (Code::Unauthenticated, "token is expired", Kind::Unauthenticated),
            (Code::Unknown, "something else", Kind::Other),
        ];
        for (code, text, kind) in table {
            assert_eq!(Error::from(Status::new(code, text)).kind, kind, "{code:?} {text}");
        }
    }

    #[test]
    fn names_the_origin_once() {
        let error = Error::from(Status::new(Code::NotFound, "oxia: session not found"));
        assert_eq!(error.to_string(), "oxia: session not found");
        assert_eq!(Error::from(Status::new(Code::Unknown, "lost")).to_string(), "oxia: lost");
    }
}
