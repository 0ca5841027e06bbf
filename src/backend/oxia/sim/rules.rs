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
    needed(Rule::HeartbeatBarrier, LEASES, MOST);
}

#[test]
fn proven_not_found() {
    needed(Rule::ProvenNotFound, LEASES, MOST);
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
