//! Submitted events, before and after parsing and signature verification.

use std::sync::Arc;

use grasp_core::admission::io::EventSource;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::admission::purgatory::HeldSubmitter;
use grasp_core::nostr::rejection::{Decision, Rejection};
use grasp_core::nostr::signed_event::VerifyError;
use grasp_core::nostr::{Event, EventId, PublicKey, SignedEvent, Verifier, kinds};
use grasp_core::repo::state::StateDigest;
use grasp_core::sync::io::{SyncSource, SyncSubmission, SyncSubmissionId};
use grasp_core::sync::relay_url::RelayUrl;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::Clock;

/// An event that waits in the [`EventQueue`](super::queue::EventQueue) to be verified.
pub(crate) struct QueuedEvent {
    input: EventInput,
    submitter: Submitter,
}

enum EventInput {
    /// JSON text of an event.
    Text(String),
    /// A parsed event with a correct id. Its signature has not been verified.
    Event(Arc<Event>),
}

/// Submitter of an event, with the channel for the result. Its queue permit is released when the result is sent.
pub(crate) enum Submitter {
    /// A client's websocket session.
    Client {
        reply: ReplyFn,
        /// Keys that the connection is authenticated for.
        keys: Arc<[PublicKey]>,
        /// Network of the client, for limits; `None` for loopback.
        network: Option<String>,
        _permit: OwnedSemaphorePermit,
    },
    /// The operator, who imports a file.
    Operator {
        /// The number of the event in the file, and the channel for its result.
        reply: (u64, UnboundedSender<(u64, Decision)>),
        /// Whether the operator asserts that the event was published here by its author.
        is_from_author: bool,
        _permit: OwnedSemaphorePermit,
    },
    /// A relay that this server syncs from.
    Relay { submission: SyncSubmissionId, url: RelayUrl, sync_source: SyncSource, permit: Box<dyn Send> },
}

/// Sends the answer to the client: the text of the OK or NOTICE message, and whether the client should be sent an AUTH
/// challenge. Called once, after the commit.
pub(crate) type ReplyFn = Box<dyn FnOnce(String, bool) + Send>;

impl Submitter {
    /// Returns the network of the client, for limits. Imports share one limit, and so do relays, because one domain can have
    /// any number of hosts.
    pub(crate) fn network(&self) -> Option<String> {
        match self {
            Self::Client { network, .. } => network.clone(),
            Self::Operator { .. } => Some("import".to_owned()),
            Self::Relay { .. } => Some("relay".to_owned()),
        }
    }

    /// Returns the network or relay whose share of purgatory its events take. Local clients and imports have no share.
    pub(crate) fn held_submitter(&self) -> Option<HeldSubmitter> {
        match self {
            Self::Client { network, .. } => network.as_deref().map(|network| HeldSubmitter::Network(network.into())),
            Self::Operator { .. } => None,
            Self::Relay { url, .. } => Some(HeldSubmitter::Relay(url.host().into())),
        }
    }

    /// Returns the source of an event as admission sees it.
    pub(crate) fn source(&self, author: PublicKey) -> EventSource {
        match self {
            Self::Client { keys, .. } => EventSource::Client(keys.to_vec()),
            Self::Operator { is_from_author, .. } => {
                EventSource::Client(is_from_author.then_some(author).into_iter().collect())
            }
            Self::Relay { url, .. } => EventSource::Relay(url.to_string()),
        }
    }
}

/// An event that has been parsed and whose signature has been verified, or that failed one of these steps.
pub(crate) struct CheckedEvent {
    pub(crate) submitter: Submitter,
    pub(crate) result: Verified,
    pub(crate) bytes: usize,
    /// The digest of a state. It is computed here, and not by the writer, because a state may have thousands of refs.
    pub(crate) digest: Option<StateDigest>,
}

/// A verified event; or the id, if the text claims one, and the reason why the event was rejected before admission.
pub(crate) type Verified = Result<Arc<SignedEvent>, (Option<EventId>, Rejection)>;

impl QueuedEvent {
    /// Creates a submission of a client from the text of an event, with the client's authenticated keys and network.
    pub(crate) fn from_client(
        text: String,
        reply: ReplyFn,
        (keys, network): (Arc<[PublicKey]>, Option<String>),
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { input: EventInput::Text(text), submitter: Submitter::Client { reply, keys, network, _permit: permit } }
    }

    /// Creates a submission of the operator from the text of an event. If `is_from_author`, the event counts as sent by
    /// its author.
    pub(crate) fn from_operator(
        text: String,
        reply: (u64, UnboundedSender<(u64, Decision)>),
        is_from_author: bool,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let submitter = Submitter::Operator { reply, is_from_author, _permit: permit };
        Self { input: EventInput::Text(text), submitter }
    }

    /// Creates a submission of sync. `permit` is dropped when the result has been sent.
    pub(crate) fn from_relay(submission: SyncSubmission, permit: Box<dyn Send>) -> Self {
        let SyncSubmission { id, event, relay: url, source: sync_source, .. } = submission;
        Self {
            input: EventInput::Event(event),
            submitter: Submitter::Relay { submission: id, url, sync_source, permit },
        }
    }

    pub(super) fn is_from_relay(&self) -> bool {
        matches!(self.submitter, Submitter::Relay { .. })
    }

    /// Parses the event, checks what needs no lookup, and verifies the signature.
    pub(super) fn check(self, verifier: &mut Verifier, policy: &AdmissionPolicy, clock: Clock) -> CheckedEvent {
        let (result, bytes) = match self.input {
            EventInput::Text(text) => (parse_and_verify(&text, verifier, policy, clock), text.len()),
            EventInput::Event(event) => {
                let verify_signature = |event| verifier.verify_signature(event);
                let result = verify(Arc::unwrap_or_clone(event), 0, policy, clock, verify_signature);
                let bytes = result.as_ref().map_or(0, |event| event.json().len());
                (result, bytes)
            }
        };
        let digest = result.as_ref().ok().and_then(|event| StateDigest::from_event(event));
        CheckedEvent { submitter: self.submitter, result, bytes, digest }
    }
}

impl CheckedEvent {
    /// Returns the order in which events from relays are handled within a batch: first those that others depend on
    /// (announcements, states, roots of threads).
    pub(super) fn rank(&self) -> u8 {
        match self.result.as_ref().map(|event| event.kind) {
            Ok(kinds::ANNOUNCEMENT) => 0,
            Ok(kinds::STATE) => 1,
            Ok(kinds::PATCH | kinds::PULL_REQUEST | kinds::ISSUE) => 2,
            _ => 3,
        }
    }
}

fn parse_and_verify(text: &str, verifier: &mut Verifier, policy: &AdmissionPolicy, clock: Clock) -> Verified {
    let event = Event::parse(text).map_err(|error| (Event::claimed_id(text), Rejection::Malformed(error)))?;
    verify(event, text.len(), policy, clock, |event| verifier.verify(event))
}

/// `bytes` is the size of the event's text, or 0 if it is not known. Admission checks the size of what will be stored.
fn verify(
    event: Event,
    bytes: usize,
    policy: &AdmissionPolicy,
    clock: Clock,
    verify_event: impl FnOnce(Event) -> Result<SignedEvent, VerifyError>,
) -> Verified {
    let id = Some(event.id);
    if let Some(reason) = policy.precheck(&event, bytes, clock.wall()) {
        return Err((id, reason));
    }
    verify_event(event).map(Arc::new).map_err(|error| (id, Rejection::Forged(error)))
}
