//! Where the data is: `local`, or `oxia://HOST:PORT[,HOST:PORT…]/NAMESPACE?keyspace=NAME`, with
//! `oxia+tls://` over TLS.

use super::sources::Values;
use super::{ConfigError, Level, Note};
use crate::backend::oxia::client::Address;
use crate::backend::oxia::names::{MAX_KEYSPACE, is_keyspace};
use crate::tls::client::ClientFiles;
use std::path::PathBuf;

/// Where the log and the sessions are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// In this process and its data directory.
    Local,
    /// In an Oxia cluster.
    Oxia(OxiaPlace),
}

impl Backend {
    /// One word for it.
    pub fn kind(&self) -> &'static str {
        match self {
            Backend::Local => "local",
            Backend::Oxia(_) => "oxia",
        }
    }
}

/// A keyspace in an Oxia cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OxiaPlace {
    /// Nodes to begin with, at least one.
    pub seeds: Vec<Address>,
    /// The cluster's namespace.
    pub namespace: String,
    /// The keyspace within it.
    pub keyspace: String,
    /// How it's reached over TLS; none is plainly.
    pub tls: Option<ClientFiles>,
    /// File of a bearer token.
    pub token_file: Option<PathBuf>,
    /// What the nodes are called in place of their addresses.
    pub authority: Option<String>,
}

/// The flags that say how an Oxia cluster is reached, besides `--backend`.
pub const OXIA_FLAGS: [&str; 5] =
    ["oxia-ca-file", "oxia-cert-file", "oxia-key-file", "oxia-token-file", "oxia-authority"];

/// Flags that only concern gateways, whether somebody may count on them, and why they are of no use otherwise.
const GATEWAY_FLAGS: &[(&str, Level, &str)] = &[
    ("checkpoint-log-bytes", Level::Warn, "only a log on Oxia has checkpoints"),
    ("corrupt-check-time", Level::Info, ALONE),
    ("compact-hash-check-time", Level::Info, ALONE),
];
pub(super) const ALONE: &str = "a single server has nobody to compare with";
/// The same for a server with data of its own.
const LOCAL_FLAGS: &[(&str, Level, &str)] =
    &[("unsafe-no-fsync", Level::Warn, "a gateway keeps nothing that has to reach its disk")];

/// The flags for the backend.
pub(super) fn build(values: &Values, notes: &mut Vec<Note>) -> Result<Backend, ConfigError> {
    let backend = of_flags(|name| values.is_set(name).then(|| values.text(name)), notes)
        .map_err(ConfigError::new)?;
    let why = match backend {
        Backend::Local => GATEWAY_FLAGS,
        Backend::Oxia(_) => LOCAL_FLAGS,
    };
    for (name, level, reason) in why.iter().filter(|(name, ..)| values.is_set(name)) {
        let note = Note::new(*level, "flag accepted without effect");
        notes.push(note.with("flag", format!("--{name}")).with("reason", *reason));
    }
    Ok(backend)
}

/// The backend that flags say; `given` has the value of each that was given. What there is to say about them is
/// added to `notes`. Whoever says how a cluster is reached and not that there is one gets none of their own: it would be
/// empty, and taken for the cluster's.
///
/// # Errors
/// What is wrong with them, in one line.
pub fn of_flags<'a>(
    given: impl Fn(&str) -> Option<&'a str>,
    notes: &mut Vec<Note>,
) -> Result<Backend, String> {
    let written = given("backend");
    let text = |name: &str| given(name).filter(|text| !text.is_empty());
    let mut backend =
        parse(written.unwrap_or("local")).map_err(|why| format!("--backend: {why}"))?;
    if backend == Backend::Local {
        without_cluster(
            OXIA_FLAGS.into_iter().filter(|name| text(name).is_some()),
            written,
            notes,
        )?;
    }
    let file = |name: &str| text(name).map(PathBuf::from);
    let certificate = match (file("oxia-cert-file"), file("oxia-key-file")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err("--oxia-cert-file and --oxia-key-file belong together".into()),
    };
    let files = ClientFiles { ca: file("oxia-ca-file"), certificate, trust_anybody: false };
    let Backend::Oxia(place) = &mut backend else { return Ok(backend) };
    match &mut place.tls {
        Some(tls) => *tls = files,
        None if files != ClientFiles::default() => {
            return Err(
                "--oxia-ca-file and --oxia-cert-file are for TLS: --backend must begin with \
                 oxia+tls://"
                    .into(),
            );
        }
        None if file("oxia-token-file").is_some() => notes.push(Note::new(
            Level::Warn,
            "the token for Oxia is sent without TLS: whoever listens can use it",
        )),
        None => {}
    }
    place.token_file = file("oxia-token-file");
    place.authority = text("oxia-authority").map(str::to_owned);
    Ok(backend)
}

/// What is made of flags that say how a cluster is reached, where none is named.
fn without_cluster(
    names: impl Iterator<Item = &'static str>,
    backend: Option<&str>,
    notes: &mut Vec<Note>,
) -> Result<(), String> {
    let names: Vec<String> = names.map(|name| format!("--{name}")).collect();
    match backend {
        None if !names.is_empty() => Err(format!(
            "{} without --backend: name the cluster with --backend oxia://HOST:PORT/NAMESPACE?keyspace=NAME, or \
             say --backend local if the data is to be here",
            names.join(", ")
        )),
        _ => {
            notes.extend(names.into_iter().map(|name| {
                Note::new(Level::Warn, format!("{name} has no effect with --backend local"))
                    .with("flag", name)
            }));
            Ok(())
        }
    }
}

const FORM: &str = "local or oxia://HOST:PORT[,HOST:PORT]/NAMESPACE?keyspace=NAME";

/// Reads the flag.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn parse(text: &str) -> Result<Backend, String> {
    if text == "local" {
        return Ok(Backend::Local);
    }
    let wrong = |why: &str| format!("{text:?} is not {FORM}: {why}");
    let (rest, tls) = match (text.strip_prefix("oxia://"), text.strip_prefix("oxia+tls://")) {
        (Some(rest), _) => (rest, None),
        (_, Some(rest)) => (rest, Some(ClientFiles::default())),
        _ => return Err(wrong("unknown kind")),
    };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (seeds, namespace) = place.split_once('/').unwrap_or((place, ""));
    let seeds = seeds
        .split(',')
        .map(|seed| seed.trim().parse::<Address>().map_err(|error| wrong(&error.to_string())))
        .collect::<Result<Vec<_>, _>>()?;
    if namespace.contains('/') {
        return Err(wrong("a namespace has no slash"));
    }
    let mut given = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("keyspace", _)) if given.is_some() => return Err(wrong("two keyspaces")),
            Some(("keyspace", name)) => given = Some(name),
            _ => return Err(wrong(&format!("unknown option {pair:?}"))),
        }
    }
    let keyspace = given.unwrap_or("default");
    if !is_keyspace(keyspace) {
        return Err(wrong(&format!(
            "a keyspace's name has 1 to {MAX_KEYSPACE} letters, digits, '-', '_' and '.'"
        )));
    }
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let (namespace, keyspace) = (namespace.to_owned(), keyspace.to_owned());
    let (token_file, authority) = (None, None);
    Ok(Backend::Oxia(OxiaPlace { seeds, namespace, keyspace, tls, token_file, authority }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(parse("local"), Ok(Backend::Local));
        let Ok(Backend::Oxia(place)) = parse("oxia://a:1,b:2/ns?keyspace=team-1") else {
            panic!("a place");
        };
        assert_eq!(place.seeds.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:1", "b:2"]);
        assert_eq!((place.namespace.as_str(), place.keyspace.as_str()), ("ns", "team-1"));
        let Ok(Backend::Oxia(place)) = parse("oxia://a:1") else { panic!("a place") };
        assert_eq!((place.namespace.as_str(), place.keyspace.as_str()), ("default", "default"));
        assert_eq!(place.tls, None);
        let Ok(Backend::Oxia(place)) = parse("oxia+tls://a:1") else { panic!("a place") };
        assert_eq!(place.tls, Some(ClientFiles::default()));
    }

    fn of(flags: &[(&'static str, &'static str)]) -> (Result<Backend, String>, Vec<String>) {
        let mut notes = Vec::new();
        let given = |name: &str| flags.iter().find(|flag| flag.0 == name).map(|flag| flag.1);
        let backend = of_flags(given, &mut notes);
        (backend, notes.into_iter().map(|note| note.message).collect())
    }

    #[test]
    fn how_a_cluster_is_reached_needs_a_cluster() {
        assert_eq!(of(&[]), (Ok(Backend::Local), vec![]));
        let (refused, notes) = of(&[("oxia-ca-file", "ca.pem"), ("oxia-authority", "oxia")]);
        let why = refused.expect_err("which keyspace is meant?");
        assert!(why.contains("--oxia-ca-file, --oxia-authority without --backend"), "{why}");
        assert_eq!(notes, [""; 0]);
        let (local, notes) = of(&[("backend", "local"), ("oxia-token-file", "t")]);
        assert_eq!(local, Ok(Backend::Local));
        assert_eq!(notes, ["--oxia-token-file has no effect with --backend local"]);
        // Turned off by an empty value.
        assert_eq!(of(&[("oxia-token-file", "")]), (Ok(Backend::Local), vec![]));
    }

    #[test]
    fn what_is_no_place() {
        for text in [
            "",
            "etcd",
            "oxia://",
            "oxia://a",
            "oxia://a:0/x",
            "oxia://a:1/x/y",
            "oxia://a:1/x?keyspace=",
            "oxia://a:1/x?keyspace=a/b",
            "oxia://a:1/x?ks=a",
            "oxia://a:1/x?keyspace=a&keyspace=b",
            "LOCAL",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(FORM), "{error}");
        }
    }
}
