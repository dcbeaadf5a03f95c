//! The dialer: resolves and checks the addresses of a URL, and connects to them.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use grasp_core::limits;
use grasp_core::net::{AddressPolicy, OutboundError, OutboundHost, OutboundUrl};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, rustls};

use super::contact::NetworkContact;
use super::own_addresses::OwnAddresses;
use super::resolver::{Resolver, SystemResolver};
use super::stream::OutboundStream;
use super::tls_error::tls_problem;

/// Why a connection failed.
#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("{0}")]
    Forbidden(OutboundError),
    #[error("cannot resolve the host name: {0}")]
    NoSuchName(io::Error),
    #[error("cannot connect: {0}")]
    Unreachable(io::Error),
    #[error("TLS handshake failed: {}", tls_problem(.0))]
    Tls(io::Error),
}

/// A URL with its resolved and checked addresses. Only the dialer creates one.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    target: OutboundUrl,
    addresses: Vec<SocketAddr>,
}

impl Route {
    pub(crate) fn target(&self) -> &OutboundUrl {
        &self.target
    }

    /// Returns a route to the same addresses for requests to another URL, which TLS names.
    pub(crate) fn for_target(self, target: OutboundUrl) -> Self {
        Self { target, ..self }
    }

    /// Returns the addresses in the order in which they are tried.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// Creates all outgoing connections. It has no timeouts: the caller sets a deadline, and dropping the future cancels
/// it.
pub(crate) struct Dialer {
    resolver: Box<dyn Resolver>,
    reach: AddressPolicy,
    tls: TlsConnector,
    contact: Option<Arc<NetworkContact>>,
    own_addresses: Option<OwnAddresses>,
}

impl Dialer {
    /// Returns a dialer that uses the system's resolver and the certificate authorities of browsers.
    pub(crate) fn new(reach: AddressPolicy) -> anyhow::Result<Self> {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        Self::with_resolver(reach, Box::new(SystemResolver::new()), roots)
    }

    pub(super) fn with_resolver(
        reach: AddressPolicy,
        resolver: Box<dyn Resolver>,
        roots: RootCertStore,
    ) -> anyhow::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { resolver, reach, tls: TlsConnector::from(Arc::new(config)), contact: None, own_addresses: None })
    }

    /// Records established connections in `contact`.
    pub(crate) fn with_contact(self, contact: Arc<NetworkContact>) -> Self {
        Self { contact: Some(contact), ..self }
    }

    /// Forbids these addresses wherever only public addresses may be dialled.
    pub(crate) fn with_own_addresses(self, own_addresses: OwnAddresses) -> Self {
        Self { own_addresses: Some(own_addresses), ..self }
    }

    /// Returns which addresses may be dialled.
    pub(crate) fn reach(&self) -> AddressPolicy {
        self.reach
    }

    /// Resolves a URL. One forbidden address forbids the whole name (docs/design/sync.md#relay-urls-and-dialling).
    pub(crate) async fn route(&self, target: OutboundUrl) -> Result<Route, DialError> {
        self.route_within(target, self.reach).await
    }

    /// Resolves a URL that may lead to other addresses than those of events, because the operator configured it.
    pub(crate) async fn route_within(&self, target: OutboundUrl, reach: AddressPolicy) -> Result<Route, DialError> {
        let found = match target.host() {
            OutboundHost::Address(address) => vec![*address],
            OutboundHost::Name(name) => {
                let name = match reach {
                    // The dot at the end prevents the system from trying the name in local search domains.
                    AddressPolicy::PublicOnly => format!("{name}."),
                    AddressPolicy::Any => name.clone(),
                };
                self.resolver.resolve(&name).await.map_err(DialError::NoSuchName)?
            }
        };
        for address in &found {
            reach.check(*address).map_err(DialError::Forbidden)?;
            if reach == AddressPolicy::PublicOnly && self.is_own_address(*address).await {
                return Err(DialError::Forbidden(OutboundError::OwnAddress(*address)));
            }
        }
        if found.is_empty() {
            return Err(DialError::NoSuchName(io::Error::other("the name has no address")));
        }
        let addresses = interleave_families(&found)
            .take(limits::MAX_ADDRESSES_PER_HOST)
            .map(|ip| SocketAddr::new(ip, target.port()));
        Ok(Route { addresses: addresses.collect(), target })
    }

    async fn is_own_address(&self, address: IpAddr) -> bool {
        match &self.own_addresses {
            Some(own_addresses) => own_addresses.contains(address, self.resolver.as_ref()).await,
            None => false,
        }
    }

    /// Connects to one of a route's addresses: each is tried shortly after the one before, and the first that connects
    /// is used.
    pub(crate) async fn connect(&self, route: &Route) -> Result<Box<dyn OutboundStream>, DialError> {
        let stream = connect_first(&route.addresses).await.map_err(DialError::Unreachable)?;
        if let (Some(contact), Ok(peer)) = (&self.contact, stream.peer_addr()) {
            contact.record(peer.ip());
        }
        stream.set_nodelay(true).map_err(DialError::Unreachable)?;
        if !route.target.is_tls() {
            return Ok(Box::new(stream));
        }
        let name = match route.target.host() {
            OutboundHost::Address(address) => ServerName::IpAddress((*address).into()),
            OutboundHost::Name(name) => ServerName::try_from(name.clone())
                .map_err(|error| DialError::Tls(io::Error::new(io::ErrorKind::InvalidInput, error)))?,
        };
        let stream = self.tls.connect(name, stream).await.map_err(|error| {
            // An invalid certificate or protocol is an error of the TLS library inside an error of the system.
            match error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
                true => DialError::Tls(error),
                false => DialError::Unreachable(error),
            }
        })?;
        Ok(Box::new(stream))
    }
}

/// Returns each address once, alternating between IPv6 and IPv4, beginning with the family that the resolver prefers.
fn interleave_families(found: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let first = found.first().is_some_and(IpAddr::is_ipv6);
    let (mut preferred, mut others): (VecDeque<IpAddr>, VecDeque<IpAddr>) = (VecDeque::new(), VecDeque::new());
    for address in found {
        let queue = if address.is_ipv6() == first { &mut preferred } else { &mut others };
        if !queue.contains(address) {
            queue.push_back(*address);
        }
    }
    let mut take_preferred = false;
    std::iter::from_fn(move || {
        take_preferred = !take_preferred;
        match take_preferred {
            true => preferred.pop_front().or_else(|| others.pop_front()),
            false => others.pop_front().or_else(|| preferred.pop_front()),
        }
    })
}

/// Returns the first connection that succeeds. An unreachable address costs a short delay and not the whole deadline
/// (RFC 8305).
async fn connect_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut waiting = addresses.iter();
    let mut tries = FuturesUnordered::new();
    let mut error = io::Error::other("there is no address to connect to");
    loop {
        if let Some(address) = waiting.next() {
            tries.push(TcpStream::connect(*address));
        }
        let ended = match waiting.len() {
            0 => tries.next().await,
            _ => match tokio::time::timeout(Duration::from_millis(limits::NEXT_ADDRESS_DELAY_MILLIS), tries.next())
                .await
            {
                Ok(ended) => ended,
                Err(_) => continue,
            },
        };
        match ended {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(attempt_error)) => error = attempt_error,
            None => return Err(error),
        }
    }
}
