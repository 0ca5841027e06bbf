//! Log files that are set aside when they are full.
//!
//! The settings and the names of the files are those of etcd's log (which are lumberjack's), so
//! that what collects and cleans up after etcd does here: `run.log` becomes
//! `run-2026-01-31T23-59-59.000.log` and is begun again.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::config::Rotation;

use super::log::timestamp;

const MIB: u64 = 1024 * 1024;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// A time in a name: a timestamp to the millisecond, its colons replaced.
const SHAPE: &[u8] = b"dddd-dd-ddTdd-dd-dd.ddd";

/// A file that is appended to and, when full, set aside and begun again.
#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    /// Its length in bytes.
    len: u64,
}

impl RotatingFile {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// As for opening a file to append to.
    pub(super) fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let file = append(path)?;
        let len = file.metadata()?.len();
        Ok(RotatingFile { path: path.to_owned(), rotation, file, len })
    }

    /// Writes a line; first sets the file aside if it would not fit.
    ///
    /// # Errors
    /// As for writing. A file that cannot be set aside is written to all the same: a log that is too
    /// long is better than none.
    pub(super) fn write(&mut self, line: &[u8], now: SystemTime) -> io::Result<()> {
        let full = self.rotation.max_size_mib.saturating_mul(MIB);
        if self.len > 0 && self.len.saturating_add(line.len() as u64) > full {
            let _ = self.rotate(now);
        }
        self.file.write_all(line)?;
        self.len += line.len() as u64;
        Ok(())
    }

    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        let names = Names::of(&self.path);
        let aside = names.directory.join(names.backup(&stamp(now, self.rotation.local_time)));
        if aside.try_exists()? {
            // Twice in a millisecond: the next line tries again.
            return Ok(());
        }
        fs::rename(&self.path, &aside)?;
        self.file = append(&self.path)?;
        if let Ok(old) = fs::metadata(&aside) {
            let _ = self.file.set_permissions(old.permissions());
        }
        self.len = 0;
        let rotation = self.rotation;
        // Compressing takes seconds, and nobody waits for it.
        let tidy = move || tidy(&names, rotation, now);
        let _ = std::thread::Builder::new().name("log-rotation".into()).spawn(tidy);
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// How the files that were set aside are called.
#[derive(Debug)]
struct Names {
    directory: PathBuf,
    /// What comes before the time.
    prefix: String,
    /// What comes after it.
    suffix: String,
}

impl Names {
    fn of(path: &Path) -> Names {
        let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let suffix = match path.extension() {
            Some(extension) => format!(".{}", extension.to_string_lossy()),
            None => String::new(),
        };
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Names { directory, prefix: format!("{}-", text(path.file_stem())), suffix }
    }

    fn backup(&self, stamp: &str) -> String {
        format!("{}{stamp}{}", self.prefix, self.suffix)
    }

    /// The time in the name of a file that was set aside, and whether the file is compressed.
    fn parse<'a>(&self, name: &'a str) -> Option<(&'a str, bool)> {
        let (rest, compressed) = match name.strip_suffix(".gz") {
            Some(rest) => (rest, true),
            None => (name, false),
        };
        let stamp = rest.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        let fits = stamp.len() == SHAPE.len()
            && stamp.bytes().zip(SHAPE).all(|(byte, shape)| match shape {
                b'd' => byte.is_ascii_digit(),
                _ => byte == *shape,
            });
        fits.then_some((stamp, compressed))
    }

    /// The files that were set aside, the newest first.
    fn backups(&self) -> Vec<(String, bool)> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let mut found: Vec<(String, bool)> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| {
                self.parse(&name).map(|(stamp, compressed)| (stamp.to_owned(), compressed))
            })
            .collect();
        found.sort_by(|a, b| b.cmp(a));
        found
    }
}

/// Removes what is too old or too many, and compresses the rest where that is asked for.
fn tidy(names: &Names, rotation: Rotation, now: SystemTime) {
    let oldest = (rotation.max_age_days > 0).then(|| {
        let age = DAY.saturating_mul(u32::try_from(rotation.max_age_days).unwrap_or(u32::MAX));
        stamp(now.checked_sub(age).unwrap_or(UNIX_EPOCH), rotation.local_time)
    });
    let most = match rotation.max_backups {
        0 => usize::MAX,
        most => usize::try_from(most).unwrap_or(usize::MAX),
    };
    let mut times: Vec<String> = Vec::new();
    for (time, compressed) in names.backups() {
        let path = names.directory.join(names.backup(&time));
        let packed = path.with_extension(match path.extension() {
            Some(extension) => format!("{}.gz", extension.to_string_lossy()),
            None => "gz".to_owned(),
        });
        // One that is being compressed is there twice and counts once.
        if times.last() != Some(&time) {
            times.push(time.clone());
        }
        if times.len() > most || oldest.as_ref().is_some_and(|oldest| time < *oldest) {
            let _ = fs::remove_file(if compressed { &packed } else { &path });
        } else if rotation.compress && !compressed && compress(&path, &packed).is_err() {
            // The text stays, and the next rotation tries again.
            let _ = fs::remove_file(&packed);
        }
    }
}

fn compress(from: &Path, to: &Path) -> io::Result<()> {
    let mut text = File::open(from)?;
    let packed = File::create(to)?;
    packed.set_permissions(text.metadata()?.permissions())?;
    let mut encoder = flate2::write::GzEncoder::new(packed, flate2::Compression::default());
    io::copy(&mut text, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::remove_file(from)
}

/// The time for a name.
fn stamp(time: SystemTime, local: bool) -> String {
    let mut stamp = timestamp(if local { on_the_wall(time) } else { time }).replace(':', "-");
    stamp.truncate(SHAPE.len());
    stamp
}

/// The time that, shown in UTC, is what clocks on this machine's walls show.
fn on_the_wall(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let Ok(seconds) = libc::time_t::try_from(since.as_secs()) else { return time };
    // SAFETY: `localtime_r` only writes the structure it is given, which lives here; all-zero is a
    // valid value of it.
    let ahead = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&raw const seconds, &raw mut parts).is_null() {
            0
        } else {
            parts.tm_gmtoff
        }
    };
    let distance = Duration::from_secs(ahead.unsigned_abs());
    let shifted = if ahead < 0 { time.checked_sub(distance) } else { time.checked_add(distance) };
    shifted.unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROTATION: Rotation = Rotation {
        max_size_mib: 1,
        max_age_days: 0,
        max_backups: 0,
        local_time: false,
        compress: false,
    };

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    fn listed(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("readable")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_file_is_set_aside_and_begun_again() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("run.log");
        fs::write(&path, "from before\n").expect("written");
        let mut file = RotatingFile::open(&path, ROTATION).expect("opened");
        let line = vec![b'x'; 700 * 1024];
        file.write(&line, at(0)).expect("written");
        file.write(b"next\n", at(1)).expect("written");
        file.write(&line, at(86_400)).expect("written");
        assert_eq!(listed(dir.path()), ["run-1970-01-02T00-00-00.000.log", "run.log"]);
        let aside = fs::read(dir.path().join("run-1970-01-02T00-00-00.000.log")).expect("read");
        assert!(aside.starts_with(b"from before\nxxx") && aside.ends_with(b"xnext\n"));
        assert_eq!(fs::read(&path).expect("read").len(), line.len());
        // A line that never fits is kept whole all the same.
        file.write(&vec![b'y'; 3 << 20], at(90_000)).expect("written");
        assert_eq!(fs::read(&path).expect("read").len(), 3 << 20);
        // Twice in a millisecond: nothing is overwritten.
        file.write(b"z\n", at(90_000)).expect("written");
        assert_eq!(fs::read(&path).expect("read").len(), (3 << 20) + 2);
        assert_eq!(listed(dir.path()).len(), 3);
    }

    #[test]
    fn what_is_too_many_or_too_old_goes_and_the_rest_is_compressed() {
        let dir = tempfile::tempdir().expect("directory");
        let names = Names::of(&dir.path().join("run.log"));
        let others = ["run.log", "run-old.log", "other-1970-01-02T00-00-00.000.log"];
        for name in others {
            fs::write(dir.path().join(name), "kept").expect("written");
        }
        for day in 1..=5 {
            let name = names.backup(&stamp(at(day * 86_400), false));
            fs::write(dir.path().join(name), format!("day {day}")).expect("written");
        }
        tidy(&names, Rotation { max_backups: 4, max_age_days: 3, ..ROTATION }, at(6 * 86_400));
        let mut left = vec!["run-1970-01-04T00-00-00.000.log", "run-1970-01-05T00-00-00.000.log"];
        left.push("run-1970-01-06T00-00-00.000.log");
        let with_others = |names: &[&str]| {
            let mut all: Vec<String> =
                names.iter().chain(&others).map(|&name| name.to_owned()).collect();
            all.sort();
            all
        };
        assert_eq!(listed(dir.path()), with_others(&left));

        tidy(&names, Rotation { max_backups: 2, compress: true, ..ROTATION }, at(6 * 86_400));
        let packed = ["run-1970-01-05T00-00-00.000.log.gz", "run-1970-01-06T00-00-00.000.log.gz"];
        assert_eq!(listed(dir.path()), with_others(&packed));
        let file = File::open(dir.path().join(packed[1])).expect("there");
        let text = io::read_to_string(flate2::read::GzDecoder::new(file)).expect("gzip");
        assert_eq!(text, "day 5");
        // Compressed ones count as well.
        tidy(&names, Rotation { max_backups: 1, compress: true, ..ROTATION }, at(6 * 86_400));
        assert_eq!(listed(dir.path()), with_others(&packed[1..]));
    }
}
