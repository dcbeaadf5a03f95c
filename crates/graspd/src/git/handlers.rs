//! Git's smart HTTP protocol and the pages of repositories.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::repo::Site;
use grasp_git::layout::Layout;
use grasp_git::process::Git;
use grasp_git::serve::Capabilities;
use hyper::body::Incoming as HttpBody;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, header};
use tokio::sync::Semaphore;
use tracing::warn;

use crate::config::GitSettings;
use crate::fetch::driver::HuntDoor;
use crate::git::fair_semaphore::{Busy, Turn, Turns};
use crate::git::pack_cache::Packs;
use crate::git::ref_cache::{Directory, Snapshot};
use crate::http::body::Answer;
use crate::http::network_limits::Network;
use crate::http::router::{method_not_allowed, not_found, status};
use crate::metrics::Meter;
use crate::monitor::disk_budget::Budget;
use crate::reload::Settings;
use crate::sync::status::SyncDoor;
use crate::web::repository_handler::Show;
use crate::writer::command::DeskDoor;

/// What answers git clients.
pub(crate) struct GitHouse {
    pub(crate) current: Settings,
    pub(crate) git: Git,
    pub(crate) layout: Arc<Layout>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) desk: DeskDoor,
    pub(crate) capabilities: Capabilities,
    pub(crate) packs: Arc<Packs>,
    /// Threads of one serving process.
    pub(crate) threads: u32,
    /// Pushes that are being received.
    pub(crate) receiving: Arc<Turns>,
    /// Processes that check pushes.
    pub(crate) checking: Arc<Turns>,
    /// Processes that check what nobody has signed: fewer, and others than those of signed pushes.
    pub(crate) checking_unsigned: Arc<Turns>,
    /// Processes that serve.
    pub(crate) serving: Arc<Turns>,
    /// Processes that serve what is too large to be kept: each is as slow as its client.
    pub(crate) serving_large: Arc<Turns>,
    /// Pages that are being made: the writer makes them between two batches.
    pub(crate) viewing: Arc<Turns>,
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
    pub(crate) meter: Meter,
    /// Who knows what other relays have, if there is sync.
    pub(crate) sync: Option<SyncDoor>,
    /// Who knows what other git servers have, if there is sync.
    pub(crate) hunt: Option<HuntDoor>,
    /// The address of the service, for people.
    pub(crate) url: String,
    /// The name of the service and its relay, for pages.
    pub(crate) relay: String,
}

/// Units of the budget for fetch requests.
pub(crate) const FETCH_UNITS: usize = limits::MAX_FETCH_BYTES_TOTAL / FETCH_UNIT_BYTES;

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

impl GitHouse {
    /// What the git room may use, as the settings are now.
    pub(crate) fn settings(&self) -> GitSettings {
        self.current.borrow().git
    }

    /// Bytes of the largest answer that may be kept: every process may fill a share at the same time.
    pub(crate) fn largest_kept(&self) -> u64 {
        self.packs.load().1 / self.settings().serve_processes as u64
    }

    /// The refs of a site; `None` if they cannot be read.
    pub(crate) async fn snapshot(self: &Arc<Self>, site: &Site) -> Option<Arc<Snapshot>> {
        if let Some(snapshot) = self.directory.cached(site) {
            return Some(snapshot);
        }
        let (git, site) = (self.clone(), site.clone());
        let read = tokio::task::spawn_blocking(move || {
            git.directory
                .snapshot(&site)
                .inspect_err(|problem| warn!(%site, %problem, "cannot read the refs of a repository"))
        });
        read.await.ok()?.ok()
    }
}

/// Answers a request for something below a site.
pub(crate) async fn route(
    git: Arc<GitHouse>,
    client: Client,
    site: Site,
    below: String,
    request: Request<HttpBody>,
) -> Answer {
    let Some(open) = git.directory.open(&site) else { return not_found() };
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_announced = matches!(site, Site::Announced(_));
    match below.as_str() {
        "info/refs" if reads => {
            super::upload_pack::refs(&git, &site, &open, request.uri().query(), request.headers()).await
        }
        "git-upload-pack" if request.method() == Method::POST => {
            super::upload_pack::upload(git, site, client, request).await
        }
        "git-receive-pack" if request.method() == Method::POST => {
            super::receive_pack::push(git, site, client, request).await
        }
        "purgatory" if reads => {
            crate::web::repository_handler::show(&git, (site, &open), Show::Purgatory, client, request.headers()).await
        }
        "replication.json" if reads && is_announced => {
            crate::web::repository_handler::show(&git, (site, &open), Show::Replication, client, request.headers())
                .await
        }
        "" if reads && is_announced => {
            crate::web::repository_handler::show(&git, (site, &open), Show::Page, client, request.headers()).await
        }
        "git-upload-pack" | "git-receive-pack" => method_not_allowed("POST, OPTIONS"),
        "info/refs" | "purgatory" => method_not_allowed("GET, HEAD, OPTIONS"),
        "" | "replication.json" if is_announced => method_not_allowed("GET, HEAD, OPTIONS"),
        _ => not_found(),
    }
}

/// Waits for a turn, less long than a connection may be silent.
pub(crate) async fn turn(turns: &Arc<Turns>, client: Client) -> Result<Turn, Busy> {
    let patience = Duration::from_secs(limits::STALL_SECS.saturating_sub(10));
    tokio::time::timeout(patience, turns.take(client.network)).await.unwrap_or(Err(Busy::Everybody))
}

/// Bytes of a kind.
pub(crate) fn typed(kind: &'static str, bytes: Bytes) -> Answer {
    let mut answer = Response::new(bytes.into());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Too many wait already.
pub(crate) fn busy(why: Busy) -> Answer {
    let mut answer = match why {
        Busy::Everybody => status(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait already\n"),
        Busy::Network => status(StatusCode::TOO_MANY_REQUESTS, "too many requests from your network wait already\n"),
    };
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    answer
}
