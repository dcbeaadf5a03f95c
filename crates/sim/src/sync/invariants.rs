//! Invariants of the sync machine, checked on its inputs and outputs. Messages that are still on their way to a relay
//! do not matter: the machine can only be judged by what it had received.

mod bounds;
mod catch_up;
mod dials;
mod in_flight;
mod persistence;
mod request_limits;
mod scope;

use grasp_core::sync::io::{RelayCommand, SessionId, SyncInput, SyncNote, SyncOutput, SyncRow};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Now;

use self::catch_up::CatchUpChecker;
use self::dials::DialChecker;
use self::scope::ScopeChecker;
use super::invariants::in_flight::SubmissionChecker;
pub(super) use super::invariants::persistence::is_dishonest;
use super::invariants::request_limits::RequestChecker;
use super::relay_profile::StatedLimits;
use super::repo_history;
use super::tables::SyncTables;
use crate::simulation::queue::Time;
use crate::simulation::{FirstViolation, Violation, WakeCounter};

/// Checks the inputs and outputs of one node's sync machine.
#[derive(Debug)]
pub struct SyncChecker {
    violations: FirstViolation,
    dials: DialChecker,
    requests: RequestChecker,
    submissions: SubmissionChecker,
    catch_up: CatchUpChecker,
    scope: ScopeChecker,
    wakes: WakeCounter,
    counts: SyncCounts,
}

/// Counters of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SyncCounts {
    /// Number of requests.
    pub requests: u64,
    /// Number of dials.
    pub dials: u64,
    /// Number of submitted events.
    pub submitted: u64,
    /// Maximum number of requests to one relay in one day.
    pub max_requests_per_day: u64,
    /// Maximum number of full passes over one relay in one day.
    pub max_passes_per_day: u64,
}

impl SyncCounts {
    /// Keeps the maximum of each counter.
    pub fn merge_max(&mut self, other: &Self) {
        self.requests = self.requests.max(other.requests);
        self.dials = self.dials.max(other.dials);
        self.submitted = self.submitted.max(other.submitted);
        self.max_requests_per_day = self.max_requests_per_day.max(other.max_requests_per_day);
        self.max_passes_per_day = self.max_passes_per_day.max(other.max_passes_per_day);
    }
}

impl SyncChecker {
    /// Creates the checker of a node with this index and instance id.
    pub fn new(node: usize, instance: String) -> Self {
        let service = repo_history::service(node);
        Self {
            violations: FirstViolation::default(),
            dials: DialChecker::new(service, instance),
            requests: RequestChecker::default(),
            submissions: SubmissionChecker::default(),
            catch_up: CatchUpChecker::default(),
            scope: ScopeChecker::default(),
            wakes: WakeCounter::default(),
            counts: SyncCounts::default(),
        }
    }

    /// Sets the configured relays.
    pub fn bootstrap(&mut self, urls: &[RelayUrl]) {
        self.scope.set_bootstrap(urls);
    }

    /// Checks an input.
    pub fn on_input(&mut self, now: Time, input: &SyncInput) {
        match input {
            SyncInput::Connected(session, nip11) => {
                self.dials.on_connected(now, *session, nip11.as_ref());
                if let Some(relay_key) = self.dials.relay_key(*session) {
                    self.requests.allow_more(now, relay_key);
                    self.catch_up.on_connected(*session, relay_key);
                }
            }
            SyncInput::Disconnected(session, reason) => {
                self.dials.on_disconnected(now, *session, *reason);
                self.requests.on_disconnected(*session);
                self.scope.on_disconnected(*session);
                self.submissions.on_disconnected(*session);
            }
            SyncInput::Message(session, message) => {
                self.dials.on_message(now, *session);
                self.scope.on_message(*session, message);
                self.requests.on_message(now, *session, message, self.dials.relay_key(*session));
                self.submissions.on_message(*session, message);
                self.catch_up.on_message(now, *session, message, self.dials.relay_key(*session));
            }
            SyncInput::SubmitResult(submission_id, result) => {
                self.submissions.on_result(&mut self.violations, *submission_id, result)
            }
            SyncInput::Served(event) => self.submissions.on_served(event),
            SyncInput::RepoNeeds(name, needs) => {
                self.submissions.on_repo_needs(name);
                self.scope.on_repo_needs(needs);
            }
            SyncInput::Command(command) => {
                self.dials.on_command(command);
                self.requests.allow_more(now, command_url(command).without_scheme());
            }
            SyncInput::Restored(_)
            | SyncInput::Ready
            | SyncInput::RootEvents(..)
            | SyncInput::Unsent(..)
            | SyncInput::NetworkContact(_)
            | SyncInput::LocalIds(..)
            | SyncInput::MissingIds(..)
            | SyncInput::ServedEvents(..)
            | SyncInput::PolicyChanged(_) => {}
        }
    }

    /// Checks an output.
    pub fn on_output(&mut self, now: Time, output: &SyncOutput) {
        match output {
            SyncOutput::Dial { session, url, .. } => {
                self.counts.dials += 1;
                let cooldown = self.requests.cooldown_until(url.without_scheme());
                self.dials.on_dial(&mut self.violations, now, *session, url, cooldown);
            }
            SyncOutput::Send(session, message) => {
                self.scope.on_send(&mut self.violations, *session, message, self.dials.relay_key(*session));
                self.catch_up.on_send(*session, message, self.dials.relay_key(*session));
                self.requests.on_send(&mut self.violations, now, *session, message, self.dials.relay_key(*session));
                self.counts.requests = self.requests.total();
                (self.counts.max_requests_per_day, self.counts.max_passes_per_day) = self.requests.maxima();
            }
            SyncOutput::Submit(submission) => {
                self.counts.submitted += 1;
                self.submissions.on_submit(&mut self.violations, now, submission);
            }
            SyncOutput::Note(SyncNote::ConnectionFailed { relay, attempt, failures, backoff_millis, .. }) => {
                self.dials.on_failed(&mut self.violations, now, relay, (*attempt, *failures, *backoff_millis));
            }
            SyncOutput::Note(SyncNote::Unsolicited(relay)) => {
                self.scope.on_unsolicited(&mut self.violations, relay);
            }
            SyncOutput::Note(SyncNote::BatchFailed(relay, _)) => {
                self.requests.on_batch_failed(now, relay.without_scheme())
            }
            SyncOutput::StoreRow(SyncRow::Relay(record)) => {
                self.submissions.on_record(&mut self.violations, record);
                self.catch_up.on_record(&mut self.violations, record);
            }
            SyncOutput::Note(SyncNote::Connected(relay, kind)) => {
                self.catch_up.on_reconnect(now, *kind, relay.without_scheme());
            }
            SyncOutput::Note(SyncNote::CaughtUp { relay, .. }) => {
                self.catch_up.on_caught_up(&mut self.violations, relay.without_scheme());
            }
            SyncOutput::Disconnect(session) => self.dials.on_cancelled(*session),
            SyncOutput::QueryRootEvents(_)
            | SyncOutput::QueryLocalIds(..)
            | SyncOutput::QueryMissingIds(..)
            | SyncOutput::QueryServedEvents(..)
            | SyncOutput::HeldEventSeen(_)
            | SyncOutput::ReleasePermit(_)
            | SyncOutput::SetEventRate(..)
            | SyncOutput::StoreRow(SyncRow::Rejected(_))
            | SyncOutput::DeleteRow(_)
            | SyncOutput::Note(_) => {}
        }
    }

    /// Records the limits that a relay states when a session is established.
    pub fn on_stated_limits(&mut self, session: SessionId, stated_limits: Option<StatedLimits>, relay: usize) {
        self.requests.on_stated_limits(session, stated_limits, relay);
    }

    /// Counts a wake.
    pub fn on_wake(&mut self, now: Time) {
        let holds = self.wakes.count(now);
        self.violations.require(holds, "the machine does not wake itself without end", String::new);
    }

    /// Resets the checker for a new process, which starts with these rows.
    pub fn on_start(&mut self, now: Time, clock: Now, tables: &SyncTables) {
        self.dials.on_start(now, clock, tables);
        self.requests.on_start(now, clock, tables);
        self.submissions.on_start();
        self.scope.on_start();
    }

    /// Records the end of the process.
    pub fn on_crash(&mut self, now: Time, has_slow_disk: bool) {
        self.dials.on_crash(now, has_slow_disk);
        self.requests.on_crash();
    }

    /// Records that the node's network failed or works again.
    pub fn on_outage(&mut self, now: Time, is_offline: bool) {
        self.dials.on_outage(now, is_offline);
    }

    /// Records that the wall clock was set.
    pub fn on_clock_set(&mut self) {
        self.dials.on_clock_set();
        self.catch_up.on_clock_set();
    }

    /// Records a violation.
    pub fn report(&mut self, invariant: &'static str, detail: impl FnOnce() -> String) {
        self.violations.require(false, invariant, detail);
    }

    /// Returns the number of new events from relays.
    pub fn new_events(&self) -> u64 {
        self.submissions.new_events()
    }

    /// Checks the state after all outputs of an input, and takes the first violation.
    pub fn take_violation(&mut self) -> Option<Violation> {
        self.submissions.on_outputs_end(&mut self.violations);
        self.violations.take()
    }

    /// Returns the counters.
    pub fn counts(&self) -> SyncCounts {
        self.counts
    }

    /// Returns whether a relay that is not followed waits for a good reason: it failed within the last day, is paused, or
    /// is the node itself.
    pub(super) fn must_not_dial(&self, now: Time, relay_key: &str) -> bool {
        self.dials.must_not_dial(now, relay_key)
    }

    /// Returns the times during which the machine had no connection to a relay.
    pub fn gaps(&self, relay_key: &str) -> &[(Time, Time)] {
        self.dials.gaps(relay_key)
    }
}

/// Returns the relay of a command.
fn command_url(command: &RelayCommand) -> &RelayUrl {
    match command {
        RelayCommand::Retry(url)
        | RelayCommand::Pause(url)
        | RelayCommand::Resume(url)
        | RelayCommand::Forget(url)
        | RelayCommand::Reconcile(url) => url,
    }
}
