//! Pushes of one commit each, from several clients at once, every one to a repository of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::task::{JoinSet, spawn_blocking};

use super::client::Client;
use super::host::{Host, Side};
use super::ledger::{Cost, Spent};
use super::repo::{Desk, Repo};
use super::{make, stock};
use crate::latency::{Latencies, Percentiles};
use crate::process_usage::rounded;

/// The branch that is pushed to.
const BRANCH: &str = "refs/heads/main";

/// One client: a repository and the commits that are yet to be pushed.
#[derive(Debug)]
pub(super) struct Pusher {
    repo: Repo,
    /// Of the whole history, oldest first.
    commits: Arc<[String]>,
    /// How many of them the server has.
    pushed: usize,
}

/// What a round of pushes came to.
#[derive(Debug, Serialize)]
pub(super) struct PushFigures {
    /// Clients that pushed at the same time.
    clients: usize,
    /// Pushes of all of them.
    pub(super) pushes: u64,
    /// How long `git push` took.
    #[serde(flatten)]
    latency: Percentiles,
    /// CPU time of the server for one push; graspd's for the state event before it is included.
    pub(super) cpu_ms_per_push: f64,
    /// What it took.
    #[serde(flatten)]
    pub(super) spent: Spent,
}

impl Pusher {
    /// Brings the first commit of a repository of `commits` commits onto a server.
    pub(super) async fn open(host: &Host, folder: &Path, number: u64, commits: u64) -> Result<Self> {
        let source = folder.join(format!("push-{number}"));
        if !source.exists() {
            make::chain(&source, number, commits)?;
        }
        let text = stock::run(stock::git(&source).args(["rev-list", "--reverse", BRANCH]))?;
        let commits: Arc<[String]> = text.lines().map(String::from).collect();
        let mut repo = Repo::new(number, &format!("push-{number}"), &source)?;
        repo.refs = vec![(BRANCH.into(), commits[0].clone())];
        repo.enter(host).await?;
        Ok(Self { repo, commits, pushed: 1 })
    }

    /// Pushes the next `count` commits, one at a time. What graspd must know first it is told outside the measured time.
    pub(super) async fn push(&mut self, host: &Host, count: usize) -> Result<Vec<std::time::Duration>> {
        let mut desk = match host.side {
            Side::Graspd => Some(Desk::open(host).await?),
            Side::Reference => None,
        };
        let url = host.url(&self.repo.path()).to_string();
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let next = self.commits.get(self.pushed).context("all commits are pushed")?;
            self.repo.refs = vec![(BRANCH.into(), next.clone())];
            if let Some(desk) = &mut desk {
                desk.publish(self.repo.state()?).await?;
            }
            let mut git = stock::git(&self.repo.source);
            git.args(["push", "--quiet", &url, &format!("{next}:{BRANCH}")]);
            let pushing = spawn_blocking(move || {
                let started = Instant::now();
                stock::run(&mut git).map(|_| started.elapsed())
            });
            times.push(pushing.await??);
            self.pushed += 1;
        }
        Ok(times)
    }

    /// Whether the server shows what was pushed last.
    async fn check(&self, host: &Host) -> Result<()> {
        let url = host.url(&self.repo.path());
        let shown = url.refs(&mut Client::new(&url.address)).await?;
        let expected = &self.commits[self.pushed - 1];
        if !shown.iter().any(|shown| shown.name == BRANCH && &shown.oid == expected) {
            bail!("{url} does not show the commit that was pushed last");
        }
        Ok(())
    }
}

/// Lets all clients push at once, `count` times each. Gives every duration, too.
pub(super) async fn round(
    pushers: &mut Vec<Pusher>,
    host: &Arc<Host>,
    count: usize,
) -> Result<(PushFigures, Latencies)> {
    let clients = pushers.len();
    let cost = Cost::start(&host.ledger)?;
    let mut running = JoinSet::new();
    for mut pusher in pushers.drain(..) {
        let host = Arc::clone(host);
        running.spawn(async move { pusher.push(&host, count).await.map(|times| (pusher, times)) });
    }
    let (mut latencies, mut pooled) = (Latencies::default(), Latencies::default());
    while let Some(finished) = running.join_next().await {
        let (pusher, times) = finished??;
        for time in times {
            latencies.record(time);
            pooled.record(time);
        }
        pushers.push(pusher);
    }
    let spent = cost.stop()?;
    for pusher in pushers.iter() {
        pusher.check(host).await?;
    }
    let pushes = latencies.len() as u64;
    let cpu_ms_per_push = rounded(spent.server_cpu * 1e3 / pushes.max(1) as f64);
    Ok((PushFigures { clients, pushes, latency: latencies.summarise(), cpu_ms_per_push, spent }, pooled))
}
