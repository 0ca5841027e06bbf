//! What the kernel knows about a process: CPU time, resident memory and its peak.

use anyhow::{Context, Result};
use serde::Serialize;
use std::time::Duration;

/// Resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Everything resident, mapped files included (`VmRSS`).
    pub resident: u64,
    /// The part that no file backs (`RssAnon`): what the process really holds.
    pub anonymous: u64,
    /// The highest `resident` since the start or the last [`reset_peak`] (`VmHWM`).
    pub peak: u64,
}

impl std::ops::Add for Memory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            resident: self.resident + other.resident,
            anonymous: self.anonymous + other.anonymous,
            peak: self.peak + other.peak,
        }
    }
}

/// CPU time of several processes together.
pub fn cpu_time_of(pids: &[u32]) -> Result<Duration> {
    pids.iter().try_fold(Duration::ZERO, |sum, pid| Ok(sum + cpu_time(*pid)?))
}

/// Memory of several processes together; the peaks need not have been at the same time.
pub fn memory_of(pids: &[u32]) -> Result<Memory> {
    pids.iter().try_fold(Memory::default(), |sum, pid| Ok(sum + memory(*pid)?))
}

/// User and system CPU time of all threads of `pid` so far; a resolution of one tick, mostly 10 ms.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let ticks = cpu_ticks(&text).with_context(|| format!("{path} has an unknown form"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

fn memory(pid: u32) -> Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    parse_memory(&text).with_context(|| format!("{path} has an unknown form"))
}

/// Sets the peak of resident memory back to its present value. False where the kernel refuses;
/// the peak then counts from the start of the process.
pub fn reset_peak(pid: u32) -> bool {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").is_ok()
}

/// utime + stime, fields 14 and 15. The name in field 2 may hold blanks and parentheses, so
/// counting begins after the last closing one.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn parse_memory(status: &str) -> Option<Memory> {
    Some(Memory {
        resident: kibibytes(status, "VmRSS:")?,
        anonymous: kibibytes(status, "RssAnon:")?,
        peak: kibibytes(status, "VmHWM:")?,
    })
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let (number, unit) = line.trim().split_once(' ')?;
    if unit != "kB" {
        return None;
    }
    number.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_a_name_with_parentheses() {
        let stat = "4711 (a) (b c) S 1 4711 4711 0 -1 4194560 500 0 3 0 250 75 9 8 20 0 5 0 99 1 2";
        assert_eq!(cpu_ticks(stat), Some(325));
    }

    #[test]
    fn a_short_or_odd_stat_line_is_refused() {
        assert_eq!(cpu_ticks("4711 (etcd) S 1 2 3"), None);
        assert_eq!(cpu_ticks(""), None);
        assert_eq!(cpu_ticks("1 (x) S 1 1 1 0 -1 4 5 0 3 0 many 75"), None);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tetcd\nVmPeak:\t 99 kB\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n\
                      RssAnon:\t     512 kB\nRssFile:\t     500 kB\n";
        let expected = Memory { resident: 1 << 20, anonymous: 1 << 19, peak: 2 << 20 };
        assert_eq!(parse_memory(status), Some(expected));
        assert_eq!(parse_memory("VmRSS:\t 1 kB\n"), None);
        assert_eq!(kibibytes("VmRSS:\t 1 MB\n", "VmRSS:"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        let memory = memory(pid).unwrap();
        assert!(memory.resident > 0 && memory.anonymous <= memory.resident);
        assert!(memory.peak >= memory.resident / 2);
        assert!(cpu_time(pid).unwrap() < Duration::from_secs(3600));
    }
}
