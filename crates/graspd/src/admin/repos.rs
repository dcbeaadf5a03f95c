//! `repos`: lists repositories, with their state and what is missing.

use std::sync::Arc;

use grasp_core::nostr::PublicKey;
use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;

use super::AdminState;
use super::api::{ErrorCode, RepoCount, RepoItem, RepoRelayCounts, ReposRequest};
use super::wire::{AdminError, ResponseWriter};
use crate::sync::status::RepoRelayReport;
use crate::writer::command::RepoSummary;

/// Number of repositories that are requested from the writer and from sync at a time.
const PAGE_SIZE: usize = 100;

/// Lists repositories by owner and name: those of `owner`, those of `name`, those that wait for git data (`missing`),
/// or all.
pub(super) async fn list(
    admin: &Arc<AdminState>,
    request: ReposRequest,
    writer: ResponseWriter<RepoItem>,
) -> Result<RepoCount, AdminError> {
    let owner = request.owner.as_deref().map(parse_key).transpose()?;
    let mut repo_paths = admin.ref_cache.announced_repos();
    repo_paths.retain(|repo_path| {
        owner.is_none_or(|owner| repo_path.repo().owner == owner)
            && request.name.as_ref().is_none_or(|name| matches_name(repo_path, name))
    });
    repo_paths.sort_unstable();
    let mut repositories = 0;
    for page in repo_paths.chunks(PAGE_SIZE) {
        let summaries = admin.event_queue.repo_summaries(page.to_vec()).await.ok_or_else(super::writer_unavailable)?;
        let repos = page.iter().map(|repo_path| repo_path.repo().clone()).collect();
        let reports = match &admin.sync {
            Some(sync) => sync.repo_relays_of_all(repos).await,
            None => None,
        };
        let disk_usage = disk_usage(admin, page).await;
        for (nth, (repo_path, summary)) in page.iter().zip(&summaries).enumerate() {
            let Some(open) = admin.ref_cache.open_repo(repo_path) else { continue };
            if request.missing && open.status != EventStatus::Held && summary.held == 0 {
                continue;
            }
            let reports = reports.as_ref().and_then(|all| all.get(nth));
            let disk = disk_usage.get(nth).copied().unwrap_or_default();
            writer.send_item(&repo_item(repo_path, open.status, summary, reports, disk)).await?;
            repositories += 1;
        }
    }
    Ok(RepoCount { repositories })
}

/// Size of a repository on disk.
#[derive(Clone, Copy, Default)]
struct RepoDiskUsage {
    /// Number of its refs, if they can be read.
    refs: Option<usize>,
    /// Bytes of its own objects.
    bytes: Option<u64>,
    is_degraded: bool,
}

async fn disk_usage(admin: &Arc<AdminState>, repo_paths: &[RepoPath]) -> Vec<RepoDiskUsage> {
    let (git, repo_paths) = (admin.clone(), repo_paths.to_vec());
    let measure = move || {
        let one = |repo_path: &RepoPath| {
            let snapshot = git.ref_cache.snapshot(repo_path).ok();
            RepoDiskUsage {
                refs: snapshot.as_ref().map(|snapshot| snapshot.refs.len()),
                bytes: git.layout.repo_dir(repo_path).exists().then(|| git.layout.charged_bytes(repo_path)),
                is_degraded: snapshot.is_some_and(|snapshot| snapshot.is_degraded()),
            }
        };
        repo_paths.iter().map(one).collect()
    };
    tokio::task::spawn_blocking(measure).await.unwrap_or_default()
}

fn repo_item(
    repo_path: &RepoPath,
    status: EventStatus,
    summary: &RepoSummary,
    reports: Option<&Vec<RepoRelayReport>>,
    disk: RepoDiskUsage,
) -> RepoItem {
    let repo = repo_path.repo();
    let state = match (status, &summary.state, summary.held_states) {
        _ if disk.is_degraded => "degraded",
        (EventStatus::Held, _, _) => "waiting",
        (EventStatus::Served, None, 0) => "empty",
        (EventStatus::Served, _, 1..) => "behind",
        (EventStatus::Served, Some(_), 0) => "current",
    };
    let relays = reports.map(|reports| {
        let others: Vec<&RepoRelayReport> = reports.iter().filter(|report| !report.relay.is_self).collect();
        let has = |report: &RepoRelayReport| match summary.state {
            Some((id, _)) => report.seen_states.values().any(|seen| seen.id == id),
            None => report.relay.sync.is_complete(),
        };
        let is_unknown =
            |report: &RepoRelayReport| !has(report) && !report.is_compared && report.seen_states.is_empty();
        RepoRelayCounts {
            named: others.len(),
            complete: others.iter().filter(|report| has(report)).count(),
            unknown: others.iter().filter(|report| is_unknown(report)).count(),
        }
    });
    RepoItem {
        owner: repo.owner.npub(),
        name: repo.identifier.as_str().to_owned(),
        path: repo_path.path(),
        state: state.to_owned(),
        state_event: summary.state.map(|(id, _)| id.to_string()),
        state_at: summary.state.map(|(_, at)| at),
        maintainers: summary.maintainers,
        refs: disk.refs,
        bytes: disk.bytes,
        relays,
        held: summary.held,
    }
}

/// Returns whether a name means a repository: its identifier, or its path.
pub(super) fn matches_name(repo_path: &RepoPath, name: &str) -> bool {
    let path = repo_path.path();
    repo_path.identifier().as_str() == name || path == name || path.strip_suffix(".git") == Some(name)
}

fn parse_key(text: &str) -> Result<PublicKey, AdminError> {
    PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text)).ok_or_else(|| {
        let text = format!("`{text}` is not a public key: give npub1… or 64 hex digits");
        AdminError::new(ErrorCode::BadRequest, text)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use grasp_core::nostr::EventId;
    use grasp_core::repo::{Identifier, RepoId};
    use grasp_core::sync::health::HealthStatus;
    use grasp_core::sync::relay::ConnectionStatus;
    use grasp_core::sync::relay_url::RelayUrl;
    use grasp_core::sync::{RepoRelayStatus, RepoSyncStatus};

    use super::*;

    /// The keys and values are part of the interface: users read `graspd repos --json`.
    #[test]
    fn json_of_a_repository_is_stable() {
        let identifier = Identifier::new("tool").expect("an identifier");
        let repo_path = RepoPath::Announced(RepoId { owner: PublicKey([1; 32]), identifier });
        let relay = RepoRelayStatus {
            url: RelayUrl::parse("wss://a.example").expect("a relay URL"),
            status: ConnectionStatus::Connected,
            health: HealthStatus::Healthy,
            sync: RepoSyncStatus::NotRequested,
            historic_sync_completed_at: None,
            last_message_at: None,
            is_self: false,
        };
        let report =
            RepoRelayReport { relay, seen_states: BTreeMap::new(), is_compared: false, lacking: None, problem: None };
        let summary = RepoSummary { state: Some((EventId([2; 32]), 1_700)), held_states: 1, held: 3, maintainers: 2 };
        let disk = RepoDiskUsage { refs: Some(4), bytes: Some(5_000), is_degraded: false };
        let item = repo_item(&repo_path, EventStatus::Served, &summary, Some(&vec![report]), disk);
        assert_eq!(
            serde_json::json!(item).to_string(),
            r#"{"bytes":5000,"held":3,"maintainers":2,"name":"tool","owner":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm","path":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm/tool.git","refs":4,"relays":{"complete":0,"named":1,"unknown":1},"state":"behind","state_at":1700,"state_event":"0202020202020202020202020202020202020202020202020202020202020202"}"#
        );
        let item = repo_item(&repo_path, EventStatus::Held, &RepoSummary::default(), None, RepoDiskUsage::default());
        assert_eq!(
            serde_json::json!(item).to_string(),
            r#"{"bytes":null,"held":0,"maintainers":0,"name":"tool","owner":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm","path":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm/tool.git","refs":null,"relays":null,"state":"waiting","state_at":null,"state_event":null}"#
        );
    }
}
