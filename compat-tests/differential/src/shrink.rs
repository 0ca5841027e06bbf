//! Makes a failing sequence as small as it gets while it still fails in the same way.

use std::future::Future;
use std::time::{Duration, Instant};

use prost_reflect::{DynamicMessage, Value};

use crate::ops::{Op, Sequence};

/// Bounds of the search.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Number of sequences tried.
    pub attempts_max: usize,
    /// Time spent.
    pub time_max: Duration,
}

/// Finds the smallest sequence that `fails` still accepts. `sequence` itself must fail.
pub async fn shrink<F, Fut>(sequence: Sequence, budget: Budget, mut fails: F) -> Sequence
where
    F: FnMut(Sequence) -> Fut,
    Fut: Future<Output = bool>,
{
    let mut search = Search { best: sequence, left: budget.attempts_max, started: Instant::now() };
    loop {
        let before = search.best.to_text();
        search.fewer_ops(budget, &mut fails).await;
        search.simpler_requests(budget, &mut fails).await;
        if search.best.to_text() == before || search.is_over(budget) {
            return search.best;
        }
    }
}

struct Search {
    best: Sequence,
    left: usize,
    started: Instant,
}

impl Search {
    fn is_over(&self, budget: Budget) -> bool {
        self.left == 0 || self.started.elapsed() > budget.time_max
    }

    async fn accept<F, Fut>(&mut self, candidate: Sequence, fails: &mut F) -> bool
    where
        F: FnMut(Sequence) -> Fut,
        Fut: Future<Output = bool>,
    {
        self.left = self.left.saturating_sub(1);
        let accepted = fails(candidate.clone()).await;
        if accepted {
            self.best = candidate;
        }
        accepted
    }

    /// Leaves out runs of operations, long ones first.
    async fn fewer_ops<F, Fut>(&mut self, budget: Budget, fails: &mut F)
    where
        F: FnMut(Sequence) -> Fut,
        Fut: Future<Output = bool>,
    {
        let mut length = self.best.ops.len().div_ceil(2);
        while length > 0 {
            let mut end = self.best.ops.len();
            while end > 0 && !self.is_over(budget) {
                let start = end.saturating_sub(length);
                let mut ops = self.best.ops.clone();
                ops.drain(start..end);
                let candidate = self.best.with_ops(ops);
                self.accept(candidate, fails).await;
                end = start.min(self.best.ops.len());
            }
            length /= 2;
        }
    }

    /// Leaves out fields of requests, at any depth.
    async fn simpler_requests<F, Fut>(&mut self, budget: Budget, fails: &mut F)
    where
        F: FnMut(Sequence) -> Fut,
        Fut: Future<Output = bool>,
    {
        for index in (0..self.best.ops.len()).rev() {
            let mut at = 0;
            while !self.is_over(budget) {
                let Some(request) = self.best.ops[index].request() else { break };
                let Some(simpler) = simpler(request).into_iter().nth(at) else { break };
                let mut ops: Vec<Op> = self.best.ops.clone();
                ops[index] = ops[index].with_request(simpler);
                let candidate = self.best.with_ops(ops);
                if !self.accept(candidate, fails).await {
                    at += 1;
                }
            }
        }
    }
}

/// All messages that lack one field or one element of a list, at any depth.
fn simpler(message: &DynamicMessage) -> Vec<DynamicMessage> {
    let mut out = Vec::new();
    for (field, value) in message.fields() {
        let mut without = message.clone();
        without.clear_field(&field);
        out.push(without);
        let with = |value: Value| {
            let mut changed = message.clone();
            changed.set_field(&field, value);
            changed
        };
        match value {
            Value::Message(inner) => {
                out.extend(simpler(inner).into_iter().map(|m| with(Value::Message(m))));
            }
            Value::List(items) => {
                if items.len() > 2 {
                    out.push(with(Value::List(items[..items.len() / 2].to_vec())));
                    out.push(with(Value::List(items[items.len() / 2..].to_vec())));
                }
                for index in 0..items.len() {
                    let mut fewer = items.clone();
                    let item = fewer.remove(index);
                    if items.len() > 1 {
                        out.push(with(Value::List(fewer)));
                    }
                    if let Value::Message(inner) = item {
                        out.extend(simpler(&inner).into_iter().map(|m| {
                            let mut changed = items.clone();
                            changed[index] = Value::Message(m);
                            with(Value::List(changed))
                        }));
                    }
                }
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget { attempts_max: 10_000, time_max: Duration::from_secs(60) };

    fn run(text: &str, fails: impl Fn(&str) -> bool) -> String {
        let sequence = Sequence::parse("test", text).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let small = shrink(sequence, BUDGET, |s| std::future::ready(fails(&s.to_text())));
        runtime.block_on(small).to_text()
    }

    #[test]
    fn what_does_not_matter_is_left_out() {
        let text = "KV.Put {key:\"a\",value:\"1\"}\nKV.Put {key:\"b\"}\nrestart\n\
                    KV.Range {key:\"a\",limit:3,keys_only:true}\nKV.Range {key:\"b\"}\n";
        let small = run(text, |s| s.contains("limit:3") && s.contains("value:\"1\""));
        assert_eq!(small, "KV.Put {value:\"1\"}\nKV.Range {limit:3}\n");
    }

    #[test]
    fn nested_messages_shrink() {
        let text = "KV.Txn {compare:[{key:\"a\"},{key:\"b\"}],success:[\
                    {request_put{key:\"x\",value:\"1\"}},{request_txn{success:[\
                    {request_range{key:\"q\"}},{request_put{key:\"deep\",lease:4}}]}}]}\n";
        let small = run(text, |s| s.contains("key:\"deep\""));
        let expected = "KV.Txn {success:[{request_txn{success:[{request_put{key:\"deep\"}}]}}]}\n";
        assert_eq!(small, expected);
    }

    #[test]
    fn the_budget_bounds_the_search() {
        let sequence = Sequence::parse("test", &"KV.Put {key:\"a\"}\n".repeat(50)).unwrap();
        let budget = Budget { attempts_max: 7, ..BUDGET };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut attempts = 0;
        let search = shrink(sequence, budget, |_| {
            attempts += 1;
            std::future::ready(false)
        });
        assert_eq!(runtime.block_on(search).ops.len(), 50);
        assert_eq!(attempts, 7);
    }
}
