//! Removal: deletion, withdrawal, expiry, vanishing, and maintainers who are no longer named.

use grasp_core::limits;
use grasp_core::nostr::{Decision, Rejection, kinds};
use grasp_sim::fixtures::{main_state, maintainer, oid, outsider, owner};
use grasp_sim::git_model::pull_ref;
use grasp_sim::signer::{maintainers_tag, owned_tags};
use grasp_sim::test_server::{ClientPush, TestServer, service};

use super::runner::{Action, CrashScript};
use super::scripts::expect_main;
use super::{hosting, main_to, prs, submission, tool};

/// O's and M's repositories, each of which follows both, and X's, which follows O's. `main` is at `b`, by M's state.
fn three() -> Vec<Action> {
    let mut actions = hosting(&[&maintainer()]);
    actions.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 150, &[&owner()])),
        Action::Submit(outsider().announcement(&service(), "tool", 151, &[&owner()])),
        Action::Submit(main_state(&maintainer(), 200, 'b')),
        Action::Push(main_to(&maintainer(), 'b', "")),
    ]);
    actions
}

#[test]
fn deletion_of_the_only_state() {
    let actions = vec![Action::Submit(owner().deletion(300, &[&["a", &owner().coordinate(kinds::STATE, "tool")]]))];
    let (server, _) = CrashScript { setup: hosting(&[]), actions }.assert_crash_safe();
    expect_main(&server, &owner(), None);
}

#[test]
fn deletion_of_a_state_reverts_to_another() {
    let actions =
        vec![Action::Submit(maintainer().deletion(300, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]]))];
    let (server, _) = CrashScript { setup: three(), actions }.assert_crash_safe();
    for owner in [owner(), maintainer(), outsider()] {
        expect_main(&server, &owner, Some('a'));
    }
}

/// A request of a key that has nothing here is not lost in a crash, and is served together with the key's first event.
#[test]
fn deletion_before_its_target() {
    let pull = submission(&outsider(), 200, &[&owner().repo("tool")], 'b');
    let issue = outsider().issue(200, &owner().repo("tool"));
    let deletion = outsider().delete(300, &[&pull]);
    let actions = vec![Action::Submit(deletion.clone()), Action::Submit(issue.clone())];
    let (mut server, _) = CrashScript { setup: hosting(&[]), actions }.assert_crash_safe();
    assert!([&deletion, &issue].iter().all(|event| server.event_ids().0.contains(&event.id)));
    assert_eq!(server.submit(&pull), Decision::Reject(Rejection::Deleted));
}

/// The newer state is held because its data is missing; the deleted state is removed nevertheless.
#[test]
fn deletion_of_a_state_while_another_is_held() {
    let mut setup = hosting(&[]);
    setup.push(Action::Submit(main_state(&owner(), 400, 'c')));
    let state = main_state(&owner(), 101, 'a');
    let (server, _) =
        CrashScript { setup, actions: vec![Action::Submit(owner().delete(300, &[&state]))] }.assert_crash_safe();
    expect_main(&server, &owner(), None);
}

#[test]
fn deletion_of_a_pull_request() {
    let mut setup = hosting(&[&maintainer()]);
    setup.push(Action::Submit(maintainer().announcement(&service(), "tool", 150, &[&owner()])));
    let pull = submission(&outsider(), 200, &[&owner().repo("tool")], 'b');
    // It was also pushed to another maintainer's repository.
    setup.extend([
        Action::Submit(pull.clone()),
        Action::Push(ClientPush::new(prs(&outsider())).pull(pull.id, &oid('b')).bring(&[&oid('a')])),
        Action::Push(ClientPush::new(tool(&maintainer())).pull(pull.id, &oid('b')).bring(&[&oid('a')])),
    ]);
    let (mut server, _) =
        CrashScript { setup, actions: vec![Action::Submit(outsider().delete(300, &[&pull]))] }.assert_crash_safe();
    for repo_path in [tool(&owner()), tool(&maintainer()), prs(&outsider())] {
        assert_eq!(server.refs(&repo_path).get(&pull_ref(pull.id)), None, "{repo_path}");
    }
    assert!(server.git().folder(&prs(&outsider())).is_none());
}

#[test]
fn deletion_of_one_of_two_submissions() {
    let [one, other] =
        [(200, 'b'), (201, 'c')].map(|(at, digit)| submission(&outsider(), at, &[&maintainer().repo("tool")], digit));
    let setup = vec![
        Action::Submit(one.clone()),
        Action::Submit(other.clone()),
        Action::Push(
            ClientPush::new(prs(&outsider())).pull(one.id, &oid('b')).pull(other.id, &oid('c')).bring(&[&oid('a')]),
        ),
    ];
    let (server, _) =
        CrashScript { setup, actions: vec![Action::Submit(outsider().delete(300, &[&one]))] }.assert_crash_safe();
    assert_eq!(server.refs(&prs(&outsider())).into_keys().collect::<Vec<_>>(), [pull_ref(other.id)]);
}

#[test]
fn deletion_of_a_repository_whose_objects_others_read() {
    let actions = vec![Action::Submit(maintainer().deletion(300, &[&["a", &maintainer().repo("tool")]]))];
    let (mut server, _) = CrashScript { setup: three(), actions }.assert_crash_safe();
    expect_main(&server, &owner(), Some('b'));
    assert!(server.git().folder(&tool(&maintainer())).is_none());
}

#[test]
fn deletion_and_new_announcement() {
    let tags: &[&[&str]] = &[&["a", &owner().repo("tool")], &["a", &owner().coordinate(kinds::STATE, "tool")]];
    let mut actions = vec![Action::Submit(owner().deletion(300, tags))];
    actions.extend([
        Action::Submit(owner().announcement(&service(), "tool", 301, &[])),
        Action::Submit(main_state(&owner(), 302, 'd')),
        Action::Push(main_to(&owner(), 'd', "")),
    ]);
    let (server, _) = CrashScript { setup: hosting(&[]), actions }.assert_crash_safe();
    expect_main(&server, &owner(), Some('d'));
}

#[test]
fn withdrawal() {
    for setup in [hosting(&[]), three()] {
        let actions = vec![
            Action::Submit(owner().announcement(&service(), "tool", 300, &[&maintainer()])),
            Action::Submit(maintainer().announcement_elsewhere("tool", 301, &[])),
        ];
        let (server, _) = CrashScript { setup: setup.clone(), actions }.assert_crash_safe();
        assert!(server.admission().hosted_repo(&maintainer().repo_id("tool")).is_none());
        // The announcement is rejected, and hosting has ended.
        let script = CrashScript { setup, actions: vec![] };
        let mut server = script.assert_crash_safe().0;
        server.submit(&owner().announcement_elsewhere("tool", 400, &[]));
        assert!(server.git().folder(&tool(&owner())).is_none());
    }
}

#[test]
fn expiry_of_held_events() {
    let mut setup = hosting(&[&maintainer()]);
    let held = outsider().pull_request(201, &[&owner().repo("tool")], &oid('d'));
    setup.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 150, &[])),
        Action::Submit(main_state(&maintainer(), 200, 'c')),
        Action::Submit(held),
        Action::Push(ClientPush::new(tool(&owner())).pull(outsider().note(1, &[], "").id, &oid('e'))),
        Action::Push(ClientPush::new(tool(&maintainer())).pull(outsider().note(2, &[], "").id, &oid('f'))),
    ]);
    let (mut server, _) =
        CrashScript { setup, actions: vec![Action::Wait(limits::PURGATORY_EXPIRY_SECS)] }.assert_crash_safe();
    assert_eq!((server.event_ids().1.len(), server.pending_uploads().len(), server.git().staged().len()), (0, 0, 0));
    expect_main(&server, &owner(), Some('a'));
}

/// A held repository has a pull request's ref and then expires, because no branch was pushed.
#[test]
fn expiry_of_a_held_repository_with_a_pull_request_ref() {
    let mut setup = hosting(&[]);
    let pull = outsider().pull_request(201, &[&owner().repo("tool"), &maintainer().repo("tool")], &oid('b'));
    setup.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 150, &[])),
        Action::Submit(pull.clone()),
        Action::Push(ClientPush::new(tool(&maintainer())).pull(pull.id, &oid('b')).bring(&[&oid('a')])),
    ]);
    let (mut server, _) =
        CrashScript { setup, actions: vec![Action::Wait(limits::PURGATORY_EXPIRY_SECS)] }.assert_crash_safe();
    assert!(server.git().folder(&tool(&maintainer())).is_none());
    assert_eq!(server.refs(&tool(&owner())).get(&pull_ref(pull.id)), Some(&oid('b')));
}

#[test]
fn expiry_of_served_events() {
    let soon = |at: u64| vec!["expiration".to_owned(), (10_000 + at).to_string()];
    let mut tags = owned_tags(&[&["d", "tool"], &["refs/heads/main", &oid('b')]]);
    tags.push(soon(100));
    let state = maintainer().sign_owned(kinds::STATE, 200, tags, "");
    let announcement =
        owner().announcement_with(&service(), "tool", 99, vec![maintainers_tag(&[&maintainer()]), soon(2_000)]);
    let setup = vec![
        Action::Submit(announcement),
        Action::Submit(main_state(&owner(), 101, 'a')),
        Action::Push(main_to(&owner(), 'a', "")),
        Action::Submit(outsider().announcement(&service(), "tool", 151, &[&owner()])),
        Action::Submit(state),
        Action::Push(main_to(&owner(), 'b', "")),
    ];
    let (server, _) = CrashScript { setup: setup.clone(), actions: vec![Action::Wait(100)] }.assert_crash_safe();
    expect_main(&server, &owner(), Some('a'));
    expect_main(&server, &outsider(), Some('a'));
    let (mut server, _) = CrashScript { setup, actions: vec![Action::Wait(2_000)] }.assert_crash_safe();
    assert!(server.git().folder(&tool(&owner())).is_none());
    expect_main(&server, &outsider(), Some('a'));
}

#[test]
fn vanish_request() {
    for author in [owner(), maintainer(), outsider()] {
        let mut setup = three();
        let pull = submission(&outsider(), 250, &[&owner().repo("tool"), &outsider().repo("tool")], 'c');
        setup.extend([
            Action::Submit(pull.clone()),
            Action::Push(ClientPush::new(prs(&outsider())).pull(pull.id, &oid('c')).bring(&[&oid('a'), &oid('b')])),
        ]);
        let (mut server, _) = CrashScript { setup, actions: vec![Action::Submit(author.vanish(300, &["ALL_RELAYS"]))] }
            .assert_crash_safe();
        assert_eq!(server.git().folder(&tool(&author)), None);
        let left = server.refs(&tool(&if author == owner() { outsider() } else { owner() }));
        assert_eq!(left.contains_key(&pull_ref(pull.id)), author != outsider());
    }
}

#[test]
fn maintainer_set_shrinks() {
    // O's repository follows M's state, whose objects are in M's pool.
    let actions = vec![Action::Submit(owner().announcement(&service(), "tool", 300, &[]))];
    let (mut server, _) = CrashScript { setup: three(), actions }.assert_crash_safe();
    expect_main(&server, &owner(), Some('a'));
    expect_main(&server, &outsider(), Some('a'));
    expect_main(&server, &maintainer(), Some('b'));
    let alternates =
        |server: &mut TestServer, who| server.git().folder(&tool(&who)).expect("has a folder").alternates.clone();
    assert!(alternates(&mut server, owner()).contains(&tool(&maintainer())), "O goes on reading M's pool");
    // X's announcement names no maintainer any more: the repository has no authoritative state.
    let actions = vec![Action::Submit(outsider().announcement(&service(), "tool", 300, &[]))];
    let (mut server, _) = CrashScript { setup: three(), actions }.assert_crash_safe();
    expect_main(&server, &outsider(), None);
    assert!(alternates(&mut server, outsider()).contains(&tool(&owner())));
}

#[test]
fn maintainer_set_grows() {
    let mut setup = hosting(&[]);
    setup.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 150, &[])),
        Action::Submit(main_state(&maintainer(), 200, 'b')),
        Action::Push(main_to(&maintainer(), 'b', "a")),
    ]);
    let actions = vec![Action::Submit(owner().announcement(&service(), "tool", 300, &[&maintainer()]))];
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    expect_main(&server, &owner(), Some('b'));
}
