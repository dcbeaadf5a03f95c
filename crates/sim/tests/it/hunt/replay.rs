//! Replays one seed and prints its trace. Run it with
//! `GRASP_SIM_SEED=… cargo test -p grasp-sim --test it hunt::replay -- --nocapture`.

use grasp_core::fetch::fault_injection::Fault;
use grasp_sim::fetch::run::run_seed;

#[test]
fn replay() {
    let Some(seed) = std::env::var("GRASP_SIM_SEED").ok().and_then(|text| text.parse().ok()) else { return };
    let fault = std::env::var("GRASP_SIM_FLAW").ok();
    let fault = fault.and_then(|name| Fault::ALL.into_iter().find(|fault| format!("{fault:?}") == name));
    let lines = std::env::var("GRASP_SIM_LINES").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let report = run_seed(seed, fault, Some(lines));
    for line in &report.text {
        eprintln!("{line}");
    }
    eprintln!("{} steps, {:?}", report.steps, report.counts);
    assert!(
        report.broken.is_none(),
        "seed {seed}: {}",
        report.broken.map(|broken| broken.to_string()).unwrap_or_default()
    );
}
