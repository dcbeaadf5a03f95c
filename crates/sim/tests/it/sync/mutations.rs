//! The laws bite: every deliberate mistake is caught by some seed.

use grasp_core::sync::fault_injection::SyncFault;
use grasp_sim::sync::run::live;

use super::parallel::{crowd, lives, number};

/// Seeds after which a mistake counts as not caught.
const MOST: u64 = 400;

/// Seeds that caught a mistake before, so that nobody has to search. If none of them does any more, the search begins.
const KNOWN: &[(SyncFault, &[u64])] = &[
    (SyncFault::OverlapDropped, &[10]),
    (SyncFault::IdsReused, &[3, 16]),
    (SyncFault::SubmittedTwice, &[16, 75]),
    (SyncFault::CooldownForgotten, &[2, 5]),
    (SyncFault::CursorPerGroup, &[32]),
    (SyncFault::EoseNotAwaited, &[3, 5]),
    (SyncFault::LimitsIgnored, &[67]),
    (SyncFault::ReserveIgnored, &[95, 67]),
    (SyncFault::CoverageTooEarly, &[58]),
    (SyncFault::WindowNeverCloses, &[22, 17]),
    (SyncFault::FailedCountsAsDone, &[38]),
    (SyncFault::HeldSyncedInFull, &[43, 42]),
    (SyncFault::RejectedNeverRetried, &[20]),
    (SyncFault::SameSecondSkipped, &[32]),
    (SyncFault::DialSelf, &[58, 33]),
    (SyncFault::DailyForgotten, &[5]),
    (SyncFault::BackoffForgotten, &[58]),
    (SyncFault::PausedDialled, &[148, 3]),
    (SyncFault::DialsNotSpaced, &[]),
    (SyncFault::PermitReleasedTwice, &[]),
];

fn seeds(flaw: SyncFault) -> Vec<u64> {
    let known = KNOWN.iter().filter(|(of, _)| *of == flaw).flat_map(|(_, seeds)| seeds.iter().copied());
    known.chain(0..MOST).collect()
}

/// Whether a mistake is looked at: `GRASP_SIM_FLAW` may name a few.
fn is_chosen(flaw: SyncFault) -> bool {
    let only = std::env::var("GRASP_SIM_FLAW").ok();
    only.is_none_or(|only| only.split(',').any(|name| format!("{flaw:?}") == name))
}

#[test]
fn deliberate_mistakes_are_caught() {
    let mut missed = Vec::new();
    // Worlds that provoke the others often enough are still to be made; `search` looks for them.
    for (flaw, _) in KNOWN.iter().copied().filter(|(flaw, _)| is_chosen(*flaw)) {
        let mut caught = None;
        lives(&seeds(flaw), Some(flaw), |life| {
            // A seed that breaks a law without the mistake proves nothing.
            let broken = life.broken.filter(|_| live(life.seed, None, None).broken.is_none());
            caught = broken.map(|broken| (life.seed, broken.law));
            caught.is_some()
        });
        match caught {
            Some((seed, law)) => eprintln!("{flaw:?}: seed {seed}, \"{law}\""),
            None => missed.push(flaw),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}

/// Finds seeds for [`KNOWN`], or only for those in `GRASP_SIM_FLAW`: `GRASP_SIM_SEARCH=200 cargo test -p grasp-sim --test it sync::mutations::search -- --nocapture`.
#[test]
fn search() {
    let Some(most) = number("GRASP_SIM_SEARCH") else { return };
    let sound: Vec<u64> = {
        let mut sound = Vec::new();
        lives(&(0..most).collect::<Vec<_>>(), None, |life| {
            sound.extend(life.broken.is_none().then_some(life.seed));
            false
        });
        sound
    };
    crowd(
        &SyncFault::ALL.into_iter().filter(|flaw| is_chosen(*flaw)).collect::<Vec<_>>(),
        |flaw| {
            let mut laws: std::collections::BTreeMap<&str, Vec<(u64, u64)>> = std::collections::BTreeMap::new();
            for life in sound.iter().map(|seed| live(*seed, Some(*flaw), None)) {
                if let Some(broken) = &life.broken {
                    laws.entry(broken.law).or_default().push((life.steps, life.seed));
                }
            }
            (*flaw, laws)
        },
        |(flaw, laws)| {
            eprintln!("{flaw:?}");
            for (law, mut seeds) in laws {
                seeds.sort_unstable();
                let first: Vec<u64> = seeds.iter().take(8).map(|(_, seed)| *seed).collect();
                eprintln!("  {} times \"{law}\": {first:?}", seeds.len());
            }
            false
        },
    );
}
