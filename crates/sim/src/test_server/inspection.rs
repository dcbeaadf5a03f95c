//! Read access to the state of the server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::{GitJob, GitJobId};
use grasp_core::admission::io::{PendingUpload, RestoredItem, Todo};
use grasp_core::fetch::io::WantedGitData;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{PublicKey, SignedEvent};
use grasp_core::repo::{Identifier, Refs, RepoId, RepoPath};
use grasp_core::sync::io::RepoNeeds;
use grasp_core::time::Now;

use super::TestServer;
use crate::git_model::GitModel;
use crate::store_model::ModelStore;

impl TestServer {
    /// Returns the hosted repositories.
    pub fn hosted_repos(&self) -> Vec<RepoId> {
        let repos = self.admission.catalog().repositories().map(|(repo, _)| repo);
        repos.filter(|repo| self.admission.hosted_repo(repo).is_some()).collect()
    }

    /// Returns the hosted repositories whose maintainer set contains an author.
    pub fn repos_maintained_by(&self, identifier: &Identifier, author: PublicKey) -> Vec<RepoId> {
        let strict = self.admission.policy().strict_maintainers;
        let group = self.admission.catalog().group(identifier).into_iter();
        group
            .flat_map(|group| group.maintained_by(author, strict))
            .map(|owner| RepoId { owner, identifier: identifier.clone() })
            .collect()
    }

    /// Returns the repository needs of an identifier, from the committed store.
    pub fn repo_needs(&self, identifier: &Identifier) -> Vec<RepoNeeds> {
        self.admission.repo_needs(identifier, |id| self.store.seq_of(id).expect("it is served"))
    }

    /// Returns the wanted git data of an identifier.
    pub fn wanted_git_data(&self, identifier: &Identifier) -> Vec<WantedGitData> {
        self.admission.wanted_git_data(identifier, |id| self.store.event_by_id(id))
    }

    /// Returns the admission machine.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns the store.
    pub fn store(&mut self) -> &mut ModelStore {
        &mut self.store
    }

    /// Returns the git model.
    pub fn git(&mut self) -> &mut GitModel {
        &mut self.git
    }

    /// Returns the refs of a repository as clients see them.
    pub fn refs(&self, repo_path: &RepoPath) -> BTreeMap<String, String> {
        self.store.refs(repo_path).iter().map(|(name, target)| (name.to_owned(), target.oid.clone())).collect()
    }

    /// Returns the refs of all repositories that exist.
    pub fn visible_refs(&self) -> BTreeMap<RepoPath, Arc<Refs>> {
        self.store.repos().map(|(repo_path, refs)| (repo_path.clone(), refs.clone())).collect()
    }

    /// Returns the current time.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Returns the ids of all served and of all held events.
    pub fn event_ids(&self) -> (BTreeSet<EventId>, BTreeSet<EventId>) {
        let served = self.store.served_events().map(|event| event.id).collect();
        (served, self.store.held_events().map(|event| event.id).collect())
    }

    /// Returns the stored todo rows.
    pub fn todos(&self) -> BTreeSet<Todo> {
        let todo = |restored| if let RestoredItem::Todo(todo) = restored { Some(todo) } else { None };
        ModelStore::restored(&self.store).into_iter().filter_map(todo).collect()
    }

    /// Returns the stored upload rows.
    pub fn pending_uploads(&self) -> Vec<PendingUpload> {
        let staged = |restored| if let RestoredItem::Upload(upload) = restored { Some(upload) } else { None };
        ModelStore::restored(&self.store).into_iter().filter_map(staged).collect()
    }

    /// Returns the most work, in units, that the machine did for one input or in one turn since the last call.
    pub fn take_max_work(&mut self) -> u64 {
        std::mem::take(&mut self.max_work)
    }

    /// Takes the git jobs that were started.
    pub fn take_git_jobs(&mut self) -> Vec<GitJob> {
        std::mem::take(&mut self.started_jobs)
    }

    /// Returns the index of a git job among the running ones.
    pub fn job_index(&self, job: GitJobId) -> Option<usize> {
        self.running.iter().position(|running| running.id == job)
    }

    /// Takes the events that were only broadcast.
    pub fn take_broadcasts(&mut self) -> Vec<Arc<SignedEvent>> {
        std::mem::take(&mut self.broadcasts)
    }

    /// Takes the identifiers whose repository needs, and those whose wanted git data, have changed.
    pub fn take_notifications(&mut self) -> (BTreeSet<Identifier>, BTreeSet<Identifier>) {
        std::mem::take(&mut self.notifications)
    }
}
