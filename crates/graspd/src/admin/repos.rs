//! `repos`: lists repositories, with their state and what is missing.

use std::sync::Arc;

use grasp_core::nostr::PublicKey;
use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;
use serde_json::{Value, json};

use super::AdminState;
use super::wire::{AdminError, AdminRequest, ResponseWriter};
use crate::sync::status::RepoRelayReport;
use crate::writer::command::RepoSummary;

/// Number of repositories that are requested from the writer and from sync at a time.
const PAGE_SIZE: usize = 100;

/// Lists repositories by owner and name: those of `owner`, those of `name`, those that wait for git data (`missing`),
/// or all.
pub(super) async fn list(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let arguments = request.arguments().await?;
    let missing = arguments["missing"] == true;
    let owner = arguments["owner"].as_str().map(parse_key).transpose()?;
    let name = arguments["name"].as_str();
    let mut repo_paths = admin.ref_cache.announced_repos();
    repo_paths.retain(|repo_path| {
        owner.is_none_or(|owner| repo_path.repo().owner == owner)
            && name.is_none_or(|name| matches_name(repo_path, name))
    });
    repo_paths.sort_unstable();
    let mut shown = 0;
    for page in repo_paths.chunks(PAGE_SIZE) {
        let books = admin.event_queue.repo_summaries(page.to_vec()).await.ok_or_else(super::writer_unavailable)?;
        let repos = page.iter().map(|repo_path| repo_path.repo().clone()).collect();
        let reports = match &admin.sync {
            Some(sync) => sync.repo_relays_of_all(repos).await,
            None => None,
        };
        let disk_usage = disk_usage(admin, page).await;
        for (nth, (repo_path, books)) in page.iter().zip(&books).enumerate() {
            let reports = reports.as_ref().and_then(|all| all.get(nth));
            let disk = disk_usage.get(nth).copied().unwrap_or_default();
            let Some(open) = admin.ref_cache.open_repo(repo_path) else { continue };
            let lacks = open.status == EventStatus::Held || books.held > 0;
            if missing && !lacks {
                continue;
            }
            shown += 1;
            writer.send_item(row(repo_path, open.status, books, reports, disk)).await?;
        }
    }
    Ok(json!({ "repositories": shown }))
}

/// Size of a repository on disk.
#[derive(Clone, Copy, Default)]
struct RepoDiskUsage {
    /// Number of its refs, if they can be read.
    refs: Option<usize>,
    /// Bytes of its own objects.
    bytes: Option<u64>,
}

async fn disk_usage(admin: &Arc<AdminState>, repo_paths: &[RepoPath]) -> Vec<RepoDiskUsage> {
    let (git, repo_paths) = (admin.clone(), repo_paths.to_vec());
    let look = move || {
        let one = |repo_path: &RepoPath| RepoDiskUsage {
            refs: git.ref_cache.snapshot(repo_path).ok().map(|snapshot| snapshot.refs.iter().count()),
            bytes: git.layout.readable_pool_bytes(repo_path).ok(),
        };
        repo_paths.iter().map(one).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

fn row(
    repo_path: &RepoPath,
    status: EventStatus,
    books: &RepoSummary,
    reports: Option<&Vec<RepoRelayReport>>,
    disk: RepoDiskUsage,
) -> Value {
    let repo = repo_path.repo();
    let state = match (status, &books.state, books.held_states) {
        (EventStatus::Held, _, _) => "waiting",
        (EventStatus::Served, None, 0) => "empty",
        (EventStatus::Served, _, 1..) => "behind",
        (EventStatus::Served, Some(_), 0) => "current",
    };
    let relays = reports.map(|reports| {
        let others: Vec<&RepoRelayReport> = reports.iter().filter(|report| !report.relay.is_self).collect();
        let has = |report: &&&RepoRelayReport| match books.state {
            Some((id, _)) => report.seen_states.values().any(|seen| seen.id == id),
            None => report.relay.is_covered,
        };
        let unknown = |report: &&&RepoRelayReport| !has(report) && !report.is_compared && report.seen_states.is_empty();
        let count = |which: &dyn Fn(&&&RepoRelayReport) -> bool| others.iter().filter(|report| which(report)).count();
        json!({ "named": others.len(), "complete": count(&has), "unknown": count(&unknown) })
    });
    json!({
        "owner": repo.owner.npub(),
        "name": repo.identifier.as_str(),
        "path": repo_path.path(),
        "state": state,
        "state_event": books.state.map(|(id, _)| id.to_string()),
        "state_at": books.state.map(|(_, at)| at),
        "maintainers": books.maintainers,
        "refs": disk.refs,
        "bytes": disk.bytes,
        "relays": relays,
        "held": books.held,
    })
}

/// Returns whether a name means a repository: its identifier, or its path.
pub(super) fn matches_name(repo_path: &RepoPath, name: &str) -> bool {
    let path = repo_path.path();
    repo_path.identifier().as_str() == name || path == name || path.strip_suffix(".git") == Some(name)
}

fn parse_key(text: &str) -> Result<PublicKey, AdminError> {
    PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text)).ok_or_else(|| {
        AdminError::new("bad_request", format!("`{text}` is not a public key: give npub1… or 64 hex digits"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use grasp_core::nostr::EventId;
    use grasp_core::repo::{Identifier, RepoId};
    use grasp_core::sync::RepoRelayStatus;
    use grasp_core::sync::health::HealthStatus;
    use grasp_core::sync::relay::ConnectionStatus;
    use grasp_core::sync::relay_url::RelayUrl;

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
            is_covered: false,
            historic_sync_completed_at: None,
            last_message_at: None,
            is_self: false,
        };
        let report =
            RepoRelayReport { relay, seen_states: BTreeMap::new(), is_compared: false, lacking: None, problem: None };
        let summary = RepoSummary { state: Some((EventId([2; 32]), 1_700)), held_states: 1, held: 3, maintainers: 2 };
        let disk = RepoDiskUsage { refs: Some(4), bytes: Some(5_000) };
        let item = row(&repo_path, EventStatus::Served, &summary, Some(&vec![report]), disk);
        assert_eq!(
            serde_json::json!(item).to_string(),
            r#"{"bytes":5000,"held":3,"maintainers":2,"name":"tool","owner":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm","path":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm/tool.git","refs":4,"relays":{"complete":0,"named":1,"unknown":1},"state":"behind","state_at":1700,"state_event":"0202020202020202020202020202020202020202020202020202020202020202"}"#
        );
        let item = row(&repo_path, EventStatus::Held, &RepoSummary::default(), None, RepoDiskUsage::default());
        assert_eq!(
            serde_json::json!(item).to_string(),
            r#"{"bytes":null,"held":0,"maintainers":0,"name":"tool","owner":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm","path":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm/tool.git","refs":null,"relays":null,"state":"waiting","state_at":null,"state_event":null}"#
        );
    }
}
