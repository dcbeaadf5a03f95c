//! `compare`: runs the same measurements against graspd and an independent relay, on the same machine.
//!
//! The relays never run at the same time. Between two measurements a relay may finish its background work, so that it
//! is not included in the next measurement.

mod builder_relay;
mod server;

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;

pub use self::builder_relay::BuilderRelay;
use self::server::RelayProcess;
use crate::cli::{CorpusArgs, DeliveryArgs, PublishingArgs};
use crate::corpus::Corpus;
use crate::idle::{Idle, IdleFigures};
use crate::live::{Live, LiveFigures};
use crate::load::{Load, LoadFigures};
use crate::neg::{Holding, Neg, NegFigures};
use crate::process::Memory;
use crate::ratio::{Bound, Figure, Ratio};
use crate::req::{Req, ReqFigures, Shape};
use crate::verify::VerifyFigures;
use crate::{ratio, report, verify};

/// Time that idle connections are held before memory is read.
const HOLD: Duration = Duration::from_secs(3);

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
    pub publishing: PublishingArgs,
    /// Queries of each shape; with fewer, the 10 ms steps of CPU accounting become visible
    #[arg(long, default_value_t = 1000)]
    pub queries: usize,
    /// Connections of `req`
    #[arg(long, default_value_t = 4)]
    pub query_connections: usize,
    /// Subscribers and events of `live`.
    #[command(flatten)]
    pub delivery: DeliveryArgs,
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
        let server = RelayProcess::start_graspd(&self.graspd, store.path()).await?;
        let graspd = self.measure(server, &corpus, &growth).await?;
        drop(store);

        let store = self.store()?;
        let server = RelayProcess::start_builder(store.path()).await?;
        let builder = self.measure(server, &corpus, &Corpus { repositories: Vec::new() }).await?;
        drop(store);

        ratio::print(&ratios(verify, &graspd, &builder))
    }

    fn store(&self) -> Result<TempDir> {
        TempDir::with_prefix_in("grasp-bench-", &self.dir)
            .with_context(|| format!("cannot create a store in {}", self.dir.display()))
    }

    async fn measure(&self, server: RelayProcess, corpus: &Corpus, growth: &Corpus) -> Result<RelayResults> {
        let target = server.target();
        server.wait_until_idle().await?;
        let empty = server.memory()?;
        report::print("empty", &target.name, &empty)?;

        let mut idle = None;
        if self.idle > 0 {
            let figures = Idle { connections: self.idle, hold: HOLD }.run(target).await?;
            report::print("idle", &target.name, &figures)?;
            idle = Some(figures);
        }

        server.wait_until_idle().await?;
        let load = Load::from(self.publishing).run(target, corpus).await?;
        report::print("load", &target.name, &load)?;
        let reqs = self.run_queries(&server, corpus, "req").await?;

        let mut live = None;
        if !self.skip_live {
            server.wait_until_idle().await?;
            let figures = Live::from(self.delivery).run(target).await?;
            report::print("live", &target.name, &figures)?;
            live = Some(figures);
        }

        server.wait_until_idle().await?;
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
            let figures = Load::from(self.publishing).run(target, growth).await?;
            report::print("load grown", &target.name, &figures)?;
            // The same queries as before: only the size of the store differs.
            grown = self.run_queries(&server, corpus, "req grown").await?;
        }
        Ok(RelayResults { empty, idle, load, reqs, live, negs, grown })
    }

    async fn run_queries(&self, server: &RelayProcess, corpus: &Corpus, result: &str) -> Result<Vec<ReqFigures>> {
        let mut figures_by_shape = Vec::new();
        for shape in Shape::ALL {
            server.wait_until_idle().await?;
            let run = Req { shape, queries: self.queries, connections: self.query_connections, seed: self.corpus.seed };
            let figures = run.run(server.target(), corpus).await?;
            report::print(result, &server.target().name, &figures)?;
            figures_by_shape.push(figures);
        }
        Ok(figures_by_shape)
    }
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
