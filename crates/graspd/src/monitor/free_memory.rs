//! Returns memory that is no longer used to the system.
//!
//! The allocator of the C library keeps the memory of small blocks after they are freed. After a load spike the process
//! would keep the size of the spike.

use std::time::Duration;

use grasp_core::time::MonoTime;

/// Growth above the lowest memory so far from which free memory is returned. Below it, the cost of getting the memory again
/// is not worth it.
const MIN_GROWTH_BYTES: u64 = 32 << 20;

/// Time between two attempts. One takes some milliseconds for each hundred megabytes, during which other threads may wait for
/// memory.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// Longest time between two attempts that return nothing, because the server needs the memory that it has. After a load spike
/// its memory is returned within about five minutes even then.
const MAX_INTERVAL: Duration = Duration::from_secs(320);

/// Memory that an attempt returns at least if it was worth it.
const MIN_RETURNED_BYTES: u64 = 4 << 20;

/// Decides when free memory is returned.
pub(super) struct FreeMemory {
    lowest_bytes: Option<u64>,
    released_at: Option<MonoTime>,
    interval: Duration,
}

impl FreeMemory {
    pub(super) fn new() -> Self {
        Self { lowest_bytes: None, released_at: None, interval: MIN_INTERVAL }
    }

    /// Returns free memory to the system if the process has grown.
    pub(super) fn release_if_grown(&mut self, now: MonoTime) {
        let Some(bytes) = private_bytes() else { return };
        if self.must_release(now, bytes) {
            release();
            self.record_release(bytes, private_bytes().unwrap_or(bytes));
        }
    }

    fn must_release(&mut self, now: MonoTime, bytes: u64) -> bool {
        let has_grown = bytes >= self.record_lowest(bytes) + MIN_GROWTH_BYTES;
        let is_due = self.released_at.is_none_or(|at| now.since(at) >= self.interval);
        if has_grown && is_due {
            self.released_at = Some(now);
        }
        has_grown && is_due
    }

    fn record_release(&mut self, before: u64, after: u64) {
        let is_useful = before.saturating_sub(after) >= MIN_RETURNED_BYTES;
        self.interval = if is_useful { MIN_INTERVAL } else { (self.interval * 2).min(MAX_INTERVAL) };
        self.record_lowest(after);
    }

    fn record_lowest(&mut self, bytes: u64) -> u64 {
        *self.lowest_bytes.insert(self.lowest_bytes.map_or(bytes, |lowest| lowest.min(bytes)))
    }
}

/// Returns the memory that belongs to this process alone, without mapped files.
fn private_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|field| field.parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
}

#[cfg(target_env = "gnu")]
fn release() {
    // SAFETY: the function takes a number and may be called at any time by any thread.
    #[allow(unsafe_code)]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other C libraries return free memory by themselves.
#[cfg(not(target_env = "gnu"))]
fn release() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_released_after_growth_but_not_too_often() {
        let mut memory = FreeMemory::new();
        let at = |secs: u64| MonoTime(secs * 1_000);
        let grown = MIN_GROWTH_BYTES + 5;
        assert!(!memory.must_release(at(0), 10), "the first value is the lowest");
        assert!(!memory.must_release(at(1), 5));
        assert!(!memory.must_release(at(2), grown - 1));
        assert!(memory.must_release(at(3), grown));
        assert!(!memory.must_release(at(4), 2 * grown), "only from time to time");
        assert!(memory.must_release(at(13), grown), "again while it is large");
        memory.record_release(grown, grown - 1);
        assert!(!memory.must_release(at(23), grown), "less often if it returns nothing");
        assert!(memory.must_release(at(33), grown));
        memory.record_release(2 * grown, grown);
        assert!(memory.must_release(at(43), grown), "more often if it returns something");
        assert!(private_bytes().is_some_and(|bytes| bytes > 100_000));
    }
}
