//! A queue of work that is fair among client networks.
//!
//! Networks take turns, and the work of one network is done in order: a thousand queries of one network delay a single
//! query of another by one, not by a thousand.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::network_limits::ClientNetwork;

/// Network of an item. `None` is loopback, which counts as one network.
type NetworkKey = Option<ClientNetwork>;

/// The queue. It has no limit of its own: what one connection may queue is limited where it is queued.
pub(crate) struct NetworkQueue<T> {
    /// A lock, because any thread adds items. It is held only to add or take one.
    queues: Mutex<Queues<T>>,
    added: Condvar,
}

struct Queues<T> {
    /// Items by network, in order of arrival. No queue is empty.
    by_network: HashMap<NetworkKey, VecDeque<T>>,
    /// Networks with items, in the order in which they are served.
    round: VecDeque<NetworkKey>,
    len: usize,
}

impl<T> NetworkQueue<T> {
    pub(crate) fn new() -> Self {
        let queues = Queues { by_network: HashMap::new(), round: VecDeque::new(), len: 0 };
        Self { queues: Mutex::new(queues), added: Condvar::new() }
    }

    /// Adds an item behind the others of its network.
    pub(crate) fn push(&self, network: NetworkKey, item: T) {
        self.lock().push(network, item);
        self.added.notify_one();
    }

    /// Takes the next item, if there is one.
    pub(crate) fn try_pop(&self) -> Option<T> {
        self.lock().pop()
    }

    /// Takes the next item. Waits for one if there is none.
    pub(crate) fn pop(&self) -> T {
        let mut queues = self.lock();
        loop {
            if let Some(item) = queues.pop() {
                return item;
            }
            queues = self.added.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len
    }

    /// No code panics in the middle of a change, so the value behind a poisoned lock is consistent.
    fn lock(&self) -> MutexGuard<'_, Queues<T>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Queues<T> {
    fn push(&mut self, network: NetworkKey, item: T) {
        let queue = self.by_network.entry(network).or_default();
        if queue.is_empty() {
            self.round.push_back(network);
        }
        queue.push_back(item);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let network = self.round.pop_front()?;
        let queue = self.by_network.get_mut(&network)?;
        let item = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            // The memory of a long queue is freed with it.
            self.by_network.remove(&network);
        } else {
            self.round.push_back(network);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn networks_take_turns() {
        let (a, b) = (Some(ClientNetwork::V4([203, 0, 113])), Some(ClientNetwork::V4([198, 51, 100])));
        let queue = NetworkQueue::new();
        for (network, item) in [(a, "a1"), (a, "a2"), (a, "a3"), (b, "b1"), (None, "local"), (b, "b2")] {
            queue.push(network, item);
        }
        assert_eq!(queue.len(), 6);
        let order: Vec<&str> = std::iter::from_fn(|| queue.try_pop()).collect();
        assert_eq!(order, ["a1", "b1", "local", "a2", "b2", "a3"]);
        assert_eq!(queue.len(), 0);
        assert!(queue.lock().by_network.is_empty() && queue.lock().round.is_empty(), "nothing is left");
    }

    #[test]
    fn waiting_thread_gets_the_next_item() {
        let queue = Arc::new(NetworkQueue::new());
        let worker = std::thread::spawn({
            let queue = queue.clone();
            move || (queue.pop(), queue.pop())
        });
        queue.push(None, 1);
        queue.push(None, 2);
        assert_eq!(worker.join().expect("worker has ended"), (1, 2));
    }
}
