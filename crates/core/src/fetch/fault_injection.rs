//! Fault injection for the simulator. Each fault must violate an invariant in some simulated run, which shows that the
//! invariants detect it.

/// A fault of the machine. The server never enables one.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// Requests of the last minute are forgotten at a restart.
    WindowForgotten,
    /// The quiet time of a host is forgotten when it answers another request.
    QuietForgotten,
    /// The slot of a cancelled fetch counts as free before the fetch has ended.
    CancelFreesSlot,
    /// Hosts of one network are limited separately.
    NetworkIgnored,
    /// A new event makes the same URL be asked again at once.
    ImmediateRetry,
    /// Lower limits that a server states are ignored.
    StatedLimitsIgnored,
    /// A fetch that brought some objects counts as if it had brought all.
    PartialCountsAsComplete,
    /// A fetch also counts for events that came after it began.
    NewEventsCountAsAsked,
    /// Data that is no longer wanted is still asked for.
    OldWantsKept,
    /// Events are reported as tried when their first source was asked.
    TriedEarly,
    /// A host that failed is never asked again.
    FailedHostNeverRetried,
    /// A source whose host was busy is not tried again.
    BusySourceNotRetried,
    /// A source that serves objects only by ref is always asked by object.
    FormForgotten,
}

/// Returns whether this fault is injected. Only the simulator enables the feature `fault-injection`; without it no fault is.
#[cfg(feature = "fault-injection")]
pub(super) fn is_injected(fault: Option<Fault>, this: Fault) -> bool {
    fault == Some(this)
}

/// Returns whether this fault is injected: never without the feature `fault-injection`.
#[cfg(not(feature = "fault-injection"))]
pub(super) const fn is_injected(_fault: Option<Fault>, _this: Fault) -> bool {
    false
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 13] = [
        Self::WindowForgotten,
        Self::QuietForgotten,
        Self::CancelFreesSlot,
        Self::NetworkIgnored,
        Self::ImmediateRetry,
        Self::StatedLimitsIgnored,
        Self::PartialCountsAsComplete,
        Self::NewEventsCountAsAsked,
        Self::OldWantsKept,
        Self::TriedEarly,
        Self::FailedHostNeverRetried,
        Self::BusySourceNotRetried,
        Self::FormForgotten,
    ];
}
