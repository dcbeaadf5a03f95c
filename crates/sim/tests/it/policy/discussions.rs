//! What is about a banned repository goes with it, unless it would be taken in for another reason.

use grasp_core::admission::Admission;
use grasp_core::admission::io::{AdmissionInput, StoreWrite};
use grasp_core::admission::moderation::ModerationScan;
use grasp_core::admission::policy::lists::{ModerationLists, RepoListEntry};
use grasp_core::state_machine::StateMachine;
use grasp_sim::store_model::Memory;

use super::common::*;

fn banned(text: &str) -> ModerationLists {
    ModerationLists {
        banned_repos: std::iter::once(RepoListEntry::parse(text).expect("an entry")).collect(),
        ..ModerationLists::default()
    }
}

fn only(author: &Author) -> String {
    format!("{}/tool", author.key().npub())
}

/// O's `tool`, and M's, which has nothing to do with it.
fn two_repositories() -> (House, [Arc<SignedEvent>; 2]) {
    let (mut house, ..) = hosting(rules(), &[]);
    let (announcement, state) = (m().listed(&service(), "tool", 100, &[]), main_at(&m(), 101, 'a'));
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &m());
    (house, [announcement, state])
}

fn serve(house: &mut House, events: &[Arc<SignedEvent>]) {
    for event in events {
        says(house, event, SERVED);
    }
}

/// By letter and id, or coordinate.
fn reply(by: &Author, at: u64, tags: &[(&str, String)]) -> Arc<SignedEvent> {
    let tags = tags.iter().map(|(letter, value)| vec![(*letter).to_owned(), value.clone()]).collect();
    by.sign_owned(1_111, at, tags, "")
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

/// Issues, patches, statuses and comments about O's `tool` and nothing else, however they hang on it.
fn discussion() -> Vec<Arc<SignedEvent>> {
    let repo = o().repo("tool");
    let quoted = x().note(190, &[], "quoted by the issue");
    let issue = r().sign(kinds::ISSUE, 200, &[&["a", &repo], &["q", &id(&quoted)]], "");
    let comment = x().comment(201, &issue);
    let deep = reply(&r(), 202, &[("e", id(&comment))]);
    let named = reply(&r(), 203, &[("A", repo.clone()), ("e", id(&issue))]);
    let of_state = x().note(204, &[&["a", &o().coordinate(kinds::STATE, "tool")]], "");
    let patch = x().sign(kinds::PATCH, 205, &[&["a", &repo]], "");
    let closed = o().sign(1_632, 206, &[&["e", &id(&patch)], &["a", &repo]], "");
    let quoting = x().note(207, &[&["q", &repo]], "");
    // Two that name each other, by address.
    let (one, other) = (x().coordinate(30_023, "one"), r().coordinate(30_023, "other"));
    let first = x().sign(30_023, 208, &[&["d", "one"], &["a", &other], &["a", &repo]], "");
    let second = r().sign(30_023, 208, &[&["d", "other"], &["a", &one]], "");
    vec![issue, quoted, comment, deep, named, of_state, patch, closed, quoting, first, second]
}

#[test]
fn a_discussion_goes_with_its_repository_and_may_come_back() {
    for text in [&only(&o()), &o().key().npub()] {
        let (mut house, [announcement, state]) = two_repositories();
        let discussion = discussion();
        serve(&mut house, &discussion);
        let before = house.sets();
        house.rule(banned(text));
        stands(&house, &[&announcement, &state], &[]);
        assert_eq!(house.admission().next_repo_to_scan(None), None);
        house.restart();
        stands(&house, &[&announcement, &state], &[]);
        for event in &discussion {
            says(&mut house, event, UNRELATED);
        }
        house.rule(ModerationLists::default());
        says(&mut house, &o().listed(&service(), "tool", 100, &[]), HELD);
        says(&mut house, &main_at(&o(), 101, 'a'), HELD);
        pushed(&mut house, &main_at(&o(), 101, 'a'), &o());
        serve(&mut house, &discussion);
        assert_eq!(house.sets(), before);
    }
}

#[test]
fn a_discussion_goes_with_an_unwanted_owner() {
    let (mut house, [announcement, state]) = two_repositories();
    serve(&mut house, &discussion());
    let mut lists = ModerationLists::default();
    lists.banned_events.add(&o().hex()).expect("a key");
    house.rule(lists);
    stands(&house, &[&announcement, &state], &[]);
}

#[test]
fn what_would_be_taken_in_anyway_stays() {
    let (here, gone) = (m().repo("tool"), o().repo("tool"));
    let both = x().sign(kinds::ISSUE, 200, &[&["a", &gone], &["a", &here]], "");
    let on_both = r().comment(201, &both);
    let deep = r().comment(202, &on_both);
    let elsewhere = x().issue(203, &here);
    // A thread of which one part leads elsewhere: an issue, its comments, and what they speak of.
    let linked = x().issue(204, &gone);
    let link = reply(&r(), 205, &[("e", id(&linked)), ("q", id(&elsewhere))]);
    let beside = reply(&r(), 206, &[("e", id(&linked)), ("a", gone.clone())]);
    // Something that speaks of both, and is spoken of.
    let list = x().sign(kinds::GRASP_LIST, 207, &[&["a", &gone]], "");
    let on_list = reply(&r(), 208, &[("a", format!("{}:{}", kinds::GRASP_LIST, x().hex())), ("A", gone.clone())]);
    let fork = m().listed_with(&service(), "tool", 209, owned(&[&["a", &gone]]));
    let submitted = {
        let clone = format!("https://code.example/{}", RepoPath::PullRequests(x().repo_id("tool")).path());
        x().sign(kinds::PULL_REQUEST, 210, &[&["c", &oid('c')], &["clone", &clone], &["a", &gone]], "")
    };
    let stay = [both, on_both, deep, elsewhere, linked, link, beside, list, on_list, fork];

    let (mut house, [_, state]) = two_repositories();
    serve(&mut house, &stay);
    says(&mut house, &submitted, COMMIT);
    house.rule(banned(&only(&o())));
    let mut expected: Vec<&Arc<SignedEvent>> = stay.iter().collect();
    expected.push(&state);
    stands(&house, &expected, &[&submitted]);
}

/// Requests to delete stay, and what they name does not stay for their sake.
#[test]
fn a_request_is_no_link() {
    let (mut house, [announcement, state]) = two_repositories();
    let issue = r().issue(200, &o().repo("tool"));
    let own = x().comment(201, &issue);
    let request = x().delete(202, &[&own, &issue]);
    let by_address = x().deletion(203, &[&["a", &o().repo("tool")], &["e", &id(&own)]]);
    serve(&mut house, &[issue, own, request.clone(), by_address.clone()]);
    house.rule(banned(&only(&o())));
    stands(&house, &[&announcement, &state, &request, &by_address], &[]);
}

#[test]
fn a_pull_request_that_waits_goes_if_nothing_else_may_take_it() {
    let (mut house, [announcement, state]) = two_repositories();
    let one = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let both = x().pull_request(200, &[&o().repo("tool"), &m().repo("tool")], &oid('b'));
    says(&mut house, &one, COMMIT);
    says(&mut house, &both, COMMIT);
    house.rule(banned(&only(&o())));
    stands(&house, &[&announcement, &state], &[&both]);
}

/// Somebody answers while a discussion goes: that goes as well, or keeps what is left.
#[test]
fn an_answer_that_comes_meanwhile_counts() {
    for stays in [false, true] {
        let now = House::default().now();
        let mut admission = Admission::new(AdmissionPolicy { lists: Arc::new(banned(&only(&o()))), ..rules() });
        admission.handle(now, AdmissionInput::Ready);
        let here = m().listed(&service(), "tool", 100, &[]);
        let issue = r().issue(200, &o().repo("tool"));
        let link = if stays { m().repo("tool") } else { id(&issue) };
        let answer = reply(&x(), 202, &[("e", id(&issue)), ("q", link)]);
        let mut memory = Memory::new();
        for event in [&here, &issue, &x().comment(201, &issue)] {
            memory.write(&StoreWrite::Put(event.clone()));
        }
        let mut sweep = ModerationScan::new(&admission.policy().lists);
        let mut late = Some(answer.clone());
        while !sweep.is_done(&admission) {
            let Ok(inputs) = sweep.next_inputs(&admission, &memory, 1);
            for input in inputs {
                if let AdmissionInput::BannedEvent(gone) = &input {
                    memory.write(&StoreWrite::Remove(gone.id));
                    late.take().into_iter().for_each(|late| memory.write(&StoreWrite::Put(late)));
                }
                admission.handle(now, input);
            }
        }
        memory.commit();
        let left: BTreeSet<_> = memory.served().into_iter().collect();
        let expected = if stays { vec![here.id, issue.id, answer.id] } else { vec![here.id] };
        assert_eq!(left, expected.into_iter().collect());
    }
}

/// More answers than are read at once.
#[test]
fn a_long_thread_goes_in_slices() {
    let (mut house, [announcement, state]) = two_repositories();
    house.be_lawless(true);
    let issue = r().issue(200, &o().repo("tool"));
    says(&mut house, &issue, SERVED);
    let many = u64::try_from(limits::SCAN_SLICE_ROWS + 7).expect("it fits");
    for at in 0..many {
        says(&mut house, &x().note(300 + at, &[&["e", &id(&issue)]], ""), SERVED);
    }
    house.rule(banned("tool"));
    assert!(!house.sets().0.contains(&announcement.id) && !house.sets().0.contains(&state.id));
    stands(&house, &[], &[]);
}

/// Slices of the size that the server takes: what goes is still on the shelves until a slice is over.
#[test]
fn many_discussions_go_in_a_slice_and_none_is_told_twice() {
    let now = House::default().now();
    let mut admission = Admission::new(AdmissionPolicy { lists: Arc::new(banned(&only(&o()))), ..rules() });
    admission.handle(now, AdmissionInput::Ready);
    let mut memory = Memory::new();
    let mut expected = BTreeSet::new();
    let here = m().listed(&service(), "tool", 100, &[]);
    expected.insert(here.id);
    memory.write(&StoreWrite::Put(here));
    for nth in 0..300 {
        // Every seventh is about the other one, too.
        let both: [&[&str]; 2] = [&["a", &o().repo("tool")], &["a", &m().repo("tool")]];
        let tags = if nth % 7 == 0 { &both[..] } else { &both[..1] };
        let issue = r().sign(kinds::ISSUE, 200 + nth, tags, "");
        let comment = x().comment(201 + nth, &issue);
        if nth % 7 == 0 {
            expected.extend([issue.id, comment.id]);
        }
        memory.write(&StoreWrite::Put(issue));
        memory.write(&StoreWrite::Put(comment));
    }
    let mut sweep = ModerationScan::new(&admission.policy().lists);
    let (mut told, mut slices) = (BTreeSet::new(), 0);
    while !sweep.is_done(&admission) {
        slices += 1;
        let Ok(inputs) = sweep.next_inputs(&admission, &memory, 1_000);
        for input in inputs {
            if let AdmissionInput::BannedEvent(gone) = &input {
                assert!(told.insert(gone.id), "told twice");
                memory.write(&StoreWrite::Remove(gone.id));
            }
            admission.handle(now, input);
        }
    }
    memory.commit();
    assert_eq!(memory.served().into_iter().collect::<BTreeSet<_>>(), expected);
    assert!(slices < 40, "{slices}");
}
