//! A look at another git server: whether its branches and tags are those that are served here.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::fetch::io::{FetchOutcome, MirrorCheck, RefComparison};
use grasp_core::limits;
use grasp_git::fetch::Inventory;
use tokio::time::timeout;
use tracing::debug;

use super::connection::Call;
use super::protocol::{BRANCHES_AND_TAGS, Speech};
use super::{FetchClient, FetchError, blocking};

impl FetchClient {
    /// Looks.
    pub(crate) async fn compare(&self, look: &MirrorCheck) -> Result<RefComparison, FetchOutcome> {
        let patience = Duration::from_secs(limits::MIRROR_CHECK_TIMEOUT_SECS);
        let shown = timeout(patience, Box::pin(self.shown(look))).await;
        let shown = shown.unwrap_or_else(|_| Err(FetchError::new(FetchOutcome::Failed, "it took too long")));
        debug!(repo = %look.repo_path, url = %look.target, ?shown, "looked at a git server");
        shown.map_err(|sorry| sorry.end)
    }

    async fn shown(&self, look: &MirrorCheck) -> Result<RefComparison, FetchError> {
        let (directory, repo_path) = (self.larder.directory.clone(), look.repo_path.clone());
        let snapshot = blocking(move || directory.snapshot(&repo_path)).await?.map_err(FetchError::ours)?;
        let served =
            snapshot.refs.iter().filter(|(name, _)| BRANCHES_AND_TAGS.iter().any(|space| name.starts_with(space)));
        let served: BTreeMap<String, String> =
            served.map(|(name, target)| (name.to_owned(), target.oid.clone())).collect();
        let of = served.len();
        let mut call = Call::open(&self.dialer, &look.target, self.patience).await?;
        let speech = Speech { room: self, target: &look.target, form: None };
        let prefixes = BRANCHES_AND_TAGS.map(str::to_owned);
        let (_, inventory) = speech.refs(&mut call, &mut || (), Inventory::new(served), &prefixes).await?;
        let (missing, differs) = inventory.lacks();
        Ok(RefComparison { served: of, missing: missing + differs, different: differs })
    }
}
