//! Which request goes where.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use grasp_core::admission::policy::Mode;
use grasp_core::repo::Site;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};

use super::body::{Answer, Reply};
use super::connection_limit::Places;
use super::monitoring::{Port, Sight};
use super::network_limits::NetworksDoor;
use super::{forwarded, monitoring, upgrade};
use crate::admin::proxy_probe;
use crate::admin::proxy_probe::Sightings;
use crate::config::{Config, StatusAt};
use crate::git::handlers;
use crate::git::handlers::GitHouse;
use crate::http::server::Presence;
use crate::metrics::Meter;
use crate::relay::nip11;
use crate::relay::nip11::Leaflet;
use crate::relay::session::Rooms;
use crate::reload::Settings;
use crate::web;
use crate::web::landing::{Landing, landing};
use crate::web::status_cache::StatusBoard;
use crate::writer::policy::Rulebook;

/// What answers requests.
pub(crate) struct House {
    pub(crate) config: Config,
    /// What can change while the server runs; `config` is what it was started with.
    pub(crate) settings: Settings,
    pub(crate) nip11: Leaflet,
    /// The rules that hold.
    pub(crate) book: Arc<Rulebook>,
    pub(crate) networks: NetworksDoor,
    pub(crate) rooms: Rooms,
    pub(crate) git: Arc<GitHouse>,
    pub(crate) meter: Meter,
    /// Places for connections.
    pub(crate) places: Arc<Places>,
    /// How everything is.
    pub(crate) status: StatusBoard,
    /// What was seen of the operator's check of the set-up.
    pub(crate) sightings: Sightings,
}

/// Answers one request. `presence` keeps the server from going down while the connection lives.
pub(crate) async fn answer(
    house: Arc<House>,
    peer: IpAddr,
    presence: Arc<Presence>,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let head = request.method() == Method::HEAD;
    let (meter, word) = (house.meter.clone(), word(&house.config, request.uri().path()));
    let mut answer = route(house, peer, presence, request).await;
    allow_everybody(answer.headers_mut());
    meter.relay().request(word, answer.status().as_u16());
    Ok(if head { bodiless(answer) } else { answer })
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

/// The answer to HEAD: what GET would give, without its body.
pub(crate) fn bodiless(mut answer: Answer) -> Answer {
    if let Some(length) = hyper::body::Body::size_hint(answer.body()).exact() {
        answer.headers_mut().entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
    *answer.body_mut() = Reply::from(Vec::new());
    answer
}

async fn route(house: Arc<House>, peer: IpAddr, presence: Arc<Presence>, request: Request<Incoming>) -> Answer {
    if request.method() == Method::OPTIONS {
        return status(StatusCode::NO_CONTENT, "");
    }
    let proxies = &house.config.trusted_proxies;
    let who = || proxy_probe::Client {
        address: forwarded::address(peer, request.headers(), proxies),
        is_proxy: proxies.iter().any(|range| range.contains(peer)),
    };
    let is_check = house.sightings.note(&request, peer, who, house.rooms.clock.mono());
    if is_check && proxy_probe::brings_a_body(request.method()) {
        return proxy_probe::count(request).await;
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
        return upgrade::upgrade(house, address, place, presence, request);
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

fn front(house: &House) -> String {
    let config = house.settings.borrow().clone();
    let mode = Mode::from(config.policy);
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
        status: config.status == StatusAt::Everywhere,
    })
}

/// What is not the relay: repositories, and a few files.
async fn elsewhere(house: &Arc<House>, peer: IpAddr, request: Request<Incoming>) -> Answer {
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
    let Some((site, below)) = below.strip_prefix('/').and_then(Site::from_path) else { return not_found() };
    let below = below.to_owned();
    let client = handlers::Client::new(forwarded::address(peer, request.headers(), &house.config.trusted_proxies));
    handlers::route(house.git.clone(), client, site, below, request).await
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

/// There is nothing here.
pub(crate) fn not_found() -> Answer {
    html(StatusCode::NOT_FOUND, web::not_found::not_found(""))
}

/// The path is right, the method is not.
pub(crate) fn method_not_allowed(allowed: &'static str) -> Answer {
    let mut answer = status(StatusCode::METHOD_NOT_ALLOWED, "this address does not take that method\n");
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// A short plain answer.
pub(crate) fn status(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Reply::from(text));
    *answer.status_mut() = status;
    if !text.is_empty() {
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    answer
}

pub(crate) fn html(status: StatusCode, text: String) -> Answer {
    let mut answer = with_type(status, "text/html; charset=utf-8", text);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    answer
}

pub(crate) fn with_type(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Reply::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
