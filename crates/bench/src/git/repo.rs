//! Generated repositories and their publication on a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nostr::key::PublicKey;
use nostr::nips::nip19::ToBech32;
use tokio::time::sleep;

use super::client::Client;
use super::host::{DOMAIN, GitServer, ServerKind};
use super::installed_git;
use crate::event::{Author, Draft, SignedEvent};
use crate::repository::{ANNOUNCEMENT, STATE, tag};

/// Random stream of the owner's key, which no corpus uses.
const OWNER_STREAM: u64 = 1 << 41;

/// The first state is dated this many seconds in the past, and each following one second later, so that none is in the
/// future.
const STATE_AGE_SECS: u64 = 100_000;

/// Time within which a server must advertise a ref that it has accepted.
const REF_DEADLINE: Duration = Duration::from_secs(60);

/// A generated repository.
#[derive(Debug, Clone)]
pub(super) struct GeneratedRepo {
    owner: Author,
    npub: String,
    identifier: String,
    /// Folder of the generated repository.
    pub(super) source: PathBuf,
    /// The refs that servers should have: names and object ids.
    pub(super) refs: Vec<(String, String)>,
    /// Timestamp of the last event.
    time: u64,
}

impl GeneratedRepo {
    /// Creates a repository from the folder `source`, with all of its refs.
    pub(super) fn new(seed: u64, identifier: &str, source: &Path) -> Result<Self> {
        let owner = Author::from_seed(seed, OWNER_STREAM)?;
        let npub = PublicKey::from_hex(&owner.public_key)?.to_bech32()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let refs = installed_git::refs(source)?;
        Ok(Self { owner, npub, identifier: identifier.into(), source: source.into(), refs, time: now - STATE_AGE_SECS })
    }

    /// Returns its path on any server.
    pub(super) fn path(&self) -> String {
        format!("/{}/{}.git", self.npub, self.identifier)
    }

    fn sign(&mut self, kind: u16, mut tags: Vec<Vec<String>>) -> Result<SignedEvent> {
        self.time += 1;
        tags.insert(0, tag(["d", &self.identifier]));
        self.owner.sign(Draft { kind, created_at: self.time, tags, content: String::new() })
    }

    fn announcement(&mut self) -> Result<SignedEvent> {
        let clone = format!("http://{DOMAIN}{}", self.path());
        let tags = vec![tag(["clone", &clone]), tag(["relays", &format!("ws://{DOMAIN}")])];
        self.sign(ANNOUNCEMENT, tags)
    }

    /// Signs a state event with the current refs.
    pub(super) fn state(&mut self) -> Result<SignedEvent> {
        let mut tags: Vec<_> = self.refs.iter().map(|(name, oid)| tag([name, oid])).collect();
        tags.push(tag(["HEAD", "ref: refs/heads/main"]));
        self.sign(STATE, tags)
    }

    /// Publishes the repository on a server: announces or creates it, and pushes all refs.
    pub(super) async fn announce_and_push(&mut self, server: &GitServer) -> Result<()> {
        self.prepare(server).await?;
        self.push(server).await
    }

    /// Prepares the server for the push: publishes announcement and state, or creates the repository.
    pub(super) async fn prepare(&mut self, server: &GitServer) -> Result<()> {
        match server.kind {
            ServerKind::Graspd => {
                let events = [self.announcement()?, self.state()?];
                let mut publisher = server.connect().await?;
                for event in events {
                    publisher
                        .publish(event)
                        .await
                        .with_context(|| format!("cannot publish events of {}", self.identifier))?;
                }
                Ok(())
            }
            ServerKind::Reference => {
                let folder = self.folder(server)?;
                fs::create_dir_all(&folder)?;
                installed_git::run(installed_git::git(&folder).args([
                    "init",
                    "--quiet",
                    "--bare",
                    "--initial-branch=main",
                ]))?;
                installed_git::run(installed_git::git(&folder).args(["config", "http.receivepack", "true"]))?;
                Ok(())
            }
        }
    }

    /// Pushes all refs.
    pub(super) async fn push(&self, server: &GitServer) -> Result<()> {
        let mut git = installed_git::git(&self.source);
        git.args(["push", "--quiet", &server.url(&self.path()).to_string()]);
        git.args(self.refs.iter().map(|(name, oid)| format!("{oid}:{name}")));
        installed_git::run_timed(git).await.map(drop)
    }

    /// Adds a tag on an existing commit on every server, so that cached responses no longer match.
    pub(super) async fn add_tag(&mut self, number: u64, servers: &[Arc<GitServer>]) -> Result<()> {
        let name = format!("refs/tags/touch-{number}");
        let oid = installed_git::run(
            installed_git::git(&self.source).args(["rev-parse", &format!("refs/heads/main~{}", number + 1)]),
        )?;
        self.refs.push((name.clone(), oid.clone()));
        for server in servers {
            match server.kind {
                ServerKind::Graspd => server.connect().await?.publish(self.state()?).await?,
                ServerKind::Reference => {
                    let folder = self.folder(server)?;
                    installed_git::run(installed_git::git(&folder).args(["update-ref", &name, &oid]))?;
                }
            }
            self.wait_for_ref(server, &name).await?;
            server.wait_until_idle().await?;
        }
        self.link_reference_packs(servers)
    }

    /// Waits until a server advertises a ref.
    async fn wait_for_ref(&self, server: &GitServer, name: &str) -> Result<()> {
        let url = server.url(&self.path());
        let started = Instant::now();
        while !url.refs(&mut Client::new(&url.address)).await?.iter().any(|(shown, _)| shown == name) {
            if started.elapsed() > REF_DEADLINE {
                bail!("{url} does not advertise {name} after {} s", REF_DEADLINE.as_secs());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Returns the folder of the repository on a server.
    fn folder(&self, server: &GitServer) -> Result<PathBuf> {
        let name = format!("{}.git", self.identifier);
        match server.kind {
            ServerKind::Reference => Ok(server.folder.join(&self.npub).join(name)),
            ServerKind::Graspd => {
                let found = server.folder.join("repos").join(&self.npub).join(&name);
                if !found.join("HEAD").exists() {
                    bail!("{} does not exist; the layout of graspd's git folder may have changed", found.display());
                }
                Ok(found)
            }
        }
    }

    /// Replaces the packs of the reference by hard links to those of graspd, including bitmaps and commit graphs, and
    /// packs its refs into one file, as graspd does.
    pub(super) fn link_reference_packs(&self, servers: &[Arc<GitServer>]) -> Result<()> {
        let with_kind = |kind| servers.iter().find(|server| server.kind == kind);
        let Some(reference) = with_kind(ServerKind::Reference) else { return Ok(()) };
        let folder = self.folder(reference)?;
        if let Some(graspd) = with_kind(ServerKind::Graspd) {
            link_objects(&self.folder(graspd)?.join("objects"), &folder.join("objects"))?;
        }
        installed_git::run(installed_git::git(&folder).args(["pack-refs", "--all"]))?;
        installed_git::run(installed_git::git(&folder).args(["rev-list", "--all", "--count"]))?;
        Ok(())
    }
}

/// Replaces the objects of a repository by hard links to those of another.
fn link_objects(from: &Path, to: &Path) -> Result<()> {
    fs::remove_dir_all(to)?;
    for pool in object_folders(from)? {
        for part in ["pack", "info", "info/commit-graphs"] {
            link_files(&pool.join(part), &to.join(part))?;
        }
    }
    Ok(())
}

/// Returns an object folder and its alternates.
fn object_folders(objects: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![objects.to_owned()];
    if let Ok(text) = fs::read_to_string(objects.join("info/alternates")) {
        folders.extend(text.lines().filter(|line| !line.starts_with('#')).map(|line| objects.join(line)));
    }
    Ok(folders)
}

/// Creates hard links of all files of a folder in another one. Does nothing if the folder does not exist.
fn link_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let skipped = name == "alternates" || name.to_string_lossy().starts_with("tmp_");
        if entry.file_type()?.is_file() && !skipped {
            let target = to.join(&name);
            fs::hard_link(entry.path(), &target).with_context(|| format!("cannot link {}", target.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::generated_repo;

    #[test]
    fn events_list_the_service_and_have_increasing_timestamps() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("small");
        generated_repo::single_commit(&source, 1).expect("makes");
        let mut repo = GeneratedRepo::new(1, "small", &source).expect("signs");
        assert!(repo.path().starts_with("/npub1") && repo.path().ends_with("/small.git"));
        let (announcement, state) = (repo.announcement().expect("signs"), repo.state().expect("signs"));
        assert!(announcement.json().contains(&format!("http://bench.example{}", repo.path())));
        assert!(state.json().contains(&repo.refs[0].1));
        assert!(announcement.created_at < state.created_at);
    }

    #[test]
    fn linked_repository_has_the_same_objects() {
        let folder = tempfile::tempdir().expect("a folder");
        let (served, mirror) = (folder.path().join("served"), folder.path().join("mirror"));
        generated_repo::single_commit(&served, 1).expect("makes");
        generated_repo::linear_history(&mirror, 2, 3).expect("makes");
        // The layout of graspd: packs in a pool, and a repository with the pool as alternate.
        fs::rename(served.join("objects"), served.join("pool")).expect("a folder");
        fs::create_dir_all(served.join("objects/info")).expect("a folder");
        let pool = served.join("pool");
        fs::write(served.join("objects/info/alternates"), format!("{}\n", pool.display())).expect("a file");
        let (_, tip) = installed_git::refs(&served).expect("refs").remove(0);

        link_objects(&served.join("objects"), &mirror.join("objects")).expect("links");
        fs::remove_dir_all(&served).expect("removes");
        let mut git = installed_git::git(&mirror);
        assert_eq!(installed_git::run(git.args(["rev-list", "--count", &tip])).expect("the same objects"), "1");
    }

    #[test]
    fn alternates_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let objects = folder.path().join("objects");
        fs::create_dir_all(objects.join("info")).expect("a folder");
        assert_eq!(object_folders(&objects).expect("reads").len(), 1);
        fs::write(objects.join("info/alternates"), "../pool\n/elsewhere\n").expect("a file");
        let expected = [objects.clone(), objects.join("../pool"), PathBuf::from("/elsewhere")];
        assert_eq!(object_folders(&objects).expect("reads"), expected);
    }
}
