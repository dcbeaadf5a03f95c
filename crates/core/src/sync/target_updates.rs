//! Updates of the repository needs, and the batch window in which they are gathered.

use super::SyncMachine;
use super::io::{RepoNeeds, RootEvent, ServedEvent, SyncOutput};
use super::targets::RepoKey;
use crate::repo::{Identifier, RepoId};
use crate::time::MonoTime;

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

    /// Adds the stored root events of a repository.
    pub(super) fn on_root_events(&mut self, repo: &RepoId, roots: Vec<RootEvent>) {
        let Some((key, count)) = self.repo_index.add_root_events(repo, roots) else { return };
        let relay_ids = self.repo_index.repo(key).map(|repo| repo.relay_ids.clone()).unwrap_or_default();
        for id in &relay_ids {
            if let Some(relay) = self.relays.get_mut(id) {
                relay.total_size = relay.total_size.with_roots(count);
            }
        }
        self.mark_dirty(key);
    }

    /// Marks a repository as changed: it has needs that have not been requested from its relays.
    pub(super) fn mark_dirty(&mut self, key: RepoKey) {
        let window_millis = if self.is_ready { self.config.batch_window_millis } else { 0 };
        let window_closes_at = MonoTime(self.now.mono.0.saturating_add(window_millis));
        self.repo_index.mark_changed(key, window_closes_at);
        let relay_ids = self.repo_index.repo(key).map(|repo| repo.relay_ids.clone()).unwrap_or_default();
        for id in relay_ids {
            if let Some(relay) = self.relays.get_mut(&id) {
                relay.dirty.insert(key);
            }
        }
    }

    /// Handles a served event: new root events become needs, and rejected events that depend on it are tried again.
    pub(super) fn on_served(&mut self, served: &ServedEvent) {
        for key in self.repo_index.add_served_event(served) {
            let relay_ids = self.repo_index.repo(key).map(|repo| repo.relay_ids.clone()).unwrap_or_default();
            for id in relay_ids {
                if let Some(relay) = self.relays.get_mut(&id) {
                    relay.total_size = relay.total_size.with_roots(1);
                }
            }
            self.mark_dirty(key);
        }
        self.recent_arrivals.record(served);
        let woken = self.rejected.wake_on_event(served);
        self.resubmit_woken(woken);
    }

    /// Closes the batch window: the changes may be requested now.
    pub(super) fn close_window(&mut self) {
        self.repo_index.window_closes_at = None;
        for key in std::mem::take(&mut self.repo_index.changed_repos) {
            let relay_ids = self.repo_index.repo(key).map(|repo| &repo.relay_ids);
            for id in relay_ids.into_iter().flatten() {
                if let Some(relay) = self.relays.get_mut(id) {
                    relay.has_ready_repos = true;
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
