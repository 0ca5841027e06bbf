//! Raised alarms. Few, so a plain ordered set behind a lock.

use super::error::Refusal;
use super::leases::Positioned;
use leaseway_proto::etcdserverpb::{AlarmMember, AlarmType};
use parking_lot::RwLock;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The name of a type of alarm, which is its number if it has none.
pub fn name(alarm: i32) -> Cow<'static, str> {
    match AlarmType::try_from(alarm) {
        Ok(known) => known.as_str_name().into(),
        Err(_) => alarm.to_string().into(),
    }
}

/// The raised alarms.
#[derive(Debug, Default)]
pub struct Alarms {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    // Alarm type first: etcd lists them by type.
    raised: BTreeSet<(i32, u64)>,
    position: u64,
}

impl Alarms {
    /// Alarms of a type, or all for `None` (0).
    pub fn list(&self, alarm: i32) -> Positioned<Vec<AlarmMember>> {
        let inner = self.inner.read();
        let wanted = |kind: i32| alarm == AlarmType::None as i32 || alarm == kind;
        let value = inner
            .raised
            .iter()
            .filter(|(kind, _)| wanted(*kind))
            .map(|&(alarm, member_id)| AlarmMember { member_id, alarm })
            .collect();
        Positioned { value, position: inner.position }
    }

    /// Whether any member has raised this alarm.
    pub fn raised(&self, alarm: AlarmType) -> bool {
        let alarm = alarm as i32;
        self.inner.read().raised.range((alarm, 0)..=(alarm, u64::MAX)).next().is_some()
    }

    /// Why anything that takes space is refused, if an alarm is raised.
    pub fn refusal_of_writes(&self) -> Option<Refusal> {
        if self.raised(AlarmType::Corrupt) {
            return Some(Refusal::Corrupt);
        }
        self.raised(AlarmType::Nospace).then_some(Refusal::NoSpace)
    }

    /// Raises; returns whether it is new.
    pub(super) fn raise(&self, member: u64, alarm: i32, position: u64) -> bool {
        let mut inner = self.inner.write();
        let changed = inner.raised.insert((alarm, member));
        if changed {
            inner.position = position;
        }
        changed
    }

    /// Disarms; returns whether it was raised.
    pub(super) fn disarm(&self, member: u64, alarm: i32, position: u64) -> bool {
        let mut inner = self.inner.write();
        let changed = inner.raised.remove(&(alarm, member));
        if changed {
            // A position that no group gets would be waited for in vain.
            inner.position = position;
        }
        changed
    }
}
