//! How far something has come, for a person: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Characters of the bar.
const WIDTH: usize = 32;
const BAR_INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;

/// Shows progress on standard error.
pub struct Progress {
    terminal: bool,
    what: &'static str,
    total: u64,
    shown: Instant,
    /// A bar is on the screen, without the end of its line.
    open: bool,
}

impl Progress {
    /// Shows a bar if standard error is a terminal.
    pub fn new() -> Self {
        Self {
            terminal: stderr().is_terminal(),
            what: "",
            total: 0,
            shown: Instant::now(),
            open: false,
        }
    }

    /// Begins something that takes `total` bytes, as far as is known; 0 if nothing is.
    pub fn begin(&mut self, what: &'static str, total: u64) {
        self.end();
        (self.what, self.total, self.shown) = (what, total, Instant::now());
    }

    /// So many bytes of it are done.
    pub fn reached(&mut self, bytes: u64) {
        let interval = if self.terminal { BAR_INTERVAL } else { LINE_INTERVAL };
        if self.shown.elapsed() < interval {
            return;
        }
        self.shown = Instant::now();
        // Nobody has to see it.
        let _ = match self.terminal {
            true => write!(stderr(), "\r{}\x1b[K", bar(self.what, bytes, self.total)),
            false => writeln!(stderr(), "{}", line(self.what, bytes, self.total)),
        };
        self.open = self.terminal;
    }

    /// Takes the bar away.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

fn percent(done: u64, total: u64) -> u64 {
    (done.saturating_mul(100) / total.max(1)).min(100)
}

fn line(what: &str, done: u64, total: u64) -> String {
    match total {
        0 => format!("{what}: {} MiB", done / MIB),
        _ => format!("{what}: {} of {} MiB, {}%", done / MIB, total / MIB, percent(done, total)),
    }
}

fn bar(what: &str, done: u64, total: u64) -> String {
    let filled = percent(done, total) as usize * WIDTH / 100;
    let (filled, empty) = ("#".repeat(filled), " ".repeat(WIDTH - filled));
    format!("{what:10} [{filled}{empty}] {}", line("", done, total).trim_start_matches([':', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_far_it_has_come() {
        assert_eq!(line("reading", 3 * MIB, 0), "reading: 3 MiB");
        assert_eq!(line("reading", 3 * MIB, 6 * MIB), "reading: 3 of 6 MiB, 50%");
        let want = format!("reading    [{}{}] 6 of 4 MiB, 100%", "#".repeat(WIDTH), "");
        assert_eq!(bar("reading", 6 * MIB, 4 * MIB), want);
    }
}
