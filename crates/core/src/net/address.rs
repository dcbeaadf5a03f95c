//! Classification of IP addresses as public or not.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::OutboundError;

/// What an address that is not public is reserved for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressScope {
    /// The unspecified address, or "this network" (0.0.0.0/8, ::).
    Unspecified,
    /// The local machine.
    Loopback,
    /// A private network.
    Private,
    /// A provider's network behind address translation (100.64.0.0/10).
    Shared,
    /// The local link.
    LinkLocal,
    /// A group of machines, or all of them.
    Multicast,
    /// Documentation.
    Documentation,
    /// Benchmarks.
    Benchmarking,
    /// Reserved for protocols or future use.
    Reserved,
    /// An address that carries another address and leads nowhere, or to an unknown place.
    Tunnel,
}

impl fmt::Display for AddressScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "an unspecified address",
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::Shared => "a shared address (100.64.0.0/10)",
            Self::LinkLocal => "a link-local address",
            Self::Multicast => "a multicast or broadcast address",
            Self::Documentation => "a documentation address",
            Self::Benchmarking => "a benchmarking address",
            Self::Reserved => "a reserved address",
            Self::Tunnel => "a tunnel address",
        })
    }
}

/// Checks that an address is public. An address that contains another one is checked by that one, because a server
/// behind NAT64 reaches all of IPv4 that way.
///
/// # Errors
/// [`OutboundError::Address`] if the address is not public.
pub fn check_address(address: IpAddr) -> Result<(), OutboundError> {
    let scope = match address {
        IpAddr::V4(address) => ipv4_scope(address),
        IpAddr::V6(address) => ipv6_scope(address),
    };
    scope.map_or(Ok(()), |scope| Err(OutboundError::Address(address, scope)))
}

/// Returns the scope of an address of the IPv4 special-purpose registry. The few globally reachable ranges in it are
/// anycast services of the network itself, where no relay runs.
fn ipv4_scope(address: Ipv4Addr) -> Option<AddressScope> {
    Some(match address.octets() {
        [0, ..] => AddressScope::Unspecified,
        [127, ..] => AddressScope::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressScope::Private,
        [100, 64..=127, ..] => AddressScope::Shared,
        [169, 254, ..] => AddressScope::LinkLocal,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressScope::Documentation,
        [198, 18..=19, ..] => AddressScope::Benchmarking,
        // The discontinued 6to4 relays.
        [192, 88, 99, _] => AddressScope::Tunnel,
        [224..=239, ..] | [255, 255, 255, 255] => AddressScope::Multicast,
        [192, 0, 0, _] | [240..=255, ..] => AddressScope::Reserved,
        _ => return None,
    })
}

/// Returns the scope of a special-purpose IPv6 address. Only 2000::/3 is assigned to the public, and not all of it.
fn ipv6_scope(address: Ipv6Addr) -> Option<AddressScope> {
    let [first, second, third, ..] = address.segments();
    let low = || {
        let [.., a, b, c, d] = address.octets();
        Ipv4Addr::new(a, b, c, d)
    };
    match (first, second, third) {
        (0, 0, _) if address.is_unspecified() => Some(AddressScope::Unspecified),
        (0, 0, _) if address.is_loopback() => Some(AddressScope::Loopback),
        // IPv4-mapped: the system dials the IPv4 address.
        (0, 0, 0) if address.to_ipv4_mapped().is_some() => ipv4_scope(low()),
        // IPv4-compatible (::/96), IPv4-translated (::ffff:0:0:0/96) and adjacent ranges, all discontinued.
        (0, ..) => Some(AddressScope::Tunnel),
        // NAT64: the well-known prefix carries a public IPv4 address (RFC 6052); the adjacent range is for local use.
        (0x64, 0xff9b, 0) if address.segments()[3..6] == [0, 0, 0] => ipv4_scope(low()),
        (0x64, ..) => Some(AddressScope::Tunnel),
        // 6to4: the IPv4 address of the gateway is in the middle.
        (0x2002, ..) => {
            let ([a, b], [c, d]) = (second.to_be_bytes(), third.to_be_bytes());
            ipv4_scope(Ipv4Addr::new(a, b, c, d))
        }
        (0x2001, 0, _) => Some(AddressScope::Tunnel), // Teredo
        (0x2001, 2, 0) => Some(AddressScope::Benchmarking),
        (0x2001, 0xdb8, _) | (0x3fff, 0..=0xfff, _) => Some(AddressScope::Documentation),
        // 2001::/23 is for protocols: ORCHID and ORCHIDv2 (hashes, not locations), anycast services of the network.
        (0x2001, 1..=0x1ff, _) => Some(AddressScope::Reserved),
        (0x2000..=0x3fff, ..) => None,
        (0xfc00..=0xfdff, ..) => Some(AddressScope::Private),
        (0xfe80..=0xfebf, ..) => Some(AddressScope::LinkLocal),
        (0xfec0..=0xfeff, ..) => Some(AddressScope::Private), // site-local, given up
        (0xff00..=0xffff, ..) => Some(AddressScope::Multicast),
        // Discard (100::/64), segment routing (5f00::/16), and ranges that were never assigned.
        _ => Some(AddressScope::Reserved),
    }
}
