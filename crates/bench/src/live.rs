//! `live`: how fast a published event reaches everyone who waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nostr::event::EventId;
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::connection::{Connection, Traffic};
use crate::event::{Author, Draft, SignedEvent};
use crate::latency::{Latencies, Percentiles};
use crate::message::{Incoming, event_id};
use crate::process_usage::{Meter, Usage};
use crate::progress::Progress;
use crate::random::Random;
use crate::repository::{ANNOUNCEMENT, ISSUE, tag};
use crate::sample_text;
use crate::target::Target;

/// How long after the last event a delivery may still arrive. What comes later counts as missing.
const GRACE: Duration = Duration::from_secs(10);

/// How to publish and to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// Connections that wait, each with one subscription.
    pub subscribers: usize,
    /// Events to publish.
    pub events: usize,
    /// Events published per second. Above what relay and generator can carry, this measures queues.
    pub per_second: u32,
}

/// What `live` reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveFigures {
    /// Connections that waited.
    pub subscribers: usize,
    /// Events published.
    pub published: usize,
    /// Deliveries: events received, of all subscribers together. The costs are per delivery.
    pub events: u64,
    /// Deliveries that never came.
    pub missing: u64,
    /// Deliveries that came again.
    pub duplicates: u64,
    /// From sending an event to its arrival at a subscriber.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// What it took.
    #[serde(flatten)]
    pub usage: Usage,
}

impl Live {
    /// Subscribes everyone, publishes at the given pace, and waits for the deliveries.
    pub async fn run(self, target: &Target) -> Result<LiveFigures> {
        let (coordinate, events) = self.sign()?;
        let agenda = Arc::new(Agenda::new(&events));
        let mut publisher = Connection::open(&target.url, Traffic::Heavy).await?;
        let waiting = self.subscribe(target, &coordinate).await?;

        let expected = (self.subscribers * self.events) as u64;
        let progress = Arc::new(Progress::start(format!("live {}", target.name), expected));
        let meter = Meter::start(target.process)?;
        let (stop, stopped) = watch::channel(());
        let mut subscribers = JoinSet::new();
        for connection in waiting {
            let subscriber = Subscriber::new(connection, Arc::clone(&agenda), Arc::clone(&progress));
            subscribers.spawn(subscriber.listen(stopped.clone()));
        }
        drop(stopped);
        self.publish(&mut publisher, events, &agenda).await?;

        // A subscriber ends by itself when it has everything; the others are told.
        let mut tally = Tally::default();
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

    /// Issues on a repository of their own. A relay stays silent about events it knows, so every run needs new ones:
    /// the clock is the seed.
    fn sign(self) -> Result<(String, Vec<SignedEvent>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        let seed = now.as_nanos() as u64;
        let author = Author::of(seed, 0)?;
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

    /// Opens all subscriptions and waits until every one of them is live.
    async fn subscribe(self, target: &Target, coordinate: &str) -> Result<Vec<Connection>> {
        let filter = json!({ "kinds": [ISSUE], "#a": [coordinate], "limit": 0 });
        let request = format!(r#"["REQ","live",{filter}]"#);
        let mut connections = Connection::open_many(&target.url, Traffic::Light, self.subscribers).await?;
        for connection in &mut connections {
            connection.send(request.as_str()).await?;
        }
        for connection in &mut connections {
            loop {
                match Incoming::read(&connection.next().await?) {
                    Incoming::EndOfStored { .. } => break,
                    Incoming::Closed { reason, .. } => {
                        bail!("the relay refused a subscription: {reason}")
                    }
                    Incoming::Notice { text } => bail!("the relay complains: {text}"),
                    _ => {}
                }
            }
        }
        Ok(connections)
    }

    async fn publish(self, publisher: &mut Connection, events: Vec<SignedEvent>, agenda: &Agenda) -> Result<()> {
        let mut ticks = interval(Duration::from_secs(1) / self.per_second.max(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unanswered = events.len();
        for (index, event) in events.into_iter().enumerate() {
            ticks.tick().await;
            agenda.mark_sent(index);
            publisher.send(event.message).await?;
            while let Some(text) = publisher.next_ready() {
                unanswered -= verdicts(&text?)?;
            }
        }
        while unanswered > 0 {
            unanswered -= verdicts(&publisher.next().await?)?;
        }
        Ok(())
    }
}

/// One for a verdict, none for other messages; a refusal ends the run, for nothing would be delivered.
fn verdicts(text: &str) -> Result<usize> {
    match Incoming::read(text) {
        Incoming::Verdict { accepted: true, .. } => Ok(1),
        Incoming::Verdict { accepted: false, reason, .. } => bail!("the relay refused an event: {reason}"),
        _ => Ok(0),
    }
}

/// Which events are due, and when each was sent.
#[derive(Debug)]
struct Agenda {
    started: Instant,
    index: HashMap<EventId, usize>,
    /// Microseconds after `started`.
    sent: Vec<AtomicU64>,
}

impl Agenda {
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

/// Deliveries, counted.
#[derive(Debug, Default)]
struct Tally {
    duplicates: u64,
    latencies: Latencies,
}

impl Tally {
    fn absorb(&mut self, other: Self) {
        self.duplicates += other.duplicates;
        self.latencies.absorb(other.latencies);
    }
}

/// One connection that waits.
struct Subscriber {
    connection: Connection,
    agenda: Arc<Agenda>,
    progress: Arc<Progress>,
    seen: Vec<bool>,
    tally: Tally,
}

impl Subscriber {
    fn new(connection: Connection, agenda: Arc<Agenda>, progress: Arc<Progress>) -> Self {
        let seen = vec![false; agenda.sent.len()];
        Self { connection, agenda, progress, seen, tally: Tally::default() }
    }

    /// Listens until everything has arrived, or until told to stop.
    async fn listen(mut self, mut stopped: watch::Receiver<()>) -> Result<Tally> {
        while self.tally.latencies.len() < self.seen.len() {
            tokio::select! {
                biased;
                text = self.connection.next_whenever() => self.read(&text?),
                // The sender never sends: the channel closes.
                _ = stopped.changed() => break,
            }
        }
        Ok(self.tally)
    }

    fn read(&mut self, text: &str) {
        if let Incoming::Event { body, .. } = Incoming::read(text)
            && let Some(&index) = event_id(body).and_then(|id| self.agenda.index.get(&id))
        {
            if std::mem::replace(&mut self.seen[index], true) {
                self.tally.duplicates += 1;
            } else {
                self.tally.latencies.record(self.agenda.age(index));
                self.progress.advance(1);
            }
        }
    }
}
