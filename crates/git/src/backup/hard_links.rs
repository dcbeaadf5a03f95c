//! Hard links to all git data at one time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::RwLockWriteGuard;
use std::{fs, io};

use crate::alternates::Alternates;
use crate::files::{file_names, if_found, link_if_exists, remove_folder};
use crate::layout::{Layout, create_repo_folders};

/// The folders that contain repositories.
const REPO_PARENTS: [&str; 2] = ["repos", "prs"];

/// The files of a repository besides its packs. A folder with HEAD counts as a repository, so HEAD is linked last.
const REPO_FILES: [&str; 5] = ["config", "packed-refs", "objects/info/alternates", "pool/info/commit-graph", "HEAD"];

/// Holds off removals of git data until it is dropped.
pub struct RemovalPause<'l> {
    layout: &'l Layout,
    _removals: RwLockWriteGuard<'l, ()>,
}

/// A folder with hard links to all git data, in the same layout as the git data folder. The caller may add other files.
/// The folder is removed when this value is dropped.
#[derive(Debug)]
pub struct HardLinkSnapshot {
    folder: PathBuf,
    /// Number of repositories.
    pub repositories: u64,
}

impl Layout {
    /// Waits for running removals of git data, and holds off new ones.
    pub fn pause_removals(&self) -> RemovalPause<'_> {
        RemovalPause { layout: self, _removals: self.block_removals() }
    }
}

impl RemovalPause<'_> {
    /// Links all git data. Repositories with the same identifier are linked under one lock, so that those that read
    /// each other's pools are consistent. `on_progress` is called with the number of linked repositories and can stop
    /// the work with an error.
    ///
    /// # Errors
    /// If a file cannot be linked, or the error of `on_progress`.
    pub fn link_all<E: From<io::Error>>(
        &self,
        mut on_progress: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<HardLinkSnapshot, E> {
        let root = self.layout.root();
        let folder = root.join("snapshot").join(self.layout.next_number().to_string());
        // A killed server may have left one.
        remove_folder(&folder)?;
        let mut snapshot = HardLinkSnapshot { folder, repositories: 0 };
        let into = snapshot.git();
        for parent in REPO_PARENTS.into_iter().chain(["staged"]) {
            fs::create_dir_all(into.join(parent))?;
        }
        // Staged uploads come first: they may move into a pool, but not the other way.
        for upload in file_names(&root.join("staged"))? {
            let packs = Path::new("staged").join(upload).join("pack");
            link_packs(&root.join(&packs), &into.join(&packs))?;
        }
        for (name, folders) in self.repos_by_name()? {
            let _lock = self.layout.repo_locks.lock_file_name(&name);
            let mut unlinked: Vec<PathBuf> = folders;
            let mut seen = BTreeSet::new();
            while let Some(folder) = unlinked.pop() {
                if !seen.insert(folder.clone()) || !root.join(&folder).is_dir() {
                    continue;
                }
                link_repo(&root.join(&folder), &into.join(&folder))?;
                // Without HEAD it is the pool of a deleted repository, which others read.
                snapshot.repositories += u64::from(into.join(&folder).join("HEAD").exists());
                // A repository that it reads may have been created after the folders were listed.
                let pools = Alternates::read(&root.join(&folder))?.pools();
                unlinked
                    .extend(pools.iter().filter_map(|pool| Some(pool.parent()?.strip_prefix(root).ok()?.to_owned())));
            }
            on_progress(snapshot.repositories)?;
        }
        Ok(snapshot)
    }

    /// Returns the folders of repositories, relative to the git data folder, by the file name of their identifier.
    fn repos_by_name(&self) -> io::Result<BTreeMap<String, Vec<PathBuf>>> {
        let mut repos: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for parent in REPO_PARENTS {
            for (owner, file) in self.layout.repo_folders(parent)? {
                let Some(name) = file.to_str().and_then(|file| file.strip_suffix(".git")) else { continue };
                repos.entry(name.to_owned()).or_default().push(Path::new(parent).join(&owner).join(&file));
            }
        }
        Ok(repos)
    }
}

impl HardLinkSnapshot {
    /// Returns the folder of the snapshot, to which other files may be added.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the git data in it.
    #[must_use]
    pub fn git(&self) -> PathBuf {
        self.folder.join("git")
    }
}

impl Drop for HardLinkSnapshot {
    fn drop(&mut self) {
        // If this fails, the folder is removed at the next start.
        let _ = fs::remove_dir_all(&self.folder);
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

fn link_repo(from: &Path, to: &Path) -> io::Result<()> {
    create_repo_folders(to)?;
    link_packs(&from.join("pool/pack"), &to.join("pool/pack"))?;
    for file in REPO_FILES {
        link_if_exists(&from.join(file), &to.join(file))?;
    }
    Ok(())
}

/// Links packs and the multi-pack index, but no files that are being written.
fn link_packs(from: &Path, to: &Path) -> io::Result<()> {
    // If there is no folder, an upload has just been moved into its pool.
    let Some(names) = if_found(file_names(from))? else { return Ok(()) };
    fs::create_dir_all(to)?;
    for name in names {
        if name.to_str().is_some_and(|name| name.starts_with("pack-") || name.starts_with("multi-pack-index")) {
            link_if_exists(&from.join(&name), &to.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId, RepoPath};
    use tempfile::TempDir;

    use super::*;
    use crate::layout::create_bare_repo;
    use crate::refs::{RefTarget, Refs, read_refs, write_refs};

    fn repo_path(owner: u8, name: &str) -> RepoPath {
        RepoPath::Announced(RepoId {
            owner: PublicKey([owner; 32]),
            identifier: Identifier::new(name).expect("a valid identifier"),
        })
    }

    fn refs(oid: &str) -> Refs {
        let mut refs = Refs::default();
        refs.set("refs/heads/main", RefTarget { oid: oid.repeat(40), peeled: None });
        refs
    }

    #[test]
    fn snapshot_does_not_change_and_is_removed_when_dropped() {
        let folder = TempDir::new().expect("create a folder");
        let layout = Layout::open(folder.path()).expect("open a layout");
        let long = "ü".repeat(400);
        for name in ["tool", &long] {
            let repo = layout.repo_dir(&repo_path(1, name));
            create_bare_repo(&repo).expect("create a repository");
            write_refs(&repo, &refs("1")).expect("write refs");
            fs::write(repo.join("pool/pack/pack-1.pack"), "one").expect("write a file");
            fs::write(repo.join("pool/pack/tmp_pack_x"), "half").expect("write a file");
        }
        fs::create_dir_all(layout.root().join("staged/0000000000000007/pack")).expect("create a folder");
        fs::write(layout.root().join("staged/0000000000000007/pack/pack-2.pack"), "two").expect("write a file");
        let snapshot = layout.pause_removals().link_all(|_| Ok::<_, io::Error>(())).expect("link everything");
        assert_eq!(snapshot.repositories, 2);
        for name in ["tool", &long] {
            let repo = layout.repo_dir(&repo_path(1, name));
            write_refs(&repo, &refs("2")).expect("write refs");
            fs::remove_file(repo.join("pool/pack/pack-1.pack")).expect("remove a file");
            let copy = snapshot.git().join(crate::layout::relative_repo_dir(&repo_path(1, name)));
            assert_eq!(read_refs(&copy).expect("read refs").iter().next(), refs("1").iter().next());
            assert_eq!(fs::read_to_string(copy.join("pool/pack/pack-1.pack")).expect("read a file"), "one");
            assert!(copy.join("refs").is_dir() && !copy.join("pool/pack/tmp_pack_x").exists());
        }
        let staged = snapshot.git().join("staged/0000000000000007/pack/pack-2.pack");
        assert_eq!(fs::read_to_string(staged).expect("read a file"), "two");
        drop(snapshot);
        assert!(!layout.root().join("snapshot").exists());
    }

    #[test]
    fn removals_wait_and_a_stopped_snapshot_leaves_nothing() {
        let folder = TempDir::new().expect("create a folder");
        let layout = Layout::open(folder.path()).expect("open a layout");
        create_bare_repo(&layout.repo_dir(&repo_path(1, "tool"))).expect("create a repository");
        let is_removed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let pause = layout.pause_removals();
            scope.spawn(|| {
                let _removal = layout.begin_removal();
                is_removed.store(true, Ordering::SeqCst);
            });
            let stopped = pause.link_all(|_| Err(io::Error::from(io::ErrorKind::Interrupted)));
            assert!(stopped.is_err() && !layout.root().join("snapshot").exists());
            assert!(!is_removed.load(Ordering::SeqCst));
            drop(pause);
        });
        assert!(is_removed.load(Ordering::SeqCst));
    }
}
