//! `git`: measures git over HTTP, of graspd and of `git http-backend`.
//!
//! - [`generated_repo`]: generated repositories. `repo`: publishes them on a server.
//! - [`request`] and [`client`]: the requests of git, and a client that only counts the responses.
//! - `refs`, `fetch`, `push`: one measurement each.
//! - [`host`] and [`nginx`]: the servers. `cpu_time` and `memory_sampler`: their CPU time and memory.
//! - [`compare`]: all measurements of both servers. `result_table`: the result table.
//! - `bots`: crawlers that request web pages while users push and clone.

mod bots;
pub mod client;
pub mod compare;
mod cpu_time;
mod fetch;
pub mod generated_repo;
pub mod host;
pub(crate) mod installed_git;
pub(crate) mod memory_sampler;
pub mod nginx;
mod push;
mod refs;
mod repo;
pub mod request;
mod result_table;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

pub use self::bots::BotsArgs;
use self::compare::Compare;
use self::cpu_time::CpuAccount;
use self::generated_repo::Make;
use self::refs::RefsRun;
use self::request::{Protocol, RepoUrl};
use crate::report;

/// Arguments of `git`.
#[derive(Debug, Clone, Args)]
pub struct Git {
    /// Command to run.
    #[command(subcommand)]
    pub command: GitCommand,
}

/// Git measurements.
#[derive(Debug, Clone, Subcommand)]
pub enum GitCommand {
    /// Generate the large repository
    #[command(after_help = "Example: grasp-bench git make --dir large.git --commits 50000 --bytes 200MB")]
    Make(Make),
    /// Request ref advertisements
    #[command(after_help = "Example: grasp-bench git refs --url http://127.0.0.1:7334/npub1…/name.git --protocol v2 \
        --pid $(pidof graspd)")]
    Refs(RefsArgs),
    /// Send the fetch request of a full clone and discard the response
    #[command(
        after_help = "Example: grasp-bench git fetch --url http://127.0.0.1:7334/npub1…/name.git --times 3 --pid \
        $(pidof graspd)"
    )]
    Fetch(FetchArgs),
    /// Measure graspd and `git http-backend` in alternation and print the ratios
    Compare(Compare),
    /// Request web pages like crawlers while users push and clone
    Bots(BotsArgs),
}

/// Arguments that select the repository.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// URL of the repository, without TLS
    #[arg(long, value_name = "http://HOST:PORT/PATH")]
    pub url: RepoUrl,
    /// Process id of the server, to measure its CPU time and that of its children; without it, all CPU time of the
    /// machine except that of this program is counted
    #[arg(long)]
    pub pid: Option<u32>,
}

impl Target {
    fn cpu_account(&self) -> CpuAccount {
        self.pid.map_or(CpuAccount::WholeMachine, CpuAccount::ProcessTree)
    }
}

/// Arguments of `git refs`.
#[derive(Debug, Clone, Args)]
pub struct RefsArgs {
    /// Repository to measure.
    #[command(flatten)]
    pub target: Target,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Duration in seconds
    #[arg(long, default_value_t = 3)]
    pub seconds: u64,
    /// Protocol version
    #[arg(long, default_value = "v2")]
    pub protocol: Protocol,
}

/// Arguments of `git fetch`.
#[derive(Debug, Clone, Args)]
pub struct FetchArgs {
    /// Repository to measure.
    #[command(flatten)]
    pub target: Target,
    /// Number of fetches
    #[arg(long, default_value_t = 3)]
    pub times: u64,
}

impl Git {
    /// Runs the command. SIGTERM and SIGINT end it normally, so that the started servers are stopped.
    pub async fn run(self) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            result = self.command.run() => result,
            _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
            _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        }
    }
}

impl GitCommand {
    async fn run(self) -> Result<()> {
        match self {
            Self::Make(make) => make.run(),
            Self::Refs(args) => {
                let RefsArgs { target, connections, seconds, protocol } = args;
                let refs = RefsRun { connections, time: Duration::from_secs(seconds), protocol };
                let figures = refs.run(&target.url, &target.cpu_account()).await.context("git refs")?;
                report::print("git refs", &target.url.address, &figures)
            }
            Self::Fetch(args) => {
                for _ in 0..args.times {
                    let figures = fetch::run(&args.target.url, &args.target.cpu_account()).await?;
                    report::print("git fetch", &args.target.url.address, &figures)?;
                }
                Ok(())
            }
            Self::Bots(args) => Box::pin(bots::run(args)).await,
            Self::Compare(compare) => Box::pin(compare.run()).await,
        }
    }
}
