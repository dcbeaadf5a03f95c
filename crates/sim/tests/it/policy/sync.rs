//! What sync follows (GRASP-02), and how what it brings is judged.

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
    Identifier::new("tool").expect("names a repository")
}

fn relays(urls: &[&str]) -> Vec<String> {
    ["relays"].iter().chain(urls).map(|url| (*url).to_owned()).collect()
}

fn maintainers(keys: &[&Author]) -> Vec<String> {
    grasp_sim::signer::maintainers_tag(keys)
}

/// What is followed: owner, place, relays, authors, seq.
type Line = (PublicKey, EventStatus, Vec<String>, Vec<PublicKey>, Seq);

fn followed(house: &House) -> Vec<Line> {
    let line = |followed: RepoNeeds| {
        assert_eq!(followed.repo.identifier, tool());
        (followed.repo.owner, followed.status, followed.relays, followed.authors, followed.seq)
    };
    house.followed(&tool()).into_iter().map(line).collect()
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

#[test]
fn g2_01_the_relays_of_all_maintainers_announcements_are_followed() {
    let mut house = House::default();
    assert_eq!(followed(&house), []);
    let own = o().listed_with(
        &service(),
        "tool",
        100,
        vec![maintainers(&[&m()]), relays(&["ws://CODE.example/", "wss://o.example", ELSEWHERE])],
    );
    says(&mut house, &own, HELD);
    let held = (o().key(), EventStatus::Held, texts(&[ELSEWHERE, "wss://o.example"]), sorted(&[&o(), &m()]), Seq::MAX);
    assert_eq!(followed(&house), [held], "each once, as it is written, and not our own");

    let state = main_at(&o(), 101, 'a');
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &o());
    let seq = house.memory().seq_of(own.id).expect("served");
    let served = (o().key(), EventStatus::Served, texts(&[ELSEWHERE, "wss://o.example"]), sorted(&[&o(), &m()]), seq);
    assert_eq!(followed(&house), [served]);

    // A maintainer's announcement that is here by the exception adds its relays and its maintainers.
    let theirs = m().unlisted_with("tool", 200, vec![maintainers(&[&r()]), relays(&["wss://m.example"])]);
    says(&mut house, &theirs, SERVED);
    let newer = house.memory().seq_of(theirs.id).expect("served");
    assert!(newer > seq);
    let both = (
        o().key(),
        EventStatus::Served,
        texts(&[ELSEWHERE, "wss://o.example", "wss://m.example"]),
        sorted(&[&o(), &m(), &r()]),
        newer,
    );
    assert_eq!(followed(&house), [both]);

    // It goes with the name.
    let alone = o().listed_with(&service(), "tool", 300, vec![relays(&["wss://o.example"])]);
    says(&mut house, &alone, SERVED);
    let seq = house.memory().seq_of(alone.id).expect("served");
    let served = (o().key(), EventStatus::Served, texts(&[ELSEWHERE, "wss://o.example"]), sorted(&[&o()]), seq);
    assert_eq!(followed(&house), [served]);
    says(&mut house, &o().delete(400, &[&alone]), SERVED);
    assert_eq!(followed(&house), []);
}

#[test]
fn a_maintainers_announcement_that_waits_counts_for_relays_and_has_not_arrived() {
    let (mut house, _, _) = hosting(rules(), &[&m()]);
    let theirs = m().listed_with(&service(), "tool", 200, vec![relays(&["wss://m.example"])]);
    says(&mut house, &theirs, HELD);
    let lines = followed(&house);
    let of = |owner: &Author| lines.iter().find(|line| line.0 == owner.key()).expect("followed");
    assert_eq!((of(&o()).1, &of(&o()).2), (EventStatus::Served, &texts(&[ELSEWHERE, "wss://m.example"])));
    assert_eq!(of(&o()).4, Seq::MAX);
    assert_eq!((of(&m()).1, of(&m()).4), (EventStatus::Held, Seq::MAX));
    // One that leads nowhere is followed for its own sake: its lead may be where it says.
    let mut house = House::default();
    let deferring = r().listed_with(&service(), "tool", 100, vec![vec!["M".to_owned(), x().hex()]]);
    says(&mut house, &deferring, HELD);
    assert_eq!(followed(&house), [(r().key(), EventStatus::Held, texts(&[ELSEWHERE]), sorted(&[&r()]), Seq::MAX)]);
}

#[test]
fn what_is_followed_is_bounded_whatever_strangers_announce() {
    let authors: Vec<Author> = (1..=200).map(Author::new).collect();
    let mut admission = Admission::new(rules());
    for (nth, author) in authors.iter().enumerate() {
        let urls: Vec<String> = (0..16).map(|url| format!("wss://{nth}-{url}.example")).collect();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let next: Vec<&Author> = authors.iter().cycle().skip(nth + 1).take(limits::MAX_NAMED_MAINTAINERS).collect();
        let held = author.listed_with(&service(), "tool", 100, vec![relays(&urls), maintainers(&next)]);
        admission.handle(Now::default(), AdmissionInput::Restored(RestoredItem::Held(held, Timestamp(100))));
    }
    let all = admission.repo_needs(&tool(), |id| panic!("{id} is not served"));
    assert_eq!(all.len(), limits::MAX_FOLLOWED_HELD_REPOS);
    for RepoNeeds { repo, relays, authors: keepers, .. } in &all {
        assert_eq!(relays.len(), limits::MAX_FOLLOWED_RELAYS);
        assert_eq!(keepers.len(), authors.len());
        let nth = authors.iter().position(|author| author.key() == repo.owner).expect("one of them");
        assert_eq!(
            (&relays[0][..], &relays[1][..]),
            (ELSEWHERE, &format!("wss://{nth}-0.example")[..]),
            "its own first"
        );
    }
}

#[test]
fn what_a_relay_brings_is_judged_like_a_clients() {
    let relay = || EventSource::Relay("wss://other.example".to_owned());
    let announcement = o().listed(&service(), "tool", 100, &[&m()]);
    let state = main_at(&o(), 101, 'a');
    let issue = x().issue(200, &o().repo("tool"));
    let comment = r().comment(201, &issue);
    let script = [
        main_at(&o(), 90, 'b'),
        announcement,
        o().listed(&service(), "tool", 99, &[]),
        x().unlisted("tool", 100, &[]),
        state.clone(),
        main_at(&x(), 102, 'b'),
        comment.clone(),
        issue.clone(),
        issue.clone(),
        comment,
        m().unlisted("tool", 203, &[]),
        x().pull_request(204, &[&o().repo("tool")], &oid('c')),
        x().pull_request(204, &[&x().repo("tool")], &oid('c')),
        x().sign(22_000, 205, &[], ""),
        x().sign(kinds::GRASP_LIST, 206, &[], ""),
        x().note(207, &[&["expiration", "9999"], &["a", &o().repo("tool")]], ""),
        x().note(20_000, &[&["a", &o().repo("tool")]], ""),
        o().delete(208, &[&issue]),
        x().delete(209, &[&issue]),
        issue,
        o().vanish(300, &["ALL_RELAYS"]),
        main_at(&o(), 250, 'a'),
    ];
    let (mut by_client, mut by_relay) = (House::default(), House::default());
    for event in &script {
        let (client, relay) = (by_client.submit(event), by_relay.submit_from(event, relay()));
        assert_eq!(client, relay, "{}", event.json());
        if event.id == state.id {
            pushed(&mut by_client, &state, &o());
            pushed(&mut by_relay, &state, &o());
        }
        assert_eq!(by_client.sets(), by_relay.sets());
    }
}

#[test]
fn nip_70_no_relay_may_bring_what_only_its_author_may_publish() {
    let (mut house, ..) = hosting(rules(), &[]);
    let repo: RepoId = o().repo_id("tool");
    let relay = || EventSource::Relay("wss://other.example".to_owned());
    for event in [
        x().note(200, &[&["-"], &["a", &o().repo("tool")]], ""),
        o().listed_with(&service(), "tool", 200, vec![vec!["-".to_owned()]]),
        o().sign(kinds::STATE, 200, &[&["d", repo.identifier.as_str()], &["-"]], ""),
    ] {
        let before = house.sets();
        matches(&said(&house.submit_from(&event, relay())), PROTECTED);
        assert_eq!(house.sets(), before);
        let author = EventSource::Client(vec![event.pubkey]);
        assert_ne!(house.submit_from(&event, author), Decision::Reject(Rejection::Protected));
    }
}
