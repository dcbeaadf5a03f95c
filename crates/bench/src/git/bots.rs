//! `bots`: crawlers that request web pages while users push and clone. Measures the cost of the pages and the effect on
//! users.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::client::Client;
use super::host::{GitServer, subfolder};
use super::push::Pusher;
use super::repo::GeneratedRepo;
use super::{generated_repo, installed_git};
use crate::latency::percentile;
use crate::process_usage::rounded;
use crate::progress::Progress;
use crate::random::Random;
use crate::sync::result_table;
use crate::sync::result_table::{ResultRow, print_progress};
use crate::{machine, report};

/// Number of crawlers, each from its own network.
const BOTS: u64 = 8;

/// Requests that a crawler sends on one connection before it opens another.
const PER_CONNECTION: u64 = 20;

/// Number of repositories that are pushed to, in rotation.
const PUSHED_REPOSITORIES: u64 = 10;

/// Duration of the idle measurement.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Length of the alternating periods without and with crawlers. Short, because the speed of the machine varies over
/// minutes.
const PERIOD: Duration = Duration::from_secs(15);

/// Target for the CPU time of pages, in percent of one core.
const PAGES_TARGET: f64 = 10.0;

/// Target for the ratio of push and clone durations with and without crawlers.
const RATIO_TARGET: f64 = 1.1;

/// Arguments of `bots`.
#[derive(Debug, Clone, Args)]
pub struct BotsArgs {
    /// The graspd binary
    #[arg(long, value_name = "FILE")]
    pub graspd: PathBuf,
    /// Folder for all data, in a temporary subfolder; use a real disk, because durable writes are measured
    #[arg(long, value_name = "DIR", default_value_os_t = env::temp_dir())]
    pub dir: PathBuf,
    /// Minutes with crawlers, and as many without, in alternating periods of fifteen seconds
    #[arg(long, default_value_t = 2.0)]
    pub minutes: f64,
    /// Requests per second of all crawlers together
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub per_second: u64,
    /// Pushes per minute
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub pushes: u64,
    /// Clones per minute
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub clones: u64,
    /// Repositories with web pages
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub repositories: u64,
}

/// Summary of durations in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct DurationSummary {
    count: usize,
    p50_ms: f64,
    p95_ms: f64,
}

impl DurationSummary {
    fn new(times: &[Duration]) -> Self {
        let mut micros: Vec<u64> = times.iter().map(|time| time.as_micros() as u64).collect();
        micros.sort_unstable();
        let at = |percent| rounded(percentile(&micros, percent) as f64 / 1e3);
        Self { count: micros.len(), p50_ms: at(50.0), p95_ms: at(95.0) }
    }
}

/// Totals of one or several periods.
#[derive(Debug, Default)]
struct PeriodTotals {
    pushes: Vec<Duration>,
    clones: Vec<Duration>,
    pages: Vec<Duration>,
    /// Responses to crawlers by status code.
    statuses: BTreeMap<u16, u64>,
    seconds: f64,
    /// CPU time of the server and its git processes.
    cpu: Duration,
    /// CPU time of the server process only.
    own_cpu: Duration,
    /// CPU time of all other processes on the machine, including this program.
    others: Duration,
}

#[derive(Debug, Serialize)]
struct BotsFigures<'a> {
    turn: &'static str,
    seconds: f64,
    pushes: DurationSummary,
    clones: DurationSummary,
    pages: DurationSummary,
    statuses: &'a BTreeMap<u16, u64>,
    /// CPU time of the server and its git processes, in percent of one core.
    cpu_percent: f64,
    /// CPU time of the server process only, in percent of one core.
    own_cpu_percent: f64,
    /// Cores used by all other processes, including this program and its git processes.
    other_cores: f64,
}

impl PeriodTotals {
    fn percent(&self, time: Duration) -> f64 {
        rounded(100.0 * time.as_secs_f64() / self.seconds.max(1e-9))
    }

    fn print(&self, turn: &'static str) -> Result<()> {
        let figures = BotsFigures {
            turn,
            seconds: rounded(self.seconds),
            pushes: DurationSummary::new(&self.pushes),
            clones: DurationSummary::new(&self.clones),
            pages: DurationSummary::new(&self.pages),
            statuses: &self.statuses,
            cpu_percent: self.percent(self.cpu),
            own_cpu_percent: self.percent(self.own_cpu),
            other_cores: rounded(self.others.as_secs_f64() / self.seconds.max(1e-9)),
        };
        report::print("bots", "graspd", &figures)
    }

    fn absorb(&mut self, other: Self) {
        self.pushes.extend(other.pushes);
        self.clones.extend(other.clones);
        self.pages.extend(other.pages);
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.seconds += other.seconds;
        self.cpu += other.cpu;
        self.own_cpu += other.own_cpu;
        self.others += other.others;
    }
}

/// The clients that are active in a period.
#[derive(Debug, Clone, Copy)]
struct ActiveClients {
    users: bool,
    crawlers: bool,
}

/// A running server with its repositories and clients.
struct BotsRun {
    args: BotsArgs,
    server: Arc<GitServer>,
    /// Paths of the repositories with web pages.
    paths: Arc<[String]>,
    pushers: Vec<Pusher>,
    /// Number of pushes so far.
    pushed: usize,
    /// Number of clones so far. Each has its own folder.
    cloned: usize,
    clones: PathBuf,
}

/// Runs the measurement.
pub async fn run(args: BotsArgs) -> Result<()> {
    let folder = TempDir::with_prefix_in("grasp-bench-bots-", &args.dir)
        .with_context(|| format!("cannot create a temporary folder in {}", args.dir.display()))?;
    let mut run = BotsRun::prepare(args, folder.path()).await?;
    let rounds = (run.args.minutes * 60.0 / PERIOD.as_secs_f64()).ceil().max(1.0) as u64;
    run.server.wait_until_idle().await?;

    let rest = run.run_period(IDLE_TIME, ActiveClients { users: false, crawlers: false }).await?;
    rest.print("idle")?;
    let alone = run.run_period(2 * PERIOD, ActiveClients { users: false, crawlers: true }).await?;
    alone.print("crawlers only")?;
    let (mut quiet, mut crawled) = (PeriodTotals::default(), PeriodTotals::default());
    for _ in 0..rounds {
        quiet.absorb(run.run_period(PERIOD, ActiveClients { users: true, crawlers: false }).await?);
        crawled.absorb(run.run_period(PERIOD, ActiveClients { users: true, crawlers: true }).await?);
    }
    quiet.print("users only")?;
    crawled.print("users and crawlers")?;

    let mut rows = vec![
        ResultRow::new(
            "pages, % of one core (crawlers only, minus idle)",
            alone.percent(alone.cpu) - rest.percent(rest.cpu),
        )
        .at_most(PAGES_TARGET),
        ResultRow::new(
            "pages, % of one core (users and crawlers, minus users only)",
            crawled.percent(crawled.cpu) - quiet.percent(quiet.cpu),
        ),
        ResultRow::new("pages/s", crawled.pages.len() as f64 / crawled.seconds),
        ResultRow::new("pages p50, ms", DurationSummary::new(&crawled.pages).p50_ms),
        ResultRow::new("pages p95, ms", DurationSummary::new(&crawled.pages).p95_ms),
    ];
    for (what, quiet, crawled) in [("push", &quiet.pushes, &crawled.pushes), ("clone", &quiet.clones, &crawled.clones)]
    {
        let (quiet, crawled) = (DurationSummary::new(quiet), DurationSummary::new(crawled));
        rows.push(ResultRow::new(format!("{what} p50 without crawlers, ms"), quiet.p50_ms));
        rows.push(ResultRow::new(format!("{what} p50 with crawlers, ms"), crawled.p50_ms));
        rows.push(
            ResultRow::new(format!("{what} p50, ratio"), crawled.p50_ms / quiet.p50_ms.max(1e-3)).at_most(RATIO_TARGET),
        );
        rows.push(ResultRow::new(format!("{what} p95 without crawlers, ms"), quiet.p95_ms));
        rows.push(ResultRow::new(format!("{what} p95 with crawlers, ms"), crawled.p95_ms));
        rows.push(ResultRow::new(format!("{what} p95, ratio"), crawled.p95_ms / quiet.p95_ms.max(1e-3)));
    }
    result_table::print(&rows)
}

impl BotsRun {
    async fn prepare(args: BotsArgs, folder: &Path) -> Result<Self> {
        // Crawlers connect through a proxy that reports their addresses.
        let settings = [("NGIT_TRUSTED_PROXY_CIDRS", "127.0.0.0/8")];
        let server = GitServer::start_graspd(&args.graspd, &subfolder(folder, "server")?, &settings)?;
        let source = folder.join("source");
        generated_repo::linear_history(&source, 1, 50)?;
        let progress = Progress::start("repositories", args.repositories + PUSHED_REPOSITORIES);
        let mut paths = Vec::new();
        for number in 0..args.repositories {
            let mut repo = GeneratedRepo::new(1_000 + number, &format!("project-{number}"), &source)?;
            repo.announce_and_push(&server).await?;
            paths.push(repo.path());
            progress.advance(1);
        }
        // Two kinds of periods with pushes, and the first push.
        let each = (2.0 * args.minutes * args.pushes as f64 / PUSHED_REPOSITORIES as f64).ceil() as u64 + 2;
        let mut pushers = Vec::new();
        for number in 0..PUSHED_REPOSITORIES {
            pushers.push(Pusher::open(&server, folder, 1 + number, each).await?);
            progress.advance(1);
        }
        let (server, clones) = (Arc::new(server), subfolder(folder, "clones")?);
        Ok(Self { args, server, paths: paths.into(), pushers, pushed: 0, cloned: 0, clones })
    }

    async fn run_period(&mut self, length: Duration, clients: ActiveClients) -> Result<PeriodTotals> {
        let process = self.server.process().context("graspd has a process")?;
        let before = (self.server.cpu_account.cpu_time()?, process.cpu_time()?, machine::busy_time()?);
        let began = Instant::now();
        let end = began + length;
        let bots: Vec<_> =
            if clients.crawlers { (0..BOTS).map(|bot| self.crawl(bot, began, end)).collect() } else { Vec::new() };
        let mut totals = PeriodTotals::default();
        if clients.users {
            // Offset, so that clones do not always coincide with pushes.
            let cloning = self.clone_until(began + Duration::from_millis(400), end);
            totals.pushes = self.push_until(began, end).await?;
            let (cloned, times) = cloning.await??;
            self.cloned = cloned;
            totals.clones = times;
        }
        sleep_until(end).await;
        for bot in bots {
            let (times, statuses) = bot.await??;
            totals.pages.extend(times);
            for status in statuses {
                *totals.statuses.entry(status).or_default() += 1;
            }
        }
        let (cpu, own, busy) = (self.server.cpu_account.cpu_time()?, process.cpu_time()?, machine::busy_time()?);
        totals.seconds = began.elapsed().as_secs_f64();
        totals.cpu = cpu.saturating_sub(before.0);
        totals.own_cpu = own.saturating_sub(before.1);
        totals.others = busy.saturating_sub(before.2).saturating_sub(totals.cpu);
        print_progress(&format!(
            "users: {}, crawlers: {}: {} pushes, {} clones, {} pages",
            clients.users,
            clients.crawlers,
            totals.pushes.len(),
            totals.clones.len(),
            totals.pages.len()
        ));
        Ok(totals)
    }

    /// Pushes at a steady rate. A late push delays the following ones.
    async fn push_until(&mut self, began: Instant, end: Instant) -> Result<Vec<Duration>> {
        let pace = Duration::from_secs(60) / u32::try_from(self.args.pushes)?;
        let mut times = Vec::new();
        let mut next = began;
        while next < end {
            sleep_until(next).await;
            let pusher = self.pushed % self.pushers.len();
            times.extend(self.pushers[pusher].push(&self.server, 1).await?);
            self.pushed += 1;
            next = (next + pace).max(Instant::now());
        }
        Ok(times)
    }

    fn clone_until(&self, began: Instant, end: Instant) -> JoinHandle<Result<(usize, Vec<Duration>)>> {
        let pace = Duration::from_secs(60) / u32::try_from(self.args.clones).unwrap_or(u32::MAX);
        let (server, paths, folder) = (self.server.clone(), self.paths.clone(), self.clones.clone());
        let mut cloned = self.cloned;
        tokio::spawn(async move {
            let mut times = Vec::new();
            let mut next = began;
            while next < end {
                sleep_until(next).await;
                let url = server.url(&paths[cloned % paths.len()]).to_string();
                let mut git = installed_git::git(&folder);
                git.args(["clone", "--quiet", "--bare", &url, &format!("clone-{cloned}")]);
                times.push(installed_git::run_timed(git).await?);
                cloned += 1;
                next = (next + pace).max(Instant::now());
            }
            Ok((cloned, times))
        })
    }

    fn crawl(&self, bot: u64, began: Instant, end: Instant) -> JoinHandle<Result<(Vec<Duration>, Vec<u16>)>> {
        let pace = Duration::from_secs(1) * u32::try_from(BOTS).unwrap_or(1)
            / u32::try_from(self.args.per_second).unwrap_or(u32::MAX);
        let (server, paths) = (self.server.clone(), self.paths.clone());
        let mut random = Random::new(bot, 7);
        tokio::spawn(async move {
            let (mut times, mut statuses) = (Vec::new(), Vec::new());
            let mut client = Client::new(&server.address);
            // Spreads the crawlers over the interval.
            let mut next = began + pace * u32::try_from(bot).unwrap_or(0) / u32::try_from(BOTS).unwrap_or(1);
            let mut requests = 0;
            while next < end {
                sleep_until(next).await;
                if requests % PER_CONNECTION == 0 {
                    client = Client::new(&server.address);
                }
                requests += 1;
                let request = request(bot, &next_path(&mut random, &paths), &server.address);
                let started = std::time::Instant::now();
                let response = client.send(request.as_bytes()).await?;
                statuses.push(response.status());
                response.collect().await?;
                times.push(started.elapsed());
                next = (next + pace).max(Instant::now());
            }
            Ok((times, statuses))
        })
    }
}

/// Returns the next path that a crawler requests: mostly links on repository pages (some of them disallowed by
/// robots.txt), and paths that scanners try on every server.
fn next_path(random: &mut Random, paths: &[String]) -> String {
    let repository = random.pick(paths).clone();
    match random.below(100) {
        0..40 => repository,
        40..55 => format!("{repository}/replication.json"),
        55..62 => format!("{repository}/purgatory"),
        62..72 => format!("{repository}/info/refs?service=git-upload-pack"),
        72..77 => "/".to_owned(),
        77..82 => "/status".to_owned(),
        82..85 => "/status.json".to_owned(),
        85..88 => "/robots.txt".to_owned(),
        88..91 => format!("{repository}/tree/main/src"),
        91..94 => format!("/{}/{}", random.hex(20), random.hex(8)),
        _ => (*random.pick(&["/wp-login.php", "/.env", "/.git/config", "/favicon.ico", "/xmlrpc.php", "/admin/"]))
            .to_owned(),
    }
}

fn request(bot: u64, path: &str, address: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: crawler/1.0 (+https://crawler.example)\r\n\
         Accept: text/html,*/*;q=0.8\r\nX-Forwarded-For: 198.51.{bot}.7\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_count_and_percentiles() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        let DurationSummary { count, p50_ms, p95_ms } = DurationSummary::new(&times);
        assert_eq!((count, p50_ms, p95_ms), (100, 50.0, 95.0));
    }

    #[test]
    fn crawlers_request_all_kinds_of_paths() {
        let paths = ["/npub1x/one.git".to_owned(), "/npub1x/two.git".to_owned()];
        let mut random = Random::new(1, 7);
        let paths_requested: Vec<String> = (0..1_000).map(|_| next_path(&mut random, &paths)).collect();
        let count = |end: &str| paths_requested.iter().filter(|next_path| next_path.ends_with(end)).count();
        assert!((300..500).contains(&count(".git")), "{}", count(".git"));
        assert!(["/replication.json", "/status", "/robots.txt", "/.env"].iter().all(|end| count(end) > 0));
    }
}
