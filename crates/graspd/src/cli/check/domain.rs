//! Checks of the domain and its DNS records.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use grasp_core::net::AddressPolicy;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::finding::Findings;
use crate::config::Config;
use crate::net::resolver::{Resolver, SystemResolver};

/// Timeout of a DNS lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);

/// Checks whether the domain is a public name that resolves to public addresses.
pub(super) fn check(findings: &mut Findings, runtime: &Runtime, config: &Config, via: bool) {
    let domain = &config.domain;
    let host = domain.rsplit_once(':').map_or(domain.as_str(), |(host, _)| host);
    let is_address = host.parse::<IpAddr>().is_ok() || host.starts_with('[');
    let fix = "set NGIT_DOMAIN to the public name of this service, such as code.example, before the first repository \
               lists it";
    if is_address {
        findings.warning("domain", format!("{domain} is an IP address, so the service is used without TLS"), fix);
    } else if !host.contains('.') || host.ends_with(".localhost") {
        findings.warning("domain", format!("{domain} is known on this machine or network only"), fix);
    } else {
        findings.ok("domain", domain.clone());
    }
    if via || is_address {
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
