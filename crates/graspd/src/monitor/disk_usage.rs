//! Who measures how much disk space is used for what: a thread that walks through the folders every few minutes, slowly.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::time::Timestamp;
use tracing::debug;

use super::disk_budget::Budget;
use crate::clock::Clock;
use crate::git::pack_cache::PackCache;

/// How long after a walk the next one begins.
const PAUSE: Duration = Duration::from_secs(300);

/// The same while the budget is nearly used up: whoever makes room does not want to wait. But it is at least so many times
/// as long as the walk took.
const SHORT_PAUSE: Duration = Duration::from_secs(2);
const SHARE: u32 = 10;

/// What is counted as it comes, not here.
const ON_ITS_WAY: &str = "incoming";

/// Entries after which there is a short rest, and how long it is: others want the disk, too.
const STEP: usize = 256;
const REST: Duration = Duration::from_millis(2);

/// Entries of one walk. A hundred thousand repositories in good order have fewer.
const MOST: usize = 5_000_000;

/// Folders in each other. Repositories have four levels.
const DEPTH: usize = 16;

/// Disk use, by what for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DiskUse {
    /// Bytes, by what for.
    pub(crate) kinds: Vec<(&'static str, u64)>,
    /// When it was measured.
    pub(crate) at: Timestamp,
    /// Whether nothing was left out.
    pub(crate) complete: bool,
}

/// Where the newest measurement is. The lock is held to move a pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestDiskUsage(Arc<Mutex<Option<Arc<DiskUse>>>>);

impl LatestDiskUsage {
    pub(crate) fn get(&self) -> Option<Arc<DiskUse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, disk: DiskUse) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(disk));
    }
}

/// The thread's own things.
pub(crate) struct DiskUsageScanner {
    /// Folders, by what they are for.
    pub(crate) folders: Vec<(&'static str, PathBuf)>,
    /// Answers to fetches: their files have no names.
    pub(crate) packs: Arc<PackCache>,
    pub(crate) clock: Clock,
    pub(crate) measured: LatestDiskUsage,
    pub(crate) budget: Arc<Budget>,
    /// The folder where the sum is noted, for the next start.
    pub(crate) notes: PathBuf,
}

/// The file of that note.
const NOTE: &str = "disk-use";

/// What an earlier process found at last, so that a start is no way around the budget; nothing if it left no note.
pub(crate) fn last_known(notes: &Path) -> u64 {
    let text = std::fs::read_to_string(notes.join(NOTE)).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Notes a sum: after every walk, and at the end. It is worth no trouble: the next walk finds it again.
pub(crate) fn note(notes: &Path, bytes: u64) {
    let fresh = notes.join(format!("{NOTE}.new"));
    let noted = std::fs::write(&fresh, format!("{bytes}\n")).and_then(|()| std::fs::rename(&fresh, notes.join(NOTE)));
    if let Err(problem) = noted {
        debug!(%problem, "cannot note how much disk space is used");
    }
}

impl DiskUsageScanner {
    /// The thread's life: until `stop` is dropped.
    pub(crate) fn run(self, stop: &Receiver<()>) {
        loop {
            let (begun_at, began) = (Instant::now(), self.budget.survey());
            let mut walk = Walk { left: MOST, complete: true, stopped: false, stop };
            let mut kinds: Vec<(&'static str, u64)> =
                self.folders.iter().map(|(kind, folder)| (*kind, walk.bytes(folder))).collect();
            let stays = kinds.iter().filter(|(kind, _)| *kind != ON_ITS_WAY).map(|(_, bytes)| bytes).sum();
            if walk.stopped {
                return;
            }
            kinds.push(("cache", self.packs.load().0));
            self.budget.surveyed(stays, began);
            if walk.complete {
                note(&self.notes, stays);
            }
            self.measured.set(DiskUse { kinds, at: self.clock.wall(), complete: walk.complete });
            if !self.rest(stop, SHARE * begun_at.elapsed()) {
                return;
            }
        }
    }

    /// Waits until it is time for the next walk, which is not at once; not if the server goes down.
    fn rest(&self, stop: &Receiver<()>, at_least: Duration) -> bool {
        let ended = Instant::now();
        loop {
            if !matches!(stop.recv_timeout(SHORT_PAUSE), Err(RecvTimeoutError::Timeout)) {
                return false;
            }
            let hurries = self.budget.mark() != DiskLevel::Free && ended.elapsed() >= at_least;
            if hurries || ended.elapsed() >= PAUSE.max(at_least) {
                return true;
            }
        }
    }
}

struct Walk<'s> {
    left: usize,
    complete: bool,
    /// The server goes down.
    stopped: bool,
    stop: &'s Receiver<()>,
}

impl Walk<'_> {
    /// Bytes on disk of a folder and everything in it. Links are not followed; what goes away meanwhile is not counted.
    fn bytes(&mut self, root: &Path) -> u64 {
        let mut sum = 0;
        let mut folders = vec![(root.to_owned(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                if self.left == 0 || depth >= DEPTH {
                    self.complete = false;
                    return sum;
                }
                self.left -= 1;
                if self.left.is_multiple_of(STEP) {
                    let until = Instant::now() + REST;
                    if !matches!(self.stop.recv_deadline(until), Err(RecvTimeoutError::Timeout)) {
                        (self.left, self.stopped) = (0, true);
                    }
                }
                let Ok(about) = entry.metadata() else { continue };
                // Blocks are of 512 bytes whatever the file system says; the event database is mostly a hole.
                sum += about.blocks() * 512;
                if about.is_dir() {
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
    fn files_are_counted_as_the_disk_does_and_links_are_not_followed() {
        let folder = tempfile::TempDir::new().expect("a folder");
        std::fs::create_dir_all(folder.path().join("a/b")).expect("folders");
        std::fs::write(folder.path().join("a/b/file"), vec![1; 100_000]).expect("a file");
        std::os::unix::fs::symlink("/", folder.path().join("a/away")).expect("a link");
        let hole = std::fs::File::create(folder.path().join("hole")).expect("a file");
        hole.set_len(1 << 40).expect("a hole");
        let (_keep, stop) = crossbeam_channel::bounded(0);
        let mut walk = Walk { left: 1_000, complete: true, stopped: false, stop: &stop };
        let bytes = walk.bytes(folder.path());
        assert!(walk.complete && (100_000..1_000_000).contains(&bytes), "{bytes}");
        let mut tired = Walk { left: 2, complete: true, stopped: false, stop: &stop };
        tired.bytes(folder.path());
        assert!(!tired.complete);
    }
}
