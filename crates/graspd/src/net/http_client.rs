//! Fetches a small document over HTTP.

use bytes::{Bytes, BytesMut};
use grasp_core::limits;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use thiserror::Error;

use super::USER_AGENT;
use super::dialer::{DialError, Dialer, Route};

/// Why a document could not be fetched.
#[derive(Debug, Error)]
pub(crate) enum HttpGetError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("invalid HTTP response: {0}")]
    Http(#[from] hyper::Error),
    #[error("invalid HTTP request: {0}")]
    Request(#[from] hyper::http::Error),
    /// Any status other than 200, including redirects, which are not followed.
    #[error("the response is {0}")]
    Status(StatusCode),
    #[error("the document is too large")]
    TooLarge,
}

/// Fetches a document of at most `max_bytes` bytes. Redirects are not followed, and the connection is not reused. The
/// caller sets a deadline.
pub(crate) async fn get(dialer: &Dialer, route: &Route, accept: &str, max_bytes: usize) -> Result<Bytes, HttpGetError> {
    let stream = dialer.connect(route).await?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(limits::MAX_HEADER_BYTES)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await?;
    let request = Request::get(route.target().path())
        .header(header::HOST, route.target().authority())
        .header(header::ACCEPT, accept)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::CONNECTION, "close")
        .body(Empty::new())?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        match answer.status() {
            StatusCode::OK => read_body(answer.into_body(), max_bytes).await,
            other => Err(HttpGetError::Status(other)),
        }
    };
    // The connection future does the work. If it ends first, the exchange returns its result or an error.
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        biased;
        document = &mut exchange => document,
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(problem) => exchange.await.or(Err(problem.into())),
        },
    }
}

async fn read_body(mut body: Incoming, max_bytes: usize) -> Result<Bytes, HttpGetError> {
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(HttpGetError::TooLarge);
    }
    let mut document = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers are ignored.
        let Ok(data) = frame?.into_data() else { continue };
        if document.len() + data.len() > max_bytes {
            return Err(HttpGetError::TooLarge);
        }
        document.extend_from_slice(&data);
    }
    Ok(document.freeze())
}
