//! A full disk under the git folder: a push is rejected with a reason at whichever step it fails, nothing is damaged or
//! left behind, and the same push succeeds when there is space again.

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use tempfile::TempDir;

use crate::support::git::{
    BASE_TIME, GitOutput, MAIN, Maintainer, Refs, WorkTree, incompressible_text, ls_remote, refs, repo_path,
};
use crate::support::integrity::{entries, expect_intact_repos, expect_needed_objects, repo_folders};
use crate::support::small_disk::SmallDisk;
use crate::support::test_server::{is_served, main_at, one_commit};
use crate::support::{Server, command, eventually};

/// A server whose git folder is on a small disk, and a repository to push.
struct SmallDiskServer {
    process: Server,
    owner: Maintainer,
    work: WorkTree,
    relay: TempDir,
    // The last field, because it can be unmounted only after the server has ended.
    disk: SmallDisk,
}

/// More pages than a small push needs. With every page less, a push fails at an earlier step.
const MAX_PAGES: u64 = 50;

impl SmallDiskServer {
    /// Starts a server; returns `None` if mounting is not permitted on this machine.
    fn new(settings: &[(&str, &str)]) -> Option<Self> {
        let disk = SmallDisk::mount()?;
        let relay = TempDir::new().expect("cannot create a temporary folder");
        let process = Self::start(&relay, &disk, settings);
        let owner = Maintainer::new(1, &ServiceAddress::new("grasp.test", "").expect("valid host name"));
        let (work, _) = one_commit("zero");
        let server = Self { process, owner, work, relay, disk };
        server.publish(&server.owner.announce("tool", BASE_TIME, &[]));
        Some(server)
    }

    fn start(relay: &TempDir, disk: &SmallDisk, settings: &[(&str, &str)]) -> Server {
        let git = disk.path().join("git").display().to_string();
        let paths = [("DOMAIN", "grasp.test"), ("LOG_LEVEL", "off"), ("GIT_DATA_PATH", git.as_str())];
        let no_reserve = [("STORE_RESERVE_BYTES", "0")];
        Server::spawn(command(relay.path(), &[&paths, &no_reserve[..], settings].concat()))
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }

    fn url(&self) -> String {
        format!("http://{}{}", self.process.address, self.path())
    }

    fn push(&self, commit: &str) -> GitOutput {
        self.work.push(&self.url(), &[&format!("{commit}:{MAIN}")])
    }

    fn publish(&self, event: &SignedEvent) {
        let (accepted, text) = self.process.connect().publish(event);
        assert!(accepted, "{text}");
    }

    /// Publishes an event as soon as the server has noticed that there is space.
    fn publish_when_accepted(&self, event: &SignedEvent) {
        eventually("the event is accepted", || self.process.connect().publish(event).0.then_some(()));
    }

    fn is_served(&self, event: &SignedEvent) -> bool {
        is_served(&mut self.process.connect(), event)
    }

    /// Makes a commit and publishes a state for it, which is held; returns both.
    fn publish_next_state(&self, nth: u64, content: &str) -> (Arc<SignedEvent>, String) {
        let commit = self.work.commit("file", content);
        let state = self.owner.state("tool", BASE_TIME + nth, &main_at(&commit));
        self.publish(&state);
        (state, commit)
    }

    /// Waits until no push is in progress, then fills the disk so that only `pages` pages are free.
    fn fill_disk_except(&self, pages: u64) {
        let incoming = self.disk.path().join("git/incoming");
        eventually("no push is in progress", || entries(&incoming).is_empty().then_some(()));
        self.disk.fill_except(pages);
    }

    /// Pushes until the server has noticed that there is space.
    fn push_until_accepted(&self, commit: &str) {
        eventually("the push is accepted", || self.push(commit).success.then_some(()));
    }

    /// Asserts that a push was rejected because the disk is full, and that refs and state changed together if at all.
    fn expect_rejected(&self, output: &GitOutput, state: &SignedEvent, before: &Refs) {
        let full = output.stderr.contains("E-PACK-DISK-FULL") && output.stderr.contains("try again later");
        // The health monitor may have noticed the full disk first.
        let full = full || output.stderr.contains("E-DISK-FULL");
        let failed = output.stderr.contains("E-SERVER") && output.stderr.contains("No space left on device");
        assert!(!output.success && (full || failed), "{}", output.stderr);
        // On a slow machine the server has already retried the push, and there was space for that.
        let was_served = self.is_served(state);
        let refs = ls_remote(&self.url()).refs;
        if refs == *before {
            assert!(!was_served, "served without its refs");
        } else {
            eventually("the state is served with its refs", || self.is_served(state).then_some(()));
        }
    }

    fn expect_intact_repos(&self) {
        expect_intact_repos(&self.disk.path().join("git"));
    }
}

#[test]
fn push_is_rejected_wherever_the_disk_is_full() {
    let Some(mut server) = SmallDiskServer::new(&[]) else { return };
    let mut before = refs(&[]);
    // The first push of a repository, and a later one.
    for nth in 0..2 {
        let (state, commit) = server.publish_next_state(nth, &nth.to_string());
        let mut failures = 0;
        loop {
            assert!(failures < MAX_PAGES, "the push never succeeds");
            server.fill_disk_except(failures);
            // The server itself retries the previous push if there is space now.
            if server.is_served(&state) {
                break;
            }
            let output = server.push(&commit);
            if output.success {
                break;
            }
            server.expect_rejected(&output, &state, &before);
            failures += 1;
        }
        // Without a free page, and without one for the index of the pack.
        assert!(failures >= 2, "{failures}");
        server.disk.free();
        server.push_until_accepted(&commit);
        eventually("the state is served", || server.is_served(&state).then_some(()));
        before = refs(&main_at(&commit));
        assert_eq!(ls_remote(&server.url()).refs, before);
        server.expect_intact_repos();
        expect_needed_objects(&server.process, &[server.path()]);
    }
    assert!(server.process.child.try_wait().expect("cannot wait for the server").is_none(), "the server has ended");
}

#[test]
fn large_push_succeeds_when_there_is_space_again() {
    let Some(server) = SmallDiskServer::new(&[]) else { return };
    let (state, commit) = server.publish_next_state(0, &incompressible_text(3_000_000));
    // Less space than the pack needs, then space for the pack but not for its index.
    for pages in [0, 100, 400] {
        server.fill_disk_except(pages);
        server.expect_rejected(&server.push(&commit), &state, &refs(&[]));
        server.expect_intact_repos();
        assert!(repo_folders(&server.disk.path().join("git")).is_empty());
    }
    server.disk.free();
    server.push_until_accepted(&commit);
    assert!(server.is_served(&state));
    server.expect_intact_repos();
    expect_needed_objects(&server.process, &[server.path()]);
}

/// A push that fails late leaves a repository folder. It is removed when the announcement, which was never served,
/// expires.
#[test]
fn folder_of_a_failed_first_push_is_removed_on_expiry() {
    let Some(server) = SmallDiskServer::new(&[("PURGATORY_EXPIRY_SECS", "15")]) else { return };
    let folder = server.disk.path().join("git");
    let commit = server.work.commit("file", "one");
    let mut pages = 0;
    // Which number of free pages lets a push fail late depends on what else the server does. Every attempt has its own
    // repository, since a waiting announcement expires soon and an accepted push keeps its folder.
    let created = (0..4 * MAX_PAGES).find_map(|nth| {
        let identifier = format!("tool-{nth}");
        server.publish_when_accepted(&server.owner.announce(&identifier, BASE_TIME, &[]));
        let state = server.owner.state(&identifier, BASE_TIME, &main_at(&commit));
        server.publish_when_accepted(&state);
        let before = repo_folders(&folder);
        server.fill_disk_except(pages);
        let url = format!("http://{}{}", server.process.address, repo_path(&server.owner.npub(), &identifier));
        let output = server.work.push(&url, &[&format!("{commit}:{MAIN}")]);
        let created = repo_folders(&folder).into_iter().find(|path| !before.contains(path));
        server.disk.fill_except(0);
        // The server itself retries a failed push if there is space.
        let accepted = output.success || server.is_served(&state);
        pages = if accepted { 0 } else { pages + 1 };
        created.filter(|_| !accepted).or_else(|| {
            server.disk.free();
            None
        })
    });
    let created = created.expect("some push fails after it has created the repository folder");
    eventually("the folder is removed", || (!created.exists()).then_some(()));
    server.expect_intact_repos();
}

/// At start the server creates a small repository to read git's capabilities. It uses another folder if the disk is
/// full.
#[test]
fn server_starts_on_a_full_disk() {
    let Some(mut server) = SmallDiskServer::new(&[]) else { return };
    let (state, commit) = server.publish_next_state(0, "one");
    server.push(&commit).expect_success();
    assert_eq!(server.process.stop(), Some(0));
    server.disk.fill_except(0);
    server.process = SmallDiskServer::start(&server.relay, &server.disk, &[]);
    assert!(server.is_served(&state));
    assert_eq!(ls_remote(&server.url()).refs, refs(&main_at(&commit)));
    assert!(entries(&server.disk.path().join("git/incoming")).is_empty());
}
