//! What somebody may have meant by a flag or a command that is not known, in whole sentences.

use super::flags::{self, FLAGS, Group};
use super::value::parse_bool;

/// The words that ask for something else than serving, in place of flags.
pub const COMMANDS: [&str; 4] = ["health", "import", "export", "restore"];
/// Longer words are nobody's slip of the finger. Bounds the work, too.
const LENGTH_MAX: usize = 64;
/// Letters that may be wrong in a long word.
const SLIPS_MAX: usize = 3;
/// What etcd called flags before they were settled.
const EXPERIMENTAL: &str = "experimental-";

/// The one of `known` that is nearly what was written, if one is.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if written.len() > LENGTH_MAX {
        return None;
    }
    let slips = |word: &str| (word.len().max(written.len()) / 3).clamp(1, SLIPS_MAX);
    let near = known.into_iter().map(|word| (distance(written, word), word));
    near.filter(|(far, word)| *far <= slips(word)).min_by_key(|(far, _)| *far).map(|near| near.1)
}

/// What may have been meant by a flag that is not known.
pub(super) fn of_flag(written: &str) -> Option<String> {
    let settled = written.strip_prefix(EXPERIMENTAL).and_then(flags::find).map(|flag| flag.name);
    let more = ["version", "help", "config-file"];
    let known = FLAGS.iter().filter(|flag| flag.group != Group::Retired).map(|flag| flag.name);
    let meant = settled.or_else(|| nearest(written, known.chain(more)))?;
    Some(format!("Did you mean --{meant}?"))
}

/// What may have been meant by a word where a flag belongs; `switch` is the yes-or-no flag that stands before it
/// without a value.
pub(super) fn of_word(word: &str, switch: Option<&str>) -> String {
    if word.starts_with("--") {
        return "What follows a -- of its own is no flag: leave that out.".to_owned();
    }
    if let Some(name) = switch
        && parse_bool(word).is_some()
    {
        return format!("A value of --{name} follows an equals sign: --{name}={word}");
    }
    if COMMANDS.contains(&word) {
        return format!("A command is the first argument: leaseway {word} ...");
    }
    if let Some(command) = nearest(word, COMMANDS) {
        return format!("Did you mean the command {command}?");
    }
    of_flag(word).unwrap_or_else(|| {
        format!("Flags begin with --, and the commands are {}", COMMANDS.join(", "))
    })
}

/// How many letters have to be left out, added, replaced or swapped with their neighbour to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, far) in [
            ("", "", 0),
            ("", "abc", 3),
            ("import", "import", 0),
            ("imprt", "import", 1),
            ("imoprt", "import", 1),
            ("exprot", "export", 1),
            ("resotre", "restore", 1),
            ("abc", "xyz", 3),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (far, far), "{a} {b}");
        }
    }

    #[test]
    fn flags_that_were_meant() {
        for (written, meant) in [
            ("listen-client-url", Some("--listen-client-urls?")),
            ("data_dir", Some("--data-dir?")),
            ("datadir", Some("--data-dir?")),
            ("verison", Some("--version?")),
            (
                "experimental-watch-progress-notify-interval",
                Some("--watch-progress-notify-interval?"),
            ),
            ("nosuch", None),
            ("x", None),
            ("", None),
        ] {
            let hint = of_flag(written);
            assert_eq!(hint.as_deref(), meant.map(|it| format!("Did you mean {it}")).as_deref());
        }
        assert_eq!(of_flag(&"x".repeat(100_000)), None);
    }

    #[test]
    fn words_where_a_flag_belongs() {
        for (word, switch, part) in [
            ("imprt", None, "the command import?"),
            ("Export", None, "the command export?"),
            ("restore", None, "first argument: leaseway restore"),
            ("version", None, "--version?"),
            ("false", Some("pre-vote"), "equals sign: --pre-vote=false"),
            ("false", None, "the commands are health, import, export, restore"),
            ("serve", Some("pre-vote"), "the commands are"),
            ("--name=a", None, "leave that out"),
        ] {
            let hint = of_word(word, switch);
            assert!(hint.contains(part), "{word}: {hint}");
        }
    }
}
