//! The memory of a server while something happens, and the speed of the disk.

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

/// How often memory is read: often enough for a push, seldom enough that reading costs nothing.
const PERIOD: Duration = Duration::from_millis(20);

/// Writes that the disk is tried with: enough for a p99.
const WRITES: usize = 200;

/// The most that a process held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Peak {
    /// Heap and stacks, in KiB.
    pub(super) rss_anon_kb: u64,
    /// With mapped files, in KiB.
    pub(super) rss_kb: u64,
    /// With mapped files, since the process started, in KiB.
    pub(super) ever_kb: u64,
}

/// Reads the memory of a process again and again, in a thread of its own.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Sender<()>,
    watcher: JoinHandle<Result<Peak>>,
}

impl Watch {
    /// Starts reading.
    pub(super) fn start(process: Process) -> Self {
        let (stop, stopped) = mpsc::channel();
        let watcher = thread::spawn(move || {
            let mut peak = Peak::default();
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
        Self { stop, watcher }
    }

    /// Stops reading and gives the most that was seen.
    pub(super) fn stop(self) -> Result<Peak> {
        drop(self.stop);
        self.watcher.join().map_err(|_| anyhow!("the watcher panicked"))?
    }
}

/// How long a small write takes until it is on the disk of `folder`. What is durable cannot be faster.
pub(crate) fn disk(folder: &Path) -> Result<Percentiles> {
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
    fn a_peak_is_remembered() {
        let watch = Watch::start(Process::Own);
        let peak = watch.stop().expect("own accounting");
        assert!(peak.rss_anon_kb > 0 && peak.rss_kb >= peak.rss_anon_kb && peak.ever_kb > 0);
    }

    #[test]
    fn the_disk_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(disk(folder.path()).expect("writes").max_us > 0);
    }
}
