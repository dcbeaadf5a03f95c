//! Rounds: who is asked, in which order, how, and when again.

use super::rig::{Rig, site, urls};
use crate::fetch::Outcome;
use crate::fetch::io::{Catch, End, Form, Input, Output, Quarry};
use crate::net::{Forbidden, Reach};
use crate::state_machine::Machine;

const ONE: &str = "https://one.example/r.git";
const TWO: &str = "https://two.example/r.git";
const GRASP: &str = "https://grasp.example/npub/r.git";

#[test]
fn grasp_servers_first_then_the_lucky_ones() {
    let mut rig = Rig::new();
    // Two has had something before, one has not.
    for (name, url, end) in [("p", "https://one.example/p.git", &[][..]), ("q", "https://two.example/q.git", &["a"])] {
        let need = rig.need(9, &["a"], &[url]);
        rig.want(9, name, vec![need]);
        let fetch = rig.fetch();
        rig.sent(fetch.id, end);
        rig.unwant(name);
    }
    let need = rig.need(1, &["a"], &[ONE, TWO, GRASP]);
    rig.want(1, "r", vec![need]);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let fetch = rig.fetch();
        asked.push((fetch.target.to_string(), fetch.form));
        rig.end(fetch.id, End::Absent);
    }
    assert_eq!(asked, [(GRASP.to_owned(), Form::Oids), (TWO.to_owned(), Form::Refs), (ONE.to_owned(), Form::Refs)]);
}

#[test]
fn refs_after_not_by_oid_in_the_same_round_and_remembered() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a", "b"], &[GRASP]);
    rig.want(1, "r", vec![need]);
    let first = rig.fetch();
    assert_eq!(first.form, Form::Oids);
    rig.end(first.id, End::NotByOid);
    assert!(rig.tried().is_empty());
    let second = rig.fetch();
    assert_eq!((second.form, second.oids.len()), (Form::Refs, 2));
    rig.sent(second.id, &["a"]);
    assert_eq!((rig.tried(), rig.hunter.view().quarries[0].attempts), (vec![1], 1));
    assert_eq!(rig.hunter.host_views()[0].requests, 2, "a new slot");
    rig.pass(20_000);
    let third = rig.fetch();
    assert_eq!((third.form, third.oids), (Form::Refs, vec!["b".to_owned()]));
    // It outlives the quarry for a while.
    rig.unwant("r");
    rig.end(third.id, End::Cancelled);
    let need = rig.need(2, &["c"], &[GRASP]);
    rig.want(1, "r", vec![need]);
    rig.pass(20_000);
    assert_eq!(rig.fetch().form, Form::Refs);
}

#[test]
fn a_second_server_when_the_first_is_silent_or_slow() {
    for (answering, millis) in [(false, 5_000), (true, 30_000)] {
        let mut rig = Rig::new();
        let need = rig.need(1, &["a"], &[ONE, TWO, "https://three.example/r.git"]);
        rig.want(1, "r", vec![need]);
        let one = rig.fetch();
        rig.pass(1_000);
        if answering {
            rig.tell(Input::Answering(one.id));
        }
        rig.pass(millis - 1_001);
        assert!(rig.fetches().is_empty());
        rig.pass(1);
        let two = rig.fetch();
        assert_eq!(urls(std::slice::from_ref(&two)), [TWO]);
        rig.pass(3_600_000);
        assert!(rig.fetches().is_empty(), "two at once are enough");
        rig.sent(two.id, &["a"]);
        assert_eq!(rig.cancelled(), [one.id]);
        rig.end(one.id, End::Cancelled);
        assert!(rig.fetches().is_empty());
    }
}

#[test]
fn the_slower_one_goes_on_while_it_may_bring_something() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a", "b"], &[ONE, TWO]);
    rig.want(1, "r", vec![need]);
    let one = rig.fetch();
    rig.pass(5_000);
    let two = rig.fetch();
    rig.sent(two.id, &["a"]);
    assert!(rig.cancelled().is_empty());
    rig.sent(one.id, &["a", "b"]);
    assert_eq!(rig.hunter.view().quarries[0].missing, 0);
}

#[test]
fn want_replaces() {
    let mut rig = Rig::new();
    let old = rig.need(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![old]);
    let fetch = rig.fetch();
    // The state is superseded while its objects are on their way.
    rig.pass(1_000);
    let new = rig.need(2, &["b"], &[ONE]);
    rig.want(1, "r", vec![new]);
    assert_eq!(rig.cancelled(), [fetch.id]);
    rig.end(fetch.id, End::Cancelled);
    assert!(rig.fetches().is_empty(), "the same URL twice within twenty seconds");
    rig.pass(19_000);
    assert_eq!(rig.fetch().oids, ["b"]);
}

#[test]
fn what_comes_during_a_fetch_is_asked_for_after_it() {
    let mut rig = Rig::new();
    let old = rig.need(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![old.clone()]);
    let fetch = rig.fetch();
    let new = rig.need(2, &["b"], &[ONE]);
    rig.pass(2_000);
    rig.want(1, "r", vec![old, new.clone()]);
    rig.pass(1_000);
    assert!(rig.cancelled().is_empty() && rig.fetches().is_empty());
    rig.sent(fetch.id, &["a"]);
    rig.want(1, "r", vec![new]);
    assert!(rig.tried().is_empty(), "the second was not asked for yet");
    rig.pass(17_000);
    assert_eq!(rig.fetch().oids, ["b"]);
}

#[test]
fn a_burst_is_one_round() {
    let mut rig = Rig::new();
    let mut needs = Vec::new();
    for event in 1..=4 {
        let mut need = rig.need(event, &[&format!("oid{event}")], &[ONE]);
        need.due = rig.now.mono.plus(std::time::Duration::from_millis(500));
        needs.push(need);
        rig.want(1, "r", needs.clone());
        rig.pass(150);
    }
    assert_eq!(rig.fetch().oids.len(), 4);
}

#[test]
fn an_owner_hurries_us_six_times_a_minute() {
    let mut rig = Rig::new();
    let mut needs = Vec::new();
    let mut rounds = 0;
    for event in 1..=60 {
        // Each event names a new host, so that only the owner's measure holds it back.
        needs.push(rig.need(event, &["a"], &[&format!("https://h{event}.example/r.git")]));
        rig.want(1, "r", needs.clone());
        for fetch in rig.fetches() {
            rounds += 1;
            rig.end(fetch.id, End::Absent);
        }
        rig.pass(1_000);
        for fetch in rig.fetches() {
            rounds += 1;
            rig.end(fetch.id, End::Absent);
        }
    }
    let asked = rig.hunter.host_views().iter().filter(|host| host.requests > 0).count();
    assert!((6..=10).contains(&asked), "{asked} of 60 in a minute ({rounds} fetches)");
}

#[test]
fn dormant_events_once_an_hour_and_last() {
    let mut rig = Rig::new();
    let mut need = rig.need(1, &["a"], &[ONE]);
    need.dormant = true;
    rig.want(1, "r", vec![need.clone()]);
    let mut times = Vec::new();
    for _ in 0..3 {
        let fetch = rig.fetch();
        times.push(rig.now.mono.0 / 60_000);
        rig.end(fetch.id, End::Absent);
        assert!(rig.tried().is_empty());
        rig.pass(59 * 60_000);
    }
    assert_eq!(times, [0, 59, 118]);
    let fetch = rig.fetch();
    rig.end(fetch.id, End::Absent);
    rig.pass(30_000);
    // Seen again.
    need.dormant = false;
    rig.want(1, "r", vec![need]);
    assert_eq!(rig.fetches().len(), 1);
}

#[test]
fn busy_puts_back_three_times_and_unsound_not_for_an_hour() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![need]);
    for nth in 0..3 {
        let fetch = rig.fetch();
        assert!(rig.tried().is_empty());
        rig.end(fetch.id, End::Busy(Some(30)));
        assert_eq!(rig.hunter.view().quarries[0].attempts, u32::from(nth == 2) + u32::from(nth < 2));
        rig.pass(29_999);
        assert!(rig.fetches().is_empty(), "{nth}");
        rig.pass(6_001);
    }
    assert_eq!(rig.tried(), [1]);
    for fetch in rig.fetches() {
        rig.end(fetch.id, End::Unsound);
    }
    rig.pass(3_600_000 - 60_000);
    assert!(rig.fetches().is_empty());
    assert_eq!(rig.hunter.view().quarries[0].stops[0].outcome, Some(Outcome::Unsound));
    rig.pass(90_000);
    assert_eq!(rig.fetches().len(), 1);
}

#[test]
fn trouble_of_our_own_blames_nobody() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE, TWO]);
    rig.want(1, "r", vec![need]);
    let fetch = rig.fetch();
    rig.end(fetch.id, End::Ours);
    rig.pass(59_999);
    assert!(rig.fetches().is_empty() && rig.tried().is_empty());
    rig.pass(1);
    assert_eq!(urls(&rig.fetches()), [ONE]);
    assert_eq!(rig.hunter.host_views()[0].luck, (0, 0));
}

#[test]
fn what_is_not_called_is_said_once_and_counts_as_tried() {
    let mut rig = Rig::with(crate::fetch::Manners { reach: Reach::Global, ..super::rig::manners() });
    let places = ["https://10.0.0.1/r.git", "ssh://git.one.com/r.git", "https://git.one.com/r?x"];
    let need = rig.need(1, &["a"], &places);
    rig.want(1, "r", vec![need.clone()]);
    let other = rig.need(2, &["b"], &places);
    rig.want(1, "r", vec![need, other]);
    let shunned: Vec<Forbidden> =
        rig.out.iter().filter_map(|out| if let Output::Shun(_, _, why) = out { Some(*why) } else { None }).collect();
    assert_eq!(shunned.len(), 3);
    assert!(matches!(shunned[..], [Forbidden::Address(..), Forbidden::Scheme, Forbidden::Query]));
    assert_eq!(rig.tried(), [1, 2]);
    assert_eq!(rig.hunter.alarm(), None, "nothing to wait for");
}

#[test]
fn hurry_asks_at_once() {
    let mut rig = Rig::new();
    let mut need = rig.need(1, &["a"], &[ONE]);
    need.due = rig.now.mono.plus_secs(180);
    rig.want(1, "r", vec![need]);
    rig.tell(Input::Hurry(site(1, "r")));
    let fetch = rig.fetch();
    rig.end(fetch.id, End::Absent);
    rig.pass(21_000);
    for fetch in rig.fetches() {
        rig.end(fetch.id, End::Absent);
    }
    rig.pass(20_500);
    assert!(rig.fetches().is_empty());
    rig.tell(Input::Hurry(site(1, "r")));
    assert_eq!(rig.fetches().len(), 1);
}

#[test]
fn what_came_and_is_still_wanted_is_asked_for_again() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE, TWO]);
    rig.want(1, "r", vec![need]);
    let fetch = rig.fetch();
    rig.sent(fetch.id, &["a"]);
    assert!(rig.tried().is_empty());
    rig.pass(20_000);
    assert_eq!(rig.tried(), [1]);
    assert_eq!(rig.fetch().oids, ["a"]);
}

#[test]
fn answers_that_nobody_waits_for_change_nothing() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![need.clone()]);
    let fetch = rig.fetch();
    rig.end(fetch.id, End::Absent);
    rig.end(fetch.id, End::Busy(None));
    rig.tell(Input::Answering(fetch.id));
    assert_eq!(rig.hunter.view().quarries[0].stops[0].outcome, Some(Outcome::Absent));
    // A quarry under another's name, or named twice, is taken once and where it belongs.
    let quarry = Quarry { site: site(1, "other"), needs: vec![need] };
    rig.tell(Input::Wanted(site(1, "r").identifier().clone(), vec![quarry]));
    assert_eq!(rig.hunter.queue_size(), 0);
    rig.tell(Input::Fetched(fetch.id, Catch { oids: Vec::new(), end: End::Ours }));
    assert_eq!(rig.hunter.alarm(), None);
}
