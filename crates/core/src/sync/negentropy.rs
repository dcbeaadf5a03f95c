//! Initiator of negentropy reconciliations (NIP-77): finds the events that only the relay has and those that only we
//! have.
//!
//! Pure state of one reconciliation, driven by `historic`. See `docs/design/sync.md#negentropy`.

use std::collections::BTreeSet;

use negentropy::{Error, Id, Negentropy, NegentropyStorageVector};

use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::negentropy::{MIN_FRAME_BYTES, NegentropyItem};

/// One reconciliation with a relay.
///
/// Bounded in rounds and in needed ids; see [`NegentropyStep`].
#[derive(Debug)]
pub struct NegentropySession {
    /// `None` after the reconciliation has ended.
    initiator: Option<Initiator>,
    /// Ids of our items, ascending.
    our_ids: Vec<EventId>,
    /// Ids that only the relay has and that were not taken yet.
    needed: BTreeSet<EventId>,
    /// Number of needed ids that were taken.
    taken_count: usize,
    /// Ids that only we have, ascending.
    missing_remotely: Vec<EventId>,
    rounds: usize,
}

/// Next step after a message of the relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NegentropyStep {
    /// Send this message.
    Send(Vec<u8>),
    /// All differences are known.
    Done,
    /// The sets differ so much that pagination is cheaper.
    TooDifferent,
    /// Too many rounds, or more needed ids than can be fetched.
    TooLarge,
    /// The relay does not follow the protocol.
    ProtocolError,
}

impl NegentropySession {
    /// Starts a reconciliation of `items` with messages of at most `frame` bytes. Returns the session and the first
    /// message.
    #[must_use]
    pub fn start(items: &[NegentropyItem], frame: usize) -> (Self, Vec<u8>) {
        let mut our_ids: Vec<EventId> = items.iter().map(|item| EventId(item.id)).collect();
        our_ids.sort_unstable();
        our_ids.dedup();
        // Cannot fail with our own items. If it did, the first message of the relay would count as a protocol error.
        let (initiator, opening) = match open(items, frame) {
            Ok((initiator, opening)) => (Some(initiator), opening),
            Err(_) => (None, Vec::new()),
        };
        (
            Self {
                initiator,
                our_ids,
                needed: BTreeSet::new(),
                taken_count: 0,
                missing_remotely: Vec::new(),
                rounds: 0,
            },
            opening,
        )
    }

    /// Handles a message of the relay. Every result except [`NegentropyStep::Send`] ends the reconciliation.
    pub fn handle_message(&mut self, message: &[u8]) -> NegentropyStep {
        let step = self.next_step(message);
        if !matches!(step, NegentropyStep::Send(_)) {
            self.initiator = None;
        }
        step
    }

    fn next_step(&mut self, message: &[u8]) -> NegentropyStep {
        let Some(initiator) = &mut self.initiator else { return NegentropyStep::ProtocolError };
        self.rounds += 1;
        let (mut have, mut need) = (Vec::new(), Vec::new());
        let Ok(answer) = initiator.reconcile_with_ids(message, &mut have, &mut need) else {
            return NegentropyStep::ProtocolError;
        };
        self.record_differences(&have, &need);

        let needed = self.needed.len() + self.taken_count;
        let differing = needed + self.missing_remotely.len();
        match answer {
            _ if needed > limits::MAX_NEGENTROPY_NEEDED_IDS => NegentropyStep::TooLarge,
            None => NegentropyStep::Done,
            Some(_) if self.rounds >= limits::MAX_NEGENTROPY_ROUNDS => NegentropyStep::TooLarge,
            Some(_)
                if self.rounds >= limits::NEGENTROPY_DENSE_ROUNDS && differing * 5 > self.our_ids.len() + needed =>
            {
                NegentropyStep::TooDifferent
            }
            Some(answer) => NegentropyStep::Send(answer),
        }
    }

    fn record_differences(&mut self, have: &[Id], need: &[Id]) {
        let ids = |ids: &[Id]| ids.iter().map(|id| EventId(id.to_bytes())).collect::<Vec<_>>();
        // An id of ours is never needed, even if the relay lists it with another time.
        self.needed.extend(ids(need).into_iter().filter(|id| self.our_ids.binary_search(id).is_err()));
        if !have.is_empty() {
            // A message that was cut repeats ranges that were already settled, so an id may be reported twice.
            self.missing_remotely.extend(ids(have));
            self.missing_remotely.sort_unstable();
            self.missing_remotely.dedup();
        }
    }

    /// Takes the ids that only the relay has and that were found since the last call, ascending. Each id is returned
    /// once.
    pub fn take_needed(&mut self) -> Vec<EventId> {
        self.taken_count += self.needed.len();
        std::mem::take(&mut self.needed).into_iter().collect()
    }

    /// Returns our ids that the relay does not have, ascending.
    #[must_use]
    pub fn missing_remotely(&self) -> &[EventId] {
        &self.missing_remotely
    }

    /// Returns our ids that the relay has too, ascending. Complete only after [`NegentropyStep::Done`].
    #[must_use]
    pub fn shared(&self) -> Vec<EventId> {
        self.our_ids.iter().filter(|id| self.missing_remotely.binary_search(id).is_err()).copied().collect()
    }

    /// Returns the number of messages received from the relay.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds
    }
}

type Initiator = Negentropy<'static, NegentropyStorageVector>;

fn open(items: &[NegentropyItem], frame: usize) -> Result<(Initiator, Vec<u8>), Error> {
    let mut storage = NegentropyStorageVector::with_capacity(items.len());
    // `u64::MAX` is encoded as infinity and is not a valid time of an item.
    for item in items.iter().filter(|item| item.created_at != u64::MAX) {
        storage.insert(item.created_at, Id::from_byte_array(item.id))?;
    }
    storage.seal()?;
    let mut initiator = Negentropy::owned(storage, frame.max(MIN_FRAME_BYTES) as u64)?;
    let opening = initiator.initiate()?;
    Ok((initiator, opening))
}

#[cfg(test)]
mod tests;
