//! Attacks that multiply git data on disk: forks of a repository take no space of their own.

use std::path::Path;

use grasp_core::nostr::kinds;

use crate::support::bystander::Bystander;
use crate::support::git::{BASE_TIME, Maintainer, WorkTree, incompressible_text};
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};
use crate::support::{BEHIND_PROXY, eventually};

/// Makes debug builds run maintenance at once, which otherwise waits for an hour or a day, or for a quiet repository.
const WITHOUT_DELAYS: (&str, &str) = ("GRASPD_TEST_NO_DELAYS", "1");

/// Bytes of the repository that is forked, approximately.
const REPO_BYTES: u64 = 4_000_000;

/// Returns the bytes of all files in a folder. Files that have several names count once.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut seen = std::collections::BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    let mut bytes = 0;
    while let Some(folder) = folders.pop() {
        // Files and folders may be removed meanwhile.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if seen.insert(metadata.ino()) {
                bytes += metadata.len();
            }
        }
    }
    bytes
}

/// Creates a repository of the victim with a few megabytes. Returns its working tree and its commit.
fn create_large_repo(server: &mut TestServer, victim: &Maintainer) -> (WorkTree, String) {
    let (work, _) = one_commit("one");
    let commit = work.commit("large", &incompressible_text(2 * REPO_BYTES as usize));
    server.create_repo(victim, "tool", &[], &work, &main_at(&commit));
    (work, commit)
}

/// Forks the victim's repository: lists the victim as maintainer, follows its commit, and removes the victim again.
fn fork(server: &mut TestServer, forker: &Maintainer, victim: &Maintainer, commit: &str) {
    server.publish(&forker.announce("tool", BASE_TIME, &[victim]));
    server.publish(&forker.state("tool", BASE_TIME, &main_at(commit)));
    server.eventually_refs(forker, "tool", &main_at(commit));
    let alone = forker.announce("tool", BASE_TIME + 1, &[]);
    server.publish(&alone);
    server.eventually_served(&alone);
}

/// An attacker announced the victim's identifier with the victim as maintainer, published a state, and removed the
/// maintainer again. The server copied everything, for each of the attacker's keys: 40 MB became 803 MB, and the
/// deletion of the victim's repository freed nothing.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds cannot run maintenance without delays")]
fn forks_take_no_space() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, WITHOUT_DELAYS]);
    let mut bystander = Bystander::new(&mut server, 1, "other");
    let victim = server.maintainer(2);
    let (work, commit) = create_large_repo(&mut server, &victim);
    let repos = server.git_folder();
    let before = folder_bytes(&repos);
    assert!(before > REPO_BYTES, "{before}");
    let forkers: Vec<Maintainer> = (10..30).map(|n| server.maintainer(n)).collect();
    for forker in &forkers {
        fork(&mut server, forker, &victim, &commit);
    }
    let grown = |server: &TestServer| folder_bytes(&server.git_folder()).saturating_sub(before);
    eventually("forks take no space", || (grown(&server) < REPO_BYTES / 4).then_some(()));
    bystander.expect_unaffected(&server, "twenty forks");

    // The victim's next pushes, which maintenance combines, are not multiplied either.
    for nth in 1..12 {
        let next = work.commit("file", &format!("version {nth}"));
        server.push_state(&victim, &victim, "tool", BASE_TIME + nth, &work, &main_at(&next));
    }
    eventually("forks take no space after maintenance", || (grown(&server) < REPO_BYTES / 4).then_some(()));

    // The owner's deletion is not refused. The forks stay complete, also after a crash, and share one copy.
    server.publish(&victim.delete_coordinate(BASE_TIME + 100, kinds::ANNOUNCEMENT, "tool"));
    eventually("the repository is deleted", || (!server.repo_exists(&victim, "tool")).then_some(()));
    let mut server = server.restart(StopSignal::Kill);
    for forker in &forkers[..2] {
        let clone = WorkTree::clone(&server.url(forker, "tool"));
        clone.fsck();
        assert_eq!(clone.oid("HEAD"), commit);
    }
    eventually("one copy is left", || (grown(&server) < REPO_BYTES / 4).then_some(()));

    // When the forks are deleted, everything is freed.
    for (nth, forker) in forkers.iter().enumerate() {
        if nth == forkers.len() - 1 {
            eventually("the last fork has the only copy", || (grown(&server) < REPO_BYTES / 4).then_some(()));
            WorkTree::clone(&server.url(forker, "tool")).fsck();
        }
        server.publish(&forker.delete_coordinate(BASE_TIME + 100, kinds::ANNOUNCEMENT, "tool"));
    }
    let left = || folder_bytes(&server.git_folder());
    eventually("the space is freed", || (left() < REPO_BYTES / 4).then_some(()));
}

/// A state of a maintainer without a repository here applies to every repository that lists the maintainer. Its objects
/// are in one of them, and are not copied to the others.
#[test]
fn repositories_with_a_common_maintainer_take_no_space() {
    let mut server = TestServer::new();
    let [victim, maintainer, attacker, other] = server.maintainers();
    let (work, _) = one_commit("one");
    let commit = work.commit("large", &incompressible_text(2 * REPO_BYTES as usize));
    server.publish_held(&victim.announce("tool", BASE_TIME, &[&maintainer]));
    server.push_state(&victim, &maintainer, "tool", BASE_TIME, &work, &main_at(&commit));
    let before = folder_bytes(&server.git_folder());
    for who in [&attacker, &other] {
        server.publish(&who.announce("tool", BASE_TIME, &[&maintainer]));
        server.eventually_refs(who, "tool", &main_at(&commit));
        WorkTree::clone(&server.url(who, "tool")).fsck();
    }
    assert!(folder_bytes(&server.git_folder()) < before + REPO_BYTES / 4);
}

/// Data that a deleted repository leaves to its forks counts for their quotas.
#[test]
fn forks_are_charged_for_what_a_deleted_repository_leaves() {
    let mut server = TestServer::with_settings(&[("QUOTA_BYTES_PER_REPOSITORY", "5500000")]);
    let [victim, one, other, _] = server.maintainers();
    let (work, commit) = create_large_repo(&mut server, &victim);
    for forker in [&one, &other] {
        fork(&mut server, forker, &victim, &commit);
    }
    // As long as the victim's repository exists, its owner is charged.
    let larger = work.commit("more", &incompressible_text(REPO_BYTES as usize));
    server.push_state(&one, &one, "tool", BASE_TIME + 2, &work, &main_at(&larger));
    server.publish(&victim.delete_coordinate(BASE_TIME + 100, kinds::ANNOUNCEMENT, "tool"));
    eventually("the repository is deleted", || (!server.repo_exists(&victim, "tool")).then_some(()));
    let held = other.state("tool", BASE_TIME + 2, &main_at(&larger));
    server.publish_held(&held);
    eventually("the quota is used up", || {
        let output = work.push(&server.url(&other, "tool"), &["+main"]);
        assert!(!output.success, "the fork exceeds its quota");
        output.stderr.contains("E-QUOTA").then_some(())
    });
    WorkTree::clone(&server.url(&other, "tool")).fsck();
}
