//! Endpoints for monitoring: metrics, health and status. They are served on the main listener, or on a separate one.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, StatusCode, header};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::router::{AppState, not_found};
use crate::config::{Config, Secret, StatusPageAccess};
use crate::http::body::HttpResponse;
use crate::http::response::{add_default_headers, method_not_allowed, status, with_header, with_type, without_body};
use crate::http::server::{HTTP_TIMEOUTS, accept_connections, serve_connection};
use crate::http::stall_timeout::ConnectionActivity;
use crate::metrics::exposition::ExpositionFormat;
use crate::monitor::endpoints;
use crate::web::status_cache;

/// Maximum number of connections to the monitoring listener: a few programs and a few people use it.
const MAX_CONNECTIONS: usize = 64;

/// Listener that accepted a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListenerKind {
    /// The public listener.
    Main,
    /// The listener for monitoring, see the setting `METRICS_BIND_ADDRESS`.
    Monitoring,
}

/// A path that is served for monitoring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MonitoringEndpoint {
    Metrics,
    Healthz,
    Readyz,
    Status,
    StatusJson,
    StatusScript,
}

impl MonitoringEndpoint {
    /// Returns the endpoint of a path, with or without the base path.
    pub(crate) fn find(config: &Config, path: &str) -> Option<Self> {
        let below = path.strip_prefix(config.base_path.as_str()).unwrap_or_default();
        Self::from_path(path).or_else(|| Self::from_path(below))
    }

    fn from_path(path: &str) -> Option<Self> {
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

/// Answers a request for a monitoring endpoint.
pub(crate) fn respond(
    app: &AppState,
    listener: ListenerKind,
    endpoint: MonitoringEndpoint,
    method: &Method,
    headers: &HeaderMap,
) -> HttpResponse {
    let settings = &app.config.metrics;
    let is_enabled = match endpoint {
        MonitoringEndpoint::Healthz | MonitoringEndpoint::Readyz => true,
        MonitoringEndpoint::Metrics => {
            settings.enabled && (listener == ListenerKind::Monitoring || settings.bind.is_none())
        }
        MonitoringEndpoint::Status | MonitoringEndpoint::StatusJson | MonitoringEndpoint::StatusScript => {
            match app.config.status {
                StatusPageAccess::Public => true,
                StatusPageAccess::Private => listener == ListenerKind::Monitoring,
                StatusPageAccess::Disabled => false,
            }
        }
    };
    if !is_enabled {
        return not_found();
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        return method_not_allowed("GET, HEAD, OPTIONS");
    }
    let now = app.sessions.clock.mono();
    match endpoint {
        MonitoringEndpoint::Metrics => match &settings.token {
            Some(token) if !has_token(headers, token) => {
                let response = status(StatusCode::UNAUTHORIZED, "missing or invalid bearer token\n");
                with_header(response, header::WWW_AUTHENTICATE, "Bearer")
            }
            _ => {
                let format = ExpositionFormat::negotiate(headers);
                let text = format.convert(app.sessions.metrics.encode());
                let response = with_type(StatusCode::OK, format.content_type(), text);
                with_header(with_header(response, header::VARY, "Accept"), header::CACHE_CONTROL, "no-store")
            }
        },
        MonitoringEndpoint::Healthz => endpoints::healthz(&app.services.status.health(), now),
        MonitoringEndpoint::Readyz => {
            endpoints::readyz(&app.services.status.health(), now, app.services.status.is_shutting_down())
        }
        MonitoringEndpoint::Status => app.services.status.page(),
        MonitoringEndpoint::StatusJson => app.services.status.json(),
        MonitoringEndpoint::StatusScript => status_cache::script(),
    }
}

/// Returns true if a request has the bearer token. The time it takes does not depend on how much of the token is right.
fn has_token(headers: &HeaderMap, token: &Secret) -> bool {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, given)) = value.and_then(|value| value.split_once(' ')) else { return false };
    let (given, expected) = (given.trim().as_bytes(), token.reveal().as_bytes());
    let difference = given.iter().zip(expected).fold(0, |difference, (left, right)| difference | (left ^ right));
    scheme.eq_ignore_ascii_case("bearer") && given.len() == expected.len() && difference == 0
}

/// Accepts connections on the monitoring listener until `shutdown`, which is later than that of the main listener, so
/// that the shutdown itself can be observed.
pub(crate) async fn run(listener: TcpListener, app: Arc<AppState>, shutdown: watch::Receiver<bool>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepted = |(stream, _)| {
        let Ok(permit) = connections.clone().try_acquire_owned() else { return };
        let (app, shutdown) = (app.clone(), shutdown.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let activity = ConnectionActivity::new(app.sessions.clock);
            let service = service_fn(move |request: Request<Incoming>| {
                let app = app.clone();
                async move { Ok::<_, Infallible>(handle(&app, &request)) }
            });
            serve_connection(stream, service, shutdown, activity, HTTP_TIMEOUTS).await;
        });
    };
    accept_connections("monitoring", || listener.accept(), shutdown.clone(), accepted).await;
}

fn handle(app: &AppState, request: &Request<Incoming>) -> HttpResponse {
    let mut response = match MonitoringEndpoint::find(&app.config, request.uri().path()) {
        Some(endpoint) => respond(app, ListenerKind::Monitoring, endpoint, request.method(), request.headers()),
        None => not_found(),
    };
    add_default_headers(&mut response);
    if *request.method() == Method::HEAD { without_body(response) } else { response }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_the_exact_bearer_token_is_accepted() {
        let token = Secret::for_tests("hush");
        let headers =
            |value: &'static str| HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
        assert!(has_token(&headers("Bearer hush"), &token) && has_token(&headers("bearer  hush"), &token));
        for wrong in ["hush", "Bearer hus", "Bearer hushh", "Bearer HUSH", "Basic hush", "Bearer"] {
            assert!(!has_token(&headers(wrong), &token), "{wrong}");
        }
        assert!(!has_token(&HeaderMap::new(), &token));
    }
}
