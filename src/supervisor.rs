//! Tells the service manager that started this process how it is.
//!
//! The protocol is systemd's (`sd_notify(3)`): one datagram to the socket that the variable
//! `NOTIFY_SOCKET` names, by a path or, behind an `@`, in the abstract namespace. Without the variable
//! nobody asked.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the socket's name.
pub const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// What the service manager is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests are served.
    Ready,
    /// A signal was taken, and what is under way is being finished.
    Stopping,
    /// What was served is given up, to be loaded again by the same process.
    StartingOver,
    /// Requests are served again.
    ReadyAgain,
}

impl State {
    fn message(self) -> &'static [u8] {
        match self {
            Self::Ready => b"READY=1",
            Self::Stopping => b"STOPPING=1",
            // It was ready once, and is not stopping: for these there are words only.
            Self::StartingOver => b"STATUS=left behind by the log; starting over",
            Self::ReadyAgain => b"STATUS=serving again after starting over",
        }
    }
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Sends `state` to `socket`, the variable's value.
///
/// # Errors
/// The name is none, or nobody takes the datagram.
pub fn tell(socket: &OsStr, state: State) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => abstract_address(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // Whoever asked and does not read must not hold the process up.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.message(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> Vec<u8> {
        let mut message = [0; 64];
        let length = socket.recv(&mut message).expect("a datagram");
        message[..length].to_vec()
    }

    #[test]
    fn a_socket_at_a_path_is_told() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        tell(path.as_os_str(), State::Ready).expect("told");
        assert_eq!(received(&socket), b"READY=1");
        tell(path.as_os_str(), State::Stopping).expect("told");
        assert_eq!(received(&socket), b"STOPPING=1");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_socket_without_a_path_is_told() {
        let name = format!("leaseway-test-{}", std::process::id());
        let address = abstract_address(name.as_bytes()).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("a socket");
        tell(OsStr::new(&format!("@{name}")), State::Ready).expect("told");
        assert_eq!(received(&socket), b"READY=1");
    }

    #[test]
    fn nobody_there_is_an_error() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert!(tell(dir.path().join("none").as_os_str(), State::Ready).is_err());
        assert!(tell(OsStr::new(""), State::Ready).is_err());
    }
}
