//! Document 002 and rule B10, as far as the registrar decides: what is sought and where, how long it is waited for.

use grasp_core::admission::io::{AdmissionInput, EventSource};
use grasp_core::fetch::io::{FetchId, GitSource, WantedEvent, WantedKind};
use grasp_core::limits;
use grasp_sim::signer::owned;

use super::common::*;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

fn hunting() -> AdmissionPolicy {
    AdmissionPolicy { fetches_git_data: true, ..rules() }
}

fn relay() -> EventSource {
    EventSource::Relay("wss://other.example".to_owned())
}

/// An announcement that names other servers, too.
fn elsewhere(author: &Author, at: u64, more: &[&[&str]]) -> Arc<SignedEvent> {
    author.listed_with(&service(), "tool", at, owned(more))
}

fn needs(house: &House) -> Vec<(RepoPath, Vec<WantedEvent>)> {
    house.quarries(&name("tool")).into_iter().map(|data| (data.repo_path, data.events)).collect()
}

fn urls(need: &WantedEvent) -> Vec<(&str, bool)> {
    need.sources.iter().map(|GitSource { url, is_grasp }| (url.as_str(), *is_grasp)).collect()
}

fn name(text: &str) -> Identifier {
    Identifier::new(text).expect("names a repository")
}

#[test]
fn what_is_sought_is_what_held_events_name_and_where_their_maintainers_say() {
    let mut house = House::new(hunting());
    let npub = o().key().npub();
    let grasp = format!("https://grasp.example/{npub}/tool.git");
    let tags: &[&[&str]] = &[
        &["clone", "https://git.example/tool.git", &grasp, "https://code.example/elsewhere.git"],
        &["relays", "wss://grasp.example"],
        &["maintainers", &m().hex()],
    ];
    says(&mut house, &elsewhere(&o(), 100, tags), HELD);
    assert_eq!(needs(&house), [], "an announcement names no object");
    let theirs = m().listed_with(&service(), "tool", 100, owned(&[&["clone", "https://m.example/tool"]]));
    says(&mut house, &theirs, HELD);
    let state = main_at(&o(), 101, 'a');
    assert!(house.submit_from(&state, relay()).ok_reply().0);
    let found = needs(&house);
    let [(repo_path, sought)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(*repo_path, RepoPath::Announced(o().repo_id("tool")));
    let [need] = sought.as_slice() else { panic!("{sought:?}") };
    assert_eq!(
        (need.id, need.kind, need.oids.clone(), need.is_dormant),
        (state.id, WantedKind::State, vec![oid('a')], false)
    );
    let places = urls(need);
    assert_eq!(
        places,
        [("https://git.example/tool.git", false), (grasp.as_str(), true), ("https://m.example/tool", false)],
        "the whole set's, and not this service"
    );
    // Another member's state goes to the same place: one quarry for one set.
    let other = main_at(&m(), 102, 'b');
    assert!(house.submit_from(&other, relay()).ok_reply().0);
    let found = needs(&house);
    assert_eq!(
        found.iter().map(|(repo_path, needs)| (repo_path.clone(), needs.len())).collect::<Vec<_>>(),
        [(repo_path.clone(), 2)]
    );
}

#[test]
fn a_pull_request_is_sought_where_its_author_says_first() {
    let (mut house, ..) = hosting(hunting(), &[]);
    let repo = o().repo("tool");
    let tags: &[&[&str]] = &[&["a", &repo], &["c", &oid('c')], &["clone", "https://fork.example/x.git"]];
    let pull = x().sign(kinds::PULL_REQUEST, 200, tags, "");
    says(&mut house, &pull, COMMIT);
    let found = needs(&house);
    let [(_, sought)] = found.as_slice() else { panic!("{found:?}") };
    let [need] = sought.as_slice() else { panic!("{sought:?}") };
    assert_eq!((need.id, need.kind, need.oids.clone()), (pull.id, WantedKind::PullRequest, vec![oid('c')]));
    assert_eq!(urls(need)[0], ("https://fork.example/x.git", false));
    house.data_found(pull.id, o().repo_id("tool"));
    assert_eq!(needs(&house), []);
}

#[test]
fn a_client_has_three_minutes_and_a_relay_half_a_second() {
    let mut house = House::new(hunting());
    says(&mut house, &o().listed(&service(), "tool", 100, &[]), HELD);
    let (slow, fast) = (main_at(&o(), 101, 'a'), main_at(&o(), 102, 'b'));
    let due = |house: &House, event: &SignedEvent| {
        let found = needs(house);
        let need = found.iter().flat_map(|(_, needs)| needs).find(|need| need.id == event.id).expect("is sought");
        need.due.since(house.now().mono).as_millis()
    };
    says(&mut house, &slow, HELD);
    assert_eq!(due(&house, &slow), 180_000);
    assert!(house.submit_from(&fast, relay()).ok_reply().0);
    assert_eq!(due(&house, &fast), 500);
    assert_eq!(due(&house, &slow), 180_000, "each event has its own time");
    // Seen on a relay: it is served there, so its data exists.
    house.submit_from(&slow, relay());
    assert_eq!(due(&house, &slow), 500);
    house.submit(&slow);
    assert_eq!(due(&house, &slow), 500, "nothing puts it off again");
}

#[test]
fn b10_nothing_expires_before_everybody_was_asked() {
    let mut house = House::new(hunting());
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    house.advance(2 * HOUR);
    stands(&house, &[], &[&announcement, &state]);
    house.inform(AdmissionInput::FetchStarted(FetchId(1), vec![state.id]));
    house.inform(AdmissionInput::SourcesTried(vec![state.id]));
    house.advance(2 * HOUR);
    stands(&house, &[], &[&announcement, &state]);
    assert!(needs(&house).iter().all(|(_, needs)| !needs[0].is_dormant), "a fetch is under way");
    house.inform(AdmissionInput::FetchEnded(FetchId(1)));
    house.advance(2 * MINUTE);
    // It is the last word: it is looked for once an hour from now on, and its announcement stays with it.
    stands(&house, &[], &[&announcement, &state]);
    assert!(needs(&house)[0].1[0].is_dormant);
    house.advance(HOUR);
    house.restart();
    assert!(needs(&house)[0].1[0].is_dormant, "also after a restart");
    house.advance(limits::DORMANT_SECS - 2 * HOUR);
    stands(&house, &[], &[&announcement, &state]);
    house.advance(2 * HOUR);
    stands(&house, &[], &[]);
}

#[test]
fn b10_a_day_is_the_most() {
    let mut house = House::new(hunting());
    says(&mut house, &o().listed(&service(), "tool", 100, &[]), HELD);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &state, HELD);
    house.advance(limits::MAX_HELD_SECS - 2 * MINUTE);
    assert!(!needs(&house)[0].1[0].is_dormant);
    house.advance(4 * MINUTE);
    assert!(needs(&house)[0].1[0].is_dormant, "nobody was asked in a day");
}

#[test]
fn b10_what_was_replaced_does_not_lie_dormant_and_a_new_sighting_wakes() {
    let mut house = House::new(hunting());
    let announcement = o().listed(&service(), "tool", 100, &[]);
    says(&mut house, &announcement, HELD);
    let (old, new) = (main_at(&o(), 101, 'a'), main_at(&o(), 102, 'b'));
    says(&mut house, &old, HELD);
    says(&mut house, &new, HELD);
    house.inform(AdmissionInput::SourcesTried(vec![old.id, new.id]));
    house.advance(31 * MINUTE);
    stands(&house, &[], &[&announcement, &new]);
    assert!(needs(&house)[0].1[0].is_dormant);
    says(&mut house, &new, STILL);
    let need = needs(&house).remove(0).1.remove(0);
    assert!(!need.is_dormant);
    assert_eq!(need.due.since(house.now().mono).as_secs(), limits::FETCH_DELAY_CLIENT_SECS);
    house.inform(AdmissionInput::SourcesTried(vec![new.id]));
    house.advance(29 * MINUTE);
    assert!(!needs(&house)[0].1[0].is_dormant, "it has its half hour again");
    house.advance(2 * MINUTE);
    assert!(needs(&house)[0].1[0].is_dormant);
    pushed(&mut house, &new, &o());
    stands(&house, &[&announcement, &new], &[]);
    assert_eq!(needs(&house), []);
}

#[test]
fn without_a_hunt_everything_expires_as_ever() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    says(&mut house, &announcement, HELD);
    says(&mut house, &main_at(&o(), 101, 'a'), HELD);
    house.advance(30 * MINUTE);
    stands(&house, &[], &[]);
}
