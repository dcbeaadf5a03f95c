//! `git`: what a git server does over HTTP, measured beside `git http-backend`.
//!
//! - [`make`]: generated repositories; `repo`: how they come onto a server.
//! - [`request`], [`pktline`] and [`client`]: the requests of a real git, and a client that only counts the answers.
//! - `refs`, `fetch`, `push`: one measurement each.
//! - [`host`] and [`nginx`]: the servers; `ledger` and `watch`: what they spend.
//! - [`compare`]: all of it for both in turn; `sheet`: the table.
//! - `bots`: crawlers on the pages while people push and clone.

mod bots;
pub mod client;
pub mod compare;
mod fetch;
pub mod host;
mod ledger;
pub mod make;
pub mod nginx;
pub mod pktline;
mod push;
mod refs;
mod repo;
pub mod request;
mod sheet;
pub(crate) mod stock;
pub(crate) mod watch;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

pub use self::bots::BotsArgs;
use self::compare::Compare;
use self::ledger::Ledger;
use self::make::Make;
use self::refs::Refs;
use self::request::{Protocol, RepoUrl};
use crate::report;

/// What to do with git.
#[derive(Debug, Clone, Args)]
pub struct Git {
    /// What to do.
    #[command(subcommand)]
    pub command: GitCommand,
}

/// What to do with git.
#[derive(Debug, Clone, Subcommand)]
pub enum GitCommand {
    /// Make the large repository
    #[command(after_help = "Example: grasp-bench git make --dir large.git --commits 50000 --bytes 200MB")]
    Make(Make),
    /// Ask a server for advertisements
    #[command(after_help = "Example: grasp-bench git refs --url http://127.0.0.1:7334/npub1…/name.git --protocol v2 \
        --pid $(pidof graspd)")]
    Refs(RefsArgs),
    /// Send the fetch request of a full clone and throw the answer away
    #[command(
        after_help = "Example: grasp-bench git fetch --url http://127.0.0.1:7334/npub1…/name.git --times 3 --pid \
        $(pidof graspd)"
    )]
    Fetch(FetchArgs),
    /// Measure graspd and `git http-backend` in turn; print the ratios
    Compare(Compare),
    /// Crawl the pages while people push and clone
    Bots(BotsArgs),
}

/// Which repository.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Address of the repository, without TLS
    #[arg(long, value_name = "http://HOST:PORT/PATH")]
    pub url: RepoUrl,
    /// Process id of the server, with whose CPU time and that of its children the results are right; without it
    /// everything that the machine did is taken for the server's
    #[arg(long)]
    pub pid: Option<u32>,
}

impl Target {
    fn ledger(&self) -> Ledger {
        self.pid.map_or(Ledger::Machine, Ledger::Tree)
    }
}

/// How `refs` asks.
#[derive(Debug, Clone, Args)]
pub struct RefsArgs {
    /// Which repository.
    #[command(flatten)]
    pub target: Target,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// For how long
    #[arg(long, default_value_t = 3)]
    pub seconds: u64,
    /// Version of the protocol
    #[arg(long, default_value = "v2")]
    pub protocol: Protocol,
}

/// How `fetch` asks.
#[derive(Debug, Clone, Args)]
pub struct FetchArgs {
    /// Which repository.
    #[command(flatten)]
    pub target: Target,
    /// How often
    #[arg(long, default_value_t = 3)]
    pub times: u64,
}

impl Git {
    /// Does it. A signal ends it in good order, so that no server is left behind.
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
                let refs = Refs { connections, time: Duration::from_secs(seconds), protocol };
                let figures = refs.run(&target.url, &target.ledger()).await.context("git refs")?;
                report::print("git refs", &target.url.address, &figures)
            }
            Self::Fetch(args) => {
                for _ in 0..args.times {
                    let figures = fetch::run(&args.target.url, &args.target.ledger()).await?;
                    report::print("git fetch", &args.target.url.address, &figures)?;
                }
                Ok(())
            }
            Self::Bots(args) => Box::pin(bots::run(args)).await,
            Self::Compare(compare) => Box::pin(compare.run()).await,
        }
    }
}
