//! Events about a banned repository are removed with it, unless they would be accepted for another reason.

use grasp_core::admission::Admission;
use grasp_core::admission::io::{AdmissionInput, StoreWrite};
use grasp_core::admission::moderation::ModerationScan;
use grasp_core::admission::policy::lists::{ModerationLists, RepoListEntry};
use grasp_core::state_machine::StateMachine;
use grasp_sim::store_model::ModelStore;

use super::common::*;

fn banned(text: &str) -> ModerationLists {
    ModerationLists {
        banned_repos: std::iter::once(RepoListEntry::parse(text).expect("valid list entry")).collect(),
        ..ModerationLists::default()
    }
}

fn only(author: &Author) -> String {
    format!("{}/tool", author.key().npub())
}

/// O's `tool` and an unrelated one of M.
fn two_repositories() -> (TestServer, [Arc<SignedEvent>; 2]) {
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    let (announcement, state) =
        (maintainer().announcement(&service(), "tool", 100, &[]), main_state(&maintainer(), 101, 'a'));
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &maintainer());
    (server, [announcement, state])
}

fn serve(server: &mut TestServer, events: &[Arc<SignedEvent>]) {
    for event in events {
        expect_reply(server, event, SERVED);
    }
}

/// A comment with these tags.
fn reply(by: &Author, at: u64, tags: &[(&str, String)]) -> Arc<SignedEvent> {
    let tags = tags.iter().map(|(letter, value)| vec![(*letter).to_owned(), value.clone()]).collect();
    by.sign_owned(1_111, at, tags, "")
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

/// Issues, patches, statuses and comments that are linked only to O's `tool`, in all possible ways.
fn discussion() -> Vec<Arc<SignedEvent>> {
    let repo = owner().repo("tool");
    let quoted = outsider().note(190, &[], "quoted by the issue");
    let issue = nested_maintainer().sign(kinds::ISSUE, 200, &[&["a", &repo], &["q", &id(&quoted)]], "");
    let comment = outsider().comment(201, &issue);
    let deep = reply(&nested_maintainer(), 202, &[("e", id(&comment))]);
    let named = reply(&nested_maintainer(), 203, &[("A", repo.clone()), ("e", id(&issue))]);
    let of_state = outsider().note(204, &[&["a", &owner().coordinate(kinds::STATE, "tool")]], "");
    let patch = outsider().sign(kinds::PATCH, 205, &[&["a", &repo]], "");
    let closed = owner().sign(1_632, 206, &[&["e", &id(&patch)], &["a", &repo]], "");
    let quoting = outsider().note(207, &[&["q", &repo]], "");
    // Two events that reference each other by address.
    let (one, other) = (outsider().coordinate(30_023, "one"), nested_maintainer().coordinate(30_023, "other"));
    let first = outsider().sign(30_023, 208, &[&["d", "one"], &["a", &other], &["a", &repo]], "");
    let second = nested_maintainer().sign(30_023, 208, &[&["d", "other"], &["a", &one]], "");
    vec![issue, quoted, comment, deep, named, of_state, patch, closed, quoting, first, second]
}

#[test]
fn discussion_is_removed_with_its_banned_repository_and_can_return() {
    for text in [&only(&owner()), &owner().key().npub()] {
        let (mut server, [announcement, state]) = two_repositories();
        let discussion = discussion();
        serve(&mut server, &discussion);
        let before = server.event_ids();
        server.set_lists(banned(text));
        expect_events(&server, &[&announcement, &state], &[]);
        assert_eq!(server.admission().next_repo_to_scan(None), None);
        server.restart();
        expect_events(&server, &[&announcement, &state], &[]);
        for event in &discussion {
            expect_reply(&mut server, event, UNRELATED);
        }
        server.set_lists(ModerationLists::default());
        expect_reply(&mut server, &owner().announcement(&service(), "tool", 100, &[]), HELD);
        expect_reply(&mut server, &main_state(&owner(), 101, 'a'), HELD);
        add_git_data(&mut server, &main_state(&owner(), 101, 'a'), &owner());
        serve(&mut server, &discussion);
        assert_eq!(server.event_ids(), before);
    }
}

#[test]
fn discussion_is_removed_with_its_banned_owner() {
    let (mut server, [announcement, state]) = two_repositories();
    serve(&mut server, &discussion());
    let mut lists = ModerationLists::default();
    lists.banned_events.add(&owner().hex()).expect("valid key");
    server.set_lists(lists);
    expect_events(&server, &[&announcement, &state], &[]);
}

#[test]
fn events_with_another_link_stay() {
    let (here, gone) = (maintainer().repo("tool"), owner().repo("tool"));
    let both = outsider().sign(kinds::ISSUE, 200, &[&["a", &gone], &["a", &here]], "");
    let on_both = nested_maintainer().comment(201, &both);
    let deep = nested_maintainer().comment(202, &on_both);
    let elsewhere = outsider().issue(203, &here);
    // A thread with one event that also links to another repository.
    let linked = outsider().issue(204, &gone);
    let link = reply(&nested_maintainer(), 205, &[("e", id(&linked)), ("q", id(&elsewhere))]);
    let beside = reply(&nested_maintainer(), 206, &[("e", id(&linked)), ("a", gone.clone())]);
    // A list that references the banned repository, and an event that references the list.
    let list = outsider().sign(kinds::GRASP_LIST, 207, &[&["a", &gone]], "");
    let on_list = reply(
        &nested_maintainer(),
        208,
        &[("a", format!("{}:{}", kinds::GRASP_LIST, outsider().hex())), ("A", gone.clone())],
    );
    let fork = maintainer().announcement_with(&service(), "tool", 209, owned_tags(&[&["a", &gone]]));
    let submitted = {
        let clone = format!("https://code.example/{}", RepoPath::PullRequests(outsider().repo_id("tool")).path());
        outsider().sign(kinds::PULL_REQUEST, 210, &[&["c", &oid('c')], &["clone", &clone], &["a", &gone]], "")
    };
    let stay = [both, on_both, deep, elsewhere, linked, link, beside, list, on_list, fork];

    let (mut server, [_, state]) = two_repositories();
    serve(&mut server, &stay);
    expect_reply(&mut server, &submitted, HELD_FOR_COMMIT);
    server.set_lists(banned(&only(&owner())));
    let mut expected: Vec<&Arc<SignedEvent>> = stay.iter().collect();
    expected.push(&state);
    expect_events(&server, &expected, &[&submitted]);
}

/// Deletion requests stay served, but the events that they reference are not kept because of that.
#[test]
fn deletion_request_is_not_a_link() {
    let (mut server, [announcement, state]) = two_repositories();
    let issue = nested_maintainer().issue(200, &owner().repo("tool"));
    let own = outsider().comment(201, &issue);
    let request = outsider().delete(202, &[&own, &issue]);
    let by_address = outsider().deletion(203, &[&["a", &owner().repo("tool")], &["e", &id(&own)]]);
    serve(&mut server, &[issue, own, request.clone(), by_address.clone()]);
    server.set_lists(banned(&only(&owner())));
    expect_events(&server, &[&announcement, &state, &request, &by_address], &[]);
}

#[test]
fn held_pull_request_is_dropped_if_no_other_target_remains() {
    let (mut server, [announcement, state]) = two_repositories();
    let one = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    let both = outsider().pull_request(200, &[&owner().repo("tool"), &maintainer().repo("tool")], &oid('b'));
    expect_reply(&mut server, &one, HELD_FOR_COMMIT);
    expect_reply(&mut server, &both, HELD_FOR_COMMIT);
    server.set_lists(banned(&only(&owner())));
    expect_events(&server, &[&announcement, &state], &[&both]);
}

/// A reply that arrives while a discussion is being removed is removed too, or keeps the rest of the discussion.
#[test]
fn reply_that_arrives_during_the_scan_is_considered() {
    for stays in [false, true] {
        let now = TestServer::default().now();
        let mut admission =
            Admission::new(AdmissionPolicy { lists: Arc::new(banned(&only(&owner()))), ..default_policy() });
        admission.handle(now, AdmissionInput::Ready);
        let here = maintainer().announcement(&service(), "tool", 100, &[]);
        let issue = nested_maintainer().issue(200, &owner().repo("tool"));
        let link = if stays { maintainer().repo("tool") } else { id(&issue) };
        let answer = reply(&outsider(), 202, &[("e", id(&issue)), ("q", link)]);
        let mut store = ModelStore::new();
        for event in [&here, &issue, &outsider().comment(201, &issue)] {
            store.write(&StoreWrite::Put(event.clone()));
        }
        let mut scan = ModerationScan::new(&admission.policy().lists);
        let mut late = Some(answer.clone());
        while !scan.is_done(&admission) {
            let Ok(inputs) = scan.next_inputs(&admission, &store, 1);
            for input in inputs {
                if let AdmissionInput::BannedEvent(gone) = &input {
                    store.write(&StoreWrite::Remove(gone.id));
                    late.take().into_iter().for_each(|late| store.write(&StoreWrite::Put(late)));
                }
                admission.handle(now, input);
            }
        }
        store.commit();
        let left: BTreeSet<_> = store.served().into_iter().collect();
        let expected = if stays { vec![here.id, issue.id, answer.id] } else { vec![here.id] };
        assert_eq!(left, expected.into_iter().collect());
    }
}

/// A thread with more replies than one slice of the scan reads.
#[test]
fn long_thread_is_removed_in_slices() {
    let (mut server, [announcement, state]) = two_repositories();
    server.skip_invariants(true);
    let issue = nested_maintainer().issue(200, &owner().repo("tool"));
    expect_reply(&mut server, &issue, SERVED);
    let many = u64::try_from(limits::SCAN_SLICE_ROWS + 7).expect("it fits");
    for at in 0..many {
        expect_reply(&mut server, &outsider().note(300 + at, &[&["e", &id(&issue)]], ""), SERVED);
    }
    server.set_lists(banned("tool"));
    assert!(!server.event_ids().0.contains(&announcement.id) && !server.event_ids().0.contains(&state.id));
    expect_events(&server, &[], &[]);
}

/// With slices of the server's size, a banned event is still in the store until its slice is over; each is reported
/// once.
#[test]
fn large_slices_report_each_event_once() {
    let now = TestServer::default().now();
    let mut admission =
        Admission::new(AdmissionPolicy { lists: Arc::new(banned(&only(&owner()))), ..default_policy() });
    admission.handle(now, AdmissionInput::Ready);
    let mut store = ModelStore::new();
    let mut expected = BTreeSet::new();
    let here = maintainer().announcement(&service(), "tool", 100, &[]);
    expected.insert(here.id);
    store.write(&StoreWrite::Put(here));
    for nth in 0..300 {
        // Every seventh is also about the other repository.
        let both: [&[&str]; 2] = [&["a", &owner().repo("tool")], &["a", &maintainer().repo("tool")]];
        let tags = if nth % 7 == 0 { &both[..] } else { &both[..1] };
        let issue = nested_maintainer().sign(kinds::ISSUE, 200 + nth, tags, "");
        let comment = outsider().comment(201 + nth, &issue);
        if nth % 7 == 0 {
            expected.extend([issue.id, comment.id]);
        }
        store.write(&StoreWrite::Put(issue));
        store.write(&StoreWrite::Put(comment));
    }
    let mut scan = ModerationScan::new(&admission.policy().lists);
    let (mut reported, mut slices) = (BTreeSet::new(), 0);
    while !scan.is_done(&admission) {
        slices += 1;
        let Ok(inputs) = scan.next_inputs(&admission, &store, 1_000);
        for input in inputs {
            if let AdmissionInput::BannedEvent(gone) = &input {
                assert!(reported.insert(gone.id), "reported twice");
                store.write(&StoreWrite::Remove(gone.id));
            }
            admission.handle(now, input);
        }
    }
    store.commit();
    assert_eq!(store.served().into_iter().collect::<BTreeSet<_>>(), expected);
    assert!(slices < 40, "{slices}");
}
