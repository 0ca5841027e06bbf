//! Collecting what the command line, the environment and the configuration file say.

use std::collections::{BTreeMap, BTreeSet};

use saphyr::{LoadableYamlNode, Scalar, Yaml};

use super::flags::{self, Effect, FLAGS, Flag};
use super::hint;
use super::value::{self, Kind};
use super::{ConfigError, Level, Note};

/// The texts given for flags; what was not given has its default.
#[derive(Debug, Default)]
pub(super) struct Values {
    given: BTreeMap<&'static str, String>,
}

impl Values {
    /// Whether a value was given for the flag.
    pub fn is_set(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Whether the flag's value is what it would be if none was given.
    pub fn is_default(&self, name: &str) -> bool {
        flags::find(name).is_some_and(|flag| flag.default == self.text(name))
    }

    /// The value of the flag as text.
    pub fn text(&self, name: &str) -> &str {
        debug_assert!(flags::find(name).is_some(), "flag {name} is not declared");
        match self.given.get(name) {
            Some(text) => text,
            None => flags::find(name).map_or("", |flag| flag.default),
        }
    }

    /// The value of a yes-or-no flag.
    pub fn switch(&self, name: &str) -> bool {
        value::parse_bool(self.text(name)).unwrap_or(false)
    }

    /// The value of an unsigned flag.
    pub fn uint(&self, name: &str) -> u64 {
        value::parse_uint(self.text(name)).unwrap_or(0)
    }

    /// The value of a signed flag.
    pub fn int(&self, name: &str) -> i64 {
        value::parse_int(self.text(name)).unwrap_or(0)
    }

    /// The value of a duration flag; negative ones are zero.
    pub fn duration(&self, name: &str) -> std::time::Duration {
        let nanos = value::parse_duration(self.text(name)).unwrap_or(0);
        std::time::Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// The parts of a comma-separated flag, sorted and without duplicates, as etcd keeps them.
    pub fn list(&self, name: &str) -> Vec<String> {
        let text = self.text(name);
        if text.is_empty() {
            return Vec::new();
        }
        let unique: BTreeSet<&str> = text.split(',').collect();
        unique.into_iter().map(String::from).collect()
    }

    /// One note for each given flag that changes nothing.
    pub fn ignored(&self) -> impl Iterator<Item = Note> {
        FLAGS.iter().filter(|flag| self.is_set(flag.name)).filter_map(|flag| {
            let (note, reason) = match flag.effect {
                Effect::Honoured => return None,
                Effect::Ignored(reason) => {
                    (Note::new(Level::Info, "flag accepted without effect"), reason)
                }
                Effect::NotDone(reason) => {
                    (Note::new(Level::Warn, "what a flag asks for is not done"), reason)
                }
            };
            Some(note.with("flag", format!("--{}", flag.name)).with("reason", reason))
        })
    }

    fn set(&mut self, flag: &Flag, text: String) {
        // An exception such as the empty text means "as by default" to a list of URLs.
        if matches!(flag.kind, Kind::Urls(_)) && text.is_empty() {
            self.given.insert(flag.name, flag.default.to_owned());
        } else {
            self.given.insert(flag.name, text);
        }
    }
}

/// What the command line asks for besides values of flags.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Run { config_file: Option<String> },
    Version,
    Help,
}

/// Reads the arguments after the program's name.
pub(super) fn read_arguments(args: &[String]) -> Result<(Values, Request), ConfigError> {
    let mut values = Values::default();
    let mut config_file = None;
    let mut version = false;
    let mut rest = args.iter();
    let mut switch = None;
    while let Some(arg) = rest.next() {
        let before = std::mem::take(&mut switch);
        if arg == "--" {
            if let Some(extra) = rest.next() {
                return Err(not_a_flag(extra, None));
            }
            break;
        }
        let Some(body) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            return Err(not_a_flag(arg, before));
        };
        if body.is_empty() {
            return Err(not_a_flag(arg, before));
        }
        if body.starts_with('-') || body.starts_with('=') {
            return Err(ConfigError::usage(format!("bad flag syntax: {arg}")));
        }
        let (name, inline) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (body, None),
        };
        match name {
            "h" | "help" => return Ok((values, Request::Help)),
            "version" => {
                switch = inline.is_none().then_some("version");
                version = read_switch(name, inline.as_deref())?;
            }
            "config-file" => config_file = Some(read_value(name, inline, &mut rest)?),
            _ => {
                let flag = flags::find(name).ok_or_else(|| {
                    ConfigError::usage(format!("flag provided but not defined: -{name}"))
                        .hinting(hint::of_flag(name))
                })?;
                let text = if flag.kind.is_switch() {
                    switch = inline.is_none().then_some(flag.name);
                    inline.unwrap_or_else(|| "true".into())
                } else {
                    read_value(name, inline, &mut rest)?
                };
                check_argument(flag, &text)?;
                values.set(flag, text);
            }
        }
    }
    let request = if version { Request::Version } else { Request::Run { config_file } };
    Ok((values, request))
}

/// `switch` is the yes-or-no flag before it that has no value.
fn not_a_flag(arg: &str, switch: Option<&str>) -> ConfigError {
    if arg == "gateway" || arg == "grpc-proxy" {
        return ConfigError::new(format!("etcd's {arg:?} command is not part of this server"));
    }
    ConfigError::new(format!("{arg:?} is not a valid flag"))
        .hinting(Some(hint::of_word(arg, switch)))
}

fn read_switch(name: &str, inline: Option<&str>) -> Result<bool, ConfigError> {
    let text = inline.unwrap_or("true");
    value::parse_bool(text).ok_or_else(|| {
        ConfigError::usage(format!("invalid boolean value {text:?} for -{name}: parse error"))
    })
}

fn read_value<'a>(
    name: &str,
    inline: Option<String>,
    rest: &mut impl Iterator<Item = &'a String>,
) -> Result<String, ConfigError> {
    inline
        .or_else(|| rest.next().cloned())
        .ok_or_else(|| ConfigError::usage(format!("flag needs an argument: -{name}")))
}

fn check_argument(flag: &Flag, text: &str) -> Result<(), ConfigError> {
    flag.kind.check(text).map_err(|why| {
        let name = flag.name;
        ConfigError::usage(match flag.kind {
            Kind::Bool => format!("invalid boolean value {text:?} for -{name}: {why}"),
            _ => format!("invalid value {text:?} for flag -{name}: {why}"),
        })
    })
}

/// Adds what the environment says to the values from the command line.
///
/// As in etcd, a variable beside its own flag is an error, and one that no flag knows is noted.
pub(super) fn read_environment(
    values: &mut Values,
    env: &BTreeMap<String, String>,
    notes: &mut Vec<Note>,
) -> Result<(), ConfigError> {
    let by_variable: BTreeMap<String, &Flag> =
        FLAGS.iter().map(|flag| (flag.variable(), flag)).collect();
    for (variable, text) in env.iter().filter(|(name, _)| name.starts_with("ETCD_")) {
        let Some(flag) = by_variable.get(variable) else {
            if variable != "ETCD_CONFIG_FILE" && variable != "ETCD_UNSUPPORTED_ARCH" {
                notes.push(
                    Note::new(Level::Warn, "unrecognized environment variable")
                        .with("environment-variable", variable),
                );
            }
            continue;
        };
        if values.is_set(flag.name) {
            return Err(ConfigError::new(format!(
                "conflicting environment variable {variable:?} is shadowed by corresponding \
                 command-line flag (either unset environment variable or disable flag)"
            )));
        }
        if text.is_empty() {
            continue;
        }
        flag.kind.check(text).map_err(|why| {
            ConfigError::new(format!("invalid value {text:?} for {variable}: {why}"))
        })?;
        values.set(flag, text.clone());
        notes.push(
            Note::new(Level::Info, "recognized and used environment variable")
                .with("variable-name", variable)
                .with("variable-value", text),
        );
    }
    Ok(())
}

/// Reads a configuration file (YAML, of which JSON is a part), in place of everything else.
pub(super) fn read_file(
    path: &str,
    text: &str,
    notes: &mut Vec<Note>,
) -> Result<Values, ConfigError> {
    let fail = |why: String| ConfigError::new(format!("configuration file {path}: {why}"));
    let documents = Yaml::load_from_str(text).map_err(|error| fail(error.to_string()))?;
    let mut leaves = Vec::new();
    match documents.first() {
        None | Some(Yaml::Value(Scalar::Null)) => {}
        Some(root @ Yaml::Mapping(_)) => flatten("", root, &mut leaves).map_err(fail)?,
        Some(_) => return Err(fail("expected keys and values".into())),
    }
    let by_key: BTreeMap<&str, &Flag> = FLAGS.iter().map(|flag| (flag.yaml_key(), flag)).collect();
    let mut values = Values::default();
    for (key, text) in leaves {
        let Some(flag) = by_key.get(key.as_str()) else {
            notes.push(
                Note::new(Level::Warn, "unrecognized key in the configuration file")
                    .with("key", key),
            );
            continue;
        };
        // A duration is a number of nanoseconds in etcd's file; "10m" is understood here as well.
        let text = match flag.kind {
            Kind::Duration if text.parse::<i64>().is_ok() => format!("{text}ns"),
            _ => text,
        };
        flag.kind
            .check(&text)
            .map_err(|why| fail(format!("invalid value {text:?} for {key}: {why}")))?;
        values.set(flag, text);
    }
    Ok(values)
}

/// Turns nested mappings into `section.key` leaves, lists into comma-separated text.
fn flatten(
    prefix: &str,
    node: &Yaml<'_>,
    leaves: &mut Vec<(String, String)>,
) -> Result<(), String> {
    match node {
        Yaml::Mapping(entries) => {
            for (key, child) in entries {
                let key = scalar(key).ok_or("a key is not a plain text")?;
                let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                // No flag lives in a section of a section; it is reported as an unknown key.
                if path.contains('.') && matches!(child, Yaml::Mapping(_)) {
                    leaves.push((path, String::new()));
                    continue;
                }
                flatten(&path, child, leaves)?;
            }
        }
        Yaml::Sequence(items) => {
            let parts = items.iter().map(scalar).collect::<Option<Vec<_>>>();
            let parts =
                parts.ok_or_else(|| format!("{prefix} holds something other than plain values"))?;
            leaves.push((prefix.into(), parts.join(",")));
        }
        // A key without a value leaves the default, as in etcd.
        Yaml::Value(Scalar::Null) => {}
        _ => {
            let text = scalar(node).ok_or_else(|| format!("{prefix} has an unreadable value"))?;
            leaves.push((prefix.into(), text));
        }
    }
    Ok(())
}

fn scalar(node: &Yaml<'_>) -> Option<String> {
    match node {
        Yaml::Value(Scalar::String(text)) => Some(text.to_string()),
        Yaml::Value(Scalar::Integer(number)) => Some(number.to_string()),
        Yaml::Value(Scalar::Boolean(flag)) => Some(flag.to_string()),
        Yaml::Value(Scalar::FloatingPoint(number)) => Some(number.to_string()),
        _ => None,
    }
}
