//! Who answers: the parts of a response header that never change.

use leaseway_proto::etcdserverpb::ResponseHeader;

/// Identity of this gateway and of the keyspace that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// One for all gateways of a keyspace; never 0.
    pub cluster_id: u64,
    /// This gateway's own; never 0.
    pub member_id: u64,
    /// Clients want a raft term that is not 0 and never falls. There is no raft here: it is constant.
    pub raft_term: u64,
}

impl Identity {
    /// A header with the given revision; 0 leaves it out.
    pub fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term: self.raft_term,
        }
    }
}
