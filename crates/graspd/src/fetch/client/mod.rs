//! Git client: fetches objects from another git server and checks the received pack.
//!
//! | file | content |
//! |---|---|
//! | `connection` | HTTP connection through the guarded dialer, and timeouts |
//! | `protocol` | requests of the git smart protocol, and lists of refs |
//! | `negotiation` | the request for objects, and the meaning of the responses |
//! | `ref_comparison` | comparison of a server's refs with those served here |
//! | `local_objects` | which objects are here, and the check of a received pack |
//! | `retry_after` | parsing of `Retry-After` |
//! | `failure_log` | log lines of failures, rate-limited per URL |
//!
//! A fetch that fails or is cancelled leaves no files behind. The caller that cancels a fetch has to tell the machine.

mod connection;
mod failure_log;
mod local_objects;
mod negotiation;
mod protocol;
mod ref_comparison;
mod retry_after;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::git_job::VerifiedObjects;
use grasp_core::disk_budget::QuotaUser;
use grasp_core::fetch::io::{FetchOutcome, FetchRequest, FetchResult, RequestForm, WantedKind};
use grasp_core::limits;
use grasp_git::layout::Layout;
use grasp_git::process::Git;
use grasp_git::receive::{PackError, PackLimits, Quarantine};
use tokio::time::timeout;
use tracing::debug;

use super::client::connection::FetchTimeouts;
use super::client::failure_log::FailureLog;
use super::client::local_objects::{CheckedObjects, LocalObjects, ObjectAvailability};
use super::client::negotiation::{FetchedPack, PackRequest};
use crate::clock::Clock;
use crate::config::{GitSettings, SettingsReceiver};
use crate::git::pack_receiver::{PackReceiver, SpoolError, SpooledPack};
use crate::http::fair_semaphore::{FairPermit, FairSemaphore};
use crate::http::network_limits::ClientNetwork;
use crate::net::dialer::Dialer;
use crate::repos::ref_cache::RefCache;

/// Delay before the next attempt to get a permit while the queue is full.
const PERMIT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Fetches objects into the repositories of this server.
pub(crate) struct FetchClient {
    local_objects: LocalObjects,
    packs: PackReceiver,
    /// Limits of a received pack under the current settings.
    limits: Box<dyn Fn() -> PackLimits + Send + Sync>,
    /// Limits git processes that check packs.
    check_permits: Arc<FairSemaphore>,
    dialer: Arc<Dialer>,
    clock: Clock,
    timeouts: FetchTimeouts,
    failure_log: FailureLog,
}

/// Result of a fetch.
pub(crate) struct FetchReply {
    /// Result for the fetch machine, to be reported after the writer has the pack.
    pub(crate) result: FetchResult,
    /// Pack for the writer: exactly the objects that the wanted objects need and that the repository cannot read yet.
    /// Its folder is deleted when it is dropped, unless it was moved. `None` if all objects were here.
    pub(crate) pack: Option<Quarantine>,
    /// The wanted objects that are complete with the pack and without other packs.
    pub(crate) verified: Option<VerifiedObjects>,
}

/// Failure of a fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FetchError {
    outcome: FetchOutcome,
    /// Description for logs.
    reason: String,
}

impl FetchError {
    fn new(outcome: FetchOutcome, reason: impl ToString) -> Self {
        Self { outcome, reason: reason.to_string() }
    }

    fn local(reason: impl ToString) -> Self {
        Self::new(FetchOutcome::LocalError, reason)
    }
}

impl From<PackError> for FetchError {
    fn from(problem: PackError) -> Self {
        let outcome = match problem {
            PackError::DiskFull | PackError::Server(_) => FetchOutcome::LocalError,
            _ => FetchOutcome::InvalidData,
        };
        Self::new(outcome, problem)
    }
}

impl From<SpoolError> for FetchError {
    fn from(error: SpoolError) -> Self {
        match error {
            SpoolError::BudgetUsedUp => PackError::DiskFull.into(),
            SpoolError::TaskFailed => PackError::from(std::io::Error::other("the writing task failed")).into(),
            SpoolError::Pack(error) => error.into(),
        }
    }
}

impl FetchClient {
    /// Creates a client that stores packs where pushes go. They are checked like pushes, with permits of
    /// [`check_permits`](Self::check_permits).
    pub(crate) fn new(
        settings: SettingsReceiver,
        git: Git,
        (layout, ref_cache): (Arc<Layout>, Arc<RefCache>),
        packs: PackReceiver,
        check_permits: Arc<FairSemaphore>,
        dialer: Arc<Dialer>,
        clock: Clock,
    ) -> Self {
        let limits = move || settings.borrow().git.pack_limits();
        Self {
            local_objects: LocalObjects { git, layout, ref_cache, limits: limits() },
            packs,
            limits: Box::new(limits),
            check_permits,
            dialer,
            clock,
            timeouts: FetchTimeouts::default(),
            failure_log: FailureLog::default(),
        }
    }

    /// Creates the permits for the checks of fetched packs: half as many as pushes have. They are separate, so that git
    /// servers, which any announcement can name, do not delay pushes. Servers take turns, and each may hold a part.
    pub(crate) fn check_permits(settings: &GitSettings) -> Arc<FairSemaphore> {
        let max_waiting = limits::MAX_CONCURRENT_FETCHES;
        FairSemaphore::new(settings.check_processes / 2, max_waiting, max_waiting)
    }

    /// Fetches objects. `on_first_bytes` is called when the server begins to send the requested data.
    ///
    /// Dropping the future cancels the fetch: tasks that it started end by themselves and leave no files.
    pub(crate) async fn fetch(&self, fetch: &FetchRequest, on_first_bytes: impl FnOnce() + Send) -> FetchReply {
        let availability = match self.availability(fetch).await {
            Ok(availability) => availability,
            Err(error) => return self.failed(fetch, Vec::new(), &error),
        };
        let here = availability.here.clone();
        if availability.missing.is_empty() {
            // Invalid object ids are not requested.
            let outcome = if availability.has_invalid_oids { FetchOutcome::InvalidData } else { FetchOutcome::Sent };
            return FetchReply { result: FetchResult { oids: here, outcome }, pack: None, verified: None };
        }
        if availability.max_bytes == 0 {
            return self.failed(
                fetch,
                here,
                &FetchError::local("the disk quota of the repository or its owner is used up"),
            );
        }
        match Box::pin(self.request_pack(fetch, availability, on_first_bytes)).await {
            Ok(Some(checked)) => self.succeeded(fetch, checked),
            // The server has no refs.
            Ok(None) => FetchReply {
                result: FetchResult { oids: here, outcome: FetchOutcome::Sent },
                pack: None,
                verified: None,
            },
            Err(error) => self.failed(fetch, here, &error),
        }
    }

    fn local_objects(&self) -> LocalObjects {
        LocalObjects { limits: (self.limits)(), ..self.local_objects.clone() }
    }

    /// Finds out which of the wanted objects are here.
    async fn availability(&self, fetch: &FetchRequest) -> Result<ObjectAvailability, FetchError> {
        let (local_objects, repo_path) = (self.local_objects(), fetch.repo_path.clone());
        let (oids, received) = (fetch.oids.clone(), fetch.received.clone());
        let is_state = fetch.events.iter().any(|(_, kind)| *kind == WantedKind::State);
        let quota_user = if is_state { QuotaUser::Maintainers } else { QuotaUser::Others };
        let check = move || {
            let mut availability = local_objects.availability(&repo_path, &oids, &received)?;
            availability.max_bytes = local_objects.allowed_bytes(&repo_path, quota_user);
            Ok(availability)
        };
        blocking(check).await?
    }

    /// Requests the missing objects and checks the received pack. Returns `None` if the server has no refs.
    async fn request_pack(
        &self,
        fetch: &FetchRequest,
        availability: ObjectAvailability,
        on_first_bytes: impl FnOnce() + Send,
    ) -> Result<Option<CheckedObjects>, FetchError> {
        let pack_request = PackRequest::new(self, fetch, &availability);
        let fetched = timeout(self.timeouts.total, pack_request.run(on_first_bytes)).await;
        let fetched = fetched.map_err(|_| FetchError::new(FetchOutcome::Failed, "fetch timed out"))??;
        let Some(FetchedPack { spooled, server }) = fetched else { return Ok(None) };
        let permit = self.check_permit(server).await;
        let (local_objects, repo_path) = (self.local_objects(), fetch.repo_path.clone());
        let (oids, received) = (fetch.oids.clone(), fetch.received.clone());
        let checked = blocking(move || {
            let SpooledPack { pack, received: data, share } = spooled;
            // The permit is held until the check is done, even if the fetch is cancelled.
            let checked =
                local_objects.check_pack((&repo_path, &oids, &received), availability.prune_count, (pack, data));
            if matches!(&checked, Ok(CheckedObjects { pack: Some(_), .. })) {
                share.commit();
            }
            drop(permit);
            checked
        });
        checked.await?.map(Some)
    }

    /// Waits for a permit to check a pack of a git server in this network.
    async fn check_permit(&self, server: Option<ClientNetwork>) -> FairPermit {
        loop {
            match self.check_permits.acquire(server).await {
                Ok(permit) => return permit,
                Err(_) => tokio::time::sleep(PERMIT_RETRY_DELAY).await,
            }
        }
    }

    fn succeeded(&self, fetch: &FetchRequest, checked: CheckedObjects) -> FetchReply {
        let CheckedObjects { oids, missing_count, prune_count, alternates, pack } = checked;
        debug!(target: "fetch", url = %fetch.target, complete = oids.len(), missing_count, "pack checked");
        // A server that accepts a request for object ids has to send all of them.
        let outcome = if missing_count == 0 || fetch.form == RequestForm::ByRef {
            FetchOutcome::Sent
        } else {
            FetchOutcome::InvalidData
        };
        if outcome == FetchOutcome::InvalidData {
            self.failure_log.log(&fetch.target.to_string(), "the pack lacks requested objects");
        }
        let has_own_objects_only = fetch.received.is_empty();
        let verified = has_own_objects_only.then(|| VerifiedObjects { prune_count, alternates, oids: oids.clone() });
        FetchReply { result: FetchResult { oids, outcome }, pack, verified }
    }

    fn failed(&self, fetch: &FetchRequest, here: Vec<String>, error: &FetchError) -> FetchReply {
        match error.outcome {
            FetchOutcome::Failed | FetchOutcome::InvalidData | FetchOutcome::LocalError => {
                self.failure_log.log(&fetch.target.to_string(), &error.reason)
            }
            _ => {
                debug!(target: "fetch", url = %fetch.target, outcome = error.outcome.label(), error = ?error.reason, "fetch failed")
            }
        }
        FetchReply { result: FetchResult { oids: here, outcome: error.outcome.clone() }, pack: None, verified: None }
    }
}

async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, FetchError> {
    tokio::task::spawn_blocking(work).await.map_err(FetchError::local)
}

impl Default for FetchTimeouts {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            connect: secs(limits::GIT_CONNECT_TIMEOUT_SECS),
            first_byte: secs(limits::GIT_FIRST_BYTE_TIMEOUT_SECS),
            silence: secs(limits::GIT_SILENCE_TIMEOUT_SECS),
            pack_start: secs(limits::GIT_PACK_START_TIMEOUT_SECS),
            rate_interval: secs(limits::MIN_PACK_RATE_SECS),
            total: secs(limits::GIT_REQUEST_TIMEOUT_SECS),
        }
    }
}
