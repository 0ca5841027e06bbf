//! What is filled: a data directory, or a keyspace on Oxia.

use super::cluster::Keyspace;
use super::import::{Import, ImportError, Settings, Summary};
use super::progress::Progress;
use super::source::Source;
use super::target;
use crate::backend::oxia::checkpoint::begin::POSITION;
use crate::config::backend::{self, Backend};
use crate::config::options::{Flag, Options, value};
use crate::storage::Engine;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Flags that say what is filled.
pub const FLAGS: [Flag; 7] = [
    value("data-dir"),
    value("backend"),
    value("oxia-ca-file"),
    value("oxia-cert-file"),
    value("oxia-key-file"),
    value("oxia-token-file"),
    value("oxia-authority"),
];

/// What is filled.
pub enum Target {
    /// A data directory.
    Directory(PathBuf),
    /// A keyspace on Oxia, by way of a folder in this one.
    Keyspace(Keyspace, PathBuf),
}

impl Target {
    /// What the flags say; without any the directory `default`, if there is one. A cluster is connected to.
    ///
    /// # Errors
    /// What is wrong with the flags, or why the keyspace can't be filled, in one line.
    pub fn open(
        options: &Options,
        default: Option<&str>,
        runtime: &Runtime,
    ) -> Result<Self, String> {
        let dir = options.get("data-dir");
        let mut notes = Vec::new();
        let backend = backend::of_flags(|name| options.get(name), &mut notes)?;
        for note in notes {
            eprintln!("leaseway: {}", note.message);
        }
        match backend {
            Backend::Local => {
                let dir = dir.or(default).ok_or("--data-dir or --backend is missing")?;
                Ok(Self::Directory(dir.into()))
            }
            Backend::Oxia(place) => {
                let scratch = dir.map_or_else(std::env::temp_dir, PathBuf::from);
                Ok(Self::Keyspace(Keyspace::open(&place, runtime)?, scratch))
            }
        }
    }

    /// What it is, for a person.
    pub fn name(&self) -> String {
        match self {
            Self::Directory(dir) => dir.display().to_string(),
            Self::Keyspace(keyspace, _) => format!("keyspace {}", keyspace.name()),
        }
    }

    /// A folder with room for as much as is imported: on the file system that is filled, if it is one.
    pub fn room(&self) -> &Path {
        match self {
            // Not its parent's, if it is there: it may be a file system of its own.
            Self::Directory(dir) => {
                let there = dir.ancestors().find(|folder| folder.is_dir());
                there.unwrap_or(Path::new("."))
            }
            Self::Keyspace(_, scratch) => scratch,
        }
    }

    /// Whether each lease gets a session of its own, as the embedded server has it.
    pub fn has_sessions(&self) -> bool {
        matches!(self, Self::Directory(_))
    }

    /// Fills it with what is in `source`, and then with what `more` adds. It is filled when this succeeds, and else
    /// as it was.
    ///
    /// # Errors
    /// Why not, in one line.
    pub fn fill(
        self,
        source: Source,
        bump: Option<i64>,
        runtime: &Runtime,
        progress: &mut Progress,
        more: impl FnOnce(&Arc<dyn Engine>, &mut Summary) -> Result<(), String>,
    ) -> Result<Summary, String> {
        let Source { database, name, log } = source;
        let failed = |error: ImportError| format!("{name}: {error}");
        let import = Import::new(database).map_err(failed)?;
        log.check(import.consistent_index())?;
        let sessions = self.has_sessions();
        let position = if sessions { 0 } else { POSITION };
        let settings = Settings { bump, position, sessions };
        let fill = |engine: &Arc<dyn Engine>, progress: &mut Progress| {
            let mut summary = import.fill(&**engine, settings, progress).map_err(failed)?;
            more(engine, &mut summary)?;
            Ok(summary)
        };
        match self {
            Self::Directory(dir) => target::make(&dir, |engine| fill(engine, progress)),
            Self::Keyspace(keyspace, scratch) => {
                let fill = |engine: &Arc<dyn Engine>, progress: &mut Progress| {
                    fill(engine, progress).map(|summary| (summary, summary.bytes))
                };
                keyspace.fill(&scratch, runtime, progress, fill)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_received_lies_where_it_is_going_to() {
        let there = tempfile::tempdir().unwrap();
        let room = |dir: &Path| Target::Directory(dir.into()).room().to_owned();
        assert_eq!(room(there.path()), there.path());
        assert_eq!(room(&there.path().join("a/b")), there.path());
        assert_eq!(room(Path::new("not-there")), Path::new("."));
    }
}
