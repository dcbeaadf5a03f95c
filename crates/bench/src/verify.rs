//! What checking an event costs at least: the yardstick for the CPU time of a relay that takes events.

use anyhow::{Context, Result};
use nostr::event::Event;
use serde::Serialize;

use crate::corpus::Corpus;
use crate::process_usage::Meter;

/// Enough events that the kernel's accounting in steps of 10 ms is exact to about one percent.
const SAMPLE: usize = 20_000;

/// What `verify` reports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct VerifyFigures {
    /// Events checked.
    pub events: u64,
    /// CPU time for the id and the signature of one event, on one thread, parsing not included.
    pub verify_us_per_event: f64,
}

/// Checks id and signature of a sample of the corpus on this thread.
pub fn run(corpus: &Corpus) -> Result<VerifyFigures> {
    let events = corpus
        .events()
        .take(SAMPLE)
        .map(|event| serde_json::from_str(event.json()).context("a generated event does not parse"))
        .collect::<Result<Vec<Event>>>()?;
    // The first check builds the tables of the curve.
    if let Some(event) = events.first() {
        event.verify()?;
    }
    let meter = Meter::start(None)?;
    for event in &events {
        event.verify()?;
    }
    let usage = meter.stop(events.len() as u64)?;
    Ok(VerifyFigures { events: events.len() as u64, verify_us_per_event: usage.generator_cpu_us_per_event })
}
