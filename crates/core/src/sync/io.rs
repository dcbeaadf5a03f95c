//! Everything sync can be told and can want. Variant names are the vocabulary of logs and metrics.
//!
//! The hands keep three promises: what is served comes ([`Input::Interest`], then [`Input::Served`]) before the verdicts
//! that led to it ([`Input::Judged`]); every [`Output::Submit`] is judged exactly once; and an event that is not known
//! here is handed over only with a permit ([`limits::SYNC_IN_FLIGHT`](crate::limits::SYNC_IN_FLIGHT)), which is given
//! back when it is judged or let go, so that sync never has to turn anything away.

use std::sync::Arc;

use super::rejected::RefusedRow;
use super::relay_limits::Terms;
use super::relay_record::Peer;
use super::relay_url::RelayUrl;
use crate::nostr::PublicKey;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::filter::Filter;
use crate::nostr::negentropy::Item;
use crate::nostr::rejection::Refusal;
use crate::repo::catalog::Place;
use crate::repo::{Identifier, RepoId};
use crate::time::Timestamp;

/// What sync can be told.
#[derive(Clone, Debug)]
pub enum Input {
    /// At boot: something that the store has of an earlier life. All of it comes before anything else.
    Restored(Restored),
    /// That was all that the store has, and all that is followed has been told: dialling may begin.
    Ready,
    /// What is followed under this name, now and in whole. Nothing, if nothing is any more.
    Interest(Identifier, Vec<Followed>),
    /// The answer to [`Output::AskRoots`]: all roots of a repository, by arrival. What is served later comes by itself.
    Roots(RepoId, Vec<Root>),
    /// An event is served from now on, whoever brought it. In order of arrival.
    Served(Arrived),
    /// A connection stands. What its NIP-11 document says, if there is one.
    Up(Session, Option<Terms>),
    /// A relay says something.
    Heard(Session, Heard),
    /// So many bytes that were to be said have not left yet.
    Unsent(Session, usize),
    /// A connection has ended, or did not come about. The last word about a session.
    Down(Session, Loss),
    /// The answer to [`Output::AskIds`].
    Ids(AskId, LocalIds),
    /// The answer to [`Output::AskMissing`]: those that are neither served nor held here.
    Missing(AskId, Vec<EventId>),
    /// The verdict on a submitted event, after the commit.
    Judged(Ticket, Judgement),
    /// The operator wants something.
    Order(Order),
    /// The operator has other rules. The registrar has them already.
    Rules(NewRules),
}

/// What other rules mean for sync.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRules {
    /// What coverage rests on from now on.
    pub epoch: u64,
    /// Relays that are followed whoever names them.
    pub bootstrap: Vec<RelayUrl>,
    /// Whether something may be wanted that was refused: then everybody is asked again.
    pub wider: bool,
}

/// Something that survived in the store.
#[derive(Clone, Debug)]
pub enum Restored {
    /// What was known of a relay.
    Peer(Box<Peer>),
    /// An event that was not wanted.
    Refused(RefusedRow),
}

/// A repository that is followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Followed {
    /// Whose, and its name.
    pub repo: RepoId,
    /// Whether its announcement is served, or waits for git data: then only what can release it is followed.
    pub place: Place,
    /// The relays that the announcements of its maintainers name, as they are written there.
    pub relays: Vec<String>,
    /// Who keeps it: their deletions count.
    pub authors: Vec<PublicKey>,
    /// When the newest of those announcements arrived, or [`Seq::MAX`] if one of them waits. What a relay was asked for
    /// before that did not include all of this.
    pub seq: Seq,
}

/// The order in which events were stored. It never goes back and survives restarts.
pub type Seq = u64;

/// An issue, a patch or a pull request: an event that others answer to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Root {
    /// When it arrived.
    pub seq: Seq,
    /// Its id.
    pub id: EventId,
}

/// A served event, as far as sync cares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// When it arrived.
    pub seq: Seq,
    /// Its id.
    pub id: EventId,
    /// Its kind.
    pub kind: u16,
    /// Its author.
    pub author: PublicKey,
    /// Its address, if its kind has one.
    pub coordinate: Option<Coordinate>,
    /// What it refers to (`e`, `E`, `q`).
    pub ids: Vec<EventId>,
    /// What it refers to (`a`, `A`, `q`).
    pub coordinates: Vec<Coordinate>,
}

/// Names one connection, or the attempt at one, for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Session(pub u64);

/// Names one request within a session. Never used twice; subscriptions and reconciliations share the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubId(pub u64);

/// What a relay says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// An event whose id is the hash of its content; the signature has not been looked at.
    Event(SubId, Arc<Event>, Standing),
    /// All that is stored has been sent. Whether there is more (NIP-67), if it says so.
    Eose(SubId, Option<More>),
    /// A subscription has ended.
    Closed(SubId, String),
    /// For people.
    Notice(String),
    /// An answer to something that was published; authentication is.
    Ok(bool, String),
    /// The next message of a reconciliation.
    NegMsg(SubId, Vec<u8>),
    /// A reconciliation has ended. How many records it may have, if it says so.
    NegErr(SubId, String, Option<u64>),
    /// A challenge (NIP-42).
    Auth(String),
    /// A pong, or something that means nothing to us: the relay is alive.
    Alive,
    /// An event whose id is not its hash, or text that is no message.
    Nonsense,
    /// An event that is larger than we take.
    TooLarge(SubId),
}

/// What a relay says about the end of a page (NIP-67).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// That was all.
    Finish,
    /// There is more.
    More,
}

/// What the store knew of an event when it was heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nothing.
    New,
    /// It is served or held.
    Known,
}

/// Why a connection is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// No connection came about: no such name, refused, no answer in time.
    Unreachable,
    /// The address must not be dialled: it is not a public one. Nothing was sent.
    Forbidden,
    /// It is no websocket server, or its certificate is wrong.
    NotARelay,
    /// It was there and has ended, by the other side or by silence.
    Ended,
    /// The other side sent a message larger than we read.
    Flooded,
    /// We hung up.
    HungUp,
}

/// Names one question to the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AskId(pub u64);

/// What is here, for a reconciliation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalIds {
    /// The newest served and held events that match, at most [`limits::MAX_SYNC_ITEMS`](crate::limits::MAX_SYNC_ITEMS).
    pub items: Vec<Item>,
    /// All of them are among the items down to this second; `None` if they are all there.
    pub down_to: Option<Timestamp>,
}

/// Names one submitted event for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What became of a submitted event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// It is served, or was passed on.
    Stored,
    /// It waits for its git data.
    Held,
    /// It was here already, or a newer version is.
    Known,
    /// It is not wanted.
    Refused(Refusal),
    /// Its signature is wrong. Nothing may be concluded about its id.
    Forged,
}

/// What the operator can want of a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Dial it now, whatever its health.
    Retry(RelayUrl),
    /// Leave it alone until told otherwise, also after a restart.
    Pause(RelayUrl),
    /// No longer leave it alone.
    Resume(RelayUrl),
    /// Forget what is known of it.
    Forget(RelayUrl),
    /// Reconcile everything with it now.
    Reconcile(RelayUrl),
}

/// What sync can want.
#[derive(Clone, Debug)]
pub enum Output {
    /// Connect, and read the NIP-11 document beside it. [`Input::Up`] or [`Input::Down`] answers.
    Dial(Session, RelayUrl),
    /// End a connection or an attempt. [`Input::Down`] follows.
    HangUp(Session),
    /// Say this to a relay.
    Say(Session, Say),
    /// Tell me the roots of a repository.
    AskRoots(RepoId),
    /// Tell me what is here that matches.
    AskIds(AskId, Filter),
    /// Tell me which of these are not here.
    AskMissing(AskId, Vec<EventId>),
    /// Have this event judged like a client's.
    Submit(Submission),
    /// The event of this session is not needed: its permit is free.
    Release(Session),
    /// Write this down, soon.
    Remember(Row),
    /// No longer keep this written down.
    Forget(RowKey),
    /// Something that people may want to know: for the log and the counters.
    Note(Note),
}

/// What is said to a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Say {
    /// Ask, and stay subscribed.
    Req(SubId, Vec<Filter>),
    /// End a subscription.
    Close(SubId),
    /// Begin a reconciliation.
    NegOpen(SubId, Filter, Vec<u8>),
    /// Go on with one.
    NegMsg(SubId, Vec<u8>),
    /// End one.
    NegClose(SubId),
    /// Answer this challenge with the service's key.
    Auth(String),
}

/// An event to be judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submission {
    /// What the verdict will carry.
    pub ticket: Ticket,
    /// The event.
    pub event: Arc<Event>,
    /// The session whose permit it has; `None` for one that is judged again.
    pub session: Option<Session>,
    /// The relay that has it.
    pub relay: RelayUrl,
    /// How it came.
    pub via: Via,
}

/// How an event came from a relay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Via {
    /// By a live subscription.
    Live,
    /// By catching up after connecting, or with something that is newly followed.
    CatchUp,
    /// By the daily reconciliation.
    Daily,
}

/// A row to be written down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Row {
    /// What is known of a relay.
    Peer(Box<Peer>),
    /// An event that is not wanted.
    Refused(RefusedRow),
}

/// Names a row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RowKey {
    /// Of a relay.
    Peer(RelayUrl),
    /// Of a refused event.
    Refused(EventId),
}

/// What people may want to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A connection stands.
    Connected(RelayUrl, Reconnect),
    /// A connection did not come about.
    Failed {
        /// The relay.
        relay: RelayUrl,
        /// Why.
        loss: Loss,
        /// How often in a row.
        failures: u32,
        /// Milliseconds until the next attempt.
        backoff_millis: u64,
    },
    /// A connection has ended.
    Lost(RelayUrl, Loss),
    /// A relay has not been reached for a day.
    Dead(RelayUrl, u32),
    /// A relay wants less of us.
    RateLimited(RelayUrl, String, u64),
    /// A relay does not speak negentropy: pages are used. Once per relay.
    NoNegentropy(RelayUrl),
    /// A relay wants nothing to do with us.
    Parked(RelayUrl, String),
    /// A relay is this server under another name.
    IsSelf(RelayUrl),
    /// Everything that a relay has is here: how many events came, and whether all of it succeeded.
    CaughtUp {
        /// The relay.
        relay: RelayUrl,
        /// How.
        via: Via,
        /// Events that were new.
        events: u64,
        /// Whether nothing failed.
        whole: bool,
    },
    /// Events that a live subscription should have brought were found by asking again.
    Gaps {
        /// The relay.
        relay: RelayUrl,
        /// How they were found.
        via: Via,
        /// How many.
        count: u64,
        /// Three of them.
        examples: Vec<EventId>,
    },
    /// How many events of a repository a relay lacks that are here; may be none. From the daily reconciliation.
    PeerLacks(RelayUrl, RepoId, u64),
    /// The states that are here were compared with a relay's.
    States {
        /// The relay.
        relay: RelayUrl,
        /// What both have.
        shared: Vec<EventId>,
        /// What only we have, ascending.
        lacking: Vec<EventId>,
    },
    /// Part of the history could not be had.
    PassFailed(RelayUrl, &'static str),
}

/// How a connection begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reconnect {
    /// For the first time, or for the first time that counts.
    Fresh,
    /// After a short absence: only what is newer is asked for.
    Quick,
    /// After a long absence: everything is asked for.
    Long,
}
