//! Repository needs: an index of all followed repositories, their root events and the relays that they list, and the
//! batch window in which changes are gathered.

use std::collections::{BTreeMap, BTreeSet};

use super::SyncMachine;
use super::batch_window::BatchWindow;
use super::descendants::{DescendantIndex, RepoDescendants, can_be_descendant};
use super::io::{Descendants, RepoNeeds, RootEvent, Seq, ServedEvent, SyncOutput};
use super::relay::RelayId;
use super::relay_url::RelayUrl;
use crate::limits;
use crate::nostr::event::Coordinate;
use crate::nostr::{PublicKey, kinds};
use crate::repo::catalog::EventStatus;
use crate::repo::{Identifier, RepoId, ServiceAddress};
use crate::time::MonoTime;

/// Id of a followed repository. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RepoKey(u32);

impl RepoKey {
    pub(super) const MIN: Self = Self(0);
    pub(super) const MAX: Self = Self(u32::MAX);

    /// Returns the number that the descendant index stores, of which it uses 24 bits.
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// Returns the key of a number of the descendant index.
    pub(super) fn from_number(number: u32) -> Self {
        Self(number & 0xff_ffff)
    }
}

/// A followed repository and its needs.
#[derive(Clone, Debug)]
pub(super) struct IndexedRepo {
    pub(super) id: RepoId,
    /// Its coordinate (`30617:…`) for filters.
    pub(super) coordinate: String,
    pub(super) status: EventStatus,
    pub(super) relays: Vec<RelayUrl>,
    pub(super) authors: Vec<PublicKey>,
    /// Arrival of its newest announcement.
    pub(super) seq: Seq,
    /// Root events by arrival. Their ids are stored only here; a relay stores up to which arrival it is synced.
    pub(super) roots: Vec<RootEvent>,
    /// Events that reference the repository, its root events or each other.
    pub(super) descendants: RepoDescendants,
    /// Whether the root events and descendants that were stored before have been loaded.
    pub(super) roots_loaded: bool,
    /// Followed relays that it lists.
    pub(super) relay_ids: BTreeSet<RelayId>,
}

impl IndexedRepo {
    /// Returns the root events that arrived after `after` and not later than `up_to`.
    pub(super) fn roots_between(&self, after: Seq, up_to: Seq) -> &[RootEvent] {
        let from = self.roots.partition_point(|root| root.seq <= after);
        let to = self.roots.partition_point(|root| root.seq <= up_to);
        self.roots.get(from..to.max(from)).unwrap_or_default()
    }

    /// Returns the arrival of the newest root event, or 0.
    pub(super) fn newest_root_seq(&self) -> Seq {
        self.roots.last().map_or(0, |root| root.seq)
    }
}

/// Index of all followed repositories and of the relays that they list.
#[derive(Debug, Default)]
pub(super) struct RepoSyncIndex {
    repos: BTreeMap<RepoKey, IndexedRepo>,
    keys: BTreeMap<RepoId, RepoKey>,
    by_identifier: BTreeMap<Identifier, Vec<RepoKey>>,
    /// Repositories that need each relay, by its URL without scheme. Includes relays that are not followed.
    relays: BTreeMap<String, RelayNeeds>,
    descendants: DescendantIndex,
    next_key: u32,
    /// Repositories that changed since the batch window opened.
    pub(super) changed_repos: BTreeSet<RepoKey>,
    pub(super) window: BatchWindow,
    /// The newest arrival that was reported.
    pub(super) newest_seq: Seq,
}

/// The repositories that need a relay.
#[derive(Clone, Debug)]
pub(super) struct RelayNeeds {
    pub(super) url: RelayUrl,
    pub(super) served: BTreeSet<RepoKey>,
    pub(super) held: BTreeSet<RepoKey>,
}

/// Consequences of changed repository needs.
#[derive(Debug, Default)]
pub(super) struct IndexChanges {
    /// Repositories whose stored root events have to be looked up.
    pub(super) query_roots: Vec<RepoId>,
    /// Relays whose set of repositories changed, as URL without scheme.
    pub(super) relay_keys: BTreeSet<String>,
    /// Authors that became maintainers of a repository.
    pub(super) new_maintainers: Vec<PublicKey>,
    /// Repositories that list other relays than before.
    pub(super) relisted: BTreeSet<RepoKey>,
}

impl RepoSyncIndex {
    pub(super) fn repo(&self, key: RepoKey) -> Option<&IndexedRepo> {
        self.repos.get(&key)
    }

    pub(super) fn repo_mut(&mut self, key: RepoKey) -> Option<&mut IndexedRepo> {
        self.repos.get_mut(&key)
    }

    pub(super) fn key(&self, repo: &RepoId) -> Option<RepoKey> {
        self.keys.get(repo).copied()
    }

    /// Returns the followed repository at the coordinate of an announcement.
    pub(super) fn repo_at(&self, coordinate: &str) -> Option<RepoKey> {
        let coordinate = Coordinate::parse(coordinate).filter(|coordinate| coordinate.kind == kinds::ANNOUNCEMENT)?;
        self.key(&RepoId::from_coordinate(&coordinate)?)
    }

    /// Returns the followed repositories that have a root event or descendant with this id or coordinate.
    pub(super) fn repos_with_event(&self, reference: &str) -> impl Iterator<Item = RepoKey> {
        self.descendants.repos_with_event(reference)
    }

    /// Iterates over all followed repositories.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RepoKey, &IndexedRepo)> {
        self.repos.iter().map(|(key, repo)| (*key, repo))
    }

    /// Returns the followed repositories with an identifier.
    pub(super) fn repos_named(&self, identifier: &Identifier) -> &[RepoKey] {
        self.by_identifier.get(identifier).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn relay_needs(&self, relay_key: &str) -> Option<&RelayNeeds> {
        self.relays.get(relay_key)
    }

    pub(super) fn len(&self) -> usize {
        self.repos.len()
    }

    /// Iterates over all listed relays, by URL without scheme.
    pub(super) fn relays(&self) -> impl Iterator<Item = (&String, &RelayNeeds)> {
        self.relays.iter()
    }

    /// Replaces the needs of all repositories with an identifier.
    pub(super) fn update(
        &mut self,
        service: &ServiceAddress,
        identifier: Identifier,
        needs: Vec<RepoNeeds>,
    ) -> IndexChanges {
        let mut changes = IndexChanges::default();
        let before = self.by_identifier.remove(&identifier).unwrap_or_default();
        let mut now = Vec::with_capacity(needs.len());
        for repo_needs in needs {
            let key = self.keys.get(&repo_needs.repo).copied();
            let key = key.unwrap_or_else(|| {
                self.next_key += 1;
                RepoKey(self.next_key)
            });
            now.push(key);
            self.insert(service, key, repo_needs, &mut changes);
        }
        for key in before.into_iter().filter(|key| !now.contains(key)).collect::<Vec<_>>() {
            if let Some(repo) = self.repos.remove(&key) {
                self.keys.remove(&repo.id);
                self.changed_repos.remove(&key);
                self.descendants.remove_repo(key, &repo.roots, &repo.descendants);
                self.update_relay_needs(key, &repo.relays, None, &mut changes);
            }
        }
        if !now.is_empty() {
            self.by_identifier.insert(identifier, now);
        }
        changes
    }

    /// Inserts or replaces the needs of one repository.
    fn insert(&mut self, service: &ServiceAddress, key: RepoKey, needs: RepoNeeds, changes: &mut IndexChanges) {
        let RepoNeeds { repo: id, status, relays, authors, seq } = needs;
        let relays = usable_relays(service, &relays);
        let old = self.repos.get(&key);
        let removed: Vec<RelayUrl> = old
            .map(|old| {
                old.relays
                    .iter()
                    .filter(|url| !relays.iter().any(|new| new.without_scheme() == url.without_scheme()))
                    .cloned()
            })
            .into_iter()
            .flatten()
            .collect();
        let is_known = |author: &&PublicKey| old.is_some_and(|old| old.authors.contains(author));
        changes.new_maintainers.extend(authors.iter().filter(|author| !is_known(author)));
        let is_new = old.is_none_or(|old| old.status != status || !old.roots_loaded);
        self.update_relay_needs(key, &removed, None, changes);
        self.update_relay_needs(key, &relays, Some(status), changes);
        if is_new && status == EventStatus::Served {
            changes.query_roots.push(id.clone());
        }
        self.keys.insert(id.clone(), key);
        let coordinate = format!("{}:{}:{}", kinds::ANNOUNCEMENT, id.owner, id.identifier.as_str());
        let repo = match self.repos.remove(&key) {
            Some(old) => IndexedRepo { id, coordinate, status, relays, authors, seq, ..old },
            None => IndexedRepo {
                id,
                coordinate,
                status,
                relays,
                authors,
                seq,
                roots: Vec::new(),
                descendants: RepoDescendants::default(),
                roots_loaded: false,
                relay_ids: BTreeSet::new(),
            },
        };
        self.repos.insert(key, repo);
    }

    /// Updates which relays need a repository. `None` removes it.
    fn update_relay_needs(
        &mut self,
        key: RepoKey,
        urls: &[RelayUrl],
        status: Option<EventStatus>,
        changes: &mut IndexChanges,
    ) {
        for url in urls {
            let entry = self.relays.entry(url.without_scheme().to_owned());
            let needs = entry.or_insert_with(|| RelayNeeds {
                url: url.clone(),
                served: BTreeSet::new(),
                held: BTreeSet::new(),
            });
            if url.is_tls() {
                needs.url = url.clone();
            }
            let change = match status {
                Some(EventStatus::Served) => needs.served.insert(key) | needs.held.remove(&key),
                Some(EventStatus::Held) => needs.held.insert(key) | needs.served.remove(&key),
                None => needs.served.remove(&key) | needs.held.remove(&key),
            };
            if change {
                changes.relisted.insert(key);
                changes.relay_keys.insert(url.without_scheme().to_owned());
            }
            if needs.served.is_empty() && needs.held.is_empty() {
                self.relays.remove(url.without_scheme());
            }
        }
    }

    /// Adds the stored root events of a repository and their descendants. Returns how many root events are new.
    pub(super) fn add_root_events(
        &mut self,
        id: &RepoId,
        roots: Vec<RootEvent>,
        descendants: Descendants,
    ) -> Option<(RepoKey, usize)> {
        let key = self.key(id)?;
        let repo = self.repos.get_mut(&key)?;
        let before = repo.roots.len();
        for root in &roots {
            self.descendants.add_root(key, root.id);
        }
        self.descendants.add_stored(key, &mut repo.descendants, descendants);
        repo.roots.extend(roots);
        repo.roots.sort_unstable();
        repo.roots.dedup();
        repo.roots_loaded = true;
        Some((key, repo.roots.len() - before))
    }

    /// Adds a served event. Returns the repositories of which it is a new root event.
    pub(super) fn add_served_event(&mut self, served: &ServedEvent) -> Vec<RepoKey> {
        self.newest_seq = self.newest_seq.max(served.seq);
        if !is_root_kind(served.kind) {
            return Vec::new();
        }
        let mut keys = self.referenced_repos(served);
        keys.retain(|key| {
            let Some(repo) = self.repos.get_mut(key) else { return false };
            // If the stored root events are not loaded yet, they will include it.
            if !repo.roots_loaded || repo.newest_root_seq() >= served.seq {
                return false;
            }
            repo.roots.push(RootEvent { seq: served.seq, id: served.id });
            repo.descendants.add_root_author(served);
            self.descendants.add_root(*key, served.id);
            true
        });
        keys
    }

    /// Adds a served event that is no root event. Returns the repositories of which it is a new descendant.
    pub(super) fn add_descendant(&mut self, served: &ServedEvent, descendant_limit: usize) -> Vec<RepoKey> {
        if !can_be_descendant(served.kind) {
            return Vec::new();
        }
        let direct = self.referenced_repos(served);
        let mut keys = self.descendants.referenced_repos(served);
        keys.extend(&direct);
        let is_added = |key: &RepoKey| {
            let Some(repo) = self.repos.get_mut(key) else { return false };
            let is_direct = direct.contains(key);
            let is_root = is_root_kind(served.kind) && is_direct;
            // If the stored descendants are not loaded yet, they will include it.
            repo.roots_loaded
                && !is_root
                && self.descendants.add_served(*key, &mut repo.descendants, served, is_direct, descendant_limit)
        };
        keys.into_iter().filter(is_added).collect()
    }

    /// Returns the repositories that a served event references by coordinate.
    fn referenced_repos(&self, served: &ServedEvent) -> Vec<RepoKey> {
        let mut keys: Vec<RepoKey> = served
            .coordinates
            .iter()
            .filter(|coordinate| coordinate.kind == kinds::ANNOUNCEMENT)
            .filter_map(RepoId::from_coordinate)
            .filter_map(|id| self.key(&id))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Marks a repository as changed, and opens the batch window if it is closed.
    pub(super) fn mark_changed(&mut self, key: RepoKey, now: MonoTime, window_millis: u64) {
        self.changed_repos.insert(key);
        self.window.record_change(now, window_millis);
    }
}

/// Whether events of a kind are root events of the repositories that they reference.
fn is_root_kind(kind: u16) -> bool {
    matches!(kind, kinds::PATCH | kinds::PULL_REQUEST | kinds::ISSUE)
}

/// Returns the valid relay URLs of a repository, each once and without this server.
fn usable_relays(service: &ServiceAddress, relays: &[String]) -> Vec<RelayUrl> {
    let mut urls: Vec<RelayUrl> = Vec::new();
    for url in relays.iter().filter(|text| !service.is_own_relay_url(text)).filter_map(|text| RelayUrl::parse(text)) {
        match urls.iter().position(|known| known.without_scheme() == url.without_scheme()) {
            Some(index) if url.is_tls() => urls[index] = url,
            Some(_) => {}
            None if urls.len() < limits::MAX_RELAYS_PER_REPOSITORY => urls.push(url),
            None => break,
        }
    }
    urls
}

impl SyncMachine {
    /// Replaces the needs of all repositories with an identifier.
    pub(super) fn update_repo_needs(&mut self, identifier: Identifier, needs: Vec<RepoNeeds>) {
        self.recent_arrivals.record_needs_change(&identifier);
        let woken = self.rejected.wake_on_identifier(&identifier);
        let changes = self.repo_index.update(&self.config.service, identifier, needs);
        for repo in changes.query_roots {
            self.outputs.push_back(SyncOutput::QueryRootEvents(repo));
        }
        for relay_key in changes.relay_keys {
            self.update_relay(&relay_key);
        }
        for key in changes.relisted {
            if self.repo_index.repo(key).is_some() {
                self.mark_dirty(key);
            }
        }
        self.resubmit_woken(woken);
        for author in changes.new_maintainers {
            let woken = self.rejected.wake_on_author(&author);
            self.resubmit_woken(woken);
        }
    }

    /// Adds the stored root events of a repository and their descendants.
    pub(super) fn on_root_events(&mut self, repo: &RepoId, roots: Vec<RootEvent>, descendants: Descendants) {
        let Some((key, count)) = self.repo_index.add_root_events(repo, roots, descendants) else { return };
        let relay_ids = self.repo_index.repo(key).map(|repo| repo.relay_ids.clone()).unwrap_or_default();
        for id in &relay_ids {
            if let Some(relay) = self.relays.get_mut(id) {
                relay.historic.add_roots(count);
            }
        }
        self.mark_dirty(key);
    }

    /// Marks a repository as changed: it has needs that have not been requested from its relays.
    pub(super) fn mark_dirty(&mut self, key: RepoKey) {
        let window_millis = if self.is_ready { self.config.batch_window_millis } else { 0 };
        self.repo_index.mark_changed(key, self.now.mono, window_millis);
        let relay_ids = self.repo_index.repo(key).map(|repo| repo.relay_ids.clone()).unwrap_or_default();
        for id in relay_ids {
            if let Some(relay) = self.relays.get_mut(&id) {
                relay.historic.mark_dirty(key);
            }
        }
    }

    /// Handles a served event: new root events and descendants become needs, and rejected events that depend on it are tried again.
    pub(super) fn on_served(&mut self, served: &ServedEvent) {
        for key in self.repo_index.add_served_event(served) {
            let relay_ids = self.repo_index.repo(key).map(|repo| repo.relay_ids.clone()).unwrap_or_default();
            for id in relay_ids {
                if let Some(relay) = self.relays.get_mut(&id) {
                    relay.historic.add_roots(1);
                }
            }
            self.mark_dirty(key);
        }
        for key in self.repo_index.add_descendant(served, self.config.descendant_limit) {
            self.mark_dirty(key);
        }
        self.recent_arrivals.record(served);
        let woken = self.rejected.wake_on_event(served);
        self.resubmit_woken(woken);
    }

    /// Closes the batch window: the changes may be requested now.
    pub(super) fn close_window(&mut self) {
        let changed = std::mem::take(&mut self.repo_index.changed_repos);
        let is_served = |key: &RepoKey| {
            self.repo_index
                .repo(*key)
                .is_some_and(|repo| repo.status == EventStatus::Served && !repo.relay_ids.is_empty())
        };
        let leads_to_requests = changed.iter().any(is_served);
        self.repo_index.window.close(self.now.mono, leads_to_requests);
        for key in changed {
            let relay_ids = self.repo_index.repo(key).map(|repo| &repo.relay_ids);
            for id in relay_ids.into_iter().flatten() {
                if let Some(relay) = self.relays.get_mut(id) {
                    relay.historic.on_window_closed();
                }
            }
            self.runnable.extend(
                relay_ids
                    .into_iter()
                    .flatten()
                    .filter(|id| self.relays.get(id).is_some_and(|relay| relay.connection().is_some())),
            );
        }
    }
}
