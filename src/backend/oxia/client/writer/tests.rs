use super::*;

/// A writer whose transport is the test.
fn writer() -> (Writer, Outgoing) {
    let state = Arc::new(Mutex::new(State::default()));
    let (ending, ended) = watch::channel(false);
    (Writer { state: state.clone(), ended, ending }, Outgoing { state })
}

fn request(shard: i64) -> WriteRequest {
    WriteRequest { shard: Some(shard), ..WriteRequest::default() }
}

fn next(outgoing: &mut Outgoing) -> Poll<Option<i64>> {
    let mut cx = Context::from_waker(Waker::noop());
    let next = Pin::new(outgoing).poll_next(&mut cx);
    next.map(|request| request.and_then(|request| request.shard))
}

fn lost() -> Error {
    Error::new(Kind::Unavailable, "lost")
}

#[test]
fn sends_in_order_and_tells_sent_from_unsent() {
    let (writer, mut outgoing) = writer();
    let mut pending: Vec<_> =
        (0..3).map(|n| writer.send(request(n), 1).expect("room in the queue")).collect();
    assert_eq!(next(&mut outgoing), Poll::Ready(Some(0)));
    assert_eq!(next(&mut outgoing), Poll::Ready(Some(1)));
    writer.end(&lost());
    let outcome = |pending: &mut Pending| pending.try_recv().expect("an outcome");
    assert_eq!(outcome(&mut pending[0]), Err(WriteError::Unknown(lost())));
    assert_eq!(outcome(&mut pending[1]), Err(WriteError::Unknown(lost())));
    assert_eq!(outcome(&mut pending[2]), Err(WriteError::NotSent(lost())));
    assert_eq!(next(&mut outgoing), Poll::Ready(None), "nothing is sent after the end");
    assert_eq!(writer.send(request(4), 1).err(), Some(WriteError::NotSent(lost())));
    assert!(*writer.ended.borrow());
}

#[test]
fn keeps_at_most_so_many_in_flight() {
    let (writer, mut outgoing) = writer();
    let pending: Vec<_> = (0..=IN_FLIGHT_MAX as i64)
        .map(|n| writer.send(request(n), 1).expect("room in the queue"))
        .collect();
    for n in 0..IN_FLIGHT_MAX as i64 {
        assert_eq!(next(&mut outgoing), Poll::Ready(Some(n)));
    }
    assert_eq!(next(&mut outgoing), Poll::Pending, "the answers must come first");
    outgoing.state.lock().in_flight.pop_front();
    assert_eq!(next(&mut outgoing), Poll::Ready(Some(IN_FLIGHT_MAX as i64)));
    drop(pending);
}

#[test]
fn refuses_when_the_queue_is_full() {
    let (writer, _outgoing) = writer();
    let kind = |result: Result<Pending, WriteError>| match result {
        Err(WriteError::NotSent(error)) => Some(error.kind),
        _ => None,
    };
    let large = writer.send(request(0), 2 * QUEUED_BYTES_MAX);
    assert!(large.is_ok(), "one large request is fine");
    assert_eq!(kind(writer.send(request(1), 1)), Some(Kind::Busy));
    let (writer, _outgoing) = self::writer();
    let pending: Vec<_> = (0..QUEUED_MAX as i64).map(|n| writer.send(request(n), 1)).collect();
    assert!(pending.iter().all(Result::is_ok));
    assert_eq!(kind(writer.send(request(1), 1)), Some(Kind::Busy));
}

#[test]
fn a_dropped_call_is_taken_back() {
    let (writer, mut outgoing) = writer();
    let first = writer.send(request(0), 10).expect("room");
    let second = writer.send(request(1), 10).expect("room");
    drop(first);
    assert_eq!(next(&mut outgoing), Poll::Ready(Some(1)), "the first was never sent");
    assert_eq!(next(&mut outgoing), Poll::Pending);
    let state = outgoing.state.lock();
    assert_eq!((state.queued_bytes, state.in_flight.len()), (0, 1));
    drop(second);
}
