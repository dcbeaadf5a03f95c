//! `sync`: how graspd sync_sources other relays.
//!
//! - `corpus` and `folders`: what there is, signed once; the git data lies beside every server already.
//! - `server`, `wire` (`frames`) and `world`: a source, a follower, and the way between them, on which everything is
//!   counted.
//! - `cold`: an empty follower, and one that starts again; `propagation`: single events; `crowd` (`stub`): many relays.
//! - `archive`: an empty server that has no git data either. `automaton`: the sync machine alone. `sheet`: the table.
//! - `start`: a server with many repositories, which sync_sources nobody, and how soon it is ready.

mod archive;
mod automaton;
mod cold;
mod corpus;
mod crowd;
mod folders;
mod foreign;
mod frames;
mod propagation;
mod publish;
mod server;
pub(crate) mod sheet;
mod start;
mod stub;
mod wire;
mod world;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use self::cold::{SyncFigures, SyncRun};
use self::server::ServerPlan;
use self::sheet::ResultRow;
pub use self::start::StartArgs;
use self::world::{FOLLOWER, SyncSetup};
use crate::report;

/// How graspd sync_sources other relays.
#[derive(Debug, Clone, Args)]
pub struct Sync {
    /// What to measure.
    #[command(subcommand)]
    pub command: SyncCommand,
}

/// What to measure.
#[derive(Debug, Clone, Subcommand)]
pub enum SyncCommand {
    /// Everything that has real sockets, one after the other
    All(SyncArgs),
    /// An empty follower, its restart, and single events after that
    Cold(SyncArgs),
    /// The same with an independent relay as the source (needs the feature `compare`)
    Foreign(SyncArgs),
    /// A follower of many relays
    Relays(SyncArgs),
    /// An empty server takes over everything, git data included; beside it the real git clones the same
    Archive(SyncArgs),
    /// The sync machine alone
    Machine(MachineArgs),
    /// Start a server with many repositories; measure how soon it is ready
    Start(StartArgs),
}

/// What is followed.
#[derive(Debug, Clone, Args)]
pub struct SyncArgs {
    /// The program
    #[arg(long, value_name = "FILE")]
    pub graspd: PathBuf,
    /// Where signed events and the servers' data are kept; the events are used again
    #[arg(long, value_name = "DIR")]
    pub corpus: PathBuf,
    /// Repositories
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub repositories: u64,
    /// Issues of each, with one comment each
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub roots: u64,
    /// Chooses keys and content
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Events that are published one at a time
    #[arg(long, default_value_t = 500)]
    pub live: usize,
    /// Relays that are followed at once
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=2_000))]
    pub relays: u64,
}

/// What the machine sync_sources.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    /// Repositories
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub repositories: u64,
    /// Issues of each
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub roots: u64,
    /// Relays
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub relays: u64,
    /// Then first_sync_and_restart and four times as many repositories, each size in a process of its own
    #[arg(long)]
    pub growth: bool,
}

impl Sync {
    /// Measures. A signal ends it in good order, so that no server is left behind.
    pub async fn run(self) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            result = Box::pin(self.command.run()) => result,
            _ = terminate.recv() => bail!("terminated"),
            _ = interrupt.recv() => bail!("interrupted"),
        }
    }
}

impl SyncCommand {
    async fn run(self) -> Result<()> {
        match self {
            Self::All(args) => {
                let setup = SyncSetup::prepare(&args)?;
                let mut rows = cold(&setup, &args).await?;
                rows.extend(foreign::run(&setup).await?);
                rows.extend(many_relays(&setup, &args).await?);
                sheet::print(&rows)
            }
            Self::Cold(args) => sheet::print(&cold(&SyncSetup::prepare(&args)?, &args).await?),
            Self::Foreign(args) => sheet::print(&foreign::run(&SyncSetup::prepare(&args)?).await?),
            Self::Relays(args) => sheet::print(&many_relays(&SyncSetup::prepare(&args)?, &args).await?),
            Self::Archive(args) => sheet::print(&archive(&SyncSetup::prepare(&args)?).await?),
            Self::Start(args) => sheet::print(&start::run(&args).await?),
            Self::Machine(args) if args.growth => run_growth(&args),
            Self::Machine(args) => sheet::print(&machine(&args)?),
        }
    }
}

async fn cold(setup: &SyncSetup, args: &SyncArgs) -> Result<Vec<ResultRow>> {
    let (source, proxy) = setup.source().await?;
    let plan = setup.with_git_data("follower", FOLLOWER)?;
    let run = SyncRun { setup, proxy: &proxy, source: source.process() };
    let (mut rows, follower) = first_sync_and_restart(&run, &plan, "graspd").await?;
    let live = propagation::run(setup, &source, &follower, args.live).await?;
    report::print("sync live", "graspd", &live)?;
    let beyond = live.after_ok.p50_us as f64 - 2.0 * live.fsync.p50_us as f64;
    rows.push(ResultRow::at_most("live p50 beyond two fsyncs, ms", beyond / 1000.0, 20.0));
    rows.push(ResultRow::without_target("live p50 after OK, ms", live.after_ok.p50_us as f64 / 1000.0));
    rows.push(ResultRow::without_target("live p99 after OK, ms", live.after_ok.p99_us as f64 / 1000.0));
    rows.push(ResultRow::without_target("fsync p50, ms", live.fsync.p50_us as f64 / 1000.0));
    Ok(rows)
}

/// A follower's first life and its second.
async fn first_sync_and_restart(
    run: &SyncRun<'_>,
    plan: &ServerPlan,
    source: &str,
) -> Result<(Vec<ResultRow>, server::GraspdServer)> {
    let (follower, first) = run.cold(plan).await?;
    report::print("sync cold", source, &first)?;
    follower.stop().await?;
    let (follower, second) = run.restart(plan).await?;
    report::print("sync restart", source, &second)?;
    Ok((rows(source, &first, &second), follower))
}

fn rows(source: &str, first: &SyncFigures, second: &SyncFigures) -> Vec<ResultRow> {
    let share = |second: u64, first: u64| 100.0 * second as f64 / first.max(1) as f64;
    let all = |figures: &SyncFigures| figures.sent + figures.received;
    let own = source == "graspd";
    let mut rows = vec![
        ResultRow::without_target(format!("{source}: events"), first.events as f64),
        ResultRow::without_target(format!("{source}: cold, follower CPU s"), first.follower_cpu_seconds),
        ResultRow::without_target(format!("{source}: cold, source CPU s"), first.source_cpu_seconds),
        ResultRow::without_target(format!("{source}: cold, cores of others"), first.foreign_cores),
        ResultRow::without_target(format!("{source}: cold, MB sent"), first.sent as f64 / 1e6),
        ResultRow::without_target(format!("{source}: cold, MB received"), first.received as f64 / 1e6),
        ResultRow::without_target(
            format!("{source}: cold, MB of anonymous memory"),
            first.memory.rss_anon_kb as f64 / 1e3,
        ),
        ResultRow::without_target(format!("{source}: cold, s until first caught up"), first.caught_up_seconds),
    ];
    let served = first.served_seconds.unwrap_or_default();
    rows.push(if own {
        ResultRow::at_most(format!("{source}: cold, s until served"), served, 20.0)
    } else {
        ResultRow::without_target(format!("{source}: cold, s until served"), served)
    });
    rows.push(ResultRow::at_most(format!("{source}: restart, s until caught up"), second.caught_up_seconds, 3.0));
    rows.push(ResultRow::without_target(format!("{source}: restart, follower CPU s"), second.follower_cpu_seconds));
    if own {
        rows.push(ResultRow::at_most(
            format!("{source}: restart, % of the bytes"),
            share(all(second), all(first)),
            1.0,
        ));
    } else {
        let received = share(second.received, first.received);
        rows.push(ResultRow::at_most(format!("{source}: restart, % of the bytes received"), received, 1.0));
        rows.push(ResultRow::at_most(format!("{source}: restart, sets of filters sent"), second.filter_sets, 2.0));
    }
    rows
}

async fn many_relays(setup: &SyncSetup, args: &SyncArgs) -> Result<Vec<ResultRow>> {
    let figures = crowd::run(setup, args.relays as usize).await?;
    report::print("sync relays", "graspd", &figures)?;
    Ok(vec![
        ResultRow::at_most(format!("{} relays, MB above idle", figures.relays), figures.above_idle_mb, 64.0),
        ResultRow::without_target("s until caught up", figures.caught_up_seconds),
        ResultRow::without_target("CPU s", figures.cpu_seconds),
        ResultRow::at_most("messages beyond stated limits", figures.asked.excesses as f64, 0.0),
    ])
}

async fn archive(setup: &SyncSetup) -> Result<Vec<ResultRow>> {
    let figures = archive::run(setup).await?;
    report::print("sync archive", "graspd", &figures)?;
    let beyond = figures.fetches as f64 - (figures.repositories + figures.pull_requests) as f64;
    Ok(vec![
        ResultRow::without_target("repositories", figures.repositories as f64),
        ResultRow::without_target("events", figures.events as f64),
        ResultRow::without_target("s until everything is served", figures.served_seconds),
        ResultRow::without_target("s of git clone --mirror", figures.mirror_seconds),
        ResultRow::at_most("the first by the second", figures.ratio, 1.5),
        ResultRow::at_most("requests beyond one, and one for pull requests", beyond, 0.0),
        ResultRow::without_target("cores busy", figures.busy_cores),
    ])
}

fn machine(args: &MachineArgs) -> Result<Vec<ResultRow>> {
    let MachineArgs { repositories, roots, relays, .. } = *args;
    let figures = automaton::run(automaton::MachineSize { repositories, roots, relays })?;
    report::print("sync machine", "none", &figures)?;
    let what = format!("{repositories} x {roots} x {relays}");
    Ok(vec![
        ResultRow::without_target(format!("{what}: s of deciding"), figures.seconds()),
        ResultRow::without_target(format!("{what}: MB"), figures.memory_mb()),
        ResultRow::without_target(format!("{what}: longest step, ms"), figures.longest_ms()),
    ])
}

/// Memory that a smaller setup has used and given back would hide what a larger one needs: each has its own process.
fn run_growth(args: &MachineArgs) -> Result<()> {
    for factor in [1, 2, 4] {
        let [repositories, roots, relays] = [args.repositories * factor, args.roots, args.relays];
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
