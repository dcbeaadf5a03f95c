//! `git refs`: requests ref advertisements, one at a time on every connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use super::client::Client;
use super::cpu_time::{CostFigures, CostMeter, CpuAccount};
use super::request::{Protocol, RepoUrl};
use crate::latency::{Latencies, Percentiles};
use crate::process_usage::rounded;

/// Parameters of a `git refs` run.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct RefsRun {
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 8)]
    pub(super) connections: usize,
    /// Duration in seconds
    #[arg(long, default_value_t = 3)]
    pub(super) seconds: u64,
    /// Protocol version
    #[arg(long, default_value = "v2")]
    pub(super) protocol: Protocol,
}

/// Result of `git refs`.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct RefsFigures {
    /// Protocol version.
    pub(super) protocol: Protocol,
    /// Number of responses.
    pub(super) requests: u64,
    /// Bytes of one response.
    pub(super) answer_bytes: u64,
    /// Connections opened. Servers close a connection after a number of requests.
    pub(super) connects: u64,
    /// Responses per second.
    pub(super) requests_per_second: f64,
    /// Time from sending a request until the end of its response.
    #[serde(flatten)]
    pub(super) latency: Percentiles,
    /// CPU time of the server per response.
    pub(super) cpu_us_per_request: f64,
    /// Duration and CPU time.
    #[serde(flatten)]
    pub(super) cost: CostFigures,
}

impl RefsRun {
    /// Runs the measurement.
    pub(super) async fn run(self, url: &RepoUrl, cpu_account: &CpuAccount) -> Result<RefsFigures> {
        let request: Arc<[u8]> = url.info_refs(self.protocol).into();
        // All other responses must have the length of the first one.
        let first = Client::new(&url.address)
            .send_expecting_ok(&request)
            .await
            .with_context(|| url.to_string())?
            .collect()
            .await?;
        if !first.starts_with(b"001e# service=git-upload-pack\n") && !first.starts_with(b"000eversion 2\n") {
            bail!("{url} did not return a ref advertisement");
        }
        let answer_bytes = first.len() as u64;

        let cost = CostMeter::start(cpu_account)?;
        let until = Instant::now() + Duration::from_secs(self.seconds);
        let mut clients = JoinSet::new();
        for _ in 0..self.connections {
            clients.spawn(request_repeatedly(Client::new(&url.address), Arc::clone(&request), answer_bytes, until));
        }
        let (mut latencies, mut connects) = (Latencies::default(), 0);
        while let Some(finished) = clients.join_next().await {
            let (more, count) = finished??;
            latencies.absorb(more);
            connects += count;
        }
        let cost = cost.stop()?;
        let requests = latencies.len() as u64;
        Ok(RefsFigures {
            protocol: self.protocol,
            requests,
            answer_bytes,
            connects,
            requests_per_second: rounded(requests as f64 / cost.seconds),
            latency: latencies.summarise(),
            cpu_us_per_request: rounded(cost.server_cpu * 1e6 / requests.max(1) as f64),
            cost,
        })
    }
}

async fn request_repeatedly(
    mut client: Client,
    request: Arc<[u8]>,
    expected: u64,
    until: Instant,
) -> Result<(Latencies, u64)> {
    let mut latencies = Latencies::default();
    while Instant::now() < until {
        let sent = Instant::now();
        let size = client.send_expecting_ok(&request).await?.drain().await?;
        latencies.record(sent.elapsed());
        if size != expected {
            bail!("a ref advertisement has {size} bytes, expected {expected}");
        }
    }
    Ok((latencies, client.connects))
}
