//! Outgoing connections: relay websockets, NIP-11 documents and git, all through one guarded dialer.
//!
//! An [`OutboundUrl`](grasp_core::net::OutboundUrl) is a URL that may be used; a [`dialer::Route`] is one whose
//! addresses have been resolved and checked. Only a route can be connected to, and only at its own addresses, so a DNS
//! name that changes between the check and the connection has no effect. Nothing is read from the environment: no
//! proxy, no credentials.
//!
//! Called by `sync`, `fetch` and `cli` on their own tasks. May use no other folder of graspd.

pub(crate) mod contact;
pub(crate) mod dialer;
pub(crate) mod http_client;
pub(crate) mod own_addresses;
pub(crate) mod resolver;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod tls_error;

/// `User-Agent` of outgoing requests.
pub(crate) const USER_AGENT: &str = concat!("graspd/", env!("CARGO_PKG_VERSION"));
