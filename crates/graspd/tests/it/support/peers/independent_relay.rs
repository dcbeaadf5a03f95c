//! A relay that others have written. It keeps events in memory and has no NIP-11 document.

use std::net::SocketAddr;

use nostr_relay_builder::builder::RateLimit;
use nostr_relay_builder::{LocalRelay, RelayBuilder};
use tokio::runtime::Runtime;

use super::place;
use crate::support::Client;

/// The relay. Dropping it ends it.
pub struct Independent {
    pub place: SocketAddr,
    relay: LocalRelay,
    _runtime: Runtime,
}

impl Independent {
    pub fn start() -> Self {
        let place = place();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads can be started");
        let builder = RelayBuilder::default()
            .addr(place.ip())
            .port(place.port())
            .rate_limit(RateLimit { max_reqs: 500, notes_per_minute: 1_000_000 });
        let relay = LocalRelay::new(builder);
        runtime.block_on(relay.run()).expect("it listens");
        Self { place, relay, _runtime: runtime }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        super::relay(self.place)
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::connect(self.place, &self.url())
    }
}

impl Drop for Independent {
    fn drop(&mut self) {
        self.relay.shutdown();
    }
}
