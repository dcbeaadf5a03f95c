//! Event kinds that mean something here, and the classes of NIP-01.

/// Profile.
pub const PROFILE: u16 = 0;
/// Deletion request (NIP-09).
pub const DELETION: u16 = 5;
/// Request to vanish (NIP-62).
pub const VANISH: u16 = 62;
/// Gift wrap, which a vanishing receiver takes along (NIP-62).
pub const GIFT_WRAP: u16 = 1059;
/// Patch.
pub const PATCH: u16 = 1617;
/// Pull request.
pub const PULL_REQUEST: u16 = 1618;
/// Pull request update.
pub const PULL_REQUEST_UPDATE: u16 = 1619;
/// Issue.
pub const ISSUE: u16 = 1621;
/// A user's list of preferred GRASP servers.
pub const GRASP_LIST: u16 = 10317;
/// Client authentication (NIP-42).
pub const AUTH: u16 = 22242;
/// HTTP authentication (NIP-98).
pub const HTTP_AUTH: u16 = 27235;
/// Repository announcement.
pub const ANNOUNCEMENT: u16 = 30617;
/// Repository state.
pub const STATE: u16 = 30618;

/// How long events of a kind live beside each other (NIP-01).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Kept for ever.
    Regular,
    /// Only the latest of an author and kind is kept.
    Replaceable,
    /// Never stored.
    Ephemeral,
    /// Only the latest of an author, kind and `d` tag is kept.
    Addressable,
}

/// The class of a kind.
#[must_use]
pub fn class(kind: u16) -> Class {
    match kind {
        0 | 3 | 10_000..=19_999 => Class::Replaceable,
        20_000..=29_999 => Class::Ephemeral,
        30_000..=39_999 => Class::Addressable,
        _ => Class::Regular,
    }
}

/// Whether this is a pull request or an update of one: both carry a commit in `c` and wait for it.
#[must_use]
pub fn is_pull_request(kind: u16) -> bool {
    matches!(kind, PULL_REQUEST | PULL_REQUEST_UPDATE)
}
