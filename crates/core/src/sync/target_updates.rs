//! What is followed and what is served changes, and the window in which that is gathered.

use super::Syncer;
use super::fault_injection::Flaw;
use super::io::{Arrived, Followed, Output, Root};
use super::targets::RepoKey;
use crate::repo::{Identifier, RepoId};
use crate::time::Moment;

impl Syncer {
    pub(super) fn interest(&mut self, name: Identifier, followed: Vec<Followed>) {
        self.recent.follow(&name);
        let woken = self.refused.wake_name(&name);
        let changes = self.wants.follow(&self.config.service, name, followed);
        for repo in changes.ask {
            self.out.push_back(Output::AskRoots(repo));
        }
        for place in changes.places {
            self.relink(&place);
        }
        for key in changes.moved {
            if self.wants.repo(key).is_some() {
                self.soil(key);
            }
        }
        self.reconsider(woken);
        for author in changes.keepers {
            let woken = self.refused.wake_author(&author);
            self.reconsider(woken);
        }
    }

    pub(super) fn rooted(&mut self, repo: &RepoId, roots: Vec<Root>) {
        let Some((key, new)) = self.wants.root(repo, roots) else { return };
        let links = self.wants.repo(key).map(|repo| repo.links.clone()).unwrap_or_default();
        for id in &links {
            if let Some(link) = self.links.get_mut(id) {
                link.whole = link.whole.with_roots(new);
            }
        }
        self.soil(key);
    }

    /// Something in a repository changed that its relays have not been asked about.
    pub(super) fn soil(&mut self, key: RepoKey) {
        let window = if self.ready { self.config.window_millis } else { 0 };
        let closes = Moment(self.now.mono.0.saturating_add(window));
        self.wants.gather(key, closes);
        let links = self.wants.repo(key).map(|repo| repo.links.clone()).unwrap_or_default();
        for id in links {
            if let Some(link) = self.links.get_mut(&id) {
                link.dirty.insert(key);
            }
        }
    }

    pub(super) fn served(&mut self, arrived: &Arrived) {
        for key in self.wants.arrive(arrived) {
            let links = self.wants.repo(key).map(|repo| repo.links.clone()).unwrap_or_default();
            for id in links {
                if let Some(link) = self.links.get_mut(&id) {
                    link.whole = link.whole.with_roots(1);
                }
            }
            self.soil(key);
        }
        if !self.flawed(Flaw::RefusedKeptForever) {
            self.recent.arrive(arrived);
            let woken = self.refused.wake(arrived);
            self.reconsider(woken);
        }
    }

    pub(super) fn close_window(&mut self) {
        if self.flawed(Flaw::WindowNeverCloses) {
            self.wants.closes = None;
            return;
        }
        self.wants.closes = None;
        for key in std::mem::take(&mut self.wants.gathering) {
            let links = self.wants.repo(key).map(|repo| &repo.links);
            for id in links.into_iter().flatten() {
                if let Some(link) = self.links.get_mut(id) {
                    link.stirred = true;
                }
            }
            self.restless.extend(
                links.into_iter().flatten().filter(|id| self.links.get(id).is_some_and(|link| link.up().is_some())),
            );
        }
    }
}
