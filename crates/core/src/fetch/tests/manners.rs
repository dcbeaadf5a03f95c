//! How much is asked of whom.

use std::collections::BTreeMap;

use super::rig::{Rig, manners, urls};
use crate::fetch::io::{End, Input, Output, Survey};
use crate::fetch::{Limits, Manners, Quiet};
use crate::net::{Forbidden, Scope};
use crate::sync::relay_limits::GitTerms;
use crate::time::Timestamp;

const GRASP: &str = "https://grasp.example/npub/r.git";

/// How many fetches begin at once when so many repositories of one host are wanted.
fn begun(rig: &mut Rig, host: &str, repositories: u8) -> usize {
    for n in 0..repositories {
        let need = rig.need(n, &["a"], &[&format!("https://{host}/{n}.git")]);
        rig.want(n, &format!("{host}{n}"), vec![need]);
    }
    rig.fetches().len()
}

#[test]
fn what_a_server_states_counts() {
    let stating = |concurrent, per_minute| GitTerms { concurrent, per_minute };
    let chosen = BTreeMap::from([("chosen.grasp.example".to_owned(), Limits { concurrent: 3, per_minute: 30 })]);
    let mut rig = Rig::with(Manners { overrides: chosen, ..manners() });
    for (host, terms) in [
        ("more.grasp.example", stating(Some(8), None)),
        ("less.grasp.example", stating(Some(1), Some(600))),
        ("none.grasp.example", stating(Some(0), None)),
        ("lies.grasp.example", stating(Some(100_000), Some(u32::MAX))),
        ("chosen.grasp.example", stating(Some(32), Some(10))),
    ] {
        rig.terms.insert(host.to_owned(), terms);
    }
    assert_eq!(begun(&mut rig, "more.grasp.example", 12), 8);
    assert_eq!(begun(&mut rig, "less.grasp.example", 12), 1);
    assert_eq!(begun(&mut rig, "none.grasp.example", 2), 0);
    assert_eq!(rig.tried().len(), 2, "who wants none has been asked");
    assert_eq!(begun(&mut rig, "chosen.grasp.example", 12), 3);
    assert_eq!(begun(&mut rig, "lies.grasp.example", 12), 4, "sixteen in all");
    let limits: Vec<(u32, u32)> =
        rig.hunter.host_views().iter().map(|host| (host.limits.concurrent, host.limits.per_minute)).collect();
    assert_eq!(limits, [(8, 30), (1, 600), (0, 30), (3, 10), (32, 600)]);
}

#[test]
fn sixteen_in_all_and_hosts_take_turns() {
    let mut rig = Rig::new();
    for host in 0..5 {
        for n in 0..5 {
            let need = rig.need(n, &["a"], &[&format!("https://h{host}.example/{n}.git")]);
            rig.want(n, &format!("r{host}-{n}"), vec![need]);
        }
    }
    let running = rig.fetches();
    assert_eq!(running.len(), 16);
    let mut next = Vec::new();
    for fetch in running.iter().take(4) {
        rig.sent(fetch.id, &["a"]);
        next.push(rig.fetch().target.host().to_string());
    }
    next.sort();
    next.dedup();
    assert!(next.len() > 1, "{next:?}");
}

#[test]
fn many_names_of_one_machine_are_one_machine() {
    let mut rig = Rig::new();
    rig.blind = true;
    for n in 0..20 {
        let need = rig.need(n, &["a"], &[&format!("https://h{n}.example/r.git")]);
        rig.want(n, &format!("r{n}"), vec![need]);
    }
    let mut fetches = 0;
    for _ in 0..20 {
        let surveys: Vec<_> = std::mem::take(&mut rig.out)
            .into_iter()
            .filter_map(|out| match out {
                Output::Survey { origin, .. } => Some(origin),
                Output::Fetch(_) => {
                    fetches += 1;
                    None
                }
                _ => None,
            })
            .collect();
        assert!(surveys.len() <= 8);
        for (n, origin) in surveys.into_iter().enumerate() {
            let addresses = vec![format!("9.9.9.{n}").parse().expect("an address")];
            rig.tell(Input::Surveyed(origin, Survey::Known { addresses, terms: None }));
        }
    }
    assert_eq!(fetches, 10, "twice what one host may be asked");
}

#[test]
fn a_restart_does_not_make_us_ask_more() {
    let mut rig = Rig::new();
    let mut rows = BTreeMap::new();
    for n in 0..30_u8 {
        let need = rig.need(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        rig.want(n, &format!("r{n}"), vec![need]);
        let fetch = rig.fetch();
        for row in rig.rows() {
            rows.insert(row.authority.clone(), row);
        }
        rig.sent(fetch.id, &["a"]);
        rig.pass(100);
    }
    assert!(rows["one.example"].asked.len() >= 30);
    // Three seconds later it is another process.
    let mut again = rig.reborn(manners(), 3_000);
    for row in rows.into_values() {
        again.tell(Input::Restored(row));
    }
    let need = again.need(99, &["a"], &["https://one.example/99.git"]);
    again.want(99, "r99", vec![need]);
    again.pass(50_000);
    assert!(again.fetches().is_empty());
    again.pass(20_000);
    assert_eq!(again.fetches().len(), 1);
}

#[test]
fn rows_are_written_ahead_and_seldom() {
    let mut rig = Rig::new();
    for n in 0..30_u8 {
        let need = rig.need(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        rig.want(n, &format!("r{n}"), vec![need]);
        let fetch = rig.fetch();
        rig.sent(fetch.id, &["a"]);
    }
    let rows = rig.rows();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.asked.len() % 11 == 0), "{rows:?}");
}

#[test]
fn retry_after_is_kept_and_remembered() {
    let mut rig = Rig::new();
    assert_eq!(begun(&mut rig, "one.example", 1), 1);
    rig.rows();
    let id = crate::fetch::io::FetchId(rig.hunter.flights.keys().next().expect("one").0);
    rig.end(id, End::Busy(Some(600)));
    let row = rig.rows().pop().expect("kept");
    assert!(row.quiet_until >= Timestamp(rig.now.wall.0 + 600) && row.quiet_until <= Timestamp(rig.now.wall.0 + 723));
    assert!(matches!(rig.hunter.host_views()[0].quiet, Some((600_000..=720_000, Quiet::Busy))));
    rig.pass(599_999);
    assert!(rig.fetches().is_empty());
    let mut again = rig.reborn(manners(), 0);
    let left = row.quiet_until.0 - rig.now.wall.0;
    again.tell(Input::Restored(row));
    begun(&mut again, "one.example", 1);
    again.pass(left * 1_000 - 1);
    assert!(again.fetches().is_empty());
    again.pass(1);
    assert_eq!(again.fetches().len(), 1);
    // No server may silence us for a week.
    rig.pass(200_000);
    let fetch = rig.fetch();
    rig.end(fetch.id, End::Busy(Some(700_000)));
    assert!(matches!(rig.hunter.host_views()[0].quiet, Some((3_600_000..=4_320_000, _))));
}

#[test]
fn a_host_that_fails_is_left_alone_longer_and_longer() {
    let mut rig = Rig::new();
    for n in 0..3 {
        let need = rig.need(n, &["a"], &[&format!("https://one.example/{n}.git")]);
        rig.want(n, &format!("r{n}"), vec![need]);
    }
    // One outage is one failure, however many felt it.
    for fetch in rig.fetches() {
        rig.end(fetch.id, End::Failed);
    }
    let mut before = rig.now.mono.0;
    let mut pauses = Vec::new();
    while pauses.len() < 7 {
        rig.pass(1_000);
        let fetches = rig.fetches();
        assert!(fetches.len() <= 1, "one probe speaks for all");
        for fetch in fetches {
            pauses.push((rig.now.mono.0 - before) / 1_000);
            before = rig.now.mono.0;
            rig.end(fetch.id, End::Failed);
        }
    }
    for (pause, about) in pauses.iter().zip([20, 40, 80, 160, 320, 600, 600]) {
        let (least, most) = (about * 4 / 5, about * 6 / 5 + 2);
        assert!((least..=most).contains(pause), "{pauses:?}");
    }
    assert_eq!(rig.tried().len(), 3);
    rig.pass(720_000);
    let fetch = rig.fetch();
    rig.sent(fetch.id, &["a"]);
    assert_eq!(rig.fetches().len(), 2, "it is back, and so are we");
}

#[test]
fn dead_names_and_forbidden_ones() {
    let private = Forbidden::Address("10.0.0.1".parse().expect("an address"), Scope::Private);
    for (survey, shunned) in [(Survey::Nowhere, 0), (Survey::Forbidden(private), 2)] {
        let mut rig = Rig::new();
        rig.blind = true;
        for n in 0..2 {
            let need = rig.need(n, &["a"], &[&format!("https://one.example/{n}.git")]);
            rig.want(n, &format!("r{n}"), vec![need]);
        }
        let origin = match rig.out.remove(0) {
            Output::Survey { origin, terms: false } => origin,
            other => panic!("{other:?}"),
        };
        assert!(rig.out.is_empty(), "one question for all");
        rig.tell(Input::Surveyed(origin.clone(), survey.clone()));
        assert_eq!(rig.tried().len(), 2);
        assert_eq!(rig.out.iter().filter(|out| matches!(out, Output::Shun(..))).count(), shunned);
        rig.out.clear();
        rig.pass(40_000);
        assert_eq!(rig.out.iter().filter(|out| matches!(out, Output::Survey { .. })).count(), 1);
        rig.tell(Input::Surveyed(origin, survey));
        assert!(!rig.out.iter().any(|out| matches!(out, Output::Shun(..))), "said once");
    }
}

#[test]
fn addresses_for_five_minutes_and_terms_for_an_hour() {
    let mut rig = Rig::new();
    rig.blind = true;
    let mut asked = Vec::new();
    for round in 0..40 {
        let need = rig.need(round, &["a"], &[GRASP]);
        rig.want(1, "r", vec![need]);
        rig.pass(1_000);
        for out in std::mem::take(&mut rig.out) {
            match out {
                Output::Survey { origin, terms } => {
                    asked.push((rig.now.mono.0 / 60_000, terms));
                    let addresses = vec!["9.9.9.9".parse().expect("an address")];
                    let stated = terms.then_some(GitTerms { concurrent: Some(2), per_minute: None });
                    rig.tell(Input::Surveyed(origin, Survey::Known { addresses, terms: stated }));
                }
                Output::Fetch(fetch) => rig.sent(fetch.id, &["a"]),
                _ => {}
            }
        }
        for fetch in rig.fetches() {
            rig.sent(fetch.id, &["a"]);
        }
        rig.unwant("r");
        rig.pass(119_000);
    }
    assert_eq!(asked[0], (0, true));
    assert!(asked.iter().skip(1).take(9).all(|(_, terms)| !terms), "{asked:?}");
    assert_eq!(asked.iter().filter(|(_, terms)| *terms).map(|(at, _)| *at).collect::<Vec<_>>(), [0, 62]);
}

#[test]
fn a_survey_is_a_silent_server_for_whoever_waits() {
    let mut rig = Rig::new();
    rig.blind = true;
    let need = rig.need(1, &["a"], &[GRASP, "https://one.example/r.git"]);
    rig.want(1, "r", vec![need]);
    assert!(matches!(rig.out.as_slice(), [Output::Survey { terms: true, .. }]));
    rig.out.clear();
    rig.pass(4_999);
    assert!(rig.out.is_empty());
    rig.blind = false;
    rig.pass(1);
    assert_eq!(urls(&rig.fetches()), ["https://one.example/r.git"]);
}

#[test]
fn the_same_host_under_another_port_is_another_but_obeys_the_same_choice() {
    let chosen = BTreeMap::from([("one.example".to_owned(), Limits { concurrent: 1, per_minute: 30 })]);
    let mut rig = Rig::with(Manners { overrides: chosen, ..manners() });
    for (n, base) in ["https://one.example", "http://one.example", "https://one.example:8443"].iter().enumerate() {
        let n = n as u8;
        let need = rig.need(n, &["a"], &[&format!("{base}/{n}.git")]);
        rig.want(n, &format!("r{n}"), vec![need]);
    }
    assert_eq!(urls(&rig.fetches()), ["https://one.example/0.git", "https://one.example:8443/2.git"]);
}
