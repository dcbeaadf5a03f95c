//! A machine that is told facts at given times and writes down what it wants, so that a scenario can be read.

use std::fmt::Write;
use std::sync::Arc;

use grasp_core::nostr::event::{Coordinate, Event, EventId};
use grasp_core::nostr::negentropy::{NegentropyItem, NegentropySet, respond};
use grasp_core::nostr::{Filter, PublicKey, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::io::{
    DisconnectReason, EventPresence, IncomingMessage, LocalIds, OutgoingMessage, RepoNeeds, RestoredRow, RootEvent,
    Seq, ServedEvent, SessionId, SubmitResult, SubscriptionId, SyncInput, SyncNote, SyncOutput, SyncPolicyChange,
    SyncSubmissionId,
};
use grasp_core::sync::relay_limits::Nip11Info;
use grasp_core::sync::relay_record::RelayRecord;
use grasp_core::sync::{SyncConfig, SyncMachine};
use grasp_core::time::{MonoTime, Now, Timestamp};
use grasp_sim::sync::{repo_history, text};

/// The place of the other relay.
const STEADY: &str = "steady.example";

/// The wall time at which scripts begin.
const WALL: u64 = 1_700_000_000;

/// A relay that takes everything.
const TERMS: &str = r#"{"supported_nips":[1,11,77],"limitation":{"max_subscriptions":200,"max_filters":20,"max_message_length":1000000,"max_limit":500}}"#;

/// A machine and what it has wanted.
pub(crate) struct Script {
    syncer: SyncMachine,
    millis: u64,
    seq: Seq,
    text: String,
    /// The newest attempt, the questions, and the requests that are open.
    session: SessionId,
    rooted: Vec<RepoId>,
    open: Vec<(SubscriptionId, Vec<Filter>)>,
    negs: Vec<(SubscriptionId, Filter, Vec<u8>)>,
    numbers: Vec<SubscriptionId>,
    /// Events that are here, and what the relay has for whatever it is asked.
    here: Vec<NegentropyItem>,
    there: Vec<Arc<Event>>,
    /// The largest page of the relay.
    cap: usize,
    /// What waits for a verdict, and whether that comes at once.
    tickets: Vec<SyncSubmissionId>,
    judges: bool,
    /// Another relay that answers everything at once, so that failures are not ours.
    steady: Option<SessionId>,
}

/// What a script begins with.
pub(crate) fn config() -> SyncConfig {
    SyncConfig {
        service: repo_history::service(0),
        instance: "me".to_owned(),
        bootstrap: vec![],
        batch_window_millis: 5_000,
        values_per_filter: 100,
        use_negentropy: true,
        backoff: Default::default(),
        rejected: Default::default(),
        epoch: 1,
        seed: 1,
        fault: None,
    }
}

/// The repository that scripts are about.
fn repo() -> RepoId {
    RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("thing").expect("a name") }
}

/// An event of the relay.
fn event(nth: u8, secs_ago: u64) -> Arc<Event> {
    let (id, pubkey, created_at) = (EventId([nth; 32]), PublicKey([9; 32]), Timestamp(WALL - secs_ago));
    Arc::new(Event { id, pubkey, created_at, kind: 1111, tags: vec![], content: String::new(), sig: [nth; 64] })
}

/// An event, as it is compared.
fn item(event: &Event) -> NegentropyItem {
    NegentropyItem { created_at: event.created_at.0, id: event.id.0 }
}

/// Whether a filter asks for an event: the last sixteen are states, all others refer to the repository and to its issues.
fn fits(filter: &Filter, item: &NegentropyItem) -> bool {
    let named = filter.ids.as_ref().is_some_and(|ids| ids.contains(&EventId(item.id)));
    let about = if item.id[0] >= 0xf0 {
        filter.kinds == Some(vec![kinds::STATE])
    } else {
        filter.tags.iter().any(|(letter, _)| b"ae".contains(letter))
    };
    let since = filter.since.is_none_or(|since| item.created_at >= since.0);
    (named || about) && since && filter.until.is_none_or(|until| item.created_at <= until.0)
}

impl Script {
    pub(crate) fn new(config: SyncConfig) -> Self {
        Self {
            syncer: SyncMachine::new(config),
            millis: 0,
            seq: 0,
            text: String::new(),
            session: SessionId(0),
            rooted: Vec::new(),
            open: Vec::new(),
            negs: Vec::new(),
            numbers: Vec::new(),
            here: Vec::new(),
            there: Vec::new(),
            cap: 500,
            tickets: Vec::new(),
            judges: false,
            steady: None,
        }
    }

    fn now(&self) -> Now {
        Now { mono: MonoTime(self.millis), wall: Timestamp(WALL + self.millis / 1_000) }
    }

    fn line(&mut self, line: &str) {
        let (secs, millis) = (self.millis / 1_000, self.millis % 1_000);
        let (days, hours, minutes) = (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60);
        let day = if days > 0 { format!("{days}d ") } else { String::new() };
        writeln!(self.text, "{day}{hours:02}:{minutes:02}:{:02}.{millis:03} {line}", secs % 60).expect("memory");
    }

    /// Tells the machine something.
    fn tell(&mut self, what: &str, input: SyncInput) {
        if !what.is_empty() {
            self.line(&format!("> {what}"));
        }
        self.syncer.handle(self.now(), input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.syncer.poll() {
            match &output {
                SyncOutput::Dial(session, url) if url.without_scheme() == STEADY => {
                    self.steady = Some(*session);
                    self.syncer.handle(self.now(), SyncInput::Connected(*session, Nip11Info::parse(TERMS)));
                    continue;
                }
                SyncOutput::Send(session, say) if Some(*session) == self.steady => {
                    self.please(*session, say);
                    continue;
                }
                SyncOutput::Note(note) if format!("{note:?}").contains(STEADY) => continue,
                SyncOutput::Dial(session, _) => self.session = *session,
                SyncOutput::QueryLocalIds(ask, filter) => {
                    let items = self.here.iter().filter(|item| fits(filter, item)).copied().collect();
                    self.syncer.handle(self.now(), SyncInput::LocalIds(*ask, LocalIds { items, complete_since: None }));
                    continue;
                }
                SyncOutput::QueryMissingIds(ask, ids) => {
                    let missing = ids.iter().filter(|id| !self.here.iter().any(|item| item.id == id.0));
                    let missing = missing.copied().collect();
                    self.syncer.handle(self.now(), SyncInput::MissingIds(*ask, missing));
                    continue;
                }
                SyncOutput::Submit(submission) if self.judges => {
                    self.here.push(item(&submission.event));
                    self.syncer.handle(self.now(), SyncInput::SubmitResult(submission.id, SubmitResult::Stored));
                    continue;
                }
                SyncOutput::Submit(submission) => self.tickets.push(submission.id),
                SyncOutput::QueryRootEvents(repo) => self.rooted.push(repo.clone()),
                SyncOutput::Send(_, OutgoingMessage::Req(sub, filters)) => self.open.push((*sub, filters.clone())),
                SyncOutput::Send(_, OutgoingMessage::NegOpen(sub, filter, message)) => {
                    self.negs.push((*sub, filter.clone(), message.clone()));
                }
                SyncOutput::Send(_, OutgoingMessage::Close(sub)) => self.open.retain(|(open, _)| open != sub),
                SyncOutput::StoreRow(_) => continue,
                _ => {}
            }
            if let Some(line) = self.read(&output) {
                self.line(&format!("  {line}"));
            }
        }
    }

    /// An output in a few words: requests are numbered as they come, and the other relay is not worth a word.
    fn read(&mut self, output: &SyncOutput) -> Option<String> {
        Some(match output {
            SyncOutput::Dial(_, url) => format!("dial {url}"),
            SyncOutput::Disconnect(_) => "hang up".to_owned(),
            SyncOutput::Send(_, OutgoingMessage::Close(sub)) => format!("CLOSE {}", self.number(*sub)),
            SyncOutput::Send(_, OutgoingMessage::NegClose(sub)) => format!("NEG-CLOSE {}", self.number(*sub)),
            SyncOutput::Send(_, OutgoingMessage::Req(sub, filters)) => {
                let filters: Vec<String> = filters.iter().map(text::filter).collect();
                format!("REQ {} {}", self.number(*sub), filters.join(" "))
            }
            SyncOutput::Send(_, OutgoingMessage::NegOpen(sub, filter, _)) => {
                format!("NEG-OPEN {} {}", self.number(*sub), text::filter(filter))
            }
            SyncOutput::Note(SyncNote::Connected(_, how)) => format!("connected: {how:?}"),
            SyncOutput::Note(SyncNote::ConnectionLost(_, loss)) => format!("lost: {loss:?}"),
            SyncOutput::Note(SyncNote::ConnectionFailed { failures, backoff_millis, .. }) => {
                format!("failed {failures} times, again in {} s", backoff_millis / 1_000)
            }
            SyncOutput::Note(SyncNote::RateLimited(_, text, secs)) => format!("rate-limited for {secs} s: {text}"),
            SyncOutput::Note(SyncNote::Dead(..)) => "dead".to_owned(),
            SyncOutput::Note(SyncNote::Parked(_, text)) => format!("parked: {text}"),
            SyncOutput::Note(SyncNote::IsSelf(_)) => "that is ourselves".to_owned(),
            SyncOutput::Note(SyncNote::BatchFailed(_, why)) => format!("failed: {why}"),
            SyncOutput::Note(SyncNote::RelayLacksEvents(_, _, count)) => format!("it lacks {count} events"),
            SyncOutput::Note(SyncNote::StatesCompared { shared, lacking, .. }) => {
                format!("states: {} shared, {} lacking", shared.len(), lacking.len())
            }
            SyncOutput::Note(SyncNote::Gaps { count, .. }) => format!("{count} gaps"),
            SyncOutput::Submit(submission) => {
                format!("submit #{:02x} via {:?}", submission.event.id.0[0], submission.source)
            }
            SyncOutput::ReleasePermit(_) => return None,
            SyncOutput::Note(SyncNote::CaughtUp { source, events, is_complete, .. }) => {
                format!(
                    "caught up by {source:?}: {events} events, {}",
                    if *is_complete { "whole" } else { "not whole" }
                )
            }
            SyncOutput::QueryLocalIds(..) | SyncOutput::QueryRootEvents(_) => return None,
            other => text::output(other),
        })
    }

    fn number(&mut self, sub: SubscriptionId) -> usize {
        let known = self.numbers.iter().position(|number| *number == sub);
        known.unwrap_or_else(|| {
            self.numbers.push(sub);
            self.numbers.len() - 1
        }) + 1
    }

    /// Lets time pass, and wakes the machine whenever it wants to be.
    pub(crate) fn pass(&mut self, millis: u64) -> &mut Self {
        let end = self.millis + millis;
        while let Some((at, _)) = self.syncer.alarm().filter(|(at, _)| at.0 <= end) {
            self.millis = self.millis.max(at.0);
            self.syncer.wake(self.now());
            self.drain();
        }
        self.millis = end;
        self
    }

    fn steady_pong(&mut self) {
        if let Some(session) = self.steady {
            self.syncer.handle(self.now(), SyncInput::Message(session, IncomingMessage::Alive));
        }
    }

    /// The other relay answers.
    fn please(&mut self, session: SessionId, say: &OutgoingMessage) {
        let heard = match say {
            OutgoingMessage::Req(sub, _) => IncomingMessage::Eose(*sub, None),
            OutgoingMessage::NegOpen(sub, ..) => IncomingMessage::NegErr(*sub, "closed: nothing".to_owned(), None),
            _ => return,
        };
        self.syncer.handle(self.now(), SyncInput::Message(session, heard));
    }

    /// A repository is followed on these relays.
    pub(crate) fn follow(&mut self, relays: &[&str]) -> &mut Self {
        self.seq += 1;
        let relays: Vec<String> = relays.iter().map(|relay| (*relay).to_owned()).collect();
        let (place, authors, seq) = (EventStatus::Served, vec![repo().owner], self.seq);
        let followed = RepoNeeds { repo: repo(), status: place, relays, authors, seq };
        self.tell("interest in thing", SyncInput::RepoNeeds(repo().identifier, vec![followed]));
        for repo in std::mem::take(&mut self.rooted) {
            self.tell("", SyncInput::RootEvents(repo, Vec::<RootEvent>::new()));
        }
        self
    }

    /// An issue of the repository is served.
    pub(crate) fn issue(&mut self, nth: u8) -> &mut Self {
        self.seq += 1;
        let at = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo().owner, d: "thing".to_owned() };
        let arrived = ServedEvent {
            seq: self.seq,
            id: EventId([nth; 32]),
            kind: kinds::ISSUE,
            author: PublicKey([9; 32]),
            coordinate: None,
            ids: vec![],
            coordinates: vec![at],
        };
        self.tell(&format!("issue {nth} is served"), SyncInput::Served(arrived));
        self
    }

    pub(crate) fn ready(&mut self) -> &mut Self {
        self.tell("ready", SyncInput::Ready);
        self
    }

    /// The operator has other rules.
    pub(crate) fn rules(&mut self, accepts_more: bool) -> &mut Self {
        let what = if accepts_more { "rules that take more" } else { "rules that take less" };
        self.tell(what, SyncInput::PolicyChanged(SyncPolicyChange { epoch: 2, bootstrap: Vec::new(), accepts_more }));
        self
    }

    /// The newest attempt succeeds.
    pub(crate) fn up(&mut self) -> &mut Self {
        (self.open, self.negs) = Default::default();
        self.numbers.clear();
        self.tell("up", SyncInput::Connected(self.session, Nip11Info::parse(TERMS)));
        self
    }

    /// The newest attempt succeeds, and the relay shows our own instance.
    pub(crate) fn up_as_ourselves(&mut self) -> &mut Self {
        self.tell("up: instance me", SyncInput::Connected(self.session, Nip11Info::parse(r#"{"instance":"me"}"#)));
        self
    }

    /// What an earlier life has written down.
    pub(crate) fn restored(&mut self, peer: RelayRecord) -> &mut Self {
        self.tell(&format!("restored {}", peer.url), SyncInput::Restored(RestoredRow::Relay(Box::new(peer))));
        self
    }

    /// So many seconds of the script as wall time.
    pub(crate) fn wall(secs: u64) -> Timestamp {
        Timestamp(WALL + secs)
    }

    /// An event is here.
    pub(crate) fn has(&mut self, nth: u8, secs_ago: u64) -> &mut Self {
        self.here.push(NegentropyItem { created_at: WALL - secs_ago, id: [nth; 32] });
        self
    }

    /// The relay has events, of which it sends so many at once.
    pub(crate) fn relay_has(&mut self, cap: usize, events: impl IntoIterator<Item = (u8, u64)>) -> &mut Self {
        self.cap = cap;
        self.there = events.into_iter().map(|(nth, secs_ago)| event(nth, secs_ago)).collect();
        self
    }

    /// The relay gets an event, so many seconds after the beginning.
    pub(crate) fn relay_gets(&mut self, nth: u8, secs: u64) -> &mut Self {
        self.there.push(Arc::new(Event { created_at: Self::wall(secs), ..Event::clone(&event(nth, 0)) }));
        self
    }

    /// The relay refuses everything that is open.
    pub(crate) fn refuse(&mut self, text: &str) -> &mut Self {
        for (sub, _) in std::mem::take(&mut self.open) {
            let number = self.number(sub);
            self.heard(&format!("CLOSED {number} {text}"), IncomingMessage::Closed(sub, text.to_owned()));
        }
        self
    }

    /// The relay says that it has sent everything that is asked for, and sends it then.
    pub(crate) fn end_and_send(&mut self) -> &mut Self {
        for (sub, filters) in std::mem::take(&mut self.open) {
            let number = self.number(sub);
            self.heard(&format!("EOSE {number}"), IncomingMessage::Eose(sub, None));
            self.send(sub, &filters);
        }
        self
    }

    /// From now on everything that is submitted is served at once.
    pub(crate) fn judging(&mut self) -> &mut Self {
        self.judges = true;
        self
    }

    /// Everything that was submitted is served.
    pub(crate) fn judged(&mut self) -> &mut Self {
        for ticket in std::mem::take(&mut self.tickets) {
            self.tell("served", SyncInput::SubmitResult(ticket, SubmitResult::Stored));
        }
        self
    }

    /// Everything that was submitted waits for git data.
    pub(crate) fn held(&mut self) -> &mut Self {
        for ticket in std::mem::take(&mut self.tickets) {
            self.tell("held", SyncInput::SubmitResult(ticket, SubmitResult::Held));
        }
        self
    }

    /// Sends what a request is about, as far as a page reaches.
    fn send(&mut self, sub: SubscriptionId, filters: &[Filter]) {
        let wanted =
            |event: &&Arc<Event>| filters.iter().any(|filter| filter.limit != Some(0) && fits(filter, &item(event)));
        let page: Vec<Arc<Event>> = self.there.iter().filter(wanted).take(self.cap).cloned().collect();
        if !page.is_empty() {
            let number = self.number(sub);
            self.line(&format!("> {number}: {} events", page.len()));
        }
        for event in page {
            let known = self.here.iter().any(|item| item.id == event.id.0);
            let standing = if known { EventPresence::Known } else { EventPresence::New };
            self.heard("", IncomingMessage::Event(sub, event, standing));
        }
    }

    pub(crate) fn down(&mut self, loss: DisconnectReason) -> &mut Self {
        self.steady_pong();
        self.tell(&format!("down: {loss:?}"), SyncInput::Disconnected(self.session, loss));
        self
    }

    pub(crate) fn heard(&mut self, what: &str, heard: IncomingMessage) -> &mut Self {
        self.tell(what, SyncInput::Message(self.session, heard));
        self
    }

    /// The relay answers everything that is open: it has nothing.
    pub(crate) fn answer(&mut self) -> &mut Self {
        for _ in 0..200 {
            let (open, negs) = (std::mem::take(&mut self.open), std::mem::take(&mut self.negs));
            if open.is_empty() && negs.is_empty() {
                break;
            }
            for (sub, filters) in open {
                self.send(sub, &filters);
                let number = self.number(sub);
                self.heard(&format!("EOSE {number}"), IncomingMessage::Eose(sub, None));
            }
            for (sub, filter, message) in negs {
                let number = self.number(sub);
                if self.there.is_empty() {
                    self.heard(
                        &format!("NEG-ERR {number}"),
                        IncomingMessage::NegErr(sub, "closed: nothing".to_owned(), None),
                    );
                    continue;
                }
                let items = self.there.iter().map(|event| item(event)).filter(|item| fits(&filter, item)).collect();
                let reply = respond(&NegentropySet::from_items(items), &message, 60_000).expect("a good message");
                self.heard(&format!("NEG-MSG {number}"), IncomingMessage::NegMsg(sub, reply));
            }
        }
        self
    }

    /// Lets time pass, during which the relay answers within seconds.
    pub(crate) fn answering(&mut self, millis: u64) -> &mut Self {
        for _ in 0..millis / 5_000 {
            self.pass(5_000).answer();
        }
        self
    }

    /// Forgets what was written so far.
    pub(crate) fn quietly(&mut self) -> &mut Self {
        self.text.clear();
        self
    }

    /// How the relay is, as of a pong if it is connected.
    pub(crate) fn state(&mut self) -> &mut Self {
        self.tell("", SyncInput::Message(self.session, IncomingMessage::Alive));
        let view = self.syncer.snapshot();
        for link in view.relays.iter().filter(|link| link.url.without_scheme() != STEADY) {
            let line = format!("= {} {:?}, {:?}", link.url, link.status, link.health);
            self.line(&line);
        }
        self
    }

    /// What was wanted, against what should have been.
    pub(crate) fn reads(&mut self, expected: &str) -> &mut Self {
        let wanted: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let got: Vec<&str> = self.text.lines().map(|line| line.trim_end()).collect();
        let squeezed: Vec<String> =
            got.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expect: Vec<String> =
            wanted.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(squeezed == expect, "it reads:\n{}", self.text);
        self.text.clear();
        self
    }
}
