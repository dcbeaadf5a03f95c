//! Ref advertisements, clones and fetches. Refs are answered from memory; packs are computed by git, once for all
//! clients that send the same request.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::stream;
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use grasp_git::layout::Layout;
use grasp_git::process::{Git, GitError};
use grasp_git::refs::Refs;
use grasp_git::serve;
use grasp_git::serve::{
    FetchCommand, PackService, ProtocolVersion, ServerCapabilities, UploadPackError, UploadPackLimits,
    UploadPackRequest, advertisement,
};
use hyper::body::Incoming as HttpBody;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, StatusCode, header};
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use super::handlers::{GitClient, NamedSemaphore, acquire, queue_full, typed_response};
use super::pack_cache::{PackCache, PackCacheKey, PackReader, PackStatus, PackWriter};
use super::request_body::{BodyError, BufferedBody, GitRequestBody, MEMORY_UNIT_BYTES, respond_and_drain};
use super::transfer_rate::{CONTENDED_RATE, RATE_CHECK_INTERVAL, TransferRate};
use crate::config::{GitSettings, SettingsReceiver};
use crate::http::body::{BodySender, HttpResponse, ResponseBody};
use crate::http::fair_semaphore::{FairPermit, FairSemaphore, QueueFull};
use crate::http::response::status;
use crate::metrics::Metrics;
use crate::metrics::git::{GitOperation, GitOperationKind};
use crate::random;
use crate::repos::ref_cache::{Advertisement, OpenRepo, RefCache, RefSnapshot};
use crate::repos::ref_files::RefFileWriter;

/// Maximum number of refs of alternates in a receive-pack advertisement (`.have` lines), so that a push does not send
/// objects that the repository can read already.
const MAX_HAVES: usize = 1_000;

/// Answers ref advertisements, clones and fetches.
pub(crate) struct UploadPackHandler {
    settings: SettingsReceiver,
    git: Git,
    layout: Arc<Layout>,
    ref_cache: Arc<RefCache>,
    ref_files: Arc<RefFileWriter>,
    capabilities: ServerCapabilities,
    pack_cache: Arc<PackCache>,
    /// Threads of one `git pack-objects` process.
    pack_threads: u32,
    /// Limits git processes that answer fetches.
    permits: Arc<FairSemaphore>,
    /// Limits git processes that answer fetches too large for the cache. Each of them is as slow as its client.
    large_permits: Arc<FairSemaphore>,
    /// Memory for fetch requests, in permits of [`MEMORY_UNIT_BYTES`] bytes.
    request_memory: Arc<Semaphore>,
    /// Random number of this start. Part of etags, because generations of ref snapshots start again at every start.
    boot_id: u64,
    metrics: Metrics,
}

/// Number of permits of [`UploadPackHandler::request_memory`].
const MEMORY_UNITS: usize = limits::MAX_TOTAL_FETCH_REQUEST_BYTES / MEMORY_UNIT_BYTES;

impl UploadPackHandler {
    /// Creates the handler and its cache folder.
    ///
    /// # Errors
    /// Fails if the cache folder cannot be created.
    pub(crate) fn new(
        settings: SettingsReceiver,
        (git, capabilities): (Git, ServerCapabilities),
        layout: Arc<Layout>,
        (ref_cache, ref_files): (Arc<RefCache>, Arc<RefFileWriter>),
        pack_threads: u32,
        metrics: Metrics,
    ) -> Result<Self> {
        let GitSettings { pack_cache_bytes, serve_processes, .. } = settings.borrow().git;
        let cache = layout.root().join("cache");
        std::fs::create_dir_all(&cache).with_context(|| format!("cannot create the folder {}", cache.display()))?;
        let permits = |processes| {
            FairSemaphore::new(processes, limits::MAX_WAITING_FETCHES, limits::MAX_WAITING_FETCHES_PER_NETWORK)
        };
        Ok(Self {
            settings,
            git,
            layout,
            ref_cache,
            ref_files,
            capabilities,
            pack_cache: PackCache::new(cache, pack_cache_bytes),
            pack_threads,
            permits: permits(serve_processes),
            large_permits: permits(serve_processes / 2),
            request_memory: Arc::new(Semaphore::new(MEMORY_UNITS)),
            boot_id: u64::from_le_bytes(random::bytes()?),
            metrics,
        })
    }

    pub(crate) fn pack_cache(&self) -> Arc<PackCache> {
        self.pack_cache.clone()
    }

    /// Returns the semaphores with their names in the metrics.
    pub(crate) fn semaphores(&self) -> [NamedSemaphore; 2] {
        [("fetch", self.permits.clone()), ("fetch_large", self.large_permits.clone())]
    }

    /// Returns a function that reads how many bytes requests use, and the limit.
    pub(crate) fn request_memory_load(&self) -> impl Fn() -> (usize, usize) + Send + use<> {
        let memory = self.request_memory.clone();
        move || ((MEMORY_UNITS - memory.available_permits()) * MEMORY_UNIT_BYTES, MEMORY_UNITS * MEMORY_UNIT_BYTES)
    }

    /// Returns the size of the largest response that may be cached. All git processes may write one at the same time.
    fn max_cached_response_bytes(&self) -> u64 {
        self.pack_cache.load().1 / self.settings.borrow().git.serve_processes as u64
    }

    /// `GET info/refs`.
    pub(super) async fn refs(
        &self,
        repo_path: &RepoPath,
        open: &OpenRepo,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> HttpResponse {
        let name = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("service="));
        let Some(service) = name.and_then(PackService::from_name) else {
            return status(StatusCode::FORBIDDEN, "the dumb git protocol is not supported: use git 1.6.6 or newer\n");
        };
        let Some(snapshot) = self.ref_cache.load(repo_path).await else { return cannot_read_repository() };
        let mut response = match service {
            PackService::UploadPack if snapshot.is_degraded() => {
                typed_response(service.advertisement_type(), Bytes::from(advertisement::degraded()))
            }
            PackService::UploadPack => {
                let advertisement = self.upload_advertisement(&snapshot, protocol(headers));
                if etag_matches(headers, &advertisement.etag) {
                    let mut response = status(StatusCode::NOT_MODIFIED, "");
                    set_etag(&mut response, &advertisement.etag);
                    never_cache(&mut response);
                    return response;
                }
                let mut response = typed_response(service.advertisement_type(), advertisement.body.clone());
                set_etag(&mut response, &advertisement.etag);
                response
            }
            PackService::ReceivePack => {
                let mut alternates = Vec::new();
                for alternate in &open.alternates {
                    alternates.extend(self.ref_cache.load(alternate).await);
                }
                let known = alternates.iter().filter(|alternate| !alternate.is_degraded() && !snapshot.is_degraded());
                let haves = known.flat_map(|snapshot| snapshot.refs.iter()).map(|(_, target)| target.oid.as_str());
                // A client would not send what the refs seem to have.
                let no_refs = Refs::default();
                let refs = if snapshot.is_degraded() { &no_refs } else { &*snapshot.refs };
                let body = advertisement::receive_pack(refs, &self.capabilities, haves.take(MAX_HAVES));
                typed_response(service.advertisement_type(), Bytes::from(body))
            }
        };
        never_cache(&mut response);
        response
    }

    /// Returns the upload-pack advertisement of a snapshot, which is rendered at its first use.
    fn upload_advertisement<'s>(&self, snapshot: &'s RefSnapshot, protocol: ProtocolVersion) -> &'s Advertisement {
        let slot = match protocol {
            ProtocolVersion::V0 => 0,
            ProtocolVersion::V1 => 1,
            ProtocolVersion::V2 => 2,
        };
        snapshot.advertisements[slot].get_or_init(|| Advertisement {
            body: Bytes::from(advertisement::upload_pack(&snapshot.refs, &self.capabilities, protocol)),
            etag: format!("\"{:x}-{:x}-{slot}\"", self.boot_id, snapshot.generation),
        })
    }

    /// `POST git-upload-pack`.
    pub(super) async fn upload(
        self: Arc<Self>,
        repo_path: RepoPath,
        client: GitClient,
        request: Request<HttpBody>,
    ) -> HttpResponse {
        let (head, body) = request.into_parts();
        let protocol = protocol(&head.headers);
        let mut body = match GitRequestBody::new(&head.headers, body) {
            Ok(body) => body,
            Err(error) => return error_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, error),
        };
        let buffered = body.read_to_end(limits::MAX_FETCH_REQUEST_BYTES, &self.request_memory).await;
        let BufferedBody { bytes: body, memory } = match buffered {
            Ok(buffered) => buffered,
            Err(error) => {
                let response = match error {
                    BodyError::TooLarge(_) => error_response(StatusCode::PAYLOAD_TOO_LARGE, error),
                    BodyError::OutOfMemory => queue_full(QueueFull::Total),
                    _ => error_response(StatusCode::BAD_REQUEST, error),
                };
                return respond_and_drain(response, body, limits::MAX_FETCH_REQUEST_BYTES as u64).await;
            }
        };
        let Some(snapshot) = self.ref_cache.load(&repo_path).await else { return cannot_read_repository() };
        let mut response = match UploadPackRequest::parse(protocol, &body) {
            Ok(UploadPackRequest::Empty) => result(Bytes::new()),
            Ok(_) if snapshot.is_degraded() => result(serve::degraded_response().into()),
            Ok(UploadPackRequest::LsRefs(question)) => {
                result(serve::ls_refs_response(&snapshot.refs, &question).into())
            }
            Ok(UploadPackRequest::Fetch(fetch)) if !snapshot.exists => {
                result(serve::not_our_ref_response(fetch.wants.first().map_or("", String::as_str)).into())
            }
            Ok(UploadPackRequest::Fetch(fetch)) => {
                let job = UploadPackJob { handler: self.clone(), repo_path, client, protocol, fetch, _memory: memory };
                drop(body);
                job.respond(snapshot.generation).await
            }
            Err(bad) => result(bad.to_response().into()),
        };
        never_cache(&mut response);
        response
    }
}

/// Returns true if the client has the version with this etag.
pub(crate) fn etag_matches(headers: &HeaderMap, etag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known.flat_map(|value| value.split(',')).any(|value| value.trim().trim_start_matches("W/") == etag)
}

fn set_etag(response: &mut HttpResponse, etag: &str) {
    if let Ok(value) = HeaderValue::from_str(etag) {
        response.headers_mut().insert(header::ETAG, value);
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Git-Protocol"));
    }
}

/// Sets the headers that make clients and proxies revalidate a response, because refs change.
pub(crate) fn never_cache(response: &mut HttpResponse) {
    for (name, value) in [
        (header::CACHE_CONTROL, "no-cache, max-age=0, must-revalidate"),
        (header::EXPIRES, "Fri, 01 Jan 1980 00:00:00 GMT"),
        (header::PRAGMA, "no-cache"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}

/// Returns the protocol version of the `Git-Protocol` header.
fn protocol(headers: &HeaderMap) -> ProtocolVersion {
    ProtocolVersion::from_header(headers.get("git-protocol").and_then(|value| value.to_str().ok()))
}

fn result(bytes: Bytes) -> HttpResponse {
    typed_response(PackService::UploadPack.result_type(), bytes)
}

fn error_response(code: StatusCode, error: BodyError) -> HttpResponse {
    let mut response = status(code, "");
    *response.body_mut() = format!("{error}\n").into();
    response
}

/// Returns 500 for a repository that cannot be read.
pub(crate) fn cannot_read_repository() -> HttpResponse {
    status(StatusCode::INTERNAL_SERVER_ERROR, "the repository cannot be read\n")
}

/// A fetch that needs a git process.
struct UploadPackJob {
    handler: Arc<UploadPackHandler>,
    repo_path: RepoPath,
    client: GitClient,
    protocol: ProtocolVersion,
    fetch: FetchCommand,
    /// Permits for the memory of the request.
    _memory: Option<OwnedSemaphorePermit>,
}

impl UploadPackJob {
    /// Responds from the pack cache or from a file, so that a slow client holds no git process, or directly from a git
    /// process if there is no disk space for the response.
    async fn respond(self, generation: u64) -> HttpResponse {
        let size = {
            let (layout, repo_path) = (self.handler.layout.clone(), self.repo_path.clone());
            tokio::task::spawn_blocking(move || layout.readable_pool_bytes(&repo_path)).await.ok().and_then(Result::ok)
        };
        let is_negotiation = self.fetch.response_kind == serve::request::FetchResponseKind::Negotiation;
        let kind = if self.is_clone() { GitOperationKind::Clone } else { GitOperationKind::Fetch };
        let operation = (!is_negotiation).then(|| GitOperation::new(&self.handler.metrics, kind, &self.repo_path));
        let is_large = size.unwrap_or(u64::MAX) > self.handler.max_cached_response_bytes();
        if is_large || self.handler.pack_cache.is_full() {
            return self.respond_directly(operation).await;
        }
        // A negotiation step is a few lines that differ from client to client, and a pack if git needs to know no more.
        if is_negotiation {
            return match self.handler.pack_cache.spool() {
                Ok((reader, writer)) => {
                    tokio::spawn(self.fill_cache(writer));
                    follow(reader, operation).await
                }
                Err(error) => self.respond_without_cache(error, operation).await,
            };
        }
        let request = self.fetch.key.0;
        let key = PackCacheKey { repo_path: self.repo_path.clone(), generation, request, version: self.protocol as u8 };
        let (reader, writer) = match self.handler.pack_cache.follow(&key) {
            Ok(cached) => cached,
            Err(error) => return self.respond_without_cache(error, operation).await,
        };
        self.handler.metrics.git().count_pack_cache(writer.is_none());
        if let Some(writer) = writer {
            tokio::spawn(self.fill_cache(writer));
        }
        follow(reader, operation).await
    }

    /// Responds directly because no file could be created. Probably the disk is full.
    async fn respond_without_cache(self, error: io::Error, operation: Option<GitOperation>) -> HttpResponse {
        warn!(target: "git", %error, "cannot create a pack cache file, responding without cache");
        self.respond_directly(operation).await
    }

    /// Returns true if the client has no objects yet.
    fn is_clone(&self) -> bool {
        !self.fetch.body.windows(5).any(|line| line == b"have ")
    }

    /// Computes the response for all clients that follow it, or for the only client of a response that is not cached.
    async fn fill_cache(self, writer: PackWriter) {
        let permit = tokio::select! {
            permit = acquire(&self.handler.permits, self.client) => permit,
            // All clients have disconnected, so the place in the queue is freed.
            () = writer.wait_until_unread() => return,
        };
        match permit {
            Ok(permit) => drop(tokio::task::spawn_blocking(move || self.write_to_cache(writer, permit))),
            Err(full) => writer.finish(PackStatus::QueueFull(full)),
        }
    }

    fn write_to_cache(self, mut writer: PackWriter, permit: FairPermit) {
        let result = self.run(|bytes| match writer.write(bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(GitError::Cancelled),
            Err(error) => Err(GitError::Io(error)),
        });
        drop(permit);
        writer.finish(match result {
            Ok(()) => PackStatus::Complete,
            Err(UploadPackError::Reported(_)) => PackStatus::ErrorReported,
            Err(UploadPackError::Interrupted(_)) => PackStatus::Failed,
        });
    }

    /// Computes the response for this client alone, as fast as the client reads. A client that stalls is dropped, as is
    /// one that reads slowly while others wait for its git process.
    async fn respond_directly(self, mut operation: Option<GitOperation>) -> HttpResponse {
        let permit = match acquire(&self.handler.large_permits, self.client).await {
            Ok(permit) => permit,
            Err(full) => return queue_full(full),
        };
        let (sender, body) = ResponseBody::channel();
        let runtime = tokio::runtime::Handle::current();
        let mut rate = TransferRate::default();
        tokio::task::spawn_blocking(move || {
            let result = self.run(|bytes| {
                if let Some(operation) = &mut operation {
                    operation.add_bytes(bytes.len());
                }
                runtime.block_on(self.send(&sender, bytes, &mut rate))
            });
            debug!(target: "git", repo = %self.repo_path, success = result.is_ok(), "fetch answered without cache");
            if let Some(operation) = operation.take().filter(|_| result.is_ok()) {
                operation.succeed();
            }
            drop(permit);
        });
        let mut response = result(Bytes::new());
        *response.body_mut() = body;
        response
    }

    /// Sends bytes to the client of a response that is not written to a file.
    async fn send(&self, sender: &BodySender, bytes: &[u8], rate: &mut TransferRate) -> Result<(), GitError> {
        let stalled_at = Instant::now() + Duration::from_secs(limits::STALL_TIMEOUT_SECS);
        let mut chunk = Ok(Bytes::copy_from_slice(bytes));
        loop {
            let began = Instant::now();
            let sent = sender.send_timeout(chunk, RATE_CHECK_INTERVAL).await;
            rate.add_wait(began.elapsed());
            chunk = match sent {
                Ok(()) => {
                    rate.add_bytes(bytes.len());
                    return Ok(());
                }
                Err(SendTimeoutError::Timeout(unsent)) if Instant::now() < stalled_at => unsent,
                Err(_) => return Err(GitError::Cancelled),
            };
            let is_contended = self.handler.large_permits.is_contended(self.client.network);
            if is_contended && rate.is_below(CONTENDED_RATE) {
                return Err(GitError::Cancelled);
            }
        }
    }

    /// Runs `git upload-pack` and passes its output to `output`.
    fn run(&self, output: impl FnMut(&[u8]) -> Result<(), GitError>) -> Result<(), UploadPackError> {
        self.handler.ref_files.update(&self.repo_path);
        let folder = self.handler.layout.repo_dir(&self.repo_path);
        let effort = UploadPackLimits {
            threads: self.handler.pack_threads,
            timeout: self.handler.settings.borrow().git.process_timeout,
        };
        let result = serve::upload_pack(&self.handler.git, &folder, (self.protocol, &self.fetch.body), effort, output);
        if let Err(error) = &result {
            debug!(target: "git", repo = %self.repo_path, %error, "git upload-pack failed");
        }
        result
    }
}

/// A reader of a cached response, and the metrics of the request.
type CachedFetch = (PackReader, Option<GitOperation>);

/// Streams a response from its file while it is being written.
async fn follow(mut reader: PackReader, operation: Option<GitOperation>) -> HttpResponse {
    let first = reader.wait_for_progress().await;
    match (first.bytes, first.status) {
        (0, PackStatus::QueueFull(full)) => return queue_full(full),
        (0, PackStatus::Failed) => return cannot_read_repository(),
        _ => {}
    }
    let mut response = result(Bytes::new());
    *response.body_mut() = ResponseBody::lazy(stream::unfold(Some((reader, operation)), next_chunk));
    response
}

/// Returns the next chunk of a response and the state for the one after it.
async fn next_chunk(fetch: Option<CachedFetch>) -> Option<(io::Result<Bytes>, Option<CachedFetch>)> {
    let (mut reader, mut operation) = fetch?;
    match reader.next().await {
        Ok(chunk) => {
            if let Some(operation) = &mut operation {
                operation.add_bytes(chunk.len());
            }
            Some((Ok(chunk), Some((reader, operation))))
        }
        Err(PackStatus::Complete) => {
            if let Some(operation) = operation {
                operation.succeed();
            }
            None
        }
        Err(PackStatus::ErrorReported) => None,
        Err(_) => Some((Err(io::Error::other("the response could not be completed")), None)),
    }
}
