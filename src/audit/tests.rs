use super::*;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(10);

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(false))
}

fn to_file(path: &Path) -> AuditLog {
    let output = crate::config::AuditOutput::File(path.to_owned());
    AuditLog::open(&AuditConfig { output, level: AuditLevel::Writes }, metrics(), &Vital::default())
        .expect("opens")
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[tokio::test]
async fn lines_are_written_in_order_and_all_before_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let log = to_file(&path);
    for number in 0..1000 {
        log.write(format!("line {number}\n")).await;
    }
    log.close();
    let want: String = (0..1000).map(|number| format!("line {number}\n")).collect();
    assert_eq!(text(&path), want);
    log.write_now("too late\n".into());
    assert_eq!(log.shared.metrics.audit.lost_total.get(), 1);
    assert_eq!(log.shared.metrics.audit.lines_total.get(), 1000);
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let log = to_file(&path);
    log.close();
    let mode = std::fs::metadata(&path).expect("exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_renamed_file_is_followed_by_another_and_so_is_a_removed_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, old) = (dir.path().join("audit"), dir.path().join("audit.1"));
    let log = to_file(&path);
    log.write("a\n".into()).await;
    eventually("the first line is there", || text(&path) == "a\n");
    std::fs::rename(&path, &old).expect("renames");
    log.write("b\n".into()).await;
    eventually("the second line is in a new file", || text(&path) == "b\n");
    std::fs::remove_file(&path).expect("removes");
    log.reopen();
    eventually("an idle log opens its file again when it is told to", || path.exists());
    log.write("c\n".into()).await;
    log.close();
    assert_eq!((text(&old), text(&path)), ("a\n".into(), "c\n".into()));
}

/// How long a request waits where that is not to take long.
const SHORT: Duration = Duration::from_millis(50);

/// A log whose output fails while it is told to.
fn failing(
    capacity: usize,
    patience: Duration,
) -> (Arc<AuditLog>, Arc<AtomicBool>, Arc<Mutex<Vec<u8>>>) {
    let (broken, written) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
    let (fails, out) = (broken.clone(), written.clone());
    let output = Output::Fake(Box::new(move |bytes| {
        if fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("no space"));
        }
        // One byte at a time: a write may stop anywhere.
        out.lock().write_all(&bytes[..1])?;
        Ok(1)
    }));
    let log = AuditLog::start(
        output,
        AuditLevel::Writes,
        metrics(),
        &Vital::default(),
        (capacity, patience),
    );
    (Arc::new(log.expect("starts")), broken, written)
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_cannot_be_written_requests_wait_and_then_go_on_without() {
    let (log, broken, written) = failing(8, SHORT);
    let counts = &log.shared.metrics.audit;
    log.write("one\n".into()).await;
    eventually("a failure is counted", || counts.write_errors_total.get() > 0);
    // The writer has the first; these fill the queue.
    log.write("two\n".into()).await;
    log.write("333\n".into()).await;
    assert_eq!(counts.lost_total.get(), 0);
    let started = Instant::now();
    log.write("lost\n".into()).await;
    assert!(started.elapsed() >= SHORT, "waited {:?}", started.elapsed());
    assert_eq!(counts.lost_total.get(), 1);
    let started = Instant::now();
    for _ in 0..100 {
        log.write("lost\n".into()).await;
    }
    assert!(started.elapsed() < 50 * SHORT, "only the first one waits");
    assert_eq!(counts.lost_total.get(), 101);
    broken.store(false, Ordering::SeqCst);
    eventually("what was kept is written", || written.lock().as_slice() == b"one\ntwo\n333\n");
    eventually("nobody is stalled", || !log.shared.queue.lock().stalled);
    log.write("four\n".into()).await;
    log.close();
    assert_eq!(written.lock().as_slice(), b"one\ntwo\n333\nfour\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_waits_is_written_once_there_is_room() {
    let (log, broken, written) = failing(4, DEADLINE);
    log.write("one\n".into()).await;
    let counts = &log.shared.metrics.audit;
    eventually("the writer has it", || counts.write_errors_total.get() > 0);
    log.write("two\n".into()).await;
    assert!(log.shared.offer("333\n".into()).is_some(), "the queue is full");
    let waiting = log.clone();
    let waiting = tokio::spawn(async move { waiting.write("333\n".into()).await });
    broken.store(false, Ordering::SeqCst);
    waiting.await.expect("ends");
    log.close();
    assert_eq!(written.lock().as_slice(), b"one\ntwo\n333\n");
    assert_eq!(counts.lost_total.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_does_not_wait_for_a_broken_disk() {
    let (log, _broken, _) = failing(64, SHORT);
    log.write("one\n".into()).await;
    log.write("two\n".into()).await;
    let closing = log.clone();
    let started = Instant::now();
    tokio::task::spawn_blocking(move || closing.close()).await.expect("ends");
    assert!(started.elapsed() < DEADLINE);
    assert_eq!(log.shared.metrics.audit.lost_total.get(), 2);
}
