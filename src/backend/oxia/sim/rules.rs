//! That rules are needed: without one of these, some seed of a scenario goes wrong. Not every rule of
//! [`crate::seams`] is among them: the others need rarer orders of events than these scenarios make.

use super::world::Faults;
use super::{LEASES, LOG, LONG, ROUGH, SECOND, Scenario, run, seeds};
use crate::seams::Rule;
use std::time::Duration;

/// Seeds at most, unless `LEASEWAY_SEEDS` says more.
const MOST: u64 = 150;

/// The first seed that shows what goes wrong without a rule.
fn needed(rule: Rule, scenario: Scenario, most: u64) {
    for seed in 0..seeds(most) {
        if let Some(violation) = run(seed, scenario, Some(rule)).violation {
            println!("without {rule:?}, seed {seed}: {violation}");
            assert_eq!(run(seed, scenario, None).violation, None, "with {rule:?} as well");
            return;
        }
    }
    panic!("{most} seeds do not show that {rule:?} is needed");
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
    needed(Rule::ProvenTip, LOG, MOST);
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
    needed(Rule::Marker, scenario, MOST);
}

#[test]
fn renewed_lives() {
    needed(Rule::RenewedLives, LEASES, MOST);
}

#[test]
fn log_late_renewal() {
    needed(Rule::LogLateRenewal, LEASES, MOST);
}
