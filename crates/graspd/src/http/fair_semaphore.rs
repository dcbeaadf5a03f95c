//! FairSemaphore at costly work: so many at a time, and everybody's network in turn.
//!
//! Whoever finds no free place waits. Networks that wait are served one after the other, and inside a network first come
//! is first served: a network that asks for fifty turns at once delays another's single one by one turn, not by fifty.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::http::network_limits::Network;

/// Who waits: a network, or `None` for loopback, which is one network like any other.
type Party = Option<Network>;

/// Why there is no waiting for a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// As many wait as may wait in all.
    Everybody,
    /// As many wait as may wait from this network.
    Network,
}

/// How busy it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Load {
    pub(crate) places: usize,
    pub(crate) busy: usize,
    pub(crate) waiting: usize,
}

/// A bounded number of places and the queue before them.
#[derive(Debug)]
pub(crate) struct FairSemaphore {
    places: usize,
    most_waiting: usize,
    most_waiting_per_network: usize,
    /// ConnectionLimit are given back by any thread, so a lock guards the books, for an instant.
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    /// ConnectionLimit that nobody has. While there is one, nobody waits.
    free: usize,
    waiting: usize,
    /// Who waits, by network, in order of arrival. No line is empty.
    lines: HashMap<Party, VecDeque<Waiter>>,
    /// The networks that wait, in the order in which they are served next.
    round: VecDeque<Party>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    /// Ascends inside a line.
    ticket: u64,
    call: oneshot::Sender<FairPermit>,
}

/// A place, given back when it is dropped, wherever that is.
#[derive(Debug)]
pub(crate) struct FairPermit {
    /// `None` only while it is being given back.
    turns: Option<Arc<FairSemaphore>>,
}

impl FairSemaphore {
    /// So many places (at least one), and so many that may wait for one in all and from one network.
    pub(crate) fn new(places: usize, most_waiting: usize, most_waiting_per_network: usize) -> Arc<Self> {
        let books =
            Books { free: places.max(1), waiting: 0, lines: HashMap::new(), round: VecDeque::new(), next_ticket: 0 };
        Arc::new(Self { places: places.max(1), most_waiting, most_waiting_per_network, books: Mutex::new(books) })
    }

    /// Takes a place, or waits for one. Refuses at once when too many wait already; whoever stops waiting leaves the
    /// queue.
    pub(crate) async fn take(self: &Arc<Self>, network: Party) -> Result<FairPermit, Busy> {
        let (_queued, called) = match self.ask(network)? {
            Acquired::Now(turn) => return Ok(turn),
            Acquired::Later(queued, called) => (queued, called),
        };
        // The caller goes away without calling only if the books are gone, and they live as long as `self`.
        called.await.map_err(|_| Busy::Everybody)
    }

    /// How many places there are, how many of them are taken, and how many wait.
    pub(crate) fn load(&self) -> Load {
        let books = self.books();
        Load { places: self.places, busy: self.places.saturating_sub(books.free), waiting: books.waiting }
    }

    /// Whether anybody waits.
    pub(crate) fn are_waited_for(&self) -> bool {
        self.books().waiting > 0
    }

    fn ask(self: &Arc<Self>, network: Party) -> Result<Acquired, Busy> {
        let mut books = self.books();
        if books.free > 0 {
            books.free -= 1;
            return Ok(Acquired::Now(FairPermit { turns: Some(self.clone()) }));
        }
        if books.lines.get(&network).map_or(0, VecDeque::len) >= self.most_waiting_per_network {
            return Err(Busy::Network);
        }
        if books.waiting >= self.most_waiting {
            return Err(Busy::Everybody);
        }
        let (call, called) = oneshot::channel();
        let ticket = books.join(network, call);
        Ok(Acquired::Later(Queued { turns: self.clone(), network, ticket }, called))
    }

    /// Passes a place on to whoever is next, or keeps it free.
    fn give_back(self: Arc<Self>) {
        let mut turns = self;
        loop {
            let mut books = turns.books();
            let Some(call) = books.next() else {
                books.free += 1;
                return;
            };
            drop(books);
            // Whoever has just stopped waiting hands the place back, and the next is called.
            match call.send(FairPermit { turns: Some(turns) }).map_err(|mut turn| turn.turns.take()) {
                Err(Some(returned)) => turns = returned,
                Ok(()) | Err(None) => return,
            }
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing in here panics half-way through a change.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Acquired {
    Now(FairPermit),
    Later(Queued, oneshot::Receiver<FairPermit>),
}

impl Books {
    fn join(&mut self, network: Party, call: oneshot::Sender<FairPermit>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let line = self.lines.entry(network).or_default();
        if line.is_empty() {
            self.round.push_back(network);
        }
        line.push_back(Waiter { ticket, call });
        ticket
    }

    /// The first of the network whose turn it is; the network goes to the end of the round.
    fn next(&mut self) -> Option<oneshot::Sender<FairPermit>> {
        let network = self.round.pop_front()?;
        let line = self.lines.get_mut(&network)?;
        let waiter = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&network);
        } else {
            self.round.push_back(network);
        }
        self.waiting -= 1;
        Some(waiter.call)
    }

    /// Takes a waiter out of its line, if it is still there.
    fn leave(&mut self, network: Party, ticket: u64) {
        let Some(line) = self.lines.get_mut(&network) else { return };
        let Ok(at) = line.binary_search_by_key(&ticket, |waiter| waiter.ticket) else { return };
        line.remove(at);
        self.waiting -= 1;
        if line.is_empty() {
            self.lines.remove(&network);
            self.round.retain(|other| *other != network);
        }
    }
}

/// A place in the queue. It is left when nobody waits there any more.
struct Queued {
    turns: Arc<FairSemaphore>,
    network: Party,
    ticket: u64,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.turns.books().leave(self.network, self.ticket);
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use grasp_sim::random::Chance;

    use super::*;

    type Taking = Pin<Box<dyn Future<Output = Result<FairPermit, Busy>> + Send>>;

    /// Begins to take a turn; the future has been polled once.
    fn begin(turns: &Arc<FairSemaphore>, network: Party) -> (Taking, Option<Result<FairPermit, Busy>>) {
        let turns = turns.clone();
        let mut taking: Taking = Box::pin(async move { turns.take(network).await });
        let first = look(&mut taking);
        (taking, first)
    }

    fn look(taking: &mut Taking) -> Option<Result<FairPermit, Busy>> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Begins to wait; there must be a reason to.
    fn wait(turns: &Arc<FairSemaphore>, network: Party) -> Taking {
        let (taking, first) = begin(turns, network);
        assert!(first.is_none(), "it has to wait");
        taking
    }

    fn now(turns: &Arc<FairSemaphore>, network: Party) -> FairPermit {
        begin(turns, network).1.expect("at once").expect("a turn")
    }

    fn network(nth: u8) -> Party {
        Some(Network::V4([203, 0, nth]))
    }

    /// Lets everybody have a turn, one after the other, and says who had it.
    fn order(held: FairPermit, mut waiting: Vec<(&'static str, Taking)>) -> Vec<&'static str> {
        let mut served = Vec::new();
        drop(held);
        while !waiting.is_empty() {
            let called: Vec<(usize, Result<FairPermit, Busy>)> =
                waiting.iter_mut().enumerate().filter_map(|(at, (_, taking))| Some((at, look(taking)?))).collect();
            assert_eq!(called.len(), 1, "one place, one at a time");
            served.push(waiting.remove(called[0].0).0);
        }
        served
    }

    fn expect_idle(turns: &FairSemaphore, places: usize) {
        let books = turns.books();
        assert_eq!((books.free, books.waiting, books.lines.len(), books.round.len()), (places, 0, 0, 0));
    }

    #[test]
    fn networks_take_turns_and_inside_one_the_first_is_first() {
        let turns = FairSemaphore::new(1, 100, 100);
        let held = now(&turns, network(1));
        let mut waiting: Vec<(&str, Taking)> = Vec::new();
        for _ in 0..50 {
            waiting.push(("a", wait(&turns, network(1))));
        }
        waiting.push(("b", wait(&turns, network(2))));
        waiting.push(("loopback", wait(&turns, None)));
        waiting.push(("loopback", wait(&turns, None)));
        let served = order(held, waiting);
        assert_eq!(served[..6], ["a", "b", "loopback", "a", "loopback", "a"]);
        assert_eq!(served.len(), 53);
        expect_idle(&turns, 1);

        let held = now(&turns, None);
        let names = ["first", "second", "third"];
        assert_eq!(order(held, names.map(|name| (name, wait(&turns, network(1)))).into()), names);
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_says_whose_it_is() {
        let turns = FairSemaphore::new(2, 3, 2);
        let held = [now(&turns, network(1)), now(&turns, network(1))];
        let refused = |nth| begin(&turns, network(nth)).1.expect("at once").err();
        let first = wait(&turns, network(1));
        let _second = wait(&turns, network(1));
        assert_eq!(refused(1), Some(Busy::Network));
        let _third = wait(&turns, network(2));
        assert_eq!(refused(2), Some(Busy::Everybody));
        assert_eq!(refused(1), Some(Busy::Network), "its own fault comes first");
        drop(first);
        let _fourth = wait(&turns, network(2));
        drop(held);
    }

    #[test]
    fn nobody_waits_where_nobody_may() {
        let turns = FairSemaphore::new(0, 0, 0);
        let held = now(&turns, None);
        assert_eq!(begin(&turns, None).1.expect("at once").err(), Some(Busy::Network));
        drop(held);
        drop(now(&turns, None));
        expect_idle(&turns, 1);
    }

    #[test]
    fn whoever_stops_waiting_leaves_no_trace() {
        let turns = FairSemaphore::new(1, 10, 10);
        let held = now(&turns, None);
        let (first, second) = (wait(&turns, network(1)), wait(&turns, network(1)));
        let mut third = wait(&turns, network(2));
        drop(first);
        drop(second);
        assert_eq!(turns.books().waiting, 1);
        drop(held);
        let turn = look(&mut third).expect("called").expect("a turn");

        // Called, and gone before it heard the call: the place goes to the next.
        let gone = wait(&turns, network(1));
        let mut next = wait(&turns, network(1));
        drop(turn);
        assert!(look(&mut next).is_none());
        drop(gone);
        drop(look(&mut next).expect("called"));
        expect_idle(&turns, 1);
    }

    #[test]
    fn a_turn_may_end_on_another_thread() {
        let turns = FairSemaphore::new(1, 10, 10);
        let held = now(&turns, None);
        let mut next = wait(&turns, None);
        std::thread::spawn(move || drop(held)).join().expect("a thread");
        drop(look(&mut next).expect("called"));
        expect_idle(&turns, 1);
    }

    /// Sixty-four clients of six networks take, hold, give back on any thread and lose patience at random.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_place_is_lost_or_given_twice() {
        const PLACES: usize = 3;
        let turns = FairSemaphore::new(PLACES, 40, 12);
        let (working, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..64).map(|seed| {
            let (turns, working, served) = (turns.clone(), working.clone(), served.clone());
            tokio::spawn(async move {
                let mut chance = Chance::new(seed);
                for _ in 0..300 {
                    let party = network(u8::try_from(seed % 6).expect("small")).filter(|_| seed % 6 != 0);
                    let patience = chance.below(12);
                    let taken = tokio::select! {
                        taken = turns.take(party) => taken,
                        () = yields(patience) => continue,
                    };
                    let Ok(turn) = taken else {
                        yields(1).await;
                        continue;
                    };
                    assert!(working.fetch_add(1, Ordering::SeqCst) < PLACES, "more turns than places");
                    yields(chance.below(4)).await;
                    served.fetch_add(1, Ordering::SeqCst);
                    working.fetch_sub(1, Ordering::SeqCst);
                    if chance.one_in(8) {
                        tokio::task::spawn_blocking(move || drop(turn)).await.expect("a thread");
                    }
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let all = async {
            for client in clients {
                client.await.expect("it ends well");
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("nobody waits for ever");
        assert!(served.load(Ordering::SeqCst) > 300, "{served:?} turns were taken");
        expect_idle(&turns, PLACES);
    }

    async fn yields(count: usize) {
        for _ in 0..count {
            tokio::task::yield_now().await;
        }
    }
}
