//! Offered events: as they come, and when their text has been read and their signature checked.

use std::sync::Arc;

use grasp_core::admission::io::Source;
use grasp_core::admission::policy::Rules;
use grasp_core::nostr::rejection::{Refusal, Verdict};
use grasp_core::nostr::{Event, EventId, PublicKey, Signed, Verifier, kinds};
use grasp_core::sync::io::{Submission, Ticket};
use grasp_core::sync::relay_url::RelayUrl;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::Clock;
use crate::relay::outbox::Postbox;

/// An event that somebody offers.
pub(crate) struct Offer {
    what: What,
    from: Origin,
}

/// As it came.
enum What {
    Text(String),
    /// Its id is right; its signature has not been looked at.
    Event(Arc<Event>),
}

/// Who offers an event and waits for the answer. The place that it takes is given back with the answer.
pub(crate) enum Origin {
    /// A client.
    Client {
        postbox: Postbox,
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
    Relay { ticket: Ticket, url: RelayUrl, permit: Box<dyn Send> },
}

/// What became of an event: a verdict, or why it need not be judged.
pub(crate) type Ruling = Result<Verdict, Refusal>;

impl Origin {
    /// Who it is to the registrar.
    pub(crate) fn source(&self) -> Source {
        match self {
            Self::Client { keys, .. } => Source::Client(keys.to_vec()),
            Self::Operator { vouched, .. } => Source::Client(vouched.iter().copied().collect()),
            Self::Relay { url, .. } => Source::Relay(url.to_string()),
        }
    }
}

/// An offer whose text has been read and whose signature has been checked.
pub(crate) struct Checked {
    pub(crate) from: Origin,
    pub(crate) result: Result<Arc<Signed>, Rejected>,
    pub(crate) bytes: usize,
}

/// An offer that need not be judged.
pub(crate) struct Rejected {
    /// The id, if the text claims one.
    pub(crate) id: Option<EventId>,
    pub(crate) why: Refusal,
}

impl Offer {
    /// A client sends this text.
    pub(crate) fn of_client(
        text: String,
        postbox: Postbox,
        keys: Arc<[PublicKey]>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { what: What::Text(text), from: Origin::Client { postbox, keys, _permit: permit } }
    }

    /// The operator imports this text. If it is `vouched` for, its author counts as the one who brings it.
    pub(crate) fn of_operator(
        text: String,
        answer: (u64, UnboundedSender<(u64, Ruling)>),
        vouched: bool,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let vouched = vouched.then(|| Event::parse(&text).ok().map(|event| event.pubkey)).flatten();
        Self { what: What::Text(text), from: Origin::Operator { answer, vouched, _permit: permit } }
    }

    /// Sync has heard this. `permit` is whatever is to be dropped when it has been judged.
    pub(crate) fn of_relay(submission: Submission, permit: Box<dyn Send>) -> Self {
        let Submission { ticket, event, relay: url, .. } = submission;
        Self { what: What::Event(event), from: Origin::Relay { ticket, url, permit } }
    }

    pub(super) fn is_of_relay(&self) -> bool {
        matches!(self.from, Origin::Relay { .. })
    }

    pub(super) fn check(self, verifier: &mut Verifier, rules: &Rules, clock: Clock) -> Checked {
        let (result, bytes) = match self.what {
            What::Text(text) => (read(&text, verifier, rules, clock), text.len()),
            What::Event(event) => {
                let result = verify(Arc::unwrap_or_clone(event), 0, verifier, rules, clock);
                let bytes = result.as_ref().map_or(0, |event| event.json().len());
                (result, bytes)
            }
        };
        Checked { from: self.from, result, bytes }
    }
}

impl Checked {
    /// What comes first among events from relays: others depend on it (announcements, states, what is answered to).
    pub(super) fn rank(&self) -> u8 {
        match self.result.as_ref().map(|event| event.kind) {
            Ok(kinds::ANNOUNCEMENT) => 0,
            Ok(kinds::STATE) => 1,
            Ok(kinds::PATCH | kinds::PULL_REQUEST | kinds::ISSUE) => 2,
            _ => 3,
        }
    }
}

fn read(text: &str, verifier: &mut Verifier, rules: &Rules, clock: Clock) -> Result<Arc<Signed>, Rejected> {
    let event =
        Event::parse(text).map_err(|why| Rejected { id: Event::claimed_id(text), why: Refusal::Malformed(why) })?;
    verify(event, text.len(), verifier, rules, clock)
}

/// `bytes` is the size of the event's text, where it is known; the registrar looks at the size of what will be stored.
fn verify(
    event: Event,
    bytes: usize,
    verifier: &mut Verifier,
    rules: &Rules,
    clock: Clock,
) -> Result<Arc<Signed>, Rejected> {
    let id = Some(event.id);
    if let Some(why) = rules.precheck(&event, bytes, clock.wall()) {
        return Err(Rejected { id, why });
    }
    verifier.check(event).map(Arc::new).map_err(|why| Rejected { id, why: Refusal::Forged(why) })
}
