//! Whether a relay is still there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use grasp_core::time::MonoTime;

use crate::clock::Clock;

/// No message is being written.
const IDLE: u64 = u64::MAX;

/// The signs of life of one connection. The reading and the writing half leave them, the watcher looks at them; all three
/// are one task, so nothing here is ever contended.
pub(super) struct Pulse {
    clock: Clock,
    /// When a frame last came, or when listening went on.
    heard: AtomicU64,
    /// Since when a message is being written, without the time in which the socket was not read.
    writing: AtomicU64,
    /// The socket is not read: whatever the relay says waits outside, and whatever it should read may wait there, too.
    deaf: AtomicBool,
}

impl Pulse {
    /// One of a socket that is not read yet.
    pub(super) fn new(clock: Clock) -> Self {
        let heard = AtomicU64::new(clock.mono().0);
        Self { clock, heard, writing: AtomicU64::new(IDLE), deaf: AtomicBool::new(true) }
    }

    /// A frame has come. It is dealt with before the next is read.
    pub(super) fn heard(&self) {
        self.heard.store(self.clock.mono().0, Ordering::Relaxed);
        self.deaf.store(true, Ordering::Relaxed);
    }

    /// It has been dealt with.
    pub(super) fn listens(&self) {
        let now = self.clock.mono().0;
        let deaf = now - self.heard.swap(now, Ordering::Relaxed);
        let writing = self.writing.load(Ordering::Relaxed);
        if writing != IDLE {
            self.writing.store((writing + deaf).min(now), Ordering::Relaxed);
        }
        self.deaf.store(false, Ordering::Relaxed);
    }

    /// A message is being written.
    pub(super) fn writes(&self) {
        self.writing.store(self.clock.mono().0, Ordering::Relaxed);
    }

    /// It has been written.
    pub(super) fn written(&self) {
        self.writing.store(IDLE, Ordering::Relaxed);
    }

    /// Returns when nothing was heard, or a message was not taken, for as long as this. While the socket is not read,
    /// nothing is expected of the relay.
    pub(super) async fn stops(&self, patience: Duration) {
        loop {
            let now = self.clock.mono();
            let oldest = self.heard.load(Ordering::Relaxed).min(self.writing.load(Ordering::Relaxed));
            let waited = match self.deaf.load(Ordering::Relaxed) {
                true => Duration::ZERO,
                false => now.since(MonoTime(oldest)),
            };
            if waited >= patience {
                return;
            }
            // A millisecond more, because the clock cuts off what is less.
            tokio::time::sleep(patience - waited + Duration::from_millis(1)).await;
        }
    }
}
