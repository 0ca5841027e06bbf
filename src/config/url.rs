//! The URLs that flags name listeners and members by.

use std::fmt;

/// Where to listen, or where others should connect to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Whether TLS is spoken there (`https`, `unixs`).
    pub tls: bool,
    /// The place itself.
    pub place: Place,
}

/// The place behind an [`Endpoint`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A TCP port; 0 lets the system choose. The host has no brackets.
    Tcp { host: String, port: u16 },
    /// A socket in the file system.
    Unix { path: String },
}

impl Endpoint {
    /// Reads one URL: `http://host:port`, `https://host:port`, `unix://path` or `unixs://path`.
    ///
    /// # Errors
    /// What is wrong with it, in etcd's words.
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        let text = text.trim();
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(format!("URL scheme must be http, https, unix, or unixs: {text}"));
        };
        if scheme.is_empty() {
            return Err(format!("parse {text:?}: missing protocol scheme"));
        }
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "http" | "https" => Self::parse_tcp(text, rest, scheme == "https"),
            "unix" | "unixs" => {
                let path = rest.strip_prefix("//").unwrap_or(rest);
                if path.contains('\0') {
                    return Err(format!(
                        "parse {text:?}: net/url: invalid control character in URL"
                    ));
                }
                Ok(Endpoint { tls: scheme == "unixs", place: Place::Unix { path: path.into() } })
            }
            _ => Err(format!("URL scheme must be http, https, unix, or unixs: {text}")),
        }
    }

    fn parse_tcp(text: &str, rest: &str, tls: bool) -> Result<Endpoint, String> {
        let form = || format!("URL address does not have the form \"host:port\": {text}");
        let authority = rest.strip_prefix("//").ok_or_else(form)?;
        let (authority, path) = match authority.find(['/', '?', '#']) {
            Some(at) => authority.split_at(at),
            None => (authority, ""),
        };
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, tail) = inner.split_once(']').ok_or_else(form)?;
                (host, tail.strip_prefix(':').ok_or_else(form)?)
            }
            None => authority.split_once(':').ok_or_else(form)?,
        };
        let invalid_port = || format!("parse {text:?}: invalid port \":{port}\" after host");
        if !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(invalid_port());
        }
        let port = if port.is_empty() { 0 } else { port.parse().map_err(|_| invalid_port())? };
        if path.starts_with('/') {
            return Err(format!("URL must not contain a path: {text}"));
        }
        Ok(Endpoint { tls, place: Place::Tcp { host: host.into(), port } })
    }

    /// Reads comma-separated URLs, sorted and without duplicates, as etcd keeps them.
    ///
    /// # Errors
    /// What is wrong with the first bad one.
    pub fn parse_list(text: &str) -> Result<Vec<Endpoint>, String> {
        let mut urls = text.split(',').map(Endpoint::parse).collect::<Result<Vec<_>, _>>()?;
        urls.sort_by_cached_key(Endpoint::to_string);
        urls.dedup();
        Ok(urls)
    }

    /// The host, if it is one on the network.
    pub fn host(&self) -> Option<&str> {
        match &self.place {
            Place::Tcp { host, .. } => Some(host),
            Place::Unix { .. } => None,
        }
    }

    /// Checks that one can listen there: an IP address, `localhost`, or a socket path.
    ///
    /// # Errors
    /// What is wrong, in etcd's words.
    pub fn check_bind(&self) -> Result<(), String> {
        match &self.place {
            Place::Unix { path } if path.is_empty() => {
                Err(format!("expected a socket path in URL for binding ({self})"))
            }
            Place::Unix { .. } => Ok(()),
            Place::Tcp { host, .. }
                if host == "localhost" || host.parse::<std::net::IpAddr>().is_ok() =>
            {
                Ok(())
            }
            Place::Tcp { .. } => Err(format!("expected IP in URL for binding ({self})")),
        }
    }

    /// Checks that others can be told to connect there.
    ///
    /// # Errors
    /// What is wrong, in etcd's words.
    pub fn check_host(&self) -> Result<(), String> {
        match &self.place {
            Place::Tcp { host, .. } if host.is_empty() => {
                Err(format!("unexpected empty host ({self})"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.tls { "s" } else { "" };
        match &self.place {
            Place::Tcp { host, port } if host.contains(':') => {
                write!(f, "http{s}://[{host}]:{port}")
            }
            Place::Tcp { host, port } => write!(f, "http{s}://{host}:{port}"),
            Place::Unix { path } => write!(f, "unix{s}://{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls_come_back_as_they_were() {
        for text in [
            "http://127.0.0.1:2379",
            "https://[::1]:2379",
            "unix:///run/a.sock",
            "unixs://a.sock",
            "unix://localhost:2379",
            "http://0.0.0.0:0",
        ] {
            let url = Endpoint::parse(text).expect(text);
            assert_eq!(url.to_string(), text);
        }
        let plain = Endpoint::parse("unix:/run/a.sock").expect("path without slashes");
        assert_eq!(plain.place, Place::Unix { path: "/run/a.sock".into() });
    }

    #[test]
    fn bad_urls_are_refused_with_etcd_texts() {
        for (text, want) in [
            ("http://foo", "URL address does not have the form \"host:port\": http://foo"),
            ("ftp://a:1", "URL scheme must be http, https, unix, or unixs: ftp://a:1"),
            ("bad", "URL scheme must be http, https, unix, or unixs: bad"),
            (":bad", "parse \":bad\": missing protocol scheme"),
            ("http://a:1/path", "URL must not contain a path: http://a:1/path"),
            ("http://a:x", "parse \"http://a:x\": invalid port \":x\" after host"),
            ("http://a:99999", "parse \"http://a:99999\": invalid port \":99999\" after host"),
            ("http://::1:80", "parse \"http://::1:80\": invalid port \"::1:80\" after host"),
            ("", "URL scheme must be http, https, unix, or unixs: "),
        ] {
            assert_eq!(Endpoint::parse(text).expect_err(text), want);
        }
    }

    #[test]
    fn only_addresses_can_be_bound() {
        for (text, ok) in [
            ("http://localhost:1", true),
            ("http://10.0.0.1:1", true),
            ("http://[::]:1", true),
            ("http://example.org:1", false),
            ("http://:1", false),
            ("unix://", false),
        ] {
            assert_eq!(Endpoint::parse(text).expect(text).check_bind().is_ok(), ok, "{text}");
        }
    }

    #[test]
    fn lists_are_sorted_and_unique() {
        let urls = Endpoint::parse_list("http://b:1, http://a:1,http://b:1").expect("valid");
        let texts: Vec<String> = urls.iter().map(Endpoint::to_string).collect();
        assert_eq!(texts, ["http://a:1", "http://b:1"]);
    }
}
