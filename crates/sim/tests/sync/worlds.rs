//! Whole weeks.

use std::time::Instant;

use grasp_sim::net::life::live;

use crate::crowd::{command, crowd};

/// How many seeds CI lives through.
const SEEDS: u64 = 2_000;

/// A life with fewer steps shows nothing.
const STEPS: u64 = 2_000;

fn seeds() -> u64 {
    std::env::var("GRASP_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn the_laws_hold_and_healed_worlds_converge() {
    let from: u64 = std::env::var("GRASP_SIM_FROM").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    #[expect(clippy::disallowed_methods, reason = "how fast the worlds are is told, and nothing depends on it")]
    let began = Instant::now();
    let mut bad = 0;
    let lives = crowd(from..from + seeds(), None, |life| {
        if let Some(broken) = &life.broken {
            bad += 1;
            eprintln!("seed {}: {broken}\n  {}", life.seed, command(life.seed));
        }
        bad >= 30
    });
    let steps: u64 = lives.iter().map(|life| life.steps).sum();
    let each = steps / lives.len().max(1) as u64;
    let secs = began.elapsed().as_secs_f64();
    let most =
        |what: fn(&grasp_sim::net::law::Counts) -> u64| lives.iter().flat_map(|life| &life.counts).map(what).max();
    eprintln!(
        "{} seeds, {each} steps each, {:.1} seeds a second; at most {:?} requests and {:?} passes a relay and day",
        lives.len(),
        lives.len() as f64 / secs,
        most(|counts| counts.most_a_day),
        most(|counts| counts.most_passes),
    );
    assert_eq!(bad, 0, "laws were broken");
    assert!(each >= STEPS, "lives that are worth living: {each} steps");
}

#[test]
fn a_seed_is_a_life() {
    for seed in (0..200).step_by(20) {
        let (one, two) = (live(seed, None, None), live(seed, None, None));
        assert_eq!((one.hash, one.steps), (two.hash, two.steps), "seed {seed} was not the same twice");
    }
}
