//! What the commands about leases do.
//!
//! Expiry, renewal and a new session are conditional: they name the session, and the number of
//! renewals that had been logged, as whoever proposed them knew them, and an expiry the marker as well.
//! If any is different by then, nothing happens.

use super::{Applying, Machine};
use crate::keyspace::command::{
    LeaseCheckpoint, LeaseExpire, LeaseGrant, LeaseRebind, LeaseRenewed, Reply,
};
use crate::keyspace::error::Refusal;
use crate::keyspace::leases::Lease;
use crate::keyspace::staging::{Staging, Timed};
use crate::seams::{Rule, follows};
use crate::storage::tables::leases;

impl Machine {
    pub(super) fn grant(
        &mut self,
        staging: &mut Staging,
        grant: &LeaseGrant,
    ) -> Result<Reply, Refusal> {
        if grant.id == 0 {
            return Err(Refusal::LeaseNotFound);
        }
        if self.shared.leases.lives(grant.id) {
            return Err(Refusal::LeaseExists);
        }
        let lease = Lease {
            id: grant.id,
            ttl: grant.ttl,
            session: grant.session,
            renewals: 0,
            remaining: 0,
            spared: false,
            marker: grant.marker.clone(),
        };
        leases::put(&mut staging.batch, &lease_row(&lease));
        note_time(staging, &lease);
        self.shared.leases.grant(lease, staging.position);
        Ok(Reply::Lease(true))
    }

    /// Ends a lease and deletes its keys, in key order, as one revision.
    pub(super) fn end_lease(&mut self, staging: &mut Staging, id: i64) {
        let Some((lease, keys)) = self.shared.leases.end(id, staging.position) else { return };
        note_time(staging, &lease);
        leases::delete(&mut staging.batch, id);
        let mut applying = Applying { machine: self, staging };
        for key in keys {
            applying.bury(&key);
        }
    }

    pub(super) fn expire(&mut self, staging: &mut Staging, expire: &LeaseExpire) -> bool {
        let current = self.shared.leases.get(expire.id).value.is_some_and(|lease| {
            let same = lease.session == expire.session && lease.marker == expire.marker;
            (same || !follows(Rule::ExpirySession))
                && (lease.renewals == expire.renewals || !follows(Rule::ExpiryRenewals))
        });
        if current {
            self.end_lease(staging, expire.id);
        }
        current
    }

    pub(super) fn renewed(&mut self, staging: &mut Staging, renewed: &LeaseRenewed) -> bool {
        let changed = self.shared.leases.change(renewed.id, staging.position, |lease| {
            let same = lease.session == renewed.session && lease.marker == renewed.marker;
            if same {
                lease.renewals += 1;
                lease.remaining = 0;
                lease.spared = false;
            }
            same
        });
        if let Some(lease) = &changed {
            leases::put(&mut staging.batch, &lease_row(lease));
            note_time(staging, lease);
        }
        changed.is_some()
    }

    pub(super) fn checkpoint(&mut self, staging: &mut Staging, checkpoint: &LeaseCheckpoint) {
        for noted in &checkpoint.remaining {
            let changed = self.shared.leases.change(noted.id, staging.position, |lease| {
                let same = lease.session == noted.session && lease.renewals == noted.renewals;
                if same {
                    lease.remaining = noted.seconds;
                }
                same
            });
            if let Some(lease) = &changed {
                leases::put(&mut staging.batch, &lease_row(lease));
                if lease.session == 0 {
                    staging.timed.push(Timed::Noted(lease.id));
                }
            }
        }
    }

    /// Gives a lease whose session ended when nobody could have renewed it a new session, once.
    pub(super) fn rebind(&mut self, staging: &mut Staging, rebind: &LeaseRebind) -> bool {
        let changed = self.shared.leases.change(rebind.id, staging.position, |lease| {
            let same = lease.session == rebind.session
                && lease.marker == rebind.marker
                && lease.renewals == rebind.renewals;
            let first = same && !lease.spared;
            if first {
                lease.session = rebind.new_session;
                lease.marker.clone_from(&rebind.new_marker);
                lease.spared = true;
            }
            first
        });
        if let Some(lease) = &changed {
            leases::put(&mut staging.batch, &lease_row(lease));
        }
        changed.is_some()
    }
}

/// Leases whose time, or whose logged renewals, the gateways keep in mind.
fn note_time(staging: &mut Staging, lease: &Lease) {
    if lease.session == 0 || lease.renewals > 0 {
        staging.timed.push(Timed::Changed(lease.id));
    }
}

fn lease_row(lease: &Lease) -> leases::Row {
    leases::Row {
        id: lease.id,
        ttl: lease.ttl,
        session: lease.session,
        renewals: lease.renewals,
        remaining: lease.remaining,
        spared: lease.spared,
        marker: lease.marker.clone(),
    }
}
