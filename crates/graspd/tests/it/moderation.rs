//! What the operator bans goes and stays away, what is chosen is taken, what is archived is kept: with real servers that
//! follow each other, while they run and over restarts.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::Value;

use crate::support::git::{MAIN, THEN, Work, ls_remote, repo_path};
use crate::support::peers::{Neighbour, Project, place};
use crate::support::{eventually, wire};

/// A server that lets itself be asked no more often than others are: whoever has asked it more, and starts again, asks no
/// more within the minute until it knows that it may.
const MODEST: [(&str, &str); 1] = [("GIT_PEER_RATE_LIMIT", "30")];

fn url(host: &Neighbour, project: &Project) -> String {
    format!("http://{}{}", host.place, path(project))
}

fn path(project: &Project) -> String {
    repo_path(&project.owner.key().npub(), &project.d)
}

/// The answer of a repository's address: 200 if there is one, 404 if not.
fn status(host: &Neighbour, project: &Project) -> u16 {
    wire::info_refs(&host.server, &path(project), "git-upload-pack", &[]).status
}

fn both(project: &Project) -> [&Arc<SignedEvent>; 2] {
    [&project.announcement, &project.state]
}

#[track_caller]
fn refused(host: &mut Neighbour, event: &SignedEvent, reason: &str) {
    let (accepted, text) = host.client().publish(event);
    assert!(!accepted && text.starts_with(reason), "{accepted} {text}");
}

#[track_caller]
fn eventually_gone(host: &mut Neighbour, events: &[&Arc<SignedEvent>]) {
    eventually("nothing of it is served", || (host.served(events) == 0).then_some(()));
}

/// The folders of repositories.
fn folders(host: &Neighbour) -> usize {
    let all = fs::read_dir(host.folder().join("data/git/repos")).map(|owners| {
        let names = |owner: fs::DirEntry| fs::read_dir(owner.path()).map_or(0, |names| names.count());
        owners.filter_map(Result::ok).map(names).sum()
    });
    all.unwrap_or(0)
}

fn nip11(host: &Neighbour) -> Value {
    let answer = host.server.get("/", "Accept: application/nostr+json\r\n");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

#[test]
fn what_is_banned_goes_and_stays_away_until_it_is_not_banned_any_more() {
    let (at_a, at_b) = (place(), place());
    let mut a = Neighbour::start_at(at_a, &MODEST);
    let follows = a.relay();
    let settings = [("REPOSITORY_BLACKLIST", "@bans.txt"), ("SYNC_BOOTSTRAP_RELAY_URL", follows.as_str())];
    let mut b = Neighbour::start_with(at_b, &settings, &[("bans.txt", "# nobody yet\n")]);
    let bad = Project::new(1, "bad", &[at_a, at_b], &[]);
    let good = Project::new(1, "good", &[at_a, at_b], &[]);
    a.host(&bad);
    a.host(&good);
    let issue = bad.issue(&Author::new(8), THEN);
    a.publish(&issue);
    b.eventually_served(&both(&bad));
    b.eventually_served(&both(&good));
    b.eventually_served(&[&issue]);
    assert_eq!((status(&b, &bad), status(&b, &good), folders(&b)), (200, 200, 2));
    assert_eq!(nip11(&b).get("curation"), None);

    let npub = bad.owner.key().npub();
    let log = b.reload("bans.txt", &format!("{npub}/bad  # for a reason\n"));
    assert!(log.contains("banned=1"), "{log}");
    eventually_gone(&mut b, &both(&bad));
    eventually_gone(&mut b, &[&issue]);
    eventually("its folder goes", || (folders(&b) == 1).then_some(()));
    assert_eq!((status(&b, &bad), status(&b, &good)), (404, 200));
    assert_eq!(b.served(&both(&good)), 2);
    refused(&mut b, &bad.announcement, "blocked: ");
    refused(&mut b, &bad.state, "invalid: no announcement");
    refused(&mut b, &bad.issue(&Author::new(7), THEN), "restricted: ");

    // A list with a mistake changes nothing, and says which line it is.
    let log = b.reload("bans.txt", "good\nnpub1nobody/bad\n");
    assert!(log.contains("line 2") && log.contains("stay as they were"), "{log}");
    assert_eq!((status(&b, &bad), status(&b, &good)), (404, 200));
    let _ = b.reload("bans.txt", &format!("{npub}/bad\n"));

    // The other server has it and tells of it, also after a new start; what comes later arrives, and it does not.
    for (nth, restart) in [false, true].into_iter().enumerate() {
        if restart {
            b.kill();
            b.again();
        }
        let marker = Project::new(2, &format!("marker{nth}"), &[at_a, at_b], &[]);
        a.host(&marker);
        b.eventually_served(&both(&marker));
        assert_eq!((b.served(&both(&bad)), status(&b, &bad)), (0, 404));
    }

    let _ = b.reload("bans.txt", "");
    b.eventually_served(&both(&bad));
    b.eventually_served(&[&issue]);
    eventually("its git data is back", || (status(&b, &bad) == 200).then_some(()));
    assert_eq!(ls_remote(&url(&b, &bad)).refs, ls_remote(&url(&a, &bad)).refs);
    Work::clone(&url(&b, &bad)).fsck();
}

#[test]
fn what_is_banned_while_the_server_is_down_goes_at_its_start_and_comes_back_at_another() {
    let (at_a, at_b) = (place(), place());
    let mut a = Neighbour::start_at(at_a, &MODEST);
    let follows = a.relay();
    let mut b = Neighbour::start_at(at_b, &[("SYNC_BOOTSTRAP_RELAY_URL", follows.as_str())]);
    let project = Project::new(1, "tool", &[at_a, at_b], &[]);
    a.host(&project);
    b.eventually_served(&both(&project));
    b.stop();
    b.set("REPOSITORY_BLACKLIST", "tool");
    b.again();
    assert_eq!((b.served(&both(&project)), status(&b, &project)), (0, 404), "before the first answer");
    eventually("its folder goes", || (folders(&b) == 0).then_some(()));
    // It has been offered and refused.
    b.eventually_state(&follows, 3.0);
    b.stop();
    b.set("REPOSITORY_BLACKLIST", "");
    b.again();
    b.eventually_served(&both(&project));
}

#[test]
fn unwanted_authors_and_events_are_removed_and_refused() {
    let at = place();
    let mut host = Neighbour::start_with(at, &[("EVENT_BLACKLIST", "@bans.txt")], &[("bans.txt", "")]);
    let project = Project::new(1, "tool", &[at], &[]);
    let (spammer, friend) = (Author::new(5), Author::new(6));
    host.host(&project);
    let spam = project.issues(&spammer, THEN, 30);
    let spam: Vec<&Arc<SignedEvent>> = spam.iter().collect();
    let (fine, single) = (project.issue(&friend, THEN), project.issue(&friend, THEN + 1));
    for event in spam.iter().copied().chain([&fine, &single]) {
        host.publish(event);
    }
    let _ = host.reload("bans.txt", &format!("{}\n{}\n", spammer.key().npub(), single.id));
    eventually_gone(&mut host, &spam);
    eventually_gone(&mut host, &[&single]);
    assert_eq!(host.served(&[&fine]), 1);
    refused(&mut host, spam[0], "blocked: ");
    refused(&mut host, &single, "blocked: ");
    refused(&mut host, &spammer.sign(kinds::GRASP_LIST, THEN, &[], ""), "blocked: ");
    host.publish(&project.issue(&friend, THEN + 2));

    // Another one while it is down; and the owner of a repository takes that with it.
    host.kill();
    host.set("EVENT_BLACKLIST", &project.owner.key().npub());
    host.again();
    eventually_gone(&mut host, &both(&project));
    eventually("its folder goes", || (folders(&host) == 0).then_some(()));
    assert_eq!(status(&host, &project), 404);
}

/// A repository that is to be banned, another one, and what a guest says: about the first one alone, and about both.
fn discussed(host: &mut Neighbour) -> ([Project; 2], [Vec<Arc<SignedEvent>>; 2]) {
    let [bad, good] = ["bad", "good"].map(|name| Project::new(1, name, &[host.place], &[]));
    let guest = Author::new(7);
    let issue = bad.issue(&guest, THEN);
    let comment = guest.comment(THEN + 1, &issue);
    let both = guest.sign(kinds::ISSUE, THEN, &[&["a", &bad.coordinate()], &["a", &good.coordinate()]], "");
    let on_both = guest.comment(THEN + 1, &both);
    host.host(&bad);
    host.host(&good);
    let said = [vec![issue, comment], vec![both, on_both]];
    for event in said.iter().flatten() {
        host.publish(event);
    }
    ([bad, good], said)
}

#[test]
fn what_is_about_a_banned_repository_alone_goes_with_it_and_may_come_back() {
    let settings = [("REPOSITORY_BLACKLIST", "@bans.txt")];
    let mut host = Neighbour::start_with(place(), &settings, &[("bans.txt", "")]);
    let ([bad, good], [alone, shared]) = discussed(&mut host);
    let kept = both(&good);
    let (alone, shared): (Vec<_>, Vec<_>) = (alone.iter().collect(), shared.iter().collect());
    let _ = host.reload("bans.txt", &format!("{}/bad\n", bad.owner.key().npub()));
    eventually_gone(&mut host, &alone);
    for restart in [false, true] {
        if restart {
            host.kill();
            host.again();
        }
        assert_eq!((host.served(&shared), host.served(&kept), host.served(&alone)), (2, 2, 0));
    }
    refused(&mut host, alone[0], "restricted: ");
    let _ = host.reload("bans.txt", "");
    host.host(&bad);
    for event in &alone {
        host.publish(event);
    }
    assert_eq!(host.served(&alone), 2);
}

/// A ban by name, and a thread that does not go at once: the server ends on the way, and the next one goes on.
#[cfg(debug_assertions)]
#[test]
fn a_server_that_is_killed_while_a_discussion_goes_goes_on() {
    let settings = [
        ("REPOSITORY_BLACKLIST", "@bans.txt"),
        ("GRASPD_CRASH_AT", "desk.committed:3"),
        ("GRASPD_CRASH_LOG", "passed"),
    ];
    let mut host = Neighbour::start_with(place(), &settings, &[("bans.txt", "")]);
    let (_, [mut alone, shared]) = discussed(&mut host);
    let many: Vec<_> = (0..500).map(|at| Author::new(8).comment(THEN + at, &alone[0])).collect();
    for event in &many {
        host.publish(event);
    }
    alone.extend(many);
    fs::write(host.folder().join("bans.txt"), "bad").expect("a file");
    fs::write(host.folder().join("passed"), "").expect("a file");
    let pid = host.server.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("kill runs").success());
    eventually("it ends", || host.server.child.try_wait().expect("a child"));
    fs::remove_file(host.folder().join("passed")).expect("a file");
    host.kill();
    host.again();
    let (alone, shared): (Vec<_>, Vec<_>) = (alone.iter().collect(), shared.iter().collect());
    eventually_gone(&mut host, &alone);
    assert_eq!(host.served(&shared), 2);
}

#[test]
fn a_whitelist_is_about_new_repositories() {
    let at = place();
    let mut host = Neighbour::start_with(at, &[("REPOSITORY_WHITELIST", "@list.txt")], &[("list.txt", "")]);
    let (first, second) = (Project::new(1, "first", &[at], &[]), Project::new(2, "second", &[at], &[]));
    host.host(&first);
    assert_eq!(nip11(&host).get("curation"), None);
    let _ = host.reload("list.txt", &second.owner.key().npub());
    assert!(nip11(&host)["curation"].as_str().is_some_and(|text| text.contains("listed")));
    host.host(&second);
    assert_eq!(host.served(&both(&first)), 2, "what is here stays");
    refused(&mut host, &Project::new(3, "third", &[at], &[]).announcement, "blocked: this service hosts only");
}

#[test]
fn a_chosen_repository_of_another_server_is_kept_with_its_git_data_and_nobody_pushes() {
    let (at_a, at_b) = (place(), place());
    let mut a = Neighbour::start_at(at_a, &MODEST);
    let follows = a.relay();
    let settings = [("ARCHIVE_WHITELIST", "@keep.txt"), ("SYNC_BOOTSTRAP_RELAY_URL", follows.as_str())];
    let mut b = Neighbour::start_with(at_b, &settings, &[("keep.txt", "")]);
    let (kept, other) = (Project::new(1, "kept", &[at_a], &[]), Project::new(1, "other", &[at_a], &[]));
    a.host(&kept);
    a.host(&other);
    let issue = kept.issue(&Author::new(7), THEN);
    a.publish(&issue);
    // B has heard of it and does not want it.
    b.eventually_state(&follows, 3.0);
    refused(&mut b, &kept.announcement, "invalid: ");

    let _ = b.reload("keep.txt", &format!("{}/kept\n", kept.owner.key().npub()));
    b.eventually_served(&[&kept.announcement, &kept.state, &issue]);
    assert_eq!(b.served(&both(&other)), 0);
    assert_eq!(ls_remote(&url(&b, &kept)).refs, ls_remote(&url(&a, &kept)).refs);
    let work = Work::clone(&url(&b, &kept));
    work.fsck();
    let document = nip11(&b);
    let grasps = document["supported_grasps"].as_array().expect("a list").clone();
    assert!(grasps.contains(&"GRASP-05".into()) && grasps.contains(&"GRASP-02".into()), "{document}");
    assert!(document["curation"].as_str().is_some_and(|text| text.contains("Read-only")), "{document}");

    work.commit("file", "changed");
    let said = work.push(&url(&b, &kept), &[&format!("HEAD:{MAIN}")]);
    assert!(!said.success && said.err.contains("read-only archive"), "{}", said.err);
    refused(&mut b, &Project::new(3, "new", &[at_b], &[]).announcement, "blocked: this service is a read-only archive");

    // What is pushed to the other server follows, and after the other server has gone everything is here.
    let tags: [&[&str]; 3] = [&["d", "kept"], &[MAIN, &work.oid("HEAD")], &["HEAD", &format!("ref: {MAIN}")]];
    let newer = kept.owner.sign(kinds::STATE, THEN + 1, &tags, "");
    a.publish(&newer);
    work.push(&url(&a, &kept), &[&format!("HEAD:{MAIN}")]).done();
    b.eventually_served(&[&newer]);
    a.kill();
    b.kill();
    b.again();
    assert_eq!(Work::clone(&url(&b, &kept)).oid("HEAD"), work.oid("HEAD"));
}

#[test]
fn all_repositories_of_a_service_are_kept() {
    let (at_a, at_b) = (place(), place());
    let mut a = Neighbour::start_at(at_a, &MODEST);
    let (first, second) = (Project::new(1, "first", &[at_a], &[]), Project::new(2, "second", &[at_a], &[]));
    a.host(&first);
    let service = at_a.to_string();
    let mut b = Neighbour::start_at(at_b, &[("ARCHIVE_GRASP_SERVICES", service.as_str())]);
    b.eventually_served(&both(&first));
    a.host(&second);
    b.eventually_served(&both(&second));
    for project in [&first, &second] {
        Work::clone(&url(&b, project)).fsck();
    }
}
