//! Moderation lists, archive (GRASP-05) and read-only mode: each row of the order of evaluation
//! (docs/protocol.md#order-of-evaluation), and the effects of changed lists on stored events.

use grasp_core::admission::policy::lists::{ArchiveScope, ModerationLists, RepoList, RepoListEntry};
use grasp_core::admission::push::PushRejection;
use grasp_core::repo::RepoId;
use grasp_sim::test_server::ClientPush;

use super::common::*;

fn entries(texts: &[&str]) -> RepoList {
    texts.iter().map(|text| RepoListEntry::parse(text).expect("valid list entry")).collect()
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
        lists.banned_events.add(text).expect("valid list entry");
    }
    lists
}

fn archive(archive: ArchiveScope, read_only: bool) -> ModerationLists {
    ModerationLists { archive, is_read_only: read_only, ..ModerationLists::default() }
}

fn server(lists: ModerationLists) -> TestServer {
    TestServer::new(AdmissionPolicy { lists: Arc::new(lists), ..default_policy() })
}

fn tool(owner: &Author) -> RepoId {
    owner.repo_id("tool")
}

fn npub(author: &Author) -> String {
    author.key().npub()
}

fn other() -> ServiceAddress {
    ServiceAddress::new("other.example", "").expect("valid address")
}

/// Order of evaluation: form and signature, bans, known or deleted, identifier, listing (and whitelist) or archive
/// (docs/protocol.md#order-of-evaluation).
#[test]
fn order_of_evaluation_of_an_announcement() {
    let here = || owner().announcement(&service(), "tool", 100, &[]);
    let elsewhere = || owner().announcement_elsewhere("tool", 100, &[]);
    let mine = npub(&owner());
    let both = |lists: ModerationLists| ModerationLists { banned_repos: entries(&["tool"]), ..lists };
    let all = || archive(ArchiveScope::Everything, true);
    let listed = |texts: &[&str]| archive(ArchiveScope::Listed(entries(texts)), true);
    for (lists, event, expected) in [
        (ModerationLists::default(), here(), HELD),
        (ModerationLists::default(), elsewhere(), NOT_LISTED),
        // The blacklist, in each of its forms, has priority over the other lists.
        (banned(&["tool"]), here(), BANNED),
        (banned(&["tool"]), elsewhere(), BANNED),
        (banned(&[&mine]), here(), BANNED),
        (banned(&[&owner().hex()]), here(), BANNED),
        (banned(&[&format!("{mine}/tool")]), here(), BANNED),
        (banned(&[&format!("{mine}/other"), "other", &npub(&maintainer())]), here(), HELD),
        (both(wanted(&["tool"])), here(), BANNED),
        (both(all()), elsewhere(), BANNED),
        // The whitelist applies to announcements that name this service.
        (wanted(&["tool"]), here(), HELD),
        (wanted(&[&mine]), here(), HELD),
        (wanted(&[&format!("{mine}/tool")]), here(), HELD),
        (wanted(&["other"]), here(), NOT_WHITELISTED),
        (wanted(&["tool"]), elsewhere(), NOT_LISTED),
        // The archive applies to all announcements.
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
        (archive(ArchiveScope::Services(vec![other()]), true), owner().announcement(&other(), "tool", 100, &[]), HELD),
        (archive(ArchiveScope::Services(vec![other()]), true), elsewhere(), NOT_LISTED),
        // The identifier is checked before these lists, the list of banned events and authors before everything else.
        (banned(&["tool"]), owner().sign(kinds::ANNOUNCEMENT, 100, &[&["d", ".."]], ""), INVALID_IDENTIFIER),
        (unwanted(&[&mine]), here(), BANNED_EVENT),
        (ModerationLists { banned_repos: entries(&["tool"]), ..unwanted(&[&owner().hex()]) }, here(), BANNED_EVENT),
        (unwanted(&[&here().id.to_string()]), here(), BANNED_EVENT),
        (unwanted(&[&npub(&maintainer())]), here(), HELD),
    ] {
        expect_reply(&mut server(lists.clone()), &event, expected);
        let mut by_sync = server(lists);
        assert_reply(
            &reply_text(&by_sync.submit_from(&event, EventSource::Relay("wss://relay.example".to_owned()))),
            expected,
        );
    }
}

#[test]
fn maintainer_exception_does_not_apply_to_banned_authors() {
    for (lists, expected) in [
        (ModerationLists::default(), SERVED),
        (wanted(&[&format!("{}/tool", npub(&owner()))]), SERVED),
        (banned(&[&npub(&maintainer())]), BANNED),
        (unwanted(&[&npub(&maintainer())]), BANNED_EVENT),
    ] {
        let (mut server, ..) =
            hosting_server(AdmissionPolicy { lists: Arc::new(lists), ..default_policy() }, &[&maintainer()]);
        expect_reply(&mut server, &maintainer().announcement_elsewhere("tool", 200, &[]), expected);
    }
    // A maintainer of a whitelisted repository may host its own.
    let lists = wanted(&[&format!("{}/tool", npub(&owner()))]);
    let (mut server, ..) =
        hosting_server(AdmissionPolicy { lists: Arc::new(lists), ..default_policy() }, &[&maintainer()]);
    expect_reply(&mut server, &maintainer().announcement(&service(), "tool", 200, &[]), HELD);
    expect_reply(&mut server, &outsider().announcement(&service(), "tool", 200, &[]), NOT_WHITELISTED);
}

#[test]
fn all_kinds_of_a_banned_author_are_rejected() {
    let (mut server, announcement, _) = hosting_server(default_policy(), &[&maintainer()]);
    let issue = maintainer().sign(kinds::ISSUE, 200, &[&["a", &owner().repo("tool")]], "");
    expect_reply(&mut server, &issue, SERVED);
    server.set_lists(unwanted(&[&npub(&maintainer())]));
    expect_reply(&mut server, &issue, BANNED_EVENT);
    for event in [
        main_state(&maintainer(), 201, 'b'),
        maintainer().sign(kinds::ISSUE, 202, &[&["a", &owner().repo("tool")]], ""),
        maintainer().sign(kinds::DELETION, 203, &[&["e", &announcement.id.to_string()]], ""),
        maintainer().sign(20_001, 204, &[], "ephemeral"),
    ] {
        expect_reply(&mut server, &event, BANNED_EVENT);
    }
    let comment = owner().sign(1_111, 205, &[&["e", &issue.id.to_string()]], "");
    expect_reply(&mut server, &comment, UNRELATED);
}

#[test]
fn events_of_a_banned_repository_are_rejected_and_removed() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let before = server.event_ids();
    server.set_lists(banned(&["tool"]));
    expect_events(&server, &[], &[]);
    expect_reply(&mut server, &announcement, BANNED);
    expect_reply(&mut server, &state, NO_ANNOUNCEMENT);
    expect_reply(&mut server, &outsider().sign(kinds::ISSUE, 200, &[&["a", &owner().repo("tool")]], ""), UNRELATED);
    let pull = outsider().sign(kinds::PULL_REQUEST, 200, &[&["a", &owner().repo("tool")], &["c", &oid('b')]], "");
    expect_reply(&mut server, &pull, UNRELATED);
    let client_push = ClientPush::new(RepoPath::Announced(tool(&owner()))).set("refs/heads/main", &oid('b'));
    assert_eq!(server.push(&client_push), Err(PushRejection::NotHosted));
    assert_eq!(server.hosted_repos(), []);
    // Sync is notified too: the repository is not needed until the ban ends.
    server.set_lists(ModerationLists::default());
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &owner());
    assert_eq!(server.event_ids(), before);
}

/// M's announcement is served because O names M. It is removed with O's, and can be served again when O's returns.
#[test]
fn maintainer_exception_follows_a_ban_of_its_host() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
    let exception = maintainer().announcement_elsewhere("tool", 200, &[]);
    expect_reply(&mut server, &exception, SERVED);
    server.set_lists(banned(&[&npub(&owner())]));
    expect_events(&server, &[], &[]);
    expect_reply(&mut server, &exception, NOT_LISTED);
    server.set_lists(ModerationLists::default());
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &exception, INVITED);
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &owner());
    expect_events(&server, &[&announcement, &state, &exception], &[]);
}

#[test]
fn whitelist_applies_to_new_repositories_only() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    server.set_lists(wanted(&["other"]));
    expect_events(&server, &[&announcement, &state], &[]);
    let newer = owner().announcement(&service(), "tool", 200, &[&maintainer()]);
    expect_reply(&mut server, &newer, SERVED);
    expect_reply(&mut server, &owner().announcement(&service(), "new", 200, &[]), NOT_WHITELISTED);
}

#[test]
fn archived_repository_is_hosted_and_synced_from_its_relays() {
    let mut server = server(archive(ArchiveScope::Listed(entries(&["tool"])), true));
    let announcement = owner().announcement(&other(), "tool", 100, &[]);
    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    let followed = server.repo_needs(&tool(&owner()).identifier);
    assert_eq!(followed.len(), 1);
    assert_eq!(followed[0].relays, ["wss://other.example", "wss://elsewhere.example"]);
    add_git_data(&mut server, &state, &owner());
    expect_events(&server, &[&announcement, &state], &[]);
    assert_eq!(server.hosted_repos(), [tool(&owner())]);
    assert_eq!(server.refs(&RepoPath::Announced(tool(&owner()))).get("refs/heads/main"), Some(&oid('a')));
    // Related events are accepted, pushes are not.
    expect_reply(&mut server, &outsider().sign(kinds::ISSUE, 200, &[&["a", &owner().repo("tool")]], ""), SERVED);
    expect_reply(&mut server, &main_state(&owner(), 300, 'b'), HELD);
    let client_push = ClientPush::new(RepoPath::Announced(tool(&owner()))).set("refs/heads/main", &oid('b'));
    assert_eq!(server.push(&client_push), Err(PushRejection::ReadOnly));
    // A newer version is served at once; one outside the archived services does not end hosting.
    expect_reply(&mut server, &owner().announcement_elsewhere("tool", 400, &[]), SERVED);
    server.restart();
    assert_eq!(server.hosted_repos(), [tool(&owner())]);
}

#[test]
fn repository_that_is_no_longer_archived_is_kept_until_banned() {
    let mut server = server(archive(ArchiveScope::Everything, true));
    let (announcement, state) = (owner().announcement_elsewhere("tool", 100, &[]), main_state(&owner(), 101, 'a'));
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &owner());
    let waiting = maintainer().announcement_elsewhere("waits", 100, &[]);
    expect_reply(&mut server, &waiting, HELD);
    server.set_lists(ModerationLists::default());
    expect_events(&server, &[&announcement, &state], &[]);
    assert_eq!(server.hosted_repos(), []);
    assert!(server.git().folder(&RepoPath::Announced(tool(&owner()))).is_some(), "its folder is kept");
    server.restart();
    assert!(server.git().folder(&RepoPath::Announced(tool(&owner()))).is_some(), "folder is still kept");
    // Its served events stay valid.
    let newer = owner().announcement_elsewhere("tool", 200, &[&maintainer()]);
    expect_reply(&mut server, &newer, SERVED);
    server.restart();
    expect_events(&server, &[&newer, &state], &[]);
    server.set_lists(archive(ArchiveScope::Everything, true));
    assert_eq!(server.hosted_repos(), [tool(&owner())], "hosting continues");
    server.set_lists(banned(&["tool"]));
    expect_events(&server, &[], &[]);
    assert!(server.git().folder(&RepoPath::Announced(tool(&owner()))).is_none());
}

/// If an owner leaves an archived service, the new announcement replaces the old one, the repository is no longer
/// served and its data is kept. If the owner returns, it is hosted as before.
#[test]
fn repository_that_leaves_an_archived_service_is_closed_but_kept() {
    let mut server = server(archive(ArchiveScope::Services(vec![other()]), true));
    let (announcement, state) =
        (owner().announcement(&other(), "tool", 100, &[&maintainer()]), main_state(&owner(), 101, 'a'));
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &owner());
    assert_eq!(server.hosted_repos(), [tool(&owner())]);
    for (at, maintainers) in [(200, vec![]), (300, vec![outsider()])] {
        let maintainers: Vec<&Author> = maintainers.iter().collect();
        let left = owner().announcement_elsewhere("tool", at, &maintainers);
        expect_reply(&mut server, &left, SERVED);
        expect_reply(&mut server, &announcement, SUPERSEDED);
        for _ in 0..2 {
            expect_events(&server, &[&left, &state], &[]);
            assert_eq!(server.hosted_repos(), []);
            assert!(server.git().folder(&RepoPath::Announced(tool(&owner()))).is_some(), "its folder is kept");
            server.restart();
        }
        expect_reply(&mut server, &main_state(&maintainer(), at, 'b'), NO_ANNOUNCEMENT);
        expect_reply(&mut server, &owner().announcement(&service(), "tool", at + 1, &[]), NOT_ARCHIVED);
    }
    let back = owner().announcement(&other(), "tool", 400, &[]);
    server.submit(&back);
    assert_eq!(server.hosted_repos(), [tool(&owner())]);
    expect_events(&server, &[&back, &state], &[]);
    assert_eq!(server.refs(&RepoPath::Announced(tool(&owner()))).get("refs/heads/main"), Some(&oid('a')));
}

/// A held announcement that leaves an archived service is not served later, and the old version cannot return.
#[test]
fn held_announcement_that_leaves_an_archived_service_is_dropped() {
    let mut server = server(archive(ArchiveScope::Services(vec![other()]), true));
    let announcement = owner().announcement(&other(), "tool", 100, &[]);
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &owner().announcement_elsewhere("tool", 200, &[]), DELISTED);
    expect_events(&server, &[], &[]);
    expect_reply(&mut server, &announcement, WITHDRAWN);
    expect_reply(&mut server, &owner().announcement(&other(), "tool", 300, &[]), HELD);
}

/// A version that no longer names this service ends hosting, unless the operator archives the repository
/// (docs/protocol.md#de-listing-and-withdrawal).
#[test]
fn archive_keeps_a_delisted_repository() {
    for (lists, expected) in [
        (ModerationLists::default(), DELISTED),
        (archive(ArchiveScope::Everything, false), SERVED),
        (banned(&["tool"]), BANNED),
    ] {
        let (mut server, ..) = hosting_server(default_policy(), &[]);
        server.set_lists(lists);
        expect_reply(&mut server, &owner().announcement_elsewhere("tool", 200, &[]), expected);
        assert_eq!(server.hosted_repos().is_empty(), expected != SERVED);
    }
}

/// Read-only mode applies to repositories that are archived without naming this service. Those that name it stay
/// writable.
#[test]
fn read_only_mode_rejects_pushes_to_repositories_that_do_not_name_the_service() {
    let client_push =
        ClientPush::new(RepoPath::Announced(tool(&owner()))).set("refs/heads/main", &oid('b')).bring(&[&oid('b')]);
    for scope in [ArchiveScope::Nothing, ArchiveScope::Everything, ArchiveScope::Listed(entries(&["tool"]))] {
        let (mut server, ..) = hosting_server(default_policy(), &[]);
        expect_reply(&mut server, &main_state(&owner(), 200, 'b'), HELD);
        server.set_lists(archive(scope, true));
        assert_eq!(server.push(&client_push), Ok(()));
    }
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    expect_reply(&mut server, &main_state(&owner(), 200, 'b'), HELD);
    server.set_lists(archive(ArchiveScope::Everything, true));
    expect_reply(&mut server, &owner().announcement_elsewhere("tool", 300, &[]), SERVED);
    assert_eq!(server.push(&client_push), Err(PushRejection::ReadOnly));
    assert_eq!(PushRejection::ReadOnly.code(), "E-READ-ONLY");
    assert!(PushRejection::ReadOnly.to_string().contains("read-only archive"));
    server.set_lists(archive(ArchiveScope::Everything, false));
    assert_eq!(server.push(&client_push), Ok(()));
}

/// An announcement is archived because of a clone URL at an archived service, whatever relays it names.
#[test]
fn archive_by_service_looks_at_clone_urls_only() {
    let base = ServiceAddress::new("other.example:8080", "/g").expect("valid address");
    let npub = npub(&owner());
    for (clone, expected) in [
        (format!("https://other.example:8080/g/{npub}/tool.git"), HELD),
        (format!("http://OTHER.example:8080//g/{npub}/any/path"), HELD),
        (format!("https://other.example:8080/{npub}/tool.git"), NOT_LISTED),
        (format!("https://other.example/g/{npub}/tool.git"), NOT_LISTED),
        (format!("https://other.example:8080/g/{}/tool.git", outsider().key().npub()), NOT_LISTED),
        (format!("https://other.example:8080/g/{npub}"), NOT_LISTED),
        (format!("ssh://other.example:8080/g/{npub}/tool.git"), NOT_LISTED),
    ] {
        let tags: &[&[&str]] = &[&["d", "tool"], &["clone", &clone], &["relays", "wss://relay.example"]];
        let announcement = owner().sign(kinds::ANNOUNCEMENT, 100, tags, "");
        let mut server = server(archive(ArchiveScope::Services(vec![base.clone()]), true));
        expect_reply(&mut server, &announcement, expected);
    }
}

#[test]
fn many_repositories_are_banned_in_slices() {
    let mut server = TestServer::default();
    server.skip_invariants(true);
    let many = limits::REVIEW_SLICE_REPOS * 2 + 7;
    let names: Vec<String> = (0..many).map(|nth| format!("r{nth}")).collect();
    for name in &names {
        let author = Author::new(u8::try_from(40 + name.len() % 200).unwrap_or(40));
        expect_reply(&mut server, &author.announcement(&service(), name, 100, &[]), HELD);
    }
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    server.set_lists(banned(&all));
    server.advance(0);
    expect_events(&server, &[], &[]);
    assert_eq!(server.admission().catalog().repositories().count(), 0);
}

#[test]
fn lists_know_whether_they_accept_more_than_before() {
    let all = archive(ArchiveScope::Everything, false);
    let some = archive(ArchiveScope::Listed(entries(&["a"])), false);
    let read_only = archive(ArchiveScope::Nothing, true);
    for (old, new, more) in [
        (ModerationLists::default(), ModerationLists::default(), false),
        (ModerationLists::default(), banned(&["a"]), false),
        (banned(&["a"]), ModerationLists::default(), true),
        (banned(&["a", "b"]), banned(&["b", "c"]), true),
        (banned(&["a"]), banned(&["a", "c"]), false),
        (ModerationLists::default(), unwanted(&[&npub(&owner())]), false),
        (unwanted(&[&npub(&owner())]), ModerationLists::default(), true),
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
