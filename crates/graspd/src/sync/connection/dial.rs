//! From a relay's URL to a websocket and what the relay says of itself.

use std::pin::pin;

use grasp_core::limits;
use grasp_core::net::{Purpose, Target};
use grasp_core::sync::io::Loss;
use grasp_core::sync::relay_limits::Terms;
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
use crate::net::dialer::{DialProblem, Route};
use crate::net::http_client;
use crate::net::stream::Stream;

/// What the read buffer of a socket takes. Hundreds are open, and it is zeroed whenever one is looked at.
const READ_BUFFER: usize = 16 * 1024;

impl RelaySocket {
    /// The websocket, and the terms if they came in time. Both are asked for at once, at the same addresses.
    pub(super) async fn dial(&self) -> Result<(WebSocketStream<Stream>, Option<Terms>), Loss> {
        let patience = self.shared.patience;
        let deadline = Instant::now() + patience.dial;
        let route = self.route(deadline).await?;
        let mut document = pin!(timeout(patience.nip11, self.nip11(&route)));
        let mut terms = None;
        let socket = {
            let mut socket = pin!(timeout_at(deadline, self.handshake(&route)));
            loop {
                tokio::select! {
                    socket = &mut socket => break socket.unwrap_or_else(|_| {
                        debug!(relay = %self.url, "no handshake in time");
                        Err(Loss::Unreachable)
                    })?,
                    found = &mut document, if terms.is_none() => terms = Some(found.ok().flatten()),
                }
            }
        };
        let terms = match terms {
            Some(terms) => terms,
            None => timeout(patience.nip11_grace, document).await.ok().and_then(Result::ok).flatten(),
        };
        Ok((socket, terms))
    }

    async fn route(&self, deadline: Instant) -> Result<Route, Loss> {
        let dialler = &self.shared.dialler;
        let target = Target::parse(&self.url.to_string(), Purpose::Relay, dialler.reach()).map_err(|why| {
            debug!(relay = %self.url, %why, "a relay must not be dialled");
            Loss::Forbidden
        })?;
        match timeout_at(deadline, dialler.route(target)).await {
            Ok(Ok(route)) => Ok(route),
            Ok(Err(problem)) => Err(self.lost(&problem)),
            Err(_) => Err(Loss::Unreachable),
        }
    }

    async fn handshake(&self, route: &Route) -> Result<WebSocketStream<Stream>, Loss> {
        let stream = self.shared.dialler.connect(route).await.map_err(|problem| self.lost(&problem))?;
        let mut request = route.target().to_string().into_client_request().map_err(|_| Loss::Forbidden)?;
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(net::USER_AGENT));
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            // One message at a time is in it, and a few pongs.
            .max_write_buffer_size(limits::MAX_HEARD_BYTES)
            .max_message_size(Some(limits::MAX_HEARD_BYTES))
            .max_frame_size(Some(limits::MAX_HEARD_BYTES));
        match tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(problem) => {
                debug!(relay = %self.url, %problem, "no websocket");
                Err(match problem {
                    WsError::Io(_) | WsError::Protocol(ProtocolError::HandshakeIncomplete) => Loss::Unreachable,
                    WsError::Http(answer) if is_busy(answer.status()) => Loss::Unreachable,
                    _ => Loss::NotARelay,
                })
            }
        }
    }

    async fn nip11(&self, route: &Route) -> Option<Terms> {
        let document = http_client::get(&self.shared.dialler, route, "application/nostr+json", limits::MAX_TERMS_BYTES);
        match document.await {
            Ok(document) => Terms::parse(std::str::from_utf8(&document).ok()?),
            Err(problem) => {
                debug!(relay = %self.url, %problem, "no NIP-11 document");
                None
            }
        }
    }

    fn lost(&self, problem: &DialProblem) -> Loss {
        debug!(relay = %self.url, %problem, "a relay was not reached");
        match problem {
            DialProblem::Forbidden(_) => Loss::Forbidden,
            DialProblem::NoSuchName(_) | DialProblem::Unreachable(_) => Loss::Unreachable,
            DialProblem::Tls(_) => Loss::NotARelay,
        }
    }
}

/// Whether a refusal says that the server is not itself today: proxies answer so for a relay that restarts.
fn is_busy(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}
