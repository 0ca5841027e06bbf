//! Watchers, many on few keys, with writers in between.

use leaseway_proto::etcdserverpb as pb;
use pb::watch_request::RequestUnion;

use super::Generator;
use crate::ops::Op;
use crate::schema::Schema;
use crate::token;

impl Generator {
    pub(super) fn watch_or_write(&mut self) {
        match self.rng.below(100) {
            0..20 => self.create_watcher(),
            20..25 => self.cancel_watcher(),
            25..33 => self.request_progress(),
            33..35 => self.push_watch(None),
            35..37 => {
                let stream = self.stream();
                self.ops.push(Op::Close { stream });
            }
            37..80 => self.write(),
            80..84 => self.lease_or_write(),
            84..86 => self.large_revision(),
            _ => self.kv(),
        }
    }

    /// Watchers of the past created while a writer goes on; nothing waits for events.
    pub(super) fn burst(&mut self, writes: usize) {
        let before = self.rng.below(20);
        self.repeat(before, Generator::write);
        for _ in 0..writes {
            if self.rng.chance(8) {
                let mut create = self.watcher();
                if self.rng.chance(60) {
                    create.start_revision =
                        token::revision(self.rng.between(1, self.revisions.max(1)));
                }
                self.push_watch(Some(RequestUnion::CreateRequest(create)));
            } else {
                self.write();
            }
        }
    }

    fn stream(&mut self) -> String {
        if self.rng.chance(75) { "s" } else { "t" }.to_owned()
    }

    fn push_watch(&mut self, request_union: Option<RequestUnion>) {
        let request = Schema::known("Watch.Watch").request(&pb::WatchRequest { request_union });
        let stream = self.stream();
        self.ops.push(Op::Watch { stream, request });
    }

    fn create_watcher(&mut self) {
        let create = self.watcher();
        self.push_watch(Some(RequestUnion::CreateRequest(create)));
        self.watchers += 1;
    }

    fn watcher(&mut self) -> pb::WatchCreateRequest {
        let start_revision = match self.rng.below(20) {
            0..9 => 0,
            9..15 => token::revision(self.rng.between(self.compacted, self.revisions)),
            15..18 => token::revision(self.revisions + self.rng.between(1, 6)),
            18 => token::revision(self.compacted - self.rng.between(0, 2)),
            _ => self.rng.pick(&[-1, 1, i64::MAX, i64::MIN]),
        };
        let filters = match self.rng.below(10) {
            0 => vec![0],
            1 => vec![1],
            2 => vec![0, 1],
            3 => vec![self.rng.pick(&[2, 7, -1])],
            _ => vec![],
        };
        let watch_id = match self.rng.below(10) {
            0..6 => 0,
            6..9 => self.rng.between(1, 4),
            _ => self.rng.pick(&[-1, -2, i64::MAX, i64::MIN]),
        };
        pb::WatchCreateRequest {
            key: self.key(),
            range_end: self.range_end(),
            start_revision,
            progress_notify: self.rng.chance(10),
            filters,
            prev_kv: self.rng.chance(40),
            watch_id,
            fragment: self.rng.chance(20),
        }
    }

    fn cancel_watcher(&mut self) {
        let last = self.watchers as i64 + 2;
        let watch_id = match self.rng.below(10) {
            0 => self.rng.pick(&[-1, 999, i64::MAX, i64::MIN]),
            _ => self.rng.between(0, last),
        };
        self.push_watch(Some(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id })));
    }

    fn request_progress(&mut self) {
        self.push_watch(Some(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})));
    }

    /// Several values that together are larger than a fragment of a watch answer may be. Each
    /// request has to be below that, so they come from several revisions, and a watcher of the
    /// past gets them at once.
    fn large_revision(&mut self) {
        let first = self.revisions;
        for key in ["a", "b", "c"] {
            let put = pb::PutRequest {
                key: key.into(),
                value: "<fill:900000>".into(),
                ..pb::PutRequest::default()
            };
            self.push("KV.Put", &put);
            self.revisions += 1;
        }
        let create = pb::WatchCreateRequest {
            key: "a".into(),
            range_end: "\0".into(),
            start_revision: token::revision(first + 1),
            fragment: self.rng.chance(70),
            prev_kv: self.rng.chance(40),
            ..pb::WatchCreateRequest::default()
        };
        self.push_watch(Some(RequestUnion::CreateRequest(create)));
        self.watchers += 1;
    }
}
