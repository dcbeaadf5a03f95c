//! Checks of the public address: certificate, reverse proxy, and the server behind it.

use hyper::header;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_rustls::rustls::RootCertStore;

use super::domain::host_and_port;
use super::finding::Findings;
use super::proxy_config::{ProxyKind, local_address};
use super::requests::{BodyLength, CheckResponse, PublicEndpoint, RequestError, SPOOFED_ADDRESS};
use super::time::days_left;
use crate::admin::api::{ProbedRequest, ServerFacts};
use crate::clock::Clock;
use crate::date::parse_http_date;
use crate::net::dialer::DialError;
use crate::net::tls_error::tls_problem;

/// Size of a normal push that is larger than the default limits of proxies.
const LARGE_BODY: usize = 8 << 20;

/// Size of a push without `Content-Length`.
const CHUNKED_BODY: usize = 2 << 20;

/// Days before the end of a certificate at which it should have been renewed. ACME clients renew it 30 days before.
const RENEWAL_DAYS: u64 = 14;

/// Maximum deviation of the clock: events from the future are rejected.
const MAX_CLOCK_SECS: u64 = 60;

/// Sends requests to the public address, and asks the server how they arrived.
pub(super) fn check(
    findings: &mut Findings,
    runtime: &Runtime,
    endpoint: &PublicEndpoint,
    server: Option<&ServerFacts>,
    requests_seen: impl FnOnce() -> Vec<ProbedRequest>,
) -> ProxyKind {
    if !runtime.block_on(check_certificate(findings, endpoint)) {
        add_notes(findings);
        return ProxyKind::Unknown;
    }
    let document = runtime.block_on(endpoint.get("/", "application/nostr+json"));
    let proxy = document.as_ref().map_or(ProxyKind::Unknown, |response| {
        ProxyKind::from_headers(&format!("{} {}", response.header(header::SERVER), response.header(header::VIA)))
    });
    let is_ours = check_endpoint(findings, endpoint, &document, server);
    if let Ok(response) = &document {
        check_clock(findings, response);
    }
    if is_ours {
        let first = requests_seen().into_iter().find(|request| request.method == "GET");
        if let Some(request) = &first {
            check_host(findings, endpoint, request, proxy);
            let direct = server.is_some_and(|server| endpoint.is_direct(server.settings.bind));
            check_forwarded(findings, request, proxy, direct);
        } else if server.is_some() {
            findings.warning(
                "forwarded",
                "the requests arrived without the header that marks them: something on the way removes unknown headers",
                "not a problem by itself, but X-Forwarded-For could not be checked",
            );
        }
        check_websocket(findings, runtime, endpoint, proxy);
        // The server reads the body of a push to an unknown repository only if it recognises the check.
        if first.is_some() {
            check_bodies(findings, runtime, endpoint, proxy);
        }
    }
    add_notes(findings);
    proxy
}

/// Connects and checks the certificate. Returns whether requests can be sent.
async fn check_certificate(findings: &mut Findings, endpoint: &PublicEndpoint) -> bool {
    let stream = match endpoint.connect().await {
        Ok(stream) => stream,
        Err(RequestError::Dial(DialError::Tls(problem))) => {
            findings.error(
                "tls",
                format!("no secure connection to {endpoint}: {}", tls_problem(&problem)),
                "Caddy gets a certificate by itself if ports 80 and 443 are open and the domain resolves to this \
                 machine;\nfor nginx: certbot --nginx -d THE_DOMAIN",
            );
            return false;
        }
        Err(problem) => {
            findings.error(
                "endpoint",
                format!("{endpoint} cannot be reached: {problem}"),
                "check that the proxy runs, that it listens at this address, and that the firewall allows the port",
            );
            return false;
        }
    };
    let Some(chain) = stream.certificates() else {
        findings.note("tls", format!("{endpoint} is used without TLS"));
        return true;
    };
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    match days_left(roots, chain, endpoint.target.host(), Clock::start().wall().0) {
        Some(days) if days < RENEWAL_DAYS => findings.warning(
            "tls",
            format!("the certificate expires in {days} days"),
            "it should have been renewed: see the log of Caddy or of certbot (systemctl status certbot.timer)",
        ),
        Some(days) => findings.ok("tls", format!("the certificate is valid for {days} days")),
        None => findings.ok("tls", "the certificate is valid"),
    }
    true
}

/// Checks that the public address leads to this server.
fn check_endpoint(
    findings: &mut Findings,
    endpoint: &PublicEndpoint,
    document: &Result<CheckResponse, RequestError>,
    server: Option<&ServerFacts>,
) -> bool {
    let at = endpoint;
    let bind = server
        .map_or_else(|| "the address of graspd".to_owned(), |server| local_address(server.settings.bind).to_string());
    let response = match document {
        Ok(response) => response,
        Err(problem) => {
            findings.error("endpoint", format!("no response from {at}: {problem}"), "see the log of the proxy");
            return false;
        }
    };
    let status = response.status;
    if status.is_redirection() {
        let to = response.header(header::LOCATION);
        findings.error(
            "endpoint",
            format!("{at} redirects to {to} ({status})"),
            "git and nostr clients do not follow redirects: configure the proxy to serve graspd at this address, \
             with TLS",
        );
        return false;
    }
    if status.is_server_error() {
        findings.error(
            "endpoint",
            format!("the proxy responds with {status}: it does not reach graspd"),
            format!(
                "nginx: proxy_pass http://{bind};\nCaddy: reverse_proxy {bind}\nand graspd must run and listen \
                     there (NGIT_BIND_ADDRESS)"
            ),
        );
        return false;
    }
    let document: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let software = document["software"].as_str().unwrap_or_default();
    if !status.is_success() || document["instance"].as_str().is_none() {
        let who = if software.is_empty() { String::new() } else { format!(", software {software}") };
        findings.error(
            "endpoint",
            format!("the server at {at} is not graspd: status {status}{who}"),
            format!("configure the proxy to forward all requests to graspd at {bind}, including the base path"),
        );
        return false;
    }
    let Some(server) = server else {
        findings.warning(
            "endpoint",
            format!("a graspd server responds at {at}, but it is not known whether it is this one"),
            "start the server here and check again",
        );
        return true;
    };
    if document["instance"] != server.instance {
        let name = document["name"].as_str().unwrap_or_default();
        findings.error(
            "endpoint",
            format!("another server responds at {at}: {name}"),
            format!("the domain or the proxy leads to another server; this one listens at {bind}"),
        );
        return false;
    }
    findings.ok("endpoint", format!("{at} leads to this server"));
    true
}

fn check_clock(findings: &mut Findings, response: &CheckResponse) {
    let Some(theirs) = parse_http_date(response.header(header::DATE)) else { return };
    let apart = Clock::start().wall().0.abs_diff(theirs);
    if apart > MAX_CLOCK_SECS {
        findings.error(
            "clock",
            format!("the clocks of this machine and of the responding server differ by {apart} seconds"),
            "synchronise both clocks: timedatectl set-ntp true",
        );
    } else if std::path::Path::new("/run/systemd/timesync/synchronized").exists() {
        findings.ok("clock", "the system synchronises the clock");
    } else {
        findings.ok(
            "clock",
            "the clock agrees with the responding server, which can be the same machine (see timedatectl)",
        );
    }
}

/// Checks that the server receives the host name that the client used.
fn check_host(findings: &mut Findings, endpoint: &PublicEndpoint, request: &ProbedRequest, proxy: ProxyKind) {
    let (requested_host, received_host) = (endpoint.target.authority(), request.host.as_deref().unwrap_or_default());
    // The port is ignored.
    let bare = |name: &str| host_and_port(name).0.to_ascii_lowercase();
    if bare(received_host) == bare(&requested_host) {
        return findings.ok("host", format!("the server receives the host name of the client: {received_host}"));
    }
    findings.warning(
        "host",
        format!("clients use {requested_host}, but the server receives {received_host}"),
        proxy.directives("proxy_set_header Host $host;", "remove header_up Host from reverse_proxy"),
    );
}

/// Checks that the server gets the address of the client from the proxy, and that clients cannot forge it.
fn check_forwarded(findings: &mut Findings, request: &ProbedRequest, proxy: ProxyKind, direct: bool) {
    let ProbedRequest { peer, peer_is_trusted, client, .. } = request;
    let forwarded_for = request.forwarded_for.as_deref().unwrap_or_default();
    let lines = proxy.directives(
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        "reverse_proxy sets X-Forwarded-For by itself: remove header_up and trusted_proxies lines for it",
    );
    // The header arrives unchanged at the server's own address if there is no proxy.
    if forwarded_for == SPOOFED_ADDRESS && (direct || !peer_is_trusted) {
        return findings.note("forwarded", format!("{peer} connected directly, so X-Forwarded-For was not checked"));
    }
    if !peer_is_trusted {
        let range = if peer.contains(':') { format!("{peer}/128") } else { format!("{peer}/32") };
        let text = format!("the proxy at {peer} is not trusted: all clients together count as one network");
        return findings.error("forwarded", text, format!("set NGIT_TRUSTED_PROXY_CIDRS={range} and restart graspd"));
    }
    if forwarded_for.is_empty() {
        let text = format!(
            "the proxy at {peer} does not send X-Forwarded-For: graspd cannot limit its clients by their networks"
        );
        return findings.error("forwarded", text, lines);
    }
    if forwarded_for == SPOOFED_ADDRESS {
        let text = "the proxy passes on the X-Forwarded-For header of clients: every client can claim any address";
        return findings.error("forwarded", text, lines);
    }
    if client == SPOOFED_ADDRESS {
        let text = format!(
            "the proxy at {peer} is trusted and sends the client address; this machine is a proxy ({forwarded_for})"
        );
        return findings.ok("forwarded", text);
    }
    findings.ok("forwarded", format!("the proxy at {peer} is trusted and sends the client address: {client}"));
}

fn check_websocket(findings: &mut Findings, runtime: &Runtime, endpoint: &PublicEndpoint, proxy: ProxyKind) {
    match runtime.block_on(endpoint.websocket()) {
        Ok(()) => findings.ok("websocket", "a websocket connection works"),
        Err(problem) => findings.error(
            "websocket",
            format!("a websocket connection fails: {problem}"),
            proxy.directives(
                "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection \
                 $graspd_connection; and the map of $http_upgrade",
                "reverse_proxy passes on websockets by itself: look for a matcher that sends them elsewhere",
            ),
        ),
    }
}

fn check_bodies(findings: &mut Findings, runtime: &Runtime, endpoint: &PublicEndpoint, proxy: ProxyKind) {
    for (check, length, bytes) in
        [("body", BodyLength::Declared, LARGE_BODY), ("chunked", BodyLength::Chunked, CHUNKED_BODY)]
    {
        let megabytes = bytes >> 20;
        let response = runtime.block_on(endpoint.send_body("/graspd-check.git/git-receive-pack", length, bytes));
        let problem = match &response {
            Ok(response) if received_bytes(&response.body) == Some(bytes as u64) => {
                let how = if length == BodyLength::Declared { "" } else { " of unknown length" };
                findings.ok(check, format!("a push of {megabytes} MiB{how} arrives"));
                continue;
            }
            Ok(response) => match received_bytes(&response.body) {
                Some(came) => format!("only {came} of {bytes} bytes arrive"),
                None => format!("the response is {}", response.status),
            },
            Err(problem) => problem.to_string(),
        };
        let what = if length == BodyLength::Declared { "a push" } else { "a push of unknown length (chunked)" };
        findings.error(
            check,
            format!("{what} of {megabytes} MiB does not arrive: {problem}"),
            proxy.directives(
                "client_max_body_size 0; proxy_request_buffering off; proxy_http_version 1.1;",
                "remove request_body max_size",
            ),
        );
    }
}

/// Returns the number of bytes that the server has received.
fn received_bytes(body: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(body).ok()?["graspd_check"]["bytes"].as_u64()
}

fn add_notes(findings: &mut Findings) {
    findings.note(
        "timeouts",
        "not checked, because it takes an hour: the proxy must not close connections that are idle for a while \
         (nginx: proxy_read_timeout 1h; proxy_send_timeout 1h)",
    );
    findings.note("buffering", "not checked: the proxy should not buffer responses (nginx: proxy_buffering off)");
}
