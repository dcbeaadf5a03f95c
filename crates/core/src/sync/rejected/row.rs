//! What is remembered of a refused event, and for how long.

use super::RefusedConfig;
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::rejection::Refusal;
use crate::nostr::{PublicKey, kinds};
use crate::repo::Identifier;
use crate::sync::relay_url::RelayUrl;
use crate::time::Timestamp;

/// A refused event, as it is written down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedRow {
    /// Its id.
    pub id: EventId,
    /// When its author says it was made: a reconciliation needs it.
    pub created_at: Timestamp,
    /// Why it is not wanted.
    pub why: Why,
    /// What it hangs on, ascending, at most [`limits::MAX_REFUSED_NEEDS`]. Something of that kind comes, and it may be
    /// wanted, if that is [`why`](Self::why); and filters for it find the event.
    pub needs: Vec<Dependency>,
    /// The relays that have it, the first that offered it first, at most [`limits::MAX_REFUSED_RELAYS`].
    pub offered_by: Vec<RelayUrl>,
    /// How it was found.
    pub layer: Layer,
    /// It is forgotten then.
    pub until: Timestamp,
}

/// Why an event is not wanted, as far as that decides what may change it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// It belongs to nothing that is served: something may come that it refers to, or that refers to it.
    Unlinked,
    /// Nobody who may speak for a repository of its name here has said that its author may, too: an announcement of that
    /// name may come.
    Unauthorised,
    /// It is dated in the future: time will come.
    Future,
    /// A setting forbids it: until there are others.
    Policy,
    /// It was taken back, or its time is over.
    Gone,
    /// It is not what it should be, or not for others to publish.
    Unfit,
}

/// How a refused event was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Layer {
    /// As an announcement or a state.
    Announcements,
    /// Because of what it refers to.
    Related,
}

/// What an event hangs on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Dependency {
    /// It refers to this event.
    Event(EventId),
    /// It refers to what stands here.
    Coordinate(Coordinate),
    /// It is an announcement or a state of this name.
    Name(Identifier),
    /// It stands here itself: something may refer to that.
    Itself(Coordinate),
    /// It is this author's request to delete or to vanish: it counts once the author has something here.
    Author(PublicKey),
}

impl Why {
    /// `None` for what says nothing about the event: there was no room for it, or it was not that event at all, but
    /// something under its id. That must not keep the real one away.
    #[must_use]
    pub fn of(refusal: &Refusal) -> Option<Self> {
        match refusal {
            Refusal::Malformed(_) | Refusal::Forged(_) => None,
            room if room.is_about_room() => None,
            Refusal::Unrelated => Some(Self::Unlinked),
            Refusal::NoAnnouncement
            | Refusal::TooManyRepositories(_)
            | Refusal::NotMaintainer
            | Refusal::NotListed
            | Refusal::Delisted
            | Refusal::NotWhitelisted
            | Refusal::NotArchived => Some(Self::Unauthorised),
            Refusal::Future => Some(Self::Future),
            Refusal::TooLarge { .. } | Refusal::OtherRelay | Refusal::Banned | Refusal::Unwelcome => Some(Self::Policy),
            Refusal::Expired | Refusal::Deleted | Refusal::Vanished | Refusal::Withdrawn => Some(Self::Gone),
            _ => Some(Self::Unfit),
        }
    }

    /// When an event that is refused now is forgotten.
    pub(super) fn until(self, created_at: Timestamp, now: Timestamp, config: &RefusedConfig) -> Timestamp {
        match self {
            Self::Unlinked | Self::Unauthorised => now.plus_secs(config.cold_secs),
            Self::Future => Timestamp(created_at.0.saturating_sub(limits::MAX_FUTURE_SECS)),
            Self::Policy => Timestamp(u64::MAX),
            Self::Gone | Self::Unfit => now.plus_secs(limits::REFUSED_SECS),
        }
    }

    /// Whether an event that was refused for this may be wanted when this comes.
    pub(super) fn waits_for(self, dependency: &Dependency) -> bool {
        match dependency {
            Dependency::Name(_) => self == Self::Unauthorised,
            Dependency::Event(_) | Dependency::Coordinate(_) | Dependency::Itself(_) | Dependency::Author(_) => {
                self == Self::Unlinked
            }
        }
    }

    /// Whether anything that comes can change it.
    pub(in crate::sync) fn waits(self) -> bool {
        matches!(self, Self::Unlinked | Self::Unauthorised)
    }
}

impl Dependency {
    /// What an event hangs on: what it is, then what it refers to, as far as that is kept.
    pub(in crate::sync) fn all_of(event: &Event) -> Vec<Self> {
        let own = [
            matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE)
                .then(|| event.tag("d").and_then(Identifier::new).map(Self::Name))
                .flatten(),
            event.coordinate().map(Self::Itself),
            matches!(event.kind, kinds::DELETION | kinds::VANISH).then_some(Self::Author(event.pubkey)),
        ];
        let referred =
            event.indexed_tags().take(limits::MAX_EVENT_TAGS).filter_map(|(letter, value)| Self::named(letter, value));
        let mut all: Vec<Self> = Vec::new();
        for dependency in own.into_iter().flatten().chain(referred) {
            if all.len() == limits::MAX_REFUSED_NEEDS {
                break;
            }
            if dependency.is_kept() && !all.contains(&dependency) {
                all.push(dependency);
            }
        }
        all.sort_unstable();
        all
    }

    /// What a tag of an event, or a filter's condition on it, speaks of.
    pub(super) fn named(letter: u8, value: &str) -> Option<Self> {
        match letter {
            b'e' | b'E' => EventId::from_hex(value).map(Self::Event),
            b'a' | b'A' => Coordinate::parse(value).map(Self::Coordinate),
            b'q' => Self::named(b'e', value).or_else(|| Self::named(b'a', value)),
            _ => None,
        }
    }

    /// An address may be as long as an event. No repository has one like that.
    pub(super) fn is_kept(&self) -> bool {
        match self {
            Self::Coordinate(coordinate) | Self::Itself(coordinate) => {
                coordinate.d.len() <= limits::MAX_IDENTIFIER_BYTES
            }
            Self::Event(_) | Self::Name(_) | Self::Author(_) => true,
        }
    }
}
