//! GRASP-06: contributors offer commits for repositories that are hosted elsewhere.

use std::fs;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use serde_json::Value;

use crate::support::git::{MAIN, Maintainer, Refs, THEN, Work, fetchable, ls_remote, refs, repo_path};
use crate::support::test_server::{End, Stage, main_at, one_commit};
use crate::support::{eventually, wire};

const ON: (&str, &str) = ("GRASP06_ENABLE", "true");

fn name(event: &SignedEvent) -> String {
    format!("refs/nostr/{}", event.id)
}

/// A guest with a commit for `lib` of somebody who is not here.
struct Guest {
    stage: Stage,
    guest: Maintainer,
    absent: Maintainer,
    work: Work,
    tip: String,
}

impl Guest {
    fn new() -> Self {
        Self::with(&[ON])
    }

    fn with(settings: &[(&'static str, &'static str)]) -> Self {
        let stage = Stage::with(settings);
        let (guest, absent) = (stage.person(5), stage.person(6));
        let (work, tip) = one_commit("seven");
        Self { stage, guest, absent, work, tip }
    }

    fn request(&self, tip: &str) -> Arc<SignedEvent> {
        let own = self.stage.public_prs_url(&self.guest, "lib");
        self.guest.pull_request(THEN, &[&self.absent.repo("lib")], tip, &["https://elsewhere.example/fork.git", &own])
    }

    fn url(&self) -> String {
        self.stage.prs_url(&self.guest, "lib")
    }

    fn push(&self, oid: &str, name: &str) -> crate::support::git::Said {
        self.work.push(&self.url(), &[&format!("+{oid}:{name}")])
    }

    #[track_caller]
    fn expect(&self, expected: &[(&str, &str)]) {
        assert_eq!(ls_remote(&self.url()).refs, refs(expected));
    }

    #[track_caller]
    fn eventually(&self, expected: &[(&str, &str)]) {
        let expected = refs(expected);
        eventually(&format!("{expected:?}"), || (ls_remote(&self.url()).refs == expected).then_some(()));
    }
}

/// What the information document says is enabled.
fn grasps(stage: &Stage) -> Vec<String> {
    let answer = wire::ask(&stage.server, "GET", "/", &["Accept: application/nostr+json"]);
    let document: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let grasps = document["supported_grasps"].as_array().expect("a list");
    grasps.iter().map(|grasp| grasp.as_str().expect("a name").to_owned()).collect()
}

#[test]
fn g6_05_what_is_off_is_not_there() {
    for off in [&[][..], &[("GRASP06_ENABLE", "false")]] {
        let Guest { mut stage, guest, absent, work, tip } = Guest::with(off);
        assert!(!grasps(&stage).contains(&"GRASP-06".to_owned()));
        let repo = format!("/prs{}", repo_path(&guest.npub(), "lib"));
        for service in ["git-upload-pack", "git-receive-pack"] {
            let answer = wire::info_refs(&stage.server, &repo, service, &[]);
            assert_eq!(answer.status, 404, "{service}");
            answer.expect_open_to_everybody();
        }
        let clone = stage.public_prs_url(&guest, "lib");
        let request = guest.pull_request(THEN, &[&absent.repo("lib")], &tip, &[&clone]);
        stage.refuse(&request, "restricted: ");
        work.push(&stage.prs_url(&guest, "lib"), &[&format!("{tip}:{}", name(&request))]).refused(&["not found"]);
    }
}

#[test]
fn g6_02_every_path_is_an_empty_repository() {
    let Guest { stage, guest, .. } = Guest::new();
    assert!(grasps(&stage).contains(&"GRASP-06".to_owned()));
    for d in ["lib", "my 🚀 repo", "x.git", "a:b"] {
        let repo = format!("/prs{}", repo_path(&guest.npub(), d));
        for service in ["git-upload-pack", "git-receive-pack"] {
            let answer = wire::info_refs(&stage.server, &repo, service, &[]);
            let kind = format!("application/x-{service}-advertisement");
            assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind.as_str())), "{d}");
        }
        let url = stage.prs_url(&guest, d);
        assert_eq!(ls_remote(&url).refs, Refs::new());
        Work::clone(&url);
    }
    // Asking makes nothing.
    assert!(fs::read_dir(stage.git_folder().join("prs")).expect("a folder").next().is_none());
    for path in ["/prs", "/prs/lib.git", "/prs/npub1test/lib.git", "/prs/NPUB/a%2Fb.git", "/prs/NPUB/%2e%2e.git"] {
        let path = path.replace("NPUB", &guest.npub());
        assert_eq!(wire::info_refs(&stage.server, &path, "git-upload-pack", &[]).status, 404, "{path}");
    }
}

#[test]
fn s15_9_event_first() {
    let mut here = Guest::new();
    let request = here.request(&here.tip);
    here.stage.hold(&request);
    let wrong = here.work.commit("file", "eight");
    here.push(&wrong, &name(&request)).refused(&["E-PR-COMMIT", &here.tip, &wrong]);
    assert!(!here.stage.served(&request));
    here.expect(&[]);
    here.push(&here.tip, &name(&request)).done();
    here.stage.expect_served(&[&request]);
    here.expect(&[(&name(&request), &here.tip)]);
    let clone = Work::new();
    clone.fetch("2", &here.url(), &[&name(&request)]).done();
    assert_eq!(clone.oid("FETCH_HEAD"), here.tip);
    clone.fsck();
    // Only there: the repository it is for is not here, nor is it anybody else's.
    assert!(!here.stage.exists(&here.absent, "lib") && !here.stage.exists(&here.guest, "lib"));
    assert_eq!(ls_remote(&here.stage.prs_url(&here.absent, "lib")).refs, Refs::new());
    assert_eq!(ls_remote(&here.stage.prs_url(&here.guest, "lib2")).refs, Refs::new());

    let mut stage = here.stage.again(End::Killed);
    stage.expect_served(&[&request]);
    assert_eq!(ls_remote(&stage.prs_url(&here.guest, "lib")).refs, refs(&[(&name(&request), &here.tip)]));
}

#[test]
fn s15_9_git_first() {
    let mut here = Guest::new();
    let request = here.request(&here.tip);
    here.push(&here.tip, &name(&request)).done();
    for protocol in ["0", "2"] {
        assert!(!fetchable(protocol, &here.url(), &here.tip), "nobody has signed it");
    }
    here.stage.publish(&request);
    here.stage.eventually_served(&request);
    here.expect(&[(&name(&request), &here.tip)]);
    for protocol in ["0", "2"] {
        assert!(fetchable(protocol, &here.url(), &here.tip), "protocol {protocol}");
    }
}

#[test]
fn g6_07_git_first_with_the_wrong_commit() {
    let mut here = Guest::new();
    let wrong = here.work.commit("file", "eight");
    let request = here.request(&here.tip);
    here.push(&wrong, &name(&request)).done();
    here.stage.hold(&request);
    here.expect(&[]);
    assert!(!here.stage.served(&request));
    here.push(&here.tip, &name(&request)).done();
    here.stage.expect_served(&[&request]);
    here.expect(&[(&name(&request), &here.tip)]);
}

#[test]
fn g6_03_other_refs_are_refused_and_not_for_want_of_a_repository() {
    let here = Guest::new();
    for (name, code) in [
        (MAIN, "E-REF-NAMESPACE"),
        ("refs/tags/v1", "E-REF-NAMESPACE"),
        ("refs/notes/x", "E-REF-NAMESPACE"),
        ("refs/nostr/not-a-valid-event-id", "E-PR-ID"),
        ("refs/nostr/123", "E-PR-ID"),
    ] {
        let said = here.push(&here.tip, name);
        said.refused(&[code]);
        assert!(!said.err.contains("not found") && !said.err.contains("404"), "{}", said.err);
    }
    // The whole push.
    let request = here.request(&here.tip);
    let refspecs = [format!("{}:{}", here.tip, name(&request)), format!("{}:{MAIN}", here.tip)];
    here.work.push(&here.url(), &[&refspecs[0], &refspecs[1]]).refused(&["E-REF-NAMESPACE"]);
    here.expect(&[]);
    assert!(fs::read_dir(here.stage.git_folder().join("staged")).expect("a folder").next().is_none());
}

#[test]
fn g6_04_the_clone_tag_must_name_the_signers_own_place_here() {
    let mut here = Guest::new();
    let other = here.stage.person(7);
    let own = here.stage.public_prs_url(&here.guest, "lib");
    let lib = here.absent.repo("lib");
    for (what, clone) in [
        ("of somebody else", here.stage.public_prs_url(&other, "lib")),
        ("of another name", here.stage.public_prs_url(&here.guest, "lib2")),
        ("on another server", own.replace("grasp.test", "elsewhere.example")),
        ("no submission", own.replace("/prs/", "/")),
        ("with a query", format!("{own}?x")),
        ("with a user", own.replace("https://", "https://user@")),
        ("with more behind it", format!("{own}/info")),
        ("another protocol", own.replace("https://", "ssh://")),
    ] {
        let request = here.guest.pull_request(THEN, &[&lib], &here.tip, &[&clone]);
        let (accepted, text) = here.stage.client.publish(&request);
        assert!(!accepted, "{what}: {text}");
    }
    // It is no way in for other kinds, nor without a repository, nor without a commit.
    let tags: [&[&str]; 3] = [&["a", &lib], &["clone", &own], &["c", &here.tip]];
    here.stage.refuse(&here.guest.author.sign(kinds::ISSUE, THEN, &tags, "x"), "restricted: ");
    here.stage.refuse(&here.guest.author.sign(kinds::PULL_REQUEST, THEN, &tags[1..], "x"), "restricted: ");
    here.stage.refuse(&here.guest.author.sign(kinds::PULL_REQUEST, THEN, &tags[..2], "x"), "invalid: ");
    // A commit of 64 digits is none of ours, but it may be waited for.
    let long = here.guest.pull_request(THEN, &[&lib], &"c".repeat(64), &[&own]);
    here.stage.hold(&long);
    for clone in [own.replace("https://", "http://"), format!("{own}/"), own.replace("/lib.git", "/%6Cib.git")] {
        let request = here.guest.pull_request(THEN, &[&lib], &here.tip, &[&clone]);
        here.stage.hold(&request);
    }
}

#[test]
fn g6_07_a_known_event_belongs_to_its_signers_path() {
    let mut here = Guest::new();
    let other = here.stage.person(7);
    let request = here.request(&here.tip);
    here.stage.hold(&request);
    let refspec = format!("{}:{}", here.tip, name(&request));
    for url in [here.stage.prs_url(&other, "lib"), here.stage.prs_url(&here.guest, "lib2")] {
        here.work.push(&url, &[&refspec]).refused(&["E-PR-"]);
        assert_eq!(ls_remote(&url).refs, Refs::new());
    }
    assert!(!here.stage.served(&request));
    here.push(&here.tip, &name(&request)).done();
    here.stage.expect_served(&[&request]);
}

#[test]
fn g6_06_submissions_are_mirrored_to_the_repository_they_are_for() {
    for git_first in [false, true] {
        let mut here = Guest::new();
        let owner = here.stage.person(1);
        let (work, c1) = one_commit("one");
        here.stage.found(&owner, "lib", &[], &work, &main_at(&c1));
        let own = here.stage.public_prs_url(&here.guest, "lib");
        let request = here.guest.pull_request(THEN, &[&owner.repo("lib")], &here.tip, &[&own]);
        if git_first {
            here.push(&here.tip, &name(&request)).done();
            here.stage.publish(&request);
            here.stage.eventually_served(&request);
        } else {
            here.stage.hold(&request);
            here.push(&here.tip, &name(&request)).done();
            here.stage.expect_served(&[&request]);
        }
        here.eventually(&[(&name(&request), &here.tip)]);
        here.stage.eventually_refs(&owner, "lib", &[(MAIN, &c1), (&name(&request), &here.tip)]);
        let clone = Work::clone(&here.stage.url(&owner, "lib"));
        clone.fetch("2", &here.stage.url(&owner, "lib"), &[&name(&request)]).done();
        clone.fsck();

        // Deleted, it goes from both.
        here.stage.publish(&here.guest.delete(THEN, &[&request]));
        here.stage.eventually_gone(&request);
        here.stage.eventually_refs(&owner, "lib", &main_at(&c1));
        here.eventually(&[]);
    }
}

#[test]
fn g6_06_ordinary_pushes_are_not_mirrored_back() {
    let mut here = Guest::new();
    let owner = here.stage.person(1);
    let (work, c1) = one_commit("one");
    here.stage.found(&owner, "lib", &[], &work, &main_at(&c1));
    let request = here.guest.pull_request(THEN, &[&owner.repo("lib")], &here.tip, &[]);
    here.stage.hold(&request);
    here.work.push(&here.stage.url(&owner, "lib"), &[&format!("{}:{}", here.tip, name(&request))]).done();
    here.stage.expect_served(&[&request]);
    here.stage.expect_refs(&owner, "lib", &[(MAIN, &c1), (&name(&request), &here.tip)]);
    here.expect(&[]);
}

#[test]
fn updates_may_be_submitted_too() {
    let mut here = Guest::new();
    let own = here.stage.public_prs_url(&here.guest, "lib");
    let request = here.request(&here.tip);
    let next = here.work.commit("file", "eight");
    let update = here.guest.offer(kinds::PULL_REQUEST_UPDATE, THEN + 1, &[&here.absent.repo("lib")], &next, &[&own]);
    here.stage.hold(&request);
    here.stage.hold(&update);
    // Both in one push.
    let refspecs = [format!("{}:{}", here.tip, name(&request)), format!("{next}:{}", name(&update))];
    here.work.push(&here.url(), &[&refspecs[0], &refspecs[1]]).done();
    here.stage.expect_served(&[&request, &update]);
    here.expect(&[(&name(&request), &here.tip), (&name(&update), &next)]);
}

#[test]
fn submissions_that_nobody_signs_are_dropped() {
    let mut here = Guest::with(&[ON, ("PURGATORY_EXPIRY_SECS", "3")]);
    let request = here.request(&here.tip);
    here.push(&here.tip, &name(&request)).done();
    let staged = here.stage.git_folder().join("staged");
    eventually("it is dropped", || fs::read_dir(&staged).expect("a folder").next().is_none().then_some(()));
    here.stage.hold(&request);
    here.expect(&[]);
}
