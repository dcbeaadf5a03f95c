//! The interface of the three state machines (admission, sync, fetch).

use crate::time::{MonoTime, Now};

/// A pure state machine: it receives inputs and returns outputs. It does no IO, never blocks, never fails, and knows
/// the time only from its caller.
///
/// The driver drains [`poll`](StateMachine::poll) after each [`handle`](StateMachine::handle) and each
/// [`wake`](StateMachine::wake), until it returns `None`, before it passes the next input. Outputs must be carried out
/// in the order in which they are returned.
pub trait StateMachine {
    /// Everything that can happen to the machine.
    type Input;
    /// Everything that the machine can request from its driver.
    type Output;

    /// Processes one input. There is no error to return: the misbehaviour of a remote server or client is an input like
    /// any other.
    fn handle(&mut self, now: Now, input: Self::Input);

    /// Returns the next output, if there is one.
    fn poll(&mut self) -> Option<Self::Output>;

    /// Returns when [`wake`](StateMachine::wake) must be called next, and why (for the log).
    fn alarm(&self) -> Option<(MonoTime, &'static str)>;

    /// Does what is due by now. Calls that are early or repeated change nothing.
    fn wake(&mut self, now: Now);
}
