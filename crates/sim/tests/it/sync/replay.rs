//! One life, to be read: `GRASP_SIM_SEED=… cargo test -p grasp-sim --test it sync::replay -- --nocapture`.

use grasp_core::sync::fault_injection::SyncFault;
use grasp_sim::sync::run::live;

#[test]
fn replay() {
    let Some(seed) = std::env::var("GRASP_SIM_SEED").ok().and_then(|text| text.parse().ok()) else { return };
    let flaw = std::env::var("GRASP_SIM_FLAW").ok();
    let flaw = flaw.and_then(|name| SyncFault::ALL.into_iter().find(|flaw| format!("{flaw:?}") == name));
    let lines = std::env::var("GRASP_SIM_LINES").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let life = live(seed, flaw, Some(lines));
    for line in &life.text {
        eprintln!("{line}");
    }
    eprintln!("{} steps, {:?}", life.steps, life.counts);
    assert!(life.broken.is_none(), "seed {seed}: {}", life.broken.map(|broken| broken.to_string()).unwrap_or_default());
}
