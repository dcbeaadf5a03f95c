//! `sync`: how graspd follows other relays.
//!
//! - `corpus` and `folders`: what there is, signed once; the git data lies beside every server already.
//! - `server`, `wire` (`frames`) and `world`: a source, a follower, and the way between them, on which everything is
//!   counted.
//! - `cold`: an empty follower, and one that starts again; `propagation`: single events; `crowd` (`stub`): many relays.
//! - `archive`: an empty server that has no git data either. `automaton`: the sync machine alone. `sheet`: the table.
//! - `start`: a server with many repositories, which follows nobody, and how soon it is ready.

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

use self::cold::{Figures, Run};
use self::server::Plan;
use self::sheet::Row;
pub use self::start::StartArgs;
use self::world::{FOLLOWER, World};
use crate::report;

/// How graspd follows other relays.
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

/// What the machine follows.
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
    /// Then twice and four times as many repositories, each size in a process of its own
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
                let world = World::prepare(&args)?;
                let mut rows = cold(&world, &args).await?;
                rows.extend(foreign::run(&world).await?);
                rows.extend(crowd(&world, &args).await?);
                sheet::print(&rows)
            }
            Self::Cold(args) => sheet::print(&cold(&World::prepare(&args)?, &args).await?),
            Self::Foreign(args) => sheet::print(&foreign::run(&World::prepare(&args)?).await?),
            Self::Relays(args) => sheet::print(&crowd(&World::prepare(&args)?, &args).await?),
            Self::Archive(args) => sheet::print(&archived(&World::prepare(&args)?).await?),
            Self::Start(args) => sheet::print(&start::run(&args).await?),
            Self::Machine(args) if args.growth => grow(&args),
            Self::Machine(args) => sheet::print(&machine(&args)?),
        }
    }
}

async fn cold(world: &World, args: &SyncArgs) -> Result<Vec<Row>> {
    let (source, wire) = world.source().await?;
    let plan = world.newborn("follower", FOLLOWER)?;
    let run = Run { world, wire: &wire, source: source.process() };
    let (mut rows, follower) = twice(&run, &plan, "graspd").await?;
    let live = propagation::run(world, &source, &follower, args.live).await?;
    report::print("sync live", "graspd", &live)?;
    let beyond = live.after_ok.p50_us as f64 - 2.0 * live.fsync.p50_us as f64;
    rows.push(Row::at_most("live p50 beyond two fsyncs, ms", beyond / 1000.0, 20.0));
    rows.push(Row::open("live p50 after OK, ms", live.after_ok.p50_us as f64 / 1000.0));
    rows.push(Row::open("live p99 after OK, ms", live.after_ok.p99_us as f64 / 1000.0));
    rows.push(Row::open("fsync p50, ms", live.fsync.p50_us as f64 / 1000.0));
    Ok(rows)
}

/// A follower's first life and its second.
async fn twice(run: &Run<'_>, plan: &Plan, source: &str) -> Result<(Vec<Row>, server::Server)> {
    let (follower, first) = run.cold(plan).await?;
    report::print("sync cold", source, &first)?;
    follower.stop().await?;
    let (follower, second) = run.again(plan).await?;
    report::print("sync restart", source, &second)?;
    Ok((rows(source, &first, &second), follower))
}

fn rows(source: &str, first: &Figures, second: &Figures) -> Vec<Row> {
    let share = |second: u64, first: u64| 100.0 * second as f64 / first.max(1) as f64;
    let all = |figures: &Figures| figures.sent + figures.received;
    let own = source == "graspd";
    let mut rows = vec![
        Row::open(format!("{source}: events"), first.events as f64),
        Row::open(format!("{source}: cold, follower CPU s"), first.follower_cpu_seconds),
        Row::open(format!("{source}: cold, source CPU s"), first.source_cpu_seconds),
        Row::open(format!("{source}: cold, cores of others"), first.foreign_cores),
        Row::open(format!("{source}: cold, MB sent"), first.sent as f64 / 1e6),
        Row::open(format!("{source}: cold, MB received"), first.received as f64 / 1e6),
        Row::open(format!("{source}: cold, MB of anonymous memory"), first.memory.rss_anon_kb as f64 / 1e3),
        Row::open(format!("{source}: cold, s until first caught up"), first.caught_up_seconds),
    ];
    let served = first.served_seconds.unwrap_or_default();
    rows.push(if own {
        Row::at_most(format!("{source}: cold, s until served"), served, 20.0)
    } else {
        Row::open(format!("{source}: cold, s until served"), served)
    });
    rows.push(Row::at_most(format!("{source}: restart, s until caught up"), second.caught_up_seconds, 3.0));
    rows.push(Row::open(format!("{source}: restart, follower CPU s"), second.follower_cpu_seconds));
    if own {
        rows.push(Row::at_most(format!("{source}: restart, % of the bytes"), share(all(second), all(first)), 1.0));
    } else {
        let received = share(second.received, first.received);
        rows.push(Row::at_most(format!("{source}: restart, % of the bytes received"), received, 1.0));
        rows.push(Row::at_most(format!("{source}: restart, sets of filters sent"), second.filter_sets, 2.0));
    }
    rows
}

async fn crowd(world: &World, args: &SyncArgs) -> Result<Vec<Row>> {
    let figures = crowd::run(world, args.relays as usize).await?;
    report::print("sync relays", "graspd", &figures)?;
    Ok(vec![
        Row::at_most(format!("{} relays, MB above idle", figures.relays), figures.above_idle_mb, 64.0),
        Row::open("s until caught up", figures.caught_up_seconds),
        Row::open("CPU s", figures.cpu_seconds),
        Row::at_most("messages beyond stated limits", figures.asked.excesses as f64, 0.0),
    ])
}

async fn archived(world: &World) -> Result<Vec<Row>> {
    let figures = archive::run(world).await?;
    report::print("sync archive", "graspd", &figures)?;
    let beyond = figures.fetches as f64 - (figures.repositories + figures.pull_requests) as f64;
    Ok(vec![
        Row::open("repositories", figures.repositories as f64),
        Row::open("events", figures.events as f64),
        Row::open("s until everything is served", figures.served_seconds),
        Row::open("s of git clone --mirror", figures.mirror_seconds),
        Row::at_most("the first by the second", figures.ratio, 1.5),
        Row::at_most("requests beyond one, and one for pull requests", beyond, 0.0),
        Row::open("cores busy", figures.busy_cores),
    ])
}

fn machine(args: &MachineArgs) -> Result<Vec<Row>> {
    let MachineArgs { repositories, roots, relays, .. } = *args;
    let figures = automaton::run(automaton::Extent { repositories, roots, relays })?;
    report::print("sync machine", "none", &figures)?;
    let what = format!("{repositories} x {roots} x {relays}");
    Ok(vec![
        Row::open(format!("{what}: s of deciding"), figures.seconds()),
        Row::open(format!("{what}: MB"), figures.memory_mb()),
        Row::open(format!("{what}: longest step, ms"), figures.longest_ms()),
    ])
}

/// Memory that a smaller world has used and given back would hide what a larger one needs: each has its own process.
fn grow(args: &MachineArgs) -> Result<()> {
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
