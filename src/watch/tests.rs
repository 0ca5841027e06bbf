use super::fake::{Change, FakeHistory};
use super::*;
use crate::keyspace::event::{History, Visible};
use bytes::Bytes;
use leaseway_proto::etcdserverpb::WatchResponse;
use leaseway_proto::mvccpb;
use prost::Message;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio_stream::Stream;

mod random;

const DEADLINE: Duration = Duration::from_secs(20);

pub(super) fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// `None`: nothing there now.
pub(super) fn take(notices: &mut Notices) -> Option<Notice> {
    match Pin::new(notices).poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(notice) => notice,
        Poll::Pending => None,
    }
}

/// Waits for the next notice.
fn next(notices: &mut Notices) -> Notice {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(notice) = take(notices) {
            return notice;
        }
        assert!(Instant::now() < end, "no notice");
        std::thread::yield_now();
    }
}

fn wait(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

pub(super) fn decode(batch: &Batch) -> Vec<mvccpb::Event> {
    let bytes: Vec<u8> = batch.pieces().iter().flat_map(|piece| piece.to_vec()).collect();
    assert_eq!(bytes.len(), batch.bytes());
    WatchResponse::decode(Bytes::from(bytes)).expect("events in their wire encoding").events
}

/// "PUT key@revision" for each event.
fn events(notice: &Notice) -> Vec<String> {
    let What::Events { batch, .. } = &notice.what else { panic!("no events: {notice:?}") };
    let name = |event: mvccpb::Event| {
        let kv = event.kv.expect("a key");
        let kind = if event.r#type == 0 { "PUT" } else { "DELETE" };
        format!("{kind} {}@{}", String::from_utf8_lossy(&kv.key), kv.mod_revision)
    };
    decode(batch).into_iter().map(name).collect()
}

pub(super) fn watch(key: &str, range_end: &str, start_revision: i64) -> CreateWatcher {
    CreateWatcher {
        range: KeyRange::from_request(key.as_bytes(), range_end.as_bytes()),
        start_revision,
        watch_id: 0,
        prev_kv: false,
        progress_notify: false,
        fragment: false,
        no_put: false,
        no_delete: false,
    }
}

struct Fixture {
    history: Arc<FakeHistory>,
    hub: Hub,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let history = Arc::new(FakeHistory::default());
        let hub = Hub::start(history.clone(), settings).expect("threads");
        Self { history, hub }
    }

    fn commit(&self, changes: &[Change]) -> i64 {
        let revision = self.history.commit(changes);
        let number = revision.revision;
        self.hub.publish(vec![revision], self.history.visible());
        number
    }

    fn put(&self, key: &'static str) -> i64 {
        self.commit(&[Change::Put(key, b"v".to_vec())])
    }

    fn open(&self) -> Client {
        let (control, notices) = self.hub.open().expect("open");
        Client { control, notices }
    }
}

struct Client {
    control: StreamControl,
    notices: Notices,
}

impl Client {
    fn create(&mut self, watcher: CreateWatcher) -> Notice {
        poll_once(self.control.create(watcher)).expect("a permit").expect("open");
        next(&mut self.notices)
    }

    fn created(&mut self, watcher: CreateWatcher) -> i64 {
        let notice = self.create(watcher);
        assert!(matches!(notice.what, What::Created), "{notice:?}");
        notice.watch_id
    }

    fn cancel(&self, id: i64) {
        poll_once(self.control.cancel(id)).expect("a permit").expect("open");
    }

    fn progress(&self) {
        poll_once(self.control.progress()).expect("a permit").expect("open");
    }

    fn next(&mut self) -> Notice {
        next(&mut self.notices)
    }

    /// Passes everything sent so far: a watcher that is refused answers after it.
    fn expect_nothing(&mut self) {
        let notice = self.create(watch("a", "", -1));
        assert!(matches!(notice.what, What::Refused(_)), "{notice:?}");
    }
}

#[test]
fn ids_ranges_and_refusals() {
    let fixture = Fixture::new();
    let mut client = fixture.open();
    assert_eq!(client.created(watch("a", "", 0)), 0);
    assert_eq!(client.created(CreateWatcher { watch_id: 1, ..watch("a", "", 0) }), 1);
    assert_eq!(client.created(watch("a", "", 0)), 2);
    assert_eq!(client.created(CreateWatcher { watch_id: -5, ..watch("a", "", 0) }), -5);
    for (watcher, reason) in [
        (
            CreateWatcher { watch_id: 1, ..watch("a", "", 0) },
            "mvcc: duplicate watch ID provided on the WatchStream",
        ),
        (watch("b", "a", 0), "mvcc: watcher range is empty"),
        (watch("a", "a", 0), "mvcc: watcher range is empty"),
        (watch("b", "a", -1), "etcdserver: mvcc: required revision has been compacted"),
    ] {
        let notice = client.create(watcher);
        assert_eq!((notice.watch_id, notice.revision), (-1, 1));
        assert!(matches!(notice.what, What::Refused(r) if r == reason), "{notice:?}");
    }
    client.cancel(999);
    client.cancel(1);
    let notice = client.next();
    assert!(matches!(notice.what, What::Canceled) && notice.watch_id == 1, "{notice:?}");
    // A freed id may be chosen again, but is not handed out again.
    assert_eq!(client.created(watch("a", "", 0)), 3);
    assert_eq!(client.created(CreateWatcher { watch_id: 1, ..watch("a", "", 0) }), 1);
    assert_eq!(fixture.hub.stats().watchers(), 5);
}

#[test]
fn events_of_a_revision_come_together_and_in_order() {
    let fixture = Fixture::new();
    fixture.commit(&[Change::Put("g2", vec![])]);
    let mut client = fixture.open();
    let all = client.created(watch("g", "h", 0));
    let puts = client.created(CreateWatcher { no_delete: true, ..watch("g", "\0", 0) });
    let deletes = client.created(CreateWatcher { no_put: true, ..watch("g2", "", 0) });
    let none = client.created(CreateWatcher { no_put: true, ..watch("g1", "", 0) });
    fixture.commit(&[
        Change::Put("g3", vec![]),
        Change::Put("x", vec![]),
        Change::Put("g1", vec![]),
        Change::Delete("g2"),
    ]);
    let mut found: Vec<_> =
        (0..3).map(|_| client.next()).map(|n| (n.watch_id, events(&n))).collect();
    found.sort();
    let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        found,
        [
            (all, strings(&["PUT g3@3", "PUT g1@3", "DELETE g2@3"])),
            (puts, strings(&["PUT g3@3", "PUT x@3", "PUT g1@3"])),
            (deletes, strings(&["DELETE g2@3"])),
        ]
    );
    client.expect_nothing();
    assert_ne!(none, all);
}

#[test]
fn watchers_of_the_same_keys_share_their_events() {
    let fixture = Fixture::new();
    fixture.put("k");
    let mut client = fixture.open();
    for prev_kv in [false, true, false, true] {
        client.created(CreateWatcher { prev_kv, ..watch("k", "", 0) });
        client.created(CreateWatcher { prev_kv, ..watch("a", "z", 0) });
    }
    fixture.put("k");
    let mut batches = [Vec::new(), Vec::new()];
    for _ in 0..8 {
        let What::Events { batch, .. } = client.next().what else { panic!("events") };
        let with_prev = decode(&batch)[0].prev_kv.is_some();
        batches[usize::from(with_prev)].push(batch);
    }
    for same in batches {
        assert_eq!(same.len(), 4);
        assert!(same.iter().all(|batch| Arc::ptr_eq(batch, &same[0])));
    }
}

#[test]
fn a_future_start_gets_nothing_older_and_silences_progress() {
    let fixture = Fixture::new();
    fixture.put("a");
    fixture.put("a");
    let mut client = fixture.open();
    client.created(watch("f", "g", 7));
    for key in ["f0", "f1", "f2"] {
        fixture.put(key);
        client.progress();
    }
    for key in ["f3", "f4"] {
        fixture.put(key);
    }
    assert_eq!(events(&client.next()), ["PUT f3@7"]);
    assert_eq!(events(&client.next()), ["PUT f4@8"]);
    client.progress();
    let notice = client.next();
    assert!(matches!(notice.what, What::Progress));
    assert_eq!((notice.watch_id, notice.revision), (-1, 8));
}

#[test]
fn a_compacted_start_is_created_then_ended_and_keeps_its_id() {
    let fixture = Fixture::new();
    for _ in 0..5 {
        fixture.put("k");
    }
    fixture.history.compact(4);
    let mut client = fixture.open();
    let asked = CreateWatcher { watch_id: 50, ..watch("k", "", 3) };
    assert_eq!(client.created(asked.clone()), 50);
    let notice = client.next();
    assert_eq!((notice.watch_id, notice.revision), (50, 0));
    assert!(matches!(notice.what, What::Compacted(4)), "{notice:?}");
    // Like etcd: until the client cancels it, it holds its id and keeps progress silent.
    assert!(matches!(client.create(asked.clone()).what, What::Refused(_)));
    client.progress();
    client.cancel(50);
    assert!(matches!(client.next().what, What::Canceled));
    // The compacted revision itself is still there.
    client.created(CreateWatcher { start_revision: 4, ..asked });
    assert_eq!(events(&client.next()), ["PUT k@4", "PUT k@5", "PUT k@6"]);
    client.progress();
    assert!(matches!(client.next().what, What::Progress));
}

#[test]
fn the_past_comes_in_answers_of_at_most_a_thousand_revisions() {
    let fixture = Fixture::new();
    for n in 0..2500 {
        fixture.put(if n % 2 == 0 { "k" } else { "other" });
    }
    let mut client = fixture.open();
    client.created(CreateWatcher { prev_kv: true, ..watch("k", "", 2) });
    let first = client.next();
    assert_eq!((first.revision, events(&first).len()), (2501, 1000));
    let second = client.next();
    assert_eq!((second.revision, events(&second).len()), (2501, 250));
    assert_eq!(events(&first)[999], "PUT k@2000");
    assert_eq!(events(&second)[0], "PUT k@2002");
    wait("live again", || fixture.hub.stats().slow_watchers() == 0);
    fixture.put("k");
    assert_eq!(events(&client.next()), ["PUT k@2502"]);
}

#[test]
fn large_previous_values_bound_an_answer_too() {
    const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let settings = Settings { chunk_bytes: 1 << 20, ..Settings::default() };
    let fixture = Fixture::with(settings);
    for key in KEYS {
        fixture.commit(&[Change::Put(key, vec![1; 1 << 20])]);
    }
    for key in KEYS {
        fixture.put(key);
    }
    let mut client = fixture.open();
    client.created(CreateWatcher { prev_kv: true, ..watch("a", "\0", 10) });
    let mut found = Vec::new();
    while found.len() < KEYS.len() {
        let notice = client.next();
        let What::Events { batch, .. } = &notice.what else { panic!("events") };
        assert!(batch.bytes() < 4 << 20, "{}", batch.bytes());
        assert!(decode(batch).iter().all(|event| event.prev_kv.is_some()));
        found.extend(events(&notice));
    }
    let expected: Vec<String> =
        KEYS.iter().zip(10..).map(|(key, at)| format!("PUT {key}@{at}")).collect();
    assert_eq!(found, expected);
}

#[test]
fn what_is_only_a_little_behind_needs_no_history() {
    let fixture = Fixture::new();
    let mut other = fixture.open();
    other.created(watch("other", "", 0));
    for _ in 0..100 {
        fixture.put("k");
    }
    let mut client = fixture.open();
    client.created(watch("k", "", 0));
    client.progress();
    assert!(matches!(client.next().what, What::Progress));
    client.created(watch("k", "", 50));
    let notice = client.next();
    assert_eq!((notice.revision, events(&notice).len()), (101, 52));
    assert_eq!(fixture.history.reads.load(Ordering::Relaxed), 0);
}

#[test]
fn the_past_comes_with_the_revision_that_the_store_has_reached() {
    let fixture = Fixture::new();
    let (mut live, mut late) = (fixture.open(), fixture.open());
    live.created(watch("k", "", 0));
    fixture.put("k");
    // Visible, and not yet published.
    let unpublished = [3, 4].map(|_| fixture.history.commit(&[Change::Put("k", vec![])]));
    for start in [2, 3, 4] {
        assert_eq!(late.create(watch("k", "", start)).revision, 4);
        let notice = late.next();
        let expected: Vec<String> = (start..=4).map(|at| format!("PUT k@{at}")).collect();
        assert_eq!((notice.revision, events(&notice)), (4, expected));
    }
    fixture.hub.publish(Vec::from(unpublished), fixture.history.visible());
    fixture.put("k");
    for revision in 2..=5 {
        assert_eq!(events(&live.next()), [format!("PUT k@{revision}")]);
    }
    for _ in 0..3 {
        assert_eq!(events(&late.next()), ["PUT k@5"]);
    }
}

#[test]
fn a_reader_that_stops_is_bounded_and_delays_nobody() {
    let settings =
        Settings { outbox_bytes: 64 << 10, chunk_bytes: 32 << 10, ..Settings::default() };
    let fixture = Fixture::with(settings);
    let (mut slow, mut fast) = (fixture.open(), fixture.open());
    slow.created(watch("k", "", 0));
    fast.created(watch("k", "", 0));
    for _ in 0..3000 {
        let revision = fixture.commit(&[Change::Put("k", vec![7; 1024])]);
        assert_eq!(events(&fast.next()), [format!("PUT k@{revision}")]);
    }
    let stats = fixture.hub.stats();
    assert!(stats.events_pending() < 70, "{}", stats.events_pending());
    assert_eq!(stats.slow_watchers(), 1);
    slow.progress();
    let mut expected = 2;
    while expected < 3002 {
        for event in events(&slow.next()) {
            assert_eq!(event, format!("PUT k@{expected}"));
            expected += 1;
        }
        // The last step comes from the recent revisions, in one answer.
        assert!(stats.events_pending() < 70 + 512, "{}", stats.events_pending());
    }
    wait("live again", || stats.slow_watchers() == 0);
    slow.expect_nothing();
}

#[test]
fn compaction_ends_a_watcher_that_it_overtakes() {
    let settings = Settings { outbox_bytes: 1000, ..Settings::default() };
    let fixture = Fixture::with(settings);
    let mut client = fixture.open();
    client.created(watch("k", "", 0));
    for _ in 0..2000 {
        fixture.put("k");
    }
    wait("behind", || fixture.hub.stats().slow_watchers() == 1);
    fixture.history.compact(1900);
    let mut last = 1;
    loop {
        let notice = client.next();
        if let What::Compacted(revision) = notice.what {
            assert_eq!(revision, 1900);
            break;
        }
        for event in events(&notice) {
            last += 1;
            assert_eq!(event, format!("PUT k@{last}"));
        }
    }
    assert!(last < 1899);
}

#[test]
fn progress_waits_for_what_is_visible() {
    let fixture = Fixture::new();
    let mut client = fixture.open();
    for key in ["a", "b", "c"] {
        client.created(watch(key, "", 0));
    }
    let late = fixture.history.commit(&[Change::Put("a", vec![])]);
    client.progress();
    client.expect_nothing();
    fixture.hub.publish(vec![late], fixture.history.visible());
    assert_eq!(events(&client.next()), ["PUT a@2"]);
    let notice = client.next();
    assert!(matches!(notice.what, What::Progress), "{notice:?}");
    assert_eq!((notice.watch_id, notice.revision), (-1, 2));
    client.expect_nothing();
    // Without watchers there is nothing to report on.
    let mut empty = fixture.open();
    empty.progress();
    empty.expect_nothing();
}

#[test]
fn periodic_progress_is_for_idle_watchers_that_asked() {
    let fixture = Fixture::new();
    let mut client = fixture.open();
    let notified = |watcher| CreateWatcher { progress_notify: true, ..watcher };
    let busy = client.created(notified(watch("busy", "", 0)));
    let idle = client.created(notified(watch("idle", "", 0)));
    client.created(notified(watch("busy", "", 100)));
    client.created(watch("idle", "", 0));
    fixture.put("busy");
    assert_eq!(events(&client.next()), ["PUT busy@2"]);
    client.control.tick();
    let notice = client.next();
    assert!(matches!(notice.what, What::Progress));
    assert_eq!((notice.watch_id, notice.revision), (idle, 2));
    client.expect_nothing();
    client.control.tick();
    let mut ids = [client.next().watch_id, client.next().watch_id];
    ids.sort_unstable();
    assert_eq!(ids, [busy, idle]);
    client.expect_nothing();
}

#[test]
fn what_the_hub_could_not_keep_is_read_from_history() {
    let settings = Settings { published_bytes: 0, ..Settings::default() };
    let fixture = Fixture::with(settings);
    let mut client = fixture.open();
    client.created(watch("k", "", 0));
    for revision in 2..500 {
        fixture.put("k");
        assert_eq!(events(&client.next()), [format!("PUT k@{revision}")]);
    }
    assert_eq!(fixture.hub.stats().revisions_dropped(), 498);
    // A hub that has missed compacted history cannot pretend otherwise.
    for _ in 0..10 {
        fixture.history.commit(&[Change::Put("k", vec![])]);
    }
    fixture.history.compact(505);
    fixture.hub.publish(Vec::new(), fixture.history.visible());
    assert!(matches!(client.next().what, What::Compacted(505)));
    client.created(watch("k", "", 507));
    let mut found = Vec::new();
    while found.len() < 3 {
        found.extend(events(&client.next()));
    }
    assert_eq!(found, ["PUT k@507", "PUT k@508", "PUT k@509"]);
}

#[test]
fn what_nobody_watches_is_not_read() {
    let settings = Settings { published_bytes: 0, ..Settings::default() };
    let fixture = Fixture::with(settings);
    let reads = || fixture.history.reads.load(Ordering::Relaxed);
    // Also once there was a watcher.
    for _ in 0..2 {
        for _ in 0..500 {
            fixture.put("k");
        }
        let mut client = fixture.open();
        let last = fixture.history.visible().revision;
        let id = client.created(watch("k", "", 0));
        client.progress();
        let notice = client.next();
        assert!(matches!(notice.what, What::Progress) && notice.revision == last, "{notice:?}");
        client.cancel(id);
        assert!(matches!(client.next().what, What::Canceled));
    }
    assert_eq!(reads(), 0);
    // Whoever comes then misses nothing.
    let mut client = fixture.open();
    client.created(watch("k", "", 501));
    let mut found = Vec::new();
    while found.len() < 501 {
        found.extend(events(&client.next()));
    }
    let expected: Vec<String> = (501..=1001).map(|at| format!("PUT k@{at}")).collect();
    assert_eq!(found, expected);
    fixture.put("k");
    assert_eq!(events(&client.next()), ["PUT k@1002"]);
}

#[test]
fn watchers_that_wait_for_room_go_on_a_part_at_a_time() {
    const MANY: usize = 1000;
    let settings = Settings { outbox_bytes: 64 << 10, ..Settings::default() };
    let fixture = Fixture::with(settings);
    let mut client = fixture.open();
    for _ in 0..MANY {
        client.created(watch("k", "", 0));
    }
    let stats = fixture.hub.stats().clone();
    // Of each, the outbox takes a few.
    let first = fixture.commit(&[Change::Put("k", vec![7; 16 << 10])]);
    wait("most wait", || stats.slow_watchers() > MANY as i64 - 10);
    let second = fixture.commit(&[Change::Put("k", vec![8; 16 << 10])]);
    let mut seen = std::collections::BTreeMap::<i64, Vec<i64>>::new();
    let mut told = 0;
    while told < 2 * MANY {
        let notice = client.next();
        let What::Events { batch, .. } = &notice.what else { panic!("{notice:?}") };
        for event in decode(batch) {
            told += 1;
            seen.entry(notice.watch_id).or_default().push(event.kv.expect("a key").mod_revision);
        }
    }
    assert_eq!(seen.len(), MANY);
    assert!(seen.values().all(|revisions| *revisions == [first, second]));
    wait("live again", || stats.slow_watchers() == 0);
    // Cancelling them while they wait takes them out.
    fixture.commit(&[Change::Put("k", vec![9; 16 << 10])]);
    wait("most wait", || stats.slow_watchers() > MANY as i64 - 10);
    drop(client);
    wait("gone", || stats.watchers() == 0 && stats.slow_watchers() == 0);
}

#[test]
fn requests_wait_while_their_answers_are_unread() {
    let fixture = Fixture::new();
    let mut client = fixture.open();
    let mut accepted = 0;
    while poll_once(client.control.create(watch("k", "", 0))).is_some() {
        accepted += 1;
        assert!(accepted < 100);
    }
    assert_eq!(accepted, 16);
    client.next();
    assert!(poll_once(client.control.create(watch("k", "", 0))).is_some());
}

#[test]
fn ends_free_everything() {
    let fixture = Fixture::new();
    for _ in 0..2000 {
        fixture.put("k");
    }
    let clients: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = fixture.open();
            for start in [0, 1, 1000, 5000] {
                let create = client.control.create(watch("k", "", start));
                poll_once(create).expect("a permit").expect("open");
            }
            client.next();
            client
        })
        .collect();
    let stats = fixture.hub.stats().clone();
    wait("created", || stats.watchers() == 40 && stats.slow_watchers() == 0);
    assert!(stats.events_pending() > 0);
    drop(clients);
    wait("freed", || stats.streams() == 0);
    assert_eq!((stats.watchers(), stats.events_pending()), (0, 0));

    let mut client = fixture.open();
    client.created(watch("k", "", 0));
    fixture.hub.close();
    assert!(matches!(
        Pin::new(&mut client.notices).poll_next(&mut Context::from_waker(Waker::noop())),
        Poll::Ready(None)
    ));
    assert!(fixture.hub.open().is_err());
    fixture.hub.publish(Vec::new(), Visible { revision: 9999, compacted: 0 });
    assert!(poll_once(client.control.progress()).is_some());
}
