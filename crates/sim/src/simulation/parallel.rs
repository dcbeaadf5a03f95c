//! Runs simulations of many seeds, one thread per core. The environment selects how many.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use super::World;

/// Returns the command that replays one seed and prints its trace.
pub fn replay_command<W: World>(seed: u64) -> String {
    format!("cargo run -p grasp-sim -- {} {seed}", W::NAME)
}

/// Returns the number in an environment variable, or `None` if it is not set or not a number.
fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Returns whether the long searches were requested with `GRASP_SOAK=1`, as `just soak` does.
#[must_use]
pub fn is_soak() -> bool {
    std::env::var("GRASP_SOAK").is_ok_and(|value| value == "1")
}

/// Returns the seeds that a test runs: `count` of them, or `soak_count` in a soak run. `GRASP_SIM_SEEDS` overrides the
/// number, and `GRASP_SIM_FROM` the first seed.
pub fn seeds(count: u64, soak_count: u64) -> Vec<u64> {
    let first = env_number("GRASP_SIM_FROM").unwrap_or(0);
    let count = env_number("GRASP_SIM_SEEDS").unwrap_or(if is_soak() { soak_count } else { count });
    (first..first + count).collect()
}

/// Calls `work` for the items in their order, on all cores, until `is_enough` returns `true` for a result or all items
/// are done. Returns whether `is_enough` returned `true`.
pub fn run_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
    mut is_enough: impl FnMut(R) -> bool,
) -> bool {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, stop, work) = (sender.clone(), &next, &stop, &work);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    if sender.send(work(item)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let found = receiver.into_iter().any(&mut is_enough);
        stop.store(true, Ordering::Relaxed);
        found
    })
}
