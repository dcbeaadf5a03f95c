//! Many lives at once, one thread per core.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// How to see a life of a test again.
#[must_use]
pub fn command(test: &str, seed: u64) -> String {
    format!("GRASP_SIM_SEED={seed} cargo test -p grasp-sim --test it {test}::replay -- --nocapture")
}

/// A number of the environment.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Does some work for each of many things, in their order, until `enough` says so of a result or all is done.
pub fn crowd<T: Sync, R: Send>(things: &[T], work: impl Fn(&T) -> R + Sync, mut enough: impl FnMut(R) -> bool) -> bool {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, stop, work) = (sender.clone(), &next, &stop, &work);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Some(thing) = things.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    if sender.send(work(thing)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let found = receiver.into_iter().any(&mut enough);
        stop.store(true, Ordering::Relaxed);
        found
    })
}
