//! A small document from somebody else's web server.

use bytes::{Bytes, BytesMut};
use grasp_core::limits;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use thiserror::Error;

use super::USER_AGENT;
use super::dialer::{DialProblem, Dialler, Route};

/// Why there is no document.
#[derive(Debug, Error)]
pub(crate) enum GetProblem {
    #[error(transparent)]
    Dial(#[from] DialProblem),
    #[error("not an HTTP server: {0}")]
    Http(#[from] hyper::Error),
    #[error("the request cannot be written: {0}")]
    Request(#[from] hyper::http::Error),
    /// Also where it points elsewhere: nobody may send us on.
    #[error("the answer is {0}")]
    Status(StatusCode),
    #[error("the document is too large")]
    TooLarge,
}

/// Gets a document of at most so many bytes. No redirect is followed and nothing is kept. Whoever calls sets the
/// deadline.
pub(crate) async fn get(dialler: &Dialler, route: &Route, accept: &str, most: usize) -> Result<Bytes, GetProblem> {
    let stream = dialler.connect(route).await?;
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
            StatusCode::OK => read(answer.into_body(), most).await,
            other => Err(GetProblem::Status(other)),
        }
    };
    // The connection does the work; when it ends first, the exchange finds out.
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

async fn read(mut body: Incoming, most: usize) -> Result<Bytes, GetProblem> {
    if body.size_hint().lower() > most as u64 {
        return Err(GetProblem::TooLarge);
    }
    let mut document = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers are nobody's business.
        let Ok(data) = frame?.into_data() else { continue };
        if document.len() + data.len() > most {
            return Err(GetProblem::TooLarge);
        }
        document.extend_from_slice(&data);
    }
    Ok(document.freeze())
}
