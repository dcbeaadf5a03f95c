//! Sections 2.1 to 2.4: forgeries, bounds, and which announcements are taken.

use super::common::*;

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
    use grasp_core::nostr::event::EventParseError;
    use grasp_core::nostr::signed_event::VerifyError;
    for refusal in [
        Rejection::Malformed(EventParseError::Hex("id")),
        Rejection::Forged(VerifyError::WrongId),
        Rejection::Forged(VerifyError::BadSignature),
        Rejection::TooLarge { bytes: 2, limit: 1 },
        Rejection::TooManyTags(1),
        Rejection::InFuture,
        Rejection::Expired,
        Rejection::Protected,
        Rejection::AuthEvent,
        Rejection::Deleted,
        Rejection::Vanished,
        Rejection::Withdrawn,
        Rejection::InvalidIdentifier,
        Rejection::NotListed,
        Rejection::Delisted,
        Rejection::NoAnnouncement,
        Rejection::NotMaintainer,
        Rejection::NoCommit,
        Rejection::Unrelated,
        Rejection::ForeignDeletionTarget,
        Rejection::DeletionTargetCount(0),
        Rejection::DeletionTargetCount(9_999),
        Rejection::NoVanishRelay,
        Rejection::OtherVanishRelay,
        Rejection::TooManyHeld,
        Rejection::PurgatoryFull,
        Rejection::RateLimited,
        Rejection::DiskFull,
        Rejection::NoNewRepositories,
        Rejection::TooManyRepositories(5),
        Rejection::StoreFailed,
    ] {
        let (ok, text) = Decision::Reject(refusal.clone()).ok_reply();
        let prefix = text.split_once(": ").map(|(prefix, _)| prefix);
        let known = ["invalid", "restricted", "rate-limited", "auth-required", "error", "blocked", "pow"];
        assert!(!ok && prefix.is_some_and(|prefix| known.contains(&prefix)), "{refusal:?}: {text}");
    }
}

#[test]
fn g1_05_g1_36_what_one_author_has_waiting_is_bounded() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let repo = o().repo("tool");
    for nth in 0..limits::MAX_HELD_EVENTS_PER_AUTHOR as u64 {
        assert!(matches!(house.submit(&x().pull_request(1_000 + nth, &[&repo], &oid('b'))), Decision::Hold(_)));
    }
    says(&mut house, &x().pull_request(5_000, &[&repo], &oid('b')), "false rate-limited: …");
    says(&mut house, &r().pull_request(5_000, &[&repo], &oid('b')), COMMIT);
    let (served, held) = house.sets();
    assert_eq!(served, BTreeSet::from([announcement.id, state.id]));
    assert_eq!(held.len(), limits::MAX_HELD_EVENTS_PER_AUTHOR + 1);
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
        let held: &[&Arc<SignedEvent>] = if expected == HELD { &[&announcement] } else { &[] };
        stands(&house, &[], held);
    }
}

#[test]
fn g1_07_the_owner_of_the_service_is_welcome_without_a_link() {
    let mut house = House::new(AdmissionPolicy { owner: Some(x().key()), ..rules() });
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
    let group = house.admission().catalog().group(&o().repo_id("tool").identifier).expect("known");
    assert!(group.is_hosted(o().key()) && !group.is_hosted(m().key()) && !group.is_hosted(r().key()));
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
    let group = house.admission().catalog().group(&o().repo_id("tool").identifier).expect("known");
    assert!(!group.is_hosted(m().key()), "the exception does not keep hosting");
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
    assert!(house.admission().catalog().group(&repo.identifier).expect("known").is_hosted(repo.owner));
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
    house.advance(limits::PURGATORY_EXPIRY_SECS - 10);
    says(&mut house, &second, HELD);
    stands(&house, &[], &[&second]);
    says(&mut house, &older, OLD);
    says(&mut house, &first, OLD);
    stands(&house, &[], &[&second]);
    house.advance(20);
    stands(&house, &[], &[&second]);
    house.advance(limits::PURGATORY_EXPIRY_SECS);
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
    let based = AdmissionPolicy { service: ServiceAddress::new("code.example", "/g").expect("valid"), ..rules() };
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
