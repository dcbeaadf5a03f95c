//! The addresses of this machine. Events must not make the server dial them: services on other ports of the machine may
//! trust local connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::limits;
use grasp_core::net::OutboundHost;
use tokio::time::{Instant, timeout};

use super::resolver::Resolver;

/// The addresses of the network interfaces, and those of the service's domain. The domain leads to this machine also if
/// its public address belongs to a router or to the host of a container.
pub(crate) struct OwnAddresses {
    domain: OutboundHost,
    cached: Mutex<DomainAddresses>,
}

/// The last known addresses of the domain.
#[derive(Clone, Default)]
struct DomainAddresses {
    addresses: Vec<IpAddr>,
    /// When they are looked up again.
    valid_until: Option<Instant>,
}

impl OwnAddresses {
    /// Returns the addresses of this machine, which serves this domain.
    pub(crate) fn new(domain: OutboundHost) -> Self {
        Self { domain, cached: Mutex::default() }
    }

    /// Whether an address belongs to this machine.
    pub(super) async fn contains(&self, address: IpAddr, resolver: &dyn Resolver) -> bool {
        let address = embedded_ipv4(address).map_or(address, IpAddr::V4);
        is_local(address) || self.domain_addresses(resolver).await.contains(&address)
    }

    /// Returns the addresses of the domain. If it cannot be resolved, those that it had before.
    async fn domain_addresses(&self, resolver: &dyn Resolver) -> Vec<IpAddr> {
        let name = match &self.domain {
            OutboundHost::Address(address) => return vec![address.to_canonical()],
            OutboundHost::Name(name) => format!("{name}."),
        };
        let DomainAddresses { addresses, valid_until } = self.cached().clone();
        if valid_until.is_some_and(|until| Instant::now() < until) {
            return addresses;
        }
        let found = timeout(Duration::from_secs(limits::OWN_DOMAIN_LOOKUP_SECS), resolver.resolve(&name)).await;
        let (addresses, valid_secs) = match found {
            Ok(Ok(found)) => (found.iter().map(IpAddr::to_canonical).collect(), limits::HOST_ADDRESS_TTL_SECS),
            _ => (addresses, limits::OWN_DOMAIN_RETRY_SECS),
        };
        let valid_until = Some(Instant::now() + Duration::from_secs(valid_secs));
        *self.cached() = DomainAddresses { addresses: addresses.clone(), valid_until };
        addresses
    }

    fn cached(&self) -> MutexGuard<'_, DomainAddresses> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the IPv4 address that a packet to this IPv6 address reaches in the end: IPv4-mapped, NAT64 and 6to4.
fn embedded_ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    match address.octets() {
        [0x00, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] | [0x20, 0x02, a, b, c, d, ..] => {
            Some(Ipv4Addr::new(a, b, c, d))
        }
        _ => address.to_ipv4_mapped(),
    }
}

/// Whether a network interface has this address.
fn is_local(address: IpAddr) -> bool {
    is_own_source(address)
        || matches!(address, IpAddr::V4(address) if std::fs::read_to_string(LOCAL_ROUTES).is_ok_and(|routes| has_local_route(&routes, address)))
}

/// The system's routes for IPv4, with the addresses of all interfaces.
const LOCAL_ROUTES: &str = "/proc/net/fib_trie";

/// Whether the routes contain one for this address that ends on this machine. Needed for the second and further
/// addresses of an interface, which are not the source of packets to them.
fn has_local_route(routes: &str, address: Ipv4Addr) -> bool {
    let leaf = format!("|-- {address}");
    let mut lines = routes.lines().map(str::trim);
    while lines.any(|line| line == leaf) {
        let is_local = lines.clone().take_while(|line| line.starts_with('/')).any(|line| line == "/32 host LOCAL");
        if is_local {
            return true;
        }
    }
    false
}

/// Whether the system would use this address as the source of packets to it. A UDP socket shows this without sending
/// one.
fn is_own_source(address: IpAddr) -> bool {
    let unspecified = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Any port: nothing is sent.
    let discard_port = 9;
    let source = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect((address, discard_port))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::FakeResolver;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("valid address")
    }

    #[tokio::test]
    async fn addresses_of_interfaces_are_own() {
        let own = OwnAddresses::new(OutboundHost::Address(address("198.51.100.7")));
        let resolver = FakeResolver::default();
        for (text, is_own) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("198.51.100.7", true),
            ("64:ff9b::198.51.100.7", true),
            ("2002:c633:6407::1", true),
            ("64:ff9b::198.51.100.8", false),
            ("::ffff:198.51.100.7", true),
            // For documentation, so no interface has them.
            ("198.51.100.8", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(own.contains(address(text), &resolver).await, is_own, "{text}");
        }
        assert_eq!(resolver.lookups(), 0);
    }

    #[tokio::test]
    async fn addresses_of_the_domain_are_own() {
        let resolver = FakeResolver::new(&[&["198.51.100.1", "2001:db8::1"], &["198.51.100.2"]]);
        let own = OwnAddresses::new(OutboundHost::Name("git.tld".to_owned()));
        assert!(own.contains(address("198.51.100.1"), &resolver).await);
        assert!(own.contains(address("2001:db8::1"), &resolver).await);
        assert!(!own.contains(address("198.51.100.2"), &resolver).await);
        assert_eq!(resolver.lookups(), 1, "the addresses are cached");
        // As if the cached addresses had expired.
        own.cached().valid_until = None;
        assert!(own.contains(address("198.51.100.2"), &resolver).await, "the domain has moved");
        assert!(!own.contains(address("198.51.100.1"), &resolver).await);

        let (own, resolver) =
            (OwnAddresses::new(OutboundHost::Name("no-such.tld".to_owned())), FakeResolver::default());
        for _ in 0..2 {
            assert!(!own.contains(address("198.51.100.1"), &resolver).await);
        }
        assert_eq!(resolver.lookups(), 1, "a failed lookup is not repeated at once");
    }

    #[test]
    fn all_addresses_of_an_interface_have_local_routes() {
        // An interface with 203.0.113.5/24 and, as its second address, 203.0.113.6/24.
        let routes = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 203.0.113.0
        /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 203.0.113.4/30 2 0 2
        |-- 203.0.113.5
           /32 host LOCAL
        |-- 203.0.113.6
           /32 host LOCAL
     |-- 203.0.113.255
        /32 link BROADCAST
";
        for (text, is_local) in
            [("203.0.113.5", true), ("203.0.113.6", true), ("203.0.113.255", false), ("203.0.113.0", false)]
        {
            assert_eq!(has_local_route(routes, text.parse().expect("valid address")), is_local, "{text}");
        }
    }
}
