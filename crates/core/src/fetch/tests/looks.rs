//! Looks at other git servers: after everything else, politely, later and later.

use super::rig::{Rig, manners, site};
use crate::fetch::io::{End, Input, Look, Output, Shown, Survey};
use crate::fetch::{Found, Limits, Manners};
use crate::limits;
use crate::net::{Forbidden, Scope};
use crate::repo::Identifier;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

const URL: &str = "https://forge.example/r.git";
const ALL: Result<Shown, End> = Ok(Shown { of: 5, lacks: 0, differs: 0 });
const SOME: Result<Shown, End> = Ok(Shown { of: 5, lacks: 2, differs: 1 });

impl Rig {
    /// Lets time pass until a look begins, and gives it with the time that this took.
    #[track_caller]
    fn next_look(&mut self, most: u64) -> (Look, u64) {
        let began = self.now.mono.0;
        while self.now.mono.0 < began + most {
            self.pass(1_000);
            let mut looks = self.looks();
            assert!(looks.len() < 2, "{looks:?}");
            if let Some(look) = looks.pop() {
                return (look, self.now.mono.0 - began);
            }
        }
        panic!("no look within {most} ms");
    }

    fn found(&self, owner: u8, name: &str) -> Vec<Option<Found>> {
        self.hunter.looks(&site(owner, name)).into_iter().map(|look| look.found.map(|(found, _)| found)).collect()
    }
}

/// Whether so much is about so much.
fn about(millis: u64, expected: u64) -> bool {
    (expected * 79 / 100..=expected * 121 / 100 + 1_000).contains(&millis)
}

#[test]
fn a_minute_after_a_change_then_later_and_later_and_daily_in_the_end() {
    let mut rig = Rig::new();
    rig.serve(1, "r", &[URL]);
    assert_eq!(rig.found(1, "r"), [None]);
    let (look, took) = rig.next_look(5 * MINUTE);
    assert!(about(took, MINUTE), "{took}");
    assert_eq!((look.site.clone(), look.target.to_string()), (site(1, "r"), URL.to_owned()));
    rig.tell(Input::Looked(look.id, SOME));
    assert_eq!(rig.found(1, "r"), [Some(Found::Lacking(Shown { of: 5, lacks: 2, differs: 1 }))]);
    for (result, found, expected) in [
        (Err(End::Absent), Found::Absent, 10 * MINUTE),
        (Err(End::Failed), Found::Silent, HOUR),
        (Err(End::Unsound), Found::Silent, 6 * HOUR),
        (SOME, Found::Lacking(Shown { of: 5, lacks: 2, differs: 1 }), DAY),
        (SOME, Found::Lacking(Shown { of: 5, lacks: 2, differs: 1 }), DAY),
    ] {
        let (look, took) = rig.next_look(2 * DAY);
        assert!(about(took, expected), "{took} instead of {expected}");
        rig.tell(Input::Looked(look.id, result));
        assert_eq!(rig.found(1, "r"), [Some(found)]);
    }
    let (look, _) = rig.next_look(2 * DAY);
    let since = rig.now.wall;
    rig.tell(Input::Looked(look.id, ALL));
    let (look, took) = rig.next_look(2 * DAY);
    assert!(about(took, DAY), "{took}");
    rig.tell(Input::Looked(look.id, ALL));
    let view = rig.hunter.looks(&site(1, "r")).remove(0);
    assert_eq!((view.found, view.stale), (Some((Found::Current(since), rig.now.wall)), false));

    // A change makes all of it old.
    rig.tell(Input::Moved(site(1, "r")));
    assert!(rig.hunter.looks(&site(1, "r"))[0].stale);
    let (look, took) = rig.next_look(2 * DAY);
    assert!(about(took, MINUTE), "{took}");
    // And so does one while somebody looks.
    rig.tell(Input::Moved(site(1, "r")));
    rig.tell(Input::Looked(look.id, ALL));
    assert!(rig.hunter.looks(&site(1, "r"))[0].stale);
    let (look, took) = rig.next_look(2 * DAY);
    assert!(about(took, MINUTE), "{took}");
    rig.tell(Input::Looked(look.id, ALL));
    let view = rig.hunter.looks(&site(1, "r")).remove(0);
    assert_eq!((view.found, view.stale), (Some((Found::Current(rig.now.wall), rig.now.wall)), false));
}

#[test]
fn a_start_calls_nobody_at_once_and_a_new_place_is_looked_at_soon() {
    let mut rig = Rig::new();
    for n in 0..200 {
        rig.keep(1, &format!("r{n}"), &[&format!("https://h{n}.example/r.git")]);
    }
    let mut begun = [0_usize; 5];
    for hour in &mut begun {
        for _ in 0..60 {
            rig.pass(MINUTE);
            let looks = rig.looks();
            *hour += looks.len();
            looks.into_iter().for_each(|look| rig.tell(Input::Looked(look.id, ALL)));
        }
    }
    assert_eq!(begun.iter().sum::<usize>(), 200, "{begun:?}");
    assert!(begun[..4].iter().all(|count| (25..75).contains(count)), "{begun:?}");
    rig.keep(1, "r7", &["https://h7.example/r.git", URL]);
    let (look, took) = rig.next_look(HOUR);
    assert!(look.target.to_string() == URL && about(took, MINUTE), "{took}");
    assert_eq!(rig.hunter.looks(&site(1, "r7")).len(), 2);
    // What is said again is no news, and what is gone is not looked at.
    rig.keep(1, "r7", &["https://h7.example/r.git"]);
    rig.tell(Input::Looked(look.id, SOME));
    assert_eq!(rig.hunter.looks(&site(1, "r7")).len(), 1);
    rig.tell(Input::Kept(Identifier::new("r7").expect("valid"), Vec::new()));
    assert_eq!((rig.hunter.looks(&site(1, "r7")), rig.hunter.look_count()), (vec![], (199, 0)));
}

#[test]
fn quarries_come_first_and_half_a_minute_is_left_to_them() {
    let mut rig = Rig::with(Manners { usual: Limits { concurrent: 2, per_minute: 10 }, ..manners() });
    for n in 0..20 {
        rig.serve(1, &format!("r{n}"), &[&format!("https://forge.example/{n}.git")]);
    }
    rig.pass(60_000 - 10);
    // Quarries have the host for themselves, however many looks wait.
    for n in 0..4 {
        let need = rig.need(n, &["a"], &[&format!("https://forge.example/q{n}.git")]);
        rig.want(n, &format!("q{n}"), vec![need]);
    }
    let first = rig.fetches();
    assert_eq!(first.len(), 2);
    rig.pass(MINUTE);
    assert_eq!(rig.looks(), [], "two wait, and two are under way");
    rig.sent(first[0].id, &["a"]);
    rig.sent(first[1].id, &["a"]);
    let second = rig.fetches();
    assert_eq!(second.len(), 2);
    rig.sent(second[0].id, &["a"]);
    // One at a time, and five in the minute with the others.
    let mut looks = rig.looks();
    let mut count = 0;
    while let Some(look) = looks.pop() {
        assert_eq!(looks, []);
        count += 1;
        rig.tell(Input::Looked(look.id, ALL));
        looks = rig.looks();
    }
    // The first two were in the minute before.
    assert_eq!(count, 3);
    // There is still room for those who are in a hurry.
    let need = rig.need(9, &["a"], &["https://forge.example/q9.git"]);
    rig.want(9, "q9", vec![need]);
    let last = rig.fetch();
    rig.pass(5 * MINUTE);
    assert_eq!(rig.looks(), [], "both hands are full");
    ["q0", "q1", "q2", "q3", "q9"].into_iter().for_each(|name| rig.unwant(name));
    rig.end(last.id, End::Cancelled);
    let (_, under_way) = rig.hunter.look_count();
    assert_eq!((rig.looks().len(), under_way), (1, 1), "the next waits for its end");
}

#[test]
fn looks_that_wait_behind_a_quarry_go_on_when_it_is_given_up() {
    let mut rig = Rig::with(Manners { usual: Limits { concurrent: 1, per_minute: 30 }, ..manners() });
    let needs = [rig.need(1, &["a"], &["https://forge.example/q.git"]), rig.need(2, &["a"], &[URL])];
    let [first, second] = needs;
    rig.want(1, "q", vec![first]);
    let fetch = rig.fetch();
    rig.want(2, "p", vec![second]);
    rig.serve(1, "r", &[URL]);
    rig.pass(5 * MINUTE);
    rig.unwant("p");
    rig.unwant("q");
    assert_eq!(rig.looks(), []);
    rig.end(fetch.id, End::Cancelled);
    assert_eq!(rig.looks().len(), 1);
}

#[test]
fn what_a_look_meets_counts_for_its_host() {
    let mut rig = Rig::new();
    rig.serve(1, "r", &[URL]);
    let (look, _) = rig.next_look(5 * MINUTE);
    let rows = rig.rows();
    assert_eq!((rows.len(), rows[0].asked.is_empty()), (1, false), "it is written down before it is asked");
    rig.tell(Input::Looked(look.id, Err(End::Busy(Some(1_800)))));
    assert_eq!(rig.found(1, "r"), [None], "that says nothing");
    let need = rig.need(1, &["a"], &["https://forge.example/q.git"]);
    rig.want(1, "q", vec![need]);
    rig.pass(29 * MINUTE);
    assert_eq!((rig.fetches(), rig.looks()), (vec![], vec![]), "quiet is quiet");
    rig.pass(10 * MINUTE);
    let fetch = rig.fetch();
    assert_eq!(rig.looks().len(), 1);
    rig.sent(fetch.id, &["a"]);

    // Failures of looks are failures of the host.
    let mut rig = Rig::new();
    rig.serve(1, "r", &[URL]);
    let (look, _) = rig.next_look(5 * MINUTE);
    rig.tell(Input::Looked(look.id, Err(End::Failed)));
    let need = rig.need(1, &["a"], &["https://forge.example/q.git"]);
    rig.want(1, "q", vec![need]);
    rig.pass(10_000);
    assert_eq!(rig.fetches(), []);
    rig.pass(20_000);
    assert_eq!(rig.fetches().len(), 1);
}

#[test]
fn who_is_nowhere_or_forbidden_is_not_asked() {
    let mut rig = Rig::new();
    rig.blind = true;
    rig.serve(1, "r", &["https://far.example/r.git", "https://home.example/r.git", "ssh://git@old.example/r"]);
    assert_eq!(rig.found(1, "r"), [None, None, Some(Found::Shunned)]);
    rig.pass(2 * MINUTE);
    let surveys = std::mem::take(&mut rig.out).into_iter().filter_map(|out| match out {
        Output::Survey { origin, terms: false } => Some(origin),
        _ => None,
    });
    let surveys: Vec<_> = surveys.collect();
    assert_eq!(surveys.len(), 2);
    let home = Forbidden::Address([10, 0, 0, 1].into(), Scope::Private);
    for (origin, survey) in surveys.into_iter().zip([Survey::Nowhere, Survey::Forbidden(home)]) {
        rig.tell(Input::Surveyed(origin, survey));
    }
    assert_eq!(rig.found(1, "r"), [Some(Found::Silent), Some(Found::Shunned), Some(Found::Shunned)]);
    assert_eq!((rig.looks(), rig.hunter.look_count()), (vec![], (3, 0)));
    // They are asked for again some time.
    rig.pass(7 * MINUTE);
    assert_eq!(rig.out.len(), 0, "{:?}", rig.out);
    rig.pass(6 * MINUTE);
    assert_eq!(rig.out.len(), 2, "{:?}", rig.out);
}

#[test]
fn few_at_once_and_not_too_many_are_remembered() {
    let mut rig = Rig::new();
    for n in 0..50 {
        rig.serve(1, &format!("r{n}"), &[&format!("https://h{n}.example/r.git")]);
    }
    rig.pass(2 * MINUTE);
    let mut looks = rig.looks();
    assert_eq!(looks.len(), limits::LOOKS_AT_ONCE);
    let mut count = 0;
    while let Some(look) = looks.pop() {
        count += 1;
        rig.tell(Input::Looked(look.id, ALL));
        looks.extend(rig.looks());
        assert!(looks.len() <= limits::LOOKS_AT_ONCE);
    }
    assert_eq!(count, 50);
    for n in 0..limits::LOOKS {
        rig.keep(2, &format!("x{n}"), &[&format!("https://forge.example/{n}.git")]);
    }
    assert_eq!(rig.hunter.look_count(), (limits::LOOKS, 0));
    assert_eq!(rig.hunter.looks(&site(1, "r3")), []);
    assert_eq!(rig.hunter.looks(&site(2, "x3")).len(), 1);
    rig.pass(DAY);
    assert_eq!(rig.looks().len(), 1, "one host, one look");
}
