//! Commands to the writer thread other than submitted events, and the functions that send them and wait for the answer.
//!
//! HTTP handlers, git workers, the fetch and sync drivers, maintenance and the admin socket send commands through
//! [`EventQueue::send`]. The writer handles them inside the transaction of its next batch, before the events of the
//! batch, and answers after the commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::{GitJob, GitJobOutcome};
use grasp_core::admission::io::{FetchedPack, PushId, ReceivedPush, RequestedPush};
use grasp_core::admission::push::{PushCommand, PushPermit, PushRejection};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::fetch::io::{FetchId, HostRow};
use grasp_core::nostr::{EventId, PublicKey, SignedEvent};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, PackManifest, Refs, RepoPath, RepoState};
use grasp_core::sync::io::{SyncRow, SyncRowKey};
use grasp_core::time::Now;
use grasp_git::receive::Quarantine;
use grasp_store::{StoreError, WriteTransaction};
use tokio::sync::oneshot;

use super::lookups;
use super::policy::PolicyChange;
use super::queue::EventQueue;
use crate::monitor::writer_stats::WriterStats;

/// How long maintenance waits for the writer to list needed objects. It takes milliseconds, on a slow disk seconds.
const NEEDED_OBJECTS_TIMEOUT: Duration = Duration::from_secs(10);

/// How long work on a repository waits for the writer to record what it has found. It holds the repository's lock meanwhile.
const RECORD_TIMEOUT: Duration = Duration::from_secs(60);

/// A command to the writer.
pub(crate) enum WriterCommand {
    /// A client wants to push. The answer is a permit or a rejection.
    PushRequested(RequestedPush, oneshot::Sender<Result<PushPermit, PushRejection>>),
    /// The packs of a permitted push were received and checked. The writer owns them from now on.
    PushReceived(Box<ReceivedPush>, PendingPush),
    /// A push is over: completed, rejected or given up by the client.
    PushEnded(PushId),
    /// A git worker has finished a job, successfully or not.
    GitJobDone(GitJob, GitJobOutcome),
    /// Reads inside the transaction. Lists are read in pages, because the writer does it between two batches.
    Read(ReadFn),
    /// Rows of sync to write and keys of rows to delete. There is no answer, and a lost row only costs sync a repeated
    /// request.
    SaveSyncRows(Vec<SyncRow>, Vec<SyncRowKey>),
    /// Asks for the writer's statistics. Answered outside of transactions, so also when the store fails.
    ReportStats(crossbeam_channel::Sender<WriterStats>),
    /// The fill level of the disk budget has changed.
    DiskLevelChanged(DiskLevel),
    /// A fetch is about to start for what these events need. It starts when it is answered, that is when this and every
    /// row sent before is on disk.
    FetchStarted(FetchId, Vec<EventId>, oneshot::Sender<()>),
    /// A fetch has received a pack. The writer owns it from now on.
    PackFetched(FetchedPack, Quarantine),
    /// A repository is degraded for this reason, and has these refs if its row is damaged. Answered when that is on disk.
    RepoDegraded(RepoPath, String, Option<Refs>, crossbeam_channel::Sender<()>),
    /// The pool of a repository has these packs from now on. Answered when that is on disk.
    PacksChanged(RepoPath, Arc<PackManifest>, crossbeam_channel::Sender<()>),
    /// The wanted git data of this identifier is already on this server.
    GitDataAdded(Identifier),
    /// A fetch is over.
    FetchEnded(FetchId),
    /// Every source has been asked once for what these events need.
    SourcesTried(Vec<EventId>),
    /// Rows of git hosts to write and authorities of rows to delete, as in [`WriterCommand::SaveSyncRows`].
    SaveHostRows(Vec<HostRow>, Vec<String>),
    /// [`CurrentPolicy`](super::policy::CurrentPolicy) has changed. Answered when the consequences are on disk.
    PolicyChanged(crossbeam_channel::Sender<PolicyChange>),
    /// Relays serve these held events.
    HeldEventsSeen(Vec<EventId>),
    /// Removes a held event. The answer, after the commit, is whether it existed.
    DropHeld(EventId, oneshot::Sender<bool>),
}

/// Reads inside a transaction. Returns the function that sends the answer after the commit.
pub(crate) type ReadFn = Box<dyn FnOnce(&Admission, &WriteTransaction<'_>, Now) -> Result<SendFn, StoreError> + Send>;

/// Sends an answer. The receiver may be gone.
pub(crate) type SendFn = Box<dyn FnOnce()>;

/// A held event as the operator sees it.
pub(crate) struct HeldEventView {
    pub(crate) id: EventId,
    pub(crate) kind: u16,
    pub(crate) author: PublicKey,
    /// The identifiers of the repositories that the event is for.
    pub(crate) identifiers: Vec<String>,
    /// The repositories in which it can be released once its git data is complete. Empty for a state, which can apply
    /// to several.
    pub(crate) repo_paths: Vec<RepoPath>,
    /// When it was received, in unix seconds.
    pub(crate) held_since: u64,
    /// When it expires, in unix seconds.
    pub(crate) expires_at: u64,
    /// Whether it has expired and its git data is searched for only now and then.
    pub(crate) is_dormant: bool,
    /// Whether every source has been asked for its git data once.
    pub(crate) all_sources_tried: bool,
    /// The objects that it needs.
    pub(crate) needed_oids: Vec<String>,
}

/// State and maintainers of a repository as the operator sees them.
#[derive(Default)]
pub(crate) struct RepoSummary {
    /// The served state: its id and its `created_at`.
    pub(crate) state: Option<(EventId, u64)>,
    /// Number of states for this repository that are held.
    pub(crate) held_states: usize,
    /// Number of all events for this repository that are held.
    pub(crate) held: usize,
    /// Number of maintainers.
    pub(crate) maintainers: usize,
}

impl WriterCommand {
    /// Whether the command has no answer and may wait to share a commit with others.
    pub(super) fn can_wait(&self) -> bool {
        matches!(self, Self::SaveSyncRows(..) | Self::SaveHostRows(..))
    }
}

/// The packs of a push whose refs are not updated yet, and the channel for its result.
pub(crate) struct PendingPush {
    pub(super) packs: Vec<Quarantine>,
    pub(super) reply: oneshot::Sender<Result<(), PushRejection>>,
}

/// Events that need objects.
pub(crate) struct NeededEvents {
    /// States, served and held.
    pub(crate) events: Vec<Arc<SignedEvent>>,
    /// The commits of held pull requests.
    pub(crate) tips: Vec<String>,
}

/// Events of a repository as its page shows them.
#[derive(Default)]
pub(crate) struct RepoView {
    /// The newest announcement, and whether it is served or held.
    pub(crate) announcement: Option<(Arc<SignedEvent>, EventStatus)>,
    /// The served state.
    pub(crate) state: Option<Arc<SignedEvent>>,
    /// The npubs of the maintainers.
    pub(crate) maintainers: Vec<String>,
    pub(crate) held_events: Vec<RepoHeldEvent>,
    /// Uploads whose event is not known: event, commit, expiry in unix seconds.
    pub(crate) uploads: Vec<(EventId, String, u64)>,
}

/// A held event as the page of its repository shows it.
pub(crate) struct RepoHeldEvent {
    pub(crate) event: Arc<SignedEvent>,
    /// When it expires, in unix seconds.
    pub(crate) expires_at: u64,
    /// Whether it is dormant.
    pub(crate) is_dormant: bool,
    /// The objects that it needs.
    pub(crate) needed_oids: Vec<String>,
}

/// A push that the writer knows. Dropping it informs the writer that the push is over.
pub(crate) struct PushGuard {
    push: RequestedPush,
    queue: Arc<EventQueue>,
}

impl std::ops::Deref for PushGuard {
    type Target = RequestedPush;

    fn deref(&self) -> &RequestedPush {
        &self.push
    }
}

impl Drop for PushGuard {
    fn drop(&mut self) {
        self.queue.send(WriterCommand::PushEnded(self.push.id));
    }
}

fn shutting_down() -> PushRejection {
    PushRejection::Failed("the server is shutting down".to_owned())
}

/// Commands that wait for an answer of the writer.
impl EventQueue {
    /// Returns the objects that the events of repositories need beside those that their refs lead to; `None` if there
    /// are too many events to read, or the writer does not answer in time.
    ///
    /// Blocks: not for a thread of the async runtime.
    pub(crate) fn needed_objects(&self, repo_paths: &[RepoPath]) -> Option<BTreeSet<String>> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        let repo_paths = repo_paths.to_vec();
        self.send(WriterCommand::Read(Box::new(move |admission, txn, _| {
            let needed = lookups::needed_events(admission, txn, &repo_paths)?;
            Ok(Box::new(move || drop(reply.send(needed))))
        })));
        let needed = answer.recv_timeout(NEEDED_OBJECTS_TIMEOUT).ok()??;
        let mut oids: BTreeSet<String> = needed.tips.into_iter().collect();
        for event in &needed.events {
            oids.extend(RepoState::from_event(event).map(|state| state.oids()).unwrap_or_default());
            oids.extend(PullRequest::from_any_event(event).map(|request| request.tip));
        }
        Some(oids)
    }

    /// Records why a repository is degraded, and its refs if its row is damaged. Returns whether that is on disk.
    ///
    /// Blocks: not for a thread of the async runtime.
    pub(crate) fn degrade(&self, repo_path: &RepoPath, reason: &str, refs: Option<Refs>) -> bool {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.send(WriterCommand::RepoDegraded(repo_path.clone(), reason.to_owned(), refs, reply));
        answer.recv_timeout(RECORD_TIMEOUT).is_ok()
    }

    /// Records the packs of a pool. Returns whether they are on disk.
    ///
    /// Blocks: not for a thread of the async runtime.
    pub(crate) fn set_packs(&self, repo_path: &RepoPath, packs: PackManifest) -> bool {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.send(WriterCommand::PacksChanged(repo_path.clone(), Arc::new(packs), reply));
        answer.recv_timeout(RECORD_TIMEOUT).is_ok()
    }

    /// Requests a permit for a push.
    pub(crate) async fn request_push(
        self: &Arc<Self>,
        repo_path: RepoPath,
        commands: Vec<PushCommand>,
        network: Option<String>,
    ) -> Result<(PushGuard, PushPermit), PushRejection> {
        let id = PushId(self.next_push_id.fetch_add(1, Ordering::Relaxed));
        let guard = PushGuard { push: RequestedPush { id, repo_path, commands, network }, queue: self.clone() };
        let (reply, answer) = oneshot::channel();
        self.send(WriterCommand::PushRequested(guard.push.clone(), reply));
        let permit = answer.await.unwrap_or_else(|_| Err(shutting_down()))?;
        Ok((guard, permit))
    }

    /// Sends the checked packs of a push to the writer and waits until its refs are updated. The update continues even
    /// if the returned future is dropped.
    pub(crate) async fn deliver_push(
        &self,
        received_push: ReceivedPush,
        packs: Vec<Quarantine>,
    ) -> Result<(), PushRejection> {
        let (reply, answer) = oneshot::channel();
        let pending = PendingPush { packs, reply };
        self.send(WriterCommand::PushReceived(Box::new(received_push), pending));
        answer.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    /// Returns a page of held events in order of their ids, starting after `after`; `None` if the writer cannot answer.
    pub(crate) async fn held_events(&self, after: Option<EventId>) -> Option<Vec<HeldEventView>> {
        self.read(move |admission, txn, now| lookups::held_events(admission, txn, now, after)).await.ok()
    }

    /// Returns a summary of each repository, in the same order; `None` if the writer cannot answer.
    pub(crate) async fn repo_summaries(&self, repo_paths: Vec<RepoPath>) -> Option<Vec<RepoSummary>> {
        let summaries = move |admission: &Admission, _: &WriteTransaction<'_>, _| {
            Ok(repo_paths.iter().map(|repo_path| lookups::repo_summary(admission, repo_path)).collect())
        };
        self.read(summaries).await.ok()
    }

    /// Removes a held event and returns whether it existed; `None` if the removal could not be written.
    pub(crate) async fn drop_held(&self, id: EventId) -> Option<bool> {
        let (reply, answer) = oneshot::channel();
        self.send(WriterCommand::DropHeld(id, reply));
        answer.await.ok()
    }

    /// Returns what the page of a repository shows of its events; nothing if the writer cannot answer.
    pub(crate) async fn repo_view(&self, repo_path: RepoPath) -> RepoView {
        let view = move |admission: &Admission, txn: &WriteTransaction<'_>, now| {
            lookups::repo_view(admission, txn, now, &repo_path)
        };
        self.read(view).await.unwrap_or_default()
    }

    /// Lets the writer read inside its next transaction, and returns where the result arrives after the commit.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Admission, &WriteTransaction<'_>, Now) -> Result<T, StoreError> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        self.send(WriterCommand::Read(Box::new(move |admission, txn, now| {
            let value = read(admission, txn, now)?;
            Ok(Box::new(move || drop(reply.send(value))))
        })));
        answer
    }

    /// Returns a receiver that is answered when everything sent before is on disk.
    pub(crate) fn flush(&self) -> oneshot::Receiver<()> {
        self.read(|_, _, _| Ok(()))
    }
}
