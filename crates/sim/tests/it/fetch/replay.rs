//! Replays one seed and prints its trace. Run it with
//! `GRASP_SIM_SEED=… cargo test -p grasp-sim --test it fetch::replay -- --nocapture`. `GRASP_SIM_FAULT` injects a fault,
//! and `GRASP_SIM_LINES` limits the trace to its last lines.

use grasp_core::fetch::fault_injection::Fault;
use grasp_sim::fetch::run::run_seed;

use super::parallel::env_number;

#[test]
fn replay() {
    let Some(seed) = env_number("GRASP_SIM_SEED") else { return };
    let fault = std::env::var("GRASP_SIM_FAULT").ok();
    let fault = fault.and_then(|name| Fault::ALL.into_iter().find(|fault| format!("{fault:?}") == name));
    let lines = env_number("GRASP_SIM_LINES").unwrap_or(100_000) as usize;
    let report = run_seed(seed, fault, Some(lines));
    for line in &report.text {
        eprintln!("{line}");
    }
    eprintln!("{} steps, {:?}", report.steps, report.counts);
    if let Some(violation) = report.violation {
        panic!("seed {seed}: {violation}");
    }
}
