//! Moderation lists, the archive (GRASP-05) and read-only: each row of the order of evaluation (G1-09), and what becomes of
//! what is here when the lists change.

use grasp_core::admission::policy::lists::{ArchiveScope, ModerationLists, RepoList, RepoListEntry};
use grasp_core::admission::push::PushRejection;
use grasp_core::repo::RepoId;
use grasp_sim::test_server::Wish;

use super::common::*;

fn entries(texts: &[&str]) -> RepoList {
    texts.iter().map(|text| RepoListEntry::parse(text).expect("an entry")).collect()
}

fn banned(texts: &[&str]) -> ModerationLists {
    ModerationLists { banned_repos: entries(texts), ..ModerationLists::default() }
}

fn wanted(texts: &[&str]) -> ModerationLists {
    ModerationLists { whitelist: Some(entries(texts)), ..ModerationLists::default() }
}

fn unwanted(texts: &[&str]) -> ModerationLists {
    let mut lists = ModerationLists::default();
    for text in texts {
        lists.banned_events.add(text).expect("an entry");
    }
    lists
}

fn archive(archive: ArchiveScope, read_only: bool) -> ModerationLists {
    ModerationLists { archive, is_read_only: read_only, ..ModerationLists::default() }
}

fn house(lists: ModerationLists) -> House {
    House::new(AdmissionPolicy { lists: Arc::new(lists), ..rules() })
}

fn tool(owner: &Author) -> RepoId {
    owner.repo_id("tool")
}

fn npub(author: &Author) -> String {
    author.key().npub()
}

fn other() -> ServiceAddress {
    ServiceAddress::new("other.example", "").expect("a good address")
}

#[test]
fn g1_09_the_order_of_evaluation() {
    let here = || o().listed(&service(), "tool", 100, &[]);
    let elsewhere = || o().unlisted("tool", 100, &[]);
    let mine = npub(&o());
    let both = |lists: ModerationLists| ModerationLists { banned_repos: entries(&["tool"]), ..lists };
    let all = || archive(ArchiveScope::Everything, true);
    let listed = |texts: &[&str]| archive(ArchiveScope::Listed(entries(texts)), true);
    for (lists, event, expected) in [
        (ModerationLists::default(), here(), HELD),
        (ModerationLists::default(), elsewhere(), NOT_LISTED),
        // The blacklist, by any of its forms, wins over everything.
        (banned(&["tool"]), here(), BANNED),
        (banned(&["tool"]), elsewhere(), BANNED),
        (banned(&[&mine]), here(), BANNED),
        (banned(&[&o().hex()]), here(), BANNED),
        (banned(&[&format!("{mine}/tool")]), here(), BANNED),
        (banned(&[&format!("{mine}/other"), "other", &npub(&m())]), here(), HELD),
        (both(wanted(&["tool"])), here(), BANNED),
        (both(all()), elsewhere(), BANNED),
        // The whitelist is about those that name this service.
        (wanted(&["tool"]), here(), HELD),
        (wanted(&[&mine]), here(), HELD),
        (wanted(&[&format!("{mine}/tool")]), here(), HELD),
        (wanted(&["other"]), here(), NOT_WHITELISTED),
        (wanted(&["tool"]), elsewhere(), NOT_LISTED),
        // The archive is about all.
        (all(), elsewhere(), HELD),
        (all(), here(), HELD),
        (listed(&["tool"]), elsewhere(), HELD),
        (listed(&[&mine]), elsewhere(), HELD),
        (listed(&["other"]), elsewhere(), NOT_LISTED),
        (listed(&["other"]), here(), NOT_ARCHIVED),
        (archive(ArchiveScope::Listed(entries(&["other"])), false), here(), HELD),
        (archive(ArchiveScope::Listed(entries(&["tool"])), false), elsewhere(), HELD),
        (
            ModerationLists {
                whitelist: Some(entries(&["a"])),
                ..archive(ArchiveScope::Listed(entries(&["tool"])), false)
            },
            here(),
            HELD,
        ),
        (archive(ArchiveScope::Nothing, true), here(), NOT_ARCHIVED),
        (archive(ArchiveScope::Services(vec![other()]), true), o().listed(&other(), "tool", 100, &[]), HELD),
        (archive(ArchiveScope::Services(vec![other()]), true), elsewhere(), NOT_LISTED),
        // Structure comes before all that, the event's own list before everything.
        (banned(&["tool"]), o().sign(kinds::ANNOUNCEMENT, 100, &[&["d", ".."]], ""), IDENTIFIER),
        (unwanted(&[&mine]), here(), UNWELCOME),
        (ModerationLists { banned_repos: entries(&["tool"]), ..unwanted(&[&o().hex()]) }, here(), UNWELCOME),
        (unwanted(&[&here().id.to_string()]), here(), UNWELCOME),
        (unwanted(&[&npub(&m())]), here(), HELD),
    ] {
        says(&mut house(lists.clone()), &event, expected);
        let mut by_sync = house(lists);
        matches(&said(&by_sync.submit_from(&event, EventSource::Relay("wss://relay.example".to_owned()))), expected);
    }
}

#[test]
fn the_maintainer_exception_comes_last_and_not_for_the_banned() {
    for (lists, expected) in [
        (ModerationLists::default(), SERVED),
        (wanted(&[&format!("{}/tool", npub(&o()))]), SERVED),
        (banned(&[&npub(&m())]), BANNED),
        (unwanted(&[&npub(&m())]), UNWELCOME),
    ] {
        let (mut house, ..) = hosting(AdmissionPolicy { lists: Arc::new(lists), ..rules() }, &[&m()]);
        says(&mut house, &m().unlisted("tool", 200, &[]), expected);
    }
    // Whoever keeps a wanted repository may host its own.
    let lists = wanted(&[&format!("{}/tool", npub(&o()))]);
    let (mut house, ..) = hosting(AdmissionPolicy { lists: Arc::new(lists), ..rules() }, &[&m()]);
    says(&mut house, &m().listed(&service(), "tool", 200, &[]), HELD);
    says(&mut house, &x().listed(&service(), "tool", 200, &[]), NOT_WHITELISTED);
}

#[test]
fn everything_of_an_unwanted_author_is_refused_whatever_its_kind() {
    let (mut house, announcement, _) = hosting(rules(), &[&m()]);
    let issue = m().sign(kinds::ISSUE, 200, &[&["a", &o().repo("tool")]], "");
    says(&mut house, &issue, SERVED);
    house.rule(unwanted(&[&npub(&m())]));
    says(&mut house, &issue, UNWELCOME);
    for event in [
        main_at(&m(), 201, 'b'),
        m().sign(kinds::ISSUE, 202, &[&["a", &o().repo("tool")]], ""),
        m().sign(kinds::DELETION, 203, &[&["e", &announcement.id.to_string()]], ""),
        m().sign(20_001, 204, &[], "ephemeral"),
    ] {
        says(&mut house, &event, UNWELCOME);
    }
    let comment = o().sign(1_111, 205, &[&["e", &issue.id.to_string()]], "");
    says(&mut house, &comment, UNRELATED);
}

#[test]
fn what_belongs_to_a_banned_repository_is_not_anchored() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let before = house.sets();
    house.rule(banned(&["tool"]));
    stands(&house, &[], &[]);
    says(&mut house, &announcement, BANNED);
    says(&mut house, &state, NO_ANNOUNCEMENT);
    says(&mut house, &x().sign(kinds::ISSUE, 200, &[&["a", &o().repo("tool")]], ""), UNRELATED);
    let pull = x().sign(kinds::PULL_REQUEST, 200, &[&["a", &o().repo("tool")], &["c", &oid('b')]], "");
    says(&mut house, &pull, UNRELATED);
    let wish = Wish::new(RepoPath::Announced(tool(&o()))).set("refs/heads/main", &oid('b'));
    assert_eq!(house.push(&wish), Err(PushRejection::NotHosted));
    assert_eq!(house.hosted(), []);
    // And no bell of sync was missed: it is followed no more, until it is wanted again.
    house.rule(ModerationLists::default());
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &o());
    assert_eq!(house.sets(), before);
}

/// M's announcement is here because O names M. With O it goes, and with O it may come back: the very same one.
#[test]
fn an_exception_goes_with_a_banned_host_and_comes_back() {
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    let exception = m().unlisted("tool", 200, &[]);
    says(&mut house, &exception, SERVED);
    house.rule(banned(&[&npub(&o())]));
    stands(&house, &[], &[]);
    says(&mut house, &exception, NOT_LISTED);
    house.rule(ModerationLists::default());
    says(&mut house, &announcement, HELD);
    says(&mut house, &exception, SERVED);
    says(&mut house, &state, HELD);
}

#[test]
fn a_whitelist_is_about_what_is_to_come() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    house.rule(wanted(&["other"]));
    stands(&house, &[&announcement, &state], &[]);
    let newer = o().listed(&service(), "tool", 200, &[&m()]);
    says(&mut house, &newer, SERVED);
    says(&mut house, &o().listed(&service(), "new", 200, &[]), NOT_WHITELISTED);
}

#[test]
fn an_archive_is_hosted_and_followed_where_its_announcement_says() {
    let mut house = house(archive(ArchiveScope::Listed(entries(&["tool"])), true));
    let announcement = o().listed(&other(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    let followed = house.followed(&tool(&o()).identifier);
    assert_eq!(followed.len(), 1);
    assert_eq!(followed[0].relays, ["wss://elsewhere.example", "wss://other.example"]);
    pushed(&mut house, &state, &o());
    stands(&house, &[&announcement, &state], &[]);
    assert_eq!(house.hosted(), [tool(&o())]);
    assert_eq!(house.refs(&RepoPath::Announced(tool(&o()))).get("refs/heads/main"), Some(&oid('a')));
    // What belongs to it is taken in, and nobody pushes.
    says(&mut house, &x().sign(kinds::ISSUE, 200, &[&["a", &o().repo("tool")]], ""), SERVED);
    says(&mut house, &main_at(&o(), 300, 'b'), HELD);
    let wish = Wish::new(RepoPath::Announced(tool(&o()))).set("refs/heads/main", &oid('b'));
    assert_eq!(house.push(&wish), Err(PushRejection::ReadOnly));
    // A newer version is served at once; one that moves away from what is archived ends nothing.
    says(&mut house, &o().unlisted("tool", 400, &[]), SERVED);
    house.restart();
    assert_eq!(house.hosted(), [tool(&o())]);
}

#[test]
fn what_is_archived_no_more_is_left_alone_until_it_is_banned() {
    let mut house = house(archive(ArchiveScope::Everything, true));
    let (announcement, state) = (o().unlisted("tool", 100, &[]), main_at(&o(), 101, 'a'));
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &o());
    let waiting = m().unlisted("waits", 100, &[]);
    says(&mut house, &waiting, HELD);
    house.rule(ModerationLists::default());
    stands(&house, &[&announcement, &state], &[]);
    assert_eq!(house.hosted(), []);
    assert!(house.git().folder(&RepoPath::Announced(tool(&o()))).is_some(), "its folder is kept");
    house.restart();
    assert!(house.git().folder(&RepoPath::Announced(tool(&o()))).is_some(), "and stays");
    // What is served of it stays what holds.
    let newer = o().unlisted("tool", 200, &[&m()]);
    says(&mut house, &newer, SERVED);
    house.restart();
    stands(&house, &[&newer, &state], &[]);
    house.rule(archive(ArchiveScope::Everything, true));
    assert_eq!(house.hosted(), [tool(&o())], "as if nothing had been");
    house.rule(banned(&["tool"]));
    stands(&house, &[], &[]);
    assert!(house.git().folder(&RepoPath::Announced(tool(&o()))).is_none());
}

/// Whoever leaves an archived service is not served under an old announcement: the new one takes its place, the address is
/// closed, the data is kept. Whoever comes back is hosted as before.
#[test]
fn what_leaves_an_archived_service_is_kept_up_to_date_and_closed() {
    let mut house = house(archive(ArchiveScope::Services(vec![other()]), true));
    let (announcement, state) = (o().listed(&other(), "tool", 100, &[&m()]), main_at(&o(), 101, 'a'));
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &o());
    assert_eq!(house.hosted(), [tool(&o())]);
    for (at, maintainers) in [(200, vec![]), (300, vec![x()])] {
        let maintainers: Vec<&Author> = maintainers.iter().collect();
        let left = o().unlisted("tool", at, &maintainers);
        says(&mut house, &left, SERVED);
        says(&mut house, &announcement, OLD);
        for _ in 0..2 {
            stands(&house, &[&left, &state], &[]);
            assert_eq!(house.hosted(), []);
            assert!(house.git().folder(&RepoPath::Announced(tool(&o()))).is_some(), "its folder is kept");
            house.restart();
        }
        says(&mut house, &main_at(&m(), at, 'b'), NO_ANNOUNCEMENT);
        says(&mut house, &o().listed(&service(), "tool", at + 1, &[]), NOT_ARCHIVED);
    }
    let back = o().listed(&other(), "tool", 400, &[]);
    house.submit(&back);
    assert_eq!(house.hosted(), [tool(&o())]);
    stands(&house, &[&back, &state], &[]);
    assert_eq!(house.refs(&RepoPath::Announced(tool(&o()))).get("refs/heads/main"), Some(&oid('a')));
}

/// What only waits is not served later under an old announcement either, and that one cannot come back.
#[test]
fn what_leaves_an_archived_service_before_its_data_came_is_let_go() {
    let mut house = house(archive(ArchiveScope::Services(vec![other()]), true));
    let announcement = o().listed(&other(), "tool", 100, &[]);
    says(&mut house, &announcement, HELD);
    says(&mut house, &o().unlisted("tool", 200, &[]), DELISTED);
    stands(&house, &[], &[]);
    says(&mut house, &announcement, WITHDRAWN);
    says(&mut house, &o().listed(&other(), "tool", 300, &[]), HELD);
}

/// A version that does not name this service any more ends hosting, unless the operator keeps it.
#[test]
fn g1_10_an_archive_keeps_what_its_owner_takes_away() {
    for (lists, expected) in [
        (ModerationLists::default(), DELISTED),
        (archive(ArchiveScope::Everything, false), SERVED),
        (banned(&["tool"]), BANNED),
    ] {
        let (mut house, ..) = hosting(rules(), &[]);
        house.rule(lists);
        says(&mut house, &o().unlisted("tool", 200, &[]), expected);
        assert_eq!(house.hosted().is_empty(), expected != SERVED);
    }
}

#[test]
fn read_only_is_for_everybody_and_ends() {
    let (mut house, ..) = hosting(rules(), &[]);
    let state = main_at(&o(), 200, 'b');
    says(&mut house, &state, HELD);
    let wish = Wish::new(RepoPath::Announced(tool(&o()))).set("refs/heads/main", &oid('b')).bring(&[&oid('b')]);
    house.rule(archive(ArchiveScope::Nothing, true));
    assert_eq!(house.push(&wish), Err(PushRejection::ReadOnly));
    assert_eq!(PushRejection::ReadOnly.code(), "E-READ-ONLY");
    assert!(PushRejection::ReadOnly.to_string().contains("read-only archive"));
    house.rule(ModerationLists::default());
    assert_eq!(house.push(&wish), Ok(()));
}

#[test]
fn many_are_banned_in_slices() {
    let mut house = House::default();
    house.be_lawless(true);
    let many = limits::REVIEW_SLICE_REPOS * 2 + 7;
    let names: Vec<String> = (0..many).map(|nth| format!("r{nth}")).collect();
    for name in &names {
        let author = Author::new(u8::try_from(40 + name.len() % 200).unwrap_or(40));
        says(&mut house, &author.listed(&service(), name, 100, &[]), HELD);
    }
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    house.rule(banned(&all));
    house.advance(0);
    stands(&house, &[], &[]);
    assert_eq!(house.admission().catalog().repositories().count(), 0);
}

#[test]
fn whether_more_is_taken_in_than_before() {
    let all = archive(ArchiveScope::Everything, false);
    let some = archive(ArchiveScope::Listed(entries(&["a"])), false);
    let read_only = archive(ArchiveScope::Nothing, true);
    for (old, new, more) in [
        (ModerationLists::default(), ModerationLists::default(), false),
        (ModerationLists::default(), banned(&["a"]), false),
        (banned(&["a"]), ModerationLists::default(), true),
        (banned(&["a", "b"]), banned(&["b", "c"]), true),
        (banned(&["a"]), banned(&["a", "c"]), false),
        (ModerationLists::default(), unwanted(&[&npub(&o())]), false),
        (unwanted(&[&npub(&o())]), ModerationLists::default(), true),
        (ModerationLists::default(), wanted(&["a"]), false),
        (wanted(&["a"]), ModerationLists::default(), true),
        (wanted(&["a"]), wanted(&["b"]), true),
        (wanted(&["a", "b"]), wanted(&["b"]), false),
        (ModerationLists::default(), all.clone(), true),
        (all.clone(), some.clone(), false),
        (some.clone(), all, true),
        (some, ModerationLists::default(), false),
        (ModerationLists::default(), read_only.clone(), false),
        (read_only, ModerationLists::default(), true),
    ] {
        assert_eq!(new.may_accept_more_than(&old), more, "{old:?} {new:?}");
    }
}
