//! Watch fan-out: events a second, and bytes for each watcher at rest.
//!
//! `cargo bench --bench watch`. Counts what the hub does, from a published revision to the answer
//! that the transport takes; there is no network in it.

use bytes::Bytes;
use leaseway::keyspace::event::{
    Event, EventKind, History, HistoryBudget, HistoryChunk, HistoryError, RevisionEvents, RowId,
    Visible,
};
use leaseway::watch::{CreateWatcher, Hub, KeyRange, Notices, Settings, StreamControl, What};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Events of 256 bytes, all alike, as many as were committed.
struct Store(AtomicI64);

fn revision(number: i64) -> RevisionEvents {
    let event = Event {
        row: RowId { main: number, sub: 0 },
        kind: EventKind::Put,
        key: Bytes::from_static(b"/registry/pods/default/pod-1"),
        kv: Bytes::from_static(&[10; 256]),
        create: false,
    };
    RevisionEvents { revision: number, events: Arc::new([event]) }
}

impl History for Store {
    fn visible(&self) -> Visible {
        Visible { revision: self.0.load(Ordering::Acquire), compacted: 0 }
    }

    fn events(
        &self,
        from: i64,
        to: i64,
        budget: HistoryBudget,
    ) -> Result<HistoryChunk, HistoryError> {
        let through = to.min(from + budget.events as i64 - 1);
        Ok(HistoryChunk { revisions: (from..=through).map(revision).collect(), through })
    }

    fn previous(&self, _: &[u8], _: i64) -> Result<Option<Bytes>, HistoryError> {
        Ok(Some(Bytes::from_static(&[10; 256])))
    }
}

fn watch(key: &[u8], range_end: &[u8]) -> CreateWatcher {
    CreateWatcher {
        range: KeyRange::from_request(key, range_end),
        start_revision: 0,
        watch_id: 0,
        prev_kv: true,
        progress_notify: false,
        fragment: false,
        no_put: false,
        no_delete: false,
    }
}

async fn open(
    hub: &Hub,
    watchers: impl Iterator<Item = CreateWatcher>,
) -> (StreamControl, Notices) {
    let (control, mut notices) = hub.open().expect("open");
    for watcher in watchers {
        control.create(watcher).await.expect("open");
        let created = notices.next().await.expect("created");
        assert!(matches!(created.what, What::Created));
    }
    (control, notices)
}

async fn fan_out(streams: usize, watchers: usize, group: i64, groups: i64) {
    let store = Arc::new(Store(AtomicI64::new(1)));
    let hub = Hub::start(store.clone(), Settings::default()).expect("threads");
    let mut readers = Vec::new();
    for _ in 0..streams {
        let mine = (0..watchers / streams).map(|_| watch(b"/registry/pods/", b"/registry/pods0"));
        let (control, mut notices) = open(&hub, mine).await;
        let expected = (group * groups) as usize * (watchers / streams);
        readers.push(tokio::spawn(async move {
            let mut seen = 0;
            while seen < expected {
                let Some(notice) = notices.next().await else { break };
                if let What::Events { batch, .. } = notice.what {
                    seen += batch.pieces().len();
                }
            }
            drop(control);
            seen
        }));
    }
    let start = Instant::now();
    for number in 0..groups {
        let first = 2 + number * group;
        store.0.store(first + group - 1, Ordering::Release);
        hub.publish((first..first + group).map(revision).collect(), store.visible());
        // A commit takes about this long.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut events = 0;
    for reader in readers {
        events += reader.await.expect("a reader");
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "fan-out: {watchers:>6} watchers on {streams:>5} streams, commits of {group:>3}: {:>11.0} events/s, {:.0} revisions/s",
        events as f64 / seconds,
        (group * groups) as f64 / seconds,
    );
    hub.close();
}

async fn memory(name: &str, key: impl Fn(usize) -> (Vec<u8>, &'static [u8])) {
    const WATCHERS: usize = 100_000;
    let store = Arc::new(Store(AtomicI64::new(1)));
    let hub = Hub::start(store.clone(), Settings::default()).expect("threads");
    let (_control, mut notices) = open(&hub, std::iter::once(watch(b"none", b""))).await;
    let before = ALLOCATED.load(Ordering::Relaxed);
    for number in 0..WATCHERS {
        let (key, end) = key(number);
        _control.create(watch(&key, end)).await.expect("open");
        notices.next().await.expect("created");
    }
    let bytes = ALLOCATED.load(Ordering::Relaxed) - before;
    let start = Instant::now();
    for number in 2..1002 {
        store.0.store(number, Ordering::Release);
        hub.publish(vec![revision(number)], store.visible());
    }
    _control.progress().await.expect("open");
    while !matches!(notices.next().await.map(|notice| notice.what), Some(What::Progress)) {}
    println!(
        "at rest: {WATCHERS} watchers of {name}: {} bytes each; a revision that concerns none or one: {:?}",
        bytes / WATCHERS,
        start.elapsed() / 1000
    );
    hub.close();
}

#[tokio::main]
async fn main() {
    fan_out(1000, 1000, 1, 500).await;
    fan_out(1000, 1000, 50, 20).await;
    fan_out(10, 1000, 1, 500).await;
    fan_out(10_000, 10_000, 1, 50).await;
    fan_out(100, 10_000, 1, 50).await;
    memory("distinct keys", |n| (format!("/registry/pods/ns/{n:08}").into_bytes(), b"")).await;
    memory("distinct ranges", |n| {
        (format!("/registry/pods/zz/{n:08}").into_bytes(), b"/registry/pods/zzz")
    })
    .await;
    memory("one key", |_| (b"/registry/pods/ns/x".to_vec(), b"")).await;
}
