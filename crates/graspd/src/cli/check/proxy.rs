//! What clients meet: the certificate, the proxy, and the server behind it.

use hyper::header;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_rustls::rustls::RootCertStore;

use super::finding::Findings;
use super::proxy_config::Proxy;
use super::requests::{Answer, Front, Length, NoAnswer, PRETENDED};
use super::time::{days_left, http_date, now};
use crate::net::dialer::DialProblem;
use crate::net::stream::Stream;

/// A pack of this size is nothing special, and more than proxies allow that were not told.
const LARGE_BODY: usize = 8 << 20;

/// The same without its length in the head.
const CHUNKED_BODY: usize = 2 << 20;

/// Days before its end when a certificate should have been renewed: Let's Encrypt's clients do it thirty days before.
const RENEWED_DAYS: u64 = 14;

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
