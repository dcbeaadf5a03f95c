//! Many relays at once: what following them costs in memory.

use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;
use tokio::time::sleep;

use super::server::{GraspdServer, POLL_INTERVAL, SyncSources};
use super::sheet;
use super::stub::{StubFigures, StubRelays};
use super::world::{FOLLOWER, SYNC_TIMEOUT, SyncSetup, seconds};
use crate::process::Memory;
use crate::process_usage::rounded;

/// Relays that a repository can be followed at. Announcements that name more do not count.
const RELAYS_PER_REPOSITORY: usize = 32;

/// What many relays cost.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RelaysFigures {
    /// Relays.
    pub(super) relays: usize,
    /// Repositories that name each of them, in all.
    pub(super) followed: u64,
    /// From starting the server until it knew that it had everything of all of them.
    pub(super) caught_up_seconds: f64,
    /// CPU time of the follower.
    pub(super) cpu_seconds: f64,
    /// Anonymous memory of the same server when it sync_sources nobody.
    pub(super) idle_kb: u64,
    /// With all relays, after catching up.
    #[serde(flatten)]
    pub(super) memory: Memory,
    /// The same a while later.
    pub(super) later_kb: u64,
    /// The difference, in MB.
    pub(super) above_idle_mb: f64,
    /// The most that was resident, mapped files included.
    pub(super) peak_kb: u64,
    /// What the relays were asked.
    pub(super) asked: StubFigures,
    /// What the follower complained about, at most ten.
    #[serde(rename = "complaints")]
    pub(super) warnings: Vec<String>,
}

/// Fills a server, then lets it follow so many relays that have nothing.
pub(super) async fn run(setup: &SyncSetup, relays: usize) -> Result<RelaysFigures> {
    let stubs = StubRelays::start(relays).await?;
    let plan = setup.with_git_data("crowd", FOLLOWER)?;
    let server = plan.start()?;
    let each = RELAYS_PER_REPOSITORY.min(relays);
    let named = |index: usize| {
        let first = index * each;
        let mut addresses: Vec<String> =
            (0..each).map(|number| stubs.addresses[(first + number) % relays].clone()).collect();
        // Both servers must be named too, and do not count: one is the server itself, the other is not followed here.
        addresses.insert(0, FOLLOWER.to_owned());
        addresses
    };
    setup.fill(&server, named).await?;
    server.stop().await?;

    // Following nobody, after it has read what it has.
    let idle = plan.start()?;
    let idle_kb = settled(&idle).await?.rss_anon_kb;
    idle.stop().await?;

    let started = Instant::now();
    let server = plan.syncing_from(SyncSources::Relays(Vec::new())).start()?;
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
            let asked = stubs.counters.figures();
            sheet::print_progress(&format!("{connected} of {relays} relays caught up; {asked:?}"));
        }
        if started.elapsed() > SYNC_TIMEOUT {
            bail!("{connected} of {relays} after {} s: {:#?}", SYNC_TIMEOUT.as_secs(), server.warnings());
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
        asked: stubs.counters.figures(),
        warnings: server.warnings().into_iter().take(10).collect(),
    })
}

/// Memory when a server has done nothing for two seconds.
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
