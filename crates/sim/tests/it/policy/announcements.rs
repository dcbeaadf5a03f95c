//! Which announcements are accepted: forgeries, bounds, listing, maintainer exception, replacement, identifiers.

use grasp_core::disk_budget::Quotas;

use super::common::*;

/// An event with a wrong id or signature is answered `OK false "invalid: …"` and never stored
/// (docs/protocol.md#answers-and-prefixes).
#[test]
fn event_with_wrong_id_or_signature_is_rejected_and_not_stored() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let good = owner().issue(200, &owner().repo("tool"));
    let mut wrong_id = good.event().clone();
    wrong_id.content.push('!');
    let mut wrong_signature = good.event().clone();
    wrong_signature.sig[0] ^= 1;
    let mut wrong_author = good.event().clone();
    wrong_author.pubkey = maintainer().key();
    for forged in [wrong_id, wrong_signature, wrong_author] {
        assert_reply(&reply_text(&server.receive(forged)), "false invalid: …");
    }
    expect_events(&server, &[&announcement, &state], &[]);
    assert_reply(&reply_text(&server.receive(good.event().clone())), SERVED);
    expect_events(&server, &[&announcement, &state, &good], &[]);
}

/// Every `OK false` has a machine-readable prefix (docs/protocol.md#answers-and-prefixes).
#[test]
fn every_rejection_has_a_machine_readable_prefix() {
    use grasp_core::nostr::event::EventParseError;
    use grasp_core::nostr::signed_event::VerifyError;
    for rejection in [
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
        Rejection::NotListed { clone: String::new(), relay: String::new() },
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
        Rejection::TooManyHeldFromNetwork,
        Rejection::PurgatoryFull,
        Rejection::TooManyEarlyRequests,
        Rejection::RateLimited,
        Rejection::DiskFull,
        Rejection::NoNewRepositories,
        Rejection::TooManyRepositories(5),
        Rejection::TooManyExceptions,
        Rejection::TooManyWithIdentifier,
        Rejection::StoreFailed,
    ] {
        let (ok, text) = Decision::Reject(rejection.clone()).ok_reply();
        let prefix = text.split_once(": ").map(|(prefix, _)| prefix);
        let known = ["invalid", "restricted", "rate-limited", "auth-required", "error", "blocked", "pow"];
        assert!(!ok && prefix.is_some_and(|prefix| known.contains(&prefix)), "{rejection:?}: {text}");
    }
}

/// The number of events that one author can have in purgatory is bounded (docs/design/admission.md#bounds).
#[test]
fn held_events_per_author_are_bounded() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let repo = owner().repo("tool");
    for nth in 0..limits::MAX_HELD_EVENTS_PER_AUTHOR as u64 {
        assert!(matches!(server.submit(&outsider().pull_request(1_000 + nth, &[&repo], &oid('b'))), Decision::Hold(_)));
    }
    expect_reply(&mut server, &outsider().pull_request(5_000, &[&repo], &oid('b')), "false rate-limited: …");
    expect_reply(&mut server, &nested_maintainer().pull_request(5_000, &[&repo], &oid('b')), HELD_FOR_COMMIT);
    let (served, held) = server.event_ids();
    assert_eq!(served, BTreeSet::from([announcement.id, state.id]));
    assert_eq!(held.len(), limits::MAX_HELD_EVENTS_PER_AUTHOR + 1);
}

// Which announcements are accepted

/// An announcement must name this service in both `clone` and `relays`
/// (docs/protocol.md#announcements-which-repositories-are-hosted).
#[test]
fn announcement_must_name_this_service_in_clone_and_relays() {
    let clone = format!("https://code.example/{}", owner().repo_id("tool").path());
    for (tags, expected) in [
        (owned_tags(&[&["clone", &clone], &["relays", "wss://code.example"]]), HELD),
        (
            owned_tags(&[
                &["clone", "https://b.example/x.git", &clone],
                &["relays", "wss://b.example", "ws://code.example/"],
            ]),
            HELD,
        ),
        (owned_tags(&[&["clone", &clone]]), NOT_LISTED),
        (owned_tags(&[&["relays", "wss://code.example"]]), NOT_LISTED),
        (owned_tags(&[&["clone", &clone], &["relays", "wss://b.example"]]), NOT_LISTED),
        (owned_tags(&[&["clone", "https://b.example/x.git"], &["relays", "wss://code.example"]]), NOT_LISTED),
        (owned_tags(&[&["web", &clone], &["r", "wss://code.example"]]), NOT_LISTED),
        (owned_tags(&[]), NOT_LISTED),
    ] {
        let mut server = TestServer::default();
        let mut all = owned_tags(&[&["d", "tool"]]);
        all.extend(tags);
        let announcement = owner().sign_owned(kinds::ANNOUNCEMENT, 100, all, "");
        expect_reply(&mut server, &announcement, expected);
        let held: &[&Arc<SignedEvent>] = if expected == HELD { &[&announcement] } else { &[] };
        expect_events(&server, &[], held);
    }
}

/// The rejection of an announcement that names other URLs contains the expected ones, encoded as in a URL.
#[test]
fn rejected_announcement_is_told_the_expected_urls() {
    let mut server = TestServer::default();
    let announcement = owner().announcement_elsewhere("my tool", 100, &[]);
    let npub = owner().key().npub();
    let expected = format!(
        "{}: clone https://code.example/{npub}/my%20tool.git relays wss://code.example",
        NOT_LISTED.trim_end_matches('…')
    );
    expect_reply(&mut server, &announcement, &expected);
}

/// The owner of the service may publish events without a link to a repository (docs/protocol.md#order-of-evaluation).
#[test]
fn events_of_the_service_owner_need_no_link() {
    let mut server = TestServer::new(AdmissionPolicy { owner: Some(outsider().key()), ..default_policy() });
    let note = outsider().note(100, &[], "news");
    expect_reply(&mut server, &note, SERVED);
    expect_reply(&mut server, &outsider().announcement_elsewhere("tool", 100, &[]), NOT_LISTED);
    expect_reply(&mut server, &nested_maintainer().note(100, &[], "no news"), UNRELATED);
    expect_events(&server, &[&note], &[]);
}

/// Maintainer exception: an announcement that does not name this service is accepted if a maintainer of a hosted
/// repository of the same identifier names its author, and served with that repository; no repository is created for it
/// (docs/protocol.md#maintainer-exception).
#[test]
fn announcement_by_maintainer_exception_is_served_but_not_hosted() {
    // O's announcement is only held; M is listed by O, R by M.
    let mut server = TestServer::default();
    let (a, b, c) = (
        owner().announcement(&service(), "tool", 100, &[&maintainer()]),
        maintainer().announcement_elsewhere("tool", 101, &[&nested_maintainer()]),
        nested_maintainer().announcement_elsewhere("tool", 102, &[]),
    );
    expect_reply(&mut server, &c, NOT_LISTED);
    expect_reply(&mut server, &b, NOT_LISTED);
    expect_reply(&mut server, &a, HELD);
    expect_reply(&mut server, &c, NOT_LISTED);
    expect_reply(&mut server, &b, INVITED);
    expect_reply(&mut server, &c, INVITED);
    expect_events(&server, &[], &[&a, &b, &c]);
    let group = server.admission().catalog().group(&owner().repo_id("tool").identifier).expect("known");
    assert!(
        group.is_hosted(owner().key())
            && !group.is_hosted(maintainer().key())
            && !group.is_hosted(nested_maintainer().key())
    );
    // Neither another identifier nor an author whom no maintainer lists is an exception.
    expect_reply(&mut server, &maintainer().announcement_elsewhere("other", 103, &[&nested_maintainer()]), NOT_LISTED);
    expect_reply(&mut server, &outsider().announcement_elsewhere("tool", 103, &[&owner()]), NOT_LISTED);
    // Events cannot refer to announcements that are only held.
    let note = outsider().note(104, &[&["e", &b.id.to_string()]], "");
    expect_reply(&mut server, &note, UNRELATED);
    expect_reply(&mut server, &outsider().issue(104, &maintainer().repo("tool")), UNRELATED);
    expect_events(&server, &[], &[&a, &b, &c]);
    server.restart();
    // The chain is authoritative already, and served with the repository.
    let state = main_state(&nested_maintainer(), 105, 'a');
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &owner());
    expect_events(&server, &[&a, &b, &c, &state], &[]);
    expect_reply(&mut server, &note, SERVED);
    server.restart();
    expect_reply(&mut server, &owner().delete(200, &[&a]), SERVED);
    assert_eq!(server.store().status_and_tombstone(&b).0, None);
    assert_eq!(server.store().status_and_tombstone(&c).0, None);
}

/// An announcement that waits for a repository that names its author is replaced by newer ones, ends hosting, and counts
/// as no repository of its author (docs/protocol.md#maintainer-exception).
#[test]
fn held_announcement_by_maintainer_exception_is_replaced() {
    let quotas = Quotas { repositories_per_key: Some(1), ..Quotas::default() };
    let mut server = TestServer::new(AdmissionPolicy { quotas, ..default_policy() });
    let own = maintainer().announcement(&service(), "tool", 100, &[]);
    let a = owner().announcement(&service(), "tool", 100, &[&maintainer()]);
    let [older, newer] = [101, 102].map(|at| maintainer().announcement_elsewhere("tool", at, &[]));
    expect_reply(&mut server, &own, HELD);
    expect_reply(&mut server, &a, HELD);
    expect_reply(&mut server, &older, INVITED);
    expect_events(&server, &[], &[&a, &older]);
    expect_reply(&mut server, &own, WITHDRAWN);
    expect_reply(&mut server, &newer, INVITED);
    expect_reply(&mut server, &older, SUPERSEDED);
    expect_events(&server, &[], &[&a, &newer]);
    expect_reply(&mut server, &maintainer().announcement(&service(), "other", 103, &[]), HELD);
    let again = maintainer().announcement(&service(), "tool", 103, &[]);
    expect_reply(&mut server, &again, "false restricted: repository quota reached…");
}

/// Reciprocal rule: until a listed maintainer lists a member back, it is only invited. Its announcement is served by
/// the maintainer exception, but its states are rejected (docs/protocol.md#reciprocal-rule).
#[test]
fn announcement_of_an_invited_maintainer_is_served_under_the_reciprocal_rule() {
    let role = |author: &Author| vec![vec!["m".to_owned(), author.hex()]];
    let plain = |author: &Author| vec![vec!["maintainers".to_owned(), author.hex()]];
    for (rules, tags) in [(default_policy(), role(&maintainer())), (strict_policy(), plain(&maintainer()))] {
        let mut server = TestServer::new(rules);
        let announcement = owner().announcement_with(&service(), "tool", 100, tags);
        let invited = maintainer().announcement_elsewhere("tool", 101, &[]);
        let member = maintainer().announcement_elsewhere("tool", 102, &[&owner()]);
        expect_reply(&mut server, &announcement, HELD);
        expect_reply(&mut server, &invited, INVITED);
        expect_reply(&mut server, &main_state(&maintainer(), 103, 'a'), NOT_MAINTAINER);
        expect_reply(&mut server, &member, INVITED);
        expect_reply(&mut server, &main_state(&maintainer(), 103, 'a'), HELD);
    }
}

/// The lead maintainer (role tag `M`) may be hosted elsewhere; its announcement is served by the maintainer exception
/// and decides who is a member (docs/protocol.md#role-tags).
#[test]
fn lead_maintainer_may_be_hosted_elsewhere() {
    for lists_back in [true, false] {
        let mut server = TestServer::default();
        let announcement =
            owner().announcement_with(&service(), "tool", 100, owned_tags(&[&["M", &maintainer().hex()]]));
        let mut roles = owned_tags(&[&["M", &maintainer().hex()]]);
        if lists_back {
            roles.extend(owned_tags(&[&["m", &owner().hex()]]));
        }
        let lead = maintainer().announcement_elsewhere_with("tool", 101, roles);
        expect_reply(&mut server, &announcement, HELD);
        expect_reply(&mut server, &main_state(&maintainer(), 102, 'a'), NOT_MAINTAINER);
        expect_reply(&mut server, &lead, INVITED);
        let (state, own) = (main_state(&maintainer(), 102, 'a'), main_state(&owner(), 102, 'a'));
        expect_reply(&mut server, &state, HELD);
        expect_reply(&mut server, &own, if lists_back { HELD } else { NOT_MAINTAINER });
        add_git_data(&mut server, &state, &owner());
        assert!(server.event_ids().0.is_superset(&BTreeSet::from([announcement.id, lead.id, state.id])));
    }
}

/// A maintainer who leaves with an `o` tag loses its authority; the announcement that says so stays served
/// (docs/protocol.md#role-tags).
#[test]
fn maintainer_who_left_has_no_authority() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
    let left = maintainer().announcement_elsewhere_with("tool", 200, owned_tags(&[&["o", &maintainer().hex()]]));
    expect_reply(&mut server, &left, SERVED);
    expect_events(&server, &[&announcement, &state, &left], &[]);
    expect_reply(&mut server, &main_state(&maintainer(), 201, 'b'), NOT_MAINTAINER);
}

/// Order of evaluation: deletion first, then the identifier, then the listing (docs/protocol.md#order-of-evaluation).
#[test]
fn identifier_is_checked_before_listing() {
    let mut server = TestServer::default();
    expect_reply(&mut server, &owner().announcement_elsewhere("..", 100, &[]), INVALID_IDENTIFIER);
    // Deletion is checked before both.
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let deletion = owner().deletion(200, &[&["a", &owner().repo("tool")]]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_reply(&mut server, &owner().announcement_elsewhere("tool", 150, &[]), DELETED);
    expect_reply(&mut server, &announcement, DELETED);
    expect_events(&server, &[&deletion], &[&state]);
}

/// A newer announcement that no longer names this service ends hosting, even if its author is a maintainer of another
/// repository here (docs/protocol.md#de-listing-and-withdrawal).
#[test]
fn delisting_ends_hosting_also_for_a_maintainer() {
    // M has its own hosted repository. O lists M, so that M's announcement elsewhere is accepted by the exception.
    let (mut server, a, s) = hosting_server(default_policy(), &[&maintainer()]);
    let hosted = maintainer().announcement(&service(), "tool", 200, &[]);
    let delisted = maintainer().announcement_elsewhere("tool", 300, &[]);
    expect_reply(&mut server, &hosted, HELD);
    let state = main_state(&maintainer(), 201, 'b');
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &maintainer());
    expect_events(&server, &[&a, &s, &hosted, &state], &[]);
    expect_reply(&mut server, &delisted, SERVED);
    expect_events(&server, &[&a, &s, &delisted, &state], &[]);
    let group = server.admission().catalog().group(&owner().repo_id("tool").identifier).expect("known");
    assert!(!group.is_hosted(maintainer().key()), "the exception does not keep hosting");
    expect_reply(&mut server, &hosted, WITHDRAWN);
    expect_reply(&mut server, &maintainer().announcement(&service(), "tool", 301, &[]), HELD);
}

/// De-listing does not interrupt the chain of maintainers: an exception stays served while a maintainer still names its
/// author (docs/design/admission.md#maintainer-exception-announcements).
#[test]
fn delisting_keeps_nested_maintainer_exceptions() {
    // O lists M; M lists R, first here, then elsewhere: R is listed all the time.
    for served in [false, true] {
        let (mut server, a, s) = hosting_server(default_policy(), &[&maintainer()]);
        let here = maintainer().announcement(&service(), "tool", 200, &[&nested_maintainer()]);
        let exception = nested_maintainer().announcement_elsewhere("tool", 201, &[]);
        let elsewhere = maintainer().announcement_elsewhere("tool", 300, &[&nested_maintainer()]);
        let state = main_state(&maintainer(), 202, 'b');
        expect_reply(&mut server, &here, HELD);
        expect_reply(&mut server, &exception, INVITED);
        expect_reply(&mut server, &state, HELD);
        add_git_data(&mut server, &state, &if served { maintainer() } else { owner() });
        expect_reply(&mut server, &elsewhere, SERVED);
        expect_events(&server, &[&a, &s, &exception, &elsewhere, &state], &[]);
    }
}

/// A new announcement waits in purgatory, but its empty repository is hosted at once
/// (docs/protocol.md#announcements-which-repositories-are-hosted).
#[test]
fn new_announcement_is_held_and_hosted_at_once() {
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "my 🚀 repo", 100, &[]);
    expect_reply(&mut server, &announcement, HELD);
    expect_events(&server, &[], &[&announcement]);
    let repo = owner().repo_id("my 🚀 repo");
    assert!(server.admission().catalog().group(&repo.identifier).expect("known").is_hosted(repo.owner));
    assert_eq!(server.take_notifications().0, BTreeSet::from([repo.identifier]), "sync is notified");
}

/// A replacement of a served announcement is served at once (docs/protocol.md#replacement-of-an-announcement).
#[test]
fn replacement_of_a_served_announcement_is_served_at_once() {
    let (mut server, _, state) = hosting_server(default_policy(), &[]);
    let newer = owner().announcement(&service(), "tool", 200, &[&maintainer()]);
    expect_reply(&mut server, &newer, SERVED);
    expect_events(&server, &[&newer, &state], &[]);
    expect_reply(&mut server, &main_state(&maintainer(), 201, 'b'), HELD);
}

/// A replacement of a held announcement stays held and restarts the timer; an older version changes nothing
/// (docs/protocol.md#replacement-of-an-announcement).
#[test]
fn replacement_of_a_held_announcement_restarts_its_timer() {
    let mut server = TestServer::default();
    let [first, second, older] = [100, 200, 50].map(|at| owner().announcement(&service(), "tool", at, &[]));
    expect_reply(&mut server, &first, HELD);
    server.advance(limits::PURGATORY_EXPIRY_SECS - 10);
    expect_reply(&mut server, &second, HELD);
    expect_events(&server, &[], &[&second]);
    expect_reply(&mut server, &older, SUPERSEDED);
    expect_reply(&mut server, &first, SUPERSEDED);
    expect_events(&server, &[], &[&second]);
    server.advance(20);
    expect_events(&server, &[], &[&second]);
    server.advance(limits::PURGATORY_EXPIRY_SECS);
    expect_events(&server, &[], &[]);
}

/// A newer announcement that does not name this service evicts the held one; an older one cannot
/// (docs/protocol.md#de-listing-and-withdrawal).
#[test]
fn newer_announcement_elsewhere_evicts_the_held_one() {
    let mut server = TestServer::default();
    let held = owner().announcement(&service(), "tool", 100, &[]);
    let elsewhere = |wins: bool| {
        let mut tries = (0..).map(|nth: u32| {
            owner().announcement_elsewhere_with("tool", 100, owned_tags(&[&["name", &nth.to_string()]]))
        });
        tries.find(|event| (event.id < held.id) == wins).expect("half of the tries succeed")
    };
    expect_reply(&mut server, &held, HELD);
    expect_reply(&mut server, &owner().announcement_elsewhere("tool", 99, &[]), NOT_LISTED);
    expect_reply(&mut server, &elsewhere(false), NOT_LISTED);
    expect_events(&server, &[], &[&held]);
    // In the same second the lower id wins.
    expect_reply(&mut server, &elsewhere(true), DELISTED);
    expect_events(&server, &[], &[]);
    expect_reply(&mut server, &held, WITHDRAWN);
    let again = owner().announcement(&service(), "tool", 102, &[]);
    expect_reply(&mut server, &again, HELD);
    expect_events(&server, &[], &[&again]);
}

/// An announcement whose git data is already on this server is filled and released at once (docs/protocol.md#release).
#[test]
fn served_state_releases_other_announcements_it_is_authoritative_for() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let follower = outsider().announcement(&service(), "tool", 200, &[&owner()]);
    expect_reply(&mut server, &follower, HELD);
    // Git has aligned X's repository with O's state, which is authoritative there.
    add_git_data(&mut server, &state, &outsider());
    expect_events(&server, &[&announcement, &state, &follower], &[]);
}

// Matching of URLs and identifiers

/// URLs are compared by scheme, host, port and path, never by substring; the clone URL must name the author's npub and
/// the identifier (docs/protocol.md#listing-which-urls-name-this-service).
#[test]
fn clone_url_must_name_this_service_and_repository() {
    let based =
        AdmissionPolicy { service: ServiceAddress::new("code.example", "/g").expect("valid"), ..default_policy() };
    let (npub, other) = (owner().key().npub(), maintainer().key().npub());
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
        let mut server = TestServer::new(based.clone());
        let tags: &[&[&str]] = &[&["d", "tool"], &["clone", &clone], &["relays", relay]];
        expect_reply(&mut server, &owner().sign(kinds::ANNOUNCEMENT, 100, tags, ""), expected);
    }
}

/// An identifier that is empty, `.`, `..`, too long, or contains `/`, `\` or a control character is rejected
/// (docs/protocol.md#identifiers-and-paths).
#[test]
fn identifiers_that_cannot_be_paths_are_rejected() {
    let mut server = TestServer::default();
    for bad in ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "\u{85}", &"x".repeat(limits::MAX_IDENTIFIER_BYTES + 1)] {
        expect_reply(&mut server, &owner().announcement(&service(), bad, 100, &[]), INVALID_IDENTIFIER);
        expect_reply(&mut server, &owner().state(bad, 100, &[]), INVALID_IDENTIFIER);
    }
    expect_reply(&mut server, &owner().sign(kinds::ANNOUNCEMENT, 100, &[], ""), INVALID_IDENTIFIER);
    expect_reply(&mut server, &owner().sign(kinds::STATE, 100, &[&["d"]], ""), INVALID_IDENTIFIER);
    expect_events(&server, &[], &[]);
    let good = ["x.git", "a:b", "a@b+c%d#e?f", "UPPER", "HEAD", "%2e%2e", "..."];
    let announcements = good.map(|name| owner().announcement(&service(), name, 100, &[]));
    for announcement in &announcements {
        expect_reply(&mut server, announcement, HELD);
    }
    expect_events(&server, &[], &announcements.each_ref());
}
