//! What can be seen of the house.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::{GitJob, GitJobId};
use grasp_core::admission::io::{PendingUpload, RestoredItem, Todo};
use grasp_core::fetch::io::WantedGitData;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{PublicKey, SignedEvent};
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_core::sync::io::RepoNeeds;
use grasp_core::time::Now;

use super::{House, View};
use crate::git_model::Git;
use crate::store_model::Memory;

impl House {
    /// The repositories that are hosted here.
    #[must_use]
    pub fn hosted(&self) -> Vec<RepoId> {
        let repos = self.admission.catalog().repositories().map(|(repo, _)| repo);
        repos.filter(|repo| self.admission.hosted_repo(repo).is_some()).collect()
    }

    /// The repositories hosted here that an author may speak for.
    #[must_use]
    pub fn repos_of(&self, identifier: &Identifier, author: PublicKey) -> Vec<RepoId> {
        let strict = self.admission.policy().strict_maintainers;
        let group = self.admission.catalog().group(identifier).into_iter();
        group
            .flat_map(|group| group.maintained_by(author, strict))
            .map(|owner| RepoId { owner, identifier: identifier.clone() })
            .collect()
    }

    /// What sync should follow under a name, by the committed store.
    #[must_use]
    pub fn followed(&self, identifier: &Identifier) -> Vec<RepoNeeds> {
        self.admission.repo_needs(identifier, |id| self.memory.seq_of(id).expect("it is served"))
    }

    /// What the hunt should look for under a name.
    #[must_use]
    pub fn quarries(&self, identifier: &Identifier) -> Vec<WantedGitData> {
        self.admission.wanted_git_data(identifier, |id| self.memory.text_of(id))
    }

    /// The registrar.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The store.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Git.
    pub fn git(&mut self) -> &mut Git {
        &mut self.git
    }

    /// The refs of a site, as the world sees them.
    #[must_use]
    pub fn refs(&self, repo_path: &RepoPath) -> BTreeMap<String, String> {
        self.shown.get(repo_path).map(|view| view.refs.clone()).unwrap_or_default()
    }

    /// All sites that have refs to show or a folder, with their refs.
    #[must_use]
    pub fn views(&self) -> BTreeMap<RepoPath, View> {
        let worth = |(_, view): &(&RepoPath, &View)| view.exists || !view.refs.is_empty();
        self.shown.iter().filter(worth).map(|(repo_path, view)| (repo_path.clone(), view.clone())).collect()
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// The ids of everything that is served and of everything that is held.
    #[must_use]
    pub fn sets(&self) -> (BTreeSet<EventId>, BTreeSet<EventId>) {
        let served = self.memory.served_events().map(|event| event.id).collect();
        (served, self.memory.held_events().map(|event| event.id).collect())
    }

    /// The durable notes of work.
    #[must_use]
    pub fn notes(&self) -> BTreeSet<Todo> {
        let todo = |restored| if let RestoredItem::Todo(todo) = restored { Some(todo) } else { None };
        Memory::restored(&self.memory).into_iter().filter_map(todo).collect()
    }

    /// The uploads that have a row.
    #[must_use]
    pub fn staged(&self) -> Vec<PendingUpload> {
        let staged = |restored| if let RestoredItem::Upload(upload) = restored { Some(upload) } else { None };
        Memory::restored(&self.memory).into_iter().filter_map(staged).collect()
    }

    /// Takes the orders that were given.
    pub fn orders(&mut self) -> Vec<GitJob> {
        std::mem::take(&mut self.orders)
    }

    /// Where an order stands among those that are under way.
    #[must_use]
    pub fn place_of(&self, order: GitJobId) -> Option<usize> {
        self.running.iter().position(|running| running.id == order)
    }

    /// Takes the events that were only passed on.
    pub fn passed(&mut self) -> Vec<Arc<SignedEvent>> {
        std::mem::take(&mut self.passed)
    }

    /// Takes the bells that rang: names for sync, names for the hunt.
    pub fn bells(&mut self) -> (BTreeSet<Identifier>, BTreeSet<Identifier>) {
        std::mem::take(&mut self.bells)
    }
}
