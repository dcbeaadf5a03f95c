//! `live`: measures the time from publishing an event until its delivery to every subscriber.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use nostr::event::EventId;
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::cli::positive;
use crate::connection::{Connection, Traffic};
use crate::event::{Author, Draft, SignedEvent};
use crate::latency::{Latencies, Percentiles};
use crate::message::{RelayMessage, event_id};
use crate::process_usage::{Meter, Usage};
use crate::progress::Progress;
use crate::random::Random;
use crate::repository::{ANNOUNCEMENT, ISSUE, tag};
use crate::sample_text;
use crate::target::Target;

/// Time after the last event within which a delivery may still arrive. Later deliveries count as missing.
const GRACE: Duration = Duration::from_secs(10);

/// Parameters of a `live` run.
#[derive(Debug, Clone, Copy, Args)]
pub struct Live {
    /// Connections with one subscription each
    #[arg(long, default_value_t = 1000, value_parser = positive())]
    pub subscribers: usize,
    /// Events to publish
    #[arg(id = "publish", long = "publish", default_value_t = 200, value_parser = positive())]
    pub events: usize,
    /// Events published per second
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub per_second: u32,
}

/// Result of `live`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveFigures {
    /// Connections with a subscription.
    pub subscribers: usize,
    /// Events published.
    pub published: usize,
    /// Deliveries: events received by all subscribers together. Costs are per delivery.
    pub events: u64,
    /// Deliveries that did not arrive.
    pub missing: u64,
    /// Deliveries that arrived more than once.
    pub duplicates: u64,
    /// Time from sending an event until its arrival at a subscriber.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// Duration, CPU time and memory of the run.
    #[serde(flatten)]
    pub usage: Usage,
}

impl Live {
    /// Opens all subscriptions, publishes at the given rate, and waits for the deliveries.
    pub async fn run(self, target: &Target) -> Result<LiveFigures> {
        let (coordinate, events) = self.sign()?;
        let send_times = Arc::new(SendTimes::new(&events));
        let mut publisher = Connection::open(&target.url, Traffic::Heavy).await?;
        let waiting = self.subscribe(target, &coordinate).await?;

        let expected = (self.subscribers * self.events) as u64;
        let progress = Arc::new(Progress::start(format!("live {}", target.name), expected));
        let meter = Meter::start(target.process)?;
        let (stop, stopped) = watch::channel(());
        let mut subscribers = JoinSet::new();
        for connection in waiting {
            let subscriber = LiveSubscriber::new(connection, Arc::clone(&send_times), Arc::clone(&progress));
            subscribers.spawn(subscriber.listen(stopped.clone()));
        }
        drop(stopped);
        self.publish(&mut publisher, events, &send_times).await?;

        // A subscriber task ends when it has received everything; the others end when `stop` is dropped.
        let mut tally = LiveTally::default();
        let all = async {
            while let Some(subscriber) = subscribers.join_next().await {
                tally.absorb(subscriber??);
            }
            anyhow::Ok(())
        };
        match timeout(GRACE, all).await {
            Ok(finished) => finished?,
            Err(_) => {
                drop(stop);
                while let Some(subscriber) = subscribers.join_next().await {
                    tally.absorb(subscriber??);
                }
            }
        }
        let received = tally.latencies.len() as u64;
        Ok(LiveFigures {
            subscribers: self.subscribers,
            published: self.events,
            events: received,
            missing: expected - received,
            duplicates: tally.duplicates,
            latency: tally.latencies.summarise(),
            usage: meter.stop(received)?,
        })
    }

    /// Signs issues of a repository. Relays do not deliver events that they already have, so every run needs new
    /// events: the seed is the current time.
    fn sign(self) -> Result<(String, Vec<SignedEvent>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        let seed = now.as_nanos() as u64;
        let author = Author::from_seed(seed, 0)?;
        let coordinate = format!("{ANNOUNCEMENT}:{}:live", author.public_key);
        let mut random = Random::new(seed, 1);
        let events = (0..self.events)
            .map(|_| {
                author.sign(Draft {
                    kind: ISSUE,
                    created_at: now.as_secs(),
                    tags: vec![
                        tag(["a", &coordinate]),
                        tag(["p", &author.public_key]),
                        tag(["subject", &sample_text::title(&mut random, 8)]),
                    ],
                    content: sample_text::paragraphs(&mut random, 300),
                })
            })
            .collect::<Result<_>>()?;
        Ok((coordinate, events))
    }

    /// Opens all subscriptions and waits for the `EOSE` of each.
    async fn subscribe(self, target: &Target, coordinate: &str) -> Result<Vec<Connection>> {
        let filter = json!({ "kinds": [ISSUE], "#a": [coordinate], "limit": 0 });
        let request = format!(r#"["REQ","live",{filter}]"#);
        let mut connections = Connection::open_many(&target.url, Traffic::Light, self.subscribers).await?;
        for connection in &mut connections {
            connection.send(request.as_str()).await?;
        }
        for connection in &mut connections {
            loop {
                match RelayMessage::parse(&connection.next().await?) {
                    RelayMessage::Eose { .. } => break,
                    RelayMessage::Closed { reason, .. } => {
                        bail!("relay closed a subscription: {reason}")
                    }
                    RelayMessage::Notice { text } => bail!("relay sent a notice: {text}"),
                    _ => {}
                }
            }
        }
        Ok(connections)
    }

    async fn publish(self, publisher: &mut Connection, events: Vec<SignedEvent>, send_times: &SendTimes) -> Result<()> {
        let mut ticks = interval(Duration::from_secs(1) / self.per_second.max(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unanswered = events.len();
        for (index, event) in events.into_iter().enumerate() {
            ticks.tick().await;
            send_times.mark_sent(index);
            publisher.send(event.message).await?;
            while let Some(text) = publisher.next_ready() {
                unanswered -= count_ok(&text?)?;
            }
        }
        while unanswered > 0 {
            unanswered -= count_ok(&publisher.next().await?)?;
        }
        Ok(())
    }
}

/// Returns 1 for an `OK true` response and 0 for other messages. A rejected event is an error, because it is not
/// delivered.
fn count_ok(text: &str) -> Result<usize> {
    match RelayMessage::parse(text) {
        RelayMessage::Ok { accepted: true, .. } => Ok(1),
        RelayMessage::Ok { accepted: false, reason, .. } => bail!("relay rejected an event: {reason}"),
        _ => Ok(0),
    }
}

/// The time at which each event was sent.
#[derive(Debug)]
struct SendTimes {
    started: Instant,
    index: HashMap<EventId, usize>,
    /// Microseconds after `started`.
    sent: Vec<AtomicU64>,
}

impl SendTimes {
    fn new(events: &[SignedEvent]) -> Self {
        Self {
            started: Instant::now(),
            index: events.iter().enumerate().map(|(index, event)| (event.id, index)).collect(),
            sent: events.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn mark_sent(&self, index: usize) {
        self.sent[index].store(self.started.elapsed().as_micros() as u64, Ordering::Release);
    }

    fn age(&self, index: usize) -> Duration {
        let sent = Duration::from_micros(self.sent[index].load(Ordering::Acquire));
        self.started.elapsed().saturating_sub(sent)
    }
}

/// Counters of deliveries.
#[derive(Debug, Default)]
struct LiveTally {
    duplicates: u64,
    latencies: Latencies,
}

impl LiveTally {
    fn absorb(&mut self, other: Self) {
        self.duplicates += other.duplicates;
        self.latencies.absorb(other.latencies);
    }
}

/// One subscribed connection.
struct LiveSubscriber {
    connection: Connection,
    send_times: Arc<SendTimes>,
    progress: Arc<Progress>,
    seen: Vec<bool>,
    tally: LiveTally,
}

impl LiveSubscriber {
    fn new(connection: Connection, send_times: Arc<SendTimes>, progress: Arc<Progress>) -> Self {
        let seen = vec![false; send_times.sent.len()];
        Self { connection, send_times, progress, seen, tally: LiveTally::default() }
    }

    /// Reads messages until all events have arrived, or until the channel closes.
    async fn listen(mut self, mut stopped: watch::Receiver<()>) -> Result<LiveTally> {
        while self.tally.latencies.len() < self.seen.len() {
            tokio::select! {
                biased;
                text = self.connection.next_without_timeout() => self.handle(&text?),
                // The sender never sends: the channel closes.
                _ = stopped.changed() => break,
            }
        }
        Ok(self.tally)
    }

    fn handle(&mut self, text: &str) {
        if let RelayMessage::Event { body, .. } = RelayMessage::parse(text)
            && let Some(&index) = event_id(body).and_then(|id| self.send_times.index.get(&id))
        {
            if std::mem::replace(&mut self.seen[index], true) {
                self.tally.duplicates += 1;
            } else {
                self.tally.latencies.record(self.send_times.age(index));
                self.progress.advance(1);
            }
        }
    }
}
