//! `repair`: checks repositories for damage now, repairs them, and fetches what is missing.

use std::sync::Arc;

use grasp_core::repo::RepoPath;

use super::AdminState;
use super::api::{ErrorCode, JobProgress, RepairItem, RepairRequest, RepairResult};
use super::repos::matches_name;
use super::wire::{AdminError, ResponseWriter};

/// Checks and repairs the repositories of a name, or all, and sends what was found in each damaged one.
pub(super) async fn repair(
    admin: &Arc<AdminState>,
    request: RepairRequest,
    writer: ResponseWriter<RepairItem>,
) -> Result<RepairResult, AdminError> {
    let job = admin.begin_exclusive("a repair")?;
    let admin = admin.clone();
    let work = move || {
        let _job = job;
        let mut repo_paths = admin.ref_cache.announced_repos();
        repo_paths.extend(admin.layout.submission_repos().map_err(AdminError::failed)?);
        repo_paths.retain(|repo_path| request.name.as_ref().is_none_or(|name| matches_name(repo_path, name)));
        repo_paths.sort_unstable();
        if let Some(name) = request.name.filter(|_| repo_paths.is_empty()) {
            let text = format!("no repository has the name `{name}`; `graspd repos` lists them");
            return Err(AdminError::new(ErrorCode::NotFound, text));
        }
        let mut result = RepairResult { repositories: repo_paths.len(), damaged: 0, degraded: 0 };
        for (done, repo_path) in repo_paths.iter().enumerate() {
            let total = Some(repo_paths.len() as u64);
            let progress = JobProgress { what: "checking repositories".to_owned(), done: done as u64, total };
            writer.send_progress_blocking(&progress)?;
            let item = repair_one(&admin, repo_path);
            result.damaged += usize::from(item.is_some());
            result.degraded += usize::from(item.as_ref().is_some_and(|item| item.degraded.is_some()));
            if let Some(item) = item {
                writer.send_item_blocking(&item)?;
            }
        }
        Ok(result)
    };
    tokio::task::spawn_blocking(work).await.map_err(AdminError::failed)?
}

/// Checks and repairs a repository. Returns what was found, or `None` if it is intact.
fn repair_one(admin: &AdminState, repo_path: &RepoPath) -> Option<RepairItem> {
    let was_degraded = admin.repair.degraded_reason(repo_path).is_some();
    let outcome = admin.repair.repair(repo_path);
    let degraded = admin.repair.degraded_reason(repo_path);
    if let Some(reason) = degraded.as_deref().filter(|_| was_degraded) {
        admin.repair.recheck(repo_path, reason);
    }
    let (report, error) = match outcome {
        Ok(report) => (report, None),
        Err(error) => (Default::default(), Some(error.to_string())),
    };
    let item = RepairItem {
        path: repo_path.path(),
        indexed_packs: report.indexed_packs,
        missing_packs: report.missing_packs,
        damaged_packs: report.damaged_packs,
        missing_objects: report.missing_objects,
        degraded,
        error,
    };
    let is_intact = item.degraded.is_none() && item.error.is_none() && item.indexed_packs.is_empty();
    (!is_intact || !item.damaged_packs.is_empty() || !item.missing_packs.is_empty()).then_some(item)
}
