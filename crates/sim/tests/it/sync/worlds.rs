//! Complete runs of many seeds. Each simulates a week with incidents and then checks that the nodes converge.

use std::time::Instant;

use grasp_sim::parallel::seeds;
use grasp_sim::sync::invariants::SyncCounts;
use grasp_sim::sync::run::run_seed;

use super::parallel::{replay_command, run_parallel, run_seeds};

/// Seeds of a normal test run.
const SEEDS: u64 = 100;
/// Seeds of a soak run.
const SOAK_SEEDS: u64 = 2_000;

/// Average number of steps below which runs are too short to test anything.
const MIN_STEPS: u64 = 5_000;

/// Failed seeds after which the test stops.
const MAX_FAILED_SEEDS: usize = 30;

#[test]
fn invariants_hold_and_healed_worlds_converge() {
    #[expect(clippy::disallowed_methods, reason = "only for the printed speed")]
    let began = Instant::now();
    let (mut runs, mut steps, mut failed_seeds, mut maxima) = (0, 0, 0, SyncCounts::default());
    run_seeds(&seeds(SEEDS, SOAK_SEEDS), |report| {
        if let Some(violation) = &report.violation {
            failed_seeds += 1;
            eprintln!("seed {}: {violation}\n  {}", report.seed, replay_command(report.seed));
        }
        runs += 1;
        steps += report.steps;
        report.counts.iter().for_each(|counts| maxima.merge_max(counts));
        failed_seeds >= MAX_FAILED_SEEDS
    });
    let average = steps / u64::max(runs, 1);
    let speed = runs as f64 / began.elapsed().as_secs_f64();
    eprintln!("{runs} seeds, {average} steps on average, {speed:.1} seeds per second; maxima of a node: {maxima:?}");
    assert_eq!(failed_seeds, 0, "invariants were violated");
    assert!(average >= MIN_STEPS, "runs are too short: {average} steps on average");
}

#[test]
fn a_seed_is_deterministic() {
    let seeds: Vec<u64> = seeds(SEEDS, SOAK_SEEDS).into_iter().step_by(20).collect();
    let run_twice = |seed: &u64| (*seed, run_seed(*seed, None), run_seed(*seed, None));
    run_parallel(&seeds, run_twice, |(seed, first, second)| {
        assert_eq!((first.hash, first.steps), (second.hash, second.steps), "seed {seed} is not deterministic");
        false
    });
}
