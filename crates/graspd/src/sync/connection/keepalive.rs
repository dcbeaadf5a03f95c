//! Detection of relays that do not respond.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use grasp_core::time::MonoTime;

use crate::clock::Clock;

/// Value of [`Keepalive::writing`] while no message is being written.
const IDLE: u64 = u64::MAX;

/// Activity of one connection. The reader and the writer record it, [`timed_out`](Self::timed_out) checks it. All three
/// run in one task, so the atomics are never contended.
pub(super) struct Keepalive {
    clock: Clock,
    /// When a frame was received last, or when reading was resumed.
    last_read: AtomicU64,
    /// Since when a message is being written, without the time during which the socket was not read.
    writing: AtomicU64,
    /// The socket is not read. Messages of the relay wait in network buffers, and so may our messages to it.
    is_paused: AtomicBool,
}

impl Keepalive {
    /// Creates the state of a socket that is not read yet.
    pub(super) fn new(clock: Clock) -> Self {
        let last_read = AtomicU64::new(clock.mono().0);
        Self { clock, last_read, writing: AtomicU64::new(IDLE), is_paused: AtomicBool::new(true) }
    }

    /// Records that a frame was received. Reading pauses until it is handled.
    pub(super) fn frame_received(&self) {
        self.last_read.store(self.clock.mono().0, Ordering::Relaxed);
        self.is_paused.store(true, Ordering::Relaxed);
    }

    /// Records that the frame was handled and reading continues.
    pub(super) fn resume_reading(&self) {
        let now = self.clock.mono().0;
        let paused_millis = now - self.last_read.swap(now, Ordering::Relaxed);
        let writing = self.writing.load(Ordering::Relaxed);
        if writing != IDLE {
            self.writing.store((writing + paused_millis).min(now), Ordering::Relaxed);
        }
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Records the start of a write.
    pub(super) fn write_started(&self) {
        self.writing.store(self.clock.mono().0, Ordering::Relaxed);
    }

    /// Records the end of a write.
    pub(super) fn write_finished(&self) {
        self.writing.store(IDLE, Ordering::Relaxed);
    }

    /// Waits until no frame was received, or a write did not progress, for `timeout`. The time during which the socket
    /// is not read does not count.
    pub(super) async fn timed_out(&self, timeout: Duration) {
        loop {
            let now = self.clock.mono();
            let oldest = self.last_read.load(Ordering::Relaxed).min(self.writing.load(Ordering::Relaxed));
            let waited = match self.is_paused.load(Ordering::Relaxed) {
                true => Duration::ZERO,
                false => now.since(MonoTime(oldest)),
            };
            if waited >= timeout {
                return;
            }
            // One millisecond more, because the clock truncates to milliseconds.
            tokio::time::sleep(timeout - waited + Duration::from_millis(1)).await;
        }
    }
}
