//! The laws bite: every deliberate mistake is caught by some seed.

use grasp_core::fetch::fault_injection::Flaw;
use grasp_sim::fetch::run::live;

use super::crowd::{crowd, lives, number};

/// Seeds after which a mistake counts as not caught.
const MOST: u64 = 1_000;

#[test]
fn deliberate_mistakes_are_caught() {
    let mut missed = Vec::new();
    for flaw in Flaw::ALL {
        let mut caught = None;
        lives(&(0..MOST).collect::<Vec<_>>(), Some(flaw), |life| {
            // A seed that breaks a law without the mistake proves nothing.
            let broken = life.broken.filter(|_| live(life.seed, None, None).broken.is_none());
            caught = broken.map(|broken| (life.seed, broken));
            caught.is_some()
        });
        match caught {
            Some((seed, broken)) => eprintln!("{flaw:?}: seed {seed}, \"{}\"", broken.law),
            None => missed.push(flaw),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}

/// How often each mistake is caught: `GRASP_SIM_SEARCH=200 cargo test -p grasp-sim --test it hunt::mutations::search -- --nocapture`.
#[test]
fn search() {
    let Some(most) = number("GRASP_SIM_SEARCH") else { return };
    crowd(
        &Flaw::ALL,
        |flaw| {
            let mut laws: std::collections::BTreeMap<&str, Vec<u64>> = std::collections::BTreeMap::new();
            for life in (0..most).map(|seed| live(seed, Some(*flaw), None)) {
                if let Some(broken) = &life.broken {
                    laws.entry(broken.law).or_default().push(life.seed);
                }
            }
            (*flaw, laws)
        },
        |(flaw, laws)| {
            eprintln!("{flaw:?}");
            for (law, seeds) in laws {
                eprintln!("  {} times \"{law}\": {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
            }
            false
        },
    );
}
