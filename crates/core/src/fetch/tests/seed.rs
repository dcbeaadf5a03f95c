//! The unit cases of 002, by name.

use super::rig::{Rig, site, urls};
use crate::fetch::io::{End, Output};
use crate::state_machine::Machine;

const ONE: &str = "https://one.example/r.git";
const TWO: &str = "https://two.example/r.git";
const THREE: &str = "https://three.example/r.git";

/// Takes all slots of a host with other repositories. Gives the fetches.
fn occupy(rig: &mut Rig, host: &str) -> Vec<crate::fetch::io::Fetch> {
    for n in 0..5_u8 {
        let need = rig.need(100 + n, &["x"], &[&format!("https://{host}/other{n}.git")]);
        rig.want(100 + n, &format!("other{n}"), vec![need]);
    }
    let fetches = rig.fetches();
    assert_eq!(fetches.len(), 5);
    fetches
}

// sync_identifier_next_url

#[test]
fn skips_throttled_domains() {
    let mut rig = Rig::new();
    occupy(&mut rig, "one.example");
    let need = rig.need(1, &["a"], &[ONE, TWO]);
    rig.want(1, "r", vec![need]);
    assert_eq!(urls(&rig.fetches()), [TWO]);
}

#[test]
fn skips_tried_urls() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE, TWO, ONE]);
    rig.want(1, "r", vec![need]);
    let mut asked = Vec::new();
    for _ in 0..2 {
        let fetch = rig.fetch();
        asked.push(fetch.target.to_string());
        rig.end(fetch.id, End::Absent);
    }
    assert_eq!(asked, [ONE, TWO]);
    assert!(rig.fetches().is_empty());
}

#[test]
fn none_when_all_urls_exhausted() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![need]);
    assert!(rig.tried().is_empty());
    let fetch = rig.fetch();
    rig.end(fetch.id, End::Absent);
    assert_eq!(rig.tried(), [1]);
    rig.pass(19_999);
    assert!(rig.fetches().is_empty());
    rig.pass(1);
    assert_eq!(urls(&rig.fetches()), [ONE]);
}

// sync_identifier_from_url

#[test]
fn successful_fetch_triggers_processing() {
    // What came is in the registrar's hands before; here it is what is no longer asked for.
    let mut rig = Rig::new();
    let need = rig.need(1, &["a", "b"], &[ONE]);
    rig.want(1, "r", vec![need]);
    let fetch = rig.fetch();
    assert_eq!((fetch.oids.as_slice(), fetch.site.clone()), (&["a".to_owned(), "b".to_owned()][..], site(1, "r")));
    rig.sent(fetch.id, &["a", "b"]);
    assert_eq!((rig.hunter.tally().oids, rig.hunter.view().quarries[0].missing), (2, 0));
    rig.unwant("r");
    rig.pass(3_600_000);
    assert!(rig.fetches().is_empty() && rig.hunter.queue_size() == 0);
}

#[test]
fn failed_fetch_does_not_trigger_processing() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![need]);
    let fetch = rig.fetch();
    rig.end(fetch.id, End::Failed);
    assert_eq!((rig.hunter.tally().oids, rig.hunter.view().quarries[0].missing), (0, 1));
}

// sync_identifier

#[test]
fn tries_multiple_urls_until_complete() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE, TWO, THREE]);
    rig.want(1, "r", vec![need]);
    let one = rig.fetch();
    rig.end(one.id, End::Absent);
    let two = rig.fetch();
    rig.sent(two.id, &["a"]);
    assert_eq!(urls(&[one, two]), [ONE, TWO]);
    assert!(rig.fetches().is_empty());
}

#[test]
fn enqueues_throttled_domains_when_incomplete() {
    let mut rig = Rig::new();
    let others = occupy(&mut rig, "one.example");
    let need = rig.need(1, &["a"], &[ONE, TWO]);
    rig.want(1, "r", vec![need]);
    let two = rig.fetch();
    rig.end(two.id, End::Absent);
    assert!(rig.fetches().is_empty());
    assert!(rig.hunter.view().quarries.last().expect("ours").stops[0].waiting);
    assert!(rig.tried().is_empty(), "not every place was asked");
    // A slot frees, and nobody had to poll for it.
    rig.sent(others[0].id, &["x"]);
    let one = rig.fetch();
    assert_eq!(urls(std::slice::from_ref(&one)), [ONE]);
    rig.end(one.id, End::Absent);
    assert_eq!(rig.tried(), [1]);
}

#[test]
fn handles_partial_success_correctly() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a", "b", "c"], &[ONE, TWO, THREE]);
    rig.want(1, "r", vec![need]);
    for (url, asked, came) in
        [(ONE, &["a", "b", "c"][..], &["a"][..]), (TWO, &["b", "c"], &["c", "zzz"]), (THREE, &["b"], &["b"])]
    {
        let fetch = rig.fetch();
        assert_eq!(
            (fetch.target.to_string().as_str(), fetch.oids.iter().map(String::as_str).collect()),
            (url, asked.to_vec())
        );
        rig.sent(fetch.id, came);
    }
    assert!(rig.fetches().is_empty());
    assert_eq!(rig.hunter.tally().oids, 3);
}

// SyncQueueEntry

#[test]
fn backoff_calculation_correct() {
    let mut rig = Rig::new();
    let need = rig.need(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![need]);
    for (attempt, secs) in [(1, 20), (2, 40), (3, 80), (4, 120), (5, 120), (6, 120)] {
        let fetch = rig.fetch();
        rig.end(fetch.id, End::Absent);
        let view = rig.hunter.view();
        assert_eq!((view.quarries[0].attempts, view.quarries[0].next_in_millis), (attempt, Some(secs * 1_000)));
        rig.pass(secs * 1_000 - 1);
        assert!(rig.fetches().is_empty());
        rig.pass(1);
    }
    assert_eq!(rig.hunter.tally().rounds, 6);
}

#[test]
fn fresh_start_on_new_events() {
    let mut rig = Rig::new();
    let first = rig.need(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![first.clone()]);
    for secs in [20, 40, 80] {
        let fetch = rig.fetch();
        rig.end(fetch.id, End::Absent);
        rig.pass(secs * 1_000);
    }
    let fetch = rig.fetch();
    rig.end(fetch.id, End::Absent);
    rig.pass(30_000);
    // The next round would come in 90 s. The new event brings it forward, and the count begins again.
    let mut second = rig.need(2, &["b"], &[ONE]);
    second.due = rig.now.mono.plus_secs(1);
    rig.want(1, "r", vec![first.clone(), second.clone()]);
    assert_eq!(rig.hunter.view().quarries[0].attempts, 0);
    rig.pass(1_000);
    let fetch = rig.fetch();
    assert_eq!(fetch.oids, ["a", "b"]);
    rig.end(fetch.id, End::Absent);
    // It never delays: what a client sends waits three minutes, the others do not.
    let mut third = rig.need(3, &["c"], &[ONE]);
    third.due = rig.now.mono.plus_secs(180);
    rig.want(1, "r", vec![first, second, third]);
    rig.pass(20_000);
    assert_eq!(rig.fetch().oids, ["a", "b"]);
}

#[test]
fn ready_state_logic_correct() {
    let mut rig = Rig::new();
    let mut need = rig.need(1, &["a"], &[ONE]);
    need.due = rig.now.mono.plus_secs(180);
    rig.want(1, "r", vec![need.clone()]);
    assert_eq!(rig.hunter.alarm().map(|(at, _)| at), Some(need.due));
    rig.pass(179_999);
    assert!(rig.fetches().is_empty());
    rig.pass(1);
    let fetch = rig.fetch();
    // In progress: not ready, whatever is said again.
    rig.want(1, "r", vec![need]);
    rig.pass(4_000);
    assert!(rig.fetches().is_empty());
    rig.end(fetch.id, End::Absent);
    assert!(rig.fetches().is_empty());
}

// DomainThrottle

#[test]
fn concurrent_limit_enforced() {
    let mut rig = Rig::new();
    for n in 1..=12 {
        let need = rig.need(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        rig.want(n, &format!("r{n}"), vec![need]);
    }
    let mut running = rig.fetches();
    assert_eq!(running.len(), 5);
    for _ in 0..7 {
        let fetch = running.remove(0);
        rig.sent(fetch.id, &["a"]);
        running.push(rig.fetch());
        assert_eq!(rig.hunter.host_views()[0].in_flight, 5);
    }
}

#[test]
fn rate_limit_enforced() {
    let mut rig = Rig::new();
    for n in 1..=40 {
        let need = rig.need(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        rig.want(n, &format!("r{n}"), vec![need]);
    }
    let mut starts = Vec::new();
    loop {
        let fetches = rig.fetches();
        if fetches.is_empty() {
            if starts.len() == 40 {
                break;
            }
            rig.pass(500);
            continue;
        }
        for fetch in fetches {
            starts.push(rig.now.mono.0);
            rig.pass(100);
            rig.sent(fetch.id, &["a"]);
            rig.unwant(fetch.site.identifier().as_str());
        }
    }
    for (nth, at) in starts.iter().enumerate().skip(30) {
        assert!(at - starts[nth - 30] >= 60_000, "{nth}: {starts:?}");
    }
    assert!(starts[29] < 10_000 && starts[30] == starts[0] + 60_000, "{starts:?}");
}

#[test]
fn round_robin_fairness() {
    let mut rig = Rig::new();
    let others = occupy(&mut rig, "one.example");
    for (owner, name) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (2, "b2"), (3, "c1")] {
        let need = rig.need(owner, &["a"], &[&format!("https://one.example/{name}.git")]);
        rig.want(owner, name, vec![need]);
    }
    let mut order = Vec::new();
    let mut running = others;
    while !running.is_empty() {
        let fetch = running.remove(0);
        rig.sent(fetch.id, &["a", "x"]);
        for fetch in rig.fetches() {
            order.push(fetch.site.identifier().as_str().to_owned());
            running.push(fetch);
        }
    }
    assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "a3"]);
}

#[test]
fn queue_management_correct() {
    let mut rig = Rig::new();
    let others = occupy(&mut rig, "one.example");
    for name in ["p", "q"] {
        let need = rig.need(1, &["a"], &[&format!("https://one.example/{name}.git")]);
        rig.want(1, name, vec![need.clone()]);
        rig.want(1, name, vec![need]);
    }
    assert_eq!(rig.hunter.host_views()[0].waiting, 2, "each once");
    rig.unwant("p");
    assert_eq!(rig.hunter.host_views()[0].waiting, 1);
    rig.sent(others[0].id, &["x"]);
    assert_eq!(rig.fetch().site, site(1, "q"));
    assert_eq!(rig.hunter.host_views()[0].waiting, 0);
    assert!(!rig.out.iter().any(|out| matches!(out, Output::Cancel(_))));
}
