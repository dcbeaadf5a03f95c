//! Shared parts of the unit tests of the components.

use std::collections::BTreeMap;

use super::io::{DisconnectReason, OutgoingMessage, RepoNeeds, SessionId, SyncInput, SyncNote, SyncOutput};
use super::relay::Relay;
use super::relay_url::RelayUrl;
use super::{SyncConfig, SyncContext, SyncLimits, SyncMachine};
use crate::nostr::PublicKey;
use crate::repo::catalog::EventStatus;
use crate::repo::{Identifier, RepoId, ServiceAddress};
use crate::state_machine::StateMachine;
use crate::time::{MonoTime, Now, Timestamp};

/// Returns a time in seconds after the start of the tests.
pub(super) fn at(secs: u64) -> Now {
    Now { mono: MonoTime(secs * 1_000), wall: Timestamp(1_700_000_000 + secs) }
}

/// Returns the settings of the tests.
pub(super) fn config() -> SyncConfig {
    SyncConfig {
        service: ServiceAddress::new("git.example", "").expect("valid address"),
        instance: "me".to_owned(),
        bootstrap: Vec::new(),
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

/// Runs a test with a relay that is not connected and the context of a machine without repositories.
pub(super) fn with_relay(test: impl FnOnce(&mut Relay, &mut SyncContext<'_>)) {
    let mut machine = SyncMachine::new(config());
    machine.now = at(0);
    let id = machine.add_relay(&RelayUrl::parse("wss://relay.example").expect("valid URL"), true);
    machine.with_relay(id, test);
}

/// Takes the messages that were sent.
pub(super) fn sent(ctx: &mut SyncContext<'_>) -> Vec<OutgoingMessage> {
    let message = |output| match output {
        SyncOutput::Send(_, message) => Some(message),
        _ => None,
    };
    ctx.outputs.drain(..).filter_map(message).collect()
}

/// What a relay does when it is dialled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialled {
    /// It refuses the connection.
    Refuses,
    /// It does not answer.
    IsUnreachable,
    /// It is a private service.
    IsPrivate,
    /// It accepts the connection and answers nothing.
    IsSilent,
}

/// A machine and relays that answer its dials and nothing else.
pub(super) struct TestRelays {
    pub(super) machine: SyncMachine,
    pub(super) now: Now,
    /// Hosts that were dialled.
    pub(super) dialled: Vec<String>,
    /// Sessions that were not disconnected by the machine.
    pub(super) open: BTreeMap<String, SessionId>,
    pub(super) notes: Vec<SyncNote>,
    /// Number of rows that were stored.
    pub(super) stored_rows: usize,
    behaviour: fn(&str) -> Dialled,
}

impl TestRelays {
    pub(super) fn new(limits: SyncLimits, behaviour: fn(&str) -> Dialled) -> Self {
        Self::with(SyncConfig { limits, ..config() }, behaviour)
    }

    pub(super) fn with(config: SyncConfig, behaviour: fn(&str) -> Dialled) -> Self {
        let machine = SyncMachine::new(config);
        let (dialled, open, notes) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { machine, now: at(1_000), dialled, open, notes, stored_rows: 0, behaviour }
    }

    pub(super) fn handle(&mut self, input: SyncInput) {
        self.machine.handle(self.now, input);
        while let Some(output) = self.machine.poll() {
            match output {
                SyncOutput::Dial { session, url, .. } => {
                    let host = url.host().to_owned();
                    let answer = match (self.behaviour)(&host) {
                        Dialled::Refuses => SyncInput::Disconnected(session, DisconnectReason::Refused),
                        Dialled::IsUnreachable => SyncInput::Disconnected(session, DisconnectReason::Unreachable),
                        Dialled::IsPrivate => SyncInput::Disconnected(session, DisconnectReason::PrivateService),
                        Dialled::IsSilent => SyncInput::Connected(session, None),
                    };
                    self.dialled.push(host.clone());
                    self.open.insert(host, session);
                    self.machine.handle(self.now, answer);
                }
                SyncOutput::Disconnect(session) => {
                    self.open.retain(|_, open| *open != session);
                    self.machine.handle(self.now, SyncInput::Disconnected(session, DisconnectReason::ClosedByUs));
                }
                SyncOutput::StoreRow(_) => self.stored_rows += 1,
                SyncOutput::Note(note) => self.notes.push(note),
                _ => {}
            }
        }
    }

    /// Advances the clock.
    pub(super) fn run(&mut self, secs: u64) {
        let end = MonoTime(self.now.mono.0 + secs * 1_000);
        while let Some((at, _)) = self.machine.alarm().filter(|(at, _)| *at <= end) {
            self.set_time(at.max(self.now.mono));
            self.machine.wake(self.now);
            self.handle(SyncInput::Unsent(SessionId(0), 0));
        }
        self.set_time(end);
    }

    pub(super) fn set_time(&mut self, mono: MonoTime) {
        self.now = Now { mono, wall: at(mono.0 / 1_000).wall };
    }

    pub(super) fn list(&mut self, owner: u8, name: &str, status: EventStatus, relays: &[String]) {
        let identifier = Identifier::new(name).expect("valid identifier");
        let repo = RepoId { owner: PublicKey([owner; 32]), identifier: identifier.clone() };
        let needs = RepoNeeds { repo, status, relays: relays.to_vec(), authors: Vec::new(), seq: 1 };
        self.handle(SyncInput::RepoNeeds(identifier, vec![needs]));
    }

    pub(super) fn unlist(&mut self, name: &str) {
        self.handle(SyncInput::RepoNeeds(Identifier::new(name).expect("valid identifier"), Vec::new()));
    }

    pub(super) fn followed(&self) -> usize {
        self.machine.relays.len()
    }

    pub(super) fn has_dialled(&self, host: &str) -> bool {
        self.dialled.iter().any(|dialled| dialled == host)
    }
}
