//! `git compare`: the same work for graspd and for `git http-backend` behind nginx and fcgiwrap, in one run.
//!
//! Both run all the time, and only one is asked at a time. They take turns within every measurement, so that whatever
//! slows the machine down for a while slows both. The reference serves the very packs that graspd serves.

use std::env;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use futures_util::future::try_join_all;
use serde::Serialize;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::host::{Host, Side, subfolder};
use super::ledger::{Cost, Spent};
use super::make::Size;
use super::nginx::Programs;
use super::push::Pusher;
use super::refs::Refs;
use super::repo::Repo;
use super::request::Protocol;
use super::sheet::{Samples, Sheet};
use super::watch::{Peak, Watch};
use super::{fetch, make, push, stock, watch};
use crate::latency::Latencies;
use crate::process_usage::rounded;
use crate::ratio::{Bound, Figure};
use crate::report;

/// Fetches of an unchanged repository after the first one.
const AGAIN: usize = 2;

/// What graspd may hold in memory during a large clone or push.
const MEMORY_LIMIT_KB: f64 = 100.0 * 1024.0;

/// What an advertisement should reach at eight connections, whatever the reference does.
const REQUESTS_PER_SECOND: f64 = 10_000.0;

/// What `git push` took of the incumbent on a quiet machine with two cores.
const INCUMBENT_PUSH_MS: f64 = 50.0;

/// What to compare, and how much of it.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example: bench/git-compare --graspd target/release/graspd > results.jsonl\n\n\
    The script finds or unpacks Debian's nginx and fcgiwrap and calls this. The table of ratios goes to standard error, \
    every line of it and of what it was made from also as JSON to standard output.")]
pub struct Compare {
    /// The graspd binary
    #[arg(long, value_name = "FILE", required_unless_present = "only")]
    pub graspd: Option<PathBuf>,
    /// The programs of the reference.
    #[command(flatten)]
    pub programs: Programs,
    /// Measure one server alone
    #[arg(long)]
    pub only: Option<Side>,
    /// What to measure; everything unless given
    #[arg(long, value_delimiter = ',')]
    pub measure: Vec<Measure>,
    /// Where everything is put, in a directory that is removed afterwards; a real disk, or "durable" means little
    #[arg(long, value_name = "DIR", default_value_os_t = env::temp_dir())]
    pub dir: PathBuf,
    /// A repository that `git make` has made; one is made unless given
    #[arg(long, value_name = "DIR", conflicts_with_all = ["commits", "bytes"])]
    pub large: Option<PathBuf>,
    /// How large the large repository becomes.
    #[command(flatten)]
    pub size: Size,
    /// Turns of each server in each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Seconds of each turn with advertisements
    #[arg(long, default_value_t = 2)]
    pub seconds: u64,
    /// Connections that ask for advertisements
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Refs of the repository that has many
    #[arg(long, default_value_t = 1000)]
    pub refs: u64,
    /// Clients that push at the same time
    #[arg(long, default_value_t = 4)]
    pub clients: u64,
    /// Pushes of each client in each turn
    #[arg(long, default_value_t = 25)]
    pub pushes: u64,
}

/// One of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Advertisements per second.
    Refs,
    /// The fetch request of a full clone.
    Fetch,
    /// The whole of `git clone`.
    Clone,
    /// Pushes of one commit.
    Push,
}

/// A step of a real git, timed.
#[derive(Debug, Clone, Copy, Serialize)]
struct Timed {
    milliseconds: f64,
    #[serde(flatten)]
    spent: Spent,
    #[serde(flatten)]
    memory: Option<Peak>,
}

/// A run under way.
struct Run<'a> {
    plan: &'a Compare,
    folder: &'a Path,
    hosts: Vec<Arc<Host>>,
    sheet: Sheet,
}

impl Compare {
    /// Measures and prints the ratios.
    pub async fn run(&self) -> Result<()> {
        let folder = TempDir::with_prefix_in("grasp-bench-git-", &self.dir)
            .with_context(|| format!("cannot put anything into {}", self.dir.display()))?;
        let disk = watch::disk(folder.path())?;
        report::print("git disk", "none", &disk)?;
        let mut run = Run { plan: self, folder: folder.path(), hosts: Vec::new(), sheet: Sheet::default() };
        if self.only != Some(Side::Reference) {
            let binary = self.graspd.as_ref().context("which graspd? give --graspd")?;
            let binary = binary.canonicalize().with_context(|| format!("no {}", binary.display()))?;
            run.hosts.push(Arc::new(Host::graspd(&binary, &subfolder(folder.path(), "graspd")?)?));
        }
        if self.only != Some(Side::Graspd) {
            let place = subfolder(folder.path(), "reference")?;
            run.hosts.push(Arc::new(Host::reference(&self.programs, &place).await?));
        }
        let wants = |measure| self.measure.is_empty() || self.measure.contains(&measure);
        if wants(Measure::Refs) {
            run.refs().await?;
        }
        if wants(Measure::Fetch) || wants(Measure::Clone) {
            let mut large = run.large().await?;
            if wants(Measure::Fetch) {
                run.fetches(&mut large).await?;
            }
            if wants(Measure::Clone) {
                run.clones(&mut large).await?;
            }
        }
        if wants(Measure::Push) {
            run.pushes().await?;
        }
        let version = stock::run(stock::git(folder.path()).arg("--version"))?;
        let (p50, p99) = (disk.p50_us, disk.p99_us);
        writeln!(stderr().lock(), "\n{version}; write and fsync of 4 KiB: p50 {p50} µs, p99 {p99} µs")?;
        run.sheet.print()
    }
}

impl Run<'_> {
    /// Brings a repository onto every server, and the same packs onto all of them.
    async fn enter(&self, repo: &mut Repo) -> Result<()> {
        for host in &self.hosts {
            repo.enter(host).await?;
        }
        self.quiet().await?;
        repo.mirror(&self.hosts)
    }

    /// Waits until no server does anything: what one left behind must not be in the figures of another.
    async fn quiet(&self) -> Result<()> {
        try_join_all(self.hosts.iter().map(|host| host.settle())).await?;
        Ok(())
    }

    async fn refs(&mut self) -> Result<()> {
        let (small, many) = (self.folder.join("small"), self.folder.join("many"));
        make::small(&small, self.plan.size.seed)?;
        make::many_refs(&many, self.plan.size.seed, self.plan.refs)?;
        let time = Duration::from_secs(self.plan.seconds);
        for (name, source) in [("small", small), ("many", many)] {
            let mut repo = Repo::new(self.plan.size.seed, name, &source)?;
            self.enter(&mut repo).await?;
            for protocol in [Protocol::V0, Protocol::V2] {
                let run = Refs { connections: self.plan.connections, time, protocol };
                let label = format!("info/refs, {} refs, {protocol}", repo.refs.len());
                let mut seen: Vec<[Samples; 2]> = self.hosts.iter().map(|_| Default::default()).collect();
                for _ in 0..self.plan.rounds {
                    for (host, [rate, cpu]) in self.hosts.iter().zip(&mut seen) {
                        self.quiet().await?;
                        let figures = run.run(&host.url(&repo.path()), &host.ledger).await?;
                        report::print(&format!("git {label}"), &host.side.to_string(), &figures)?;
                        rate.add(figures.requests_per_second, figures.spent.foreign_cores);
                        cpu.add(figures.cpu_us_per_request, figures.spent.foreign_cores);
                    }
                }
                for (host, [rate, cpu]) in self.hosts.iter().zip(&seen) {
                    self.sheet.note(host.side, &format!("{label}, /s"), Bound::AtLeast(20.0), rate);
                    self.sheet.note(host.side, &format!("{label}, CPU µs"), Bound::Open, cpu);
                    if host.side == Side::Graspd {
                        let wanted = Figure::given("wanted", REQUESTS_PER_SECOND);
                        // All refs at once are a gigabyte a second at that rate.
                        let bound =
                            if name == "many" && protocol == Protocol::V0 { Bound::Open } else { Bound::AtLeast(1.0) };
                        self.sheet.hold(&format!("{label}, /s"), rate, wanted, bound);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the large repository and pushes it to every server; that is a measurement, too.
    async fn large(&mut self) -> Result<Repo> {
        let source = match &self.plan.large {
            Some(made) => made.canonicalize().with_context(|| format!("no {}", made.display()))?,
            None => {
                let source = self.folder.join("large");
                let (place, size) = (source.clone(), self.plan.size);
                let made = spawn_blocking(move || make::large(&place, size)).await??;
                report::print("git make", "none", &made)?;
                source
            }
        };
        let mut repo = Repo::new(self.plan.size.seed, "large", &source)?;
        for host in &self.hosts {
            repo.open(host).await?;
            self.quiet().await?;
            let timed = timed(host, repo.push(host)).await?;
            report::print("git push large", &host.side.to_string(), &timed)?;
            note_memory(&mut self.sheet, "push large", timed.memory);
            self.sheet.note(host.side, "push large, ms", Bound::Open, &Samples::one(timed.milliseconds));
        }
        self.quiet().await?;
        repo.mirror(&self.hosts)?;
        Ok(repo)
    }

    async fn fetches(&mut self, repo: &mut Repo) -> Result<()> {
        let mut seen: Vec<[FetchSamples; 2]> = self.hosts.iter().map(|_| Default::default()).collect();
        let watches: Vec<_> = self.hosts.iter().map(|host| host.process().map(Watch::start)).collect();
        for round in 0..self.plan.rounds {
            repo.touch(round, &self.hosts).await?;
            for time in 0..=AGAIN {
                for (host, samples) in self.hosts.iter().zip(&mut seen) {
                    let result = if time == 0 { "git fetch first" } else { "git fetch again" };
                    self.quiet().await?;
                    let figures = fetch::run(&host.url(&repo.path()), &host.ledger).await?;
                    report::print(result, &host.side.to_string(), &figures)?;
                    samples[time.min(1)].add(&figures);
                }
            }
        }
        for watch in watches.into_iter().flatten() {
            let peak = watch.stop()?;
            report::print("git fetch memory", &Side::Graspd.to_string(), &peak)?;
            note_memory(&mut self.sheet, "fetch", Some(peak));
        }
        for (host, [first, again]) in self.hosts.iter().zip(&seen) {
            first.note(&mut self.sheet, host.side, "fetch first", Bound::AtMost(1.05), Bound::Open);
            again.note(&mut self.sheet, host.side, "fetch again", Bound::AtMost(0.3), Bound::AtMost(0.1));
        }
        Ok(())
    }

    async fn clones(&mut self, repo: &mut Repo) -> Result<()> {
        // Not one of the numbers that fetches use.
        repo.touch(self.plan.rounds, &self.hosts).await?;
        let mut seen: Vec<[Samples; 2]> = self.hosts.iter().map(|_| Default::default()).collect();
        for round in 0..=self.plan.rounds {
            for (host, samples) in self.hosts.iter().zip(&mut seen) {
                self.quiet().await?;
                let target = self.folder.join("clone");
                let mut git = stock::git(self.folder);
                git.args(["clone", "--quiet", "--bare", &host.url(&repo.path()).to_string()]).arg(&target);
                let cloning = async { spawn_blocking(move || stock::run(&mut git)).await? };
                let timed = timed(host, cloning).await?;
                std::fs::remove_dir_all(target)?;
                let result = if round == 0 { "git clone first" } else { "git clone again" };
                report::print(result, &host.side.to_string(), &timed)?;
                note_memory(&mut self.sheet, "clone", timed.memory.filter(|_| round == 0));
                samples[round.min(1) as usize].add(timed.milliseconds, timed.spent.foreign_cores);
            }
        }
        for (host, [first, again]) in self.hosts.iter().zip(&seen) {
            self.sheet.note(host.side, "clone first, ms", Bound::AtMost(1.05), first);
            self.sheet.note(host.side, "clone again, ms", Bound::AtMost(1.0), again);
        }
        Ok(())
    }

    async fn pushes(&mut self) -> Result<()> {
        let commits = 1 + self.plan.rounds * self.plan.pushes;
        let mut pushers = Vec::new();
        for host in &self.hosts {
            let mut clients = Vec::new();
            for number in 1..=self.plan.clients {
                clients.push(Pusher::open(host, self.folder, number, commits).await?);
            }
            pushers.push((clients, Latencies::default(), Samples::default()));
        }
        for _ in 0..self.plan.rounds {
            for (host, (clients, latencies, cpu)) in self.hosts.iter().zip(&mut pushers) {
                self.quiet().await?;
                let (figures, times) = push::round(clients, host, self.plan.pushes as usize).await?;
                report::print("git push", &host.side.to_string(), &figures)?;
                latencies.absorb(times);
                cpu.add(figures.cpu_ms_per_push, figures.spent.foreign_cores);
            }
        }
        for (host, (_, latencies, cpu)) in self.hosts.iter().zip(pushers) {
            let times = latencies.summarise();
            let with = |micros: u64| cpu.with(micros as f64 / 1e3);
            self.sheet.note(host.side, "push p50, ms", Bound::AtMost(1.0), &with(times.p50_us));
            self.sheet.note(host.side, "push p99, ms", Bound::Open, &with(times.p99_us));
            self.sheet.note(host.side, "push CPU, ms", Bound::Open, &cpu);
            if host.side == Side::Graspd {
                let incumbent = Figure::given("incumbent", INCUMBENT_PUSH_MS);
                self.sheet.hold("push p50, ms", &with(times.p50_us), incumbent, Bound::AtMost(0.8));
            }
        }
        Ok(())
    }
}

/// Fetches of one kind from one server.
#[derive(Debug, Default)]
struct FetchSamples {
    first_pack: Samples,
    last_byte: Samples,
    cpu: Samples,
    objects: Samples,
}

impl FetchSamples {
    fn add(&mut self, figures: &fetch::FetchFigures) {
        let foreign = figures.spent.foreign_cores;
        self.first_pack.add(figures.first_pack_ms, foreign);
        self.last_byte.add(figures.last_byte_ms, foreign);
        self.cpu.add(figures.spent.server_cpu * 1e3, foreign);
        // A load on the machine does not change their number.
        self.objects.add(f64::from(figures.objects), 0.0);
    }

    fn note(&self, sheet: &mut Sheet, side: Side, name: &str, time: Bound, cpu: Bound) {
        sheet.note(side, &format!("{name}, ms to first pack byte"), Bound::Open, &self.first_pack);
        sheet.note(side, &format!("{name}, ms to last byte"), time, &self.last_byte);
        sheet.note(side, &format!("{name}, CPU ms"), cpu, &self.cpu);
        sheet.note(side, &format!("{name}, objects"), Bound::AtLeast(1.0), &self.objects);
    }
}

fn note_memory(sheet: &mut Sheet, name: &str, peak: Option<Peak>) {
    if let Some(peak) = peak {
        let limit = Figure::given("limit", MEMORY_LIMIT_KB);
        sheet.hold(&format!("{name}, RssAnon KiB"), &Samples::one(peak.rss_anon_kb as f64), limit, Bound::AtMost(1.0));
        sheet.hold(&format!("{name}, VmHWM KiB"), &Samples::one(peak.ever_kb as f64), limit, Bound::Open);
    }
}

/// Times a step, and watches the memory of the server meanwhile.
async fn timed<T>(host: &Host, step: impl Future<Output = Result<T>>) -> Result<Timed> {
    let watch = host.process().map(Watch::start);
    let cost = Cost::start(&host.ledger)?;
    let started = Instant::now();
    step.await?;
    let milliseconds = rounded(started.elapsed().as_secs_f64() * 1e3);
    Ok(Timed { milliseconds, spent: cost.stop()?, memory: watch.map(Watch::stop).transpose()? })
}
