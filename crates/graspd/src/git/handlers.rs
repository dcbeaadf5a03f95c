//! Routes of the smart HTTP protocol, and what its handlers share.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use hyper::body::Incoming as HttpBody;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, header};

use super::receive_pack::ReceivePackHandler;
use super::upload_pack::UploadPackHandler;
use crate::http::body::HttpResponse;
use crate::http::fair_semaphore::{FairPermit, FairSemaphore, QueueFull};
use crate::http::network_limits::ClientNetwork;
use crate::http::response::{method_not_allowed, status};
use crate::repos::ref_cache::OpenRepo;

/// Handlers of the smart HTTP protocol.
pub(crate) struct GitHandlers {
    upload_pack: Arc<UploadPackHandler>,
    receive_pack: Arc<ReceivePackHandler>,
}

/// A semaphore with its name in the metrics.
pub(crate) type NamedSemaphore = (&'static str, Arc<FairSemaphore>);

/// Client of a request.
#[derive(Clone, Copy)]
pub(crate) struct GitClient {
    /// Network of the client. `None` for a program on this machine, which is not limited.
    pub(super) network: Option<ClientNetwork>,
}

impl GitClient {
    pub(crate) fn new(network: Option<ClientNetwork>) -> Self {
        Self { network }
    }

    /// Returns the network as text, the form in which admission limits uploads per network.
    pub(crate) fn network_name(self) -> Option<String> {
        self.network.map(|network| network.to_string())
    }
}

impl GitHandlers {
    pub(crate) fn new(upload_pack: UploadPackHandler, receive_pack: ReceivePackHandler) -> Self {
        Self { upload_pack: Arc::new(upload_pack), receive_pack: Arc::new(receive_pack) }
    }

    /// Answers a request of the smart HTTP protocol below a repository's path. `None` if `below` is not part of the
    /// protocol.
    pub(crate) async fn route(
        &self,
        client: GitClient,
        repo_path: RepoPath,
        open: &OpenRepo,
        below: &str,
        request: Request<HttpBody>,
    ) -> Option<HttpResponse> {
        let method = request.method().clone();
        let is_get = matches!(method, Method::GET | Method::HEAD);
        Some(match below {
            "info/refs" if is_get => {
                self.upload_pack.refs(&repo_path, open, request.uri().query(), request.headers()).await
            }
            "git-upload-pack" if method == Method::POST => {
                self.upload_pack.clone().upload(repo_path, client, request).await
            }
            "git-receive-pack" if method == Method::POST => {
                self.receive_pack.clone().push(repo_path, client, request).await
            }
            "git-upload-pack" | "git-receive-pack" => method_not_allowed("POST, OPTIONS"),
            "info/refs" => method_not_allowed("GET, HEAD, OPTIONS"),
            _ => return None,
        })
    }
}

/// Waits for a permit, for less time than the stall timeout of the connection.
pub(crate) async fn acquire(semaphore: &Arc<FairSemaphore>, client: GitClient) -> Result<FairPermit, QueueFull> {
    let timeout = Duration::from_secs(limits::STALL_TIMEOUT_SECS.saturating_sub(10));
    tokio::time::timeout(timeout, semaphore.acquire(client.network)).await.unwrap_or(Err(QueueFull::Total))
}

/// Returns bytes with a content type.
pub(crate) fn typed_response(content_type: &'static str, bytes: Bytes) -> HttpResponse {
    let mut response = Response::new(bytes.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns 503 or 429 for a request that may not wait for a permit.
pub(crate) fn queue_full(full: QueueFull) -> HttpResponse {
    let mut response = match full {
        QueueFull::Total => status(StatusCode::SERVICE_UNAVAILABLE, "too many waiting requests, try again later\n"),
        QueueFull::PerNetwork => {
            status(StatusCode::TOO_MANY_REQUESTS, "too many waiting requests from your network, try again later\n")
        }
    };
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    response
}
