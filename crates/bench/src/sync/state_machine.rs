//! `machine`: the sync state machine alone, without sockets and store. Measures the cost of its decisions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::nip11::Nip11Info;
use grasp_core::nostr::{PublicKey, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoId, ServiceAddress};
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::health::BackoffConfig;
use grasp_core::sync::io::{
    DisconnectReason, IncomingMessage, LocalIds, OutgoingMessage, RepoNeeds, RootEvent, ServedEvent, SessionId,
    SubscriptionId, SyncInput, SyncNote, SyncOutput,
};
use grasp_core::sync::rejected::RejectedEventsConfig;
use grasp_core::sync::{SyncConfig, SyncMachine};
use grasp_core::time::{MonoTime, Now, Timestamp};
use serde::Serialize;

use super::result_table;
use super::stub::stub_address;
use crate::process::Process;
use crate::process_usage::rounded;
use crate::random::Random;

/// Maximum number of relays that a repository is synced from.
const RELAYS_PER_REPOSITORY: u64 = 32;

/// Subscription limit that the relays state, as in `stub`.
const SUBSCRIPTIONS: usize = 20;

/// Issues that arrive after the first sync.
const ARRIVALS: u64 = 2_000;

/// Start of the simulated clock, as a unix timestamp.
const EPOCH: u64 = 1_800_000_000;

/// Size of the simulated setup.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct MachineSize {
    /// Number of repositories
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) repositories: u64,
    /// Issues per repository
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) roots: u64,
    /// Number of relays
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(super) relays: u64,
}

/// Result of `machine`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MachineFigures {
    repositories: u64,
    roots: u64,
    relays: u64,
    /// Issues times the relays that they are synced from.
    units: u64,
    /// First sync, until all relays are in sync.
    pub(super) catch_up: PhaseFigures,
    /// Arrival of more issues afterwards.
    arrivals: PhaseFigures,
    /// Memory of the state machine after the first sync, in MB.
    pub(super) memory_mb: f64,
    /// Bytes per issue.
    bytes_per_root: f64,
    /// Bytes per repository and relay.
    bytes_per_cover: f64,
    /// Maximum number of open subscriptions on one connection. The stated limit is 20.
    most_subscriptions: usize,
}

/// Figures of one phase of the run.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct PhaseFigures {
    /// Number of inputs and alarms handled.
    steps: u64,
    /// Total CPU time of all steps.
    pub(super) seconds: f64,
    /// Time that passed on the simulated clock.
    virtual_seconds: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    /// Label of the input that took longest.
    slowest: &'static str,
    /// Number of outputs.
    outputs: u64,
    /// Maximum number of outputs of one step.
    most_outputs: usize,
    /// Bytes of tag values in filters.
    said_bytes: u64,
    /// Maximum bytes of tag values in one step.
    most_said_bytes: usize,
}

impl MachineFigures {
    /// Returns the duration of the longest step, in milliseconds.
    pub(super) fn longest_ms(&self) -> f64 {
        self.catch_up.max_us.max(self.arrivals.max_us) / 1000.0
    }
}

/// Drives the state machine and answers its outputs.
struct MachineDriver {
    machine: SyncMachine,
    now: Now,
    inputs: VecDeque<SyncInput>,
    size: MachineSize,
    open: BTreeMap<SessionId, BTreeSet<SubscriptionId>>,
    most_subscriptions: usize,
    caught_up: u64,
    phase: PhaseFigures,
    began: Now,
    nanos: Vec<u32>,
    slowest: Duration,
    shown: Instant,
}

/// Runs the state machine through a first sync and later arrivals.
pub(super) fn run(size: MachineSize) -> Result<MachineFigures> {
    let before = Process::Own.memory()?.rss_anon_kb;
    let mut driver = MachineDriver::new(size)?;
    for index in 0..size.repositories {
        let name = repo(index)?.identifier;
        let needs = SyncInput::RepoNeeds(name, vec![driver.repo_needs(index)?]);
        driver.inputs.push_back(needs);
        driver.drain()?;
    }
    driver.inputs.push_back(SyncInput::Ready);
    driver.run_until_caught_up()?;
    let catch_up = driver.end_phase();
    let memory_kb = Process::Own.memory()?.rss_anon_kb.saturating_sub(before);
    for number in 0..ARRIVALS {
        let arrival = driver.arrival(number)?;
        driver.inputs.push_back(SyncInput::Served(arrival));
        driver.drain()?;
    }
    // Longer than the batch window, including the requests that follow.
    driver.advance(Duration::from_secs(60))?;
    let arrivals = driver.end_phase();
    let roots = size.repositories * size.roots;
    let covers = size.repositories * size.relays.min(RELAYS_PER_REPOSITORY);
    Ok(MachineFigures {
        repositories: size.repositories,
        roots: size.roots,
        relays: size.relays,
        units: covers * size.roots,
        catch_up,
        arrivals,
        memory_mb: rounded(memory_kb as f64 * 1024.0 / 1e6),
        bytes_per_root: rounded(memory_kb as f64 * 1024.0 / roots.max(1) as f64),
        bytes_per_cover: rounded(memory_kb as f64 * 1024.0 / covers.max(1) as f64),
        most_subscriptions: driver.most_subscriptions,
    })
}

impl MachineDriver {
    fn new(size: MachineSize) -> Result<Self> {
        let config = SyncConfig {
            service: ServiceAddress::new("bench.example", "").context("invalid service address")?,
            instance: "bench".into(),
            bootstrap: Vec::new(),
            batch_window_millis: 5_000,
            values_per_filter: 100,
            descendant_limit: 500,
            use_negentropy: true,
            backoff: BackoffConfig { base_secs: 5, max_secs: 3_600 },
            rejected: RejectedEventsConfig::default(),
            limits: Default::default(),
            epoch: 1,
            seed: 1,
        };
        let now = Now { mono: MonoTime(1_000), wall: Timestamp(EPOCH) };
        Ok(Self {
            machine: SyncMachine::new(config),
            now,
            inputs: VecDeque::new(),
            size,
            open: BTreeMap::new(),
            most_subscriptions: 0,
            caught_up: 0,
            phase: PhaseFigures::default(),
            began: now,
            nanos: Vec::new(),
            slowest: Duration::ZERO,
            shown: Instant::now(),
        })
    }

    fn repo_needs(&self, index: u64) -> Result<RepoNeeds> {
        let relays = self.size.relays;
        let each = RELAYS_PER_REPOSITORY.min(relays);
        let first = index * each;
        let repo = repo(index)?;
        Ok(RepoNeeds {
            status: EventStatus::Served,
            relays: (0..each)
                .map(|number| format!("ws://{}", stub_address(((first + number) % relays) as usize)))
                .collect(),
            authors: vec![repo.owner],
            seq: index + 1,
            repo,
        })
    }

    /// Generates the root events of a repository on demand, so that they do not count as memory of this program.
    fn roots(&self, repo: &RepoId) -> Result<Vec<RootEvent>> {
        let index: u64 = repo.identifier.as_str().trim_start_matches("tool-").parse()?;
        let first = self.size.repositories + index * self.size.roots;
        let root = |number: u64| RootEvent { seq: first + number + 1, id: event_id(index, number) };
        Ok((0..self.size.roots).map(root).collect())
    }

    fn arrival(&self, number: u64) -> Result<ServedEvent> {
        let index = number % self.size.repositories;
        let repo = repo(index)?;
        let identifier = repo.identifier.as_str().to_owned();
        let coordinate = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.owner, d: identifier };
        Ok(ServedEvent {
            seq: self.size.repositories * (1 + self.size.roots) + number + 1,
            id: event_id(index, self.size.roots + number),
            kind: kinds::ISSUE,
            author: repo.owner,
            coordinate: None,
            ids: Vec::new(),
            coordinates: vec![coordinate],
        })
    }

    /// Handles all queued inputs.
    fn drain(&mut self) -> Result<()> {
        while let Some(input) = self.inputs.pop_front() {
            let name = input_label(&input);
            let started = Instant::now();
            self.machine.handle(self.now, input);
            self.finish_step(started.elapsed(), name)?;
        }
        Ok(())
    }

    fn finish_step(&mut self, took: Duration, name: &'static str) -> Result<()> {
        self.nanos.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
        if took > self.slowest {
            self.slowest = took;
            self.phase.slowest = name;
        }
        self.phase.steps += 1;
        self.phase.seconds += took.as_secs_f64();
        let (mut outputs, mut bytes) = (0, 0);
        while let Some(output) = self.machine.poll() {
            outputs += 1;
            bytes += self.handle_output(output)?;
        }
        self.phase.outputs += outputs as u64;
        self.phase.most_outputs = self.phase.most_outputs.max(outputs);
        self.phase.said_bytes += bytes as u64;
        self.phase.most_said_bytes = self.phase.most_said_bytes.max(bytes);
        if self.shown.elapsed().as_secs() >= 10 {
            self.shown = Instant::now();
            result_table::print_progress(&format!(
                "{} of {} relays, {} steps",
                self.caught_up, self.size.relays, self.phase.steps
            ));
        }
        Ok(())
    }

    /// Handles an output as a relay without events would. Returns the bytes of tag values in filters.
    fn handle_output(&mut self, output: SyncOutput) -> Result<usize> {
        match output {
            SyncOutput::Dial { session, .. } => {
                let limits = Nip11Info {
                    max_subscriptions: Some(SUBSCRIPTIONS as u64),
                    max_filters: Some(10),
                    max_limit: Some(500),
                    max_message_length: Some(128 * 1024),
                    negentropy: Some(false),
                    ..Nip11Info::default()
                };
                self.inputs.push_back(SyncInput::Connected(session, Some(limits)));
            }
            SyncOutput::Disconnect(session) => {
                self.inputs.push_back(SyncInput::Disconnected(session, DisconnectReason::ClosedByUs))
            }
            SyncOutput::Send(session, OutgoingMessage::Req(sub, filters)) => {
                let open = self.open.entry(session).or_default();
                open.insert(sub);
                self.most_subscriptions = self.most_subscriptions.max(open.len());
                if open.len() > SUBSCRIPTIONS {
                    bail!("{} subscriptions on one connection", open.len());
                }
                self.inputs.push_back(SyncInput::Message(session, IncomingMessage::Eose(sub, None)));
                let values = |filter: &grasp_core::nostr::Filter| -> usize {
                    filter.tags.iter().flat_map(|(_, values)| values.iter()).map(|value| value.len() + 3).sum()
                };
                return Ok(filters.iter().map(values).sum());
            }
            SyncOutput::Send(session, OutgoingMessage::Close(sub)) => {
                self.open.entry(session).or_default().remove(&sub);
            }
            SyncOutput::Send(session, OutgoingMessage::NegOpen(sub, ..)) => {
                let text = "error: negentropy is not supported here".to_owned();
                self.inputs.push_back(SyncInput::Message(session, IncomingMessage::NegErr(sub, text, None)));
            }
            SyncOutput::QueryRootEvents(repo) => {
                let roots = self.roots(&repo)?;
                self.inputs.push_back(SyncInput::RootEvents(repo, roots, Default::default()));
            }
            SyncOutput::QueryLocalIds(query, _) => {
                self.inputs.push_back(SyncInput::LocalIds(query, LocalIds { items: Vec::new(), complete_since: None }));
            }
            SyncOutput::QueryMissingIds(query, ids) => self.inputs.push_back(SyncInput::MissingIds(query, ids)),
            SyncOutput::QueryServedEvents(query, _) => {
                self.inputs.push_back(SyncInput::ServedEvents(query, Vec::new()));
            }
            SyncOutput::Note(SyncNote::CaughtUp { .. }) => self.caught_up += 1,
            SyncOutput::Send(..)
            | SyncOutput::Submit(_)
            | SyncOutput::HeldEventSeen(_)
            | SyncOutput::ReleasePermit(_)
            | SyncOutput::SetEventRate(..)
            | SyncOutput::StoreRow(_)
            | SyncOutput::DeleteRow(_)
            | SyncOutput::Note(_) => {}
        }
        Ok(0)
    }

    /// Advances the clock to the next alarm and wakes the machine.
    fn advance_to_alarm(&mut self) -> Result<()> {
        let (at, _) = self.machine.alarm().context("the state machine has no alarm")?;
        let at = at.max(self.now.mono);
        self.now = Now { mono: at, wall: Timestamp(EPOCH + at.0 / 1000) };
        let started = Instant::now();
        self.machine.wake(self.now);
        self.finish_step(started.elapsed(), "wake")
    }

    fn run_until_caught_up(&mut self) -> Result<()> {
        self.drain()?;
        while self.caught_up < self.size.relays {
            self.advance_to_alarm()?;
            self.drain()?;
            if self.now.mono.since(self.began.mono) > Duration::from_secs(86_400) {
                bail!("{} of {} relays in sync after one simulated day", self.caught_up, self.size.relays);
            }
        }
        Ok(())
    }

    fn advance(&mut self, time: Duration) -> Result<()> {
        let until = self.now.mono.plus(time);
        while self.machine.alarm().is_some_and(|(at, _)| at <= until) {
            self.advance_to_alarm()?;
            self.drain()?;
        }
        Ok(())
    }

    fn end_phase(&mut self) -> PhaseFigures {
        let mut nanos = std::mem::take(&mut self.nanos);
        nanos.sort_unstable();
        let at = |share: f64| {
            let index = ((nanos.len() as f64 * share) as usize).min(nanos.len().saturating_sub(1));
            nanos.get(index).map_or(0.0, |nanos| rounded(f64::from(*nanos) / 1000.0))
        };
        let virtual_seconds = rounded(self.now.mono.since(self.began.mono).as_secs_f64());
        self.began = self.now;
        let slowest = std::mem::take(&mut self.slowest);
        let phase = std::mem::take(&mut self.phase);
        PhaseFigures {
            seconds: rounded(phase.seconds),
            virtual_seconds,
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: rounded(slowest.as_secs_f64() * 1e6),
            ..phase
        }
    }
}

fn repo(index: u64) -> Result<RepoId> {
    let identifier = Identifier::new(&format!("tool-{index}")).context("invalid identifier")?;
    Ok(RepoId { owner: PublicKey(Random::new(2, index).bytes()), identifier })
}

fn event_id(repo: u64, number: u64) -> EventId {
    EventId(Random::new(repo, number).bytes())
}

fn input_label(input: &SyncInput) -> &'static str {
    match input {
        SyncInput::Restored(_) => "restored",
        SyncInput::Ready => "ready",
        SyncInput::RepoNeeds(..) => "repo_needs",
        SyncInput::RootEvents(..) => "root_events",
        SyncInput::Served(_) => "served",
        SyncInput::Connected(..) => "connected",
        SyncInput::Message(..) => "message",
        SyncInput::Unsent(..) => "unsent",
        SyncInput::Disconnected(..) => "disconnected",
        SyncInput::NetworkContact(_) => "network_contact",
        SyncInput::LocalIds(..) => "local_ids",
        SyncInput::MissingIds(..) => "missing_ids",
        SyncInput::ServedEvents(..) => "served_events",
        SyncInput::SubmitResult(..) => "submit_result",
        SyncInput::Command(_) => "command",
        SyncInput::PolicyChanged(_) => "policy_changed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_setup_gets_in_sync() {
        let figures = run(MachineSize { repositories: 20, roots: 5, relays: 3 }).expect("runs");
        assert_eq!(figures.units, 300);
        assert!(figures.catch_up.steps > 20 && figures.arrivals.steps >= ARRIVALS);
        assert!(figures.most_subscriptions <= SUBSCRIPTIONS);
    }

    /// The root events need 21 live subscriptions, of which the relays allow 17.
    #[test]
    fn needs_without_live_subscription_do_not_stop_the_catch_up() {
        let figures = run(MachineSize { repositories: 20, roots: 500, relays: 3 }).expect("runs");
        assert!(figures.most_subscriptions <= SUBSCRIPTIONS);
    }
}
