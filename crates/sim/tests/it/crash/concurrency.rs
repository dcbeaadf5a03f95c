//! Concurrency: an event arrives while a git job is running, and then the server crashes.

use std::sync::Arc;

use grasp_core::admission::push::PushRejection;
use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::failure_context::FailureContext;
use grasp_sim::fixtures::{main_state, maintainer, oid, outsider, owner};
use grasp_sim::git_model::pull_ref;
use grasp_sim::signer::Author;
use grasp_sim::test_server::{ClientPush, TestServer, service};

use super::runner::{Action, FinalState, server};
use super::{hosting, main_to, prs, submission, tool};

/// Returns a server after these actions, in manual git mode.
fn manual_git_server(actions: &[Action]) -> TestServer {
    let mut server = server();
    for action in actions {
        match action {
            Action::Submit(event) => drop(server.submit(event)),
            Action::Push(client_push) => server.push(client_push).expect("push succeeds"),
            Action::Wait(secs) => server.advance(*secs),
            Action::SetLists(lists) => server.set_lists(lists.clone()),
        }
    }
    server.set_manual_git(true);
    server
}

/// Runs `begin`, some git steps, `change`, some more git steps, and then everything to the end, at once or after a
/// crash. For every number of steps the result satisfies `ends` and is stable across a restart.
fn check_interleavings(
    setup: &[Action],
    begin: impl Fn(&mut TestServer),
    change: impl Fn(&mut TestServer),
    ends: impl Fn(&mut TestServer),
) {
    for first in 0..12 {
        for second in 0..12 {
            let _context = FailureContext(format!("after {first} and {second} steps"));
            let play = |crash: bool| {
                let mut server = manual_git_server(setup);
                begin(&mut server);
                steps(&mut server, first);
                change(&mut server);
                steps(&mut server, second);
                if crash {
                    server.boot().expect("no crash is injected");
                }
                server.run_git_jobs().expect("no crash is injected");
                for id in server.ongoing_pushes() {
                    server.end_push(id).expect("no crash is injected");
                }
                ends(&mut server);
                let end = FinalState::new(&mut server);
                server.boot().expect("no crash is injected");
                server.run_git_jobs().expect("no crash is injected");
                assert_eq!(end, FinalState::new(&mut server), "nothing was left to do (right: after a restart)");
            };
            play(false);
            play(true);
        }
    }
}

fn steps(server: &mut TestServer, count: usize) {
    for _ in 0..count {
        server.step_git_job(0).expect("no crash is injected");
    }
}

fn begin_push(client_push: ClientPush) -> impl Fn(&mut TestServer) {
    move |server: &mut TestServer| {
        let (id, permit) =
            server.request_push(&client_push).expect("no crash is injected").expect("push changes a ref");
        permit.expect("push is permitted");
        assert_eq!(server.receive_packs(id), Ok(None));
    }
}

fn submit_later(event: &Arc<SignedEvent>) -> impl Fn(&mut TestServer) {
    let event = event.clone();
    move |server: &mut TestServer| drop(server.submit(&event))
}

fn expect_no_ref(owner: &Author, name: &str) -> impl Fn(&mut TestServer) {
    let (repo_path, name) = (tool(owner), name.to_owned());
    move |server: &mut TestServer| assert_eq!(server.refs(&repo_path).get(&name), None)
}

#[test]
fn state_is_deleted_while_it_is_pushed() {
    let state = main_state(&maintainer(), 200, 'b');
    let mut setup = hosting(&[&maintainer()]);
    setup.push(Action::Submit(state.clone()));
    let at_a = |server: &mut TestServer| {
        assert_eq!(server.refs(&tool(&owner())).get("refs/heads/main"), Some(&oid('a')));
    };
    check_interleavings(
        &setup,
        begin_push(main_to(&owner(), 'b', "")),
        submit_later(&maintainer().delete(300, &[&state])),
        at_a,
    );
}

#[test]
fn first_state_is_deleted_while_it_is_pushed() {
    let state = main_state(&owner(), 200, 'b');
    let setup = [Action::Submit(owner().announcement(&service(), "tool", 100, &[])), Action::Submit(state.clone())];
    let deletion = owner().delete(300, &[&state]);
    check_interleavings(
        &setup,
        begin_push(main_to(&owner(), 'b', "a")),
        submit_later(&deletion),
        expect_no_ref(&owner(), "refs/heads/main"),
    );
}

#[test]
fn pull_request_is_deleted_while_it_is_pushed() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let mut setup = hosting(&[&maintainer()]);
    setup.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 150, &[&owner()])),
        Action::Submit(pull.clone()),
    ]);
    for owner in [owner(), maintainer()] {
        let client_push = ClientPush::new(tool(&owner)).pull(pull.id, &oid('b'));
        let name = pull_ref(pull.id);
        check_interleavings(
            &setup,
            begin_push(client_push),
            submit_later(&outsider().delete(300, &[&pull])),
            expect_no_ref(&owner, &name),
        );
    }
}

#[test]
fn pull_request_is_deleted_while_its_upload_is_adopted() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let mut setup = hosting(&[]);
    setup.push(Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('b'))));
    let name = pull_ref(pull.id);
    check_interleavings(
        &setup,
        submit_later(&pull),
        submit_later(&outsider().delete(300, &[&pull])),
        expect_no_ref(&owner(), &name),
    );
}

#[test]
fn author_vanishes_during_a_push() {
    let (state, pull) =
        (main_state(&maintainer(), 200, 'b'), maintainer().pull_request(200, &[&owner().repo("tool")], &oid('d')));
    let mut setup = hosting(&[&maintainer()]);
    setup.extend([Action::Submit(state), Action::Submit(pull.clone())]);
    let client_push = main_to(&owner(), 'b', "").pull(pull.id, &oid('d'));
    check_interleavings(
        &setup,
        begin_push(client_push),
        submit_later(&maintainer().vanish(300, &["ALL_RELAYS"])),
        |server| {
            assert_eq!(
                server.refs(&tool(&owner())).into_iter().collect::<Vec<_>>(),
                [("refs/heads/main".into(), oid('a'))]
            );
        },
    );
}

#[test]
fn maintainer_is_removed_while_its_state_is_pushed() {
    let mut setup = hosting(&[&maintainer()]);
    setup.push(Action::Submit(main_state(&maintainer(), 200, 'b')));
    let alone = owner().announcement(&service(), "tool", 300, &[]);
    check_interleavings(&setup, begin_push(main_to(&owner(), 'b', "")), submit_later(&alone), |server| {
        assert_eq!(server.refs(&tool(&owner())).get("refs/heads/main"), Some(&oid('a')));
    });
}

#[test]
fn repository_is_deleted_while_it_is_pushed_to() {
    let mut setup = hosting(&[]);
    setup.push(Action::Submit(main_state(&owner(), 200, 'b')));
    for change in
        [owner().announcement_elsewhere("tool", 300, &[]), owner().deletion(300, &[&["a", &owner().repo("tool")]])]
    {
        check_interleavings(&setup, begin_push(main_to(&owner(), 'b', "")), submit_later(&change), |server| {
            assert_eq!(server.git().folder(&tool(&owner())), None);
        });
    }
}

#[test]
fn repository_is_announced_again_while_it_is_deleted() {
    let again = owner().announcement(&service(), "tool", 400, &[]);
    check_interleavings(
        &hosting(&[]),
        submit_later(&owner().deletion(300, &[&["a", &owner().repo("tool")]])),
        submit_later(&again),
        |server| {
            assert!(server.admission().hosted_repo(&owner().repo_id("tool")).is_some());
        },
    );
}

/// A repository is deleted while another one starts to read its object pool.
#[test]
fn repository_is_deleted_while_another_starts_to_read_its_pool() {
    let follower = outsider().announcement(&service(), "tool", 200, &[&owner()]);
    let deletion = owner().deletion(300, &[&["a", &owner().repo("tool")]]);
    check_interleavings(&hosting(&[]), submit_later(&follower), submit_later(&deletion), |_| {});
    check_interleavings(&hosting(&[]), submit_later(&deletion), submit_later(&follower), |_| {});
}

/// The pull request is pushed to M's repository, whose objects O's repository reads until M is removed. If O's has read
/// them before, it goes on reading them.
#[test]
fn maintainer_is_removed_while_a_pull_request_is_pushed_to_its_repository() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('d'));
    let mut setup = hosting(&[&maintainer()]);
    setup.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 150, &[&owner()])),
        Action::Submit(pull.clone()),
    ]);
    let client_push = ClientPush::new(tool(&maintainer())).pull(pull.id, &oid('d'));
    let alone = owner().announcement(&service(), "tool", 300, &[]);
    check_interleavings(&setup, begin_push(client_push), submit_later(&alone), |server| {
        let served = server.event_ids().0.contains(&pull.id);
        let has_ref =
            [owner(), maintainer()].iter().any(|who| server.refs(&tool(who)).contains_key(&pull_ref(pull.id)));
        assert_eq!(has_ref, served);
    });
}

/// A newer state arrives while an older one, which names the same objects, is applied.
#[test]
fn newer_state_arrives_during_a_git_job() {
    let mut setup = hosting(&[&maintainer()]);
    setup.push(Action::Submit(main_state(&owner(), 200, 'b')));
    let better = maintainer().state("tool", 300, &[("refs/heads/dev", &oid('b'))]);
    check_interleavings(&setup, begin_push(main_to(&owner(), 'b', "")), submit_later(&better), |server| {
        let dev = server.refs(&tool(&owner())).get("refs/heads/dev").cloned();
        assert_eq!(dev.is_some(), server.event_ids().0.contains(&better.id));
    });
    check_interleavings(
        &hosting(&[&maintainer()]),
        submit_later(&main_state(&maintainer(), 200, 'a')),
        submit_later(&owner().state("tool", 300, &[])),
        |server| {
            assert!(server.refs(&tool(&owner())).is_empty());
        },
    );
}

/// A todo row stays until its work is done, also if it was added while the same work was running.
#[test]
fn second_todo_for_the_same_repository_is_not_lost() {
    let mut setup = hosting(&[&maintainer()]);
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('d'));
    setup.extend([
        Action::Submit(pull.clone()),
        Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('d'))),
        Action::Submit(main_state(&maintainer(), 200, 'b')),
        Action::Push(main_to(&owner(), 'b', "")),
    ]);
    let first = maintainer().deletion(300, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]]);
    let name = pull_ref(pull.id);
    check_interleavings(
        &setup,
        submit_later(&first),
        submit_later(&outsider().delete(300, &[&pull])),
        expect_no_ref(&owner(), &name),
    );
}

/// A pull request event arrives while its objects are being staged.
#[test]
fn event_arrives_while_its_upload_is_staged() {
    let pull = submission(&outsider(), 200, &[&owner().repo("tool")], 'b');
    for repo_path in [tool(&owner()), prs(&outsider())] {
        let client_push = ClientPush::new(repo_path.clone()).pull(pull.id, &oid('b')).bring(&[&oid('a')]);
        for first in 0..8 {
            for second in 0..12 {
                let _context = FailureContext(format!("{repo_path}, after {first} and {second} steps"));
                let mut server = manual_git_server(&hosting(&[]));
                begin_push(client_push.clone())(&mut server);
                steps(&mut server, first);
                server.submit(&pull);
                steps(&mut server, second);
                let answered = server.ongoing_pushes().iter().any(|id| server.push_result(*id).is_some());
                server.boot().expect("no crash is injected");
                server.run_git_jobs().expect("no crash is injected");
                if !answered {
                    server.push(&client_push).expect("second push succeeds");
                }
                assert_eq!(server.refs(&repo_path).get(&pull_ref(pull.id)), Some(&oid('b')));
                assert!(server.event_ids().0.contains(&pull.id));
            }
        }
    }
}

/// The last pull request of a contributor is deleted while the next one arrives
/// (docs/protocol.md#contributor-pull-requests).
#[test]
fn submission_arrives_while_the_last_one_is_deleted() {
    let [one, other] =
        [(200, 'd'), (201, 'e')].map(|(at, digit)| submission(&outsider(), at, &[&maintainer().repo("tool")], digit));
    let setup = [
        Action::Submit(one.clone()),
        Action::Submit(other.clone()),
        Action::Push(ClientPush::new(prs(&outsider())).pull(one.id, &oid('d'))),
    ];
    for first in 0..8 {
        let _context = FailureContext(format!("after {first} steps"));
        let mut server = manual_git_server(&setup);
        server.submit(&outsider().delete(300, &[&one]));
        steps(&mut server, first);
        server.push(&ClientPush::new(prs(&outsider())).pull(other.id, &oid('e'))).expect("push succeeds");
        server.run_git_jobs().expect("no crash is injected");
        assert_eq!(server.refs(&prs(&outsider())).into_keys().collect::<Vec<_>>(), [pull_ref(other.id)]);
    }
}

/// A git job fails during a push; held events are deleted before the retry, and then the server crashes.
#[test]
fn git_job_fails_during_a_push() {
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('d'));
    let mut setup = hosting(&[&maintainer()]);
    setup.extend([Action::Submit(pull.clone()), Action::Submit(main_state(&maintainer(), 200, 'b'))]);
    for done in 0..12 {
        for gives_up in [false, true] {
            for crash in [false, true] {
                let _context = FailureContext(format!("after {done} steps; {gives_up} {crash}"));
                let mut server = manual_git_server(&setup);
                begin_push(main_to(&owner(), 'b', "").pull(pull.id, &oid('d')))(&mut server);
                steps(&mut server, done);
                let Some(order) = server.running().front().map(|order| order.id) else { continue };
                let nth = server.job_index(order).expect("job is running");
                server.fail_git_job(nth).expect("no crash is injected");
                let id = server.ongoing_pushes()[0];
                if let Some(result) = server.push_result(id) {
                    assert!(matches!(result, Err(PushRejection::Failed(_)) | Ok(())), "{result:?}");
                    server.end_push(id).expect("no crash is injected");
                }
                if gives_up {
                    // All git jobs fail until no event needs them any more.
                    for event in [
                        maintainer().deletion(300, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]]),
                        outsider().delete(300, &[&pull]),
                    ] {
                        server.submit(&event);
                        while !server.running().is_empty() {
                            server.fail_git_job(0).expect("no crash is injected");
                        }
                    }
                }
                if crash {
                    server.boot().expect("no crash is injected");
                }
                server.recover();
                for id in server.ongoing_pushes() {
                    server.end_push(id).expect("no crash is injected");
                }
                let end = FinalState::new(&mut server);
                server.boot().expect("no crash is injected");
                server.run_git_jobs().expect("no crash is injected");
                assert_eq!(end, FinalState::new(&mut server), "nothing was left to do (right: after a restart)");
            }
        }
    }
}

/// X's repository, which reads O's objects, and O's repository are deleted; X's is announced again before its deletion
/// is done.
#[test]
fn repository_returns_after_the_one_it_read_from_is_deleted() {
    let follower = outsider().announcement(&service(), "tool", 200, &[&owner()]);
    let mut setup = hosting(&[]);
    setup.push(Action::Submit(follower));
    let gone = [owner(), outsider()].map(|author| author.deletion(300, &[&["a", &author.repo("tool")]]));
    for order in [[0, 1], [1, 0]] {
        let begin = |server: &mut TestServer| order.iter().for_each(|nth| drop(server.submit(&gone[*nth])));
        let again = outsider().announcement(&service(), "tool", 400, &[]);
        check_interleavings(&setup, begin, submit_later(&again), |server| {
            assert!(server.admission().hosted_repo(&outsider().repo_id("tool")).is_some());
        });
    }
}
