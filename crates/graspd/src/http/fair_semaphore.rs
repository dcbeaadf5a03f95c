//! A semaphore for expensive work that is fair among client networks.
//!
//! Requests that find no free permit wait. Waiting networks are served in turn, and within a network requests are
//! served in order of arrival: fifty requests of one network delay a single request of another by one permit, not by
//! fifty. A network holds at most a part of the permits ([`limits::MAX_NETWORK_SHARE_PERCENT`]), so that work that takes
//! long does not occupy all of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_core::limits;
use tokio::sync::oneshot;

use crate::http::network_limits::ClientNetwork;

/// Network of a request. `None` is loopback, which is served in turn like a network, but may hold all permits.
type NetworkKey = Option<ClientNetwork>;

/// Error of [`FairSemaphore::acquire`]: too many requests wait already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueFull {
    /// The limit of all waiting requests is reached.
    Total,
    /// The limit of waiting requests of this network is reached.
    PerNetwork,
}

/// Use of a semaphore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SemaphoreLoad {
    pub(crate) capacity: usize,
    pub(crate) in_use: usize,
    pub(crate) waiting: usize,
}

/// A bounded number of permits, and the queues of requests that wait for one.
#[derive(Debug)]
pub(crate) struct FairSemaphore {
    capacity: usize,
    max_waiting: usize,
    max_waiting_per_network: usize,
    /// Permits that one network may hold.
    max_held_per_network: usize,
    /// A lock, because permits are returned by any thread. It is held only briefly.
    queues: Mutex<WaitQueues>,
}

#[derive(Debug, Default)]
struct WaitQueues {
    /// Number of free permits. While it is not zero, only requests of networks that hold their share wait.
    free: usize,
    /// Number of permits that each network holds. No number is zero.
    held: HashMap<ClientNetwork, usize>,
    waiting: usize,
    /// Waiting requests by network, in order of arrival. No queue is empty.
    by_network: HashMap<NetworkKey, VecDeque<Waiter>>,
    /// Networks with waiting requests, in the order in which they are served.
    round: VecDeque<NetworkKey>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    /// Ascends within a queue.
    ticket: u64,
    sender: oneshot::Sender<FairPermit>,
}

/// A permit. Dropping it, on any thread, passes it on to the next waiting request.
#[derive(Debug)]
pub(crate) struct FairPermit {
    /// `None` only while the permit is being returned.
    semaphore: Option<Arc<FairSemaphore>>,
    network: NetworkKey,
}

impl FairSemaphore {
    /// Creates a semaphore with `capacity` permits (at least one), for which at most `max_waiting` requests wait in all
    /// and at most `max_waiting_per_network` of one network. A network may hold
    /// [`limits::MAX_NETWORK_SHARE_PERCENT`] of the permits, and always one.
    pub(crate) fn new(capacity: usize, max_waiting: usize, max_waiting_per_network: usize) -> Arc<Self> {
        let capacity = capacity.max(1);
        let max_held_per_network = (capacity * limits::MAX_NETWORK_SHARE_PERCENT / 100).max(1);
        let queues = Mutex::new(WaitQueues { free: capacity, ..WaitQueues::default() });
        Arc::new(Self { capacity, max_waiting, max_waiting_per_network, max_held_per_network, queues })
    }

    /// Takes a permit, or waits for one. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// Fails immediately if too many requests wait already.
    pub(crate) async fn acquire(self: &Arc<Self>, network: NetworkKey) -> Result<FairPermit, QueueFull> {
        let (_position, receiver) = {
            let mut queues = self.queues();
            if queues.free > 0 && !queues.has_share(network, self.max_held_per_network) {
                queues.take(network);
                return Ok(FairPermit { semaphore: Some(self.clone()), network });
            }
            if queues.by_network.get(&network).map_or(0, VecDeque::len) >= self.max_waiting_per_network {
                return Err(QueueFull::PerNetwork);
            }
            if queues.waiting >= self.max_waiting {
                return Err(QueueFull::Total);
            }
            let (sender, receiver) = oneshot::channel();
            let ticket = queues.push(network, sender);
            (WaitingRequest { semaphore: self.clone(), network, ticket }, receiver)
        };
        // The sender is dropped without a permit only together with the queues, which live as long as `self`.
        receiver.await.map_err(|_| QueueFull::Total)
    }

    /// Returns the number of permits, of permits in use and of waiting requests.
    pub(crate) fn load(&self) -> SemaphoreLoad {
        let queues = self.queues();
        let in_use = self.capacity.saturating_sub(queues.free);
        SemaphoreLoad { capacity: self.capacity, in_use, waiting: queues.waiting }
    }

    /// Returns true if a request waits that would get a permit of `network` if it were returned.
    pub(crate) fn is_contended(&self, network: NetworkKey) -> bool {
        let queues = self.queues();
        let mut waiting = queues.round.iter();
        waiting.any(|other| *other == network || !queues.has_share(*other, self.max_held_per_network))
    }

    /// Makes a permit of a network free, and passes it on to the next waiting request that may have it.
    fn release(self: Arc<Self>, network: NetworkKey) {
        let mut returned = Some((self, network));
        while let Some((semaphore, network)) = returned.take() {
            let mut queues = semaphore.queues();
            queues.put_back(network);
            let Some((network, sender)) = queues.pop(semaphore.max_held_per_network) else { return };
            queues.take(network);
            drop(queues);
            // A request that has just been cancelled returns the permit, which then goes to the next one.
            if let Err(mut permit) = sender.send(FairPermit { semaphore: Some(semaphore), network }) {
                returned = permit.semaphore.take().map(|semaphore| (semaphore, network));
            }
        }
    }

    fn queues(&self) -> MutexGuard<'_, WaitQueues> {
        // No change of the queues can panic half-way, so a poisoned lock is still consistent.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitQueues {
    fn push(&mut self, network: NetworkKey, sender: oneshot::Sender<FairPermit>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let queue = self.by_network.entry(network).or_default();
        if queue.is_empty() {
            self.round.push_back(network);
        }
        queue.push_back(Waiter { ticket, sender });
        ticket
    }

    /// Returns true if a network holds as many permits as it may.
    fn has_share(&self, network: NetworkKey, max_held: usize) -> bool {
        network.is_some_and(|network| self.held.get(&network).is_some_and(|held| *held >= max_held))
    }

    /// Takes a free permit for a network.
    fn take(&mut self, network: NetworkKey) {
        self.free -= 1;
        if let Some(network) = network {
            *self.held.entry(network).or_default() += 1;
        }
    }

    /// Makes a permit of a network free.
    fn put_back(&mut self, network: NetworkKey) {
        self.free += 1;
        let Some(network) = network else { return };
        match self.held.get_mut(&network) {
            Some(held) if *held > 1 => *held -= 1,
            _ => drop(self.held.remove(&network)),
        }
    }

    /// Removes the first request of the network whose turn it is, and moves that network to the end of the round.
    /// Networks that hold their share keep their position.
    fn pop(&mut self, max_held: usize) -> Option<(NetworkKey, oneshot::Sender<FairPermit>)> {
        let at = self.round.iter().position(|network| !self.has_share(*network, max_held))?;
        let network = self.round.remove(at)?;
        let queue = self.by_network.get_mut(&network)?;
        let waiter = queue.pop_front()?;
        if queue.is_empty() {
            self.by_network.remove(&network);
        } else {
            self.round.push_back(network);
        }
        self.waiting -= 1;
        Some((network, waiter.sender))
    }

    /// Removes a request from its queue, if it is still there.
    fn remove(&mut self, network: NetworkKey, ticket: u64) {
        let Some(queue) = self.by_network.get_mut(&network) else { return };
        let Ok(at) = queue.binary_search_by_key(&ticket, |waiter| waiter.ticket) else { return };
        queue.remove(at);
        self.waiting -= 1;
        if queue.is_empty() {
            self.by_network.remove(&network);
            self.round.retain(|other| *other != network);
        }
    }
}

/// Position of a request in its queue. Dropping it removes the request.
struct WaitingRequest {
    semaphore: Arc<FairSemaphore>,
    network: NetworkKey,
    ticket: u64,
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.semaphore.queues().remove(self.network, self.ticket);
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        if let Some(semaphore) = self.semaphore.take() {
            semaphore.release(self.network);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use grasp_sim::random::Rng;

    use super::*;

    type AcquireFuture = Pin<Box<dyn Future<Output = Result<FairPermit, QueueFull>> + Send>>;

    /// Starts to acquire a permit. The future has been polled once.
    fn start(
        semaphore: &Arc<FairSemaphore>,
        network: NetworkKey,
    ) -> (AcquireFuture, Option<Result<FairPermit, QueueFull>>) {
        let semaphore = semaphore.clone();
        let mut future: AcquireFuture = Box::pin(async move { semaphore.acquire(network).await });
        let first = poll(&mut future);
        (future, first)
    }

    fn poll(future: &mut AcquireFuture) -> Option<Result<FairPermit, QueueFull>> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Starts to acquire a permit that is not free.
    fn wait(semaphore: &Arc<FairSemaphore>, network: NetworkKey) -> AcquireFuture {
        let (future, first) = start(semaphore, network);
        assert!(first.is_none(), "a permit was free");
        future
    }

    fn now(semaphore: &Arc<FairSemaphore>, network: NetworkKey) -> FairPermit {
        start(semaphore, network).1.expect("a result without waiting").expect("a permit")
    }

    fn network(nth: u8) -> NetworkKey {
        Some(ClientNetwork::V4([203, 0, nth]))
    }

    /// Passes one permit through all waiting requests and returns the order in which they got it.
    fn serve_all(held: FairPermit, mut waiting: Vec<(&'static str, AcquireFuture)>) -> Vec<&'static str> {
        let mut served = Vec::new();
        drop(held);
        while !waiting.is_empty() {
            let ready: Vec<(usize, Result<FairPermit, QueueFull>)> =
                waiting.iter_mut().enumerate().filter_map(|(at, (_, future))| Some((at, poll(future)?))).collect();
            assert_eq!(ready.len(), 1, "one permit serves one request at a time");
            served.push(waiting.remove(ready[0].0).0);
        }
        served
    }

    fn expect_idle(semaphore: &FairSemaphore, capacity: usize) {
        let queues = semaphore.queues();
        assert_eq!((queues.free, queues.waiting, queues.by_network.len(), queues.round.len()), (capacity, 0, 0, 0));
        assert_eq!(queues.held.len(), 0);
    }

    #[test]
    fn networks_are_served_in_turn_and_each_in_order_of_arrival() {
        let semaphore = FairSemaphore::new(1, 100, 100);
        let held = now(&semaphore, network(1));
        let mut waiting: Vec<(&str, AcquireFuture)> = Vec::new();
        for _ in 0..50 {
            waiting.push(("a", wait(&semaphore, network(1))));
        }
        waiting.push(("b", wait(&semaphore, network(2))));
        waiting.push(("loopback", wait(&semaphore, None)));
        waiting.push(("loopback", wait(&semaphore, None)));
        let served = serve_all(held, waiting);
        assert_eq!(served[..6], ["a", "b", "loopback", "a", "loopback", "a"]);
        assert_eq!(served.len(), 53);
        expect_idle(&semaphore, 1);

        let held = now(&semaphore, None);
        let names = ["first", "second", "third"];
        assert_eq!(serve_all(held, names.map(|name| (name, wait(&semaphore, network(1)))).into()), names);
    }

    #[test]
    fn full_queue_rejects_at_once_and_names_the_limit() {
        let semaphore = FairSemaphore::new(2, 3, 2);
        let held = [now(&semaphore, network(1)), now(&semaphore, network(2))];
        let rejection = |nth| start(&semaphore, network(nth)).1.expect("a result without waiting").err();
        let first = wait(&semaphore, network(1));
        let _second = wait(&semaphore, network(1));
        assert_eq!(rejection(1), Some(QueueFull::PerNetwork));
        let _third = wait(&semaphore, network(2));
        assert_eq!(rejection(2), Some(QueueFull::Total));
        assert_eq!(rejection(1), Some(QueueFull::PerNetwork), "the limit of the network is checked first");
        drop(first);
        let _fourth = wait(&semaphore, network(2));
        drop(held);
    }

    #[test]
    fn network_holds_at_most_its_share() {
        let semaphore = FairSemaphore::new(4, 100, 100);
        let mut of_first = vec![now(&semaphore, network(1)), now(&semaphore, network(1)), now(&semaphore, network(1))];
        let mut waiting = wait(&semaphore, network(1));
        assert_eq!(semaphore.load(), SemaphoreLoad { capacity: 4, in_use: 3, waiting: 1 });
        assert!(semaphore.is_contended(network(1)) && !semaphore.is_contended(network(2)));
        let of_second = now(&semaphore, network(2));
        assert!(!semaphore.is_contended(network(2)), "its permit is of no use to the first network");
        let mut third = wait(&semaphore, network(3));
        assert!(semaphore.is_contended(network(2)));
        // A permit of the second network goes to the third, although the first has waited longer.
        drop(of_second);
        assert!(poll(&mut waiting).is_none());
        let of_third = poll(&mut third).expect("the permit was passed on").expect("a permit");
        drop(of_third);
        assert!(poll(&mut waiting).is_none());
        of_first.pop();
        of_first.push(poll(&mut waiting).expect("the permit was passed on").expect("a permit"));
        // A request that is cancelled after it got its permit does not count.
        let (cancelled, mut next) = (wait(&semaphore, network(1)), wait(&semaphore, network(1)));
        of_first.pop();
        drop(cancelled);
        of_first.push(poll(&mut next).expect("the permit was passed on").expect("a permit"));
        drop(of_first);
        expect_idle(&semaphore, 4);
        // Programs on this machine are not limited.
        let _all: Vec<FairPermit> = (0..4).map(|_| now(&semaphore, None)).collect();
    }

    #[test]
    fn capacity_is_at_least_one_and_no_request_waits_if_none_may() {
        let semaphore = FairSemaphore::new(0, 0, 0);
        let held = now(&semaphore, None);
        assert_eq!(start(&semaphore, None).1.expect("a result without waiting").err(), Some(QueueFull::PerNetwork));
        drop(held);
        drop(now(&semaphore, None));
        expect_idle(&semaphore, 1);
    }

    #[test]
    fn cancelled_requests_leave_the_queue() {
        let semaphore = FairSemaphore::new(1, 10, 10);
        let held = now(&semaphore, None);
        let (first, second) = (wait(&semaphore, network(1)), wait(&semaphore, network(1)));
        let mut third = wait(&semaphore, network(2));
        drop(first);
        drop(second);
        assert_eq!(semaphore.queues().waiting, 1);
        drop(held);
        let permit = poll(&mut third).expect("the permit was passed on").expect("a permit");

        // A request that is cancelled after it got its permit passes it on to the next one.
        let cancelled = wait(&semaphore, network(1));
        let mut next = wait(&semaphore, network(1));
        drop(permit);
        assert!(poll(&mut next).is_none());
        drop(cancelled);
        drop(poll(&mut next).expect("the permit was passed on"));
        expect_idle(&semaphore, 1);
    }

    #[test]
    fn permit_may_be_dropped_on_another_thread() {
        let semaphore = FairSemaphore::new(1, 10, 10);
        let held = now(&semaphore, None);
        let mut next = wait(&semaphore, None);
        std::thread::spawn(move || drop(held)).join().expect("the thread panicked");
        drop(poll(&mut next).expect("the permit was passed on"));
        expect_idle(&semaphore, 1);
    }

    /// Sixty-four clients of six networks acquire, hold and drop permits on any thread, and cancel, at random.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_permit_is_lost_or_duplicated() {
        const CAPACITY: usize = 3;
        let semaphore = FairSemaphore::new(CAPACITY, 40, 12);
        let (working, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..64).map(|seed| {
            let (semaphore, working, served) = (semaphore.clone(), working.clone(), served.clone());
            tokio::spawn(async move {
                let mut rng = Rng::new(seed);
                for _ in 0..300 {
                    let key = network(u8::try_from(seed % 6).expect("small")).filter(|_| seed % 6 != 0);
                    let cancel_after = rng.below(12);
                    let acquired = tokio::select! {
                        acquired = semaphore.acquire(key) => acquired,
                        () = yields(cancel_after) => continue,
                    };
                    let Ok(permit) = acquired else {
                        yields(1).await;
                        continue;
                    };
                    assert!(working.fetch_add(1, Ordering::SeqCst) < CAPACITY, "more permits than the capacity");
                    yields(rng.below(4)).await;
                    served.fetch_add(1, Ordering::SeqCst);
                    working.fetch_sub(1, Ordering::SeqCst);
                    if rng.one_in(8) {
                        tokio::task::spawn_blocking(move || drop(permit)).await.expect("the thread panicked");
                    }
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let all = async {
            for client in clients {
                client.await.expect("the client panicked");
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("a request waits for ever");
        assert!(served.load(Ordering::SeqCst) > 300, "{served:?} permits were acquired");
        expect_idle(&semaphore, CAPACITY);
    }

    async fn yields(count: usize) {
        for _ in 0..count {
            tokio::task::yield_now().await;
        }
    }
}
