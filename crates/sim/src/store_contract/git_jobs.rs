//! The cases that git needs: deadlines, work, uploads, pull requests, and what a registrar is told at boot.

use super::*;
use grasp_core::repo::RepoPath;

fn repo(author: u8, name: &str) -> RepoId {
    RepoId { owner: key(author), identifier: Identifier::new(name).expect("names a repository") }
}

/// Sites that differ in one thing each: the kind, the owner, the case of a letter, the last letter of a long name.
fn repo_paths() -> Vec<RepoPath> {
    let long = "x".repeat(limits::MAX_IDENTIFIER_BYTES - 1);
    let repos = [repo(1, "x"), repo(1, "X"), repo(2, "x"), repo(1, &format!("{long}a")), repo(1, &format!("{long}b"))];
    repos.into_iter().flat_map(|repo| [RepoPath::Announced(repo.clone()), RepoPath::PullRequests(repo)]).collect()
}

fn upload(repo_path: &RepoPath, event: u8, folder: u64) -> PendingUpload {
    PendingUpload {
        repo_path: repo_path.clone(),
        event: EventId([event; 32]),
        tip: "ab".repeat(20),
        folder,
        bytes: 5_000,
        network: Some("203.0.113.0/24".to_owned()),
        deadline: Timestamp(70),
    }
}

fn pull_request(author: u8, created_at: u64, targets: &[&str], tip: &str) -> Arc<SignedEvent> {
    let mut tags = vec![vec!["c".to_owned(), tip.to_owned()]];
    tags.extend(targets.iter().map(|target| vec!["a".to_owned(), (*target).to_owned()]));
    draft_owned(author, kinds::PULL_REQUEST, created_at, tags, String::new())
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values
}

pub(super) fn extend(shelf: &mut dyn Shelf) {
    let held = draft(1, 1_618, 10, &[&["c", "ab"]]);
    let other = draft(1, 1_618, 11, &[&["c", "ab"]]);
    let served = draft(1, 1, 12, &[]);
    for event in [&held, &other] {
        hold_one(shelf, event);
    }
    put(shelf, &served);
    for until in [77, 5, u64::MAX] {
        shelf.write(&StoreWrite::ExtendHold(held.id, Timestamp(until)));
        shelf.commit();
        let both = vec![(held.id, Timestamp(until)), (other.id, Timestamp(9))];
        assert_eq!(sorted(shelf.held()), sorted(both), "sooner or later");
    }
    for id in [served.id, EventId([7; 32])] {
        write_all(shelf, &[StoreWrite::ExtendHold(id, Timestamp(1))]);
    }
    assert_eq!((shelf.held().len(), shelf.served()), (2, vec![served.id]), "nothing to extend");
    assert!(!shelf.is_known(EventId([7; 32])));
    assert_eq!(shelf.event(held.id), Some((held.clone(), EventStatus::Held)), "it is the same event");
    write_all(shelf, &[StoreWrite::ExtendHold(held.id, Timestamp(8)), StoreWrite::Release(held.id)]);
    assert_eq!(shelf.event(held.id), Some((held, EventStatus::Served)));
    assert_eq!(shelf.held(), [(other.id, Timestamp(9))]);
}

pub(super) fn todo(shelf: &mut dyn Shelf) {
    let pull_requests = [None, Some(EventId([7; 32])), Some(EventId([8; 32]))];
    let mut all: Vec<Todo> = repo_paths()
        .into_iter()
        .flat_map(|repo_path| pull_requests.map(|pull| Todo { repo_path: repo_path.clone(), pull_request: pull }))
        .collect();
    let as_told = |all: &[Todo]| sorted(all.iter().cloned().map(Told::Todo).collect::<Vec<_>>());
    write_all(shelf, &[StoreWrite::RemoveTodo(all[0].clone())]);
    assert_eq!(told(shelf), [], "nothing was noted");
    for todo in all.iter().chain(&all) {
        shelf.write(&StoreWrite::AddTodo(todo.clone()));
    }
    assert_eq!(told(shelf), [], "not before the commit");
    shelf.commit();
    write_all(shelf, &[StoreWrite::AddTodo(all[0].clone())]);
    assert_eq!(told(shelf), as_told(&all), "each once");
    while let Some(done) = all.pop() {
        write_all(shelf, &[StoreWrite::RemoveTodo(done.clone())]);
        assert_eq!(told(shelf), as_told(&all), "{done:?} and nothing else is done");
        write_all(shelf, &[StoreWrite::RemoveTodo(done)]);
    }
    let again = Todo { repo_path: repo_paths().remove(0), pull_request: None };
    write_all(
        shelf,
        &[
            StoreWrite::AddTodo(again.clone()),
            StoreWrite::RemoveTodo(again.clone()),
            StoreWrite::AddTodo(again.clone()),
        ],
    );
    assert_eq!(told(shelf), [Told::Todo(again)], "it may be necessary again");
}

pub(super) fn stage(shelf: &mut dyn Shelf) {
    let mut uploads: Vec<PendingUpload> =
        repo_paths().iter().flat_map(|repo_path| [upload(repo_path, 7, 1), upload(repo_path, 8, 2)]).collect();
    let as_told = |all: &[PendingUpload]| sorted(all.iter().cloned().map(Told::Staged).collect::<Vec<_>>());
    write_all(shelf, &[StoreWrite::RemoveUpload(uploads[0].repo_path.clone(), uploads[0].event)]);
    for upload in &uploads {
        shelf.write(&StoreWrite::AddUpload(upload.clone()));
    }
    assert_eq!(told(shelf), [], "not before the commit");
    shelf.commit();
    assert_eq!(told(shelf), as_told(&uploads));
    let later = PendingUpload {
        tip: "cd".repeat(20),
        folder: 9,
        bytes: u64::MAX,
        network: None,
        deadline: Timestamp(71),
        ..uploads[0].clone()
    };
    write_all(shelf, &[StoreWrite::AddUpload(later.clone())]);
    uploads[0] = later;
    uploads[1].network = Some("n".repeat(64));
    write_all(shelf, &[StoreWrite::AddUpload(uploads[1].clone())]);
    assert_eq!(told(shelf), as_told(&uploads), "the last one counts, with all that it says");
    while let Some(PendingUpload { repo_path, event, .. }) = uploads.pop() {
        write_all(shelf, &[StoreWrite::RemoveUpload(repo_path.clone(), event)]);
        assert_eq!(told(shelf), as_told(&uploads), "nothing but {event} at {repo_path}");
        write_all(shelf, &[StoreWrite::RemoveUpload(repo_path, event)]);
    }
}

pub(super) fn durability(shelf: &mut dyn Shelf) {
    let repo_path = repo_paths().remove(0);
    let [noted, other] =
        [None, Some(EventId([7; 32]))].map(|pull| Todo { repo_path: repo_path.clone(), pull_request: pull });
    let staged = upload(&repo_path, 7, 1);
    let held = draft(1, 1_618, 10, &[&["c", "ab"]]);
    hold_one(shelf, &held);
    write_all(shelf, &[StoreWrite::AddTodo(noted.clone()), StoreWrite::AddUpload(staged.clone())]);
    let before = told(shelf);
    let changes = [
        StoreWrite::AddTodo(other),
        StoreWrite::RemoveTodo(noted.clone()),
        StoreWrite::AddUpload(upload(&repo_path, 7, 2)),
        StoreWrite::AddUpload(upload(&repo_path, 8, 3)),
        StoreWrite::RemoveUpload(repo_path.clone(), staged.event),
        StoreWrite::ExtendHold(held.id, Timestamp(99)),
    ];
    let endings: [Case; 2] = [|shelf| shelf.abort(), |shelf| shelf.restart()];
    for ends in endings {
        for change in &changes {
            shelf.write(change);
        }
        ends(shelf);
        assert_eq!(told(shelf), before);
        assert_eq!(
            told(shelf),
            [Told::Held(held.id, Timestamp(9)), Told::Todo(noted.clone()), Told::Staged(staged.clone())]
        );
    }
    write_all(shelf, &changes);
    let after = told(shelf);
    shelf.restart();
    assert_eq!(told(shelf), after);
    assert_eq!(after.len(), 3);
    assert_eq!(shelf.event(held.id), Some((held, EventStatus::Held)), "with everything else");
}

pub(super) fn find_event(shelf: &mut dyn Shelf) {
    let served = draft(1, 30_618, 10, &[&["d", "x"], &["t", "say \"hi\"\n"]]);
    let newer = draft(1, 30_618, 11, &[&["d", "x"]]);
    let expired = draft(1, 1, 12, &[&["expiration", "1"]]);
    let here = |shelf: &mut dyn Shelf, event: &Arc<SignedEvent>, status: Option<EventStatus>| {
        assert_eq!(shelf.event(event.id), status.map(|status| (event.clone(), status)));
        assert_eq!(shelf.is_known(event.id), status.is_some());
    };
    here(shelf, &served, None);
    shelf.write(&StoreWrite::Put(served.clone()));
    here(shelf, &served, Some(EventStatus::Served));
    shelf.abort();
    here(shelf, &served, None);
    put(shelf, &served);
    hold_one(shelf, &newer);
    here(shelf, &newer, Some(EventStatus::Held));
    shelf.write(&StoreWrite::Release(newer.id));
    here(shelf, &newer, Some(EventStatus::Served));
    here(shelf, &served, None);
    shelf.commit();
    shelf.restart();
    here(shelf, &newer, Some(EventStatus::Served));
    shelf.write(&StoreWrite::Remove(newer.id));
    here(shelf, &newer, None);
    shelf.commit();
    hold_one(shelf, &newer);
    write_all(shelf, &[StoreWrite::DropHeld(newer.id)]);
    here(shelf, &newer, None);
    put(shelf, &expired);
    here(shelf, &expired, Some(EventStatus::Served));
    bury(shelf, Tombstone::Event(key(1), expired.id));
    here(shelf, &expired, Some(EventStatus::Served));
}

pub(super) fn unknown_at_once(shelf: &mut dyn Shelf) {
    let hex = key(1).to_string();
    let own: Vec<_> = (0..limits::REMOVAL_SLICE_EVENTS as u64 + 10).map(|at| draft(1, 1, at, &[])).collect();
    let root = draft(2, 1, 9, &[]);
    let tags: [&[&str]; 3] = [&["p", &key(3).to_string()], &["p", &hex], &["e", &root.id.to_string()]];
    let wrap = draft(2, kinds::GIFT_WRAP, 10, &tags);
    let request = draft(1, kinds::VANISH, 10, &[]);
    let later = draft(1, 1, 5_000, &[]);
    let other_wrap = draft(2, kinds::GIFT_WRAP, 10, &[&["p", &key(3).to_string()], &["q", &hex]]);
    let mention = draft(2, 1, 10, &[&["p", &hex]]);
    let held = draft(1, 1_618, 10, &[]);
    let stays = [&request, &later, &other_wrap, &mention];
    for event in own.iter().chain([&wrap]).chain(stays) {
        shelf.write(&StoreWrite::Put(event.clone()));
    }
    shelf.commit();
    hold_one(shelf, &held);
    let check = |shelf: &mut dyn Shelf, gone: bool| {
        for event in own.iter().chain([&wrap]) {
            assert_eq!((shelf.event(event.id).is_none(), shelf.is_known(event.id)), (gone, !gone), "{}", event.json());
        }
        for event in stays {
            assert_eq!(shelf.event(event.id), Some((event.clone(), EventStatus::Served)));
        }
        assert_eq!(shelf.event(held.id), Some((held.clone(), EventStatus::Held)), "what is held is let go one by one");
    };
    check(shelf, false);
    shelf.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(4_000))));
    check(shelf, true);
    shelf.abort();
    check(shelf, false);
    shelf.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(4_000))));
    let reply = draft(2, 1, 20, &[&["e", &wrap.id.to_string()]]);
    assert_eq!((links(shelf, &reply), links(shelf, &root)), ((false, false), (false, false)), "nor a link");
    assert_eq!(lookups(shelf, &wrap), EventLookups::default());
    shelf.write(&StoreWrite::Put(wrap.clone()));
    assert_eq!(lookups(shelf, &wrap).stored, Some(EventStatus::Served), "somebody else's may come again");
    assert_eq!((links(shelf, &reply), links(shelf, &root)), ((true, false), (false, true)));
    shelf.commit();
    assert_eq!(shelf.event(wrap.id), Some((wrap.clone(), EventStatus::Served)), "and stays");
    assert_eq!(query(shelf, Filter { kinds: Some(vec![kinds::GIFT_WRAP]), ..Filter::default() }).len(), 2);
    write_all(shelf, &[StoreWrite::Remove(wrap.id)]);
    check(shelf, true);
}

pub(super) fn removed_pulls(shelf: &mut dyn Shelf) {
    let at = format!("30617:{}:x", key(2));
    let pull_requests = [
        pull_request(1, 10, &[&at], &"ab".repeat(20)),
        draft(1, kinds::PULL_REQUEST_UPDATE, 20, &[&["a", &at], &["c", "cd"]]),
        pull_request(1, 5, &[], "no commit"),
    ];
    let in_batch = pull_request(1, 11, &[&at], "ef");
    let early = pull_request(1, 1, &[&at], "ef");
    let stays = [
        pull_request(1, 21, &[&at], "ab"),
        pull_request(2, 10, &[&at], "ab"),
        draft(2, kinds::PULL_REQUEST, 10, &[&["p", &key(1).to_string()], &["c", "ab"]]),
    ];
    let patch = draft(1, kinds::PATCH, 10, &[&["a", &at]]);
    // More than one slice of them lies between the pull requests.
    for nth in 0..limits::REMOVAL_SLICE_EVENTS {
        shelf.write(&StoreWrite::Put(draft(1, 1, 4, &[&["nth", &nth.to_string()]])));
    }
    for event in pull_requests.iter().chain(&stays).chain([&patch, &early]) {
        shelf.write(&StoreWrite::Put(event.clone()));
    }
    shelf.commit();
    hold_one(shelf, &pull_request(1, 12, &[&at], "ab"));
    let summaries =
        |events: &[&Arc<SignedEvent>]| sorted(events.iter().map(|event| EventSummary::new(event)).collect());
    assert_eq!(shelf.removed_pulls(), []);
    shelf.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(20))));
    shelf.abort();
    assert_eq!(shelf.removed_pulls(), [], "it never happened");
    shelf.write(&StoreWrite::Put(in_batch.clone()));
    shelf.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(20))));
    shelf.commit();
    let [a, b, c] = &pull_requests;
    assert_eq!(sorted(shelf.removed_pulls()), summaries(&[a, b, c, &in_batch, &early]), "each once");
    assert_eq!(shelf.removed_pulls(), []);
    assert_eq!(sorted(shelf.served()), sorted(stays.iter().map(|event| event.id).collect()));
    let [late, ..] = &stays;
    shelf.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(21))));
    assert_eq!(shelf.removed_pulls(), summaries(&[late]), "what follows belongs into the same batch");
    shelf.commit();
    assert_eq!(shelf.removed_pulls(), []);
    bury(shelf, Tombstone::Author(key(1), Timestamp(22)));
    write_all(shelf, &[StoreWrite::Remove(stays[1].id)]);
    assert_eq!(shelf.removed_pulls(), [], "what the registrar removes itself it knows");
}

pub(super) fn offers(shelf: &mut dyn Shelf) {
    let at = |name: &str| format!("30617:{}:{name}", key(2));
    let odd = at("say \"hi\" 🚀");
    let (x, y) = (at("x"), at("y"));
    let state = x.replace("30617", "30618");
    let commit = "ab".repeat(20);
    let with_expiry = |kind, tags: &[&[&str]]| {
        let mut tags = crate::signer::owned(tags);
        tags.push(vec!["expiration".to_owned(), "50".to_owned()]);
        draft_owned(1, kind, 10, tags, String::new())
    };
    let (update, pull) = (kinds::PULL_REQUEST_UPDATE, kinds::PULL_REQUEST);
    let many: Vec<String> = (0..=limits::MAX_EVENT_REFERENCES).map(|nth| at(&nth.to_string())).collect();
    let mut too_many = vec![["c", commit.as_str()]];
    too_many.extend(std::iter::repeat_n(["a", x.as_str()], 2));
    too_many.extend(many.iter().map(|at| ["a", at.as_str()]));
    let too_many: Vec<&[&str]> = too_many.iter().map(|tag| &tag[..]).collect();
    let repos = |names: &[&str]| names.iter().map(|name| repo(2, name)).collect::<Vec<_>>();
    let most =
        [vec![repo(2, "x"); 2], many[..limits::MAX_EVENT_REFERENCES - 2].iter().map(|at| repo(2, &at[71..])).collect()];
    let none = Vec::new();
    let cases = [
        (with_expiry(pull, &[&["c", &commit], &["a", &x]]), repos(&["x"]), Some(commit.as_str())),
        (with_expiry(update, &[&["a", &y], &["a", &x], &["a", &y], &["c", "1"]]), repos(&["y", "x", "y"]), Some("1")),
        (with_expiry(pull, &[&["c", "ab"], &["c", "cd"], &["a", &odd, "hint"]]), repos(&["say \"hi\" 🚀"]), Some("ab")),
        (with_expiry(pull, &[&["c"], &["c", "cd"], &["a"], &["A", &x]]), none.clone(), Some("cd")),
        (with_expiry(pull, &[&["c", "ab"], &["a", &state], &["a", "x"]]), none.clone(), Some("ab")),
        (with_expiry(pull, &too_many), most.concat(), Some(&commit)),
        (with_expiry(pull, &[&["a", &x]]), none.clone(), None),
        (with_expiry(pull, &[&["c", "nonsense"], &["a", &x]]), none.clone(), None),
        (with_expiry(kinds::ISSUE, &[&["c", &commit], &["a", &x]]), none, None),
    ];
    for (event, targets, tip) in cases {
        let summary = EventSummary::new(&event);
        assert_eq!((&summary.targets, summary.tip.as_deref()), (&targets, tip), "{}", event.json());
        let request = draft(1, kinds::DELETION, 20, &[&["e", &event.id.to_string()]]);
        let needed = NeededLookups { targets: true, ..NeededLookups::default() };
        for (write, status) in [
            (StoreWrite::Hold(event.clone(), Timestamp(9)), EventStatus::Held),
            (StoreWrite::Release(event.id), EventStatus::Served),
        ] {
            write_all(shelf, &[write]);
            let target = DeletionTarget { event: summary.clone(), status };
            assert_eq!(shelf.lookups(&request, needed).targets, [target], "{}", event.json());
        }
        assert_eq!(shelf.due(NOW), [summary]);
        write_all(shelf, &[StoreWrite::Remove(event.id)]);
    }
}

pub(super) fn boot(shelf: &mut dyn Shelf) {
    let announcement = draft(1, 30_617, 10, &[&["d", "x"]]);
    let exception = draft(2, 30_617, 10, &[&["d", "x"]]);
    let state = draft(1, 30_618, 10, &[&["d", "x"]]);
    let pull = pull_request(3, 10, &[], "ab");
    let others = [draft(1, 1, 10, &[]), draft(1, 30_023, 10, &[&["d", "x"]]), pull_request(3, 11, &[], "ab")];
    let held = [draft(1, 30_617, 11, &[&["d", "x"]]), draft(2, 30_618, 11, &[&["d", "x"]]), pull];
    for event in others.iter().chain([&state, &announcement, &exception]) {
        shelf.write(&StoreWrite::Put(event.clone()));
    }
    write_all(shelf, &[StoreWrite::MarkException(exception.id)]);
    for (event, deadline) in held.iter().zip(20..) {
        write_all(shelf, &[StoreWrite::Hold(event.clone(), Timestamp(deadline))]);
    }
    let work = Todo { repo_path: repo_paths().remove(0), pull_request: Some(others[2].id) };
    let upload = upload(&repo_paths()[1], 7, 1);
    write_all(shelf, &[StoreWrite::AddUpload(upload.clone()), StoreWrite::AddTodo(work.clone())]);
    let mut all = vec![
        Told::Served(announcement.id),
        Told::Exception(exception.id),
        Told::Served(state.id),
        Told::Todo(work),
        Told::Staged(upload),
    ];
    all.extend(held.iter().zip(20..).map(|(event, deadline)| Told::Held(event.id, Timestamp(deadline))));
    let all = sorted(all);
    assert_eq!(told(shelf), all);
    shelf.write(&StoreWrite::Remove(state.id));
    assert_eq!(told(shelf), all, "only what is committed");
    shelf.restart();
    assert_eq!(told(shelf), all);
    assert_eq!(lookups(shelf, &state).stored, Some(EventStatus::Served));
    assert_eq!(shelf.served().len(), 6);
}

pub(super) fn exceptions(shelf: &mut dyn Shelf) {
    let old = draft(1, 30_617, 10, &[&["d", "x"]]);
    let new = draft(1, 30_617, 11, &[&["d", "x"]]);
    let as_exception = |event: &Arc<SignedEvent>| [StoreWrite::Put(event.clone()), StoreWrite::MarkException(event.id)];
    let going = [
        vec![StoreWrite::Remove(old.id)],
        vec![StoreWrite::Put(new.clone()), StoreWrite::Remove(new.id)],
        vec![StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(10)))],
    ];
    for writes in going {
        write_all(shelf, &as_exception(&old));
        assert_eq!(told(shelf), [Told::Exception(old.id)]);
        write_all(shelf, &writes);
        assert_eq!(told(shelf), []);
        put(shelf, &old);
        assert_eq!(told(shelf), [Told::Served(old.id)], "after {writes:?}");
        write_all(shelf, &[StoreWrite::Remove(old.id)]);
    }
}
