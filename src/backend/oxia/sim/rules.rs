//! That every rule of [`crate::seams`] is needed: without it, some seed of a scenario goes wrong, and
//! with it none does. Each scenario makes the order of events likely that the rule is there for.

use super::clients::Habits;
use super::faults::Faults;
use super::{
    CUTS, HABITS, LEASES, LOG, LONG, MS, QUIET, ROUGH, SECOND, Scenario, check, run, seeds,
};
use crate::seams::Rule;
use std::time::Duration;

/// Seeds at most, unless `LEASEWAY_SEEDS` says more.
const MOST: u64 = 150;
/// Seeds that are run with all rules.
const WITH: u64 = 10;

/// Finds the first seed that shows what goes wrong without a rule; with it, nothing does.
fn needed(rule: Rule, scenario: Scenario, most: u64) {
    let found = (0..seeds(most)).find(|seed| {
        let violation = run(*seed, scenario, Some(rule)).violation;
        if let Some(violation) = &violation {
            println!("without {rule:?}, seed {seed}: {violation}");
        }
        violation.is_some()
    });
    let Some(found) = found else { panic!("{most} seeds do not show that {rule:?} is needed") };
    assert_eq!(run(found, scenario, None).violation, None, "with {rule:?} as well");
    check(&format!("{rule:?}"), scenario, WITH);
}

const LATE: Faults = Faults { late: 120, late_by: Duration::from_millis(300), lost: 60, ..ROUGH };

/// One gateway, so that it has sent most of a lease's heartbeats itself and logs few renewals; leaders that
/// are deposed often, and stay for long.
const DEPOSED: Scenario = Scenario {
    gateways: 1,
    lessees: 5,
    faults: Faults {
        leads: Duration::from_secs(3),
        deposed: Duration::from_secs(5),
        kills: Duration::MAX,
        pauses: Duration::MAX,
        ending: Duration::ZERO,
        ..ROUGH
    },
    ..LEASES
};

#[test]
fn numbers() {
    needed(Rule::Numbers, Scenario { faults: LATE, ..LOG }, MOST);
}

#[test]
fn settle() {
    needed(Rule::Settle, LOG, MOST);
}

#[test]
fn register_first() {
    let faults = Faults { late: 250, late_by: SECOND, kills: SECOND, ..LATE };
    needed(Rule::RegisterFirst, Scenario { faults, ..LOG }, MOST);
}

#[test]
fn proven_tip() {
    let faults = Faults { looks: 100, ..ROUGH };
    needed(Rule::ProvenTip, Scenario { faults, ..LOG }, MOST);
}

#[test]
fn heartbeat_barrier() {
    needed(Rule::HeartbeatBarrier, DEPOSED, MOST);
}

#[test]
fn expiry_renewals() {
    needed(Rule::ExpiryRenewals, LONG, MOST);
}

#[test]
fn marker() {
    let scenario = Scenario { forgets_ids: true, ..LEASES };
    needed(Rule::Marker, scenario, 3 * MOST);
}

/// A gateway that has no answer ends the session of a lease again, when its id is that of another.
#[test]
fn own_session() {
    let scenario = Scenario {
        forgets_ids: true,
        lessees: 6,
        faults: Faults { leads: 2 * SECOND, lost: 230, ..LEASES.faults },
        habits: Habits { renewals: 1, revokes: 1000, again: 100 * MS, ..HABITS },
        ..LEASES
    };
    needed(Rule::OwnSession, scenario, MOST);
}

#[test]
fn renewed_lives() {
    needed(Rule::RenewedLives, LEASES, MOST);
}

#[test]
fn log_late_renewal() {
    needed(Rule::LogLateRenewal, LEASES, MOST);
}

/// The session began before the lease did, so its time may be over before that of the lease.
#[test]
fn grant_heartbeat() {
    let scenario = Scenario {
        gateways: 1,
        lessees: 4,
        faults: Faults { slow: 200, ..QUIET },
        habits: Habits { puts: 0, renewals: 0, revokes: 0, ..HABITS },
        ..LEASES
    };
    needed(Rule::GrantHeartbeat, scenario, MOST);
}

/// A gateway sticks to a leader that was deposed, in whose memory leases end that others renew.
#[test]
fn proven_not_found() {
    let scenario = Scenario {
        time: 24 * SECOND,
        lessees: 7,
        faults: Faults {
            leads: 16 * SECOND,
            deposed: 16 * SECOND,
            looks: 0,
            hint_lost: 1000,
            ..QUIET
        },
        habits: Habits { own: 900, renewals: 8, late: 0.6, twice: 1000, revokes: 0, ..HABITS },
        ..LEASES
    };
    needed(Rule::ProvenNotFound, scenario, 3 * MOST);
}

/// One that was deposed takes the heartbeat, and its successor answers for the log.
#[test]
fn same_epoch() {
    let scenario = Scenario {
        time: 30 * SECOND,
        lessees: 8,
        faults: Faults { leads: 10 * SECOND, deposed: 3 * SECOND, looks: 0, ..QUIET },
        habits: Habits { puts: 0, renewals: 2, early: 0.2, late: 0.8, revokes: 0, ..HABITS },
        ..DEPOSED
    };
    needed(Rule::SameEpoch, scenario, MOST);
}

/// A gateway that hears of the log only by asking, slowly.
#[test]
fn next_barrier() {
    let scenario = Scenario {
        writers: 6,
        faults: Faults { way: 20 * MS, hint_lost: 1000, slow: 20, pauses: 2 * SECOND, ..QUIET },
        ..LOG
    };
    needed(Rule::NextBarrier, scenario, MOST);
}

/// A gateway stands still for so long that its session ends, and the first thing that it does
/// then is an append that arrives late.
#[test]
fn retire_old() {
    let scenario = Scenario {
        gateways: 1,
        time: 120 * SECOND,
        writers: 1,
        faults: Faults {
            dropped: 150,
            late: 100,
            late_by: 3 * SECOND,
            pauses: 12 * SECOND,
            stands: 84 * SECOND,
            wakes: 1000,
            ..QUIET
        },
        habits: Habits { pause: 10 * SECOND, ..HABITS },
        ..LOG
    };
    needed(Rule::RetireOld, scenario, MOST);
}

/// A client grants a lease at one gateway and renews it at another, which has not heard of it.
#[test]
fn unknown_lease() {
    let scenario = Scenario {
        lessees: 4,
        faults: Faults { hint_lost: 1000, pauses: 3 * SECOND, stands: 4 * SECOND, ..QUIET },
        habits: Habits { puts: 0, renewals: 2, early: 0.001, late: 0.3, revokes: 0, ..HABITS },
        ..LEASES
    };
    needed(Rule::UnknownLease, scenario, MOST);
}

/// A gateway stands still while a lease that it knows without a session ends and is granted with one.
#[test]
fn renew_again() {
    let scenario = Scenario {
        gateways: 3,
        lessees: 6,
        long: true,
        faults: Faults { hint_lost: 500, pauses: 2 * SECOND, stands: 6 * SECOND, ..QUIET },
        habits: Habits {
            puts: 0,
            renewals: 2,
            late: 0.3,
            revokes: 1000,
            again: 100 * MS,
            ..HABITS
        },
        ..LEASES
    };
    needed(Rule::RenewAgain, scenario, MOST);
}

/// Two gateways have heard of an end; the second writes it when the client has granted the lease anew.
#[test]
fn expiry_session() {
    let scenario = Scenario {
        gateways: 3,
        lessees: 6,
        faults: Faults {
            slow: 60,
            lost: 60,
            leads: 4 * SECOND,
            deposed: 3 * SECOND,
            looks: 100,
            pauses: SECOND,
            stands: 6 * SECOND,
            ..QUIET
        },
        habits: Habits { puts: 0, renewals: 2, late: 0.6, again: 100 * MS, ..HABITS },
        ..LEASES
    };
    needed(Rule::ExpirySession, scenario, MOST);
}

/// All gateways are cut off for longer than leases live, and nobody can renew them.
#[test]
fn notices_cut() {
    needed(Rule::NoticesCut, CUTS, MOST);
}

/// A leader's clock that runs fast ends a session that a gateway's slow one still counts on.
#[test]
fn clock_margin() {
    let scenario = Scenario {
        gateways: 1,
        lessees: 6,
        faults: Faults { drift: 10, ending: 400 * MS, ..QUIET },
        habits: Habits { puts: 0, renewals: 4, early: 0.95, late: 1.0, revokes: 0, ..HABITS },
        ..LEASES
    };
    needed(Rule::ClockMargin, scenario, MOST);
}
