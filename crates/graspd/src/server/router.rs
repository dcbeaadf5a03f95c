//! Routes: which handler answers a request.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use grasp_core::repo::RepoPath;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Request, StatusCode, header};

use super::monitoring::{ListenerKind, MonitoringEndpoint};
use super::resources::Resources;
use super::threads::WorkerThreads;
use super::{Services, monitoring};
use crate::admin::proxy_probe;
use crate::config::{Config, StatusPageAccess};
use crate::git::handlers::GitClient;
use crate::http::body::HttpResponse;
use crate::http::forwarded::{self, ReportedProxies, RequestClient};
use crate::http::network_limits::ClientNetwork;
use crate::http::response::{
    add_default_headers, html, method_not_allowed, status, with_header, with_type, without_body,
};
use crate::http::server::{ConnectionPermit, RequestHandler};
use crate::metrics::relay::HttpRoute;
use crate::net::contact::NetworkContact;
use crate::relay::nip11::Nip11Document;
use crate::relay::session::SessionContext;
use crate::relay::{nip11, upgrade};
use crate::repos::ref_cache::RefCache;
use crate::web;
use crate::web::landing::LandingPage;
use crate::web::repository_handler::with_etag;
use crate::writer::policy::CurrentPolicy;

/// State that the request handlers use.
pub(super) struct AppState {
    /// The settings at the start. For settings that can be reloaded see [`SessionContext::settings`].
    pub(super) config: Config,
    nip11: Nip11Document,
    policy: Arc<CurrentPolicy>,
    network_contact: Arc<NetworkContact>,
    pub(super) sessions: SessionContext,
    ref_cache: Arc<RefCache>,
    reported_proxies: ReportedProxies,
    pub(super) services: Services,
}

impl AppState {
    pub(super) fn new(config: Config, resources: &Resources, threads: &WorkerThreads, services: Services) -> Self {
        Self {
            nip11: Nip11Document::new(resources.owner_key.to_string(), resources.instance.clone()),
            policy: resources.current_policy.clone(),
            network_contact: resources.network_contact.clone(),
            sessions: SessionContext {
                queue: threads.event_queue.clone(),
                broadcast: threads.broadcast.clone(),
                query_pool: threads.query_pool.clone(),
                negentropy_cache: threads.negentropy_cache.clone(),
                budgets: threads.budgets.clone(),
                store: resources.store.clone(),
                clock: resources.clock,
                service: resources.policy.service.clone(),
                settings: resources.settings.clone(),
                next_subscription_key: Arc::new(AtomicU64::new(1)),
                metrics: resources.metrics.clone(),
                shutdown_grace: config.shutdown_grace,
            },
            ref_cache: resources.ref_cache.clone(),
            reported_proxies: ReportedProxies::default(),
            services,
            config,
        }
    }
}

impl RequestHandler for AppState {
    async fn handle(
        self: Arc<Self>,
        peer: IpAddr,
        permit: Arc<ConnectionPermit>,
        request: Request<Incoming>,
    ) -> HttpResponse {
        let is_head = request.method() == Method::HEAD;
        let (metrics, http_route) = (self.sessions.metrics.clone(), http_route(&self.config, request.uri().path()));
        let mut response = route(self, peer, permit, request).await;
        add_cors_headers(response.headers_mut());
        add_default_headers(&mut response);
        metrics.relay().count_response(http_route, response.status().as_u16());
        if is_head { without_body(response) } else { response }
    }
}

/// Returns the kind of request for a path, for the metrics.
fn http_route(config: &Config, path: &str) -> HttpRoute {
    let below = path.strip_prefix(config.base_path.as_str()).unwrap_or_default();
    match below.rsplit('/').next().unwrap_or_default() {
        _ if matches!(below, "" | "/") => HttpRoute::Relay,
        _ if MonitoringEndpoint::find(config, path).is_some() => HttpRoute::Monitoring,
        "refs" => HttpRoute::InfoRefs,
        "git-upload-pack" => HttpRoute::UploadPack,
        "git-receive-pack" => HttpRoute::ReceivePack,
        "purgatory" | "replication.json" => HttpRoute::RepositoryJson,
        last if last.ends_with(".git") => HttpRoute::Repository,
        _ => HttpRoute::Other,
    }
}

/// Routes a request: CORS preflight, proxy probe, relay endpoint (websocket, NIP-11, landing page), everything else.
async fn route(
    app: Arc<AppState>,
    peer: IpAddr,
    permit: Arc<ConnectionPermit>,
    request: Request<Incoming>,
) -> HttpResponse {
    if request.method() == Method::OPTIONS {
        return status(StatusCode::NO_CONTENT, "");
    }
    let proxies = &app.config.trusted_proxies;
    let client = RequestClient::new(peer, request.headers(), proxies);
    if client.is_untrusted_proxy {
        app.reported_proxies.report(peer);
    }
    app.network_contact.record(client.address);
    let probed = || proxy_probe::ProbedClient { address: client.address, is_proxy: forwarded::is_in(peer, proxies) };
    let is_probe = app.services.proxy_probe.record(&request, peer, probed, app.sessions.clock.mono());
    if is_probe && request.method() == Method::POST {
        return proxy_probe::count_body(request).await;
    }
    let below = request.uri().path().strip_prefix(app.config.base_path.as_str());
    if !matches!(below, Some("" | "/")) {
        return route_below_base(&app, client, request).await;
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return method_not_allowed("GET, HEAD, OPTIONS");
    }
    if *request.method() == Method::GET && upgrade::is_upgrade(request.headers()) {
        // A connection without a proxy has a slot in its network already.
        let has_slot = permit.network_slot.is_some() && client.network != Some(ClientNetwork::UntrustedProxy);
        let network_slot = if has_slot {
            None
        } else {
            match app.services.network_limits.claim(client.network) {
                Some(network_slot) => Some(network_slot),
                None => return status(StatusCode::TOO_MANY_REQUESTS, "too many connections from your network\n"),
            }
        };
        return upgrade::upgrade(app.sessions.clone(), client.address, network_slot, permit, request);
    }
    if accepts_nostr_json(request.headers()) {
        let text = app.nip11.text(&app.sessions.settings.borrow(), &app.policy.policy().lists);
        return with_type(StatusCode::OK, "application/nostr+json", text);
    }
    let page = with_etag(request.headers(), landing_page(&app), |page| html(StatusCode::OK, page));
    with_header(page, header::VARY, "Accept")
}

fn landing_page(app: &AppState) -> String {
    let config = app.sessions.settings.borrow().clone();
    let mode = config.policy;
    let lists = app.policy.policy().lists.clone();
    web::render(&LandingPage {
        name: &config.relay_name,
        description: &config.relay_description,
        relay_url: &app.config.relay_url(),
        git_url: &app.config.web_url(),
        version: env!("CARGO_PKG_VERSION"),
        repositories: app.ref_cache.served_repo_count(),
        acceptance: nip11::repo_acceptance_criteria(mode, &lists),
        curation: nip11::curation(mode, &lists),
        grasps: &nip11::supported_grasps(&config, &lists),
        has_status_page: config.status == StatusPageAccess::Public,
    })
}

/// Routes a request that is not for the relay endpoint: `robots.txt`, monitoring, repositories.
async fn route_below_base(app: &Arc<AppState>, client: RequestClient, request: Request<Incoming>) -> HttpResponse {
    let path = request.uri().path();
    // Crawlers request this at the root of the host, whatever the base path of the service is.
    if path == "/robots.txt" && matches!(*request.method(), Method::GET | Method::HEAD) {
        let response = with_type(StatusCode::OK, "text/plain; charset=utf-8", web::ROBOTS_TXT);
        return with_header(response, header::CACHE_CONTROL, "public, max-age=86400");
    }
    let below = path.strip_prefix(app.config.base_path.as_str()).unwrap_or_default();
    // Monitoring tools use the root of the host by default, so these paths are served there as well.
    if let Some(endpoint) = MonitoringEndpoint::find(&app.config, path) {
        return monitoring::respond(app, ListenerKind::Main, endpoint, request.method(), request.headers());
    }
    let Some((repo_path, below)) = below.strip_prefix('/').and_then(RepoPath::from_path) else { return not_found() };
    let Some(open) = app.ref_cache.open_repo(&repo_path) else { return not_found() };
    let below = below.to_owned();
    let client = GitClient::new(client.network);
    if let Some(response) = app.services.pages.route(client, &repo_path, &open, &below, &request).await {
        return response;
    }
    app.services.git.route(client, repo_path, &open, &below, request).await.unwrap_or_else(not_found)
}

fn accepts_nostr_json(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.into_iter().any(|value| value.to_ascii_lowercase().contains("application/nostr+json"))
}

/// Adds the CORS headers that every response has, whatever its status (`docs/protocol.md#cors`).
fn add_cors_headers(headers: &mut HeaderMap) {
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

/// Returns the page for paths that do not exist.
pub(super) fn not_found() -> HttpResponse {
    html(StatusCode::NOT_FOUND, web::not_found::not_found())
}
