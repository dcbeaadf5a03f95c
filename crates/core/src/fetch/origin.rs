//! The origin of a git server.

use std::fmt;

use crate::net::{OutboundHost, OutboundUrl};

/// Scheme, host and port of a git server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    tls: bool,
    host: OutboundHost,
    port: u16,
}

impl Origin {
    /// Creates the origin of a URL.
    #[must_use]
    pub fn from_url(target: &OutboundUrl) -> Self {
        Self { tls: target.is_tls(), host: target.host().clone(), port: target.port() }
    }

    /// Returns the host.
    #[must_use]
    pub fn host(&self) -> &OutboundHost {
        &self.host
    }

    /// Returns the host, and the port if it is not the default. Limits apply per authority.
    #[must_use]
    pub fn authority(&self) -> String {
        let default = if self.tls { 443 } else { 80 };
        if self.port == default { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}
