//! What must never happen, checked at the machine's boundary: what it wants, after what it was told. What is on a wire
//! cannot be called back, so nothing else would be fair.

mod bounds;
mod dials;
mod in_flight;
mod persistence;
mod request_limits;
mod wanted;

use std::fmt;

use grasp_core::sync::io::{RelayCommand, SessionId, SyncInput, SyncNote, SyncOutput};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::{MonoTime, Now};

use self::dials::Dials;
use self::wanted::Wanted;
use super::invariants::in_flight::Flights;
pub use super::invariants::persistence::is_dishonest;
use super::invariants::request_limits::Manners;
use super::queue::Time;
use super::relay_profile::Stated;
use super::repo_history;
use super::tables::Rows;

/// A law that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Which.
    pub law: &'static str,
    /// By what.
    pub detail: String,
}

impl Broken {
    /// Says which law, and by what.
    #[must_use]
    pub fn new(law: &'static str, detail: String) -> Self {
        Self { law, detail }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.detail)
    }
}

/// The first law that was broken.
#[derive(Debug, Default)]
pub(super) struct Verdicts(Option<Broken>);

impl Verdicts {
    /// Notes that a law is broken unless it holds.
    fn hold(&mut self, holds: bool, law: &'static str, detail: impl FnOnce() -> String) {
        if !holds && self.0.is_none() {
            self.0 = Some(Broken::new(law, detail()));
        }
    }
}

/// Watches one node's machine.
#[derive(Debug)]
pub struct Watch {
    verdicts: Verdicts,
    dials: Dials,
    manners: Manners,
    flights: Flights,
    wanted: Wanted,
    /// How often it was woken lately, and since when that is counted.
    wakes: (Time, u32),
    counts: Counts,
}

/// What was done, for laws about how much is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Dials.
    pub dials: u64,
    /// Events that were submitted.
    pub submitted: u64,
    /// The most requests that one relay got in one day.
    pub most_a_day: u64,
    /// The most full passes over one relay in one day.
    pub most_passes: u64,
}

impl Counts {
    /// Takes the greater of each number.
    pub fn widen(&mut self, other: &Self) {
        self.requests = self.requests.max(other.requests);
        self.dials = self.dials.max(other.dials);
        self.submitted = self.submitted.max(other.submitted);
        self.most_a_day = self.most_a_day.max(other.most_a_day);
        self.most_passes = self.most_passes.max(other.most_passes);
    }
}

/// Wakes within a short time after which nothing but a loop can be the reason.
const MOST_WAKES: u32 = 5_000;
/// That time.
const WAKES: Time = 10_000;

impl Watch {
    /// One for a node of this number, which is called this.
    #[must_use]
    pub fn new(node: usize, instance: String) -> Self {
        let service = repo_history::service(node);
        Self {
            verdicts: Verdicts::default(),
            dials: Dials::new(service, instance),
            manners: Manners::default(),
            flights: Flights::default(),
            wanted: Wanted::default(),
            wakes: (0, 0),
            counts: Counts::default(),
        }
    }

    /// These relays are in the settings.
    pub fn bootstrap(&mut self, urls: &[RelayUrl]) {
        self.wanted.bootstrap(urls);
    }

    /// The machine is told something.
    pub fn input(&mut self, now: Time, clock: Now, input: &SyncInput) {
        let _ = clock;
        match input {
            SyncInput::Connected(session, nip11) => {
                self.dials.up(now, *session, nip11.as_ref());
                if let Some(place) = self.dials.place(*session) {
                    self.manners.reason(now, place);
                }
            }
            SyncInput::Disconnected(session, loss) => {
                self.dials.down(now, *session, *loss);
                self.manners.down(*session);
                self.flights.down(*session);
            }
            SyncInput::Message(session, heard) => {
                self.dials.heard(now, *session);
                self.manners.heard(now, *session, heard, self.dials.place(*session));
                self.flights.heard(*session, heard);
            }
            SyncInput::SubmitResult(ticket, judgement) => self.flights.judged(&mut self.verdicts, *ticket, judgement),
            SyncInput::Served(arrived) => self.flights.served(arrived),
            SyncInput::RepoNeeds(name, followed) => {
                self.flights.interest(name);
                self.wanted.interest(followed);
            }
            SyncInput::Command(order) => {
                self.dials.order(order);
                self.manners.reason(now, subject(order).without_scheme());
            }
            SyncInput::Restored(_)
            | SyncInput::Ready
            | SyncInput::RootEvents(..)
            | SyncInput::Unsent(..)
            | SyncInput::LocalIds(..)
            | SyncInput::MissingIds(..)
            | SyncInput::PolicyChanged(_) => {}
        }
    }

    /// The machine wants something.
    pub fn output(&mut self, now: Time, clock: Now, output: &SyncOutput) {
        let _ = clock;
        match output {
            SyncOutput::Dial(session, url) => {
                self.counts.dials += 1;
                let quiet = self.manners.quiet_until(url.without_scheme());
                self.dials.dial(&mut self.verdicts, now, *session, url, quiet);
            }
            SyncOutput::Send(session, say) => {
                self.wanted.said(&mut self.verdicts, say, self.dials.place(*session));
                self.manners.said(&mut self.verdicts, now, *session, say, self.dials.place(*session));
                self.counts.requests = self.manners.requests();
                (self.counts.most_a_day, self.counts.most_passes) = self.manners.most();
            }
            SyncOutput::Submit(submission) => {
                self.counts.submitted += 1;
                self.flights.submitted(&mut self.verdicts, now, submission);
            }
            SyncOutput::Note(SyncNote::ConnectionFailed { relay, failures, backoff_millis, .. }) => {
                self.dials.failed(&mut self.verdicts, now, relay, (*failures, *backoff_millis));
            }
            SyncOutput::Note(SyncNote::BatchFailed(relay, _)) => self.manners.failed(now, relay.without_scheme()),
            SyncOutput::Disconnect(session) => self.dials.hung_up(*session),
            SyncOutput::QueryRootEvents(_)
            | SyncOutput::QueryLocalIds(..)
            | SyncOutput::QueryMissingIds(..)
            | SyncOutput::ReleasePermit(_)
            | SyncOutput::StoreRow(_)
            | SyncOutput::DeleteRow(_)
            | SyncOutput::Note(_) => {}
        }
    }

    /// A connection stands, and this is what its relay says about itself.
    pub fn stated(&mut self, session: SessionId, stated: Option<Stated>, relay: usize) {
        self.manners.stated(session, stated, relay);
    }

    /// The machine was woken. False if that never stops.
    pub fn woke(&mut self, now: Time, due: Option<(MonoTime, &'static str)>) -> bool {
        let _ = due;
        let (at, count) = self.wakes;
        self.wakes = if now < at + WAKES { (at, count + 1) } else { (now, 1) };
        self.wakes.1 < MOST_WAKES
    }

    /// A process begins with these rows.
    pub fn began(&mut self, now: Time, clock: Now, rows: &Rows) {
        self.dials.began(now, clock, rows);
        self.manners.began(now, clock, rows);
        self.flights.began();
        self.wanted.began();
    }

    /// The process has ended.
    pub fn ended(&mut self, now: Time) {
        self.dials.ended(now);
        self.manners.ended();
    }

    /// The node's network has gone, or is back.
    pub fn outage(&mut self, now: Time, away: bool) {
        self.dials.outage(now, away);
    }

    /// The wall clock was set.
    pub fn clock_stepped(&mut self) {
        self.dials.clock_stepped();
    }

    /// Notes that a law is broken.
    pub fn law(&mut self, law: &'static str, detail: impl FnOnce() -> String) {
        self.verdicts.hold(false, law, detail);
    }

    /// The first law that was broken.
    pub fn broken(&mut self) -> Option<Broken> {
        self.verdicts.0.take()
    }

    /// What was done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// When the machine last lost, or had, a relay: the times during which it could not hear it.
    #[must_use]
    pub fn gaps(&self, place: &str) -> &[(Time, Time)] {
        self.dials.gaps(place)
    }
}

/// The relay that an order is about.
fn subject(order: &RelayCommand) -> &RelayUrl {
    match order {
        RelayCommand::Retry(url)
        | RelayCommand::Pause(url)
        | RelayCommand::Resume(url)
        | RelayCommand::Forget(url)
        | RelayCommand::Reconcile(url) => url,
    }
}
