//! Deliberate mistakes, for the simulator only: each must break a law in some simulated life, or the laws prove nothing.

/// One deliberate mistake of the machine. A server never has any.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Flaw {
    /// After a quick reconnect `since` is the time of the loss, without the overlap.
    OverlapDropped,
    /// The next request of a session gets the number of one that has ended.
    IdsReused,
    /// A second delivery of an event in flight is submitted, too.
    JudgedTwice,
    /// That a relay wants quiet is forgotten when its connection ends.
    QuietForgotten,
    /// Filters that share a REQ are paged together, each with its own oldest event.
    CursorPerGroup,
    /// History is asked for before the live subscription has said EOSE.
    EoseNotAwaited,
    /// More subscriptions, filters or bytes are asked for than a relay allows.
    BudgetIgnored,
    /// Historic requests take the slots that are kept in reserve for live ones.
    ReserveIgnored,
    /// Units count as covered when their last page has come, not when its events have been judged.
    WatermarkEarly,
    /// A judgement is booked on whatever session its relay has now, and on whatever waits for one there.
    LateJudgement,
    /// The window for new interest never closes.
    WindowNeverCloses,
    /// A historic job that has failed counts as done.
    FailedCountsAsDone,
    /// A repository that waits for its git data is followed in full.
    HeldSyncedInFull,
    /// What was refused is not asked for again when what it needs has come.
    RefusedKeptForever,
    /// Events in flight are told apart by their ids alone, so a forgery hides the honest copy.
    PoisonedId,
    /// Announcements are asked for with `since` before they were ever asked for in whole.
    SinceBeforeComplete,
    /// The largest page that NIP-11 allows is taken for the size of a full page.
    PageFloorTrusted,
    /// A second with more events than a page is stepped over, and the job counts as a success.
    SameSecondSkipped,
    /// A relay that shows our own instance is dialled again.
    DialSelf,
    /// The daily reconciliation never comes.
    DailyForgotten,
    /// A restart forgets how long a relay must not be dialled.
    BackoffForgotten,
    /// A relay that the operator wants left alone is dialled.
    PausedDialled,
    /// A live subscription that was not confirmed counts as open.
    DoubtForgotten,
    /// What came live and has not been judged is not in the row of its relay.
    FlightForgotten,
    /// Dials follow each other as fast as they can.
    DialsUnspaced,
    /// The permit of an event that is not needed is given back twice.
    PermitTwice,
}

/// Whether this mistake is made. Without the feature `flaws`, which only the simulator has, none ever is.
#[cfg(feature = "flaws")]
pub(super) fn makes(flaw: Option<Flaw>, this: Flaw) -> bool {
    flaw == Some(this)
}

/// Whether this mistake is made: none ever is.
#[cfg(not(feature = "flaws"))]
pub(super) const fn makes(_flaw: Option<Flaw>, _this: Flaw) -> bool {
    false
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::OverlapDropped,
        Self::IdsReused,
        Self::JudgedTwice,
        Self::QuietForgotten,
        Self::CursorPerGroup,
        Self::EoseNotAwaited,
        Self::BudgetIgnored,
        Self::ReserveIgnored,
        Self::WatermarkEarly,
        Self::LateJudgement,
        Self::WindowNeverCloses,
        Self::FailedCountsAsDone,
        Self::HeldSyncedInFull,
        Self::RefusedKeptForever,
        Self::PoisonedId,
        Self::SinceBeforeComplete,
        Self::PageFloorTrusted,
        Self::SameSecondSkipped,
        Self::DialSelf,
        Self::DailyForgotten,
        Self::BackoffForgotten,
        Self::PausedDialled,
        Self::DoubtForgotten,
        Self::FlightForgotten,
        Self::DialsUnspaced,
        Self::PermitTwice,
    ];
}
