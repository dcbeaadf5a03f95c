//! Measures how many bytes on disk are used for what.
//!
//! [`DiskUsageScanner`] runs on its own thread and walks the data folders every few minutes, with pauses, so that it
//! takes little from other users of the disk.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::time::Timestamp;
use tokio::sync::watch;
use tracing::debug;

use super::disk_budget::DiskBudgetTracker;
use crate::clock::Clock;

/// Time between the end of a scan and the begin of the next one.
const SCAN_INTERVAL: Duration = Duration::from_secs(300);

/// The same while the budget is nearly used up, so that freed space is noticed soon, and after an inexact scan. The pause
/// is at least `MIN_PAUSE_FACTOR` times as long as the scan took.
const SHORT_SCAN_INTERVAL: Duration = Duration::from_secs(2);
const MIN_PAUSE_FACTOR: u32 = 10;

/// Kind of the packs that are being received. [`DiskBudgetTracker`] counts them itself.
const INCOMING: &str = "incoming";

/// Number of entries after which a scan pauses, and for how long.
const ENTRIES_PER_STEP: usize = 256;
const STEP_PAUSE: Duration = Duration::from_millis(2);

/// Maximum number of entries of one scan. A hundred thousand maintained repositories have fewer.
const MAX_ENTRIES: usize = 5_000_000;

/// Maximum depth of folders. Repositories have four levels.
const MAX_DEPTH: usize = 16;

/// Result of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DiskUsageReport {
    /// Used bytes by kind of data.
    pub(crate) bytes_by_kind: Vec<(&'static str, u64)>,
    pub(crate) measured_at: Timestamp,
    /// False if the scan ended early because of a bound.
    pub(crate) is_complete: bool,
}

/// The latest report. `None` before the first scan has ended.
pub(crate) type LatestDiskUsage = Option<Arc<DiskUsageReport>>;

/// Scanner of the data folders, which runs on its own thread.
pub(crate) struct DiskUsageScanner {
    /// Folders, with the kind of data that each contains.
    pub(crate) folders: Vec<(&'static str, PathBuf)>,
    /// Returns the bytes of cached packs, whose files have no names and cannot be found by a scan.
    pub(crate) cached_pack_bytes: Box<dyn Fn() -> u64 + Send>,
    pub(crate) clock: Clock,
    pub(crate) latest: watch::Sender<LatestDiskUsage>,
    pub(crate) budget: Arc<DiskBudgetTracker>,
    /// Folder in which the total is saved for the next start.
    pub(crate) total_folder: PathBuf,
}

/// Name of the file with the saved total.
const TOTAL_FILE: &str = "disk-use";

/// Returns the total that an earlier process saved, so that the budget also holds between a start and the end of the
/// first scan. Zero if there is none.
pub(crate) fn read_saved_total(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join(TOTAL_FILE)).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Saves the total after a scan and at shutdown. A failure is only logged, because the next scan measures it again.
pub(crate) fn save_total(folder: &Path, bytes: u64) {
    let new_file = folder.join(format!("{TOTAL_FILE}.new"));
    let saved = std::fs::write(&new_file, format!("{bytes}\n"))
        .and_then(|()| std::fs::rename(&new_file, folder.join(TOTAL_FILE)));
    if let Err(error) = saved {
        debug!(target: "admin", %error, "cannot save the disk usage total");
    }
}

impl DiskUsageScanner {
    /// Scans until `stop` is closed.
    pub(crate) fn run(self, stop: &Receiver<()>) {
        loop {
            let (started, began) = (Instant::now(), self.budget.begin_scan());
            let mut scan = DiskScan { entries_left: MAX_ENTRIES, is_complete: true, is_stopped: false, stop };
            let mut bytes_by_kind: Vec<(&'static str, u64)> =
                self.folders.iter().map(|(kind, folder)| (*kind, scan.folder_bytes(folder))).collect();
            let persistent = bytes_by_kind.iter().filter(|(kind, _)| *kind != INCOMING).map(|(_, bytes)| bytes).sum();
            if scan.is_stopped {
                return;
            }
            bytes_by_kind.push(("cache", (self.cached_pack_bytes)()));
            self.budget.finish_scan(persistent, began);
            if scan.is_complete {
                save_total(&self.total_folder, persistent);
            }
            let measured_at = self.clock.wall();
            let report = DiskUsageReport { bytes_by_kind, measured_at, is_complete: scan.is_complete };
            self.latest.send_replace(Some(Arc::new(report)));
            if !self.wait_for_next_scan(stop, MIN_PAUSE_FACTOR * started.elapsed()) {
                return;
            }
        }
    }

    /// Waits until the next scan is due, at least for `min_pause`. Returns false if `stop` was closed.
    fn wait_for_next_scan(&self, stop: &Receiver<()>, min_pause: Duration) -> bool {
        let ended = Instant::now();
        loop {
            if !matches!(stop.recv_timeout(SHORT_SCAN_INTERVAL), Err(RecvTimeoutError::Timeout)) {
                return false;
            }
            let is_urgent =
                (self.budget.level() != DiskLevel::Free || self.budget.is_inexact()) && ended.elapsed() >= min_pause;
            if is_urgent || ended.elapsed() >= SCAN_INTERVAL.max(min_pause) {
                return true;
            }
        }
    }
}

/// State of one scan.
struct DiskScan<'s> {
    entries_left: usize,
    is_complete: bool,
    /// The server is shutting down.
    is_stopped: bool,
    stop: &'s Receiver<()>,
}

impl DiskScan<'_> {
    /// Returns the bytes on disk of a folder and everything in it. Links are not followed, and files that disappear
    /// during the scan are not counted.
    fn folder_bytes(&mut self, root: &Path) -> u64 {
        let mut sum = 0;
        let mut folders = vec![(root.to_owned(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                if self.entries_left == 0 || depth >= MAX_DEPTH {
                    self.is_complete = false;
                    return sum;
                }
                self.entries_left -= 1;
                if self.entries_left.is_multiple_of(ENTRIES_PER_STEP) {
                    let until = Instant::now() + STEP_PAUSE;
                    if !matches!(self.stop.recv_deadline(until), Err(RecvTimeoutError::Timeout)) {
                        (self.entries_left, self.is_stopped) = (0, true);
                    }
                }
                let Ok(metadata) = entry.metadata() else { continue };
                // `st_blocks` counts 512-byte blocks on every file system. The file length is of no use: the event
                // database is a sparse file.
                sum += metadata.blocks() * 512;
                if metadata.is_dir() {
                    folders.push((entry.path(), depth + 1));
                }
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_counts_allocated_blocks_and_does_not_follow_links() {
        let folder = tempfile::TempDir::new().expect("cannot create a folder");
        std::fs::create_dir_all(folder.path().join("a/b")).expect("cannot create folders");
        std::fs::write(folder.path().join("a/b/file"), vec![1; 100_000]).expect("cannot write a file");
        std::os::unix::fs::symlink("/", folder.path().join("a/away")).expect("cannot create a link");
        let sparse = std::fs::File::create(folder.path().join("sparse")).expect("cannot create a file");
        sparse.set_len(1 << 40).expect("cannot extend the file");
        let (_keep, stop) = crossbeam_channel::bounded(0);
        let mut scan = DiskScan { entries_left: 1_000, is_complete: true, is_stopped: false, stop: &stop };
        let bytes = scan.folder_bytes(folder.path());
        assert!(scan.is_complete && (100_000..1_000_000).contains(&bytes), "{bytes}");
        let mut bounded = DiskScan { entries_left: 2, is_complete: true, is_stopped: false, stop: &stop };
        bounded.folder_bytes(folder.path());
        assert!(!bounded.is_complete);
    }
}
