//! Rounds: which sources are asked, in which order and form, and when the next round begins.

use super::test_machine::{TestMachine, repo_path, urls};
use crate::fetch::SourceOutcome;
use crate::fetch::io::{FetchInput, FetchOutcome, FetchOutput, FetchResult, RequestForm, WantedGitData};
use crate::net::{AddressPolicy, OutboundError};
use crate::state_machine::StateMachine;

const ONE: &str = "https://one.example/r.git";
const TWO: &str = "https://two.example/r.git";
const GRASP: &str = "https://grasp.example/npub/r.git";

#[test]
fn grasp_servers_come_first_then_hosts_by_hit_rate() {
    let mut test = TestMachine::new();
    // The second host had something before, the first had not.
    for (name, url, end) in [("p", "https://one.example/p.git", &[][..]), ("q", "https://two.example/q.git", &["a"])] {
        let wanted = test.wanted(9, &["a"], &[url]);
        test.want(9, name, vec![wanted]);
        let fetch = test.fetch();
        test.finish_with(fetch.id, end);
        test.unwant(name);
    }
    let wanted = test.wanted(1, &["a"], &[ONE, TWO, GRASP]);
    test.want(1, "r", vec![wanted]);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let fetch = test.fetch();
        asked.push((fetch.target.to_string(), fetch.form));
        test.finish(fetch.id, FetchOutcome::Absent);
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
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a", "b"], &[GRASP]);
    test.want(1, "r", vec![wanted]);
    let first = test.fetch();
    assert_eq!(first.form, RequestForm::ByOid);
    test.finish(first.id, FetchOutcome::NotByOid);
    assert!(test.tried().is_empty());
    let second = test.fetch();
    assert_eq!((second.form, second.oids.len()), (RequestForm::ByRef, 2));
    test.finish_with(second.id, &["a"]);
    assert_eq!((test.tried(), test.machine.view().jobs[0].attempts), (vec![1], 1));
    assert_eq!(test.machine.host_views()[0].requests, 2, "a request of its own");
    test.advance(20_000);
    let third = test.fetch();
    assert_eq!((third.form, third.oids), (RequestForm::ByOid, vec!["b".to_owned()]), "its refs did not contain it");
    // The form is remembered after the job has ended.
    test.unwant("r");
    test.finish(third.id, FetchOutcome::Cancelled);
    let wanted = test.wanted(2, &["c"], &[GRASP]);
    test.want(1, "r", vec![wanted]);
    test.advance(20_000);
    assert_eq!(test.fetch().form, RequestForm::ByRef);
}

#[test]
fn refs_are_not_requested_again_for_an_object_that_they_lack() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a", "b"], &[ONE]);
    test.want(1, "r", vec![wanted]);
    let first = test.fetch();
    assert_eq!((first.form, first.received), (RequestForm::ByRef, vec![]));
    test.finish_with(first.id, &["a"]);
    for round in 0..4 {
        test.advance(120_000);
        let again = test.fetch();
        assert_eq!((again.form, again.oids), (RequestForm::ByOid, vec!["b".to_owned()]), "round {round}");
        assert_eq!(again.received, ["a"], "sent as `have`");
        test.finish(again.id, FetchOutcome::NotByOid);
        assert!(test.fetches().is_empty());
    }
    test.advance(240_000);
    let again = test.fetch();
    assert_eq!((again.form, again.oids), (RequestForm::ByRef, vec!["b".to_owned()]), "ten minutes later");
    test.finish_with(again.id, &[]);
    // A new event that names the object.
    test.advance(20_000);
    let newer = test.wanted(2, &["b", "c"], &[ONE]);
    test.want(1, "r", vec![newer]);
    let newer = test.fetch();
    assert_eq!(newer.received, ["a"], "of the event before");
}

#[test]
fn object_that_a_source_lacks_is_requested_apart_from_others() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["b"], &[GRASP]);
    test.want(1, "r", vec![wanted]);
    let first = test.fetch();
    test.finish(first.id, FetchOutcome::NotByOid);
    let second = test.fetch();
    assert_eq!(second.form, RequestForm::ByRef);
    test.finish_with(second.id, &[]);
    test.advance(25_000);
    let third = test.fetch();
    test.finish(third.id, FetchOutcome::NotByOid);
    test.advance(25_000);
    let newer = test.wanted(2, &["b", "c"], &[GRASP]);
    test.want(1, "r", vec![newer]);
    let likely = test.fetch();
    assert_eq!((likely.form, likely.oids), (RequestForm::ByOid, vec!["c".to_owned()]));
    test.finish_with(likely.id, &["c"]);
    let lacking = test.fetch();
    assert_eq!((lacking.form, lacking.oids), (RequestForm::ByOid, vec!["b".to_owned()]), "in the same round");
}

#[test]
fn second_source_is_asked_when_the_first_is_silent_or_slow() {
    for (answering, millis) in [(false, 5_000), (true, 30_000)] {
        let mut test = TestMachine::new();
        let wanted = test.wanted(1, &["a"], &[ONE, TWO, "https://three.example/r.git"]);
        test.want(1, "r", vec![wanted]);
        let one = test.fetch();
        test.advance(1_000);
        if answering {
            test.handle(FetchInput::FirstBytes(one.id));
        }
        test.advance(millis - 1_001);
        assert!(test.fetches().is_empty());
        test.advance(1);
        let two = test.fetch();
        assert_eq!(urls(std::slice::from_ref(&two)), [TWO]);
        test.advance(3_600_000);
        assert!(test.fetches().is_empty(), "at max_millis two sources at the same time");
        test.finish_with(two.id, &["a"]);
        assert_eq!(test.cancelled(), [one.id]);
        test.finish(one.id, FetchOutcome::Cancelled);
        assert!(test.fetches().is_empty());
    }
}

#[test]
fn slow_fetch_continues_while_it_may_bring_something() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a", "b"], &[ONE, TWO]);
    test.want(1, "r", vec![wanted]);
    let one = test.fetch();
    test.advance(5_000);
    let two = test.fetch();
    test.finish_with(two.id, &["a"]);
    assert!(test.cancelled().is_empty());
    test.finish_with(one.id, &["a", "b"]);
    assert_eq!(test.machine.view().jobs[0].missing, 0);
}

#[test]
fn new_wanted_data_replaces_the_old() {
    let mut test = TestMachine::new();
    let old = test.wanted(1, &["a"], &[ONE]);
    test.want(1, "r", vec![old]);
    let fetch = test.fetch();
    // The state is superseded while its objects are being fetched.
    test.advance(1_000);
    let new = test.wanted(2, &["b"], &[ONE]);
    test.want(1, "r", vec![new]);
    assert_eq!(test.cancelled(), [fetch.id]);
    test.finish(fetch.id, FetchOutcome::Cancelled);
    assert!(test.fetches().is_empty(), "the same URL is not asked twice within twenty seconds");
    test.advance(19_000);
    assert_eq!(test.fetch().oids, ["b"]);
}

#[test]
fn event_that_arrives_during_a_fetch_is_asked_for_afterwards() {
    let mut test = TestMachine::new();
    let old = test.wanted(1, &["a"], &[ONE]);
    test.want(1, "r", vec![old.clone()]);
    let fetch = test.fetch();
    let new = test.wanted(2, &["b"], &[ONE]);
    test.advance(2_000);
    test.want(1, "r", vec![old, new.clone()]);
    test.advance(1_000);
    assert!(test.cancelled().is_empty() && test.fetches().is_empty());
    test.finish_with(fetch.id, &["a"]);
    test.want(1, "r", vec![new]);
    assert!(test.tried().is_empty(), "the second event was not asked for yet");
    test.advance(17_000);
    assert_eq!(test.fetch().oids, ["b"]);
}

#[test]
fn burst_of_events_is_one_round() {
    let mut test = TestMachine::new();
    let mut events = Vec::new();
    for event in 1..=4 {
        let mut wanted = test.wanted(event, &[&format!("oid{event}")], &[ONE]);
        wanted.due = test.now.mono.plus(std::time::Duration::from_millis(500));
        events.push(wanted);
        test.want(1, "r", events.clone());
        test.advance(150);
    }
    assert_eq!(test.fetch().oids.len(), 4);
}

#[test]
fn owner_brings_rounds_forward_at_most_six_times_a_minute() {
    let mut test = TestMachine::new();
    let mut events = Vec::new();
    let mut rounds = 0;
    for event in 1..=60 {
        // Each event names a new host, so that only the reset limiter delays it.
        events.push(test.wanted(event, &["a"], &[&format!("https://h{event}.example/r.git")]));
        test.want(1, "r", events.clone());
        for fetch in test.fetches() {
            rounds += 1;
            test.finish(fetch.id, FetchOutcome::Absent);
        }
        test.advance(1_000);
        for fetch in test.fetches() {
            rounds += 1;
            test.finish(fetch.id, FetchOutcome::Absent);
        }
    }
    let asked = test.machine.host_views().iter().filter(|host| host.requests > 0).count();
    assert!((6..=10).contains(&asked), "{asked} of 60 in a minute ({rounds} fetches)");
}

#[test]
fn dormant_events_are_asked_for_hourly_and_last() {
    let mut test = TestMachine::new();
    let mut wanted = test.wanted(1, &["a"], &[ONE]);
    wanted.is_dormant = true;
    test.want(1, "r", vec![wanted.clone()]);
    let mut times = Vec::new();
    for _ in 0..3 {
        let fetch = test.fetch();
        times.push(test.now.mono.0 / 60_000);
        test.finish(fetch.id, FetchOutcome::Absent);
        assert!(test.tried().is_empty());
        test.advance(59 * 60_000);
    }
    assert_eq!(times, [0, 59, 118]);
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::Absent);
    test.advance(30_000);
    // The event is received again.
    wanted.is_dormant = false;
    test.want(1, "r", vec![wanted]);
    assert_eq!(test.fetches().len(), 1);
}

#[test]
fn busy_source_is_tried_three_times_and_invalid_data_blocks_for_an_hour() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE]);
    test.want(1, "r", vec![wanted]);
    for nth in 0..3 {
        let fetch = test.fetch();
        assert!(test.tried().is_empty());
        test.finish(fetch.id, FetchOutcome::Busy(Some(30)));
        assert_eq!(test.machine.view().jobs[0].attempts, u32::from(nth == 2) + u32::from(nth < 2));
        test.advance(29_999);
        assert!(test.fetches().is_empty(), "{nth}");
        test.advance(6_001);
    }
    assert_eq!(test.tried(), [1]);
    for fetch in test.fetches() {
        test.finish(fetch.id, FetchOutcome::InvalidData);
    }
    test.advance(3_600_000 - 60_000);
    assert!(test.fetches().is_empty());
    assert_eq!(test.machine.view().jobs[0].sources[0].outcome, Some(SourceOutcome::InvalidData));
    test.advance(90_000);
    assert_eq!(test.fetches().len(), 1);
}

#[test]
fn local_error_pauses_the_job_and_blames_no_source() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE, TWO]);
    test.want(1, "r", vec![wanted]);
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::LocalError);
    test.advance(59_999);
    assert!(test.fetches().is_empty() && test.tried().is_empty());
    test.advance(1);
    assert_eq!(urls(&test.fetches()), [ONE]);
    assert_eq!(test.machine.host_views()[0].hits, 0);
}

#[test]
fn forbidden_url_is_reported_once_and_counts_as_tried() {
    let mut test = TestMachine::with(crate::fetch::FetchConfig {
        address_policy: AddressPolicy::PublicOnly,
        ..super::test_machine::config()
    });
    let urls = ["https://10.0.0.1/r.git", "ssh://git.one.com/r.git", "https://git.one.com/r?x"];
    let wanted = test.wanted(1, &["a"], &urls);
    test.want(1, "r", vec![wanted.clone()]);
    let other = test.wanted(2, &["b"], &urls);
    test.want(1, "r", vec![wanted, other]);
    let shunned: Vec<OutboundError> = test
        .out
        .iter()
        .filter_map(|out| if let FetchOutput::UrlForbidden(_, _, reason) = out { Some(*reason) } else { None })
        .collect();
    assert_eq!(shunned.len(), 3);
    assert!(matches!(shunned[..], [OutboundError::Address(..), OutboundError::Scheme, OutboundError::Query]));
    assert_eq!(test.tried(), [1, 2]);
    assert_eq!(test.machine.alarm(), None, "nothing to wait for");
}

#[test]
fn fetch_now_starts_a_round_at_once() {
    let mut test = TestMachine::new();
    let mut wanted = test.wanted(1, &["a"], &[ONE]);
    wanted.due = test.now.mono.plus_secs(180);
    test.want(1, "r", vec![wanted]);
    test.handle(FetchInput::FetchNow(repo_path(1, "r")));
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::Absent);
    test.advance(21_000);
    for fetch in test.fetches() {
        test.finish(fetch.id, FetchOutcome::Absent);
    }
    test.advance(20_500);
    assert!(test.fetches().is_empty());
    test.handle(FetchInput::FetchNow(repo_path(1, "r")));
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::Absent);
    test.handle(FetchInput::FetchNow(repo_path(1, "r")));
    assert_eq!(test.fetches().len(), 1, "the operator does not wait for the interval between requests to a URL");
}

#[test]
fn received_objects_that_are_still_wanted_are_asked_for_again() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE, TWO]);
    test.want(1, "r", vec![wanted]);
    let fetch = test.fetch();
    test.finish_with(fetch.id, &["a"]);
    assert!(test.tried().is_empty());
    test.advance(20_000);
    assert_eq!(test.tried(), [1]);
    assert_eq!(test.fetch().oids, ["a"]);
}

#[test]
fn unexpected_inputs_change_nothing() {
    let mut test = TestMachine::new();
    let wanted = test.wanted(1, &["a"], &[ONE]);
    test.want(1, "r", vec![wanted.clone()]);
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::Absent);
    test.finish(fetch.id, FetchOutcome::Busy(None));
    test.handle(FetchInput::FirstBytes(fetch.id));
    assert_eq!(test.machine.view().jobs[0].sources[0].outcome, Some(SourceOutcome::Absent));
    // Data reported for another identifier is ignored.
    let data = WantedGitData { repo_path: repo_path(1, "other"), events: vec![wanted] };
    test.handle(FetchInput::Wanted(repo_path(1, "r").identifier().clone(), vec![data]));
    assert_eq!(test.machine.queue_size(), 0);
    test.handle(FetchInput::Fetched(fetch.id, FetchResult { oids: Vec::new(), outcome: FetchOutcome::LocalError }));
    assert_eq!(test.machine.alarm(), None);
}
