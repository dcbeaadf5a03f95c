//! Listening sockets that somebody else has opened for us (socket activation, as systemd does it): whoever connects while
//! one server ends and the next one starts waits in the system's queue instead of being turned away.

use std::io;
use std::net::TcpListener;

use anyhow::{Context, Result, bail};
use listenfd::ListenFd;

/// The sockets that were handed over; for what was not, the server listens by itself.
#[derive(Default, Debug)]
pub(crate) struct Inherited {
    /// For everybody.
    pub(crate) main: Option<TcpListener>,
    /// For those who watch over the service.
    pub(crate) side: Option<TcpListener>,
}

/// Takes what was handed over. Call it before there are threads: it also takes the words about it out of the environment,
/// so that no child believes them.
pub(crate) fn take() -> Result<Inherited> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut given = ListenFd::from_env();
    let Roles { main, side } = roles(given.len(), &names)?;
    let mut listener = |role: &str, which: Option<usize>| {
        let Some(which) = which else { return Ok(None) };
        let taken = given.take_tcp_listener(which).and_then(|taken| taken.map(check).transpose());
        taken.with_context(|| format!("the socket that was handed over as `{role}` cannot be used"))
    };
    Ok(Inherited { main: listener("main", main)?, side: listener("side", side)? })
}

/// Which socket is for whom, by its place.
#[derive(PartialEq, Eq, Debug)]
struct Roles {
    main: Option<usize>,
    side: Option<usize>,
}

/// The one named `side` is for those who watch; the other one, whatever its name, is for everybody.
fn roles(count: usize, names: &str) -> Result<Roles> {
    let mut names = names.split(':');
    let mut roles = Roles { main: None, side: None };
    for place in 0..count {
        let name = names.next().unwrap_or_default();
        let role = if name == "side" { &mut roles.side } else { &mut roles.main };
        if role.replace(place).is_some() {
            bail!(
                "{count} sockets were handed over, and two of them for the same purpose: one may be named `main` and \
                 one `side` (FileDescriptorName=)"
            );
        }
    }
    Ok(roles)
}

/// A socket that listens, ready for the event loop.
fn check(listener: TcpListener) -> io::Result<TcpListener> {
    if !rustix::net::sockopt::socket_acceptconn(&listener)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen (Accept=no is needed)"));
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_roles_by_name() {
        let is = |count, names, main, side| {
            assert_eq!(roles(count, names).expect("roles"), Roles { main, side }, "{names}");
        };
        is(0, "", None, None);
        is(1, "", Some(0), None);
        is(1, "graspd.socket", Some(0), None);
        is(1, "side", None, Some(0));
        is(2, "main:side", Some(0), Some(1));
        is(2, "side", Some(1), Some(0));
        for (count, names) in [(2, ""), (2, "main:main"), (2, "side:side"), (3, "main:side:more")] {
            assert!(roles(count, names).is_err(), "{names}");
        }
    }

    #[test]
    fn only_what_listens_is_a_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
        assert!(check(listener).is_ok());
        assert!(check(TcpListener::from(std::os::fd::OwnedFd::from(stream))).is_err());
    }
}
