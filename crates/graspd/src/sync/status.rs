//! What the room notes for people: why relays are not well, and which states they were seen to have.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use grasp_core::admission::io::EventSummary;
use grasp_core::nostr::{EventId, PublicKey, kinds};
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::sync::io::{IncomingMessage, ReconnectKind, RelayCommand, RepoNeeds, SessionId, SyncNote, SyncSource};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::sync::{RelaySnapshot, RepoRelayStatus, SyncSnapshot};
use grasp_core::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

/// States of relays that are remembered: of everything that is followed, each at a few relays. Ten megabytes at most.
const MAX_SEEN: usize = 50_000;

/// Relays that lack something of a repository, as far as that is remembered.
const MAX_LACKING: usize = 10_000;

/// Characters of a relay's own words that are kept.
const WORDS: usize = 200;

/// Questions that may wait. Pages are made one after the other.
const QUESTIONS: usize = 16;

/// How long somebody waits for an answer.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// How long the operator waits for an order to be written down.
const ORDER_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Sync at one moment, for people.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Picture {
    pub(crate) view: SyncSnapshot,
    /// The last trouble with relays.
    pub(crate) why: BTreeMap<RelayUrl, Why>,
}

/// Trouble with a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Why {
    pub(crate) at: Timestamp,
    /// In words, some of which may be the relay's.
    pub(crate) text: String,
}

/// A state that a relay was seen to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) id: EventId,
    pub(crate) created_at: Timestamp,
    /// Since when it is known.
    pub(crate) since: Timestamp,
}

/// How a relay stands to a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    pub(crate) link: RepoRelayStatus,
    /// The newest state of each maintainer that it was seen to have.
    pub(crate) seen: BTreeMap<PublicKey, Seen>,
    /// Whether all states were compared with it: then it has no others of those here.
    pub(crate) compared: bool,
    /// How many events of the repository it lacks, as of when.
    pub(crate) lacks: Option<(u64, Timestamp)>,
    pub(crate) why: Option<Why>,
}

/// A question to the room, or an order.
pub(crate) enum Question {
    /// How do relays stand to these repositories?
    Repositories(Vec<RepoId>, oneshot::Sender<Vec<Vec<Standing>>>),
    /// How does this relay go?
    Relay(RelayUrl, oneshot::Sender<Option<Look>>),
    /// The operator wants something of a relay. The answer says what is known of it, from before the order.
    Command(RelayCommand, oneshot::Sender<Known>),
}

/// How well a relay is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// It is followed.
    Followed(Box<Look>),
    /// Nothing names it any more, but it is not forgotten.
    Remembered,
    /// Nothing is known of it, so that nothing was done.
    Not,
}

/// A relay at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    pub(crate) link: RelaySnapshot,
    pub(crate) course: Course,
    pub(crate) why: Option<Why>,
}

/// What has happened with a relay since the start, in counts, so that somebody who waits for something notices it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Course {
    /// How often everything has been asked for, from beginning to end.
    pub(crate) passes: u64,
    /// Events that the last of these brought, and whether all of it succeeded.
    pub(crate) last: (u64, bool),
    /// Connections that did not come about, were lost, or are not wanted there.
    pub(crate) troubles: u64,
    /// The connection began by asking for everything.
    pub(crate) full: bool,
}

/// Where others ask the room.
#[derive(Clone, Debug)]
pub(crate) struct SyncHandle(mpsc::Sender<Question>);

impl SyncHandle {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Question>) {
        let (sender, questions) = mpsc::channel(QUESTIONS);
        (Self(sender), questions)
    }

    /// How the relays of a repository stand; nothing if sync is too busy to say.
    pub(crate) async fn ask(&self, repo: RepoId) -> Option<Vec<Standing>> {
        self.ask_all(vec![repo]).await?.pop()
    }

    /// The same for several repositories, in their order.
    pub(crate) async fn ask_all(&self, repos: Vec<RepoId>) -> Option<Vec<Vec<Standing>>> {
        self.question(|reply| Question::Repositories(repos, reply)).await
    }

    /// How a relay goes; nothing inside if it is not followed.
    pub(crate) async fn look(&self, relay: RelayUrl) -> Option<Option<Look>> {
        self.question(|reply| Question::Relay(relay, reply)).await
    }

    /// Gives an order, if its relay is known. When it is answered, what it changes is on disk; nothing if that fails.
    pub(crate) async fn order(&self, order: RelayCommand) -> Option<Known> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(Question::Command(order, reply)).ok()?;
        tokio::time::timeout(ORDER_PATIENCE, answer).await.ok()?.ok()
    }

    async fn question<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(make(reply)).ok()?;
        tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Board {
    urls: HashMap<SessionId, RelayUrl>,
    why: BTreeMap<RelayUrl, Why>,
    courses: BTreeMap<RelayUrl, Course>,
    /// Whose states count, by name.
    keepers: BTreeMap<Identifier, BTreeSet<PublicKey>>,
    seen: BTreeMap<(Identifier, PublicKey), BTreeMap<RelayUrl, Seen>>,
    /// How many there are of them.
    count: usize,
    /// Relays with which states were compared.
    compared: BTreeSet<RelayUrl>,
    lacking: BTreeMap<(RelayUrl, RepoId), (u64, Timestamp)>,
}

impl Board {
    /// A connection is being made.
    pub(super) fn dialled(&mut self, session: SessionId, url: &RelayUrl) {
        self.urls.insert(session, url.clone());
    }

    /// It is over.
    pub(super) fn ended(&mut self, session: SessionId) {
        self.urls.remove(&session);
    }

    /// What is followed under a name.
    pub(super) fn followed(&mut self, name: &Identifier, followed: &[RepoNeeds]) {
        if followed.is_empty() {
            self.keepers.remove(name);
            let gone: Vec<_> =
                self.seen.range((name.clone(), PublicKey([0; 32]))..).map(|(key, _)| key.clone()).collect();
            for key in gone.into_iter().take_while(|(other, _)| other == name) {
                self.count -= self.seen.remove(&key).map_or(0, |relays| relays.len());
            }
        } else {
            let keepers = followed.iter().flat_map(|repo| repo.authors.iter().copied().chain([repo.repo.owner]));
            self.keepers.insert(name.clone(), keepers.collect());
        }
    }

    /// A relay says something. If it is a state of somebody whose states count, that is noted.
    pub(super) fn heard(&mut self, session: SessionId, heard: &IncomingMessage, now: Timestamp) {
        let IncomingMessage::Event(_, event, _) = heard else { return };
        if event.kind != kinds::STATE {
            return;
        }
        let Some(name) = event.tag("d").and_then(Identifier::new) else { return };
        let Some(url) = self.urls.get(&session).cloned() else { return };
        self.saw(&url, (name, event.pubkey), Seen { id: event.id, created_at: event.created_at, since: now });
    }

    /// What is here was compared with what a relay has: these states both have, and those only we have.
    pub(super) fn compared(&mut self, relay: &RelayUrl, shared: &[EventSummary], lacking: &[EventId], now: Timestamp) {
        self.compared.insert(relay.clone());
        if !lacking.is_empty() {
            for relays in self.seen.values_mut() {
                let is_gone = relays.get(relay).is_some_and(|seen| lacking.binary_search(&seen.id).is_ok());
                self.count -= usize::from(is_gone && relays.remove(relay).is_some());
            }
        }
        for EventSummary { id, author, created_at, identifier, .. } in shared {
            let Some(name) = identifier.clone() else { continue };
            self.saw(relay, (name, *author), Seen { id: *id, created_at: *created_at, since: now });
        }
    }

    /// Notes what a relay has, if it is of somebody whose states count.
    fn saw(&mut self, url: &RelayUrl, whose: (Identifier, PublicKey), new: Seen) {
        if !self.keepers.get(&whose.0).is_some_and(|keepers| keepers.contains(&whose.1)) {
            return;
        }
        let relays = self.seen.entry(whose).or_default();
        match relays.get_mut(url) {
            Some(old) if old.id == new.id || old.created_at > new.created_at => {}
            Some(old) => *old = new,
            None => {
                relays.insert(url.clone(), new);
                self.count += 1;
            }
        }
        while self.count > MAX_SEEN {
            // Whoever is forgotten is seen again with the next full pass.
            let Some((_, relays)) = self.seen.pop_first() else { break };
            self.count -= relays.len();
            self.compared.retain(|relay| !relays.contains_key(relay));
        }
    }

    /// Counts what happens to a relay.
    fn count_note(&mut self, note: &SyncNote) {
        match note {
            SyncNote::Connected(relay, how) => {
                self.courses.entry(relay.clone()).or_default().full = *how != ReconnectKind::Quick;
            }
            SyncNote::ConnectionFailed { relay, .. }
            | SyncNote::ConnectionLost(relay, _)
            | SyncNote::Parked(relay, _) => {
                self.courses.entry(relay.clone()).or_default().troubles += 1;
            }
            SyncNote::CaughtUp { relay, source, events, is_complete } => {
                let course = self.courses.entry(relay.clone()).or_default();
                if course.full || *source == SyncSource::Daily {
                    course.passes += 1;
                    course.last = (*events, *is_complete);
                }
                // Only what a connection begins with.
                course.full = false;
            }
            _ => {}
        }
    }

    /// A relay at this moment.
    pub(super) fn look(&self, link: RelaySnapshot) -> Look {
        let course = self.courses.get(&link.url).copied().unwrap_or_default();
        let why = self.why.get(&link.url).cloned();
        Look { link, course, why }
    }

    /// Something that people may want to know.
    pub(super) fn note(&mut self, note: &SyncNote, now: Timestamp) {
        self.count_note(note);
        let (relay, text) = match note {
            SyncNote::ConnectionFailed { relay, reason, .. } => {
                (relay, format!("no connection: {}", spoken(reason.label())))
            }
            SyncNote::ConnectionLost(relay, reason) => (relay, format!("connection lost: {}", spoken(reason.label()))),
            SyncNote::RateLimited(relay, text, _) => (relay, format!("it wants less of us: {}", shortened(text))),
            SyncNote::Parked(relay, text) => (relay, format!("it wants nothing to do with us: {}", shortened(text))),
            SyncNote::BatchFailed(relay, text) => (relay, format!("part of the history could not be had: {text}")),
            SyncNote::RelayLacksEvents(relay, repo, 0) => {
                self.lacking.remove(&(relay.clone(), repo.clone()));
                return;
            }
            SyncNote::RelayLacksEvents(relay, repo, count) => {
                if self.lacking.len() >= MAX_LACKING {
                    self.lacking.pop_first();
                }
                self.lacking.insert((relay.clone(), repo.clone()), (*count, now));
                return;
            }
            SyncNote::CaughtUp { relay, is_complete: true, .. } => {
                self.why.remove(relay);
                return;
            }
            _ => return,
        };
        self.why.insert(relay.clone(), Why { at: now, text });
    }

    /// A picture for people.
    pub(super) fn picture(&mut self, view: SyncSnapshot) -> Picture {
        let links: BTreeSet<&RelayUrl> = view.relays.iter().map(|link| &link.url).collect();
        self.why.retain(|relay, _| links.contains(relay));
        self.courses.retain(|relay, _| links.contains(relay));
        self.compared.retain(|relay| links.contains(relay));
        let why = self.why.clone();
        Picture { view, why }
    }

    /// Adds to what the machine knows of a repository's relays what was noted.
    pub(super) fn standings(&self, repo: &RepoId, links: Vec<RepoRelayStatus>) -> Vec<Standing> {
        let from = (repo.identifier.clone(), PublicKey([0; 32]));
        let states: Vec<_> = self.seen.range(from..).take_while(|((name, _), _)| *name == repo.identifier).collect();
        links
            .into_iter()
            .map(|link| Standing {
                seen: states
                    .iter()
                    .filter_map(|((_, author), relays)| Some((*author, *relays.get(&link.url)?)))
                    .collect(),
                compared: self.compared.contains(&link.url),
                lacks: self.lacking.get(&(link.url.clone(), repo.clone())).copied(),
                why: self.why.get(&link.url).cloned(),
                link,
            })
            .collect()
    }
}

/// The name of a variant as words.
fn spoken(label: &str) -> String {
    label.replace('_', " ")
}

fn shortened(text: &str) -> String {
    text.chars().take(WORDS).collect()
}
