//! Background maintenance of repositories: packs are combined and unneeded objects are removed, while clients are
//! served.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::eventually;
use crate::support::git::{BASE_TIME, Maintainer, WorkTree, can_fetch};
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};

/// Makes debug builds run maintenance at once, which otherwise waits for an hour or a day, or for a quiet repository.
const WITHOUT_DELAYS: (&str, &str) = ("GRASPD_TEST_NO_DELAYS", "1");

/// Returns the object pool of a repository.
fn pool(server: &TestServer, who: &Maintainer, d: &str) -> PathBuf {
    server.git_folder().join("repos").join(who.npub()).join(format!("{d}.git/pool"))
}

fn pack_count(pool: &Path) -> usize {
    let names = std::fs::read_dir(pool.join("pack"))
        .expect("cannot read the folder")
        .map(|entry| entry.expect("cannot read the folder").path());
    names.filter(|path| path.extension().is_some_and(|part| part == "pack")).count()
}

/// Waits until maintenance has searched for unneeded objects twice from now on. The first search puts them aside, the
/// second removes them. A search that already runs may be the first of the three that are waited for.
fn wait_for_two_prunes(pool: &Path) {
    let last_prune = || std::fs::metadata(pool.join("info/looked")).and_then(|metadata| metadata.modified()).ok();
    for _ in 0..3 {
        // Maintenance searches only after a change. Creating and removing a file in the pack folder is one.
        std::fs::write(pool.join("pack/change"), "").expect("cannot write the file");
        let before = last_prune();
        eventually("maintenance searches for unneeded objects", || (last_prune() > before).then_some(()));
        let _ = std::fs::remove_file(pool.join("pack/change"));
    }
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds cannot run maintenance without delays")]
fn packs_of_many_pushes_are_combined() {
    let mut server = TestServer::with_settings(&[WITHOUT_DELAYS]);
    let [owner, ..] = server.maintainers();
    let (work, first) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&first));
    let pool = pool(&server, &owner, "tool");
    let (mut last, mut most) = (first, 0);
    for n in 1..30 {
        last = work.commit("file", &format!("text {n}"));
        server.push_state(&owner, &owner, "tool", BASE_TIME + n, &work, &main_at(&last));
        most = most.max(pack_count(&pool));
    }
    assert!(most > 1);
    eventually("the packs are combined", || (pack_count(&pool) <= 8).then_some(()));
    let clone = WorkTree::clone(&server.url(&owner, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), last);
    // SIGTERM ends the server at once even if maintenance runs, and the next server continues it.
    let start = Instant::now();
    let mut server = server.restart(StopSignal::Term);
    assert!(start.elapsed().as_secs() < 30);
    let next = work.commit("file", "next");
    server.push_state(&owner, &owner, "tool", BASE_TIME + 40, &work, &main_at(&next));
    WorkTree::clone(&server.url(&owner, "tool")).fsck();
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds cannot run maintenance without delays")]
fn objects_that_no_event_needs_are_removed() {
    let mut server = TestServer::with_settings(&[WITHOUT_DELAYS]);
    let [owner, maintainer, ..] = server.maintainers();
    let (work, first) = one_commit("one");
    server.create_repo(&owner, "tool", &[&maintainer], &work, &main_at(&first));
    let [url, pool] = [server.url(&owner, "tool"), pool(&server, &owner, "tool").display().to_string()];
    let pool = PathBuf::from(pool);
    // A state of the maintainer, then a diverging one of the owner: both are served, the newer one is followed.
    let theirs = work.commit("file", "theirs");
    server.push_state(&owner, &maintainer, "tool", BASE_TIME + 1, &work, &main_at(&theirs));
    let ours = work.commit_orphan("ours", "ours");
    let state = server.push_state(&owner, &owner, "tool", BASE_TIME + 2, &work, &main_at(&ours));
    wait_for_two_prunes(&pool);
    assert!(can_fetch("2", &url, &theirs), "a served state needs this commit");
    assert!(can_fetch("2", &url, &ours));
    // The newer state is deleted: the older one is followed again, and objects that only the deleted one needed are
    // removed.
    server.publish(&owner.delete(BASE_TIME + 3, &[&state]));
    server.eventually_refs(&owner, "tool", &main_at(&theirs));
    eventually("the commit of the deleted state is removed", || (!can_fetch("2", &url, &ours)).then_some(()));
    let clone = WorkTree::clone(&url);
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), theirs);
    // The same commit can be pushed again.
    server.push_state(&owner, &owner, "tool", BASE_TIME + 4, &work, &main_at(&ours));
    WorkTree::clone(&url).fsck();
}

#[test]
fn packs_are_not_combined_if_maintenance_is_disabled() {
    let mut server = TestServer::with_settings(&[WITHOUT_DELAYS, ("GIT_MAINTENANCE", "false")]);
    let [owner, ..] = server.maintainers();
    let (work, first) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&first));
    for n in 1..12 {
        let last = work.commit("file", &format!("text {n}"));
        server.push_state(&owner, &owner, "tool", BASE_TIME + n, &work, &main_at(&last));
    }
    assert_eq!(pack_count(&pool(&server, &owner, "tool")), 12);
}
