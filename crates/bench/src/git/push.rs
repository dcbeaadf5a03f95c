//! Pushes of one commit each, from several clients at once, each to its own repository.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::task::JoinSet;

use super::client::Client;
use super::cpu_time::{CostFigures, CostMeter};
use super::host::{GitServer, ServerKind};
use super::repo::GeneratedRepo;
use super::{generated_repo, installed_git};
use crate::latency::{Latencies, Percentiles};
use crate::process_usage::rounded;

/// The branch that is pushed to.
const BRANCH: &str = "refs/heads/main";

/// One client: a repository and the commits to push.
#[derive(Debug)]
pub(super) struct Pusher {
    repo: GeneratedRepo,
    /// All commits, oldest first.
    commits: Arc<[String]>,
    /// Number of commits that the server has.
    pushed: usize,
}

/// Result of a round of pushes.
#[derive(Debug, Serialize)]
pub(super) struct PushFigures {
    /// Clients that pushed at the same time.
    clients: usize,
    /// Total number of pushes.
    pub(super) pushes: u64,
    /// Durations of `git push`.
    #[serde(flatten)]
    latency: Percentiles,
    /// CPU time of the server per push. For graspd, this includes the state event before it.
    pub(super) cpu_ms_per_push: f64,
    /// Duration and CPU time.
    #[serde(flatten)]
    pub(super) cost: CostFigures,
}

impl Pusher {
    /// Publishes the first commit of a repository with `commits` commits on a server.
    pub(super) async fn open(server: &GitServer, folder: &Path, number: u64, commits: u64) -> Result<Self> {
        let source = folder.join(format!("push-{number}"));
        if !source.exists() {
            generated_repo::linear_history(&source, number, commits)?;
        }
        let text = installed_git::run(installed_git::git(&source).args(["rev-list", "--reverse", BRANCH]))?;
        let commits: Arc<[String]> = text.lines().map(String::from).collect();
        let mut repo = GeneratedRepo::new(number, &format!("push-{number}"), &source)?;
        repo.refs = vec![(BRANCH.into(), commits[0].clone())];
        repo.announce_and_push(server).await?;
        Ok(Self { repo, commits, pushed: 1 })
    }

    /// Pushes the next `count` commits, one at a time. The state event that graspd needs first is published outside the
    /// measured time.
    pub(super) async fn push(&mut self, server: &GitServer, count: usize) -> Result<Vec<Duration>> {
        let mut publisher = match server.kind {
            ServerKind::Graspd => Some(server.connect().await?),
            ServerKind::Reference => None,
        };
        let url = server.url(&self.repo.path()).to_string();
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let next = self.commits.get(self.pushed).context("no commits left to push")?;
            self.repo.refs = vec![(BRANCH.into(), next.clone())];
            if let Some(publisher) = &mut publisher {
                publisher.publish(self.repo.state()?).await?;
            }
            let mut git = installed_git::git(&self.repo.source);
            git.args(["push", "--quiet", &url, &format!("{next}:{BRANCH}")]);
            times.push(installed_git::run_timed(git).await?);
            self.pushed += 1;
        }
        Ok(times)
    }

    /// Checks that the server has the commit that was pushed last.
    async fn check(&self, server: &GitServer) -> Result<()> {
        let url = server.url(&self.repo.path());
        let shown = url.refs(&mut Client::new(&url.address)).await?;
        let expected = &self.commits[self.pushed - 1];
        if !shown.iter().any(|(name, oid)| name == BRANCH && oid == expected) {
            bail!("{url} does not have the commit that was pushed last");
        }
        Ok(())
    }
}

/// Lets all clients push at once, `count` times each. Also returns all durations.
pub(super) async fn round(
    pushers: &mut Vec<Pusher>,
    server: &Arc<GitServer>,
    count: usize,
) -> Result<(PushFigures, Latencies)> {
    let clients = pushers.len();
    let cost = CostMeter::start(&server.cpu_account)?;
    let mut running = JoinSet::new();
    for mut pusher in pushers.drain(..) {
        let server = Arc::clone(server);
        running.spawn(async move { pusher.push(&server, count).await.map(|times| (pusher, times)) });
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
    let cost = cost.stop()?;
    for pusher in pushers.iter() {
        pusher.check(server).await?;
    }
    let pushes = latencies.len() as u64;
    let cpu_ms_per_push = rounded(cost.server_cpu * 1e3 / pushes.max(1) as f64);
    Ok((PushFigures { clients, pushes, latency: latencies.summarise(), cpu_ms_per_push, cost }, pooled))
}
