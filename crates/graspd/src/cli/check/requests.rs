//! Requests to the front, as clients send them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::net::{Purpose, Reach, Target};
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::admin::proxy_probe::HEADER;
use crate::cli::Failure;
use crate::http::body::Reply;
use crate::net::USER_AGENT;
use crate::net::dialer::{DialProblem, Dialler};
use crate::net::stream::Stream;

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of an answer that are read.
const MAX_ANSWER: usize = limits::MAX_TERMS_BYTES;

/// An address of the documentation. Whoever is taken to come from there has been believed.
pub(super) const PRETENDED: &str = "203.0.113.77";

/// Bytes of a part of a body.
const PART: usize = 64 << 10;

/// Where the service is met.
pub(super) struct Front {
    /// Where requests go.
    pub(super) target: Target,
    /// Without a slash at its end.
    pub(super) base: String,
    pub(super) dialler: Dialler,
    token: String,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    Dial(DialProblem),
    /// In words.
    Broken(String),
    /// It took too long.
    Late,
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dial(problem) => problem.fmt(f),
            Self::Broken(words) => f.write_str(words),
            Self::Late => write!(f, "no answer within {} seconds", PATIENCE.as_secs()),
        }
    }
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// How a body is announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    /// In the head.
    Told,
    /// Part by part.
    Chunked,
}

impl Front {
    /// The front at a given address, or at the service's own.
    pub(super) fn new(via: Option<&str>, own: &str, token: &str) -> Result<Self, Failure> {
        let text = via.unwrap_or(own);
        let target = Target::parse(text, Purpose::Git, Reach::Anything).map_err(|why| {
            Failure::Usage(format!("cannot ask {text}: {why}; it is to be like https://code.example"))
        })?;
        let dialler = Dialler::new(Reach::Anything).map_err(|problem| Failure::Failed(problem.to_string()))?;
        let base = target.path().trim_end_matches('/').to_owned();
        Ok(Self { target, base, dialler, token: token.to_owned() })
    }

    /// A connection.
    pub(super) async fn connect(&self) -> Result<Stream, NoAnswer> {
        let connecting = async {
            let route = self.dialler.route(self.target.clone()).await?;
            self.dialler.connect(&route).await
        };
        timeout(PATIENCE, connecting).await.map_err(|_| NoAnswer::Late)?.map_err(NoAnswer::Dial)
    }

    /// GET, as somebody who pretends to come from elsewhere.
    pub(super) async fn get(&self, path: &str, accept: &'static str) -> Result<Answer, NoAnswer> {
        let request = Request::get(format!("{}{path}", self.base)).header(header::ACCEPT, accept);
        self.send(request, Reply::from(Vec::new()), PATIENCE).await
    }

    /// POST of so many bytes.
    pub(super) async fn post(&self, path: &str, length: Length, bytes: usize) -> Result<Answer, NoAnswer> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/x-git-receive-pack-request");
        if length == Length::Told {
            request = request.header(header::CONTENT_LENGTH, bytes);
        }
        let (feed, body) = Reply::stream();
        tokio::spawn(async move {
            let mut left = bytes;
            while left > 0 {
                let part = left.min(PART);
                if feed.send(Ok(Bytes::from(vec![0; part]))).await.is_err() {
                    return;
                }
                left -= part;
            }
        });
        self.send(request, body, 3 * PATIENCE).await
    }

    async fn send(
        &self,
        request: hyper::http::request::Builder,
        body: Reply,
        patience: Duration,
    ) -> Result<Answer, NoAnswer> {
        let stream = self.connect().await?;
        let broken = |problem: &dyn std::fmt::Display| NoAnswer::Broken(problem.to_string());
        let request = request
            .header(header::HOST, self.target.authority())
            .header(header::USER_AGENT, USER_AGENT)
            .header(header::CONNECTION, "close")
            .header("x-forwarded-for", PRETENDED)
            .header(HEADER, &self.token)
            .body(body)
            .map_err(|problem| broken(&problem))?;
        let exchange = async {
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(|problem| broken(&problem))?;
            tokio::spawn(connection);
            let answer = sender.send_request(request).await.map_err(|problem| broken(&problem))?;
            let (head, body) = answer.into_parts();
            // What is longer is no answer of ours.
            let body = Limited::new(body, MAX_ANSWER).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        timeout(patience, exchange).await.map_err(|_| NoAnswer::Late)?
    }

    /// A websocket that is asked for nothing and answers so; gives why not.
    pub(super) async fn websocket(&self) -> Result<(), NoAnswer> {
        let broken = |problem: WsError| match problem {
            WsError::Http(answer) => NoAnswer::Broken(format!("the answer is {} instead of 101", answer.status())),
            other => NoAnswer::Broken(other.to_string()),
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
        let talk = async {
            let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.map_err(broken)?;
            socket.send(Message::text(r#"["REQ","check",{"limit":0}]"#)).await.map_err(broken)?;
            while let Some(message) = socket.next().await {
                if matches!(&message, Ok(Message::Text(text)) if text.starts_with(r#"["EOSE","check""#)) {
                    let _ = socket.close(None).await;
                    return Ok(());
                }
                message.map_err(broken)?;
            }
            Err(NoAnswer::Broken("it was closed before it answered".to_owned()))
        };
        timeout(PATIENCE, talk).await.map_err(|_| NoAnswer::Late)?
    }
}
