//! `git fetch`: the request of a full clone, its answer thrown away.

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::client::Client;
use super::ledger::{Cost, Ledger, Spent};
use super::pktline::FetchAnswer;
use super::request::RepoUrl;
use crate::process_usage::rounded;

/// What one fetch came to.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct FetchFigures {
    /// Until the first byte of the answer.
    pub(super) first_byte_ms: f64,
    /// Until the first byte of the pack.
    pub(super) first_pack_ms: f64,
    /// Until the last byte of the answer.
    pub(super) last_byte_ms: f64,
    /// Bytes of the pack.
    pub(super) pack_bytes: u64,
    /// Objects of the pack.
    pub(super) objects: u32,
    /// What it took.
    #[serde(flatten)]
    pub(super) spent: Spent,
}

/// Fetches everything that a repository shows. Learning what that is does not count.
pub(super) async fn run(url: &RepoUrl, ledger: &Ledger) -> Result<FetchFigures> {
    let request = url.full_fetch(&mut Client::new(&url.address)).await?;
    let mut client = Client::new(&url.address);
    let cost = Cost::start(ledger)?;
    let sent = Instant::now();
    let mut answer = client.get(&request).await.with_context(|| format!("{url}: fetch"))?;
    let first_byte = sent.elapsed();
    let (mut pack, mut first_pack) = (FetchAnswer::default(), None);
    while let Some(piece) = answer.next().await? {
        pack.feed(piece)?;
        if first_pack.is_none() && pack.pack_bytes > 0 {
            first_pack = Some(sent.elapsed());
        }
    }
    let last_byte = sent.elapsed();
    let spent = cost.stop()?;
    let milliseconds = |time: std::time::Duration| rounded(time.as_secs_f64() * 1e3);
    Ok(FetchFigures {
        first_byte_ms: milliseconds(first_byte),
        first_pack_ms: milliseconds(first_pack.unwrap_or(last_byte)),
        last_byte_ms: milliseconds(last_byte),
        pack_bytes: pack.pack_bytes,
        objects: pack.finish().with_context(|| format!("{url}: fetch"))?,
        spent,
    })
}
