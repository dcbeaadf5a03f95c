//! A small file system, to test a full disk.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

/// The space that the smallest file takes.
pub const PAGE: u64 = 4_096;

/// A mounted file system of eight megabytes. Unmounted when dropped.
pub struct SmallDisk {
    pub folder: Arc<TempDir>,
}

impl SmallDisk {
    /// Mounts the file system; returns `None` if mounting is not permitted on this machine.
    pub fn mount() -> Option<Self> {
        let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(folder.path())
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            eprintln!("mount is not permitted: a large disk reserve is used instead of a full disk");
        }
        mounted.then(|| Self { folder })
    }

    /// Fills the disk so that about `free` bytes are left; returns the file that takes the space.
    pub fn fill(&self, free: u64) -> PathBuf {
        let ballast = self.folder.path().join("ballast");
        let left = grasp_store::DiskSpace::read(self.folder.path()).expect("cannot read the free space").free;
        let bytes = usize::try_from(left - free).expect("the disk is small");
        std::fs::write(&ballast, vec![0; bytes]).expect("cannot fill the disk");
        ballast
    }

    /// Fills the disk so that only `pages` pages are left.
    pub fn fill_except(&self, pages: u64) {
        let ballast = self.folder.path().join("ballast");
        let mut file = File::options().create(true).append(true).open(ballast).expect("cannot open the file");
        let mut length = file.metadata().expect("cannot read the file length").len();
        while file.write_all(&[0; PAGE as usize]).is_ok() {
            length += PAGE;
        }
        file.set_len(length.saturating_sub(pages * PAGE)).expect("cannot truncate the file");
    }

    /// Frees all space that was filled.
    pub fn free(&self) {
        std::fs::remove_file(self.path().join("ballast")).expect("cannot remove the file");
    }

    /// Makes the file system read-only (`ro`) or writable (`rw`).
    pub fn remount(&self, mode: &str) {
        let remounted = Command::new("mount").args(["-o", &format!("remount,{mode}")]).arg(self.path()).status();
        assert!(remounted.is_ok_and(|status| status.success()), "cannot mount the file system as {mode}");
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.folder.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("cannot unmount {}", self.folder.path().display());
        }
    }
}
