//! `sync`: measures how graspd syncs from other relays.
//!
//! - `corpus` and `folders`: events, signed once, and git data that is already on every server.
//! - `server`, `counting_proxy` (`frames`) and `world`: a source, a syncing server (the follower), and a counting proxy
//!   between them.
//! - `first_sync`: first sync and restart. `propagation`: single events. `many_relays` (`stub`): many relays.
//! - `archive`: a follower without git data. `state_machine`: the sync state machine alone. `result_table`: the result
//!   table.
//! - `start`: start of a server with many repositories, with sync disabled.

mod archive;
mod corpus;
mod counting_proxy;
mod first_sync;
mod folders;
mod frames;
mod independent_relay;
mod many_relays;
mod propagation;
mod publish;
pub(crate) mod result_table;
mod server;
mod start;
mod state_machine;
mod stub;
mod world;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use self::first_sync::{SyncFigures, SyncRun};
use self::result_table::ResultRow;
use self::server::ServerPlan;
pub use self::start::{StartArgs, run as start};
use self::state_machine::MachineSize;
use self::world::{FOLLOWER, SyncSetup};
use crate::report;

/// Sync measurements.
#[derive(Debug, Clone, Subcommand)]
pub enum SyncCommand {
    /// All measurements with real sockets, one after the other
    All(SyncArgs),
    /// First sync of an empty server, its restart, and single events afterwards
    Cold(SyncArgs),
    /// The same with an independent relay as the source (needs the feature `compare`)
    Foreign(SyncArgs),
    /// Sync from many relays
    Relays(SyncArgs),
    /// The sync state machine alone
    Machine(MachineArgs),
}

/// Arguments of most sync measurements.
#[derive(Debug, Clone, Args)]
pub struct SyncArgs {
    /// The graspd binary
    #[arg(long, value_name = "FILE")]
    pub graspd: PathBuf,
    /// Folder for signed events and server data; the events are reused
    #[arg(long, value_name = "DIR")]
    pub corpus: PathBuf,
    /// Number of repositories
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub repositories: u64,
    /// Issues per repository, each with one comment
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub roots: u64,
    /// Seed of keys and content
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Events that are published one at a time
    #[arg(long, default_value_t = 500)]
    pub live: usize,
    /// Number of relays to sync from
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=2_000))]
    pub relays: u64,
}

/// Arguments of `sync machine`.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    /// Size of the simulated setup.
    #[command(flatten)]
    size: MachineSize,
    /// Run with one, two and four times as many repositories, each in its own process
    #[arg(long)]
    pub growth: bool,
}

impl SyncCommand {
    /// Runs the measurement.
    pub async fn run(self) -> Result<()> {
        match self {
            Self::All(args) => {
                let setup = SyncSetup::prepare(&args)?;
                let mut rows = cold(&setup, &args).await?;
                rows.extend(independent_relay::run(&setup).await?);
                rows.extend(many_relays(&setup, &args).await?);
                result_table::print(&rows)
            }
            Self::Cold(args) => result_table::print(&cold(&SyncSetup::prepare(&args)?, &args).await?),
            Self::Foreign(args) => result_table::print(&independent_relay::run(&SyncSetup::prepare(&args)?).await?),
            Self::Relays(args) => result_table::print(&many_relays(&SyncSetup::prepare(&args)?, &args).await?),
            Self::Machine(args) if args.growth => run_growth(&args),
            Self::Machine(args) => result_table::print(&machine(&args)?),
        }
    }
}

async fn cold(setup: &SyncSetup, args: &SyncArgs) -> Result<Vec<ResultRow>> {
    let (source, proxy) = setup.source().await?;
    let plan = setup.with_git_data("follower", FOLLOWER).await?;
    let run = SyncRun { setup, proxy: &proxy, source: source.process() };
    let (mut rows, follower) = first_sync_and_restart(&run, &plan, "graspd").await?;
    let live = propagation::run(setup, &source, &follower, args.live).await?;
    report::print("sync live", "graspd", &live)?;
    let beyond = live.after_ok.p50_us as f64 - 2.0 * live.fsync.p50_us as f64;
    rows.push(ResultRow::new("live p50 minus two fsyncs, ms", beyond / 1000.0).at_most(20.0));
    rows.push(ResultRow::new("live p50 after OK, ms", live.after_ok.p50_us as f64 / 1000.0));
    rows.push(ResultRow::new("live p99 after OK, ms", live.after_ok.p99_us as f64 / 1000.0));
    rows.push(ResultRow::new("fsync p50, ms", live.fsync.p50_us as f64 / 1000.0));
    Ok(rows)
}

/// Measures the first sync of a follower and its restart.
async fn first_sync_and_restart(
    run: &SyncRun<'_>,
    plan: &ServerPlan,
    source: &str,
) -> Result<(Vec<ResultRow>, server::GraspdServer)> {
    let (follower, first) = run.measure(plan, true).await?;
    report::print("sync cold", source, &first)?;
    follower.stop().await?;
    let (follower, second) = run.measure(plan, false).await?;
    report::print("sync restart", source, &second)?;
    Ok((rows(source, &first, &second), follower))
}

fn rows(source: &str, first: &SyncFigures, second: &SyncFigures) -> Vec<ResultRow> {
    let share = |second: u64, first: u64| 100.0 * second as f64 / first.max(1) as f64;
    let all = |figures: &SyncFigures| figures.sent + figures.received;
    let own = source == "graspd";
    let mut rows = vec![
        ResultRow::new(format!("{source}: events"), first.events as f64),
        ResultRow::new(format!("{source}: cold, follower CPU s"), first.follower_cpu_seconds),
        ResultRow::new(format!("{source}: cold, source CPU s"), first.source_cpu_seconds),
        ResultRow::new(format!("{source}: cold, cores used by others"), first.foreign_cores),
        ResultRow::new(format!("{source}: cold, MB sent"), first.sent as f64 / 1e6),
        ResultRow::new(format!("{source}: cold, MB received"), first.received as f64 / 1e6),
        ResultRow::new(format!("{source}: cold, MB of anonymous memory"), first.memory.rss_anon_kb as f64 / 1e3),
        ResultRow::new(format!("{source}: cold, s until first in sync"), first.caught_up_seconds),
    ];
    let served = first.served_seconds.unwrap_or_default();
    let served = ResultRow::new(format!("{source}: cold, s until served"), served);
    rows.push(if own { served.at_most(20.0) } else { served });
    rows.push(ResultRow::new(format!("{source}: restart, s until in sync"), second.caught_up_seconds).at_most(3.0));
    rows.push(ResultRow::new(format!("{source}: restart, follower CPU s"), second.follower_cpu_seconds));
    if own {
        rows.push(
            ResultRow::new(format!("{source}: restart, % of the bytes"), share(all(second), all(first))).at_most(1.0),
        );
    } else {
        let received = share(second.received, first.received);
        rows.push(ResultRow::new(format!("{source}: restart, % of the bytes received"), received).at_most(1.0));
        rows.push(ResultRow::new(format!("{source}: restart, filter sets sent"), second.filter_sets).at_most(2.0));
    }
    rows
}

async fn many_relays(setup: &SyncSetup, args: &SyncArgs) -> Result<Vec<ResultRow>> {
    let figures = many_relays::run(setup, args.relays as usize).await?;
    report::print("sync relays", "graspd", &figures)?;
    Ok(vec![
        ResultRow::new(format!("{} relays, MB above idle", figures.relays), figures.above_idle_mb).at_most(64.0),
        ResultRow::new("s until in sync", figures.caught_up_seconds),
        ResultRow::new("CPU s", figures.cpu_seconds),
        ResultRow::new("messages above the stated limits", figures.requests.excesses as f64).at_most(0.0),
    ])
}

/// Measures how an empty server copies all events and git data of another one.
pub async fn archive(args: &SyncArgs) -> Result<()> {
    let figures = archive::run(&SyncSetup::prepare(args)?).await?;
    report::print("sync archive", "graspd", &figures)?;
    let beyond = figures.fetches as f64 - (figures.repositories + figures.pull_requests) as f64;
    result_table::print(&[
        ResultRow::new("repositories", figures.repositories as f64),
        ResultRow::new("events", figures.events as f64),
        ResultRow::new("s until everything is served", figures.served_seconds),
        ResultRow::new("s of git clone --mirror", figures.mirror_seconds),
        ResultRow::new("ratio of the two durations", figures.ratio).at_most(1.5),
        ResultRow::new("requests above one per repository and pull request", beyond).at_most(0.0),
        ResultRow::new("cores used", figures.busy_cores),
    ])
}

fn machine(args: &MachineArgs) -> Result<Vec<ResultRow>> {
    let MachineSize { repositories, roots, relays } = args.size;
    let figures = state_machine::run(args.size)?;
    report::print("sync machine", "none", &figures)?;
    let what = format!("{repositories} x {roots} x {relays}");
    Ok(vec![
        ResultRow::new(format!("{what}: CPU s"), figures.catch_up.seconds),
        ResultRow::new(format!("{what}: MB"), figures.memory_mb),
        ResultRow::new(format!("{what}: longest step, ms"), figures.longest_ms()),
    ])
}

/// Runs each size in its own process, because memory freed by a smaller run would hide the memory that a larger one
/// needs.
fn run_growth(args: &MachineArgs) -> Result<()> {
    for factor in [1, 2, 4] {
        let [repositories, roots, relays] = [args.size.repositories * factor, args.size.roots, args.size.relays];
        let status = Command::new(std::env::current_exe()?)
            .args(["sync", "machine", "--repositories", &repositories.to_string()])
            .args(["--roots", &roots.to_string(), "--relays", &relays.to_string()])
            .stdin(Stdio::null())
            .status()
            .context("cannot start this program again")?;
        if !status.success() {
            bail!("{repositories} repositories: {status}");
        }
    }
    Ok(())
}
