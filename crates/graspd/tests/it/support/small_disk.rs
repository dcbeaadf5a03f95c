//! A disk that is full soon.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

/// What a file takes at least.
pub const PAGE: u64 = 4_096;

/// A small disk of its own, unmounted when dropped.
pub struct SmallDisk {
    pub folder: Arc<TempDir>,
}

impl SmallDisk {
    /// One of eight megabytes; `None` if mounting is not permitted here.
    pub fn mount() -> Option<Self> {
        let folder = Arc::new(TempDir::new().expect("a folder"));
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(folder.path())
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            eprintln!("mount is not permitted: a large reserve stands in for a full disk");
        }
        mounted.then(|| Self { folder })
    }

    /// Takes so much space that about `free` bytes are left.
    pub fn fill(&self, free: u64) -> PathBuf {
        let ballast = self.folder.path().join("ballast");
        let left = grasp_store::DiskSpace::read(self.folder.path()).expect("it can be asked").free;
        std::fs::write(&ballast, vec![0; usize::try_from(left - free).expect("small")]).expect("there is space");
        ballast
    }

    /// Takes all space but some pages.
    pub fn fill_but(&self, pages: u64) {
        let ballast = self.folder.path().join("ballast");
        let mut file = File::options().create(true).append(true).open(ballast).expect("a file");
        let mut length = file.metadata().expect("its length").len();
        while file.write_all(&[0; PAGE as usize]).is_ok() {
            length += PAGE;
        }
        file.set_len(length.saturating_sub(pages * PAGE)).expect("it is longer");
    }

    /// Gives all space back.
    pub fn free(&self) {
        std::fs::remove_file(self.path().join("ballast")).expect("it was there");
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.folder.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.folder.path().display());
        }
    }
}
