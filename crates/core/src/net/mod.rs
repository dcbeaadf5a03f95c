//! Which hosts may be dialled.
//!
//! Relay and git URLs come from events that any client can sign. Each URL is checked before a packet is sent: its text
//! ([`OutboundUrl`]), its host name ([`check_host_name`]) and the addresses the name resolves to ([`check_address`]).
//! The dialer in `graspd/net` connects only to the addresses that were checked here.
//!
//! Called by [`fetch`](crate::fetch), by sync and by the dialer. See `docs/protocol.md#outbound-connections`.

mod address;
mod host_name;
mod outbound_url;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

pub use address::{AddressScope, check_address};
pub use host_name::check_host_name;
pub use outbound_url::{OutboundHost, OutboundUrl, UrlPurpose};

use crate::limits;

/// Which addresses may be dialled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressPolicy {
    /// Public names and addresses only.
    PublicOnly,
    /// Any name or address, for tests and intranets. All other checks of a URL still apply.
    Any,
}

impl AddressPolicy {
    /// Checks that an address may be dialled.
    ///
    /// # Errors
    /// [`OutboundError::Address`] if only public addresses may be dialled and this one is not.
    pub fn check(self, address: IpAddr) -> Result<(), OutboundError> {
        match self {
            Self::PublicOnly => check_address(address),
            Self::Any => Ok(()),
        }
    }
}

/// Why a URL, a host name or an address must not be dialled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutboundError {
    /// The URL is longer than [`limits::MAX_URL_BYTES`].
    TooLong,
    /// The URL starts with a dash; a program could parse it as an option.
    LeadingDash,
    /// The URL contains a space, a control character, or a character that URL parsers treat differently.
    InvalidCharacter,
    /// The text is not a URL with a host.
    NotAUrl,
    /// The scheme is not supported for this purpose.
    Scheme,
    /// The URL contains a user name or a password.
    Userinfo,
    /// The URL contains a fragment, which is never sent to a server.
    Fragment,
    /// The URL contains a query, which no repository has.
    Query,
    /// The port belongs to a service that is not HTTP.
    Port(u16),
    /// The host name is invalid: empty or long labels, or characters that a host name does not have.
    HostName,
    /// The host is an address that is not written as four decimal numbers, or a name that could be parsed as an
    /// address.
    NumericHost,
    /// The host name has no dot, so it resolves only in the local network.
    SingleLabel,
    /// The host name is reserved and never resolves to a public host.
    SpecialUse,
    /// The address is not public.
    Address(IpAddr, AddressScope),
}

impl fmt::Display for OutboundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "URL is longer than {} bytes", limits::MAX_URL_BYTES),
            Self::LeadingDash => f.write_str("URL starts with a dash"),
            Self::InvalidCharacter => f.write_str("URL contains an invalid character"),
            Self::NotAUrl => f.write_str("not a URL with a host"),
            Self::Scheme => f.write_str("URL scheme is not supported"),
            Self::Userinfo => f.write_str("URL contains a user name or a password"),
            Self::Fragment => f.write_str("URL contains a fragment"),
            Self::Query => f.write_str("URL contains a query"),
            Self::Port(port) => write!(f, "port {port} is blocked"),
            Self::HostName => f.write_str("invalid host name"),
            Self::NumericHost => f.write_str("IP address in an unusual notation"),
            Self::SingleLabel => f.write_str("host name without a dot"),
            Self::SpecialUse => f.write_str("host name is reserved for special use"),
            Self::Address(address, scope) => write!(f, "{address} is {scope}"),
        }
    }
}
