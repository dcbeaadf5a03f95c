//! Records of rejected events: reason, dependencies and expiry.

use super::RejectedEventsConfig;
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::rejection::Rejection;
use crate::nostr::{PublicKey, kinds};
use crate::repo::Identifier;
use crate::sync::relay_url::RelayUrl;
use crate::time::Timestamp;

/// The stored record of a rejected event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RejectedRecord {
    /// Id of the event.
    pub id: EventId,
    /// Creation time of the event, needed for reconciliations.
    pub created_at: Timestamp,
    /// Reason of the rejection.
    pub class: RejectionClass,
    /// Dependencies, ascending, at most [`limits::MAX_REJECTED_DEPENDENCIES`]. The arrival of one wakes the event if
    /// [`class`](Self::class) allows it. They are also used to match filters.
    pub dependencies: Vec<Dependency>,
    /// Relays that have the event, in the order in which they offered it, at most [`limits::MAX_REJECTED_RELAYS`].
    pub offered_by: Vec<RelayUrl>,
    /// How the event was found.
    pub layer: RejectedLayer,
    /// When the record expires.
    pub expires_at: Timestamp,
}

/// Reason of a rejection, as far as it decides what can change it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RejectionClass {
    /// The event has no link to a served event. An event that it references, or that references it, may arrive.
    Unrelated,
    /// The author is not in a maintainer set for the identifier of the event, or the repository is not hosted. An
    /// announcement with that identifier may arrive.
    Unauthorised,
    /// `created_at` is in the future. The event may be accepted when that time has come.
    InFuture,
    /// A setting forbids the event. Removed when the policy changes.
    Policy,
    /// The event was deleted or withdrawn, or has expired.
    Removed,
    /// The event is invalid, or only its author may publish it.
    Invalid,
}

/// How a rejected event was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RejectedLayer {
    /// As an announcement or a state (layer 1).
    Announcements,
    /// By its references (layers 2 and 3).
    Related,
}

/// A dependency of a rejected event: when it arrives, the event may be accepted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Dependency {
    /// The event references this event.
    Event(EventId),
    /// The event references this coordinate.
    Coordinate(Coordinate),
    /// The event is an announcement or a state with this identifier.
    Identifier(Identifier),
    /// The coordinate of the event itself. A served event may reference it.
    OwnCoordinate(Coordinate),
    /// The event is a deletion or vanish request of this author. It counts once the author is known here.
    Author(PublicKey),
}

impl RejectionClass {
    /// Classifies a rejection. Returns `None` if it allows no conclusion about the event: it was temporary, or the text
    /// was a forgery with the id of the event, which must not keep the real event out.
    #[must_use]
    pub fn from_rejection(rejection: &Rejection) -> Option<Self> {
        match rejection {
            Rejection::Malformed(_)
            | Rejection::Forged(_)
            | Rejection::TooManyHeld
            | Rejection::TooManyHeldFromNetwork
            | Rejection::PurgatoryFull
            | Rejection::TooManyEarlyRequests
            | Rejection::RateLimited
            | Rejection::DiskFull
            | Rejection::NoNewRepositories
            | Rejection::StoreFailed => None,
            Rejection::Unrelated => Some(Self::Unrelated),
            Rejection::NoAnnouncement
            | Rejection::TooManyRepositories(_)
            | Rejection::TooManyExceptions
            | Rejection::TooManyWithIdentifier
            | Rejection::NotMaintainer
            | Rejection::NotListed { .. }
            | Rejection::Delisted
            | Rejection::NotWhitelisted
            | Rejection::NotArchived => Some(Self::Unauthorised),
            Rejection::InFuture => Some(Self::InFuture),
            Rejection::TooLarge { .. }
            | Rejection::OtherVanishRelay
            | Rejection::RepositoryBanned
            | Rejection::EventBanned => Some(Self::Policy),
            Rejection::Expired | Rejection::Deleted | Rejection::Vanished | Rejection::Withdrawn => Some(Self::Removed),
            Rejection::TooManyTags(_)
            | Rejection::Protected
            | Rejection::AuthEvent
            | Rejection::InvalidIdentifier
            | Rejection::NoCommit
            | Rejection::ForeignDeletionTarget
            | Rejection::DeletionTargetCount(_)
            | Rejection::NoVanishRelay => Some(Self::Invalid),
        }
    }

    /// Returns when the record of an event that is rejected now expires.
    pub(super) fn expires_at(self, created_at: Timestamp, now: Timestamp, config: &RejectedEventsConfig) -> Timestamp {
        match self {
            Self::Unrelated | Self::Unauthorised => now.plus_secs(config.cold_secs),
            Self::InFuture => Timestamp(created_at.0.saturating_sub(limits::MAX_FUTURE_SECS)),
            Self::Policy => Timestamp(u64::MAX),
            Self::Removed | Self::Invalid => now.plus_secs(limits::REJECTED_INDEX_SECS),
        }
    }

    /// Returns whether the arrival of `dependency` can change the rejection.
    pub(super) fn is_resolved_by(self, dependency: &Dependency) -> bool {
        match dependency {
            Dependency::Identifier(_) => self == Self::Unauthorised,
            Dependency::Event(_) | Dependency::Coordinate(_) | Dependency::OwnCoordinate(_) | Dependency::Author(_) => {
                self == Self::Unrelated
            }
        }
    }

    /// Returns whether the arrival of any dependency can change the rejection.
    pub(in crate::sync) fn can_be_resolved(self) -> bool {
        matches!(self, Self::Unrelated | Self::Unauthorised)
    }
}

impl Dependency {
    /// Returns the dependencies of an event: first those of the event itself, then its references, at most
    /// [`limits::MAX_REJECTED_DEPENDENCIES`].
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

    /// Returns the dependency that a tag of an event, or a tag condition of a filter, names.
    pub(super) fn from_tag(letter: u8, value: &str) -> Option<Self> {
        match letter {
            b'e' | b'E' => EventId::from_hex(value).map(Self::Event),
            b'a' | b'A' => Coordinate::parse(value).map(Self::Coordinate),
            b'q' => Self::from_tag(b'e', value).or_else(|| Self::from_tag(b'a', value)),
            _ => None,
        }
    }

    /// Returns whether the dependency is short enough to be stored. A coordinate can be as long as an event, but that
    /// of a repository is not.
    pub(super) fn is_storable(&self) -> bool {
        match self {
            Self::Coordinate(coordinate) | Self::OwnCoordinate(coordinate) => {
                coordinate.d.len() <= limits::MAX_IDENTIFIER_BYTES
            }
            Self::Event(_) | Self::Identifier(_) | Self::Author(_) => true,
        }
    }
}
