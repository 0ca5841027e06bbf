//! Maintenance, health, and what no method takes.

use leaseway_proto::etcdserverpb as pb;

use super::Generator;
use crate::ops::Op;
use crate::schema::Schema;
use crate::token;

impl Generator {
    pub(super) fn maintenance_or_write(&mut self) {
        match self.rng.below(100) {
            0..8 => self.push("Maintenance.Status", &pb::StatusRequest {}),
            8..18 => {
                let request = pb::HashKvRequest { revision: self.revision() };
                self.push("Maintenance.HashKV", &request);
            }
            18..32 => self.alarm(),
            32..34 => self.push("Maintenance.Hash", &pb::HashRequest {}),
            34..36 => self.push("Maintenance.Defragment", &pb::DefragmentRequest {}),
            36..39 => {
                let target_id = self.rng.pick(&[0, 1, 77, token::SELF as u64, u64::MAX]);
                self.push("Maintenance.MoveLeader", &pb::MoveLeaderRequest { target_id });
            }
            39..43 => self.downgrade(),
            43..53 => self.cluster(),
            53..55 => self.push("Auth.AuthStatus", &pb::AuthStatusRequest {}),
            55..57 => {
                let text = self.rng.pick(&["", "service:\"etcdserverpb.KV\"", "service:\"nope\""]);
                let method = Schema::known("Health.Check");
                let request =
                    prost_reflect::DynamicMessage::parse_text_format(method.input.clone(), text)
                        .expect("a valid health request");
                self.ops.push(Op::Call { method, request });
            }
            57..60 => self.raw(),
            60..75 => self.lease_or_write(),
            _ => self.kv(),
        }
    }

    fn alarm(&mut self) {
        let request = pb::AlarmRequest {
            // An unknown action ends etcd's process.
            action: match self.rng.below(20) {
                0..5 => 0,
                5..13 => 1,
                _ => 2,
            },
            member_id: self.rng.pick(&[0, token::SELF as u64, 42, u64::MAX]),
            alarm: match self.rng.below(20) {
                0..2 => 0,
                2..14 => 1,
                14..19 => 2,
                _ => self.rng.pick(&[3, -1, 9]),
            },
        };
        self.push("Maintenance.Alarm", &request);
    }

    fn downgrade(&mut self) {
        let versions = ["", "3.5.0", "3.6.0", "3.7.0", "3.8.0", "4.0", "x", "3.6", "-1"];
        let request = pb::DowngradeRequest {
            // Enabling one is left to the hand-written cases, as it changes the server for good.
            action: self.rng.pick(&[0, 0, 0, 2, 3, -1]),
            version: versions[self.rng.below(versions.len())].to_owned(),
        };
        self.push("Maintenance.Downgrade", &request);
    }

    fn raw(&mut self) {
        const PATHS: [&str; 6] = [
            "/etcdserverpb.KV/Nope",
            "/etcdserverpb.Nope/Range",
            "/nope/nope",
            "/etcdserverpb.KV/Range",
            "/etcdserverpb.Watch/Nope",
            "/etcdserverpb.Maintenance/Nope",
        ];
        let path = self.rng.pick(&PATHS).to_string();
        let body = if path.ends_with("KV/Range") { &b"\x0a\x01a"[..] } else { b"" };
        self.ops.push(Op::Raw { path, body: body.into() });
    }
}
