//! Section 9: replacement, deletion, vanishing, expiration, protection.

use super::common::*;

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
    let (mut house, ..) = hosting(AdmissionPolicy { max_event_bytes: 2_000, ..rules() }, &[]);
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
    says(&mut house, &m().deletion(300, &[]), "false invalid: a deletion request must name its targets in e or a tags");
    says(&mut house, &m().deletion(300, &[&["p", "x"]]), "false invalid: a deletion request must name its targets…");
    let many = |count: usize| {
        let tags = (0..count).map(|nth| vec!["e".to_owned(), format!("{nth:064x}")]).collect();
        m().sign_owned(kinds::DELETION, 301, tags, "")
    };
    let (mut house, ..) = hosting(AdmissionPolicy { max_event_bytes: 1_000_000, ..rules() }, &[&m()]);
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
        (vec![], "false invalid: a request to vanish must name relays in relay tags"),
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
    for source in [EventSource::Client(vec![o().key()]), EventSource::Relay("wss://other.example".into())] {
        matches(&said(&house.submit_from(&protected, source)), PROTECTED);
    }
    stands(&house, &[&announcement, &state], &[]);
    for kind in [6, 16] {
        let repost = x().sign(kind, 201, &[&["a", &repo]], protected.json());
        matches(&said(&house.submit_from(&repost, EventSource::Client(vec![x().key()]))), PROTECTED);
    }
    let harmless = x().sign(6, 201, &[&["a", &repo]], announcement.json());
    says(&mut house, &harmless, SERVED);
    let author = EventSource::Client(vec![o().key(), x().key()]);
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
