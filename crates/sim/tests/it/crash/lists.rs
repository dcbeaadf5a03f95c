//! The operator bans repositories and authors, and ends the ban. A crash at any step does not change the result, and
//! everything that was banned can return afterwards.

use grasp_core::admission::policy::lists::{ArchiveScope, ModerationLists, RepoList, RepoListEntry};
use grasp_core::nostr::kinds;
use grasp_core::repo::RepoPath;
use grasp_sim::fixtures::{main_state, maintainer, oid, outsider, owner};
use grasp_sim::signer::Author;
use grasp_sim::test_server::{ClientPush, service};

use super::runner::{Action, CrashScript};
use super::scripts::expect_main;
use super::{hosting, main_to, prs, submission, tool};

fn entries(texts: &[&str]) -> RepoList {
    texts.iter().map(|text| RepoListEntry::parse(text).expect("valid list entry")).collect()
}

fn banned(texts: &[&str]) -> ModerationLists {
    ModerationLists { banned_repos: entries(texts), ..ModerationLists::default() }
}

fn only(author: &Author) -> String {
    format!("{}/tool", author.key().npub())
}

/// O's and M's repositories, each of which follows both. `main` is at `b`, by M's state.
fn two() -> Vec<Action> {
    let mut actions = hosting(&[&maintainer()]);
    actions.extend([
        Action::Submit(maintainer().announcement(&service(), "tool", 150, &[&owner()])),
        Action::Submit(main_state(&maintainer(), 200, 'b')),
        Action::Push(main_to(&maintainer(), 'b', "")),
    ]);
    actions
}

#[test]
fn ban_removes_the_repository() {
    for list in [banned(&[&only(&owner())]), banned(&["tool"]), banned(&[&owner().key().npub()])] {
        let (mut server, _) =
            CrashScript { setup: hosting(&[]), actions: vec![Action::SetLists(list)] }.assert_crash_safe();
        assert_eq!(server.event_ids(), Default::default());
        assert_eq!(server.git().folders().count(), 0);
    }
}

/// Objects that M's repository reads from O's are copied before O's is deleted; M's own state stays.
#[test]
fn ban_of_one_repository_keeps_the_other() {
    let (mut server, _) =
        CrashScript { setup: two(), actions: vec![Action::SetLists(banned(&[&only(&owner())]))] }.assert_crash_safe();
    assert!(server.git().folder(&tool(&owner())).is_none());
    expect_main(&server, &maintainer(), Some('b'));
}

#[test]
fn banned_repository_can_return() {
    let mut setup = hosting(&[]);
    setup.push(Action::SetLists(banned(&["tool"])));
    let mut actions = vec![Action::SetLists(ModerationLists::default())];
    actions.extend(hosting(&[]));
    let (server, _) = CrashScript { setup, actions }.assert_crash_safe();
    expect_main(&server, &owner(), Some('a'));
}

/// A discussion of two repositories, one of which is banned in each of the list's forms: events that are only about the
/// banned one are removed, however far the crashed process had got.
#[test]
fn ban_removes_the_discussion_of_the_repository() {
    let (gone, here) = (owner().repo("tool"), maintainer().repo("spare"));
    let issue = outsider().issue(300, &gone);
    let comment = outsider().comment(301, &issue);
    let both = outsider().sign(kinds::ISSUE, 302, &[&["a", &gone], &["a", &here]], "");
    let pull = outsider().pull_request(303, &[&gone], &oid('c'));
    let mut setup = hosting(&[]);
    let spare = RepoPath::Announced(maintainer().repo_id("spare"));
    setup.extend([
        Action::Submit(maintainer().announcement(&service(), "spare", 100, &[])),
        Action::Submit(maintainer().state("spare", 101, &[("refs/heads/main", &oid('a'))])),
        Action::Push(ClientPush::new(spare).set("refs/heads/main", &oid('a')).bring(&[&oid('a')])),
    ]);
    setup.extend([&issue, &comment, &both, &pull].map(|event| Action::Submit(event.clone())));
    setup.extend([
        Action::Push(ClientPush::new(tool(&owner())).pull(pull.id, &oid('c')).bring(&[&oid('b')])),
        Action::Submit(outsider().comment(304, &pull)),
        Action::Submit(outsider().comment(305, &comment)),
        Action::Submit(outsider().comment(306, &both)),
    ]);
    for list in [&only(&owner()), "tool", &owner().key().npub()] {
        let script = CrashScript { setup: setup.clone(), actions: vec![Action::SetLists(banned(&[list]))] };
        let (mut server, _) = script.assert_crash_safe();
        let left: Vec<u64> = server.store().served_events().map(|event| event.created_at.0).collect();
        assert_eq!(left, [100, 101, 302, 306], "{list}");
        assert_eq!(server.git().folders().count(), 1);
    }
    // It can return with its repository, also if the ban ends while it is being removed.
    let mut actions = vec![Action::SetLists(banned(&["tool"])), Action::SetLists(ModerationLists::default())];
    actions.extend(hosting(&[]));
    actions.extend([issue, comment].map(Action::Submit));
    let (mut server, _) = CrashScript { setup, actions }.assert_crash_safe();
    assert_eq!(server.store().served_events().filter(|event| [300, 301].contains(&event.created_at.0)).count(), 2);
}

/// Held events of a banned repository are dropped too.
#[test]
fn ban_drops_held_events() {
    let setup = vec![
        Action::Submit(owner().announcement(&service(), "tool", 100, &[])),
        Action::Submit(main_state(&owner(), 101, 'a')),
        Action::Submit(main_state(&owner(), 102, 'b')),
    ];
    let (server, _) = CrashScript { setup, actions: vec![Action::SetLists(banned(&["tool"]))] }.assert_crash_safe();
    assert_eq!(server.event_ids(), Default::default());
}

#[test]
fn ban_of_an_author_removes_all_events() {
    let mut setup = two();
    let pull = submission(&outsider(), 300, &[&owner().repo("tool")], 'c');
    setup.extend([
        Action::Submit(pull.clone()),
        Action::Push(ClientPush::new(prs(&outsider())).pull(pull.id, &oid('c')).bring(&[&oid('a'), &oid('b')])),
    ]);
    let mut lists = ModerationLists::default();
    lists.banned_events.add(&outsider().key().npub()).expect("valid key");
    lists.banned_events.add(&maintainer().key().npub()).expect("valid key");
    let (mut server, _) = CrashScript { setup, actions: vec![Action::SetLists(lists)] }.assert_crash_safe();
    assert!(server.git().folder(&prs(&outsider())).is_none() && server.git().folder(&tool(&maintainer())).is_none());
    assert!(server.store().served_events().all(|event| event.pubkey == owner().key()));
    expect_main(&server, &owner(), Some('a'));
}

#[test]
fn archive_starts() {
    let keep = ModerationLists { archive: ArchiveScope::Everything, is_read_only: true, ..ModerationLists::default() };
    let mut setup = hosting(&[&maintainer()]);
    setup.push(Action::Submit(maintainer().announcement_elsewhere("tool", 150, &[&owner()])));
    let (server, _) = CrashScript { setup, actions: vec![Action::SetLists(keep)] }.assert_crash_safe();
    assert!(server.admission().is_available(&tool(&maintainer())), "the maintainer exception is hosted now");
}
