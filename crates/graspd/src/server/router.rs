//! Which request goes where.

use std::net::IpAddr;
use std::sync::Arc;

use grasp_core::admission::policy::AdmissionMode;
use grasp_core::repo::RepoPath;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Request, StatusCode, header};

use super::monitoring;
use super::monitoring::{Port, Sight};
use crate::admin::proxy_probe;
use crate::admin::proxy_probe::ProxyProbe;
use crate::config::SettingsReceiver;
use crate::config::{Config, StatusPageAccess};
use crate::git::handlers;
use crate::git::handlers::GitService;
use crate::http::body::HttpResponse;
use crate::http::forwarded;
use crate::http::network_limits::NetworkLimits;
use crate::http::response::{bodiless, html, method_not_allowed, status, with_type};
use crate::http::server::ConnectionPermit;
use crate::http::server::RequestHandler;
use crate::metrics::Metrics;
use crate::relay::nip11;
use crate::relay::nip11::Nip11Document;
use crate::relay::session::SessionContext;
use crate::relay::upgrade;
use crate::web;
use crate::web::landing::{Landing, landing};
use crate::web::repository_handler::RepositoryPages;
use crate::web::status_cache::StatusCache;
use crate::writer::policy::CurrentPolicy;

/// What answers requests.
pub(crate) struct AppState {
    pub(crate) config: Config,
    /// What can change while the server runs; `config` is what it was started with.
    pub(crate) settings: SettingsReceiver,
    pub(crate) nip11: Nip11Document,
    /// The rules that hold.
    pub(crate) book: Arc<CurrentPolicy>,
    pub(crate) networks: NetworkLimits,
    pub(crate) rooms: SessionContext,
    pub(crate) git: Arc<GitService>,
    pub(crate) pages: RepositoryPages,
    pub(crate) meter: Metrics,
    /// How everything is.
    pub(crate) status: Arc<StatusCache>,
    /// What was seen of the operator's check of the set-up.
    pub(crate) proxy_probe: Arc<ProxyProbe>,
}

impl RequestHandler for AppState {
    async fn handle(
        self: Arc<Self>,
        peer: IpAddr,
        presence: Arc<ConnectionPermit>,
        request: Request<Incoming>,
    ) -> HttpResponse {
        let head = request.method() == Method::HEAD;
        let (meter, word) = (self.meter.clone(), word(&self.config, request.uri().path()));
        let mut answer = route(self, peer, presence, request).await;
        allow_everybody(answer.headers_mut());
        meter.relay().request(word, answer.status().as_u16());
        if head { bodiless(answer) } else { answer }
    }
}

/// What a path leads to, for measurements.
fn word(config: &Config, path: &str) -> &'static str {
    let below = path.strip_prefix(config.base_path.as_str()).unwrap_or_default();
    match below.rsplit('/').next().unwrap_or_default() {
        _ if matches!(below, "" | "/") => "relay",
        _ if Sight::at(path).or_else(|| Sight::at(below)).is_some() => "watch",
        "refs" => "info_refs",
        "git-upload-pack" => "upload_pack",
        "git-receive-pack" => "receive_pack",
        "purgatory" | "replication.json" => "repository_json",
        last if last.ends_with(".git") => "repository",
        _ => "other",
    }
}

async fn route(
    house: Arc<AppState>,
    peer: IpAddr,
    presence: Arc<ConnectionPermit>,
    request: Request<Incoming>,
) -> HttpResponse {
    if request.method() == Method::OPTIONS {
        return status(StatusCode::NO_CONTENT, "");
    }
    let proxies = &house.config.trusted_proxies;
    let who = || proxy_probe::ProbedClient {
        address: forwarded::address(peer, request.headers(), proxies),
        is_proxy: proxies.iter().any(|range| range.contains(peer)),
    };
    let is_check = house.proxy_probe.record(&request, peer, who, house.rooms.clock.mono());
    if is_check && proxy_probe::has_counted_body(request.method()) {
        return proxy_probe::count_body(request).await;
    }
    let below = request.uri().path().strip_prefix(house.config.base_path.as_str());
    if !matches!(below, Some("" | "/")) {
        return elsewhere(&house, peer, request).await;
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return method_not_allowed("GET, HEAD, OPTIONS");
    }
    if *request.method() == Method::GET && upgrade::is_upgrade(request.headers()) {
        // Whoever comes directly has its place already.
        let address = forwarded::address(peer, request.headers(), &house.config.trusted_proxies);
        let place = if presence.place.is_some() {
            None
        } else {
            match house.networks.enter(address).await {
                Some(place) => Some(place),
                None => return status(StatusCode::TOO_MANY_REQUESTS, "too many connections from your network\n"),
            }
        };
        return upgrade::upgrade(house.rooms.clone(), address, place, presence, request);
    }
    if accepts_nostr_json(request.headers()) {
        let text = house.nip11.text(&house.settings.borrow(), &house.book.rules().lists);
        return with_type(StatusCode::OK, "application/nostr+json", text);
    }
    let mut answer =
        crate::web::repository_handler::fresh(request.headers(), front(&house), |page| html(StatusCode::OK, page));
    answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    answer
}

fn front(house: &AppState) -> String {
    let config = house.settings.borrow().clone();
    let mode = AdmissionMode::from(config.policy);
    let lists = house.book.rules().lists.clone();
    landing(&Landing {
        name: &config.relay_name,
        description: &config.relay_description,
        relay_url: &house.git.relay,
        git_url: &house.git.url,
        version: env!("CARGO_PKG_VERSION"),
        repositories: Some(house.git.directory.repositories()),
        acceptance: nip11::criteria(mode, &lists),
        curation: nip11::curation(mode, &lists),
        grasps: &nip11::grasps(&config, &lists),
        contact: None,
        status: config.status == StatusPageAccess::Public,
    })
}

/// What is not the relay: repositories, and a few files.
async fn elsewhere(house: &Arc<AppState>, peer: IpAddr, request: Request<Incoming>) -> HttpResponse {
    let path = request.uri().path();
    // Crawlers ask at the root of a host, wherever the service lives on it.
    if path == "/robots.txt" && matches!(*request.method(), Method::GET | Method::HEAD) {
        return with_type(StatusCode::OK, "text/plain; charset=utf-8", web::robots().to_owned());
    }
    let below = path.strip_prefix(house.config.base_path.as_str()).unwrap_or_default();
    // Who measures asks at the root of a port, too, unless told otherwise.
    if let Some(sight) = Sight::at(path).or_else(|| Sight::at(below)) {
        return monitoring::answer(house, Port::Main, sight, request.method(), request.headers());
    }
    let Some((repo_path, below)) = below.strip_prefix('/').and_then(RepoPath::from_path) else { return not_found() };
    let Some(open) = house.git.directory.open(&repo_path) else { return not_found() };
    let below = below.to_owned();
    let client = handlers::Client::new(forwarded::address(peer, request.headers(), &house.config.trusted_proxies));
    if let Some(answer) = house.pages.route(client, &repo_path, &open, &below, &request).await {
        return answer;
    }
    handlers::route(house.git.clone(), client, repo_path, &open, &below, request).await.unwrap_or_else(not_found)
}

fn accepts_nostr_json(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.into_iter().any(|value| value.to_ascii_lowercase().contains("application/nostr+json"))
}

/// Browsers of any origin may talk to this server, whatever it answers (G1-64).
fn allow_everybody(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST, OPTIONS"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "Content-Type, Authorization, Git-Protocol, Accept"),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, "WWW-Authenticate, ETag, Retry-After"),
        (header::ACCESS_CONTROL_MAX_AGE, "86400"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// The page for paths that do not exist.
pub(super) fn not_found() -> HttpResponse {
    html(StatusCode::NOT_FOUND, web::not_found::not_found(""))
}
