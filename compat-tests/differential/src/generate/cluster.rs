//! Membership requests of a single member: listing, and changes that etcd refuses.

use leaseway_proto::etcdserverpb as pb;

use super::Generator;
use crate::token;

impl Generator {
    pub(super) fn cluster(&mut self) {
        let id = self.rng.pick(&[0, 1, 99, token::SELF as u64, u64::MAX]);
        let unknown = if id == token::SELF as u64 { 99 } else { id };
        match self.rng.below(10) {
            0..4 => {
                let request = pb::MemberListRequest { linearizable: self.rng.chance(50) };
                self.push("Cluster.MemberList", &request);
            }
            4..6 => {
                let request = pb::MemberAddRequest {
                    peer_ur_ls: self.bad_urls(),
                    is_learner: self.rng.chance(40),
                };
                self.push("Cluster.MemberAdd", &request);
            }
            6 => self.push("Cluster.MemberRemove", &pb::MemberRemoveRequest { id }),
            7 => {
                let peer_ur_ls = vec!["http://127.0.0.1:2390".to_owned()];
                let request = pb::MemberUpdateRequest { id: unknown, peer_ur_ls };
                self.push("Cluster.MemberUpdate", &request);
            }
            _ => self.push("Cluster.MemberPromote", &pb::MemberPromoteRequest { id }),
        }
    }

    fn bad_urls(&mut self) -> Vec<String> {
        let urls: [&[&str]; 7] = [
            &[],
            &[""],
            &["127.0.0.1:2390"],
            &["ftp://127.0.0.1:2390"],
            &["http://127.0.0.1:2390/path"],
            &["http://127.0.0.1"],
            &["http://127.0.0.1:2380"],
        ];
        self.rng.pick(&urls).iter().map(|url| url.to_string()).collect()
    }
}
