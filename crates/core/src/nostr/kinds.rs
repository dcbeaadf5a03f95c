//! Event kinds that graspd treats specially, and the kind classes of NIP-01.

/// Profile.
pub const PROFILE: u16 = 0;
/// Deletion request (NIP-09).
pub const DELETION: u16 = 5;
/// Request to vanish (NIP-62).
pub const VANISH: u16 = 62;
/// Gift wrap. A request to vanish also removes the gift wraps addressed to its author (NIP-62).
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

/// Storage class of an event kind (NIP-01).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KindClass {
    /// All events are stored.
    Regular,
    /// Only the latest event per author and kind is stored.
    Replaceable,
    /// Events are forwarded to subscribers and never stored.
    Ephemeral,
    /// Only the latest event per author, kind and `d` tag is stored.
    Addressable,
}

/// Returns the storage class of a kind.
#[must_use]
pub fn class(kind: u16) -> KindClass {
    match kind {
        0 | 3 | 10_000..=19_999 => KindClass::Replaceable,
        20_000..=29_999 => KindClass::Ephemeral,
        30_000..=39_999 => KindClass::Addressable,
        _ => KindClass::Regular,
    }
}

/// Returns whether a kind is a pull request or a pull request update. Both name a commit in their `c` tag and wait in
/// purgatory for it.
#[must_use]
pub fn is_pull_request(kind: u16) -> bool {
    matches!(kind, PULL_REQUEST | PULL_REQUEST_UPDATE)
}
