//! Inputs and outputs of the sync machine.
//!
//! The driver (`graspd/src/sync`, or the simulator) guarantees three things:
//!
//! - Served events are reported ([`SyncInput::RepoNeeds`], then [`SyncInput::Served`]) before the results of the
//!   submissions that caused them ([`SyncInput::SubmitResult`]).
//! - Every [`SyncOutput::Submit`] is answered exactly once.
//! - An event that is not known here is passed on only with a permit
//!   ([`limits::SYNC_PERMITS`]). The permit is returned when the event has its result or
//!   is released. So the machine never has to drop an event for lack of space.

use std::sync::Arc;

use super::rejected::RejectedRecord;
use super::relay_record::RelayRecord;
use super::relay_url::RelayUrl;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::filter::Filter;
use crate::nostr::negentropy::NegentropyItem;
use crate::nostr::nip11::Nip11Info;
use crate::nostr::rejection::Rejection;
pub use crate::nostr::relay_message::{EoseHint, EventPresence, IncomingMessage, OutgoingMessage, SubscriptionId};
use crate::repo::catalog::EventStatus;
use crate::repo::{Identifier, RepoId};
use crate::time::{MonoTime, Timestamp};

/// Input of the sync machine.
#[derive(Clone, Debug)]
pub enum SyncInput {
    /// At the start: a row that an earlier process stored. All rows come before any other input.
    Restored(RestoredRow),
    /// All stored rows and all repository needs have been passed on: relays may be dialled from now on.
    Ready,
    /// The complete needs of all followed repositories with this identifier. Empty if none is followed any more.
    RepoNeeds(Identifier, Vec<RepoNeeds>),
    /// Answer to [`SyncOutput::QueryRootEvents`]: all root events of a repository in order of arrival, and the events
    /// below them. Events that are served later come as [`SyncInput::Served`].
    RootEvents(RepoId, Vec<RootEvent>, Descendants),
    /// An event that is served from now on, from a client or from a relay. In order of arrival.
    Served(ServedEvent),
    /// A connection is established, with the relay's NIP-11 document if it has one.
    Connected(SessionId, Option<Nip11Info>),
    /// A message from a relay.
    Message(SessionId, IncomingMessage),
    /// Number of bytes that wait in the send buffer of the connection.
    Unsent(SessionId, usize),
    /// A connection has ended or could not be established. The last input of a session.
    Disconnected(SessionId, DisconnectReason),
    /// Another computer was reached at this time, by a git fetch or a client: the network of this server works.
    NetworkContact(MonoTime),
    /// Answer to [`SyncOutput::QueryLocalIds`].
    LocalIds(QueryId, LocalIds),
    /// Answer to [`SyncOutput::QueryMissingIds`]: the ids that are neither served nor held here.
    MissingIds(QueryId, Vec<EventId>),
    /// Answer to [`SyncOutput::QueryServedEvents`]: those of the events that are served.
    ServedEvents(QueryId, Vec<ServedEvent>),
    /// Result of a submitted event, after the commit.
    SubmitResult(SyncSubmissionId, SubmitResult),
    /// Command of the operator about one relay.
    Command(RelayCommand),
    /// The settings changed. The admission machine uses the new ones already.
    PolicyChanged(SyncPolicyChange),
}

crate::label_table! {
    /// Returns the `variant` label of `ngit_machine_inputs_total`.
    SyncInput {
        Self::Restored(_) => "restored",
        Self::Ready => "ready",
        Self::RepoNeeds(..) => "repo_needs",
        Self::RootEvents(..) => "roots",
        Self::Served(_) => "served",
        Self::Connected(..) => "up",
        Self::Message(..) => "message",
        Self::Unsent(..) => "unsent",
        Self::Disconnected(..) => "down",
        Self::NetworkContact(_) => "network_contact",
        Self::LocalIds(..) => "ids",
        Self::MissingIds(..) => "missing",
        Self::ServedEvents(..) => "served_events",
        Self::SubmitResult(..) => "submit_result",
        Self::Command(_) => "command",
        Self::PolicyChanged(_) => "policy",
    }
}

/// The part of a settings change that concerns sync.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyncPolicyChange {
    /// Epoch of coverage that is reached from now on; see [`SyncConfig::epoch`](super::SyncConfig::epoch).
    pub epoch: u64,
    /// Configured relays, followed even if no repository lists them.
    pub bootstrap: Vec<RelayUrl>,
    /// Whether events that were rejected before may be accepted now. If so, everything is requested from all relays
    /// again.
    pub accepts_more: bool,
}

/// A row that an earlier process stored.
#[derive(Clone, Debug)]
pub enum RestoredRow {
    /// Record of a relay.
    Relay(Box<RelayRecord>),
    /// A rejected event.
    Rejected(RejectedRecord),
}

/// Needs of one followed repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepoNeeds {
    /// Owner and identifier.
    pub repo: RepoId,
    /// Whether its announcement is served, or held because git data is missing. Of a held repository only the events
    /// that can release it are followed.
    pub status: EventStatus,
    /// Relays in the announcements of its maintainers, as written there.
    pub relays: Vec<String>,
    /// Its maintainers, whose deletion requests are followed.
    pub authors: Vec<PublicKey>,
    /// Arrival of the newest of these announcements, or [`Seq::MAX`] if one of them is held. A request that a relay got
    /// before did not cover all of these needs.
    pub seq: Seq,
}

/// Sequence number of an event's arrival in the store. Increases strictly and survives restarts.
pub type Seq = u64;

/// An issue, patch or pull request that references a repository.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RootEvent {
    /// Sequence number of its arrival.
    pub seq: Seq,
    /// Its id.
    pub id: EventId,
}

/// A served event that references a repository, one of its root events, or another descendant, and that is followed:
/// events that reference it are requested.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Descendant {
    /// Sequence number of its arrival.
    pub seq: Seq,
    /// Its id.
    pub id: EventId,
    /// Its coordinate, if it is addressable.
    pub coordinate: Option<Coordinate>,
    /// Arrival of the event that connects it with the repository or a root event: its own, or that of the event whose
    /// descendant it is. The number of descendants of such an event is limited.
    pub ancestor: Seq,
}

/// Author of a root event or descendant, whose request to vanish is followed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EventAuthor {
    /// Arrival of the author's first event below the repository.
    pub seq: Seq,
    /// Public key.
    pub key: PublicKey,
    /// Whether that event is a root event.
    pub is_root: bool,
}

/// Everything below the root events of a repository. See [`super::descendants::collect`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Descendants {
    /// Descendants in order of arrival.
    pub events: Vec<Descendant>,
    /// Authors of root events and descendants in order of arrival, each once.
    pub authors: Vec<EventAuthor>,
}

/// The parts of a served event that sync uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedEvent {
    /// Sequence number of its arrival.
    pub seq: Seq,
    /// Its id.
    pub id: EventId,
    /// Its kind.
    pub kind: u16,
    /// Its author.
    pub author: PublicKey,
    /// Its coordinate, if its kind has one.
    pub coordinate: Option<Coordinate>,
    /// Ids of the events that it references (`e`, `E`, `q`).
    pub ids: Vec<EventId>,
    /// Coordinates that it references (`a`, `A`, `q`).
    pub coordinates: Vec<Coordinate>,
}

/// How many events are read from a relay. Beyond that it has to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventRate {
    /// Events per minute in the long run.
    pub per_minute: u64,
    /// Events at once.
    pub burst: u64,
}

impl EventRate {
    /// For a relay that only held repositories list.
    pub const LOWEST: Self =
        Self { per_minute: limits::HELD_RELAY_EVENTS_PER_MINUTE, burst: limits::HELD_RELAY_EVENTS_BURST };
    /// For any other relay.
    pub const FULL: Self = Self { per_minute: limits::RELAY_EVENTS_PER_MINUTE, burst: limits::RELAY_EVENTS_BURST };
}

/// Id of one connection or connection attempt. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// Reason why a connection ended or could not be established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisconnectReason {
    /// The relay did not answer: unknown host, no route, or timeout. The network of this server may be the reason.
    Unreachable,
    /// The host of the relay answered and refused the connection, or answered with an HTTP error.
    Refused,
    /// The address is not public and must not be dialled. Nothing was sent.
    Forbidden,
    /// The server does not speak websocket, or its certificate is invalid.
    NotARelay,
    /// The relay is a private service (GRASP-08). Nothing was requested from it.
    PrivateService,
    /// The relay closed the connection, or was silent for too long.
    Ended,
    /// The relay sent a message that is larger than this server reads.
    MessageTooLarge,
    /// This server closed the connection.
    ClosedByUs,
}

impl DisconnectReason {
    /// Returns the name of the reason in logs and on the status page.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Forbidden => "forbidden",
            Self::NotARelay => "not_a_relay",
            Self::PrivateService => "private_service",
            Self::Ended => "ended",
            Self::MessageTooLarge => "message_too_large",
            Self::ClosedByUs => "closed_by_us",
        }
    }
}

/// Id of one query to the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueryId(pub u64);

/// Local events that match a filter, for a negentropy exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalIds {
    /// The newest served and held events that match, at most
    /// [`limits::MAX_RECONCILIATION_ITEMS`].
    pub items: Vec<NegentropyItem>,
    /// If the items were cut: all matching events of this second and later are among them. `None` if nothing was cut.
    pub complete_since: Option<Timestamp>,
}

/// Id of one submitted event. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SyncSubmissionId(pub u64);

/// Result of a submitted event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitResult {
    /// It is served, or it is ephemeral and was passed on to subscribers.
    Stored,
    /// It is held in purgatory until its git data arrives.
    Held,
    /// It, or a newer version of it, was known before.
    Known,
    /// It was rejected.
    Rejected(Rejection),
    /// Its signature is invalid. This says nothing about other events with the same id.
    InvalidSignature,
}

crate::label_table! {
    /// Returns the `verdict` label of `ngit_sync_judged_total`.
    SubmitResult {
        Self::Stored => "stored",
        Self::Held => "held",
        Self::Known => "known",
        Self::Rejected(_) => "refused",
        Self::InvalidSignature => "forged",
    }
}

/// Command of the operator about one relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RelayCommand {
    /// Dials the relay now, regardless of its health.
    Retry(RelayUrl),
    /// Disconnects the relay and does not dial it until [`RelayCommand::Resume`], also after a restart.
    Pause(RelayUrl),
    /// Ends a pause.
    Resume(RelayUrl),
    /// Deletes health, learned limits, coverage and totals of the relay.
    Forget(RelayUrl),
    /// Starts a full reconciliation with the relay now.
    Reconcile(RelayUrl),
}

/// Output of the sync machine.
#[derive(Clone, Debug)]
pub enum SyncOutput {
    /// Connect, and read the NIP-11 document at the same time. Answered by [`SyncInput::Connected`] or
    /// [`SyncInput::Disconnected`].
    Dial {
        /// Id of the connection.
        session: SessionId,
        /// The relay.
        url: RelayUrl,
        /// Whether the operator configured the relay, so that it may have a private address.
        is_configured: bool,
    },
    /// Read events from a relay at this rate from now on. Before, [`EventRate::LOWEST`] applies.
    SetEventRate(SessionId, EventRate),
    /// End a connection or a connection attempt. Answered by [`SyncInput::Disconnected`].
    Disconnect(SessionId),
    /// Send a message to a relay.
    Send(SessionId, OutgoingMessage),
    /// Look up the root events of a repository and their descendants.
    QueryRootEvents(RepoId),
    /// Look up the ids of local events that match a filter.
    QueryLocalIds(QueryId, Filter),
    /// Look up which of these ids are not here.
    QueryMissingIds(QueryId, Vec<EventId>),
    /// Look up these events, as far as they are served.
    QueryServedEvents(QueryId, Vec<EventId>),
    /// Submit an event to admission, like an event of a client.
    Submit(SyncSubmission),
    /// Report to admission that a relay serves a held event, so that its git data is fetched soon.
    HeldEventSeen(EventId),
    /// Return the permit of an event of this session that is not submitted.
    ReleasePermit(SessionId),
    /// Store a row soon.
    StoreRow(SyncRow),
    /// Delete a stored row.
    DeleteRow(SyncRowKey),
    /// Record a note in the log and the metrics.
    Note(SyncNote),
}

crate::label_table! {
    /// Returns the `variant` label of `ngit_machine_outputs_total`.
    SyncOutput {
        Self::Dial { .. } => "dial",
        Self::SetEventRate(..) => "set_event_rate",
        Self::Disconnect(_) => "disconnect",
        Self::Send(..) => "send",
        Self::QueryRootEvents(_) => "query_roots",
        Self::QueryLocalIds(..) => "query_ids",
        Self::QueryMissingIds(..) => "query_missing",
        Self::QueryServedEvents(..) => "query_served",
        Self::Submit(_) => "submit",
        Self::HeldEventSeen(_) => "held_seen",
        Self::ReleasePermit(_) => "release",
        Self::StoreRow(_) => "store_row",
        Self::DeleteRow(_) => "delete_row",
        Self::Note(_) => "note",
    }
}

/// An event for admission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyncSubmission {
    /// Id that the result will have.
    pub id: SyncSubmissionId,
    /// The event.
    pub event: Arc<Event>,
    /// Session whose permit it uses; `None` if it is submitted again.
    pub session: Option<SessionId>,
    /// A relay that offers it.
    pub relay: RelayUrl,
    /// How it was received.
    pub source: SyncSource,
}

/// How an event was received from a relay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SyncSource {
    /// From a live subscription.
    Live,
    /// From historic sync after connecting, or of newly followed needs.
    CatchUp,
    /// From the daily reconciliation.
    Daily,
}

crate::label_table! {
    /// Returns the `source` label of `ngit_sync_events_total`, which is also used in logs.
    SyncSource {
        Self::Live => "live",
        Self::CatchUp => "catchup",
        Self::Daily => "daily",
    }
}

/// A row to store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SyncRow {
    /// Record of a relay.
    Relay(Box<RelayRecord>),
    /// A rejected event.
    Rejected(RejectedRecord),
}

/// Key of a stored row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SyncRowKey {
    /// Row of a relay.
    Relay(RelayUrl),
    /// Row of a rejected event.
    Rejected(EventId),
}

/// Something to log or count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SyncNote {
    /// A connection was established.
    Connected(RelayUrl, ReconnectKind),
    /// A connection could not be established.
    ConnectionFailed {
        /// The relay.
        relay: RelayUrl,
        /// Why it failed.
        reason: DisconnectReason,
        /// Number of consecutive failed attempts, including this one.
        attempt: u32,
        /// How many of them count against the relay and not against the network of this server.
        failures: u32,
        /// Milliseconds until the next attempt.
        backoff_millis: u64,
    },
    /// A connection ended.
    ConnectionLost(RelayUrl, DisconnectReason),
    /// A relay has not been reached for a day. With the number of consecutive failures.
    Dead(RelayUrl, u32),
    /// A relay limits our rate. With its text and the seconds of the cooldown.
    RateLimited(RelayUrl, String, u64),
    /// A relay sent an event that matches no open filter.
    Unsolicited(RelayUrl),
    /// A connection was closed because the relay sent too many messages that no request explains. With the seconds
    /// until it is dialled again.
    Flooded(RelayUrl, u64),
    /// A relay does not support negentropy, so pages are used. Noted once per relay.
    NoNegentropy(RelayUrl),
    /// A relay refuses us by policy and is probed once a day. With its text.
    Parked(RelayUrl, String),
    /// A relay URL leads to this server itself.
    IsSelf(RelayUrl),
    /// A catch-up or daily reconciliation has ended.
    CaughtUp {
        /// The relay.
        relay: RelayUrl,
        /// Which of the two.
        source: SyncSource,
        /// Number of new events.
        events: u64,
        /// Whether no part of it failed.
        is_complete: bool,
    },
    /// Historic sync found events that a live subscription should have delivered.
    Gaps {
        /// The relay.
        relay: RelayUrl,
        /// Which request found them.
        source: SyncSource,
        /// Number of events.
        count: u64,
        /// Up to three of them.
        examples: Vec<EventId>,
    },
    /// Repositories of which a relay lacks served events, with their number. Empty if it lacks none. From a run over
    /// everything; replaces the result of the last one.
    RelayLacksEvents(RelayUrl, Vec<(RepoId, u64)>),
    /// The local states were compared with those of a relay.
    StatesCompared {
        /// The relay.
        relay: RelayUrl,
        /// States that both have.
        shared: Vec<EventId>,
        /// States that only this server has, in ascending order.
        lacking: Vec<EventId>,
    },
    /// A batch of historic sync failed, with the reason.
    BatchFailed(RelayUrl, &'static str),
}

/// What a connection requests at its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ReconnectKind {
    /// First connection, or nothing was complete before: everything is requested.
    Fresh,
    /// After a short absence: only newer events are requested.
    Quick,
    /// After a long absence: everything is requested.
    Long,
}

crate::label_table! {
    /// Returns the `kind` label of `ngit_sync_reconnects_total`, which is also used in logs.
    ReconnectKind {
        Self::Fresh => "fresh",
        Self::Quick => "quick",
        Self::Long => "long",
    }
}
