//! Pushes (`git-receive-pack`).
//!
//! The ref commands are read first, the writer authorises them, and only then the pack is received, into quarantine.
//! After the pack has been checked, the writer authorises the push again and applies it. No object is visible before
//! that, and success is reported only when the events that the push releases are served. See
//! `docs/design/admission.md#receiving-a-pack`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use grasp_git::crash_point;
use grasp_git::receive::commands::{PushLimits, PushParseProgress, PushParser, PushRequest};
use grasp_git::receive::report::RejectionReport;
use grasp_git::receive::{
    PackChecker, PackData, PackError, PackLimits, PackSink, Quarantine, RequiredTips, VisibleObjects, report,
};
use hyper::body::Incoming as HttpBody;
use hyper::{Request, StatusCode};
use tracing::{Instrument, Span, info, info_span};

use super::handlers::{GitClient, GitService, acquire, queue_full, typed_response};
use super::request_body::{BodyError, GitRequestBody, respond_and_drain};
use crate::http::body::{BodySender, HttpResponse, ResponseBody};
use crate::http::response::status;
use crate::metrics::git::{GitOperation, GitOperationKind};
use crate::monitor::disk_budget::DiskReservation;
use crate::writer::command::{CheckedPush, PermittedPush};

/// Content type of the report.
const RESULT: &str = "application/x-git-receive-pack-result";

/// Bytes of a pack that are buffered before they are written to disk.
const WRITE_CHUNK_BYTES: usize = 512 * 1024;

/// Bytes that a push may always send, even if a quota is used up. A push without objects has a few bytes too.
const MIN_PUSH_BYTES: u64 = 4_096;

/// Reason why a push failed, as it is reported to the client.
struct PushError {
    code: &'static str,
    text: String,
    /// The ref that the error concerns.
    ref_name: Option<String>,
}

impl From<PushRejection> for PushError {
    fn from(rejection: PushRejection) -> Self {
        Self { code: rejection.code(), text: rejection.to_string(), ref_name: rejection.ref_name().map(str::to_owned) }
    }
}

impl From<PackError> for PushError {
    fn from(error: PackError) -> Self {
        Self { code: error.code(), text: error.to_string(), ref_name: error.ref_name().map(str::to_owned) }
    }
}

impl From<BodyError> for PushError {
    fn from(error: BodyError) -> Self {
        Self { code: "E-PUSH-BODY", text: error.to_string(), ref_name: None }
    }
}

/// Refs of a push that its log line names.
const MAX_LOGGED_REFS: usize = 5;

/// Returns the span of a push. All log lines of the push carry its repository and the network of its client.
fn push_span(repo_path: &RepoPath, client: GitClient) -> Span {
    let network = client.network_name().unwrap_or_else(|| "loopback".to_owned());
    info_span!(target: "git", "push", repo = %repo_path, client = network)
}

/// Returns the names of the refs of a push for the log, shortened to a few.
fn ref_names(request: &PushRequest) -> String {
    let names: Vec<&str> = request.commands.iter().take(MAX_LOGGED_REFS).map(|command| command.name.as_str()).collect();
    match request.commands.len().saturating_sub(MAX_LOGGED_REFS) {
        0 => names.join(" "),
        more => format!("{} and {more} more", names.join(" ")),
    }
}

/// `POST git-receive-pack`.
pub(super) async fn push(
    git: Arc<GitService>,
    repo_path: RepoPath,
    client: GitClient,
    request: Request<HttpBody>,
) -> HttpResponse {
    let (head, body) = request.into_parts();
    let body = match GitRequestBody::new(&head.headers, body) {
        Ok(body) => body,
        Err(_) => return status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported content encoding, use gzip\n"),
    };
    let max_bytes = git.git_settings().max_push_bytes;
    let span = push_span(&repo_path, client);
    match receive(git, repo_path, client, body).instrument(span).await {
        // The permit to receive is dropped here, before the rest of the body is drained.
        (response, Some(body)) => respond_and_drain(response, body, max_bytes).await,
        (response, None) => response,
    }
}

/// Receives a push. Returns the response, and the body if it has not been read to its end.
async fn receive(
    git: Arc<GitService>,
    repo_path: RepoPath,
    client: GitClient,
    mut body: GitRequestBody,
) -> (HttpResponse, Option<GitRequestBody>) {
    let _permit = match acquire(&git.receive_permits, client).await {
        Ok(permit) => permit,
        Err(full) => return (queue_full(full), Some(body)),
    };
    body.require_rate_if_contended(&git.receive_permits);
    let (request, rest, _large_push_permit) = match read_commands(&git, &mut body).await {
        Ok(Some(commands)) => commands,
        Ok(None) => return (status(StatusCode::BAD_REQUEST, "empty receive-pack request\n"), None),
        Err((partial, error)) => return (rejection_response(&git, &repo_path, &partial, &error), Some(body)),
    };
    body.require_rate_if_contended(&git.receive_permits);
    // git sends a probe without commands (`0000`) before a large push.
    if request.commands.is_empty() {
        return (typed_response(RESULT, Bytes::new()), Some(body));
    }
    let operation = GitOperation::new(&git.metrics, GitOperationKind::Push, &repo_path);
    let permitted = git.writer.request_push(repo_path.clone(), request.commands.clone(), client.network_name()).await;
    git.metrics.git().count_authorization(permitted.is_ok());
    let permitted = match permitted {
        Ok(permitted) => permitted,
        Err(rejection) => return (rejection_response(&git, &repo_path, &request, &rejection.into()), Some(body)),
    };
    if permitted.permit.is_empty() {
        info!(target: "git", refs = ref_names(&request), bytes = 0, "push accepted, nothing to change");
        operation.succeed();
        return (typed_response(RESULT, success(&request)), Some(body));
    }
    let mut operation = operation;
    let quarantined = match receive_pack(&git, &permitted.permit, &mut body, rest, &mut operation).await {
        Ok(quarantined) => quarantined,
        Err(error) => return (rejection_response(&git, &repo_path, &request, &error), Some(body)),
    };
    let (sender, report) = ResponseBody::channel();
    let work = finish(git, client, permitted, (request, operation), quarantined, sender);
    tokio::spawn(work.instrument(Span::current()));
    let mut response = typed_response(RESULT, Bytes::new());
    *response.body_mut() = report;
    (response, None)
}

/// The parsed commands, the first bytes of the pack, and the permit of a push with a large command list.
type Commands = (PushRequest, Vec<u8>, Option<tokio::sync::OwnedSemaphorePermit>);

/// Reads the ref commands. `None` if the body is empty. An error comes with the commands that were read before it.
async fn read_commands(
    git: &GitService,
    body: &mut GitRequestBody,
) -> Result<Option<Commands>, (PushRequest, PushError)> {
    let mut parser = PushParser::new(PushLimits::for_commands(limits::MAX_PUSH_COMMANDS));
    let mut large_push_permit = None;
    let mut is_empty = true;
    loop {
        let bytes = match body.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) if is_empty => return Ok(None),
            Ok(None) => return Err((parser.request_so_far().clone(), BodyError::Incomplete.into())),
            Err(error) => return Err((parser.request_so_far().clone(), error.into())),
        };
        is_empty = false;
        match parser.feed(&bytes) {
            Ok(PushParseProgress::More) => {}
            Ok(PushParseProgress::Done { request, rest }) => return Ok(Some((request, rest, large_push_permit))),
            Err(bad) => {
                let error =
                    PushError { code: bad.code(), text: bad.to_string(), ref_name: bad.ref_name().map(str::to_owned) };
                return Err((parser.request_so_far().clone(), error));
            }
        }
        if large_push_permit.is_none() && parser.request_so_far().commands.len() > limits::LARGE_PUSH_COMMANDS {
            match git.large_push_permits.clone().try_acquire_owned() {
                Ok(permit) => {
                    large_push_permit = Some(permit);
                    body.require_rate();
                }
                Err(_) => return Err((parser.request_so_far().clone(), PushRejection::Busy.into())),
            }
        }
    }
}

/// A pack in quarantine, and its reservation of the disk budget.
type QuarantinedPack = (Quarantine, PackData, DiskReservation);

/// Names the quota in the error of a pack that is larger than what a quota has left.
fn pack_error(permit: &PushPermit, error: PackError) -> PushError {
    match (&error, permit.quota_left) {
        (PackError::TooLarge(max_bytes), Some((left, quota))) if *max_bytes == left.max(MIN_PUSH_BYTES) => {
            PushRejection::QuotaExceeded(quota).into()
        }
        _ => error.into(),
    }
}

/// Receives the pack, in memory if it is small, otherwise into a file.
async fn receive_pack(
    git: &Arc<GitService>,
    permit: &PushPermit,
    body: &mut GitRequestBody,
    rest: Vec<u8>,
    operation: &mut GitOperation,
) -> Result<QuarantinedPack, PushError> {
    let limits = git.pack_limits(permit);
    let layout = git.layout.clone();
    let create = move || Quarantine::create(&layout).map(|quarantine| (PackSink::new(&quarantine, limits), quarantine));
    let (mut sink, quarantine) = blocking(create).await?.map_err(PackError::from)?;
    let mut buffer = rest;
    let mut reservation = git.disk_budget.reserve();
    loop {
        let next = body.next().await?;
        let is_end = next.is_none();
        buffer.extend_from_slice(&next.unwrap_or_default());
        if is_end || buffer.len() >= WRITE_CHUNK_BYTES {
            let bytes = std::mem::take(&mut buffer);
            operation.add_bytes(bytes.len());
            if !reservation.grow(bytes.len()) {
                return Err(PushRejection::DiskFull.into());
            }
            let (layout, reserve) = (git.layout.clone(), git.reserve_bytes);
            let write = move || {
                // A small pack is accepted; a large one must not use the disk space that is reserved for events.
                if bytes.len() >= WRITE_CHUNK_BYTES && layout.free_bytes()? < reserve {
                    return Err(PackError::DiskFull);
                }
                sink.write(&bytes).map(|()| sink)
            };
            sink = blocking(write).await?.map_err(|error| pack_error(permit, error))?;
        }
        if is_end {
            let received = sink.finish()?;
            crash_point::point("push.received");
            return Ok((quarantine, received, reservation));
        }
    }
}

/// Checks and applies a push that has been received completely. Sends keepalives meanwhile, and the report at the end.
async fn finish(
    git: Arc<GitService>,
    client: GitClient,
    permitted: PermittedPush,
    (request, operation): (PushRequest, GitOperation),
    (pack, received, reservation): QuarantinedPack,
    sender: BodySender,
) {
    let repo_path = permitted.push.repo_path.clone();
    let work = check_and_apply(&git, client, &permitted, pack, received);
    tokio::pin!(work);
    let mut tick = tokio::time::interval(Duration::from_secs(limits::PUSH_KEEPALIVE_SECS));
    tick.tick().await;
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            // A client that has disconnected does not matter: a complete push is applied anyway.
            _ = tick.tick() => drop(sender.try_send(Ok(report::keepalive(&request.capabilities).into()))),
        }
    };
    crash_point::point("push.done");
    let report = match result {
        Ok(()) => {
            reservation.commit();
            info!(target: "git", refs = ref_names(&request), bytes = operation.bytes(), "push accepted");
            operation.succeed();
            success(&request)
        }
        Err(error) => rejection_report(&git, &repo_path, &request, &error),
    };
    let _ = sender.send(Ok(report)).await;
}

async fn check_and_apply(
    git: &Arc<GitService>,
    client: GitClient,
    permitted: &PermittedPush,
    pack: Quarantine,
    received: PackData,
) -> Result<(), PushError> {
    let permits = if permitted.permit.uploads.is_empty() { &git.check_permits } else { &git.unsigned_check_permits };
    let permit = permits.acquire(client.network).await.map_err(|_| PushRejection::Busy)?;
    let open = git.ref_cache.open_repo(&permitted.push.repo_path).ok_or(PushRejection::NotHosted)?;
    let check = PushCheck {
        git: git.clone(),
        repo_path: permitted.push.repo_path.clone(),
        alternates: open.alternates,
        permit: permitted.permit.clone(),
        tips: tips(permitted),
    };
    let checked = blocking(move || check.run(pack, received)).await?;
    let checked = checked.map_err(|error| pack_error(&permitted.permit, error))?;
    drop(permit);
    crash_point::point("push.checked");
    Ok(git.writer.deliver_push(permitted, checked).await?)
}

/// Returns the new values of the refs that a push creates or updates.
fn tips(permitted: &PermittedPush) -> RequiredTips {
    let mut tips = RequiredTips::default();
    for command in &permitted.push.commands {
        let Some(oid) = command.new.clone() else { continue };
        let into = if command.name.starts_with("refs/tags/") { &mut tips.others } else { &mut tips.branches };
        into.push((command.name.clone(), oid));
    }
    tips
}

/// The checks of one push. They wait for git processes, so they run on a blocking thread.
struct PushCheck {
    git: Arc<GitService>,
    repo_path: RepoPath,
    alternates: Vec<RepoPath>,
    permit: PushPermit,
    tips: RequiredTips,
}

impl PushCheck {
    /// Indexes the pack, checks that all new tips are connected, and separates uploads from signed data.
    fn run(self, mut pack: Quarantine, received: PackData) -> Result<CheckedPush, PackError> {
        let prune_count = self.git.layout.prune_count();
        let limits = self.git.pack_limits(&self.permit);
        let checker = PackChecker { git: &self.git.git, layout: &self.git.layout, limits };
        let pools = self.pools();
        let has_pack = matches!(received, PackData::Pack(_));
        checker.index_pack(&mut pack, received, &pools)?;
        let known = self.connected_tips()?;
        let view = VisibleObjects { quarantine: has_pack.then_some(&pack), pools: &pools };
        let connected = checker.check_connectivity(view, &self.tips, &known)?;
        let uploads = &self.permit.uploads;
        let is_upload = |name: &str| uploads.iter().any(|(event, _)| name == format!("refs/nostr/{event}"));
        let all = self.tips.branches.iter().chain(&self.tips.others);
        let signed: Vec<String> = all.filter(|(name, _)| !is_upload(name)).map(|(_, oid)| oid.clone()).collect();
        if uploads.is_empty() {
            let pack = match (has_pack, connected.extra) {
                (false, _) => None,
                (true, 0) => Some(pack),
                (true, _) => Some(checker.repack_needed(view, &signed, &known)?),
            };
            return Ok(CheckedPush { pack, uploads: Vec::new(), alternates: self.alternates, prune_count });
        }
        if let ([(event, tip)], [], 0) = (uploads.as_slice(), signed.as_slice(), connected.extra) {
            let uploads = vec![(*event, tip.clone(), pack)];
            return Ok(CheckedPush { pack: None, uploads, alternates: self.alternates, prune_count });
        }
        // Signed data and uploads must not be in the same pack: the former is served, the latter is not.
        let signed_pack = if signed.is_empty() { None } else { Some(checker.repack_needed(view, &signed, &known)?) };
        let known: Vec<String> = known.into_iter().chain(signed).collect();
        let mut split = Vec::new();
        for (event, tip) in uploads {
            split.push((*event, tip.clone(), checker.repack_needed(view, std::slice::from_ref(tip), &known)?));
        }
        Ok(CheckedPush { pack: signed_pack, uploads: split, alternates: self.alternates, prune_count })
    }

    /// Returns the existing pools that the repository may read.
    fn pools(&self) -> Vec<PathBuf> {
        let repo_paths = std::iter::once(&self.repo_path).chain(&self.alternates);
        repo_paths.map(|repo_path| self.git.layout.pool(repo_path)).filter(|pool| pool.is_dir()).collect()
    }

    /// Returns objects that are known to be connected: those that refs point to.
    fn connected_tips(&self) -> Result<Vec<String>, PackError> {
        let snapshot = self.git.ref_cache.snapshot(&self.repo_path)?;
        let mut oids: Vec<String> = snapshot.refs.iter().map(|(_, target)| target.oid.clone()).collect();
        oids.sort_unstable();
        oids.dedup();
        Ok(oids)
    }
}

impl GitService {
    /// Returns the limits of the pack of a push.
    fn pack_limits(&self, permit: &PushPermit) -> PackLimits {
        let settings = self.git_settings();
        let limits = settings.pack_limits();
        let max_bytes = if permit.uploads.is_empty() { limits.max_bytes } else { settings.max_unsigned_push_bytes };
        let max_bytes = permit.quota_left.map_or(max_bytes, |(left, _)| left.max(MIN_PUSH_BYTES).min(max_bytes));
        PackLimits { max_bytes, ..limits }
    }
}

async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, PushError> {
    let failed = |_| PushError { code: "E-SERVER", text: "internal server error".to_owned(), ref_name: None };
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

/// Returns the report of a push whose commands all succeeded.
fn success(request: &PushRequest) -> Bytes {
    let results: Vec<_> = request.commands.iter().map(|command| (command.name.clone(), Ok(()))).collect();
    report::report(&request.capabilities, Ok(()), &results).into()
}

/// Counts and logs a rejected push, and returns its report.
fn rejection_report(git: &GitService, repo_path: &RepoPath, request: &PushRequest, error: &PushError) -> Bytes {
    git.metrics.git().count_refusal(error.code);
    info!(target: "git", refs = ref_names(request), code = error.code, reason = %error.text, "push rejected");
    let hint = format!("events in purgatory for this repository: {}/{repo_path}/purgatory", git.service_url);
    let rejection =
        RejectionReport { code: error.code, text: &error.text, ref_name: error.ref_name.as_deref(), hint: &hint };
    report::rejection(&request.capabilities, &request.commands, &rejection).into()
}

fn rejection_response(
    git: &GitService,
    repo_path: &RepoPath,
    request: &PushRequest,
    error: &PushError,
) -> HttpResponse {
    typed_response(RESULT, rejection_report(git, repo_path, request, error))
}
