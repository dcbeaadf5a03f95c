//! Verdicts on events. Reasons are types; their text and prefix are made here and nowhere else.

use std::fmt;

use super::event::Malformed;
use super::signed_event::Forged;
use crate::limits;

/// What becomes of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is stored and served.
    Accept,
    /// It is stored, and served when its git data is here.
    Hold(Need),
    /// It goes to those who are listening and is never stored.
    Pass,
    /// It changes nothing, and that is fine.
    Known(Known),
    /// It is not wanted.
    Refuse(Refusal),
}

impl Verdict {
    /// The flag and text of the OK message.
    #[must_use]
    pub fn answer(&self) -> (bool, String) {
        match self {
            Self::Accept | Self::Pass => (true, String::new()),
            Self::Hold(need) => (true, format!("purgatory: {need}")),
            Self::Known(known) => (true, known.to_string()),
            Self::Refuse(refusal) => (false, refusal.to_string()),
        }
    }
}

/// What a held event waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// An announcement waits for an authorised state whose data has arrived; a state for its objects.
    GitData,
    /// A pull request waits for its tip.
    Commit(String),
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GitData => f.write_str("won't be served until git data arrives"),
            Self::Commit(commit) => {
                write!(f, "won't be served until commit {commit} is pushed to refs/nostr/<event id>")
            }
        }
    }
}

/// Why an event changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// It is being served.
    Served,
    /// It is waiting for its git data.
    Held,
    /// A newer version of it is being served.
    Superseded,
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Served => "duplicate: already have this event",
            Self::Held => "purgatory: already waiting for git data",
            Self::Superseded => "duplicate: superseded by a newer event",
        })
    }
}

/// Why an event is not wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is no event.
    Malformed(Malformed),
    /// Its id or signature is wrong.
    Forged(Forged),
    /// It is larger than events of its kind may be.
    TooLarge {
        /// Bytes of its text.
        bytes: usize,
        /// Bytes it may have.
        most: usize,
    },
    /// It has more tags than events of its kind may have.
    TooManyTags(usize),
    /// It is dated too far in the future.
    Future,
    /// It asked to be forgotten before now.
    Expired,
    /// Only its author may publish it, and the connection has not shown to be the author.
    Protected,
    /// Authentication events are answers to challenges, not things to publish.
    Credential,
    /// Its author deleted it.
    Deleted,
    /// Its author asked to vanish.
    Vanished,
    /// A newer announcement took the repository away from here.
    Withdrawn,
    /// The `d` tag is missing or cannot name a repository.
    Identifier,
    /// An announcement that does not name this service in `clone` and `relays`.
    NotListed,
    /// An announcement that named this service and now does not: hosting has ended.
    Delisted,
    /// An announcement of a repository that has no place here.
    Banned,
    /// An event that has no place here, for its author's sake or its own.
    Unwelcome,
    /// An announcement that names this service, which takes only others.
    NotWhitelisted,
    /// An announcement that names this service, which is an archive and does not keep it.
    NotArchived,
    /// A state of a repository that is not announced here.
    NoAnnouncement,
    /// A state whose author is not a maintainer of any repository of that name here.
    NotMaintainer,
    /// A pull request without a commit.
    NoCommit,
    /// It has nothing to do with anything here.
    Unrelated,
    /// A deletion request that names an event of somebody else.
    ForeignTarget,
    /// A deletion request with too many targets, or none.
    Targets(usize),
    /// A vanish request without a `relay` tag.
    NoRelay,
    /// A vanish request that names other relays only.
    OtherRelay,
    /// Too much of this author is waiting for git data.
    TooMuchHeld,
    /// Purgatory is full.
    PurgatoryFull,
    /// The client's network publishes too fast.
    TooFast,
    /// The disk is nearly full.
    DiskFull,
    /// The disk budget has reached its soft mark: no new repository is taken.
    NoNewRepositories,
    /// Its author has as many repositories here as a key may have.
    TooManyRepositories(u64),
    /// The store could not write; nothing of the event was kept.
    StoreFailed,
}

impl Refusal {
    /// Whether only a lack of room speaks against the event, not the event itself.
    #[must_use]
    pub fn is_about_room(&self) -> bool {
        matches!(
            self,
            Self::TooMuchHeld
                | Self::PurgatoryFull
                | Self::TooFast
                | Self::DiskFull
                | Self::NoNewRepositories
                | Self::StoreFailed
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "invalid: {why}"),
            Self::Forged(why) => write!(f, "invalid: {why}"),
            Self::TooLarge { bytes, most } => write!(f, "invalid: the event has {bytes} bytes, at most {most} are taken"),
            Self::TooManyTags(most) => write!(f, "invalid: at most {most} tags are taken"),
            Self::Future => write!(f, "invalid: created_at is more than {} minutes in the future", limits::MAX_FUTURE_SECS / 60),
            Self::Expired => f.write_str("invalid: the event has expired"),
            Self::Protected => f.write_str("auth-required: this event may only be published by its author"),
            Self::Credential => f.write_str("invalid: authentication events are not published"),
            Self::Deleted => f.write_str("invalid: this event is deleted"),
            Self::Vanished => f.write_str("invalid: this pubkey has requested to vanish"),
            Self::Withdrawn => f.write_str("invalid: a newer announcement has taken this repository away from this service"),
            Self::Identifier => f.write_str("invalid: the d tag must name a repository: not empty, not . or .., without slashes or control characters"),
            Self::NotListed => f.write_str("invalid: the announcement must name this service in both clone and relays"),
            Self::Delisted => f.write_str("invalid: the announcement no longer names this service; hosting has ended"),
            Self::Banned => f.write_str("blocked: the operator of this service has banned this repository"),
            Self::Unwelcome => f.write_str("blocked: the operator of this service has banned this event or its author"),
            Self::NotWhitelisted => f.write_str("blocked: this service hosts only repositories that its operator has listed"),
            Self::NotArchived => f.write_str("blocked: this service is a read-only archive and does not keep this repository"),
            Self::NoAnnouncement => f.write_str("invalid: no announcement exists for this repository"),
            Self::NotMaintainer => f.write_str("restricted: author not authorized for this repository"),
            Self::NoCommit => f.write_str("invalid: a pull request names its commit in a c tag"),
            Self::Unrelated => f.write_str("restricted: the event must reference an accepted repository or accepted event"),
            Self::ForeignTarget => f.write_str("invalid: cannot delete event authored by another pubkey"),
            Self::Targets(0) => f.write_str("invalid: a deletion request names its targets in e or a tags"),
            Self::Targets(_) => write!(f, "invalid: too many deletion targets, at most {} are taken", limits::MAX_DELETION_TARGETS),
            Self::NoRelay => f.write_str("invalid: a request to vanish names relays in relay tags"),
            Self::OtherRelay => f.write_str("restricted: the request to vanish does not name this relay"),
            Self::TooMuchHeld => f.write_str("rate-limited: too many events of this author are waiting for git data"),
            Self::PurgatoryFull => f.write_str("rate-limited: too many events are waiting for git data, try again later"),
            Self::TooFast => f.write_str("rate-limited: too many events from your network, slow down"),
            Self::DiskFull => f.write_str("error: the disk is full, nothing was stored"),
            Self::NoNewRepositories => f.write_str("error: the disk of this service is nearly full, no new repository is taken for now; what is here goes on"),
            Self::TooManyRepositories(most) => write!(f, "restricted: this key has {most} repositories here, as many as a key may have"),
            Self::StoreFailed => f.write_str("error: could not store the event, try again later"),
        }
    }
}
