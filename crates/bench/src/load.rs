//! `load`: publish a corpus and count the verdicts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use nostr::event::EventId;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::connection::{Connection, Traffic};
use crate::corpus::Corpus;
use crate::event::SignedEvent;
use crate::latency::{Latencies, Percentiles};
use crate::message::{Incoming, prefix};
use crate::process_usage::{Meter, Usage};
use crate::progress::Progress;
use crate::target::Target;

/// How to publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Connections that publish at the same time.
    pub connections: usize,
    /// Events that a connection may have on the way without a verdict. At least one. Few enough that all verdicts fit
    /// in the socket's buffers: a connection does not read while it writes.
    pub pipeline: usize,
}

/// What `load` reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadFigures {
    /// Events sent.
    pub events: u64,
    /// Connections they were sent over.
    pub connections: usize,
    /// Unanswered events that each connection allowed itself.
    pub pipeline: usize,
    /// `OK true`.
    pub accepted: u64,
    /// `OK false`.
    pub refused: u64,
    /// How often each reason was given, by its prefix, with either verdict.
    pub reasons: BTreeMap<String, u64>,
    /// Verdicts per second.
    pub events_per_second: f64,
    /// From handing an event to the socket to its verdict.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// What it took.
    #[serde(flatten)]
    pub usage: Usage,
}

impl Load {
    /// Publishes the corpus. All events of a repository go over one connection, in order.
    pub async fn run(self, target: &Target, corpus: &Corpus) -> Result<LoadFigures> {
        let connections = Connection::open_many(&target.url, Traffic::Heavy, self.connections).await?;
        let mut queues: Vec<Vec<SignedEvent>> = vec![Vec::new(); self.connections];
        for (index, repository) in corpus.repositories.iter().enumerate() {
            queues[index % self.connections].extend(repository.events.iter().cloned());
        }

        let progress = Arc::new(Progress::start(format!("load {}", target.name), corpus.len()));
        let meter = Meter::start(target.process)?;
        let mut publishers = JoinSet::new();
        for (connection, queue) in connections.into_iter().zip(queues) {
            publishers.spawn(Publisher::new(connection, self.pipeline, Arc::clone(&progress)).publish(queue));
        }
        let mut tally = Tally::default();
        while let Some(publisher) = publishers.join_next().await {
            tally.absorb(publisher??);
        }
        let usage = meter.stop(corpus.len())?;

        Ok(LoadFigures {
            events: corpus.len(),
            connections: self.connections,
            pipeline: self.pipeline,
            accepted: tally.accepted,
            refused: tally.refused,
            reasons: tally.reasons,
            events_per_second: usage.rate(corpus.len()),
            latency: tally.latencies.summarise(),
            usage,
        })
    }
}

/// Verdicts, counted.
#[derive(Debug, Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    reasons: BTreeMap<String, u64>,
    latencies: Latencies,
}

impl Tally {
    fn count(&mut self, accepted: bool, reason: &str) {
        if accepted {
            self.accepted += 1;
        } else {
            self.refused += 1;
        }
        if !reason.is_empty() {
            *self.reasons.entry(prefix(reason).to_owned()).or_default() += 1;
        }
    }

    fn absorb(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.refused += other.refused;
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        self.latencies.absorb(other.latencies);
    }
}

/// One connection that publishes.
struct Publisher {
    connection: Connection,
    pipeline: usize,
    progress: Arc<Progress>,
    waiting: HashMap<EventId, Instant>,
    tally: Tally,
}

impl Publisher {
    fn new(connection: Connection, pipeline: usize, progress: Arc<Progress>) -> Self {
        Self { connection, pipeline, progress, waiting: HashMap::with_capacity(pipeline), tally: Tally::default() }
    }

    async fn publish(mut self, queue: Vec<SignedEvent>) -> Result<Tally> {
        let mut queue = queue.into_iter();
        loop {
            let now = Instant::now();
            for event in queue.by_ref().take(self.pipeline - self.waiting.len()) {
                self.waiting.insert(event.id, now);
                self.connection.queue(event.message).await?;
            }
            if self.waiting.is_empty() {
                return Ok(self.tally);
            }
            self.connection.flush().await?;
            self.collect().await?;
        }
    }

    /// Takes verdicts until half of the pipeline is free, so that many events share one write.
    async fn collect(&mut self) -> Result<()> {
        let enough = self.waiting.len() / 2;
        while self.waiting.len() > enough {
            let text = self
                .connection
                .next()
                .await
                .with_context(|| format!("{} events have no verdict", self.waiting.len()))?;
            self.read(&text);
            while let Some(text) = self.connection.next_ready() {
                self.read(&text?);
            }
        }
        Ok(())
    }

    fn read(&mut self, text: &str) {
        if let Incoming::Verdict { id, accepted, reason } = Incoming::read(text)
            && let Some(sent) = self.waiting.remove(&id)
        {
            self.tally.latencies.record(sent.elapsed());
            self.tally.count(accepted, reason);
            self.progress.advance(1);
        }
    }
}
