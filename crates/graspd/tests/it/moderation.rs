//! Blacklists, whitelists and archives, with servers that sync from each other: changed while they run and across
//! restarts.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::Value;

use crate::support::git::{BASE_TIME, MAIN, WorkTree, ls_remote, repo_path};
use crate::support::peers::{Project, SyncServer, unused_address};
use crate::support::{eventually, wire};

/// Sets the published fetch limit to the default that a client assumes. A higher limit would be used up by the syncing
/// server before its restart, and after the restart it would wait a minute, because it does not know the higher limit
/// yet.
const DEFAULT_FETCH_LIMIT: [(&str, &str); 1] = [("GIT_PEER_RATE_LIMIT", "30")];

fn url(host: &SyncServer, project: &Project) -> String {
    format!("http://{}{}", host.address, path(project))
}

fn path(project: &Project) -> String {
    repo_path(&project.owner.key().npub(), &project.d)
}

/// Returns the status of a repository's URL: 200 if it exists, 404 if not.
fn status(host: &SyncServer, project: &Project) -> u16 {
    wire::info_refs(&host.process, &path(project), "git-upload-pack", &[]).status
}

/// Returns announcement and state.
fn both(project: &Project) -> [&Arc<SignedEvent>; 2] {
    [&project.announcement, &project.state]
}

#[track_caller]
fn expect_rejected(host: &mut SyncServer, event: &SignedEvent, reason: &str) {
    let (accepted, text) = host.client().publish(event);
    assert!(!accepted && text.starts_with(reason), "{accepted} {text}");
}

#[track_caller]
fn eventually_gone(host: &mut SyncServer, events: &[&Arc<SignedEvent>]) {
    eventually("the events are no longer served", || (host.count_served(events) == 0).then_some(()));
}

/// Waits until the log has reported this number of removed events since a moment at which it had `from` bytes.
#[track_caller]
fn eventually_logged_removals(host: &SyncServer, from: usize, expected: usize) {
    eventually("the removals are logged", || {
        let log = host.log();
        let lines = log[from..].lines().filter(|line| line.contains("banned events removed"));
        let counts = lines.filter_map(|line| line.split("events=").nth(1)?.trim().parse::<usize>().ok());
        (counts.sum::<usize>() == expected).then_some(())
    });
}

/// Returns the number of repository folders.
fn folder_count(host: &SyncServer) -> usize {
    let all = fs::read_dir(host.folder().join("data/git/repos")).map(|owners| {
        let names = |owner: fs::DirEntry| fs::read_dir(owner.path()).map_or(0, |names| names.count());
        owners.filter_map(Result::ok).map(names).sum()
    });
    all.unwrap_or(0)
}

fn nip11(host: &SyncServer) -> Value {
    let response = host.process.get("/", "Accept: application/nostr+json\r\n");
    let (_, body) = response.split_once("\r\n\r\n").expect("response has a body");
    serde_json::from_str(body).expect("valid JSON")
}

#[test]
fn banned_repository_is_removed_until_the_ban_is_lifted() {
    let (address_a, address_b) = (unused_address(), unused_address());
    let mut a = SyncServer::start_at(address_a, &DEFAULT_FETCH_LIMIT);
    let relay_url = a.relay_url();
    let settings = [("REPOSITORY_BLACKLIST", "@bans.txt"), ("SYNC_BOOTSTRAP_RELAY_URL", relay_url.as_str())];
    let mut b = SyncServer::start_with(address_b, &settings, &[("bans.txt", "# no bans\n")]);
    let bad = Project::new(1, "bad", &[address_a, address_b], &[]);
    let good = Project::new(1, "good", &[address_a, address_b], &[]);
    a.host(&bad);
    a.host(&good);
    let issue = bad.issue(&Author::new(8), BASE_TIME);
    a.publish(&issue);
    b.eventually_served(&both(&bad));
    b.eventually_served(&both(&good));
    b.eventually_served(&[&issue]);
    assert_eq!((status(&b, &bad), status(&b, &good), folder_count(&b)), (200, 200, 2));
    assert_eq!(nip11(&b).get("curation"), None);

    let npub = bad.owner.key().npub();
    let log = b.reload("bans.txt", &format!("{npub}/bad  # for a reason\n"));
    assert!(log.contains("banned=1"), "{log}");
    eventually_gone(&mut b, &both(&bad));
    eventually_gone(&mut b, &[&issue]);
    eventually("the folder is removed", || (folder_count(&b) == 1).then_some(()));
    let removed = b.log().lines().any(|line| {
        line.contains("repository removed")
            && line.contains("/bad")
            && line.contains("reason=\"banned by the operator\"")
    });
    assert!(removed, "{}", b.log());
    assert_eq!((status(&b, &bad), status(&b, &good)), (404, 200));
    assert_eq!(b.count_served(&both(&good)), 2);
    expect_rejected(&mut b, &bad.announcement, "blocked: ");
    expect_rejected(&mut b, &bad.state, "invalid: no announcement");
    expect_rejected(&mut b, &bad.issue(&Author::new(7), BASE_TIME), "restricted: ");

    // An invalid list changes nothing, and the line is reported.
    let log = b.reload("bans.txt", "good\nnpub1invalid/bad\n");
    assert!(log.contains("line 2") && log.contains("settings unchanged"), "{log}");
    assert_eq!((status(&b, &bad), status(&b, &good)), (404, 200));
    let _ = b.reload("bans.txt", &format!("{npub}/bad\n"));

    // The other server still serves it, and sync offers it again, also after a restart. Repositories that are created
    // later are synced, but the banned one is not.
    for (nth, restart) in [false, true].into_iter().enumerate() {
        if restart {
            b.kill();
            b.start_again();
        }
        let marker = Project::new(2, &format!("marker{nth}"), &[address_a, address_b], &[]);
        a.host(&marker);
        b.eventually_served(&both(&marker));
        assert_eq!((b.count_served(&both(&bad)), status(&b, &bad)), (0, 404));
    }

    let _ = b.reload("bans.txt", "");
    b.eventually_served(&both(&bad));
    b.eventually_served(&[&issue]);
    eventually("the git data is fetched again", || (status(&b, &bad) == 200).then_some(()));
    assert_eq!(ls_remote(&url(&b, &bad)).refs, ls_remote(&url(&a, &bad)).refs);
    WorkTree::clone(&url(&b, &bad)).fsck();
}

#[test]
fn ban_that_changes_while_the_server_is_down_applies_at_start() {
    let (address_a, address_b) = (unused_address(), unused_address());
    let mut a = SyncServer::start_at(address_a, &DEFAULT_FETCH_LIMIT);
    let relay_url = a.relay_url();
    let mut b = SyncServer::start_at(address_b, &[("SYNC_BOOTSTRAP_RELAY_URL", relay_url.as_str())]);
    let project = Project::new(1, "tool", &[address_a, address_b], &[]);
    a.host(&project);
    b.eventually_served(&both(&project));
    b.stop();
    b.set("REPOSITORY_BLACKLIST", "tool");
    b.start_again();
    assert_eq!(
        (b.count_served(&both(&project)), status(&b, &project)),
        (0, 404),
        "the ban must apply before the first request"
    );
    eventually("the folder is removed", || (folder_count(&b) == 0).then_some(()));
    // Sync has offered it, and it was rejected.
    b.eventually_state(&relay_url, 3.0);
    b.stop();
    b.set("REPOSITORY_BLACKLIST", "");
    b.start_again();
    b.eventually_served(&both(&project));
}

#[test]
fn banned_authors_and_events_are_removed_and_rejected() {
    let address = unused_address();
    let mut host = SyncServer::start_with(address, &[("EVENT_BLACKLIST", "@bans.txt")], &[("bans.txt", "")]);
    let project = Project::new(1, "tool", &[address], &[]);
    let (spammer, friend) = (Author::new(5), Author::new(6));
    host.host(&project);
    let spam = project.issues(&spammer, BASE_TIME, 30);
    let spam: Vec<&Arc<SignedEvent>> = spam.iter().collect();
    let (allowed, banned) = (project.issue(&friend, BASE_TIME), project.issue(&friend, BASE_TIME + 1));
    for event in spam.iter().copied().chain([&allowed, &banned]) {
        host.publish(event);
    }
    let from = host.log().len();
    let _ = host.reload("bans.txt", &format!("{}\n{}\n", spammer.key().npub(), banned.id));
    eventually_gone(&mut host, &spam);
    eventually_gone(&mut host, &[&banned]);
    eventually_logged_removals(&host, from, spam.len() + 1);
    assert_eq!(host.count_served(&[&allowed]), 1);
    expect_rejected(&mut host, spam[0], "blocked: ");
    expect_rejected(&mut host, &banned, "blocked: ");
    expect_rejected(&mut host, &spammer.sign(kinds::GRASP_LIST, BASE_TIME, &[], ""), "blocked: ");
    host.publish(&project.issue(&friend, BASE_TIME + 2));

    // A ban of the owner, set while the server is down, removes the repository.
    host.kill();
    host.set("EVENT_BLACKLIST", &project.owner.key().npub());
    host.start_again();
    eventually_gone(&mut host, &both(&project));
    eventually("the folder is removed", || (folder_count(&host) == 0).then_some(()));
    assert_eq!(status(&host, &project), 404);
}

/// Creates a repository that will be banned and another one. Returns both, and events of a contributor: those about the
/// first repository alone, and those about both.
fn create_discussions(host: &mut SyncServer) -> ([Project; 2], [Vec<Arc<SignedEvent>>; 2]) {
    let [bad, good] = ["bad", "good"].map(|name| Project::new(1, name, &[host.address], &[]));
    let contributor = Author::new(7);
    let issue = bad.issue(&contributor, BASE_TIME);
    let comment = contributor.comment(BASE_TIME + 1, &issue);
    let shared =
        contributor.sign(kinds::ISSUE, BASE_TIME, &[&["a", &bad.coordinate()], &["a", &good.coordinate()]], "");
    let comment_on_shared = contributor.comment(BASE_TIME + 1, &shared);
    host.host(&bad);
    host.host(&good);
    let events = [vec![issue, comment], vec![shared, comment_on_shared]];
    for event in events.iter().flatten() {
        host.publish(event);
    }
    ([bad, good], events)
}

#[test]
fn events_about_a_banned_repository_alone_are_removed_with_it() {
    let settings = [("REPOSITORY_BLACKLIST", "@bans.txt")];
    let mut host = SyncServer::start_with(unused_address(), &settings, &[("bans.txt", "")]);
    let ([bad, good], [alone, shared]) = create_discussions(&mut host);
    let kept = both(&good);
    let (alone, shared): (Vec<_>, Vec<_>) = (alone.iter().collect(), shared.iter().collect());
    let _ = host.reload("bans.txt", &format!("{}/bad\n", bad.owner.key().npub()));
    eventually_gone(&mut host, &alone);
    for restart in [false, true] {
        if restart {
            host.kill();
            host.start_again();
        }
        assert_eq!((host.count_served(&shared), host.count_served(&kept), host.count_served(&alone)), (2, 2, 0));
    }
    expect_rejected(&mut host, alone[0], "restricted: ");
    let _ = host.reload("bans.txt", "");
    host.host(&bad);
    for event in &alone {
        host.publish(event);
    }
    assert_eq!(host.count_served(&alone), 2);
}

/// A ban by identifier of a repository with a long thread, which is removed in several transactions: the server is
/// killed between them, and the next one completes the removal.
#[cfg(debug_assertions)]
#[test]
fn removal_of_a_discussion_is_completed_after_a_crash() {
    let settings = [
        ("REPOSITORY_BLACKLIST", "@bans.txt"),
        ("GRASPD_CRASH_AT", "writer.committed:3"),
        ("GRASPD_CRASH_LOG", "passed"),
    ];
    let mut host = SyncServer::start_with(unused_address(), &settings, &[("bans.txt", "")]);
    let (_, [mut alone, shared]) = create_discussions(&mut host);
    let many: Vec<_> = (0..500).map(|at| Author::new(8).comment(BASE_TIME + at, &alone[0])).collect();
    for event in &many {
        host.publish(event);
    }
    alone.extend(many);
    fs::write(host.folder().join("bans.txt"), "bad").expect("cannot write the file");
    fs::write(host.folder().join("passed"), "").expect("cannot write the file");
    let pid = host.process.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("cannot run kill").success());
    eventually("the server is killed", || host.process.child.try_wait().expect("cannot wait for the server"));
    fs::remove_file(host.folder().join("passed")).expect("cannot remove the file");
    host.kill();
    host.start_again();
    let (alone, shared): (Vec<_>, Vec<_>) = (alone.iter().collect(), shared.iter().collect());
    eventually_gone(&mut host, &alone);
    assert_eq!(host.count_served(&shared), 2);
}

#[test]
fn whitelist_applies_to_new_repositories_only() {
    let address = unused_address();
    let mut host = SyncServer::start_with(address, &[("REPOSITORY_WHITELIST", "@list.txt")], &[("list.txt", "")]);
    let (first, second) = (Project::new(1, "first", &[address], &[]), Project::new(2, "second", &[address], &[]));
    host.host(&first);
    assert_eq!(nip11(&host).get("curation"), None);
    let _ = host.reload("list.txt", &second.owner.key().npub());
    assert!(nip11(&host)["curation"].as_str().is_some_and(|text| text.contains("listed")));
    host.host(&second);
    assert_eq!(host.count_served(&both(&first)), 2, "existing repositories stay");
    expect_rejected(
        &mut host,
        &Project::new(3, "third", &[address], &[]).announcement,
        "blocked: this service hosts only",
    );
}

#[test]
fn archived_repository_is_synced_and_read_only() {
    let (address_a, address_b) = (unused_address(), unused_address());
    let mut a = SyncServer::start_at(address_a, &DEFAULT_FETCH_LIMIT);
    let relay_url = a.relay_url();
    let settings = [("ARCHIVE_WHITELIST", "@keep.txt"), ("SYNC_BOOTSTRAP_RELAY_URL", relay_url.as_str())];
    let mut b = SyncServer::start_with(address_b, &settings, &[("keep.txt", "")]);
    let (kept, other) = (Project::new(1, "kept", &[address_a], &[]), Project::new(1, "other", &[address_a], &[]));
    a.host(&kept);
    a.host(&other);
    let issue = kept.issue(&Author::new(7), BASE_TIME);
    a.publish(&issue);
    // B has received the announcement and rejected it.
    b.eventually_state(&relay_url, 3.0);
    expect_rejected(&mut b, &kept.announcement, "invalid: ");

    let _ = b.reload("keep.txt", &format!("{}/kept\n", kept.owner.key().npub()));
    b.eventually_served(&[&kept.announcement, &kept.state, &issue]);
    assert_eq!(b.count_served(&both(&other)), 0);
    assert_eq!(ls_remote(&url(&b, &kept)).refs, ls_remote(&url(&a, &kept)).refs);
    let work = WorkTree::clone(&url(&b, &kept));
    work.fsck();
    let document = nip11(&b);
    let grasps = document["supported_grasps"].as_array().expect("value is an array").clone();
    assert!(grasps.contains(&"GRASP-05".into()) && grasps.contains(&"GRASP-02".into()), "{document}");
    assert!(document["curation"].as_str().is_some_and(|text| text.contains("Read-only")), "{document}");

    work.commit("file", "changed");
    let output = work.push(&url(&b, &kept), &[&format!("HEAD:{MAIN}")]);
    assert!(!output.success && output.stderr.contains("read-only archive"), "{}", output.stderr);
    expect_rejected(
        &mut b,
        &Project::new(3, "new", &[address_b], &[]).announcement,
        "blocked: this service is a read-only archive",
    );

    // A push to the other server is synced, and everything is still here after the other server has ended.
    let tags: [&[&str]; 3] = [&["d", "kept"], &[MAIN, &work.oid("HEAD")], &["HEAD", &format!("ref: {MAIN}")]];
    let newer = kept.owner.sign(kinds::STATE, BASE_TIME + 1, &tags, "");
    a.publish(&newer);
    work.push(&url(&a, &kept), &[&format!("HEAD:{MAIN}")]).expect_success();
    b.eventually_served(&[&newer]);
    a.kill();
    b.kill();
    b.start_again();
    assert_eq!(WorkTree::clone(&url(&b, &kept)).oid("HEAD"), work.oid("HEAD"));
}

/// Read-only mode applies to what is archived without listing the service.
#[test]
fn listed_repository_of_a_read_only_archive_is_writable() {
    let address = unused_address();
    let project = Project::new(1, "kept", &[address], &[]);
    let listed = format!("{}/kept", project.owner.key().npub());
    let mut server = SyncServer::start_at(address, &[("ARCHIVE_WHITELIST", listed.as_str())]);
    server.host(&project);
    server.eventually_served(&both(&project));
}

#[test]
fn all_repositories_of_an_archived_service_are_synced() {
    let (address_a, address_b) = (unused_address(), unused_address());
    let mut a = SyncServer::start_at(address_a, &DEFAULT_FETCH_LIMIT);
    let (first, second) = (Project::new(1, "first", &[address_a], &[]), Project::new(2, "second", &[address_a], &[]));
    a.host(&first);
    let service = address_a.to_string();
    let mut b = SyncServer::start_at(address_b, &[("ARCHIVE_GRASP_SERVICES", service.as_str())]);
    b.eventually_served(&both(&first));
    a.host(&second);
    b.eventually_served(&both(&second));
    for project in [&first, &second] {
        WorkTree::clone(&url(&b, project)).fsck();
    }
}
