//! Offered events: as they come, and when their text has been read and their signature checked.

use std::sync::Arc;

use grasp_core::admission::io::EventSource;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::rejection::{Decision, Rejection};
use grasp_core::nostr::{Event, EventId, PublicKey, SignedEvent, Verifier, kinds};
use grasp_core::sync::io::{SyncSubmission, SyncSubmissionId};
use grasp_core::sync::relay_url::RelayUrl;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::Clock;

/// An event that somebody offers.
pub(crate) struct QueuedEvent {
    what: EventInput,
    from: Submitter,
}

/// As it came.
enum EventInput {
    Text(String),
    /// Its id is right; its signature has not been looked at.
    Event(Arc<Event>),
}

/// Who offers an event and waits for the answer. The place that it takes is given back with the answer.
pub(crate) enum Submitter {
    /// A client.
    Client {
        reply: ReplyFn,
        /// Keys that the connection has shown to hold.
        keys: Arc<[PublicKey]>,
        _permit: OwnedSemaphorePermit,
    },
    /// The operator, who imports a file.
    Operator {
        /// The number of the event, and who waits for what becomes of it.
        answer: (u64, UnboundedSender<(u64, Ruling)>),
        /// The author, if the operator vouches that it published the event here.
        vouched: Option<PublicKey>,
        _permit: OwnedSemaphorePermit,
    },
    /// A relay that we sync from.
    Relay { ticket: SyncSubmissionId, url: RelayUrl, permit: Box<dyn Send> },
}

/// The answer to a client's EVENT message.
pub(crate) struct ClientReply {
    /// The text of the OK or NOTICE message.
    pub(crate) text: String,
    /// Whether the client should be sent an AUTH challenge.
    pub(crate) challenge: bool,
}

/// Sends the answer to the client. Called once, after the commit.
pub(crate) type ReplyFn = Box<dyn FnOnce(ClientReply) + Send>;

/// EventInput became of an event: a verdict, or why it need not be judged.
pub(crate) type Ruling = Result<Decision, Rejection>;

impl Submitter {
    /// Who it is to the registrar.
    pub(crate) fn source(&self) -> EventSource {
        match self {
            Self::Client { keys, .. } => EventSource::Client(keys.to_vec()),
            Self::Operator { vouched, .. } => EventSource::Client(vouched.iter().copied().collect()),
            Self::Relay { url, .. } => EventSource::Relay(url.to_string()),
        }
    }
}

/// An offer whose text has been read and whose signature has been checked.
pub(crate) struct CheckedEvent {
    pub(crate) from: Submitter,
    pub(crate) result: Result<Arc<SignedEvent>, Rejected>,
    pub(crate) bytes: usize,
}

/// An offer that need not be judged.
pub(crate) struct Rejected {
    /// The id, if the text claims one.
    pub(crate) id: Option<EventId>,
    pub(crate) why: Rejection,
}

impl QueuedEvent {
    /// A client sends this text.
    pub(crate) fn of_client(
        text: String,
        reply: ReplyFn,
        keys: Arc<[PublicKey]>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { what: EventInput::Text(text), from: Submitter::Client { reply, keys, _permit: permit } }
    }

    /// The operator imports this text. If it is `vouched` for, its author counts as the one who brings it.
    pub(crate) fn of_operator(
        text: String,
        answer: (u64, UnboundedSender<(u64, Ruling)>),
        vouched: bool,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let vouched = vouched.then(|| Event::parse(&text).ok().map(|event| event.pubkey)).flatten();
        Self { what: EventInput::Text(text), from: Submitter::Operator { answer, vouched, _permit: permit } }
    }

    /// Sync has heard this. `permit` is whatever is to be dropped when it has been judged.
    pub(crate) fn of_relay(submission: SyncSubmission, permit: Box<dyn Send>) -> Self {
        let SyncSubmission { id: ticket, event, relay: url, .. } = submission;
        Self { what: EventInput::Event(event), from: Submitter::Relay { ticket, url, permit } }
    }

    pub(super) fn is_of_relay(&self) -> bool {
        matches!(self.from, Submitter::Relay { .. })
    }

    pub(super) fn check(self, verifier: &mut Verifier, rules: &AdmissionPolicy, clock: Clock) -> CheckedEvent {
        let (result, bytes) = match self.what {
            EventInput::Text(text) => (read(&text, verifier, rules, clock), text.len()),
            EventInput::Event(event) => {
                let result = verify(Arc::unwrap_or_clone(event), 0, verifier, rules, clock);
                let bytes = result.as_ref().map_or(0, |event| event.json().len());
                (result, bytes)
            }
        };
        CheckedEvent { from: self.from, result, bytes }
    }
}

impl CheckedEvent {
    /// EventInput comes first among events from relays: others depend on it (announcements, states, what is answered to).
    pub(super) fn rank(&self) -> u8 {
        match self.result.as_ref().map(|event| event.kind) {
            Ok(kinds::ANNOUNCEMENT) => 0,
            Ok(kinds::STATE) => 1,
            Ok(kinds::PATCH | kinds::PULL_REQUEST | kinds::ISSUE) => 2,
            _ => 3,
        }
    }
}

fn read(
    text: &str,
    verifier: &mut Verifier,
    rules: &AdmissionPolicy,
    clock: Clock,
) -> Result<Arc<SignedEvent>, Rejected> {
    let event =
        Event::parse(text).map_err(|why| Rejected { id: Event::claimed_id(text), why: Rejection::Malformed(why) })?;
    verify(event, text.len(), verifier, rules, clock)
}

/// `bytes` is the size of the event's text, where it is known; the registrar looks at the size of what will be stored.
fn verify(
    event: Event,
    bytes: usize,
    verifier: &mut Verifier,
    rules: &AdmissionPolicy,
    clock: Clock,
) -> Result<Arc<SignedEvent>, Rejected> {
    let id = Some(event.id);
    if let Some(why) = rules.precheck(&event, bytes, clock.wall()) {
        return Err(Rejected { id, why });
    }
    verifier.verify(event).map(Arc::new).map_err(|why| Rejected { id, why: Rejection::Forged(why) })
}
