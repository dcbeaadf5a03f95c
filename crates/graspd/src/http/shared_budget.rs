//! Memory that all clients share, with a limit for each client network, so that one network cannot use all of it.
//!
//! A network also gets at most half of what the others leave. So several networks together cannot use up everything:
//! each of them leaves at least as much as it takes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::network_limits::ClientNetwork;

/// Reason why bytes could not be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BudgetError {
    /// The budget of the whole server is used up.
    Total,
    /// The client's network has its share.
    Network,
}

/// A number of bytes for all clients together, and a share of it that one network may have at most.
pub(crate) struct SharedBudget {
    max_total: usize,
    max_per_network: usize,
    usage: Mutex<BudgetUsage>,
}

/// Reserved bytes. The lock is held only to update two numbers.
#[derive(Default)]
struct BudgetUsage {
    total: usize,
    /// Networks that have reserved something.
    by_network: HashMap<ClientNetwork, usize>,
}

impl SharedBudget {
    pub(crate) fn new(max_total: usize, max_per_network: usize) -> Arc<Self> {
        Arc::new(Self { max_total, max_per_network, usage: Mutex::default() })
    }

    /// Reserves bytes for a client. A client without a network is limited by the total only.
    ///
    /// # Errors
    ///
    /// Fails if the share of the network or the whole budget does not suffice.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        network: Option<ClientNetwork>,
        bytes: usize,
    ) -> Result<BudgetReservation, BudgetError> {
        let mut reservation = BudgetReservation { budget: self.clone(), network, bytes: 0 };
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    /// Returns the reserved bytes and the limit of all networks together.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.lock().total, self.max_total)
    }

    /// No code panics in the middle of a change, so the value behind a poisoned lock is consistent.
    fn lock(&self) -> MutexGuard<'_, BudgetUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that a client has reserved. Dropping it returns them.
pub(crate) struct BudgetReservation {
    budget: Arc<SharedBudget>,
    network: Option<ClientNetwork>,
    bytes: usize,
}

impl BudgetReservation {
    /// Changes the number of reserved bytes. Less is always possible.
    ///
    /// # Errors
    ///
    /// Fails, without a change, if the share of the network or the whole budget does not suffice.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), BudgetError> {
        let mut usage = self.budget.lock();
        let total = usage.total - self.bytes + bytes;
        if bytes > self.bytes && total > self.budget.max_total {
            return Err(BudgetError::Total);
        }
        if let Some(network) = self.network {
            let of_network = usage.by_network.get(&network).copied().unwrap_or_default() - self.bytes + bytes;
            let left_by_others = self.budget.max_total.saturating_sub(total - of_network);
            if bytes > self.bytes && of_network > self.budget.max_per_network.min(left_by_others / 2) {
                return Err(BudgetError::Network);
            }
            if of_network > 0 {
                usage.by_network.insert(network, of_network);
            } else {
                usage.by_network.remove(&network);
            }
        }
        usage.total = total;
        self.bytes = bytes;
        Ok(())
    }

    /// Returns the network whose share the bytes count against.
    pub(crate) fn network(&self) -> Option<ClientNetwork> {
        self.network
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        // Returning bytes does not fail.
        let _ = self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK_A: Option<ClientNetwork> = Some(ClientNetwork::V4([203, 0, 113]));
    const NETWORK_B: Option<ClientNetwork> = Some(ClientNetwork::V4([198, 51, 100]));

    #[test]
    fn networks_have_shares_and_everything_has_a_limit() {
        let budget = SharedBudget::new(100, 40);
        let first = budget.reserve(NETWORK_A, 30).expect("within the share");
        let mut second = budget.reserve(NETWORK_A, 10).expect("within the share");
        assert_eq!(budget.reserve(NETWORK_A, 1).err(), Some(BudgetError::Network));
        assert_eq!(second.resize(11), Err(BudgetError::Network));
        assert_eq!(budget.load(), (40, 100), "a failed reservation changes nothing");
        assert_eq!(budget.reserve(NETWORK_B, 31).err(), Some(BudgetError::Network), "half of what is left");
        let _other = budget.reserve(NETWORK_B, 30).expect("another network has its own share");
        let local = budget.reserve(None, 30).expect("no network, no share");
        assert_eq!(budget.reserve(None, 1).err(), Some(BudgetError::Total));
        second.resize(5).expect("less is always possible");
        assert_eq!(budget.load(), (95, 100));
        drop((first, local));
        assert_eq!(budget.load(), (35, 100));
        second.resize(35).expect("the share is free again");
        drop(second);
        assert_eq!(budget.load(), (30, 100));
        assert!(!budget.lock().by_network.contains_key(&NETWORK_A.expect("a network")), "nothing is left");
    }

    impl std::fmt::Debug for BudgetReservation {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} bytes", self.bytes)
        }
    }
}
