//! Mirror checks: schedule, priority and results.

use super::test_machine::{TestMachine, config, repo_path};
use crate::fetch::io::{FetchInput, FetchOutcome, FetchOutput, MirrorCheck, RefComparison, SurveyResult};
use crate::fetch::{FetchConfig, HostLimits, MirrorStatus};
use crate::limits;
use crate::net::{AddressScope, OutboundError};
use crate::repo::Identifier;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

const URL: &str = "https://forge.example/r.git";
const ALL: Result<RefComparison, FetchOutcome> = Ok(RefComparison { served: 5, missing: 0, different: 0 });
const SOME: Result<RefComparison, FetchOutcome> = Ok(RefComparison { served: 5, missing: 2, different: 1 });

impl TestMachine {
    /// Advances the time until a check begins. Returns the check and the time that passed.
    #[track_caller]
    fn next_mirror_check(&mut self, max_millis: u64) -> (MirrorCheck, u64) {
        let began = self.now.mono.0;
        while self.now.mono.0 < began + max_millis {
            self.advance(1_000);
            let mut checks = self.mirror_checks();
            assert!(checks.len() < 2, "{checks:?}");
            if let Some(check) = checks.pop() {
                return (check, self.now.mono.0 - began);
            }
        }
        panic!("no mirror check within {max_millis} ms");
    }

    fn mirror_status(&self, owner: u8, name: &str) -> Vec<Option<MirrorStatus>> {
        self.machine
            .mirrors(&repo_path(owner, name))
            .into_iter()
            .map(|mirror| mirror.status.map(|(found, _)| found))
            .collect()
    }
}

/// Returns whether a time is as expected, with jitter.
fn about(millis: u64, expected: u64) -> bool {
    (expected * 79 / 100..=expected * 121 / 100 + 1_000).contains(&millis)
}

#[test]
fn mirror_is_checked_after_a_change_then_at_growing_intervals_then_daily() {
    let mut test = TestMachine::new();
    test.serve(1, "r", &[URL]);
    assert_eq!(test.mirror_status(1, "r"), [None]);
    let (check, took) = test.next_mirror_check(5 * MINUTE);
    assert!(about(took, MINUTE), "{took}");
    assert_eq!((check.repo_path.clone(), check.target.to_string()), (repo_path(1, "r"), URL.to_owned()));
    test.handle(FetchInput::MirrorChecked(check.id, SOME));
    assert_eq!(
        test.mirror_status(1, "r"),
        [Some(MirrorStatus::Lacking(RefComparison { served: 5, missing: 2, different: 1 }))]
    );
    for (result, found, expected) in [
        (Err(FetchOutcome::Absent), MirrorStatus::Absent, 10 * MINUTE),
        (Err(FetchOutcome::Failed), MirrorStatus::NoAnswer, HOUR),
        (Err(FetchOutcome::InvalidData), MirrorStatus::NoAnswer, 6 * HOUR),
        (SOME, MirrorStatus::Lacking(RefComparison { served: 5, missing: 2, different: 1 }), DAY),
        (SOME, MirrorStatus::Lacking(RefComparison { served: 5, missing: 2, different: 1 }), DAY),
    ] {
        let (check, took) = test.next_mirror_check(2 * DAY);
        assert!(about(took, expected), "{took} instead of {expected}");
        test.handle(FetchInput::MirrorChecked(check.id, result));
        assert_eq!(test.mirror_status(1, "r"), [Some(found)]);
    }
    let (check, _) = test.next_mirror_check(2 * DAY);
    let since = test.now.wall;
    test.handle(FetchInput::MirrorChecked(check.id, ALL));
    let (check, took) = test.next_mirror_check(2 * DAY);
    assert!(about(took, DAY), "{took}");
    test.handle(FetchInput::MirrorChecked(check.id, ALL));
    let view = test.machine.mirrors(&repo_path(1, "r")).remove(0);
    assert_eq!((view.status, view.is_stale), (Some((MirrorStatus::Current(since), test.now.wall)), false));

    // A change makes the result stale.
    test.handle(FetchInput::RefsChanged(repo_path(1, "r")));
    assert!(test.machine.mirrors(&repo_path(1, "r"))[0].is_stale);
    let (check, took) = test.next_mirror_check(2 * DAY);
    assert!(about(took, MINUTE), "{took}");
    // So does a change while a check is running.
    test.handle(FetchInput::RefsChanged(repo_path(1, "r")));
    test.handle(FetchInput::MirrorChecked(check.id, ALL));
    assert!(test.machine.mirrors(&repo_path(1, "r"))[0].is_stale);
    let (check, took) = test.next_mirror_check(2 * DAY);
    assert!(about(took, MINUTE), "{took}");
    test.handle(FetchInput::MirrorChecked(check.id, ALL));
    let view = test.machine.mirrors(&repo_path(1, "r")).remove(0);
    assert_eq!((view.status, view.is_stale), (Some((MirrorStatus::Current(test.now.wall), test.now.wall)), false));
}

#[test]
fn checks_are_spread_after_a_start_and_a_new_mirror_is_checked_soon() {
    let mut test = TestMachine::new();
    for n in 0..200 {
        test.set_mirrors(1, &format!("r{n}"), &[&format!("https://h{n}.example/r.git")]);
    }
    let mut begun = [0_usize; 5];
    for hour in &mut begun {
        for _ in 0..60 {
            test.advance(MINUTE);
            let checks = test.mirror_checks();
            *hour += checks.len();
            checks.into_iter().for_each(|check| test.handle(FetchInput::MirrorChecked(check.id, ALL)));
        }
    }
    assert_eq!(begun.iter().sum::<usize>(), 200, "{begun:?}");
    assert!(begun[..4].iter().all(|count| (25..75).contains(count)), "{begun:?}");
    test.set_mirrors(1, "r7", &["https://h7.example/r.git", URL]);
    let (check, took) = test.next_mirror_check(HOUR);
    assert!(check.target.to_string() == URL && about(took, MINUTE), "{took}");
    assert_eq!(test.machine.mirrors(&repo_path(1, "r7")).len(), 2);
    // A repeated report changes nothing, and dropped mirrors are not checked.
    test.set_mirrors(1, "r7", &["https://h7.example/r.git"]);
    test.handle(FetchInput::MirrorChecked(check.id, SOME));
    assert_eq!(test.machine.mirrors(&repo_path(1, "r7")).len(), 1);
    test.handle(FetchInput::Served(Identifier::new("r7").expect("valid"), Vec::new()));
    assert_eq!((test.machine.mirrors(&repo_path(1, "r7")), test.machine.mirror_count()), (vec![], (199, 0)));
}

#[test]
fn fetch_jobs_come_first_and_checks_use_half_of_the_rate() {
    let mut test =
        TestMachine::with(FetchConfig { default_limits: HostLimits { concurrent: 2, per_minute: 10 }, ..config() });
    for n in 0..20 {
        test.serve(1, &format!("r{n}"), &[&format!("https://forge.example/{n}.git")]);
    }
    test.advance(60_000 - 10);
    // Jobs have the host for themselves, no matter how many checks wait.
    for n in 0..4 {
        let wanted = test.wanted(n, &["a"], &[&format!("https://forge.example/q{n}.git")]);
        test.want(n, &format!("q{n}"), vec![wanted]);
    }
    let first = test.fetches();
    assert_eq!(first.len(), 2);
    test.advance(MINUTE);
    assert_eq!(test.mirror_checks(), [], "two jobs wait, and two fetches are running");
    test.finish_with(first[0].id, &["a"]);
    test.finish_with(first[1].id, &["a"]);
    let second = test.fetches();
    assert_eq!(second.len(), 2);
    test.finish_with(second[0].id, &["a"]);
    // One at a time, and five per minute together with the fetches.
    let mut checks = test.mirror_checks();
    let mut count = 0;
    while let Some(check) = checks.pop() {
        assert_eq!(checks, []);
        count += 1;
        test.handle(FetchInput::MirrorChecked(check.id, ALL));
        checks = test.mirror_checks();
    }
    // The first two fetches were in the minute before.
    assert_eq!(count, 3);
    // There is still capacity for a fetch.
    let wanted = test.wanted(9, &["a"], &["https://forge.example/q9.git"]);
    test.want(9, "q9", vec![wanted]);
    let last = test.fetch();
    test.advance(5 * MINUTE);
    assert_eq!(test.mirror_checks(), [], "no free slot");
    ["q0", "q1", "q2", "q3", "q9"].into_iter().for_each(|name| test.unwant(name));
    test.finish(last.id, FetchOutcome::Cancelled);
    let (_, running) = test.machine.mirror_count();
    assert_eq!((test.mirror_checks().len(), running), (1, 1), "the next check waits for this one");
}

#[test]
fn waiting_checks_continue_when_the_job_before_them_ends() {
    let mut test =
        TestMachine::with(FetchConfig { default_limits: HostLimits { concurrent: 1, per_minute: 30 }, ..config() });
    let events = [test.wanted(1, &["a"], &["https://forge.example/q.git"]), test.wanted(2, &["a"], &[URL])];
    let [first, second] = events;
    test.want(1, "q", vec![first]);
    let fetch = test.fetch();
    test.want(2, "p", vec![second]);
    test.serve(1, "r", &[URL]);
    test.advance(5 * MINUTE);
    test.unwant("p");
    test.unwant("q");
    assert_eq!(test.mirror_checks(), []);
    test.finish(fetch.id, FetchOutcome::Cancelled);
    assert_eq!(test.mirror_checks().len(), 1);
}

#[test]
fn check_results_count_for_the_host() {
    let mut test = TestMachine::new();
    test.serve(1, "r", &[URL]);
    let (check, _) = test.next_mirror_check(5 * MINUTE);
    let rows = test.rows();
    assert_eq!((rows.len(), rows[0].asked.is_empty()), (1, false), "the row is stored before the request");
    test.handle(FetchInput::MirrorChecked(check.id, Err(FetchOutcome::Busy(Some(1_800)))));
    assert_eq!(test.mirror_status(1, "r"), [None], "a busy answer says nothing about the repository");
    let wanted = test.wanted(1, &["a"], &["https://forge.example/q.git"]);
    test.want(1, "q", vec![wanted]);
    test.advance(29 * MINUTE);
    assert_eq!((test.fetches(), test.mirror_checks()), (vec![], vec![]), "the quiet time also applies to fetches");
    test.advance(10 * MINUTE);
    let fetch = test.fetch();
    assert_eq!(test.mirror_checks().len(), 1);
    test.finish_with(fetch.id, &["a"]);

    // Failures of checks are failures of the host.
    let mut test = TestMachine::new();
    test.serve(1, "r", &[URL]);
    let (check, _) = test.next_mirror_check(5 * MINUTE);
    test.handle(FetchInput::MirrorChecked(check.id, Err(FetchOutcome::Failed)));
    let wanted = test.wanted(1, &["a"], &["https://forge.example/q.git"]);
    test.want(1, "q", vec![wanted]);
    test.advance(10_000);
    assert_eq!(test.fetches(), []);
    test.advance(20_000);
    assert_eq!(test.fetches().len(), 1);
}

#[test]
fn mirrors_without_address_or_with_a_forbidden_one_are_not_checked() {
    let mut test = TestMachine::new();
    test.holds_surveys = true;
    test.serve(1, "r", &["https://far.example/r.git", "https://home.example/r.git", "ssh://git@old.example/r"]);
    assert_eq!(test.mirror_status(1, "r"), [None, None, Some(MirrorStatus::NotCalled)]);
    test.advance(2 * MINUTE);
    let surveys = std::mem::take(&mut test.out).into_iter().filter_map(|out| match out {
        FetchOutput::Survey { origin, with_nip11: false } => Some(origin),
        _ => None,
    });
    let surveys: Vec<_> = surveys.collect();
    assert_eq!(surveys.len(), 2);
    let home = OutboundError::Address([10, 0, 0, 1].into(), AddressScope::Private);
    for (origin, survey) in surveys.into_iter().zip([SurveyResult::NoAddress, SurveyResult::Forbidden(home)]) {
        test.handle(FetchInput::Surveyed(origin, survey));
    }
    assert_eq!(
        test.mirror_status(1, "r"),
        [Some(MirrorStatus::NoAnswer), Some(MirrorStatus::NotCalled), Some(MirrorStatus::NotCalled)]
    );
    assert_eq!((test.mirror_checks(), test.machine.mirror_count()), (vec![], (3, 0)));
    // They are surveyed again later.
    test.advance(7 * MINUTE);
    assert_eq!(test.out.len(), 0, "{:?}", test.out);
    test.advance(6 * MINUTE);
    assert_eq!(test.out.len(), 2, "{:?}", test.out);
}

#[test]
fn concurrent_checks_and_stored_mirrors_are_bounded() {
    let mut test = TestMachine::new();
    for n in 0..50 {
        test.serve(1, &format!("r{n}"), &[&format!("https://h{n}.example/r.git")]);
    }
    test.advance(2 * MINUTE);
    let mut checks = test.mirror_checks();
    assert_eq!(checks.len(), limits::MAX_CONCURRENT_MIRROR_CHECKS);
    let mut count = 0;
    while let Some(check) = checks.pop() {
        count += 1;
        test.handle(FetchInput::MirrorChecked(check.id, ALL));
        checks.extend(test.mirror_checks());
        assert!(checks.len() <= limits::MAX_CONCURRENT_MIRROR_CHECKS);
    }
    assert_eq!(count, 50);
    for n in 0..limits::MAX_MIRRORS {
        test.set_mirrors(2, &format!("x{n}"), &[&format!("https://forge.example/{n}.git")]);
    }
    assert_eq!(test.machine.mirror_count(), (limits::MAX_MIRRORS, 0));
    assert_eq!(test.machine.mirrors(&repo_path(1, "r3")), []);
    assert_eq!(test.machine.mirrors(&repo_path(2, "x3")).len(), 1);
    test.advance(DAY);
    assert_eq!(test.mirror_checks().len(), 1, "one check at a time per host");
}
