//! `leaseway import`, `leaseway export` and `leaseway restore`.

use super::export::{self, Origin};
use super::fetch::{self, Place};
use super::import::{Import, ImportError, Settings, Summary};
use super::options::{Flag, Options, switch, value};
use super::progress::Progress;
use super::source::Source;
use super::{target, temporary};
use crate::config::ETCD_CLUSTER_VERSION;
use crate::data_dir::DataDir;
use crate::node;
use ring::digest::{Context, SHA256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How far `restore` moves the revision on unless told otherwise: more than what may have happened between
/// a backup and the loss of what it is a backup of.
const BUMP: i64 = 1_000_000_000;
const PIECE: usize = 1 << 20;
/// What the file is called until it is whole.
const PARTIAL: &str = "partial";

/// What the help says of these commands.
pub const HELP: &str = "\
\x20 leaseway import SNAPSHOT|DIRECTORY --data-dir DIR [--skip-hash-check]
    Move in from etcd: a saved snapshot, or the data directory of an etcd that is stopped, into an
    empty data directory, with all revisions, leases, users and roles.
\x20 leaseway import --from-endpoint URL [--user NAME:PASSWORD] --data-dir DIR
    The same from a running etcd, as of now.
\x20 leaseway export FILE [--endpoint URL [--user NAME:PASSWORD] | --data-dir DIR] [--storage-version 3.6.0]
    Move out to etcd, or make a backup: a file for etcdutl snapshot restore, or for leaseway restore,
    of a running server or of the data directory of a stopped one.
\x20 leaseway restore SNAPSHOT --data-dir DIR [--bump-revision 1000000000] [--mark-compacted=true]
    Start again from a backup. Unlike import, moves the revision on and compacts everything before,
    so that clients who saw later revisions notice. --bump-revision 0 leaves it as it is.
";

const IMPORT: [Flag; 4] =
    [value("data-dir"), value("from-endpoint"), value("user"), switch("skip-hash-check")];
const EXPORT: [Flag; 4] =
    [value("endpoint"), value("data-dir"), value("user"), value("storage-version")];
const RESTORE: [Flag; 10] = [
    value("data-dir"),
    value("name"),
    value("bump-revision"),
    switch("mark-compacted"),
    switch("skip-hash-check"),
    // etcdutl's: they make no difference to a member that has no peers.
    value("wal-dir"),
    value("initial-cluster"),
    value("initial-cluster-token"),
    value("initial-advertise-peer-urls"),
    value("initial-memory-map-size"),
];
/// Versions of etcd that a file can be for. They differ in nothing else that is written.
const STORAGE_VERSIONS: [&str; 2] = ["3.6.0", ETCD_CLUSTER_VERSION];

/// `leaseway import`.
///
/// # Errors
/// Why nothing was imported, in one line.
pub fn import(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args, &IMPORT)?;
    let dir = options.get("data-dir").ok_or("--data-dir is missing")?;
    let mut progress = Progress::new();
    let source = match options.get("from-endpoint") {
        None => {
            let path = options.one("the snapshot's file, or etcd's data directory,")?;
            let skip = options.is_on("skip-hash-check", false)?;
            Source::open(Path::new(path), skip, &mut progress)?
        }
        Some(endpoint) if options.rest.is_empty() => {
            let place = Place { endpoint, user: user(&options)? };
            live(&place, Path::new(dir), &mut progress)?
        }
        Some(_) => return Err("give either a snapshot or --from-endpoint".into()),
    };
    let name = source.name.clone();
    let summary = fill(source, Path::new(dir), None, &mut progress)?;
    say(&format!("imported {name} into {dir}: {}", told(&summary)))
}

/// `leaseway restore`.
///
/// # Errors
/// Why nothing was restored, in one line.
pub fn restore(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args, &RESTORE)?;
    let path = options.one("the snapshot's file")?;
    let dir = match (options.get("data-dir"), options.get("name")) {
        (Some(dir), _) => PathBuf::from(dir),
        (None, name) => PathBuf::from(format!("{}.etcd", name.unwrap_or("default"))),
    };
    let bump = bump(&options)?;
    let mut progress = Progress::new();
    let skip = options.is_on("skip-hash-check", false)?;
    let source = Source::open(Path::new(path), skip, &mut progress)?;
    let summary = fill(source, &dir, bump, &mut progress)?;
    say(&format!("restored {path} into {}: {}", dir.display(), told(&summary)))
}

/// How far the revision moves on, if it does.
fn bump(options: &Options) -> Result<Option<i64>, String> {
    let by = match options.get("bump-revision") {
        None => None,
        Some(text) => Some(text.parse::<i64>().ok().filter(|by| (0..=i64::MAX / 4).contains(by)))
            .map(|by| by.ok_or_else(|| format!("--bump-revision: {text:?} is no such number")))
            .transpose()?,
    };
    let compacted = options.get("mark-compacted").map(|_| options.is_on("mark-compacted", true));
    match (by, compacted.transpose()?) {
        (None, None | Some(true)) => Ok(Some(BUMP)),
        (None | Some(0), Some(false)) | (Some(0), None) => Ok(None),
        (Some(0), Some(true)) => Err("--mark-compacted needs a --bump-revision above 0".into()),
        (Some(by), None | Some(true)) => Ok(Some(by)),
        (Some(_), Some(false)) => Err("--bump-revision needs --mark-compacted".into()),
    }
}

/// `leaseway export`.
///
/// # Errors
/// Why there is no file, in one line.
pub fn export(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args, &EXPORT)?;
    let path = Path::new(options.one("the file to write")?);
    if path.exists() {
        return Err(format!("{} is there already", path.display()));
    }
    let partial = PathBuf::from(format!("{}.{PARTIAL}", path.display()));
    let failed = |error: io::Error| format!("cannot write {}: {error}", partial.display());
    let mut out = OpenOptions::new();
    let out = out.read(true).write(true).create(true).truncate(true).mode(0o600);
    let mut file = out.open(&partial).map_err(failed)?;
    let written = fill_file(&options, &mut file);
    let finished = written.and_then(|bytes| {
        file.sync_all().and_then(|()| fs::rename(&partial, path)).map_err(failed)?;
        Ok(bytes)
    });
    if finished.is_err() {
        // The error is what matters.
        let _ = fs::remove_file(&partial);
    }
    say(&format!("wrote {} bytes to {}", finished?, path.display()))
}

fn fill_file(options: &Options, file: &mut File) -> Result<u64, String> {
    let mut progress = Progress::new();
    match (options.get("data-dir"), options.get("endpoint")) {
        (Some(_), Some(_)) => Err("give either --endpoint or --data-dir".into()),
        (Some(dir), None) => {
            let wanted = options.get("storage-version").unwrap_or(ETCD_CLUSTER_VERSION);
            let known = STORAGE_VERSIONS.into_iter().find(|known| *known == wanted);
            let storage_version =
                known.ok_or_else(|| format!("--storage-version is one of {STORAGE_VERSIONS:?}"))?;
            of_stopped(Path::new(dir), storage_version, file)
        }
        (None, _) if options.get("storage-version").is_some() => {
            Err("--storage-version goes with --data-dir".into())
        }
        (None, endpoint) => {
            let endpoint = endpoint.unwrap_or("http://127.0.0.1:2379");
            let place = Place { endpoint, user: user(options)? };
            runtime()?.block_on(fetch::fetch(&place, file, &mut progress))
        }
    }
}

/// Exports the data directory of a stopped server.
fn of_stopped(path: &Path, storage_version: &'static str, file: &mut File) -> Result<u64, String> {
    let shown = path.display();
    if !path.join(node::STORE).exists() {
        return Err(format!("{shown} has no data of an embedded Leaseway server"));
    }
    let dir = DataDir::open(path).map_err(|error| error.to_string())?;
    let (engine, identity) = node::open_stopped(&dir)?;
    let origin = Origin { member_id: identity.member_id, storage_version };
    let written = engine
        .snapshot()
        .map_err(Into::into)
        .and_then(|snapshot| export::write(&*snapshot, origin, &mut *file));
    engine.close();
    let (_, length) = written.map_err(|error| format!("{shown}: {error}"))?;
    append_checksum(file).map_err(|error| format!("cannot write the file: {error}"))?;
    Ok(length)
}

/// Appends the checksum that saved snapshots have.
fn append_checksum(file: &mut File) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    let mut context = Context::new(&SHA256);
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            read => context.update(&piece[..read]),
        }
    }
    file.write_all(context.finish().as_ref())
}

/// Imports what a running server has now.
fn live(place: &Place<'_>, dir: &Path, progress: &mut Progress) -> Result<Source, String> {
    // Beside the store, which needs as much room.
    let folder = dir.parent().filter(|parent| parent.is_dir()).unwrap_or(Path::new("."));
    let failed = |error: io::Error| format!("cannot write in {}: {error}", folder.display());
    let mut file = temporary::file(folder).map_err(failed)?;
    runtime()?.block_on(fetch::fetch(place, &mut file, progress))?;
    Source::received(file, place.endpoint)
}

fn fill(
    source: Source,
    dir: &Path,
    bump: Option<i64>,
    progress: &mut Progress,
) -> Result<Summary, String> {
    let Source { database, name, log } = source;
    let failed = |error: ImportError| format!("{name}: {error}");
    let import = Import::new(database).map_err(failed)?;
    log.check(import.consistent_index())?;
    let settings = Settings { bump, position: 0, sessions: true };
    target::make(dir, |engine| import.fill(engine, settings, progress).map_err(failed))
}

fn user(options: &Options) -> Result<Option<(&str, &str)>, String> {
    let Some(user) = options.get("user") else { return Ok(None) };
    let parts = user.split_once(':').ok_or("--user has the form NAME:PASSWORD")?;
    Ok(Some(parts))
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("cannot start: {error}"))
}

fn told(summary: &Summary) -> String {
    let Summary { rows, leases, users, roles, revision, compacted } = summary;
    let compacted = match compacted {
        1.. => format!("compacted at {compacted}"),
        _ => "never compacted".into(),
    };
    format!(
        "revision {revision}, {compacted}, {rows} changes of keys, {leases} leases, {users} users, \
         {roles} roles"
    )
}

fn say(text: &str) -> Result<(), String> {
    // Whoever closed the pipe has seen enough.
    let _ = writeln!(io::stdout(), "{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bumped(args: &[&str]) -> Result<Option<i64>, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        bump(&Options::parse(&args, &RESTORE)?)
    }

    #[test]
    fn a_restore_is_safe_unless_told_otherwise() {
        assert_eq!(bumped(&[]), Ok(Some(BUMP)));
        assert_eq!(bumped(&["--mark-compacted"]), Ok(Some(BUMP)));
        assert_eq!(bumped(&["--bump-revision=7", "--mark-compacted"]), Ok(Some(7)));
        assert_eq!(bumped(&["--bump-revision", "7"]), Ok(Some(7)));
        assert_eq!(bumped(&["--bump-revision=0"]), Ok(None));
        assert_eq!(bumped(&["--mark-compacted=false"]), Ok(None));
        assert!(bumped(&["--bump-revision=7", "--mark-compacted=false"]).is_err());
        assert!(bumped(&["--bump-revision=0", "--mark-compacted"]).is_err());
        assert!(bumped(&["--bump-revision=-1"]).is_err());
        assert!(bumped(&["--bump-revision=x"]).is_err());
    }
}
