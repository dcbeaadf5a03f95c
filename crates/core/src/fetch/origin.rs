//! A git server, as its URLs name it.

use std::fmt;

use crate::net::{Host, Target};

/// Scheme, host and port of a git server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    tls: bool,
    host: Host,
    port: u16,
}

impl Origin {
    /// The server that a URL leads to.
    #[must_use]
    pub fn of(target: &Target) -> Self {
        Self { tls: target.is_tls(), host: target.host().clone(), port: target.port() }
    }

    /// Who it is.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The host, and the port if it is not the usual one: whom limits are for.
    #[must_use]
    pub fn authority(&self) -> String {
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}
