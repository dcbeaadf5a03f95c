//! Mirror check: compares the branches and tags of another git server with those served here.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::fetch::io::{FetchOutcome, MirrorCheck, RefComparison};
use grasp_core::limits;
use grasp_git::fetch::RefDiff;
use tokio::time::timeout;
use tracing::debug;

use super::connection::ServerConnection;
use super::protocol::{BRANCHES_AND_TAGS, GitProtocol};
use super::{FetchClient, FetchError, blocking};

impl FetchClient {
    /// Compares the refs of a mirror with the served ones.
    pub(crate) async fn compare(&self, check: &MirrorCheck) -> Result<RefComparison, FetchOutcome> {
        let time_limit = Duration::from_secs(limits::MIRROR_CHECK_TIMEOUT_SECS);
        let comparison = timeout(time_limit, Box::pin(self.compare_refs(check))).await;
        let comparison =
            comparison.unwrap_or_else(|_| Err(FetchError::new(FetchOutcome::Failed, "mirror check timed out")));
        match &comparison {
            Ok(refs) => debug!(target: "fetch", repo = %check.repo_path,
                url = %check.target,
                served = refs.served,
                missing = refs.missing,
                different = refs.different,
                "mirror checked"
            ),
            Err(error) => debug!(target: "fetch", repo = %check.repo_path,
                url = %check.target,
                outcome = error.outcome.label(),
                error = ?error.reason,
                "mirror check failed"
            ),
        }
        comparison.map_err(|error| error.outcome)
    }

    async fn compare_refs(&self, check: &MirrorCheck) -> Result<RefComparison, FetchError> {
        let (ref_cache, repo_path) = (self.local_objects.ref_cache.clone(), check.repo_path.clone());
        let snapshot = blocking(move || ref_cache.snapshot(&repo_path)).await?.map_err(FetchError::local)?;
        let served =
            snapshot.refs.iter().filter(|(name, _)| BRANCHES_AND_TAGS.iter().any(|space| name.starts_with(space)));
        let served: BTreeMap<String, String> =
            served.map(|(name, target)| (name.to_owned(), target.oid.clone())).collect();
        let of = served.len();
        let mut connection = ServerConnection::open(&self.dialer, &check.target, self.timeouts).await?;
        let protocol_client = GitProtocol { client: self, target: &check.target, form: None };
        let prefixes = BRANCHES_AND_TAGS.map(str::to_owned);
        let (_, diff) = protocol_client.refs(&mut connection, &mut || (), RefDiff::new(served), &prefixes).await?;
        let (missing, differs) = diff.counts();
        Ok(RefComparison { served: of, missing: missing + differs, different: differs })
    }
}
