//! The asking side of Negentropy (NIP-77): what does a relay have that is not here, and what does it lack? (rule M5)

use std::collections::BTreeSet;

use negentropy::{Error, Id, Negentropy, NegentropyStorageVector};

use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::negentropy::{Item, MIN_FRAME};

/// One reconciliation with a relay.
#[derive(Debug)]
pub struct Nego {
    /// `None` once it is over.
    party: Option<Party>,
    /// The ids of our items, ascending.
    offered: Vec<EventId>,
    /// What only the relay has.
    need: BTreeSet<EventId>,
    /// How many such were taken away.
    taken: usize,
    /// What only we have, ascending.
    lacking: Vec<EventId>,
    rounds: usize,
}

/// What follows a relay's message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NegoTurn {
    /// Answer this.
    Say(Vec<u8>),
    /// All differences are known.
    Done,
    /// So much differs that pages cost less.
    Dense,
    /// It does not come to an end: too many rounds, or more than can be fetched at once.
    Endless,
    /// The relay does not speak the protocol.
    Bad,
}

impl Nego {
    /// Begins a reconciliation of these items in messages of at most so many bytes, and says how to open it.
    #[must_use]
    pub fn begin(items: &[Item], frame: usize) -> (Self, Vec<u8>) {
        let mut offered: Vec<EventId> = items.iter().map(|item| EventId(item.id)).collect();
        offered.sort_unstable();
        offered.dedup();
        // Nothing of this fails with items of our own; if it did, the relay's first message would count as bad.
        let (party, opening) = match open(items, frame) {
            Ok((party, opening)) => (Some(party), opening),
            Err(_) => (None, Vec::new()),
        };
        (Self { party, offered, need: BTreeSet::new(), taken: 0, lacking: Vec::new(), rounds: 0 }, opening)
    }

    /// The relay answers. Everything but [`NegoTurn::Say`] is the end.
    pub fn hear(&mut self, message: &[u8]) -> NegoTurn {
        let turn = self.turn(message);
        if !matches!(turn, NegoTurn::Say(_)) {
            self.party = None;
        }
        turn
    }

    fn turn(&mut self, message: &[u8]) -> NegoTurn {
        let Some(party) = &mut self.party else { return NegoTurn::Bad };
        self.rounds += 1;
        let (mut have, mut need) = (Vec::new(), Vec::new());
        let Ok(answer) = party.reconcile_with_ids(message, &mut have, &mut need) else { return NegoTurn::Bad };
        self.learn(&have, &need);

        let needed = self.need.len() + self.taken;
        let differing = needed + self.lacking.len();
        match answer {
            _ if needed > limits::MAX_NEGO_NEED => NegoTurn::Endless,
            None => NegoTurn::Done,
            Some(_) if self.rounds >= limits::MAX_NEGO_ROUNDS => NegoTurn::Endless,
            Some(_) if self.rounds >= limits::NEGO_DENSE_ROUNDS && differing * 5 > self.offered.len() + needed => {
                NegoTurn::Dense
            }
            Some(answer) => NegoTurn::Say(answer),
        }
    }

    fn learn(&mut self, have: &[Id], need: &[Id]) {
        let ids = |ids: &[Id]| ids.iter().map(|id| EventId(id.to_bytes())).collect::<Vec<_>>();
        // What was offered is here, under whatever time the relay lists it.
        self.need.extend(ids(need).into_iter().filter(|id| self.offered.binary_search(id).is_err()));
        if !have.is_empty() {
            // A message that was cut opens ranges again that were settled, so an id may come twice.
            self.lacking.extend(ids(have));
            self.lacking.sort_unstable();
            self.lacking.dedup();
        }
    }

    /// Takes away what only the relay has, ascending, each once: so far, or in whole once it is done.
    pub fn need(&mut self) -> Vec<EventId> {
        self.taken += self.need.len();
        std::mem::take(&mut self.need).into_iter().collect()
    }

    /// What we offered and the relay does not have, ascending.
    #[must_use]
    pub fn lacking(&self) -> &[EventId] {
        &self.lacking
    }

    /// What we offered and the relay has too, ascending, once it is done.
    #[must_use]
    pub fn shared(&self) -> Vec<EventId> {
        self.offered.iter().filter(|id| self.lacking.binary_search(id).is_err()).copied().collect()
    }

    /// How many items were offered.
    #[must_use]
    pub fn items(&self) -> usize {
        self.offered.len()
    }

    /// How many messages the relay has sent.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds
    }
}

type Party = Negentropy<'static, NegentropyStorageVector>;

fn open(items: &[Item], frame: usize) -> Result<(Party, Vec<u8>), Error> {
    let mut storage = NegentropyStorageVector::with_capacity(items.len());
    // The end of time is no time of an item.
    for item in items.iter().filter(|item| item.created_at != u64::MAX) {
        storage.insert(item.created_at, Id::from_byte_array(item.id))?;
    }
    storage.seal()?;
    let mut party = Negentropy::owned(storage, frame.max(MIN_FRAME) as u64)?;
    let opening = party.initiate()?;
    Ok((party, opening))
}

#[cfg(test)]
mod tests;
