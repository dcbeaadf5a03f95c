//! Kinds 1618 and 1619: pull requests wait for their commit.

use super::World;
use crate::nostr::Signed;
use crate::nostr::reason::{Need, Refusal, Verdict};
use crate::registrar::io::Facts;
use crate::repo::pr::PullRequest;

impl World<'_> {
    pub(super) fn pull_request(self, event: &Signed, facts: &Facts) -> Verdict {
        let Some(request) = PullRequest::read(event) else {
            return Verdict::Refuse(Refusal::NoCommit);
        };
        let submitted = !self.rules.submissions_of(event.pubkey, &request).is_empty();
        if !facts.anchored && !facts.named && !submitted {
            return Verdict::Refuse(Refusal::Unrelated);
        }
        self.hold(event.pubkey, event.json().len(), Need::Commit(request.tip))
    }
}
