//! Basic cases: choice of sources, partial results, backoff, throttling and fairness.

use super::test_machine::{TestMachine, repo_path, urls};
use crate::fetch::io::{FetchOutcome, FetchOutput};
use crate::state_machine::StateMachine;

const ONE: &str = "https://one.example/r.git";
const TWO: &str = "https://two.example/r.git";
const THREE: &str = "https://three.example/r.git";

/// Occupies all slots of a host with other repositories. Returns their fetches.
fn occupy(test: &mut TestMachine, host: &str) -> Vec<crate::fetch::io::FetchRequest> {
    for n in 0..5_u8 {
        let wanted = test.wanted(100 + n, &["x"], &[&format!("https://{host}/other{n}.git")]);
        test.want(100 + n, &format!("other{n}"), vec![wanted]);
    }
    let fetches = test.fetches();
    assert_eq!(fetches.len(), 5);
    fetches
}

// Choice of the next source.

#[test]
fn skips_throttled_domains() {
    let mut test = TestMachine::new();
    occupy(&mut test, "one.example");
    let wanted = test.wanted(1, &["a"], &[ONE, TWO]);
    test.want(1, "r", vec![wanted]);
    assert_eq!(urls(&test.fetches()), [TWO]);
}

#[test]
fn skips_tried_urls() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE, TWO, ONE]);
    test.want(1, "r", vec![wanted]);
    let mut asked = Vec::new();
    for _ in 0..2 {
        let fetch = test.fetch();
        asked.push(fetch.target.to_string());
        test.finish(fetch.id, FetchOutcome::Absent);
    }
    assert_eq!(asked, [ONE, TWO]);
    assert!(test.fetches().is_empty());
}

#[test]
fn none_when_all_urls_exhausted() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE]);
    test.want(1, "r", vec![wanted]);
    assert!(test.tried().is_empty());
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::Absent);
    assert_eq!(test.tried(), [1]);
    test.advance(19_999);
    assert!(test.fetches().is_empty());
    test.advance(1);
    assert_eq!(urls(&test.fetches()), [ONE]);
}

// Fetching from one source.

#[test]
fn successful_fetch_triggers_processing() {
    // The driver passes fetched data to admission; the machine only stops asking for it.
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a", "b"], &[ONE]);
    test.want(1, "r", vec![wanted]);
    let fetch = test.fetch();
    assert_eq!(
        (fetch.oids.as_slice(), fetch.repo_path.clone()),
        (&["a".to_owned(), "b".to_owned()][..], repo_path(1, "r"))
    );
    test.finish_with(fetch.id, &["a", "b"]);
    assert_eq!((test.machine.stats().oids, test.machine.view().jobs[0].missing), (2, 0));
    test.unwant("r");
    test.advance(3_600_000);
    assert!(test.fetches().is_empty() && test.machine.queue_size() == 0);
}

#[test]
fn failed_fetch_does_not_trigger_processing() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE]);
    test.want(1, "r", vec![wanted]);
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::Failed);
    assert_eq!((test.machine.stats().oids, test.machine.view().jobs[0].missing), (0, 1));
}

// Fetching for one repository.

#[test]
fn tries_multiple_urls_until_complete() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE, TWO, THREE]);
    test.want(1, "r", vec![wanted]);
    let one = test.fetch();
    test.finish(one.id, FetchOutcome::Absent);
    let two = test.fetch();
    test.finish_with(two.id, &["a"]);
    assert_eq!(urls(&[one, two]), [ONE, TWO]);
    assert!(test.fetches().is_empty());
}

#[test]
fn enqueues_throttled_domains_when_incomplete() {
    let mut test = TestMachine::new();
    let others = occupy(&mut test, "one.example");
    let wanted = test.wanted(1, &["a"], &[ONE, TWO]);
    test.want(1, "r", vec![wanted]);
    let two = test.fetch();
    test.finish(two.id, FetchOutcome::Absent);
    assert!(test.fetches().is_empty());
    assert!(test.machine.view().jobs.last().expect("ours").sources[0].is_waiting);
    assert!(test.tried().is_empty(), "not every source was asked");
    // The freed slot is used at once, without polling.
    test.finish_with(others[0].id, &["x"]);
    let one = test.fetch();
    assert_eq!(urls(std::slice::from_ref(&one)), [ONE]);
    test.finish(one.id, FetchOutcome::Absent);
    assert_eq!(test.tried(), [1]);
}

#[test]
fn handles_partial_success_correctly() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a", "b", "c"], &[ONE, TWO, THREE]);
    test.want(1, "r", vec![wanted]);
    for (url, asked, received) in
        [(ONE, &["a", "b", "c"][..], &["a"][..]), (TWO, &["b", "c"], &["c", "zzz"]), (THREE, &["b"], &["b"])]
    {
        let fetch = test.fetch();
        assert_eq!(
            (fetch.target.to_string().as_str(), fetch.oids.iter().map(String::as_str).collect()),
            (url, asked.to_vec())
        );
        test.finish_with(fetch.id, received);
    }
    assert!(test.fetches().is_empty());
    assert_eq!(test.machine.stats().oids, 3);
}

// Backoff and due times.

#[test]
fn backoff_calculation_correct() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE]);
    test.want(1, "r", vec![wanted]);
    for (attempt, secs) in [(1, 20), (2, 40), (3, 80), (4, 120), (5, 120), (6, 120)] {
        let fetch = test.fetch();
        test.finish(fetch.id, FetchOutcome::Absent);
        let view = test.machine.view();
        assert_eq!((view.jobs[0].attempts, view.jobs[0].next_in_millis), (attempt, Some(secs * 1_000)));
        test.advance(secs * 1_000 - 1);
        assert!(test.fetches().is_empty());
        test.advance(1);
    }
    assert_eq!(test.machine.stats().rounds, 6);
}

#[test]
fn fresh_start_on_new_events() {
    let mut test = TestMachine::new();
    let first = test.wanted(1, &["a"], &[ONE]);
    test.want(1, "r", vec![first.clone()]);
    for secs in [20, 40, 80] {
        let fetch = test.fetch();
        test.finish(fetch.id, FetchOutcome::Absent);
        test.advance(secs * 1_000);
    }
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::Absent);
    test.advance(30_000);
    // The next round would begin in 90 s. The new event brings it forward and resets the count.
    let mut second = test.wanted(2, &["b"], &[ONE]);
    second.due = test.now.mono.plus_secs(1);
    test.want(1, "r", vec![first.clone(), second.clone()]);
    assert_eq!(test.machine.view().jobs[0].attempts, 0);
    test.advance(1_000);
    let fetch = test.fetch();
    assert_eq!(fetch.oids, ["a", "b"]);
    test.finish(fetch.id, FetchOutcome::Absent);
    // An event published by a client waits three minutes, but does not delay the others.
    let mut third = test.wanted(3, &["c"], &[ONE]);
    third.due = test.now.mono.plus_secs(180);
    test.want(1, "r", vec![first, second, third]);
    test.advance(20_000);
    assert_eq!(test.fetch().oids, ["a", "b"]);
}

#[test]
fn ready_state_logic_correct() {
    let mut test = TestMachine::new();
    let mut wanted = test.wanted(1, &["a"], &[ONE]);
    wanted.due = test.now.mono.plus_secs(180);
    test.want(1, "r", vec![wanted.clone()]);
    assert_eq!(test.machine.alarm().map(|(at, _)| at), Some(wanted.due));
    test.advance(179_999);
    assert!(test.fetches().is_empty());
    test.advance(1);
    let fetch = test.fetch();
    // A running fetch is not started again by a repeated report.
    test.want(1, "r", vec![wanted]);
    test.advance(4_000);
    assert!(test.fetches().is_empty());
    test.finish(fetch.id, FetchOutcome::Absent);
    assert!(test.fetches().is_empty());
}

// Throttling per host.

#[test]
fn concurrent_limit_enforced() {
    let mut test = TestMachine::new();
    for n in 1..=12 {
        let wanted = test.wanted(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        test.want(n, &format!("r{n}"), vec![wanted]);
    }
    let mut running = test.fetches();
    assert_eq!(running.len(), 5);
    for _ in 0..7 {
        let fetch = running.remove(0);
        test.finish_with(fetch.id, &["a"]);
        running.push(test.fetch());
        assert_eq!(test.machine.host_views()[0].in_flight, 5);
    }
}

#[test]
fn rate_limit_enforced() {
    let mut test = TestMachine::new();
    for n in 1..=40 {
        let wanted = test.wanted(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        test.want(n, &format!("r{n}"), vec![wanted]);
    }
    let mut starts = Vec::new();
    loop {
        let fetches = test.fetches();
        if fetches.is_empty() {
            if starts.len() == 40 {
                break;
            }
            test.advance(500);
            continue;
        }
        for fetch in fetches {
            starts.push(test.now.mono.0);
            test.advance(100);
            test.finish_with(fetch.id, &["a"]);
            test.unwant(fetch.repo_path.identifier().as_str());
        }
    }
    for (nth, at) in starts.iter().enumerate().skip(30) {
        assert!(at - starts[nth - 30] >= 60_000, "{nth}: {starts:?}");
    }
    assert!(starts[29] < 10_000 && starts[30] == starts[0] + 60_000, "{starts:?}");
}

#[test]
fn round_robin_fairness() {
    let mut test = TestMachine::new();
    let others = occupy(&mut test, "one.example");
    for (owner, name) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (2, "b2"), (3, "c1")] {
        let wanted = test.wanted(owner, &["a"], &[&format!("https://one.example/{name}.git")]);
        test.want(owner, name, vec![wanted]);
    }
    let mut order = Vec::new();
    let mut running = others;
    while !running.is_empty() {
        let fetch = running.remove(0);
        test.finish_with(fetch.id, &["a", "x"]);
        for fetch in test.fetches() {
            order.push(fetch.repo_path.identifier().as_str().to_owned());
            running.push(fetch);
        }
    }
    assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "a3"]);
}

#[test]
fn queue_management_correct() {
    let mut test = TestMachine::new();
    let others = occupy(&mut test, "one.example");
    for name in ["p", "q"] {
        let wanted = test.wanted(1, &["a"], &[&format!("https://one.example/{name}.git")]);
        test.want(1, name, vec![wanted.clone()]);
        test.want(1, name, vec![wanted]);
    }
    assert_eq!(test.machine.host_views()[0].waiting, 2, "each job is queued once");
    test.unwant("p");
    assert_eq!(test.machine.host_views()[0].waiting, 1);
    test.finish_with(others[0].id, &["x"]);
    assert_eq!(test.fetch().repo_path, repo_path(1, "q"));
    assert_eq!(test.machine.host_views()[0].waiting, 0);
    assert!(!test.out.iter().any(|out| matches!(out, FetchOutput::Cancel(_))));
}
