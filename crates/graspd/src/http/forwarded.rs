//! Address of the client behind reverse proxies.

use std::net::IpAddr;

use hyper::HeaderMap;
use ipnet::IpNet;

/// Returns the client's address: the address of the peer, or, if the peer is a trusted proxy, the rightmost address in
/// `X-Forwarded-For` that is not itself a trusted proxy. The addresses left of it may have been forged by the client.
pub(crate) fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer;
    if !is_in(peer, trusted) {
        return client;
    }
    let forwarded: Vec<&str> = headers
        .get_all("x-forwarded-for")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .collect();
    for hop in forwarded.iter().rev() {
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
}
