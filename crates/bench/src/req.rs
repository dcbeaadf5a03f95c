//! `req`: queries the events that `load` has published.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::cli::positive;
use crate::connection::{Connection, Traffic};
use crate::corpus::Corpus;
use crate::latency::{Latencies, Percentiles};
use crate::message::RelayMessage;
use crate::process_usage::{Meter, Usage};
use crate::progress::Progress;
use crate::random::Random;
use crate::repository::{ISSUE, PATCH};
use crate::target::Target;

/// Ids in one `ids` query.
const IDS: usize = 100;

/// The `limit` of the other queries: typical of clients, and commonly allowed by relays.
const LIMIT: usize = 500;

/// Kind of query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// A hundred events by id, chosen from the whole corpus.
    Ids,
    /// All events that refer to one repository: three filters (`#a`, `#A`, `#q`), as a client sends them when it opens
    /// the repository.
    Thread,
    /// The newest 500 issues and patches of all repositories.
    Kinds,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 3] = [Self::Ids, Self::Thread, Self::Kinds];
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ids => "ids",
            Self::Thread => "thread",
            Self::Kinds => "kinds",
        })
    }
}

/// Parameters of a `req` run.
#[derive(Debug, Clone, Copy, Args)]
pub struct Req {
    /// Queries of each shape
    #[arg(long, default_value_t = 1000, value_parser = positive())]
    pub queries: usize,
    /// Connections, each with one query at a time
    #[arg(long, default_value_t = 4, value_parser = positive())]
    pub connections: usize,
}

/// Result of `req`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReqFigures {
    /// Kind of query.
    pub shape: Shape,
    /// Number of queries.
    pub queries: usize,
    /// Number of connections.
    pub connections: usize,
    /// Queries whose response has fewer events than the corpus. If this is not zero, the relay did not do all of the
    /// work.
    pub short: usize,
    /// Events received.
    pub events: u64,
    /// Events received per second.
    pub events_per_second: f64,
    /// Bytes of messages received per second.
    pub bytes_per_second: f64,
    /// Time from sending a query until its `EOSE`.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// Duration, CPU time and memory of the run.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A query, serialised before the measured time starts.
#[derive(Debug)]
struct Query {
    subscription: String,
    message: String,
    expected: usize,
}

impl Req {
    /// Runs all queries of one shape, one at a time on every connection.
    pub async fn run(self, shape: Shape, target: &Target, corpus: &Corpus) -> Result<ReqFigures> {
        let connections = Connection::open_many(&target.url, Traffic::Heavy, self.connections).await?;
        let mut queues: Vec<VecDeque<Query>> = Vec::new();
        queues.resize_with(self.connections, VecDeque::new);
        for (index, query) in self.queries(shape, corpus).into_iter().enumerate() {
            queues[index % self.connections].push_back(query);
        }

        let progress = Arc::new(Progress::start(format!("req {shape} {}", target.name), self.queries as u64));
        let meter = Meter::start(target.process)?;
        let mut clients = JoinSet::new();
        for (connection, queue) in connections.into_iter().zip(queues) {
            clients.spawn(run_queries(connection, queue, Arc::clone(&progress)));
        }
        let mut tally = ReqTally::default();
        while let Some(client) = clients.join_next().await {
            tally.absorb(client??);
        }
        let usage = meter.stop(tally.events)?;

        Ok(ReqFigures {
            shape,
            queries: self.queries,
            connections: self.connections,
            short: tally.short,
            events: tally.events,
            events_per_second: usage.rate(tally.events),
            bytes_per_second: usage.rate(tally.bytes),
            latency: tally.latencies.summarise(),
            usage,
        })
    }

    fn queries(self, shape: Shape, corpus: &Corpus) -> Vec<Query> {
        let mut random = Random::new(corpus.seed, shape as u64);
        let ids: Vec<String> = match shape {
            Shape::Ids => corpus.events().map(|event| event.id.to_hex()).collect(),
            Shape::Thread | Shape::Kinds => Vec::new(),
        };
        let roots = corpus.events().filter(|event| matches!(event.kind, ISSUE | PATCH)).count();
        (0..self.queries)
            .map(|number| {
                let (filters, expected) = match shape {
                    Shape::Ids => {
                        let wanted = IDS.min(ids.len());
                        let mut chosen = BTreeSet::new();
                        while chosen.len() < wanted {
                            chosen.insert(random.pick(&ids));
                        }
                        (vec![json!({ "ids": chosen })], wanted)
                    }
                    Shape::Thread => {
                        let repository = random.pick(&corpus.repositories);
                        let filter = |tag: &str| json!({ tag: [repository.coordinate], "limit": LIMIT });
                        (["#a", "#A", "#q"].map(filter).to_vec(), repository.thread_events())
                    }
                    Shape::Kinds => (vec![json!({ "kinds": [ISSUE, PATCH], "limit": LIMIT })], roots.min(LIMIT)),
                };
                let subscription = format!("q{number}");
                let filters: Vec<String> = filters.iter().map(ToString::to_string).collect();
                let message = format!(r#"["REQ","{subscription}",{}]"#, filters.join(","));
                Query { subscription, message, expected }
            })
            .collect()
    }
}

/// Counters of responses.
#[derive(Debug, Default)]
struct ReqTally {
    events: u64,
    bytes: u64,
    short: usize,
    latencies: Latencies,
}

impl ReqTally {
    fn absorb(&mut self, other: Self) {
        self.events += other.events;
        self.bytes += other.bytes;
        self.short += other.short;
        self.latencies.absorb(other.latencies);
    }
}

async fn run_queries(mut connection: Connection, queue: VecDeque<Query>, progress: Arc<Progress>) -> Result<ReqTally> {
    let mut tally = ReqTally::default();
    for query in queue {
        let sent = Instant::now();
        connection.send(query.message).await?;
        let mut received = 0;
        loop {
            let text = connection.next().await?;
            tally.bytes += text.len() as u64;
            match RelayMessage::parse(&text) {
                RelayMessage::Event { subscription, .. } if subscription == query.subscription => received += 1,
                RelayMessage::Eose { subscription } if subscription == query.subscription => {
                    break;
                }
                RelayMessage::Closed { subscription, reason } if subscription == query.subscription => {
                    bail!("relay closed subscription {}: {reason}", query.subscription);
                }
                RelayMessage::Notice { text } => bail!("relay sent a notice: {text}"),
                // Messages after the `EOSE` of an earlier query: live events, or a `CLOSED` from the relay.
                _ => {}
            }
        }
        tally.latencies.record(sent.elapsed());
        tally.events += received as u64;
        tally.short += usize::from(received < query.expected);
        // Sent together with the next query.
        connection.queue(format!(r#"["CLOSE","{}"]"#, query.subscription)).await?;
        progress.advance(1);
    }
    Ok(tally)
}
