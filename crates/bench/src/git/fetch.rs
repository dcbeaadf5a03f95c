//! `git fetch`: sends the fetch request of a full clone and discards the response.

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::client::Client;
use super::cpu_time::{CostFigures, CostMeter, CpuAccount};
use super::pktline::FetchResponseParser;
use super::request::RepoUrl;
use crate::process_usage::rounded;

/// Result of one fetch.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct FetchFigures {
    /// Time until the first byte of the response.
    pub(super) first_byte_ms: f64,
    /// Time until the first byte of the pack.
    pub(super) first_pack_ms: f64,
    /// Time until the last byte of the response.
    pub(super) last_byte_ms: f64,
    /// Bytes of the pack.
    pub(super) pack_bytes: u64,
    /// Objects of the pack.
    pub(super) objects: u32,
    /// Duration and CPU time.
    #[serde(flatten)]
    pub(super) cost: CostFigures,
}

/// Fetches all refs of a repository. The `ls-refs` request before it is not measured.
pub(super) async fn run(url: &RepoUrl, cpu_account: &CpuAccount) -> Result<FetchFigures> {
    let request = url.full_fetch(&mut Client::new(&url.address)).await?;
    let mut client = Client::new(&url.address);
    let cost = CostMeter::start(cpu_account)?;
    let sent = Instant::now();
    let mut response = client.send_expecting_ok(&request).await.with_context(|| format!("{url}: fetch"))?;
    let first_byte = sent.elapsed();
    let (mut pack, mut first_pack) = (FetchResponseParser::default(), None);
    while let Some(piece) = response.next().await? {
        pack.feed(piece)?;
        if first_pack.is_none() && pack.pack_bytes > 0 {
            first_pack = Some(sent.elapsed());
        }
    }
    let last_byte = sent.elapsed();
    let cost = cost.stop()?;
    let milliseconds = |time: std::time::Duration| rounded(time.as_secs_f64() * 1e3);
    Ok(FetchFigures {
        first_byte_ms: milliseconds(first_byte),
        first_pack_ms: milliseconds(first_pack.unwrap_or(last_byte)),
        last_byte_ms: milliseconds(last_byte),
        pack_bytes: pack.pack_bytes,
        objects: pack.finish().with_context(|| format!("{url}: fetch"))?,
        cost,
    })
}
