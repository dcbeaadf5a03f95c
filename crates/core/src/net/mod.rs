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
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OutboundError {
    /// The URL is longer than [`limits::MAX_URL_BYTES`].
    #[error("URL is longer than {} bytes", limits::MAX_URL_BYTES)]
    TooLong,
    /// The URL starts with a dash; a program could parse it as an option.
    #[error("URL starts with a dash")]
    LeadingDash,
    /// The URL contains a space, a control character, or a character that URL parsers treat differently.
    #[error("URL contains an invalid character")]
    InvalidCharacter,
    /// The text is not a URL with a host.
    #[error("not a URL with a host")]
    NotAUrl,
    /// The scheme is not supported for this purpose.
    #[error("URL scheme is not supported")]
    Scheme,
    /// The URL contains a user name or a password.
    #[error("URL contains a user name or a password")]
    Userinfo,
    /// The URL contains a fragment, which is never sent to a server.
    #[error("URL contains a fragment")]
    Fragment,
    /// The URL contains a query, which no repository has.
    #[error("URL contains a query")]
    Query,
    /// The port belongs to a service that is not HTTP.
    #[error("port {0} is blocked")]
    Port(u16),
    /// The host name is invalid: empty or long labels, or characters that a host name does not have.
    #[error("invalid host name")]
    HostName,
    /// The host is an address that is not written as four decimal numbers, or a name that could be parsed as an
    /// address.
    #[error("IP address in an unusual notation")]
    NumericHost,
    /// The host name has no dot, so it resolves only in the local network.
    #[error("host name without a dot")]
    SingleLabel,
    /// The host name is reserved and never resolves to a public host.
    #[error("host name is reserved for special use")]
    SpecialUse,
    /// The address is not public.
    #[error("{0} is {1}")]
    Address(IpAddr, AddressScope),
    /// The address is public, but it belongs to this machine.
    #[error("{0} is an address of this machine")]
    OwnAddress(IpAddr),
}
