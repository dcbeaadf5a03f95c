//! A machine that is told facts at given times and writes down what it wants, so that a scenario can be read.

use std::fmt::Write;
use std::sync::Arc;

use grasp_core::nostr::event::{Coordinate, Event, EventId};
use grasp_core::nostr::negentropy::{Item, ItemSet, respond};
use grasp_core::nostr::{Filter, PublicKey, kinds};
use grasp_core::repo::catalog::Place;
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::state_machine::Machine;
use grasp_core::sync::io::{
    Arrived, Followed, Heard, Input, Judgement, LocalIds, Loss, NewRules, Note, Output, Restored, Root, Say, Seq,
    Session, Standing, SubId, Ticket,
};
use grasp_core::sync::relay_limits::Terms;
use grasp_core::sync::relay_record::Peer;
use grasp_core::sync::{SyncConfig, Syncer};
use grasp_core::time::{Moment, Now, Timestamp};
use grasp_sim::sync::{repo_history, text};

/// The place of the other relay.
const STEADY: &str = "steady.example";

/// The wall time at which scripts begin.
const WALL: u64 = 1_700_000_000;

/// A relay that takes everything.
const TERMS: &str = r#"{"supported_nips":[1,11,77],"limitation":{"max_subscriptions":200,"max_filters":20,"max_message_length":1000000,"max_limit":500}}"#;

/// A machine and what it has wanted.
pub(crate) struct Script {
    syncer: Syncer,
    millis: u64,
    seq: Seq,
    text: String,
    /// The newest attempt, the questions, and the requests that are open.
    session: Session,
    rooted: Vec<RepoId>,
    open: Vec<(SubId, Vec<Filter>)>,
    negs: Vec<(SubId, Filter, Vec<u8>)>,
    numbers: Vec<SubId>,
    /// Events that are here, and what the relay has for whatever it is asked.
    here: Vec<Item>,
    there: Vec<Arc<Event>>,
    /// The largest page of the relay.
    cap: usize,
    /// What waits for a verdict, and whether that comes at once.
    tickets: Vec<Ticket>,
    judges: bool,
    /// Another relay that answers everything at once, so that failures are not ours.
    steady: Option<Session>,
}

/// What a script begins with.
pub(crate) fn config() -> SyncConfig {
    SyncConfig {
        service: repo_history::service(0),
        instance: "me".to_owned(),
        bootstrap: vec![],
        window_millis: 5_000,
        values_per_filter: 100,
        negentropy: true,
        backoff: Default::default(),
        refused: Default::default(),
        epoch: 1,
        seed: 1,
        flaw: None,
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
fn item(event: &Event) -> Item {
    Item { created_at: event.created_at.0, id: event.id.0 }
}

/// Whether a filter asks for an event: the last sixteen are states, all others refer to the repository and to its issues.
fn fits(filter: &Filter, item: &Item) -> bool {
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
            syncer: Syncer::new(config),
            millis: 0,
            seq: 0,
            text: String::new(),
            session: Session(0),
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
        Now { mono: Moment(self.millis), wall: Timestamp(WALL + self.millis / 1_000) }
    }

    fn line(&mut self, line: &str) {
        let (secs, millis) = (self.millis / 1_000, self.millis % 1_000);
        let (days, hours, minutes) = (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60);
        let day = if days > 0 { format!("{days}d ") } else { String::new() };
        writeln!(self.text, "{day}{hours:02}:{minutes:02}:{:02}.{millis:03} {line}", secs % 60).expect("memory");
    }

    /// Tells the machine something.
    fn tell(&mut self, what: &str, input: Input) {
        if !what.is_empty() {
            self.line(&format!("> {what}"));
        }
        self.syncer.handle(self.now(), input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.syncer.poll() {
            match &output {
                Output::Dial(session, url) if url.place() == STEADY => {
                    self.steady = Some(*session);
                    self.syncer.handle(self.now(), Input::Up(*session, Terms::parse(TERMS)));
                    continue;
                }
                Output::Say(session, say) if Some(*session) == self.steady => {
                    self.please(*session, say);
                    continue;
                }
                Output::Note(note) if format!("{note:?}").contains(STEADY) => continue,
                Output::Dial(session, _) => self.session = *session,
                Output::AskIds(ask, filter) => {
                    let items = self.here.iter().filter(|item| fits(filter, item)).copied().collect();
                    self.syncer.handle(self.now(), Input::Ids(*ask, LocalIds { items, down_to: None }));
                    continue;
                }
                Output::AskMissing(ask, ids) => {
                    let missing = ids.iter().filter(|id| !self.here.iter().any(|item| item.id == id.0));
                    let missing = missing.copied().collect();
                    self.syncer.handle(self.now(), Input::Missing(*ask, missing));
                    continue;
                }
                Output::Submit(submission) if self.judges => {
                    self.here.push(item(&submission.event));
                    self.syncer.handle(self.now(), Input::Judged(submission.ticket, Judgement::Stored));
                    continue;
                }
                Output::Submit(submission) => self.tickets.push(submission.ticket),
                Output::AskRoots(repo) => self.rooted.push(repo.clone()),
                Output::Say(_, Say::Req(sub, filters)) => self.open.push((*sub, filters.clone())),
                Output::Say(_, Say::NegOpen(sub, filter, message)) => {
                    self.negs.push((*sub, filter.clone(), message.clone()));
                }
                Output::Say(_, Say::Close(sub)) => self.open.retain(|(open, _)| open != sub),
                Output::Remember(_) => continue,
                _ => {}
            }
            if let Some(line) = self.read(&output) {
                self.line(&format!("  {line}"));
            }
        }
    }

    /// An output in a few words: requests are numbered as they come, and the other relay is not worth a word.
    fn read(&mut self, output: &Output) -> Option<String> {
        Some(match output {
            Output::Dial(_, url) => format!("dial {url}"),
            Output::HangUp(_) => "hang up".to_owned(),
            Output::Say(_, Say::Close(sub)) => format!("CLOSE {}", self.number(*sub)),
            Output::Say(_, Say::NegClose(sub)) => format!("NEG-CLOSE {}", self.number(*sub)),
            Output::Say(_, Say::Req(sub, filters)) => {
                let filters: Vec<String> = filters.iter().map(text::filter).collect();
                format!("REQ {} {}", self.number(*sub), filters.join(" "))
            }
            Output::Say(_, Say::NegOpen(sub, filter, _)) => {
                format!("NEG-OPEN {} {}", self.number(*sub), text::filter(filter))
            }
            Output::Note(Note::Connected(_, how)) => format!("connected: {how:?}"),
            Output::Note(Note::Lost(_, loss)) => format!("lost: {loss:?}"),
            Output::Note(Note::Failed { failures, backoff_millis, .. }) => {
                format!("failed {failures} times, again in {} s", backoff_millis / 1_000)
            }
            Output::Note(Note::RateLimited(_, text, secs)) => format!("rate-limited for {secs} s: {text}"),
            Output::Note(Note::Dead(..)) => "dead".to_owned(),
            Output::Note(Note::Parked(_, text)) => format!("parked: {text}"),
            Output::Note(Note::IsSelf(_)) => "that is ourselves".to_owned(),
            Output::Note(Note::PassFailed(_, why)) => format!("failed: {why}"),
            Output::Note(Note::PeerLacks(_, _, count)) => format!("it lacks {count} events"),
            Output::Note(Note::States { shared, lacking, .. }) => {
                format!("states: {} shared, {} lacking", shared.len(), lacking.len())
            }
            Output::Note(Note::Gaps { count, .. }) => format!("{count} gaps"),
            Output::Submit(submission) => format!("submit #{:02x} via {:?}", submission.event.id.0[0], submission.via),
            Output::Release(_) => return None,
            Output::Note(Note::CaughtUp { via, events, whole, .. }) => {
                format!("caught up by {via:?}: {events} events, {}", if *whole { "whole" } else { "not whole" })
            }
            Output::AskIds(..) | Output::AskRoots(_) => return None,
            other => text::output(other),
        })
    }

    fn number(&mut self, sub: SubId) -> usize {
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
            self.syncer.handle(self.now(), Input::Heard(session, Heard::Alive));
        }
    }

    /// The other relay answers.
    fn please(&mut self, session: Session, say: &Say) {
        let heard = match say {
            Say::Req(sub, _) => Heard::Eose(*sub, None),
            Say::NegOpen(sub, ..) => Heard::NegErr(*sub, "closed: nothing".to_owned(), None),
            _ => return,
        };
        self.syncer.handle(self.now(), Input::Heard(session, heard));
    }

    /// A repository is followed on these relays.
    pub(crate) fn follow(&mut self, relays: &[&str]) -> &mut Self {
        self.seq += 1;
        let relays: Vec<String> = relays.iter().map(|relay| (*relay).to_owned()).collect();
        let (place, authors, seq) = (Place::Served, vec![repo().owner], self.seq);
        let followed = Followed { repo: repo(), place, relays, authors, seq };
        self.tell("interest in thing", Input::Interest(repo().identifier, vec![followed]));
        for repo in std::mem::take(&mut self.rooted) {
            self.tell("", Input::Roots(repo, Vec::<Root>::new()));
        }
        self
    }

    /// An issue of the repository is served.
    pub(crate) fn issue(&mut self, nth: u8) -> &mut Self {
        self.seq += 1;
        let at = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo().owner, d: "thing".to_owned() };
        let arrived = Arrived {
            seq: self.seq,
            id: EventId([nth; 32]),
            kind: kinds::ISSUE,
            author: PublicKey([9; 32]),
            coordinate: None,
            ids: vec![],
            coordinates: vec![at],
        };
        self.tell(&format!("issue {nth} is served"), Input::Served(arrived));
        self
    }

    pub(crate) fn ready(&mut self) -> &mut Self {
        self.tell("ready", Input::Ready);
        self
    }

    /// The operator has other rules.
    pub(crate) fn rules(&mut self, wider: bool) -> &mut Self {
        let what = if wider { "rules that take more" } else { "rules that take less" };
        self.tell(what, Input::Rules(NewRules { epoch: 2, bootstrap: Vec::new(), wider }));
        self
    }

    /// The newest attempt succeeds.
    pub(crate) fn up(&mut self) -> &mut Self {
        (self.open, self.negs) = Default::default();
        self.numbers.clear();
        self.tell("up", Input::Up(self.session, Terms::parse(TERMS)));
        self
    }

    /// The newest attempt succeeds, and the relay shows our own instance.
    pub(crate) fn up_as_ourselves(&mut self) -> &mut Self {
        self.tell("up: instance me", Input::Up(self.session, Terms::parse(r#"{"instance":"me"}"#)));
        self
    }

    /// What an earlier life has written down.
    pub(crate) fn restored(&mut self, peer: Peer) -> &mut Self {
        self.tell(&format!("restored {}", peer.url), Input::Restored(Restored::Peer(Box::new(peer))));
        self
    }

    /// So many seconds of the script as wall time.
    pub(crate) fn wall(secs: u64) -> Timestamp {
        Timestamp(WALL + secs)
    }

    /// An event is here.
    pub(crate) fn has(&mut self, nth: u8, secs_ago: u64) -> &mut Self {
        self.here.push(Item { created_at: WALL - secs_ago, id: [nth; 32] });
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
            self.heard(&format!("CLOSED {number} {text}"), Heard::Closed(sub, text.to_owned()));
        }
        self
    }

    /// The relay says that it has sent everything that is asked for, and sends it then.
    pub(crate) fn end_and_send(&mut self) -> &mut Self {
        for (sub, filters) in std::mem::take(&mut self.open) {
            let number = self.number(sub);
            self.heard(&format!("EOSE {number}"), Heard::Eose(sub, None));
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
            self.tell("served", Input::Judged(ticket, Judgement::Stored));
        }
        self
    }

    /// Everything that was submitted waits for git data.
    pub(crate) fn held(&mut self) -> &mut Self {
        for ticket in std::mem::take(&mut self.tickets) {
            self.tell("held", Input::Judged(ticket, Judgement::Held));
        }
        self
    }

    /// Sends what a request is about, as far as a page reaches.
    fn send(&mut self, sub: SubId, filters: &[Filter]) {
        let wanted =
            |event: &&Arc<Event>| filters.iter().any(|filter| filter.limit != Some(0) && fits(filter, &item(event)));
        let page: Vec<Arc<Event>> = self.there.iter().filter(wanted).take(self.cap).cloned().collect();
        if !page.is_empty() {
            let number = self.number(sub);
            self.line(&format!("> {number}: {} events", page.len()));
        }
        for event in page {
            let known = self.here.iter().any(|item| item.id == event.id.0);
            let standing = if known { Standing::Known } else { Standing::New };
            self.heard("", Heard::Event(sub, event, standing));
        }
    }

    pub(crate) fn down(&mut self, loss: Loss) -> &mut Self {
        self.steady_pong();
        self.tell(&format!("down: {loss:?}"), Input::Down(self.session, loss));
        self
    }

    pub(crate) fn heard(&mut self, what: &str, heard: Heard) -> &mut Self {
        self.tell(what, Input::Heard(self.session, heard));
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
                self.heard(&format!("EOSE {number}"), Heard::Eose(sub, None));
            }
            for (sub, filter, message) in negs {
                let number = self.number(sub);
                if self.there.is_empty() {
                    self.heard(&format!("NEG-ERR {number}"), Heard::NegErr(sub, "closed: nothing".to_owned(), None));
                    continue;
                }
                let items = self.there.iter().map(|event| item(event)).filter(|item| fits(&filter, item)).collect();
                let reply = respond(&ItemSet::seal(items), &message, 60_000).expect("a good message");
                self.heard(&format!("NEG-MSG {number}"), Heard::NegMsg(sub, reply));
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
        self.tell("", Input::Heard(self.session, Heard::Alive));
        let view = self.syncer.view();
        for link in view.links.iter().filter(|link| link.url.place() != STEADY) {
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
