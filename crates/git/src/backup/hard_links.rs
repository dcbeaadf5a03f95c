//! Links to all git data at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::RwLockWriteGuard;
use std::{fs, io};

use crate::apply::alternates::Readable;
use crate::layout::Layout;

/// The folders of repositories.
const ROOMS: [&str; 2] = ["repos", "prs"];

/// The files of a repository beside its packs. HEAD makes it a repository, so it comes last.
const FILES: [&str; 5] = ["config", "packed-refs", "objects/info/alternates", "pool/info/commit-graph", "HEAD"];

/// The folders of a repository.
const FOLDERS: [&str; 5] = ["objects/info", "objects/pack", "refs", "pool/pack", "pool/info"];

/// No git data is taken away while somebody has this.
pub struct Stillness<'l> {
    layout: &'l Layout,
    _removals: RwLockWriteGuard<'l, ()>,
}

/// A folder with links to all git data, in the same order as in the git folder, and room for more. It goes with this value.
#[derive(Debug)]
pub struct Links {
    folder: PathBuf,
    /// Repositories in it.
    pub repositories: u64,
}

impl Layout {
    /// Waits until nobody takes git data away, and lets nobody begin.
    pub fn hold_removals(&self) -> Stillness<'_> {
        Stillness { layout: self, _removals: self.stillness() }
    }
}

impl Stillness<'_> {
    /// Links everything. Repositories of one name are linked in one turn, so that those who read each other's pools are of
    /// one moment. `tell` hears of each of them, and stops the work by an error of its own.
    pub fn link_all<E: From<io::Error>>(&self, mut tell: impl FnMut(u64) -> Result<(), E>) -> Result<Links, E> {
        let root = self.layout.root();
        let folder = root.join("snapshot").join(self.layout.number().to_string());
        // One of a server that was killed may be there.
        match fs::remove_dir_all(&folder) {
            Err(problem) if problem.kind() != ErrorKind::NotFound => return Err(problem.into()),
            _ => {}
        }
        let mut links = Links { folder, repositories: 0 };
        let into = links.git();
        for room in ROOMS.into_iter().chain(["staged"]) {
            fs::create_dir_all(into.join(room))?;
        }
        // First: what is staged may move into a pool, and not the other way.
        for upload in fs::read_dir(root.join("staged"))? {
            let upload = upload?;
            link_packs(&upload.path().join("pack"), &into.join("staged").join(upload.file_name()).join("pack"))?;
        }
        for (name, found) in self.names()? {
            let _turn = self.layout.turns.wait_at(&name);
            let mut open: Vec<PathBuf> = found;
            let mut seen = BTreeSet::new();
            while let Some(repo_path) = open.pop() {
                if !seen.insert(repo_path.clone()) || !root.join(&repo_path).join("HEAD").exists() {
                    continue;
                }
                link_site(&root.join(&repo_path), &into.join(&repo_path))?;
                links.repositories += 1;
                // One may have come since the names were read.
                let pools = Readable::read(&root.join(&repo_path))?.pools();
                open.extend(pools.iter().filter_map(|pool| Some(pool.parent()?.strip_prefix(root).ok()?.to_owned())));
            }
            tell(links.repositories)?;
        }
        Ok(links)
    }

    /// What the folders of names are called, and where they are.
    fn names(&self) -> io::Result<BTreeMap<String, Vec<PathBuf>>> {
        let mut names: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for room in ROOMS {
            for owner in fs::read_dir(self.layout.root().join(room))? {
                let owner = owner?.file_name();
                let repositories = match fs::read_dir(self.layout.root().join(room).join(&owner)) {
                    // An owner's folder goes with a repository that could not be made.
                    Err(problem) if problem.kind() == ErrorKind::NotFound => continue,
                    repositories => repositories?,
                };
                for repository in repositories {
                    let file = repository?.file_name();
                    let Some(name) = file.to_str().and_then(|file| file.strip_suffix(".git")) else { continue };
                    names.entry(name.to_owned()).or_default().push(Path::new(room).join(&owner).join(&file));
                }
            }
        }
        Ok(names)
    }
}

impl Links {
    /// The folder. Whatever else belongs to the moment may be put beside the git data.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The git data in it.
    #[must_use]
    pub fn git(&self) -> PathBuf {
        self.folder.join("git")
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        // If it stays it is removed at the next start.
        let _ = fs::remove_dir_all(&self.folder);
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

fn link_site(from: &Path, to: &Path) -> io::Result<()> {
    make_folders(to)?;
    link_packs(&from.join("pool/pack"), &to.join("pool/pack"))?;
    for file in FILES {
        link(&from.join(file), &to.join(file))?;
    }
    Ok(())
}

/// Makes the folders of a repository, without which git does not take it for one. Some of them are empty, and a list of
/// files does not name those.
pub fn make_folders(repository: &Path) -> io::Result<()> {
    FOLDERS.iter().try_for_each(|folder| fs::create_dir_all(repository.join(folder)))
}

/// Links packs and the index over them, not what is being written.
fn link_packs(from: &Path, to: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        // An upload has just moved into its pool.
        Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    fs::create_dir_all(to)?;
    for entry in entries {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("pack-") || name.starts_with("multi-pack-index")) {
            link(&from.join(&name), &to.join(&name))?;
        }
    }
    Ok(())
}

/// Links a file that may not be there.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId, RepoPath};
    use tempfile::TempDir;

    use super::*;
    use crate::layout::make_bare;
    use crate::refs::{Refs, Target};

    fn repo_path(owner: u8, name: &str) -> RepoPath {
        RepoPath::Announced(RepoId {
            owner: PublicKey([owner; 32]),
            identifier: Identifier::new(name).expect("a name"),
        })
    }

    fn refs(oid: &str) -> Refs {
        let mut refs = Refs::default();
        refs.set("refs/heads/main", Target { oid: oid.repeat(40), peeled: None });
        refs
    }

    #[test]
    fn links_stay_as_they_were_and_go_with_their_value() {
        let folder = TempDir::new().expect("a folder");
        let layout = Layout::open(folder.path()).expect("opens");
        let long = "ü".repeat(400);
        for name in ["tool", &long] {
            let home = layout.repo_dir(&repo_path(1, name));
            make_bare(&home).expect("makes it");
            refs("1").write(&home).expect("writes");
            fs::write(home.join("pool/pack/pack-1.pack"), "one").expect("writes");
            fs::write(home.join("pool/pack/tmp_pack_x"), "half").expect("writes");
        }
        fs::create_dir_all(layout.root().join("staged/0000000000000007/pack")).expect("a folder");
        fs::write(layout.root().join("staged/0000000000000007/pack/pack-2.pack"), "two").expect("writes");
        let links = layout.hold_removals().link_all(|_| Ok::<_, io::Error>(())).expect("links");
        assert_eq!(links.repositories, 2);
        for name in ["tool", &long] {
            let home = layout.repo_dir(&repo_path(1, name));
            refs("2").write(&home).expect("writes");
            fs::remove_file(home.join("pool/pack/pack-1.pack")).expect("removes");
            let copy = links.git().join(crate::layout::path_of(&repo_path(1, name)));
            assert_eq!(Refs::read(&copy).expect("reads").iter().next(), refs("1").iter().next());
            assert_eq!(fs::read_to_string(copy.join("pool/pack/pack-1.pack")).expect("reads"), "one");
            assert!(copy.join("refs").is_dir() && !copy.join("pool/pack/tmp_pack_x").exists());
        }
        let staged = links.git().join("staged/0000000000000007/pack/pack-2.pack");
        assert_eq!(fs::read_to_string(staged).expect("reads"), "two");
        drop(links);
        assert!(!layout.root().join("snapshot").exists());
    }

    #[test]
    fn removals_wait_and_whoever_stops_leaves_nothing() {
        let folder = TempDir::new().expect("a folder");
        let layout = Layout::open(folder.path()).expect("opens");
        make_bare(&layout.repo_dir(&repo_path(1, "tool"))).expect("makes it");
        let removed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let still = layout.hold_removals();
            scope.spawn(|| {
                let _removal = layout.removal();
                removed.store(true, Ordering::SeqCst);
            });
            let stopped = still.link_all(|_| Err(io::Error::from(ErrorKind::Interrupted)));
            assert!(stopped.is_err() && !layout.root().join("snapshot").exists());
            assert!(!removed.load(Ordering::SeqCst));
            drop(still);
        });
        assert!(removed.load(Ordering::SeqCst));
    }
}
