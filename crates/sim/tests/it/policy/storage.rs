//! Limits of the disk budget, and quotas.

use grasp_core::admission::io::AdmissionInput;
use grasp_core::admission::policy::lists::{ModerationLists, RepoListEntry};
use grasp_core::disk_budget::{DiskLevel, Quotas};
use grasp_sim::test_server::ClientPush;

use super::common::*;

const NEARLY_FULL: &str = "false error: the disk of this service is nearly full…";
const FULL: &str = "false error: the disk is full…";

fn push(to: &Author, oid: &str, bytes: u64) -> ClientPush {
    let mut client_push = ClientPush::new(RepoPath::Announced(to.repo_id("tool"))).set("refs/heads/main", oid);
    client_push.bytes = bytes;
    client_push
}

fn code(pushed: &grasp_sim::test_server::PushResult) -> &'static str {
    pushed.as_ref().map_or_else(|rejection| rejection.code(), |()| "accepted")
}

#[test]
fn soft_disk_limit_rejects_new_repositories_only() {
    let (mut server, old, state) = hosting_server(default_policy(), &[]);
    expect_reply(&mut server, &maintainer().announcement(&service(), "tool", 100, &[]), HELD);
    server.handle(AdmissionInput::DiskLevel(DiskLevel::Soft));
    expect_reply(&mut server, &outsider().announcement(&service(), "tool", 100, &[]), NEARLY_FULL);
    expect_reply(&mut server, &maintainer().announcement(&service(), "tool", 110, &[]), HELD);
    expect_reply(&mut server, &owner().issue(200, &owner().repo("tool")), SERVED);
    let newer = main_state(&owner(), 201, 'b');
    expect_reply(&mut server, &newer, HELD);
    assert_eq!(code(&server.push(&push(&owner(), &oid('b'), 10))), "accepted");
    expect_reply(&mut server, &owner().announcement(&service(), "tool", 202, &[]), SERVED);
    assert!(
        server.event_ids().0.contains(&newer.id)
            && !server.event_ids().0.contains(&state.id)
            && !server.event_ids().0.contains(&old.id)
    );
    server.handle(AdmissionInput::DiskLevel(DiskLevel::Free));
    expect_reply(&mut server, &outsider().announcement(&service(), "tool", 100, &[]), HELD);
}

#[test]
fn hard_disk_limit_accepts_only_removals() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let newer = main_state(&owner(), 201, 'b');
    expect_reply(&mut server, &newer, HELD);
    server.handle(AdmissionInput::DiskLevel(DiskLevel::Hard));
    expect_reply(&mut server, &owner().issue(200, &owner().repo("tool")), FULL);
    expect_reply(&mut server, &main_state(&owner(), 202, 'c'), FULL);
    expect_reply(&mut server, &outsider().announcement(&service(), "tool", 100, &[]), FULL);
    expect_reply(&mut server, &announcement, ALREADY_SERVED);
    assert_eq!(code(&server.push(&push(&owner(), &oid('b'), 10))), "E-DISK-FULL");
    expect_events(&server, &[&announcement, &state], &[&newer]);
    let (mut other, theirs, _) = hosting_server(default_policy(), &[]);
    other.handle(AdmissionInput::DiskLevel(DiskLevel::Hard));
    expect_reply(&mut other, &owner().announcement_elsewhere("tool", 400, &[]), DELISTED);
    assert!(!other.event_ids().0.contains(&theirs.id), "a repository can be withdrawn");
    // Requests that remove nothing need space too.
    expect_reply(&mut server, &owner().delete(300, &[&main_state(&owner(), 203, 'd')]), FULL);
    expect_reply(&mut server, &outsider().delete(300, &[&main_state(&outsider(), 203, 'd')]), FULL);
    expect_reply(&mut server, &outsider().sign(kinds::VANISH, 300, &[&["relay", "ALL_RELAYS"]], ""), FULL);
    let tags: &[&[&str]] = &[&["e", &announcement.id.to_string()]];
    expect_reply(&mut server, &owner().sign(kinds::DELETION, 300, tags, &"long ".repeat(300)), FULL);
    let gone = owner().delete(300, &[&announcement]);
    expect_reply(&mut server, &gone, SERVED);
    assert!(!server.event_ids().0.contains(&announcement.id), "a repository can always be deleted");
    expect_reply(&mut server, &owner().delete(301, &[&gone]), FULL);
    assert!(server.refs(&RepoPath::Announced(owner().repo_id("tool"))).is_empty());
}

#[test]
fn repository_quota_per_key_does_not_affect_existing_repositories() {
    let quotas = Quotas { repositories_per_key: Some(2), ..Quotas::default() };
    let (mut server, ..) = hosting_server(AdmissionPolicy { quotas, ..default_policy() }, &[]);
    expect_reply(&mut server, &owner().announcement(&service(), "second", 100, &[]), HELD);
    let third = owner().announcement(&service(), "third", 100, &[]);
    expect_reply(&mut server, &third, "false restricted: repository quota reached, this key has 2 repositories here");
    expect_reply(&mut server, &owner().announcement(&service(), "second", 101, &[]), HELD);
    expect_reply(&mut server, &owner().announcement(&service(), "tool", 101, &[]), SERVED);
    expect_reply(&mut server, &maintainer().announcement(&service(), "third", 100, &[]), HELD);
    let tool = owner().sign(kinds::DELETION, 300, &[&["a", &owner().repo("tool")]], "");
    expect_reply(&mut server, &tool, SERVED);
    expect_reply(&mut server, &third, HELD);
}

#[test]
fn byte_quotas_per_repository_and_key() {
    // In this model an object has one byte, and the size of a push is given.
    let quotas = Quotas { bytes_per_repository: Some(100), bytes_per_key: Some(101), ..Quotas::default() };
    let (mut server, ..) = hosting_server(AdmissionPolicy { quotas, ..default_policy() }, &[]);
    expect_reply(&mut server, &main_state(&owner(), 201, 'b'), HELD);
    let id = server
        .request_push(&push(&owner(), &oid('b'), 99))
        .expect("no crash is injected")
        .map(|(id, permit)| (id, permit.expect("fits").quota_left));
    let (id, left) = id.expect("push is decided");
    assert_eq!(left.map(|(left, _)| left), Some(99), "one of its hundred bytes is used");
    server.end_push(id).expect("no crash is injected");
    assert_eq!(code(&server.push(&push(&owner(), &oid('b'), 100))), "E-QUOTA-REPOSITORY");
    assert_eq!(code(&server.push(&push(&owner(), &oid('b'), 99))), "accepted");
    // A second repository of the same key.
    expect_reply(&mut server, &owner().announcement(&service(), "second", 100, &[]), HELD);
    let state = owner().state("second", 101, &[("refs/heads/main", &oid('c'))]);
    expect_reply(&mut server, &state, HELD);
    let mut client_push =
        ClientPush::new(RepoPath::Announced(owner().repo_id("second"))).set("refs/heads/main", &oid('c'));
    client_push.bytes = 100;
    assert_eq!(code(&server.push(&client_push)), "E-QUOTA-KEY");
    client_push.bytes = 99;
    assert_eq!(code(&server.push(&client_push)), "accepted");
}

/// A submission (GRASP-06) to a repository that is hosted elsewhere.
fn submission(of: &Author, created_at: u64) -> Arc<SignedEvent> {
    let clone = format!("https://code.example/{}", RepoPath::PullRequests(outsider().repo_id("tool")).path());
    let tags = owned_tags(&[&["a", &of.repo("tool")], &["c", &oid('b')], &["clone", &clone]]);
    outsider().sign_owned(kinds::PULL_REQUEST, created_at, tags, "")
}

#[test]
fn pull_request_submissions_count_as_new_repositories_and_can_be_banned() {
    let mut server = TestServer::new(default_policy());
    expect_reply(&mut server, &submission(&nested_maintainer(), 200), HELD_FOR_COMMIT);
    server.handle(AdmissionInput::DiskLevel(DiskLevel::Soft));
    expect_reply(&mut server, &submission(&nested_maintainer(), 201), NEARLY_FULL);
    for banned in [nested_maintainer().key().npub(), outsider().key().npub(), "tool".to_owned()] {
        let banned = [RepoListEntry::parse(&banned).expect("valid list entry")].into_iter().collect();
        let lists = Arc::new(ModerationLists { banned_repos: banned, ..ModerationLists::default() });
        let mut server = TestServer::new(AdmissionPolicy { lists, ..default_policy() });
        expect_reply(&mut server, &submission(&nested_maintainer(), 200), BANNED);
    }
    let banned = [RepoListEntry::Owner(outsider().key())].into_iter().collect();
    let lists = Arc::new(ModerationLists { banned_repos: banned, ..ModerationLists::default() });
    let mut server = TestServer::new(AdmissionPolicy { lists, ..default_policy() });
    let push = ClientPush::new(RepoPath::PullRequests(outsider().repo_id("tool")))
        .pull(submission(&nested_maintainer(), 200).id, &oid('b'));
    assert_eq!(code(&server.push(&push)), "E-REPO-MISSING");
}

#[test]
fn uploads_without_events_count_towards_the_quota() {
    let quotas = Quotas { bytes_per_repository: Some(100), ..Quotas::default() };
    let (mut server, ..) = hosting_server(AdmissionPolicy { quotas, ..default_policy() }, &[]);
    let pull = |nth: u64| outsider().pull_request(200 + nth, &[&owner().repo("tool")], &oid('b'));
    let mut upload = |nth: u64| {
        let mut client_push =
            ClientPush::new(RepoPath::Announced(owner().repo_id("tool"))).pull(pull(nth).id, &oid('b'));
        client_push.bytes = 30;
        code(&server.push(&client_push))
    };
    // Uploads without an event may use half of the quota.
    assert_eq!((upload(1), upload(2)), ("accepted", "E-QUOTA-REPOSITORY"));
}
