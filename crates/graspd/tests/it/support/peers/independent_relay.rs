//! A relay from another implementation, `nostr-relay-builder`. It keeps events in memory and has no NIP-11 document.

use std::net::SocketAddr;

use nostr_relay_builder::builder::RateLimit;
use nostr_relay_builder::{LocalRelay, RelayBuilder};
use tokio::runtime::Runtime;

use super::unused_address;
use crate::support::Client;

/// The running relay. Stopped when dropped.
pub struct IndependentRelay {
    pub address: SocketAddr,
    relay: LocalRelay,
    _runtime: Runtime,
}

impl IndependentRelay {
    pub fn start() -> Self {
        let address = unused_address();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("cannot start a runtime");
        let builder = RelayBuilder::default()
            .addr(address.ip())
            .port(address.port())
            .rate_limit(RateLimit { max_reqs: 500, notes_per_minute: 1_000_000 });
        let relay = LocalRelay::new(builder);
        runtime.block_on(relay.run()).expect("cannot start the relay");
        Self { address, relay, _runtime: runtime }
    }

    pub fn url(&self) -> String {
        super::relay_url(self.address)
    }

    /// Connects a client to the relay.
    pub fn client(&self) -> Client {
        Client::connect(self.address, &self.url())
    }
}

impl Drop for IndependentRelay {
    fn drop(&mut self) {
        self.relay.shutdown();
    }
}
