//! From a URL that may be called to a connection.

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

use super::resolver::{Resolver, SystemResolver};
use super::stream::OutboundStream;

/// Why no connection came about.
#[derive(Debug, Error)]
pub(crate) enum DialError {
    #[error("{0}")]
    Forbidden(OutboundError),
    #[error("no such name: {0}")]
    NoSuchName(io::Error),
    #[error("cannot connect: {0}")]
    Unreachable(io::Error),
    #[error("not a TLS server that can be believed: {0}")]
    Tls(io::Error),
}

/// Whom to call and where that is: every address has been looked at. Only the dialer makes one.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    target: OutboundUrl,
    addresses: Vec<SocketAddr>,
}

impl Route {
    pub(crate) fn target(&self) -> &OutboundUrl {
        &self.target
    }

    /// The addresses that may be dialled, the best first.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// The one way out. It keeps no clock: whoever calls sets the deadline, and dropping the call ends it.
pub(crate) struct Dialer {
    resolver: Box<dyn Resolver>,
    reach: AddressPolicy,
    tls: TlsConnector,
}

impl Dialer {
    /// One that asks the system for addresses and believes the certificate authorities that browsers believe.
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
        Ok(Self { resolver, reach, tls: TlsConnector::from(Arc::new(config)) })
    }

    /// How far it goes.
    pub(crate) fn reach(&self) -> AddressPolicy {
        self.reach
    }

    /// Looks up where a target is. One address that must not be called forbids the name as a whole (O-01).
    pub(crate) async fn route(&self, target: OutboundUrl) -> Result<Route, DialError> {
        let found = match target.host() {
            OutboundHost::Address(address) => vec![*address],
            OutboundHost::Name(name) => {
                let name = match self.reach {
                    // The dot at the end keeps the system from trying the name inside local domains.
                    AddressPolicy::PublicOnly => format!("{name}."),
                    AddressPolicy::Any => name.clone(),
                };
                self.resolver.resolve(&name).await.map_err(DialError::NoSuchName)?
            }
        };
        for address in &found {
            self.reach.check(*address).map_err(DialError::Forbidden)?;
        }
        if found.is_empty() {
            return Err(DialError::NoSuchName(io::Error::other("it has no address")));
        }
        let addresses = interleave_families(&found)
            .take(limits::MAX_ADDRESSES_PER_HOST)
            .map(|ip| SocketAddr::new(ip, target.port()));
        Ok(Route { addresses: addresses.collect(), target })
    }

    /// Connects to one of a route's addresses: the first that answers, each tried a moment after the one before.
    pub(crate) async fn connect(&self, route: &Route) -> Result<OutboundStream, DialError> {
        let stream = connect_first(&route.addresses).await.map_err(DialError::Unreachable)?;
        stream.set_nodelay(true).map_err(DialError::Unreachable)?;
        if !route.target.is_tls() {
            return Ok(OutboundStream::Plain(stream));
        }
        let name = match route.target.host() {
            OutboundHost::Address(address) => ServerName::IpAddress((*address).into()),
            OutboundHost::Name(name) => ServerName::try_from(name.clone())
                .map_err(|error| DialError::Tls(io::Error::new(io::ErrorKind::InvalidInput, error)))?,
        };
        let stream = self.tls.connect(name, stream).await.map_err(|error| {
            // A wrong certificate and a wrong protocol come as an error of the TLS library inside one of the system.
            match error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
                true => DialError::Tls(error),
                false => DialError::Unreachable(error),
            }
        })?;
        Ok(OutboundStream::Tls(Box::new(stream)))
    }
}

/// Each address once, IPv6 and IPv4 in turns, beginning with what the resolver likes best.
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

/// The first connection that stands. A dead address costs a moment, not the whole deadline (RFC 8305).
async fn connect_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut waiting = addresses.iter();
    let mut tries = FuturesUnordered::new();
    let mut error = io::Error::other("there is no address");
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
