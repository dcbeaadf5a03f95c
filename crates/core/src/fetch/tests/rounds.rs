//! Rounds: which sources are asked, in which order and form, and when the next round begins.

use super::test_machine::{Rig, repo_path, urls};
use crate::fetch::SourceOutcome;
use crate::fetch::io::{FetchInput, FetchOutcome, FetchOutput, FetchResult, RequestForm, WantedGitData};
use crate::net::{AddressPolicy, OutboundError};
use crate::state_machine::StateMachine;

const ONE: &str = "https://one.example/r.git";
const TWO: &str = "https://two.example/r.git";
const GRASP: &str = "https://grasp.example/npub/r.git";

#[test]
fn grasp_servers_come_first_then_hosts_by_hit_rate() {
    let mut rig = Rig::new();
    // The second host had something before, the first had not.
    for (name, url, end) in [("p", "https://one.example/p.git", &[][..]), ("q", "https://two.example/q.git", &["a"])] {
        let wanted = rig.wanted(9, &["a"], &[url]);
        rig.want(9, name, vec![wanted]);
        let fetch = rig.fetch();
        rig.finish_with(fetch.id, end);
        rig.unwant(name);
    }
    let wanted = rig.wanted(1, &["a"], &[ONE, TWO, GRASP]);
    rig.want(1, "r", vec![wanted]);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let fetch = rig.fetch();
        asked.push((fetch.target.to_string(), fetch.form));
        rig.finish(fetch.id, FetchOutcome::Absent);
    }
    assert_eq!(
        asked,
        [
            (GRASP.to_owned(), RequestForm::ByOid),
            (TWO.to_owned(), RequestForm::ByRef),
            (ONE.to_owned(), RequestForm::ByRef)
        ]
    );
}

#[test]
fn source_that_refuses_object_ids_is_asked_by_ref_in_the_same_round() {
    let mut rig = Rig::new();
    let wanted = rig.wanted(1, &["a", "b"], &[GRASP]);
    rig.want(1, "r", vec![wanted]);
    let first = rig.fetch();
    assert_eq!(first.form, RequestForm::ByOid);
    rig.finish(first.id, FetchOutcome::NotByOid);
    assert!(rig.tried().is_empty());
    let second = rig.fetch();
    assert_eq!((second.form, second.oids.len()), (RequestForm::ByRef, 2));
    rig.finish_with(second.id, &["a"]);
    assert_eq!((rig.tried(), rig.machine.view().jobs[0].attempts), (vec![1], 1));
    assert_eq!(rig.machine.host_views()[0].requests, 2, "a request of its own");
    rig.advance(20_000);
    let third = rig.fetch();
    assert_eq!((third.form, third.oids), (RequestForm::ByRef, vec!["b".to_owned()]));
    // The form is remembered after the job has ended.
    rig.unwant("r");
    rig.finish(third.id, FetchOutcome::Cancelled);
    let wanted = rig.wanted(2, &["c"], &[GRASP]);
    rig.want(1, "r", vec![wanted]);
    rig.advance(20_000);
    assert_eq!(rig.fetch().form, RequestForm::ByRef);
}

#[test]
fn second_source_is_asked_when_the_first_is_silent_or_slow() {
    for (answering, millis) in [(false, 5_000), (true, 30_000)] {
        let mut rig = Rig::new();
        let wanted = rig.wanted(1, &["a"], &[ONE, TWO, "https://three.example/r.git"]);
        rig.want(1, "r", vec![wanted]);
        let one = rig.fetch();
        rig.advance(1_000);
        if answering {
            rig.handle(FetchInput::FirstBytes(one.id));
        }
        rig.advance(millis - 1_001);
        assert!(rig.fetches().is_empty());
        rig.advance(1);
        let two = rig.fetch();
        assert_eq!(urls(std::slice::from_ref(&two)), [TWO]);
        rig.advance(3_600_000);
        assert!(rig.fetches().is_empty(), "at max_millis two sources at the same time");
        rig.finish_with(two.id, &["a"]);
        assert_eq!(rig.cancelled(), [one.id]);
        rig.finish(one.id, FetchOutcome::Cancelled);
        assert!(rig.fetches().is_empty());
    }
}

#[test]
fn slow_fetch_continues_while_it_may_bring_something() {
    let mut rig = Rig::new();
    let wanted = rig.wanted(1, &["a", "b"], &[ONE, TWO]);
    rig.want(1, "r", vec![wanted]);
    let one = rig.fetch();
    rig.advance(5_000);
    let two = rig.fetch();
    rig.finish_with(two.id, &["a"]);
    assert!(rig.cancelled().is_empty());
    rig.finish_with(one.id, &["a", "b"]);
    assert_eq!(rig.machine.view().jobs[0].missing, 0);
}

#[test]
fn new_wanted_data_replaces_the_old() {
    let mut rig = Rig::new();
    let old = rig.wanted(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![old]);
    let fetch = rig.fetch();
    // The state is superseded while its objects are being fetched.
    rig.advance(1_000);
    let new = rig.wanted(2, &["b"], &[ONE]);
    rig.want(1, "r", vec![new]);
    assert_eq!(rig.cancelled(), [fetch.id]);
    rig.finish(fetch.id, FetchOutcome::Cancelled);
    assert!(rig.fetches().is_empty(), "the same URL is not asked twice within twenty seconds");
    rig.advance(19_000);
    assert_eq!(rig.fetch().oids, ["b"]);
}

#[test]
fn event_that_arrives_during_a_fetch_is_asked_for_afterwards() {
    let mut rig = Rig::new();
    let old = rig.wanted(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![old.clone()]);
    let fetch = rig.fetch();
    let new = rig.wanted(2, &["b"], &[ONE]);
    rig.advance(2_000);
    rig.want(1, "r", vec![old, new.clone()]);
    rig.advance(1_000);
    assert!(rig.cancelled().is_empty() && rig.fetches().is_empty());
    rig.finish_with(fetch.id, &["a"]);
    rig.want(1, "r", vec![new]);
    assert!(rig.tried().is_empty(), "the second event was not asked for yet");
    rig.advance(17_000);
    assert_eq!(rig.fetch().oids, ["b"]);
}

#[test]
fn burst_of_events_is_one_round() {
    let mut rig = Rig::new();
    let mut events = Vec::new();
    for event in 1..=4 {
        let mut wanted = rig.wanted(event, &[&format!("oid{event}")], &[ONE]);
        wanted.due = rig.now.mono.plus(std::time::Duration::from_millis(500));
        events.push(wanted);
        rig.want(1, "r", events.clone());
        rig.advance(150);
    }
    assert_eq!(rig.fetch().oids.len(), 4);
}

#[test]
fn owner_brings_rounds_forward_at_most_six_times_a_minute() {
    let mut rig = Rig::new();
    let mut events = Vec::new();
    let mut rounds = 0;
    for event in 1..=60 {
        // Each event names a new host, so that only the reset limiter delays it.
        events.push(rig.wanted(event, &["a"], &[&format!("https://h{event}.example/r.git")]));
        rig.want(1, "r", events.clone());
        for fetch in rig.fetches() {
            rounds += 1;
            rig.finish(fetch.id, FetchOutcome::Absent);
        }
        rig.advance(1_000);
        for fetch in rig.fetches() {
            rounds += 1;
            rig.finish(fetch.id, FetchOutcome::Absent);
        }
    }
    let asked = rig.machine.host_views().iter().filter(|host| host.requests > 0).count();
    assert!((6..=10).contains(&asked), "{asked} of 60 in a minute ({rounds} fetches)");
}

#[test]
fn dormant_events_are_asked_for_hourly_and_last() {
    let mut rig = Rig::new();
    let mut wanted = rig.wanted(1, &["a"], &[ONE]);
    wanted.is_dormant = true;
    rig.want(1, "r", vec![wanted.clone()]);
    let mut times = Vec::new();
    for _ in 0..3 {
        let fetch = rig.fetch();
        times.push(rig.now.mono.0 / 60_000);
        rig.finish(fetch.id, FetchOutcome::Absent);
        assert!(rig.tried().is_empty());
        rig.advance(59 * 60_000);
    }
    assert_eq!(times, [0, 59, 118]);
    let fetch = rig.fetch();
    rig.finish(fetch.id, FetchOutcome::Absent);
    rig.advance(30_000);
    // The event is received again.
    wanted.is_dormant = false;
    rig.want(1, "r", vec![wanted]);
    assert_eq!(rig.fetches().len(), 1);
}

#[test]
fn busy_source_is_tried_three_times_and_invalid_data_blocks_for_an_hour() {
    let mut rig = Rig::new();
    let wanted = rig.wanted(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![wanted]);
    for nth in 0..3 {
        let fetch = rig.fetch();
        assert!(rig.tried().is_empty());
        rig.finish(fetch.id, FetchOutcome::Busy(Some(30)));
        assert_eq!(rig.machine.view().jobs[0].attempts, u32::from(nth == 2) + u32::from(nth < 2));
        rig.advance(29_999);
        assert!(rig.fetches().is_empty(), "{nth}");
        rig.advance(6_001);
    }
    assert_eq!(rig.tried(), [1]);
    for fetch in rig.fetches() {
        rig.finish(fetch.id, FetchOutcome::InvalidData);
    }
    rig.advance(3_600_000 - 60_000);
    assert!(rig.fetches().is_empty());
    assert_eq!(rig.machine.view().jobs[0].sources[0].outcome, Some(SourceOutcome::InvalidData));
    rig.advance(90_000);
    assert_eq!(rig.fetches().len(), 1);
}

#[test]
fn local_error_pauses_the_job_and_blames_no_source() {
    let mut rig = Rig::new();
    let wanted = rig.wanted(1, &["a"], &[ONE, TWO]);
    rig.want(1, "r", vec![wanted]);
    let fetch = rig.fetch();
    rig.finish(fetch.id, FetchOutcome::LocalError);
    rig.advance(59_999);
    assert!(rig.fetches().is_empty() && rig.tried().is_empty());
    rig.advance(1);
    assert_eq!(urls(&rig.fetches()), [ONE]);
    assert_eq!(rig.machine.host_views()[0].hits, 0);
}

#[test]
fn forbidden_url_is_reported_once_and_counts_as_tried() {
    let mut rig = Rig::with(crate::fetch::FetchConfig {
        address_policy: AddressPolicy::PublicOnly,
        ..super::test_machine::config()
    });
    let urls = ["https://10.0.0.1/r.git", "ssh://git.one.com/r.git", "https://git.one.com/r?x"];
    let wanted = rig.wanted(1, &["a"], &urls);
    rig.want(1, "r", vec![wanted.clone()]);
    let other = rig.wanted(2, &["b"], &urls);
    rig.want(1, "r", vec![wanted, other]);
    let shunned: Vec<OutboundError> = rig
        .out
        .iter()
        .filter_map(|out| if let FetchOutput::UrlForbidden(_, _, reason) = out { Some(*reason) } else { None })
        .collect();
    assert_eq!(shunned.len(), 3);
    assert!(matches!(shunned[..], [OutboundError::Address(..), OutboundError::Scheme, OutboundError::Query]));
    assert_eq!(rig.tried(), [1, 2]);
    assert_eq!(rig.machine.alarm(), None, "nothing to wait for");
}

#[test]
fn fetch_now_starts_a_round_at_once() {
    let mut rig = Rig::new();
    let mut wanted = rig.wanted(1, &["a"], &[ONE]);
    wanted.due = rig.now.mono.plus_secs(180);
    rig.want(1, "r", vec![wanted]);
    rig.handle(FetchInput::FetchNow(repo_path(1, "r")));
    let fetch = rig.fetch();
    rig.finish(fetch.id, FetchOutcome::Absent);
    rig.advance(21_000);
    for fetch in rig.fetches() {
        rig.finish(fetch.id, FetchOutcome::Absent);
    }
    rig.advance(20_500);
    assert!(rig.fetches().is_empty());
    rig.handle(FetchInput::FetchNow(repo_path(1, "r")));
    assert_eq!(rig.fetches().len(), 1);
}

#[test]
fn received_objects_that_are_still_wanted_are_asked_for_again() {
    let mut rig = Rig::new();
    let wanted = rig.wanted(1, &["a"], &[ONE, TWO]);
    rig.want(1, "r", vec![wanted]);
    let fetch = rig.fetch();
    rig.finish_with(fetch.id, &["a"]);
    assert!(rig.tried().is_empty());
    rig.advance(20_000);
    assert_eq!(rig.tried(), [1]);
    assert_eq!(rig.fetch().oids, ["a"]);
}

#[test]
fn unexpected_inputs_change_nothing() {
    let mut rig = Rig::new();
    let wanted = rig.wanted(1, &["a"], &[ONE]);
    rig.want(1, "r", vec![wanted.clone()]);
    let fetch = rig.fetch();
    rig.finish(fetch.id, FetchOutcome::Absent);
    rig.finish(fetch.id, FetchOutcome::Busy(None));
    rig.handle(FetchInput::FirstBytes(fetch.id));
    assert_eq!(rig.machine.view().jobs[0].sources[0].outcome, Some(SourceOutcome::Absent));
    // Data reported for another identifier is ignored.
    let data = WantedGitData { repo_path: repo_path(1, "other"), events: vec![wanted] };
    rig.handle(FetchInput::Wanted(repo_path(1, "r").identifier().clone(), vec![data]));
    assert_eq!(rig.machine.queue_size(), 0);
    rig.handle(FetchInput::Fetched(fetch.id, FetchResult { oids: Vec::new(), outcome: FetchOutcome::LocalError }));
    assert_eq!(rig.machine.alarm(), None);
}
