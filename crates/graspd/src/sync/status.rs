//! Status of sync for people: problems of relays, the states that relays were seen to have, and queries through
//! [`SyncHandle`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use grasp_core::admission::io::EventSummary;
use grasp_core::nostr::{EventId, PublicKey, kinds};
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::sync::io::{IncomingMessage, ReconnectKind, RelayCommand, RepoNeeds, SessionId, SyncNote, SyncSource};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::sync::{RelaySnapshot, RepoRelayStatus, SyncSnapshot};
use grasp_core::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

/// Largest number of remembered states: about 10 MB at most. Enough for all followed repositories at a few relays each.
const MAX_SEEN_STATES: usize = 50_000;

/// Largest number of remembered pairs of relay and repository where the relay lacks events.
const MAX_LACKING: usize = 10_000;

/// Largest number of characters kept of a relay's text.
const MAX_TEXT_CHARS: usize = 200;

/// Capacity of the queue of queries. Pages are rendered one after the other.
const MAX_QUEUED_QUERIES: usize = 16;

/// Timeout of a query.
const QUERY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Timeout of an operator's command, which is answered when it is on disk.
const COMMAND_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Status of sync.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SyncStatus {
    pub(crate) snapshot: SyncSnapshot,
    /// Last problem of each relay that has one.
    pub(crate) problems: BTreeMap<RelayUrl, RelayProblem>,
}

/// Last problem of a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RelayProblem {
    pub(crate) at: Timestamp,
    /// Description. It may contain text of the relay.
    pub(crate) text: String,
}

/// A repository state that a relay was seen to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SeenState {
    pub(crate) id: EventId,
    pub(crate) created_at: Timestamp,
    /// When it was first seen there.
    pub(crate) since: Timestamp,
}

/// Status of a repository on one relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RepoRelayReport {
    pub(crate) relay: RepoRelayStatus,
    /// The newest state of each maintainer that the relay was seen to have.
    pub(crate) seen_states: BTreeMap<PublicKey, SeenState>,
    /// Whether all states were compared with the relay. If so, it has no other of our states than these.
    pub(crate) is_compared: bool,
    /// Number of events of the repository that the relay lacks, and when this was found.
    pub(crate) lacking: Option<(u64, Timestamp)>,
    pub(crate) problem: Option<RelayProblem>,
}

/// A query or command for the sync driver.
pub(crate) enum SyncQuery {
    /// Status of these repositories on their relays.
    Repositories(Vec<RepoId>, oneshot::Sender<Vec<Vec<RepoRelayReport>>>),
    /// Status of a relay.
    Relay(RelayUrl, oneshot::Sender<Option<RelayStatus>>),
    /// Command of the operator for a relay. The reply contains what was known about the relay before the command.
    Command(RelayCommand, oneshot::Sender<RelayPresence>),
}

/// What is known about a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RelayPresence {
    /// The relay is followed.
    Followed(Box<RelayStatus>),
    /// No repository names the relay now, but its record is stored.
    StoredOnly,
    /// The relay is unknown. A command for it had no effect.
    Unknown,
}

/// Status of one relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RelayStatus {
    pub(crate) relay: RelaySnapshot,
    pub(crate) progress: RelayProgress,
    pub(crate) problem: Option<RelayProblem>,
}

/// Counters of a relay since the start of the server. A command that waits for a pass compares two of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RelayProgress {
    /// Number of finished full passes over all stored events.
    pub(crate) passes: u64,
    /// Number of events that the last pass found, and whether it was complete.
    pub(crate) last_pass: (u64, bool),
    /// Number of failed and lost connections and rejections by the relay.
    pub(crate) failures: u64,
    /// Whether the current connection began with a full pass.
    pub(crate) is_full: bool,
}

/// Handle for queries to the sync driver.
#[derive(Clone, Debug)]
pub(crate) struct SyncHandle(mpsc::Sender<SyncQuery>);

impl SyncHandle {
    pub(crate) fn new() -> (Self, mpsc::Receiver<SyncQuery>) {
        let (sender, queries) = mpsc::channel(MAX_QUEUED_QUERIES);
        (Self(sender), queries)
    }

    /// Returns the status of a repository on its relays, or `None` if sync is too busy.
    pub(crate) async fn repo_relays(&self, repo: RepoId) -> Option<Vec<RepoRelayReport>> {
        self.repo_relays_of_all(vec![repo]).await?.pop()
    }

    /// Returns the status of several repositories, in their order.
    pub(crate) async fn repo_relays_of_all(&self, repos: Vec<RepoId>) -> Option<Vec<Vec<RepoRelayReport>>> {
        self.query(|reply| SyncQuery::Repositories(repos, reply)).await
    }

    /// Returns the status of a relay. The inner `None` means that it is not followed, the outer one that sync is too
    /// busy.
    pub(crate) async fn relay_status(&self, relay: RelayUrl) -> Option<Option<RelayStatus>> {
        self.query(|reply| SyncQuery::Relay(relay, reply)).await
    }

    /// Sends a command, if its relay is known. When this returns, the effect is on disk. Returns `None` if sync is too
    /// busy or the effect could not be stored in time.
    pub(crate) async fn command(&self, command: RelayCommand) -> Option<RelayPresence> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(SyncQuery::Command(command, reply)).ok()?;
        tokio::time::timeout(COMMAND_TIMEOUT, answer).await.ok()?.ok()
    }

    async fn query<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> SyncQuery) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(make(reply)).ok()?;
        tokio::time::timeout(QUERY_TIMEOUT, answer).await.ok()?.ok()
    }
}

/// Collects the status of all relays.
#[derive(Debug, Default)]
pub(super) struct StatusTracker {
    urls: HashMap<SessionId, RelayUrl>,
    problems: BTreeMap<RelayUrl, RelayProblem>,
    progress: BTreeMap<RelayUrl, RelayProgress>,
    /// Authors whose states are recorded, by identifier.
    maintainers: BTreeMap<Identifier, BTreeSet<PublicKey>>,
    seen: BTreeMap<(Identifier, PublicKey), BTreeMap<RelayUrl, SeenState>>,
    /// Number of entries in `seen`.
    count: usize,
    /// Relays with which all states were compared.
    compared: BTreeSet<RelayUrl>,
    lacking: BTreeMap<(RelayUrl, RepoId), (u64, Timestamp)>,
}

impl StatusTracker {
    /// Records a new session.
    pub(super) fn connecting(&mut self, session: SessionId, url: &RelayUrl) {
        self.urls.insert(session, url.clone());
    }

    /// Records the end of a session.
    pub(super) fn disconnected(&mut self, session: SessionId) {
        self.urls.remove(&session);
    }

    /// Sets the followed repositories of an identifier.
    pub(super) fn set_followed(&mut self, identifier: &Identifier, followed: &[RepoNeeds]) {
        if followed.is_empty() {
            self.maintainers.remove(identifier);
            let keys: Vec<_> =
                self.seen.range((identifier.clone(), PublicKey([0; 32]))..).map(|(key, _)| key.clone()).collect();
            for key in keys.into_iter().take_while(|(other, _)| other == identifier) {
                self.count -= self.seen.remove(&key).map_or(0, |relays| relays.len());
            }
        } else {
            let maintainers = followed.iter().flat_map(|repo| repo.authors.iter().copied().chain([repo.repo.owner]));
            self.maintainers.insert(identifier.clone(), maintainers.collect());
        }
    }

    /// Records the state in a relay's message, if its author's states are recorded.
    pub(super) fn message_received(&mut self, session: SessionId, message: &IncomingMessage, now: Timestamp) {
        let IncomingMessage::Event(_, event, _) = message else { return };
        if event.kind != kinds::STATE {
            return;
        }
        let Some(identifier) = event.tag("d").and_then(Identifier::new) else { return };
        let Some(url) = self.urls.get(&session).cloned() else { return };
        self.record_state(
            &url,
            (identifier, event.pubkey),
            SeenState { id: event.id, created_at: event.created_at, since: now },
        );
    }

    /// Records the result of a comparison with a relay: states that both have, and states that only this server has.
    pub(super) fn states_compared(
        &mut self,
        relay: &RelayUrl,
        shared: &[EventSummary],
        lacking: &[EventId],
        now: Timestamp,
    ) {
        self.compared.insert(relay.clone());
        if !lacking.is_empty() {
            for relays in self.seen.values_mut() {
                let is_lacking = relays.get(relay).is_some_and(|seen| lacking.binary_search(&seen.id).is_ok());
                self.count -= usize::from(is_lacking && relays.remove(relay).is_some());
            }
        }
        for EventSummary { id, author, created_at, identifier, .. } in shared {
            let Some(identifier) = identifier.clone() else { continue };
            self.record_state(relay, (identifier, *author), SeenState { id: *id, created_at: *created_at, since: now });
        }
    }

    /// Records a state of a relay, if its author's states are recorded.
    fn record_state(&mut self, url: &RelayUrl, key: (Identifier, PublicKey), new: SeenState) {
        if !self.maintainers.get(&key.0).is_some_and(|maintainers| maintainers.contains(&key.1)) {
            return;
        }
        let relays = self.seen.entry(key).or_default();
        match relays.get_mut(url) {
            Some(old) if old.id == new.id || old.created_at > new.created_at => {}
            Some(old) => *old = new,
            None => {
                relays.insert(url.clone(), new);
                self.count += 1;
            }
        }
        while self.count > MAX_SEEN_STATES {
            // Dropped entries are recorded again in the next full pass.
            let Some((_, relays)) = self.seen.pop_first() else { break };
            self.count -= relays.len();
            self.compared.retain(|relay| !relays.contains_key(relay));
        }
    }

    /// Updates the counters of a relay.
    fn count_note(&mut self, note: &SyncNote) {
        match note {
            SyncNote::Connected(relay, kind) => {
                self.progress.entry(relay.clone()).or_default().is_full = *kind != ReconnectKind::Quick;
            }
            SyncNote::ConnectionFailed { relay, .. }
            | SyncNote::ConnectionLost(relay, _)
            | SyncNote::Parked(relay, _) => {
                self.progress.entry(relay.clone()).or_default().failures += 1;
            }
            SyncNote::CaughtUp { relay, source, events, is_complete } => {
                let progress = self.progress.entry(relay.clone()).or_default();
                if progress.is_full || *source == SyncSource::Daily {
                    progress.passes += 1;
                    progress.last_pass = (*events, *is_complete);
                }
                // Only the first pass of a connection counts.
                progress.is_full = false;
            }
            _ => {}
        }
    }

    /// Returns the status of a relay.
    pub(super) fn relay_status(&self, relay: RelaySnapshot) -> RelayStatus {
        let progress = self.progress.get(&relay.url).copied().unwrap_or_default();
        let problem = self.problems.get(&relay.url).cloned();
        RelayStatus { relay, progress, problem }
    }

    /// Records a note of the sync machine.
    pub(super) fn note(&mut self, note: &SyncNote, now: Timestamp) {
        self.count_note(note);
        let (relay, text) = match note {
            SyncNote::ConnectionFailed { relay, reason, .. } => {
                (relay, format!("connection failed: {}", words_of(reason.label())))
            }
            SyncNote::ConnectionLost(relay, reason) => {
                (relay, format!("connection lost: {}", words_of(reason.label())))
            }
            SyncNote::RateLimited(relay, text, _) => (relay, format!("rate limited: {}", truncate(text))),
            SyncNote::Flooded(relay, _) => (relay, "disconnected: it sent too much that was not requested".to_owned()),
            SyncNote::Parked(relay, text) => (relay, format!("rejected by the relay: {}", truncate(text))),
            SyncNote::BatchFailed(relay, text) => (relay, format!("historic sync batch failed: {text}")),
            SyncNote::RelayLacksEvents(relay, repos) => {
                self.lacking.retain(|(other, _), _| other != relay);
                for (repo, count) in repos.iter().take(MAX_LACKING.saturating_sub(self.lacking.len())) {
                    self.lacking.insert((relay.clone(), repo.clone()), (*count, now));
                }
                return;
            }
            SyncNote::CaughtUp { relay, is_complete: true, .. } => {
                self.problems.remove(relay);
                return;
            }
            _ => return,
        };
        self.problems.insert(relay.clone(), RelayProblem { at: now, text });
    }

    /// Returns the status of sync. Drops the records of relays that are no longer followed.
    pub(super) fn sync_status(&mut self, snapshot: SyncSnapshot) -> SyncStatus {
        let urls: BTreeSet<&RelayUrl> = snapshot.relays.iter().map(|relay| &relay.url).collect();
        self.problems.retain(|relay, _| urls.contains(relay));
        self.progress.retain(|relay, _| urls.contains(relay));
        self.compared.retain(|relay| urls.contains(relay));
        let problems = self.problems.clone();
        SyncStatus { snapshot, problems }
    }

    /// Combines the machine's status of a repository's relays with the records of this tracker.
    pub(super) fn repo_relay_reports(&self, repo: &RepoId, relays: Vec<RepoRelayStatus>) -> Vec<RepoRelayReport> {
        let from = (repo.identifier.clone(), PublicKey([0; 32]));
        let states: Vec<_> =
            self.seen.range(from..).take_while(|((identifier, _), _)| *identifier == repo.identifier).collect();
        relays
            .into_iter()
            .map(|relay| RepoRelayReport {
                seen_states: states
                    .iter()
                    .filter_map(|((_, author), relays)| Some((*author, *relays.get(&relay.url)?)))
                    .collect(),
                is_compared: self.compared.contains(&relay.url),
                lacking: self.lacking.get(&(relay.url.clone(), repo.clone())).copied(),
                problem: self.problems.get(&relay.url).cloned(),
                relay,
            })
            .collect()
    }
}

/// Turns a label into words.
fn words_of(label: &str) -> String {
    label.replace('_', " ")
}

fn truncate(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
}
