//! Fault injection: every fault is detected by some seed.

use grasp_core::fetch::fault_injection::Fault;
use grasp_sim::fetch::run::run_seed;

use super::crowd::{crowd, number, run_all};

/// Seeds after which a fault counts as not detected.
const MAX_SEEDS: u64 = 1_000;

#[test]
fn every_injected_fault_is_caught() {
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        let mut caught = None;
        run_all(&(0..MAX_SEEDS).collect::<Vec<_>>(), Some(fault), |report| {
            // A seed that violates an invariant without the fault proves nothing.
            let broken = report.broken.filter(|_| run_seed(report.seed, None, None).broken.is_none());
            caught = broken.map(|broken| (report.seed, broken));
            caught.is_some()
        });
        match caught {
            Some((seed, broken)) => eprintln!("{fault:?}: seed {seed}, \"{}\"", broken.law),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "undetected faults: {missed:?}");
}

/// Prints how often each fault is detected. Run it with
/// `GRASP_SIM_SEARCH=200 cargo test -p grasp-sim --test it hunt::mutations::search -- --nocapture`.
#[test]
fn search() {
    let Some(most) = number("GRASP_SIM_SEARCH") else { return };
    crowd(
        &Fault::ALL,
        |fault| {
            let mut violations: std::collections::BTreeMap<&str, Vec<u64>> = std::collections::BTreeMap::new();
            for report in (0..most).map(|seed| run_seed(seed, Some(*fault), None)) {
                if let Some(broken) = &report.broken {
                    violations.entry(broken.law).or_default().push(report.seed);
                }
            }
            (*fault, violations)
        },
        |(fault, violations)| {
            eprintln!("{fault:?}");
            for (invariant, seeds) in violations {
                eprintln!("  {} times \"{invariant}\": {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
            }
            false
        },
    );
}
