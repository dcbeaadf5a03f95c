//! Fault injection for the simulator. Each fault must violate an invariant in some simulated run; otherwise the
//! invariants would not detect it. A server never has a fault.

/// A deliberate fault of the sync machine.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SyncFault {
    /// After a quick reconnect `since` is the time of the disconnect, without the overlap.
    OverlapDropped,
    /// A request of a session gets the subscription id of one that has ended.
    IdsReused,
    /// A second delivery of an event in flight is submitted again.
    SubmittedTwice,
    /// The cooldown of a relay is forgotten when its connection ends.
    CooldownForgotten,
    /// Filters that share a REQ are paged together, each with its own oldest event.
    CursorPerGroup,
    /// Historic sync starts before the EOSE of the live subscription.
    EoseNotAwaited,
    /// More subscriptions, filters or bytes are requested than a relay allows.
    LimitsIgnored,
    /// Historic requests use the subscriptions that are reserved for live sync.
    ReserveIgnored,
    /// A batch counts as complete when its last page has arrived, before its events have been decided.
    CoverageTooEarly,
    /// A late submission result is attributed to the current session of its relay and to the batches that wait there.
    LateResultMisattributed,
    /// The batch window never closes.
    WindowNeverCloses,
    /// A failed batch counts as complete.
    FailedCountsAsDone,
    /// A repository in purgatory is synced completely.
    HeldSyncedInFull,
    /// A rejected event is not requested again when its dependency has arrived.
    RejectedNeverRetried,
    /// Events in flight are identified by id alone, so a forged copy hides the real one.
    InFlightByIdOnly,
    /// Announcements are requested with `since` before they were completely synced.
    SinceBeforeComplete,
    /// A page smaller than the requested limit always counts as the last one.
    PageFloorTrusted,
    /// A second with more events than a page is stepped over, and the batch counts as a success.
    SameSecondSkipped,
    /// A relay with our own instance id is dialled again.
    DialSelf,
    /// The daily reconciliation never runs.
    DailyForgotten,
    /// The backoff of a relay is lost in a restart.
    BackoffForgotten,
    /// A paused relay is dialled.
    PausedDialled,
    /// An unconfirmed live subscription counts as open.
    UnconfirmedCountsAsOpen,
    /// Live events that have not been decided are ignored in the stored coverage of a relay.
    InFlightNotPersisted,
    /// There is no delay between connection attempts.
    DialsNotSpaced,
    /// The permit of an event that is not needed is released twice.
    PermitReleasedTwice,
}

/// Returns whether a fault is injected. Only the simulator enables the feature `fault-injection`.
#[cfg(feature = "fault-injection")]
pub(super) fn is_injected(fault: Option<SyncFault>, this: SyncFault) -> bool {
    fault == Some(this)
}

/// Returns `false`: without the feature `fault-injection` no fault is ever injected.
#[cfg(not(feature = "fault-injection"))]
pub(super) const fn is_injected(_fault: Option<SyncFault>, _this: SyncFault) -> bool {
    false
}

impl SyncFault {
    /// All faults.
    pub const ALL: [Self; 26] = [
        Self::OverlapDropped,
        Self::IdsReused,
        Self::SubmittedTwice,
        Self::CooldownForgotten,
        Self::CursorPerGroup,
        Self::EoseNotAwaited,
        Self::LimitsIgnored,
        Self::ReserveIgnored,
        Self::CoverageTooEarly,
        Self::LateResultMisattributed,
        Self::WindowNeverCloses,
        Self::FailedCountsAsDone,
        Self::HeldSyncedInFull,
        Self::RejectedNeverRetried,
        Self::InFlightByIdOnly,
        Self::SinceBeforeComplete,
        Self::PageFloorTrusted,
        Self::SameSecondSkipped,
        Self::DialSelf,
        Self::DailyForgotten,
        Self::BackoffForgotten,
        Self::PausedDialled,
        Self::UnconfirmedCountsAsOpen,
        Self::InFlightNotPersisted,
        Self::DialsNotSpaced,
        Self::PermitReleasedTwice,
    ];
}
