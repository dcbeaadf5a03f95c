//! State of the git service, and the routes of the smart HTTP protocol.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use grasp_git::layout::Layout;
use grasp_git::process::Git;
use grasp_git::serve::ServerCapabilities;
use hyper::body::Incoming as HttpBody;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, header};
use tokio::sync::Semaphore;
use tracing::warn;

use crate::config::GitSettings;
use crate::config::SettingsReceiver;
use crate::git::pack_cache::PackCache;
use crate::http::body::HttpResponse;
use crate::http::fair_semaphore::{FairPermit, FairSemaphore, QueueFull};
use crate::http::network_limits::ClientNetwork;
use crate::http::response::{method_not_allowed, status};
use crate::metrics::Metrics;
use crate::monitor::disk_budget::DiskBudgetTracker;
use crate::repos::ref_cache::{OpenRepo, RefCache, RefSnapshot};
use crate::writer::command::WriterHandle;

/// Everything that the handlers of git requests use.
pub(crate) struct GitService {
    pub(crate) settings: SettingsReceiver,
    pub(crate) git: Git,
    pub(crate) layout: Arc<Layout>,
    pub(crate) ref_cache: Arc<RefCache>,
    pub(crate) writer: WriterHandle,
    pub(crate) capabilities: ServerCapabilities,
    pub(crate) pack_cache: Arc<PackCache>,
    /// Threads of one `git pack-objects` process.
    pub(crate) pack_threads: u32,
    /// Limits pushes that are being received.
    pub(crate) receive_permits: Arc<FairSemaphore>,
    /// Limits git processes that check pushes.
    pub(crate) check_permits: Arc<FairSemaphore>,
    /// Limits git processes that check uploads without a signed event. There are fewer of them, and they are separate,
    /// so that uploads, which any client can send, do not delay signed pushes.
    pub(crate) unsigned_check_permits: Arc<FairSemaphore>,
    /// Limits git processes that answer fetches.
    pub(crate) fetch_permits: Arc<FairSemaphore>,
    /// Limits git processes that answer fetches too large for the cache. Each of them is as slow as its client.
    pub(crate) large_fetch_permits: Arc<FairSemaphore>,
    /// Limits requests for repository pages, whose data the writer collects between two batches.
    pub(crate) page_permits: Arc<FairSemaphore>,
    /// Free disk space below which no large pack is received.
    pub(crate) reserve_bytes: u64,
    pub(crate) disk_budget: Arc<DiskBudgetTracker>,
    /// Limits pushes whose command lists need megabytes of memory.
    pub(crate) large_push_permits: Arc<Semaphore>,
    /// Memory for fetch requests, in permits of [`FETCH_MEMORY_UNIT_BYTES`] bytes.
    pub(crate) fetch_request_memory: Arc<Semaphore>,
    /// Random number of this start. Part of etags, because generations of ref snapshots start again at every start.
    pub(crate) boot_id: u64,
    pub(crate) metrics: Metrics,
    /// Base URL of the service.
    pub(crate) service_url: String,
    /// URL of the relay.
    pub(crate) relay_url: String,
}

/// Number of permits of [`GitService::fetch_request_memory`].
pub(crate) const FETCH_MEMORY_UNITS: usize = limits::MAX_TOTAL_FETCH_REQUEST_BYTES / FETCH_MEMORY_UNIT_BYTES;

/// Bytes per permit of [`GitService::fetch_request_memory`].
pub(crate) const FETCH_MEMORY_UNIT_BYTES: usize = super::request_body::MEMORY_UNIT_BYTES;

/// Client of a request.
#[derive(Clone, Copy)]
pub(crate) struct GitClient {
    /// Network of the client. `None` for loopback.
    pub(crate) network: Option<ClientNetwork>,
}

impl GitClient {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self { network: ClientNetwork::from_ip(address) }
    }

    /// Returns the network as text, the form in which admission limits uploads per network.
    pub(crate) fn network_name(self) -> Option<String> {
        self.network.map(|network| network.to_string())
    }
}

impl GitService {
    /// Returns the current git settings.
    pub(crate) fn git_settings(&self) -> GitSettings {
        self.settings.borrow().git
    }

    /// Returns the size of the largest response that may be cached. All git processes may write one at the same time.
    pub(crate) fn max_cached_response_bytes(&self) -> u64 {
        self.pack_cache.load().1 / self.git_settings().serve_processes as u64
    }

    /// Returns the refs of a repository. `None` if they cannot be read.
    pub(crate) async fn snapshot(self: &Arc<Self>, repo_path: &RepoPath) -> Option<Arc<RefSnapshot>> {
        if let Some(snapshot) = self.ref_cache.cached(repo_path) {
            return Some(snapshot);
        }
        let (git, repo_path) = (self.clone(), repo_path.clone());
        let read = tokio::task::spawn_blocking(move || {
            git.ref_cache
                .snapshot(&repo_path)
                .inspect_err(|error| warn!(target: "git", repo = %repo_path, %error, "cannot read refs"))
        });
        read.await.ok()?.ok()
    }
}

/// Answers a request of the smart HTTP protocol below a repository's path. `None` if `below` is not part of the
/// protocol.
pub(crate) async fn route(
    git: Arc<GitService>,
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
            super::upload_pack::refs(&git, &repo_path, open, request.uri().query(), request.headers()).await
        }
        "git-upload-pack" if method == Method::POST => {
            super::upload_pack::upload(git, repo_path, client, request).await
        }
        "git-receive-pack" if method == Method::POST => {
            super::receive_pack::push(git, repo_path, client, request).await
        }
        "git-upload-pack" | "git-receive-pack" => method_not_allowed("POST, OPTIONS"),
        "info/refs" => method_not_allowed("GET, HEAD, OPTIONS"),
        _ => return None,
    })
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
