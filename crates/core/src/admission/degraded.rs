//! Degraded repositories: objects that their refs need are damaged or missing.
//!
//! The mark on disk is the durable record. Until everything is complete again, the repository's events stay served, its
//! refs stay as they are, and the missing objects are fetched from the git servers that the announcements name. A push
//! must bring everything that it needs, as if the repository had no refs. When only objects of pull requests are missing,
//! these are held again, so that the repository does not wait for the data of other authors.

use std::collections::BTreeMap;

use super::Admission;
use super::git_job::AlignmentResult;
use super::io::{AdmissionOutput, RepoLookupResult};
use super::repo_queue::{RepoTask, RunningJob};
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

    /// Checks a repository that was marked as degraded: finds out which objects are missing, and fetches them.
    pub(super) fn repo_degraded(&mut self, repo_path: RepoPath) {
        self.degraded.0.entry(repo_path.clone()).or_default();
        self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
        self.queues.add(RepoTask::Align(repo_path));
    }

    /// Records whether a repository is degraded after a job. One for a single pull request does not look at states.
    pub(super) fn update_degraded(&mut self, job: &RunningJob, aligned: &AlignmentResult) {
        let repo_path = job.repo_path();
        let is_partial = matches!(job, RunningJob::Task(RepoTask::PullRequest(..)));
        let has_changed = match &aligned.lost {
            Some(_) if is_partial => false,
            Some(lost) => self.degraded.0.insert(repo_path.clone(), lost.clone()).as_ref() != Some(lost),
            None => self.degraded.0.remove(repo_path).is_some(),
        };
        if has_changed {
            self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
        }
    }

    /// Holds the pull requests again whose refs were removed because their objects are lost.
    pub(super) fn hold_dropped(&mut self, now: Now, aligned: &AlignmentResult, lookup: &RepoLookupResult) {
        for found in aligned.dropped.iter().filter_map(|id| lookup.events.get(id)) {
            if found.status == EventStatus::Served {
                self.hold_again(now, &found.event);
            }
        }
    }

    /// Forgets a repository that was deleted.
    pub(super) fn forget_degraded(&mut self, repo_path: &RepoPath) {
        if self.degraded.0.remove(repo_path).is_some() {
            self.emit(AdmissionOutput::WantedGitDataChanged(repo_path.identifier().clone()));
        }
    }
}
