//! Progress line on standard error, and work on all cores.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, mpsc};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Update interval on a terminal, where the line is rewritten in place.
const TERMINAL_PERIOD: Duration = Duration::from_millis(200);

/// Update interval for files and pipes, where every update is a separate line.
const LOG_PERIOD: Duration = Duration::from_secs(1);

/// Calls `make` with every index below `count`, on all cores, and returns the results in order.
pub fn in_parallel<T: Send>(count: u64, make: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = AtomicU64::new(0);
    let work = || {
        let indexes =
            std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|index| *index < count);
        indexes.map(|index| Ok((index, make(index)?))).collect::<Result<Vec<_>>>()
    };
    let mut results = Vec::with_capacity(count as usize);
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            results.extend(worker.join().expect("the work does not panic")?);
            anyhow::Ok(())
        })
    })?;
    results.sort_unstable_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Counts steps. A separate thread prints the count, so that a step costs the measured code only one atomic addition.
/// Dropping it prints the final count.
#[derive(Debug)]
pub struct Progress {
    done: Arc<AtomicU64>,
    stop: Option<Sender<()>>,
    printer: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts printing `label: 0/total`.
    pub fn start(label: impl Into<String>, total: u64) -> Self {
        let label = label.into();
        let done = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = mpsc::channel();
        let counter = Arc::clone(&done);
        let printer = thread::spawn(move || {
            let terminal = stderr().is_terminal();
            let period = if terminal { TERMINAL_PERIOD } else { LOG_PERIOD };
            let started = Instant::now();
            let print = |end: &str| {
                let done = counter.load(Ordering::Relaxed);
                let seconds = started.elapsed().as_secs_f64();
                let start = if terminal { "\r" } else { "" };
                // A closed standard error must not end the run.
                let _ = write!(stderr().lock(), "{start}{label}: {done}/{total} in {seconds:.1} s{end}");
            };
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                print(if terminal { "" } else { "\n" });
            }
            // Runs shorter than one interval print nothing.
            if started.elapsed() >= period {
                print("\n");
            }
        });
        Self { done, stop: Some(stop), printer: Some(printer) }
    }

    /// Adds `steps` to the count.
    pub fn advance(&self, steps: u64) {
        self.done.fetch_add(steps, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(printer) = self.printer.take() {
            let _ = printer.join();
        }
    }
}
