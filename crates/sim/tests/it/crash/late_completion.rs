//! Held events are checked again whenever they could have become complete: by objects that arrived for another event,
//! by a repository that is announced later, by a maintainer who is named later.

use grasp_core::nostr::kinds;
use grasp_sim::fixtures::{main_state, maintainer, oid, outsider, owner};
use grasp_sim::git_model::pull_ref;
use grasp_sim::test_server::{ClientPush, service};

use super::runner::{Action, CrashScript};
use super::scripts::expect_main;
use super::{hosting, main_to, submission, tool};

#[test]
fn target_is_announced_after_the_pull_request() {
    let mut setup = hosting(&[]);
    let pull = outsider().pull_request(200, &[&owner().repo("tool"), &maintainer().repo("tool")], &oid('b'));
    setup.push(Action::Submit(pull.clone()));
    let actions = vec![
        Action::Submit(maintainer().announcement(&service(), "tool", 201, &[])),
        Action::Submit(main_state(&maintainer(), 202, 'c')),
        Action::Push(main_to(&maintainer(), 'c', "ab")),
    ];
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    for owner in [owner(), maintainer()] {
        assert_eq!(server.refs(&tool(&owner)).get(&pull_ref(pull.id)), Some(&oid('b')), "{owner:?}");
    }
}

#[test]
fn target_without_own_objects_reads_the_commit() {
    let mut setup = hosting(&[]);
    setup.extend([
        Action::Submit(main_state(&owner(), 200, 'b')),
        Action::Push(main_to(&owner(), 'b', "")),
        Action::Submit(owner().state("tool", 201, &[])),
        Action::Submit(submission(&maintainer(), 202, &[&outsider().repo("tool")], 'b')),
    ]);
    let actions = vec![Action::Submit(outsider().announcement(&service(), "tool", 203, &[&owner()]))];
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    assert_eq!(server.refs(&tool(&outsider())).len(), 1);
}

/// The ids of events determine the order in which they are restored at startup.
#[test]
fn pull_request_for_a_held_repository_in_every_restore_order() {
    let mut lower = 0;
    for at in 200..206 {
        let announcement = maintainer().announcement(&service(), "tool", 150, &[]);
        let pull = outsider().pull_request(at, &[&owner().repo("tool"), &maintainer().repo("tool")], &oid('d'));
        lower += usize::from(pull.id < announcement.id);
        let mut setup = hosting(&[]);
        setup.extend([Action::Submit(announcement), Action::Submit(pull.clone())]);
        let actions = vec![Action::Push(ClientPush::new(tool(&maintainer())).pull(pull.id, &oid('d')))];
        let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
        assert!(server.event_ids().0.contains(&pull.id));
    }
    assert!((1..6).contains(&lower), "{lower}");
}

/// X's state is complete as soon as O, whose repository has the objects, names X.
#[test]
fn maintainer_with_a_held_state_is_named() {
    let mut setup = hosting(&[]);
    setup.extend([
        Action::Submit(outsider().announcement(&service(), "tool", 150, &[])),
        Action::Submit(outsider().state("tool", 99, &[("refs/heads/main", &oid('a'))])),
    ]);
    let actions = vec![Action::Submit(owner().announcement(&service(), "tool", 200, &[&outsider()]))];
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    expect_main(&server, &outsider(), Some('a'));
    assert!(server.event_ids().1.is_empty());
}

/// M's state is served; M's repository was deleted and is announced again. The objects arrive in O's repository, for
/// which M's state is authoritative too.
#[test]
fn objects_of_a_served_state_return_in_another_repository() {
    let mut setup = hosting(&[&maintainer()]);
    let pull = outsider().pull_request(300, &[&owner().repo("tool")], &oid('d'));
    setup.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 50, &[])),
        Action::Submit(main_state(&maintainer(), 51, 'd')),
        Action::Push(main_to(&maintainer(), 'd', "")),
        Action::Submit(maintainer().deletion(60, &[&["a", &maintainer().repo("tool")]])),
        Action::Submit(maintainer().announcement(&service(), "tool", 61, &[])),
        Action::Submit(pull.clone()),
    ]);
    let actions = vec![Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('d')))];
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    expect_main(&server, &maintainer(), Some('d'));
    assert!(server.event_ids().1.is_empty());
}

/// The repository of an upload is deleted, the upload's event arrives, and then the repository is announced again.
#[test]
fn upload_is_used_after_the_repository_returns() {
    let pull = submission(&outsider(), 200, &[&owner().repo("tool")], 'd');
    let mut setup = hosting(&[]);
    setup.extend([
        Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('d'))),
        Action::Submit(
            owner().deletion(300, &[&["a", &owner().repo("tool")], &["a", &owner().coordinate(kinds::STATE, "tool")]]),
        ),
        Action::Submit(pull.clone()),
    ]);
    let actions = vec![Action::Submit(owner().announcement(&service(), "tool", 301, &[]))];
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    assert_eq!(server.refs(&tool(&owner())).get(&pull_ref(pull.id)), Some(&oid('d')));
    assert!(server.pending_uploads().is_empty());
}
