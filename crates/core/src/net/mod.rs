//! Whom strangers may make us call. Relay and git URLs stand in events that anybody can sign, so each is looked at before
//! a packet leaves: what it says ([`Target`]), whom it names ([`vet_name`]), where that name leads ([`vet_address`]).
//!
//! The dialler keeps the rest of the promise: it connects to the very addresses that were looked at here.

mod address;
mod host_name;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

pub use address::{Scope, vet_address};
pub use host_name::vet_name;
pub use target::{Host, Purpose, Target};

use crate::limits;

/// How far calls may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// To public names and addresses only.
    Global,
    /// Anywhere, for tests and intranets: names and addresses are not looked at. Everything else is.
    Anything,
}

impl Reach {
    /// Whether an address may be called.
    pub fn vet(self, address: IpAddr) -> Result<(), Forbidden> {
        match self {
            Self::Global => vet_address(address),
            Self::Anything => Ok(()),
        }
    }
}

/// Why something must not be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forbidden {
    /// The URL is longer than [`limits::MAX_URL_BYTES`].
    TooLong,
    /// A program could take it for an option.
    Dash,
    /// A space, a control character, or one that URL readers disagree about.
    Character,
    /// It is no URL with a host.
    NotAUrl,
    /// A protocol that is not spoken for this purpose.
    Scheme,
    /// A user name or a password.
    Userinfo,
    /// A fragment, which no server is ever sent.
    Fragment,
    /// A query, which no repository has.
    Query,
    /// A port where something else than HTTP listens.
    Port(u16),
    /// A host name that is none: empty or long labels, other characters than a name has.
    Name,
    /// An address that is not written as four numbers, or a name that could be read as an address.
    Numeric,
    /// A name without a dot: only the local network knows it.
    SingleLabel,
    /// A name that never leads into the public network.
    SpecialUse,
    /// An address that is not a public one.
    Address(IpAddr, Scope),
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "the URL is longer than {} bytes", limits::MAX_URL_BYTES),
            Self::Dash => f.write_str("the URL begins like an option"),
            Self::Character => f.write_str("the URL has a character that does not belong there"),
            Self::NotAUrl => f.write_str("not a URL with a host"),
            Self::Scheme => f.write_str("the URL is of a protocol that is not called"),
            Self::Userinfo => f.write_str("the URL carries a user name or a password"),
            Self::Fragment => f.write_str("the URL carries a fragment"),
            Self::Query => f.write_str("the URL carries a query"),
            Self::Port(port) => write!(f, "port {port} is not called"),
            Self::Name => f.write_str("not a host name"),
            Self::Numeric => f.write_str("an address in an unusual form"),
            Self::SingleLabel => f.write_str("a host name without a dot"),
            Self::SpecialUse => f.write_str("a host name of special use"),
            Self::Address(address, scope) => write!(f, "{address} is {scope}"),
        }
    }
}
