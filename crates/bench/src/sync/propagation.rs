//! `live`: time from publishing an event on one server until its delivery to a subscriber of another.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::corpus::{comment, writer};
use super::server::GraspdServer;
use super::world::SyncSetup;
use crate::connection::{Connection, Traffic};
use crate::event::SignedEvent;
use crate::git::memory_sampler;
use crate::latency::{Latencies, Percentiles};
use crate::message::{RelayMessage, event_id};

/// Result of the measurement.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PropagationFigures {
    /// Events, published one at a time.
    pub(super) events: usize,
    /// Time from the source's `OK` until the delivery to a subscriber of the follower; zero if the delivery came first.
    pub(super) after_ok: Percentiles,
    /// Time from sending the event until the delivery to a subscriber of the follower.
    pub(super) after_sending: Percentiles,
    /// Duration of a small write with `fsync` on the same disk.
    pub(super) fsync: Percentiles,
}

/// Publishes new comments on the source, one at a time, and waits for each at a subscriber of the follower.
pub(super) async fn run(
    setup: &SyncSetup,
    source: &GraspdServer,
    follower: &GraspdServer,
    events: usize,
) -> Result<PropagationFigures> {
    let root = setup
        .corpus
        .discussions
        .first()
        .and_then(|discussions| discussions.first())
        .context("the corpus has no issue")?;
    let project = setup.corpus.projects.first().context("the corpus has no repository")?;
    let author = writer(setup.corpus.size.seed, 0)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let fresh: Vec<SignedEvent> = (0..events)
        .map(|number| comment(project, root, &author, (now, format!("number {number} of {now}"))))
        .collect::<Result<_>>()?;
    let mut listener = Connection::open(&follower.url()?, Traffic::Light).await?;
    listener.send(json!(["REQ", "s", { "#E": [root.id.to_hex()], "limit": 0 }]).to_string()).await?;
    while !matches!(RelayMessage::parse(&listener.next().await?), RelayMessage::Eose { .. }) {}
    let mut publisher = Connection::open(&source.url()?, Traffic::Light).await?;

    let fsync = memory_sampler::measure_fsync(&setup.path("."))?;
    let (mut after_ok, mut after_sending) = (Latencies::default(), Latencies::default());
    for event in fresh {
        let sent = Instant::now();
        let id = event.id;
        let taken = async { publisher.publish(event).await.map(|()| Instant::now()) };
        let delivered = async {
            loop {
                if let RelayMessage::Event { body, .. } = RelayMessage::parse(&listener.next().await?)
                    && event_id(body) == Some(id)
                {
                    return anyhow::Ok(Instant::now());
                }
            }
        };
        let (taken, delivered) = tokio::try_join!(taken, delivered)?;
        after_ok.record(delivered.saturating_duration_since(taken));
        after_sending.record(delivered.saturating_duration_since(sent));
    }
    Ok(PropagationFigures { events, after_ok: after_ok.summarise(), after_sending: after_sending.summarise(), fsync })
}
