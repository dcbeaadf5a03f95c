//! A relay that stores and serves events, behaves as a test's [`RelayScript`] says, and records what its clients do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use grasp_core::nostr::{Event, SignedEvent};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite;

use super::relay_client::serve_connection;
use super::unused_address;
use crate::support::eventually;

/// The behaviour of a [`ScriptedRelay`].
#[derive(Clone)]
pub struct RelayScript {
    /// The NIP-11 document, if the relay has one.
    pub nip11: Option<Value>,
    /// Maximum number of events per filter, even if `limit` is higher.
    pub page_size: usize,
    /// Maximum number of open subscriptions.
    pub max_subscriptions: usize,
    /// Rejects requests with a `limit` up to this value.
    pub largest_rejected_limit: Option<usize>,
    /// Sends an AUTH challenge on every connection.
    pub sends_challenge: bool,
    /// Sends an AUTH challenge and rejects requests until it is answered.
    pub requires_auth: bool,
    /// Rejects this request, counted from one, and all that follow, in this form.
    pub rejects_from: Option<(usize, RejectionForm)>,
    /// Rejects requests that contain this text with `blocked:`.
    pub refused_text: Option<String>,
    /// Sends this NOTICE on every connection.
    pub greeting: Option<&'static str>,
    /// Closes every connection at once.
    pub closes_at_once: bool,
    /// Drops a connection after this many events.
    pub max_events_sent: usize,
    /// Sends EOSE after the stored events.
    pub sends_eose: bool,
}

/// The message with which the relay rejects a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RejectionForm {
    /// A NOTICE.
    Notice,
    /// A CLOSED with the same text.
    Closed,
    /// A CLOSED with the prefix `restricted:`.
    Restricted,
}

impl Default for RelayScript {
    fn default() -> Self {
        Self {
            nip11: Some(json!({"name": "fake"})),
            page_size: 500,
            max_subscriptions: usize::MAX,
            largest_rejected_limit: None,
            sends_challenge: false,
            requires_auth: false,
            rejects_from: None,
            refused_text: None,
            greeting: None,
            closes_at_once: false,
            max_events_sent: usize::MAX,
            sends_eose: true,
        }
    }
}

/// An action of a client, with its time and the number of its connection.
#[derive(Clone, Debug)]
pub struct RecordedAction {
    pub at: Instant,
    pub connection: usize,
    pub action: ClientAction,
}

#[derive(Clone, PartialEq, Debug)]
pub enum ClientAction {
    /// Opened a connection.
    Connected,
    /// Sent a message.
    Sent(Value),
    /// Sent a request that the relay rejected.
    WasRejected,
    /// Closed the connection, with this code if there was one.
    Disconnected(Option<u16>),
}

/// An event for all connections.
pub(super) enum Broadcast {
    /// The index of a stored event, for the subscriptions that it matches.
    Stored(usize),
    /// The JSON of an event, for any subscription.
    Unrequested(Arc<String>),
    /// A message that is no event.
    Message(tungstenite::Message),
}

/// Stored events and everything that was recorded.
#[derive(Default)]
pub(super) struct RelayState {
    pub(super) events: Vec<(Event, String)>,
    pub(super) records: Vec<RecordedAction>,
    /// One sender per connection.
    pub(super) listeners: Vec<mpsc::UnboundedSender<Broadcast>>,
    pub(super) connections: usize,
    pub(super) requests: usize,
    /// The highest number of subscriptions that were open at the same time on one connection.
    pub(super) max_open: usize,
    /// AUTH events that were received, with the challenge of their connection.
    pub(super) auth_events: Vec<(Event, String)>,
}

impl RelayState {
    pub(super) fn record(&mut self, connection: usize, action: ClientAction) {
        self.records.push(RecordedAction { at: Instant::now(), connection, action });
    }
}

pub(super) struct Shared {
    pub(super) script: RelayScript,
    pub(super) state: Mutex<RelayState>,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, RelayState> {
        self.state.lock().expect("lock is not poisoned")
    }
}

/// The running relay. Stopped when dropped.
pub struct ScriptedRelay {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl ScriptedRelay {
    pub fn start(script: RelayScript) -> Self {
        let address = unused_address();
        let shared = Arc::new(Shared { script, state: Mutex::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("cannot start a runtime");
        let listener = runtime.block_on(TcpListener::bind(address)).expect("cannot bind the address");
        runtime.spawn({
            let shared = shared.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve_connection(shared.clone(), stream));
                }
            }
        });
        Self { address, shared, runtime: Some(runtime) }
    }

    pub fn url(&self) -> String {
        super::relay_url(self.address)
    }

    /// Stores an event without checking it, and sends it to matching subscriptions.
    pub fn publish(&self, event: &SignedEvent) {
        let mut state = self.shared.state();
        state.events.push((event.event().clone(), event.json().to_owned()));
        let index = state.events.len() - 1;
        state.listeners.retain(|listener| listener.send(Broadcast::Stored(index)).is_ok());
    }

    /// Sends an event to every connection with a subscription, whether it matches or not.
    pub fn send_unrequested(&self, event: &SignedEvent) {
        let mut state = self.shared.state();
        let text = Arc::new(event.json().to_owned());
        state.listeners.retain(|listener| listener.send(Broadcast::Unrequested(text.clone())).is_ok());
    }

    /// Sends a message to every connection, as often as this.
    pub fn send_message(&self, message: &tungstenite::Message, times: usize) {
        let mut state = self.shared.state();
        for _ in 0..times {
            state.listeners.retain(|listener| listener.send(Broadcast::Message(message.clone())).is_ok());
        }
    }

    /// Returns all recorded actions.
    pub fn records(&self) -> Vec<RecordedAction> {
        self.shared.state().records.clone()
    }

    /// Returns all received messages of the connections with at least this number.
    pub fn messages(&self, from: usize) -> Vec<Value> {
        let message = |record: RecordedAction| match record.action {
            ClientAction::Sent(value) if record.connection >= from => Some(value),
            _ => None,
        };
        self.records().into_iter().filter_map(message).collect()
    }

    /// Returns all filters of REQ and NEG-OPEN messages of the connections with at least this number.
    pub fn filters(&self, from: usize) -> Vec<Value> {
        let filters = |message: Value| match message[0].as_str() {
            Some("REQ") => message.as_array().map(|parts| parts[2..].to_vec()).unwrap_or_default(),
            Some("NEG-OPEN") => vec![message[2].clone()],
            _ => Vec::new(),
        };
        self.messages(from).into_iter().flat_map(filters).collect()
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.state().connections
    }

    /// Returns the highest number of subscriptions that were open at the same time on one connection.
    pub fn max_open_subscriptions(&self) -> usize {
        self.shared.state().max_open
    }

    /// Returns the AUTH events that were received, with the challenge of their connection.
    pub fn auth_events(&self) -> Vec<(Event, String)> {
        self.shared.state().auth_events.clone()
    }

    /// Waits until a client has done something for which `done` is true.
    #[track_caller]
    pub fn eventually(&self, what: &str, done: impl Fn(&ClientAction) -> bool) {
        eventually(what, || self.records().iter().any(|record| done(&record.action)).then_some(()));
    }

    /// Waits until a client has requested a filter for which `matches` is true.
    #[track_caller]
    pub fn eventually_requested(&self, what: &str, matches: impl Fn(&Value) -> bool) {
        eventually(what, || self.filters(0).iter().any(&matches).then_some(()));
    }
}

impl Drop for ScriptedRelay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for RecordedAction { at, connection, action } in self.records() {
                let text = format!("{action:?}");
                let text: String = text.chars().take(400).collect();
                eprintln!("-- {} {:?} {connection} {text}", self.address, at.elapsed());
            }
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
