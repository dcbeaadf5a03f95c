//! Whole weeks.

use std::time::Instant;

use grasp_sim::sync::invariants::Counts;
use grasp_sim::sync::run::live;

use super::parallel::{command, crowd, lives, number};

/// How many seeds every run lives through: `GRASP_SIM_FROM` and `GRASP_SIM_SEEDS` choose others.
const SEEDS: u64 = 2_000;

/// A life with fewer steps, on average, shows nothing.
const STEPS: u64 = 5_000;

/// So many broken lives are enough to see.
const MOST_BROKEN: usize = 30;

fn seeds() -> Vec<u64> {
    let from = number("GRASP_SIM_FROM").unwrap_or(0);
    (from..from + number("GRASP_SIM_SEEDS").unwrap_or(SEEDS)).collect()
}

#[test]
fn the_laws_hold_and_healed_worlds_converge() {
    #[expect(clippy::disallowed_methods, reason = "how fast the worlds are is told, and nothing depends on it")]
    let began = Instant::now();
    let (mut lived, mut steps, mut broken, mut most) = (0, 0, 0, Counts::default());
    lives(&seeds(), None, |life| {
        if let Some(law) = &life.broken {
            broken += 1;
            eprintln!("seed {}: {law}\n  {}", life.seed, command(life.seed));
        }
        lived += 1;
        steps += life.steps;
        life.counts.iter().for_each(|counts| most.widen(counts));
        broken >= MOST_BROKEN
    });
    let each = steps / u64::max(lived, 1);
    let speed = lived as f64 / began.elapsed().as_secs_f64();
    eprintln!("{lived} seeds, {each} steps each, {speed:.1} seeds a second; the most of a life: {most:?}");
    assert_eq!(broken, 0, "laws were broken");
    assert!(each >= STEPS, "lives that are worth living: {each} steps");
}

#[test]
fn a_seed_is_a_life() {
    let seeds: Vec<u64> = seeds().into_iter().step_by(20).collect();
    let twice = |seed: &u64| (*seed, live(*seed, None, None), live(*seed, None, None));
    crowd(&seeds, twice, |(seed, one, two)| {
        assert_eq!((one.hash, one.steps), (two.hash, two.steps), "seed {seed} was not the same twice");
        false
    });
}
