//! The second machine: whom to listen to, and how to catch up.
//!
//! A relay is one [`link`]. What is followed (`wants`) is asked for in batches: each opens a live subscription,
//! waits until it is confirmed, and then asks for history, by reconciliation ([`nego`]) or in pages ([`page`]). Every
//! event is judged like a client's (`flight`); what is refused is remembered ([`refused`]), so that it is not fetched
//! again until what it needs has come. How often a relay is dialled is the business of its [`health`], how much is asked
//! of it that of its [`terms`], and its complaints are understood in [`complaint`] and nowhere else.

mod batch;
mod batch_planner;
mod completion;
mod connection;
mod context;
mod dialing;
pub mod fault_injection;
mod filters;
pub mod health;
mod in_flight;
pub mod io;
mod live;
pub mod negentropy;
mod on_message;
mod on_rejection;
pub mod pagination;
mod persistence;
mod recent_arrivals;
mod reconciliation;
pub mod rejected;
pub mod rejection_text;
pub mod relay;
pub mod relay_limits;
pub mod relay_record;
mod relay_set;
pub mod relay_url;
mod scheduler;
mod target_updates;
mod targets;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::batch::JobId;
use self::io::{AskId, Heard, Input, Output, Row, RowKey, Session};
pub use self::view::{LinkView, Progress, RepoLink, View};
use super::sync::context::{Chance, Ctx};
use super::sync::dialing::Dials;
use super::sync::fault_injection::Flaw;
use super::sync::in_flight::Flights;
use super::sync::recent_arrivals::Recent;
use super::sync::rejected::{RefusedConfig, RefusedIndex};
use super::sync::relay::{Link, LinkId};
use super::sync::relay_record::Peer;
use super::sync::relay_url::RelayUrl;
use super::sync::targets::Wants;
use crate::limits;
use crate::repo::Service;
use crate::state_machine::Machine;
use crate::time::{Moment, Now, Timestamp};

/// What sync is told once.
#[derive(Clone, Debug)]
pub struct SyncConfig {
    /// This service: it is never dialled.
    pub service: Service,
    /// What our NIP-11 document calls this instance: whoever shows it is ourselves under another name.
    pub instance: String,
    /// Relays that are followed whoever names them, and never dropped.
    pub bootstrap: Vec<RelayUrl>,
    /// Milliseconds for which interest is gathered.
    pub window_millis: u64,
    /// Values of one filter where the relay's limits allow it.
    pub values_per_filter: usize,
    /// Whether reconciliation is tried at all.
    pub negentropy: bool,
    /// How dialling is spaced.
    pub backoff: health::BackoffConfig,
    /// How long refused events are remembered.
    pub refused: RefusedConfig,
    /// What the coverage of an earlier life rests on; see [`relay_record::Covered`].
    pub epoch: u64,
    /// Where chance begins.
    pub seed: u64,
    /// A deliberate mistake, for the simulator.
    #[doc(hidden)]
    pub flaw: Option<Flaw>,
}

/// The machine.
pub struct Syncer {
    config: SyncConfig,
    now: Now,
    ready: bool,
    wants: Wants,
    links: BTreeMap<LinkId, Link>,
    places: BTreeMap<String, LinkId>,
    sessions: BTreeMap<Session, LinkId>,
    /// Rows of relays that nobody has wanted yet.
    rows: BTreeMap<String, Peer>,
    flights: Flights,
    recent: Recent,
    refused: RefusedIndex,
    asks: BTreeMap<AskId, (LinkId, JobId)>,
    dials: Dials,
    /// When each link wants to be woken.
    alarms: BTreeSet<(Moment, LinkId)>,
    /// Places of relays that were wanted at the beginning and have no link yet.
    unlinked: VecDeque<String>,
    /// Links that have something to do now.
    restless: BTreeSet<LinkId>,
    negs: usize,
    starved: BTreeSet<LinkId>,
    chance: Chance,
    next: u64,
    next_link: u32,
    save_at: Option<Moment>,
    out: VecDeque<Output>,
}

impl Syncer {
    /// A machine that follows nothing yet.
    #[must_use]
    pub fn new(config: SyncConfig) -> Self {
        Self {
            now: Now::default(),
            ready: false,
            wants: Wants::default(),
            links: BTreeMap::new(),
            places: BTreeMap::new(),
            sessions: BTreeMap::new(),
            rows: BTreeMap::new(),
            flights: Flights::default(),
            recent: Recent::default(),
            refused: RefusedIndex::new(config.refused),
            asks: BTreeMap::new(),
            dials: Dials::default(),
            alarms: BTreeSet::new(),
            unlinked: VecDeque::new(),
            restless: BTreeSet::new(),
            negs: 0,
            starved: BTreeSet::new(),
            chance: Chance(config.seed),
            next: 0,
            next_link: 0,
            save_at: None,
            out: VecDeque::new(),
            config,
        }
    }

    fn flawed(&self, flaw: Flaw) -> bool {
        fault_injection::makes(self.config.flaw, flaw)
    }

    /// Lets a link work with a view of everything else.
    fn with<R>(&mut self, id: LinkId, work: impl FnOnce(&mut Link, &mut Ctx<'_>) -> R) -> Option<R> {
        let link = self.links.get_mut(&id)?;
        let mut ctx = Ctx {
            now: self.now,
            config: &self.config,
            wants: &self.wants,
            refused: &self.refused,
            out: &mut self.out,
            next: &mut self.next,
            asks: &mut self.asks,
            negs: &mut self.negs,
            starved: &mut self.starved,
            chance: &mut self.chance,
        };
        Some(work(link, &mut ctx))
    }

    fn begin(&mut self) {
        self.ready = true;
        self.forget_what_old_rules_refused();
        for url in self.config.bootstrap.clone() {
            self.link_to(&url, true);
        }
        // What nobody has wanted for a month is forgotten.
        let old = |peer: &Peer| self.now.wall.secs_since(peer.wanted_at) > limits::SYNC_PEER_SECS;
        let gone: Vec<String> =
            self.rows.iter().filter(|(_, peer)| old(peer)).map(|(place, _)| place.clone()).collect();
        for place in gone {
            if let Some(peer) = self.rows.remove(&place) {
                self.out.push_back(Output::Forget(RowKey::Peer(peer.url)));
            }
        }
        self.unlinked = self.wants.places().map(|(place, _)| place.clone()).collect();
        self.link_some();
    }

    /// Makes the next few of the links that there are from the beginning: each looks at all that its relay is wanted for.
    fn link_some(&mut self) {
        for _ in 0..limits::SYNC_LINK_SLICE {
            let Some(place) = self.unlinked.pop_front() else { break };
            self.relink(&place);
        }
        if self.unlinked.is_empty() {
            // What is followed from now on was not followed then.
            for link in self.links.values_mut() {
                link.restored = None;
            }
        }
    }

    fn heard(&mut self, session: Session, heard: Heard) {
        let Some(id) = self.sessions.get(&session).copied() else {
            if let Heard::Event(_, _, io::Standing::New) = heard {
                self.out.push_back(Output::Release(session));
            }
            return;
        };
        self.dials.sign(id, self.now.mono);
        let now = self.now;
        if let Some(link) = self.links.get_mut(&id) {
            link.heard = Some(now);
        }
        match heard {
            Heard::Event(sub, event, standing) => self.event(id, session, (sub, event, standing)),
            other => {
                let leave = self.with(id, |link, ctx| link.hear(ctx, other)).unwrap_or(false);
                if leave {
                    self.hang_up(id);
                }
            }
        }
        self.restless.insert(id);
    }

    /// Lets every restless link work, a bounded number at a time.
    fn work(&mut self) {
        for _ in 0..limits::SYNC_LINKS_A_STEP {
            let Some(id) = self.restless.pop_first() else { break };
            let negs = self.negs;
            self.with(id, |link, ctx| link.drive(ctx));
            if self.negs < negs {
                let starved = std::mem::take(&mut self.starved);
                self.restless.extend(starved);
            }
            self.set_alarm(id);
        }
        if self.negs < limits::SYNC_NEGS {
            let starved = std::mem::take(&mut self.starved);
            self.restless.extend(starved.into_iter().filter(|id| self.links.contains_key(id)));
        }
        self.dial();
    }

    fn set_alarm(&mut self, id: LinkId) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&id) else { return };
        let next = link.next_alarm(now, self.config.flaw);
        if link.unsaved || link.up().is_some() {
            let secs = if link.unsaved { limits::SYNC_SAVE_SECS } else { limits::SYNC_HEARD_SECS };
            let at = now.mono.plus_secs(secs);
            self.save_at = Some(self.save_at.map_or(at, |save| save.min(at)));
        }
        if next == link.alarm {
            return;
        }
        if let Some(old) = std::mem::replace(&mut link.alarm, next) {
            self.alarms.remove(&(old, id));
        }
        if let Some(next) = next {
            self.alarms.insert((next, id));
        }
    }
}

impl Machine for Syncer {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        self.now = now;
        match input {
            Input::Restored(restored) => self.restore(restored),
            Input::Ready => self.begin(),
            Input::Interest(name, followed) => self.interest(name, followed),
            Input::Roots(repo, roots) => self.rooted(&repo, roots),
            Input::Served(arrived) => self.served(&arrived),
            Input::Up(session, terms) => self.up(session, terms),
            Input::Heard(session, heard) => self.heard(session, heard),
            Input::Unsent(session, bytes) => {
                if let Some(id) = self.sessions.get(&session).copied() {
                    self.with(id, |link, _| link.session(session).map(|up| up.unsent = bytes));
                    self.restless.insert(id);
                }
            }
            Input::Down(session, loss) => self.down(session, loss),
            Input::Ids(ask, ids) => {
                if let Some((id, job)) = self.asks.remove(&ask) {
                    self.with(id, |link, ctx| link.local_ids(ctx, job, ids));
                    self.restless.insert(id);
                }
            }
            Input::Missing(ask, ids) => {
                if let Some((id, job)) = self.asks.remove(&ask) {
                    self.with(id, |link, ctx| link.missing(ctx, job, ids));
                    self.restless.insert(id);
                }
            }
            Input::Judged(ticket, judgement) => self.judged(ticket, judgement),
            Input::Order(order) => self.order(&order),
            Input::Rules(rules) => self.new_rules(rules),
        }
        self.work();
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn alarm(&self) -> Option<(Moment, &'static str)> {
        let links = self.alarms.first().map(|(at, _)| (*at, "a relay"));
        let window = self.wants.closes.map(|at| (at, "the window"));
        let dial = self.dials.next().map(|at| (at, "a dial"));
        let save = self.save_at.map(|at| (at, "rows"));
        let more = !self.restless.is_empty() || !self.unlinked.is_empty() || self.refused.has_more();
        let more = more.then_some((self.now.mono, "more to do"));
        [links, window, dial, save, more].into_iter().flatten().min()
    }

    fn wake(&mut self, now: Now) {
        self.now = now;
        if !self.unlinked.is_empty() {
            self.link_some();
        }
        if self.wants.closes.is_some_and(|at| at <= now.mono) {
            self.close_window();
        }
        while let Some((at, id)) = self.alarms.first().copied() {
            if at > now.mono {
                break;
            }
            self.alarms.remove(&(at, id));
            if let Some(link) = self.links.get_mut(&id) {
                link.alarm = None;
            }
            self.due(id);
            self.restless.insert(id);
        }
        if self.save_at.is_some_and(|at| at <= now.mono) {
            self.save();
            for _ in 0..limits::SYNC_EXPIRY_SLICES {
                let gone = self.refused.expire(now);
                if gone.is_empty() {
                    break;
                }
                self.out.extend(gone.into_iter().map(|id| Output::Forget(RowKey::Refused(id))));
            }
        }
        let more = self.refused.more();
        self.reconsider(more);
        self.work();
    }
}

/// Which layer an event belongs to, for the refused index.
fn layer(event: &crate::nostr::Event) -> rejected::Layer {
    use crate::nostr::kinds::{ANNOUNCEMENT, STATE};
    if matches!(event.kind, ANNOUNCEMENT | STATE) { rejected::Layer::Announcements } else { rejected::Layer::Related }
}

/// The earlier of two times.
fn earlier(a: Option<Timestamp>, b: Timestamp) -> Timestamp {
    a.map_or(b, |a| a.min(b))
}
