//! Names of a keyspace's records in its shard.
//!
//! | name | record |
//! |---|---|
//! | `leaseway/KEYSPACE/log-%020d` | one log entry; the number is its position, given by the server |
//! | `leaseway/KEYSPACE/gateway/ID` | a living gateway; goes with its session |
//! | `leaseway/KEYSPACE/lease/SESSION.RANDOM` | the marker of a lease's session; goes with it |
//! | `leaseway/KEYSPACE/joining/ID` | somebody who loads; goes with its session |
//! | `leaseway/KEYSPACE/head` | the newest checkpoint, see [`super::checkpoint`] for it and the next two |
//! | `leaseway/KEYSPACE/checkpoint/FOLDER` | a checkpoint's folder may exist |
//! | `leaseway/KEYSPACE/checkpoint.FOLDER/…` | a checkpoint |
//! | `leaseway/KEYSPACE/leader` | written to prove that a leader leads; no content. Its name comes just before the log's: whoever looks for the newest log record of an empty log finds it, and not one of the server's own, which can't be read |
//!
//! Nothing else may be written below `leaseway/KEYSPACE/log-`: the server numbers from what it finds there.

use crate::keyspace::gateways::GatewayId;

/// Longest name of a keyspace, in bytes.
pub const MAX_KEYSPACE: usize = 63;

/// The names within one keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    root: String,
}

/// Whether a keyspace may have this name: letters, digits, `-`, `_` and `.`, at most
/// [`MAX_KEYSPACE`].
pub fn is_keyspace(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MAX_KEYSPACE && name.chars().all(allowed)
}

/// A gateway's id as it stands in names.
pub fn hex(id: GatewayId) -> String {
    format!("{:032x}", u128::from_be_bytes(id))
}

impl Names {
    /// Names of `keyspace`.
    pub fn new(keyspace: &str) -> Self {
        Self { root: format!("leaseway/{keyspace}") }
    }

    /// What the log's records begin with, before the hyphen.
    pub fn log(&self) -> String {
        format!("{}/log", self.root)
    }

    /// The folder of living gateways.
    pub fn gateways(&self) -> String {
        format!("{}/gateway/", self.root)
    }

    /// A gateway's record.
    pub fn gateway(&self, id: GatewayId) -> String {
        self.gateways() + &hex(id)
    }

    /// The gateway that a record is of.
    pub fn gateway_of(&self, name: &str) -> Option<GatewayId> {
        let id = name.strip_prefix(&self.gateways())?;
        let number = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32)?;
        Some(number.to_be_bytes())
    }

    /// The folder of leases' markers.
    pub fn markers(&self) -> String {
        format!("{}/lease/", self.root)
    }

    /// The marker of a session. `random` keeps it apart from that of a session to which the server gave
    /// the same id.
    pub fn marker(&self, session: u64, random: u128) -> String {
        format!("{}{session:016x}.{random:032x}", self.markers())
    }

    /// The session that a marker is of.
    pub fn session_of(&self, marker: &str) -> Option<u64> {
        let (session, random) = marker.strip_prefix(&self.markers())?.split_once('.')?;
        let whole = session.len() == 16 && random.len() == 32;
        u64::from_str_radix(session, 16).ok().filter(|_| whole)
    }

    /// The folder of those who load.
    pub fn loaders(&self) -> String {
        format!("{}/joining/", self.root)
    }

    /// The record of one who loads.
    pub fn loader(&self, id: GatewayId) -> String {
        self.loaders() + &hex(id)
    }

    /// The record that names the newest checkpoint.
    pub fn head(&self) -> String {
        format!("{}/head", self.root)
    }

    /// The folder of records that tell of checkpoints' folders.
    pub fn checkpoints(&self) -> String {
        format!("{}/checkpoint/", self.root)
    }

    /// The record that tells of a checkpoint's folder.
    pub fn checkpoint(&self, folder: &str) -> String {
        self.checkpoints() + folder
    }

    /// The checkpoint's folder that a record of [`Names::checkpoints`] tells of, and its position.
    pub fn checkpoint_of<'a>(&self, name: &'a str) -> Option<(&'a str, u64)> {
        let folder = name.strip_prefix(&self.checkpoints())?;
        let (position, random) = folder.split_once('.')?;
        let whole = position.len() == 20 && random.len() == 16;
        Some((folder, position.parse().ok().filter(|_| whole)?))
    }

    /// A checkpoint's folder.
    pub fn segments(&self, folder: &str) -> String {
        format!("{}/checkpoint.{folder}/", self.root)
    }

    /// A segment of a checkpoint.
    pub fn segment(&self, folder: &str, number: u32) -> String {
        format!("{}{number:010}", self.segments(folder))
    }

    /// A checkpoint's manifest.
    pub fn manifest(&self, folder: &str) -> String {
        self.segments(folder) + "manifest"
    }

    /// What is written to prove that a leader leads.
    pub fn proof(&self) -> String {
        format!("{}/leader", self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateways_name_leads_back_to_it() {
        let names = Names::new("prod");
        let id = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        let name = names.gateway(id);
        assert_eq!(name, "leaseway/prod/gateway/000102030405060708090a0b0c0d0eff");
        assert_eq!(names.gateway_of(&name), Some(id));
        assert_eq!(
            names.gateway_of("leaseway/other/gateway/000102030405060708090a0b0c0d0eff"),
            None
        );
        assert_eq!(names.gateway_of("leaseway/prod/gateway/1"), None);
    }

    #[test]
    fn an_empty_log_is_seen_to_be_empty() {
        let names = Names::new("prod");
        assert!(names.proof() < names.log());
        assert_eq!(names.proof().matches('/').count(), names.log().matches('/').count());
    }

    #[test]
    fn a_checkpoints_name_tells_its_position() {
        let names = Names::new("prod");
        let name = names.checkpoint("00000000000000000042.00000000000000ff");
        assert_eq!(name, "leaseway/prod/checkpoint/00000000000000000042.00000000000000ff");
        let told = names.checkpoint_of(&name);
        assert_eq!(told, Some(("00000000000000000042.00000000000000ff", 42)));
        assert_eq!(names.checkpoint_of("leaseway/prod/checkpoint/42.ff"), None);
        assert_eq!(names.checkpoint_of(&names.head()), None);
    }

    #[test]
    fn a_marker_tells_its_session() {
        let names = Names::new("prod");
        let marker = names.marker(255, 1);
        assert_eq!(names.session_of(&marker), Some(255));
        assert_eq!(names.session_of(&names.gateway([0; 16])), None);
        assert_eq!(names.session_of("leaseway/prod/lease/ff.1"), None);
    }

    #[test]
    fn keyspaces_that_would_leave_their_folder_are_refused() {
        for name in ["default", "a", "Team-1_x.y"] {
            assert!(is_keyspace(name), "{name}");
        }
        let long = "x".repeat(MAX_KEYSPACE + 1);
        for name in ["", "a/b", "a b", "é", "__oxia/", long.as_str()] {
            assert!(!is_keyspace(name), "{name}");
        }
    }
}
