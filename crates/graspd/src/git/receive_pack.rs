//! Pushes (`git-receive-pack`).
//!
//! The ref commands are read first, the writer authorises them, and only then the pack is received, into quarantine.
//! After the pack has been checked, the writer authorises the push again and applies it. No object is visible before
//! that, and success is reported only when the events that the push releases are served. See
//! `docs/design/admission.md#receiving-a-pack`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::admission::io::{ReceivedPush, ReceivedUpload, RequestedPush};
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::limits;
use grasp_core::nostr::EventId;
use grasp_core::repo::{RepoPath, RepoState};
use grasp_git::crash_point;
use grasp_git::layout::Layout;
use grasp_git::process::Git;
use grasp_git::receive::commands::{PushLimits, PushParseProgress, PushParser, PushRequest};
use grasp_git::receive::report::RejectionReport;
use grasp_git::receive::{
    InProcessLimits, PackChecker, PackData, PackError, PackLimits, Quarantine, RequiredTips, VisibleObjects, report,
};
use grasp_store::Store;
use hyper::body::Incoming as HttpBody;
use hyper::{Request, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{Instrument, Span, info, info_span};

use super::handlers::{GitClient, NamedSemaphore, acquire, queue_full, typed_response};
use super::pack_receiver::{PackReceiver, SpoolError, SpooledPack};
use super::request_body::{BodyError, GitRequestBody, respond_and_drain};
use crate::config::SettingsReceiver;
use crate::http::body::{BodySender, HttpResponse, ResponseBody};
use crate::http::fair_semaphore::FairSemaphore;
use crate::http::response::status;
use crate::metrics::Metrics;
use crate::metrics::git::{GitOperation, GitOperationKind};
use crate::repos::ref_cache::RefCache;
use crate::writer::command::PushGuard;
use crate::writer::queue::EventQueue;

/// Content type of the report.
const RESULT: &str = "application/x-git-receive-pack-result";

/// Bytes that a push may always send, even if a quota is used up. A push without objects has a few bytes too.
const MIN_PUSH_BYTES: u64 = 4_096;

/// Reason why a push failed, as it is reported to the client.
struct PushError {
    code: &'static str,
    text: String,
    /// The ref that the error concerns.
    ref_name: Option<String>,
}

impl PushError {
    /// A task of the push has panicked or was cancelled.
    fn internal() -> Self {
        Self { code: "E-SERVER", text: "internal server error".to_owned(), ref_name: None }
    }
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

/// The parsed commands, the first bytes of the pack, and the permit of a push with a large command list.
type Commands = (PushRequest, Vec<u8>, Option<OwnedSemaphorePermit>);

/// A checked pack of signed data, and the checked packs of uploads with their events and commits.
type CheckedPacks = (Option<Quarantine>, Vec<(EventId, String, Quarantine)>);

/// Receives and checks pushes.
pub(crate) struct ReceivePackHandler {
    settings: SettingsReceiver,
    git: Git,
    layout: Arc<Layout>,
    ref_cache: Arc<RefCache>,
    writer: Arc<EventQueue>,
    store: Store,
    packs: PackReceiver,
    /// Limits the states that are read at the same time to explain why a push is rejected.
    explain_permits: Arc<Semaphore>,
    /// Limits pushes that are being received.
    receive_permits: Arc<FairSemaphore>,
    /// Limits git processes that check packs.
    check_permits: Arc<FairSemaphore>,
    /// Limits git processes that check uploads without a signed event. There are fewer of them, and they are separate,
    /// so that uploads, which any client can send, do not delay signed pushes.
    unsigned_check_permits: Arc<FairSemaphore>,
    /// Limits pushes whose command lists need megabytes of memory.
    large_push_permits: Arc<Semaphore>,
    metrics: Metrics,
    /// Base URL of the service.
    web_url: String,
}

impl ReceivePackHandler {
    pub(crate) fn new(
        settings: SettingsReceiver,
        git: Git,
        layout: Arc<Layout>,
        ref_cache: Arc<RefCache>,
        (writer, store): (Arc<EventQueue>, Store),
        packs: PackReceiver,
        metrics: Metrics,
    ) -> Self {
        let (processes, web_url) = (settings.borrow().git.check_processes, settings.borrow().web_url());
        let check_permits = |processes| FairSemaphore::new(processes, limits::MAX_PUSHES, limits::MAX_PUSHES / 4);
        Self {
            settings,
            git,
            layout,
            ref_cache,
            writer,
            store,
            packs,
            explain_permits: Arc::new(Semaphore::new(1)),
            receive_permits: FairSemaphore::new(
                limits::MAX_PUSHES,
                limits::MAX_WAITING_PUSHES,
                limits::MAX_WAITING_PUSHES_PER_NETWORK,
            ),
            check_permits: check_permits(processes),
            // Half of the processes, because any client can occupy these.
            unsigned_check_permits: check_permits(processes / 2),
            large_push_permits: Arc::new(Semaphore::new(limits::MAX_LARGE_PUSHES)),
            metrics,
            web_url,
        }
    }

    /// Returns the semaphores with their names in the metrics.
    pub(crate) fn semaphores(&self) -> [NamedSemaphore; 3] {
        [
            ("push_receive", self.receive_permits.clone()),
            ("push_check", self.check_permits.clone()),
            ("push_check_unsigned", self.unsigned_check_permits.clone()),
        ]
    }

    /// `POST git-receive-pack`.
    pub(super) async fn push(
        self: Arc<Self>,
        repo_path: RepoPath,
        client: GitClient,
        request: Request<HttpBody>,
    ) -> HttpResponse {
        let span = push_span(&repo_path, client);
        let (head, body) = request.into_parts();
        let body = match GitRequestBody::new(&head.headers, body) {
            Ok(body) => body,
            Err(_) => {
                let text = "unsupported content encoding, use gzip\n";
                return span.in_scope(|| self.status_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
            }
        };
        let max_bytes = self.settings.borrow().git.max_push_bytes;
        match self.receive(repo_path, client, body).instrument(span).await {
            // The permit to receive is dropped here, before the rest of the body is drained.
            (response, Some(body)) => respond_and_drain(response, body, max_bytes).await,
            (response, None) => response,
        }
    }

    /// Receives a push. Returns the response, and the body if it has not been read to its end.
    async fn receive(
        self: Arc<Self>,
        repo_path: RepoPath,
        client: GitClient,
        mut body: GitRequestBody,
    ) -> (HttpResponse, Option<GitRequestBody>) {
        let _permit = match acquire(&self.receive_permits, client).await {
            Ok(permit) => permit,
            Err(full) => {
                self.count_and_log("", "E-BUSY", "too many waiting pushes");
                return (queue_full(full), Some(body));
            }
        };
        body.require_rate_if_contended(&self.receive_permits, client);
        let (request, rest, _large_push_permit) = match self.read_commands(&mut body).await {
            Ok(Some(commands)) => commands,
            Ok(None) => return (self.status_response(StatusCode::BAD_REQUEST, "empty receive-pack request\n"), None),
            Err((partial, error)) => return (self.rejection_response(&repo_path, &partial, &error), Some(body)),
        };
        body.require_rate_if_contended(&self.receive_permits, client);
        // git sends a probe without commands (`0000`) before a large push.
        if request.commands.is_empty() {
            return (typed_response(RESULT, Bytes::new()), Some(body));
        }
        let mut operation = GitOperation::new(&self.metrics, GitOperationKind::Push, &repo_path);
        let permitted =
            self.writer.request_push(repo_path.clone(), request.commands.clone(), client.network_name()).await;
        self.metrics.git().count_authorization(permitted.is_ok());
        let (push, permit) = match permitted {
            Ok(permitted) => permitted,
            Err(rejection) => {
                let error = self.explain(rejection).await.into();
                return (self.rejection_response(&repo_path, &request, &error), Some(body));
            }
        };
        if permit.is_empty() {
            info!(target: "git", refs = ref_names(&request), bytes = 0, "push accepted, nothing to change");
            operation.succeed();
            return (typed_response(RESULT, success(&request)), Some(body));
        }
        let spooled = match self.receive_pack(&permit, &mut body, rest, &mut operation).await {
            Ok(spooled) => spooled,
            Err(error) => return (self.rejection_response(&repo_path, &request, &error), Some(body)),
        };
        let (sender, report) = ResponseBody::channel();
        let work = self.finish(client, (push, permit), (request, operation), spooled, sender);
        tokio::spawn(work.instrument(Span::current()));
        let mut response = typed_response(RESULT, Bytes::new());
        *response.body_mut() = report;
        (response, None)
    }

    /// Reads the ref commands. `None` if the body is empty. An error comes with the commands that were read before it.
    async fn read_commands(&self, body: &mut GitRequestBody) -> Result<Option<Commands>, (PushRequest, PushError)> {
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
                    let ref_name = bad.ref_name().map(str::to_owned);
                    let error = PushError { code: bad.code(), text: bad.to_string(), ref_name };
                    return Err((parser.request_so_far().clone(), error));
                }
            }
            if large_push_permit.is_none() && parser.request_so_far().commands.len() > limits::LARGE_PUSH_COMMANDS {
                match self.large_push_permits.clone().try_acquire_owned() {
                    Ok(permit) => {
                        large_push_permit = Some(permit);
                        body.require_rate();
                    }
                    Err(_) => return Err((parser.request_so_far().clone(), PushRejection::Busy.into())),
                }
            }
        }
    }

    /// Receives the pack.
    async fn receive_pack(
        &self,
        permit: &PushPermit,
        body: &mut GitRequestBody,
        rest: Vec<u8>,
        operation: &mut GitOperation,
    ) -> Result<SpooledPack, PushError> {
        let mut spool = self.packs.start(self.pack_limits(permit)).await.map_err(|error| spool_error(permit, error))?;
        let mut next = Some(Bytes::from(rest));
        while let Some(bytes) = next {
            operation.add_bytes(bytes.len());
            spool.buffer().extend_from_slice(&bytes);
            spool.flush_if_full().await.map_err(|error| spool_error(permit, error))?;
            next = body.next().await?;
        }
        let spooled = spool.finish().await.map_err(|error| spool_error(permit, error))?;
        crash_point::point("push.received");
        Ok(spooled)
    }

    /// Checks and applies a push that has been received completely. Sends keepalives meanwhile, and the report at the
    /// end.
    async fn finish(
        self: Arc<Self>,
        client: GitClient,
        (push, permit): (PushGuard, PushPermit),
        (request, operation): (PushRequest, GitOperation),
        SpooledPack { pack, received, share }: SpooledPack,
        sender: BodySender,
    ) {
        let work = self.check_and_apply(client, &push, permit, pack, received);
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
                share.commit();
                info!(target: "git", refs = ref_names(&request), bytes = operation.bytes(), "push accepted");
                operation.succeed();
                success(&request)
            }
            Err(error) => self.rejection_report(&push.repo_path, &request, &error),
        };
        let _ = sender.send(Ok(report)).await;
    }

    async fn check_and_apply(
        self: &Arc<Self>,
        client: GitClient,
        push: &RequestedPush,
        permit: PushPermit,
        pack: Quarantine,
        received: PackData,
    ) -> Result<(), PushError> {
        let semaphore = if permit.uploads.is_empty() { &self.check_permits } else { &self.unsigned_check_permits };
        let check_permit = semaphore.acquire(client.network).await.map_err(|_| PushRejection::Busy)?;
        let open = self.ref_cache.open_repo(&push.repo_path).ok_or(PushRejection::NotHosted)?;
        let (handler, push) = (self.clone(), push.clone());
        let check = move || {
            let checked = handler.check(push, &permit, open.alternates, pack, received);
            checked.map_err(|error| pack_error(&permit, error))
        };
        let (received_push, packs) = tokio::task::spawn_blocking(check).await.map_err(|_| PushError::internal())??;
        drop(check_permit);
        crash_point::point("push.checked");
        match self.writer.deliver_push(received_push, packs).await {
            Ok(()) => Ok(()),
            Err(rejection) => Err(self.explain(rejection).await.into()),
        }
    }

    /// Finds the difference between a rejected push and the newest state. The writer compares only hashes, because states
    /// may have thousands of refs; the state is read here.
    async fn explain(&self, rejection: PushRejection) -> PushRejection {
        let PushRejection::UnmatchedState { .. } = &rejection else { return rejection };
        let Ok(permit) = self.explain_permits.clone().acquire_owned().await else { return rejection };
        let (store, unexplained) = (self.store.clone(), rejection.clone());
        let explain = move || {
            let _permit = permit;
            let read = |id| store.stored_event(id).ok().flatten().and_then(|event| RepoState::from_event(&event));
            rejection.explain(read)
        };
        tokio::task::spawn_blocking(explain).await.unwrap_or(unexplained)
    }

    /// Checks the pack of a push. Returns what admission needs to know about it, and the packs. Waits for git
    /// processes, so it runs on a blocking thread.
    fn check(
        &self,
        push: RequestedPush,
        permit: &PushPermit,
        alternates: Vec<RepoPath>,
        pack: Quarantine,
        received: PackData,
    ) -> Result<(ReceivedPush, Vec<Quarantine>), PackError> {
        let prune_count = self.layout.prune_count();
        let (signed, uploads) = self.checked_packs(&push, permit, &alternates, pack, received)?;
        let received_upload = |(event, tip, pack): &(EventId, String, Quarantine)| ReceivedUpload {
            event: *event,
            tip: tip.clone(),
            received_pack: pack.received_pack(),
            bytes: pack.bytes().unwrap_or(0),
        };
        let received_push = ReceivedPush {
            push,
            received_pack: signed.as_ref().map(Quarantine::received_pack),
            uploads: uploads.iter().map(received_upload).collect(),
            alternates,
            checked_prune_count: Some(prune_count),
            bytes: signed.as_ref().map_or(0, |pack| pack.bytes().unwrap_or(0)),
        };
        Ok((received_push, signed.into_iter().chain(uploads.into_iter().map(|(_, _, pack)| pack)).collect()))
    }

    /// Indexes the pack, checks that all new tips are connected, and separates uploads from signed data.
    fn checked_packs(
        &self,
        push: &RequestedPush,
        permit: &PushPermit,
        alternates: &[RepoPath],
        mut pack: Quarantine,
        received: PackData,
    ) -> Result<CheckedPacks, PackError> {
        let checker = PackChecker {
            git: &self.git,
            layout: &self.layout,
            limits: self.pack_limits(permit),
            in_process: InProcessLimits::default(),
        };
        let pools = self.layout.existing_pools(&push.repo_path, alternates)?;
        let has_pack = matches!(received, PackData::Pack(_));
        checker.index_pack(&mut pack, received, &pools)?;
        let known = self.connected_tips(&push.repo_path)?;
        let view = VisibleObjects { quarantine: has_pack.then_some(&pack), pools: &pools };
        let tips = tips(push);
        let connected = checker.check_connectivity(view, &tips, &known)?;
        let uploads = &permit.uploads;
        let is_upload = |name: &str| uploads.iter().any(|(event, _)| name == format!("refs/nostr/{event}"));
        let all = tips.branches.iter().chain(&tips.others);
        let signed: Vec<String> = all.filter(|(name, _)| !is_upload(name)).map(|(_, oid)| oid.clone()).collect();
        if uploads.is_empty() {
            let pack = match (has_pack, connected.extra) {
                (false, _) => None,
                (true, 0) => Some(pack),
                (true, _) => Some(checker.repack_needed(view, &signed, &known)?),
            };
            return Ok((pack, Vec::new()));
        }
        if let ([(event, tip)], [], 0) = (uploads.as_slice(), signed.as_slice(), connected.extra) {
            return Ok((None, vec![(*event, tip.clone(), pack)]));
        }
        // Signed data and uploads must not be in the same pack: the former is served, the latter is not.
        let signed_pack = if signed.is_empty() { None } else { Some(checker.repack_needed(view, &signed, &known)?) };
        let known: Vec<String> = known.into_iter().chain(signed).collect();
        let mut split = Vec::new();
        for (event, tip) in uploads {
            split.push((*event, tip.clone(), checker.repack_needed(view, std::slice::from_ref(tip), &known)?));
        }
        Ok((signed_pack, split))
    }

    /// Returns objects that are known to be connected: those that refs point to.
    fn connected_tips(&self, repo_path: &RepoPath) -> Result<Vec<String>, PackError> {
        let snapshot = self.ref_cache.snapshot(repo_path)?;
        if snapshot.is_degraded() {
            return Ok(Vec::new());
        }
        let mut oids: Vec<String> = snapshot.refs.iter().map(|(_, target)| target.oid.clone()).collect();
        oids.sort_unstable();
        oids.dedup();
        Ok(oids)
    }

    /// Returns the limits of the pack of a push.
    fn pack_limits(&self, permit: &PushPermit) -> PackLimits {
        let settings = self.settings.borrow().git;
        let limits = settings.pack_limits();
        let max_bytes = if permit.uploads.is_empty() { limits.max_bytes } else { settings.max_unsigned_push_bytes };
        let max_bytes = permit.quota_left.map_or(max_bytes, |(left, _)| left.max(MIN_PUSH_BYTES).min(max_bytes));
        PackLimits { max_bytes, ..limits }
    }

    /// Counts and logs a rejected push.
    fn count_and_log(&self, refs: &str, code: &'static str, reason: &str) {
        self.metrics.git().count_refusal(code);
        info!(target: "git", refs, code, reason, "push rejected");
    }

    /// Counts and logs a push whose commands cannot be read, and returns an HTTP error: without commands, there is no
    /// report.
    fn status_response(&self, code: StatusCode, text: &'static str) -> HttpResponse {
        self.count_and_log("", "E-PUSH-BODY", text.trim_end());
        status(code, text)
    }

    /// Counts and logs a rejected push, and returns its report.
    fn rejection_report(&self, repo_path: &RepoPath, request: &PushRequest, error: &PushError) -> Bytes {
        self.count_and_log(&ref_names(request), error.code, &error.text);
        let hint = format!("events in purgatory for this repository: {}/{repo_path}/purgatory", self.web_url);
        let rejection =
            RejectionReport { code: error.code, text: &error.text, ref_name: error.ref_name.as_deref(), hint: &hint };
        report::rejection(&request.capabilities, &request.commands, &rejection).into()
    }

    fn rejection_response(&self, repo_path: &RepoPath, request: &PushRequest, error: &PushError) -> HttpResponse {
        typed_response(RESULT, self.rejection_report(repo_path, request, error))
    }
}

/// Names the quota in the error of a pack that is larger than what a quota has left.
fn pack_error(permit: &PushPermit, error: PackError) -> PushError {
    match (&error, permit.quota_left) {
        (PackError::TooLarge(max_bytes), Some((left, quota))) if *max_bytes == left.max(MIN_PUSH_BYTES) => {
            PushRejection::QuotaExceeded(quota).into()
        }
        _ => error.into(),
    }
}

fn spool_error(permit: &PushPermit, error: SpoolError) -> PushError {
    match error {
        SpoolError::Pack(error) => pack_error(permit, error),
        SpoolError::BudgetUsedUp => PushRejection::DiskFull.into(),
        SpoolError::TaskFailed => PushError::internal(),
    }
}

/// Returns the new values of the refs that a push creates or updates.
fn tips(push: &RequestedPush) -> RequiredTips {
    let mut tips = RequiredTips::default();
    for command in &push.commands {
        let Some(oid) = command.new.clone() else { continue };
        let into = if command.name.starts_with("refs/tags/") { &mut tips.others } else { &mut tips.branches };
        into.push((command.name.clone(), oid));
    }
    tips
}

/// Returns the report of a push whose commands all succeeded.
fn success(request: &PushRequest) -> Bytes {
    let results: Vec<_> = request.commands.iter().map(|command| (command.name.clone(), Ok(()))).collect();
    report::report(&request.capabilities, Ok(()), &results).into()
}
