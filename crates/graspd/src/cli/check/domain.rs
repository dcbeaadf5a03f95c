//! Checks of the domain and its DNS records.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use grasp_core::net::AddressPolicy;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::finding::Findings;
use crate::net::resolver::{Resolver, SystemResolver};

/// Timeout of a DNS lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);

/// Checks whether the domain is a public name that resolves to public addresses.
pub(super) fn check(findings: &mut Findings, runtime: &Runtime, domain: &str, via: bool) {
    let (host, _) = host_and_port(domain);
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let fix = "set NGIT_DOMAIN to the public name of this service, such as code.example, before the first repository \
               lists it";
    match address {
        Some(address) if AddressPolicy::PublicOnly.check(address).is_err() => {
            findings.warning("domain", format!("{domain} is an address of this machine or network only"), fix);
        }
        Some(_) => {
            findings.warning("domain", format!("{domain} is an IP address, so the service is used without TLS"), fix);
        }
        None if !host.contains('.') || host.ends_with(".localhost") => {
            findings.warning("domain", format!("{domain} is known on this machine or network only"), fix);
        }
        None => findings.ok("domain", domain),
    }
    if via || address.is_some() {
        return;
    }
    match lookup(runtime, host) {
        Err(problem) => {
            let fix = format!(
                "add an A record (IPv4) and an AAAA record (IPv6, if there is one) for {host} with the public address \
                 of this machine"
            );
            findings.error("dns", format!("{host} does not resolve ({problem})"), fix);
        }
        Ok(addresses) => {
            let shown = addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            let private = addresses.iter().filter(|ip| AddressPolicy::PublicOnly.check(**ip).is_err());
            let private: Vec<String> = private.map(IpAddr::to_string).collect();
            if private.is_empty() {
                findings.ok("dns", format!("{host} resolves to {shown}"));
            } else if private.len() == addresses.len() && !host.contains('.') {
                let fix = "only machines of this network can reach it";
                findings.warning("dns", format!("{host} resolves to {shown}"), fix);
            } else {
                let fix = "use only public addresses in the A and AAAA records; if only this machine sees another \
                           address, check /etc/hosts, and check from outside (graspd check --via on another machine)";
                findings.error("dns", format!("{host} resolves to {}, which is not public", private.join(", ")), fix);
            }
        }
    }
}

/// Resolves a name as this machine does. After the timeout the thread of the lookup is left to end by itself.
fn lookup(runtime: &Runtime, host: &str) -> io::Result<Vec<IpAddr>> {
    let resolver = SystemResolver::new();
    let found = runtime.block_on(async { timeout(LOOKUP_TIMEOUT, resolver.resolve(host)).await });
    let mut addresses = found.map_err(|_| io::Error::other("the DNS lookup timed out"))??;
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Splits a domain into the host, with brackets around an IPv6 address, and the port.
pub(super) fn host_and_port(domain: &str) -> (&str, Option<&str>) {
    match domain.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (domain, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_is_split_at_its_port() {
        for (domain, host, port) in [
            ("code.example", "code.example", None),
            ("code.example:8443", "code.example", Some("8443")),
            ("127.0.0.1:7334", "127.0.0.1", Some("7334")),
            ("[::1]", "[::1]", None),
            ("[2001:db8::1]:7334", "[2001:db8::1]", Some("7334")),
        ] {
            assert_eq!(host_and_port(domain), (host, port));
        }
    }
}
