//! Repository needs of sync (GRASP-02), and decisions about events from relays.

use grasp_core::admission::Admission;
use grasp_core::admission::io::{AdmissionInput, RestoredItem};
use grasp_core::nostr::PublicKey;
use grasp_core::repo::RepoId;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::io::{RepoNeeds, Seq};
use grasp_core::time::Now;

use super::common::*;

fn tool() -> Identifier {
    Identifier::new("tool").expect("valid identifier")
}

fn relays(urls: &[&str]) -> Vec<String> {
    ["relays"].iter().chain(urls).map(|url| (*url).to_owned()).collect()
}

fn maintainers(keys: &[&Author]) -> Vec<String> {
    grasp_sim::signer::maintainers_tag(keys)
}

/// Repository needs: owner, status, relays, authors, sequence number.
type NeedsTuple = (PublicKey, EventStatus, Vec<String>, Vec<PublicKey>, Seq);

fn needs_of_tool(server: &TestServer) -> Vec<NeedsTuple> {
    let as_tuple = |needs: RepoNeeds| {
        assert_eq!(needs.repo.identifier, tool());
        (needs.repo.owner, needs.status, needs.relays, needs.authors, needs.seq)
    };
    server.repo_needs(&tool()).into_iter().map(as_tuple).collect()
}

fn sorted(authors: &[&Author]) -> Vec<PublicKey> {
    let mut keys: Vec<PublicKey> = authors.iter().map(|author| author.key()).collect();
    keys.sort_unstable();
    keys
}

fn texts(urls: &[&str]) -> Vec<String> {
    urls.iter().map(|url| (*url).to_owned()).collect()
}

const ELSEWHERE: &str = "wss://elsewhere.example";

/// Events are synced from the relays in the announcements of the whole maintainer set
/// (docs/protocol.md#proactive-sync).
#[test]
fn relays_of_all_maintainers_announcements_are_synced() {
    let mut server = TestServer::default();
    assert_eq!(needs_of_tool(&server), []);
    let own = owner().announcement_with(
        &service(),
        "tool",
        100,
        vec![maintainers(&[&maintainer()]), relays(&["ws://CODE.example/", "wss://o.example", ELSEWHERE])],
    );
    expect_reply(&mut server, &own, HELD);
    let held = (
        owner().key(),
        EventStatus::Held,
        texts(&[ELSEWHERE, "wss://o.example"]),
        sorted(&[&owner(), &maintainer()]),
        Seq::MAX,
    );
    assert_eq!(needs_of_tool(&server), [held], "each URL once, as written, without this service");

    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &owner());
    let seq = server.store().seq_of(own.id).expect("served");
    let served = (
        owner().key(),
        EventStatus::Served,
        texts(&[ELSEWHERE, "wss://o.example"]),
        sorted(&[&owner(), &maintainer()]),
        seq,
    );
    assert_eq!(needs_of_tool(&server), [served]);

    // A maintainer's announcement that was accepted by the exception adds its relays and its maintainers.
    let theirs = maintainer().announcement_elsewhere_with(
        "tool",
        200,
        vec![maintainers(&[&nested_maintainer()]), relays(&["wss://m.example"])],
    );
    expect_reply(&mut server, &theirs, SERVED);
    let newer = server.store().seq_of(theirs.id).expect("served");
    assert!(newer > seq);
    let both = (
        owner().key(),
        EventStatus::Served,
        texts(&[ELSEWHERE, "wss://o.example", "wss://m.example"]),
        sorted(&[&owner(), &maintainer(), &nested_maintainer()]),
        newer,
    );
    assert_eq!(needs_of_tool(&server), [both]);

    // It is removed when the maintainer is no longer listed.
    let alone = owner().announcement_with(&service(), "tool", 300, vec![relays(&["wss://o.example"])]);
    expect_reply(&mut server, &alone, SERVED);
    let seq = server.store().seq_of(alone.id).expect("served");
    let served = (owner().key(), EventStatus::Served, texts(&[ELSEWHERE, "wss://o.example"]), sorted(&[&owner()]), seq);
    assert_eq!(needs_of_tool(&server), [served]);
    expect_reply(&mut server, &owner().delete(400, &[&alone]), SERVED);
    assert_eq!(needs_of_tool(&server), []);
}

#[test]
fn held_announcement_of_a_maintainer_adds_relays_without_a_sequence_number() {
    let (mut server, _, _) = hosting_server(default_policy(), &[&maintainer()]);
    let theirs = maintainer().announcement_with(&service(), "tool", 200, vec![relays(&["wss://m.example"])]);
    expect_reply(&mut server, &theirs, HELD);
    let lines = needs_of_tool(&server);
    let of = |owner: &Author| lines.iter().find(|line| line.0 == owner.key()).expect("followed");
    assert_eq!((of(&owner()).1, &of(&owner()).2), (EventStatus::Served, &texts(&[ELSEWHERE, "wss://m.example"])));
    assert_eq!(of(&owner()).4, Seq::MAX);
    assert_eq!((of(&maintainer()).1, of(&maintainer()).4), (EventStatus::Held, Seq::MAX));
    // An announcement whose lead maintainer is unknown is synced by itself: the lead's announcement may be on its
    // relays.
    let mut server = TestServer::default();
    let deferring =
        nested_maintainer().announcement_with(&service(), "tool", 100, vec![vec!["M".to_owned(), outsider().hex()]]);
    expect_reply(&mut server, &deferring, HELD);
    assert_eq!(
        needs_of_tool(&server),
        [(
            nested_maintainer().key(),
            EventStatus::Held,
            texts(&[ELSEWHERE]),
            sorted(&[&nested_maintainer()]),
            Seq::MAX
        )]
    );
}

/// The number of held repositories and relays to sync is bounded, whatever untrusted authors announce.
#[test]
fn repository_needs_are_bounded() {
    let authors: Vec<Author> = (1..=200).map(Author::new).collect();
    let mut admission = Admission::new(default_policy());
    for (nth, author) in authors.iter().enumerate() {
        let urls: Vec<String> = (0..16).map(|url| format!("wss://{nth}-{url}.example")).collect();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let next: Vec<&Author> = authors.iter().cycle().skip(nth + 1).take(limits::MAX_NAMED_MAINTAINERS).collect();
        let held = author.announcement_with(&service(), "tool", 100, vec![relays(&urls), maintainers(&next)]);
        admission.handle(Now::default(), AdmissionInput::Restored(RestoredItem::Held(held, Timestamp(100))));
    }
    let all = admission.repo_needs(&tool(), |id| panic!("{id} is not served"));
    assert_eq!(all.len(), limits::MAX_FOLLOWED_HELD_REPOS);
    for RepoNeeds { repo, relays, authors: maintainers, .. } in &all {
        assert_eq!(relays.len(), limits::MAX_FOLLOWED_RELAYS);
        assert_eq!(maintainers.len(), authors.len());
        let nth = authors.iter().position(|author| author.key() == repo.owner).expect("known author");
        assert_eq!(
            (&relays[0][..], &relays[1][..]),
            (ELSEWHERE, &format!("wss://{nth}-0.example")[..]),
            "its own relays first"
        );
    }
}

#[test]
fn events_from_relays_are_decided_like_those_from_clients() {
    let relay = || EventSource::Relay("wss://other.example".to_owned());
    let announcement = owner().announcement(&service(), "tool", 100, &[&maintainer()]);
    let state = main_state(&owner(), 101, 'a');
    let issue = outsider().issue(200, &owner().repo("tool"));
    let comment = nested_maintainer().comment(201, &issue);
    let script = [
        main_state(&owner(), 90, 'b'),
        announcement,
        owner().announcement(&service(), "tool", 99, &[]),
        outsider().announcement_elsewhere("tool", 100, &[]),
        state.clone(),
        main_state(&outsider(), 102, 'b'),
        comment.clone(),
        issue.clone(),
        issue.clone(),
        comment,
        maintainer().announcement_elsewhere("tool", 203, &[]),
        outsider().pull_request(204, &[&owner().repo("tool")], &oid('c')),
        outsider().pull_request(204, &[&outsider().repo("tool")], &oid('c')),
        outsider().sign(22_000, 205, &[], ""),
        outsider().sign(kinds::GRASP_LIST, 206, &[], ""),
        outsider().note(207, &[&["expiration", "9999"], &["a", &owner().repo("tool")]], ""),
        outsider().note(20_000, &[&["a", &owner().repo("tool")]], ""),
        owner().delete(208, &[&issue]),
        outsider().delete(209, &[&issue]),
        issue,
        owner().vanish(300, &["ALL_RELAYS"]),
        main_state(&owner(), 250, 'a'),
    ];
    let (mut by_client, mut by_relay) = (TestServer::default(), TestServer::default());
    for event in &script {
        let (client, relay) = (by_client.submit(event), by_relay.submit_from(event, relay()));
        assert_eq!(client, relay, "{}", event.json());
        if event.id == state.id {
            add_git_data(&mut by_client, &state, &owner());
            add_git_data(&mut by_relay, &state, &owner());
        }
        assert_eq!(by_client.event_ids(), by_relay.event_ids());
    }
}

/// NIP-70: a protected event is accepted only from its author, never from a relay (docs/protocol.md#protected-events).
#[test]
fn protected_events_from_relays_are_rejected() {
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    let repo: RepoId = owner().repo_id("tool");
    let relay = || EventSource::Relay("wss://other.example".to_owned());
    for event in [
        outsider().note(200, &[&["-"], &["a", &owner().repo("tool")]], ""),
        owner().announcement_with(&service(), "tool", 200, vec![vec!["-".to_owned()]]),
        owner().sign(kinds::STATE, 200, &[&["d", repo.identifier.as_str()], &["-"]], ""),
    ] {
        let before = server.event_ids();
        assert_reply(&reply_text(&server.submit_from(&event, relay())), PROTECTED);
        assert_eq!(server.event_ids(), before);
        let author = EventSource::Client(vec![event.pubkey]);
        assert_ne!(server.submit_from(&event, author), Decision::Reject(Rejection::Protected));
    }
}
