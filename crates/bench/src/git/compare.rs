//! `git compare`: the same work for graspd and for `git http-backend` behind nginx and fcgiwrap, in one run.
//!
//! Both servers run all the time, and only one receives requests. They alternate within every measurement, so that a
//! slower phase of the machine affects both. The reference serves the same packs as graspd.

use std::env;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use futures_util::future::try_join_all;
use serde::Serialize;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::cpu_time::{CostFigures, CostMeter};
use super::generated_repo::RepositorySize;
use super::host::{GitServer, ServerKind, subfolder};
use super::memory_sampler::{MemorySampler, PeakMemory};
use super::nginx::ReferencePrograms;
use super::push::Pusher;
use super::refs::RefsRun;
use super::repo::GeneratedRepo;
use super::request::Protocol;
use super::result_table::{ComparisonTable, Samples};
use super::{fetch, generated_repo, installed_git, memory_sampler, push};
use crate::latency::Latencies;
use crate::process_usage::rounded;
use crate::ratio::{Bound, Figure};
use crate::report;

/// Repeated fetches of an unchanged repository after the first one.
const REPEATS: usize = 2;

/// Target for the memory of graspd during a large clone or push.
const MEMORY_LIMIT_KB: f64 = 100.0 * 1024.0;

/// Target for ref advertisements per second with eight connections.
const REQUESTS_PER_SECOND: f64 = 10_000.0;

/// Duration of `git push` with the previous server on an idle machine with two cores.
const INCUMBENT_PUSH_MS: f64 = 50.0;

/// Arguments of `git compare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example: bench/git-compare --graspd target/release/graspd > results.jsonl\n\n\
    The script finds or unpacks Debian's nginx and fcgiwrap and runs this command. The table of ratios is printed to \
    standard error, and each row and measurement as JSON to standard output.")]
pub struct Compare {
    /// The graspd binary
    #[arg(long, value_name = "FILE", required_unless_present = "only")]
    pub graspd: Option<PathBuf>,
    /// Programs of the reference server.
    #[command(flatten)]
    pub programs: ReferencePrograms,
    /// Measure only one server
    #[arg(long)]
    pub only: Option<ServerKind>,
    /// Measurements to run; all if omitted
    #[arg(long, value_delimiter = ',')]
    pub measure: Vec<Measure>,
    /// Folder for all data, in a temporary subfolder; use a real disk, because durable writes are measured
    #[arg(long, value_name = "DIR", default_value_os_t = env::temp_dir())]
    pub dir: PathBuf,
    /// Repository made by `git make`; one is generated if omitted
    #[arg(long, value_name = "DIR", conflicts_with_all = ["commits", "bytes"])]
    pub large: Option<PathBuf>,
    /// Size of the large repository.
    #[command(flatten)]
    pub size: RepositorySize,
    /// Periods of each server in each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Seconds of each period with ref advertisements
    #[arg(long, default_value_t = 2)]
    pub seconds: u64,
    /// Connections that request ref advertisements
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Refs of the repository with many refs
    #[arg(long, default_value_t = 1000)]
    pub refs: u64,
    /// Clients that push at the same time
    #[arg(long, default_value_t = 4)]
    pub clients: u64,
    /// Pushes of each client in each period
    #[arg(long, default_value_t = 25)]
    pub pushes: u64,
}

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Ref advertisements per second.
    Refs,
    /// Fetch request of a full clone.
    Fetch,
    /// Complete `git clone`.
    Clone,
    /// Pushes of one commit.
    Push,
}

/// A timed git command.
#[derive(Debug, Clone, Copy, Serialize)]
struct TimedStep {
    milliseconds: f64,
    #[serde(flatten)]
    cost: CostFigures,
    #[serde(flatten)]
    memory: Option<PeakMemory>,
}

/// A comparison in progress.
struct ComparisonRun<'a> {
    plan: &'a Compare,
    folder: &'a Path,
    servers: Vec<Arc<GitServer>>,
    table: ComparisonTable,
}

impl Compare {
    /// Measures and prints the ratios.
    pub async fn run(&self) -> Result<()> {
        let folder = TempDir::with_prefix_in("grasp-bench-git-", &self.dir)
            .with_context(|| format!("cannot create a temporary folder in {}", self.dir.display()))?;
        let disk = memory_sampler::measure_fsync(folder.path())?;
        report::print("git disk", "none", &disk)?;
        let mut run =
            ComparisonRun { plan: self, folder: folder.path(), servers: Vec::new(), table: ComparisonTable::default() };
        if self.only != Some(ServerKind::Reference) {
            let binary = self.graspd.as_ref().context("--graspd is required")?;
            let binary = binary.canonicalize().with_context(|| format!("cannot find {}", binary.display()))?;
            run.servers.push(Arc::new(GitServer::start_graspd(&binary, &subfolder(folder.path(), "graspd")?, &[])?));
        }
        if self.only != Some(ServerKind::Graspd) {
            let place = subfolder(folder.path(), "reference")?;
            run.servers.push(Arc::new(GitServer::start_reference(&self.programs, &place).await?));
        }
        let is_selected = |measure| self.measure.is_empty() || self.measure.contains(&measure);
        if is_selected(Measure::Refs) {
            run.refs().await?;
        }
        if is_selected(Measure::Fetch) || is_selected(Measure::Clone) {
            let mut large = run.large().await?;
            if is_selected(Measure::Fetch) {
                run.fetches(&mut large).await?;
            }
            if is_selected(Measure::Clone) {
                run.clones(&mut large).await?;
            }
        }
        if is_selected(Measure::Push) {
            run.pushes().await?;
        }
        let version = installed_git::run(installed_git::git(folder.path()).arg("--version"))?;
        let (p50, p99) = (disk.p50_us, disk.p99_us);
        writeln!(stderr().lock(), "\n{version}; write and fsync of 4 KiB: p50 {p50} µs, p99 {p99} µs")?;
        run.table.print()
    }
}

impl ComparisonRun<'_> {
    /// Publishes a repository on every server, with the same packs.
    async fn announce_and_push(&self, repo: &mut GeneratedRepo) -> Result<()> {
        for server in &self.servers {
            repo.announce_and_push(server).await?;
        }
        self.wait_until_idle().await?;
        repo.link_reference_packs(&self.servers)
    }

    /// Waits until all servers are idle, so that background work of one is not included in the figures of another.
    async fn wait_until_idle(&self) -> Result<()> {
        try_join_all(self.servers.iter().map(|server| server.wait_until_idle())).await?;
        Ok(())
    }

    async fn refs(&mut self) -> Result<()> {
        let (small, many) = (self.folder.join("small"), self.folder.join("many"));
        generated_repo::single_commit(&small, self.plan.size.seed)?;
        generated_repo::many_refs(&many, self.plan.size.seed, self.plan.refs)?;
        for (name, source) in [("small", small), ("many", many)] {
            let mut repo = GeneratedRepo::new(self.plan.size.seed, name, &source)?;
            self.announce_and_push(&mut repo).await?;
            for protocol in [Protocol::V0, Protocol::V2] {
                let Compare { connections, seconds, .. } = *self.plan;
                let run = RefsRun { connections, seconds, protocol };
                let label = format!("info/refs, {} refs, {protocol}", repo.refs.len());
                let mut seen: Vec<[Samples; 2]> = self.servers.iter().map(|_| Default::default()).collect();
                for _ in 0..self.plan.rounds {
                    for (server, [rate, cpu]) in self.servers.iter().zip(&mut seen) {
                        self.wait_until_idle().await?;
                        let figures = run.run(&server.url(&repo.path()), &server.cpu_account).await?;
                        report::print(&format!("git {label}"), &server.kind.to_string(), &figures)?;
                        rate.add(figures.requests_per_second, figures.cost.foreign_cores);
                        cpu.add(figures.cpu_us_per_request, figures.cost.foreign_cores);
                    }
                }
                for (server, [rate, cpu]) in self.servers.iter().zip(&seen) {
                    self.table.record(server.kind, &format!("{label}, /s"), Bound::AtLeast(20.0), rate);
                    self.table.record(server.kind, &format!("{label}, CPU µs"), Bound::Unset, cpu);
                    if server.kind == ServerKind::Graspd {
                        let wanted = Figure::fixed("wanted", REQUESTS_PER_SECOND);
                        // At this rate, all refs would be one gigabyte per second.
                        let bound =
                            if name == "many" && protocol == Protocol::V0 { Bound::Unset } else { Bound::AtLeast(1.0) };
                        self.table.record_with_limit(&format!("{label}, /s"), rate, wanted, bound);
                    }
                }
            }
        }
        Ok(())
    }

    /// Generates the large repository and pushes it to every server. The push is also measured.
    async fn large(&mut self) -> Result<GeneratedRepo> {
        let source = match &self.plan.large {
            Some(made) => made.canonicalize().with_context(|| format!("cannot find {}", made.display()))?,
            None => {
                let source = self.folder.join("large");
                let (place, size) = (source.clone(), self.plan.size);
                let made = spawn_blocking(move || generated_repo::large_repository(&place, size)).await??;
                report::print("git make", "none", &made)?;
                source
            }
        };
        let mut repo = GeneratedRepo::new(self.plan.size.seed, "large", &source)?;
        for server in &self.servers {
            repo.prepare(server).await?;
            self.wait_until_idle().await?;
            let timed = timed(server, repo.push(server)).await?;
            report::print("git push large", &server.kind.to_string(), &timed)?;
            record_memory(&mut self.table, "push large", timed.memory);
            self.table.record(server.kind, "push large, ms", Bound::Unset, &Samples::one(timed.milliseconds));
        }
        self.wait_until_idle().await?;
        repo.link_reference_packs(&self.servers)?;
        Ok(repo)
    }

    async fn fetches(&mut self, repo: &mut GeneratedRepo) -> Result<()> {
        let mut seen: Vec<[FetchSamples; 2]> = self.servers.iter().map(|_| Default::default()).collect();
        let samplers: Vec<_> = self.servers.iter().map(|server| server.process().map(MemorySampler::start)).collect();
        for round in 0..self.plan.rounds {
            repo.add_tag(round, &self.servers).await?;
            for time in 0..=REPEATS {
                for (server, samples) in self.servers.iter().zip(&mut seen) {
                    let result = if time == 0 { "git fetch first" } else { "git fetch again" };
                    self.wait_until_idle().await?;
                    let figures = fetch::run(&server.url(&repo.path()), &server.cpu_account).await?;
                    report::print(result, &server.kind.to_string(), &figures)?;
                    samples[time.min(1)].add(&figures);
                }
            }
        }
        for sampler in samplers.into_iter().flatten() {
            let peak = sampler.stop()?;
            report::print("git fetch memory", &ServerKind::Graspd.to_string(), &peak)?;
            record_memory(&mut self.table, "fetch", Some(peak));
        }
        for (server, [first, again]) in self.servers.iter().zip(&seen) {
            first.record(&mut self.table, server.kind, "fetch first", Bound::AtMost(1.05), Bound::Unset);
            again.record(&mut self.table, server.kind, "fetch again", Bound::AtMost(0.3), Bound::AtMost(0.1));
        }
        Ok(())
    }

    async fn clones(&mut self, repo: &mut GeneratedRepo) -> Result<()> {
        // A number that fetches do not use.
        repo.add_tag(self.plan.rounds, &self.servers).await?;
        let mut seen: Vec<[Samples; 2]> = self.servers.iter().map(|_| Default::default()).collect();
        for round in 0..=self.plan.rounds {
            for (server, samples) in self.servers.iter().zip(&mut seen) {
                self.wait_until_idle().await?;
                let target = self.folder.join("clone");
                let mut git = installed_git::git(self.folder);
                git.args(["clone", "--quiet", "--bare", &server.url(&repo.path()).to_string()]).arg(&target);
                let timed = timed(server, installed_git::run_timed(git)).await?;
                std::fs::remove_dir_all(target)?;
                let result = if round == 0 { "git clone first" } else { "git clone again" };
                report::print(result, &server.kind.to_string(), &timed)?;
                record_memory(&mut self.table, "clone", timed.memory.filter(|_| round == 0));
                samples[round.min(1) as usize].add(timed.milliseconds, timed.cost.foreign_cores);
            }
        }
        for (server, [first, again]) in self.servers.iter().zip(&seen) {
            self.table.record(server.kind, "clone first, ms", Bound::AtMost(1.05), first);
            self.table.record(server.kind, "clone again, ms", Bound::AtMost(1.0), again);
        }
        Ok(())
    }

    async fn pushes(&mut self) -> Result<()> {
        let commits = 1 + self.plan.rounds * self.plan.pushes;
        let mut pushers = Vec::new();
        for server in &self.servers {
            let mut clients = Vec::new();
            for number in 1..=self.plan.clients {
                clients.push(Pusher::open(server, self.folder, number, commits).await?);
            }
            pushers.push((clients, Latencies::default(), Samples::default()));
        }
        for _ in 0..self.plan.rounds {
            for (server, (clients, latencies, cpu)) in self.servers.iter().zip(&mut pushers) {
                self.wait_until_idle().await?;
                let (figures, times) = push::round(clients, server, self.plan.pushes as usize).await?;
                report::print("git push", &server.kind.to_string(), &figures)?;
                latencies.absorb(times);
                cpu.add(figures.cpu_ms_per_push, figures.cost.foreign_cores);
            }
        }
        for (server, (_, latencies, cpu)) in self.servers.iter().zip(pushers) {
            let times = latencies.summarise();
            let with = |micros: u64| cpu.with(micros as f64 / 1e3);
            self.table.record(server.kind, "push p50, ms", Bound::AtMost(1.0), &with(times.p50_us));
            self.table.record(server.kind, "push p99, ms", Bound::Unset, &with(times.p99_us));
            self.table.record(server.kind, "push CPU, ms", Bound::Unset, &cpu);
            if server.kind == ServerKind::Graspd {
                let incumbent = Figure::fixed("incumbent", INCUMBENT_PUSH_MS);
                self.table.record_with_limit("push p50, ms", &with(times.p50_us), incumbent, Bound::AtMost(0.8));
            }
        }
        Ok(())
    }
}

/// Samples of one kind of fetch from one server.
#[derive(Debug, Default)]
struct FetchSamples {
    first_pack: Samples,
    last_byte: Samples,
    cpu: Samples,
    objects: Samples,
}

impl FetchSamples {
    fn add(&mut self, figures: &fetch::FetchFigures) {
        let foreign = figures.cost.foreign_cores;
        self.first_pack.add(figures.first_pack_ms, foreign);
        self.last_byte.add(figures.last_byte_ms, foreign);
        self.cpu.add(figures.cost.server_cpu * 1e3, foreign);
        // The number of objects does not depend on the load of the machine.
        self.objects.add(f64::from(figures.objects), 0.0);
    }

    fn record(&self, table: &mut ComparisonTable, kind: ServerKind, name: &str, time: Bound, cpu: Bound) {
        table.record(kind, &format!("{name}, ms to first pack byte"), Bound::Unset, &self.first_pack);
        table.record(kind, &format!("{name}, ms to last byte"), time, &self.last_byte);
        table.record(kind, &format!("{name}, CPU ms"), cpu, &self.cpu);
        table.record(kind, &format!("{name}, objects"), Bound::AtLeast(1.0), &self.objects);
    }
}

fn record_memory(table: &mut ComparisonTable, name: &str, peak: Option<PeakMemory>) {
    if let Some(peak) = peak {
        let limit = Figure::fixed("limit", MEMORY_LIMIT_KB);
        table.record_with_limit(
            &format!("{name}, RssAnon KiB"),
            &Samples::one(peak.rss_anon_kb as f64),
            limit,
            Bound::AtMost(1.0),
        );
        table.record_with_limit(&format!("{name}, VmHWM KiB"), &Samples::one(peak.ever_kb as f64), limit, Bound::Unset);
    }
}

/// Measures the duration and cost of a step and the memory of the server.
async fn timed<T>(server: &GitServer, step: impl Future<Output = Result<T>>) -> Result<TimedStep> {
    let sampler = server.process().map(MemorySampler::start);
    let cost = CostMeter::start(&server.cpu_account)?;
    let started = Instant::now();
    step.await?;
    let milliseconds = rounded(started.elapsed().as_secs_f64() * 1e3);
    Ok(TimedStep { milliseconds, cost: cost.stop()?, memory: sampler.map(MemorySampler::stop).transpose()? })
}
