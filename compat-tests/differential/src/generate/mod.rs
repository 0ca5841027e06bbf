//! Generates sequences from a seed: the same seed always gives the same sequence.
//!
//! Keys, lease ids and watcher ids come from small sets, so that operations collide; every field
//! sometimes has a value that makes no sense.

mod auth;
mod cluster;
mod json;
mod kv;
mod lease;
mod maintenance;
mod txn;
mod watch;

use bytes::Bytes;

use crate::ops::{Op, Sequence};
use crate::rng::Rng;
use crate::token;

/// What a sequence is mainly about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Theme {
    Kv,
    Watch,
    Burst,
    Lease,
    Expiry,
    Maintenance,
    Restart,
    Many,
    Auth,
    Json,
}

const THEMES: [(Theme, usize); 10] = [
    (Theme::Kv, 440),
    (Theme::Watch, 230),
    (Theme::Burst, 60),
    (Theme::Lease, 100),
    (Theme::Expiry, 14),
    (Theme::Maintenance, 90),
    (Theme::Restart, 16),
    (Theme::Many, 50),
    (Theme::Auth, 20),
    (Theme::Json, 20),
];

/// The sequence number `index` of `seed`. With `json`, more of them are about JSON itself.
pub fn sequence(seed: u64, index: u64, json: bool) -> Sequence {
    let mut generator = Generator::new(Rng::derived(seed, index));
    let theme = (json && index.is_multiple_of(3)).then_some(Theme::Json);
    let mut sequence = generator.sequence(theme);
    sequence.name = format!("seed {seed}, sequence {index}");
    sequence
}

/// The state of a sequence being generated.
struct Generator {
    rng: Rng,
    ops: Vec<Op>,
    /// A guess at how many revisions the sequence has made.
    revisions: i64,
    /// A guess at the last compacted revision, relative to the beginning.
    compacted: i64,
    /// Lease ids that have been used, generated ones as tokens.
    leases: Vec<i64>,
    generated_leases: usize,
    /// Created watchers of the open stream `s`, `t`.
    watchers: usize,
}

impl Generator {
    fn new(rng: Rng) -> Generator {
        Generator {
            rng,
            ops: Vec::new(),
            revisions: 0,
            compacted: 0,
            leases: Vec::new(),
            generated_leases: 0,
            watchers: 0,
        }
    }

    fn sequence(mut self: &mut Generator, theme: Option<Theme>) -> Sequence {
        let total: usize = THEMES.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.rng.below(total);
        let pick = |(theme, weight): &(Theme, usize)| {
            let hit = drawn < *weight;
            drawn = drawn.wrapping_sub(*weight);
            hit.then_some(*theme)
        };
        let drawn = THEMES.iter().find_map(pick).unwrap_or(Theme::Kv);
        let theme = theme.unwrap_or(drawn);
        let mut sequence = Sequence { burst: theme == Theme::Burst, ..Sequence::default() };
        sequence.fresh = self.rng.below(200) == 0 || theme == Theme::Auth;
        let length = 4 + self.rng.below(30);
        let this = &mut self;
        match theme {
            Theme::Kv => this.repeat(length, |g| g.kv()),
            Theme::Watch => this.repeat(length, |g| g.watch_or_write()),
            Theme::Burst => this.burst(length * 4),
            Theme::Lease => this.repeat(length, |g| g.lease_or_write()),
            Theme::Expiry => this.expiry(),
            Theme::Maintenance => this.repeat(length, |g| g.maintenance_or_write()),
            Theme::Restart => this.restart(length),
            Theme::Many => this.many(),
            Theme::Auth => this.auth(length),
            Theme::Json => this.repeat(length * 2, |g| g.json_or_write()),
        }
        sequence.ops = std::mem::take(&mut this.ops);
        sequence
    }

    fn repeat(&mut self, times: usize, mut step: impl FnMut(&mut Generator)) {
        for _ in 0..times {
            step(self);
        }
    }

    fn push(&mut self, name: &str, request: &impl prost::Message) {
        self.ops.push(Op::call(name, request));
    }

    /// A bit of everything, with both servers stopped in between.
    fn restart(&mut self, length: usize) {
        for part in 0..3 {
            self.repeat(length / 2 + 1, |g| match g.rng.below(10) {
                0..5 => g.kv(),
                5..8 => g.lease_or_write(),
                _ => g.watch_or_write(),
            });
            if part < 2 {
                let kill = self.rng.chance(60);
                self.ops.push(Op::Restart { kill });
                self.watchers = 0;
            }
        }
    }

    fn key(&mut self) -> Bytes {
        const KEYS: [&[u8]; 12] = [
            b"a",
            b"a",
            b"b",
            b"b",
            b"c",
            b"ab",
            b"a\0",
            b"\0",
            b"\xff",
            b"\xff\xff",
            b"b\xff\0",
            b"k_%",
        ];
        if self.rng.below(60) == 0 {
            return Bytes::new();
        }
        Bytes::from_static(self.rng.pick(&KEYS))
    }

    fn range_end(&mut self) -> Bytes {
        match self.rng.below(20) {
            0..8 => Bytes::new(),
            8..11 => Bytes::from_static(b"\0"),
            11..13 => Bytes::from_static(b"c"),
            13..14 => Bytes::from_static(b"\xff"),
            14..15 => Bytes::from_static(b"\0\0"),
            _ => self.key(),
        }
    }

    fn value(&mut self) -> Bytes {
        const VALUES: [&[u8]; 8] = [b"", b"1", b"2", b"10", b"x", b"\0\xff", b"\xff", b"same"];
        Bytes::from_static(self.rng.pick(&VALUES))
    }

    /// A revision: mostly none or one near those of the sequence, sometimes an impossible one.
    fn revision(&mut self) -> i64 {
        match self.rng.below(40) {
            0..16 => 0,
            16..34 => {
                let offset = self.rng.between(-1, self.revisions + 2);
                token::revision(offset)
            }
            34..36 => token::revision(self.compacted + self.rng.between(-1, 1)),
            36 => 1,
            37 => -1,
            38 => i64::MAX,
            _ => i64::MIN,
        }
    }

    fn limit(&mut self) -> i64 {
        match self.rng.below(12) {
            0..6 => 0,
            6..10 => self.rng.between(1, 4),
            10 => self.rng.pick(&[-1, -5, i64::MIN]),
            _ => self.rng.pick(&[1_000_000, i64::MAX, i64::MAX - 1]),
        }
    }

    /// A lease id: mostly none, or one that has been used.
    fn lease_id(&mut self) -> i64 {
        if !self.leases.is_empty() && self.rng.chance(70) {
            return self.rng.pick(&self.leases.clone());
        }
        self.rng.pick(&[1, 2, 3, 7, -4, 0, i64::MAX, i64::MIN, 999_999])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::sequence;

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        for index in 0..200 {
            assert_eq!(sequence(5, index, false).to_text(), sequence(5, index, false).to_text());
        }
        assert_ne!(sequence(5, 1, false).to_text(), sequence(6, 1, false).to_text());
    }

    #[test]
    fn sequences_survive_being_written_and_read() {
        for index in 0..300 {
            let sequence = sequence(1, index, index % 2 == 0);
            let read = crate::ops::Sequence::parse("test", &sequence.to_text()).unwrap();
            assert_eq!(read.to_text(), sequence.to_text());
            for (left, right) in sequence.ops.iter().zip(&read.ops) {
                assert_eq!(left.request(), right.request());
            }
        }
    }

    #[test]
    fn every_operation_is_generated() {
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for index in 0..3000 {
            for op in sequence(1, index, false).ops {
                *kinds.entry(op.kind()).or_default() += 1;
            }
        }
        let wanted = [
            "KV.Range",
            "KV.RangeStream",
            "KV.Put",
            "KV.DeleteRange",
            "KV.Txn",
            "KV.Compact",
            "watch",
            "close",
            "keepalive",
            "await-expiry",
            "restart",
            "kill",
            "Lease.LeaseGrant",
            "Lease.LeaseRevoke",
            "Lease.LeaseTimeToLive",
            "Lease.LeaseLeases",
            "Maintenance.Status",
            "Maintenance.Hash",
            "Maintenance.HashKV",
            "Maintenance.Alarm",
            "Maintenance.Defragment",
            "Maintenance.MoveLeader",
            "Maintenance.Downgrade",
            "Cluster.MemberList",
            "Cluster.MemberAdd",
            "Cluster.MemberRemove",
            "Cluster.MemberUpdate",
            "Cluster.MemberPromote",
            "Auth.AuthStatus",
            "Auth.AuthEnable",
            "Auth.AuthDisable",
            "Auth.UserAdd",
            "Auth.UserDelete",
            "Auth.UserChangePassword",
            "Auth.UserGrantRole",
            "Auth.UserRevokeRole",
            "Auth.UserGet",
            "Auth.UserList",
            "Auth.RoleAdd",
            "Auth.RoleDelete",
            "Auth.RoleGrantPermission",
            "Auth.RoleRevokePermission",
            "Auth.RoleGet",
            "Auth.RoleList",
            "as",
            "Health.Check",
            "json POST /v3/kv/range",
            "json GET /v3/kv/range",
        ];
        for kind in wanted {
            assert!(kinds.contains_key(kind), "{kind} is never generated");
        }
    }
}
