//! Peak memory of a server, and `fsync` latency of a disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::latency::{Latencies, Percentiles};
use crate::process::Process;

/// Sampling interval: short enough for a push, long enough that sampling costs little.
const PERIOD: Duration = Duration::from_millis(20);

/// Number of writes: enough for a p99.
const WRITES: usize = 200;

/// Peak memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct PeakMemory {
    /// Heap and stacks, in KiB.
    pub(super) rss_anon_kb: u64,
    /// Including mapped files, in KiB.
    pub(super) rss_kb: u64,
    /// Including mapped files, since the process started, in KiB.
    pub(super) ever_kb: u64,
}

/// Samples the memory of a process in a separate thread.
#[derive(Debug)]
pub(super) struct MemorySampler {
    stop: Sender<()>,
    thread: JoinHandle<Result<PeakMemory>>,
}

impl MemorySampler {
    /// Starts sampling.
    pub(super) fn start(process: Process) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut peak = PeakMemory::default();
            loop {
                let memory = process.memory()?;
                peak.rss_anon_kb = peak.rss_anon_kb.max(memory.rss_anon_kb);
                peak.rss_kb = peak.rss_kb.max(memory.rss_anon_kb + memory.rss_file_kb);
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    peak.ever_kb = process.peak_kb()?;
                    return Ok(peak);
                }
            }
        });
        Self { stop, thread }
    }

    /// Stops sampling and returns the peak.
    pub(super) fn stop(self) -> Result<PeakMemory> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("the memory sampling thread panicked"))?
    }
}

/// Measures how long a small write with `fsync` takes on the disk of `folder`. Durable operations cannot be faster.
pub(crate) fn measure_fsync(folder: &Path) -> Result<Percentiles> {
    let path = folder.join("disk");
    let mut file = File::create(&path)?;
    let mut latencies = Latencies::default();
    for _ in 0..WRITES {
        let started = Instant::now();
        file.write_all(&[1; 4096])?;
        file.sync_all()?;
        latencies.record(started.elapsed());
    }
    std::fs::remove_file(path)?;
    Ok(latencies.summarise())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_recorded() {
        let sampler = MemorySampler::start(Process::Own);
        let peak = sampler.stop().expect("own accounting");
        assert!(peak.rss_anon_kb > 0 && peak.rss_kb >= peak.rss_anon_kb && peak.ever_kb > 0);
    }

    #[test]
    fn fsync_latency_is_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(measure_fsync(folder.path()).expect("writes").max_us > 0);
    }
}
