//! What can go wrong in the simulation.

use std::time::Duration;

/// What may go wrong, and how often. Chances are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A write has its effect, and the answer is lost.
    pub lost: u32,
    /// A request never arrives, and nobody can tell.
    pub dropped: u32,
    /// A request is surely not sent.
    pub refused: u32,
    /// A write has its effect after its sender was told that there is no answer.
    pub late: u32,
    /// How long after, at most.
    pub late_by: Duration,
    /// Longest way of a request or an answer.
    pub way: Duration,
    /// A way is up to 100 times as long.
    pub slow: u32,
    /// A heartbeat of a session is lost.
    pub beat_lost: u32,
    /// A hint is lost.
    pub hint_lost: u32,
    /// A notice is lost; every other time it is said that it was.
    pub notice_lost: u32,
    /// Time between changes of leader, at most.
    pub leads: Duration,
    /// How long a deposed leader goes on, at most.
    pub deposed: Duration,
    /// Time between pauses of gateways, at most.
    pub pauses: Duration,
    /// How long a gateway stands still, at most; most of the time it is up to a sixth of it.
    pub stands: Duration,
    /// Time between cuts of all gateways at once from a shard that lives on, at most.
    pub cuts: Duration,
    /// How long a cut lasts, at most; at least a third of it.
    pub cut_for: Duration,
    /// Time between kills of gateways, at most.
    pub kills: Duration,
    /// What a gateway sends first when it goes on is late: its connections are broken by then.
    pub wakes: u32,
    /// How long a leader takes to write the end of a session that it has decided on, at most.
    pub ending: Duration,
    /// A gateway to which nobody answers looks for another leader.
    pub looks: u32,
    /// How much clocks of gateways and leaders run too fast or too slow, at most.
    pub drift: u32,
    /// A gateway's timer fires late.
    pub timer_late: u32,
    /// How late, at most.
    pub timer_late_by: Duration,
}

/// No fault at all.
pub const CALM: Faults = Faults {
    lost: 0,
    dropped: 0,
    refused: 0,
    late: 0,
    late_by: Duration::ZERO,
    way: Duration::from_millis(2),
    slow: 0,
    beat_lost: 0,
    hint_lost: 0,
    notice_lost: 0,
    leads: Duration::MAX,
    deposed: Duration::ZERO,
    pauses: Duration::MAX,
    cuts: Duration::MAX,
    cut_for: Duration::ZERO,
    kills: Duration::MAX,
    stands: Duration::ZERO,
    wakes: 0,
    ending: Duration::ZERO,
    looks: 600,
    drift: 0,
    timer_late: 0,
    timer_late_by: Duration::ZERO,
};
