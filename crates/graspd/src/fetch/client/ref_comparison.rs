//! A look at another git server: whether its branches and tags are those that are served here.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::fetch::io::{End, Look, Shown};
use grasp_core::limits;
use grasp_git::fetch::Inventory;
use tokio::time::timeout;
use tracing::debug;

use super::connection::Call;
use super::protocol::{BRANCHES_AND_TAGS, Speech};
use super::{FetchRoom, Sorry, blocking};

impl FetchRoom {
    /// Looks.
    pub(crate) async fn compare(&self, look: &Look) -> Result<Shown, End> {
        let patience = Duration::from_secs(limits::LOOK_CALL_SECS);
        let shown = timeout(patience, Box::pin(self.shown(look))).await;
        let shown = shown.unwrap_or_else(|_| Err(Sorry::new(End::Failed, "it took too long")));
        debug!(site = %look.site, url = %look.target, ?shown, "looked at a git server");
        shown.map_err(|sorry| sorry.end)
    }

    async fn shown(&self, look: &Look) -> Result<Shown, Sorry> {
        let (directory, site) = (self.larder.directory.clone(), look.site.clone());
        let snapshot = blocking(move || directory.snapshot(&site)).await?.map_err(Sorry::ours)?;
        let served =
            snapshot.refs.iter().filter(|(name, _)| BRANCHES_AND_TAGS.iter().any(|space| name.starts_with(space)));
        let served: BTreeMap<String, String> =
            served.map(|(name, target)| (name.to_owned(), target.oid.clone())).collect();
        let of = served.len();
        let mut call = Call::open(&self.dialler, &look.target, self.patience).await?;
        let speech = Speech { room: self, target: &look.target, form: None };
        let prefixes = BRANCHES_AND_TAGS.map(str::to_owned);
        let (_, inventory) = speech.refs(&mut call, &mut || (), Inventory::new(served), &prefixes).await?;
        let (missing, differs) = inventory.lacks();
        Ok(Shown { of, lacks: missing + differs, differs })
    }
}
