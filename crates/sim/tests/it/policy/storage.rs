//! The marks of the disk budget, and quotas.

use grasp_core::admission::io::AdmissionInput;
use grasp_core::admission::policy::lists::{ModerationLists, RepoListEntry};
use grasp_core::disk_budget::{DiskLevel, Quotas};
use grasp_sim::test_server::Wish;

use super::common::*;

const NEARLY_FULL: &str = "false error: the disk of this service is nearly full…";
const FULL: &str = "false error: the disk is full…";

fn push(to: &Author, oid: &str, bytes: u64) -> Wish {
    let mut wish = Wish::new(RepoPath::Announced(to.repo_id("tool"))).set("refs/heads/main", oid);
    wish.bytes = bytes;
    wish
}

fn code(pushed: &grasp_sim::test_server::Pushed) -> &'static str {
    pushed.as_ref().map_or_else(|refusal| refusal.code(), |()| "taken")
}

#[test]
fn at_the_soft_mark_what_is_here_goes_on_and_nothing_new_comes() {
    let (mut house, old, state) = hosting(rules(), &[]);
    says(&mut house, &m().listed(&service(), "tool", 100, &[]), HELD);
    house.inform(AdmissionInput::DiskLevel(DiskLevel::Soft));
    says(&mut house, &x().listed(&service(), "tool", 100, &[]), NEARLY_FULL);
    says(&mut house, &m().listed(&service(), "tool", 110, &[]), HELD);
    says(&mut house, &o().issue(200, &o().repo("tool")), SERVED);
    let newer = main_at(&o(), 201, 'b');
    says(&mut house, &newer, HELD);
    assert_eq!(code(&house.push(&push(&o(), &oid('b'), 10))), "taken");
    says(&mut house, &o().listed(&service(), "tool", 202, &[]), SERVED);
    assert!(
        house.sets().0.contains(&newer.id) && !house.sets().0.contains(&state.id) && !house.sets().0.contains(&old.id)
    );
    house.inform(AdmissionInput::DiskLevel(DiskLevel::Free));
    says(&mut house, &x().listed(&service(), "tool", 100, &[]), HELD);
}

#[test]
fn at_the_hard_mark_only_what_makes_room_is_taken() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let newer = main_at(&o(), 201, 'b');
    says(&mut house, &newer, HELD);
    house.inform(AdmissionInput::DiskLevel(DiskLevel::Hard));
    says(&mut house, &o().issue(200, &o().repo("tool")), FULL);
    says(&mut house, &main_at(&o(), 202, 'c'), FULL);
    says(&mut house, &x().listed(&service(), "tool", 100, &[]), FULL);
    says(&mut house, &announcement, AGAIN);
    assert_eq!(code(&house.push(&push(&o(), &oid('b'), 10))), "E-DISK-FULL");
    stands(&house, &[&announcement, &state], &[&newer]);
    let (mut other, theirs, _) = hosting(rules(), &[]);
    other.inform(AdmissionInput::DiskLevel(DiskLevel::Hard));
    says(&mut other, &o().unlisted("tool", 400, &[]), DELISTED);
    assert!(!other.sets().0.contains(&theirs.id), "and be withdrawn");
    let gone = o().delete(300, &[&announcement]);
    says(&mut house, &gone, SERVED);
    assert!(!house.sets().0.contains(&announcement.id), "a repository can always be taken away");
    assert!(house.refs(&RepoPath::Announced(o().repo_id("tool"))).is_empty());
}

#[test]
fn a_key_has_so_many_repositories_and_those_that_it_has_go_on() {
    let quotas = Quotas { repositories_per_key: Some(2), ..Quotas::default() };
    let (mut house, ..) = hosting(AdmissionPolicy { quotas, ..rules() }, &[]);
    says(&mut house, &o().listed(&service(), "second", 100, &[]), HELD);
    let third = o().listed(&service(), "third", 100, &[]);
    says(&mut house, &third, "false restricted: repository quota reached, this key has 2 repositories here");
    says(&mut house, &o().listed(&service(), "second", 101, &[]), HELD);
    says(&mut house, &o().listed(&service(), "tool", 101, &[]), SERVED);
    says(&mut house, &m().listed(&service(), "third", 100, &[]), HELD);
    let tool = o().sign(kinds::DELETION, 300, &[&["a", &o().repo("tool")]], "");
    says(&mut house, &tool, SERVED);
    says(&mut house, &third, HELD);
}

#[test]
fn a_repository_and_a_key_have_so_many_bytes() {
    // In this world an object weighs a byte, and a push what it says.
    let quotas = Quotas { bytes_per_repository: Some(100), bytes_per_key: Some(101), ..Quotas::default() };
    let (mut house, ..) = hosting(AdmissionPolicy { quotas, ..rules() }, &[]);
    says(&mut house, &main_at(&o(), 201, 'b'), HELD);
    let id = house
        .ask(&push(&o(), &oid('b'), 99))
        .expect("lives")
        .map(|(id, permit)| (id, permit.expect("fits").quota_left));
    let (id, left) = id.expect("answered");
    assert_eq!(left.map(|(left, _)| left), Some(99), "one of its hundred bytes is used");
    house.end(id).expect("lives");
    assert_eq!(code(&house.push(&push(&o(), &oid('b'), 100))), "E-QUOTA-REPOSITORY");
    assert_eq!(code(&house.push(&push(&o(), &oid('b'), 99))), "taken");
    // A second repository of the same key.
    says(&mut house, &o().listed(&service(), "second", 100, &[]), HELD);
    let state = o().state("second", 101, &[("refs/heads/main", &oid('c'))]);
    says(&mut house, &state, HELD);
    let mut wish = Wish::new(RepoPath::Announced(o().repo_id("second"))).set("refs/heads/main", &oid('c'));
    wish.bytes = 100;
    assert_eq!(code(&house.push(&wish)), "E-QUOTA-KEY");
    wish.bytes = 99;
    assert_eq!(code(&house.push(&wish)), "taken");
}

/// A pull request for somebody's repository that is elsewhere, offered at `/prs/` (GRASP-06).
fn submission(of: &Author, created_at: u64) -> Arc<SignedEvent> {
    let clone = format!("https://code.example/{}", RepoPath::PullRequests(x().repo_id("tool")).path());
    let tags = owned(&[&["a", &of.repo("tool")], &["c", &oid('b')], &["clone", &clone]]);
    x().sign_owned(kinds::PULL_REQUEST, created_at, tags, "")
}

#[test]
fn submissions_are_new_repositories_and_can_be_banned() {
    let mut house = House::new(rules());
    says(&mut house, &submission(&r(), 200), COMMIT);
    house.inform(AdmissionInput::DiskLevel(DiskLevel::Soft));
    says(&mut house, &submission(&r(), 201), NEARLY_FULL);
    for banned in [r().key().npub(), x().key().npub(), "tool".to_owned()] {
        let banned = [RepoListEntry::parse(&banned).expect("an entry")].into_iter().collect();
        let lists = Arc::new(ModerationLists { banned_repos: banned, ..ModerationLists::default() });
        let mut house = House::new(AdmissionPolicy { lists, ..rules() });
        says(&mut house, &submission(&r(), 200), BANNED);
    }
    let banned = [RepoListEntry::Owner(x().key())].into_iter().collect();
    let lists = Arc::new(ModerationLists { banned_repos: banned, ..ModerationLists::default() });
    let mut house = House::new(AdmissionPolicy { lists, ..rules() });
    let push = Wish::new(RepoPath::PullRequests(x().repo_id("tool"))).pull(submission(&r(), 200).id, &oid('b'));
    assert_eq!(code(&house.push(&push)), "E-REPO-MISSING");
}

#[test]
fn uploads_that_wait_for_their_events_count() {
    let quotas = Quotas { bytes_per_repository: Some(100), ..Quotas::default() };
    let (mut house, ..) = hosting(AdmissionPolicy { quotas, ..rules() }, &[]);
    let pull = |nth: u64| x().pull_request(200 + nth, &[&o().repo("tool")], &oid('b'));
    let mut upload = |nth: u64| {
        let mut wish = Wish::new(RepoPath::Announced(o().repo_id("tool"))).pull(pull(nth).id, &oid('b'));
        wish.bytes = 30;
        code(&house.push(&wish))
    };
    // Half of it is for strangers.
    assert_eq!((upload(1), upload(2)), ("taken", "E-QUOTA-REPOSITORY"));
}
