//! Notifications for the service manager: datagrams of `sd_notify` to the socket in `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::debug;

/// State of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotifyState {
    /// It reads the event store before it uses it, which can take longer than a start may.
    CheckingStore,
    /// It accepts requests.
    Ready,
    /// It reads its settings again, and still accepts requests.
    Reloading,
    /// It is shutting down.
    Stopping,
}

impl NotifyState {
    fn message(self) -> &'static str {
        match self {
            // As long as TimeoutStartSec of the unit.
            Self::CheckingStore => "EXTEND_TIMEOUT_USEC=300000000\nSTATUS=checking the event store",
            Self::Ready => "READY=1\nSTATUS=accepting requests",
            Self::Reloading => "RELOADING=1\nSTATUS=reading the settings",
            Self::Stopping => "STOPPING=1\nSTATUS=shutting down, waiting for open connections",
        }
    }
}

/// Notifies the service manager, if there is one. Errors are ignored.
pub(crate) fn notify(state: NotifyState) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, state.message()) {
        debug!(target: "admin", %error, "cannot notify the service manager");
    }
}

/// Sends a datagram. The name is a path, or an abstract name after `@`.
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_reach_path_and_abstract_sockets() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("notify");
        let abstract_name = format!("@graspd-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).expect("a socket");
        let address = SocketAddr::from_abstract_name(&abstract_name[1..]).expect("an address");
        let by_name = UnixDatagram::bind_addr(&address).expect("a socket");
        for (receiver, name) in [(by_path, path.as_os_str()), (by_name, OsStr::new(&abstract_name))] {
            send(name, NotifyState::Stopping.message()).expect("it listens");
            let mut buffer = [0; 100];
            let length = receiver.recv(&mut buffer).expect("words");
            assert!(buffer[..length].starts_with(b"STOPPING=1\n"));
        }
        assert!(send(OsStr::new("/nonexistent/socket"), "READY=1").is_err());
    }
}
