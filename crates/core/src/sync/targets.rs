//! What is followed, and where: repositories, their roots, and the relays that have them. (`RepoSyncIndex` and
//! `derive_relay_targets` of earlier designs.)

use std::collections::{BTreeMap, BTreeSet};

use super::io::{Arrived, Followed, Root, Seq};
use super::relay::LinkId;
use super::relay_url::RelayUrl;
use crate::limits;
use crate::nostr::{PublicKey, kinds};
use crate::repo::catalog::Place;
use crate::repo::{Identifier, RepoId, Service};
use crate::time::Moment;

/// A small name for a repository, for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RepoKey(u32);

/// A repository that is followed.
#[derive(Clone, Debug)]
pub(super) struct Repo {
    pub(super) id: RepoId,
    /// `30617:…`, as it stands in filters.
    pub(super) coordinate: String,
    pub(super) place: Place,
    pub(super) relays: Vec<RelayUrl>,
    pub(super) authors: Vec<PublicKey>,
    /// When its newest announcement arrived.
    pub(super) seq: Seq,
    /// By arrival. Ids live here once; relays know how far they have come.
    pub(super) roots: Vec<Root>,
    /// Whether the store has told the roots that were there before.
    pub(super) rooted: bool,
    pub(super) links: BTreeSet<LinkId>,
}

impl Repo {
    /// The roots that arrived after one moment and up to another.
    pub(super) fn span(&self, after: Seq, up_to: Seq) -> &[Root] {
        let from = self.roots.partition_point(|root| root.seq <= after);
        let to = self.roots.partition_point(|root| root.seq <= up_to);
        self.roots.get(from..to.max(from)).unwrap_or_default()
    }

    /// When the newest root arrived.
    pub(super) fn head(&self) -> Seq {
        self.roots.last().map_or(0, |root| root.seq)
    }
}

/// All that is followed.
#[derive(Debug, Default)]
pub(super) struct Wants {
    repos: BTreeMap<RepoKey, Repo>,
    keys: BTreeMap<RepoId, RepoKey>,
    names: BTreeMap<Identifier, Vec<RepoKey>>,
    /// Who wants each relay, by its place, linked or not.
    relays: BTreeMap<String, Wanted>,
    next: u32,
    /// Repositories in which something changed since the window opened.
    pub(super) gathering: BTreeSet<RepoKey>,
    /// When the window closes. It opens with the first change and is not put off by others.
    pub(super) closes: Option<Moment>,
    /// The newest arrival that was told.
    pub(super) heard: Seq,
}

/// Who wants a relay.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) url: RelayUrl,
    pub(super) served: BTreeSet<RepoKey>,
    pub(super) held: BTreeSet<RepoKey>,
}

/// What a change of interest leads to.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Repositories whose roots the store should tell.
    pub(super) ask: Vec<RepoId>,
    /// Places that may be wanted more, or less.
    pub(super) places: BTreeSet<String>,
    /// Keys that keep a repository and did not before.
    pub(super) keepers: Vec<PublicKey>,
    /// Repositories that name other relays than before.
    pub(super) moved: BTreeSet<RepoKey>,
}

impl Wants {
    pub(super) fn repo(&self, key: RepoKey) -> Option<&Repo> {
        self.repos.get(&key)
    }

    pub(super) fn repo_mut(&mut self, key: RepoKey) -> Option<&mut Repo> {
        self.repos.get_mut(&key)
    }

    pub(super) fn key(&self, repo: &RepoId) -> Option<RepoKey> {
        self.keys.get(repo).copied()
    }

    pub(super) fn wanted(&self, place: &str) -> Option<&Wanted> {
        self.relays.get(place)
    }

    pub(super) fn len(&self) -> usize {
        self.repos.len()
    }

    /// All wanted places with the number of served repositories that want them, for those who must choose.
    pub(super) fn places(&self) -> impl Iterator<Item = (&String, &Wanted)> {
        self.relays.iter()
    }

    /// Takes in what is followed under a name.
    pub(super) fn follow(&mut self, service: &Service, name: Identifier, followed: Vec<Followed>) -> Changes {
        let mut changes = Changes::default();
        let before = self.names.remove(&name).unwrap_or_default();
        let mut now = Vec::with_capacity(followed.len());
        for followed in followed {
            let key = self.keys.get(&followed.repo).copied();
            let key = key.unwrap_or_else(|| {
                self.next += 1;
                RepoKey(self.next)
            });
            now.push(key);
            self.put(service, key, followed, &mut changes);
        }
        for key in before.into_iter().filter(|key| !now.contains(key)).collect::<Vec<_>>() {
            if let Some(repo) = self.repos.remove(&key) {
                self.keys.remove(&repo.id);
                self.gathering.remove(&key);
                self.want(key, &repo.relays, None, &mut changes);
            }
        }
        if !now.is_empty() {
            self.names.insert(name, now);
        }
        changes
    }

    fn put(&mut self, service: &Service, key: RepoKey, followed: Followed, changes: &mut Changes) {
        let Followed { repo: id, place, relays, authors, seq } = followed;
        let relays = sensible(service, &relays);
        let old = self.repos.get(&key);
        let gone: Vec<RelayUrl> = old
            .map(|old| old.relays.iter().filter(|url| !relays.iter().any(|new| new.place() == url.place())).cloned())
            .into_iter()
            .flatten()
            .collect();
        let known = |author: &&PublicKey| old.is_some_and(|old| old.authors.contains(author));
        changes.keepers.extend(authors.iter().filter(|author| !known(author)));
        let is_new = old.is_none_or(|old| old.place != place || !old.rooted);
        self.want(key, &gone, None, changes);
        self.want(key, &relays, Some(place), changes);
        if is_new && place == Place::Served {
            changes.ask.push(id.clone());
        }
        self.keys.insert(id.clone(), key);
        let coordinate = format!("{}:{}:{}", kinds::ANNOUNCEMENT, id.owner, id.identifier.as_str());
        let old = self.repos.remove(&key);
        let (roots, rooted, links) =
            old.map(|old| (old.roots, old.rooted, old.links)).unwrap_or((Vec::new(), false, BTreeSet::new()));
        self.repos.insert(key, Repo { id, coordinate, place, relays, authors, seq, roots, rooted, links });
    }

    fn want(&mut self, key: RepoKey, urls: &[RelayUrl], place: Option<Place>, changes: &mut Changes) {
        for url in urls {
            let entry = self.relays.entry(url.place().to_owned());
            let wanted =
                entry.or_insert_with(|| Wanted { url: url.clone(), served: BTreeSet::new(), held: BTreeSet::new() });
            if url.is_tls() {
                wanted.url = url.clone();
            }
            let change = match place {
                Some(Place::Served) => wanted.served.insert(key) | wanted.held.remove(&key),
                Some(Place::Held) => wanted.held.insert(key) | wanted.served.remove(&key),
                None => wanted.served.remove(&key) | wanted.held.remove(&key),
            };
            if change {
                changes.moved.insert(key);
                changes.places.insert(url.place().to_owned());
            }
            if wanted.served.is_empty() && wanted.held.is_empty() {
                self.relays.remove(url.place());
            }
        }
    }

    /// The store tells the roots of a repository. Gives how many were not known.
    pub(super) fn root(&mut self, id: &RepoId, roots: Vec<Root>) -> Option<(RepoKey, usize)> {
        let key = self.key(id)?;
        let repo = self.repos.get_mut(&key)?;
        let before = repo.roots.len();
        repo.roots.extend(roots);
        repo.roots.sort_unstable();
        repo.roots.dedup();
        repo.rooted = true;
        Some((key, repo.roots.len() - before))
    }

    /// An event is served. Gives the repositories that have one root more.
    pub(super) fn arrive(&mut self, arrived: &Arrived) -> Vec<RepoKey> {
        self.heard = self.heard.max(arrived.seq);
        if !matches!(arrived.kind, kinds::PATCH | kinds::PULL_REQUEST | kinds::ISSUE) {
            return Vec::new();
        }
        let mut keys: Vec<RepoKey> = arrived
            .coordinates
            .iter()
            .filter(|coordinate| coordinate.kind == kinds::ANNOUNCEMENT)
            .filter_map(RepoId::of)
            .filter_map(|id| self.key(&id))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| {
            let Some(repo) = self.repos.get_mut(key) else { return false };
            // The store's own answer is still to come and has it.
            if !repo.rooted || repo.head() >= arrived.seq {
                return false;
            }
            repo.roots.push(Root { seq: arrived.seq, id: arrived.id });
            true
        });
        keys
    }

    /// Notes that something changed in a repository: the window is open now.
    pub(super) fn gather(&mut self, key: RepoKey, closes: Moment) {
        self.gathering.insert(key);
        self.closes.get_or_insert(closes);
    }
}

/// The relays of a repository that may be dialled, each once, ourselves not among them.
fn sensible(service: &Service, relays: &[String]) -> Vec<RelayUrl> {
    let mut urls: Vec<RelayUrl> = Vec::new();
    for url in relays.iter().filter(|text| !service.is_own_relay(text)).filter_map(|text| RelayUrl::parse(text)) {
        match urls.iter().position(|known| known.place() == url.place()) {
            Some(nth) if url.is_tls() => urls[nth] = url,
            Some(_) => {}
            None if urls.len() < limits::MAX_RELAYS_PER_REPOSITORY => urls.push(url),
            None => break,
        }
    }
    urls
}
