//! Which gateways may append to a replicated log, and how far each has come.
//!
//! An append whose answer was lost may land late or never. The table makes that harmless, by the
//! log's order alone, the same for everyone who reads it:
//!
//! | log | what it does |
//! |---|---|
//! | `Register` by g | g is known, its highest number is that of the entry |
//! | g, number 7 | applied, highest number of g is 7 |
//! | g, number 9 | applied; 8 may be on its way still |
//! | g, number 8 | ignored: at or below 9, so g knows that it may send those commands again |
//! | `Retire` of g | g is unknown |
//! | g, number 10 | ignored |
//!
//! Deliberately absent: who these gateways are and whether they live.

use super::error::Refusal;
use crate::seams::{Rule, follows};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use leaseway_proto::log::{Entry, Found, entry::Control};
use prost::Message;
use std::collections::BTreeMap;

/// The feature level that this version follows, and can follow at most.
pub const MAX_FEATURE_LEVEL: u32 = 1;

/// A gateway's identity: 128 random bits.
pub type GatewayId = [u8; 16];

/// What is known of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Highest number applied.
    pub last_number: u64,
    /// Highest feature level that it can follow.
    pub max_feature_level: u32,
    /// How many had registered before it.
    pub order: u64,
}

/// Who a keyspace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Founded {
    /// Tells this keyspace from another of the same name.
    pub incarnation: [u8; 16],
    /// What clients see as the cluster's id.
    pub cluster_id: u64,
}

/// The gateways of a replicated log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gateways {
    /// Who the keyspace is, once it has been founded.
    pub founded: Option<Founded>,
    /// The rules that commands are applied by; 0 until one was set, which are those of level 1.
    pub feature_level: u32,
    /// How many have registered so far.
    pub registered: u64,
    /// Bytes of all entries so far.
    pub log_bytes: u64,
    /// Known gateways.
    pub known: BTreeMap<GatewayId, Gateway>,
}

/// First byte of the stored form.
const FORM: u8 = 1;
/// Bytes of the stored form before the known gateways, and of each of these.
const HEAD: usize = 54;
const EACH: usize = 36;

/// What is to become of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Its commands are applied.
    Apply,
    /// It was about gateways, and is done.
    Done,
    /// Of an unknown gateway, or too late: it has no effect and never will.
    Ignored,
}

fn id(bytes: &[u8]) -> Option<GatewayId> {
    bytes.try_into().ok()
}

impl Gateways {
    /// The form in which they are stored: form (u8), whether founded (u8), incarnation (16), cluster id
    /// (u64), feature level (u32), registrations (u64), bytes of the log (u64), number of gateways (u64),
    /// then for each its id (16), highest number (u64), highest feature level (u32), place among the
    /// registrations (u64); all little-endian.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEAD + EACH * self.known.len());
        let nobody = Founded { incarnation: [0; 16], cluster_id: 0 };
        let founded = self.founded.unwrap_or(nobody);
        out.put_u8(FORM);
        out.put_u8(u8::from(self.founded.is_some()));
        out.put_slice(&founded.incarnation);
        out.put_u64_le(founded.cluster_id);
        out.put_u32_le(self.feature_level);
        out.put_u64_le(self.registered);
        out.put_u64_le(self.log_bytes);
        out.put_u64_le(self.known.len() as u64);
        for (id, gateway) in &self.known {
            out.put_slice(id);
            out.put_u64_le(gateway.last_number);
            out.put_u32_le(gateway.max_feature_level);
            out.put_u64_le(gateway.order);
        }
        out.freeze()
    }

    /// Reads the stored form; `None` when it is none.
    pub fn decode(mut stored: &[u8]) -> Option<Self> {
        if stored.len() < HEAD || stored.get_u8() != FORM {
            return None;
        }
        let is_founded = stored.get_u8() == 1;
        let incarnation = id(stored.get(..16)?)?;
        stored.advance(16);
        let founded = Founded { incarnation, cluster_id: stored.get_u64_le() };
        let feature_level = stored.get_u32_le();
        let (registered, log_bytes) = (stored.get_u64_le(), stored.get_u64_le());
        let count = usize::try_from(stored.get_u64_le()).ok()?;
        if count.checked_mul(EACH)? != stored.len() {
            return None;
        }
        let mut known = BTreeMap::new();
        for mut each in stored.chunks_exact(EACH) {
            let gateway = id(each.get(..16)?)?;
            each.advance(16);
            let (last_number, max_feature_level) = (each.get_u64_le(), each.get_u32_le());
            let order = each.get_u64_le();
            known.insert(gateway, Gateway { last_number, max_feature_level, order });
        }
        let founded = is_founded.then_some(founded);
        Some(Self { founded, feature_level, registered, log_bytes, known })
    }

    /// Decides about the next entry of the log, and takes note of it.
    ///
    /// # Errors
    /// [`Refusal::UnknownCommand`] for an entry that this version can't understand: the reader must stop.
    pub fn admit(&mut self, entry: &Entry) -> Result<Admission, Refusal> {
        let gateway = id(&entry.gateway).ok_or(Refusal::UnknownCommand)?;
        self.log_bytes += entry.encoded_len() as u64;
        match &entry.control {
            Some(Control::Found(found)) => {
                self.found(found)?;
                Ok(Admission::Done)
            }
            Some(Control::Register(register)) => {
                let last_number = entry.last_number;
                let max_feature_level = register.max_feature_level;
                let order = self.registered;
                self.registered += 1;
                // A second one can only be the same append seen twice: it changes nothing.
                let new = Gateway { last_number, max_feature_level, order };
                self.known.entry(gateway).or_insert(new);
                Ok(Admission::Done)
            }
            Some(Control::Retire(retire)) => {
                self.known.remove(&id(&retire.gateway).ok_or(Refusal::UnknownCommand)?);
                Ok(Admission::Done)
            }
            Some(Control::RaiseFeatureLevel(raise)) => {
                if raise.level > MAX_FEATURE_LEVEL {
                    return Err(Refusal::UnknownCommand);
                }
                self.feature_level = self.feature_level.max(raise.level);
                Ok(Admission::Done)
            }
            None => match self.known.get_mut(&gateway) {
                Some(known) if entry.last_number > known.last_number || !follows(Rule::Numbers) => {
                    known.last_number = known.last_number.max(entry.last_number);
                    Ok(Admission::Apply)
                }
                _ => Ok(Admission::Ignored),
            },
        }
    }

    fn found(&mut self, found: &Found) -> Result<(), Refusal> {
        let incarnation = id(&found.incarnation).ok_or(Refusal::UnknownCommand)?;
        if self.founded.is_none() {
            self.founded = Some(Founded { incarnation, cluster_id: found.cluster_id });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaseway_proto::log::{RaiseFeatureLevel, Register, Retire};

    const ONE: GatewayId = [1; 16];
    const TWO: GatewayId = [2; 16];

    fn entry(gateway: GatewayId, last_number: u64, control: Option<Control>) -> Entry {
        let gateway = gateway.to_vec().into();
        Entry { gateway, last_number, control, ..Entry::default() }
    }

    fn register() -> Option<Control> {
        Some(Control::Register(Register { max_feature_level: 1 }))
    }

    #[test]
    fn each_number_counts_once_and_only_while_its_gateway_is_known() {
        let mut gateways = Gateways::default();
        let mut admit = |entry: Entry| gateways.admit(&entry).unwrap();
        assert_eq!(admit(entry(ONE, 1, None)), Admission::Ignored, "not registered");
        assert_eq!(admit(entry(ONE, 1, register())), Admission::Done);
        assert_eq!(admit(entry(ONE, 1, None)), Admission::Ignored, "the registration's number");
        assert_eq!(admit(entry(ONE, 7, None)), Admission::Apply);
        assert_eq!(admit(entry(TWO, 8, None)), Admission::Ignored, "somebody else");
        assert_eq!(admit(entry(ONE, 9, None)), Admission::Apply);
        assert_eq!(admit(entry(ONE, 8, None)), Admission::Ignored, "overtaken");
        assert_eq!(admit(entry(ONE, 9, None)), Admission::Ignored, "twice");
        assert_eq!(admit(entry(ONE, 1, register())), Admission::Done);
        assert_eq!(admit(entry(ONE, 5, None)), Admission::Ignored, "still overtaken");
        let retire = Some(Control::Retire(Retire { gateway: ONE.to_vec().into() }));
        assert_eq!(admit(entry(TWO, 1, retire)), Admission::Done);
        assert_eq!(admit(entry(ONE, 10, None)), Admission::Ignored, "retired");
    }

    #[test]
    fn what_is_stored_is_read_again_and_nothing_else_is() {
        let mut gateways = Gateways::default();
        assert_eq!(Gateways::decode(&gateways.encode()), Some(gateways.clone()));
        let incarnation = vec![7; 16].into();
        let found = Found { incarnation, cluster_id: 11, ..Found::default() };
        gateways.admit(&entry(ONE, 1, Some(Control::Found(found)))).unwrap();
        gateways.admit(&entry(ONE, 5, register())).unwrap();
        gateways.admit(&entry(TWO, 6, register())).unwrap();
        gateways.admit(&entry(TWO, 9, None)).unwrap();
        assert!(gateways.log_bytes > 0);
        let stored = gateways.encode();
        assert_eq!(stored.len(), HEAD + 2 * EACH);
        assert_eq!(Gateways::decode(&stored), Some(gateways));
        assert_eq!(Gateways::decode(&stored[1..]), None);
        assert_eq!(Gateways::decode(&stored[..stored.len() - 1]), None);
        assert_eq!(Gateways::decode(&[]), None);
    }

    #[test]
    fn the_first_founding_counts() {
        let mut gateways = Gateways::default();
        for (byte, cluster_id) in [(1, 11), (2, 22)] {
            let incarnation = vec![byte; 16].into();
            let found = Found { incarnation, cluster_id, ..Found::default() };
            let entry = entry(ONE, 1, Some(Control::Found(found)));
            assert_eq!(gateways.admit(&entry), Ok(Admission::Done));
        }
        assert_eq!(gateways.founded, Some(Founded { incarnation: [1; 16], cluster_id: 11 }));
    }

    #[test]
    fn what_can_not_be_understood_stops_the_reader() {
        let mut gateways = Gateways::default();
        let nameless = Entry { last_number: 1, ..Entry::default() };
        assert_eq!(gateways.admit(&nameless), Err(Refusal::UnknownCommand));
        let retire = Some(Control::Retire(Retire { gateway: b"short"[..].into() }));
        assert_eq!(gateways.admit(&entry(ONE, 1, retire)), Err(Refusal::UnknownCommand));
        let raise = |level| {
            let raise = Control::RaiseFeatureLevel(RaiseFeatureLevel { level });
            entry(ONE, 1, Some(raise))
        };
        assert_eq!(gateways.admit(&raise(MAX_FEATURE_LEVEL)), Ok(Admission::Done));
        assert_eq!(gateways.admit(&raise(0)), Ok(Admission::Done), "never lowered");
        assert_eq!(gateways.feature_level, MAX_FEATURE_LEVEL);
        assert_eq!(gateways.admit(&raise(MAX_FEATURE_LEVEL + 1)), Err(Refusal::UnknownCommand));
    }
}
