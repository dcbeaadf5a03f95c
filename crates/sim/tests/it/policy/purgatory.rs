//! Section 2.8: what waits.

use grasp_core::admission::io::AdmissionInput;

use super::common::*;

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
    house.orders();
    says(&mut house, &pull, COMMIT);
    says(&mut house, &update, COMMIT);
    let pull_requests = |order: GitJob| match order.operation {
        GitOperation::Align(align) => {
            (order.repo_path, align.pull_requests.into_iter().map(|pull| (pull.event, pull.tip)).collect())
        }
        work => panic!("{work:?}"),
    };
    let asked: Vec<(RepoPath, Vec<_>)> = house.orders().into_iter().map(pull_requests).collect();
    let here = RepoPath::Announced(o().repo_id("tool"));
    assert_eq!(asked, [(here.clone(), vec![(pull.id, oid('b'))]), (here, vec![(update.id, oid('c'))])]);
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
    // An announcement waits for as long as a state that could release it.
    house.advance(30 * 60 - 1);
    stands(&house, &[], &[&announcement, &state]);
    house.advance(1);
    stands(&house, &[], &[]);
    pushed(&mut house, &state, &o());
    stands(&house, &[], &[]);
    says(&mut house, &announcement, HELD);
    house.advance(30 * 60 - 1);
    stands(&house, &[], &[&announcement]);
    house.advance(1);
    stands(&house, &[], &[]);
    // Somebody else's state does not help it.
    says(&mut house, &announcement, HELD);
    house.advance(60);
    let stranger = x().listed(&service(), "tool", 100, &[]);
    let theirs = main_at(&x(), 101, 'a');
    says(&mut house, &stranger, HELD);
    says(&mut house, &theirs, HELD);
    house.advance(30 * 60 - 60);
    stands(&house, &[], &[&stranger, &theirs]);
    pushed(&mut house, &theirs, &o());
    stands(&house, &[], &[&stranger, &theirs]);
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
    let more: Vec<_> = (0..limits::MAX_HELD_STATE_VERSIONS as u64).map(|nth| main_at(&o(), 300 + nth, 'e')).collect();
    for state in &more {
        says(&mut house, state, HELD);
    }
    let held: Vec<&Arc<SignedEvent>> = more.iter().chain([m2]).collect();
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
    let waiting = x().listed(&service(), "tool", 150, &[]);
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

#[test]
fn the_operator_lets_a_held_event_go_and_nothing_is_held_against_it() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    let newer = main_at(&o(), 200, 'b');
    let pull = x().pull_request(201, &[&o().repo("tool")], &oid('c'));
    let waiting = x().listed(&service(), "tool", 150, &[]);
    says(&mut house, &newer, HELD);
    says(&mut house, &pull, COMMIT);
    says(&mut house, &waiting, HELD);
    house.inform(AdmissionInput::HeldEventDropped(newer.id));
    stands(&house, &[&announcement, &state], &[&pull, &waiting]);
    // What is served does not wait.
    house.inform(AdmissionInput::HeldEventDropped(state.id));
    house.inform(AdmissionInput::HeldEventDropped(pull.id));
    house.inform(AdmissionInput::HeldEventDropped(waiting.id));
    stands(&house, &[&announcement, &state], &[]);
    house.restart();
    stands(&house, &[&announcement, &state], &[]);
    says(&mut house, &newer, HELD);
    pushed(&mut house, &newer, &o());
    stands(&house, &[&announcement, &newer], &[]);
}
