//! `git refs`: ask for advertisements, one after the other on every connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::task::JoinSet;

use super::client::Client;
use super::ledger::{Cost, Ledger, Spent};
use super::request::{Protocol, RepoUrl};
use crate::latency::{Latencies, Percentiles};
use crate::process_usage::rounded;

/// How to ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refs {
    /// Connections, each with one request at a time.
    pub(super) connections: usize,
    /// For how long.
    pub(super) time: Duration,
    /// Which advertisement.
    pub(super) protocol: Protocol,
}

/// What it came to.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct RefsFigures {
    /// What was asked for.
    pub(super) protocol: Protocol,
    /// Answers.
    pub(super) requests: u64,
    /// Bytes of one answer.
    pub(super) answer_bytes: u64,
    /// Connections that were made; servers close them after a number of requests.
    pub(super) connects: u64,
    /// Answers per second.
    pub(super) requests_per_second: f64,
    /// From sending a request to the end of its answer.
    #[serde(flatten)]
    pub(super) latency: Percentiles,
    /// CPU time of the server for one answer.
    pub(super) cpu_us_per_request: f64,
    /// What it took.
    #[serde(flatten)]
    pub(super) spent: Spent,
}

impl Refs {
    /// Asks.
    pub(super) async fn run(self, url: &RepoUrl, ledger: &Ledger) -> Result<RefsFigures> {
        let request: Arc<[u8]> = url.info_refs(self.protocol).into();
        // The first answer says how long all the others must be.
        let first = Client::new(&url.address).get(&request).await.with_context(|| url.to_string())?.collect().await?;
        if !first.starts_with(b"001e# service=git-upload-pack\n") && !first.starts_with(b"000eversion 2\n") {
            bail!("{url} does not advertise");
        }
        let answer_bytes = first.len() as u64;

        let cost = Cost::start(ledger)?;
        let until = Instant::now() + self.time;
        let mut askers = JoinSet::new();
        for _ in 0..self.connections {
            askers.spawn(ask(Client::new(&url.address), Arc::clone(&request), answer_bytes, until));
        }
        let (mut latencies, mut connects) = (Latencies::default(), 0);
        while let Some(asker) = askers.join_next().await {
            let (more, count) = asker??;
            latencies.absorb(more);
            connects += count;
        }
        let spent = cost.stop()?;
        let requests = latencies.len() as u64;
        Ok(RefsFigures {
            protocol: self.protocol,
            requests,
            answer_bytes,
            connects,
            requests_per_second: rounded(requests as f64 / spent.seconds),
            latency: latencies.summarise(),
            cpu_us_per_request: rounded(spent.server_cpu * 1e6 / requests.max(1) as f64),
            spent,
        })
    }
}

async fn ask(mut client: Client, request: Arc<[u8]>, expected: u64, until: Instant) -> Result<(Latencies, u64)> {
    let mut latencies = Latencies::default();
    while Instant::now() < until {
        let sent = Instant::now();
        let size = client.get(&request).await?.drain().await?;
        latencies.record(sent.elapsed());
        if size != expected {
            bail!("an advertisement of {size} bytes follows one of {expected}");
        }
    }
    Ok((latencies, client.connects))
}
