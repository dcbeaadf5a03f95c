//! A full disk under the git folder: a push is refused with a reason wherever it fails, nothing is damaged or left
//! behind, and the same push goes through when there is space again.

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use tempfile::TempDir;

use crate::support::git::{MAIN, Maintainer, Refs, Said, THEN, Work, ls_remote, noise, refs, repo_path};
use crate::support::integrity::{entries, expect_objects, expect_sound, repositories};
use crate::support::small_disk::SmallDisk;
use crate::support::test_server::{main_at, one_commit, served};
use crate::support::{Server, command, eventually};

/// A server whose git folder is on a small disk of its own, and somebody with a repository to push.
struct AppState {
    server: Server,
    owner: Maintainer,
    work: Work,
    _relay: TempDir,
    // The last: it can be unmounted when the server is gone.
    disk: SmallDisk,
}

/// With every page more a push fails one step later; a small one does not need as many as this.
const ENOUGH: u64 = 50;

impl AppState {
    /// Nothing where mounting is not permitted.
    fn new(settings: &[(&str, &str)]) -> Option<Self> {
        let disk = SmallDisk::mount()?;
        let relay = TempDir::new().expect("a folder");
        let git = disk.path().join("git").display().to_string();
        let named = [("DOMAIN", "grasp.test"), ("LOG_LEVEL", "off"), ("GIT_DATA_PATH", git.as_str())];
        let to_the_last_page = [("STORE_RESERVE_BYTES", "0")];
        let server = Server::spawn(command(relay.path(), &[&named, &to_the_last_page[..], settings].concat()));
        let owner = Maintainer::new(1, &ServiceAddress::new("grasp.test", "").expect("a host name"));
        let (work, _) = one_commit("zero");
        let house = Self { server, owner, work, _relay: relay, disk };
        house.publish(&house.owner.announce("tool", THEN, &[]));
        Some(house)
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }

    fn url(&self) -> String {
        format!("http://{}{}", self.server.address, self.path())
    }

    fn push(&self, commit: &str) -> Said {
        self.work.push(&self.url(), &[&format!("{commit}:{MAIN}")])
    }

    fn publish(&self, event: &SignedEvent) {
        let (accepted, text) = self.server.connect().publish(event);
        assert!(accepted, "{text}");
    }

    fn is_served(&self, event: &SignedEvent) -> bool {
        served(&mut self.server.connect(), event)
    }

    /// A state with a new commit, which waits.
    fn next(&self, nth: u64, content: &str) -> (Arc<SignedEvent>, String) {
        let commit = self.work.commit("file", content);
        let state = self.owner.state("tool", THEN + nth, &main_at(&commit));
        self.publish(&state);
        (state, commit)
    }

    /// Leaves so many pages free, when nothing is on its way any more.
    fn leave(&self, pages: u64) {
        let incoming = self.disk.path().join("git/incoming");
        eventually("nothing is on its way", || entries(&incoming).is_empty().then_some(()));
        self.disk.fill_but(pages);
    }

    /// A push that goes through as soon as the server has seen that there is room.
    fn push_soon(&self, commit: &str) {
        eventually("there is room", || self.push(commit).success.then_some(()));
    }

    /// A push that does not fit: it says so, and changes nothing that can be seen.
    fn expect_refused(&self, said: &Said, state: &SignedEvent, before: &Refs) {
        let full = said.err.contains("E-PACK-DISK-FULL") && said.err.contains("try again later");
        // The watchman may have seen it, too.
        let full = full || said.err.contains("E-DISK-FULL");
        let failed = said.err.contains("E-SERVER") && said.err.contains("No space left on device");
        assert!(!said.success && (full || failed), "{}", said.err);
        assert_eq!(ls_remote(&self.url()).refs, *before);
        assert!(!self.is_served(state));
    }

    fn expect_sound(&self) {
        expect_sound(&self.disk.path().join("git"));
    }
}

#[test]
fn wherever_a_push_fails_it_is_refused() {
    let Some(mut house) = AppState::new(&[]) else { return };
    let mut before = refs(&[]);
    // The first push of a repository, and another one.
    for nth in 0..2 {
        let (state, commit) = house.next(nth, &nth.to_string());
        let mut failures = 0;
        loop {
            assert!(failures < ENOUGH, "it never fits");
            house.leave(failures);
            // What failed last was tried again by the server itself if there is space now.
            if house.is_served(&state) {
                break;
            }
            let said = house.push(&commit);
            if said.success {
                break;
            }
            house.expect_refused(&said, &state, &before);
            failures += 1;
        }
        assert!(failures >= 3, "{failures}");
        house.disk.free();
        house.push_soon(&commit);
        eventually("it is served", || house.is_served(&state).then_some(()));
        before = refs(&main_at(&commit));
        assert_eq!(ls_remote(&house.url()).refs, before);
        house.expect_sound();
        expect_objects(&house.server, &[house.path()]);
    }
    assert!(house.server.child.try_wait().expect("can be asked").is_none(), "it lives");
}

#[test]
fn a_large_push_goes_through_when_there_is_space_again() {
    let Some(house) = AppState::new(&[]) else { return };
    let (state, commit) = house.next(0, &noise(3_000_000));
    // Less than the pack, and room for the pack but not for what git makes of it.
    for pages in [0, 100, 400] {
        house.leave(pages);
        house.expect_refused(&house.push(&commit), &state, &refs(&[]));
        house.expect_sound();
        assert!(repositories(&house.disk.path().join("git")).is_empty());
    }
    house.disk.free();
    house.push_soon(&commit);
    assert!(house.is_served(&state));
    house.expect_sound();
    expect_objects(&house.server, &[house.path()]);
}

/// What a push that failed late has left in its repository goes with the announcement that was never served.
#[test]
fn nothing_stays_of_a_repository_that_came_to_nothing() {
    let Some(house) = AppState::new(&[("PURGATORY_EXPIRY_SECS", "15")]) else { return };
    let (_, commit) = house.next(0, "one");
    let folder = house.disk.path().join("git");
    for pages in 0.. {
        assert!(pages < ENOUGH, "it never gets that far");
        house.leave(pages);
        let said = house.push(&commit);
        assert!(!said.success, "{}", said.err);
        if !repositories(&folder).is_empty() {
            break;
        }
    }
    eventually("it is gone", || repositories(&folder).is_empty().then_some(()));
    house.expect_sound();
}
