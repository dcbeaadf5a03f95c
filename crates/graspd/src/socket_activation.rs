//! Listening sockets that the service manager has opened (socket activation of systemd). Clients that connect while the
//! server restarts wait in the queue of the socket and are not rejected.

use std::io;
use std::net::TcpListener;

use anyhow::{Context, Result, bail};
use listenfd::ListenFd;

/// The passed sockets. The server opens those that are missing.
#[derive(Default, Debug)]
pub(crate) struct InheritedSockets {
    /// Main port.
    pub(crate) main: Option<TcpListener>,
    /// Monitoring port.
    pub(crate) monitoring: Option<TcpListener>,
}

/// Takes the passed sockets. Must be called before there are threads, because it removes the variables from the
/// environment, so that child processes do not use them.
pub(crate) fn take_sockets() -> Result<InheritedSockets> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut passed_fds = ListenFd::from_env();
    let SocketRoles { main, monitoring } = assign_roles(passed_fds.len(), &names)?;
    let mut listener = |role: &str, index: Option<usize>| {
        let Some(index) = index else { return Ok(None) };
        let taken = passed_fds.take_tcp_listener(index).and_then(|taken| taken.map(check_listening).transpose());
        taken.with_context(|| format!("cannot use the passed socket `{role}`"))
    };
    Ok(InheritedSockets { main: listener("main", main)?, monitoring: listener("side", monitoring)? })
}

/// Index of the socket for each port.
#[derive(PartialEq, Eq, Debug)]
struct SocketRoles {
    main: Option<usize>,
    monitoring: Option<usize>,
}

/// Assigns the sockets by name: `side` is the monitoring port; any other name is the main port.
fn assign_roles(count: usize, names: &str) -> Result<SocketRoles> {
    let mut names = names.split(':');
    let mut assign_roles = SocketRoles { main: None, monitoring: None };
    for index in 0..count {
        let name = names.next().unwrap_or_default();
        let role = if name == "side" { &mut assign_roles.monitoring } else { &mut assign_roles.main };
        if role.replace(index).is_some() {
            bail!(
                "{count} sockets were passed, and two of them have the same role: name one `main` and one `side` \
                 (FileDescriptorName=)"
            );
        }
    }
    Ok(assign_roles)
}

/// Checks that a socket is listening, and makes it non-blocking for the runtime.
fn check_listening(listener: TcpListener) -> io::Result<TcpListener> {
    if !rustix::net::sockopt::socket_acceptconn(&listener)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket is not listening (Accept=no is required)"));
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_roles_by_name() {
        let assert_roles = |count, names, main, monitoring| {
            assert_eq!(assign_roles(count, names).expect("roles"), SocketRoles { main, monitoring }, "{names}");
        };
        assert_roles(0, "", None, None);
        assert_roles(1, "", Some(0), None);
        assert_roles(1, "graspd.socket", Some(0), None);
        assert_roles(1, "side", None, Some(0));
        assert_roles(2, "main:side", Some(0), Some(1));
        assert_roles(2, "side", Some(1), Some(0));
        for (count, names) in [(2, ""), (2, "main:main"), (2, "side:side"), (3, "main:side:more")] {
            assert!(assign_roles(count, names).is_err(), "{names}");
        }
    }

    #[test]
    fn only_listening_sockets_are_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
        assert!(check_listening(listener).is_ok());
        assert!(check_listening(TcpListener::from(std::os::fd::OwnedFd::from(stream))).is_err());
    }
}
