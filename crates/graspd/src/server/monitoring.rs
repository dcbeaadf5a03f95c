//! What is for those who watch over the service: measurements, health, status. It is answered at the main port, or at a
//! port of its own.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, StatusCode, header};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tracing::debug;

use super::router::{AppState, not_found};
use crate::config::{Secret, StatusPageAccess};
use crate::http::body::HttpResponse;
use crate::http::response::{bodiless, method_not_allowed, status, with_type};
use crate::http::server::{BREATH, PATIENCE, converse, departure};
use crate::http::stall_timeout::Progress;
use crate::metrics;
use crate::monitor::endpoints;
use crate::web::status_cache;

/// Connections at the port for those who watch: a few programs and a few people.
const MAX_CONNECTIONS: usize = 64;

/// Which port a request came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Port {
    /// The one for everybody.
    Main,
    /// The one for those who watch.
    Side,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sight {
    Metrics,
    Healthz,
    Readyz,
    Status,
    StatusJson,
    StatusScript,
}

impl Sight {
    /// What a path means, if it means one of these.
    pub(crate) fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/metrics" => Self::Metrics,
            "/healthz" => Self::Healthz,
            "/readyz" => Self::Readyz,
            "/status" => Self::Status,
            "/status.json" => Self::StatusJson,
            "/status.js" => Self::StatusScript,
            _ => return None,
        })
    }
}

/// Answers somebody who watches.
pub(crate) fn answer(house: &AppState, port: Port, sight: Sight, method: &Method, headers: &HeaderMap) -> HttpResponse {
    let settings = &house.config.metrics;
    let open = match sight {
        Sight::Healthz | Sight::Readyz => true,
        Sight::Metrics => settings.enabled && (port == Port::Side || settings.bind.is_none()),
        Sight::Status | Sight::StatusJson | Sight::StatusScript => match house.config.status {
            StatusPageAccess::Public => true,
            StatusPageAccess::Private => port == Port::Side,
            StatusPageAccess::Disabled => false,
        },
    };
    if !open {
        return not_found();
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        return method_not_allowed("GET, HEAD, OPTIONS");
    }
    let now = house.rooms.clock.mono();
    match sight {
        Sight::Metrics => match &settings.token {
            Some(token) if !shows(headers, token) => {
                let mut answer = status(StatusCode::UNAUTHORIZED, "show the token of measurements\n");
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                answer
            }
            _ => with_type(StatusCode::OK, metrics::CONTENT_TYPE, house.meter.encode()),
        },
        Sight::Healthz => endpoints::healthz(&house.status.round(), now),
        Sight::Readyz => endpoints::readyz(&house.status.round(), now, house.status.is_leaving()),
        Sight::Status => house.status.page(),
        Sight::StatusJson => house.status.json(),
        Sight::StatusScript => status_cache::script(),
    }
}

/// Whether a request shows a token. How long it takes says nothing about how much of it is right.
fn shows(headers: &HeaderMap, token: &Secret) -> bool {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, shown)) = shown.and_then(|value| value.split_once(' ')) else { return false };
    let (shown, token) = (shown.trim().as_bytes(), token.reveal().as_bytes());
    let differ = shown.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b));
    scheme.eq_ignore_ascii_case("bearer") && shown.len() == token.len() && differ == 0
}

/// Answers at a port of its own to the end: who watches wants to know how the server goes down, too.
pub(crate) async fn run(listener: TcpListener, house: Arc<AppState>, mut leaving: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let down = leaving.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = departure(&mut leaving) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(problem) => {
                debug!(%problem, "cannot accept a connection of those who watch");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let Ok(permit) = places.clone().try_acquire_owned() else { continue };
        let (house, leaving) = (house.clone(), down.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let progress = Progress::new(house.rooms.clock);
            let service = service_fn(move |request: Request<Incoming>| {
                let house = house.clone();
                async move { Ok::<_, Infallible>(one(&house, &request)) }
            });
            converse(stream, service, leaving, progress, PATIENCE).await;
        });
    }
}

fn one(house: &AppState, request: &Request<Incoming>) -> HttpResponse {
    let path = request.uri().path();
    let below = path.strip_prefix(house.config.base_path.as_str()).unwrap_or_default();
    let answer = match Sight::at(path).or_else(|| Sight::at(below)) {
        Some(sight) => answer(house, Port::Side, sight, request.method(), request.headers()),
        None => not_found(),
    };
    if *request.method() == Method::HEAD { bodiless(answer) } else { answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_in_one_way() {
        let token = Secret::for_tests("hush");
        let headers =
            |value: &'static str| HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
        assert!(shows(&headers("Bearer hush"), &token) && shows(&headers("bearer  hush"), &token));
        for wrong in ["hush", "Bearer hus", "Bearer hushh", "Bearer HUSH", "Basic hush", "Bearer"] {
            assert!(!shows(&headers(wrong), &token), "{wrong}");
        }
        assert!(!shows(&HeaderMap::new(), &token));
    }
}
