//! What is remembered of a refused event, and for how long.

use super::RejectedEventsConfig;
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::rejection::Rejection;
use crate::nostr::{PublicKey, kinds};
use crate::repo::Identifier;
use crate::sync::relay_url::RelayUrl;
use crate::time::Timestamp;

/// A refused event, as it is written down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RejectedRecord {
    /// Its id.
    pub id: EventId,
    /// When its author says it was made: a reconciliation needs it.
    pub created_at: Timestamp,
    /// Why it is not wanted.
    pub class: RejectionClass,
    /// What it hangs on, ascending, at most [`limits::MAX_REJECTED_DEPENDENCIES`]. Something of that kind comes, and it may be
    /// wanted, if that is [`why`](Self::why); and filters for it find the event.
    pub dependencies: Vec<Dependency>,
    /// The relays that have it, the first that offered it first, at most [`limits::MAX_REJECTED_RELAYS`].
    pub offered_by: Vec<RelayUrl>,
    /// How it was found.
    pub layer: RejectedLayer,
    /// It is forgotten then.
    pub expires_at: Timestamp,
}

/// Why an event is not wanted, as far as that decides what may change it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RejectionClass {
    /// It belongs to nothing that is served: something may come that it refers to, or that refers to it.
    Unrelated,
    /// Nobody who may speak for a repository of its name here has said that its author may, too: an announcement of that
    /// name may come.
    Unauthorised,
    /// It is dated in the future: time will come.
    InFuture,
    /// A setting forbids it: until there are others.
    Policy,
    /// It was taken back, or its time is over.
    Removed,
    /// It is not what it should be, or not for others to publish.
    Invalid,
}

/// How a refused event was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RejectedLayer {
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
    Identifier(Identifier),
    /// It stands here itself: something may refer to that.
    OwnCoordinate(Coordinate),
    /// It is this author's request to delete or to vanish: it counts once the author has something here.
    Author(PublicKey),
}

impl RejectionClass {
    /// `None` for what says nothing about the event: there was no room for it, or it was not that event at all, but
    /// something under its id. That must not keep the real one away.
    #[must_use]
    pub fn from_rejection(rejection: &Rejection) -> Option<Self> {
        match rejection {
            Rejection::Malformed(_) | Rejection::Forged(_) => None,
            rejection if rejection.is_temporary() => None,
            Rejection::Unrelated => Some(Self::Unrelated),
            Rejection::NoAnnouncement
            | Rejection::TooManyRepositories(_)
            | Rejection::NotMaintainer
            | Rejection::NotListed
            | Rejection::Delisted
            | Rejection::NotWhitelisted
            | Rejection::NotArchived => Some(Self::Unauthorised),
            Rejection::InFuture => Some(Self::InFuture),
            Rejection::TooLarge { .. }
            | Rejection::OtherVanishRelay
            | Rejection::RepositoryBanned
            | Rejection::EventBanned => Some(Self::Policy),
            Rejection::Expired | Rejection::Deleted | Rejection::Vanished | Rejection::Withdrawn => Some(Self::Removed),
            _ => Some(Self::Invalid),
        }
    }

    /// When an event that is refused now is forgotten.
    pub(super) fn expires_at(self, created_at: Timestamp, now: Timestamp, config: &RejectedEventsConfig) -> Timestamp {
        match self {
            Self::Unrelated | Self::Unauthorised => now.plus_secs(config.cold_secs),
            Self::InFuture => Timestamp(created_at.0.saturating_sub(limits::MAX_FUTURE_SECS)),
            Self::Policy => Timestamp(u64::MAX),
            Self::Removed | Self::Invalid => now.plus_secs(limits::REJECTED_INDEX_SECS),
        }
    }

    /// Whether an event that was refused for this may be wanted when this comes.
    pub(super) fn is_resolved_by(self, dependency: &Dependency) -> bool {
        match dependency {
            Dependency::Identifier(_) => self == Self::Unauthorised,
            Dependency::Event(_) | Dependency::Coordinate(_) | Dependency::OwnCoordinate(_) | Dependency::Author(_) => {
                self == Self::Unrelated
            }
        }
    }

    /// Whether anything that comes can change it.
    pub(in crate::sync) fn can_be_resolved(self) -> bool {
        matches!(self, Self::Unrelated | Self::Unauthorised)
    }
}

impl Dependency {
    /// What an event hangs on: what it is, then what it refers to, as far as that is kept.
    pub(in crate::sync) fn from_event(event: &Event) -> Vec<Self> {
        let own = [
            matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE)
                .then(|| event.tag("d").and_then(Identifier::new).map(Self::Identifier))
                .flatten(),
            event.coordinate().map(Self::OwnCoordinate),
            matches!(event.kind, kinds::DELETION | kinds::VANISH).then_some(Self::Author(event.pubkey)),
        ];
        let referred = event
            .indexed_tags()
            .take(limits::MAX_EVENT_TAGS)
            .filter_map(|(letter, value)| Self::from_tag(letter, value));
        let mut all: Vec<Self> = Vec::new();
        for dependency in own.into_iter().flatten().chain(referred) {
            if all.len() == limits::MAX_REJECTED_DEPENDENCIES {
                break;
            }
            if dependency.is_storable() && !all.contains(&dependency) {
                all.push(dependency);
            }
        }
        all.sort_unstable();
        all
    }

    /// What a tag of an event, or a filter's condition on it, speaks of.
    pub(super) fn from_tag(letter: u8, value: &str) -> Option<Self> {
        match letter {
            b'e' | b'E' => EventId::from_hex(value).map(Self::Event),
            b'a' | b'A' => Coordinate::parse(value).map(Self::Coordinate),
            b'q' => Self::from_tag(b'e', value).or_else(|| Self::from_tag(b'a', value)),
            _ => None,
        }
    }

    /// An address may be as long as an event. No repository has one like that.
    pub(super) fn is_storable(&self) -> bool {
        match self {
            Self::Coordinate(coordinate) | Self::OwnCoordinate(coordinate) => {
                coordinate.d.len() <= limits::MAX_IDENTIFIER_BYTES
            }
            Self::Event(_) | Self::Identifier(_) | Self::Author(_) => true,
        }
    }
}
