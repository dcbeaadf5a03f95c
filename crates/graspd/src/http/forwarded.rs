//! Address of the client behind reverse proxies.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use hyper::HeaderMap;
use ipnet::IpNet;
use tracing::warn;

use super::network_limits::ClientNetwork;

/// Headers in which proxies name the address of their client.
const FORWARDING_HEADERS: [&str; 3] = ["x-forwarded-for", "forwarded", "x-real-ip"];

/// How many untrusted proxies are named in the log. Every client can send such headers.
const MAX_REPORTED_PROXIES: usize = 16;

/// The client of a request, as far as the server can tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestClient {
    pub(crate) address: IpAddr,
    /// Network whose limits apply. `None` for a program on this machine, which is not limited.
    pub(crate) network: Option<ClientNetwork>,
    /// Whether the peer sends headers of a proxy but is not a trusted one.
    pub(crate) is_untrusted_proxy: bool,
}

impl RequestClient {
    /// Returns the client of a request that arrived from `peer`.
    ///
    /// The clients of an untrusted proxy count as one network: that of the proxy, or
    /// [`ClientNetwork::UntrustedProxy`] if the proxy runs on this machine. Otherwise they would have no limits at all. The
    /// same applies to clients that a trusted proxy on this machine does not name with an address.
    pub(crate) fn new(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> Self {
        let has_proxy_header = FORWARDING_HEADERS.iter().any(|name| headers.contains_key(*name));
        let is_untrusted_proxy = has_proxy_header && !is_in(peer, trusted);
        let address = client_address(peer, headers, trusted);
        let network = match ClientNetwork::from_ip(address) {
            None if has_proxy_header => Some(ClientNetwork::UntrustedProxy),
            network => network,
        };
        Self { address, network, is_untrusted_proxy }
    }
}

/// Untrusted proxies that have been reported in the log since the start.
#[derive(Default)]
pub(crate) struct ReportedProxies(Mutex<HashSet<IpAddr>>);

impl ReportedProxies {
    /// Logs a warning for an untrusted proxy, once for each of the first few.
    pub(crate) fn report(&self, peer: IpAddr) {
        if self.is_new(peer.to_canonical()) {
            warn!(
                target: "http", peer = %peer.to_canonical(), setting = "NGIT_TRUSTED_PROXY_CIDRS",
                "peer sends headers of a proxy but is not trusted, its clients share the limits of one network"
            );
        }
    }

    fn is_new(&self, peer: IpAddr) -> bool {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Any client can send such headers. The operator's own proxy is usually on this machine, and must not be missed
        // because of them.
        (peer.is_loopback() || reported.len() < MAX_REPORTED_PROXIES) && reported.insert(peer)
    }
}

/// Returns the client's address: the address of the peer, or, if the peer is a trusted proxy, the rightmost address in
/// `X-Forwarded-For` that is not itself a trusted proxy. The addresses left of it may have been forged by the client.
fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer;
    if !is_in(peer, trusted) {
        return client;
    }
    // A proxy appends to the text of its client, which may contain any bytes.
    let values: Vec<_> =
        headers.get_all("x-forwarded-for").iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    for hop in values.iter().rev().flat_map(|value| value.rsplit(',')) {
        let Some(address) = parse(hop.trim()) else { break };
        client = address;
        if !is_in(address, trusted) {
            break;
        }
    }
    client
}

/// Returns whether an address is in one of the networks. `::ffff:a.b.c.d`, an IPv4 address that arrived on an IPv6 socket,
/// counts as IPv4.
pub(crate) fn is_in(address: IpAddr, networks: &[IpNet]) -> bool {
    networks.iter().any(|network| network.contains(&address.to_canonical()))
}

/// Parses an address with or without a port and brackets.
fn parse(text: &str) -> Option<IpAddr> {
    let text = text.strip_prefix('[').and_then(|text| text.split(']').next()).unwrap_or(text);
    text.parse().ok().or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn forwarded_addresses_count_only_behind_trusted_proxies() {
        let trusted: Vec<IpNet> =
            ["10.0.0.0/8", "::1/128"].iter().map(|text| text.parse().expect("valid range")).collect();
        for (peer, forwarded, client) in [
            ("203.0.113.9", &["198.51.100.1"][..], "203.0.113.9"),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["1.2.3.4, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
            ("10.0.0.1", &["1.2.3.4", "198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["198.51.100.1:4711"], "198.51.100.1"),
            ("::1", &["[2001:db8::7]:443"], "2001:db8::7"),
            ("10.0.0.1", &["nonsense"], "10.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
        ] {
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append("x-forwarded-for", value.parse().expect("valid header"));
            }
            let peer: IpAddr = peer.parse().expect("valid address");
            assert_eq!(client_address(peer, &headers, &trusted).to_string(), client, "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn clients_of_an_untrusted_proxy_are_one_network() {
        let trusted: Vec<IpNet> = vec!["127.0.0.2/32".parse().expect("valid range")];
        let unlimited = None;
        let of = |address: &str| ClientNetwork::from_ip(address.parse().expect("valid address"));
        for (peer, header, network, is_untrusted_proxy) in [
            ("127.0.0.1", None, unlimited, false),
            ("127.0.0.1", Some("x-forwarded-for"), Some(ClientNetwork::UntrustedProxy), true),
            ("::1", Some("forwarded"), Some(ClientNetwork::UntrustedProxy), true),
            ("::ffff:127.0.0.1", Some("x-real-ip"), Some(ClientNetwork::UntrustedProxy), true),
            ("127.0.0.1", Some("user-agent"), unlimited, false),
            ("127.0.0.2", None, unlimited, false),
            ("127.0.0.2", Some("x-forwarded-for"), of("198.51.100.1"), false),
            ("127.0.0.2", Some("x-real-ip"), Some(ClientNetwork::UntrustedProxy), false),
            ("203.0.113.9", Some("x-forwarded-for"), of("203.0.113.9"), true),
            ("203.0.113.9", None, of("203.0.113.9"), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(name) = header {
                headers.append(name, "198.51.100.1".parse().expect("valid header"));
            }
            let client = RequestClient::new(peer.parse().expect("valid address"), &headers, &trusted);
            assert_eq!((client.network, client.is_untrusted_proxy), (network, is_untrusted_proxy), "{peer} {header:?}");
        }
    }

    #[test]
    fn clients_cannot_hide_their_address_from_the_limits() {
        let trusted: Vec<IpNet> = vec!["127.0.0.1/32".parse().expect("valid range")];
        let named = ClientNetwork::from_ip(IpAddr::from([198, 51, 100, 1]));
        for (forwarded, network) in [
            (&b"\xff, 198.51.100.1"[..], named),
            (b"127.0.0.1, 198.51.100.1", named),
            (b"198.51.100.1, \xff", Some(ClientNetwork::UntrustedProxy)),
            (b"unix:", Some(ClientNetwork::UntrustedProxy)),
            (b"", Some(ClientNetwork::UntrustedProxy)),
        ] {
            let mut headers = HeaderMap::new();
            headers.append("x-forwarded-for", HeaderValue::from_bytes(forwarded).expect("valid header"));
            let client = RequestClient::new(IpAddr::from([127, 0, 0, 1]), &headers, &trusted);
            assert_eq!(client.network, network, "{forwarded:?}");
        }
    }

    #[test]
    fn a_few_untrusted_proxies_are_reported_once() {
        let reported = ReportedProxies::default();
        let peer = |nth: u8| IpAddr::from([203, 0, 113, nth]);
        assert!(reported.is_new(peer(0)) && !reported.is_new(peer(0)));
        assert_eq!((1..=255).filter(|nth| reported.is_new(peer(*nth))).count(), MAX_REPORTED_PROXIES - 1);
    }
}
