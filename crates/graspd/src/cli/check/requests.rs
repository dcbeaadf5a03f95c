//! Requests to the public address, as clients send them.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::net::{AddressPolicy, OutboundHost, OutboundUrl, UrlPurpose};
use grasp_core::repo::uses_tls;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::admin::api::CheckedSettings;
use crate::admin::proxy_probe::HEADER;
use crate::cli::CommandError;
use crate::http::body::ResponseBody;
use crate::net::USER_AGENT;
use crate::net::dialer::{DialError, Dialer};
use crate::net::stream::OutboundStream;

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes of a response that are read.
const MAX_RESPONSE_BYTES: usize = limits::MAX_NIP11_BYTES;

/// Address from a documentation network that the requests claim in `X-Forwarded-For`. If the server uses it as the
/// client address, clients can forge their address.
pub(super) const SPOOFED_ADDRESS: &str = "203.0.113.77";

/// Size of the chunks of a request body.
const CHUNK_BYTES: usize = 64 << 10;

/// The public address of the service.
pub(super) struct PublicEndpoint {
    /// URL that the requests name in their head and in TLS: that of the service, with the scheme of the connection.
    pub(super) target: OutboundUrl,
    /// URL of `--via`, which gives the address of the connection.
    via: Option<OutboundUrl>,
    /// Path of the URL without a slash at the end.
    pub(super) base: String,
    pub(super) dialer: Dialer,
    token: String,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("{0}")]
    Dial(DialError),
    /// The request failed; contains the reason.
    #[error("{0}")]
    Failed(String),
    /// The request timed out.
    #[error("no response within {} seconds", REQUEST_TIMEOUT.as_secs())]
    Timeout,
}

/// A response.
pub(super) struct CheckResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl CheckResponse {
    pub(super) fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// How the length of a body is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BodyLength {
    /// In `Content-Length`.
    Declared,
    /// Not at all: the body has chunked encoding.
    Chunked,
}

impl fmt::Display for PublicEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.via {
            Some(via) if via.authority() != self.target.authority() => {
                write!(f, "{via} (as {})", self.target.authority())
            }
            _ => self.target.fmt(f),
        }
    }
}

impl PublicEndpoint {
    /// Returns the public address of the service. With `via` connections go to that URL instead; the requests still
    /// name the service, because a proxy chooses the site by this name, unless the service is not known here.
    pub(super) fn new(
        via: Option<&str>,
        settings: &CheckedSettings,
        is_known: bool,
        token: &str,
    ) -> Result<Self, CommandError> {
        let parse = |text: &str| {
            OutboundUrl::parse(text, UrlPurpose::Git, AddressPolicy::Any).map_err(|why| {
                CommandError::Usage(format!("cannot check {text}: {why}; give a URL such as https://code.example"))
            })
        };
        let CheckedSettings { domain, base_path, .. } = settings;
        let via = via.map(parse).transpose()?;
        let target = match &via {
            Some(via) if !is_known => via.clone(),
            Some(via) => {
                let scheme = if via.is_tls() { "https" } else { "http" };
                let path = if via.path() == "/" { base_path } else { via.path() };
                parse(&format!("{scheme}://{domain}{path}"))?
            }
            None => parse(&format!("{}://{domain}{base_path}", if uses_tls(domain) { "https" } else { "http" }))?,
        };
        let dialer = Dialer::new(AddressPolicy::Any).map_err(|problem| CommandError::Failed(problem.to_string()))?;
        let base = target.path().trim_end_matches('/').to_owned();
        Ok(Self { target, via, base, dialer, token: token.to_owned() })
    }

    /// Returns the URL that connections go to.
    fn dialled(&self) -> &OutboundUrl {
        self.via.as_ref().unwrap_or(&self.target)
    }

    /// Returns whether connections go to the address at which the server itself listens, so that there is no proxy.
    pub(super) fn is_direct(&self, bind: SocketAddr) -> bool {
        let dialled = self.dialled();
        let is_same_host = match dialled.host() {
            OutboundHost::Address(address) => *address == bind.ip() || bind.ip().is_unspecified(),
            OutboundHost::Name(name) => bind.ip().is_unspecified() || (name == "localhost" && bind.ip().is_loopback()),
        };
        is_same_host && dialled.port() == bind.port() && !dialled.is_tls()
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<Box<dyn OutboundStream>, RequestError> {
        let connecting = async {
            let route = self.dialer.route(self.dialled().clone()).await?;
            self.dialer.connect(&route.for_target(self.target.clone())).await
        };
        timeout(REQUEST_TIMEOUT, connecting).await.map_err(|_| RequestError::Timeout)?.map_err(RequestError::Dial)
    }

    /// Sends a GET request with a forged client address.
    pub(super) async fn get(&self, path: &str, accept: &'static str) -> Result<CheckResponse, RequestError> {
        let request = Request::get(format!("{}{path}", self.base)).header(header::ACCEPT, accept);
        self.send(request, ResponseBody::from(Vec::new()), REQUEST_TIMEOUT).await
    }

    /// Sends a POST request with a body of this many bytes.
    pub(super) async fn send_body(
        &self,
        path: &str,
        length: BodyLength,
        bytes: usize,
    ) -> Result<CheckResponse, RequestError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/x-git-receive-pack-request");
        if length == BodyLength::Declared {
            request = request.header(header::CONTENT_LENGTH, bytes);
        }
        let (feed, body) = ResponseBody::channel();
        tokio::spawn(async move {
            let mut left = bytes;
            while left > 0 {
                let part = left.min(CHUNK_BYTES);
                if feed.send(Ok(Bytes::from(vec![0; part]))).await.is_err() {
                    return;
                }
                left -= part;
            }
        });
        self.send(request, body, 3 * REQUEST_TIMEOUT).await
    }

    async fn send(
        &self,
        request: hyper::http::request::Builder,
        body: ResponseBody,
        timeout_after: Duration,
    ) -> Result<CheckResponse, RequestError> {
        let stream = self.connect().await?;
        let broken = |problem: &dyn std::fmt::Display| RequestError::Failed(problem.to_string());
        let request = request
            .header(header::HOST, self.target.authority())
            .header(header::USER_AGENT, USER_AGENT)
            .header(header::CONNECTION, "close")
            .header("x-forwarded-for", SPOOFED_ADDRESS)
            .header(HEADER, &self.token)
            .body(body)
            .map_err(|problem| broken(&problem))?;
        let exchange = async {
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(|problem| broken(&problem))?;
            tokio::spawn(connection);
            let response = sender.send_request(request).await.map_err(|problem| broken(&problem))?;
            let (head, body) = response.into_parts();
            // A longer body is not a response of graspd.
            let body =
                Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            Ok(CheckResponse { status: head.status, headers: head.headers, body })
        };
        timeout(timeout_after, exchange).await.map_err(|_| RequestError::Timeout)?
    }

    /// Opens a websocket and sends a request for which there are no events.
    pub(super) async fn websocket(&self) -> Result<(), RequestError> {
        let broken = |problem: WsError| match problem {
            WsError::Http(response) => {
                RequestError::Failed(format!("the response is {} instead of 101", response.status()))
            }
            other => RequestError::Failed(other.to_string()),
        };
        let stream = self.connect().await?;
        let scheme = if self.target.is_tls() { "wss" } else { "ws" };
        let url = format!("{scheme}://{}{}/", self.target.authority(), self.base);
        let mut request = url.into_client_request().map_err(broken)?;
        let headers = request.headers_mut();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if let Ok(token) = HeaderValue::from_str(&self.token) {
            headers.insert(HEADER, token);
        }
        let exchange = async {
            let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.map_err(broken)?;
            socket.send(Message::text(r#"["REQ","check",{"limit":0}]"#)).await.map_err(broken)?;
            while let Some(message) = socket.next().await {
                if matches!(&message, Ok(Message::Text(text)) if text.starts_with(r#"["EOSE","check""#)) {
                    let _ = socket.close(None).await;
                    return Ok(());
                }
                message.map_err(broken)?;
            }
            Err(RequestError::Failed("the connection was closed before a response".to_owned()))
        };
        timeout(REQUEST_TIMEOUT, exchange).await.map_err(|_| RequestError::Timeout)?
    }
}
