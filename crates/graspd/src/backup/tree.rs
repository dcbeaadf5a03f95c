//! Walks through folders.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Passes all files and folders below a folder to `show`, by name, each folder before its content. Anything else is an
/// error: graspd creates no symbolic links.
pub(super) fn walk(root: &Path, mut show: impl FnMut(&Path, bool) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut open: Vec<PathBuf> = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let mut names: Vec<_> =
            fs::read_dir(root.join(&folder))?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        names.sort_unstable();
        for name in names {
            let path = folder.join(name);
            let kind = fs::symlink_metadata(root.join(&path))?.file_type();
            anyhow::ensure!(kind.is_dir() || kind.is_file(), "{} is not a regular file", root.join(&path).display());
            show(&path, kind.is_dir())?;
            if kind.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(())
}

/// Returns the number of files in a folder and below.
pub(super) fn count_files(root: &Path) -> anyhow::Result<u64> {
    let mut files = 0;
    walk(root, |_, is_folder| {
        files += u64::from(!is_folder);
        Ok(())
    })?;
    Ok(files)
}

/// Syncs the file system of a folder to disk: one call instead of one per file and folder.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    rustix::fs::syncfs(fs::File::open(folder)?)?;
    Ok(())
}

/// Returns the result of a removal, except that nothing has to be removed if nothing is there.
pub(super) fn ignore_missing(removed: io::Result<()>) -> anyhow::Result<()> {
    match removed {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => Ok(removed?),
    }
}
