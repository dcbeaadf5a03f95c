//! Websocket handshake: turns an HTTP request into a session.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::limits;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, StatusCode, Version, header};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tracing::debug;

use super::session::SessionContext;
use crate::http::body::HttpResponse;
use crate::http::network_limits::NetworkSlot;
use crate::http::response::{status, with_header};
use crate::http::server::ConnectionPermit;
use crate::metrics::relay::SessionGuard;
use crate::relay::session::Session;

/// Whether a request asks for a websocket. `Connection` is a list: `keep-alive, Upgrade` counts.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let has_value = |name, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value: &HeaderValue| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(wanted))
    };
    has_value(header::CONNECTION, "upgrade") && has_value(header::UPGRADE, "websocket")
}

/// Answers the handshake and spawns the task of the session.
pub(crate) fn upgrade(
    context: SessionContext,
    address: IpAddr,
    network_slot: Option<NetworkSlot>,
    connection: Arc<ConnectionPermit>,
    mut request: Request<Incoming>,
) -> HttpResponse {
    let headers = request.headers();
    let is_version_13 = headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .filter(|key| key.len() == 24)
        .map(|key| derive_accept_key(key.as_bytes()));
    let (Some(key), true, Version::HTTP_11) = (key, is_version_13, request.version()) else {
        let text = "invalid websocket handshake: HTTP/1.1, a key and version 13 are required\n";
        return with_header(status(StatusCode::BAD_REQUEST, text), header::SEC_WEBSOCKET_VERSION, "13");
    };
    let Ok(accept) = HeaderValue::from_str(&key) else {
        return status(StatusCode::BAD_REQUEST, "invalid websocket handshake\n");
    };
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let timeout = Duration::from_secs(limits::HANDSHAKE_TIMEOUT_SECS);
        let io = match tokio::time::timeout(timeout, upgraded).await {
            Ok(Ok(io)) => TokioIo::new(io),
            Ok(Err(error)) => return debug!(target: "relay", %error, "websocket handshake failed"),
            Err(_) => return debug!(target: "relay", "websocket handshake timed out"),
        };
        let metrics_guard = SessionGuard::new(&context.metrics, address);
        Session::new(context, network_slot, connection, metrics_guard).run(io).await;
    });
    let mut response = status(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    response
}
