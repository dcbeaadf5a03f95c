//! `verify`: the minimum CPU time to check an event, as a reference for the CPU time of a relay that accepts events.

use anyhow::{Context, Result};
use nostr::event::Event;
use serde::Serialize;

use crate::corpus::Corpus;
use crate::process_usage::Meter;

/// Enough events that CPU accounting in steps of 10 ms is accurate to about one percent.
const SAMPLE: usize = 20_000;

/// Result of `verify`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct VerifyFigures {
    /// Events checked.
    pub events: u64,
    /// CPU time to check id and signature of one event on one thread, without parsing.
    pub verify_us_per_event: f64,
}

/// Checks ids and signatures of a sample of the corpus on this thread.
pub fn run(corpus: &Corpus) -> Result<VerifyFigures> {
    let events = corpus
        .events()
        .take(SAMPLE)
        .map(|event| serde_json::from_str(event.json()).context("cannot parse a generated event"))
        .collect::<Result<Vec<Event>>>()?;
    // The first check initialises the precomputed tables of the curve.
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
