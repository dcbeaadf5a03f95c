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

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

pub use self::bots::{BotsArgs, run as bots};
use self::compare::Compare;
use self::cpu_time::CpuAccount;
use self::generated_repo::Make;
use self::refs::RefsRun;
use self::request::RepoUrl;
use crate::report;

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
    /// Connections, duration and protocol.
    #[command(flatten)]
    run: RefsRun,
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

impl GitCommand {
    /// Runs the command.
    pub async fn run(self) -> Result<()> {
        match self {
            Self::Make(make) => make.run(),
            Self::Refs(args) => {
                let RefsArgs { target, run } = args;
                let figures = run.run(&target.url, &target.cpu_account()).await.context("git refs")?;
                report::print("git refs", &target.url.address, &figures)
            }
            Self::Fetch(args) => {
                for _ in 0..args.times {
                    let figures = fetch::run(&args.target.url, &args.target.cpu_account()).await?;
                    report::print("git fetch", &args.target.url.address, &figures)?;
                }
                Ok(())
            }
            Self::Compare(compare) => Box::pin(compare.run()).await,
        }
    }
}
