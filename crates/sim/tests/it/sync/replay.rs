//! Replays one seed and prints its trace. Run it with
//! `GRASP_SIM_SEED=… cargo test -p grasp-sim --test it sync::replay -- --nocapture`. `GRASP_SIM_LINES`
//! limits the trace to its last lines.

use grasp_sim::sync::run::run_seed;

use super::parallel::env_number;

#[test]
fn replay() {
    let Some(seed) = env_number("GRASP_SIM_SEED") else { return };
    let lines = env_number("GRASP_SIM_LINES").unwrap_or(100_000) as usize;
    let report = run_seed(seed, Some(lines));
    for line in &report.text {
        eprintln!("{line}");
    }
    eprintln!("{} steps, {:?}", report.steps, report.counts);
    if let Some(violation) = report.violation {
        panic!("seed {seed}: {violation}");
    }
}
