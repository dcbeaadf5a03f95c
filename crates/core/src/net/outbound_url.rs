//! A checked URL.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Url;

use super::host_name::check_host_name_syntax;
use super::{AddressPolicy, OutboundError, check_host_name};
use crate::limits;

/// Ports of services that interpret single lines as commands, or that treat an unexpected client as an attacker. The
/// part of a URL after the host is chosen by an untrusted author and would be such a line. This is the list of the
/// Fetch standard that browsers use, reduced to services in use, plus two databases that it lacks. Sorted.
const BLOCKED_PORTS: [u16; 46] = [
    7, 9, 13, 19, 20, 21, 22, 23, 25, 37, 43, 53, 69, 79, 110, 111, 113, 119, 123, 135, 137, 139, 143, 161, 179, 389,
    445, 465, 512, 513, 514, 515, 554, 587, 636, 993, 995, 2049, 5060, 6000, 6379, 6665, 6667, 6697, 10080, 11211,
];

/// What a URL is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UrlPurpose {
    /// A relay: `ws` and `wss`.
    Relay,
    /// A git server: `http` and `https`.
    Git,
}

/// The host of a URL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum OutboundHost {
    /// A name in lower-case ASCII without a trailing dot. Its addresses must still be checked.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl fmt::Display for OutboundHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// A URL that was checked and may be dialled, in canonical form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboundUrl {
    scheme: &'static str,
    host: OutboundHost,
    port: u16,
    path: String,
}

impl OutboundUrl {
    /// Parses and checks a URL.
    ///
    /// # Errors
    /// Why the URL must not be dialled.
    pub fn parse(text: &str, purpose: UrlPurpose, policy: AddressPolicy) -> Result<Self, OutboundError> {
        if text.len() > limits::MAX_URL_BYTES {
            return Err(OutboundError::TooLong);
        }
        if text.starts_with('-') {
            return Err(OutboundError::LeadingDash);
        }
        // Some parsers drop these characters or read them as a slash, others keep them.
        if text.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, '\\' | '"' | '<' | '>' | '`')) {
            return Err(OutboundError::InvalidCharacter);
        }
        let url = Url::parse(text).map_err(|_| OutboundError::NotAUrl)?;
        let scheme = match (purpose, url.scheme()) {
            (UrlPurpose::Relay, "ws") => "ws",
            (UrlPurpose::Relay, "wss") => "wss",
            (UrlPurpose::Git, "http") => "http",
            (UrlPurpose::Git, "https") => "https",
            _ => return Err(OutboundError::Scheme),
        };
        let written = written_authority(text).ok_or(OutboundError::NotAUrl)?;
        if written.contains('@') || !url.username().is_empty() || url.password().is_some() {
            return Err(OutboundError::Userinfo);
        }
        if text.contains('#') {
            return Err(OutboundError::Fragment);
        }
        if purpose == UrlPurpose::Git && text.contains('?') {
            return Err(OutboundError::Query);
        }
        let port = url.port_or_known_default().ok_or(OutboundError::NotAUrl)?;
        if port == 0 || BLOCKED_PORTS.binary_search(&port).is_ok() {
            return Err(OutboundError::Port(port));
        }
        let host = parse_host(&url, written, policy)?;
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let target = Self { scheme, host, port, path };
        // Percent-encoding and punycode make it longer.
        if target.to_string().len() > limits::MAX_URL_BYTES {
            return Err(OutboundError::TooLong);
        }
        Ok(target)
    }

    /// Returns the host.
    #[must_use]
    pub fn host(&self) -> &OutboundHost {
        &self.host
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether the connection is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self.scheme, "wss" | "https")
    }

    /// Returns the path and the query, if there is one: the request target.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the host, and the port if it is not the default: the value of a `Host` header.
    #[must_use]
    pub fn authority(&self) -> String {
        let default = if self.is_tls() { 443 } else { 80 };
        if self.port == default { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }
}

impl fmt::Display for OutboundUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.path)
    }
}

/// Returns the text between `://` and the path.
fn written_authority(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    rest.split(['/', '?', '#']).next().filter(|authority| !authority.is_empty())
}

/// Parses the host and checks that it may be dialled. `written` is the authority as it is written in the URL: an
/// address in an unusual notation is rejected wherever it leads, because another parser may read it differently.
fn parse_host(url: &Url, written: &str, policy: AddressPolicy) -> Result<OutboundHost, OutboundError> {
    // The port is not part of the notation.
    let written = match written.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => written,
    };
    if written.contains('%') {
        return Err(OutboundError::HostName);
    }
    let address: IpAddr = match url.host().ok_or(OutboundError::NotAUrl)? {
        url::Host::Ipv4(address) => {
            written.parse::<Ipv4Addr>().map_err(|_| OutboundError::NumericHost)?;
            address.into()
        }
        url::Host::Ipv6(address) => {
            let inside = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            inside.and_then(|inside| inside.parse::<Ipv6Addr>().ok()).ok_or(OutboundError::NumericHost)?;
            address.into()
        }
        url::Host::Domain(name) => {
            let plain = name.strip_suffix('.').unwrap_or(name);
            match policy {
                AddressPolicy::PublicOnly => check_host_name(name)?,
                AddressPolicy::Any => check_host_name_syntax(plain)?,
            }
            return Ok(OutboundHost::Name(plain.to_ascii_lowercase()));
        }
    };
    policy.check(address)?;
    Ok(OutboundHost::Address(address))
}
