//! `leaseway import`, `leaseway export` and `leaseway restore`.

use super::export::{self, Origin};
use super::fetch;
use super::follow::{Follow, Stop};
use super::import::Summary;
use super::into::{self, Target};
use super::progress::Progress;
use super::remote::{self, Place, Remote};
use super::source::{Reading, Source};
use super::temporary;
use crate::config::options::{Flag, Options, switch, value};
use crate::config::{ETCD_CLUSTER_VERSION, asking};
use crate::data_dir::DataDir;
use crate::node;
use crate::storage::Engine;
use ring::digest::{Context, SHA256};
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};

/// How far `restore` moves the revision on unless told otherwise: more than what may have happened between
/// a backup and the loss of what it is a backup of.
const BUMP: i64 = 1_000_000_000;
const PIECE: usize = 1 << 20;
/// What the file is called until it is whole.
const PARTIAL: &str = "partial";

const IMPORT: [Flag; 5] = [
    value("from-endpoint"),
    switch("follow"),
    switch("skip-hash-check"),
    value("wal-dir"),
    switch("skip-wal-check"),
];
const EXPORT: [Flag; 3] = [value("endpoint"), value("data-dir"), value("storage-version")];
const RESTORE: [Flag; 9] = [
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

fn import_flags() -> Vec<Flag> {
    [&IMPORT[..], &into::FLAGS, &remote::FLAGS].concat()
}

fn export_flags() -> Vec<Flag> {
    [&EXPORT[..], &remote::FLAGS].concat()
}

fn restore_flags() -> Vec<Flag> {
    [&RESTORE[..], &into::FLAGS].concat()
}

/// `leaseway import`.
///
/// # Errors
/// Why nothing was imported, in one line.
pub fn import(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args, &import_flags())?;
    let missing = missing(&options);
    if !missing.is_empty() {
        return Err(missing.join("; and "));
    }
    let runtime = runtime()?;
    let target = Target::open(&options, None, &runtime)?;
    let mut progress = Progress::new();
    let follow = options.is_on("follow", false)?;
    let (source, followed) = match options.get("from-endpoint") {
        None if follow => return Err("--follow goes with --from-endpoint".into()),
        None => {
            let path = options.one("the snapshot's file, or etcd's data directory,")?;
            let reading = Reading {
                skip_hash_check: options.is_on("skip-hash-check", false)?,
                wal_dir: options.get("wal-dir").map(Into::into),
                skip_wal_check: options.is_on("skip-wal-check", false)?,
            };
            (Source::open(Path::new(path), &reading, &mut progress)?, None)
        }
        Some(_) if options.get("wal-dir").is_some() => {
            return Err("--wal-dir goes with etcd's data directory".into());
        }
        Some(endpoint) if options.rest.is_empty() => {
            let remote = runtime.block_on(Remote::connect(Place::of(endpoint, &options)?))?;
            let source = live(&remote, target.room(), &runtime, &mut progress)?;
            (source, follow.then_some(remote))
        }
        Some(_) => return Err("give either a snapshot or --from-endpoint".into()),
    };
    let (from, to, sessions) = (source.name.clone(), target.name(), target.has_sessions());
    let more = |engine: &Arc<dyn Engine>, summary: &mut Summary| match &followed {
        None => Ok(()),
        Some(remote) => {
            let follow = Follow { remote, engine, sessions };
            runtime.block_on(follow_until_told(&follow, summary))
        }
    };
    let summary = target.fill(source, None, &runtime, &mut progress, more)?;
    say(&format!("imported {from} into {to}: {}", told(&summary)))
}

/// What an import can't do without and was not given.
fn missing(options: &Options) -> Vec<&'static str> {
    let source = !options.rest.is_empty() || options.get("from-endpoint").is_some();
    let target = ["data-dir", "backend"].iter().any(|name| options.get(name).is_some());
    let from = "nothing to import from is given: a snapshot's file, etcd's data directory, or --from-endpoint URL";
    let into = "nothing to import into is given: --data-dir DIR, or --backend oxia://...";
    [(source, from), (target, into)].iter().filter(|(given, _)| !given).map(|(_, it)| *it).collect()
}

async fn follow_until_told(follow: &Follow<'_>, summary: &mut Summary) -> Result<(), String> {
    let mut stop = Stop::listen()?;
    let endpoint = follow.remote.endpoint();
    let enter = if io::stdin().is_terminal() { ", or press ENTER" } else { "" };
    eprintln!(
        "leaseway: following {endpoint}. To cut over, stop those who write there, and then end this with SIGINT or \
         SIGTERM{enter}"
    );
    let told = |revision| eprintln!("leaseway: {endpoint} is followed up to revision {revision}");
    follow.run(summary, &mut stop, &told).await
}

/// `leaseway restore`.
///
/// # Errors
/// Why nothing was restored, in one line.
pub fn restore(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args, &restore_flags())?;
    let path = options.one("the snapshot's file")?;
    let bump = bump(&options)?;
    let skip = options.is_on("skip-hash-check", false)?;
    let default = format!("{}.etcd", options.get("name").unwrap_or("default"));
    let runtime = runtime()?;
    let target = Target::open(&options, Some(&default), &runtime)?;
    let mut progress = Progress::new();
    let reading = Reading { skip_hash_check: skip, ..Reading::default() };
    let source = Source::open(Path::new(path), &reading, &mut progress)?;
    let to = target.name();
    let summary = target.fill(source, bump, &runtime, &mut progress, |_, _| Ok(()))?;
    say(&format!("restored {path} into {to}: {}", told(&summary)))
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
    let options = Options::parse(args, &export_flags())?;
    let path = Path::new(options.one("the file to write")?);
    if path.exists() {
        return Err(format!("{} is there already", path.display()));
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{PARTIAL}"));
    let partial = PathBuf::from(partial);
    let failed = |error: io::Error| format!("cannot write {}: {error}", partial.display());
    let mut file = begin(&partial).map_err(failed)?;
    let written = fill_file(&options, &mut file);
    let finished = written.and_then(|bytes| {
        finish(&file, &partial, path).map_err(failed)?;
        Ok(bytes)
    });
    if finished.is_err() {
        // The error is what matters.
        let _ = fs::remove_file(&partial);
    }
    say(&format!("wrote {} bytes to {}", finished?, path.display()))
}

/// Begins a file for its owner only, in place of what an export that was killed has left of it.
fn begin(partial: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = file.open(partial)?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        return Err(io::Error::other("another process is writing it"));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

/// Gives a file that is whole its name, durably.
fn finish(file: &File, partial: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(partial, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn fill_file(options: &Options, file: &mut File) -> Result<u64, String> {
    let mut progress = Progress::new();
    match (options.get("data-dir"), options.get("endpoint")) {
        (Some(_), Some(_)) => Err("give either --endpoint or --data-dir".into()),
        (Some(dir), None) => {
            let wanted = options.get("storage-version").unwrap_or(ETCD_CLUSTER_VERSION);
            let known = STORAGE_VERSIONS.into_iter().find(|known| *known == wanted);
            let storage_version = known.ok_or_else(|| {
                let known = STORAGE_VERSIONS.join(" or ");
                format!("--storage-version is {known}, and not {wanted:?}")
            })?;
            of_stopped(Path::new(dir), storage_version, file)
        }
        (None, _) if options.get("storage-version").is_some() => {
            Err("--storage-version goes with --data-dir".into())
        }
        (None, endpoint) => {
            let endpoint = endpoint.unwrap_or(asking::ENDPOINT);
            let place = Place::of(endpoint, options)?;
            runtime()?.block_on(async {
                let remote = Remote::connect(place).await?;
                fetch::fetch(&remote, file, &mut progress).await
            })
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

/// Receives what a running server has now, in a file without a name in `folder`.
fn live(
    remote: &Remote,
    folder: &Path,
    runtime: &Runtime,
    progress: &mut Progress,
) -> Result<Source, String> {
    let failed = |error: io::Error| format!("cannot write in {}: {error}", folder.display());
    let mut file = temporary::file(folder).map_err(failed)?;
    runtime.block_on(fetch::fetch(remote, &mut file, progress))?;
    Source::received(file, remote.endpoint())
}

/// Connections are kept up by a thread of its own, while another one is busy with files.
fn runtime() -> Result<Runtime, String> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(|error| format!("cannot start: {error}"))
}

fn told(summary: &Summary) -> String {
    let Summary { rows, leases, users, roles, revision, compacted, .. } = summary;
    let compacted = match compacted {
        1.. => format!("compacted at {compacted}"),
        _ => "never compacted".into(),
    };
    let rows = match rows {
        1 => "1 change of keys".to_owned(),
        _ => format!("{rows} changes of keys"),
    };
    let (leases, users, roles) =
        (counted(*leases, "lease"), counted(*users, "user"), counted(*roles, "role"));
    format!("revision {revision}, {compacted}, {rows}, {leases}, {users}, {roles}")
}

/// So many things, in English.
fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn say(text: &str) -> Result<(), String> {
    // Whoever closed the pipe has seen enough.
    let _ = writeln!(io::stdout(), "{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::help;
    use std::collections::BTreeSet;

    fn bumped(args: &[&str]) -> Result<Option<i64>, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        bump(&Options::parse(&args, &RESTORE)?)
    }

    #[test]
    fn what_an_import_is_missing_is_named() {
        let parts = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            import(&args).unwrap_err()
        };
        let none = parts(&[]);
        assert!(none.contains("import from") && none.contains("import into"), "{none}");
        let into = parts(&["a.db"]);
        assert!(into.contains("import into") && !into.contains("import from"), "{into}");
        let from = parts(&["--data-dir=x"]);
        assert!(from.contains("import from") && !from.contains("import into"), "{from}");
    }

    /// The flags that a text names.
    fn named(text: &str) -> BTreeSet<&str> {
        let flags = text.split("--").skip(1);
        flags
            .filter_map(|rest| {
                rest.split(|it: char| !it.is_ascii_alphanumeric() && it != '-').next()
            })
            .collect()
    }

    #[test]
    fn each_command_tells_of_its_flags_and_of_no_others() {
        for (flags, text) in [
            (import_flags(), help::IMPORT),
            (export_flags(), help::EXPORT),
            (restore_flags(), help::RESTORE),
        ] {
            let known: BTreeSet<&str> = flags.iter().map(|flag| flag.name).collect();
            assert_eq!(named(text), known);
        }
    }

    #[test]
    fn what_an_export_that_was_killed_has_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (partial, whole) = (dir.path().join("a.partial"), dir.path().join("a"));
        fs::write(&partial, "half").unwrap();
        fs::set_permissions(&partial, Permissions::from_mode(0o644)).unwrap();
        let file = begin(&partial).unwrap();
        assert!(begin(&partial).unwrap_err().to_string().contains("another process"));
        let found = file.metadata().unwrap();
        assert_eq!((found.len(), found.permissions().mode() & 0o777), (0, 0o600));
        finish(&file, &partial, &whole).unwrap();
        assert!(whole.exists() && !partial.exists());
    }

    #[test]
    fn numbers_are_told_in_english() {
        let one =
            Summary { rows: 1, leases: 1, users: 1, roles: 1, revision: 2, ..Summary::default() };
        let text = "revision 2, never compacted, 1 change of keys, 1 lease, 1 user, 1 role";
        assert_eq!(told(&one), text);
        let text = "revision 1, never compacted, 0 changes of keys, 0 leases, 0 users, 0 roles";
        assert_eq!(told(&Summary { revision: 1, ..Summary::default() }), text);
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
