//! What may enter and what becomes of it, item by item of the spec (`G1-…`, `D-…`, sections 9 and 15) and of the rules
//! of the registrar (`C…`, `F…`).
//!
//! Items that are not decided here are tested where they live: G1-01, G1-03 and G1-43 to G1-45 belong to the relay's
//! doors; G1-18, G1-19, G1-21 to paths (`grasp_core::repo`); G1-22 and G1-46 on to git; G1-04's forgeries of frames and
//! section 10 to messages; NIP-42 to `grasp_core::nostr::auth`. F1 to F3 and F9 are about drivers and git.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::reason::Known;
use grasp_core::nostr::{Filter, Refusal, Signed, Verdict, kinds};
use grasp_core::registrar::io::Source;
use grasp_core::registrar::policy::{Mode, Rules};
use grasp_core::repo::{Identifier, Service};
use grasp_core::time::Timestamp;
use grasp_sim::author::{Author, owned};
use grasp_sim::contract::Shelf;
use grasp_sim::house::{House, rules, service};

const SERVED: &str = "true ";
const HELD: &str = "true purgatory: won't be served until git data arrives";
const COMMIT: &str = "true purgatory: won't be served until commit…";
const AGAIN: &str = "true duplicate: already have this event";
const STILL: &str = "true purgatory: already waiting for git data";
const OLD: &str = "true duplicate: superseded by a newer event";
const UNRELATED: &str = "false restricted: the event must reference an accepted repository or accepted event";
const NOT_LISTED: &str = "false invalid: the announcement must name this service in both clone and relays";
const DELISTED: &str = "false invalid: the announcement no longer names this service; hosting has ended";
const WITHDRAWN: &str = "false invalid: a newer announcement has taken this repository away from this service";
const IDENTIFIER: &str = "false invalid: the d tag must name a repository…";
const NO_ANNOUNCEMENT: &str = "false invalid: no announcement exists for this repository";
const NOT_MAINTAINER: &str = "false restricted: author not authorized for this repository";
const DELETED: &str = "false invalid: this event is deleted";
const VANISHED: &str = "false invalid: this pubkey has requested to vanish";
const EXPIRED: &str = "false invalid: the event has expired";
const PROTECTED: &str = "false auth-required: this event may only be published by its author";
const FOREIGN: &str = "false invalid: cannot delete event authored by another pubkey";

fn o() -> Author {
    Author::new(1)
}

fn m() -> Author {
    Author::new(2)
}

fn r() -> Author {
    Author::new(3)
}

fn x() -> Author {
    Author::new(4)
}

/// An object id.
fn oid(digit: char) -> String {
    digit.to_string().repeat(40)
}

fn main_at(author: &Author, created_at: u64, digit: char) -> Arc<Signed> {
    author.state("tool", created_at, &[("refs/heads/main", &oid(digit))])
}

fn said(verdict: &Verdict) -> String {
    let (ok, text) = verdict.answer();
    format!("{ok} {text}")
}

#[track_caller]
fn matches(said: &str, expected: &str) {
    match expected.strip_suffix('…') {
        Some(prefix) => assert!(said.starts_with(prefix), "{said}, but expected {expected}"),
        None => assert_eq!(said, expected),
    }
}

/// Offers an event and checks the answer's flag and text; `…` stands for any rest.
#[track_caller]
fn says(house: &mut House, event: &Arc<Signed>, expected: &str) {
    matches(&said(&house.submit(event)), expected);
}

/// Checks everything that is served and everything that is held.
#[track_caller]
fn stands(house: &House, served: &[&Arc<Signed>], held: &[&Arc<Signed>]) {
    let ids = |events: &[&Arc<Signed>]| events.iter().map(|event| event.id).collect::<BTreeSet<_>>();
    assert_eq!(house.sets(), (ids(served), ids(held)), "served, held");
}

/// Git has what this state declares, in this owner's `tool`.
fn pushed(house: &mut House, state: &Signed, owner: &Author) {
    house.data_found(state.id, owner.repo_id("tool"));
}

/// A house that serves `tool` of `o`, who lists these maintainers. Gives back the announcement (at 100) and the state
/// (at 101).
fn hosting(rules: Rules, maintainers: &[&Author]) -> (House, Arc<Signed>, Arc<Signed>) {
    let mut house = House::new(rules);
    let announcement = o().listed(&service(), "tool", 100, maintainers);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &o());
    stands(&house, &[&announcement, &state], &[]);
    (house, announcement, state)
}

fn strict() -> Rules {
    Rules { strict_maintainers: true, ..rules() }
}

// 2.1 Relay surface

#[test]
fn g1_02_forgeries_are_invalid_and_not_stored() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let good = o().issue(200, &o().repo("tool"));
    let mut wrong_id = good.event().clone();
    wrong_id.content.push('!');
    let mut wrong_signature = good.event().clone();
    wrong_signature.sig[0] ^= 1;
    let mut wrong_author = good.event().clone();
    wrong_author.pubkey = m().key();
    for forged in [wrong_id, wrong_signature, wrong_author] {
        matches(&said(&house.receive(forged)), "false invalid: …");
    }
    stands(&house, &[&announcement, &state], &[]);
    matches(&said(&house.receive(good.event().clone())), SERVED);
    stands(&house, &[&announcement, &state, &good], &[]);
}

#[test]
fn g1_04_every_refusal_has_a_prefix() {
    use grasp_core::nostr::event::Malformed;
    use grasp_core::nostr::signed::Forged;
    for refusal in [
        Refusal::Malformed(Malformed::Hex("id")),
        Refusal::Forged(Forged::Id),
        Refusal::Forged(Forged::Signature),
        Refusal::TooLarge { bytes: 2, most: 1 },
        Refusal::TooManyTags(1),
        Refusal::Future,
        Refusal::Expired,
        Refusal::Protected,
        Refusal::Credential,
        Refusal::Deleted,
        Refusal::Vanished,
        Refusal::Withdrawn,
        Refusal::Identifier,
        Refusal::NotListed,
        Refusal::Delisted,
        Refusal::NoAnnouncement,
        Refusal::NotMaintainer,
        Refusal::NoCommit,
        Refusal::Unrelated,
        Refusal::ForeignTarget,
        Refusal::Targets(0),
        Refusal::Targets(9_999),
        Refusal::NoRelay,
        Refusal::OtherRelay,
        Refusal::TooMuchHeld,
        Refusal::PurgatoryFull,
        Refusal::TooFast,
        Refusal::DiskFull,
        Refusal::StoreFailed,
    ] {
        let (ok, text) = Verdict::Refuse(refusal.clone()).answer();
        let prefix = text.split_once(": ").map(|(prefix, _)| prefix);
        let known = ["invalid", "restricted", "rate-limited", "auth-required", "error", "blocked", "pow"];
        assert!(!ok && prefix.is_some_and(|prefix| known.contains(&prefix)), "{refusal:?}: {text}");
    }
}

#[test]
fn g1_05_g1_36_what_one_author_has_waiting_is_bounded() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let repo = o().repo("tool");
    for nth in 0..limits::MAX_HELD_PER_AUTHOR as u64 {
        assert!(matches!(house.submit(&x().pull_request(1_000 + nth, &[&repo], &oid('b'))), Verdict::Hold(_)));
    }
    says(&mut house, &x().pull_request(5_000, &[&repo], &oid('b')), "false rate-limited: …");
    says(&mut house, &r().pull_request(5_000, &[&repo], &oid('b')), COMMIT);
    let (served, held) = house.sets();
    assert_eq!(served, BTreeSet::from([announcement.id, state.id]));
    assert_eq!(held.len(), limits::MAX_HELD_PER_AUTHOR + 1);
}

// 2.2 Which announcements to accept

#[test]
fn g1_06_an_announcement_names_this_service_in_both_clone_and_relays() {
    let clone = format!("https://code.example/{}", o().repo_id("tool").path());
    for (tags, expected) in [
        (owned(&[&["clone", &clone], &["relays", "wss://code.example"]]), HELD),
        (
            owned(&[
                &["clone", "https://b.example/x.git", &clone],
                &["relays", "wss://b.example", "ws://code.example/"],
            ]),
            HELD,
        ),
        (owned(&[&["clone", &clone]]), NOT_LISTED),
        (owned(&[&["relays", "wss://code.example"]]), NOT_LISTED),
        (owned(&[&["clone", &clone], &["relays", "wss://b.example"]]), NOT_LISTED),
        (owned(&[&["clone", "https://b.example/x.git"], &["relays", "wss://code.example"]]), NOT_LISTED),
        (owned(&[&["web", &clone], &["r", "wss://code.example"]]), NOT_LISTED),
        (owned(&[]), NOT_LISTED),
    ] {
        let mut house = House::default();
        let mut all = owned(&[&["d", "tool"]]);
        all.extend(tags);
        let announcement = o().sign_owned(kinds::ANNOUNCEMENT, 100, all, "");
        says(&mut house, &announcement, expected);
        let held: &[&Arc<Signed>] = if expected == HELD { &[&announcement] } else { &[] };
        stands(&house, &[], held);
    }
}

#[test]
fn g1_07_the_owner_of_the_service_is_welcome_without_a_link() {
    let mut house = House::new(Rules { owner: Some(x().key()), ..rules() });
    let note = x().note(100, &[], "news");
    says(&mut house, &note, SERVED);
    says(&mut house, &x().unlisted("tool", 100, &[]), NOT_LISTED);
    says(&mut house, &r().note(100, &[], "no news"), UNRELATED);
    stands(&house, &[&note], &[]);
}

#[test]
fn g1_08_a_maintainer_elsewhere_is_served_at_once_and_not_hosted() {
    // The anchor is only held; M is listed by O, R by M.
    let mut house = House::default();
    let (a, b, c) = (
        o().listed(&service(), "tool", 100, &[&m()]),
        m().unlisted("tool", 101, &[&r()]),
        r().unlisted("tool", 102, &[]),
    );
    says(&mut house, &c, NOT_LISTED);
    says(&mut house, &b, NOT_LISTED);
    says(&mut house, &a, HELD);
    says(&mut house, &c, NOT_LISTED);
    says(&mut house, &b, SERVED);
    says(&mut house, &c, SERVED);
    stands(&house, &[&b, &c], &[&a]);
    let family = house.registrar().catalog().family(&o().repo_id("tool").identifier).expect("known");
    assert!(family.is_hosted(o().key()) && !family.is_hosted(m().key()) && !family.is_hosted(r().key()));
    // Another name, or somebody nobody lists, is no exception.
    says(&mut house, &m().unlisted("other", 103, &[&r()]), NOT_LISTED);
    says(&mut house, &x().unlisted("tool", 103, &[&o()]), NOT_LISTED);
    stands(&house, &[&b, &c], &[&a]);
}

#[test]
fn g1_08_an_invited_maintainer_elsewhere_is_served_also_under_the_reciprocal_rule() {
    // §2.6.2: until it lists back it is "invited": announcement accepted (G1-08) but its states carry no authority.
    let role = |author: &Author| vec![vec!["m".to_owned(), author.hex()]];
    let plain = |author: &Author| vec![vec!["maintainers".to_owned(), author.hex()]];
    for (rules, tags) in [(rules(), role(&m())), (strict(), plain(&m()))] {
        let mut house = House::new(rules);
        let announcement = o().listed_with(&service(), "tool", 100, tags);
        let invited = m().unlisted("tool", 101, &[]);
        let member = m().unlisted("tool", 102, &[&o()]);
        says(&mut house, &announcement, HELD);
        says(&mut house, &invited, SERVED);
        says(&mut house, &main_at(&m(), 103, 'a'), NOT_MAINTAINER);
        says(&mut house, &member, SERVED);
        says(&mut house, &main_at(&m(), 103, 'a'), HELD);
    }
}

#[test]
fn g1_08_15_3_the_lead_may_be_elsewhere() {
    for lists_back in [true, false] {
        let mut house = House::default();
        let announcement = o().listed_with(&service(), "tool", 100, owned(&[&["M", &m().hex()]]));
        let mut roles = owned(&[&["M", &m().hex()]]);
        if lists_back {
            roles.extend(owned(&[&["m", &o().hex()]]));
        }
        let lead = m().unlisted_with("tool", 101, roles);
        says(&mut house, &announcement, HELD);
        says(&mut house, &main_at(&m(), 102, 'a'), NOT_MAINTAINER);
        says(&mut house, &lead, SERVED);
        let (state, own) = (main_at(&m(), 102, 'a'), main_at(&o(), 102, 'a'));
        says(&mut house, &state, HELD);
        says(&mut house, &own, if lists_back { HELD } else { NOT_MAINTAINER });
    }
}

#[test]
fn g1_30_leaving_stays_known() {
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    let left = m().unlisted_with("tool", 200, owned(&[&["o", &m().hex()]]));
    says(&mut house, &left, SERVED);
    stands(&house, &[&announcement, &state, &left], &[]);
    says(&mut house, &main_at(&m(), 201, 'b'), NOT_MAINTAINER);
}

#[test]
fn g1_09_the_identifier_is_judged_before_the_listing() {
    let mut house = House::default();
    says(&mut house, &o().unlisted("..", 100, &[]), IDENTIFIER);
    // What is gone is judged before both.
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let deletion = o().deletion(200, &[&["a", &o().repo("tool")]]);
    says(&mut house, &deletion, SERVED);
    says(&mut house, &o().unlisted("tool", 150, &[]), DELETED);
    says(&mut house, &announcement, DELETED);
    stands(&house, &[&state, &deletion], &[]);
}

#[test]
fn g1_10_delisting_withdraws_even_for_a_maintainer() {
    // M's own hosted repository; O lists M, so that M's word elsewhere stays wanted.
    let (mut house, a, s) = hosting(rules(), &[&m()]);
    let hosted = m().listed(&service(), "tool", 200, &[]);
    let delisted = m().unlisted("tool", 300, &[]);
    says(&mut house, &hosted, HELD);
    let state = main_at(&m(), 201, 'b');
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &m());
    stands(&house, &[&a, &s, &hosted, &state], &[]);
    says(&mut house, &delisted, SERVED);
    stands(&house, &[&a, &s, &delisted, &state], &[]);
    let family = house.registrar().catalog().family(&o().repo_id("tool").identifier).expect("known");
    assert!(!family.is_hosted(m().key()), "the exception does not keep hosting");
    says(&mut house, &hosted, WITHDRAWN);
    says(&mut house, &m().listed(&service(), "tool", 301, &[]), HELD);
}

#[test]
fn g1_10_f7_delisting_cuts_no_chain() {
    // O lists M; M lists R, first here, then elsewhere: R is named all the time.
    for served in [false, true] {
        let (mut house, a, s) = hosting(rules(), &[&m()]);
        let here = m().listed(&service(), "tool", 200, &[&r()]);
        let exception = r().unlisted("tool", 201, &[]);
        let elsewhere = m().unlisted("tool", 300, &[&r()]);
        let state = main_at(&m(), 202, 'b');
        says(&mut house, &here, HELD);
        says(&mut house, &exception, SERVED);
        says(&mut house, &state, HELD);
        pushed(&mut house, &state, &if served { m() } else { o() });
        says(&mut house, &elsewhere, SERVED);
        stands(&house, &[&a, &s, &exception, &elsewhere, &state], &[]);
    }
}

#[test]
fn g1_11_a_new_announcement_waits_and_is_hosted_at_once() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "my 🚀 repo", 100, &[]);
    says(&mut house, &announcement, HELD);
    stands(&house, &[], &[&announcement]);
    let repo = o().repo_id("my 🚀 repo");
    assert!(house.registrar().catalog().family(&repo.identifier).expect("known").is_hosted(repo.owner));
    assert_eq!(house.bells().0, BTreeSet::from([repo.identifier]), "sync is told");
}

#[test]
fn g1_12_16_6_a_replacement_of_a_served_announcement_is_served() {
    let (mut house, _, state) = hosting(rules(), &[]);
    let newer = o().listed(&service(), "tool", 200, &[&m()]);
    says(&mut house, &newer, SERVED);
    stands(&house, &[&newer, &state], &[]);
    says(&mut house, &main_at(&m(), 201, 'b'), HELD);
}

#[test]
fn g1_13_a_replacement_of_a_held_announcement_waits_anew() {
    let mut house = House::default();
    let [first, second, older] = [100, 200, 50].map(|at| o().listed(&service(), "tool", at, &[]));
    says(&mut house, &first, HELD);
    house.advance(limits::PURGATORY_SECS - 10);
    says(&mut house, &second, HELD);
    stands(&house, &[], &[&second]);
    says(&mut house, &older, OLD);
    says(&mut house, &first, OLD);
    stands(&house, &[], &[&second]);
    house.advance(20);
    stands(&house, &[], &[&second]);
    house.advance(limits::PURGATORY_SECS);
    stands(&house, &[], &[]);
}

#[test]
fn g1_14_a_newer_announcement_elsewhere_evicts_a_held_one() {
    let mut house = House::default();
    let held = o().listed(&service(), "tool", 100, &[]);
    let elsewhere = |wins: bool| {
        let mut tries = (0..).map(|nth: u32| o().unlisted_with("tool", 100, owned(&[&["name", &nth.to_string()]])));
        tries.find(|event| (event.id < held.id) == wins).expect("half of them")
    };
    says(&mut house, &held, HELD);
    says(&mut house, &o().unlisted("tool", 99, &[]), NOT_LISTED);
    says(&mut house, &elsewhere(false), NOT_LISTED);
    stands(&house, &[], &[&held]);
    // In the same second the lower id decides.
    says(&mut house, &elsewhere(true), DELISTED);
    stands(&house, &[], &[]);
    says(&mut house, &held, WITHDRAWN);
    let again = o().listed(&service(), "tool", 102, &[]);
    says(&mut house, &again, HELD);
    stands(&house, &[], &[&again]);
}

#[test]
fn g1_15_16_10_a_served_state_releases_the_announcements_it_speaks_for() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let follower = x().listed(&service(), "tool", 200, &[&o()]);
    says(&mut house, &follower, HELD);
    // Git has aligned X's repository with O's state, which is authoritative there.
    pushed(&mut house, &state, &x());
    stands(&house, &[&announcement, &state, &follower], &[]);
}

// 2.3, 2.4 Matching and identifiers

#[test]
fn g1_16_g1_17_the_url_must_be_this_service_and_this_repository() {
    let based = Rules { service: Service::new("code.example", "/g").expect("valid"), ..rules() };
    let (npub, other) = (o().key().npub(), m().key().npub());
    for (clone, relay, expected) in [
        (format!("https://code.example/g/{npub}/tool.git"), "wss://code.example/g", HELD),
        (format!("https://CODE.example:443/g/{npub}/tool.git"), "wss://code.example/g/", HELD),
        (format!("http://code.example//g//{npub}/t%6fol.git/"), "ws://code.example/g", HELD),
        (format!("https://code.example/{npub}/tool.git"), "wss://code.example/g", NOT_LISTED),
        (format!("https://code.example/gg/{npub}/tool.git"), "wss://code.example/gg", NOT_LISTED),
        (format!("https://code.example/g/{npub}/tool.git"), "wss://relay.other", NOT_LISTED),
        (format!("https://code.example:8443/g/{npub}/tool.git"), "wss://code.example:8443/g", NOT_LISTED),
        (format!("https://evil.tld/?x=code.example/g/{npub}/tool.git"), "wss://code.example/g", NOT_LISTED),
        (format!("https://code.example.evil.tld/g/{npub}/tool.git"), "wss://code.example/g", NOT_LISTED),
        (format!("https://notcode.example/g/{npub}/tool.git"), "wss://code.example/g", NOT_LISTED),
        (format!("https://me@code.example/g/{npub}/tool.git"), "wss://code.example/g", NOT_LISTED),
        (format!("https://code.example/g/{other}/tool.git"), "wss://code.example/g", NOT_LISTED),
        (format!("https://code.example/g/{npub}/tools.git"), "wss://code.example/g", NOT_LISTED),
    ] {
        let mut house = House::new(based.clone());
        let tags: &[&[&str]] = &[&["d", "tool"], &["clone", &clone], &["relays", relay]];
        says(&mut house, &o().sign(kinds::ANNOUNCEMENT, 100, tags, ""), expected);
    }
}

#[test]
fn g1_20_identifiers_that_cannot_be_paths() {
    let mut house = House::default();
    for bad in ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "\u{85}", &"x".repeat(limits::MAX_IDENTIFIER_BYTES + 1)] {
        says(&mut house, &o().listed(&service(), bad, 100, &[]), IDENTIFIER);
        says(&mut house, &o().state(bad, 100, &[]), IDENTIFIER);
    }
    says(&mut house, &o().sign(kinds::ANNOUNCEMENT, 100, &[], ""), IDENTIFIER);
    says(&mut house, &o().sign(kinds::STATE, 100, &[&["d"]], ""), IDENTIFIER);
    stands(&house, &[], &[]);
    let good = ["x.git", "a:b", "a@b+c%d#e?f", "UPPER", "HEAD", "%2e%2e", "..."];
    let announcements = good.map(|name| o().listed(&service(), name, 100, &[]));
    for announcement in &announcements {
        says(&mut house, announcement, HELD);
    }
    stands(&house, &[], &announcements.each_ref());
}

// 2.5, 2.6 Which states to accept

#[test]
fn g1_23_a_maintainers_state_is_taken() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[&m()]);
    says(&mut house, &announcement, HELD);
    let (own, theirs) = (main_at(&o(), 101, 'a'), main_at(&m(), 102, 'b'));
    says(&mut house, &own, HELD);
    says(&mut house, &theirs, HELD);
    stands(&house, &[], &[&announcement, &own, &theirs]);
}

#[test]
fn g1_24_other_states_are_refused() {
    let mut house = House::default();
    says(&mut house, &main_at(&o(), 101, 'a'), NO_ANNOUNCEMENT);
    let announcement = o().listed(&service(), "tool", 100, &[&m()]);
    says(&mut house, &announcement, HELD);
    says(&mut house, &main_at(&x(), 101, 'a'), NOT_MAINTAINER);
    says(&mut house, &o().state("other", 101, &[]), NO_ANNOUNCEMENT);
    says(&mut house, &o().state("Tool", 101, &[]), NO_ANNOUNCEMENT);
    stands(&house, &[], &[&announcement]);
}

#[test]
fn g1_25_git_is_asked_on_arrival() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    house.looks();
    let emptied = o().state("tool", 200, &[("HEAD", "ref: refs/heads/main")]);
    says(&mut house, &emptied, HELD);
    let look = house.looks().pop().expect("a question");
    assert_eq!((look.event, look.repos, look.oids), (emptied.id, vec![o().repo_id("tool")], vec![]));
    stands(&house, &[&announcement, &state], &[&emptied]);
    pushed(&mut house, &emptied, &o());
    stands(&house, &[&announcement, &emptied], &[]);
}

#[test]
fn g1_26_a_state_without_its_data_waits() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let newer = main_at(&o(), 200, 'b');
    says(&mut house, &newer, HELD);
    stands(&house, &[&announcement, &state], &[&newer]);
}

#[test]
fn g1_27_f5_a_state_is_superseded_by_a_served_one_only() {
    let (mut house, announcement, _) = hosting(rules(), &[]);
    let [s1, s2, s3] = [(200, 'b'), (201, 'c'), (202, 'd')].map(|(at, digit)| main_at(&o(), at, digit));
    for state in [&s3, &s1, &s2] {
        says(&mut house, state, HELD);
    }
    pushed(&mut house, &s2, &o());
    stands(&house, &[&announcement, &s2], &[&s3]);
    says(&mut house, &s1, OLD);
    stands(&house, &[&announcement, &s2], &[&s3]);
}

#[test]
fn g1_28_15_3_the_recursive_rule() {
    let mut house = House::default();
    let held = [
        o().listed(&service(), "tool", 100, &[&m()]),
        m().listed(&service(), "tool", 101, &[&r()]),
        x().listed(&service(), "tool", 102, &[&o()]),
    ];
    for announcement in &held {
        says(&mut house, announcement, HELD);
    }
    let identifier = Identifier::new("tool").expect("valid");
    for (author, owners) in
        [(o(), vec![o(), x()]), (m(), vec![o(), m(), x()]), (r(), vec![o(), m(), x()]), (x(), vec![x()])]
    {
        let expected: BTreeSet<_> = owners.iter().map(|owner| owner.repo_id("tool")).collect();
        let repos = house.repos_of(&identifier, author.key());
        assert_eq!(repos.into_iter().collect::<BTreeSet<_>>(), expected, "{author:?}");
        says(&mut house, &main_at(&author, 200, 'a'), HELD);
    }
}

#[test]
fn g1_28_data_is_found_only_where_the_author_may_speak() {
    let mut house = House::default();
    let (a, b) = (o().listed(&service(), "tool", 100, &[&m()]), m().listed(&service(), "tool", 101, &[]));
    let state = main_at(&o(), 102, 'a');
    for event in [&a, &b, &state] {
        says(&mut house, event, HELD);
    }
    for wrong in [m().repo_id("tool"), o().repo_id("other"), r().repo_id("tool")] {
        house.data_found(state.id, wrong);
    }
    house.data_found(a.id, o().repo_id("tool"));
    stands(&house, &[], &[&a, &b, &state]);
    pushed(&mut house, &state, &o());
    stands(&house, &[&a, &state], &[&b]);
}

#[test]
fn g1_29_g1_30_role_tags_are_reciprocal_and_hide_maintainers() {
    let mut house = House::default();
    let roles = owned(&[&["m", &m().hex()], &["maintainers", &x().hex()]]);
    says(&mut house, &o().listed_with(&service(), "tool", 100, roles), HELD);
    says(&mut house, &main_at(&x(), 101, 'a'), NOT_MAINTAINER);
    says(&mut house, &main_at(&m(), 101, 'a'), NOT_MAINTAINER);
    says(&mut house, &m().listed(&service(), "tool", 102, &[&o()]), HELD);
    says(&mut house, &main_at(&m(), 101, 'a'), HELD);
    assert_eq!(house.repos_of(&Identifier::new("tool").expect("valid"), m().key()).len(), 2);
}

#[test]
fn g1_29_the_strict_rule_is_reciprocal_for_everybody() {
    let mut house = House::new(strict());
    says(&mut house, &o().listed(&service(), "tool", 100, &[&m()]), HELD);
    says(&mut house, &main_at(&m(), 101, 'a'), NOT_MAINTAINER);
    says(&mut house, &m().listed(&service(), "tool", 102, &[&o()]), HELD);
    says(&mut house, &main_at(&m(), 101, 'a'), HELD);
}

// 2.7 Related events

#[test]
fn g1_31_g1_32_every_kind_of_link() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let repo = o().repo("tool");
    let quoted = x().note(90, &[], "named later by the issue");
    let answered = x().sign(1111, 91, &[], "named later by a comment");
    let mentioned = x().note(92, &[], "named later by a note");
    for orphan in [&quoted, &answered, &mentioned] {
        says(&mut house, orphan, UNRELATED);
    }
    let issue = r().sign(kinds::ISSUE, 200, &[&["a", &repo], &["q", &quoted.id.to_string()]], "");
    let comment = r().sign(1111, 201, &[&["A", &repo], &["e", &answered.id.to_string()]], "");
    let note = r().note(202, &[&["q", &repo], &["e", &mentioned.id.to_string()]], "");
    let quoting = r().sign(kinds::ISSUE, 203, &[&["q", &issue.id.to_string()]], "");
    let deep = r().comment(204, &issue);
    let reply = r().note(205, &[&["e", &deep.id.to_string()]], "");
    let events = [&issue, &comment, &note, &quoting, &deep, &reply, &quoted, &answered, &mentioned];
    for event in events {
        says(&mut house, event, SERVED);
        says(&mut house, event, AGAIN);
    }
    let all: Vec<&Arc<Signed>> = [&announcement, &state].into_iter().chain(events).collect();
    stands(&house, &all, &[]);
}

#[test]
fn g1_33_orphans_are_refused() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let unhosted = m().repo("other");
    for orphan in [
        x().issue(200, &unhosted),
        x().note(200, &[], "hello"),
        x().sign(1111, 200, &[&["A", &unhosted], &["q", &unhosted]], ""),
        x().note(200, &[&["e", &"b".repeat(64)]], ""),
        x().note(200, &[&["e", "x", &announcement.id.to_string()]], "only the first value is a link"),
        x().note(200, &[&["p", &o().hex()]], ""),
        x().sign(0, 200, &[], "{}"),
    ] {
        says(&mut house, &orphan, UNRELATED);
    }
    stands(&house, &[&announcement, &state], &[]);
}

#[test]
fn g1_34_c1_what_waits_is_no_link() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    let issue = x().issue(200, &o().repo("tool"));
    let note = x().note(200, &[&["e", &announcement.id.to_string()]], "");
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    for event in [&issue, &note, &pull] {
        says(&mut house, event, UNRELATED);
    }
    stands(&house, &[], &[&announcement, &state]);
    pushed(&mut house, &state, &o());
    says(&mut house, &issue, SERVED);
    says(&mut house, &note, SERVED);
    says(&mut house, &pull, COMMIT);
    stands(&house, &[&announcement, &state, &issue, &note], &[&pull]);
}

#[test]
fn g1_35_the_state_of_a_hosted_repository_is_a_link() {
    let (mut house, ..) = hosting(rules(), &[]);
    says(&mut house, &x().note(200, &[&["a", &o().coordinate(kinds::STATE, "tool")]], ""), SERVED);
    says(&mut house, &x().note(200, &[&["a", &m().coordinate(kinds::STATE, "tool")]], ""), UNRELATED);
}

#[test]
fn section_2_7_kinds_with_rules_of_their_own() {
    let mut house = House::default();
    let list = x().sign(kinds::GRASP_LIST, 100, &[&["g", "wss://code.example"]], "");
    says(&mut house, &list, SERVED);
    let newer = x().sign(kinds::GRASP_LIST, 101, &[], "");
    says(&mut house, &newer, SERVED);
    says(&mut house, &list, OLD);
    stands(&house, &[&newer], &[]);
    for credential in [kinds::AUTH, kinds::HTTP_AUTH] {
        says(&mut house, &x().sign(credential, 100, &[], ""), "false invalid: authentication events are not published");
    }
    let (mut house, ..) = hosting(rules(), &[]);
    let unlinked = x().sign(kinds::PULL_REQUEST, 200, &[&["a", &o().repo("tool")]], "");
    for bad in [
        unlinked,
        x().pull_request(200, &[&o().repo("tool")], ""),
        x().pull_request(200, &[&o().repo("tool")], "not hex"),
        x().pull_request(200, &[&o().repo("tool")], &"a".repeat(65)),
    ] {
        says(&mut house, &bad, "false invalid: a pull request names its commit in a c tag");
    }
    says(&mut house, &x().pull_request(200, &[&m().repo("tool")], &oid('b')), UNRELATED);
    says(&mut house, &x().pull_request(200, &[&m().repo("tool"), &o().repo("tool")], &"b".repeat(64)), COMMIT);
}

#[test]
fn c2_ephemeral_kinds_are_passed_on_and_forgotten() {
    let mut house = House::default();
    let event = x().sign(20_001, 100, &[], "typing");
    assert_eq!(house.submit(&event), Verdict::Pass);
    assert_eq!(Verdict::Pass.answer(), (true, String::new()));
    stands(&house, &[], &[]);
    assert_eq!(house.passed(), std::slice::from_ref(&event));
    assert_eq!(house.submit(&event), Verdict::Pass, "it was not remembered");
}

// 2.8 Purgatory

#[test]
fn g1_37_four_kinds_wait() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &o());
    let repo = o().repo("tool");
    let pull = x().pull_request(200, &[&repo], &oid('b'));
    let tags: &[&[&str]] = &[&["a", &repo], &["E", &pull.id.to_string()], &["c", &oid('c')]];
    let update = x().sign(kinds::PULL_REQUEST_UPDATE, 201, tags, "");
    house.looks();
    says(&mut house, &pull, COMMIT);
    says(&mut house, &update, COMMIT);
    let asked: Vec<_> = house.looks().into_iter().map(|look| (look.event, look.repos, look.oids)).collect();
    let here = vec![o().repo_id("tool")];
    assert_eq!(asked, [(pull.id, here.clone(), vec![oid('b')]), (update.id, here, vec![oid('c')])]);
    stands(&house, &[&announcement, &state], &[&pull, &update]);
    house.data_found(pull.id, m().repo_id("tool"));
    stands(&house, &[&announcement, &state], &[&pull, &update]);
    for event in [&pull, &update] {
        house.data_found(event.id, o().repo_id("tool"));
    }
    stands(&house, &[&announcement, &state, &pull, &update], &[]);
}

#[test]
fn g1_38_what_waits_is_not_found_and_gives_up_after_half_an_hour() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    says(&mut house, &announcement, HELD);
    house.advance(60);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &state, HELD);
    let now = house.now().wall;
    assert_eq!(house.memory().query(&[Filter::default()], 500, now), []);
    assert_eq!(house.memory().count(&[Filter::default()], now), 0);
    house.advance(30 * 60 - 61);
    stands(&house, &[], &[&announcement, &state]);
    house.advance(1);
    stands(&house, &[], &[&state]);
    pushed(&mut house, &state, &o());
    stands(&house, &[], &[&state]);
    house.advance(60);
    stands(&house, &[], &[]);
    says(&mut house, &announcement, HELD);
    stands(&house, &[], &[&announcement]);
}

#[test]
fn g1_39_sending_again_is_fine() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    for event in [&announcement, &state] {
        says(&mut house, event, HELD);
        says(&mut house, event, STILL);
    }
    stands(&house, &[], &[&announcement, &state]);
    pushed(&mut house, &state, &o());
    for event in [&announcement, &state] {
        says(&mut house, event, AGAIN);
    }
    stands(&house, &[&announcement, &state], &[]);
}

#[test]
fn g1_40_one_announcement_and_many_states_wait() {
    let mut house = House::default();
    let [a1, a2] = [100, 200].map(|at| o().listed(&service(), "tool", at, &[&m()]));
    let states = [main_at(&o(), 101, 'a'), main_at(&o(), 102, 'b'), main_at(&m(), 101, 'c'), main_at(&m(), 102, 'd')];
    says(&mut house, &a1, HELD);
    for state in &states {
        says(&mut house, state, HELD);
    }
    says(&mut house, &a2, HELD);
    let [o1, o2, m1, m2] = states.each_ref();
    stands(&house, &[], &[&a2, o1, o2, m1, m2]);
    // A push may satisfy either author's; the other's stay.
    pushed(&mut house, m1, &o());
    stands(&house, &[&a2, m1], &[o1, o2, m2]);
    // More versions of one author's state than anybody needs: the oldest gives way.
    let more: Vec<_> = (0..limits::MAX_HELD_STATES as u64).map(|nth| main_at(&o(), 300 + nth, 'e')).collect();
    for state in &more {
        says(&mut house, state, HELD);
    }
    let held: Vec<&Arc<Signed>> = more.iter().chain([m2]).collect();
    stands(&house, &[&a2, m1], &held);
}

#[test]
fn g1_41_the_announcement_is_served_before_the_state() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    assert_eq!(house.memory().served(), [announcement.id, state.id]);
}

#[test]
fn g1_42_a_restart_loses_nothing() {
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    let waiting = x().listed(&service(), "tool", 150, &[&o()]);
    let newer = main_at(&m(), 200, 'b');
    let pull = x().pull_request(201, &[&o().repo("tool")], &oid('c'));
    says(&mut house, &waiting, HELD);
    says(&mut house, &newer, HELD);
    says(&mut house, &pull, COMMIT);
    house.restart();
    stands(&house, &[&announcement, &state], &[&waiting, &newer, &pull]);
    says(&mut house, &newer, STILL);
    pushed(&mut house, &newer, &o());
    house.data_found(pull.id, o().repo_id("tool"));
    stands(&house, &[&announcement, &state, &newer, &pull], &[&waiting]);
}

// 9 Replacement, deletion, vanish, expiration, protection

#[test]
fn section_9_1_replacement() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    // A held version does not hide the served one; afterwards the older is gone.
    let newer = main_at(&o(), 200, 'b');
    says(&mut house, &newer, HELD);
    stands(&house, &[&announcement, &state], &[&newer]);
    pushed(&mut house, &newer, &o());
    stands(&house, &[&announcement, &newer], &[]);
    // Regular kinds are never replaced.
    let repo = o().repo("tool");
    let statuses = [1_630, 1_632].map(|kind| o().sign(kind, 300, &[&["a", &repo]], ""));
    let twin = o().sign(1_630, 301, &[&["a", &repo]], "");
    for event in [&statuses[0], &statuses[1], &twin] {
        says(&mut house, event, SERVED);
    }
    stands(&house, &[&announcement, &newer, &statuses[0], &statuses[1], &twin], &[]);
    // A far future is refused, a near one is not.
    let now = house.now().wall.0;
    says(&mut house, &main_at(&o(), now + limits::MAX_FUTURE_SECS + 1, 'c'), "false invalid: created_at is more than…");
    says(&mut house, &main_at(&o(), now + limits::MAX_FUTURE_SECS, 'c'), HELD);
}

#[test]
fn section_9_1_sizes() {
    let (mut house, ..) = hosting(Rules { max_event_bytes: 2_000, ..rules() }, &[]);
    let repo = o().repo("tool");
    let tags = |count: usize, tag: &[&str]| -> Vec<Vec<String>> {
        let mut tags = owned(&[&["d", "tool"], &["a", &repo]]);
        tags.extend(std::iter::repeat_n(tag.iter().map(|value| (*value).to_owned()).collect(), count));
        tags
    };
    says(&mut house, &o().sign_owned(1, 200, tags(0, &[]), &"x".repeat(2_000)), "false invalid: the event has…");
    says(&mut house, &o().sign_owned(kinds::STATE, 200, tags(0, &[]), &"x".repeat(2_000)), HELD);
    let (mut house, ..) = hosting(rules(), &[]);
    let many = limits::MAX_EVENT_TAGS + 1;
    says(&mut house, &o().sign_owned(1, 200, tags(many, &["t", "x"]), ""), "false invalid: at most 2000 tags…");
    says(
        &mut house,
        &o().sign_owned(kinds::STATE, 200, tags(many, &["x", "y"]), ""),
        "false invalid: at most 2000 tags…",
    );
    let refs = tags(many, &["refs/heads/main", &oid('b')]);
    says(&mut house, &o().sign_owned(kinds::STATE, 200, refs, ""), HELD);
}

#[test]
fn d_01_an_author_deletes_its_own() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let issue = x().issue(200, &o().repo("tool"));
    let comment = r().comment(201, &issue);
    says(&mut house, &issue, SERVED);
    says(&mut house, &comment, SERVED);
    let deletion = x().delete(300, &[&issue]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&announcement, &state, &comment, &deletion], &[]);
    says(&mut house, &issue, DELETED);
    says(&mut house, &deletion, AGAIN);
    stands(&house, &[&announcement, &state, &comment, &deletion], &[]);
}

#[test]
fn d_02_a_coordinate_is_deleted_up_to_the_request() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let [at_200, at_300] = [(200, 'b'), (300, 'c')].map(|(at, digit)| main_at(&o(), at, digit));
    says(&mut house, &at_300, HELD);
    says(&mut house, &at_200, HELD);
    let deletion = o().deletion(200, &[&["a", &o().coordinate(kinds::STATE, "tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&announcement, &deletion], &[&at_300]);
    says(&mut house, &state, DELETED);
    says(&mut house, &at_200, DELETED);
    says(&mut house, &main_at(&o(), 201, 'd'), HELD);
    // A request that is older than what is served leaves it.
    pushed(&mut house, &at_300, &o());
    let late = o().deletion(299, &[&["a", &o().coordinate(kinds::STATE, "tool")]]);
    says(&mut house, &late, SERVED);
    stands(&house, &[&announcement, &at_300, &deletion, &late], &[]);
}

#[test]
fn d_02_deleting_an_announcement_ends_hosting_until_a_newer_one() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let deletion = o().deletion(200, &[&["a", &o().repo("tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&state, &deletion], &[]);
    says(&mut house, &main_at(&o(), 201, 'b'), NO_ANNOUNCEMENT);
    says(&mut house, &announcement, DELETED);
    let again = o().listed(&service(), "tool", 201, &[]);
    says(&mut house, &again, HELD);
    stands(&house, &[&state, &deletion], &[&again]);
}

#[test]
fn d_03_foreign_targets_and_too_many() {
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    let own = m().issue(200, &o().repo("tool"));
    says(&mut house, &own, SERVED);
    says(&mut house, &m().delete(300, &[&state]), FOREIGN);
    let foreign = m().deletion(300, &[&["a", &o().coordinate(kinds::STATE, "tool")]]);
    says(&mut house, &foreign, SERVED);
    stands(&house, &[&announcement, &state, &own, &foreign], &[]);
    let both = m().delete(300, &[&own, &announcement]);
    says(&mut house, &both, SERVED);
    stands(&house, &[&announcement, &state, &foreign, &both], &[]);
    says(&mut house, &m().deletion(300, &[]), "false invalid: a deletion request names its targets in e or a tags");
    says(&mut house, &m().deletion(300, &[&["p", "x"]]), "false invalid: a deletion request names its targets…");
    let many = |count: usize| {
        let tags = (0..count).map(|nth| vec!["e".to_owned(), format!("{nth:064x}")]).collect();
        m().sign_owned(kinds::DELETION, 301, tags, "")
    };
    let (mut house, ..) = hosting(Rules { max_event_bytes: 1_000_000, ..rules() }, &[&m()]);
    says(&mut house, &m().issue(200, &o().repo("tool")), SERVED);
    // Whichever bound is met first, it is refused and nothing is remembered.
    says(&mut house, &many(limits::MAX_DELETION_TARGETS + 1), "false invalid: …");
    says(&mut house, &many(1_999), SERVED);
}

#[test]
fn d_04_requests_cannot_be_deleted() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let issue = o().issue(200, &o().repo("tool"));
    says(&mut house, &issue, SERVED);
    let first = o().delete(300, &[&issue]);
    let second = o().delete(301, &[&first]);
    says(&mut house, &first, SERVED);
    says(&mut house, &second, SERVED);
    stands(&house, &[&announcement, &state, &first, &second], &[]);
    says(&mut house, &issue, DELETED);
    // In the other order, too.
    let (mut house, announcement, state) = hosting(rules(), &[]);
    for event in [&second, &first] {
        says(&mut house, event, SERVED);
    }
    stands(&house, &[&announcement, &state, &first, &second], &[]);
    says(&mut house, &issue, DELETED);
    // A request to vanish neither.
    let vanish = o().vanish(400, &["ALL_RELAYS"]);
    let third = o().delete(401, &[&vanish]);
    says(&mut house, &vanish, SERVED);
    says(&mut house, &third, SERVED);
    stands(&house, &[&vanish, &third], &[]);
    says(&mut house, &issue, VANISHED);
}

#[test]
fn d_05_a_deletion_gates_what_comes_later() {
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    let issue = o().issue(200, &o().repo("tool"));
    let next = main_at(&o(), 200, 'b');
    let by_id = o().delete(300, &[&issue]);
    let by_coordinate = o().deletion(300, &[&["a", &o().coordinate(kinds::STATE, "tool")]]);
    says(&mut house, &by_id, SERVED);
    says(&mut house, &by_coordinate, SERVED);
    says(&mut house, &issue, DELETED);
    says(&mut house, &next, DELETED);
    says(&mut house, &state, DELETED);
    // Somebody else's request for an unknown id gates nothing.
    let theirs = m().issue(200, &o().repo("tool"));
    let stranger = o().delete(301, &[&theirs]);
    says(&mut house, &stranger, SERVED);
    says(&mut house, &theirs, SERVED);
    stands(&house, &[&announcement, &by_id, &by_coordinate, &stranger, &theirs], &[]);
}

#[test]
fn d_06_what_waits_can_be_deleted() {
    for by_id in [true, false] {
        // M has no announcement of its own.
        let (mut house, announcement, state) = hosting(rules(), &[&m()]);
        let held = main_at(&m(), 200, 'b');
        says(&mut house, &held, HELD);
        let deletion = if by_id {
            m().delete(300, &[&held])
        } else {
            m().deletion(300, &[&["a", &m().coordinate(kinds::STATE, "tool")]])
        };
        says(&mut house, &deletion, SERVED);
        stands(&house, &[&announcement, &state, &deletion], &[]);
        says(&mut house, &held, DELETED);
        pushed(&mut house, &held, &o());
        stands(&house, &[&announcement, &state, &deletion], &[]);
    }
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    let deletion = o().deletion(300, &[&["a", &o().repo("tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&deletion], &[&state]);
    pushed(&mut house, &state, &o());
    stands(&house, &[&deletion], &[&state]);
}

#[test]
fn d_06_a_held_pull_request_can_be_deleted() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    says(&mut house, &pull, COMMIT);
    let deletion = x().delete(300, &[&pull]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&announcement, &state, &deletion], &[]);
    house.data_found(pull.id, o().repo_id("tool"));
    stands(&house, &[&announcement, &state, &deletion], &[]);
}

#[test]
fn d_07_vanishing() {
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    let repo = o().repo("tool");
    let issue = m().issue(200, &repo);
    let deletion = m().delete(201, &[&m().issue(5, &repo)]);
    let pull = m().pull_request(202, &[&repo], &oid('b'));
    let elsewhere = m().unlisted("tool", 203, &[]);
    let own = m().listed(&service(), "mine", 204, &[]);
    let held = main_at(&m(), 205, 'c');
    let wrap = x().sign(kinds::GIFT_WRAP, 206, &[&["p", &m().hex()], &["a", &repo]], "");
    let mention = x().note(207, &[&["p", &m().hex()], &["a", &repo]], "");
    for event in [&issue, &deletion, &elsewhere, &wrap, &mention] {
        says(&mut house, event, SERVED);
    }
    says(&mut house, &pull, COMMIT);
    says(&mut house, &own, HELD);
    says(&mut house, &held, HELD);
    let later = m().issue(500, &repo);
    says(&mut house, &later, SERVED);
    for (relays, expected) in [
        (vec![], "false invalid: a request to vanish names relays in relay tags"),
        (vec!["wss://other.example"], "false restricted: the request to vanish does not name this relay"),
    ] {
        says(&mut house, &m().vanish(300, &relays), expected);
    }
    let vanish = m().vanish(300, &["wss://other.example", "ws://code.example/"]);
    says(&mut house, &vanish, SERVED);
    stands(&house, &[&announcement, &state, &mention, &later, &vanish], &[]);
    for event in [&issue, &deletion, &elsewhere, &own, &held, &pull] {
        says(&mut house, event, VANISHED);
    }
    says(&mut house, &m().vanish(299, &["ALL_RELAYS"]), OLD);
    says(&mut house, &main_at(&m(), 301, 'c'), HELD);
    house.restart();
    says(&mut house, &issue, VANISHED);
}

#[test]
fn d_07_the_repositories_of_a_vanishing_owner_end() {
    let (mut house, _, _) = hosting(rules(), &[&m()]);
    let exception = m().unlisted("tool", 200, &[]);
    says(&mut house, &exception, SERVED);
    let vanish = o().vanish(300, &["ALL_RELAYS"]);
    says(&mut house, &vanish, SERVED);
    stands(&house, &[&vanish], &[]);
    says(&mut house, &main_at(&m(), 301, 'b'), NO_ANNOUNCEMENT);
    let again = o().listed(&service(), "tool", 301, &[]);
    says(&mut house, &again, HELD);
}

#[test]
fn d_07_a_stranger_has_nothing_to_take_along() {
    let mut house = House::default();
    says(&mut house, &x().vanish(300, &["ALL_RELAYS"]), UNRELATED);
    stands(&house, &[], &[]);
}

#[test]
fn d_08_nip_70_protected_events() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let repo = o().repo("tool");
    let protected = x().note(200, &[&["-"], &["a", &repo]], "");
    says(&mut house, &protected, PROTECTED);
    for source in [Source::Client(vec![o().key()]), Source::Relay("wss://other.example".into())] {
        matches(&said(&house.submit_from(&protected, source)), PROTECTED);
    }
    stands(&house, &[&announcement, &state], &[]);
    for kind in [6, 16] {
        let repost = x().sign(kind, 201, &[&["a", &repo]], protected.json());
        matches(&said(&house.submit_from(&repost, Source::Client(vec![x().key()]))), PROTECTED);
    }
    let harmless = x().sign(6, 201, &[&["a", &repo]], announcement.json());
    says(&mut house, &harmless, SERVED);
    let author = Source::Client(vec![o().key(), x().key()]);
    matches(&said(&house.submit_from(&protected, author)), SERVED);
    stands(&house, &[&announcement, &state, &harmless, &protected], &[]);
    says(&mut house, &protected, AGAIN);
}

#[test]
fn nip_40_expiration() {
    let (mut house, _, state) = hosting(rules(), &[&m()]);
    let now = house.now().wall.0;
    let repo = o().repo("tool");
    let note = |at: &str| x().note(200, &[&["a", &repo], &["expiration", at]], "");
    says(&mut house, &note(&now.to_string()), EXPIRED);
    says(&mut house, &note("1"), EXPIRED);
    let soon = note(&(now + 10).to_string());
    let nonsense = note("soon");
    says(&mut house, &soon, SERVED);
    says(&mut house, &nonsense, SERVED);
    // An announcement that expires ends hosting, and what hangs on it.
    let brief = o().listed_with(
        &service(),
        "tool",
        201,
        owned(&[&["maintainers", &m().hex()], &["expiration", &(now + 20).to_string()]]),
    );
    let exception = m().unlisted("tool", 202, &[]);
    says(&mut house, &brief, SERVED);
    says(&mut house, &exception, SERVED);
    stands(&house, &[&brief, &exception, &state, &soon, &nonsense], &[]);
    house.advance(10);
    stands(&house, &[&brief, &exception, &state, &nonsense], &[]);
    says(&mut house, &soon, EXPIRED);
    house.advance(10);
    stands(&house, &[&state, &nonsense], &[]);
    says(&mut house, &main_at(&o(), 300, 'b'), NO_ANNOUNCEMENT);
}

// 15 Worked examples

#[test]
fn section_15_6_ties() {
    let (mut house, announcement, _) = hosting(rules(), &[&m()]);
    let mut states: Vec<_> = "bcd".chars().map(|digit| main_at(&o(), 500, digit)).collect();
    states.sort_by_key(|state| state.id);
    let [s_b, s_a, s_c] = [&states[0], &states[1], &states[2]];
    says(&mut house, s_a, HELD);
    pushed(&mut house, s_a, &o());
    stands(&house, &[&announcement, s_a], &[]);
    says(&mut house, s_c, OLD);
    says(&mut house, s_b, HELD);
    stands(&house, &[&announcement, s_a], &[s_b]);
    pushed(&mut house, s_b, &o());
    stands(&house, &[&announcement, s_b], &[]);
    says(&mut house, s_a, OLD);
}

#[test]
fn section_15_7_linkage() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let waiting = o().listed(&service(), "held", 100, &[]);
    says(&mut house, &waiting, HELD);
    let n1 = x().note(90, &[], "N1");
    let article = m().sign(30_023, 91, &[&["d", "an:article"]], "");
    let tags: &[&[&str]] =
        &[&["a", &o().repo("tool")], &["q", &n1.id.to_string()], &["q", &m().coordinate(30_023, "an:article")]];
    let issue = r().sign(kinds::ISSUE, 200, tags, "I");
    let comment = x().comment(201, &issue);
    let reaction = m().sign(7, 202, &[&["e", &comment.id.to_string()]], "+");
    for (event, expected) in [
        (&n1, UNRELATED),
        (&article, UNRELATED),
        (&comment, UNRELATED),
        (&issue, SERVED),
        (&n1, SERVED),
        (&reaction, UNRELATED),
        (&comment, SERVED),
        (&reaction, SERVED),
        (&x().issue(203, &Author::new(9).repo("other")), UNRELATED),
        (&article, SERVED),
        (&x().issue(203, &o().repo("held")), UNRELATED),
        (&x().note(203, &[&["r", "https://code.example/x"]], ""), UNRELATED),
    ] {
        says(&mut house, event, expected);
    }
    stands(&house, &[&announcement, &state, &n1, &issue, &comment, &reaction, &article], &[&waiting]);
}

#[test]
fn section_15_8_deletion() {
    let (mut house, announcement, os) = hosting(rules(), &[&m()]);
    let [at_90, at_95, at_101] = [(190, 'b'), (195, 'c'), (201, 'd')].map(|(at, digit)| main_at(&m(), at, digit));
    says(&mut house, &at_90, HELD);
    pushed(&mut house, &at_90, &o());
    says(&mut house, &at_95, HELD);
    says(&mut house, &at_101, HELD);
    stands(&house, &[&announcement, &os, &at_90], &[&at_95, &at_101]);
    let deletion = m().deletion(200, &[&["a", &m().coordinate(kinds::STATE, "tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&announcement, &os, &deletion], &[&at_101]);
    says(&mut house, &m().delete(202, &[&os]), FOREIGN);
    says(&mut house, &at_90, DELETED);
    stands(&house, &[&announcement, &os, &deletion], &[&at_101]);
}

// The rules of the registrar

#[test]
fn c1_nothing_waits_for_an_owner() {
    let mut house = House::default();
    for event in [
        main_at(&o(), 100, 'a'),
        o().unlisted("tool", 100, &[]),
        o().issue(100, &o().repo("tool")),
        o().pull_request(100, &[&o().repo("tool")], &oid('a')),
    ] {
        assert!(matches!(house.submit(&event), Verdict::Refuse(_)));
    }
    stands(&house, &[], &[]);
}

#[test]
fn c2_duplicates_are_fine_and_prefixes_belong_to_the_refusal() {
    for (known, text) in [
        (Known::Served, "duplicate: already have this event"),
        (Known::Held, "purgatory: already waiting for git data"),
        (Known::Superseded, "duplicate: superseded by a newer event"),
    ] {
        assert_eq!(Verdict::Known(known).answer(), (true, text.to_owned()));
    }
    for (refusal, prefix) in [
        (Refusal::NoAnnouncement, "invalid: "),
        (Refusal::NotMaintainer, "restricted: "),
        (Refusal::Unrelated, "restricted: "),
        (Refusal::Protected, "auth-required: "),
        (Refusal::TooFast, "rate-limited: "),
        (Refusal::StoreFailed, "error: "),
    ] {
        assert!(refusal.to_string().starts_with(prefix), "{refusal}");
    }
}

#[test]
fn f4_one_batch_sees_itself_and_fails_as_one() {
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    let mut house = House::default();
    let verdicts = house.submit_batch(&[&announcement, &state], false);
    assert_eq!(verdicts, [const { Verdict::Refuse(Refusal::StoreFailed) }; 2]);
    stands(&house, &[], &[]);
    says(&mut house, &state, NO_ANNOUNCEMENT);
    let verdicts = house.submit_batch(&[&announcement, &state], true);
    assert_eq!(verdicts.iter().map(said).collect::<Vec<_>>(), [HELD, HELD]);
    stands(&house, &[], &[&announcement, &state]);
    pushed(&mut house, &state, &o());
    // A failed deletion and what followed it in the batch never happened.
    let deletion = o().deletion(200, &[&["a", &o().repo("tool")]]);
    let again = o().listed(&service(), "tool", 201, &[]);
    house.submit_batch(&[&deletion, &again], false);
    stands(&house, &[&announcement, &state], &[]);
    says(&mut house, &again, SERVED);
    // Links are seen within a batch.
    let issue = x().issue(300, &o().repo("tool"));
    let comment = r().comment(301, &issue);
    let verdicts = house.submit_batch(&[&issue, &comment, &issue], true);
    assert_eq!(verdicts.iter().map(said).collect::<Vec<_>>(), [SERVED, SERVED, AGAIN]);
}

#[test]
fn f5_a_newer_state_whose_data_never_comes_hides_nothing() {
    for order in [[0, 1], [1, 0]] {
        let (mut house, announcement, _) = hosting(rules(), &[]);
        let states = [main_at(&o(), 200, 'b'), main_at(&o(), 300, 'c')];
        for nth in order {
            says(&mut house, &states[nth], HELD);
        }
        pushed(&mut house, &states[0], &o());
        stands(&house, &[&announcement, &states[0]], &[&states[1]]);
    }
}

#[test]
fn f5_a_withdrawal_is_remembered() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    says(&mut house, &o().unlisted("tool", 200, &[]), DELISTED);
    stands(&house, &[&state], &[]);
    house.restart();
    says(&mut house, &announcement, WITHDRAWN);
    says(&mut house, &o().listed(&service(), "tool", 199, &[]), WITHDRAWN);
    says(&mut house, &main_at(&o(), 201, 'b'), NO_ANNOUNCEMENT);
    let again = o().listed(&service(), "tool", 201, &[]);
    says(&mut house, &again, HELD);
    stands(&house, &[&state], &[&again]);
}

#[test]
fn f6_authority_walks_the_better_of_served_and_held() {
    // M's announcement elsewhere is served; its newer one here is held and lists R.
    let (mut house, a, s) = hosting(rules(), &[&m()]);
    let served = m().unlisted("tool", 200, &[&x()]);
    let held = m().listed(&service(), "tool", 201, &[&r()]);
    says(&mut house, &served, SERVED);
    says(&mut house, &main_at(&r(), 300, 'b'), NOT_MAINTAINER);
    says(&mut house, &held, HELD);
    stands(&house, &[&a, &s, &served], &[&held]);
    says(&mut house, &main_at(&x(), 300, 'b'), NOT_MAINTAINER);
    let state = main_at(&r(), 300, 'b');
    says(&mut house, &state, HELD);
    // Links count what is served only; the version elsewhere is.
    says(&mut house, &x().issue(301, &m().repo("tool")), SERVED);
    says(&mut house, &x().note(301, &[&["e", &held.id.to_string()]], ""), UNRELATED);
    pushed(&mut house, &state, &m());
    assert_eq!(house.memory().whereabouts(&served).0, None);
    assert!(house.sets().0.is_superset(&BTreeSet::from([held.id, state.id])));
}

#[test]
fn f7_exceptions_live_as_long_as_their_chain() {
    let exceptions = [m().unlisted("tool", 200, &[&r()]), r().unlisted("tool", 201, &[])];
    let enter = |house: &mut House| {
        for exception in &exceptions {
            says(house, exception, SERVED);
        }
    };
    // The anchor expires unserved.
    let mut house = House::default();
    says(&mut house, &o().listed(&service(), "tool", 100, &[&m()]), HELD);
    enter(&mut house);
    house.advance(limits::PURGATORY_SECS);
    stands(&house, &[], &[]);
    // It is deleted.
    let (mut house, _, state) = hosting(rules(), &[&m()]);
    enter(&mut house);
    let deletion = o().deletion(300, &[&["a", &o().repo("tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&state, &deletion], &[]);
    // It is replaced by one that lists M no more.
    let (mut house, _, state) = hosting(rules(), &[&m()]);
    enter(&mut house);
    let alone = o().listed(&service(), "tool", 300, &[]);
    says(&mut house, &alone, SERVED);
    stands(&house, &[&alone, &state], &[]);
    // The middle of the chain changes its mind: R goes, M stays.
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    enter(&mut house);
    let changed = m().unlisted("tool", 300, &[]);
    says(&mut house, &changed, SERVED);
    stands(&house, &[&announcement, &state, &changed], &[]);
    // Another anchor keeps them.
    let (mut house, _, state) = hosting(rules(), &[&m()]);
    enter(&mut house);
    let other = x().listed(&service(), "tool", 250, &[&m()]);
    says(&mut house, &other, HELD);
    let alone = o().listed(&service(), "tool", 300, &[]);
    says(&mut house, &alone, SERVED);
    stands(&house, &[&alone, &state, &exceptions[0], &exceptions[1]], &[&other]);
}

#[test]
fn f8_strangers_mint_no_tombstones() {
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    let unknown = format!("{:064x}", 7);
    says(&mut house, &x().deletion(200, &[&["e", &unknown]]), UNRELATED);
    says(&mut house, &x().deletion(200, &[&["a", &x().repo("tool")]]), UNRELATED);
    says(&mut house, &x().deletion(200, &[&["a", &o().repo("tool")]]), UNRELATED);
    // A maintainer without anything here.
    let named = m().deletion(200, &[&["a", &m().coordinate(kinds::STATE, "tool")]]);
    says(&mut house, &named, SERVED);
    // Who has something here may delete what has not come yet.
    let early = o().deletion(200, &[&["e", &unknown]]);
    says(&mut house, &early, SERVED);
    stands(&house, &[&announcement, &state, &named, &early], &[]);
}

#[test]
fn f8_nothing_is_taken_along_by_a_deletion() {
    let (mut house, _, state) = hosting(rules(), &[]);
    let issue = x().issue(200, &o().repo("tool"));
    says(&mut house, &issue, SERVED);
    let deletion = o().deletion(300, &[&["a", &o().repo("tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&state, &issue, &deletion], &[]);
}

#[test]
fn f10_a_state_that_git_could_never_hold_waits_unasked() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    house.looks();
    let bad = [
        o().state("tool", 200, &[("refs/heads/main", "abc123")]),
        o().state("tool", 201, &[("refs/heads/a..b", &oid('a'))]),
        o().state("tool", 202, &[("refs/heads/a", &oid('a')), ("refs/heads/a/b", &oid('a'))]),
        o().state("tool", 203, &[("refs/heads/main", &"0".repeat(40))]),
    ];
    for event in &bad {
        says(&mut house, event, HELD);
    }
    assert_eq!(house.looks(), []);
    stands(&house, &[&announcement, &state], &bad.each_ref());
    house.advance(limits::PURGATORY_SECS);
    stands(&house, &[&announcement, &state], &[]);
}

#[test]
fn f11_downtime_and_clock_steps_kill_nothing() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    says(&mut house, &announcement, HELD);
    // A step of the wall clock by a day, both ways.
    for wall in [100_000, 1_000, 10_000] {
        house.set_wall(Timestamp(wall));
        stands(&house, &[], &[&announcement]);
    }
    // A day of downtime: five minutes are left.
    house.set_wall(Timestamp(10_000 + 86_400));
    house.restart();
    house.advance(limits::PURGATORY_GRACE_SECS - 1);
    stands(&house, &[], &[&announcement]);
    house.advance(1);
    stands(&house, &[], &[]);
    // A clock that went back does not make the wait longer than it may be.
    says(&mut house, &announcement, HELD);
    house.set_wall(Timestamp(1_000));
    house.restart();
    house.advance(limits::PURGATORY_SECS);
    stands(&house, &[], &[]);
    // A short restart keeps the deadline.
    says(&mut house, &announcement, HELD);
    house.advance(600);
    house.restart();
    house.advance(limits::PURGATORY_SECS - 601);
    stands(&house, &[], &[&announcement]);
    house.advance(1);
    stands(&house, &[], &[]);
}

#[test]
fn open_mode_takes_any_valid_event() {
    let mut house = House::new(Rules { mode: Mode::Open, ..rules() });
    let note = x().note(100, &[], "hello");
    let announcement = o().unlisted("tool", 100, &[]);
    let newer = o().unlisted("tool", 101, &[]);
    let state = main_at(&o(), 100, 'a');
    for event in [&note, &announcement, &state, &newer] {
        says(&mut house, event, SERVED);
    }
    says(&mut house, &announcement, OLD);
    let deletion = x().delete(200, &[&note]);
    says(&mut house, &deletion, SERVED);
    says(&mut house, &note, DELETED);
    let other_relay = o().vanish(200, &["wss://other.example"]);
    says(&mut house, &other_relay, SERVED);
    stands(&house, &[&state, &newer, &deletion, &other_relay], &[]);
    let vanish = o().vanish(201, &["ALL_RELAYS"]);
    says(&mut house, &vanish, SERVED);
    stands(&house, &[&deletion, &other_relay, &vanish], &[]);
    says(&mut house, &newer, VANISHED);
}
