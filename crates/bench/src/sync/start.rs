//! How long a server with many repositories takes from its start until it says that it is ready.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::SyncArgs;
use super::server::{GraspdServer, ServerPlan, SyncSources};
use super::sheet::{ResultRow, print_progress};
use super::world::{SOURCE, SyncSetup};
use crate::process_usage::rounded;
use crate::{machine, report};

/// The file that says that a folder has everything.
const COMPLETE: &str = "complete";

/// Between two questions whether it is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How long it may take.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// How to start it.
#[derive(Debug, Clone, Args)]
pub struct StartArgs {
    /// The program
    #[arg(long, value_name = "FILE")]
    pub graspd: PathBuf,
    /// Where signed events and the server's data are kept and used again
    #[arg(long, value_name = "DIR")]
    pub corpus: PathBuf,
    /// Repositories, each with git data
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub repositories: u64,
    /// Issues of each, with one comment each
    #[arg(long, default_value_t = 2)]
    pub roots: u64,
    /// Starts of each kind
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub times: u64,
}

/// What one start took.
#[derive(Debug, Clone, Serialize)]
struct StartFigures {
    repositories: u64,
    events: u64,
    /// Whether files had to be read from the disk first.
    cold: bool,
    /// From the start of the process until `/readyz` said yes.
    ready_ms: f64,
    /// Until it said where it listens.
    welcome_ms: f64,
    /// What the process has computed by then.
    cpu_ms: f64,
    /// Anonymous memory by then.
    rss_anon_mb: f64,
    /// Cores that something else kept busy.
    foreign_cores: f64,
}

/// Makes the folder if it is not there, and starts the server again and again.
pub(super) async fn run(args: &StartArgs) -> Result<Vec<ResultRow>> {
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
    let mut rows = vec![ResultRow::without_target("repositories", args.repositories as f64)];
    for cold in [true, false] {
        let mut times = Vec::new();
        for _ in 0..args.times {
            if cold && !drop_file_cache() {
                print_progress("the system's cache of files cannot be emptied here: no cold starts");
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
        rows.push(ResultRow::at_most(format!("{name}: ms until ready"), median(|figures| figures.ready_ms), 1_000.0));
        rows.push(ResultRow::without_target(format!("{name}: CPU ms until ready"), median(|figures| figures.cpu_ms)));
        rows.push(ResultRow::without_target(
            format!("{name}: MB of anonymous memory"),
            median(|figures| figures.rss_anon_mb),
        ));
        rows.push(ResultRow::without_target(
            format!("{name}: cores of others"),
            median(|figures| figures.foreign_cores),
        ));
    }
    Ok(rows)
}

/// A server that has everything; it was filled by a run before this one, or is now.
async fn prepare(setup: &SyncSetup) -> Result<ServerPlan> {
    let size = setup.corpus.size;
    let name = format!("start-{}x{}", size.repositories, size.roots);
    let folder = setup.path(&name);
    if folder.join(COMPLETE).exists() {
        let (binary, domain) = (setup.binary.clone(), SOURCE.to_owned());
        return Ok(ServerPlan { binary, folder, domain, sync_sources: SyncSources::Disabled, settings: Vec::new() });
    }
    let plan = setup.with_git_data(&name, SOURCE)?;
    let server = plan.start()?;
    setup.fill(&server, SyncSetup::both_servers).await?;
    server.stop().await?;
    // Thousands of announcements in a few seconds leave repositories to be brought into line, which is not what is measured.
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

/// Lets the system forget what it has of files in memory, if it lets us.
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
    let started = Instant::now();
    loop {
        let mut stream = TcpStream::connect(server.address).await.context("it does not listen")?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.starts_with("HTTP/1.1 200 ") {
            return Ok(());
        }
        if started.elapsed() > READY_TIMEOUT {
            bail!("it is not ready after {} s: {answer}", READY_TIMEOUT.as_secs());
        }
        sleep(POLL_INTERVAL).await;
    }
}
