//! Decisions about events. The reasons are types; this module is the only place that produces their texts and prefixes.
//! See `docs/protocol.md#answers-and-prefixes`.

use std::fmt;

use super::event::{EventParseError, EventVersion};
use super::signed_event::VerifyError;
use crate::limits;

/// Decision of admission about an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The event is stored and served.
    Accept,
    /// The event is stored in purgatory and served when its git data has arrived, or the event that it depends on is served.
    Hold(AwaitedData),
    /// The event is a deletion or vanish request of an unknown key. It is stored and keeps out what it covers, and is
    /// served when its key is known.
    Remember,
    /// The event is ephemeral: it is sent to matching subscriptions and not stored.
    Broadcast,
    /// The event changes nothing, because it is known or superseded. Answered with `OK true`.
    Known(KnownAs),
    /// The event is not accepted.
    Reject(Rejection),
}

impl Decision {
    /// Returns the flag and the text of the `OK` message.
    #[must_use]
    pub fn ok_reply(&self) -> (bool, String) {
        match self {
            Self::Accept | Self::Remember | Self::Broadcast => (true, String::new()),
            Self::Hold(need) => (true, format!("purgatory: {need}")),
            Self::Known(known) => (true, known.to_string()),
            Self::Reject(rejection) => (false, rejection.to_string()),
        }
    }
}

/// What a held event waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AwaitedData {
    /// An announcement waits for an authorised state whose objects have arrived, a state for its objects.
    GitData,
    /// A pull request waits for its commit.
    Commit(String),
    /// The announcement of a maintainer whose repository is not hosted here waits for the announcement that names it.
    Invitation,
}

impl fmt::Display for AwaitedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GitData => f.write_str("won't be served until git data arrives"),
            Self::Invitation => {
                f.write_str("won't be served until a repository that names its author as a maintainer is served")
            }
            Self::Commit(commit) => {
                write!(
                    f,
                    "won't be served until commit {commit} is pushed to refs/nostr/<event id> or fetched from a git server"
                )
            }
        }
    }
}

/// State of a known event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownAs {
    /// The event is served.
    Served,
    /// The event is in purgatory.
    Held,
    /// A newer version of the event is served.
    Superseded,
    /// A version with the same `created_at` and a lower id is served, which has precedence (NIP-01).
    LostTie,
}

/// Beginning of the answers to an event that is not stored because another version has precedence. The answer is
/// `OK true`, but a client that publishes a new event must publish it again.
pub const SUPERSEDED_PREFIX: &str = "duplicate: superseded";

impl fmt::Display for KnownAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Served => "duplicate: already have this event",
            Self::Held => "purgatory: already waiting for git data",
            Self::Superseded => "duplicate: superseded by a newer event",
            Self::LostTie => {
                "duplicate: superseded by an event with the same created_at and a lower id; this event has no effect, \
                 publish it again with a later created_at"
            }
        })
    }
}

/// The reason why an event is not accepted. `Display` is the text of the `OK` message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// The text is not a valid event.
    #[error("invalid: {0}")]
    Malformed(EventParseError),
    /// The id or the signature is wrong.
    #[error("invalid: {0}")]
    Forged(VerifyError),
    /// The event is larger than the limit for its kind.
    #[error("invalid: the event has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Bytes of the canonical text.
        bytes: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// The event has more tags than the limit for its kind, which is given.
    #[error("invalid: the event has more than {0} tags")]
    TooManyTags(usize),
    /// `created_at` is too far in the future.
    #[error("invalid: created_at is more than {} minutes in the future", limits::MAX_FUTURE_SECS / 60)]
    InFuture,
    /// The event has expired (NIP-40).
    #[error("invalid: the event has expired")]
    Expired,
    /// Only the author may publish the event (NIP-70), and the connection is not authenticated as the author.
    #[error("auth-required: this event may only be published by its author")]
    Protected,
    /// Authentication events answer a challenge and cannot be published.
    #[error("invalid: authentication events cannot be published")]
    AuthEvent,
    /// The author deleted the event.
    #[error("invalid: this event is deleted")]
    Deleted,
    /// The author requested to vanish.
    #[error("invalid: this pubkey has requested to vanish")]
    Vanished,
    /// A newer announcement of the repository no longer names this service.
    #[error("invalid: a newer announcement of this repository no longer names this service")]
    Withdrawn,
    /// The `d` tag is missing or not a valid repository identifier.
    #[error(
        "invalid: the d tag must be a repository identifier: not empty, not . or .., without slashes or control characters"
    )]
    InvalidIdentifier,
    /// The announcement does not name this service in both `clone` and `relays`.
    #[error("invalid: the announcement must name this service in both clone and relays: clone {clone} relays {relay}")]
    NotListed {
        /// The expected `clone` value.
        clone: String,
        /// The expected `relays` value.
        relay: String,
    },
    /// The announcement no longer names this service, although its predecessor did. Hosting has ended.
    #[error("invalid: the announcement no longer names this service; hosting has ended")]
    Delisted,
    /// The operator has banned the announced repository.
    #[error("blocked: the operator of this service has banned this repository")]
    RepositoryBanned,
    /// The operator has banned the event or its author.
    #[error("blocked: the operator of this service has banned this event or its author")]
    EventBanned,
    /// The announcement names this service, but the repository is not on the allowlist of the operator.
    #[error("blocked: this service hosts only repositories that its operator has allowed")]
    NotWhitelisted,
    /// The service is a read-only archive, and the repository is not one that it archives.
    #[error("blocked: this service is a read-only archive and does not archive this repository")]
    NotArchived,
    /// The state belongs to a repository without an announcement.
    #[error("invalid: no announcement exists for this repository")]
    NoAnnouncement,
    /// The author of the state is not a maintainer of a repository with this identifier.
    #[error("restricted: author not authorized for this repository")]
    NotMaintainer,
    /// The pull request names no commit.
    #[error("invalid: a pull request must name its commit in a c tag")]
    NoCommit,
    /// The event neither references a served event nor is referenced by one.
    #[error("restricted: the event must reference an accepted repository or accepted event")]
    Unrelated,
    /// The deletion request names an event of another author.
    #[error("invalid: cannot delete event authored by another pubkey")]
    ForeignDeletionTarget,
    /// The deletion request has no targets (0) or too many.
    #[error("invalid: {}", deletion_target_text(*.0))]
    DeletionTargetCount(usize),
    /// The request to vanish has no `relay` tag.
    #[error("invalid: a request to vanish must name relays in relay tags")]
    NoVanishRelay,
    /// The request to vanish names only other relays.
    #[error("restricted: the request to vanish does not name this relay")]
    OtherVanishRelay,
    /// Too many events of this author are in purgatory.
    #[error("rate-limited: too many events of this author are waiting for git data")]
    TooManyHeld,
    /// Too many events from the client's network, or from the relay, are in purgatory.
    #[error("rate-limited: too many events from your network are waiting for git data, try again later")]
    TooManyHeldFromNetwork,
    /// Purgatory is full.
    #[error("rate-limited: too many events are waiting for git data, try again later")]
    PurgatoryFull,
    /// The key or the network of the client has too many requests that wait for their events.
    #[error("rate-limited: too many deletion and vanish requests of this key or network wait for their events")]
    TooManyEarlyRequests,
    /// The network of the client publishes too many events.
    #[error("rate-limited: too many events from your network, slow down")]
    RateLimited,
    /// The disk is nearly full.
    #[error("error: the disk is full, nothing was stored")]
    DiskFull,
    /// The soft limit of the disk budget is reached, so new repositories are not accepted.
    #[error(
        "error: the disk of this service is nearly full (disk budget above its soft limit): new repositories are \
         rejected, existing repositories are not affected"
    )]
    NoNewRepositories,
    /// The author has reached the repository quota, which is given.
    #[error("restricted: repository quota reached, this key has {0} repositories here")]
    TooManyRepositories(u64),
    /// The repositories that list the author as a maintainer, or all with the identifier, have too many announcements by the
    /// maintainer exception.
    #[error(
        "restricted: too many announcements that do not name this service have this identifier (limits: {} per \
         repository, {} in total): name this service in the announcement",
        limits::MAX_EXCEPTIONS_PER_REPOSITORY,
        limits::MAX_EXCEPTIONS_PER_IDENTIFIER
    )]
    TooManyExceptions,
    /// Too many announcements have the same identifier.
    #[error(
        "restricted: {} announcements here have this identifier, which is the limit: choose another identifier",
        limits::MAX_ANNOUNCEMENTS_PER_IDENTIFIER
    )]
    TooManyWithIdentifier,
    /// The store could not write the event. Nothing of it was stored.
    #[error("error: could not store the event, try again later")]
    StoreFailed,
}

crate::label_table! {
    /// Returns the label of the reason in metrics and reports. Labels are stable.
    Rejection {
        Self::Malformed(_) => "malformed",
        Self::Forged(_) => "forged",
        Self::TooLarge { .. } => "too_large",
        Self::TooManyTags(_) => "too_many_tags",
        Self::InFuture => "future",
        Self::Expired => "expired",
        Self::Protected => "protected",
        Self::AuthEvent => "credential",
        Self::Deleted => "deleted",
        Self::Vanished => "vanished",
        Self::Withdrawn => "withdrawn",
        Self::InvalidIdentifier => "identifier",
        Self::NotListed { .. } => "not_listed",
        Self::Delisted => "delisted",
        Self::RepositoryBanned => "banned",
        Self::EventBanned => "event_banned",
        Self::NotWhitelisted => "not_whitelisted",
        Self::NotArchived => "not_archived",
        Self::NoAnnouncement => "no_announcement",
        Self::NotMaintainer => "not_maintainer",
        Self::NoCommit => "no_commit",
        Self::Unrelated => "unrelated",
        Self::ForeignDeletionTarget => "foreign_target",
        Self::DeletionTargetCount(_) => "targets",
        Self::NoVanishRelay => "no_relay",
        Self::OtherVanishRelay => "other_relay",
        Self::TooManyHeld => "too_much_held",
        Self::TooManyHeldFromNetwork => "too_much_held_network",
        Self::PurgatoryFull => "purgatory_full",
        Self::TooManyEarlyRequests => "too_many_early_requests",
        Self::RateLimited => "too_fast",
        Self::DiskFull => "disk_full",
        Self::NoNewRepositories => "no_new_repositories",
        Self::TooManyRepositories(_) => "too_many_repositories",
        Self::TooManyExceptions => "too_many_exceptions",
        Self::TooManyWithIdentifier => "too_many_with_identifier",
        Self::StoreFailed => "store_failed",
    }
}

impl KnownAs {
    /// Returns how a version is superseded by one that has precedence.
    #[must_use]
    pub fn superseded(event: EventVersion, by: EventVersion) -> Self {
        if event.created_at == by.created_at { Self::LostTie } else { Self::Superseded }
    }
}

impl Rejection {
    /// Returns whether the event was rejected only for lack of capacity. It may be accepted when it is sent again.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::TooManyHeld
            | Self::TooManyHeldFromNetwork
            | Self::PurgatoryFull
            | Self::TooManyEarlyRequests
            | Self::RateLimited
            | Self::DiskFull
            | Self::NoNewRepositories
            | Self::StoreFailed => true,
            Self::Malformed(_)
            | Self::Forged(_)
            | Self::TooLarge { .. }
            | Self::TooManyTags(_)
            | Self::InFuture
            | Self::Expired
            | Self::Protected
            | Self::AuthEvent
            | Self::Deleted
            | Self::Vanished
            | Self::Withdrawn
            | Self::InvalidIdentifier
            | Self::NotListed { .. }
            | Self::Delisted
            | Self::RepositoryBanned
            | Self::EventBanned
            | Self::NotWhitelisted
            | Self::NotArchived
            | Self::NoAnnouncement
            | Self::NotMaintainer
            | Self::NoCommit
            | Self::Unrelated
            | Self::ForeignDeletionTarget
            | Self::DeletionTargetCount(_)
            | Self::NoVanishRelay
            | Self::OtherVanishRelay
            | Self::TooManyRepositories(_)
            | Self::TooManyExceptions
            | Self::TooManyWithIdentifier => false,
        }
    }
}

fn deletion_target_text(count: usize) -> String {
    match count {
        0 => "a deletion request must name its targets in e or a tags".to_owned(),
        _ => format!("too many deletion targets, the limit is {}", limits::MAX_DELETION_TARGETS),
    }
}
