//! The name of the service, and where it leads.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use grasp_core::net::Reach;

use super::finding::Findings;
use crate::config::Config;

/// How long the system may look for a name.
const LOOKUP: Duration = Duration::from_secs(15);

/// Whether the name is one that others can use.
pub(super) fn look(found: &mut Findings, config: &Config, via: bool) {
    let domain = &config.domain;
    let host = domain.rsplit_once(':').map_or(domain.as_str(), |(host, _)| host);
    let is_address = host.parse::<IpAddr>().is_ok() || host.starts_with('[');
    let fix = "set NGIT_DOMAIN to the public name of this service, such as code.example, before the first announcement names it";
    if is_address {
        found.odd("domain", format!("{domain} is an address, and the service speaks without TLS"), fix);
    } else if !host.contains('.') || host.ends_with(".localhost") {
        found.odd("domain", format!("{domain} is a name of this machine or network only"), fix);
    } else {
        found.fine("domain", domain.clone());
    }
    if via || is_address {
        return;
    }
    match lookup(host) {
        Err(problem) => found.wrong(
            "dns",
            format!("{host} leads nowhere ({problem})"),
            format!("add an A record (IPv4) and an AAAA record (IPv6, if there is any) for {host} with this machine's public address"),
        ),
        Ok(addresses) => {
            let shown = addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            let private: Vec<String> =
                addresses.iter().filter(|ip| Reach::Global.vet(**ip).is_err()).map(IpAddr::to_string).collect();
            if private.is_empty() {
                found.fine("dns", format!("{host} leads to {shown}"));
            } else if private.len() == addresses.len() && !host.contains('.') {
                found.odd("dns", format!("{host} leads to {shown}"), "only machines of this network can follow it");
            } else {
                found.wrong(
                    "dns",
                    format!("{host} leads to {}, which others cannot reach", private.join(", ")),
                    "let its A and AAAA records name public addresses only; if this machine alone sees another address, check \
                     /etc/hosts and ask from outside (graspd check --via on another machine)",
                );
            }
        }
    }
}

/// The addresses of a name, as this machine finds them. The thread that asks is left behind if nobody answers it.
fn lookup(host: &str) -> std::io::Result<Vec<IpAddr>> {
    let (tell, answer) = std::sync::mpsc::channel();
    let name = host.to_owned();
    std::thread::spawn(move || {
        let found = (name.as_str(), 0).to_socket_addrs();
        tell.send(found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>()))
    });
    let late = |_| std::io::Error::other("no answer in time");
    let mut addresses = answer.recv_timeout(LOOKUP).map_err(late)??;
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}
