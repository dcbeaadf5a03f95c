//! A sync machine with one scripted relay, and a readable transcript of everything that happens.
//!
//! A line of the transcript has the time and one of:
//!
//! - `> …`: an input of the machine.
//! - `  …`: an output of the machine. Requests are numbered in the order in which they are sent.
//! - `= …`: the status of the relay, on request.
//!
//! Expected transcripts abbreviate the beginning of a connection whose requests are all answered at the same time:
//!
//! - `~ announcements, states and live subscriptions`: from the EOSE of the first request to that of the fourth.
//! - `~ complete catch-up without events`: the same, and everything up to the end of the catch-up.
//!
//! Both may end with `since …`, which all requests for stored events have then.

use std::fmt::Write;
use std::sync::Arc;

use grasp_core::nostr::event::{Coordinate, Event, EventId};
use grasp_core::nostr::negentropy::{NegentropyItem, NegentropySet, respond};
use grasp_core::nostr::nip11::Nip11Info;
use grasp_core::nostr::{Filter, PublicKey, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::io::{
    DisconnectReason, EventPresence, IncomingMessage, LocalIds, OutgoingMessage, RepoNeeds, RestoredRow, RootEvent,
    Seq, ServedEvent, SessionId, SubmitResult, SubscriptionId, SyncInput, SyncNote, SyncOutput, SyncPolicyChange,
    SyncSubmissionId,
};
use grasp_core::sync::relay_record::RelayRecord;
use grasp_core::sync::{SyncConfig, SyncMachine};
use grasp_core::time::{MonoTime, Now, Timestamp};
use grasp_sim::sync::{describe_output, format_filter, service};

/// The relay.
pub(crate) const RELAY: &str = "wss://r1.example";

/// Host of the second relay; see [`SyncScript::steady_session`].
const STEADY_HOST: &str = "steady.example";

/// Wall time at the start of a script.
const START_SECS: u64 = 1_700_000_000;

/// NIP-11 document with high limits.
const NIP11: &str = r#"{"supported_nips":[1,11,77],"limitation":{"max_subscriptions":200,"max_filters":20,"max_message_length":1000000,"max_limit":500}}"#;

/// A sync machine, the relay that it talks to, and the transcript so far.
pub(crate) struct SyncScript {
    machine: SyncMachine,
    millis: u64,
    seq: Seq,
    transcript: String,
    /// The newest session with the relay.
    session: SessionId,
    /// Repositories whose root events were queried.
    root_queries: Vec<RepoId>,
    /// Subscriptions and negentropy exchanges that the relay has not answered.
    open_requests: Vec<(SubscriptionId, Vec<Filter>)>,
    open_negentropy: Vec<(SubscriptionId, Filter, Vec<u8>)>,
    /// Requests of the session in the order in which they were sent.
    request_numbers: Vec<SubscriptionId>,
    /// Events in the local store.
    local_items: Vec<NegentropyItem>,
    /// Events of the relay, and how many of them it sends per request.
    relay_events: Vec<Arc<Event>>,
    max_page: usize,
    /// Event that the relay offers and does not send.
    withheld: Option<u8>,
    /// Text with which the relay rejects requests for ids.
    ids_rejection: Option<&'static str>,
    /// Submissions without result.
    submitted: Vec<SyncSubmissionId>,
    /// Whether submissions are stored at once.
    stores_at_once: bool,
    /// Session with a second relay that answers everything at once and is not in the transcript. Because it is
    /// connected, failures of the first relay do not count as an outage of the own network.
    steady_session: Option<SessionId>,
}

/// Returns the settings of the scripts.
pub(crate) fn config() -> SyncConfig {
    SyncConfig {
        service: service(0),
        instance: "me".to_owned(),
        bootstrap: vec![],
        batch_window_millis: 5_000,
        values_per_filter: 100,
        descendant_limit: 500,
        use_negentropy: true,
        backoff: Default::default(),
        rejected: Default::default(),
        limits: Default::default(),
        epoch: 1,
        seed: 1,
    }
}

/// Returns the repository of the scripts.
fn repo() -> RepoId {
    RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("thing").expect("valid identifier") }
}

/// Returns an event of the relay.
fn event(number: u8, secs_ago: u64) -> Arc<Event> {
    let (id, pubkey, created_at) = (EventId([number; 32]), PublicKey([9; 32]), Timestamp(START_SECS - secs_ago));
    let coordinate = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo().owner, d: "thing".to_owned() };
    let (kind, tag) =
        if number >= 0xf0 { (kinds::STATE, ["d", "thing"]) } else { (1111, ["a", &coordinate.to_string()]) };
    let tags = vec![tag.map(str::to_owned).to_vec()];
    Arc::new(Event { id, pubkey, created_at, kind, tags, content: String::new(), sig: [number; 64] })
}

fn item(event: &Event) -> NegentropyItem {
    NegentropyItem { created_at: event.created_at.0, id: event.id.0 }
}

/// Returns whether a filter matches an event. Events from 0xf0 on are states; all others reference the repository and its
/// issues.
fn matches(filter: &Filter, item: &NegentropyItem) -> bool {
    let has_id = filter.ids.as_ref().is_some_and(|ids| ids.contains(&EventId(item.id)));
    let is_related = if item.id[0] >= 0xf0 {
        filter.kinds == Some(vec![kinds::STATE])
    } else {
        filter.tags.iter().any(|(letter, _)| b"ae".contains(letter))
    };
    let since = filter.since.is_none_or(|since| item.created_at >= since.0);
    (has_id || is_related) && since && filter.until.is_none_or(|until| item.created_at <= until.0)
}

impl SyncScript {
    pub(crate) fn new(config: SyncConfig) -> Self {
        Self {
            machine: SyncMachine::new(config),
            millis: 0,
            seq: 0,
            transcript: String::new(),
            session: SessionId(0),
            root_queries: Vec::new(),
            open_requests: Vec::new(),
            open_negentropy: Vec::new(),
            request_numbers: Vec::new(),
            local_items: Vec::new(),
            relay_events: Vec::new(),
            max_page: 500,
            withheld: None,
            ids_rejection: None,
            submitted: Vec::new(),
            stores_at_once: false,
            steady_session: None,
        }
    }

    /// Follows the repository on the relay, and connects to it.
    pub(crate) fn start(&mut self) -> &mut Self {
        self.follow(&[RELAY]).ready().advance(300).connect().advance(100)
    }

    /// Returns the wall time `secs` after the start of the script.
    pub(crate) fn wall(secs: u64) -> Timestamp {
        Timestamp(START_SECS + secs)
    }

    fn now(&self) -> Now {
        Now { mono: MonoTime(self.millis), wall: Self::wall(self.millis / 1_000) }
    }

    /// Adds a line to the transcript. CLOSE messages of the same time share a line.
    fn write_line(&mut self, line: &str) {
        let (secs, millis) = (self.millis / 1_000, self.millis % 1_000);
        let (days, hours, minutes) = (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60);
        let day = if days > 0 { format!("{days}d ") } else { String::new() };
        let time = format!("{day}{hours:02}:{minutes:02}:{:02}.{millis:03}", secs % 60);
        let close = format!("{time}   CLOSE ");
        if let Some(number) = line.strip_prefix("  CLOSE ")
            && self.transcript.lines().last().is_some_and(|last| last.starts_with(&close))
        {
            self.transcript.truncate(self.transcript.len() - 1);
            writeln!(self.transcript, " {number}").expect("writes to memory");
        } else {
            writeln!(self.transcript, "{time} {line}").expect("writes to memory");
        }
    }

    /// Passes an input to the machine and carries out its outputs. The input is in the transcript unless its
    /// description is empty.
    fn handle_input(&mut self, description: &str, input: SyncInput) {
        if !description.is_empty() {
            self.write_line(&format!("> {description}"));
        }
        self.machine.handle(self.now(), input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.poll() {
            match &output {
                SyncOutput::Dial { session, url, .. } if url.without_scheme() == STEADY_HOST => {
                    self.steady_session = Some(*session);
                    self.machine.handle(self.now(), SyncInput::Connected(*session, Nip11Info::parse(NIP11)));
                    continue;
                }
                SyncOutput::Send(session, message) if Some(*session) == self.steady_session => {
                    self.answer_steady(*session, message);
                    continue;
                }
                SyncOutput::Note(note) if format!("{note:?}").contains(STEADY_HOST) => continue,
                SyncOutput::Dial { session, .. } => self.session = *session,
                SyncOutput::QueryLocalIds(query_id, filter) => {
                    let items = self.local_items.iter().filter(|item| matches(filter, item)).copied().collect();
                    let local_ids = LocalIds { items, complete_since: None };
                    self.machine.handle(self.now(), SyncInput::LocalIds(*query_id, local_ids));
                    continue;
                }
                SyncOutput::QueryMissingIds(query_id, ids) => {
                    let missing = ids.iter().filter(|id| !self.local_items.iter().any(|item| item.id == id.0));
                    let missing = missing.copied().collect();
                    self.machine.handle(self.now(), SyncInput::MissingIds(*query_id, missing));
                    continue;
                }
                SyncOutput::QueryServedEvents(query_id, ids) => {
                    let coordinate =
                        Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo().owner, d: "thing".to_owned() };
                    let served = ids.iter().map(|id| ServedEvent {
                        seq: 1,
                        id: *id,
                        kind: 1111,
                        author: PublicKey([9; 32]),
                        coordinate: None,
                        ids: vec![],
                        coordinates: vec![coordinate.clone()],
                    });
                    let served = served.collect();
                    self.machine.handle(self.now(), SyncInput::ServedEvents(*query_id, served));
                    continue;
                }
                SyncOutput::Submit(submission) if self.stores_at_once => {
                    self.local_items.push(item(&submission.event));
                    self.machine.handle(self.now(), SyncInput::SubmitResult(submission.id, SubmitResult::Stored));
                    continue;
                }
                SyncOutput::Submit(submission) => self.submitted.push(submission.id),
                SyncOutput::QueryRootEvents(repo) => self.root_queries.push(repo.clone()),
                SyncOutput::Send(_, OutgoingMessage::Req(sub, filters)) => {
                    self.open_requests.push((*sub, filters.clone()));
                }
                SyncOutput::Send(_, OutgoingMessage::NegOpen(sub, filter, message)) => {
                    self.open_negentropy.push((*sub, filter.clone(), message.clone()));
                }
                SyncOutput::Send(_, OutgoingMessage::Close(sub)) => self.open_requests.retain(|(open, _)| open != sub),
                SyncOutput::StoreRow(_) => continue,
                _ => {}
            }
            if let Some(line) = self.describe(&output) {
                self.write_line(&format!("  {line}"));
            }
        }
    }

    /// Returns the line of an output, or `None` if it is not part of the transcript.
    fn describe(&mut self, output: &SyncOutput) -> Option<String> {
        Some(match output {
            SyncOutput::Dial { url, .. } => format!("dial {url}"),
            SyncOutput::Disconnect(_) => "disconnect".to_owned(),
            SyncOutput::Send(_, OutgoingMessage::Close(sub)) => format!("CLOSE {}", self.request_number(*sub)),
            SyncOutput::Send(_, OutgoingMessage::NegClose(sub)) => format!("NEG-CLOSE {}", self.request_number(*sub)),
            SyncOutput::Send(_, OutgoingMessage::Req(sub, filters)) => {
                let filters: Vec<String> = filters.iter().map(format_filter).collect();
                format!("REQ {} {}", self.request_number(*sub), filters.join(" "))
            }
            SyncOutput::Send(_, OutgoingMessage::NegOpen(sub, filter, _)) => {
                format!("NEG-OPEN {} {}", self.request_number(*sub), format_filter(filter))
            }
            SyncOutput::Note(SyncNote::Connected(_, kind)) => format!("connected: {}", kind.label()),
            SyncOutput::Note(SyncNote::ConnectionLost(_, reason)) => format!("connection lost: {}", reason.label()),
            SyncOutput::Note(SyncNote::ConnectionFailed { failures, backoff_millis, .. }) => {
                format!("connection failed {failures} times, retry in {} s", backoff_millis / 1_000)
            }
            SyncOutput::Note(SyncNote::RateLimited(_, text, secs)) => format!("rate-limited for {secs} s: {text}"),
            SyncOutput::Note(SyncNote::Dead(..)) => "dead".to_owned(),
            SyncOutput::Note(SyncNote::Parked(_, text)) => format!("parked: {text}"),
            SyncOutput::Note(SyncNote::IsSelf(_)) => "relay is this server".to_owned(),
            SyncOutput::Note(SyncNote::BatchFailed(_, reason)) => format!("batch failed: {reason}"),
            SyncOutput::Note(SyncNote::RelayLacksEvents(_, repos)) => {
                let count = repos.iter().map(|(_, count)| count).sum::<u64>();
                return (count > 0).then(|| format!("relay lacks {count} events"));
            }
            SyncOutput::Note(SyncNote::StatesCompared { shared, lacking, .. }) => {
                format!("states: {} shared, {} lacking", shared.len(), lacking.len())
            }
            SyncOutput::Note(SyncNote::Gaps { count, .. }) => format!("gaps: {count}"),
            SyncOutput::Note(SyncNote::CaughtUp { source, events, is_complete, .. }) => {
                let result = if *is_complete { "complete" } else { "incomplete" };
                format!("{} {result}: {events} events", source.label())
            }
            SyncOutput::Submit(submission) => {
                format!("submit #{:02x} from {}", submission.event.id.0[0], submission.source.label())
            }
            SyncOutput::HeldEventSeen(_)
            | SyncOutput::ReleasePermit(_)
            | SyncOutput::SetEventRate(..)
            | SyncOutput::QueryLocalIds(..)
            | SyncOutput::QueryRootEvents(_) => {
                return None;
            }
            other => describe_output(other),
        })
    }

    /// Returns the number of a request in the transcript: the first one of a session is 1.
    fn request_number(&mut self, sub: SubscriptionId) -> usize {
        let known = self.request_numbers.iter().position(|number| *number == sub);
        known.unwrap_or_else(|| {
            self.request_numbers.push(sub);
            self.request_numbers.len() - 1
        }) + 1
    }

    /// Advances the clock and wakes the machine at its alarms.
    pub(crate) fn advance(&mut self, millis: u64) -> &mut Self {
        let end = self.millis + millis;
        while let Some((at, _)) = self.machine.alarm().filter(|(at, _)| at.0 <= end) {
            self.millis = self.millis.max(at.0);
            self.machine.wake(self.now());
            self.drain();
        }
        self.millis = end;
        self
    }

    /// Sends a pong of the second relay, if it is connected.
    fn steady_pong(&mut self) {
        if let Some(session) = self.steady_session {
            self.machine.handle(self.now(), SyncInput::Message(session, IncomingMessage::Alive));
        }
    }

    /// Answers a request to the second relay. It has no events.
    fn answer_steady(&mut self, session: SessionId, message: &OutgoingMessage) {
        let answer = match message {
            OutgoingMessage::Req(sub, _) => IncomingMessage::Eose(*sub, None),
            OutgoingMessage::NegOpen(sub, ..) => IncomingMessage::NegErr(*sub, "closed: nothing".to_owned(), None),
            _ => return,
        };
        self.machine.handle(self.now(), SyncInput::Message(session, answer));
    }

    /// Follows the repository on these relays.
    pub(crate) fn follow(&mut self, relays: &[&str]) -> &mut Self {
        self.seq += 1;
        let relays: Vec<String> = relays.iter().map(|relay| (*relay).to_owned()).collect();
        let (status, authors, seq) = (EventStatus::Served, vec![repo().owner], self.seq);
        let needs = RepoNeeds { repo: repo(), status, relays, authors, seq };
        self.handle_input("repo needs: thing", SyncInput::RepoNeeds(repo().identifier, vec![needs]));
        for repo in std::mem::take(&mut self.root_queries) {
            self.handle_input("", SyncInput::RootEvents(repo, Vec::<RootEvent>::new(), Default::default()));
        }
        self
    }

    /// Serves an issue of the repository.
    pub(crate) fn serve_issue(&mut self, number: u8) -> &mut Self {
        self.seq += 1;
        let coordinate = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo().owner, d: "thing".to_owned() };
        let served = ServedEvent {
            seq: self.seq,
            id: EventId([number; 32]),
            kind: kinds::ISSUE,
            author: PublicKey([9; 32]),
            coordinate: None,
            ids: vec![],
            coordinates: vec![coordinate],
        };
        self.handle_input(&format!("served: issue {number}"), SyncInput::Served(served));
        self
    }

    pub(crate) fn ready(&mut self) -> &mut Self {
        self.handle_input("ready", SyncInput::Ready);
        self
    }

    /// Changes the settings.
    pub(crate) fn change_policy(&mut self, accepts_more: bool) -> &mut Self {
        let change = SyncPolicyChange { epoch: 2, bootstrap: Vec::new(), accepts_more };
        let description = if accepts_more { "policy accepts more" } else { "policy accepts less" };
        self.handle_input(description, SyncInput::PolicyChanged(change));
        self
    }

    /// Lets the newest dial succeed.
    pub(crate) fn connect(&mut self) -> &mut Self {
        (self.open_requests, self.open_negentropy) = Default::default();
        self.request_numbers.clear();
        self.handle_input("connected", SyncInput::Connected(self.session, Nip11Info::parse(NIP11)));
        self
    }

    /// Lets the newest dial succeed and answers all requests. One line in the transcript.
    pub(crate) fn connect_and_sync(&mut self) -> &mut Self {
        let end = self.transcript.len();
        self.connect().advance(100).answer();
        self.transcript.truncate(end);
        self.write_line("> connected and synced");
        self
    }

    /// Lets the newest dial succeed with a relay that allows one subscription, so that everything is polled.
    pub(crate) fn connect_polled(&mut self) -> &mut Self {
        let nip11 = Nip11Info::parse(r#"{"limitation":{"max_subscriptions":1,"max_limit":500}}"#);
        self.handle_input("connected: one subscription", SyncInput::Connected(self.session, nip11));
        self
    }

    /// Lets the newest dial succeed with a relay that shows our own instance id.
    pub(crate) fn connect_to_self(&mut self) -> &mut Self {
        let nip11 = Nip11Info::parse(r#"{"instance":"me"}"#);
        self.handle_input("connected: instance me", SyncInput::Connected(self.session, nip11));
        self
    }

    /// Restores the record of a relay that an earlier process stored.
    pub(crate) fn restore(&mut self, record: RelayRecord) -> &mut Self {
        let description = format!("restored {}", record.url);
        self.handle_input(&description, SyncInput::Restored(RestoredRow::Relay(Box::new(record))));
        self
    }

    /// Adds an event to the local store.
    pub(crate) fn add_local_event(&mut self, number: u8, secs_ago: u64) -> &mut Self {
        self.local_items.push(NegentropyItem { created_at: START_SECS - secs_ago, id: [number; 32] });
        self
    }

    /// Sets the events of the relay (number and age in seconds), and its largest page.
    pub(crate) fn set_relay_events(
        &mut self,
        max_page: usize,
        events: impl IntoIterator<Item = (u8, u64)>,
    ) -> &mut Self {
        self.max_page = max_page;
        self.relay_events = events.into_iter().map(|(number, secs_ago)| event(number, secs_ago)).collect();
        self
    }

    /// Adds an event to the relay that is created `secs` after the start of the script.
    pub(crate) fn add_relay_event(&mut self, number: u8, secs: u64) -> &mut Self {
        self.relay_events.push(Arc::new(Event { created_at: Self::wall(secs), ..Event::clone(&event(number, 0)) }));
        self
    }

    /// Lets the relay offer an event in reconciliations and not send it.
    pub(crate) fn withhold(&mut self, number: u8) -> &mut Self {
        self.withheld = Some(number);
        self
    }

    /// Lets the relay send all its events.
    pub(crate) fn send_withheld(&mut self) -> &mut Self {
        self.withheld = None;
        self
    }

    /// Lets the relay reject requests for ids with a text.
    pub(crate) fn rejects_ids(&mut self, text: &'static str) -> &mut Self {
        self.ids_rejection = Some(text);
        self
    }

    /// Sends a pong of the relay.
    pub(crate) fn pong(&mut self) -> &mut Self {
        self.receive("", IncomingMessage::Alive)
    }

    /// Returns the times of the lines that contain a text, in milliseconds.
    pub(crate) fn times_of(&self, text: &str) -> Vec<u64> {
        let line_time = |line: &str| {
            let (days, time) = line.split_once("d ").map_or(("0", line), |(days, rest)| (days, rest));
            let time = time.split(' ').next().expect("a line has a time");
            let parts: Vec<u64> = time.split([':', '.']).map(|part| part.parse().expect("a number")).collect();
            let days: u64 = days.parse().expect("a number");
            (((days * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2]) * 1_000 + parts[3]
        };
        self.transcript.lines().filter(|line| line.contains(text)).map(line_time).collect()
    }

    /// Closes all open subscriptions with a text.
    pub(crate) fn reject_open(&mut self, text: &str) -> &mut Self {
        for (sub, _) in std::mem::take(&mut self.open_requests) {
            let number = self.request_number(sub);
            self.receive(&format!("CLOSED {number} {text}"), IncomingMessage::Closed(sub, text.to_owned()));
        }
        self
    }

    /// Answers all open subscriptions with EOSE first and the stored events afterwards.
    pub(crate) fn send_eose_before_events(&mut self) -> &mut Self {
        for (sub, filters) in std::mem::take(&mut self.open_requests) {
            let number = self.request_number(sub);
            self.receive(&format!("EOSE {number}"), IncomingMessage::Eose(sub, None));
            self.send_page(sub, &filters);
        }
        self
    }

    /// Stores submitted events at once from now on.
    pub(crate) fn store_at_once(&mut self) -> &mut Self {
        self.stores_at_once = true;
        self
    }

    /// Stores all events that were submitted.
    pub(crate) fn store_submitted(&mut self) -> &mut Self {
        for id in std::mem::take(&mut self.submitted) {
            self.handle_input("stored", SyncInput::SubmitResult(id, SubmitResult::Stored));
        }
        self
    }

    /// Holds all events that were submitted until their git data arrives.
    pub(crate) fn hold_submitted(&mut self) -> &mut Self {
        for id in std::mem::take(&mut self.submitted) {
            self.handle_input("held", SyncInput::SubmitResult(id, SubmitResult::Held));
        }
        self
    }

    /// Sends the first page of events that match a subscription.
    fn send_page(&mut self, sub: SubscriptionId, filters: &[Filter]) {
        let is_requested =
            |event: &&Arc<Event>| filters.iter().any(|filter| filter.limit != Some(0) && matches(filter, &item(event)));
        let is_sent = |event: &&Arc<Event>| self.withheld != Some(event.id.0[0]);
        let page: Vec<Arc<Event>> =
            self.relay_events.iter().filter(is_requested).filter(is_sent).take(self.max_page).cloned().collect();
        if !page.is_empty() {
            let number = self.request_number(sub);
            self.write_line(&format!("> {number}: {} events", page.len()));
        }
        for event in page {
            let is_known = self.local_items.iter().any(|item| item.id == event.id.0);
            let presence = if is_known { EventPresence::Known } else { EventPresence::New };
            self.receive("", IncomingMessage::Event(sub, event, presence));
        }
    }

    /// Ends the connection, or lets the newest dial fail.
    pub(crate) fn disconnect(&mut self, reason: DisconnectReason) -> &mut Self {
        self.steady_pong();
        let description = format!("disconnected: {}", reason.label());
        self.handle_input(&description, SyncInput::Disconnected(self.session, reason));
        self
    }

    /// Passes a message of the relay to the machine.
    pub(crate) fn receive(&mut self, description: &str, message: IncomingMessage) -> &mut Self {
        self.handle_input(description, SyncInput::Message(self.session, message));
        self
    }

    /// Answers all open requests, and the requests that follow from the answers, with the events of the relay.
    pub(crate) fn answer(&mut self) -> &mut Self {
        for _ in 0..200 {
            let requests = std::mem::take(&mut self.open_requests);
            let negentropy = std::mem::take(&mut self.open_negentropy);
            if requests.is_empty() && negentropy.is_empty() {
                break;
            }
            for (sub, filters) in requests {
                if let Some(text) = self.ids_rejection.filter(|_| filters.iter().any(|filter| filter.ids.is_some())) {
                    let number = self.request_number(sub);
                    self.receive(&format!("CLOSED {number}"), IncomingMessage::Closed(sub, text.to_owned()));
                    continue;
                }
                self.send_page(sub, &filters);
                let number = self.request_number(sub);
                self.receive(&format!("EOSE {number}"), IncomingMessage::Eose(sub, None));
            }
            for (sub, filter, message) in negentropy {
                let number = self.request_number(sub);
                if self.relay_events.is_empty() {
                    let error = IncomingMessage::NegErr(sub, "closed: nothing".to_owned(), None);
                    self.receive(&format!("NEG-ERR {number}"), error);
                    continue;
                }
                let items =
                    self.relay_events.iter().map(|event| item(event)).filter(|item| matches(&filter, item)).collect();
                let reply = respond(&NegentropySet::from_items(items), &message, 60_000).expect("valid message");
                self.receive(&format!("NEG-MSG {number}"), IncomingMessage::NegMsg(sub, reply));
            }
        }
        self
    }

    /// Advances the clock and answers all requests every five seconds.
    pub(crate) fn advance_answering(&mut self, millis: u64) -> &mut Self {
        for _ in 0..millis / 5_000 {
            self.advance(5_000).answer();
        }
        self
    }

    /// Clears the transcript.
    pub(crate) fn clear(&mut self) -> &mut Self {
        self.transcript.clear();
        self
    }

    /// Adds the status of the relay to the transcript, after a pong if it is connected.
    pub(crate) fn show_status(&mut self) -> &mut Self {
        self.handle_input("", SyncInput::Message(self.session, IncomingMessage::Alive));
        let snapshot = self.machine.snapshot();
        for relay in snapshot.relays.iter().filter(|relay| relay.url.without_scheme() != STEADY_HOST) {
            let line = format!("= status {}, health {}", relay.status.label(), relay.health.label());
            self.write_line(&line);
        }
        self
    }

    /// Compares the transcript with the expected lines, and clears it. Amounts of white space are ignored.
    pub(crate) fn expect(&mut self, expected: &str) -> &mut Self {
        let normalize = |text: &str| -> Vec<String> {
            let lines = text.lines().flat_map(expand);
            lines
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .filter(|line| !line.is_empty())
                .collect()
        };
        assert!(normalize(&self.transcript) == normalize(expected), "the transcript is:\n{}", self.transcript);
        self.transcript.clear();
        self
    }
}

/// Returns the lines that an abbreviation stands for, or the line itself.
fn expand(line: &str) -> Vec<String> {
    let Some((time, abbreviation)) = line.split_once(" ~ ") else { return vec![line.to_owned()] };
    let (name, since) = abbreviation.split_once(" since ").unwrap_or((abbreviation, ""));
    let limit = if since.is_empty() { "limit 500".to_owned() } else { format!("since {since}, limit 500") };
    let mut lines = vec!["> EOSE 1".to_owned()];
    for (number, kinds) in [(2, "30617, 10317"), (3, "30618")] {
        lines.push(format!("REQ {number} {{kinds[{kinds}], {limit}}}"));
        lines.extend([format!("> EOSE {number}"), format!("CLOSE {number}")]);
    }
    let related =
        |limit| format!("{{#a×1, {limit}}} {{#A×1, {limit}}} {{#q×1, {limit}}} {{authors×1, kinds[5, 62], {limit}}}");
    lines.extend([format!("REQ 4 {}", related("limit 0")), "> EOSE 4".to_owned()]);
    match name {
        "announcements, states and live subscriptions" => {}
        "complete catch-up without events" => {
            lines.push(format!("REQ 5 {}", related(&limit)));
            lines.extend(["> EOSE 5", "CLOSE 5", "catchup complete: 0 events"].map(str::to_owned));
        }
        _ => panic!("unknown abbreviation: {name}"),
    }
    lines.iter().map(|line| format!("{time} {line}")).collect()
}
