//! A relay that stores and serves, has the manners that a test gives it, and remembers what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use grasp_core::nostr::{Event, SignedEvent};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::place;
use super::relay_client::meet;
use crate::support::eventually;

/// How it treats those who ask.
#[derive(Clone)]
pub struct Manners {
    /// Its NIP-11 document.
    pub document: Option<Value>,
    /// Events of one answer at most, whatever `limit` says.
    pub page: usize,
    /// Open subscriptions at most.
    pub slots: usize,
    /// Refuses a `limit` up to this.
    pub refused_limit: Option<usize>,
    /// Sends a challenge to everybody.
    pub challenge: bool,
    /// Serves only those who have answered it.
    pub auth: bool,
    /// Answers this request, counted from one, with a complaint; and all that follow.
    pub tired: Option<(usize, RejectionForm)>,
    /// Ends every connection at once.
    pub hangs_up: bool,
    /// Breaks a connection off when it has sent so many events.
    pub breaks_off: usize,
    /// Says when it has sent all that it has stored.
    pub eose: bool,
}

/// How it complains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RejectionForm {
    Notice,
    Closed,
    /// It wants nothing to do with us.
    Restricted,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            document: Some(json!({"name": "fake"})),
            page: 500,
            slots: usize::MAX,
            refused_limit: None,
            challenge: false,
            auth: false,
            tired: None,
            hangs_up: false,
            breaks_off: usize::MAX,
            eose: true,
        }
    }
}

/// Something that somebody did.
#[derive(Clone, Debug)]
pub struct Record {
    pub at: Instant,
    pub connection: usize,
    pub deed: Deed,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Deed {
    /// Opened a connection.
    Came,
    /// Said something.
    Said(Value),
    /// Was told something that is no answer.
    Scolded,
    /// Ended the connection, with this code if there was one.
    Left(Option<u16>),
}

/// Something to pass on.
pub(super) enum News {
    /// An event that was stored, to whoever it is for.
    Stored(usize),
    /// The text of an event, whoever it is for.
    For(Arc<String>),
}

/// What it knows.
#[derive(Default)]
pub(super) struct Book {
    pub(super) events: Vec<(Event, String)>,
    pub(super) records: Vec<Record>,
    /// Whoever wants to hear of new events.
    pub(super) ears: Vec<mpsc::UnboundedSender<News>>,
    pub(super) connections: usize,
    pub(super) requests: usize,
    /// The most subscriptions that were open at once on a connection.
    pub(super) most_open: usize,
    /// Events that answered a challenge, with their challenge.
    pub(super) proofs: Vec<(Event, String)>,
}

impl Book {
    pub(super) fn record(&mut self, connection: usize, deed: Deed) {
        self.records.push(Record { at: Instant::now(), connection, deed });
    }
}

pub(super) struct Shared {
    pub(super) manners: Manners,
    pub(super) book: Mutex<Book>,
}

impl Shared {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("nobody panics with it")
    }
}

/// The relay. Dropping it ends it.
pub struct Fake {
    pub place: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl Fake {
    pub fn start(manners: Manners) -> Self {
        let place = place();
        let shared = Arc::new(Shared { manners, book: Mutex::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads can be started");
        let listener = runtime.block_on(TcpListener::bind(place)).expect("a free address");
        runtime.spawn({
            let shared = shared.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(meet(shared.clone(), stream));
                }
            }
        });
        Self { place, shared, runtime: Some(runtime) }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        super::relay(self.place)
    }

    /// Stores an event, whatever is wrong with it, and passes it on.
    pub fn publish(&self, event: &SignedEvent) {
        let mut book = self.shared.book();
        book.events.push((event.event().clone(), event.json().to_owned()));
        let at = book.events.len() - 1;
        book.ears.retain(|ear| ear.send(News::Stored(at)).is_ok());
    }

    /// Passes an event on to everybody who is subscribed to anything, whether it matches or not.
    pub fn thrust(&self, event: &SignedEvent) {
        let mut book = self.shared.book();
        let text = Arc::new(event.json().to_owned());
        book.ears.retain(|ear| ear.send(News::For(text.clone())).is_ok());
    }

    /// Everything that was done so far.
    pub fn records(&self) -> Vec<Record> {
        self.shared.book().records.clone()
    }

    /// Everything that was said so far on the connections from this one on.
    pub fn said(&self, from: usize) -> Vec<Value> {
        let said = |record: Record| match record.deed {
            Deed::Said(value) if record.connection >= from => Some(value),
            _ => None,
        };
        self.records().into_iter().filter_map(said).collect()
    }

    /// All filters that were asked for on the connections from this one on, by requests and reconciliations.
    pub fn filters(&self, from: usize) -> Vec<Value> {
        let filters = |said: Value| match said[0].as_str() {
            Some("REQ") => said.as_array().map(|parts| parts[2..].to_vec()).unwrap_or_default(),
            Some("NEG-OPEN") => vec![said[2].clone()],
            _ => Vec::new(),
        };
        self.said(from).into_iter().flat_map(filters).collect()
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.shared.book().connections
    }

    /// The most subscriptions that were open at once on a connection.
    pub fn most_open(&self) -> usize {
        self.shared.book().most_open
    }

    /// Events that answered a challenge, with their challenge.
    pub fn proofs(&self) -> Vec<(Event, String)> {
        self.shared.book().proofs.clone()
    }

    /// Waits until something has been done.
    #[track_caller]
    pub fn eventually(&self, what: &str, done: impl Fn(&Deed) -> bool) {
        eventually(what, || self.records().iter().any(|record| done(&record.deed)).then_some(()));
    }

    /// Waits until filters have been asked for among which all of these are true.
    #[track_caller]
    pub fn eventually_asked(&self, what: &str, asked: impl Fn(&Value) -> bool) {
        eventually(what, || self.filters(0).iter().any(&asked).then_some(()));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for Record { at, connection, deed } in self.records() {
                let text = format!("{deed:?}");
                let text: String = text.chars().take(400).collect();
                eprintln!("-- {} {:?} {connection} {text}", self.place, at.elapsed());
            }
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
