//! Inputs and outputs of [`Admission`](super::Admission).
//!
//! The writer feeds inputs and carries out outputs (docs/design/admission.md). Most outputs take effect only after the
//! commit of the transaction in which they were produced.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::git_job::{GitJob, GitJobId, GitJobOutcome, ReceivedPack, VerifiedObjects};
use super::policy::AdmissionPolicy;
use super::purgatory::HeldSubmitter;
use super::push::{PushCommand, PushPermit, PushRejection};
use crate::disk_budget::{DiskLevel, GitUsage};
use crate::fetch::io::FetchId;
use crate::nostr::event::{Coordinate, Event, EventId, EventVersion};
use crate::nostr::{Decision, PublicKey, SignedEvent};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::state::StateDigest;
use crate::repo::{Identifier, PackManifest, Refs, RepoId, RepoPath};
use crate::time::Timestamp;

/// An input of [`Admission`](super::Admission).
#[derive(Clone, Debug)]
pub enum AdmissionInput {
    /// An item that the store contains. Sent at start and after a failed commit, for all items, before any other input.
    Restored(RestoredItem),
    /// All stored items have been sent. Interrupted work continues.
    Ready,
    /// The operator has changed the policy. It differs in what is accepted, not in what this service is
    /// ([`AdmissionPolicy::is_same_service`]).
    PolicyChanged(Arc<AdmissionPolicy>),
    /// A served event that must be removed: the event or its author is banned, or it is only about banned repositories.
    /// [`ModerationScan`](super::moderation::ModerationScan) finds all of them, in slices, after the start and after
    /// [`AdmissionInput::PolicyChanged`].
    BannedEvent(EventSummary),
    /// All events about a banned repository that must be removed have been found.
    BannedRepoScanned(RepoId),
    /// An event was submitted, and its id and signature have been verified. Answered by exactly one
    /// [`AdmissionOutput::Reply`] before the next input.
    EventSubmitted {
        /// The event.
        event: Arc<SignedEvent>,
        /// Where it comes from.
        source: EventSource,
        /// The network of the client, or the host of the relay, for limits; `None` for loopback, which has no limit of
        /// its own.
        network: Option<String>,
        /// The network of the client, or the host of the relay, whose share of purgatory the event takes; `None` for
        /// loopback and imports, which have no share.
        submitter: Option<HeldSubmitter>,
        /// The digest of a state, which the thread that verified the event has computed. If it is `None`, the digest is
        /// computed when the state is held.
        digest: Option<StateDigest>,
        /// Store lookups, read inside the transaction that contains the resulting writes.
        lookups: EventLookups,
    },
    /// The expiration time (NIP-40) of a served event has passed.
    EventExpired(EventSummary),
    /// A served pull request was removed from the store because its author requested to vanish.
    PullRequestPurged(EventSummary),
    /// A client wants to push; only its commands have been read. Answered by exactly one
    /// [`AdmissionOutput::PushDecision`]. In every case [`AdmissionInput::PushEnded`] follows at the end.
    PushRequested(RequestedPush),
    /// The packs of a permitted push have been received and checked. Answered by exactly one
    /// [`AdmissionOutput::PushDone`].
    PushReceived(ReceivedPush),
    /// A push has ended. The events that it kept from expiring may expire.
    PushEnded(PushId),
    /// The answer to [`AdmissionOutput::Lookup`].
    LookupDone(RepoLookupResult),
    /// A git job has ended.
    GitJobDone(GitJobId, GitJobOutcome),
    /// Objects that the refs of a repository need are damaged or missing, for this reason.
    RepoDegraded(RepoPath, String),
    /// Objects were added to the pools of repositories with this identifier by other means than a push.
    GitDataAdded(Identifier),
    /// The fill level of the disk budget.
    DiskLevel(DiskLevel),
    /// A fetch of objects that these events need has started. They do not expire before it has ended.
    FetchStarted(FetchId, Vec<EventId>),
    /// A fetch has received wanted objects. Answered by [`AdmissionOutput::PackAdopted`] when the pack is no longer
    /// needed.
    PackFetched(FetchedPack),
    /// A fetch has ended.
    FetchEnded(FetchId),
    /// All sources were tried once for the objects that these events need. The events may expire at their deadline.
    SourcesTried(Vec<EventId>),
    /// Relays serve these held events, so a git server probably has their data.
    HeldEventsSeen(Vec<EventId>),
    /// The operator drops a held event. It may be submitted again.
    HeldEventDropped(EventId),
}

crate::label_table! {
    /// Returns the `variant` label of `ngit_machine_inputs_total`.
    AdmissionInput {
        Self::Restored(_) => "restored",
        Self::Ready => "ready",
        Self::PolicyChanged(_) => "rules",
        Self::BannedEvent(_) => "unwanted",
        Self::BannedRepoScanned(_) => "banned_repo_scanned",
        Self::EventSubmitted { .. } => "submitted",
        Self::EventExpired(_) => "expired",
        Self::PullRequestPurged(_) => "purged",
        Self::PushRequested(_) => "push_asked",
        Self::PushReceived(_) => "push_arrived",
        Self::PushEnded(_) => "push_ended",
        Self::LookupDone(_) => "lookup_done",
        Self::GitJobDone(..) => "git_job_done",
        Self::RepoDegraded(..) => "repo_degraded",
        Self::GitDataAdded(_) => "data_came",
        Self::DiskLevel(_) => "space",
        Self::FetchStarted(..) => "fetch_began",
        Self::PackFetched(_) => "fetch_arrived",
        Self::FetchEnded(_) => "fetch_ended",
        Self::SourcesTried(_) => "tried",
        Self::HeldEventsSeen(_) => "held_seen",
        Self::HeldEventDropped(_) => "dropped",
    }
}

/// A fetched pack. It has been verified, and every wanted object in it is complete.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FetchedPack {
    /// The repository that it is for.
    pub repo_path: RepoPath,
    /// The fetch that received it.
    pub fetch: FetchId,
    /// The pack.
    pub received_pack: ReceivedPack,
    /// The wanted objects that are complete; `None` if that depends on other packs that are not adopted yet.
    pub verified: Option<VerifiedObjects>,
}

/// Identifies a push for the lifetime of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PushId(pub u64);

/// A push of which only the commands have been read.
#[derive(Clone, Debug)]
pub struct RequestedPush {
    /// Repeated in the answer.
    pub id: PushId,
    /// The repository that is pushed to.
    pub repo_path: RepoPath,
    /// The requested changes of refs.
    pub commands: Vec<PushCommand>,
    /// The network of the client, for upload limits; `None` for loopback, which has no limit of its own.
    pub network: Option<String>,
}

/// A push whose packs have been received into separate folders. Its objects are complete and connected.
#[derive(Clone, Debug)]
pub struct ReceivedPush {
    /// The push as it was requested.
    pub push: RequestedPush,
    /// The objects that branches, tags and known pull requests need; `None` if they need no new objects.
    pub received_pack: Option<ReceivedPack>,
    /// The objects of pull requests whose event was not known when the push was permitted.
    pub uploads: Vec<ReceivedUpload>,
    /// The repositories whose pools were read, in addition to the own one, when completeness was checked.
    pub alternates: Vec<RepoPath>,
    /// The number of prunes before that check started; `None` if there was no check.
    pub checked_prune_count: Option<u64>,
    /// The size of the pack, without the uploads.
    pub bytes: u64,
}

/// The objects of one pull request whose event is not known yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedUpload {
    /// The id of the expected event, from the ref name.
    pub event: EventId,
    /// The pushed commit.
    pub tip: String,
    /// The pack with its objects.
    pub received_pack: ReceivedPack,
    /// Its size on disk.
    pub bytes: u64,
}

/// The state of a repository and of some events, read inside the transaction that contains the resulting writes.
#[derive(Clone, Debug, Default)]
pub struct RepoLookupResult {
    /// Whether the repository has a row with its refs, possibly none.
    pub exists: bool,
    /// Whether objects of the repository are damaged or missing, so that its refs prove nothing.
    pub is_degraded: bool,
    /// Whether the repository has git data or has left some: it has a row or a folder. Only if
    /// [`RepoLookup::find_folder`].
    pub has_folder: bool,
    /// All refs.
    pub refs: Arc<Refs>,
    /// Pull requests that have a ref in the repository but whose event is not stored (any more). Only if
    /// [`RepoLookup::find_orphans`].
    pub orphan_refs: Vec<EventId>,
    /// Disk usage of the repository and its owner. Only if [`RepoLookup::measure_disk`].
    pub disk_usage: GitUsage,
    /// The requested events that are stored.
    pub events: BTreeMap<EventId, StoredEvent>,
    /// A page of the served pull requests that are addressed to the repository. Only if
    /// [`RepoLookup::pull_requests`].
    pub pull_requests: Vec<Arc<SignedEvent>>,
    /// Where the next page starts, if there may be more.
    pub next_pull_request: Option<EventVersion>,
}

/// A stored event with its lookups.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    /// The event.
    pub event: Arc<SignedEvent>,
    /// Whether it is served or held.
    pub status: EventStatus,
    /// Store lookups for deciding about it again.
    pub lookups: EventLookups,
}

/// An item of the store that is restored into memory. Of announcements and states all are restored, of other events
/// only the held ones. Todos, uploads and requests of unknown keys come after all events.
#[derive(Clone, Debug)]
pub enum RestoredItem {
    /// A served announcement or state.
    Served(Arc<SignedEvent>),
    /// A served announcement that was accepted by the maintainer exception.
    Exception(Arc<SignedEvent>),
    /// A held event and its deadline.
    Held(Arc<SignedEvent>, Timestamp),
    /// A repository that is degraded.
    Degraded(RepoPath),
    /// Git work that has not been done.
    Todo(Todo),
    /// An upload whose event is not known yet.
    Upload(PendingUpload),
    /// A deletion or vanish request of an unknown key.
    EarlyRequest(EarlyRequest),
}

/// Where a submitted event comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventSource {
    /// A connected client, with the keys that it has authenticated (NIP-42).
    Client(Vec<PublicKey>),
    /// A relay that is synced from, by URL.
    Relay(String),
}

/// What the store knows about an event before a decision.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EventLookups {
    /// The status of this event, if it is stored.
    pub stored: Option<EventStatus>,
    /// The tombstone that keeps the event out, if there is one.
    pub tombstone: Option<TombstoneKind>,
    /// The served version at the event's coordinate.
    pub current: Option<EventVersion>,
    /// Whether the event references a served event (tags `a`, `A`, `e`, `E`, `q`).
    pub references_served: bool,
    /// Whether a served event references its id or coordinate. Not looked up if `references_served` is true, because
    /// one link is enough.
    pub referenced_by_served: bool,
    /// Whether the author has any event here, served or held.
    pub author_has_events: bool,
    /// The targets of a deletion request that are stored.
    pub targets: Vec<DeletionTarget>,
}

/// The lookups that a decision needs. The others are skipped and keep their default values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NeededLookups {
    /// Needs `references_served` and `referenced_by_served`.
    pub links: bool,
    /// Needs `author_has_events`.
    pub author: bool,
    /// Needs `targets`.
    pub targets: bool,
}

/// Why a tombstone keeps an event out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TombstoneKind {
    /// The author deleted it, by id or by coordinate.
    Deleted,
    /// The author requested to vanish.
    Vanished,
    /// A newer announcement withdrew the repository from this service.
    Withdrawn,
}

/// The fields of a stored event that removal needs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EventSummary {
    /// The event id.
    pub id: EventId,
    /// The author.
    pub author: PublicKey,
    /// The event kind.
    pub kind: u16,
    /// The event's timestamp.
    pub created_at: Timestamp,
    /// The `d` tag of an announcement or a state, if it is a valid identifier.
    pub identifier: Option<Identifier>,
    /// The repositories that a pull request is addressed to.
    pub targets: Vec<RepoId>,
    /// The commit of a pull request.
    pub tip: Option<String>,
}

impl EventSummary {
    /// Extracts the fields of an event.
    #[must_use]
    pub fn new(event: &Event) -> Self {
        use crate::nostr::kinds::{ANNOUNCEMENT, STATE};
        let identifier =
            if matches!(event.kind, ANNOUNCEMENT | STATE) { event.tag("d").and_then(Identifier::new) } else { None };
        let (targets, tip) = Self::pull_request_fields(event);
        let Event { id, pubkey: author, kind, created_at, .. } = *event;
        Self { id, author, kind, created_at, identifier, targets, tip }
    }

    /// Returns the fields of an announcement or a state.
    #[must_use]
    pub fn versioned(author: PublicKey, identifier: &Identifier, kind: u16, version: EventVersion) -> Self {
        let EventVersion { id, created_at } = version;
        let identifier = Some(identifier.clone());
        Self { id, author, kind, created_at, identifier, targets: Vec::new(), tip: None }
    }

    /// Returns the target repositories and the commit of a pull request; nothing for other and for malformed events.
    #[must_use]
    pub fn pull_request_fields(event: &Event) -> (Vec<RepoId>, Option<String>) {
        PullRequest::from_any_event(event).map(|request| (request.targets, Some(request.tip))).unwrap_or_default()
    }
}

/// A stored target of a deletion request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeletionTarget {
    /// The target.
    pub event: EventSummary,
    /// Whether it is served or held.
    pub status: EventStatus,
}

/// An output of [`Admission`](super::Admission).
#[derive(Clone, Debug)]
pub enum AdmissionOutput {
    /// A change of the store, in the transaction in which the lookups were read.
    Write(StoreWrite),
    /// The answer to a submission, sent after the commit.
    Reply(Decision),
    /// An ephemeral event for live subscriptions, sent after the commit and not stored.
    Broadcast(Arc<SignedEvent>),
    /// A lookup in the open transaction. [`AdmissionInput::LookupDone`] must be the next input.
    Lookup(RepoLookup),
    /// The answer to [`AdmissionInput::PushRequested`], sent after the commit.
    PushDecision(PushId, Result<PushPermit, PushRejection>),
    /// The answer to [`AdmissionInput::PushReceived`], sent after the commit. Packs of the push that were not adopted
    /// may be deleted.
    PushDone(PushId, Result<(), PushRejection>),
    /// A git job, started after the commit. Answered by exactly one [`AdmissionInput::GitJobDone`].
    GitJob(GitJob),
    /// A fetched pack was adopted or is not needed. Sent after the commit.
    PackAdopted(FetchId),
    /// Deletes a received pack, after the commit.
    DiscardPack(ReceivedPack),
    /// Whether a repository is hosted, or which repositories' objects it may read, may have changed. Sent after the
    /// commit.
    HostingChanged(RepoId),
    /// What sync needs for repositories with this identifier has changed
    /// ([`Admission::repo_needs`](super::Admission::repo_needs)). Receivers coalesce repeated notifications.
    RepoNeedsChanged(Identifier),
    /// The git data that must be fetched for repositories with this identifier has changed
    /// ([`Admission::wanted_git_data`](super::Admission::wanted_git_data)). Receivers coalesce repeated notifications.
    WantedGitDataChanged(Identifier),
}

crate::label_table! {
    /// Returns the `variant` label of `ngit_machine_outputs_total`.
    AdmissionOutput {
        Self::Write(_) => "write",
        Self::Reply(_) => "reply",
        Self::Broadcast(_) => "pass",
        Self::Lookup(_) => "lookup",
        Self::PushDecision(..) => "permit",
        Self::PushDone(..) => "push_done",
        Self::GitJob(_) => "git_job",
        Self::PackAdopted(_) => "adopted",
        Self::DiscardPack(_) => "discard",
        Self::HostingChanged(_) => "hosting",
        Self::RepoNeedsChanged(_) => "repo_needs",
        Self::WantedGitDataChanged(_) => "wanted_git_data",
    }
}

/// A request to read the refs of a repository and some events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepoLookup {
    /// The repository.
    pub repo_path: RepoPath,
    /// Ids of events, served or held.
    pub events: Vec<EventId>,
    /// Whether to find out if there is a folder.
    pub find_folder: bool,
    /// Whether to find refs of pull requests whose event is not stored.
    pub find_orphans: bool,
    /// Whether to measure the disk usage of the repository and its owner.
    pub measure_disk: bool,
    /// Whether to return a page of the served pull requests that are addressed to the repository.
    pub pull_requests: Option<PullRequestPage>,
}

/// A page of pull requests, newest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullRequestPage {
    /// The first page.
    First,
    /// The page of the events that are older than this version.
    After(EventVersion),
}

/// A change of the store.
#[derive(Clone, Debug)]
pub enum StoreWrite {
    /// Stores an event as served. It replaces the served version at its coordinate.
    Put(Arc<SignedEvent>),
    /// Marks a served announcement as accepted by the maintainer exception, for as long as it is served.
    MarkException(EventId),
    /// Stores an event as held, with its deadline.
    Hold(Arc<SignedEvent>, Timestamp),
    /// Changes the deadline of a held event.
    ExtendHold(EventId, Timestamp),
    /// Makes a served event held, with its deadline.
    HoldServed(EventId, Timestamp),
    /// Makes a held event served. It replaces the served version at its coordinate.
    Release(EventId),
    /// Deletes a held event.
    DropHeld(EventId),
    /// Deletes a served event.
    Remove(EventId),
    /// Adds a tombstone.
    AddTombstone(Tombstone),
    /// Sets the refs of a repository. They become visible together with the other writes of the transaction.
    SetRefs(RepoPath, Arc<Refs>),
    /// Deletes the refs of a repository that is no longer hosted.
    RemoveRefs(RepoPath),
    /// Records the packs that the pool of a repository should have.
    SetPacks(RepoPath, Arc<PackManifest>),
    /// Records why a repository is degraded, or that it is not any more. Does nothing if it has no refs row.
    SetDegraded(RepoPath, Option<String>),
    /// Records git work that must be done.
    AddTodo(Todo),
    /// Deletes a todo: its work is done or no longer needed.
    RemoveTodo(Todo),
    /// Records an upload whose event is not known yet. It replaces one for the same event and repository.
    AddUpload(PendingUpload),
    /// Deletes the record of an upload.
    RemoveUpload(RepoPath, EventId),
    /// Stores a deletion or vanish request of an unknown key. It is not served.
    AddEarlyRequest(EarlyRequest),
    /// Deletes such a request.
    RemoveEarlyRequest(EventId),
}

/// A deletion or vanish request of a key that has no event here and that no announcement lists as a maintainer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EarlyRequest {
    /// The request.
    pub event: Arc<SignedEvent>,
    /// The network of the client, or the host of the relay, for limits; `None` for loopback.
    pub network: Option<String>,
    /// When it is deleted if its key is still unknown.
    pub expires_at: Timestamp,
}

/// A durable record that a repository needs git work. What exactly must be done is decided when the work starts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Todo {
    /// The repository.
    pub repo_path: RepoPath,
    /// The pull request whose ref must be created or removed; `None` for everything else.
    pub pull_request: Option<EventId>,
}

/// An upload to `refs/nostr/<event>` whose event is not known yet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PendingUpload {
    /// The repository that it was pushed to.
    pub repo_path: RepoPath,
    /// The id of the expected event, from the ref name.
    pub event: EventId,
    /// The commit that was pushed.
    pub tip: String,
    /// The number of its folder, `staged/<n>`.
    pub folder: u64,
    /// Its size on disk.
    pub bytes: u64,
    /// The network of the client, for upload limits.
    pub network: Option<String>,
    /// When the upload is deleted if its event has not arrived.
    pub deadline: Timestamp,
}

/// A record that keeps events from being accepted again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tombstone {
    /// An event that its author deleted. An event with the same id by another author is not affected.
    Event(PublicKey, EventId),
    /// All versions at a coordinate up to a time.
    Coordinate(Coordinate, Timestamp),
    /// All events of an author up to a time, except its requests to vanish. The store also deletes the author's stored
    /// events and the gift wraps addressed to it.
    Author(PublicKey, Timestamp),
    /// The announcements of a repository that are older than this version.
    Withdrawn(RepoId, EventVersion),
}
