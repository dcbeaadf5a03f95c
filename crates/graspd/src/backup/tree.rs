//! Walks through folders.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// All files and folders below a folder, by name, folders before what is in them. What is neither is an error: nothing of
/// ours is a link.
pub(super) fn walk(root: &Path, mut show: impl FnMut(&Path, bool) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut open: Vec<PathBuf> = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let mut names: Vec<_> =
            fs::read_dir(root.join(&folder))?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        names.sort_unstable();
        for name in names {
            let path = folder.join(name);
            let kind = fs::symlink_metadata(root.join(&path))?.file_type();
            anyhow::ensure!(kind.is_dir() || kind.is_file(), "{} is no ordinary file", root.join(&path).display());
            show(&path, kind.is_dir())?;
            if kind.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(())
}

/// How many files there are and how many bytes they have.
pub(super) fn measure(root: &Path) -> anyhow::Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    walk(root, |path, is_folder| {
        if !is_folder {
            files += 1;
            bytes += fs::metadata(root.join(path))?.len();
        }
        Ok(())
    })?;
    Ok((files, bytes))
}

/// Writes everything of a folder's file system to the disk: one call instead of one per file and folder.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    rustix::fs::syncfs(fs::File::open(folder)?)?;
    Ok(())
}
