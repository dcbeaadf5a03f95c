//! Words to whoever supervises the process: the datagrams of `sd_notify`, to the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::debug;

/// How it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// It answers requests.
    Ready,
    /// It reads its settings again, and answers meanwhile.
    Reloading,
    /// It is going down.
    Stopping,
}

impl News {
    fn words(self) -> &'static str {
        match self {
            Self::Ready => "READY=1\nSTATUS=taking requests",
            Self::Reloading => "RELOADING=1\nSTATUS=reading the settings",
            Self::Stopping => "STOPPING=1\nSTATUS=going down: connections may finish",
        }
    }
}

/// Tells it, if there is somebody to tell. Whether it is heard changes nothing.
pub(crate) fn tell(news: News) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(problem) = send(&socket, news.words()) {
        debug!(%problem, "whoever supervises the process does not hear");
    }
}

/// The name is a path, or, after an `@`, one without a file.
fn send(socket: &OsStr, words: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(words.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_both_kinds_of_names() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("notify");
        let hidden = format!("@graspd-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).expect("a socket");
        let address = SocketAddr::from_abstract_name(&hidden[1..]).expect("an address");
        let by_name = UnixDatagram::bind_addr(&address).expect("a socket");
        for (ear, name) in [(by_path, path.as_os_str()), (by_name, OsStr::new(&hidden))] {
            send(name, News::Stopping.words()).expect("it listens");
            let mut heard = [0; 100];
            let length = ear.recv(&mut heard).expect("words");
            assert!(heard[..length].starts_with(b"STOPPING=1\n"));
        }
        assert!(send(OsStr::new("/nonexistent/socket"), "READY=1").is_err());
    }
}
