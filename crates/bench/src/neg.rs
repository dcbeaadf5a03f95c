//! `neg`: reconciles a local set with the relay (NIP-77) and checks the reported difference.

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
use crate::message::RelayMessage;
use crate::process_usage::{Meter, Usage, rounded};
use crate::repository::{YEAR, YEAR_START};
use crate::target::Target;

/// Upper bound of rounds. A correct reconciliation needs far fewer, because ranges shrink sixteenfold per round.
const MAX_ROUNDS: usize = 10_000;

/// Events in the local set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Holding {
    /// None: a first sync.
    Nothing,
    /// Nine of ten events: a sync after an interruption.
    Most,
    /// All events: the usual case.
    Everything,
}

impl Holding {
    /// All cases.
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

/// Parameters of a `neg` run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neg {
    /// Events in the local set.
    pub holding: Holding,
    /// Maximum size of a message to the relay, in bytes before hex encoding; zero for no limit.
    pub frame_limit: u64,
}

/// Result of `neg`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NegFigures {
    /// Events in the local set.
    pub holding: Holding,
    /// Events of the corpus. Costs are divided by this number.
    pub events: u64,
    /// Responses of the relay until the difference was complete.
    pub rounds: usize,
    /// Bytes of messages to the relay.
    pub bytes_sent: u64,
    /// Bytes of messages from the relay.
    pub bytes_received: u64,
    /// Ids that only the local set has.
    pub have: usize,
    /// Ids that only the relay has.
    pub need: usize,
    /// Whether `need` is exactly the set of missing events and `have` is empty.
    pub correct: bool,
    /// Time from the first message to the last response.
    pub milliseconds: f64,
    /// Duration, CPU time and memory of the run.
    #[serde(flatten)]
    pub usage: Usage,
}

impl Neg {
    /// Reconciles the year of the corpus. The relay should have the whole corpus and no other events of that year.
    pub async fn run(self, target: &Target, corpus: &Corpus) -> Result<NegFigures> {
        let (held, missing): (Vec<_>, Vec<_>) =
            corpus.events().enumerate().partition(|(index, _)| self.holding.contains(*index));
        let missing: BTreeSet<Id> = missing.into_iter().map(|(_, event)| id(event)).collect();
        let mut storage = NegentropyStorageVector::with_capacity(held.len());
        for (_, event) in held {
            storage.insert(event.created_at, id(event)).map_err(to_anyhow)?;
        }
        storage.seal().map_err(to_anyhow)?;
        let mut session = NegSession {
            connection: Connection::open(&target.url, Traffic::Heavy).await?,
            negentropy: Negentropy::borrowed(&storage, self.frame_limit).map_err(to_anyhow)?,
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

/// A reconciliation in progress.
struct NegSession<'a> {
    connection: Connection,
    negentropy: Negentropy<'a, NegentropyStorageVector>,
    rounds: usize,
    bytes_sent: u64,
    bytes_received: u64,
}

impl NegSession<'_> {
    async fn reconcile(&mut self) -> Result<(BTreeSet<Id>, BTreeSet<Id>)> {
        let filter = json!({ "since": YEAR_START, "until": YEAR_START + YEAR });
        let first = hex::encode(self.negentropy.initiate().map_err(to_anyhow)?);
        self.send(format!(r#"["NEG-OPEN","neg",{filter},"{first}"]"#)).await?;
        let (mut have, mut need) = (Vec::new(), Vec::new());
        while self.rounds < MAX_ROUNDS {
            let response = self.next_response().await?;
            self.rounds += 1;
            match self.negentropy.reconcile_with_ids(&response, &mut have, &mut need).map_err(to_anyhow)? {
                Some(next) => self.send(format!(r#"["NEG-MSG","neg","{}"]"#, hex::encode(next))).await?,
                None => {
                    self.send(r#"["NEG-CLOSE","neg"]"#.to_owned()).await?;
                    return Ok((have.into_iter().collect(), need.into_iter().collect()));
                }
            }
        }
        bail!("reconciliation is not complete after {MAX_ROUNDS} rounds")
    }

    async fn send(&mut self, message: String) -> Result<()> {
        self.bytes_sent += message.len() as u64;
        self.connection.send(message).await
    }

    async fn next_response(&mut self) -> Result<Vec<u8>> {
        loop {
            let text = self.connection.next().await?;
            self.bytes_received += text.len() as u64;
            match RelayMessage::parse(&text) {
                RelayMessage::NegMsg { hex } => return Ok(hex::decode(hex)?),
                RelayMessage::NegErr { reason } => {
                    bail!("relay rejected the reconciliation: {reason}")
                }
                RelayMessage::Notice { text } => bail!("relay sent a notice: {text}"),
                _ => {}
            }
        }
    }
}

fn id(event: &SignedEvent) -> Id {
    Id::from_byte_array(event.id.to_bytes())
}

/// Converts an error of the library, which does not implement `std::error::Error` without its `std` feature.
fn to_anyhow(error: negentropy::Error) -> anyhow::Error {
    anyhow!("negentropy: {error}")
}
