//! The addresses of this machine. Events must not make the server dial them: services on other ports of the machine may
//! trust local connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use grasp_core::limits;
use grasp_core::net::OutboundHost;
use tokio::time::{Instant, timeout};

use super::resolver::Resolver;

/// The addresses of the network interfaces, and those of the service's domain. The domain leads to this machine also if
/// its public address belongs to a router or to the host of a container.
pub(crate) struct OwnAddresses {
    domain: OutboundHost,
    /// When the domain was resolved, and its addresses then.
    cached: Mutex<(Option<Instant>, Vec<IpAddr>)>,
}

impl OwnAddresses {
    /// Returns the addresses of this machine, which serves this domain.
    pub(crate) fn new(domain: OutboundHost) -> Self {
        Self { domain, cached: Mutex::default() }
    }

    /// Whether an address belongs to this machine.
    pub(super) async fn contains(&self, address: IpAddr, resolver: &dyn Resolver) -> bool {
        let address = address.to_canonical();
        is_local(address) || self.domain_addresses(resolver).await.contains(&address)
    }

    /// Returns the addresses of the domain. If it cannot be resolved, those that it had before.
    async fn domain_addresses(&self, resolver: &dyn Resolver) -> Vec<IpAddr> {
        let name = match &self.domain {
            OutboundHost::Address(address) => return vec![address.to_canonical()],
            OutboundHost::Name(name) => format!("{name}."),
        };
        let (resolved_at, addresses) = self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if resolved_at.is_some_and(|at| at.elapsed() < Duration::from_secs(limits::HOST_ADDRESS_TTL_SECS)) {
            return addresses;
        }
        let time_limit = Duration::from_secs(limits::OWN_DOMAIN_LOOKUP_SECS);
        let Ok(Ok(found)) = timeout(time_limit, resolver.resolve(&name)).await else { return addresses };
        let found: Vec<IpAddr> = found.iter().map(IpAddr::to_canonical).collect();
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = (Some(Instant::now()), found.clone());
        found
    }
}

/// Whether a network interface has this address. The system would then use it as the source of packets to it; a UDP
/// socket shows this without sending one.
fn is_local(address: IpAddr) -> bool {
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
        own.cached.lock().expect("the lock is not poisoned").0 = None;
        assert!(own.contains(address("198.51.100.2"), &resolver).await, "the domain has moved");
        assert!(!own.contains(address("198.51.100.1"), &resolver).await);

        let own = OwnAddresses::new(OutboundHost::Name("no-such.tld".to_owned()));
        assert!(!own.contains(address("198.51.100.1"), &FakeResolver::default()).await);
    }
}
