//! `repos`: repositories, with what is here of them and what is missing.

use std::sync::Arc;

use grasp_core::nostr::PublicKey;
use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;
use serde_json::{Value, json};

use super::AdminState;
use super::wire::{AdminError, AdminRequest, ResponseWriter};
use crate::sync::status::Standing;
use crate::writer::command::Books;

/// Repositories that are looked at at a time: the desk and sync are asked for so many at once.
const PAGE_SIZE: usize = 100;

/// Repositories by owner and name: those of `owner`, those of `name`, those of which something is `missing`, or all.
pub(super) async fn list(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let arguments = request.arguments().await?;
    let missing = arguments["missing"] == true;
    let owner = arguments["owner"].as_str().map(parse_key).transpose()?;
    let name = arguments["name"].as_str();
    let mut repo_paths = admin.git.directory.announced();
    repo_paths.retain(|repo_path| {
        owner.is_none_or(|owner| repo_path.repo().owner == owner)
            && name.is_none_or(|name| matches_name(repo_path, name))
    });
    repo_paths.sort_unstable();
    let mut shown = 0;
    for page in repo_paths.chunks(PAGE_SIZE) {
        let books = admin.git.desk.books(page.to_vec()).await.ok_or_else(super::writer_unavailable)?;
        let repos = page.iter().map(|repo_path| repo_path.repo().clone()).collect();
        let standings = match &admin.sync {
            Some(sync) => sync.ask_all(repos).await,
            None => None,
        };
        let disk_usage = disk_usage(admin, page).await;
        for (nth, (repo_path, books)) in page.iter().zip(&books).enumerate() {
            let standings = standings.as_ref().and_then(|all| all.get(nth));
            let disk = disk_usage.get(nth).copied().unwrap_or_default();
            let Some(open) = admin.git.directory.open(repo_path) else { continue };
            let lacks = open.status == EventStatus::Held || books.held > 0;
            if missing && !lacks {
                continue;
            }
            shown += 1;
            writer.send_item(row(repo_path, open.status, books, standings, disk)).await?;
        }
    }
    Ok(json!({ "repositories": shown }))
}

/// What is on disk of a repository.
#[derive(Clone, Copy, Default)]
struct RepoDiskUsage {
    /// Its refs, if they can be read.
    refs: Option<usize>,
    /// Bytes of its own objects.
    bytes: Option<u64>,
}

async fn disk_usage(admin: &Arc<AdminState>, repo_paths: &[RepoPath]) -> Vec<RepoDiskUsage> {
    let (git, repo_paths) = (admin.git.clone(), repo_paths.to_vec());
    let look = move || {
        let one = |repo_path: &RepoPath| RepoDiskUsage {
            refs: git.directory.snapshot(repo_path).ok().map(|snapshot| snapshot.refs.iter().count()),
            bytes: git.layout.pool_bytes(repo_path).ok(),
        };
        repo_paths.iter().map(one).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

fn row(
    repo_path: &RepoPath,
    status: EventStatus,
    books: &Books,
    standings: Option<&Vec<Standing>>,
    disk: RepoDiskUsage,
) -> Value {
    let repo = repo_path.repo();
    let state = match (status, &books.state, books.held_states) {
        (EventStatus::Held, _, _) => "waiting",
        (EventStatus::Served, None, 0) => "empty",
        (EventStatus::Served, _, 1..) => "behind",
        (EventStatus::Served, Some(_), 0) => "current",
    };
    let relays = standings.map(|standings| {
        let others: Vec<&Standing> = standings.iter().filter(|standing| !standing.link.is_self).collect();
        let has = |standing: &&&Standing| match books.state {
            Some((id, _)) => standing.seen.values().any(|seen| seen.id == id),
            None => standing.link.is_covered,
        };
        let unknown = |standing: &&&Standing| !has(standing) && !standing.compared && standing.seen.is_empty();
        let count = |which: &dyn Fn(&&&Standing) -> bool| others.iter().filter(|standing| which(standing)).count();
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

/// Whether a name means a site: its identifier, or its path.
pub(super) fn matches_name(repo_path: &RepoPath, name: &str) -> bool {
    let path = repo_path.path();
    repo_path.identifier().as_str() == name || path == name || path.strip_suffix(".git") == Some(name)
}

fn parse_key(text: &str) -> Result<PublicKey, AdminError> {
    PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text)).ok_or_else(|| {
        AdminError::new("bad_request", format!("`{text}` is no key: give it as npub1… or as 64 hex digits"))
    })
}
