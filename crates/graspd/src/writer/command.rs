//! Commands to the writer thread other than submitted events, and the handle that sends them.
//!
//! HTTP handlers, git workers, the fetch and sync drivers, maintenance and the admin socket send commands through
//! [`EventQueue::send`]. The writer handles them inside the transaction of its next batch, before the events of the
//! batch, and answers after the commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grasp_core::admission::git_job::GitJob;
use grasp_core::admission::io::{FetchedPack, PushId, ReceivedPush, RequestedPush};
use grasp_core::admission::push::{PushCommand, PushPermit, PushRejection};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::fetch::io::{FetchId, HostRow};
use grasp_core::nostr::{EventId, PublicKey, SignedEvent};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoPath, RepoState};
use grasp_core::sync::io::{SyncRow, SyncRowKey};
use grasp_git::apply::GitJobResult;
use grasp_git::receive::Quarantine;
use tokio::sync::oneshot;

use super::policy::PolicyChange;
use super::queue::EventQueue;
use crate::monitor::writer_stats::WriterStats;

/// How long maintenance waits for the writer to list needed objects. It takes milliseconds, on a slow disk seconds.
const NEEDED_OBJECTS_TIMEOUT: Duration = Duration::from_secs(10);

/// A command to the writer.
pub(crate) enum WriterCommand {
    /// A client wants to push. The answer is a permit or a rejection.
    PushRequested(RequestedPush, oneshot::Sender<Result<PushPermit, PushRejection>>),
    /// The packs of a permitted push were received and checked. The writer owns them from now on.
    PushReceived(Box<ReceivedPush>, PendingPush),
    /// A push is over: completed, rejected or given up by the client.
    PushEnded(PushId),
    /// A git worker has finished a job, successfully or not.
    GitJobDone(GitJob, GitJobResult),
    /// Asks for what the repository page shows.
    ViewRepo(RepoPath, oneshot::Sender<RepoView>),
    /// Asks which events need objects in these repositories. The answer is `None` if there are too many to read.
    ListNeededEvents(Vec<RepoPath>, crossbeam_channel::Sender<Option<NeededEvents>>),
    /// Rows of sync to write and keys of rows to delete. There is no answer, and a lost row only costs sync a repeated
    /// request.
    SaveSyncRows(Vec<SyncRow>, Vec<SyncRowKey>),
    /// Asks for the writer's statistics. Answered outside of transactions, so also when the store fails.
    ReportStats(crossbeam_channel::Sender<WriterStats>),
    /// The fill level of the disk budget has changed.
    DiskLevelChanged(DiskLevel),
    /// A command of the fetch driver.
    Fetch(FetchCommand),
    /// [`CurrentPolicy`](super::policy::CurrentPolicy) has changed. Answered when the consequences are on disk.
    PolicyChanged(crossbeam_channel::Sender<PolicyChange>),
    /// A command of the operator.
    Admin(AdminCommand),
}

/// A command of the operator, received by the admin socket. Lists are read in pages, because the writer answers between
/// two batches.
pub(crate) enum AdminCommand {
    /// Asks for a page of held events in order of their ids, starting after this id.
    ListHeld(Option<EventId>, oneshot::Sender<Vec<HeldEventView>>),
    /// Asks for a summary of each of these repositories.
    SummariseRepos(Vec<RepoPath>, oneshot::Sender<Vec<RepoSummary>>),
    /// Removes a held event. The answer, after the commit, is whether it existed.
    DropHeld(EventId, oneshot::Sender<bool>),
    /// Answered when everything sent before is on disk.
    Flush(oneshot::Sender<()>),
}

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

/// A command of the fetch driver.
pub(crate) enum FetchCommand {
    /// A fetch is about to start for what these events need. It starts when it is answered, that is when this and every
    /// row sent before is on disk.
    Started(FetchId, Vec<EventId>, oneshot::Sender<()>),
    /// A fetch has received a pack. The writer owns it from now on.
    PackFetched(FetchedPack, Quarantine),
    /// The wanted git data of this identifier is already on this server.
    GitDataAdded(Identifier),
    /// A fetch is over.
    Ended(FetchId),
    /// Every source has been asked once for what these events need.
    SourcesTried(Vec<EventId>),
    /// Rows of git hosts to write and authorities of rows to delete, as in [`WriterCommand::SaveSyncRows`].
    SaveHostRows(Vec<HostRow>, Vec<String>),
}

impl WriterCommand {
    /// Whether the command has no answer and may wait to share a commit with others.
    pub(super) fn can_wait(&self) -> bool {
        matches!(self, Self::SaveSyncRows(..) | Self::Fetch(FetchCommand::SaveHostRows(..)))
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
    /// The objects that it needs.
    pub(crate) needed_oids: Vec<String>,
}

/// Sends commands to the writer and waits for the answers.
#[derive(Clone)]
pub(crate) struct WriterHandle {
    queue: Arc<EventQueue>,
    next_push_id: Arc<AtomicU64>,
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

impl WriterHandle {
    pub(crate) fn new(queue: Arc<EventQueue>) -> Self {
        Self { queue, next_push_id: Arc::new(AtomicU64::new(1)) }
    }

    /// Returns the objects that the events of repositories need beside those that their refs lead to; `None` if there
    /// are too many events to read, or the writer does not answer in time.
    ///
    /// Blocks: not for a thread of the async runtime.
    pub(crate) fn needed_objects(&self, repo_paths: &[RepoPath]) -> Option<BTreeSet<String>> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.queue.send(WriterCommand::ListNeededEvents(repo_paths.to_vec(), reply));
        let needed = answer.recv_timeout(NEEDED_OBJECTS_TIMEOUT).ok()??;
        let mut oids: BTreeSet<String> = needed.tips.into_iter().collect();
        for event in &needed.events {
            oids.extend(RepoState::from_event(event).map(|state| state.oids()).unwrap_or_default());
            oids.extend(PullRequest::from_any_event(event).map(|request| request.tip));
        }
        Some(oids)
    }

    /// Requests a permit for a push.
    pub(crate) async fn request_push(
        &self,
        repo_path: RepoPath,
        commands: Vec<PushCommand>,
        network: Option<String>,
    ) -> Result<(PushGuard, PushPermit), PushRejection> {
        let id = PushId(self.next_push_id.fetch_add(1, Ordering::Relaxed));
        let guard = PushGuard { push: RequestedPush { id, repo_path, commands, network }, queue: self.queue.clone() };
        let (reply, answer) = oneshot::channel();
        self.queue.send(WriterCommand::PushRequested(guard.push.clone(), reply));
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
        self.queue.send(WriterCommand::PushReceived(Box::new(received_push), pending));
        answer.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    /// Returns a page of held events in order of their ids, starting after `after`; `None` if the writer cannot answer.
    pub(crate) async fn held_events(&self, after: Option<EventId>) -> Option<Vec<HeldEventView>> {
        self.send_admin(|reply| AdminCommand::ListHeld(after, reply)).await
    }

    /// Returns a summary of each repository, in the same order; `None` if the writer cannot answer.
    pub(crate) async fn repo_summaries(&self, repo_paths: Vec<RepoPath>) -> Option<Vec<RepoSummary>> {
        self.send_admin(|reply| AdminCommand::SummariseRepos(repo_paths, reply)).await
    }

    /// Removes a held event and returns whether it existed; `None` if the removal could not be written.
    pub(crate) async fn drop_held(&self, id: EventId) -> Option<bool> {
        self.send_admin(|reply| AdminCommand::DropHeld(id, reply)).await
    }

    async fn send_admin<T>(&self, make_command: impl FnOnce(oneshot::Sender<T>) -> AdminCommand) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(WriterCommand::Admin(make_command(reply)));
        answer.await.ok()
    }

    /// Returns what the page of a repository shows of its events; nothing if the writer cannot answer.
    pub(crate) async fn repo_view(&self, repo_path: RepoPath) -> RepoView {
        let (reply, answer) = oneshot::channel();
        self.queue.send(WriterCommand::ViewRepo(repo_path, reply));
        answer.await.unwrap_or_default()
    }
}
