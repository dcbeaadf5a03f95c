//! Limits of each client network (IPv4 /24, IPv6 /48): concurrent connections and published events per minute.
//!
//! A connection claims a [`NetworkSlot`], which shares the publish budget of its network and frees the slot when it is
//! dropped. Programs on this machine are not limited, except untrusted proxies.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_core::token_bucket::TokenBucket;

use crate::clock::Clock;
use crate::config::Config;

/// Prefix of a client address: the unit that limits apply to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ClientNetwork {
    V4([u8; 3]),
    V6([u8; 6]),
    /// All proxies on this machine that are not trusted or do not name their clients, with all these clients.
    UntrustedProxy,
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4([a, b, c]) => write!(f, "{a}.{b}.{c}.0/24"),
            Self::V6(prefix) => {
                for pair in prefix.chunks(2) {
                    write!(f, "{:02x}{:02x}:", pair[0], pair[1])?;
                }
                f.write_str(":/48")
            }
            Self::UntrustedProxy => f.write_str("untrusted-proxy"),
        }
    }
}

impl ClientNetwork {
    /// Returns the network of an address. `None` for loopback, which is not limited.
    pub(crate) fn from_ip(address: IpAddr) -> Option<Self> {
        match address.to_canonical() {
            address if address.is_loopback() => None,
            IpAddr::V4(address) => Some(Self::V4([address.octets()[0], address.octets()[1], address.octets()[2]])),
            IpAddr::V6(address) => {
                let mut prefix = [0; 6];
                prefix.copy_from_slice(&address.octets()[..6]);
                Some(Self::V6(prefix))
            }
        }
    }
}

/// Limits of one network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PerNetworkLimits {
    /// Maximum number of concurrent connections. Zero means no limit.
    pub(crate) max_connections: usize,
    /// Maximum number of published events per minute. Zero means no limit.
    pub(crate) events_per_minute: u64,
}

impl PerNetworkLimits {
    pub(crate) fn from_config(config: &Config) -> Self {
        Self { max_connections: config.network_max_connections, events_per_minute: config.network_events_per_minute }
    }

    /// Creates the publish budget. Its burst is ten seconds' worth of events, at least a thousand: `ngit` sends all
    /// issues and patches of a repository at once.
    fn publish_budget(self) -> TokenBucket {
        TokenBucket::new(self.events_per_minute, (self.events_per_minute / 6).max(1_000))
    }
}

/// Publish budget of a network, shared by its connections. The lock is held only to update two numbers.
type PublishBudget = Arc<Mutex<TokenBucket>>;

/// Slot of a connection within the limits of its network. Dropping it frees the slot.
pub(crate) struct NetworkSlot {
    /// `None` for a connection that is not limited.
    network: Option<(ClientNetwork, NetworkLimits, PublishBudget)>,
}

impl NetworkSlot {
    /// Returns the network as text, the form in which admission limits requests per network. `None` for a connection
    /// that is not limited.
    pub(crate) fn network_name(&self) -> Option<String> {
        self.network().map(|network| network.to_string())
    }

    /// Returns the network. `None` for a connection that is not limited.
    pub(crate) fn network(&self) -> Option<ClientNetwork> {
        self.network.as_ref().map(|(network, ..)| *network)
    }

    /// Takes one event from the publish budget. Returns false if the budget is used up.
    pub(crate) fn try_publish(&self) -> bool {
        self.network.as_ref().is_none_or(|(_, limits, budget)| lock(budget).take(limits.clock.mono()))
    }
}

impl Drop for NetworkSlot {
    fn drop(&mut self) {
        if let Some((network, limits, _)) = &self.network
            && let Some(usage) = lock(&limits.counters).networks.get_mut(network)
        {
            usage.connections -= 1;
        }
    }
}

/// The limits of all networks. Clones share the counters.
#[derive(Clone)]
pub(crate) struct NetworkLimits {
    counters: Arc<Mutex<NetworkCounters>>,
    clock: Clock,
}

/// The counters of all networks that have connections or have published lately. The lock is held only to claim or free a
/// slot.
struct NetworkCounters {
    limits: PerNetworkLimits,
    networks: HashMap<ClientNetwork, NetworkUsage>,
    /// Number of networks at which idle ones are removed.
    purge_at: usize,
}

/// Number of networks at which idle ones are removed for the first time. The next time is when the number has doubled,
/// so the cost per connection is constant.
const MIN_NETWORKS_TO_PURGE: usize = 1_024;

/// Counters of one network.
struct NetworkUsage {
    connections: usize,
    budget: PublishBudget,
}

impl NetworkLimits {
    pub(crate) fn new(limits: PerNetworkLimits, clock: Clock) -> Self {
        let counters = NetworkCounters { limits, networks: HashMap::new(), purge_at: MIN_NETWORKS_TO_PURGE };
        Self { counters: Arc::new(Mutex::new(counters)), clock }
    }

    /// Changes the limits. Open connections stay open.
    pub(crate) fn set_limits(&self, limits: PerNetworkLimits) {
        let mut counters = lock(&self.counters);
        if limits.events_per_minute != counters.limits.events_per_minute {
            for usage in counters.networks.values() {
                *lock(&usage.budget) = limits.publish_budget();
            }
        }
        counters.limits = limits;
    }

    /// Claims a slot for a connection. `None` if its network has no slot left. A connection without a network is not
    /// limited.
    pub(crate) fn claim(&self, network: Option<ClientNetwork>) -> Option<NetworkSlot> {
        let Some(network) = network else { return Some(NetworkSlot { network: None }) };
        let mut counters = lock(&self.counters);
        let NetworkCounters { limits, networks, purge_at } = &mut *counters;
        if networks.len() >= *purge_at {
            let now = self.clock.mono();
            // A network without connections is kept until its budget is full again, so that reconnecting does not
            // refill it.
            networks.retain(|_, usage| usage.connections > 0 || !lock(&usage.budget).is_full(now));
            *purge_at = MIN_NETWORKS_TO_PURGE.max(2 * networks.len());
        }
        let new_budget = || Arc::new(Mutex::new(limits.publish_budget()));
        let usage = networks.entry(network).or_insert_with(|| NetworkUsage { connections: 0, budget: new_budget() });
        if limits.max_connections > 0 && usage.connections >= limits.max_connections {
            return None;
        }
        usage.connections += 1;
        Some(NetworkSlot { network: Some((network, self.clone(), usage.budget.clone())) })
    }
}

/// Locks a value. No code panics in the middle of a change, so the value behind a poisoned lock is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_24_or_48_bits_and_loopback_has_none() {
        let network = |text: &str| ClientNetwork::from_ip(text.parse().expect("valid address"));
        assert_eq!(network("127.0.0.9"), None);
        assert_eq!(network("::1"), None);
        assert_eq!(network("::ffff:127.0.0.1"), None);
        assert_eq!(network("203.0.113.7"), network("203.0.113.250"));
        assert_eq!(network("::ffff:203.0.113.7"), network("203.0.113.250"));
        assert_ne!(network("203.0.113.7"), network("203.0.114.7"));
        assert_eq!(network("2001:db8:1:2::3"), network("2001:db8:1:ffff::"));
        assert_ne!(network("2001:db8:1::"), network("2001:db8:2::"));
    }

    #[test]
    fn network_slots_are_limited_and_freed_by_dropping() {
        let network_limits =
            NetworkLimits::new(PerNetworkLimits { max_connections: 2, events_per_minute: 60 }, Clock::start());
        let from = |text: &str| ClientNetwork::from_ip(text.parse().expect("valid address"));
        let first = network_limits.claim(from("203.0.113.1")).expect("free");
        let _second = network_limits.claim(from("203.0.113.2")).expect("free");
        assert!(network_limits.claim(from("203.0.113.3")).is_none());
        assert!(network_limits.claim(from("198.51.100.1")).is_some());
        assert!(network_limits.claim(from("127.0.0.1")).is_some());
        let untrusted = [(); 3].map(|()| network_limits.claim(Some(ClientNetwork::UntrustedProxy)));
        assert_eq!(untrusted.map(|slot| slot.is_some()), [true, true, false]);
        assert_eq!((0..2_000).filter(|_| first.try_publish()).count(), 1_000);
        drop(first);
        let again = network_limits.claim(from("203.0.113.1")).expect("the slot is free again");
        assert!(!again.try_publish(), "a new connection does not fill the budget");
        // A connection stays open when the limits are lowered, and publishes within the new ones.
        network_limits.set_limits(PerNetworkLimits { max_connections: 1, events_per_minute: 0 });
        assert!(network_limits.claim(from("203.0.113.9")).is_none());
        assert!((0..2_000).all(|_| again.try_publish()), "zero means no limit");
    }
}
