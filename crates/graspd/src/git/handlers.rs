//! Git's smart HTTP protocol and the pages of repositories.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use grasp_git::layout::Layout;
use grasp_git::process::Git;
use grasp_git::serve::Capabilities;
use hyper::body::Incoming as HttpBody;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, header};
use tokio::sync::Semaphore;
use tracing::warn;

use crate::config::GitSettings;
use crate::config::SettingsReceiver;
use crate::git::pack_cache::PackCache;
use crate::http::body::HttpResponse;
use crate::http::fair_semaphore::{Busy, FairPermit, FairSemaphore};
use crate::http::network_limits::Network;
use crate::http::response::{method_not_allowed, status};
use crate::metrics::Metrics;
use crate::monitor::disk_budget::Budget;
use crate::repos::ref_cache::{Open, RefCache, RefSnapshot};
use crate::writer::command::WriterHandle;

/// What answers git clients.
pub(crate) struct GitService {
    pub(crate) current: SettingsReceiver,
    pub(crate) git: Git,
    pub(crate) layout: Arc<Layout>,
    pub(crate) directory: Arc<RefCache>,
    pub(crate) desk: WriterHandle,
    pub(crate) capabilities: Capabilities,
    pub(crate) packs: Arc<PackCache>,
    /// Threads of one serving process.
    pub(crate) threads: u32,
    /// Pushes that are being received.
    pub(crate) receiving: Arc<FairSemaphore>,
    /// Processes that check pushes.
    pub(crate) checking: Arc<FairSemaphore>,
    /// Processes that check what nobody has signed: fewer, and others than those of signed pushes.
    pub(crate) checking_unsigned: Arc<FairSemaphore>,
    /// Processes that serve.
    pub(crate) serving: Arc<FairSemaphore>,
    /// Processes that serve what is too large to be kept: each is as slow as its client.
    pub(crate) serving_large: Arc<FairSemaphore>,
    /// Pages that are being made: the writer makes them between two batches.
    pub(crate) viewing: Arc<FairSemaphore>,
    /// Free disk space below which no large pack is received.
    pub(crate) reserve_bytes: u64,
    /// What all of it may take of the disk.
    pub(crate) budget: Arc<Budget>,
    /// Command lists that take megabytes.
    pub(crate) large_pushes: Arc<Semaphore>,
    /// Memory for fetch requests, in units.
    pub(crate) fetch_bytes: Arc<Semaphore>,
    /// Differs from start to start.
    pub(crate) boot: u64,
    pub(crate) meter: Metrics,
    /// The address of the service, for people.
    pub(crate) url: String,
    /// The name of the service and its relay, for pages.
    pub(crate) relay: String,
}

/// Units of the budget for fetch requests.
pub(crate) const FETCH_UNITS: usize = limits::MAX_TOTAL_FETCH_REQUEST_BYTES / FETCH_UNIT_BYTES;

/// Bytes that one of them stands for.
pub(crate) const FETCH_UNIT_BYTES: usize = super::request_body::UNIT;

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    /// The network it comes from; `None` for loopback.
    pub(crate) network: Option<Network>,
}

impl Client {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self { network: Network::of(address) }
    }

    /// The network's name in the registrar's books.
    pub(crate) fn network_name(self) -> Option<String> {
        self.network.map(|network| network.to_string())
    }
}

impl GitService {
    /// What the git room may use, as the settings are now.
    pub(crate) fn settings(&self) -> GitSettings {
        self.current.borrow().git
    }

    /// Bytes of the largest answer that may be kept: every process may fill a share at the same time.
    pub(crate) fn largest_kept(&self) -> u64 {
        self.packs.load().1 / self.settings().serve_processes as u64
    }

    /// The refs of a site; `None` if they cannot be read.
    pub(crate) async fn snapshot(self: &Arc<Self>, repo_path: &RepoPath) -> Option<Arc<RefSnapshot>> {
        if let Some(snapshot) = self.directory.cached(repo_path) {
            return Some(snapshot);
        }
        let (git, repo_path) = (self.clone(), repo_path.clone());
        let read = tokio::task::spawn_blocking(move || {
            git.directory
                .snapshot(&repo_path)
                .inspect_err(|problem| warn!(repo = %repo_path, %problem, "cannot read the refs of a repository"))
        });
        read.await.ok()?.ok()
    }
}

/// Answers a request of the smart HTTP protocol below a repository's path; `None` if the path is not part of it.
pub(crate) async fn route(
    git: Arc<GitService>,
    client: Client,
    repo_path: RepoPath,
    open: &Open,
    below: &str,
    request: Request<HttpBody>,
) -> Option<HttpResponse> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_post = request.method() == Method::POST;
    Some(match below {
        "info/refs" if reads => {
            super::upload_pack::refs(&git, &repo_path, open, request.uri().query(), request.headers()).await
        }
        "git-upload-pack" if is_post => super::upload_pack::upload(git, repo_path, client, request).await,
        "git-receive-pack" if is_post => super::receive_pack::push(git, repo_path, client, request).await,
        "git-upload-pack" | "git-receive-pack" => method_not_allowed("POST, OPTIONS"),
        "info/refs" => method_not_allowed("GET, HEAD, OPTIONS"),
        _ => return None,
    })
}

/// Waits for a turn, less long than a connection may be silent.
pub(crate) async fn turn(turns: &Arc<FairSemaphore>, client: Client) -> Result<FairPermit, Busy> {
    let patience = Duration::from_secs(limits::STALL_TIMEOUT_SECS.saturating_sub(10));
    tokio::time::timeout(patience, turns.take(client.network)).await.unwrap_or(Err(Busy::Everybody))
}

/// Bytes of a kind.
pub(crate) fn typed(kind: &'static str, bytes: Bytes) -> HttpResponse {
    let mut answer = Response::new(bytes.into());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Too many wait already.
pub(crate) fn busy(why: Busy) -> HttpResponse {
    let mut answer = match why {
        Busy::Everybody => status(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait already\n"),
        Busy::Network => status(StatusCode::TOO_MANY_REQUESTS, "too many requests from your network wait already\n"),
    };
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    answer
}
