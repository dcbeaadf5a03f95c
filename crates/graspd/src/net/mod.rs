//! What calls others: one guarded way out for relay websockets, NIP-11 documents and git.
//!
//! A [`Target`](grasp_core::net::OutboundUrl) is a URL that may be called; a [`dialer::Route`] is one whose addresses have
//! been looked up and looked at. Only a route can be connected to, and only to its own addresses, so that a name which
//! changes between the look and the call gains nothing. Nothing is read from the environment: no proxy, no credentials.

pub(crate) mod dialer;
pub(crate) mod http_client;
pub(crate) mod resolver;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

/// What we call ourselves when we call others.
pub(crate) const USER_AGENT: &str = concat!("graspd/", env!("CARGO_PKG_VERSION"));
