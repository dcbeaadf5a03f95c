//! The operator bans things and takes that back: whenever the world ends, everything ends as if it had not, and nothing
//! that was banned stays away when it is not any more.

use grasp_core::admission::policy::lists::{ArchiveScope, ModerationLists, RepoList, RepoListEntry};
use grasp_core::nostr::kinds;
use grasp_core::repo::RepoPath;
use grasp_sim::fixtures::{m, main_at, o, oid, x};
use grasp_sim::signer::Author;
use grasp_sim::test_server::{Wish, service};

use super::runner::{Act, Script};
use super::scripts::main_is;
use super::{hosting, main_to, prs, submission, tool};

fn entries(texts: &[&str]) -> RepoList {
    texts.iter().map(|text| RepoListEntry::parse(text).expect("an entry")).collect()
}

fn banned(texts: &[&str]) -> ModerationLists {
    ModerationLists { banned_repos: entries(texts), ..ModerationLists::default() }
}

fn only(author: &Author) -> String {
    format!("{}/tool", author.key().npub())
}

/// O's and M's repositories, each of which follows both. `main` is at `b`, by M.
fn two() -> Vec<Act> {
    let mut acts = hosting(&[&m()]);
    acts.extend([
        Act::Submit(m().listed(&service(), "tool", 150, &[&o()])),
        Act::Submit(main_at(&m(), 200, 'b')),
        Act::Push(main_to(&m(), 'b', "")),
    ]);
    acts
}

#[test]
fn a_ban_takes_the_repository_away() {
    for list in [banned(&[&only(&o())]), banned(&["tool"]), banned(&[&o().key().npub()])] {
        let (mut house, _) = Script { before: hosting(&[]), acts: vec![Act::Rule(list)] }.survives();
        assert_eq!(house.sets(), Default::default());
        assert_eq!(house.git().folders().count(), 0);
    }
}

/// What M's repository read from O's is copied before that goes; M's own state stays.
#[test]
fn a_ban_of_one_leaves_the_other() {
    let (mut house, _) = Script { before: two(), acts: vec![Act::Rule(banned(&[&only(&o())]))] }.survives();
    assert!(house.git().folder(&tool(&o())).is_none());
    main_is(&house, &m(), Some('b'));
}

#[test]
fn what_was_banned_comes_back() {
    let mut before = hosting(&[]);
    before.push(Act::Rule(banned(&["tool"])));
    let mut acts = vec![Act::Rule(ModerationLists::default())];
    acts.extend(hosting(&[]));
    let (house, _) = Script { before, acts }.survives();
    main_is(&house, &o(), Some('a'));
}

/// A discussion of two repositories, of which one is banned, by any of its names: what is about that alone goes, however far
/// the last process came.
#[test]
fn a_ban_takes_what_is_about_the_repository() {
    let (gone, here) = (o().repo("tool"), m().repo("spare"));
    let issue = x().issue(300, &gone);
    let comment = x().comment(301, &issue);
    let both = x().sign(kinds::ISSUE, 302, &[&["a", &gone], &["a", &here]], "");
    let pull = x().pull_request(303, &[&gone], &oid('c'));
    let mut before = hosting(&[]);
    let spare = RepoPath::Announced(m().repo_id("spare"));
    before.extend([
        Act::Submit(m().listed(&service(), "spare", 100, &[])),
        Act::Submit(m().state("spare", 101, &[("refs/heads/main", &oid('a'))])),
        Act::Push(Wish::new(spare).set("refs/heads/main", &oid('a')).bring(&[&oid('a')])),
    ]);
    before.extend([&issue, &comment, &both, &pull].map(|event| Act::Submit(event.clone())));
    before.extend([
        Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('c')).bring(&[&oid('b')])),
        Act::Submit(x().comment(304, &pull)),
        Act::Submit(x().comment(305, &comment)),
        Act::Submit(x().comment(306, &both)),
    ]);
    for list in [&only(&o()), "tool", &o().key().npub()] {
        let script = Script { before: before.clone(), acts: vec![Act::Rule(banned(&[list]))] };
        let (mut house, _) = script.survives();
        let left: Vec<u64> = house.memory().served_events().map(|event| event.created_at.0).collect();
        assert_eq!(left, [100, 101, 302, 306], "{list}");
        assert_eq!(house.git().folders().count(), 1);
    }
    // It comes back with its repository, also if that is banned no more while it goes.
    let mut acts = vec![Act::Rule(banned(&["tool"])), Act::Rule(ModerationLists::default())];
    acts.extend(hosting(&[]));
    acts.extend([issue, comment].map(Act::Submit));
    let (mut house, _) = Script { before, acts }.survives();
    assert_eq!(house.memory().served_events().filter(|event| [300, 301].contains(&event.created_at.0)).count(), 2);
}

/// What waits goes, too.
#[test]
fn a_ban_of_what_waits() {
    let before = vec![
        Act::Submit(o().listed(&service(), "tool", 100, &[])),
        Act::Submit(main_at(&o(), 101, 'a')),
        Act::Submit(main_at(&o(), 102, 'b')),
    ];
    let (house, _) = Script { before, acts: vec![Act::Rule(banned(&["tool"]))] }.survives();
    assert_eq!(house.sets(), Default::default());
}

#[test]
fn an_unwanted_author_goes_with_everything() {
    let mut before = two();
    let pull = submission(&x(), 300, &[&o().repo("tool")], 'c');
    before.extend([
        Act::Submit(pull.clone()),
        Act::Push(Wish::new(prs(&x())).pull(pull.id, &oid('c')).bring(&[&oid('a'), &oid('b')])),
    ]);
    let mut lists = ModerationLists::default();
    lists.banned_events.add(&x().key().npub()).expect("a key");
    lists.banned_events.add(&m().key().npub()).expect("a key");
    let (mut house, _) = Script { before, acts: vec![Act::Rule(lists)] }.survives();
    assert!(house.git().folder(&prs(&x())).is_none() && house.git().folder(&tool(&m())).is_none());
    assert!(house.memory().served_events().all(|event| event.pubkey == o().key()));
    main_is(&house, &o(), Some('a'));
}

#[test]
fn an_archive_begins() {
    let keep = ModerationLists { archive: ArchiveScope::Everything, is_read_only: true, ..ModerationLists::default() };
    let mut before = hosting(&[&m()]);
    before.push(Act::Submit(m().unlisted("tool", 150, &[&o()])));
    let (house, _) = Script { before, acts: vec![Act::Rule(keep)] }.survives();
    assert!(house.admission().is_available(&tool(&m())), "an exception is hosted now");
}
