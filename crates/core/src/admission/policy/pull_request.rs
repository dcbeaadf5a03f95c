//! Kinds 1618 and 1619: pull requests wait for their commit.

use super::World;
use crate::admission::io::Facts;
use crate::disk_budget::Mark;
use crate::nostr::Signed;
use crate::nostr::rejection::{Need, Refusal, Verdict};
use crate::repo::pull_request::PullRequest;

impl World<'_> {
    pub(super) fn pull_request(self, event: &Signed, facts: &Facts) -> Verdict {
        let Some(request) = PullRequest::read(event) else {
            return Verdict::Refuse(Refusal::NoCommit);
        };
        if !facts.anchored && !facts.named {
            let sites = self.rules.submissions_of(event.pubkey, &request);
            if sites.is_empty() {
                return Verdict::Refuse(Refusal::Unrelated);
            }
            if self.rules.bans_submission(&sites, &request) {
                return Verdict::Refuse(Refusal::Banned);
            }
            // It makes a repository, or lets one grow that nobody here asked for.
            if self.space >= Mark::Soft {
                return Verdict::Refuse(Refusal::NoNewRepositories);
            }
        }
        self.hold(event.pubkey, event.json().len(), Need::Commit(request.tip))
    }
}
