//! Which addresses belong to the public network.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Forbidden;

/// What an address is for, if it is not a public one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// No address, or "this network" (0.0.0.0/8, ::).
    Unspecified,
    /// This machine.
    Loopback,
    /// A private network.
    Private,
    /// A provider's network behind address translation (100.64.0.0/10).
    Shared,
    /// This link.
    LinkLocal,
    /// Many machines at once, or all of them.
    Multicast,
    /// Examples in texts.
    Documentation,
    /// Measurements in laboratories.
    Benchmarking,
    /// Set aside: for protocols, or for later.
    Reserved,
    /// A way to carry one address inside another that leads nowhere, or nobody knows where.
    Tunnel,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "no address",
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::Shared => "a provider's shared address",
            Self::LinkLocal => "a link-local address",
            Self::Multicast => "a multicast or broadcast address",
            Self::Documentation => "an address for documentation",
            Self::Benchmarking => "an address for benchmarks",
            Self::Reserved => "a reserved address",
            Self::Tunnel => "a tunnel's address",
        })
    }
}

/// Whether an address belongs to the public network. An address that carries another is judged by the one that it
/// carries: a server behind NAT64 reaches the whole of IPv4 that way.
pub fn vet_address(address: IpAddr) -> Result<(), Forbidden> {
    let scope = match address {
        IpAddr::V4(address) => scope_4(address),
        IpAddr::V6(address) => scope_6(address),
    };
    scope.map_or(Ok(()), |scope| Err(Forbidden::Address(address, scope)))
}

/// The special-purpose registry of IPv4. Its few parts that are globally reachable are anycast services of the network
/// itself; no relay lives there.
fn scope_4(address: Ipv4Addr) -> Option<Scope> {
    Some(match address.octets() {
        [0, ..] => Scope::Unspecified,
        [127, ..] => Scope::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Scope::Private,
        [100, 64..=127, ..] => Scope::Shared,
        [169, 254, ..] => Scope::LinkLocal,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Scope::Documentation,
        [198, 18..=19, ..] => Scope::Benchmarking,
        // The relays of 6to4, which are no more.
        [192, 88, 99, _] => Scope::Tunnel,
        [224..=239, ..] | [255, 255, 255, 255] => Scope::Multicast,
        [192, 0, 0, _] | [240..=255, ..] => Scope::Reserved,
        _ => return None,
    })
}

/// Of IPv6 only 2000::/3 is given out to the public, and not all of that.
fn scope_6(address: Ipv6Addr) -> Option<Scope> {
    let [first, second, third, ..] = address.segments();
    let low = || {
        let [.., a, b, c, d] = address.octets();
        Ipv4Addr::new(a, b, c, d)
    };
    match (first, second, third) {
        (0, 0, _) if address.is_unspecified() => Some(Scope::Unspecified),
        (0, 0, _) if address.is_loopback() => Some(Scope::Loopback),
        // IPv4-mapped: the system dials the IPv4 address.
        (0, 0, 0) if address.to_ipv4_mapped().is_some() => scope_4(low()),
        // IPv4-compatible (::/96), IPv4-translated (::ffff:0:0:0/96) and their neighbours, long given up.
        (0, ..) => Some(Scope::Tunnel),
        // NAT64: the well-known prefix carries a public IPv4 address (RFC 6052); its neighbour is for local use.
        (0x64, 0xff9b, 0) if address.segments()[3..6] == [0, 0, 0] => scope_4(low()),
        (0x64, ..) => Some(Scope::Tunnel),
        // 6to4: the gateway's IPv4 address stands in the middle.
        (0x2002, ..) => {
            let ([a, b], [c, d]) = (second.to_be_bytes(), third.to_be_bytes());
            scope_4(Ipv4Addr::new(a, b, c, d))
        }
        (0x2001, 0, _) => Some(Scope::Tunnel), // Teredo
        (0x2001, 2, 0) => Some(Scope::Benchmarking),
        (0x2001, 0xdb8, _) | (0x3fff, 0..=0xfff, _) => Some(Scope::Documentation),
        // 2001::/23 is for protocols: ORCHID and ORCHIDv2 (hashes, not places), anycast services of the network.
        (0x2001, 1..=0x1ff, _) => Some(Scope::Reserved),
        (0x2000..=0x3fff, ..) => None,
        (0xfc00..=0xfdff, ..) => Some(Scope::Private),
        (0xfe80..=0xfebf, ..) => Some(Scope::LinkLocal),
        (0xfec0..=0xfeff, ..) => Some(Scope::Private), // site-local, given up
        (0xff00..=0xffff, ..) => Some(Scope::Multicast),
        // Discard (100::/64), segment routing (5f00::/16), and what was never given out.
        _ => Some(Scope::Reserved),
    }
}
