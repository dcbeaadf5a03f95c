//! A process with a state machine, which can be stopped and started.

use grasp_core::state_machine::StateMachine;
use grasp_core::time::{MonoTime, Now, Timestamp};

use super::WORLD_START;
use super::queue::{SECOND, Time};

/// A process that runs a state machine while it is started.
pub struct Process<M> {
    machine: Option<M>,
    number: u32,
    started_at: Time,
    /// Error of its wall clock in seconds.
    pub clock_skew_secs: i64,
}

impl<M> Default for Process<M> {
    fn default() -> Self {
        Self { machine: None, number: 0, started_at: 0, clock_skew_secs: 0 }
    }
}

impl<M: StateMachine> Process<M> {
    /// Starts the next process with the machine that `create` returns for its number, which is 1 for the first process.
    pub fn start(&mut self, now: Time, create: impl FnOnce(u32) -> M) {
        self.number += 1;
        self.started_at = now;
        self.machine = Some(create(self.number));
    }

    /// Stops the process. Its machine is lost.
    pub fn stop(&mut self) {
        self.machine = None;
    }

    /// Returns the machine, while the process runs.
    pub fn machine(&self) -> Option<&M> {
        self.machine.as_ref()
    }

    /// Returns the number of the current or last process.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether a process runs.
    pub fn is_started(&self) -> bool {
        self.machine.is_some()
    }

    /// Returns whether the process with this number runs.
    pub fn is_running(&self, number: u32) -> bool {
        self.machine.is_some() && self.number == number
    }

    /// Returns both clocks of the process.
    pub fn clock(&self, now: Time) -> Now {
        let wall = (WORLD_START + now / SECOND).saturating_add_signed(self.clock_skew_secs);
        Now { mono: MonoTime(now - self.started_at), wall: Timestamp(wall) }
    }

    /// Converts monotonic time of the current process to simulated time.
    pub fn time_of(&self, mono_time: MonoTime) -> Time {
        self.started_at.saturating_add(mono_time.0)
    }

    /// Converts simulated time to monotonic time of the current process.
    pub fn mono_time(&self, at: Time) -> MonoTime {
        MonoTime(at.saturating_sub(self.started_at))
    }

    /// Returns the alarm of the machine.
    pub fn alarm(&self) -> Option<Time> {
        self.machine.as_ref()?.alarm().map(|(at, _)| self.time_of(at))
    }

    /// Wakes the machine.
    pub fn wake(&mut self, now: Time) {
        let clock = self.clock(now);
        if let Some(machine) = &mut self.machine {
            machine.wake(clock);
        }
    }

    /// Passes an input to the machine.
    pub fn handle(&mut self, now: Time, input: M::Input) {
        let clock = self.clock(now);
        if let Some(machine) = &mut self.machine {
            machine.handle(clock, input);
        }
    }

    /// Returns the next output of the machine.
    pub fn poll(&mut self) -> Option<M::Output> {
        self.machine.as_mut()?.poll()
    }
}
