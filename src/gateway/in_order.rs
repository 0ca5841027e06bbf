//! Answers in the order of their requests, as long as none takes long.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Requests of one stream that are under way at once.
const AT_ONCE: usize = 256;

/// Takes requests that are under way and returns their answers. An answer waits for those to requests before
/// its own, but only while these are younger than `patience`: one that takes longer comes when it comes.
/// The answers end behind the last request, and when nobody takes them any more nothing is waited for.
pub fn in_order<T: Send + 'static>(
    patience: Duration,
) -> (mpsc::Sender<JoinHandle<T>>, mpsc::Receiver<Result<T, JoinError>>) {
    // What waits is bounded below; this only hands it over.
    let (begun, requests) = mpsc::channel(1);
    let (told, answers) = mpsc::channel(AT_ONCE);
    tokio::spawn(async move {
        let mut line = Line { requests, patience, waiting: VecDeque::new(), slow: JoinSet::new() };
        loop {
            let answer = tokio::select! {
                biased;
                () = told.closed() => return,
                answer = line.next() => answer,
            };
            let Some(answer) = answer else { return };
            if told.send(answer).await.is_err() {
                return;
            }
        }
    });
    (begun, answers)
}

struct Line<T> {
    requests: mpsc::Receiver<JoinHandle<T>>,
    patience: Duration,
    // With the moment until which those behind it wait.
    waiting: VecDeque<(JoinHandle<T>, Instant)>,
    slow: JoinSet<Result<T, JoinError>>,
}

impl<T: Send + 'static> Line<T> {
    /// The next answer, none once there is no more.
    async fn next(&mut self) -> Option<Result<T, JoinError>> {
        let mut more = true;
        loop {
            let room = self.waiting.len() + self.slow.len() < AT_ONCE;
            let until = self.waiting.front().map(|(_, until)| *until);
            let first = self.waiting.front_mut().map(|(request, _)| request);
            tokio::select! {
                biased;
                Some(answer) = self.slow.join_next(), if !self.slow.is_empty() => {
                    return Some(answer.and_then(|answer| answer));
                }
                answer = async { Some(first?.await) }, if first.is_some() => {
                    self.waiting.pop_front();
                    return answer;
                }
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    if let Some((request, _)) = self.waiting.pop_front() {
                        self.slow.spawn(request);
                    }
                }
                request = self.requests.recv(), if more && room => match request {
                    Some(request) => {
                        self.waiting.push_back((request, Instant::now() + self.patience));
                    }
                    None => more = false,
                },
                else => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const PATIENCE: Duration = Duration::from_millis(500);

    /// Numbers in the order in which they come when each takes so many milliseconds, and when each came.
    async fn order(took: &[u64]) -> Vec<(usize, u128)> {
        let (begun, mut answers) = in_order(PATIENCE);
        let start = Instant::now();
        let took = took.to_vec();
        tokio::spawn(async move {
            for (number, took) in took.into_iter().enumerate() {
                let request = tokio::spawn(async move {
                    sleep(Duration::from_millis(took)).await;
                    number
                });
                begun.send(request).await.expect("answers are taken");
            }
        });
        let mut order = Vec::new();
        while let Some(answer) = answers.recv().await {
            order.push((answer.expect("it does not panic"), start.elapsed().as_millis()));
        }
        order
    }

    #[tokio::test(start_paused = true)]
    async fn answers_come_in_the_order_of_the_requests() {
        let numbers: Vec<_> = order(&[300, 20, 400, 1, 1]).await;
        assert_eq!(numbers.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_long_does_not_hold_up_the_others() {
        let found = order(&[10, 9000, 20, 30, 7000, 40]).await;
        let numbers: Vec<_> = found.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 2, 3, 5, 4, 1]);
        assert!(found[..4].iter().all(|(_, at)| *at < 600), "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_are_under_way() {
        let (begun, answers) = in_order(PATIENCE);
        let forever = || tokio::spawn(std::future::pending::<()>());
        for _ in 0..AT_ONCE {
            begun.send(forever()).await.expect("there is room");
        }
        let more = async {
            loop {
                begun.send(forever()).await.expect("answers may come");
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(60), more).await.is_err());
        drop(answers);
        tokio::time::timeout(PATIENCE, begun.closed()).await.expect("nobody takes answers");
    }
}
