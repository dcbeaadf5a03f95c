//! The model keeps the contract that the real store is held to.

use grasp_sim::contract::{differential, suite};
use grasp_sim::memory::Memory;

#[test]
fn the_model_keeps_every_promise() {
    suite(|| Box::new(Memory::new()));
}

/// Trivially true, but it shows that a history is deterministic and that the generator does not panic.
#[test]
fn the_model_agrees_with_itself() {
    let compared: u64 = (0..20).map(|seed| differential(seed, 150, &mut Memory::new())).sum();
    assert!(compared >= 9_000, "{compared}");
}
