//! Degraded repositories: objects that their refs need are damaged or missing.
//!
//! The mark on disk is the durable record. Until everything is complete again, the repository's events stay served, its
//! refs stay as they are, and the missing objects are fetched from the git servers that the announcements name. A push
//! must bring everything that it needs, as if the repository had no refs.

use std::collections::BTreeMap;

use super::Admission;
use super::git_job::AlignmentResult;
use super::io::AdmissionOutput;
use super::repo_queue::RepoTask;
use crate::limits;
use crate::nostr::event::EventId;
use crate::repo::{Identifier, RepoPath};

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
        self.queues.add(RepoTask::Align(repo_path));
    }

    /// Records whether a repository is degraded after an alignment.
    pub(super) fn update_degraded(&mut self, repo_path: &RepoPath, aligned: &AlignmentResult) {
        let has_changed = match &aligned.lost {
            Some(lost) => {
                // A job for a pull request does not look at states.
                let known = self.degraded.0.entry(repo_path.clone()).or_default();
                let before = known.len();
                known.extend(lost.iter().filter(|id| !known.contains(id)).copied().collect::<Vec<_>>());
                known.truncate(limits::MAX_LOST_EVENTS);
                known.len() > before
            }
            None => self.degraded.0.remove(repo_path).is_some(),
        };
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
