//! What clients meet: the name, the certificate, the proxy, and the server behind it.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use grasp_core::outbound::{Host, Reach};
use hyper::header;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::ask::{Answer, Front, Length, NoAnswer, PRETENDED};
use super::finding::Findings;
use super::lines::Proxy;
use crate::config::Config;
use crate::outbound::dial::DialProblem;
use crate::outbound::stream::Stream;

/// A pack of this size is nothing special, and more than proxies allow that were not told.
const LARGE_BODY: usize = 8 << 20;

/// The same without its length in the head.
const CHUNKED_BODY: usize = 2 << 20;

/// Days before its end when a certificate should have been renewed: Let's Encrypt's clients do it thirty days before.
const RENEWED_DAYS: u64 = 14;

/// The longest that certificates live, and some more.
const MAX_DAYS: u64 = 900;

const DAY: u64 = 86_400;

/// How long the system may look for a name.
const LOOKUP: Duration = Duration::from_secs(15);

/// How wrong a clock may be: events from the future are refused.
const MAX_CLOCK_SECS: u64 = 60;

/// What the running server says of itself.
pub(super) struct Server {
    pub(super) facts: Value,
}

impl Server {
    pub(super) fn text(&self, name: &str) -> String {
        self.facts[name].as_str().unwrap_or_default().to_owned()
    }
}

/// Whether the name is one that others can use.
pub(super) fn name(found: &mut Findings, config: &Config, via: bool) {
    let domain = &config.domain;
    let host = domain.rsplit_once(':').map_or(domain.as_str(), |(host, _)| host);
    let is_address = host.parse::<IpAddr>().is_ok() || host.starts_with('[');
    let fix = "set NGIT_DOMAIN to the public name of this service, such as code.example, before the first announcement names it";
    match () {
        () if is_address => {
            found.odd("domain", format!("{domain} is an address, and the service speaks without TLS"), fix)
        }
        () if !host.contains('.') || host.ends_with(".localhost") => {
            found.odd("domain", format!("{domain} is a name of this machine or network only"), fix);
        }
        () => found.fine("domain", domain.clone()),
    }
    if via {
        return;
    }
    if is_address {
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

/// Asks the front, and the server what it saw.
pub(super) fn look(
    found: &mut Findings,
    runtime: &Runtime,
    front: &Front,
    server: Option<&Server>,
    seen: &mut dyn FnMut() -> Vec<Value>,
) -> Proxy {
    if !runtime.block_on(certificate(found, front)) {
        advise(found);
        return Proxy::Unknown;
    }
    let document = runtime.block_on(front.get("/", "application/nostr+json"));
    let proxy = document.as_ref().map_or(Proxy::Unknown, |answer| {
        Proxy::of(&format!("{} {}", answer.header(header::SERVER), answer.header(header::VIA)))
    });
    let is_ours = front_door(found, front, &document, server);
    if let Ok(answer) = &document {
        clock(found, answer);
    }
    if is_ours {
        let first = seen().into_iter().find(|sighting| sighting["method"] == "GET");
        if let Some(sighting) = &first {
            host(found, front, sighting, proxy);
            let direct = server.is_some_and(|server| server.text("bind") == front.target.authority());
            forwarded(found, sighting, proxy, direct);
        } else if server.is_some() {
            found.odd(
                "forwarded",
                "the server did not see who asked: something on the way drops unknown headers",
                "not a problem by itself; whether X-Forwarded-For arrives could not be checked",
            );
        }
        websocket(found, runtime, front, proxy);
        // Only a server that expects it reads what belongs to no repository.
        if first.is_some() {
            bodies(found, runtime, front, proxy);
        }
    }
    advise(found);
    proxy
}

/// Connects; gives whether there is something to talk to.
async fn certificate(found: &mut Findings, front: &Front) -> bool {
    let stream = match front.connect().await {
        Ok(stream) => stream,
        Err(NoAnswer::Dial(DialProblem::Tls(problem))) => {
            found.wrong(
                "tls",
                format!("the certificate of {} is not good: {problem}", front.target.authority()),
                "Caddy gets a good one by itself when port 80 and 443 are open and the name leads here;\nfor nginx: certbot --nginx -d THE_DOMAIN",
            );
            return false;
        }
        Err(problem) => {
            found.wrong(
                "front",
                format!("{} is not reached: {problem}", front.target),
                "is the proxy running, does it listen there, and does the firewall let that port through?",
            );
            return false;
        }
    };
    match &stream {
        Stream::Plain(_) => found.advice("tls", format!("{} is without TLS", front.target)),
        Stream::Tls(stream) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
            match days_left(roots, chain, front.target.host(), now()) {
                Some(days) if days < RENEWED_DAYS => found.odd(
                    "tls",
                    format!("the certificate ends in {days} days"),
                    "it should have been renewed: look at the log of Caddy or of certbot (systemctl status certbot.timer)",
                ),
                Some(days) => found.fine("tls", format!("the certificate is good for {days} days")),
                None => found.fine("tls", "the certificate is good"),
            }
        }
    }
    true
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// For how many whole days a chain will be believed, up to a bound.
fn days_left(roots: RootCertStore, chain: &[CertificateDer<'_>], host: &Host, now: u64) -> Option<u64> {
    let (first, others) = chain.split_first()?;
    let name = ServerName::try_from(host.to_string()).ok()?;
    let provider = std::sync::Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().ok()?;
    let is_good = |days: u64| {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(now + days * DAY));
        verifier.verify_server_cert(first, others, &name, &[], at).is_ok()
    };
    // The first day on which it is no good.
    let (mut good, mut bad) = (0, MAX_DAYS);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if is_good(middle) { good = middle } else { bad = middle }
    }
    is_good(0).then_some(good)
}

/// Whether it is this server that answers.
fn front_door(
    found: &mut Findings,
    front: &Front,
    document: &Result<Answer, NoAnswer>,
    server: Option<&Server>,
) -> bool {
    let at = &front.target;
    let bind = server.map_or_else(|| "the address of graspd".to_owned(), |server| server.text("bind"));
    let answer = match document {
        Ok(answer) => answer,
        Err(problem) => {
            found.wrong("front", format!("{at} does not answer: {problem}"), "look at the log of the proxy");
            return false;
        }
    };
    let status = answer.status;
    if status.is_redirection() {
        let to = answer.header(header::LOCATION);
        found.wrong(
            "front",
            format!("{at} leads on to {to} ({status})"),
            "clients do not follow: let the proxy answer under this very name, with TLS",
        );
        return false;
    }
    if status.is_server_error() {
        found.wrong(
            "front",
            format!("the proxy answers {status}: it does not reach graspd"),
            format!("nginx: proxy_pass http://{bind};\nCaddy: reverse_proxy {bind}\nand graspd has to run and to listen there (NGIT_BIND_ADDRESS)"),
        );
        return false;
    }
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let software = document["software"].as_str().unwrap_or_default();
    if !status.is_success() || document["instance"].as_str().is_none() {
        let who = if software.is_empty() { String::new() } else { format!(" and is {software}") };
        found.wrong(
            "front",
            format!("what answers at {at} is not graspd: it says {status}{who}"),
            format!("let the proxy pass everything on to graspd at {bind}, the base path included"),
        );
        return false;
    }
    let Some(server) = server else {
        found.odd(
            "front",
            format!("a graspd answers at {at}; whether it is this one cannot be told"),
            "start the server here and check again",
        );
        return true;
    };
    if document["instance"] != server.facts["instance"] {
        let name = document["name"].as_str().unwrap_or_default();
        found.wrong(
            "front",
            format!("another server answers at {at}: {name}"),
            format!("the name, or the proxy, leads elsewhere: this one is at {bind}"),
        );
        return false;
    }
    found.fine("front", format!("{at} leads to this server"));
    true
}

fn clock(found: &mut Findings, answer: &Answer) {
    let Some(theirs) = http_date(answer.header(header::DATE)) else { return };
    let apart = now().abs_diff(theirs);
    if apart > MAX_CLOCK_SECS {
        found.wrong(
            "clock",
            format!("this machine and whoever answers are {apart} seconds apart"),
            "let both follow the time: timedatectl set-ntp true",
        );
    } else if std::path::Path::new("/run/systemd/timesync/synchronized").exists() {
        found.fine("clock", "the clock is kept right by the system");
    } else {
        found.fine(
            "clock",
            "the clock agrees with whoever answers, which may be the same machine (timedatectl says more)",
        );
    }
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = words[..] else { return None };
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let month = MONTHS.find(month).filter(|at| month.len() == 3 && at % 3 == 0)? as u64 / 3 + 1;
    let clock: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = clock[..] else { return None };
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that leap days come last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // Of the first of March of the year 0, counted from 1970.
    Some((days.checked_sub(719_468)?) * DAY + hours * 3_600 + minutes * 60 + seconds)
}

/// Whether the server hears the name that the client used.
fn host(found: &mut Findings, front: &Front, sighting: &Value, proxy: Proxy) {
    let (asked, heard) = (front.target.authority(), sighting["host"].as_str().unwrap_or_default());
    // The port is nobody's business.
    let bare = |name: &str| name.rsplit_once(':').map_or(name, |(host, _)| host).to_ascii_lowercase();
    if bare(heard) == bare(&asked) {
        return found.fine("host", format!("the name that clients use arrives: {heard}"));
    }
    found.odd(
        "host",
        format!("clients ask for {asked}, and the server hears {heard}"),
        proxy.either("proxy_set_header Host $host;", "remove header_up Host from reverse_proxy"),
    );
}

/// Whether the server knows who asks, and cannot be told anything.
fn forwarded(found: &mut Findings, sighting: &Value, proxy: Proxy, direct: bool) {
    let text = |name: &str| sighting[name].as_str().unwrap_or_default();
    let (peer, client, said) = (text("peer"), text("client"), text("forwarded_for"));
    let trusted = sighting["peer_is_trusted"] == true;
    let lines = proxy.either(
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        "reverse_proxy sets X-Forwarded-For by itself: remove header_up and trusted_proxies lines about it",
    );
    // Nothing stands in between if what was sent arrives as it was sent, at the server's own address.
    if said == PRETENDED && (direct || !trusted) {
        return found.advice("forwarded", format!("{peer} asks directly: whether a proxy says who asks was not tried"));
    }
    if !trusted {
        let range = if peer.contains(':') { format!("{peer}/128") } else { format!("{peer}/32") };
        let says = format!("the proxy at {peer} is not believed: all clients together count as one network");
        return found.wrong("forwarded", says, format!("set NGIT_TRUSTED_PROXY_CIDRS={range} and start graspd again"));
    }
    if said.is_empty() {
        let says =
            format!("the proxy at {peer} does not say for whom it asks: all clients together count as one network");
        return found.wrong("forwarded", says, lines);
    }
    if said == PRETENDED {
        let says = "the proxy passes on what clients claim about their own address: whoever likes can be anybody";
        return found.wrong("forwarded", says, lines);
    }
    if client == PRETENDED {
        let says = format!(
            "the proxy at {peer} is believed and says who asks; this machine itself counts as a proxy ({said})"
        );
        return found.fine("forwarded", says);
    }
    found.fine("forwarded", format!("the proxy at {peer} is believed and says who asks: {client}"));
}

fn websocket(found: &mut Findings, runtime: &Runtime, front: &Front, proxy: Proxy) {
    match runtime.block_on(front.websocket()) {
        Ok(()) => found.fine("websocket", "a websocket goes through and is answered"),
        Err(problem) => found.wrong(
            "websocket",
            format!("a websocket does not go through: {problem}"),
            proxy.either(
                "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection \
                 $graspd_connection; and the map of $http_upgrade",
                "reverse_proxy passes websockets on by itself: look for a matcher that sends them elsewhere",
            ),
        ),
    }
}

fn bodies(found: &mut Findings, runtime: &Runtime, front: &Front, proxy: Proxy) {
    for (check, length, bytes) in [("body", Length::Told, LARGE_BODY), ("chunked", Length::Chunked, CHUNKED_BODY)] {
        let megabytes = bytes >> 20;
        let answer = runtime.block_on(front.post("/graspd-check.git/git-receive-pack", length, bytes));
        let problem = match &answer {
            Ok(answer) if counted(&answer.body) == Some(bytes as u64) => {
                let how = if length == Length::Told { "" } else { " of unknown length" };
                found.fine(check, format!("a push of {megabytes} MiB{how} goes through"));
                continue;
            }
            Ok(answer) => match counted(&answer.body) {
                Some(came) => format!("only {came} of {bytes} bytes arrive"),
                None => format!("the answer is {}", answer.status),
            },
            Err(problem) => problem.to_string(),
        };
        let what = if length == Length::Told { "a push" } else { "a push of unknown length (chunked)" };
        found.wrong(
            check,
            format!("{what} of {megabytes} MiB does not go through: {problem}"),
            proxy.either(
                "client_max_body_size 0; proxy_request_buffering off; proxy_http_version 1.1;",
                "remove request_body max_size",
            ),
        );
    }
}

/// How many bytes the server says to have had.
fn counted(body: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(body).ok()?["graspd_check"]["bytes"].as_u64()
}

fn advise(found: &mut Findings) {
    found.advice(
        "patience",
        "not tried, because it takes an hour: the proxy must not cut what is silent for a while (nginx: proxy_read_timeout 1h; \
         proxy_send_timeout 1h)",
    );
    found.advice("buffering", "not tried: packs should go through as they come (nginx: proxy_buffering off)");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the certificate of the tests ends.
    const END: u64 = 4_948_399_485;

    #[test]
    fn days_are_counted() {
        let read = |bytes: &'static [u8]| CertificateDer::from(bytes);
        let authority = read(include_bytes!("../../outbound/certificates/authority.der"));
        let chain = [read(include_bytes!("../../outbound/certificates/relay.test.der"))];
        let left = |name: &str, now: u64| {
            let mut roots = RootCertStore::empty();
            roots.add(authority.clone()).expect("a certificate");
            days_left(roots, &chain, &Host::Name(name.to_owned()), now)
        };
        assert_eq!(left("relay.test", END - 10 * DAY - 3_600), Some(10));
        assert_eq!(left("relay.test", END - DAY / 2), Some(0));
        assert_eq!(left("relay.test", END + 1), None);
        assert_eq!(left("other.test", END - 10 * DAY), None);
        assert_eq!(left("relay.test", END - 10_000 * DAY), Some(MAX_DAYS - 1));
    }

    #[test]
    fn dates_are_read() {
        for (text, secs) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Thu, 29 Feb 2024 12:00:00 GMT", 1_709_208_000),
            ("Mon, 16 Nov 2026 10:00:00 GMT", 1_794_823_200),
        ] {
            assert_eq!(http_date(text), Some(secs), "{text}");
        }
        for wrong in ["", "yesterday", "Sun, 06 Xyz 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49 GMT"] {
            assert_eq!(http_date(wrong), None, "{wrong}");
        }
    }
}
