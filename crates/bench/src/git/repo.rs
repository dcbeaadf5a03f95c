//! A generated repository, and how it comes onto a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nostr::key::PublicKey;
use nostr::nips::nip19::ToBech32;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::client::Client;
use super::host::{DOMAIN, Host, Side};
use super::stock;
use crate::connection::{Connection, Traffic};
use crate::event::{Author, Draft, SignedEvent};
use crate::message::Incoming;
use crate::repository::{ANNOUNCEMENT, STATE, tag};

/// The owner of all repositories takes its key from a stream that no corpus uses.
const OWNER_STREAM: u64 = 1 << 41;

/// States are dated from this long ago on, a second apart: there must be room for all of them before now.
const PAST: u64 = 100_000;

/// How long a server may take to show a ref that it has accepted.
const SHOW_DEADLINE: Duration = Duration::from_secs(60);

/// A repository.
#[derive(Debug, Clone)]
pub(super) struct Repo {
    owner: Author,
    npub: String,
    identifier: String,
    /// The generated original.
    pub(super) source: PathBuf,
    /// What servers are to show: names and objects.
    pub(super) refs: Vec<(String, String)>,
    /// When its next event is dated.
    time: u64,
}

impl Repo {
    /// A repository whose original is at `source`, with all of its refs.
    pub(super) fn new(seed: u64, identifier: &str, source: &Path) -> Result<Self> {
        let owner = Author::of(seed, OWNER_STREAM)?;
        let npub = PublicKey::from_hex(&owner.public_key)?.to_bech32()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let refs = stock::refs(source)?;
        Ok(Self { owner, npub, identifier: identifier.into(), source: source.into(), refs, time: now - PAST })
    }

    /// Its path on any server.
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

    /// Says that the repository has these refs.
    pub(super) fn state(&mut self) -> Result<SignedEvent> {
        let mut tags: Vec<_> = self.refs.iter().map(|(name, oid)| tag([name, oid])).collect();
        tags.push(tag(["HEAD", "ref: refs/heads/main"]));
        self.sign(STATE, tags)
    }

    /// Brings the repository onto a server: announced and pushed, or made and pushed.
    pub(super) async fn enter(&mut self, host: &Host) -> Result<()> {
        self.open(host).await?;
        self.push(host).await
    }

    /// Makes the server ready for the push.
    pub(super) async fn open(&mut self, host: &Host) -> Result<()> {
        match host.side {
            Side::Graspd => {
                let events = [self.announcement()?, self.state()?];
                let mut desk = Desk::open(host).await?;
                for event in events {
                    desk.publish(event).await.with_context(|| format!("about {}", self.identifier))?;
                }
                Ok(())
            }
            Side::Reference => {
                let folder = self.folder(host)?;
                fs::create_dir_all(&folder)?;
                stock::run(stock::git(&folder).args(["init", "--quiet", "--bare", "--initial-branch=main"]))?;
                stock::run(stock::git(&folder).args(["config", "http.receivepack", "true"]))?;
                Ok(())
            }
        }
    }

    /// Pushes all refs.
    pub(super) async fn push(&self, host: &Host) -> Result<()> {
        let mut git = stock::git(&self.source);
        git.args(["push", "--quiet", &host.url(&self.path()).to_string()]);
        git.args(self.refs.iter().map(|(name, oid)| format!("{oid}:{name}")));
        spawn_blocking(move || stock::run(&mut git)).await??;
        Ok(())
    }

    /// Adds a tag that asks for nothing new, to every server: what one kept for the repository as it was is of no
    /// use any more.
    pub(super) async fn touch(&mut self, number: u64, hosts: &[Arc<Host>]) -> Result<()> {
        let name = format!("refs/tags/touch-{number}");
        let oid = stock::run(stock::git(&self.source).args(["rev-parse", &format!("refs/heads/main~{}", number + 1)]))?;
        self.refs.push((name.clone(), oid.clone()));
        for host in hosts {
            match host.side {
                Side::Graspd => Desk::open(host).await?.publish(self.state()?).await?,
                Side::Reference => {
                    let folder = self.folder(host)?;
                    stock::run(stock::git(&folder).args(["update-ref", &name, &oid]))?;
                }
            }
            self.shows(host, &name).await?;
            host.settle().await?;
        }
        self.mirror(hosts)
    }

    /// Waits until a server shows a ref.
    async fn shows(&self, host: &Host, name: &str) -> Result<()> {
        let url = host.url(&self.path());
        let started = Instant::now();
        while !url.refs(&mut Client::new(&url.address)).await?.iter().any(|shown| shown.name == name) {
            if started.elapsed() > SHOW_DEADLINE {
                bail!("{url} does not show {name} after {} s", SHOW_DEADLINE.as_secs());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The folder on a server.
    fn folder(&self, host: &Host) -> Result<PathBuf> {
        let name = format!("{}.git", self.identifier);
        match host.side {
            Side::Reference => Ok(host.folder.join(&self.npub).join(name)),
            Side::Graspd => {
                let found = host.folder.join("repos").join(&self.npub).join(&name);
                if !found.join("HEAD").exists() {
                    bail!("{} is not there; has the layout of graspd's folder changed?", found.display());
                }
                Ok(found)
            }
        }
    }

    /// Gives the reference the very packs that graspd serves, with whatever lies beside them (bitmaps, commit graphs), and
    /// its refs in one file, as graspd has them.
    pub(super) fn mirror(&self, hosts: &[Arc<Host>]) -> Result<()> {
        let of = |side| hosts.iter().find(|host| host.side == side);
        let Some(reference) = of(Side::Reference) else { return Ok(()) };
        let folder = self.folder(reference)?;
        if let Some(graspd) = of(Side::Graspd) {
            link_objects(&self.folder(graspd)?.join("objects"), &folder.join("objects"))?;
        }
        stock::run(stock::git(&folder).args(["pack-refs", "--all"]))?;
        stock::run(stock::git(&folder).args(["rev-list", "--all", "--count"]))?;
        Ok(())
    }
}

/// Replaces the objects of a repository by those of another, without copying.
fn link_objects(from: &Path, to: &Path) -> Result<()> {
    fs::remove_dir_all(to)?;
    for pool in object_folders(from)? {
        for part in ["pack", "info", "info/commit-graphs"] {
            link_files(&pool.join(part), &to.join(part))?;
        }
    }
    Ok(())
}

/// An object folder and those that it borrows from.
fn object_folders(objects: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![objects.to_owned()];
    if let Ok(text) = fs::read_to_string(objects.join("info/alternates")) {
        folders.extend(text.lines().filter(|line| !line.starts_with('#')).map(|line| objects.join(line)));
    }
    Ok(folders)
}

/// Links every file of a folder into another; nothing if there is no such folder.
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

/// A connection over which events are published one at a time.
pub(super) struct Desk {
    connection: Connection,
}

impl Desk {
    /// Connects to graspd.
    pub(super) async fn open(host: &Host) -> Result<Self> {
        let url = format!("ws://{}", host.address).parse()?;
        Ok(Self { connection: Connection::open(&url, Traffic::Heavy).await? })
    }

    /// Publishes an event and waits for its verdict.
    pub(super) async fn publish(&mut self, event: SignedEvent) -> Result<()> {
        let kind = event.kind;
        self.connection.send(event.message).await?;
        loop {
            let text = self.connection.next().await?;
            match Incoming::read(&text) {
                Incoming::Verdict { id, accepted: true, .. } if id == event.id => return Ok(()),
                Incoming::Verdict { id, reason, .. } if id == event.id => {
                    bail!("an event of kind {kind} was refused: {reason}");
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::make;

    #[test]
    fn events_name_the_service_and_rise_in_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("small");
        make::small(&source, 1).expect("makes");
        let mut repo = Repo::new(1, "small", &source).expect("signs");
        assert!(repo.path().starts_with("/npub1") && repo.path().ends_with("/small.git"));
        let (announcement, state) = (repo.announcement().expect("signs"), repo.state().expect("signs"));
        assert!(announcement.json().contains(&format!("http://bench.example{}", repo.path())));
        assert!(state.json().contains(&repo.refs[0].1));
        assert!(announcement.created_at < state.created_at);
    }

    #[test]
    fn a_mirror_has_the_same_objects() {
        let folder = tempfile::tempdir().expect("a folder");
        let (served, mirror) = (folder.path().join("served"), folder.path().join("mirror"));
        make::small(&served, 1).expect("makes");
        make::chain(&mirror, 2, 3).expect("makes");
        // As graspd has it: packs in a pool, and a repository that borrows them.
        fs::rename(served.join("objects"), served.join("pool")).expect("a folder");
        fs::create_dir_all(served.join("objects/info")).expect("a folder");
        let pool = served.join("pool");
        fs::write(served.join("objects/info/alternates"), format!("{}\n", pool.display())).expect("a file");
        let (_, tip) = stock::refs(&served).expect("refs").remove(0);

        link_objects(&served.join("objects"), &mirror.join("objects")).expect("links");
        fs::remove_dir_all(&served).expect("removes");
        let mut git = stock::git(&mirror);
        assert_eq!(stock::run(git.args(["rev-list", "--count", &tip])).expect("the same objects"), "1");
    }

    #[test]
    fn borrowed_objects_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let objects = folder.path().join("objects");
        fs::create_dir_all(objects.join("info")).expect("a folder");
        assert_eq!(object_folders(&objects).expect("reads").len(), 1);
        fs::write(objects.join("info/alternates"), "../pool\n/elsewhere\n").expect("a file");
        let expected = [objects.clone(), objects.join("../pool"), PathBuf::from("/elsewhere")];
        assert_eq!(object_folders(&objects).expect("reads"), expected);
    }
}
