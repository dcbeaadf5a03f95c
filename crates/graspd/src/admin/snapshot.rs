//! `snapshot`: everything at one moment, for as long as whoever asked listens.

use std::sync::Arc;

use anyhow::anyhow;
use serde_json::{Value, json};

use super::Admin;
use super::wire::{Complaint, Gone, Request, Teller};
use crate::backup::snapshot;
use crate::backup::snapshot::Served;

/// Links all git data and copies the store, says where, and removes it when the client hangs up. Pushes and events go on;
/// what would remove git data waits while links are made.
pub(super) async fn snapshot(admin: &Arc<Admin>, _: Request, tell: Teller) -> Result<Value, Complaint> {
    let _alone = admin.alone("a backup or a verification")?;
    let (store, layout) = (admin.house.rooms.store.clone(), admin.house.git.layout.clone());
    let config = &admin.house.config;
    let (means, teller) = ((Served::of(config), config.store_reserve_bytes), tell.clone());
    let work = move || {
        let gone = |_: Gone| anyhow!("nobody waits for it any more");
        let wanted = || teller.is_wanted().map_err(gone);
        let mut told = |what: &str, done, total| teller.progress_blocking(what, done, total).map_err(gone);
        snapshot::take(&store, &layout, means, &wanted, &mut told)
    };
    let failed = |problem: String| Complaint::new("failed", problem);
    let taken = tokio::task::spawn_blocking(work).await.map_err(|problem| failed(problem.to_string()))?;
    let taken = taken.map_err(|problem| failed(format!("{problem:#}")))?;
    tell.item(taken.scene(config).value()).await?;
    tell.unwanted().await;
    // There may be many files to be removed.
    let _ = tokio::task::spawn_blocking(move || drop(taken)).await;
    Ok(json!({}))
}
