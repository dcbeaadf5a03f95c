//! From an HTTP request to a websocket session.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::limits;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, StatusCode, Version, header};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tracing::debug;

use super::session::SessionContext;
use crate::http::body::HttpResponse;
use crate::http::network_limits::NetworkSlot;
use crate::http::response::status;
use crate::http::server::ConnectionPermit;
use crate::metrics::relay::SessionGuard;
use crate::relay::session::Session;

/// Whether a request wants to become a websocket. `Connection` is a list: `keep-alive, Upgrade` counts.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let has = |name, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value: &HeaderValue| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(wanted))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// Answers the handshake and lets a session run on what comes of it.
pub(crate) fn upgrade(
    rooms: SessionContext,
    address: IpAddr,
    place: Option<NetworkSlot>,
    presence: Arc<ConnectionPermit>,
    mut request: Request<Incoming>,
) -> HttpResponse {
    let headers = request.headers();
    let version_13 = headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .filter(|key| key.len() == 24)
        .map(|key| derive_accept_key(key.as_bytes()));
    let (Some(key), true, Version::HTTP_11) = (key, version_13, request.version()) else {
        let mut answer = status(StatusCode::BAD_REQUEST, "not a websocket handshake of version 13\n");
        answer.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return answer;
    };
    let Ok(accept) = HeaderValue::from_str(&key) else {
        return status(StatusCode::BAD_REQUEST, "not a websocket handshake\n");
    };
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let patience = Duration::from_secs(limits::HANDSHAKE_TIMEOUT_SECS);
        let io = match tokio::time::timeout(patience, upgraded).await {
            Ok(Ok(io)) => TokioIo::new(io),
            Ok(Err(problem)) => return debug!(%problem, "a handshake failed"),
            Err(_) => return debug!("a handshake took too long"),
        };
        let stream = WebSocketStream::from_raw_socket(io, Role::Server, Some(websocket_config())).await;
        let sitting = SessionGuard::new(&rooms.meter, address);
        Session::new(rooms, place, presence, sitting).run(stream).await;
    });
    let mut answer = status(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    answer
}

/// Small buffers: they are held by every idle connection, and thousands of those are normal. The read buffer is also
/// zeroed whenever the socket is looked at.
fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(2 * 1024)
        .write_buffer_size(0)
        .max_write_buffer_size(64 * 1024)
        .max_message_size(Some(limits::MAX_MESSAGE_BYTES))
        .max_frame_size(Some(limits::MAX_MESSAGE_BYTES))
}
