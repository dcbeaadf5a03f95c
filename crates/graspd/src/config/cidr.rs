//! IP networks.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// An IP network in CIDR notation. Addresses of the form `::ffff:a.b.c.d` are IPv4 addresses that arrived on an IPv6
/// socket, and are treated as IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cidr {
    network: IpAddr,
    prefix: u32,
}

impl Cidr {
    /// Returns whether the address belongs to this network.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.network.is_ipv4() && mask(address, self.prefix) == self.network
    }

    /// Returns whether every address of the family belongs to this network.
    pub(crate) fn is_all_addresses(&self) -> bool {
        self.prefix == 0
    }
}

/// Clears all bits of an address after the prefix.
fn mask(address: IpAddr, prefix: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let bits = u32::MAX.checked_shl(32 - prefix.min(32)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & bits).into())
        }
        IpAddr::V6(v6) => {
            let bits = u128::MAX.checked_shl(128 - prefix.min(128)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & bits))
        }
    }
}

impl FromStr for Cidr {
    type Err = &'static str;

    /// Accepts a network with host bits, which are cleared, and an address, which becomes a network of one address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| "is not an IP network such as 10.0.0.0/8 or fd00::/8")?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match length {
            None => bits,
            Some(length) if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) => {
                length.parse().ok().filter(|prefix| *prefix <= bits).ok_or(match bits {
                    32 => "has a prefix longer than the 32 bits of IPv4",
                    _ => "has a prefix longer than the 128 bits of IPv6",
                })?
            }
            Some(_) => return Err("has no number after the `/`"),
        };
        let network = mask(address, prefix);
        Ok(match network.to_canonical() {
            IpAddr::V4(v4) if network.is_ipv6() && prefix >= 96 => {
                Cidr { network: IpAddr::V4(v4), prefix: prefix - 96 }
            }
            _ => Cidr { network, prefix },
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_addresses() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.1.2.3/8", "10.9.9.9", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("192.0.2.0/31", "192.0.2.1", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.0/8", "::ffff:11.1.2.3", false),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3", true),
            ("::ffff:192.0.2.7", "192.0.2.7", true),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("2001:db8::/33", "2001:db8:8000::", false),
            ("::1", "::1", true),
            ("::1/128", "::2", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "10.0.0.1", false),
        ] {
            let cidr: Cidr = network.parse().expect(network);
            assert_eq!(cidr.contains(address.parse().expect(address)), expected, "{network} {address}");
        }
    }

    #[test]
    fn networks_are_displayed_in_canonical_form() {
        for (text, expected) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("2001:DB8::1/32", "2001:db8::/32"),
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ] {
            assert_eq!(text.parse::<Cidr>().expect(text).to_string(), expected);
        }
    }

    #[test]
    fn invalid_networks_are_errors() {
        for text in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "host",
            "10.0.0.0/99999999999",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
