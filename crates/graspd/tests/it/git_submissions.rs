//! Contributor pull requests (GRASP-06): submissions to `/prs/` for repositories that may be hosted elsewhere
//! (`docs/protocol.md#contributor-pull-requests`).

use std::fs;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use serde_json::Value;

use crate::support::git::{BASE_TIME, MAIN, Maintainer, Refs, WorkTree, can_fetch, ls_remote, refs, repo_path};
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};
use crate::support::{eventually, wire};

const SUBMISSIONS_ENABLED: (&str, &str) = ("GRASP06_ENABLE", "true");

fn pull_ref(event: &SignedEvent) -> String {
    format!("refs/nostr/{}", event.id)
}

/// A server, and a contributor with a commit for the repository `lib` of an owner who is not on this server.
struct Submission {
    server: TestServer,
    contributor: Maintainer,
    absent: Maintainer,
    work: WorkTree,
    tip: String,
}

impl Submission {
    fn new() -> Self {
        Self::with(&[SUBMISSIONS_ENABLED])
    }

    fn with(settings: &[(&'static str, &'static str)]) -> Self {
        let server = TestServer::with_settings(settings);
        let (contributor, absent) = (server.maintainer(5), server.maintainer(6));
        let (work, tip) = one_commit("seven");
        Self { server, contributor, absent, work, tip }
    }

    fn pull_request(&self, tip: &str) -> Arc<SignedEvent> {
        let own = self.server.public_prs_url(&self.contributor, "lib");
        self.contributor.pull_request(
            BASE_TIME,
            &[&self.absent.repo("lib")],
            tip,
            &["https://elsewhere.example/fork.git", &own],
        )
    }

    fn url(&self) -> String {
        self.server.prs_url(&self.contributor, "lib")
    }

    fn push(&self, oid: &str, name: &str) -> crate::support::git::GitOutput {
        self.work.push(&self.url(), &[&format!("+{oid}:{name}")])
    }

    /// Asserts the refs of the contributor's submissions.
    #[track_caller]
    fn expect_refs(&self, expected: &[(&str, &str)]) {
        assert_eq!(ls_remote(&self.url()).refs, refs(expected));
    }

    /// Waits until the contributor's submissions have these refs.
    #[track_caller]
    fn eventually_refs(&self, expected: &[(&str, &str)]) {
        let expected = refs(expected);
        eventually(&format!("{expected:?}"), || (ls_remote(&self.url()).refs == expected).then_some(()));
    }
}

/// Returns `supported_grasps` of the NIP-11 document.
fn supported_grasps(server: &TestServer) -> Vec<String> {
    let response = wire::request(&server.process, "GET", "/", &["Accept: application/nostr+json"]);
    let document: Value = serde_json::from_slice(&response.body).expect("valid JSON");
    let grasps = document["supported_grasps"].as_array().expect("value is an array");
    grasps.iter().map(|grasp| grasp.as_str().expect("value is a string").to_owned()).collect()
}

/// If submissions are disabled, `/prs/…` is 404 and GRASP-06 is not advertised.
#[test]
fn submissions_do_not_exist_if_disabled() {
    for settings in [&[][..], &[("GRASP06_ENABLE", "false")]] {
        let Submission { mut server, contributor, absent, work, tip } = Submission::with(settings);
        assert!(!supported_grasps(&server).contains(&"GRASP-06".to_owned()));
        let repo = format!("/prs{}", repo_path(&contributor.npub(), "lib"));
        for service in ["git-upload-pack", "git-receive-pack"] {
            let response = wire::info_refs(&server.process, &repo, service, &[]);
            assert_eq!(response.status, 404, "{service}");
            response.expect_cors_headers();
        }
        let clone = server.public_prs_url(&contributor, "lib");
        let request = contributor.pull_request(BASE_TIME, &[&absent.repo("lib")], &tip, &[&clone]);
        server.publish_rejected(&request, "restricted: ");
        work.push(&server.prs_url(&contributor, "lib"), &[&format!("{tip}:{}", pull_ref(&request))])
            .expect_failure(&["not found"]);
    }
}

/// A `/prs/` path of any well-formed npub and identifier behaves like an empty repository until a ref is accepted.
#[test]
fn every_submission_path_is_an_empty_repository() {
    let Submission { server, contributor, .. } = Submission::new();
    assert!(supported_grasps(&server).contains(&"GRASP-06".to_owned()));
    for d in ["lib", "my 🚀 repo", "x.git", "a:b"] {
        let repo = format!("/prs{}", repo_path(&contributor.npub(), d));
        for service in ["git-upload-pack", "git-receive-pack"] {
            let response = wire::info_refs(&server.process, &repo, service, &[]);
            let kind = format!("application/x-{service}-advertisement");
            assert_eq!((response.status, response.header("content-type")), (200, Some(kind.as_str())), "{d}");
        }
        let url = server.prs_url(&contributor, d);
        assert_eq!(ls_remote(&url).refs, Refs::new());
        WorkTree::clone(&url);
    }
    // Requests create no folder.
    assert!(fs::read_dir(server.git_folder().join("prs")).expect("cannot read the folder").next().is_none());
    for path in ["/prs", "/prs/lib.git", "/prs/npub1test/lib.git", "/prs/NPUB/a%2Fb.git", "/prs/NPUB/%2e%2e.git"] {
        let path = path.replace("NPUB", &contributor.npub());
        assert_eq!(wire::info_refs(&server.process, &path, "git-upload-pack", &[]).status, 404, "{path}");
    }
}

#[test]
fn submission_event_before_its_push() {
    let mut submission = Submission::new();
    let request = submission.pull_request(&submission.tip);
    submission.server.publish_held(&request);
    let wrong = submission.work.commit("file", "eight");
    submission.push(&wrong, &pull_ref(&request)).expect_failure(&["E-PR-COMMIT", &submission.tip, &wrong]);
    assert!(!submission.server.is_served(&request));
    submission.expect_refs(&[]);
    submission.push(&submission.tip, &pull_ref(&request)).expect_success();
    submission.server.expect_served(&[&request]);
    submission.expect_refs(&[(&pull_ref(&request), &submission.tip)]);
    let clone = WorkTree::new();
    clone.fetch("2", &submission.url(), &[&pull_ref(&request)]).expect_success();
    assert_eq!(clone.oid("FETCH_HEAD"), submission.tip);
    clone.fsck();
    // The ref is only there: the target repository is not hosted, and no other path has the ref.
    assert!(
        !submission.server.repo_exists(&submission.absent, "lib")
            && !submission.server.repo_exists(&submission.contributor, "lib")
    );
    assert_eq!(ls_remote(&submission.server.prs_url(&submission.absent, "lib")).refs, Refs::new());
    assert_eq!(ls_remote(&submission.server.prs_url(&submission.contributor, "lib2")).refs, Refs::new());

    let mut server = submission.server.restart(StopSignal::Kill);
    server.expect_served(&[&request]);
    assert_eq!(
        ls_remote(&server.prs_url(&submission.contributor, "lib")).refs,
        refs(&[(&pull_ref(&request), &submission.tip)])
    );
}

#[test]
fn submission_push_before_its_event() {
    let mut submission = Submission::new();
    let request = submission.pull_request(&submission.tip);
    submission.push(&submission.tip, &pull_ref(&request)).expect_success();
    for protocol in ["0", "2"] {
        assert!(!can_fetch(protocol, &submission.url(), &submission.tip), "fetched before its event exists");
    }
    submission.server.publish(&request);
    submission.server.eventually_served(&request);
    submission.expect_refs(&[(&pull_ref(&request), &submission.tip)]);
    for protocol in ["0", "2"] {
        assert!(can_fetch(protocol, &submission.url(), &submission.tip), "protocol {protocol}");
    }
}

/// If the event arrives after an upload of another commit, the upload is removed and the event is held.
#[test]
fn submission_push_of_a_wrong_commit_before_its_event() {
    let mut submission = Submission::new();
    let wrong = submission.work.commit("file", "eight");
    let request = submission.pull_request(&submission.tip);
    submission.push(&wrong, &pull_ref(&request)).expect_success();
    submission.server.publish_held(&request);
    submission.expect_refs(&[]);
    assert!(!submission.server.is_served(&request));
    submission.push(&submission.tip, &pull_ref(&request)).expect_success();
    submission.server.expect_served(&[&request]);
    submission.expect_refs(&[(&pull_ref(&request), &submission.tip)]);
}

/// Only `refs/nostr/<event id>` is accepted; every other ref is rejected with a git error, not with 404.
#[test]
fn other_refs_are_rejected_with_a_git_error() {
    let submission = Submission::new();
    for (name, code) in [
        (MAIN, "E-REF-NAMESPACE"),
        ("refs/tags/v1", "E-REF-NAMESPACE"),
        ("refs/notes/x", "E-REF-NAMESPACE"),
        ("refs/nostr/not-a-valid-event-id", "E-PR-ID"),
        ("refs/nostr/123", "E-PR-ID"),
    ] {
        let output = submission.push(&submission.tip, name);
        output.expect_failure(&[code]);
        assert!(!output.stderr.contains("not found") && !output.stderr.contains("error: 404"), "{}", output.stderr);
    }
    // The whole push is rejected.
    let request = submission.pull_request(&submission.tip);
    let refspecs = [format!("{}:{}", submission.tip, pull_ref(&request)), format!("{}:{MAIN}", submission.tip)];
    submission.work.push(&submission.url(), &[&refspecs[0], &refspecs[1]]).expect_failure(&["E-REF-NAMESPACE"]);
    submission.expect_refs(&[]);
    assert!(
        fs::read_dir(submission.server.git_folder().join("staged")).expect("cannot read the folder").next().is_none()
    );
}

/// A pull request to a repository that is not hosted is accepted if its `clone` tag names the signer's own `/prs/`
/// path.
#[test]
fn clone_tag_must_name_the_submission_path_of_the_signer() {
    let mut submission = Submission::new();
    let other = submission.server.maintainer(7);
    let own = submission.server.public_prs_url(&submission.contributor, "lib");
    let lib = submission.absent.repo("lib");
    for (what, clone) in [
        ("path of another user", submission.server.public_prs_url(&other, "lib")),
        ("another identifier", submission.server.public_prs_url(&submission.contributor, "lib2")),
        ("another server", own.replace("grasp.test", "elsewhere.example")),
        ("not below /prs/", own.replace("/prs/", "/")),
        ("with a query", format!("{own}?x")),
        ("with a user", own.replace("https://", "https://user@")),
        ("with a longer path", format!("{own}/info")),
        ("another protocol", own.replace("https://", "ssh://")),
    ] {
        let request = submission.contributor.pull_request(BASE_TIME, &[&lib], &submission.tip, &[&clone]);
        let (accepted, text) = submission.server.client.publish(&request);
        assert!(!accepted, "{what}: {text}");
    }
    // The exception does not apply to other kinds, or without a target or a commit.
    let tags: [&[&str]; 3] = [&["a", &lib], &["clone", &own], &["c", &submission.tip]];
    submission
        .server
        .publish_rejected(&submission.contributor.author.sign(kinds::ISSUE, BASE_TIME, &tags, "x"), "restricted: ");
    submission.server.publish_rejected(
        &submission.contributor.author.sign(kinds::PULL_REQUEST, BASE_TIME, &tags[1..], "x"),
        "restricted: ",
    );
    submission.server.publish_rejected(
        &submission.contributor.author.sign(kinds::PULL_REQUEST, BASE_TIME, &tags[..2], "x"),
        "invalid: ",
    );
    // A SHA-256 commit is held, although this server can never have it.
    let long = submission.contributor.pull_request(BASE_TIME, &[&lib], &"c".repeat(64), &[&own]);
    submission.server.publish_held(&long);
    for clone in [own.replace("https://", "http://"), format!("{own}/"), own.replace("/lib.git", "/%6Cib.git")] {
        let request = submission.contributor.pull_request(BASE_TIME, &[&lib], &submission.tip, &[&clone]);
        submission.server.publish_held(&request);
    }
}

/// A push is rejected if the known event has another signer or identifier than the path.
#[test]
fn known_event_can_only_be_pushed_to_its_own_path() {
    let mut submission = Submission::new();
    let other = submission.server.maintainer(7);
    let request = submission.pull_request(&submission.tip);
    submission.server.publish_held(&request);
    let refspec = format!("{}:{}", submission.tip, pull_ref(&request));
    for url in [submission.server.prs_url(&other, "lib"), submission.server.prs_url(&submission.contributor, "lib2")] {
        submission.work.push(&url, &[&refspec]).expect_failure(&["E-PR-"]);
        assert_eq!(ls_remote(&url).refs, Refs::new());
    }
    assert!(!submission.server.is_served(&request));
    submission.push(&submission.tip, &pull_ref(&request)).expect_success();
    submission.server.expect_served(&[&request]);
}

/// A submission is copied into every hosted target repository.
#[test]
fn submission_is_copied_to_its_hosted_target() {
    for git_first in [false, true] {
        let mut submission = Submission::new();
        let owner = submission.server.maintainer(1);
        let (work, c1) = one_commit("one");
        submission.server.create_repo(&owner, "lib", &[], &work, &main_at(&c1));
        let own = submission.server.public_prs_url(&submission.contributor, "lib");
        let request = submission.contributor.pull_request(BASE_TIME, &[&owner.repo("lib")], &submission.tip, &[&own]);
        if git_first {
            submission.push(&submission.tip, &pull_ref(&request)).expect_success();
            submission.server.publish(&request);
            submission.server.eventually_served(&request);
        } else {
            submission.server.publish_held(&request);
            submission.push(&submission.tip, &pull_ref(&request)).expect_success();
            submission.server.expect_served(&[&request]);
        }
        submission.eventually_refs(&[(&pull_ref(&request), &submission.tip)]);
        submission.server.eventually_refs(&owner, "lib", &[(MAIN, &c1), (&pull_ref(&request), &submission.tip)]);
        let clone = WorkTree::clone(&submission.server.url(&owner, "lib"));
        clone.fetch("2", &submission.server.url(&owner, "lib"), &[&pull_ref(&request)]).expect_success();
        clone.fsck();

        // A deletion removes both refs.
        submission.server.publish(&submission.contributor.delete(BASE_TIME, &[&request]));
        submission.server.eventually_gone(&request);
        submission.server.eventually_refs(&owner, "lib", &main_at(&c1));
        submission.eventually_refs(&[]);
    }
}

/// A push to the target repository is not copied to `/prs/`.
#[test]
fn ordinary_push_is_not_copied_to_submissions() {
    let mut submission = Submission::new();
    let owner = submission.server.maintainer(1);
    let (work, c1) = one_commit("one");
    submission.server.create_repo(&owner, "lib", &[], &work, &main_at(&c1));
    let request = submission.contributor.pull_request(BASE_TIME, &[&owner.repo("lib")], &submission.tip, &[]);
    submission.server.publish_held(&request);
    submission
        .work
        .push(&submission.server.url(&owner, "lib"), &[&format!("{}:{}", submission.tip, pull_ref(&request))])
        .expect_success();
    submission.server.expect_served(&[&request]);
    submission.server.expect_refs(&owner, "lib", &[(MAIN, &c1), (&pull_ref(&request), &submission.tip)]);
    submission.expect_refs(&[]);
}

#[test]
fn pull_request_update_can_be_submitted() {
    let mut submission = Submission::new();
    let own = submission.server.public_prs_url(&submission.contributor, "lib");
    let request = submission.pull_request(&submission.tip);
    let next = submission.work.commit("file", "eight");
    let update = submission.contributor.pull_request_event(
        kinds::PULL_REQUEST_UPDATE,
        BASE_TIME + 1,
        &[&submission.absent.repo("lib")],
        &next,
        &[&own],
    );
    submission.server.publish_held(&request);
    submission.server.publish_held(&update);
    // Both refs in one push.
    let refspecs = [format!("{}:{}", submission.tip, pull_ref(&request)), format!("{next}:{}", pull_ref(&update))];
    submission.work.push(&submission.url(), &[&refspecs[0], &refspecs[1]]).expect_success();
    submission.server.expect_served(&[&request, &update]);
    submission.expect_refs(&[(&pull_ref(&request), &submission.tip), (&pull_ref(&update), &next)]);
}

#[test]
fn submission_without_event_expires() {
    let mut submission = Submission::with(&[SUBMISSIONS_ENABLED, ("PURGATORY_EXPIRY_SECS", "3")]);
    let request = submission.pull_request(&submission.tip);
    submission.push(&submission.tip, &pull_ref(&request)).expect_success();
    let staged = submission.server.git_folder().join("staged");
    eventually("the upload expires", || {
        fs::read_dir(&staged).expect("cannot read the folder").next().is_none().then_some(())
    });
    submission.server.publish_held(&request);
    submission.expect_refs(&[]);
}
