//! Deliberate mistakes, for the simulator only: each must break a law in some simulated life, or the laws prove nothing.

/// One deliberate mistake of the machine. A server never has any.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Flaw {
    /// A restart forgets what was asked within the last minute.
    WindowForgotten,
    /// That a host wants quiet is forgotten when it answers somebody else.
    QuietForgotten,
    /// The slot of a cancelled fetch counts as free before its end was heard.
    CancelFreesSlot,
    /// Names of one machine are counted apart.
    NetworkIgnored,
    /// A new event makes the same URL be asked again at once.
    AgainAtOnce,
    /// A lower limit that a server states is not kept.
    TermsIgnored,
    /// A fetch that brought something counts as if it had brought everything.
    PartsCountAsAll,
    /// A fetch speaks also for what is wanted only since it began.
    GrowthForgotten,
    /// What nobody wants any more is still asked for.
    WantsAdded,
    /// Events count as tried when their first place was asked.
    TriedEarly,
    /// A host that has failed is never asked again.
    NeverForgiven,
    /// A URL whose host was busy is not put back.
    BusyForgotten,
    /// A URL that gives objects only by ref is asked by object for ever.
    FormForgotten,
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
    pub const ALL: [Self; 13] = [
        Self::WindowForgotten,
        Self::QuietForgotten,
        Self::CancelFreesSlot,
        Self::NetworkIgnored,
        Self::AgainAtOnce,
        Self::TermsIgnored,
        Self::PartsCountAsAll,
        Self::GrowthForgotten,
        Self::WantsAdded,
        Self::TriedEarly,
        Self::NeverForgiven,
        Self::BusyForgotten,
        Self::FormForgotten,
    ];
}
