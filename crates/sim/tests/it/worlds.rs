//! Runs of many seeds of the simulated worlds: invariants hold after every step, and healed worlds converge.

use std::time::Instant;

use grasp_sim::fetch::FetchWorld;
use grasp_sim::simulation::parallel::{replay_command, run_parallel, seeds};
use grasp_sim::simulation::trace::Trace;
use grasp_sim::simulation::{World, run_seed};
use grasp_sim::sync::SyncWorld;

/// Failed seeds after which a test stops.
const MAX_FAILED_SEEDS: usize = 20;

/// Runs `count` seeds, or `soak_count` in a soak run. With fewer than `min_steps` steps on average, runs would be too
/// short to test anything.
fn check_seeds<W: World>(count: u64, soak_count: u64, min_steps: u64) {
    #[expect(clippy::disallowed_methods, reason = "only for the printed speed")]
    let began = Instant::now();
    let (mut runs, mut steps, mut failed_seeds, mut counts) = (0, 0, 0, W::Counts::default());
    run_parallel(
        &seeds(count, soak_count),
        |seed| run_seed::<W>(*seed, Trace::default()),
        |report| {
            if let Some(violation) = &report.violation {
                failed_seeds += 1;
                eprintln!("seed {}: {violation}\n  {}", report.seed, replay_command::<W>(report.seed));
            }
            runs += 1;
            steps += report.steps;
            W::merge_counts(&mut counts, report.counts);
            failed_seeds >= MAX_FAILED_SEEDS
        },
    );
    let average = steps / u64::max(runs, 1);
    let speed = runs as f64 / began.elapsed().as_secs_f64();
    eprintln!("{runs} seeds, {average} steps on average, {speed:.1} seeds per second; {counts:?}");
    assert_eq!(failed_seeds, 0, "invariants were violated");
    assert!(average >= min_steps, "runs are too short: {average} steps on average");
}

/// Runs every `nth` of these seeds twice.
fn check_determinism<W: World>(count: u64, soak_count: u64, nth: usize) {
    let seeds: Vec<u64> = seeds(count, soak_count).into_iter().step_by(nth).collect();
    let run = |seed: &u64| run_seed::<W>(*seed, Trace::default());
    run_parallel(
        &seeds,
        |seed| (run(seed), run(seed)),
        |(first, second)| {
            let seed = first.seed;
            assert_eq!((first.hash, first.steps), (second.hash, second.steps), "seed {seed} is not deterministic");
            false
        },
    );
}

#[test]
fn sync_worlds_converge() {
    check_seeds::<SyncWorld>(100, 500, 5_000);
}

#[test]
fn sync_seed_is_deterministic() {
    check_determinism::<SyncWorld>(100, 500, 20);
}

#[test]
fn fetch_worlds_converge() {
    check_seeds::<FetchWorld>(200, 2_000, 500);
}

#[test]
fn fetch_seed_is_deterministic() {
    check_determinism::<FetchWorld>(200, 2_000, 40);
}
