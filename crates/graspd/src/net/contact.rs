//! When another computer was last reached: evidence that the network of this server works.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grasp_core::net::AddressPolicy;
use tokio::time::Instant;

/// Time of the last contact with another computer: a connection that was established, or a request of a client.
#[derive(Debug)]
pub(crate) struct NetworkContact {
    started: Instant,
    policy: AddressPolicy,
    /// Milliseconds after `started`, plus one. 0 if there was none.
    last_millis: AtomicU64,
}

impl NetworkContact {
    pub(crate) fn new(policy: AddressPolicy) -> Self {
        Self { started: Instant::now(), policy, last_millis: AtomicU64::new(0) }
    }

    /// Records contact with a computer at this address. A computer in a private network is no evidence, unless events
    /// may name relays there.
    pub(crate) fn record(&self, address: IpAddr) {
        if self.policy.check(address).is_ok() {
            let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
            self.last_millis.store(millis + 1, Ordering::Relaxed);
        }
    }

    /// Returns how long ago the last contact was.
    pub(crate) fn age(&self) -> Option<Duration> {
        let millis = self.last_millis.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.started.elapsed().saturating_sub(Duration::from_millis(millis)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_computers_in_the_network_of_the_relays_are_evidence() {
        let contact = NetworkContact::new(AddressPolicy::PublicOnly);
        for local in ["127.0.0.1", "10.0.0.7", "::1"] {
            contact.record(local.parse().expect("valid address"));
            assert_eq!(contact.age(), None, "{local}");
        }
        contact.record("93.184.216.34".parse().expect("valid address"));
        assert!(contact.age().is_some());
        let contact = NetworkContact::new(AddressPolicy::Any);
        contact.record("127.0.0.1".parse().expect("valid address"));
        assert!(contact.age().is_some());
    }
}
