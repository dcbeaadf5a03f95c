//! Fault injection: the invariants detect every injected fault in some seed.

use std::collections::BTreeMap;

use grasp_core::fetch::fault_injection::Fault;
use grasp_sim::fetch::run::run_seed;

use super::parallel::{env_number, is_soak, run_parallel, run_seeds};

/// Seeds after which a fault counts as not detected. The first ten seeds detect every fault today.
const MAX_SEEDS: u64 = 100;
/// The same in a soak run.
const MAX_SOAK_SEEDS: u64 = 1_000;

#[test]
fn injected_faults_are_detected() {
    let seeds: Vec<u64> = (0..if is_soak() { MAX_SOAK_SEEDS } else { MAX_SEEDS }).collect();
    let mut undetected = Vec::new();
    for fault in Fault::ALL {
        let mut detected = None;
        run_seeds(&seeds, Some(fault), |report| {
            // A seed that violates an invariant without the fault proves nothing.
            let violation = report.violation.filter(|_| run_seed(report.seed, None, None).violation.is_none());
            detected = violation.map(|violation| (report.seed, violation.invariant));
            detected.is_some()
        });
        match detected {
            Some((seed, invariant)) => eprintln!("{fault:?}: seed {seed}, \"{invariant}\""),
            None => undetected.push(fault),
        }
    }
    assert!(undetected.is_empty(), "not detected: {undetected:?}");
}

/// Prints in which seeds each fault is detected. Run it with
/// `GRASP_SIM_SEARCH=200 cargo test -p grasp-sim --test it fetch::mutations::search -- --nocapture`.
#[test]
fn search() {
    let Some(count) = env_number("GRASP_SIM_SEARCH") else { return };
    run_parallel(
        &Fault::ALL,
        |fault| {
            let mut seeds_by_invariant: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for report in (0..count).map(|seed| run_seed(seed, Some(*fault), None)) {
                if let Some(violation) = &report.violation {
                    seeds_by_invariant.entry(violation.invariant).or_default().push(report.seed);
                }
            }
            (*fault, seeds_by_invariant)
        },
        |(fault, seeds_by_invariant)| {
            eprintln!("{fault:?}");
            for (invariant, seeds) in seeds_by_invariant {
                eprintln!("  {} times \"{invariant}\": {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
            }
            false
        },
    );
}
