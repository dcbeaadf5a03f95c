//! Which request goes where.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};

use super::networks::NetworksDoor;
use super::session::Rooms;
use super::{client, pages, socket};
use crate::config::Config;
use crate::door::listen::Presence;

/// What answers requests.
pub(crate) struct House {
    pub(crate) config: Config,
    pub(crate) nip11: String,
    pub(crate) networks: NetworksDoor,
    pub(crate) rooms: Rooms,
}

pub(crate) type Answer = Response<Full<Bytes>>;

/// Answers one request. `presence` keeps the server from going down while the connection lives.
pub(crate) async fn answer(
    house: Arc<House>,
    peer: IpAddr,
    presence: Arc<Presence>,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let head = request.method() == Method::HEAD;
    let mut answer = route(house, peer, presence, request).await;
    allow_everybody(answer.headers_mut());
    if head {
        let length = hyper::body::Body::size_hint(answer.body()).exact().unwrap_or(0);
        answer.headers_mut().entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(length));
        *answer.body_mut() = Full::default();
    }
    Ok(answer)
}

async fn route(house: Arc<House>, peer: IpAddr, presence: Arc<Presence>, request: Request<Incoming>) -> Answer {
    if request.method() == Method::OPTIONS {
        return status(StatusCode::NO_CONTENT, "");
    }
    let path = request.uri().path();
    let is_root = path.strip_prefix(house.config.base_path.as_str()).is_some_and(|rest| rest.is_empty() || rest == "/");
    if !is_root {
        return html(StatusCode::NOT_FOUND, pages::not_found());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = status(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD or a websocket\n");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
        return answer;
    }
    if *request.method() == Method::GET && socket::is_upgrade(request.headers()) {
        // Whoever comes directly has its place already.
        let place = if presence.place.is_some() {
            None
        } else {
            let address = client::address(peer, request.headers(), &house.config.trusted_proxies);
            match house.networks.enter(address).await {
                Some(place) => Some(place),
                None => return status(StatusCode::TOO_MANY_REQUESTS, "too many connections from your network\n"),
            }
        };
        return socket::upgrade(house, place, presence, request);
    }
    if accepts_nostr_json(request.headers()) {
        return with_type(StatusCode::OK, "application/nostr+json", house.nip11.clone());
    }
    let relay = format!("ws://{}{}", house.config.domain, house.config.base_path);
    html(StatusCode::OK, pages::landing(&house.config.relay_name, &house.config.relay_description, &relay))
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

/// A short plain answer.
pub(crate) fn status(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    if !text.is_empty() {
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    answer
}

fn html(status: StatusCode, text: String) -> Answer {
    let mut answer = with_type(status, "text/html; charset=utf-8", text);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    answer
}

fn with_type(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
