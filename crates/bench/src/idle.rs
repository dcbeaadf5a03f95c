//! `idle`: measures the memory of idle connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::cli::positive;
use crate::connection::{Connection, Traffic};
use crate::process::{Memory, Process};
use crate::process_usage::rounded;
use crate::target::Target;

/// Parameters of an `idle` run.
#[derive(Debug, Clone, Copy, Args)]
pub struct Idle {
    /// Connections to hold
    #[arg(long, default_value_t = 5000, value_parser = positive())]
    pub connections: usize,
    /// Seconds to hold them before memory is read
    #[arg(long, default_value_t = 3)]
    pub hold_secs: u64,
}

/// Result of `idle`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IdleFigures {
    /// Connections opened.
    pub connections: usize,
    /// Connections that the relay closed in the meantime.
    pub lost: u64,
    /// Memory of the relay, if its process id was given.
    #[serde(flatten)]
    pub memory: Option<IdleMemory>,
}

/// Memory of the relay before and with the connections.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IdleMemory {
    /// Anonymous memory before the first connection.
    pub rss_anon_before_kb: u64,
    /// Memory with all connections open.
    #[serde(flatten)]
    pub with_connections: Memory,
    /// Anonymous memory added per connection.
    pub rss_anon_kb_per_connection: f64,
}

impl Idle {
    /// Opens the connections, holds them, and reads the relay's memory. Pings are answered meanwhile.
    pub async fn run(self, target: &Target) -> Result<IdleFigures> {
        let before = target.process.map(Process::memory).transpose()?;
        let lost = Arc::new(AtomicU64::new(0));
        let mut holders = JoinSet::new();
        for mut connection in Connection::open_many(&target.url, Traffic::Light, self.connections).await? {
            let lost = Arc::clone(&lost);
            holders.spawn(async move {
                while connection.next_without_timeout().await.is_ok() {}
                lost.fetch_add(1, Ordering::Relaxed);
            });
        }
        sleep(Duration::from_secs(self.hold_secs)).await;
        let after = target.process.map(Process::memory).transpose()?;
        Ok(IdleFigures {
            connections: self.connections,
            lost: lost.load(Ordering::Relaxed),
            memory: before.zip(after).map(|(before, after)| IdleMemory {
                rss_anon_before_kb: before.rss_anon_kb,
                with_connections: after,
                rss_anon_kb_per_connection: rounded(
                    (after.rss_anon_kb as f64 - before.rss_anon_kb as f64) / self.connections.max(1) as f64,
                ),
            }),
        })
    }
}
