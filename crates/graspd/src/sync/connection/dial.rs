//! Dialling: from a relay's URL to a websocket and the relay's NIP-11 document.

use std::io;
use std::pin::pin;

use grasp_core::limits;
use grasp_core::net::{AddressPolicy, OutboundUrl, UrlPurpose};
use grasp_core::nostr::nip11::Nip11Info;
use grasp_core::sync::io::DisconnectReason;
use hyper::StatusCode;
use hyper::header::{HeaderValue, USER_AGENT};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::{Error as WsError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tracing::debug;

use super::{RelayConnection, RelayOrigin};
use crate::net;
use crate::net::dialer::{DialError, Route};
use crate::net::http_client;
use crate::net::stream::OutboundStream;

/// Size of a socket's read buffer. Hundreds of sockets are open, and the buffer is zeroed at each read.
const READ_BUFFER: usize = 16 * 1024;

impl RelayConnection {
    /// Returns the websocket, and the NIP-11 document if it arrived in time. Both are requested from the same addresses.
    /// The document comes first, because a private service must not be dialled; one that takes long is not waited for.
    pub(super) async fn dial(
        &self,
    ) -> Result<(WebSocketStream<Box<dyn OutboundStream>>, Option<Nip11Info>), DisconnectReason> {
        let timeouts = self.context.timeouts;
        let deadline = Instant::now() + timeouts.dial;
        let route = self.route(deadline).await?;
        let mut document = pin!(timeout(timeouts.nip11, self.nip11(&route)));
        let mut nip11 = timeout(timeouts.nip11_first, &mut document).await.ok().map(|found| found.ok().flatten());
        if nip11.as_ref().is_some_and(is_private_service) {
            return Err(DisconnectReason::PrivateService);
        }
        let socket = {
            let mut socket = pin!(timeout_at(deadline, self.handshake(&route)));
            loop {
                tokio::select! {
                    socket = &mut socket => break socket.unwrap_or_else(|_| {
                        debug!(target: "sync", relay = %self.url, "websocket handshake timed out");
                        Err(DisconnectReason::Unreachable)
                    })?,
                    found = &mut document, if nip11.is_none() => nip11 = Some(found.ok().flatten()),
                }
            }
        };
        let nip11 = match nip11 {
            Some(nip11) => nip11,
            None => timeout(timeouts.nip11_grace, document).await.ok().and_then(Result::ok).flatten(),
        };
        if is_private_service(&nip11) {
            return Err(DisconnectReason::PrivateService);
        }
        Ok((socket, nip11))
    }

    async fn route(&self, deadline: Instant) -> Result<Route, DisconnectReason> {
        let dialer = &self.context.dialer;
        let reach = match self.origin {
            RelayOrigin::Event => dialer.reach(),
            RelayOrigin::Configured => AddressPolicy::Any,
        };
        let target = OutboundUrl::parse(&self.url.to_string(), UrlPurpose::Relay, reach).map_err(|reason| {
            debug!(target: "sync", relay = %self.url, %reason, "relay address is forbidden");
            DisconnectReason::Forbidden
        })?;
        match timeout_at(deadline, dialer.route_within(target, reach)).await {
            Ok(Ok(route)) => Ok(route),
            Ok(Err(error)) => Err(self.dial_failure(&error)),
            Err(_) => Err(DisconnectReason::Unreachable),
        }
    }

    async fn handshake(&self, route: &Route) -> Result<WebSocketStream<Box<dyn OutboundStream>>, DisconnectReason> {
        let stream = self.context.dialer.connect(route).await.map_err(|error| self.dial_failure(&error))?;
        let mut request = route.target().to_string().into_client_request().map_err(|_| DisconnectReason::Forbidden)?;
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(net::USER_AGENT));
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            // It holds one message and a few pongs.
            .max_write_buffer_size(limits::MAX_RECEIVED_MESSAGE_BYTES)
            .max_message_size(Some(limits::MAX_RECEIVED_MESSAGE_BYTES))
            .max_frame_size(Some(limits::MAX_RECEIVED_MESSAGE_BYTES));
        match tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(error) => {
                debug!(target: "sync", relay = %self.url, %error, "websocket handshake failed");
                Err(match error {
                    WsError::Io(_) | WsError::Protocol(ProtocolError::HandshakeIncomplete) => {
                        DisconnectReason::Unreachable
                    }
                    WsError::Http(answer) if is_busy(answer.status()) => DisconnectReason::Refused,
                    _ => DisconnectReason::NotARelay,
                })
            }
        }
    }

    async fn nip11(&self, route: &Route) -> Option<Nip11Info> {
        let document = http_client::get(&self.context.dialer, route, "application/nostr+json", limits::MAX_NIP11_BYTES);
        match document.await {
            Ok(document) => Nip11Info::parse(std::str::from_utf8(&document).ok()?),
            Err(error) => {
                debug!(target: "sync", relay = %self.url, %error, "relay has no NIP-11 document");
                None
            }
        }
    }

    fn dial_failure(&self, error: &DialError) -> DisconnectReason {
        debug!(target: "sync", relay = %self.url, %error, "cannot reach relay");
        match error {
            DialError::Forbidden(_) => DisconnectReason::Forbidden,
            DialError::Unreachable(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                DisconnectReason::Refused
            }
            DialError::NoSuchName(_) | DialError::Unreachable(_) => DisconnectReason::Unreachable,
            DialError::Tls(_) => DisconnectReason::NotARelay,
        }
    }
}

/// Returns whether a document is that of a private service (GRASP-08).
fn is_private_service(nip11: &Option<Nip11Info>) -> bool {
    nip11.as_ref().is_some_and(|nip11| nip11.is_private_service)
}

/// Returns whether an HTTP status means a temporary failure: proxies send these while a relay restarts.
fn is_busy(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}
