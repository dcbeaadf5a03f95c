//! `git fetch`: sends the fetch request of a full clone and discards the response.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use grasp_git::fetch::FetchResponseParser;
use serde::Serialize;

use super::client::Client;
use super::cpu_time::{CostFigures, CostMeter, CpuAccount};
use super::request::RepoUrl;
use crate::process_usage::rounded;

/// Bytes of a pack header: signature, version, number of objects.
const PACK_HEADER: usize = 12;

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
    let (mut parser, mut first_pack) = (FetchResponseParser::v2(), None);
    let (mut pack, mut header, mut pack_bytes) = (Vec::new(), Vec::new(), 0);
    while let Some(piece) = response.next().await? {
        parser.feed(piece, &mut pack).with_context(|| format!("{url}: fetch"))?;
        header.extend(pack.iter().take(PACK_HEADER - header.len()));
        pack_bytes += pack.len() as u64;
        if first_pack.is_none() && pack_bytes > 0 {
            first_pack = Some(sent.elapsed());
        }
        pack.clear();
    }
    let last_byte = sent.elapsed();
    let cost = cost.stop()?;
    parser.finish().with_context(|| format!("{url}: fetch"))?;
    let milliseconds = |time: std::time::Duration| rounded(time.as_secs_f64() * 1e3);
    Ok(FetchFigures {
        first_byte_ms: milliseconds(first_byte),
        first_pack_ms: milliseconds(first_pack.unwrap_or(last_byte)),
        last_byte_ms: milliseconds(last_byte),
        pack_bytes,
        objects: object_count(&header)?,
        cost,
    })
}

fn object_count(header: &[u8]) -> Result<u32> {
    match *header {
        [b'P', b'A', b'C', b'K', _, _, _, _, a, b, c, d] => Ok(u32::from_be_bytes([a, b, c, d])),
        _ => bail!("the response has no pack"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_counted_by_the_pack_header() {
        assert_eq!(object_count(b"PACK\0\0\0\x02\0\0\x01\x03").expect("a pack"), 259);
        assert!(object_count(b"PACK").is_err());
        assert!(object_count(b"<html><body>").is_err());
    }
}
