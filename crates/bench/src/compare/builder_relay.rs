//! The independent relay: nostr-relay-builder with nostr-lmdb, with limits as high as possible.

use std::future;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use nostr_lmdb::NostrLMDB;
use nostr_relay_builder::builder::RateLimit;
use nostr_relay_builder::{LocalRelay, RelayBuilder};

/// Arguments of the independent relay. It runs in its own process, so that its CPU time can be measured.
#[derive(Debug, Clone, Args)]
pub struct BuilderRelay {
    /// Folder of the database
    #[arg(long)]
    pub dir: PathBuf,
    /// Port on the loopback interface
    #[arg(long)]
    pub port: u16,
}

impl BuilderRelay {
    /// Serves until the process is killed.
    pub async fn run(&self) -> Result<()> {
        let database = NostrLMDB::open(&self.dir)
            .with_context(|| format!("cannot open the database in {}", self.dir.display()))?;
        // No policy plugins: every valid event is accepted. No maximum `limit`: only that of the query applies.
        let builder = RelayBuilder::default()
            .port(self.port)
            .database(database)
            .max_connections(20_000)
            .rate_limit(RateLimit { max_reqs: 10_000, notes_per_minute: 1_000_000_000 });
        let relay = LocalRelay::new(builder);
        relay.run().await.context("cannot listen")?;
        future::pending().await
    }
}
