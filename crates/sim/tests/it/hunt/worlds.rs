//! Complete runs of many seeds.

use std::time::Instant;

use grasp_sim::fetch::run::run_seed;

use super::crowd::{command, crowd, number, run_all};

/// Seeds of a normal test run.
const SEEDS: u64 = 2_000;

/// Average number of steps below which runs are too short to test anything.
const STEPS: u64 = 500;

/// Failed seeds after which the test stops.
const MOST_BROKEN: usize = 20;

fn seeds() -> Vec<u64> {
    let from = number("GRASP_SIM_FROM").unwrap_or(0);
    (from..from + number("GRASP_SIM_SEEDS").unwrap_or(SEEDS)).collect()
}

#[test]
fn invariants_hold_and_healed_worlds_converge() {
    #[expect(clippy::disallowed_methods, reason = "only for the printed speed")]
    let began = Instant::now();
    let (mut runs, mut steps, mut broken, mut fetches, mut hedges, mut rows) = (0, 0, 0, 0, 0, 0);
    let (mut released, mut expired, mut at_once) = (0, 0, 0);
    run_all(&seeds(), None, |report| {
        if let Some(broken_invariant) = &report.broken {
            broken += 1;
            eprintln!(
                "seed {}: {broken_invariant}
  {}",
                report.seed,
                command(report.seed)
            );
        }
        runs += 1;
        steps += report.steps;
        fetches += report.counts.fetches;
        hedges += report.counts.hedges;
        rows += report.counts.rows;
        released += report.events.0;
        expired += report.events.1;
        at_once = at_once.max(report.counts.max_concurrent);
        broken >= MOST_BROKEN
    });
    let each = steps / u64::max(runs, 1);
    let speed = runs as f64 / began.elapsed().as_secs_f64();
    eprintln!("{runs} seeds, {each} steps each, {speed:.1} seeds a second");
    eprintln!(
        "{fetches} fetches, {hedges} hedged, {at_once} concurrent, {rows} rows; {released} events released, {expired} expired"
    );
    assert_eq!(broken, 0, "invariants were violated");
    assert!(each >= STEPS, "runs are too short: {each} steps on average");
}

#[test]
fn a_seed_is_deterministic() {
    let seeds: Vec<u64> = seeds().into_iter().step_by(40).collect();
    let twice = |seed: &u64| (*seed, run_seed(*seed, None, None), run_seed(*seed, None, None));
    crowd(&seeds, twice, |(seed, one, two)| {
        assert_eq!((one.hash, one.steps), (two.hash, two.steps), "seed {seed} is not deterministic");
        false
    });
}
