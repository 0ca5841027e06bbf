//! Where the data is: `local`, or `oxia://HOST:PORT[,HOST:PORT…]/NAMESPACE?keyspace=NAME`.

use crate::backend::oxia::client::Address;
use crate::backend::oxia::names::{MAX_KEYSPACE, is_keyspace};

/// Where the log and the sessions are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// In this process and its data directory.
    Local,
    /// In an Oxia cluster.
    Oxia(OxiaPlace),
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
    let rest = text.strip_prefix("oxia://").ok_or_else(|| wrong("unknown kind"))?;
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
    Ok(Backend::Oxia(OxiaPlace { seeds, namespace, keyspace }))
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
