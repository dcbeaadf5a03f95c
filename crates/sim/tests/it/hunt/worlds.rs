//! Whole lives.

use std::time::Instant;

use grasp_sim::fetch::run::live;

use super::crowd::{command, crowd, lives, number};

/// How many seeds every run lives through.
const SEEDS: u64 = 2_000;

/// A life with fewer steps, on average, shows nothing.
const STEPS: u64 = 500;

/// So many broken lives are enough to see.
const MOST_BROKEN: usize = 20;

fn seeds() -> Vec<u64> {
    let from = number("GRASP_SIM_FROM").unwrap_or(0);
    (from..from + number("GRASP_SIM_SEEDS").unwrap_or(SEEDS)).collect()
}

#[test]
fn the_laws_hold_and_healed_worlds_converge() {
    #[expect(clippy::disallowed_methods, reason = "how fast the worlds are is told, and nothing depends on it")]
    let began = Instant::now();
    let (mut lived, mut steps, mut broken, mut fetches, mut hedges, mut rows) = (0, 0, 0, 0, 0, 0);
    let (mut released, mut slept, mut at_once) = (0, 0, 0);
    lives(&seeds(), None, |life| {
        if let Some(law) = &life.broken {
            broken += 1;
            eprintln!("seed {}: {law}\n  {}", life.seed, command(life.seed));
        }
        lived += 1;
        steps += life.steps;
        fetches += life.counts.fetches;
        hedges += life.counts.hedges;
        rows += life.counts.rows;
        released += life.events.0;
        slept += life.events.1;
        at_once = at_once.max(life.counts.at_once);
        broken >= MOST_BROKEN
    });
    let each = steps / u64::max(lived, 1);
    let speed = lived as f64 / began.elapsed().as_secs_f64();
    eprintln!("{lived} seeds, {each} steps each, {speed:.1} seeds a second");
    eprintln!(
        "{fetches} fetches, {hedges} beside a slow one, {at_once} at once, {rows} rows; {released} events released, {slept} slept"
    );
    assert_eq!(broken, 0, "laws were broken");
    assert!(each >= STEPS, "lives that are worth living: {each} steps");
}

#[test]
fn a_seed_is_a_life() {
    let seeds: Vec<u64> = seeds().into_iter().step_by(40).collect();
    let twice = |seed: &u64| (*seed, live(*seed, None, None), live(*seed, None, None));
    crowd(&seeds, twice, |(seed, one, two)| {
        assert_eq!((one.hash, one.steps), (two.hash, two.steps), "seed {seed} was not the same twice");
        false
    });
}
