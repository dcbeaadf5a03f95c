//! Arrival: pushes, states, followers, pull requests.

use grasp_core::nostr::kinds;
use grasp_sim::fixtures::{main_state, maintainer, nested_maintainer, oid, outsider, owner};
use grasp_sim::git_model::pull_ref;
use grasp_sim::signer::Author;
use grasp_sim::test_server::{ClientPush, TestServer, service};

use super::runner::{Action, CrashScript};
use super::{hosting, main_to, prs, submission, tool};

/// Checks where `main` is.
#[track_caller]
pub(crate) fn expect_main(server: &TestServer, owner: &Author, digit: Option<char>) {
    assert_eq!(server.refs(&tool(owner)).get("refs/heads/main"), digit.map(oid).as_ref());
}

#[test]
fn first_push() {
    let script = CrashScript {
        setup: vec![
            Action::Submit(owner().announcement(&service(), "tool", 100, &[])),
            Action::Submit(main_state(&owner(), 101, 'b')),
        ],
        actions: vec![Action::Push(main_to(&owner(), 'b', "a"))],
    };
    let (server, faults) = script.assert_crash_safe();
    expect_main(&server, &owner(), Some('b'));
    assert_eq!(server.event_ids().0.len(), 2);
    assert!(faults > 50, "{faults}");
}

#[test]
fn announcement_state_and_first_push() {
    let (server, _) = CrashScript { setup: vec![], actions: hosting(&[]) }.assert_crash_safe();
    expect_main(&server, &owner(), Some('a'));
}

#[test]
fn push_that_replaces_a_branch() {
    let mut setup = hosting(&[]);
    let two = owner().state("tool", 200, &[("refs/heads/dev", &oid('b')), ("HEAD", "ref: refs/heads/dev")]);
    setup.push(Action::Submit(two.clone()));
    let client_push = ClientPush::new(tool(&owner())).set("refs/heads/dev", &oid('b')).delete("refs/heads/main");
    let (server, _) = CrashScript { setup, actions: vec![Action::Push(client_push)] }.assert_crash_safe();
    expect_main(&server, &owner(), None);
    assert_eq!(server.visible_refs()[&tool(&owner())].head(), "refs/heads/dev");
    assert!(server.event_ids().0.contains(&two.id));
}

#[test]
fn state_arrives_with_data_present() {
    let two = owner().state("tool", 200, &[("refs/heads/dev", &oid('a')), ("HEAD", "ref: refs/heads/dev")]);
    let (server, _) =
        CrashScript { setup: hosting(&[]), actions: vec![Action::Submit(two.clone())] }.assert_crash_safe();
    expect_main(&server, &owner(), None);
    assert!(server.event_ids().0.contains(&two.id));
}

#[test]
fn push_updates_following_repositories() {
    let mut setup = hosting(&[&maintainer()]);
    setup.extend([
        Action::Submit(outsider().announcement(&service(), "tool", 150, &[&owner()])),
        Action::Submit(maintainer().announcement(&service(), "tool", 151, &[&owner()])),
    ]);
    let actions = vec![Action::Submit(main_state(&maintainer(), 200, 'b')), Action::Push(main_to(&owner(), 'b', ""))];
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    for owner in [owner(), maintainer(), outsider()] {
        expect_main(&server, &owner, Some('b'));
    }
    assert_eq!(server.event_ids().1.len(), 0);
}

/// An announcement whose git data is already on this server is filled and released at once (docs/protocol.md#release).
#[test]
fn announcement_with_data_present() {
    let actions = vec![Action::Submit(outsider().announcement(&service(), "tool", 150, &[&owner()]))];
    let (server, _) = CrashScript { setup: hosting(&[]), actions }.assert_crash_safe();
    expect_main(&server, &outsider(), Some('a'));
    assert_eq!(server.event_ids().1.len(), 0);
}

#[test]
fn pull_request_pushed_before_its_event() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let actions =
        vec![Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('b'))), Action::Submit(pull.clone())];
    let (server, _) = CrashScript { setup: hosting(&[]), actions }.assert_crash_safe();
    assert_eq!(server.refs(&tool(&owner())).get(&pull_ref(pull.id)), Some(&oid('b')));
    assert!(server.event_ids().0.contains(&pull.id));
}

#[test]
fn pull_request_event_before_its_push() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let actions =
        vec![Action::Submit(pull.clone()), Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('b')))];
    let (server, _) = CrashScript { setup: hosting(&[]), actions }.assert_crash_safe();
    assert_eq!(server.refs(&tool(&owner())).get(&pull_ref(pull.id)), Some(&oid('b')));
}

/// If the event arrives after an upload of another commit, the upload is removed and the event is held
/// (docs/protocol.md#pull-request-refs).
#[test]
fn upload_of_another_commit_is_removed() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let actions = vec![
        Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('c')).bring(&[&oid('b')])),
        Action::Submit(pull.clone()),
    ];
    let (server, _) = CrashScript { setup: hosting(&[]), actions }.assert_crash_safe();
    assert_eq!(server.refs(&tool(&owner())).get(&pull_ref(pull.id)), None);
    assert_eq!((server.pending_uploads(), server.event_ids().1), (vec![], [pull.id].into()));
}

/// A submission is copied into every hosted target repository (docs/protocol.md#contributor-pull-requests).
#[test]
fn submission_is_copied_to_every_target() {
    let mut setup = hosting(&[]);
    setup.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 100, &[])),
        Action::Submit(main_state(&maintainer(), 101, 'd')),
        Action::Push(main_to(&maintainer(), 'd', "")),
    ]);
    let pull = submission(&outsider(), 200, &[&owner().repo("tool"), &maintainer().repo("tool")], 'b');
    let push = Action::Push(ClientPush::new(prs(&outsider())).pull(pull.id, &oid('b')).bring(&[&oid('a')]));
    for actions in [vec![Action::Submit(pull.clone()), push.clone()], vec![push, Action::Submit(pull.clone())]] {
        let (server, _) = CrashScript { setup: setup.clone(), actions }.assert_crash_safe();
        for repo_path in [prs(&outsider()), tool(&owner()), tool(&maintainer())] {
            assert_eq!(server.refs(&repo_path).get(&pull_ref(pull.id)), Some(&oid('b')), "{repo_path}");
        }
    }
}

/// An ordinary push is not copied to `/prs/` (docs/protocol.md#contributor-pull-requests).
#[test]
fn ordinary_push_is_not_copied_to_the_submission() {
    let pull = submission(&outsider(), 200, &[&owner().repo("tool")], 'b');
    let push = Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('b')));
    let (server, _) =
        CrashScript { setup: hosting(&[]), actions: vec![Action::Submit(pull.clone()), push] }.assert_crash_safe();
    assert_eq!(server.refs(&tool(&owner())).get(&pull_ref(pull.id)), Some(&oid('b')));
    assert!(server.refs(&prs(&outsider())).is_empty());
}

/// A pull request to one maintainer's repository may be pushed to another maintainer's repository of the same
/// identifier.
#[test]
fn pull_request_pushed_to_another_maintainers_repository() {
    let mut setup = hosting(&[&maintainer()]);
    setup.push(Action::Submit(maintainer().announcement(&service(), "tool", 150, &[&owner()])));
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let push = Action::Push(ClientPush::new(tool(&maintainer())).pull(pull.id, &oid('b')));
    for actions in [vec![Action::Submit(pull.clone()), push.clone()], vec![push, Action::Submit(pull.clone())]] {
        let (server, _) = CrashScript { setup: setup.clone(), actions }.assert_crash_safe();
        for owner in [owner(), maintainer()] {
            assert_eq!(server.refs(&tool(&owner)).get(&pull_ref(pull.id)), Some(&oid('b')), "{owner:?}");
        }
    }
}

/// One push has branches, a pull request whose event is known, and two uploads whose events are not known yet.
#[test]
fn push_of_branches_pull_request_and_uploads() {
    let repo = owner().repo("tool");
    let [known, one, other] =
        [(200, 'd'), (201, 'e'), (202, 'f')].map(|(at, digit)| outsider().pull_request(at, &[&repo], &oid(digit)));
    let mut setup = hosting(&[]);
    setup.extend([Action::Submit(known.clone()), Action::Submit(main_state(&owner(), 200, 'b'))]);
    let client_push =
        main_to(&owner(), 'b', "").pull(known.id, &oid('d')).pull(one.id, &oid('e')).pull(other.id, &oid('f'));
    let (server, _) = CrashScript { setup, actions: vec![Action::Push(client_push), Action::Submit(one.clone())] }
        .assert_crash_safe();
    expect_main(&server, &owner(), Some('b'));
    let refs = server.refs(&tool(&owner()));
    assert_eq!([known.id, one.id, other.id].map(|id| refs.contains_key(&pull_ref(id))), [true, true, false]);
    assert_eq!(server.pending_uploads().len(), 1);
}

/// A push also brings the data of a newer state and of a pull request: both are released
/// (docs/protocol.md#after-a-push).
#[test]
fn push_releases_every_event_that_is_complete() {
    let mut setup = hosting(&[&maintainer()]);
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let tag = maintainer().state("tool", 300, &[("refs/heads/main", &oid('c')), ("refs/tags/v1", &oid('b'))]);
    setup.extend([
        Action::Submit(pull.clone()),
        Action::Submit(main_state(&owner(), 250, 'c')),
        Action::Submit(tag.clone()),
    ]);
    let (server, _) =
        CrashScript { setup, actions: vec![Action::Push(main_to(&owner(), 'c', "b"))] }.assert_crash_safe();
    assert_eq!(server.event_ids().1, [].into());
    let refs = server.refs(&tool(&owner()));
    assert_eq!(refs.get("refs/tags/v1"), Some(&oid('b')));
    assert_eq!(refs.get(&pull_ref(pull.id)), Some(&oid('b')));
}

/// One target of the update is a held repository.
#[test]
fn pull_request_update_for_a_held_repository() {
    let mut setup = hosting(&[]);
    let tags: &[&[&str]] =
        &[&["a", &owner().repo("tool")], &["a", &nested_maintainer().repo("tool")], &["c", &oid('d')]];
    let update = outsider().sign(kinds::PULL_REQUEST_UPDATE, 200, tags, "");
    setup.extend([
        Action::Submit(nested_maintainer().announcement(&service(), "tool", 150, &[])),
        Action::Submit(update.clone()),
    ]);
    let actions = vec![Action::Push(ClientPush::new(tool(&nested_maintainer())).pull(update.id, &oid('d')))];
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    for owner in [owner(), nested_maintainer()] {
        assert_eq!(server.refs(&tool(&owner)).get(&pull_ref(update.id)), Some(&oid('d')), "{owner:?}");
    }
}
