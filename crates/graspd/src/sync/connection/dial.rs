//! From a relay's URL to a websocket and what the relay says of itself.

use std::pin::pin;

use grasp_core::limits;
use grasp_core::net::{OutboundUrl, UrlPurpose};
use grasp_core::sync::io::DisconnectReason;
use grasp_core::sync::relay_limits::Nip11Info;
use hyper::StatusCode;
use hyper::header::{HeaderValue, USER_AGENT};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::{Error as WsError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tracing::debug;

use super::RelaySocket;
use crate::net;
use crate::net::dialer::{DialError, Route};
use crate::net::http_client;
use crate::net::stream::OutboundStream;

/// What the read buffer of a socket takes. Hundreds are open, and it is zeroed whenever one is looked at.
const READ_BUFFER: usize = 16 * 1024;

impl RelaySocket {
    /// The websocket, and the nip11 if they came in time. Both are asked for at once, at the same addresses.
    pub(super) async fn dial(&self) -> Result<(WebSocketStream<OutboundStream>, Option<Nip11Info>), DisconnectReason> {
        let patience = self.shared.patience;
        let deadline = Instant::now() + patience.dial;
        let route = self.route(deadline).await?;
        let mut document = pin!(timeout(patience.nip11, self.nip11(&route)));
        let mut nip11 = None;
        let socket = {
            let mut socket = pin!(timeout_at(deadline, self.handshake(&route)));
            loop {
                tokio::select! {
                    socket = &mut socket => break socket.unwrap_or_else(|_| {
                        debug!(relay = %self.url, "no handshake in time");
                        Err(DisconnectReason::Unreachable)
                    })?,
                    found = &mut document, if nip11.is_none() => nip11 = Some(found.ok().flatten()),
                }
            }
        };
        let nip11 = match nip11 {
            Some(nip11) => nip11,
            None => timeout(patience.nip11_grace, document).await.ok().and_then(Result::ok).flatten(),
        };
        Ok((socket, nip11))
    }

    async fn route(&self, deadline: Instant) -> Result<Route, DisconnectReason> {
        let dialer = &self.shared.dialer;
        let target = OutboundUrl::parse(&self.url.to_string(), UrlPurpose::Relay, dialer.reach()).map_err(|why| {
            debug!(relay = %self.url, %why, "a relay must not be dialled");
            DisconnectReason::Forbidden
        })?;
        match timeout_at(deadline, dialer.route(target)).await {
            Ok(Ok(route)) => Ok(route),
            Ok(Err(problem)) => Err(self.lost(&problem)),
            Err(_) => Err(DisconnectReason::Unreachable),
        }
    }

    async fn handshake(&self, route: &Route) -> Result<WebSocketStream<OutboundStream>, DisconnectReason> {
        let stream = self.shared.dialer.connect(route).await.map_err(|problem| self.lost(&problem))?;
        let mut request = route.target().to_string().into_client_request().map_err(|_| DisconnectReason::Forbidden)?;
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(net::USER_AGENT));
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            // One message at a time is in it, and a few pongs.
            .max_write_buffer_size(limits::MAX_RECEIVED_MESSAGE_BYTES)
            .max_message_size(Some(limits::MAX_RECEIVED_MESSAGE_BYTES))
            .max_frame_size(Some(limits::MAX_RECEIVED_MESSAGE_BYTES));
        match tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(problem) => {
                debug!(relay = %self.url, %problem, "no websocket");
                Err(match problem {
                    WsError::Io(_) | WsError::Protocol(ProtocolError::HandshakeIncomplete) => {
                        DisconnectReason::Unreachable
                    }
                    WsError::Http(answer) if is_busy(answer.status()) => DisconnectReason::Unreachable,
                    _ => DisconnectReason::NotARelay,
                })
            }
        }
    }

    async fn nip11(&self, route: &Route) -> Option<Nip11Info> {
        let document = http_client::get(&self.shared.dialer, route, "application/nostr+json", limits::MAX_NIP11_BYTES);
        match document.await {
            Ok(document) => Nip11Info::parse(std::str::from_utf8(&document).ok()?),
            Err(problem) => {
                debug!(relay = %self.url, %problem, "no NIP-11 document");
                None
            }
        }
    }

    fn lost(&self, problem: &DialError) -> DisconnectReason {
        debug!(relay = %self.url, %problem, "a relay was not reached");
        match problem {
            DialError::Forbidden(_) => DisconnectReason::Forbidden,
            DialError::NoSuchName(_) | DialError::Unreachable(_) => DisconnectReason::Unreachable,
            DialError::Tls(_) => DisconnectReason::NotARelay,
        }
    }
}

/// Whether a refusal says that the server is not itself today: proxies answer so for a relay that restarts.
fn is_busy(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}
