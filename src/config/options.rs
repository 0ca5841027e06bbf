//! The command line of a subcommand: flags as Go's programs have them, and what is none.

use super::hint;
use super::value::parse_bool;

/// A flag that is known.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name.
    pub name: &'static str,
    /// Whether it stands without a value.
    pub switch: bool,
}

/// A flag with a value.
pub const fn value(name: &'static str) -> Flag {
    Flag { name, switch: false }
}

/// A flag that is on or off.
pub const fn switch(name: &'static str) -> Flag {
    Flag { name, switch: true }
}

/// What was given.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    flags: Vec<(&'static str, String)>,
    /// What is no flag.
    pub rest: Vec<String>,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    /// An unknown flag, one without its value, or a value where none belongs.
    pub fn parse(args: &[String], known: &[Flag]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut args = args.iter();
        let mut switch = None;
        while let Some(arg) = args.next() {
            let before = switch.take();
            let body = match arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) {
                Some(body) if !body.is_empty() => body,
                Some(_) if arg == "--" => {
                    options.rest.extend(args.cloned());
                    break;
                }
                _ => {
                    if let Some(name) = before
                        && parse_bool(arg).is_some()
                    {
                        return Err(format!(
                            "a value of --{name} follows an equals sign: --{name}={arg} (a file of that name is ./{arg})"
                        ));
                    }
                    options.rest.push(arg.clone());
                    continue;
                }
            };
            let (name, inline) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (body, None),
            };
            let flag = known.iter().find(|flag| flag.name == name);
            let flag =
                flag.ok_or_else(|| match hint::nearest(name, known.iter().map(|it| it.name)) {
                    Some(meant) => format!("flag {arg:?} is unknown. Did you mean --{meant}?"),
                    None => format!("flag {arg:?} is unknown"),
                })?;
            let given = match inline {
                Some(value) => Some(value),
                None if flag.switch => {
                    switch = Some(flag.name);
                    Some("true".into())
                }
                None => args.next().cloned(),
            };
            let given = given.ok_or_else(|| format!("--{name} needs a value"))?;
            options.flags.push((flag.name, given));
        }
        Ok(options)
    }

    /// The last value of a flag.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.flags.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on.
    ///
    /// # Errors
    /// Its value is neither true nor false.
    pub fn is_on(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.get(name) {
            None => Ok(default),
            Some(text) => {
                parse_bool(text).ok_or_else(|| format!("--{name}: {text:?} is not true or false"))
            }
        }
    }

    /// The one thing that is no flag.
    ///
    /// # Errors
    /// There is none, or more; `what` says what it should be.
    pub fn one(&self, what: &str) -> Result<&str, String> {
        match &self.rest[..] {
            [one] => Ok(one),
            [] => Err(format!("{what} is missing")),
            [_, more, ..] => Err(format!("there is {more:?} where nothing more is expected")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Flag; 2] = [value("data-dir"), switch("fast")];

    fn parse(args: &[&str]) -> Result<Options, String> {
        Options::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>(), &KNOWN)
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let options = parse(&["--data-dir=a", "file", "-data-dir", "b", "--fast"]).unwrap();
        assert_eq!(options.get("data-dir"), Some("b"));
        assert_eq!(options.is_on("fast", false), Ok(true));
        assert_eq!(options.one("FILE"), Ok("file"));
        assert_eq!(parse(&["--fast=false"]).unwrap().is_on("fast", true), Ok(false));
        assert_eq!(parse(&["--", "--fast"]).unwrap().one("FILE"), Ok("--fast"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(parse(&["--slow"]).unwrap_err().contains("unknown"));
        assert!(parse(&["--datadir=x"]).unwrap_err().ends_with("Did you mean --data-dir?"));
        assert!(parse(&["--fast", "true", "a"]).unwrap_err().contains("--fast=true"));
        assert_eq!(parse(&["--fast", "./true"]).unwrap().one("FILE"), Ok("./true"));
        assert_eq!(parse(&["--data-dir", "true", "a"]).unwrap().one("FILE"), Ok("a"));
        assert!(parse(&["--data-dir"]).unwrap_err().contains("needs a value"));
        assert!(parse(&["--fast=maybe"]).unwrap().is_on("fast", true).is_err());
        assert!(parse(&[]).unwrap().one("FILE").unwrap_err().contains("missing"));
        assert!(parse(&["a", "b"]).unwrap().one("FILE").is_err());
    }
}
