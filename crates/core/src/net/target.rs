//! A URL that may be called.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Url;

use super::host_name::vet_form;
use super::{Forbidden, Reach, vet_name};
use crate::limits;

/// Ports where a listener takes lines for commands, or where an unexpected caller is taken for an attacker: what follows
/// the host in a URL is a stranger's, and would be such a line. It is the list of browsers, shortened to what is in use,
/// and two stores that browsers forgot. Sorted.
const CLOSED_PORTS: [u16; 46] = [
    7, 9, 13, 19, 20, 21, 22, 23, 25, 37, 43, 53, 69, 79, 110, 111, 113, 119, 123, 135, 137, 139, 143, 161, 179, 389,
    445, 465, 512, 513, 514, 515, 554, 587, 636, 993, 995, 2049, 5060, 6000, 6379, 6665, 6667, 6697, 10080, 11211,
];

/// What a call is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A relay: `ws` and `wss`.
    Relay,
    /// A git server: `http` and `https`.
    Git,
}

/// Who is called.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Host {
    /// A name of lower-case ASCII without a dot at the end. Its addresses are still to be looked at.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// A URL that was looked at and may be called, in canonical form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    scheme: &'static str,
    host: Host,
    port: u16,
    path: String,
}

impl Target {
    /// Looks at a URL.
    pub fn parse(text: &str, purpose: Purpose, reach: Reach) -> Result<Self, Forbidden> {
        if text.len() > limits::MAX_URL_BYTES {
            return Err(Forbidden::TooLong);
        }
        if text.starts_with('-') {
            return Err(Forbidden::Dash);
        }
        // The first few are dropped or taken for a slash by some readers and kept by others.
        if text.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, '\\' | '"' | '<' | '>' | '`')) {
            return Err(Forbidden::Character);
        }
        let url = Url::parse(text).map_err(|_| Forbidden::NotAUrl)?;
        let scheme = match (purpose, url.scheme()) {
            (Purpose::Relay, "ws") => "ws",
            (Purpose::Relay, "wss") => "wss",
            (Purpose::Git, "http") => "http",
            (Purpose::Git, "https") => "https",
            _ => return Err(Forbidden::Scheme),
        };
        let written = authority(text).ok_or(Forbidden::NotAUrl)?;
        if written.contains('@') || !url.username().is_empty() || url.password().is_some() {
            return Err(Forbidden::Userinfo);
        }
        if text.contains('#') {
            return Err(Forbidden::Fragment);
        }
        if purpose == Purpose::Git && text.contains('?') {
            return Err(Forbidden::Query);
        }
        let port = url.port_or_known_default().ok_or(Forbidden::NotAUrl)?;
        if port == 0 || CLOSED_PORTS.binary_search(&port).is_ok() {
            return Err(Forbidden::Port(port));
        }
        let host = host(&url, written, reach)?;
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let target = Self { scheme, host, port, path };
        // Percent signs and punycode make it longer.
        if target.to_string().len() > limits::MAX_URL_BYTES {
            return Err(Forbidden::TooLong);
        }
        Ok(target)
    }

    /// Who is called.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the call is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self.scheme, "wss" | "https")
    }

    /// The path, and the query if there is one: what a request asks for.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The host, and the port if it is not the usual one: what a `Host` header says.
    #[must_use]
    pub fn authority(&self) -> String {
        let usual = if self.is_tls() { 443 } else { 80 };
        if self.port == usual { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.path)
    }
}

/// What stands between `://` and the path, as it is written.
fn authority(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    rest.split(['/', '?', '#']).next().filter(|authority| !authority.is_empty())
}

/// The host, and whether it may be called. `written` is what the URL reader made it from: an address in a disguise is
/// refused wherever it leads, because another reader may unmask it otherwise.
fn host(url: &Url, written: &str, reach: Reach) -> Result<Host, Forbidden> {
    // Without the port, which is not part of the disguise.
    let written = match written.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => written,
    };
    if written.contains('%') {
        return Err(Forbidden::Name);
    }
    let address: IpAddr = match url.host().ok_or(Forbidden::NotAUrl)? {
        url::Host::Ipv4(address) => {
            written.parse::<Ipv4Addr>().map_err(|_| Forbidden::Numeric)?;
            address.into()
        }
        url::Host::Ipv6(address) => {
            let inside = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            inside.and_then(|inside| inside.parse::<Ipv6Addr>().ok()).ok_or(Forbidden::Numeric)?;
            address.into()
        }
        url::Host::Domain(name) => {
            let plain = name.strip_suffix('.').unwrap_or(name);
            match reach {
                Reach::Global => vet_name(name)?,
                Reach::Anything => vet_form(plain)?,
            }
            return Ok(Host::Name(plain.to_ascii_lowercase()));
        }
    };
    reach.vet(address)?;
    Ok(Host::Address(address))
}
