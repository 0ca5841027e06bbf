//! Addresses of Oxia nodes, as users and servers write them.

use std::fmt;
use std::str::FromStr;

use super::error::{Error, Kind};

/// `host:port`, with `tls://` in front where the connection is to be encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Whether `tls://` was written in front.
    pub tls: bool,
    /// A name, an IPv4 address, or an IPv6 address in brackets.
    pub host: String,
    /// 1 to 65535.
    pub port: u16,
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = |why: &str| Error::new(Kind::Invalid, format!("oxia: address {text:?}: {why}"));
        let (tls, rest) = match text.strip_prefix("tls://") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("no port"))?;
        let port: u16 = port.parse().map_err(|_| wrong("no valid port"))?;
        if port == 0 {
            return Err(wrong("no valid port"));
        }
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (host.contains(':') && !bracketed) || host.contains(['/', '@', ' ']) {
            return Err(wrong("no valid host"));
        }
        Ok(Address { tls, host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}:{}", if self.tls { "tls://" } else { "" }, self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["127.0.0.1:6648", "oxia-0.oxia:6648", "tls://[::1]:1"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(text.into()));
        }
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in ["", "host", "host:", ":1", "host:0", "host:65536", "::1:1", "http://host:1"] {
            let error = text.parse::<Address>().expect_err(text);
            assert_eq!(error.kind, Kind::Invalid, "{text}");
        }
    }
}
