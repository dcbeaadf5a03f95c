//! The laws bite: every deliberate mistake is caught by some seed.

use grasp_core::sync::flaw::Flaw;

use crate::crowd::crowd;

/// Seeds after which a mistake counts as not caught.
const MOST: u64 = 400;

#[test]
fn every_deliberate_mistake_is_caught() {
    let mut missed = Vec::new();
    for flaw in Flaw::ALL {
        let lives = crowd(0..MOST, Some(flaw), |life| life.broken.is_some());
        match lives.iter().find_map(|life| Some((life.seed, life.broken.as_ref()?))) {
            Some((seed, broken)) => eprintln!("{flaw:?}: seed {seed}, \"{}\"", broken.law),
            None => missed.push(flaw),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}
