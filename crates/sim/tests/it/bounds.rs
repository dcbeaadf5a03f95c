//! Deadlines and bounds: held events do not expire while they are in use, and no client can exhaust shared resources.

use grasp_core::admission::io::PushId;
use grasp_core::admission::push::PushRejection;
use grasp_core::limits;
use grasp_core::nostr::rejection::Rejection;
use grasp_core::nostr::{Decision, EventId, kinds};
use grasp_core::repo::RepoPath;
use grasp_sim::fixtures::{main_state, main_to, maintainer, oid, outsider, owner, tool};
use grasp_sim::git_model::pull_ref;
use grasp_sim::signer::Author;
use grasp_sim::test_server::{ClientPush, TestServer, service};

/// O's `tool` is served with `main` at `a`.
fn hosting(maintainers: &[&Author]) -> TestServer {
    let mut server = TestServer::default();
    server.submit(&owner().announcement(&service(), "tool", 100, maintainers));
    server.submit(&main_state(&owner(), 101, 'a'));
    server.push(&main_to(&owner(), 'a', "")).expect("push succeeds");
    server
}

/// Requests a push that must be permitted.
fn expect_permit(server: &mut TestServer, client_push: &ClientPush) -> PushId {
    let (id, permit) = server.request_push(client_push).expect("no crash is injected").expect("push changes a ref");
    permit.expect("push is permitted");
    id
}

fn event(nth: usize) -> EventId {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&(nth as u64).to_be_bytes());
    EventId(bytes)
}

const LONG: u64 = 2 * limits::PURGATORY_EXPIRY_SECS;

#[test]
fn held_events_do_not_expire_during_their_push() {
    let announcement = owner().announcement(&service(), "tool", 100, &[&maintainer()]);
    let by_m = maintainer().announcement(&service(), "tool", 100, &[&outsider()]);
    let state = main_state(&outsider(), 101, 'a');
    let mut server = TestServer::default();
    for event in [&announcement, &by_m, &state] {
        assert!(matches!(server.submit(event), Decision::Hold(_)));
    }
    let id = expect_permit(&mut server, &main_to(&owner(), 'a', ""));
    server.advance(LONG);
    assert_eq!(server.event_ids().1.len(), 3, "the repository, the announcement that names X, and X's state");
    assert_eq!(server.receive_packs(id), Ok(None));
    assert_eq!(server.wait_for_push(id), Ok(Ok(())));
    server.end_push(id).expect("no crash is injected");
    assert!(server.event_ids().0.is_superset(&[announcement.id, state.id].into()));
    // If the push ends without data, the events expire.
    let newer = main_state(&outsider(), 102, 'b');
    server.submit(&newer);
    let id = expect_permit(&mut server, &main_to(&owner(), 'b', ""));
    server.advance(LONG);
    assert!(server.event_ids().1.contains(&newer.id));
    server.end_push(id).expect("no crash is injected");
    server.advance(limits::EXPIRY_POSTPONE_SECS);
    assert!(server.event_ids().1.is_empty());
}

#[test]
fn pull_request_does_not_expire_during_its_push() {
    let mut server = hosting(&[]);
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    server.submit(&pull);
    let id = expect_permit(&mut server, &ClientPush::new(tool(&owner())).pull(pull.id, &oid('b')));
    server.advance(LONG);
    assert_eq!(server.receive_packs(id), Ok(None));
    assert_eq!(server.wait_for_push(id), Ok(Ok(())));
    assert!(server.event_ids().0.contains(&pull.id));
}

#[test]
fn upload_without_an_event_does_not_extend_expiry() {
    let mut server = TestServer::default();
    server.submit(&owner().announcement(&service(), "tool", 100, &[]));
    expect_permit(&mut server, &ClientPush::new(tool(&owner())).pull(event(1), &oid('b')));
    server.advance(limits::PURGATORY_EXPIRY_SECS);
    assert!(server.event_ids().1.is_empty());
}

#[test]
fn held_events_do_not_expire_during_a_git_job() {
    let mut server = hosting(&[]);
    server.set_manual_git(true);
    let state = owner().state("tool", 200, &[("refs/heads/dev", &oid('a'))]);
    server.submit(&state);
    assert_eq!(server.running().len(), 1);
    server.advance(LONG);
    assert!(server.event_ids().1.contains(&state.id));
    server.run_git_jobs().expect("no crash is injected");
    assert!(server.event_ids().0.contains(&state.id));
}

#[test]
fn upload_does_not_expire_while_it_is_adopted() {
    for steps in 0..8 {
        let mut server = hosting(&[]);
        let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
        server.push(&ClientPush::new(tool(&owner())).pull(pull.id, &oid('b'))).expect("upload is staged");
        server.advance(limits::PURGATORY_EXPIRY_SECS - 1);
        server.set_manual_git(true);
        server.submit(&pull);
        for _ in 0..steps {
            server.step_git_job(0).expect("no crash is injected");
        }
        server.advance(LONG / 4);
        server.run_git_jobs().expect("no crash is injected");
        assert!(server.event_ids().0.contains(&pull.id), "after {steps} steps");
    }
}

#[test]
fn uploads_expire() {
    let mut server = hosting(&[]);
    server.push(&ClientPush::new(tool(&owner())).pull(event(1), &oid('b')).from("n")).expect("upload is staged");
    server.advance(limits::PURGATORY_EXPIRY_SECS - 1);
    assert_eq!((server.pending_uploads().len(), server.git().staged().len()), (1, 1));
    server.restart();
    server.advance(limits::PURGATORY_STARTUP_GRACE_SECS);
    assert_eq!((server.pending_uploads().len(), server.git().staged().len()), (0, 0));
}

/// Publishes `count` announcements, a thousand per author, from one network. Returns how many are held.
fn flood(server: &mut TestServer, network: &str, group: u8, count: usize) -> usize {
    server.set_network(Some(network));
    let announce = |nth: usize| {
        let author = Author::in_group(group, (nth / limits::MAX_HELD_EVENTS_PER_AUTHOR) as u8);
        author.announcement(&service(), &format!("spam {nth}"), 100, &[])
    };
    let held = (0..count).filter(|nth| matches!(server.submit(&announce(*nth)), Decision::Hold(_))).count();
    server.set_network(None);
    held
}

/// A flood of announcements from one network leaves space to others, and to states of served repositories.
#[test]
fn network_has_a_share_of_purgatory() {
    let mut server = hosting(&[]);
    server.skip_invariants(true);
    let share = limits::MAX_HELD_EVENTS_PER_NETWORK;
    assert_eq!(flood(&mut server, "203.0.113.0/24", 5, share + 20), share);
    server.set_network(Some("203.0.113.0/24"));
    let new = maintainer().announcement(&service(), "new", 200, &[]);
    assert_eq!(server.submit(&new), Decision::Reject(Rejection::TooManyHeldFromNetwork));
    // O's repository is served.
    assert!(matches!(server.submit(&main_state(&owner(), 200, 'b')), Decision::Hold(_)));
    server.set_network(Some("198.51.100.0/24"));
    assert!(matches!(server.submit(&new), Decision::Hold(_)));
    // The share is free again after the events have expired.
    server.advance(LONG);
    assert_eq!(flood(&mut server, "203.0.113.0/24", 5, 20), 20);
}

/// A replacement of a held announcement counts with its own size.
#[test]
fn larger_replacement_of_a_held_announcement_passes_the_byte_check() {
    let mut server = TestServer::default();
    server.skip_invariants(true);
    let bytes = 190 * 1024;
    let announce = |nth: usize, at: u64, bytes: usize| {
        let more = vec![vec!["description".to_owned(), "x".repeat(bytes)]];
        owner().announcement_with(&service(), &format!("spam {nth}"), at, more)
    };
    for nth in 0..120 {
        assert!(matches!(server.submit(&announce(nth, 100, 1)), Decision::Hold(_)));
    }
    let replace = |nth: &usize| matches!(server.submit(&announce(*nth, 101, bytes)), Decision::Hold(_));
    let replaced = (0..120).filter(replace).count();
    assert!(replaced > 70 && replaced * bytes <= limits::MAX_HELD_BYTES_PER_AUTHOR, "{replaced}");
    // Those that were rejected keep their earlier versions.
    assert_eq!(server.event_ids().1.len(), 120);
    assert!(matches!(server.submit(&announce(119, 102, 1)), Decision::Hold(_)));
}

#[test]
fn uploads_per_network_are_bounded() {
    let mut server = hosting(&[]);
    let upload = |server: &mut TestServer, events: std::ops::Range<usize>, network: &str, bytes: u64| {
        let mut client_push = ClientPush::new(tool(&owner())).from(network);
        for nth in events {
            client_push = client_push.pull(event(nth), &oid('b'));
        }
        client_push.bytes = bytes;
        server.push(&client_push)
    };
    let most = limits::MAX_UPLOADS_PER_PUSH;
    assert_eq!(upload(&mut server, 0..most + 1, "one", 1), Err(PushRejection::TooManyUploads));
    let mut next = 0;
    while next + most <= limits::MAX_UPLOADS_PER_NETWORK {
        assert_eq!(upload(&mut server, next..next + most, "one", 1), Ok(()));
        next += most;
    }
    let left = limits::MAX_UPLOADS_PER_NETWORK - next;
    assert_eq!(
        upload(&mut server, next..next + left + 1, "one", 1),
        Err(PushRejection::UploadsFull),
        "the push is rejected as a whole"
    );
    assert_eq!(upload(&mut server, next..next + left, "one", 1), Ok(()));
    next += left;
    assert_eq!(upload(&mut server, next..next + 1, "one", 1), Err(PushRejection::UploadsFull));
    assert_eq!(server.pending_uploads().len(), limits::MAX_UPLOADS_PER_NETWORK);
    // Other networks are not affected.
    let half = limits::MAX_UPLOAD_BYTES_PER_NETWORK / 2;
    assert_eq!(upload(&mut server, next..next + 1, "other", half), Ok(()));
    assert_eq!(upload(&mut server, next + 1..next + 2, "other", half + 1), Err(PushRejection::UploadsFull));
    assert_eq!(upload(&mut server, next + 1..next + 2, "other", half), Ok(()));
    assert_eq!(server.git().incoming().len(), 0, "rejected packs are discarded");
    server.advance(limits::PURGATORY_EXPIRY_SECS);
    assert_eq!(upload(&mut server, 0..1, "one", 1), Ok(()));
}

#[test]
fn queued_pushes_are_bounded() {
    let mut server = hosting(&[]);
    server.set_manual_git(true);
    let mut ids = Vec::new();
    for nth in 0..limits::MAX_QUEUED_PUSHES + 3 {
        let id = expect_permit(&mut server, &ClientPush::new(tool(&owner())).pull(event(nth), &oid('b')));
        assert_eq!(server.receive_packs(id), Ok(None));
        ids.push(id);
    }
    // One push is running, and two are above the limit.
    let rejected: Vec<usize> = (0..ids.len()).filter(|nth| server.push_result(ids[*nth]).is_some()).collect();
    assert_eq!(rejected, [limits::MAX_QUEUED_PUSHES + 1, limits::MAX_QUEUED_PUSHES + 2]);
    assert_eq!(server.push_result(ids[rejected[0]]), Some(Err(PushRejection::Busy)));
    assert_eq!(server.running().len(), 1);
    server.run_git_jobs().expect("no crash is injected");
    assert!(ids[..=limits::MAX_QUEUED_PUSHES].iter().all(|id| server.push_result(*id) == Some(Ok(()))));
}

/// Any author can name any other author as a maintainer. A push commits the pushed repository only; its followers are
/// aligned afterwards, one at a time and after the owner's next push (docs/design/admission.md#followers).
#[test]
fn thousand_followers_do_not_delay_the_followed_repository() {
    let mut server = hosting(&[]);
    server.skip_invariants(true);
    let followers: Vec<Author> =
        (1..=4).flat_map(|followers| (0..250).map(move |n| Author::in_group(followers, n))).collect();
    for follower in &followers {
        let announcement = follower.announcement(&service(), "tool", 100, &[&owner()]);
        assert!(matches!(server.submit(&announcement), Decision::Hold(_)));
    }
    assert_eq!(server.hosted_repos().len(), 1_001);
    assert!(server.event_ids().1.is_empty(), "each follower is released at once");
    server.set_manual_git(true);
    server.submit(&main_state(&owner(), 200, 'b'));
    server.run_git_jobs().expect("no crash is injected");
    let first = expect_permit(&mut server, &main_to(&owner(), 'b', ""));
    assert_eq!(server.receive_packs(first), Ok(None));
    assert_eq!(server.wait_for_push(first), Ok(Ok(())));
    server.run_due_work().expect("no crash is injected");
    assert_eq!(server.todos().len(), 1_001, "the owner's push has its result before any follower is aligned");
    assert_eq!(server.running().len(), 1, "one at a time");
    for _ in 0..100 {
        server.step_git_job(0).expect("no crash is injected");
        assert_eq!(server.running().len(), 1);
    }
    let left = server.todos().len();
    assert!((900..1_000).contains(&left), "{left}");
    // The owner's next push waits for one git job, not for all followers.
    server.submit(&main_state(&owner(), 300, 'c'));
    let second = expect_permit(&mut server, &main_to(&owner(), 'c', ""));
    assert_eq!(server.receive_packs(second), Ok(None));
    assert_eq!(server.wait_for_push(second), Ok(Ok(())));
    assert!(server.todos().len() >= left - 2, "{} of {left}", server.todos().len());
    // A contributor's push does not wait for them either.
    let pull = maintainer().pull_request(400, &[&owner().repo("tool")], &oid('d'));
    server.submit(&pull);
    let third = expect_permit(&mut server, &ClientPush::new(tool(&owner())).pull(pull.id, &oid('d')));
    assert_eq!(server.receive_packs(third), Ok(None));
    assert_eq!(server.wait_for_push(third), Ok(Ok(())));
    server.run_git_jobs().expect("no crash is injected");
    assert_eq!(server.todos().len(), 0);
    for owner in followers.iter().chain([&owner()]) {
        assert_eq!(server.refs(&tool(owner)).get("refs/heads/main"), Some(&oid('c')));
    }
}

/// X knows O's object ids and even O's state, but X's repository cannot read O's objects unless X names O.
#[test]
fn repository_of_the_same_name_cannot_read_foreign_objects() {
    let mut server = hosting(&[&maintainer()]);
    server.submit(&outsider().announcement(&service(), "tool", 200, &[]));
    let state = main_state(&outsider(), 201, 'a');
    server.submit(&state);
    assert!(server.event_ids().1.contains(&state.id), "the object is in another repository");
    assert!(server.git().folder(&tool(&outsider())).is_none());
    // A push without objects is not connected.
    let id = expect_permit(&mut server, &ClientPush { brings: Default::default(), ..main_to(&outsider(), 'a', "") });
    assert!(matches!(server.receive_packs(id), Ok(Some(Err(PushRejection::Failed(_))))));
    server.end_push(id).expect("no crash is injected");
    // If O names X, O's repository reads X's objects, not the reverse.
    server.submit(&owner().announcement(&service(), "tool", 300, &[&maintainer(), &outsider()]));
    server.submit(&outsider().announcement(&service(), "tool", 301, &[&owner()]));
    assert!(server.event_ids().0.contains(&state.id));
    assert_eq!(server.git().folder(&tool(&outsider())).expect("has a folder").alternates, [tool(&owner())].into());
    // If X no longer names O, X's repository goes on reading what it has read, and nothing is copied.
    server.submit(&outsider().announcement(&service(), "tool", 302, &[]));
    let folder = server.git().folder(&tool(&outsider())).expect("has a folder").clone();
    assert_eq!((folder.alternates, folder.pool), ([tool(&owner())].into(), [].into()));
    // It keeps the objects when O's repository is deleted.
    server.submit(&owner().deletion(303, &[&["a", &owner().repo("tool")]]));
    let folder = server.git().folder(&tool(&outsider())).expect("has a folder").clone();
    assert_eq!((folder.alternates, folder.pool.contains(&oid('a'))), ([].into(), true));
}

/// A pull request to O's repository cannot be pushed to an unrelated repository of the same identifier.
#[test]
fn pull_request_cannot_be_pushed_to_an_unrelated_repository() {
    let mut server = hosting(&[&maintainer()]);
    server.submit(&outsider().announcement(&service(), "tool", 200, &[&owner()]));
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    server.submit(&pull);
    let result = server.push(&ClientPush::new(tool(&outsider())).pull(pull.id, &oid('b')));
    assert_eq!(result, Err(PushRejection::OtherRepository(pull_ref(pull.id))));
    // M is a maintainer of O's repository, which reads the objects of M's.
    server.submit(&maintainer().announcement(&service(), "tool", 200, &[&owner()]));
    assert_eq!(server.push(&ClientPush::new(tool(&maintainer())).pull(pull.id, &oid('b'))), Ok(()));
    for owner in [owner(), maintainer()] {
        assert_eq!(server.refs(&tool(&owner)).get(&pull_ref(pull.id)), Some(&oid('b')));
    }
    assert_eq!(server.refs(&tool(&outsider())).get(&pull_ref(pull.id)), None);
    assert!(server.event_ids().0.contains(&pull.id));
}

/// However many newer states are held, the served state stays a candidate.
#[test]
fn held_states_do_not_crowd_out_the_served_one() {
    let mut server = hosting(&[&maintainer(), &outsider()]);
    let served = maintainer().state("tool", 102, &[("refs/heads/main", &oid('a')), ("refs/heads/dev", &oid('a'))]);
    server.submit(&served);
    assert!(server.event_ids().0.contains(&served.id));
    for author in [owner(), maintainer(), outsider()] {
        for nth in 0..limits::MAX_HELD_STATE_VERSIONS as u64 {
            server.submit(&author.state("tool", 1_000 + nth, &[("refs/heads/main", &oid('b'))]));
        }
    }
    assert!(server.event_ids().1.len() > limits::MAX_CANDIDATE_STATES);
    server.submit(&maintainer().deletion(103, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]]));
    let refs: Vec<_> = server.refs(&tool(&owner())).into_iter().collect();
    assert_eq!(refs, [("refs/heads/main".to_owned(), oid('a'))]);
}

/// Git jobs for other repositories leave some of the concurrent jobs to pushes.
#[test]
fn pushes_have_reserved_git_jobs() {
    let names: Vec<String> = (0..8).map(|nth| format!("tool{nth}")).collect();
    let mut server = TestServer::default();
    for name in names.iter().map(String::as_str).chain(["tool"]) {
        server.submit(&owner().announcement(&service(), name, 100, &[]));
        server.submit(&owner().state(name, 101, &[("refs/heads/main", &oid('a'))]));
        let repo_path = RepoPath::Announced(owner().repo_id(name));
        server.push(&ClientPush::new(repo_path).set("refs/heads/main", &oid('a'))).expect("push succeeds");
    }
    server.set_manual_git(true);
    for name in &names {
        server.submit(&owner().state(name, 200, &[("refs/heads/dev", &oid('a'))]));
    }
    assert_eq!(server.running().len(), limits::MAX_CONCURRENT_GIT_JOBS - limits::GIT_JOBS_RESERVED_FOR_PUSHES);
    server.submit(&main_state(&owner(), 200, 'b'));
    let id = expect_permit(&mut server, &main_to(&owner(), 'b', ""));
    assert_eq!(server.receive_packs(id), Ok(None));
    let order = server.running().back().expect("the push has a git job").clone();
    assert_eq!(order.repo_path, tool(&owner()));
    while server.push_result(id).is_none() {
        let nth = server.job_index(order.id).expect("job is running");
        server.step_git_job(nth).expect("no crash is injected");
    }
    assert_eq!(server.push_result(id), Some(Ok(())));
    server.run_git_jobs().expect("no crash is injected");
    assert!(server.event_ids().1.is_empty());
}
