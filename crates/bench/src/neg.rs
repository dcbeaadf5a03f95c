//! `neg`: compare a local set with the relay's (NIP-77), and check that the difference is right.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde::Serialize;
use serde_json::json;

use crate::connection::{Connection, Traffic};
use crate::corpus::Corpus;
use crate::event::SignedEvent;
use crate::message::Incoming;
use crate::process_usage::{Meter, Usage, rounded};
use crate::repository::{YEAR, YEAR_START};
use crate::target::Target;

/// More rounds than any honest reconciliation needs: the ranges shrink sixteenfold each time.
const MOST_ROUNDS: usize = 10_000;

/// What this side holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Holding {
    /// No event: a first synchronisation.
    Nothing,
    /// Nine of ten events: catching up.
    Most,
    /// Every event: the usual case.
    Everything,
}

impl Holding {
    /// Every case.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::Most, Self::Everything];

    fn contains(self, index: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Most => !index.is_multiple_of(10),
            Self::Everything => true,
        }
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Nothing => "nothing",
            Self::Most => "most",
            Self::Everything => "everything",
        })
    }
}

/// How to reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neg {
    /// What this side holds.
    pub holding: Holding,
    /// Bytes that a message of this side may have, before hex; zero for no limit.
    pub frame_limit: u64,
}

/// What `neg` reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NegFigures {
    /// What this side held.
    pub holding: Holding,
    /// Events of the corpus. The costs are divided by this.
    pub events: u64,
    /// Answers of the relay until the difference was known.
    pub rounds: usize,
    /// Bytes of messages to the relay.
    pub bytes_sent: u64,
    /// Bytes of messages from the relay.
    pub bytes_received: u64,
    /// Ids that only this side has.
    pub have: usize,
    /// Ids that only the relay has.
    pub need: usize,
    /// Whether that is exactly what is missing here, and nothing is missing there.
    pub correct: bool,
    /// From the first message to the last answer.
    pub milliseconds: f64,
    /// What it took.
    #[serde(flatten)]
    pub usage: Usage,
}

impl Neg {
    /// Reconciles the year of the corpus. The relay should hold the whole corpus and no other one.
    pub async fn run(self, target: &Target, corpus: &Corpus) -> Result<NegFigures> {
        let (held, missing): (Vec<_>, Vec<_>) =
            corpus.events().enumerate().partition(|(index, _)| self.holding.contains(*index));
        let missing: BTreeSet<Id> = missing.into_iter().map(|(_, event)| id(event)).collect();
        let mut storage = NegentropyStorageVector::with_capacity(held.len());
        for (_, event) in held {
            storage.insert(event.created_at, id(event)).map_err(explain)?;
        }
        storage.seal().map_err(explain)?;
        let mut session = Session {
            connection: Connection::open(&target.url, Traffic::Heavy).await?,
            negentropy: Negentropy::borrowed(&storage, self.frame_limit).map_err(explain)?,
            rounds: 0,
            bytes_sent: 0,
            bytes_received: 0,
        };

        let meter = Meter::start(target.process)?;
        let started = Instant::now();
        let (have, need) = session.reconcile().await?;
        let milliseconds = rounded(started.elapsed().as_secs_f64() * 1000.0);
        Ok(NegFigures {
            holding: self.holding,
            events: corpus.len(),
            rounds: session.rounds,
            bytes_sent: session.bytes_sent,
            bytes_received: session.bytes_received,
            have: have.len(),
            need: need.len(),
            correct: have.is_empty() && need == missing,
            milliseconds,
            usage: meter.stop(corpus.len())?,
        })
    }
}

/// A reconciliation under way.
struct Session<'a> {
    connection: Connection,
    negentropy: Negentropy<'a, NegentropyStorageVector>,
    rounds: usize,
    bytes_sent: u64,
    bytes_received: u64,
}

impl Session<'_> {
    async fn reconcile(&mut self) -> Result<(BTreeSet<Id>, BTreeSet<Id>)> {
        let filter = json!({ "since": YEAR_START, "until": YEAR_START + YEAR });
        let first = hex::encode(self.negentropy.initiate().map_err(explain)?);
        self.send(format!(r#"["NEG-OPEN","neg",{filter},"{first}"]"#)).await?;
        let (mut have, mut need) = (Vec::new(), Vec::new());
        while self.rounds < MOST_ROUNDS {
            let answer = self.answer().await?;
            self.rounds += 1;
            match self.negentropy.reconcile_with_ids(&answer, &mut have, &mut need).map_err(explain)? {
                Some(next) => self.send(format!(r#"["NEG-MSG","neg","{}"]"#, hex::encode(next))).await?,
                None => {
                    self.send(r#"["NEG-CLOSE","neg"]"#.to_owned()).await?;
                    return Ok((have.into_iter().collect(), need.into_iter().collect()));
                }
            }
        }
        bail!("no end after {MOST_ROUNDS} rounds")
    }

    async fn send(&mut self, message: String) -> Result<()> {
        self.bytes_sent += message.len() as u64;
        self.connection.send(message).await
    }

    async fn answer(&mut self) -> Result<Vec<u8>> {
        loop {
            let text = self.connection.next().await?;
            self.bytes_received += text.len() as u64;
            match Incoming::read(&text) {
                Incoming::Reconcile { hex } => return Ok(hex::decode(hex)?),
                Incoming::ReconcileError { reason } => {
                    bail!("the relay refuses to reconcile: {reason}")
                }
                Incoming::Notice { text } => bail!("the relay complains: {text}"),
                _ => {}
            }
        }
    }
}

fn id(event: &SignedEvent) -> Id {
    Id::from_byte_array(event.id.to_bytes())
}

/// The library's errors are no `std` errors without its `std` feature.
fn explain(error: negentropy::Error) -> anyhow::Error {
    anyhow!("negentropy: {error}")
}
