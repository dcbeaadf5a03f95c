//! Limits of each client network (IPv4 /24, IPv6 /48): concurrent connections and published events per minute.
//!
//! One task owns the counters. A connection claims a [`NetworkSlot`], which shares the publish budget of its network
//! and frees the slot when it is dropped. Loopback addresses are not limited.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::token_bucket::TokenBucket;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::config::Config;

/// Prefix of a client address: the unit that limits apply to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ClientNetwork {
    V4([u8; 3]),
    V6([u8; 6]),
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
    network: Option<(ClientNetwork, mpsc::UnboundedSender<LimitRequest>, PublishBudget)>,
    clock: Clock,
}

impl NetworkSlot {
    /// Takes one event from the publish budget. Returns false if the budget is used up.
    pub(crate) fn try_publish(&self) -> bool {
        self.network
            .as_ref()
            .is_none_or(|(_, _, budget)| budget.lock().unwrap_or_else(PoisonError::into_inner).take(self.clock.mono()))
    }
}

impl Drop for NetworkSlot {
    fn drop(&mut self) {
        if let Some((network, sender, _)) = &self.network {
            let _ = sender.send(LimitRequest::Release(*network));
        }
    }
}

/// Message to the task that owns the counters.
enum LimitRequest {
    Claim(ClientNetwork, oneshot::Sender<Option<NetworkSlot>>),
    Release(ClientNetwork),
    SetLimits(PerNetworkLimits),
}

/// Handle to the task that owns the counters.
#[derive(Clone)]
pub(crate) struct NetworkLimits {
    sender: mpsc::UnboundedSender<LimitRequest>,
    clock: Clock,
}

impl NetworkLimits {
    /// Starts the task in the runtime of the caller.
    pub(crate) fn start(limits: PerNetworkLimits, clock: Clock) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(run(receiver, sender.downgrade(), limits, clock));
        Self { sender, clock }
    }

    /// Changes the limits. Open connections stay open.
    pub(crate) fn set_limits(&self, limits: PerNetworkLimits) {
        let _ = self.sender.send(LimitRequest::SetLimits(limits));
    }

    /// Claims a slot for a connection from `address`. `None` if its network has no slot left.
    pub(crate) async fn claim(&self, address: IpAddr) -> Option<NetworkSlot> {
        let Some(network) = ClientNetwork::from_ip(address) else {
            return Some(NetworkSlot { network: None, clock: self.clock });
        };
        let (reply, slot) = oneshot::channel();
        let _ = self.sender.send(LimitRequest::Claim(network, reply));
        slot.await.ok()?
    }
}

/// Number of networks at which idle ones are removed for the first time. The next time is when the number has doubled,
/// so the cost per connection is constant.
const MIN_NETWORKS_TO_PURGE: usize = 1_024;

/// Counters of one network.
struct NetworkUsage {
    connections: usize,
    budget: PublishBudget,
}

/// Handles the messages until the last handle and the last slot are dropped.
async fn run(
    mut requests: mpsc::UnboundedReceiver<LimitRequest>,
    sender: mpsc::WeakUnboundedSender<LimitRequest>,
    mut limits: PerNetworkLimits,
    clock: Clock,
) {
    let mut networks: HashMap<ClientNetwork, NetworkUsage> = HashMap::new();
    let mut purge_at = MIN_NETWORKS_TO_PURGE;
    while let Some(request) = requests.recv().await {
        match request {
            LimitRequest::Claim(network, reply) => {
                let usage = networks.entry(network).or_insert_with(|| NetworkUsage {
                    connections: 0,
                    budget: Arc::new(Mutex::new(limits.publish_budget())),
                });
                let is_free = limits.max_connections == 0 || usage.connections < limits.max_connections;
                let slot = sender.upgrade().filter(|_| is_free).map(|sender| {
                    usage.connections += 1;
                    NetworkSlot { network: Some((network, sender, usage.budget.clone())), clock }
                });
                // If the connection is closed already, the slot is dropped here, which frees it again.
                let _ = reply.send(slot);
            }
            LimitRequest::SetLimits(new) => {
                if new.events_per_minute != limits.events_per_minute {
                    for usage in networks.values() {
                        *usage.budget.lock().unwrap_or_else(PoisonError::into_inner) = new.publish_budget();
                    }
                }
                limits = new;
            }
            LimitRequest::Release(network) => {
                if let Some(usage) = networks.get_mut(&network) {
                    usage.connections = usage.connections.saturating_sub(1);
                }
            }
        }
        // A network without connections is kept until its budget is full again, so that reconnecting does not refill
        // it.
        if networks.len() >= purge_at {
            let now = clock.mono();
            networks.retain(|_, usage| {
                usage.connections > 0 || !usage.budget.lock().unwrap_or_else(PoisonError::into_inner).is_full(now)
            });
            purge_at = MIN_NETWORKS_TO_PURGE.max(2 * networks.len());
        }
    }
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

    #[tokio::test]
    async fn cancelled_claim_takes_no_slot() {
        let network_limits =
            NetworkLimits::start(PerNetworkLimits { max_connections: 1, events_per_minute: 60 }, Clock::start());
        let from = |text: &str| text.parse::<IpAddr>().expect("valid address");
        let mut claim = Box::pin(network_limits.claim(from("203.0.113.1")));
        tokio::select! {
            biased;
            _ = claim.as_mut() => panic!("the task cannot have replied yet"),
            () = std::future::ready(()) => {}
        }
        // When the reply to this claim arrives, the reply to the first one has been sent.
        assert!(network_limits.claim(from("198.51.100.1")).await.is_some());
        drop(claim);
        assert!(network_limits.claim(from("203.0.113.1")).await.is_some());
    }

    #[tokio::test]
    async fn network_slots_are_limited_and_freed_by_dropping() {
        let network_limits =
            NetworkLimits::start(PerNetworkLimits { max_connections: 2, events_per_minute: 60 }, Clock::start());
        let from = |text: &str| text.parse::<IpAddr>().expect("valid address");
        let first = network_limits.claim(from("203.0.113.1")).await.expect("free");
        let _second = network_limits.claim(from("203.0.113.2")).await.expect("free");
        assert!(network_limits.claim(from("203.0.113.3")).await.is_none());
        assert!(network_limits.claim(from("198.51.100.1")).await.is_some());
        assert!(network_limits.claim(from("127.0.0.1")).await.is_some());
        assert_eq!((0..2_000).filter(|_| first.try_publish()).count(), 1_000);
        drop(first);
        // Release and claim are messages on one channel, so the release is handled first.
        let again = network_limits.claim(from("203.0.113.1")).await.expect("the slot is free again");
        assert!(!again.try_publish(), "a new connection does not fill the budget");
        // A connection stays open when the limits are lowered, and publishes within the new ones.
        network_limits.set_limits(PerNetworkLimits { max_connections: 1, events_per_minute: 0 });
        assert!(network_limits.claim(from("203.0.113.9")).await.is_none());
        assert!((0..2_000).all(|_| again.try_publish()), "zero means no limit");
    }
}
