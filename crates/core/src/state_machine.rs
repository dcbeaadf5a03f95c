//! The contract that every decision-maker of the house keeps.

use crate::time::{Moment, Now};

/// A decision-maker. It is told facts and says what it wants done. It never blocks, never fails, and knows the time
/// only because it is told.
///
/// The driver's duty: after each [`handle`](Machine::handle) and each [`wake`](Machine::wake) drain
/// [`poll`](Machine::poll) until it is empty, before the next fact. Outputs come in the order in which they must happen.
pub trait Machine {
    /// Everything the machine can be told.
    type Input;
    /// Everything the machine can want.
    type Output;

    /// Takes in one fact. A stranger's misbehaviour is a fact like any other: there is nothing to return.
    fn handle(&mut self, now: Now, input: Self::Input);

    /// Gives the next wish, if there is one.
    fn poll(&mut self) -> Option<Self::Output>;

    /// When the machine wants to be woken, and why (for the log).
    fn alarm(&self) -> Option<(Moment, &'static str)>;

    /// Lets the machine do what is due by now. Early or repeated calls change nothing.
    fn wake(&mut self, now: Now);
}
