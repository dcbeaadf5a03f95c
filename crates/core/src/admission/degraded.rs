//! Degraded repositories: objects that their refs need are damaged or missing.
//!
//! The store records them. Until everything is complete again, the repository's events stay served, its
//! refs stay as they are, and the missing objects are fetched from the git servers that the announcements name. A push
//! must bring everything that it needs, as if the repository had no refs. When only objects of pull requests are missing,
//! these are held again, so that the repository does not wait for the data of other authors.

use std::collections::BTreeMap;

use super::Admission;
use super::git_job::AlignmentResult;
use super::io::{AdmissionOutput, RepoLookupResult, StoreWrite};
use super::repo_queue::RepoTask;
use crate::nostr::event::EventId;
use crate::repo::catalog::EventStatus;
use crate::repo::{Identifier, RepoPath};
use crate::time::Now;

/// The degraded repositories, each with the events whose objects are missing.
#[derive(Clone, Debug, Default)]
pub(super) struct DegradedRepos(BTreeMap<RepoPath, Vec<EventId>>);

impl Admission {
    /// Returns the degraded repositories.
    pub fn degraded_repos(&self) -> impl Iterator<Item = &RepoPath> {
        self.degraded.0.keys()
    }

    /// Returns the degraded repositories with an identifier, and the events whose objects are missing.
    pub(super) fn lost_events(&self, identifier: &Identifier) -> impl Iterator<Item = (&RepoPath, &Vec<EventId>)> {
        self.degraded.0.iter().filter(move |(repo_path, _)| repo_path.identifier() == identifier)
    }

    /// Records that a repository is degraded, and finds out which objects are missing.
    pub(super) fn repo_degraded(&mut self, repo_path: RepoPath, reason: String) {
        self.write(StoreWrite::SetDegraded(repo_path.clone(), Some(reason)));
        self.restore_degraded(repo_path.clone());
        self.check_degraded(repo_path);
    }

    /// Adds a repository that the store records as degraded.
    pub(super) fn restore_degraded(&mut self, repo_path: RepoPath) {
        self.degraded.0.entry(repo_path).or_default();
    }

    /// Continues after a start.
    pub(super) fn resume_degraded(&mut self) {
        let degraded: Vec<RepoPath> = self.degraded.0.keys().cloned().collect();
        degraded.into_iter().for_each(|repo_path| self.check_degraded(repo_path));
    }

    /// Finds out which objects of a degraded repository are missing, and has them fetched.
    fn check_degraded(&mut self, repo_path: RepoPath) {
        self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
        self.queues.add(RepoTask::Align(repo_path));
    }

    /// Records what a job has found out about the objects of a repository, together with the refs that it has found.
    /// Pull requests that get no ref because their objects are lost are held again.
    pub(super) fn update_degraded(
        &mut self,
        now: Now,
        task: Option<&RepoTask>,
        repo_path: &RepoPath,
        (aligned, lookup): (&AlignmentResult, &RepoLookupResult),
    ) {
        for found in aligned.dropped.iter().filter_map(|id| lookup.events.get(id)) {
            if found.status == EventStatus::Served {
                self.hold_again(now, &found.event);
            }
        }
        if !aligned.was_degraded {
            // Nothing was checked. Damage may have been found while the job was running.
            return;
        }
        // A job for a single pull request does not look at states.
        let is_partial = matches!(task, Some(RepoTask::PullRequest(..)));
        let has_changed = match &aligned.lost {
            Some(_) if is_partial => false,
            Some(lost) => self.degraded.0.insert(repo_path.clone(), lost.clone()).as_ref() != Some(lost),
            None => self.degraded.0.remove(repo_path).is_some(),
        };
        if aligned.lost.is_none() && lookup.is_degraded {
            self.write(StoreWrite::SetDegraded(repo_path.clone(), None));
        }
        if has_changed {
            self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
        }
    }

    /// Forgets a repository that was deleted.
    pub(super) fn forget_degraded(&mut self, repo_path: &RepoPath) {
        if self.degraded.0.remove(repo_path).is_some() {
            self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
        }
    }
}
