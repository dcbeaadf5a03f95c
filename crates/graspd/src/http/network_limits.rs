//! Budgets of the networks that clients come from: IPv4 /24, IPv6 /48.
//!
//! One task owns the books. A connection gets a [`NetworkSlot`] with its network's publish budget and gives it back by being
//! dropped. Loopback has no budget.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::remote_limits::TokenBucket;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::config::Config;

/// A network, as far as budgets care.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Network {
    V4([u8; 3]),
    V6([u8; 6]),
}

impl fmt::Display for Network {
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

impl Network {
    /// The network of an address; `None` for loopback, which has no budget.
    pub(crate) fn of(address: IpAddr) -> Option<Self> {
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

/// What one network may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allowance {
    /// Connections at once; zero means any number.
    pub(crate) connections: usize,
    /// Events a minute; zero means any number.
    pub(crate) events_per_minute: u64,
}

impl Allowance {
    /// What the settings say.
    pub(crate) fn of(config: &Config) -> Self {
        Self { connections: config.network_max_connections, events_per_minute: config.network_events_per_minute }
    }

    /// A network may publish ten seconds' worth, and at least a thousand events, in one breath: `ngit` sends a whole
    /// repository's history of issues and patches at once.
    fn bucket(self) -> TokenBucket {
        TokenBucket::new(self.events_per_minute, (self.events_per_minute / 6).max(1_000))
    }
}

/// A network's publish budget, shared by its connections. The lock guards two numbers for an instant.
type Budget = Arc<Mutex<TokenBucket>>;

/// A connection's place in the books.
pub(crate) struct NetworkSlot {
    network: Option<(Network, mpsc::UnboundedSender<Request>, Budget)>,
    clock: Clock,
}

impl NetworkSlot {
    /// Takes the right to publish one event.
    pub(crate) fn may_publish(&self) -> bool {
        self.network
            .as_ref()
            .is_none_or(|(_, _, budget)| budget.lock().unwrap_or_else(PoisonError::into_inner).take(self.clock.mono()))
    }
}

impl Drop for NetworkSlot {
    fn drop(&mut self) {
        if let Some((network, books, _)) = &self.network {
            let _ = books.send(Request::Leave(*network));
        }
    }
}

enum Request {
    Enter(Network, oneshot::Sender<Option<NetworkSlot>>),
    Leave(Network),
    Allow(Allowance),
}

/// Where connections ask for a place.
#[derive(Clone)]
pub(crate) struct NetworkLimits {
    sender: mpsc::UnboundedSender<Request>,
    clock: Clock,
}

impl NetworkLimits {
    /// Starts the task that owns the books.
    pub(crate) fn open(allowance: Allowance, clock: Clock) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(keep_books(receiver, sender.downgrade(), allowance, clock));
        Self { sender, clock }
    }

    /// Changes what networks may use. Whoever is there stays.
    pub(crate) fn allow(&self, allowance: Allowance) {
        let _ = self.sender.send(Request::Allow(allowance));
    }

    /// A place for a connection from this address, if its network has one left.
    pub(crate) async fn enter(&self, address: IpAddr) -> Option<NetworkSlot> {
        let Some(network) = Network::of(address) else {
            return Some(NetworkSlot { network: None, clock: self.clock });
        };
        let (reply, answer) = oneshot::channel();
        let _ = self.sender.send(Request::Enter(network, reply));
        answer.await.ok()?
    }
}

/// How many accounts there must be before it is worth looking for idle ones; then again when they have doubled, so that
/// the looking costs little whatever the number.
const SWEEP_AT: usize = 1_024;

struct Account {
    connections: usize,
    budget: Budget,
}

async fn keep_books(
    mut requests: mpsc::UnboundedReceiver<Request>,
    door: mpsc::WeakUnboundedSender<Request>,
    mut allowance: Allowance,
    clock: Clock,
) {
    let mut accounts: HashMap<Network, Account> = HashMap::new();
    let mut sweep_at = SWEEP_AT;
    while let Some(request) = requests.recv().await {
        match request {
            Request::Enter(network, reply) => {
                let account = accounts
                    .entry(network)
                    .or_insert_with(|| Account { connections: 0, budget: Arc::new(Mutex::new(allowance.bucket())) });
                let free = allowance.connections == 0 || account.connections < allowance.connections;
                let place = door.upgrade().filter(|_| free).map(|door| {
                    account.connections += 1;
                    NetworkSlot { network: Some((network, door, account.budget.clone())), clock }
                });
                // A client that has gone meanwhile never takes its place, which is then dropped and so given back.
                let _ = reply.send(place);
            }
            Request::Allow(new) => {
                if new.events_per_minute != allowance.events_per_minute {
                    for account in accounts.values() {
                        *account.budget.lock().unwrap_or_else(PoisonError::into_inner) = new.bucket();
                    }
                }
                allowance = new;
            }
            Request::Leave(network) => {
                if let Some(account) = accounts.get_mut(&network) {
                    account.connections = account.connections.saturating_sub(1);
                }
            }
        }
        // A network without connections is remembered until its budget is full again, so that reconnecting gains nothing.
        if accounts.len() >= sweep_at {
            let now = clock.mono();
            accounts.retain(|_, account| {
                account.connections > 0 || !account.budget.lock().unwrap_or_else(PoisonError::into_inner).is_full(now)
            });
            sweep_at = SWEEP_AT.max(2 * accounts.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_24_and_48_bits_and_loopback_is_none() {
        let network = |text: &str| Network::of(text.parse().expect("an address"));
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
    async fn whoever_leaves_before_the_answer_takes_no_place() {
        let door = NetworkLimits::open(Allowance { connections: 1, events_per_minute: 60 }, Clock::start());
        let from = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut entering = Box::pin(door.enter(from("203.0.113.1")));
        tokio::select! {
            biased;
            _ = entering.as_mut() => panic!("nobody has answered yet"),
            () = std::future::ready(()) => {}
        }
        // When this one has its answer, the first has been sent its own.
        assert!(door.enter(from("198.51.100.1")).await.is_some());
        drop(entering);
        assert!(door.enter(from("203.0.113.1")).await.is_some());
    }

    #[tokio::test]
    async fn a_network_has_so_many_places_and_gets_them_back() {
        let door = NetworkLimits::open(Allowance { connections: 2, events_per_minute: 60 }, Clock::start());
        let from = |text: &str| text.parse::<IpAddr>().expect("an address");
        let first = door.enter(from("203.0.113.1")).await.expect("free");
        let _second = door.enter(from("203.0.113.2")).await.expect("free");
        assert!(door.enter(from("203.0.113.3")).await.is_none());
        assert!(door.enter(from("198.51.100.1")).await.is_some());
        assert!(door.enter(from("127.0.0.1")).await.is_some());
        assert_eq!((0..2_000).filter(|_| first.may_publish()).count(), 1_000);
        drop(first);
        // Leaving and entering are messages on one channel: the leave is heard first.
        let again = door.enter(from("203.0.113.1")).await.expect("the place was given back");
        assert!(!again.may_publish(), "a new connection does not fill the budget");
        // Who is there stays when the allowance shrinks, and publishes within the new one.
        door.allow(Allowance { connections: 1, events_per_minute: 0 });
        assert!(door.enter(from("203.0.113.9")).await.is_none());
        assert!((0..2_000).all(|_| again.may_publish()), "zero means any number");
    }
}
