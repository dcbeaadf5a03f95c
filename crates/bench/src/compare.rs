//! `compare`: the same measurements of graspd and of an independent relay, in one run on one machine.
//!
//! The relays take turns; they never run at the same time. Between two measurements a relay gets the time to finish
//! what the last one left behind, so that no measurement pays for another.

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
use self::server::Server;
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

/// What idle connections are held for before memory is read.
const HOLD: Duration = Duration::from_secs(3);

/// What to compare, and how much of it.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example: grasp-bench compare --graspd target/release/graspd --events 20000 > results.jsonl\n\n\
    Starts graspd with an open policy and a store of its own, measures it, stops it, and does the same with a relay \
    built from nostr-relay-builder and nostr-lmdb. The table of ratios goes to standard error, every line of it also \
    as JSON to standard output."
)]
pub struct Compare {
    /// The graspd binary
    #[arg(long, value_name = "FILE")]
    pub graspd: PathBuf,
    /// Where the stores are put, each in a directory that is removed afterwards; a real disk, or "durable" means little
    #[arg(long, value_name = "DIR", default_value_os_t = env::temp_dir())]
    pub dir: PathBuf,
    /// Which events.
    #[command(flatten)]
    pub corpus: CorpusArgs,
    /// How they are published.
    #[command(flatten)]
    pub publishing: PublishingArgs,
    /// Queries of each shape; fewer run into the 10 ms steps of the CPU accounting
    #[arg(long, default_value_t = 1000)]
    pub queries: usize,
    /// Connections that ask
    #[arg(long, default_value_t = 4)]
    pub query_connections: usize,
    /// How they are delivered.
    #[command(flatten)]
    pub delivery: DeliveryArgs,
    /// Leave `live` out
    #[arg(long)]
    pub skip_live: bool,
    /// Idle connections to hold; 0 leaves `idle` out
    #[arg(long, default_value_t = 5000)]
    pub idle: usize,
    /// Also let graspd's store grow to this many events and ask again; 0 leaves it out
    #[arg(long, default_value_t = 0)]
    pub grow: u64,
}

/// What one relay achieved.
#[derive(Debug)]
struct Turn {
    empty: Memory,
    idle: Option<IdleFigures>,
    load: LoadFigures,
    reqs: Vec<ReqFigures>,
    live: Option<LiveFigures>,
    negs: Vec<NegFigures>,
    grown: Vec<ReqFigures>,
}

impl Turn {
    /// Connections lost, events refused, answers too short, deliveries missing or repeated, differences wrong. A relay
    /// that leaves work undone is fast for the wrong reason.
    fn undone(&self) -> u64 {
        let idle = self.idle.map_or(0, |figures| figures.lost);
        let reqs = self.reqs.iter().chain(&self.grown).map(|figures| figures.short as u64).sum::<u64>();
        let live = self.live.as_ref().map_or(0, |figures| figures.missing + figures.duplicates);
        let negs = self.negs.iter().filter(|figures| !figures.correct).count() as u64;
        idle + self.load.refused + reqs + live + negs
    }
}

/// A measurement that a relay does not take part in.
#[derive(Debug, Serialize)]
struct Unsupported {
    error: String,
}

impl Compare {
    /// Measures both and prints the ratios.
    pub async fn run(&self) -> Result<()> {
        let corpus = Corpus::generate(self.corpus.seed, self.corpus.events.max(self.grow))?;
        let (corpus, growth) = corpus.split(self.corpus.events);
        let verify = verify::run(&corpus)?;
        report::print("verify", "none", &verify)?;

        let store = self.store()?;
        let server = Server::graspd(&self.graspd, store.path()).await?;
        let graspd = self.measure(server, &corpus, &growth).await?;
        drop(store);

        let store = self.store()?;
        let server = Server::builder(store.path()).await?;
        let builder = self.measure(server, &corpus, &Corpus { repositories: Vec::new() }).await?;
        drop(store);

        ratio::print(&ratios(verify, &graspd, &builder))
    }

    fn store(&self) -> Result<TempDir> {
        TempDir::with_prefix_in("grasp-bench-", &self.dir)
            .with_context(|| format!("cannot put a store into {}", self.dir.display()))
    }

    async fn measure(&self, server: Server, corpus: &Corpus, growth: &Corpus) -> Result<Turn> {
        let target = server.target();
        server.settle().await?;
        let empty = server.memory()?;
        report::print("empty", &target.name, &empty)?;

        let mut idle = None;
        if self.idle > 0 {
            let figures = Idle { connections: self.idle, hold: HOLD }.run(target).await?;
            report::print("idle", &target.name, &figures)?;
            idle = Some(figures);
        }

        server.settle().await?;
        let load = Load::from(self.publishing).run(target, corpus).await?;
        report::print("load", &target.name, &load)?;
        let reqs = self.ask(&server, corpus, "req").await?;

        let mut live = None;
        if !self.skip_live {
            server.settle().await?;
            let figures = Live::from(self.delivery).run(target).await?;
            report::print("live", &target.name, &figures)?;
            live = Some(figures);
        }

        server.settle().await?;
        let mut negs = Vec::new();
        for holding in Holding::ALL {
            match (Neg { holding, frame_limit: 0 }).run(target, corpus).await {
                Ok(figures) => {
                    report::print("neg", &target.name, &figures)?;
                    negs.push(figures);
                }
                Err(error) => {
                    report::print("neg", &target.name, &Unsupported { error: format!("{error:#}") })?;
                    break;
                }
            }
        }

        let mut grown = Vec::new();
        if !growth.is_empty() {
            let figures = Load::from(self.publishing).run(target, growth).await?;
            report::print("load grown", &target.name, &figures)?;
            // The same questions as before, in a larger store: only the size of the haystack differs.
            grown = self.ask(&server, corpus, "req grown").await?;
        }
        Ok(Turn { empty, idle, load, reqs, live, negs, grown })
    }

    async fn ask(&self, server: &Server, corpus: &Corpus, result: &str) -> Result<Vec<ReqFigures>> {
        let mut answers = Vec::new();
        for shape in Shape::ALL {
            server.settle().await?;
            let run = Req { shape, queries: self.queries, connections: self.query_connections, seed: self.corpus.seed };
            let figures = run.run(server.target(), corpus).await?;
            report::print(result, &server.target().name, &figures)?;
            answers.push(figures);
        }
        Ok(answers)
    }
}

/// The ratios of two turns. A bound is what graspd is held to.
fn ratios(verify: VerifyFigures, graspd: &Turn, builder: &Turn) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let mut add = |metric: &str, ours: Figure, theirs: Figure, bound: Bound| {
        ratios.push(Ratio::new(metric, ours, theirs, bound));
    };
    let limit = |mib: u32| Figure::given("limit", f64::from(mib << 10));
    let kib = |kib: u64| Figure::given("graspd", kib as f64);

    let undone = |turn: &Turn, name| Figure::given(name, turn.undone() as f64);
    add("work left undone", undone(graspd, "graspd"), limit(0), Bound::AtMost(0.0));
    add("work left undone", undone(graspd, "graspd"), undone(builder, "builder"), Bound::Open);

    add("empty store, RssAnon KiB", kib(graspd.empty.rss_anon_kb), limit(30), Bound::AtMost(1.0));
    if let Some(memory) = graspd.idle.and_then(|idle| idle.memory) {
        let with_connections = kib(memory.with_connections.rss_anon_kb);
        add("idle connections, RssAnon KiB", with_connections, limit(100), Bound::AtMost(1.0));
    }

    let (ours, theirs) = (&graspd.load, &builder.load);
    let rate = |of: &LoadFigures| Figure::measured(of.events_per_second, of.usage);
    let cost = Figure::cpu(ours.usage);
    let least = Figure::given("verify", verify.verify_us_per_event);
    add("load events/s", rate(ours), rate(theirs), Bound::AtLeast(8.0));
    add("load CPU µs/event", cost, least, Bound::AtMost(2.0));
    add("load CPU µs/event", cost, Figure::cpu(theirs.usage), Bound::Open);

    let p99 = |of: &ReqFigures| Figure::measured(of.latency.p99_us as f64, of.usage);
    for (ours, theirs) in graspd.reqs.iter().zip(&builder.reqs) {
        let (faster, cheaper) = match ours.shape {
            Shape::Ids => (Bound::Open, Bound::Open),
            Shape::Thread | Shape::Kinds => (Bound::AtLeast(1.0), Bound::AtMost(0.25)),
        };
        let name = |figure| format!("req {} {figure}", ours.shape);
        let rate = |of: &ReqFigures| Figure::measured(of.events_per_second, of.usage);
        add(&name("events/s"), rate(ours), rate(theirs), faster);
        add(&name("CPU µs/event"), Figure::cpu(ours.usage), Figure::cpu(theirs.usage), cheaper);
        add(&name("p99 µs"), p99(ours), p99(theirs), Bound::Open);
    }
    for (grown, small) in graspd.grown.iter().zip(&graspd.reqs) {
        let metric = format!("req {} p99 µs, grown store", grown.shape);
        add(&metric, p99(grown), p99(small).named("small store"), Bound::AtMost(2.0));
    }

    if let (Some(ours), Some(theirs)) = (&graspd.live, &builder.live) {
        let p99 = |of: &LiveFigures| Figure::measured(of.latency.p99_us as f64, of.usage);
        add("live p99 µs", p99(ours), p99(theirs), Bound::AtMost(0.5));
        add("live CPU µs/delivery", Figure::cpu(ours.usage), Figure::cpu(theirs.usage), Bound::Open);
    }
    for (ours, theirs) in graspd.negs.iter().zip(&builder.negs) {
        let time = |of: &NegFigures| Figure::measured(of.milliseconds, of.usage);
        add(&format!("neg holding {} ms", ours.holding), time(ours), time(theirs), Bound::Open);
    }
    ratios
}
