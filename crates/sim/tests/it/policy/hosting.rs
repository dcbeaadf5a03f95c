//! The end of hosting: events whose git data is deleted are held again in the same transaction
//! (docs/design/admission.md#end-of-hosting).

use super::common::*;
use grasp_sim::test_server::ClientPush;

/// How hosting ends.
fn ends() -> [(&'static str, Arc<SignedEvent>); 3] {
    [
        ("deleted", owner().deletion(900, &[&["a", &owner().repo("tool")]])),
        ("delisted", owner().announcement_elsewhere("tool", 900, &[])),
        ("vanished", owner().vanish(900, &["ALL_RELAYS"])),
    ]
}

/// Serves pull requests for these repositories, by pushing their refs to the owner's repository.
fn serve_pull_requests(server: &mut TestServer, count: u64, repos: &[&str]) -> Vec<Arc<SignedEvent>> {
    let requests: Vec<_> = (0..count).map(|nth| outsider().pull_request(200 + nth, repos, &oid('b'))).collect();
    for request in &requests {
        expect_reply(server, request, HELD_FOR_COMMIT);
        server.add_objects_of_event(request.id, owner().repo_id("tool"));
        assert!(server.event_ids().0.contains(&request.id));
    }
    requests
}

/// Other authors' pull requests and the state of a maintainer are not served without their git data, however hosting
/// ends. More pull requests than one page has are found, too.
#[test]
fn pull_requests_and_states_are_held_when_hosting_ends() {
    for policy in [default_policy(), AdmissionPolicy { fetches_git_data: true, ..default_policy() }] {
        for (how, end) in ends() {
            let (mut server, ..) = hosting_server(policy.clone(), &[&maintainer()]);
            let state = main_state(&maintainer(), 150, 'c');
            expect_reply(&mut server, &state, HELD);
            add_git_data(&mut server, &state, &owner());
            let issue = nested_maintainer().issue(200, &owner().repo("tool"));
            expect_reply(&mut server, &issue, SERVED);
            let requests = serve_pull_requests(&mut server, 5, &[&owner().repo("tool")]);
            server.submit(&end);
            let (served, held) = server.event_ids();
            assert!(served.contains(&issue.id), "{how}: an issue needs no git data");
            for event in requests.iter().chain([&state]) {
                assert!(!served.contains(&event.id) && held.contains(&event.id), "{how}: {}", event.json());
            }
            server.restart();
            assert_eq!(server.event_ids().1, held, "{how}: held after a restart");
        }
    }
}

/// When hosting returns, what was held is fetched, and is served when its git data is here.
#[test]
fn held_events_are_wanted_again_when_hosting_returns() {
    let policy = AdmissionPolicy { fetches_git_data: true, ..default_policy() };
    let (mut server, _, state) = hosting_server(policy, &[]);
    let requests = serve_pull_requests(&mut server, 3, &[&owner().repo("tool")]);
    let deletion = owner().deletion(900, &[&["a", &owner().repo("tool")]]);
    expect_reply(&mut server, &deletion, SERVED);
    let again = owner().announcement(&service(), "tool", 901, &[]);
    expect_reply(&mut server, &again, HELD);
    let identifier = Identifier::new("tool").expect("valid");
    let wanted = |server: &TestServer| -> BTreeSet<_> {
        let all = server.wanted_git_data(&identifier);
        let events = all.iter().flat_map(|wanted| &wanted.events).filter(|wanted| !wanted.is_dormant);
        events.map(|wanted| wanted.id).collect()
    };
    assert_eq!(wanted(&server), BTreeSet::from([state.id]), "pull requests wait for the announcement");
    add_git_data(&mut server, &state, &owner());
    assert!(server.event_ids().0.is_superset(&BTreeSet::from([state.id, again.id])));
    assert_eq!(wanted(&server), requests.iter().map(|request| request.id).collect());
    for request in &requests {
        server.add_objects_of_event(request.id, owner().repo_id("tool"));
    }
    assert!(requests.iter().all(|request| server.event_ids().0.contains(&request.id)));
}

/// A pull request that has its ref in another target stays served; one that does not is held.
#[test]
fn pull_request_with_a_ref_in_another_target_stays() {
    for has_ref in [true, false] {
        let (mut server, ..) = hosting_server(default_policy(), &[]);
        let announce_other = |server: &mut TestServer| {
            expect_reply(server, &maintainer().announcement(&service(), "tool", 300, &[]), HELD);
            let state = main_state(&maintainer(), 301, 'd');
            expect_reply(server, &state, HELD);
            add_git_data(server, &state, &maintainer());
        };
        if has_ref {
            announce_other(&mut server);
        }
        let targets = [owner().repo("tool"), maintainer().repo("tool")];
        let [request] = &serve_pull_requests(&mut server, 1, &[&targets[0], &targets[1]])[..] else { panic!("one") };
        if has_ref {
            let push = ClientPush::new(RepoPath::Announced(maintainer().repo_id("tool"))).pull(request.id, &oid('b'));
            server.push(&push).expect("accepted");
        } else {
            announce_other(&mut server);
        }
        server.submit(&owner().deletion(900, &[&["a", &owner().repo("tool")]]));
        assert_eq!(server.event_ids().0.contains(&request.id), has_ref);
    }
}
