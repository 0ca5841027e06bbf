//! Nodes reached over TLS.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::Address;
use super::wire::{Connecting, Io, Transport};
use crate::tls::TlsError;
use crate::tls::client::{ClientFiles, configure};

/// TLS to every node, whatever its address says. The files are read for each connection, so that
/// new ones are used without a restart; if they can't be, what was read before is used.
pub struct Tls {
    files: ClientFiles,
    /// The name that nodes must have certificates for, in place of their own addresses.
    name: Option<String>,
    last: Arc<Mutex<Arc<ClientConfig>>>,
}

impl Tls {
    /// TLS with these files. `authority` is what nodes are called, with or without a port.
    ///
    /// # Errors
    /// Which file can't be used, and why.
    pub fn new(files: ClientFiles, authority: Option<&str>) -> Result<Tls, TlsError> {
        let last = Arc::new(Mutex::new(Arc::new(read(&files)?)));
        Ok(Tls { files, name: authority.map(|text| host(text).to_owned()), last })
    }
}

fn read(files: &ClientFiles) -> Result<ClientConfig, TlsError> {
    configure(files, &["h2"])
}

/// The host in `host`, `host:port` or `[host]:port`.
fn host(authority: &str) -> &str {
    if let Some((inner, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return inner;
    }
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.parse::<u16>().is_ok() => host,
        _ => authority,
    }
}

impl Transport for Tls {
    fn connect(&self, address: &Address) -> Connecting {
        let place = format!("{}:{}", address.host, address.port);
        let name = self.name.clone().unwrap_or_else(|| host(&place).to_owned());
        let (files, last) = (self.files.clone(), self.last.clone());
        Box::pin(async move {
            let reading = tokio::task::spawn_blocking(move || read(&files));
            let config = match reading.await {
                Ok(Ok(config)) => {
                    let config = Arc::new(config);
                    *last.lock() = config.clone();
                    config
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the files for TLS to Oxia can't be used; using those read before");
                    last.lock().clone()
                }
                Err(_) => last.lock().clone(),
            };
            let name = ServerName::try_from(name).map_err(io::Error::other)?;
            let stream = TcpStream::connect(&place).await?;
            stream.set_nodelay(true)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(Box::new(stream) as Box<dyn Io>)
        })
    }

    fn encrypts(&self, _: &Address) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_authorities() {
        for (text, want) in [
            ("oxia.example", "oxia.example"),
            ("oxia.example:6648", "oxia.example"),
            ("[::1]:6648", "::1"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("127.0.0.1:1", "127.0.0.1"),
        ] {
            assert_eq!(host(text), want, "{text}");
        }
    }
}
