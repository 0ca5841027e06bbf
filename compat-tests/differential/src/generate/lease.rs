//! Leases: granting, attaching, renewing, revoking, and their end.

use leaseway_proto::etcdserverpb as pb;

use super::Generator;
use crate::ops::Op;
use crate::schema::Schema;
use crate::token;

impl Generator {
    pub(super) fn lease_or_write(&mut self) {
        match self.rng.below(100) {
            0..22 => self.grant(),
            22..44 => self.attach(),
            44..54 => {
                let request =
                    pb::LeaseTimeToLiveRequest { id: self.lease_id(), keys: self.rng.chance(75) };
                self.push("Lease.LeaseTimeToLive", &request);
            }
            54..62 => {
                let request = pb::LeaseRevokeRequest { id: self.lease_id() };
                self.push("Lease.LeaseRevoke", &request);
                self.revisions += 1;
            }
            62..70 => {
                let renew = pb::LeaseKeepAliveRequest { id: self.lease_id() };
                let request = Schema::known("Lease.LeaseKeepAlive").request(&renew);
                let stream = self.rng.pick(&["k", "l"]).to_string();
                self.ops.push(Op::KeepAlive { stream, request });
            }
            70..76 => self.push("Lease.LeaseLeases", &pb::LeaseLeasesRequest {}),
            _ => self.kv(),
        }
    }

    /// Leases with times to live that do not end within a sequence.
    pub(super) fn grant(&mut self) {
        let id = match self.rng.below(10) {
            0..3 => 0,
            3..9 => self.rng.pick(&[1, 2, 3, 7, -4]),
            _ => self.rng.pick(&[i64::MAX, i64::MIN, -1]),
        };
        let ttl = match self.rng.below(10) {
            0..8 => self.rng.between(100, 1000),
            8 => self.rng.pick(&[9_000_000_000, 9_000_000_001, i64::MAX]),
            _ => 1_000_000,
        };
        self.push("Lease.LeaseGrant", &pb::LeaseGrantRequest { ttl, id });
        if ttl > 9_000_000_000 {
            return;
        }
        if id == 0 {
            self.generated_leases += 1;
            self.leases.push(token::lease(self.generated_leases));
        } else {
            self.leases.push(id);
        }
    }

    fn attach(&mut self) {
        let mut put = self.put();
        (put.ignore_lease, put.lease) = (false, self.lease_id());
        self.push("KV.Put", &put);
        self.revisions += 1;
    }

    /// One lease of the shortest time to live, watched to its end.
    pub(super) fn expiry(&mut self) {
        let generated = self.rng.chance(40);
        let id = if generated { 0 } else { 5 };
        let ttl = self.rng.pick(&[2, 1, 0, -1, i64::MIN]);
        if self.rng.chance(30) {
            self.grant();
        }
        if self.rng.chance(80) {
            self.repeat(2, Generator::watch_or_write);
        }
        let lease = if generated { token::lease(self.generated_leases + 1) } else { id };
        self.push("Lease.LeaseGrant", &pb::LeaseGrantRequest { ttl, id });
        let keys = self.rng.below(6);
        for _ in 0..keys {
            let put = pb::PutRequest { key: self.key(), lease, ..pb::PutRequest::default() };
            self.push("KV.Put", &put);
        }
        if self.rng.chance(40) {
            self.write();
        }
        let keys = pb::LeaseTimeToLiveRequest { id: lease, keys: true };
        self.push("Lease.LeaseTimeToLive", &keys);
        self.ops.push(Op::AwaitExpiry { lease });
        let all =
            pb::RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        self.push("KV.Range", &all);
        let renew = pb::LeaseKeepAliveRequest { id: lease };
        let request = Schema::known("Lease.LeaseKeepAlive").request(&renew);
        self.ops.push(Op::KeepAlive { stream: "k".into(), request });
        self.push("Lease.LeaseRevoke", &pb::LeaseRevokeRequest { id: lease });
        self.push("Lease.LeaseTimeToLive", &keys);
    }
}
