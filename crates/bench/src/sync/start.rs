//! `start`: time from the start of a server with many repositories until it is ready.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use super::SyncArgs;
use super::result_table;
use super::result_table::{ResultRow, print_progress};
use super::server::{GraspdServer, ServerPlan};
use super::world::{SOURCE, SyncSetup};
use crate::git::client::Client;
use crate::process_usage::rounded;
use crate::{machine, report};

/// Marker file of a completely prepared data folder.
const COMPLETE: &str = "complete";

/// Interval of readiness checks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Time within which the server must be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Arguments of `start`.
#[derive(Debug, Clone, Args)]
pub struct StartArgs {
    /// The graspd binary
    #[arg(long, value_name = "FILE")]
    pub graspd: PathBuf,
    /// Folder for signed events and server data; both are reused
    #[arg(long, value_name = "DIR")]
    pub corpus: PathBuf,
    /// Number of repositories, each with git data
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub repositories: u64,
    /// Issues per repository, each with one comment
    #[arg(long, default_value_t = 2)]
    pub roots: u64,
    /// Number of cold and of warm starts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub times: u64,
}

/// Result of one start.
#[derive(Debug, Clone, Serialize)]
struct StartFigures {
    repositories: u64,
    events: u64,
    /// Whether the file cache was empty.
    cold: bool,
    /// Time from the start of the process until `/readyz` returned 200.
    ready_ms: f64,
    /// Time until it printed its address.
    welcome_ms: f64,
    /// CPU time until it was ready.
    cpu_ms: f64,
    /// Anonymous memory when it was ready.
    rss_anon_mb: f64,
    /// Cores used by other processes.
    foreign_cores: f64,
}

/// Prepares the data folder if necessary, and starts the server repeatedly.
pub async fn run(args: &StartArgs) -> Result<()> {
    let setup = SyncSetup::prepare(&SyncArgs {
        graspd: args.graspd.clone(),
        corpus: args.corpus.clone(),
        repositories: args.repositories,
        roots: args.roots,
        seed: 1,
        live: 0,
        relays: 1,
    })?;
    let plan = prepare(&setup).await?;
    let mut rows = vec![ResultRow::new("repositories", args.repositories as f64)];
    for cold in [true, false] {
        let mut times = Vec::new();
        for _ in 0..args.times {
            if cold && !drop_file_cache() {
                print_progress("cannot drop the file cache (root only); skipping cold starts");
                break;
            }
            let figures = measure_start(&setup, &plan, cold).await?;
            report::print("start", "graspd", &figures)?;
            times.push(figures);
        }
        if times.is_empty() {
            continue;
        }
        let name = if cold { "cold" } else { "warm" };
        let median = |of: fn(&StartFigures) -> f64| {
            let mut values: Vec<f64> = times.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        rows.push(
            ResultRow::new(format!("{name}: ms until ready"), median(|figures| figures.ready_ms)).at_most(1_000.0),
        );
        rows.push(ResultRow::new(format!("{name}: CPU ms until ready"), median(|figures| figures.cpu_ms)));
        rows.push(ResultRow::new(format!("{name}: MB of anonymous memory"), median(|figures| figures.rss_anon_mb)));
        rows.push(ResultRow::new(format!("{name}: cores used by others"), median(|figures| figures.foreign_cores)));
    }
    result_table::print(&rows)
}

/// Returns a server with all data, prepared now or by an earlier run.
async fn prepare(setup: &SyncSetup) -> Result<ServerPlan> {
    let size = setup.corpus.size;
    let name = format!("start-{}x{}", size.repositories, size.roots);
    let folder = setup.path(&name);
    if folder.join(COMPLETE).exists() {
        let (binary, domain) = (setup.binary.clone(), SOURCE.to_owned());
        return Ok(ServerPlan { binary, folder, domain, bootstrap: None, settings: Vec::new() });
    }
    let plan = setup.with_git_data(&name, SOURCE).await?;
    let server = plan.start()?;
    setup.fill(&server, SyncSetup::both_servers).await?;
    server.stop().await?;
    // Thousands of announcements within seconds leave unfinished git work, which is not part of this measurement.
    let mut settled = false;
    while !settled {
        let server = plan.start()?;
        wait_until_ready(&server).await?;
        settled = server.warnings().is_empty();
        server.stop().await?;
    }
    fs::write(folder.join(COMPLETE), "")?;
    Ok(plan)
}

/// Drops the kernel's file cache. Returns `false` if this is not permitted.
fn drop_file_cache() -> bool {
    let written = Command::new("sync").status().is_ok_and(|status| status.success());
    written && fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

async fn measure_start(setup: &SyncSetup, plan: &ServerPlan, cold: bool) -> Result<StartFigures> {
    let (busy, began) = (machine::busy_time()?, Instant::now());
    let server = plan.start()?;
    let listening = began.elapsed();
    wait_until_ready(&server).await?;
    let ready = began.elapsed();
    let (process, busy) = (server.process(), machine::busy_time()?.saturating_sub(busy));
    let cpu = process.cpu_time()?;
    let memory = process.memory()?;
    server.stop().await?;
    let ms = |time: Duration| rounded(time.as_secs_f64() * 1e3);
    Ok(StartFigures {
        repositories: setup.corpus.size.repositories,
        events: setup.corpus.size.events(),
        cold,
        ready_ms: ms(ready),
        welcome_ms: ms(listening),
        cpu_ms: ms(cpu),
        rss_anon_mb: rounded(memory.rss_anon_kb as f64 / 1e3),
        foreign_cores: rounded(busy.saturating_sub(cpu).as_secs_f64() / ready.as_secs_f64()),
    })
}

async fn wait_until_ready(server: &GraspdServer) -> Result<()> {
    let (mut client, started) = (Client::new(server.address), Instant::now());
    loop {
        let (status, answer) = client.get("/readyz").await?;
        if status == 200 {
            return Ok(());
        }
        if started.elapsed() > READY_TIMEOUT {
            bail!("graspd is not ready after {} s: {answer}", READY_TIMEOUT.as_secs());
        }
        sleep(POLL_INTERVAL).await;
    }
}
