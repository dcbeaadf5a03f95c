//! Cases for git jobs: deadlines, todo rows, uploads, pull requests and the items restored at startup.

use super::*;
use grasp_core::repo::{RefTarget, RepoPath};

fn repo(author: u8, name: &str) -> RepoId {
    RepoId { owner: key(author), identifier: Identifier::new(name).expect("valid identifier") }
}

/// Repository paths that differ in one property each: kind, owner, letter case, last letter of a long identifier.
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

fn refs(oid: &str, head: Option<&str>) -> Arc<Refs> {
    let mut refs = Refs::default();
    refs.set("refs/heads/main", RefTarget { oid: oid.repeat(20), peeled: None });
    refs.set("refs/tags/v1", RefTarget { oid: oid.repeat(20), peeled: Some("cd".repeat(20)) });
    head.into_iter().for_each(|head| refs.set_head(head));
    Arc::new(refs)
}

pub(super) fn repos(store: &mut dyn StoreUnderTest) {
    let paths = repo_paths();
    let lost = || Some("a pack is missing".to_owned());
    for path in &paths {
        write_all(store, &[StoreWrite::SetDegraded(path.clone(), lost())]);
        assert_eq!(store.repo(path), None, "one that does not exist is not degraded");
        store.write(&StoreWrite::SetRefs(path.clone(), refs("ab", None)));
        assert_eq!(store.repo(path), Some((refs("ab", None), None)), "the batch sees its own writes");
        store.abort();
        assert_eq!(store.repo(path), None, "the batch was aborted");
        write_all(store, &[StoreWrite::SetRefs(path.clone(), refs("ab", None))]);
    }
    let changed = &paths[3];
    write_all(store, &[StoreWrite::SetDegraded(changed.clone(), lost())]);
    write_all(store, &[StoreWrite::SetRefs(changed.clone(), refs("ef", Some("refs/heads/main")))]);
    store.restart();
    let expected = (refs("ef", Some("refs/heads/main")), lost());
    for path in &paths {
        let expected = if path == changed { expected.clone() } else { (refs("ab", None), None) };
        assert_eq!(store.repo(path), Some(expected), "{path}");
    }
    assert_eq!(restored_summary(store), [RestoredSummary::Degraded(changed.clone())]);
    write_all(store, &[StoreWrite::SetDegraded(changed.clone(), None)]);
    assert_eq!(store.repo(changed).map(|(_, degraded)| degraded), Some(None));
    write_all(store, &[StoreWrite::RemoveRefs(changed.clone())]);
    assert_eq!(store.repo(changed), None);
    assert_eq!(restored_summary(store), []);
    assert!(paths.iter().filter(|path| *path != changed).all(|path| store.repo(path).is_some()));
}

pub(super) fn packs(store: &mut dyn StoreUnderTest) {
    let manifest =
        |nth: u8| PackManifest((0..nth).map(|nth| (PackHash([nth; 20]), u64::MAX - u64::from(nth))).collect());
    let set = |path: &RepoPath, nth: u8| StoreWrite::SetPacks(path.clone(), Arc::new(manifest(nth)));
    let paths = repo_paths();
    for (nth, path) in (1..).zip(&paths) {
        store.write(&set(path, nth));
        assert_eq!(store.packs(path), Some(manifest(nth)), "the batch sees its own writes");
        store.abort();
        assert_eq!(store.packs(path), None, "the batch was aborted");
        write_all(store, &[set(path, nth), StoreWrite::SetRefs(path.clone(), refs("ab", None))]);
    }
    write_all(store, &[StoreWrite::RemoveRefs(paths[0].clone()), set(&paths[1], 0)]);
    store.restart();
    for (nth, path) in (1..).zip(&paths) {
        assert_eq!(store.packs(path), Some(manifest(nth)).filter(|_| *path != paths[1]), "{path}");
    }
}

pub(super) fn extend_hold(store: &mut dyn StoreUnderTest) {
    let held = draft(1, 1_618, 10, &[&["c", "ab"]]);
    let other = draft(1, 1_618, 11, &[&["c", "ab"]]);
    let served = draft(1, 1, 12, &[]);
    for event in [&held, &other] {
        hold_one(store, event);
    }
    put(store, &served);
    for until in [77, 5, u64::MAX] {
        store.write(&StoreWrite::ExtendHold(held.id, Timestamp(until)));
        store.commit();
        let both = vec![(held.id, Timestamp(until)), (other.id, Timestamp(9))];
        assert_eq!(sorted(store.held()), sorted(both), "both earlier and later deadlines");
    }
    for id in [served.id, EventId([7; 32])] {
        write_all(store, &[StoreWrite::ExtendHold(id, Timestamp(1))]);
    }
    assert_eq!((store.held().len(), store.served()), (2, vec![served.id]), "nothing to extend");
    assert!(!store.is_known(EventId([7; 32])));
    assert_eq!(store.event(held.id), Some((held.clone(), EventStatus::Held)), "it is the same event");
    write_all(store, &[StoreWrite::ExtendHold(held.id, Timestamp(8)), StoreWrite::Release(held.id)]);
    assert_eq!(store.event(held.id), Some((held, EventStatus::Served)));
    assert_eq!(store.held(), [(other.id, Timestamp(9))]);
}

pub(super) fn todo(store: &mut dyn StoreUnderTest) {
    let pull_requests = [None, Some(EventId([7; 32])), Some(EventId([8; 32]))];
    let mut all: Vec<Todo> = repo_paths()
        .into_iter()
        .flat_map(|repo_path| pull_requests.map(|pull| Todo { repo_path: repo_path.clone(), pull_request: pull }))
        .collect();
    let as_restored = |all: &[Todo]| sorted(all.iter().cloned().map(RestoredSummary::Todo).collect::<Vec<_>>());
    write_all(store, &[StoreWrite::RemoveTodo(all[0].clone())]);
    assert_eq!(restored_summary(store), [], "no row was added");
    for todo in all.iter().chain(&all) {
        store.write(&StoreWrite::AddTodo(todo.clone()));
    }
    assert_eq!(restored_summary(store), [], "not before the commit");
    store.commit();
    write_all(store, &[StoreWrite::AddTodo(all[0].clone())]);
    assert_eq!(restored_summary(store), as_restored(&all), "each once");
    while let Some(done) = all.pop() {
        write_all(store, &[StoreWrite::RemoveTodo(done.clone())]);
        assert_eq!(restored_summary(store), as_restored(&all), "{done:?} and nothing else is done");
        write_all(store, &[StoreWrite::RemoveTodo(done)]);
    }
    let again = Todo { repo_path: repo_paths().remove(0), pull_request: None };
    write_all(
        store,
        &[
            StoreWrite::AddTodo(again.clone()),
            StoreWrite::RemoveTodo(again.clone()),
            StoreWrite::AddTodo(again.clone()),
        ],
    );
    assert_eq!(restored_summary(store), [RestoredSummary::Todo(again)], "it can be added again");
}

pub(super) fn uploads(store: &mut dyn StoreUnderTest) {
    let mut uploads: Vec<PendingUpload> =
        repo_paths().iter().flat_map(|repo_path| [upload(repo_path, 7, 1), upload(repo_path, 8, 2)]).collect();
    let as_restored =
        |all: &[PendingUpload]| sorted(all.iter().cloned().map(RestoredSummary::Upload).collect::<Vec<_>>());
    write_all(store, &[StoreWrite::RemoveUpload(uploads[0].repo_path.clone(), uploads[0].event)]);
    for upload in &uploads {
        store.write(&StoreWrite::AddUpload(upload.clone()));
    }
    assert_eq!(restored_summary(store), [], "not before the commit");
    store.commit();
    assert_eq!(restored_summary(store), as_restored(&uploads));
    let later = PendingUpload {
        tip: "cd".repeat(20),
        folder: 9,
        bytes: u64::MAX,
        network: None,
        deadline: Timestamp(71),
        ..uploads[0].clone()
    };
    write_all(store, &[StoreWrite::AddUpload(later.clone())]);
    uploads[0] = later;
    uploads[1].network = Some("n".repeat(64));
    write_all(store, &[StoreWrite::AddUpload(uploads[1].clone())]);
    assert_eq!(restored_summary(store), as_restored(&uploads), "the last row replaces all fields");
    while let Some(PendingUpload { repo_path, event, .. }) = uploads.pop() {
        write_all(store, &[StoreWrite::RemoveUpload(repo_path.clone(), event)]);
        assert_eq!(restored_summary(store), as_restored(&uploads), "only {event} at {repo_path} was removed");
        write_all(store, &[StoreWrite::RemoveUpload(repo_path, event)]);
    }
}

pub(super) fn early_requests(store: &mut dyn StoreUnderTest) {
    let event = draft(1, kinds::DELETION, 10, &[&["e", &"ab".repeat(32)]]);
    let request = EarlyRequest { event: event.clone(), network: None, expires_at: Timestamp(9) };
    let vanish = EarlyRequest { event: draft(2, kinds::VANISH, 10, &[]), network: None, expires_at: Timestamp(7) };
    let later =
        EarlyRequest { network: Some("203.0.113.0/24".to_owned()), expires_at: Timestamp(99), ..request.clone() };
    let summary = |request: &EarlyRequest| {
        RestoredSummary::EarlyRequest(request.event.id, request.network.clone(), request.expires_at)
    };
    write_all(store, &[StoreWrite::RemoveEarlyRequest(event.id), StoreWrite::AddEarlyRequest(request)]);
    write_all(store, &[StoreWrite::AddEarlyRequest(later.clone()), StoreWrite::AddEarlyRequest(vanish.clone())]);
    store.restart();
    assert_eq!(restored_summary(store), sorted(vec![summary(&later), summary(&vanish)]));
    let restored =
        store.restored().into_iter().any(|item| matches!(item, RestoredItem::EarlyRequest(it) if it == later));
    assert!(restored, "the whole event is restored");
    let lookups = store.lookups(&event, NeededLookups { author: true, ..NeededLookups::default() });
    assert_eq!(lookups, EventLookups::default(), "it does not make its author known");
    assert!(!store.is_known(event.id) && store.served().is_empty() && store.held().is_empty());
    // In one batch it is served instead.
    write_all(store, &[StoreWrite::RemoveEarlyRequest(event.id), StoreWrite::Put(event.clone())]);
    assert_eq!((restored_summary(store), store.served()), (vec![summary(&vanish)], vec![event.id]));
    write_all(store, &[StoreWrite::RemoveEarlyRequest(vanish.event.id)]);
    assert_eq!(restored_summary(store), []);
}

pub(super) fn durability(store: &mut dyn StoreUnderTest) {
    let repo_path = repo_paths().remove(0);
    let [noted, other] =
        [None, Some(EventId([7; 32]))].map(|pull| Todo { repo_path: repo_path.clone(), pull_request: pull });
    let staged = upload(&repo_path, 7, 1);
    let held = draft(1, 1_618, 10, &[&["c", "ab"]]);
    hold_one(store, &held);
    write_all(store, &[StoreWrite::AddTodo(noted.clone()), StoreWrite::AddUpload(staged.clone())]);
    let before = restored_summary(store);
    let changes = [
        StoreWrite::AddTodo(other),
        StoreWrite::RemoveTodo(noted.clone()),
        StoreWrite::AddUpload(upload(&repo_path, 7, 2)),
        StoreWrite::AddUpload(upload(&repo_path, 8, 3)),
        StoreWrite::RemoveUpload(repo_path.clone(), staged.event),
        StoreWrite::ExtendHold(held.id, Timestamp(99)),
    ];
    let endings: [ContractCase; 2] = [|store| store.abort(), |store| store.restart()];
    for ends in endings {
        for change in &changes {
            store.write(change);
        }
        ends(store);
        assert_eq!(restored_summary(store), before);
        assert_eq!(
            restored_summary(store),
            [
                RestoredSummary::Held(held.id, Timestamp(9)),
                RestoredSummary::Todo(noted.clone()),
                RestoredSummary::Upload(staged.clone())
            ]
        );
    }
    write_all(store, &changes);
    let after = restored_summary(store);
    store.restart();
    assert_eq!(restored_summary(store), after);
    assert_eq!(after.len(), 3);
    assert_eq!(store.event(held.id), Some((held, EventStatus::Held)), "like all other rows");
}

pub(super) fn find_event(store: &mut dyn StoreUnderTest) {
    let served = draft(1, 30_618, 10, &[&["d", "x"], &["t", "say \"hi\"\n"]]);
    let newer = draft(1, 30_618, 11, &[&["d", "x"]]);
    let expired = draft(1, 1, 12, &[&["expiration", "1"]]);
    let here = |store: &mut dyn StoreUnderTest, event: &Arc<SignedEvent>, status: Option<EventStatus>| {
        assert_eq!(store.event(event.id), status.map(|status| (event.clone(), status)));
        assert_eq!(store.is_known(event.id), status.is_some());
    };
    here(store, &served, None);
    store.write(&StoreWrite::Put(served.clone()));
    here(store, &served, Some(EventStatus::Served));
    store.abort();
    here(store, &served, None);
    put(store, &served);
    hold_one(store, &newer);
    here(store, &newer, Some(EventStatus::Held));
    store.write(&StoreWrite::Release(newer.id));
    here(store, &newer, Some(EventStatus::Served));
    here(store, &served, None);
    store.commit();
    store.restart();
    here(store, &newer, Some(EventStatus::Served));
    store.write(&StoreWrite::Remove(newer.id));
    here(store, &newer, None);
    store.commit();
    hold_one(store, &newer);
    write_all(store, &[StoreWrite::DropHeld(newer.id)]);
    here(store, &newer, None);
    put(store, &expired);
    here(store, &expired, Some(EventStatus::Served));
    add_tombstone(store, Tombstone::Event(key(1), expired.id));
    here(store, &expired, Some(EventStatus::Served));
}

pub(super) fn vanished_events_are_unknown(store: &mut dyn StoreUnderTest) {
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
        store.write(&StoreWrite::Put(event.clone()));
    }
    store.commit();
    hold_one(store, &held);
    let check = |store: &mut dyn StoreUnderTest, gone: bool| {
        for event in own.iter().chain([&wrap]) {
            assert_eq!((store.event(event.id).is_none(), store.is_known(event.id)), (gone, !gone), "{}", event.json());
        }
        for event in stays {
            assert_eq!(store.event(event.id), Some((event.clone(), EventStatus::Served)));
        }
        assert_eq!(store.event(held.id), Some((held.clone(), EventStatus::Held)), "held events are dropped one by one");
    };
    check(store, false);
    store.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(4_000))));
    check(store, true);
    store.abort();
    check(store, false);
    store.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(4_000))));
    let reply = draft(2, 1, 20, &[&["e", &wrap.id.to_string()]]);
    assert_eq!(
        (links(store, &reply), links(store, &root)),
        ((false, false), (false, false)),
        "removed events are no links"
    );
    assert_eq!(lookups(store, &wrap), EventLookups::default());
    store.write(&StoreWrite::Put(wrap.clone()));
    assert_eq!(
        lookups(store, &wrap).stored,
        Some(EventStatus::Served),
        "an event of another author can be stored again"
    );
    assert_eq!((links(store, &reply), links(store, &root)), ((true, false), (false, true)));
    store.commit();
    assert_eq!(store.event(wrap.id), Some((wrap.clone(), EventStatus::Served)), "folder is still kept");
    assert_eq!(query(store, Filter { kinds: Some(vec![kinds::GIFT_WRAP]), ..Filter::default() }).len(), 2);
    write_all(store, &[StoreWrite::Remove(wrap.id)]);
    check(store, true);
}

pub(super) fn hold_served(store: &mut dyn StoreUnderTest) {
    let first = draft(1, kinds::STATE, 10, &[&["d", "x"], &["expiration", "5000"]]);
    let second = draft(2, 1, 11, &[]);
    put(store, &first);
    put(store, &second);
    store.write(&StoreWrite::HoldServed(first.id, Timestamp(99)));
    assert_eq!(store.event(first.id), Some((first.clone(), EventStatus::Held)));
    store.abort();
    assert_eq!((store.served(), store.held()), (vec![first.id, second.id], Vec::new()));
    write_all(store, &[StoreWrite::HoldServed(first.id, Timestamp(99))]);
    assert_eq!((store.served(), store.held()), (vec![second.id], vec![(first.id, Timestamp(99))]));
    assert_eq!(lookups(store, &first).current, None, "nothing is served at its coordinate");
    assert_eq!(store.due(Timestamp(6_000)), Vec::new());
    write_all(store, &[StoreWrite::Release(first.id)]);
    assert_eq!((store.served(), store.held()), (vec![second.id, first.id], Vec::new()));
    // Within one batch, and for an event that is not served.
    let third = draft(1, 1_618, 12, &[&["c", "ab"]]);
    let writes = [StoreWrite::Put(third.clone()), StoreWrite::HoldServed(third.id, Timestamp(7))];
    write_all(store, &writes);
    write_all(store, &[StoreWrite::HoldServed(EventId([7; 32]), Timestamp(7))]);
    assert_eq!((store.served(), store.held()), (vec![second.id, first.id], vec![(third.id, Timestamp(7))]));
}

pub(super) fn pull_requests_for(store: &mut dyn StoreUnderTest) {
    let target = repo(2, "x");
    let at = format!("30617:{}:x", key(2));
    let other = format!("30617:{}:y", key(2));
    let addressed: Vec<_> =
        (0..7).map(|nth| pull_request(1, 10 + nth / 2, &[&other, &at], &"ab".repeat(nth as usize + 1))).collect();
    let elsewhere = pull_request(1, 12, &[&other], "ab");
    let held = pull_request(3, 12, &[&at], "ab");
    for event in addressed.iter().chain([&elsewhere, &draft(1, 1_621, 12, &[&["a", &at]])]) {
        put(store, event);
    }
    hold_one(store, &held);
    let all_pages = |store: &mut dyn StoreUnderTest| {
        let (mut found, mut next) = store.pull_requests_for(&target, PullRequestPage::First);
        while let Some(after) = next {
            let (more, rest) = store.pull_requests_for(&target, PullRequestPage::After(after));
            found.extend(more);
            next = rest;
        }
        sorted(found.into_iter().map(|event| event.id).collect())
    };
    let ids = |events: &[Arc<SignedEvent>]| sorted(events.iter().map(|event| event.id).collect());
    assert_eq!(all_pages(store), ids(&addressed));
    let in_batch = pull_request(3, 11, &[&at], "cd");
    store.write(&StoreWrite::Put(in_batch.clone()));
    store.write(&StoreWrite::Remove(addressed[0].id));
    store.write(&StoreWrite::HoldServed(addressed[1].id, Timestamp(9)));
    let rest: Vec<_> = addressed[2..].iter().cloned().chain([in_batch.clone()]).collect();
    assert_eq!(all_pages(store), ids(&rest), "with the open batch");
    store.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(4_000))));
    assert_eq!(all_pages(store), vec![in_batch.id], "without events of a vanished author");
    store.commit();
    assert_eq!(all_pages(store), vec![in_batch.id]);
}

pub(super) fn removed_pulls(store: &mut dyn StoreUnderTest) {
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
        store.write(&StoreWrite::Put(draft(1, 1, 4, &[&["nth", &nth.to_string()]])));
    }
    for event in pull_requests.iter().chain(&stays).chain([&patch, &early]) {
        store.write(&StoreWrite::Put(event.clone()));
    }
    store.commit();
    hold_one(store, &pull_request(1, 12, &[&at], "ab"));
    let summaries =
        |events: &[&Arc<SignedEvent>]| sorted(events.iter().map(|event| EventSummary::new(event)).collect());
    assert_eq!(store.removed_pulls(), []);
    store.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(20))));
    store.abort();
    assert_eq!(store.removed_pulls(), [], "the batch was aborted");
    store.write(&StoreWrite::Put(in_batch.clone()));
    store.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(20))));
    store.commit();
    let [a, b, c] = &pull_requests;
    assert_eq!(sorted(store.removed_pulls()), summaries(&[a, b, c, &in_batch, &early]), "each once");
    assert_eq!(store.removed_pulls(), []);
    assert_eq!(sorted(store.served()), sorted(stays.iter().map(|event| event.id).collect()));
    let [late, ..] = &stays;
    store.write(&StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(21))));
    assert_eq!(store.removed_pulls(), summaries(&[late]), "visible in the open batch");
    store.commit();
    assert_eq!(store.removed_pulls(), []);
    add_tombstone(store, Tombstone::Author(key(1), Timestamp(22)));
    write_all(store, &[StoreWrite::Remove(stays[1].id)]);
    assert_eq!(store.removed_pulls(), [], "removals by the machine itself are not reported");
}

pub(super) fn pull_request_summaries(store: &mut dyn StoreUnderTest) {
    let at = |name: &str| format!("30617:{}:{name}", key(2));
    let odd = at("say \"hi\" 🚀");
    let (x, y) = (at("x"), at("y"));
    let state = x.replace("30617", "30618");
    let commit = "ab".repeat(20);
    let with_expiry = |kind, tags: &[&[&str]]| {
        let mut tags = crate::signer::owned_tags(tags);
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
            write_all(store, &[write]);
            let target = DeletionTarget { event: summary.clone(), status };
            assert_eq!(store.lookups(&request, needed).targets, [target], "{}", event.json());
        }
        assert_eq!(store.due(NOW), [summary]);
        write_all(store, &[StoreWrite::Remove(event.id)]);
    }
}

pub(super) fn restored_items(store: &mut dyn StoreUnderTest) {
    let announcement = draft(1, 30_617, 10, &[&["d", "x"]]);
    let exception = draft(2, 30_617, 10, &[&["d", "x"]]);
    let state = draft(1, 30_618, 10, &[&["d", "x"]]);
    let pull = pull_request(3, 10, &[], "ab");
    let others = [draft(1, 1, 10, &[]), draft(1, 30_023, 10, &[&["d", "x"]]), pull_request(3, 11, &[], "ab")];
    let held = [draft(1, 30_617, 11, &[&["d", "x"]]), draft(2, 30_618, 11, &[&["d", "x"]]), pull];
    for event in others.iter().chain([&state, &announcement, &exception]) {
        store.write(&StoreWrite::Put(event.clone()));
    }
    write_all(store, &[StoreWrite::MarkException(exception.id)]);
    for (event, deadline) in held.iter().zip(20..) {
        write_all(store, &[StoreWrite::Hold(event.clone(), Timestamp(deadline))]);
    }
    let work = Todo { repo_path: repo_paths().remove(0), pull_request: Some(others[2].id) };
    let upload = upload(&repo_paths()[1], 7, 1);
    write_all(store, &[StoreWrite::AddUpload(upload.clone()), StoreWrite::AddTodo(work.clone())]);
    let mut all = vec![
        RestoredSummary::Served(announcement.id),
        RestoredSummary::Exception(exception.id),
        RestoredSummary::Served(state.id),
        RestoredSummary::Todo(work),
        RestoredSummary::Upload(upload),
    ];
    all.extend(held.iter().zip(20..).map(|(event, deadline)| RestoredSummary::Held(event.id, Timestamp(deadline))));
    let all = sorted(all);
    assert_eq!(restored_summary(store), all);
    store.write(&StoreWrite::Remove(state.id));
    assert_eq!(restored_summary(store), all, "only what is committed");
    store.restart();
    assert_eq!(restored_summary(store), all);
    assert_eq!(lookups(store, &state).stored, Some(EventStatus::Served));
    assert_eq!(store.served().len(), 6);
}

pub(super) fn exceptions(store: &mut dyn StoreUnderTest) {
    let old = draft(1, 30_617, 10, &[&["d", "x"]]);
    let new = draft(1, 30_617, 11, &[&["d", "x"]]);
    let as_exception = |event: &Arc<SignedEvent>| [StoreWrite::Put(event.clone()), StoreWrite::MarkException(event.id)];
    let going = [
        vec![StoreWrite::Remove(old.id)],
        vec![StoreWrite::Put(new.clone()), StoreWrite::Remove(new.id)],
        vec![StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(10)))],
    ];
    for writes in going {
        write_all(store, &as_exception(&old));
        assert_eq!(restored_summary(store), [RestoredSummary::Exception(old.id)]);
        write_all(store, &writes);
        assert_eq!(restored_summary(store), []);
        put(store, &old);
        assert_eq!(restored_summary(store), [RestoredSummary::Served(old.id)], "after {writes:?}");
        write_all(store, &[StoreWrite::Remove(old.id)]);
    }
}
