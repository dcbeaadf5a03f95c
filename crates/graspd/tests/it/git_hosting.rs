//! The end of hosting and its return: no event is served without its git data
//! (`docs/design/admission.md#end-of-hosting`).

use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};

use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, repo_path};
use crate::support::peers::SyncServer;
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};

/// A server with a repository of an owner, and with a contributor's issue and pull request.
struct Hosted {
    server: TestServer,
    owner: Maintainer,
    announcement: Arc<SignedEvent>,
    state: Arc<SignedEvent>,
    issue: Arc<SignedEvent>,
    request: Arc<SignedEvent>,
}

impl Hosted {
    fn new() -> Self {
        let mut server = TestServer::new();
        let (owner, contributor) = (server.maintainer(1), server.maintainer(5));
        let (work, base) = one_commit("one");
        let (announcement, state) = server.create_repo(&owner, "tool", &[], &work, &main_at(&base));
        work.branch("feature");
        let tip = work.commit("feature", "two");
        let repo = owner.repo("tool");
        let issue = contributor.author.sign(kinds::ISSUE, BASE_TIME, &[&["a", &repo]], "");
        let request = contributor.pull_request(BASE_TIME, &[&repo], &tip, &["https://elsewhere.example/fork.git"]);
        server.publish(&issue);
        server.publish_held(&request);
        work.push(&server.url(&owner, "tool"), &[&format!("+{tip}:refs/nostr/{}", request.id)]).expect_success();
        server.expect_served(&[&announcement, &state, &issue, &request]);
        Self { server, owner, announcement, state, issue, request }
    }

    /// Asserts that what has no git data is not served any more, also after a restart.
    #[track_caller]
    fn expect_ended(mut self, state_is_removed: bool) {
        assert!(!self.server.is_served(&self.request), "the pull request has no git data");
        assert!(!self.server.is_served(&self.state), "the state has no announcement");
        self.server.expect_served(&[&self.issue]);
        let mut server = self.server.restart(StopSignal::Kill);
        assert!(!server.is_served(&self.request) && !server.is_served(&self.state));
        server.expect_served(&[&self.issue]);
        assert!(!server.repo_exists(&self.owner, "tool"));
        // A held event is known; one that its vanished author published is rejected.
        let (is_accepted, text) = server.client.publish(&self.state);
        assert_eq!((is_accepted, text.starts_with("purgatory: ")), (!state_is_removed, !state_is_removed), "{text}");
    }
}

#[test]
fn dependent_events_are_held_after_a_deletion() {
    let mut hosted = Hosted::new();
    let deletion = hosted.owner.author.delete(BASE_TIME + 10, &[&hosted.announcement]);
    hosted.server.publish(&deletion);
    hosted.expect_ended(false);
}

#[test]
fn dependent_events_are_held_after_delisting() {
    let mut hosted = Hosted::new();
    let elsewhere = hosted.owner.author.announcement_elsewhere("tool", BASE_TIME + 10, &[]);
    assert!(!hosted.server.client.publish(&elsewhere).0);
    hosted.expect_ended(false);
}

#[test]
fn dependent_events_are_held_after_the_owner_vanished() {
    let mut hosted = Hosted::new();
    let vanish = hosted.owner.author.vanish(BASE_TIME + 10, &["ALL_RELAYS"]);
    hosted.server.publish(&vanish);
    hosted.expect_ended(true);
}

/// When hosting returns, the state and the pull request are fetched from the other server.
#[test]
fn dependent_events_are_fetched_when_hosting_returns() {
    let (mut a, mut b) = (SyncServer::start(&[]), SyncServer::start(&[]));
    let (owner, contributor) = (grasp_sim::signer::Author::new(1), grasp_sim::signer::Author::new(2));
    let path = owner.repo_id("shared").path();
    let announce = |at: u64, hosts: &[&SyncServer]| {
        let list = |name: &str, urls: Vec<String>| std::iter::once(name.to_owned()).chain(urls).collect::<Vec<_>>();
        let clone = list("clone", hosts.iter().map(|host| format!("http://{}/{path}", host.address)).collect());
        let relays = list("relays", hosts.iter().map(|host| host.relay_url()).collect());
        owner.sign_owned(kinds::ANNOUNCEMENT, at, vec![vec!["d".into(), "shared".into()], clone, relays], "")
    };
    let url = |host: &SyncServer| format!("http://{}{}", host.address, repo_path(&owner.key().npub(), "shared"));
    let work = WorkTree::new();
    let base = work.commit("file", "one");
    let state = owner.sign(kinds::STATE, BASE_TIME, &[&["d", "shared"], &[MAIN, &base]], "");
    let first = announce(BASE_TIME, &[&a, &b]);
    a.publish(&first);
    a.publish(&state);
    work.push(&url(&a), &[MAIN]).expect_success();
    work.branch("feature");
    let tip = work.commit("file", "two");
    let request = contributor.pull_request(BASE_TIME, &[&owner.repo("shared")], &tip);
    a.publish(&request);
    work.push(&url(&a), &[&format!("+{tip}:refs/nostr/{}", request.id)]).expect_success();
    a.eventually_served(&[&first, &state, &request]);
    b.publish(&first);
    b.eventually_served(&[&first, &state, &request]);
    // Hosting ends at B only.
    assert!(!b.client().publish(&announce(BASE_TIME + 10, &[&a])).0);
    assert_eq!(b.count_served(&[&state, &request]), 0);
    let returned = announce(BASE_TIME + 20, &[&a, &b]);
    b.publish(&returned);
    b.eventually_served(&[&returned, &state, &request]);
}
