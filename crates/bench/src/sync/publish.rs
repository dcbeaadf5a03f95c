//! Publishes events on a server and waits until they are served.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::server::{GraspdServer, POLL_INTERVAL};
use crate::connection::{Connection, Traffic};
use crate::event::SignedEvent;
use crate::load::{Load, LoadFigures};
use crate::repository::{ANNOUNCEMENT, COMMENT, ISSUE, STATE};
use crate::target::Target;

/// Unacknowledged events per connection.
const PIPELINE: usize = 64;

/// Connections that publish.
const CONNECTIONS: usize = 4;

/// Time within which a server must serve all events that it has accepted.
const SERVED_DEADLINE: Duration = Duration::from_secs(120);

/// Publishes lists of events, each in order. A rejected event is an error.
pub(super) async fn publish(address: SocketAddr, lists: &[Vec<SignedEvent>]) -> Result<()> {
    let target = Target { url: format!("ws://{address}").parse()?, process: None, name: address.to_string() };
    let load = Load { connections: CONNECTIONS, pipeline: PIPELINE };
    let LoadFigures { rejected, reasons, .. } = load.publish(&target, lists.iter()).await?;
    if rejected > 0 {
        bail!("{rejected} events were rejected: {reasons:?}");
    }
    Ok(())
}

/// Returns the number of served events with the kinds of the corpus.
pub(super) async fn served(connection: &mut Connection) -> Result<u64> {
    count(connection, &json!({ "kinds": [ANNOUNCEMENT, STATE, ISSUE, COMMENT] })).await
}

/// Returns the number of served events that match a filter.
pub(super) async fn count(connection: &mut Connection, filter: &Value) -> Result<u64> {
    connection.send(json!(["COUNT", "c", filter]).to_string()).await?;
    loop {
        let answer: Value = serde_json::from_str(&connection.next().await?)?;
        match answer[0].as_str() {
            Some("COUNT") => return answer[2]["count"].as_u64().context("the COUNT response has no number"),
            Some("CLOSED" | "NOTICE") => bail!("relay rejected COUNT: {answer}"),
            _ => {}
        }
    }
}

/// Waits until a server serves `wanted` events that match a filter.
pub(super) async fn wait_until_count(server: &GraspdServer, filter: &Value, wanted: u64) -> Result<()> {
    let mut connection = Connection::open(&server.url()?, Traffic::Light).await?;
    let started = Instant::now();
    loop {
        let served = count(&mut connection, filter).await?;
        if served >= wanted {
            return Ok(());
        }
        if started.elapsed() > SERVED_DEADLINE {
            bail!("{served} of {wanted} events are served after {} s", SERVED_DEADLINE.as_secs());
        }
        sleep(5 * POLL_INTERVAL).await;
    }
}
