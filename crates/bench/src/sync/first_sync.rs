//! `cold`: first sync of an empty server from a full one, and its restart.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::time::sleep;

use super::counting_proxy::{CountingProxy, ProxyTraffic};
use super::frames::MessageCounts;
use super::publish::{count, served};
use super::server::{GraspdServer, POLL_INTERVAL, ServerPlan, metric_sum};
use super::world::{SOURCE, SYNC_TIMEOUT, SyncSetup, seconds};
use crate::connection::Connection;
use crate::process::{Memory, Process};
use crate::process_usage::rounded;
use crate::repository::{ANNOUNCEMENT, STATE};
use crate::{connection, machine};

/// Result of a first sync or a restart.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SyncFigures {
    /// Events served at the end.
    pub(super) events: u64,
    /// Time from the first connection until all events were served; `None` for a restart.
    pub(super) served_seconds: Option<f64>,
    /// Time from the first connection until the follower first logged that it is in sync. A new follower may log this
    /// when it has only the announcements, if their git data is checked later.
    pub(super) caught_up_seconds: f64,
    /// CPU time of the follower since its start.
    pub(super) follower_cpu_seconds: f64,
    /// CPU time of the source during the measurement.
    pub(super) source_cpu_seconds: f64,
    /// Cores used by other processes during the measurement.
    pub(super) foreign_cores: f64,
    /// Bytes from the follower to the source.
    pub(super) sent: u64,
    /// Bytes from the source to the follower.
    pub(super) received: u64,
    /// Bytes of requests as a multiple of one list of all synced tag values.
    pub(super) filter_sets: f64,
    /// Messages that the follower sent.
    #[serde(rename = "said")]
    pub(super) messages_sent: MessageCounts,
    /// Messages that the follower received.
    #[serde(rename = "heard")]
    pub(super) messages_received: MessageCounts,
    /// Memory of the follower at the end.
    #[serde(flatten)]
    pub(super) memory: Memory,
    /// Peak memory of the follower, including mapped files.
    pub(super) peak_kb: u64,
    /// Warnings and errors in the log of the follower.
    #[serde(rename = "complaints")]
    pub(super) warnings: Vec<String>,
}

/// Measures a follower that syncs through the proxy.
pub(super) struct SyncRun<'a> {
    pub(super) setup: &'a SyncSetup,
    pub(super) proxy: &'a CountingProxy,
    /// Process of the source.
    pub(super) source: Process,
}

impl SyncRun<'_> {
    /// Starts a follower. Waits until it serves everything if it is empty (`cold`), and until it is in sync.
    pub(super) async fn measure(&self, plan: &ServerPlan, cold: bool) -> Result<(GraspdServer, SyncFigures)> {
        let plan = plan.syncing_from(vec![format!("ws://{SOURCE}")]);
        self.proxy.reset();
        let wanted = self.setup.corpus.size.events();
        let (before, busy, own) = (self.source.cpu_time()?, machine::busy_time()?, Process::Own.cpu_time()?);
        let started = Instant::now();
        let follower = plan.start()?;
        let served_at = if cold { Some(self.wait_for_all(&follower, wanted).await?) } else { None };
        let caught_up = follower.wait_for_log(&["caught up", SOURCE], SYNC_TIMEOUT).await?;
        let spent = follower.process().cpu_time()?;
        let source = self.source.cpu_time()?.saturating_sub(before);
        let others = (machine::busy_time()?.saturating_sub(busy))
            .saturating_sub(Process::Own.cpu_time()?.saturating_sub(own) + spent + source);
        let traffic = self.proxy.traffic();
        let ProxyTraffic { first_connection_at, sent, received, .. } = traffic;
        let mut connection = Connection::open(&follower.url()?, connection::Traffic::Light).await?;
        let events = served(&mut connection).await?;
        let figures = SyncFigures {
            events,
            served_seconds: served_at.map(|at| seconds(first_connection_at, at)),
            caught_up_seconds: seconds(first_connection_at, caught_up),
            follower_cpu_seconds: rounded(spent.as_secs_f64()),
            source_cpu_seconds: rounded(source.as_secs_f64()),
            foreign_cores: rounded(others.as_secs_f64() / started.elapsed().as_secs_f64()),
            sent,
            received,
            filter_sets: rounded(traffic.bytes_sent("REQ") as f64 / self.setup.corpus.filter_bytes() as f64),
            messages_sent: traffic.messages_sent,
            messages_received: traffic.messages_received,
            memory: follower.process().memory()?,
            peak_kb: follower.process().peak_kb()?,
            warnings: follower.warnings(),
        };
        Ok((follower, figures))
    }

    /// Waits until everything is served. Reads the metrics first, which cost the server little, and queries the store
    /// only at the end.
    async fn wait_for_all(&self, follower: &GraspdServer, wanted: u64) -> Result<Instant> {
        let started = Instant::now();
        let mut connection = Connection::open(&follower.url()?, connection::Traffic::Light).await?;
        let projects = 2 * self.setup.corpus.size.repositories;
        let mut shown = Instant::now();
        loop {
            let metrics = follower.metrics().await?;
            let decided = metric_sum(&metrics, "ngit_sync_judged_total", &[]).unwrap_or(0.0) as u64;
            if decided + projects >= wanted && served(&mut connection).await? >= wanted {
                return Ok(Instant::now());
            }
            if shown.elapsed().as_secs() >= 5 {
                shown = Instant::now();
                let announced = count(&mut connection, &serde_json::json!({ "kinds": [ANNOUNCEMENT, STATE] })).await?;
                let traffic = self.proxy.traffic();
                crate::sync::result_table::print_progress(&format!(
                    "{decided} events, {announced} announcements and states served, {} kB sent, {} kB received",
                    traffic.sent / 1000,
                    traffic.received / 1000
                ));
            }
            if started.elapsed() > SYNC_TIMEOUT {
                let all = served(&mut connection).await.context("cannot count events")?;
                bail!(
                    "{all} of {wanted} events served after {} s; warnings: {:#?}",
                    SYNC_TIMEOUT.as_secs(),
                    follower.warnings()
                );
            }
            sleep(2 * POLL_INTERVAL).await;
        }
    }
}
