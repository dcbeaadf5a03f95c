//! Many lives at once, one thread per core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use grasp_core::sync::flaw::Flaw;
use grasp_sim::net::life::{Life, live};

/// How to see a life again.
pub(crate) fn command(seed: u64) -> String {
    format!("GRASP_SIM_SEED={seed} cargo test -p grasp-sim --test sync replay -- --nocapture")
}

/// Lives through seeds from the first on, until `enough` says so or they are all lived.
pub(crate) fn crowd(
    seeds: std::ops::Range<u64>,
    flaw: Option<Flaw>,
    mut enough: impl FnMut(&Life) -> bool,
) -> Vec<Life> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let next = AtomicU64::new(seeds.start);
    let (sender, receiver) = mpsc::channel();
    let mut lives = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, end) = (sender.clone(), &next, seeds.end);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || sender.send(live(seed, flaw, None)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        while let Ok(life) = receiver.recv() {
            let stop = enough(&life);
            lives.push(life);
            if stop {
                next.store(u64::MAX / 2, Ordering::Relaxed);
                break;
            }
        }
        drop(receiver);
    });
    lives
}
