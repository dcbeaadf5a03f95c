//! Crawlers on the pages while people push and clone: what the pages cost, and what people notice.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use super::client::Client;
use super::host::{Host, subfolder};
use super::push::Pusher;
use super::repo::Repo;
use super::{make, stock};
use crate::latency::percentile;
use crate::process_usage::rounded;
use crate::progress::Progress;
use crate::random::Random;
use crate::sync::sheet;
use crate::sync::sheet::{Row, remark};
use crate::{machine, report};

/// Crawlers, each from a network of its own.
const BOTS: u64 = 8;

/// Requests that a crawler sends on one connection before it makes another.
const PER_CONNECTION: u64 = 20;

/// Repositories that are pushed to, in turn.
const PUSHED_TO: u64 = 10;

/// How long the server is watched while nobody asks it anything.
const REST: Duration = Duration::from_secs(10);

/// How long people are alone, and then with crawlers, in turn: the machine's own speed changes over minutes.
const TURN: Duration = Duration::from_secs(15);

/// Most of a core that pages may take, in percent.
const PAGES_AIM: f64 = 10.0;

/// Most that pushes and clones may take longer, by factor.
const RATIO_AIM: f64 = 1.1;

/// A day of crawlers, shortened.
#[derive(Debug, Clone, Args)]
pub struct BotsArgs {
    /// The program
    #[arg(long, value_name = "FILE")]
    pub graspd: PathBuf,
    /// Where everything is put, in a directory that is removed afterwards; a real disk, or "durable" means little
    #[arg(long, value_name = "DIR", default_value_os_t = env::temp_dir())]
    pub dir: PathBuf,
    /// Minutes with crawlers, and as many without, in turns of fifteen seconds
    #[arg(long, default_value_t = 2.0)]
    pub minutes: f64,
    /// Requests of all crawlers per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub per_second: u64,
    /// Pushes per minute
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub pushes: u64,
    /// Clones per minute
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub clones: u64,
    /// Repositories that have pages
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub repositories: u64,
}

/// Durations in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Times {
    count: usize,
    p50_ms: f64,
    p95_ms: f64,
}

impl Times {
    fn of(times: &[Duration]) -> Self {
        let mut micros: Vec<u64> = times.iter().map(|time| time.as_micros() as u64).collect();
        micros.sort_unstable();
        let at = |percent| rounded(percentile(&micros, percent) as f64 / 1e3);
        Self { count: micros.len(), p50_ms: at(50.0), p95_ms: at(95.0) }
    }
}

/// What a turn, or several of a kind, came to.
#[derive(Debug, Default)]
struct Turn {
    pushes: Vec<Duration>,
    clones: Vec<Duration>,
    pages: Vec<Duration>,
    /// Answers to crawlers by status.
    statuses: BTreeMap<u16, u64>,
    seconds: f64,
    /// CPU time of the server and its git processes.
    cpu: Duration,
    /// The server's process alone.
    own_cpu: Duration,
    /// CPU time of everything else on the machine, this program included.
    others: Duration,
}

#[derive(Debug, Serialize)]
struct Figures<'a> {
    turn: &'static str,
    seconds: f64,
    pushes: Times,
    clones: Times,
    pages: Times,
    statuses: &'a BTreeMap<u16, u64>,
    /// Of the server with its git processes, in percent of a core.
    cpu_percent: f64,
    /// Of the server's process alone.
    own_cpu_percent: f64,
    /// Cores that everything else kept busy, this program and its git processes included.
    other_cores: f64,
}

impl Turn {
    fn percent(&self, time: Duration) -> f64 {
        rounded(100.0 * time.as_secs_f64() / self.seconds.max(1e-9))
    }

    fn print(&self, turn: &'static str) -> Result<()> {
        let figures = Figures {
            turn,
            seconds: rounded(self.seconds),
            pushes: Times::of(&self.pushes),
            clones: Times::of(&self.clones),
            pages: Times::of(&self.pages),
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

/// Who does something in a turn.
#[derive(Debug, Clone, Copy)]
struct Cast {
    people: bool,
    crawlers: bool,
}

/// A server with everything on it.
struct Place {
    args: BotsArgs,
    host: Arc<Host>,
    /// Paths of repositories that have pages.
    paths: Arc<[String]>,
    pushers: Vec<Pusher>,
    /// Pushes so far.
    pushed: usize,
    /// Clones so far; each has a folder of its own.
    cloned: usize,
    clones: PathBuf,
}

/// Measures.
pub(super) async fn run(args: BotsArgs) -> Result<()> {
    let folder = TempDir::with_prefix_in("grasp-bench-bots-", &args.dir)
        .with_context(|| format!("cannot put anything into {}", args.dir.display()))?;
    let mut place = Place::make(args, folder.path()).await?;
    let rounds = (place.args.minutes * 60.0 / TURN.as_secs_f64()).ceil().max(1.0) as u64;
    place.host.settle().await?;

    let rest = place.turn(REST, Cast { people: false, crawlers: false }).await?;
    rest.print("nobody")?;
    let alone = place.turn(2 * TURN, Cast { people: false, crawlers: true }).await?;
    alone.print("crawlers alone")?;
    let (mut quiet, mut crawled) = (Turn::default(), Turn::default());
    for _ in 0..rounds {
        quiet.absorb(place.turn(TURN, Cast { people: true, crawlers: false }).await?);
        crawled.absorb(place.turn(TURN, Cast { people: true, crawlers: true }).await?);
    }
    quiet.print("people alone")?;
    crawled.print("people and crawlers")?;

    let mut rows = vec![
        Row::at_most(
            "pages, % of a core (crawlers alone, less rest)",
            alone.percent(alone.cpu) - rest.percent(rest.cpu),
            PAGES_AIM,
        ),
        Row::open(
            "pages, % of a core (with people, less people alone)",
            crawled.percent(crawled.cpu) - quiet.percent(quiet.cpu),
        ),
        Row::open("pages/s", crawled.pages.len() as f64 / crawled.seconds),
        Row::open("pages p50, ms", Times::of(&crawled.pages).p50_ms),
        Row::open("pages p95, ms", Times::of(&crawled.pages).p95_ms),
    ];
    for (what, quiet, crawled) in [("push", &quiet.pushes, &crawled.pushes), ("clone", &quiet.clones, &crawled.clones)]
    {
        let (quiet, crawled) = (Times::of(quiet), Times::of(crawled));
        rows.push(Row::open(format!("{what} p50 alone, ms"), quiet.p50_ms));
        rows.push(Row::open(format!("{what} p50 with crawlers, ms"), crawled.p50_ms));
        rows.push(Row::at_most(format!("{what} p50, ratio"), crawled.p50_ms / quiet.p50_ms.max(1e-3), RATIO_AIM));
        rows.push(Row::open(format!("{what} p95 alone, ms"), quiet.p95_ms));
        rows.push(Row::open(format!("{what} p95 with crawlers, ms"), crawled.p95_ms));
        rows.push(Row::open(format!("{what} p95, ratio"), crawled.p95_ms / quiet.p95_ms.max(1e-3)));
    }
    sheet::print(&rows)
}

impl Place {
    async fn make(args: BotsArgs, folder: &Path) -> Result<Self> {
        // Crawlers come through a proxy, which says from where.
        let settings = [("NGIT_TRUSTED_PROXY_CIDRS", "127.0.0.0/8")];
        let host = Host::graspd_with(&args.graspd, &subfolder(folder, "server")?, &settings)?;
        let source = folder.join("source");
        make::chain(&source, 1, 50)?;
        let progress = Progress::start("repositories", args.repositories + PUSHED_TO);
        let mut paths = Vec::new();
        for number in 0..args.repositories {
            let mut repo = Repo::new(1_000 + number, &format!("project-{number}"), &source)?;
            repo.enter(&host).await?;
            paths.push(repo.path());
            progress.advance(1);
        }
        // Two kinds of turns with pushes, and the first push.
        let each = (2.0 * args.minutes * args.pushes as f64 / PUSHED_TO as f64).ceil() as u64 + 2;
        let mut pushers = Vec::new();
        for number in 0..PUSHED_TO {
            pushers.push(Pusher::open(&host, folder, 1 + number, each).await?);
            progress.advance(1);
        }
        let (host, clones) = (Arc::new(host), subfolder(folder, "clones")?);
        Ok(Self { args, host, paths: paths.into(), pushers, pushed: 0, cloned: 0, clones })
    }

    async fn turn(&mut self, length: Duration, cast: Cast) -> Result<Turn> {
        let process = self.host.process().context("graspd has a process")?;
        let before = (self.host.ledger.spent()?, process.cpu_time()?, machine::busy_time()?);
        let began = Instant::now();
        let end = began + length;
        let bots: Vec<_> =
            if cast.crawlers { (0..BOTS).map(|bot| self.crawl(bot, began, end)).collect() } else { Vec::new() };
        let mut turn = Turn::default();
        if cast.people {
            // A clone begins between two pushes as often as beside one.
            let cloning = self.clone_on(began + Duration::from_millis(400), end);
            turn.pushes = self.push_on(began, end).await?;
            let (cloned, times) = cloning.await??;
            self.cloned = cloned;
            turn.clones = times;
        }
        sleep_until(end).await;
        for bot in bots {
            let (times, statuses) = bot.await??;
            turn.pages.extend(times);
            for status in statuses {
                *turn.statuses.entry(status).or_default() += 1;
            }
        }
        let (cpu, own, busy) = (self.host.ledger.spent()?, process.cpu_time()?, machine::busy_time()?);
        turn.seconds = began.elapsed().as_secs_f64();
        turn.cpu = cpu.saturating_sub(before.0);
        turn.own_cpu = own.saturating_sub(before.1);
        turn.others = busy.saturating_sub(before.2).saturating_sub(turn.cpu);
        remark(&format!(
            "{cast:?}: {} pushes, {} clones, {} pages",
            turn.pushes.len(),
            turn.clones.len(),
            turn.pages.len()
        ));
        Ok(turn)
    }

    /// Pushes at a steady pace; who is late does not catch up.
    async fn push_on(&mut self, began: Instant, end: Instant) -> Result<Vec<Duration>> {
        let pace = Duration::from_secs(60) / u32::try_from(self.args.pushes)?;
        let mut times = Vec::new();
        let mut next = began;
        while next < end {
            sleep_until(next).await;
            let pusher = self.pushed % self.pushers.len();
            times.extend(self.pushers[pusher].push(&self.host, 1).await?);
            self.pushed += 1;
            next = (next + pace).max(Instant::now());
        }
        Ok(times)
    }

    fn clone_on(&self, began: Instant, end: Instant) -> JoinHandle<Result<(usize, Vec<Duration>)>> {
        let pace = Duration::from_secs(60) / u32::try_from(self.args.clones).unwrap_or(u32::MAX);
        let (host, paths, folder) = (self.host.clone(), self.paths.clone(), self.clones.clone());
        let mut cloned = self.cloned;
        tokio::spawn(async move {
            let mut times = Vec::new();
            let mut next = began;
            while next < end {
                sleep_until(next).await;
                let url = host.url(&paths[cloned % paths.len()]).to_string();
                let mut git = stock::git(&folder);
                git.args(["clone", "--quiet", "--bare", &url, &format!("clone-{cloned}")]);
                let cloning = spawn_blocking(move || {
                    let started = std::time::Instant::now();
                    stock::run(&mut git).map(|_| started.elapsed())
                });
                times.push(cloning.await??);
                cloned += 1;
                next = (next + pace).max(Instant::now());
            }
            Ok((cloned, times))
        })
    }

    fn crawl(&self, bot: u64, began: Instant, end: Instant) -> JoinHandle<Result<(Vec<Duration>, Vec<u16>)>> {
        let pace = Duration::from_secs(1) * u32::try_from(BOTS).unwrap_or(1)
            / u32::try_from(self.args.per_second).unwrap_or(u32::MAX);
        let (host, paths) = (self.host.clone(), self.paths.clone());
        let mut random = Random::new(bot, 7);
        tokio::spawn(async move {
            let (mut times, mut statuses) = (Vec::new(), Vec::new());
            let mut client = Client::new(&host.address);
            // Not all of them in the same instant.
            let mut next = began + pace * u32::try_from(bot).unwrap_or(0) / u32::try_from(BOTS).unwrap_or(1);
            let mut asked = 0;
            while next < end {
                sleep_until(next).await;
                if asked % PER_CONNECTION == 0 {
                    client = Client::new(&host.address);
                }
                asked += 1;
                let request = request(bot, &wish(&mut random, &paths), &host.address);
                let started = std::time::Instant::now();
                let answer = client.ask(request.as_bytes()).await?;
                statuses.push(answer.status);
                answer.collect().await?;
                times.push(started.elapsed());
                next = (next + pace).max(Instant::now());
            }
            Ok((times, statuses))
        })
    }
}

/// What a crawler asks for next: mostly what repository pages link to, some of which robots.txt forbids, and some of what
/// is tried on every server.
fn wish(random: &mut Random, paths: &[String]) -> String {
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
    fn times_are_read_from_the_middle() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        let Times { count, p50_ms, p95_ms } = Times::of(&times);
        assert_eq!((count, p50_ms, p95_ms), (100, 50.0, 95.0));
    }

    #[test]
    fn crawlers_ask_for_a_bit_of_everything() {
        let paths = ["/npub1x/one.git".to_owned(), "/npub1x/two.git".to_owned()];
        let mut random = Random::new(1, 7);
        let wishes: Vec<String> = (0..1_000).map(|_| wish(&mut random, &paths)).collect();
        let count = |end: &str| wishes.iter().filter(|wish| wish.ends_with(end)).count();
        assert!((300..500).contains(&count(".git")), "{}", count(".git"));
        assert!(["/replication.json", "/status", "/robots.txt", "/.env"].iter().all(|end| count(end) > 0));
    }
}
