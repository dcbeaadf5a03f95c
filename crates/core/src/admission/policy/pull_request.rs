//! Pull requests and their updates (kinds 1618 and 1619): held until their commit arrives.

use super::{PolicyContext, Submission};
use crate::admission::io::EventLookups;
use crate::disk_budget::DiskLevel;
use crate::nostr::rejection::{AwaitedData, Decision, Rejection};
use crate::repo::pull_request::PullRequest;

impl PolicyContext<'_> {
    /// Decides about a pull request. It must be related to a served event, or be submitted to the author's own `/prs/`
    /// path.
    pub(super) fn pull_request(self, submission: &Submission<'_>, lookups: &EventLookups) -> Decision {
        let event = submission.event;
        let Some(request) = PullRequest::from_event(event) else {
            return Decision::Reject(Rejection::NoCommit);
        };
        if !lookups.references_served && !lookups.referenced_by_served {
            let repo_paths = self.policy.submission_paths(event.pubkey, &request);
            if repo_paths.is_empty() {
                return Decision::Reject(Rejection::Unrelated);
            }
            if self.policy.is_submission_banned(&repo_paths, &request) {
                return Decision::Reject(Rejection::RepositoryBanned);
            }
            // It would create a repository, or add to one, that is not hosted here.
            if self.disk_level >= DiskLevel::Soft {
                return Decision::Reject(Rejection::NoNewRepositories);
            }
        }
        self.hold(submission, AwaitedData::Commit(request.tip))
    }
}
