//! What doors and the git room tell the registrar's desk, beside events.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grasp_core::admission::git_job::{GitJob, ReceivedPack};
use grasp_core::admission::io::{FetchedPack, PushId, ReceivedPush, ReceivedUpload, RequestedPush};
use grasp_core::admission::push::{PushCommand, PushPermit, PushRejection};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::fetch::io::{FetchId, HostRow};
use grasp_core::nostr::{EventId, PublicKey, SignedEvent};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoPath, RepoState};
use grasp_core::sync::io::{SyncRow, SyncRowKey};
use grasp_git::apply::Carried;
use grasp_git::receive::Incoming;
use tokio::sync::oneshot;

use super::policy::PolicyChange;
use super::queue::EventQueue;
use crate::monitor::writer_stats::WriterStats;

/// How long maintenance waits for the writer to list needed objects. It takes milliseconds, on a slow disk seconds.
const NEEDED_OBJECTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Something for the desk.
pub(crate) enum WriterCommand {
    /// May this push happen?
    Ask(RequestedPush, oneshot::Sender<Result<PushPermit, PushRejection>>),
    /// The packs of a push are here; they belong to the desk now.
    Arrived(Box<Arrived>),
    /// A push is over.
    Ended(PushId),
    /// The git room has done what it could about an order.
    Ordered(GitJob, Carried),
    /// What is known of a site?
    View(RepoPath, oneshot::Sender<RepoView>),
    /// Which events need objects at some sites? Nothing is the answer if they are too many to be told.
    Needs(Vec<RepoPath>, crossbeam_channel::Sender<Option<Needed>>),
    /// Sync wants rows written down and others forgotten. It is told nothing of it, and nothing is lost with them that
    /// could not be found out again.
    Remember(Vec<SyncRow>, Vec<SyncRowKey>),
    /// How is the writer? It is heard whatever else goes wrong.
    Pulse(crossbeam_channel::Sender<WriterStats>),
    /// How full the disk budget is.
    Space(DiskLevel),
    /// What the hunt has to say.
    Hunt(FetchCommand),
    /// There are other rules in the book. Whoever put them there waits until what they mean is on disk.
    Rules(crossbeam_channel::Sender<PolicyChange>),
    /// What the operator wants.
    Operator(AdminCommand),
}

/// What the operator wants of the desk, through the admin socket. A page at a time: the desk answers between two batches.
pub(crate) enum AdminCommand {
    /// Which events wait, by id, after this one?
    Held(Option<EventId>, oneshot::Sender<Vec<HeldEventView>>),
    /// What is written of these sites?
    Books(Vec<RepoPath>, oneshot::Sender<Vec<Books>>),
    /// A held event is to go. Whether it was there is the answer, after the commit.
    Drop(EventId, oneshot::Sender<bool>),
    /// Is everything on disk that was said before this?
    Written(oneshot::Sender<()>),
}

/// A held event, for the operator.
pub(crate) struct HeldEventView {
    pub(crate) id: EventId,
    pub(crate) kind: u16,
    pub(crate) author: PublicKey,
    /// The repositories' name, or names.
    pub(crate) names: Vec<String>,
    /// Where it may be served once its git data is here; nothing for a state, which speaks for more than one.
    pub(crate) repo_paths: Vec<RepoPath>,
    /// When it came and when it gives up, in unix seconds.
    pub(crate) since: u64,
    pub(crate) expires_at: u64,
    /// Its time is over, and it is looked for now and then.
    pub(crate) dormant: bool,
    /// Everybody has been asked once.
    pub(crate) tried: bool,
    /// The objects that it needs.
    pub(crate) needs: Vec<String>,
}

/// What is written of a site, for the operator.
#[derive(Default)]
pub(crate) struct Books {
    /// The state that is served, and when it was made.
    pub(crate) state: Option<(EventId, u64)>,
    /// States that wait for git data and that speak for it, the newest first.
    pub(crate) held_states: usize,
    /// Everything that waits for git data at it.
    pub(crate) held: usize,
    /// Who may speak for it.
    pub(crate) maintainers: usize,
}

/// What the hunt tells the desk.
pub(crate) enum FetchCommand {
    /// A fetch is to begin for what these events need. It begins when this, and every row before it, is on disk.
    Began(FetchId, Vec<EventId>, oneshot::Sender<()>),
    /// It has brought a pack, which belongs to the desk now.
    Arrived(FetchedPack, Incoming),
    /// What was sought under this name is here already.
    Came(Identifier),
    /// It is over.
    Ended(FetchId),
    /// Everybody has been asked once for what these events need.
    Tried(Vec<EventId>),
    /// Rows to be written down and others to be forgotten, as with [`WriterCommand::Remember`].
    Remember(Vec<HostRow>, Vec<String>),
}

impl WriterCommand {
    /// Whether nobody waits for it, so that it may wait for company.
    pub(super) fn is_patient(&self) -> bool {
        matches!(self, Self::Remember(..) | Self::Hunt(FetchCommand::Remember(..)))
    }
}

/// A push whose packs have been checked.
pub(crate) struct Arrived {
    pub(crate) received_push: ReceivedPush,
    pub(crate) packs: Vec<Incoming>,
    pub(crate) reply: oneshot::Sender<Result<(), PushRejection>>,
}

/// A push that has been checked, each part with its own objects and no others.
pub(crate) struct CheckedPush {
    /// The objects of signed refs.
    pub(crate) pack: Option<Incoming>,
    /// The objects of pull requests whose events are not here.
    pub(crate) uploads: Vec<(EventId, String, Incoming)>,
    /// The sites whose pools were read for it.
    pub(crate) alternates: Vec<RepoPath>,
    /// How often objects had been taken away from pools when it began.
    pub(crate) prunings: u64,
}

/// Events that need objects.
pub(crate) struct Needed {
    /// States, served and held.
    pub(crate) events: Vec<Arc<SignedEvent>>,
    /// The commits of pull requests that wait.
    pub(crate) tips: Vec<String>,
}

/// What pages tell about a site.
#[derive(Default)]
pub(crate) struct RepoView {
    /// The announcement that decides, and whether it is served.
    pub(crate) announcement: Option<(Arc<SignedEvent>, EventStatus)>,
    /// The state that is served.
    pub(crate) state: Option<Arc<SignedEvent>>,
    /// Who may speak for it, as npubs.
    pub(crate) maintainers: Vec<String>,
    /// What waits, with the time at which it gives up and what it needs.
    pub(crate) waiting: Vec<WaitingEvent>,
    /// Uploads whose event is not here: event, commit, when they give up.
    pub(crate) uploads: Vec<(EventId, String, u64)>,
}

/// A held event.
pub(crate) struct WaitingEvent {
    pub(crate) event: Arc<SignedEvent>,
    /// When it gives up, in unix seconds.
    pub(crate) expires_at: u64,
    /// The objects that it needs.
    pub(crate) needs: Vec<String>,
}

/// Where doors reach the desk.
#[derive(Clone)]
pub(crate) struct WriterHandle {
    line: Arc<EventQueue>,
    pushes: Arc<AtomicU64>,
}

/// A push that may happen. Dropping it tells the desk that it is over.
pub(crate) struct PermittedPush {
    pub(crate) push: RequestedPush,
    pub(crate) permit: PushPermit,
    _over: Over,
}

struct Over {
    id: PushId,
    line: Arc<EventQueue>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.line.post(WriterCommand::Ended(self.id));
    }
}

fn going_down() -> PushRejection {
    PushRejection::Failed("the server is going down".to_owned())
}

impl WriterHandle {
    pub(crate) fn new(line: Arc<EventQueue>) -> Self {
        Self { line, pushes: Arc::new(AtomicU64::new(1)) }
    }

    /// Returns the objects that the events of repositories need beside those that their refs lead to; `None` if there
    /// are too many events to read, or the writer does not answer in time.
    pub(crate) fn needed_objects(&self, repo_paths: &[RepoPath]) -> Option<BTreeSet<String>> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.line.post(WriterCommand::Needs(repo_paths.to_vec(), reply));
        let needed = answer.recv_timeout(NEEDED_OBJECTS_TIMEOUT).ok()??;
        let mut oids: BTreeSet<String> = needed.tips.into_iter().collect();
        for event in &needed.events {
            oids.extend(RepoState::from_event(event).map(|state| state.oids()).unwrap_or_default());
            oids.extend(PullRequest::from_any_event(event).map(|request| request.tip));
        }
        Some(oids)
    }

    /// May this push happen?
    pub(crate) async fn ask(
        &self,
        repo_path: RepoPath,
        commands: Vec<PushCommand>,
        network: Option<String>,
    ) -> Result<PermittedPush, PushRejection> {
        let id = PushId(self.pushes.fetch_add(1, Ordering::Relaxed));
        let push = RequestedPush { id, repo_path, commands, network };
        let over = Over { id, line: self.line.clone() };
        let (reply, answer) = oneshot::channel();
        self.line.post(WriterCommand::Ask(push.clone(), reply));
        let permit = answer.await.unwrap_or_else(|_| Err(going_down()))?;
        Ok(PermittedPush { push, permit, _over: over })
    }

    /// The packs of a push are here. Once this has been called the push goes on, whoever listens.
    pub(crate) async fn arrived(&self, push: &PermittedPush, checked: CheckedPush) -> Result<(), PushRejection> {
        let CheckedPush { pack, uploads, alternates, prunings } = checked;
        let received_pack: Option<ReceivedPack> = pack.as_ref().map(Incoming::received_pack);
        let delivery = |(event, tip, pack): &(EventId, String, Incoming)| ReceivedUpload {
            event: *event,
            tip: tip.clone(),
            received_pack: pack.received_pack(),
            bytes: pack.bytes().unwrap_or(0),
        };
        let received_push = ReceivedPush {
            push: push.push.clone(),
            received_pack,
            uploads: uploads.iter().map(delivery).collect(),
            alternates,
            checked_prune_count: Some(prunings),
            bytes: pack.as_ref().map_or(0, |pack| pack.bytes().unwrap_or(0)),
        };
        let packs = pack.into_iter().chain(uploads.into_iter().map(|(_, _, pack)| pack)).collect();
        let (reply, answer) = oneshot::channel();
        self.line.post(WriterCommand::Arrived(Box::new(Arrived { received_push, packs, reply })));
        answer.await.unwrap_or_else(|_| Err(going_down()))
    }

    /// Events that wait, by id, after this one: a page. Nothing if the desk cannot say.
    pub(crate) async fn held(&self, after: Option<EventId>) -> Option<Vec<HeldEventView>> {
        self.operator(|reply| AdminCommand::Held(after, reply)).await
    }

    /// What is written of these sites, in their order. Nothing if the desk cannot say.
    pub(crate) async fn books(&self, repo_paths: Vec<RepoPath>) -> Option<Vec<Books>> {
        self.operator(|reply| AdminCommand::Books(repo_paths, reply)).await
    }

    /// Lets a held event go; whether it was there. Nothing if it could not be written down.
    pub(crate) async fn drop_held(&self, id: EventId) -> Option<bool> {
        self.operator(|reply| AdminCommand::Drop(id, reply)).await
    }

    async fn operator<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> AdminCommand) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.line.post(WriterCommand::Operator(make(reply)));
        answer.await.ok()
    }

    /// What is known of a site.
    pub(crate) async fn view(&self, repo_path: RepoPath) -> RepoView {
        let (reply, answer) = oneshot::channel();
        self.line.post(WriterCommand::View(repo_path, reply));
        answer.await.unwrap_or_default()
    }
}
