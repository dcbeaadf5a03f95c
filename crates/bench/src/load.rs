//! `load`: publishes a corpus and counts the `OK` responses.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use nostr::event::EventId;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::cli::positive;
use crate::connection::{Connection, Traffic};
use crate::corpus::Corpus;
use crate::event::SignedEvent;
use crate::latency::{Latencies, Percentiles};
use crate::message::{RelayMessage, reason_prefix};
use crate::process_usage::{Meter, Usage};
use crate::progress::Progress;
use crate::target::Target;

/// Parameters of a `load` run.
#[derive(Debug, Clone, Copy, Args)]
pub struct Load {
    /// Connections that publish
    #[arg(long, default_value_t = 8, value_parser = positive())]
    pub connections: usize,
    // All responses must fit in the socket buffers, because a connection does not read while it writes.
    /// Unacknowledged events per connection
    #[arg(long, default_value_t = 64, value_parser = positive().range(1..=1024))]
    pub pipeline: usize,
}

/// Result of `load`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadFigures {
    /// Events sent.
    pub events: u64,
    /// Connections they were sent over.
    pub connections: usize,
    /// Maximum number of unanswered events per connection.
    pub pipeline: usize,
    /// Number of `OK true` responses.
    pub accepted: u64,
    /// Number of `OK false` responses.
    pub rejected: u64,
    /// Number of responses with a reason, accepted or rejected, by the prefix of the reason.
    pub reasons: BTreeMap<String, u64>,
    /// `OK` responses per second.
    pub events_per_second: f64,
    /// Time from writing an event to the socket until its `OK` response.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// Duration, CPU time and memory of the run.
    #[serde(flatten)]
    pub usage: Usage,
}

impl Load {
    /// Publishes the corpus. All events of a repository are sent over one connection, in order.
    pub async fn run(self, target: &Target, corpus: &Corpus) -> Result<LoadFigures> {
        self.publish(target, corpus.repositories.iter().map(|repository| &repository.events)).await
    }

    /// Publishes lists of events. All events of a list are sent over one connection, in order.
    pub async fn publish(self, target: &Target, lists: impl Iterator<Item = &Vec<SignedEvent>>) -> Result<LoadFigures> {
        let connections = Connection::open_many(&target.url, Traffic::Heavy, self.connections).await?;
        let mut queues: Vec<Vec<SignedEvent>> = vec![Vec::new(); self.connections];
        for (index, list) in lists.enumerate() {
            queues[index % self.connections].extend(list.iter().cloned());
        }
        let events = queues.iter().map(|queue| queue.len() as u64).sum();

        let progress = Arc::new(Progress::start(format!("load {}", target.name), events));
        let meter = Meter::start(target.process)?;
        let mut publishers = JoinSet::new();
        for (connection, queue) in connections.into_iter().zip(queues) {
            publishers.spawn(LoadPublisher::new(connection, self.pipeline, Arc::clone(&progress)).publish(queue));
        }
        let mut tally = LoadTally::default();
        while let Some(publisher) = publishers.join_next().await {
            tally.absorb(publisher??);
        }
        let usage = meter.stop(events)?;

        Ok(LoadFigures {
            events,
            connections: self.connections,
            pipeline: self.pipeline,
            accepted: tally.accepted,
            rejected: tally.rejected,
            reasons: tally.reasons,
            events_per_second: usage.rate(events),
            latency: tally.latencies.summarise(),
            usage,
        })
    }
}

/// Counters of `OK` responses.
#[derive(Debug, Default)]
struct LoadTally {
    accepted: u64,
    rejected: u64,
    reasons: BTreeMap<String, u64>,
    latencies: Latencies,
}

impl LoadTally {
    fn count(&mut self, accepted: bool, reason: &str) {
        if accepted {
            self.accepted += 1;
        } else {
            self.rejected += 1;
        }
        if !reason.is_empty() {
            *self.reasons.entry(reason_prefix(reason).to_owned()).or_default() += 1;
        }
    }

    fn absorb(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        self.latencies.absorb(other.latencies);
    }
}

/// One publishing connection.
struct LoadPublisher {
    connection: Connection,
    pipeline: usize,
    progress: Arc<Progress>,
    unanswered: HashMap<EventId, Instant>,
    tally: LoadTally,
}

impl LoadPublisher {
    fn new(connection: Connection, pipeline: usize, progress: Arc<Progress>) -> Self {
        Self {
            connection,
            pipeline,
            progress,
            unanswered: HashMap::with_capacity(pipeline),
            tally: LoadTally::default(),
        }
    }

    async fn publish(mut self, queue: Vec<SignedEvent>) -> Result<LoadTally> {
        let mut queue = queue.into_iter();
        loop {
            let now = Instant::now();
            for event in queue.by_ref().take(self.pipeline - self.unanswered.len()) {
                self.unanswered.insert(event.id, now);
                self.connection.queue(event.message).await?;
            }
            if self.unanswered.is_empty() {
                return Ok(self.tally);
            }
            self.connection.flush().await?;
            self.read_responses().await?;
        }
    }

    /// Reads responses until half of the pipeline is free, so that many events share one write.
    async fn read_responses(&mut self) -> Result<()> {
        let enough = self.unanswered.len() / 2;
        while self.unanswered.len() > enough {
            let text = self
                .connection
                .next()
                .await
                .with_context(|| format!("{} events have no OK response", self.unanswered.len()))?;
            self.handle(&text);
            while let Some(text) = self.connection.next_ready() {
                self.handle(&text?);
            }
        }
        Ok(())
    }

    fn handle(&mut self, text: &str) {
        if let RelayMessage::Ok { id, accepted, reason } = RelayMessage::parse(text)
            && let Some(sent) = self.unanswered.remove(&id)
        {
            self.tally.latencies.record(sent.elapsed());
            self.tally.count(accepted, reason);
            self.progress.advance(1);
        }
    }
}
