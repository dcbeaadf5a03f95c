//! `relays`: memory and CPU time of a server that syncs from many relays.

use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;
use tokio::time::sleep;

use super::result_table;
use super::server::{GraspdServer, POLL_INTERVAL};
use super::stub::{StubFigures, StubRelays};
use super::world::{FOLLOWER, SYNC_TIMEOUT, SyncSetup, seconds};
use crate::process::Memory;
use crate::process_usage::rounded;

/// Maximum number of relays that a repository is synced from.
const RELAYS_PER_REPOSITORY: usize = 32;

/// Result of `relays`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RelaysFigures {
    /// Number of relays.
    pub(super) relays: usize,
    /// Number of pairs of a repository and a relay that it lists.
    pub(super) followed: u64,
    /// Time from the start of the server until it was in sync with all relays.
    pub(super) caught_up_seconds: f64,
    /// CPU time of the server.
    pub(super) cpu_seconds: f64,
    /// Anonymous memory of the same server with sync disabled.
    pub(super) idle_kb: u64,
    /// Memory with all relays, when in sync.
    #[serde(flatten)]
    pub(super) memory: Memory,
    /// Anonymous memory a while later.
    pub(super) later_kb: u64,
    /// Difference of anonymous memory to the idle server, in MB.
    pub(super) above_idle_mb: f64,
    /// Peak memory, including mapped files.
    pub(super) peak_kb: u64,
    /// Requests that the relays received.
    #[serde(rename = "asked")]
    pub(super) requests: StubFigures,
    /// Warnings and errors in the log of the server, at most ten.
    #[serde(rename = "complaints")]
    pub(super) warnings: Vec<String>,
}

/// Fills a server, then lets it sync from `relays` relays without events.
pub(super) async fn run(setup: &SyncSetup, relays: usize) -> Result<RelaysFigures> {
    let stubs = StubRelays::start(relays).await?;
    let plan = setup.with_git_data("many-relays", FOLLOWER).await?;
    let server = plan.start()?;
    let each = RELAYS_PER_REPOSITORY.min(relays);
    let named = |index: usize| {
        let first = index * each;
        let mut addresses: Vec<String> =
            (0..each).map(|number| stubs.addresses[(first + number) % relays].clone()).collect();
        // The server itself must be listed too, but it does not count.
        addresses.insert(0, FOLLOWER.to_owned());
        addresses
    };
    setup.fill(&server, named).await?;
    server.stop().await?;

    // Sync disabled: the idle baseline.
    let idle = plan.start()?;
    let idle_kb = settled(&idle).await?.rss_anon_kb;
    idle.stop().await?;

    let started = Instant::now();
    let server = plan.syncing_from(Vec::new()).start()?;
    let mut shown = Instant::now();
    loop {
        let metrics = server.metrics().await?;
        let connected = metrics
            .lines()
            .filter(|line| line.starts_with("ngit_sync_relay_connected{") && line.ends_with(" 3"))
            .count();
        if connected >= relays {
            break;
        }
        if shown.elapsed().as_secs() >= 10 {
            shown = Instant::now();
            let requests = stubs.figures();
            result_table::print_progress(&format!("{connected} of {relays} relays in sync; {requests:?}"));
        }
        if started.elapsed() > SYNC_TIMEOUT {
            bail!(
                "{connected} of {relays} relays in sync after {} s; warnings: {:#?}",
                SYNC_TIMEOUT.as_secs(),
                server.warnings()
            );
        }
        sleep(5 * POLL_INTERVAL).await;
    }
    let caught_up = Instant::now();
    let cpu = server.process().cpu_time()?;
    let memory = server.process().memory()?;
    let later_kb = settled(&server).await?.rss_anon_kb;
    Ok(RelaysFigures {
        relays,
        followed: setup.corpus.size.repositories * each as u64,
        caught_up_seconds: seconds(Some(started), caught_up),
        cpu_seconds: rounded(cpu.as_secs_f64()),
        idle_kb,
        memory,
        later_kb,
        above_idle_mb: rounded(memory.rss_anon_kb.saturating_sub(idle_kb) as f64 / 1000.0),
        peak_kb: server.process().peak_kb()?,
        requests: stubs.figures(),
        warnings: server.warnings().into_iter().take(10).collect(),
    })
}

/// Waits until a server has been idle for two seconds and returns its memory.
async fn settled(server: &GraspdServer) -> Result<Memory> {
    let started = Instant::now();
    let mut before = server.process().cpu_time()?;
    let mut quiet = 0;
    while quiet < 4 && started.elapsed() < SYNC_TIMEOUT {
        sleep(25 * POLL_INTERVAL).await;
        let after = server.process().cpu_time()?;
        quiet = if after.saturating_sub(before).as_millis() <= 10 { quiet + 1 } else { 0 };
        before = after;
    }
    server.process().memory()
}
