//! Limits per host and network, quiet times and surveys.

use std::collections::BTreeMap;

use super::test_machine::{TestMachine, config, urls};
use crate::fetch::io::{FetchInput, FetchOutcome, FetchOutput, SurveyResult};
use crate::fetch::{FetchConfig, HostLimits, QuietReason};
use crate::net::{AddressScope, OutboundError};
use crate::nostr::nip11::GitFetchLimits;
use crate::time::Timestamp;

const GRASP: &str = "https://grasp.example/npub/r.git";

/// Returns how many fetches begin at once when this many repositories of one host are wanted.
fn begun(test: &mut TestMachine, host: &str, repositories: u8) -> usize {
    for n in 0..repositories {
        let wanted = test.wanted(n, &["a"], &[&format!("https://{host}/{n}.git")]);
        test.want(n, &format!("{host}{n}"), vec![wanted]);
    }
    test.fetches().len()
}

#[test]
fn stated_limits_lower_and_raise_the_default() {
    let stating = |concurrent, per_minute| GitFetchLimits { concurrent, per_minute };
    let chosen = BTreeMap::from([("chosen.grasp.example".to_owned(), HostLimits { concurrent: 3, per_minute: 30 })]);
    let mut test = TestMachine::with(FetchConfig { host_limits: chosen, ..config() });
    for (host, stated) in [
        ("more.grasp.example", stating(Some(8), None)),
        ("less.grasp.example", stating(Some(1), Some(600))),
        ("none.grasp.example", stating(Some(0), None)),
        ("lies.grasp.example", stating(Some(100_000), Some(u32::MAX))),
        ("chosen.grasp.example", stating(Some(32), Some(10))),
    ] {
        test.stated_limits.insert(host.to_owned(), stated);
    }
    assert_eq!(begun(&mut test, "more.grasp.example", 12), 8);
    assert_eq!(begun(&mut test, "less.grasp.example", 12), 1);
    assert_eq!(begun(&mut test, "none.grasp.example", 2), 0);
    assert_eq!(test.tried().len(), 2, "a server that wants no requests counts as asked");
    assert_eq!(begun(&mut test, "chosen.grasp.example", 12), 3);
    assert_eq!(begun(&mut test, "lies.grasp.example", 12), 4, "sixteen fetches in total");
    let limits: Vec<(u32, u32)> =
        test.machine.host_views().iter().map(|host| (host.limits.concurrent, host.limits.per_minute)).collect();
    assert_eq!(limits, [(8, 30), (1, 600), (0, 30), (3, 10), (32, 600)]);
}

#[test]
fn limit_that_the_operator_has_set_is_not_raised() {
    let default_limits = HostLimits { concurrent: 1, ..HostLimits::default() };
    let max_limits = HostLimits { concurrent: 1, ..HostLimits::MAX_STATED };
    let mut test = TestMachine::with(FetchConfig { default_limits, max_limits, ..config() });
    let stated = GitFetchLimits { concurrent: Some(8), per_minute: Some(120) };
    test.stated_limits.insert("grasp.example".to_owned(), stated);
    assert_eq!(begun(&mut test, "grasp.example", 12), 1);
    let limits: Vec<HostLimits> = test.machine.host_views().iter().map(|host| host.limits).collect();
    assert_eq!(limits, [HostLimits { concurrent: 1, per_minute: 120 }]);
}

#[test]
fn at_most_sixteen_fetches_and_hosts_take_turns() {
    let mut test = TestMachine::new();
    for host in 0..5 {
        for n in 0..5 {
            let wanted = test.wanted(n, &["a"], &[&format!("https://h{host}.example/{n}.git")]);
            test.want(n, &format!("r{host}-{n}"), vec![wanted]);
        }
    }
    let running = test.fetches();
    assert_eq!(running.len(), 16);
    let mut next = Vec::new();
    for fetch in running.iter().take(4) {
        test.finish_with(fetch.id, &["a"]);
        next.push(test.fetch().target.host().to_string());
    }
    next.sort();
    next.dedup();
    assert!(next.len() > 1, "{next:?}");
}

#[test]
fn hosts_in_one_network_share_a_limit() {
    let mut test = TestMachine::new();
    test.holds_surveys = true;
    for n in 0..20 {
        let wanted = test.wanted(n, &["a"], &[&format!("https://h{n}.example/r.git")]);
        test.want(n, &format!("r{n}"), vec![wanted]);
    }
    let mut fetches = 0;
    for _ in 0..20 {
        let surveys: Vec<_> = std::mem::take(&mut test.out)
            .into_iter()
            .filter_map(|out| match out {
                FetchOutput::Survey { origin, .. } => Some(origin),
                FetchOutput::Fetch(_) => {
                    fetches += 1;
                    None
                }
                _ => None,
            })
            .collect();
        assert!(surveys.len() <= 8);
        for (n, origin) in surveys.into_iter().enumerate() {
            let addresses = vec![format!("9.9.9.{n}").parse().expect("a valid address")];
            test.handle(FetchInput::Surveyed(origin, SurveyResult::Resolved { addresses, stated_limits: None }));
        }
    }
    assert_eq!(fetches, 10, "twice the limit of one host");
}

#[test]
fn rate_limit_survives_a_restart() {
    let mut test = TestMachine::new();
    let mut rows = BTreeMap::new();
    for n in 0..30_u8 {
        let wanted = test.wanted(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        test.want(n, &format!("r{n}"), vec![wanted]);
        let fetch = test.fetch();
        for row in test.rows() {
            rows.insert(row.authority.clone(), row);
        }
        test.finish_with(fetch.id, &["a"]);
        test.advance(100);
    }
    assert!(rows["one.example"].asked.len() >= 30);
    // The process restarts three seconds later.
    let mut again = test.restarted(config(), 3_000);
    for row in rows.into_values() {
        again.handle(FetchInput::HostRestored(row));
    }
    let wanted = again.wanted(99, &["a"], &["https://one.example/99.git"]);
    again.want(99, "r99", vec![wanted]);
    again.advance(50_000);
    assert!(again.fetches().is_empty());
    again.advance(20_000);
    assert_eq!(again.fetches().len(), 1);
}

#[test]
fn host_rows_count_requests_ahead() {
    let mut test = TestMachine::new();
    for n in 0..30_u8 {
        let wanted = test.wanted(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        test.want(n, &format!("r{n}"), vec![wanted]);
        let fetch = test.fetch();
        test.finish_with(fetch.id, &["a"]);
    }
    let rows = test.rows();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.asked.len() % 11 == 0), "{rows:?}");
}

#[test]
fn retry_after_is_respected_also_after_a_restart() {
    let mut test = TestMachine::new();
    assert_eq!(begun(&mut test, "one.example", 1), 1);
    test.rows();
    let id = crate::fetch::io::FetchId(test.machine.fetches.keys().next().expect("one").0);
    test.finish(id, FetchOutcome::Busy(Some(600)));
    let row = test.rows().pop().expect("kept");
    assert!(row.quiet_until >= Timestamp(test.now.wall.0 + 600) && row.quiet_until <= Timestamp(test.now.wall.0 + 723));
    assert!(matches!(test.machine.host_views()[0].quiet, Some((600_000..=720_000, QuietReason::Busy))));
    test.advance(599_999);
    assert!(test.fetches().is_empty());
    let mut again = test.restarted(config(), 0);
    let left = row.quiet_until.0 - test.now.wall.0;
    again.handle(FetchInput::HostRestored(row));
    begun(&mut again, "one.example", 1);
    again.advance(left * 1_000 - 1);
    assert!(again.fetches().is_empty());
    again.advance(1);
    assert_eq!(again.fetches().len(), 1);
    // `Retry-After` is capped at an hour.
    test.advance(200_000);
    let fetch = test.fetch();
    test.finish(fetch.id, FetchOutcome::Busy(Some(700_000)));
    assert!(matches!(test.machine.host_views()[0].quiet, Some((3_600_000..=4_320_000, _))));
}

#[test]
fn failed_host_is_retried_with_growing_pauses() {
    let mut test = TestMachine::new();
    for n in 0..3 {
        let wanted = test.wanted(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        test.want(n, &format!("r{n}"), vec![wanted]);
    }
    // One outage counts as one failure, no matter how many requests failed.
    for fetch in test.fetches() {
        test.finish(fetch.id, FetchOutcome::Failed);
    }
    let mut before = test.now.mono.0;
    let mut pauses = Vec::new();
    while pauses.len() < 7 {
        test.advance(1_000);
        let fetches = test.fetches();
        assert!(fetches.len() <= 1, "one probe decides for all");
        for fetch in fetches {
            pauses.push((test.now.mono.0 - before) / 1_000);
            before = test.now.mono.0;
            test.finish(fetch.id, FetchOutcome::Failed);
        }
    }
    for (pause, about) in pauses.iter().zip([20, 40, 80, 160, 320, 600, 600]) {
        let (least, max_millis) = (about * 4 / 5, about * 6 / 5 + 2);
        assert!((least..=max_millis).contains(pause), "{pauses:?}");
    }
    assert_eq!(test.tried().len(), 3);
    test.advance(720_000);
    let fetch = test.fetch();
    test.finish_with(fetch.id, &["a"]);
    assert_eq!(test.fetches().len(), 2, "all jobs continue when the host answers");
}

#[test]
fn hosts_without_address_or_with_a_forbidden_one_count_as_asked() {
    let private = OutboundError::Address("10.0.0.1".parse().expect("a valid address"), AddressScope::Private);
    for (survey, shunned) in [(SurveyResult::NoAddress, 0), (SurveyResult::Forbidden(private), 2)] {
        let mut test = TestMachine::new();
        test.holds_surveys = true;
        for n in 0..2 {
            let wanted = test.wanted(n, &["a"], &[&format!("https://one.example/{n}.git")]);
            test.want(n, &format!("r{n}"), vec![wanted]);
        }
        let origin = match test.out.remove(0) {
            FetchOutput::Survey { origin, with_nip11: false } => origin,
            other => panic!("{other:?}"),
        };
        assert!(test.out.is_empty(), "one survey for all jobs");
        test.handle(FetchInput::Surveyed(origin.clone(), survey.clone()));
        assert_eq!(test.tried().len(), 2);
        assert_eq!(test.out.iter().filter(|out| matches!(out, FetchOutput::UrlForbidden(..))).count(), shunned);
        test.out.clear();
        test.advance(40_000);
        assert_eq!(test.out.iter().filter(|out| matches!(out, FetchOutput::Survey { .. })).count(), 1);
        test.handle(FetchInput::Surveyed(origin, survey));
        assert!(!test.out.iter().any(|out| matches!(out, FetchOutput::UrlForbidden(..))), "reported once");
    }
}

#[test]
fn addresses_are_cached_for_five_minutes_and_stated_limits_for_an_hour() {
    let mut test = TestMachine::new();
    test.holds_surveys = true;
    let mut asked = Vec::new();
    for round in 0..40 {
        let wanted = test.wanted(round, &["a"], &[GRASP]);
        test.want(1, "r", vec![wanted]);
        test.advance(1_000);
        for out in std::mem::take(&mut test.out) {
            match out {
                FetchOutput::Survey { origin, with_nip11 } => {
                    asked.push((test.now.mono.0 / 60_000, with_nip11));
                    let addresses = vec!["9.9.9.9".parse().expect("a valid address")];
                    let stated = with_nip11.then_some(GitFetchLimits { concurrent: Some(2), per_minute: None });
                    test.handle(FetchInput::Surveyed(
                        origin,
                        SurveyResult::Resolved { addresses, stated_limits: stated },
                    ));
                }
                FetchOutput::Fetch(fetch) => test.finish_with(fetch.id, &["a"]),
                _ => {}
            }
        }
        for fetch in test.fetches() {
            test.finish_with(fetch.id, &["a"]);
        }
        test.unwant("r");
        test.advance(119_000);
    }
    assert_eq!(asked[0], (0, true));
    assert!(asked.iter().skip(1).take(9).all(|(_, with_nip11)| !with_nip11), "{asked:?}");
    assert_eq!(asked.iter().filter(|(_, with_nip11)| *with_nip11).map(|(at, _)| *at).collect::<Vec<_>>(), [0, 62]);
}

#[test]
fn second_source_is_asked_while_a_survey_is_slow() {
    let mut test = TestMachine::new();
    test.holds_surveys = true;
    let wanted = test.wanted(1, &["a"], &[GRASP, "https://one.example/r.git"]);
    test.want(1, "r", vec![wanted]);
    assert!(matches!(test.out.as_slice(), [FetchOutput::Survey { with_nip11: true, .. }]));
    test.out.clear();
    test.advance(4_999);
    assert!(test.out.is_empty());
    test.holds_surveys = false;
    test.advance(1);
    assert_eq!(urls(&test.fetches()), ["https://one.example/r.git"]);
}

#[test]
fn another_port_is_another_host_with_the_same_operator_limit() {
    let chosen = BTreeMap::from([("one.example".to_owned(), HostLimits { concurrent: 1, per_minute: 30 })]);
    let mut test = TestMachine::with(FetchConfig { host_limits: chosen, ..config() });
    for (n, base) in ["https://one.example", "http://one.example", "https://one.example:8443"].iter().enumerate() {
        let n = n as u8;
        let wanted = test.wanted(n, &["a"], &[&format!("{base}/{n}.git")]);
        test.want(n, &format!("r{n}"), vec![wanted]);
    }
    assert_eq!(urls(&test.fetches()), ["https://one.example/0.git", "https://one.example:8443/2.git"]);
}
