//! `compare`: runs the same measurements against graspd and an independent relay, on the same machine.
//!
//! The relays never run at the same time. Between two measurements a relay may finish its background work, so that it
//! is not included in the next measurement.

mod builder_relay;

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;
use tokio::time::sleep;

pub use self::builder_relay::BuilderRelay;
use crate::cli::CorpusArgs;
use crate::corpus::Corpus;
use crate::idle::{Idle, IdleFigures};
use crate::live::{Live, LiveFigures};
use crate::load::{Load, LoadFigures};
use crate::neg::{Holding, Neg, NegFigures};
use crate::process::{Memory, Process};
use crate::ratio::{Bound, Figure, Ratio};
use crate::req::{Req, ReqFigures, Shape};
use crate::server::{ServerProcess, graspd_command};
use crate::target::Target;
use crate::verify::VerifyFigures;
use crate::{ratio, report, verify};

/// Seconds that idle connections are held before memory is read.
const HOLD_SECS: u64 = 3;

/// Time to wait for a relay to become idle. After that it is measured anyway: some relays are never idle.
const IDLE_DEADLINE: Duration = Duration::from_secs(20);

/// A relay is idle if it used no measurable CPU time for this long.
const IDLE_PERIOD: Duration = Duration::from_millis(400);

/// Arguments of `compare`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example: grasp-bench compare --graspd target/release/graspd --events 20000 > results.jsonl\n\n\
    Starts graspd with an open policy and an empty store, measures it, stops it, and repeats this with a relay built \
    from nostr-relay-builder and nostr-lmdb. The table of ratios is printed to standard error, and each row as JSON to \
    standard output."
)]
pub struct Compare {
    /// The graspd binary
    #[arg(long, value_name = "FILE")]
    pub graspd: PathBuf,
    /// Folder for the stores, each in a temporary subfolder; use a real disk, because durable writes are measured
    #[arg(long, value_name = "DIR", default_value_os_t = env::temp_dir())]
    pub dir: PathBuf,
    /// Events to publish.
    #[command(flatten)]
    pub corpus: CorpusArgs,
    /// Connections and pipeline depth of `load`.
    #[command(flatten)]
    pub load: Load,
    /// Queries of each shape; with fewer, the 10 ms steps of CPU accounting become visible
    #[arg(long, default_value_t = 1000)]
    pub queries: usize,
    /// Connections of `req`
    #[arg(long, default_value_t = 4)]
    pub query_connections: usize,
    /// Subscribers and events of `live`.
    #[command(flatten)]
    pub live: Live,
    /// Skip `live`
    #[arg(long)]
    pub skip_live: bool,
    /// Idle connections to hold; 0 skips `idle`
    #[arg(long, default_value_t = 5000)]
    pub idle: usize,
    /// Also grow graspd's store to this many events and repeat the queries; 0 skips this
    #[arg(long, default_value_t = 0)]
    pub grow: u64,
}

/// Results of one relay.
#[derive(Debug)]
struct RelayResults {
    empty: Memory,
    idle: Option<IdleFigures>,
    load: LoadFigures,
    reqs: Vec<ReqFigures>,
    live: Option<LiveFigures>,
    negs: Vec<NegFigures>,
    grown: Vec<ReqFigures>,
}

impl RelayResults {
    /// Returns the number of lost connections, rejected events, incomplete responses, missing or repeated deliveries
    /// and wrong differences. Figures of a relay that does not do all of the work are not comparable.
    fn incomplete_count(&self) -> u64 {
        let idle = self.idle.map_or(0, |figures| figures.lost);
        let reqs = self.reqs.iter().chain(&self.grown).map(|figures| figures.short as u64).sum::<u64>();
        let live = self.live.as_ref().map_or(0, |figures| figures.missing + figures.duplicates);
        let negs = self.negs.iter().filter(|figures| !figures.correct).count() as u64;
        idle + self.load.rejected + reqs + live + negs
    }
}

/// Error of a measurement that the relay does not support.
#[derive(Debug, Serialize)]
struct FailedMeasurement {
    error: String,
}

impl Compare {
    /// Measures both relays and prints the ratios.
    pub async fn run(&self) -> Result<()> {
        let corpus = Corpus::generate(self.corpus.seed, self.corpus.events.max(self.grow))?;
        let (corpus, growth) = corpus.split(self.corpus.events);
        let verify = verify::run(&corpus)?;
        report::print("verify", "none", &verify)?;

        let store = self.store()?;
        let binary = self.graspd.canonicalize().with_context(|| format!("cannot find {}", self.graspd.display()))?;
        let mut command = graspd_command(&binary, store.path(), "warn");
        command.env("NGIT_POLICY", "open").env("NGIT_SYNC_ENABLE", "false").env("NGIT_MAX_CONNECTIONS", "20000");
        let (server, address) = ServerProcess::start_graspd(command)?;
        let graspd = self.measure(target("graspd", address, &server)?, &corpus, &growth).await?;
        drop((server, store));

        let store = self.store()?;
        let (server, address) = ServerProcess::start_builder(store.path()).await?;
        let growth = Corpus { repositories: Vec::new(), ..growth };
        let builder = self.measure(target("builder", address, &server)?, &corpus, &growth).await?;
        drop((server, store));

        ratio::print(&ratios(verify, &graspd, &builder))
    }

    fn store(&self) -> Result<TempDir> {
        TempDir::with_prefix_in("grasp-bench-", &self.dir)
            .with_context(|| format!("cannot create a store in {}", self.dir.display()))
    }

    async fn measure(
        &self,
        (target, process): (Target, Process),
        corpus: &Corpus,
        growth: &Corpus,
    ) -> Result<RelayResults> {
        let target = &target;
        wait_until_idle(process).await?;
        let empty = process.memory()?;
        report::print("empty", &target.name, &empty)?;

        let mut idle = None;
        if self.idle > 0 {
            let figures = Idle { connections: self.idle, hold_secs: HOLD_SECS }.run(target).await?;
            report::print("idle", &target.name, &figures)?;
            idle = Some(figures);
        }

        wait_until_idle(process).await?;
        let load = self.load.run(target, corpus).await?;
        report::print("load", &target.name, &load)?;
        let reqs = self.run_queries((target, process), corpus, "req").await?;

        let mut live = None;
        if !self.skip_live {
            wait_until_idle(process).await?;
            let figures = self.live.run(target).await?;
            report::print("live", &target.name, &figures)?;
            live = Some(figures);
        }

        wait_until_idle(process).await?;
        let mut negs = Vec::new();
        for holding in Holding::ALL {
            match (Neg { holding, frame_limit: 0 }).run(target, corpus).await {
                Ok(figures) => {
                    report::print("neg", &target.name, &figures)?;
                    negs.push(figures);
                }
                Err(error) => {
                    report::print("neg", &target.name, &FailedMeasurement { error: format!("{error:#}") })?;
                    break;
                }
            }
        }

        let mut grown = Vec::new();
        if !growth.is_empty() {
            let figures = self.load.run(target, growth).await?;
            report::print("load grown", &target.name, &figures)?;
            // The same queries as before: only the size of the store differs.
            grown = self.run_queries((target, process), corpus, "req grown").await?;
        }
        Ok(RelayResults { empty, idle, load, reqs, live, negs, grown })
    }

    async fn run_queries(
        &self,
        (target, process): (&Target, Process),
        corpus: &Corpus,
        result: &str,
    ) -> Result<Vec<ReqFigures>> {
        let mut figures_by_shape = Vec::new();
        for shape in Shape::ALL {
            wait_until_idle(process).await?;
            let run = Req { queries: self.queries, connections: self.query_connections };
            let figures = run.run(shape, target, corpus).await?;
            report::print(result, &target.name, &figures)?;
            figures_by_shape.push(figures);
        }
        Ok(figures_by_shape)
    }
}

fn target(name: &str, address: SocketAddr, server: &ServerProcess) -> Result<(Target, Process)> {
    let process = server.process();
    Ok((Target { url: format!("ws://{address}").parse()?, name: name.into(), process: Some(process) }, process))
}

/// Waits until a relay is idle.
async fn wait_until_idle(process: Process) -> Result<()> {
    let started = Instant::now();
    let mut before = process.cpu_time()?;
    while started.elapsed() < IDLE_DEADLINE {
        sleep(IDLE_PERIOD).await;
        let after = process.cpu_time()?;
        if after == before {
            break;
        }
        before = after;
    }
    Ok(())
}

/// Returns the ratios of both results, with the targets of graspd.
fn ratios(verify: VerifyFigures, graspd: &RelayResults, builder: &RelayResults) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let mut add = |metric: &str, ours: Figure, theirs: Figure, bound: Bound| {
        ratios.push(Ratio::new(metric, ours, theirs, bound));
    };
    let limit = |mib: u32| Figure::fixed("limit", f64::from(mib << 10));
    let kib = |kib: u64| Figure::fixed("graspd", kib as f64);

    let incomplete_count = |results: &RelayResults, name| Figure::fixed(name, results.incomplete_count() as f64);
    add("incomplete work", incomplete_count(graspd, "graspd"), limit(0), Bound::AtMost(0.0));
    add("incomplete work", incomplete_count(graspd, "graspd"), incomplete_count(builder, "builder"), Bound::Unset);

    add("empty store, RssAnon KiB", kib(graspd.empty.rss_anon_kb), limit(30), Bound::AtMost(1.0));
    if let Some(memory) = graspd.idle.and_then(|idle| idle.memory) {
        let with_connections = kib(memory.with_connections.rss_anon_kb);
        add("idle connections, RssAnon KiB", with_connections, limit(100), Bound::AtMost(1.0));
    }

    let (ours, theirs) = (&graspd.load, &builder.load);
    let rate = |of: &LoadFigures| Figure::measured(of.events_per_second, of.usage);
    let cost = Figure::cpu(ours.usage);
    let least = Figure::fixed("verify", verify.verify_us_per_event);
    add("load events/s", rate(ours), rate(theirs), Bound::AtLeast(8.0));
    add("load CPU µs/event", cost, least, Bound::AtMost(2.0));
    add("load CPU µs/event", cost, Figure::cpu(theirs.usage), Bound::Unset);

    let p99 = |of: &ReqFigures| Figure::measured(of.latency.p99_us as f64, of.usage);
    for (ours, theirs) in graspd.reqs.iter().zip(&builder.reqs) {
        let (faster, cheaper) = match ours.shape {
            Shape::Ids => (Bound::Unset, Bound::Unset),
            Shape::Thread | Shape::Kinds => (Bound::AtLeast(1.0), Bound::AtMost(0.25)),
        };
        let name = |figure| format!("req {} {figure}", ours.shape);
        let rate = |of: &ReqFigures| Figure::measured(of.events_per_second, of.usage);
        add(&name("events/s"), rate(ours), rate(theirs), faster);
        add(&name("CPU µs/event"), Figure::cpu(ours.usage), Figure::cpu(theirs.usage), cheaper);
        add(&name("p99 µs"), p99(ours), p99(theirs), Bound::Unset);
    }
    for (grown, small) in graspd.grown.iter().zip(&graspd.reqs) {
        let metric = format!("req {} p99 µs, grown store", grown.shape);
        add(&metric, p99(grown), p99(small).named("small store"), Bound::AtMost(2.0));
    }

    if let (Some(ours), Some(theirs)) = (&graspd.live, &builder.live) {
        let p99 = |of: &LiveFigures| Figure::measured(of.latency.p99_us as f64, of.usage);
        add("live p99 µs", p99(ours), p99(theirs), Bound::AtMost(0.5));
        add("live CPU µs/delivery", Figure::cpu(ours.usage), Figure::cpu(theirs.usage), Bound::Unset);
    }
    for (ours, theirs) in graspd.negs.iter().zip(&builder.negs) {
        let time = |of: &NegFigures| Figure::measured(of.milliseconds, of.usage);
        add(&format!("neg holding {} ms", ours.holding), time(ours), time(theirs), Bound::Unset);
    }
    ratios
}
