//! `purgatory` lists the events that wait for git data; `purgatory_retry` fetches it now; `purgatory_drop` drops an
//! event.

use std::sync::Arc;

use grasp_core::fetch::{FetchView, JobView};
use grasp_core::nostr::EventId;
use grasp_core::repo::RepoPath;

use super::api::{DropResult, ErrorCode, FetchItem, FetchSource, HeldCount, HeldItem, HeldRequest, RetryResult};
use super::repos::matches_name;
use super::wire::{AdminError, ResponseWriter};
use super::{AdminState, writer_unavailable};
use crate::writer::command::HeldEventView;

/// Maximum number of listed objects that one event needs.
const MAX_LISTED_OBJECTS: usize = 20;

/// Minimum number of digits by which an event can be named, if they are unique.
const MIN_ID_DIGITS: usize = 6;

/// Lists all held events by id.
pub(super) async fn list(admin: &AdminState, writer: ResponseWriter<HeldItem>) -> Result<HeldCount, AdminError> {
    let view = fetch_view(admin);
    let now = admin.clock.wall().0;
    let (mut after, mut held) = (None, 0);
    loop {
        let page = admin.event_queue.held_events(after).await.ok_or_else(writer_unavailable)?;
        let Some(last) = page.last() else { return Ok(HeldCount { held }) };
        after = Some(last.id);
        for event in &page {
            held += 1;
            writer.send_item(&held_item(event, view.as_deref(), now)).await?;
        }
    }
}

fn fetch_view(admin: &AdminState) -> Option<Arc<FetchView>> {
    admin.status.fetch.as_ref().map(|views| views.borrow().clone())
}

/// Fetches missing git data now: for one event, for the repositories of a name, or for all.
pub(super) async fn retry(
    admin: &AdminState,
    request: HeldRequest,
    writer: ResponseWriter,
) -> Result<RetryResult, AdminError> {
    let (Some(view), Some(fetch_handle)) = (fetch_view(admin), &admin.fetch) else {
        return Err(super::relays::sync_disabled());
    };
    let repo_paths: Vec<RepoPath> = match request.what.as_deref() {
        None => view.jobs.iter().map(|job| job.repo_path.clone()).collect(),
        Some(what) => {
            let named = view.jobs.iter().filter(|job| matches_name(&job.repo_path, what));
            let mut repo_paths: Vec<RepoPath> = named.map(|job| job.repo_path.clone()).collect();
            if repo_paths.is_empty() {
                let held = find(admin, &writer, what).await?;
                repo_paths.extend(fetch_jobs(&held, &view).map(|job| job.repo_path.clone()));
            }
            repo_paths
        }
    };
    let repositories: Vec<String> = repo_paths.iter().map(RepoPath::path).collect();
    let count = repositories.len();
    let busy = || AdminError::new(ErrorCode::Busy, "the fetch queue did not respond; try again");
    fetch_handle.fetch_now(repo_paths).await.ok_or_else(busy)?;
    Ok(RetryResult { repositories, count })
}

/// Drops a held event. The server does not remember it, so it can be published again.
pub(super) async fn drop_one(
    admin: &AdminState,
    request: HeldRequest,
    writer: ResponseWriter,
) -> Result<DropResult, AdminError> {
    let what = request.what.unwrap_or_default();
    let held = find(admin, &writer, &what).await?;
    if !admin.event_queue.drop_held(held.id).await.ok_or_else(writer_unavailable)? {
        return Err(not_found(&what));
    }
    Ok(DropResult { dropped: held_item(&held, fetch_view(admin).as_deref(), admin.clock.wall().0) })
}

/// Returns the held event with this id, or whose id begins with these digits.
async fn find(admin: &AdminState, writer: &ResponseWriter, what: &str) -> Result<HeldEventView, AdminError> {
    let is_id = what.len() >= MIN_ID_DIGITS && what.len() <= 64 && what.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_id {
        return Err(not_found(what));
    }
    let what = what.to_ascii_lowercase();
    let mut found: Option<HeldEventView> = None;
    let mut after: Option<EventId> = None;
    loop {
        writer.check_open()?;
        let page = admin.event_queue.held_events(after).await.ok_or_else(writer_unavailable)?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for held in page.into_iter().filter(|held| held.id.to_string().starts_with(&what)) {
            if found.replace(held).is_some() {
                let text = format!("several held events begin with {what}; give more digits");
                return Err(AdminError::new(ErrorCode::Ambiguous, text));
            }
        }
    }
    found.ok_or_else(|| not_found(&what))
}

fn not_found(what: &str) -> AdminError {
    let text = format!(
        "no held event or repository matches `{what}`: give the id of an event, or at least its first {MIN_ID_DIGITS} \
         digits; see `graspd purgatory`"
    );
    AdminError::new(ErrorCode::NotFound, text)
}

/// Returns the fetch jobs for the git data of an event.
fn fetch_jobs<'v>(held: &'v HeldEventView, view: &'v FetchView) -> impl Iterator<Item = &'v JobView> {
    view.jobs.iter().filter(|job| {
        // A state belongs to all repositories of a maintainer set; the fetch job is listed under one of them.
        if held.repo_paths.is_empty() {
            held.identifiers.iter().any(|name| name == job.repo_path.identifier().as_str())
        } else {
            held.repo_paths.contains(&job.repo_path)
        }
    })
}

fn held_item(held: &HeldEventView, view: Option<&FetchView>, now: u64) -> HeldItem {
    let kind = match held.kind {
        grasp_core::nostr::kinds::ANNOUNCEMENT => "announcement",
        grasp_core::nostr::kinds::STATE => "state",
        _ => "pull_request",
    };
    HeldItem {
        id: held.id.to_string(),
        kind: kind.to_owned(),
        author: held.author.npub(),
        names: held.identifiers.clone(),
        repositories: held.repo_paths.iter().map(RepoPath::path).collect(),
        since: held.held_since,
        waited_seconds: now.saturating_sub(held.held_since),
        expires_at: held.expires_at,
        left_seconds: held.expires_at.saturating_sub(now),
        dormant: held.is_dormant,
        all_sources_asked: held.all_sources_tried,
        needs: held.needed_oids.len(),
        objects: held.needed_oids.iter().take(MAX_LISTED_OBJECTS).cloned().collect(),
        search: view.and_then(|view| fetch_jobs(held, view).next()).map(fetch_item),
    }
}

fn fetch_item(job: &JobView) -> FetchItem {
    let sources = job.sources.iter().map(|source| FetchSource {
        url: source.url.clone(),
        asking: source.is_asking,
        waiting: source.is_waiting,
        outcome: source.outcome.as_ref().map(|outcome| outcome.label().to_owned()),
    });
    FetchItem {
        repository: job.repo_path.path(),
        rounds: job.attempts,
        missing: job.missing,
        examples: job.examples.clone(),
        next_in_seconds: job.next_in_millis.map(|millis| millis.div_ceil(1_000)),
        sources: sources.collect(),
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::fetch::{SourceOutcome, SourceView};
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId};

    use super::*;

    /// The keys and values are part of the interface: users read `graspd purgatory --json`.
    #[test]
    fn json_of_a_held_event_is_stable() {
        let identifier = Identifier::new("tool").expect("an identifier");
        let repo_path = RepoPath::Announced(RepoId { owner: PublicKey([1; 32]), identifier });
        let held = HeldEventView {
            id: EventId([3; 32]),
            kind: grasp_core::nostr::kinds::STATE,
            author: PublicKey([1; 32]),
            identifiers: vec!["tool".to_owned()],
            repo_paths: Vec::new(),
            held_since: 1_000,
            expires_at: 3_000,
            is_dormant: false,
            all_sources_tried: true,
            needed_oids: vec!["aa".to_owned(), "bb".to_owned()],
        };
        let source = SourceView {
            url: "https://git.example/tool.git".to_owned(),
            is_asking: false,
            is_waiting: true,
            outcome: Some(SourceOutcome::NotByOid),
        };
        let job = JobView {
            repo_path: repo_path.clone(),
            events: (1, 0),
            missing: 2,
            examples: vec!["aa".to_owned()],
            attempts: 4,
            next_in_millis: Some(1_001),
            sources: vec![source],
        };
        let view = FetchView { jobs: vec![job], ..FetchView::default() };
        assert_eq!(
            serde_json::json!(held_item(&held, Some(&view), 1_500)).to_string(),
            r#"{"all_sources_asked":true,"author":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm","dormant":false,"expires_at":3000,"id":"0303030303030303030303030303030303030303030303030303030303030303","kind":"state","left_seconds":1500,"names":["tool"],"needs":2,"objects":["aa","bb"],"repositories":[],"search":{"examples":["aa"],"missing":2,"next_in_seconds":2,"repository":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm/tool.git","rounds":4,"sources":[{"asking":false,"outcome":"not_by_oid","url":"https://git.example/tool.git","waiting":true}]},"since":1000,"waited_seconds":500}"#
        );
        let pull_request = HeldEventView {
            kind: 1618,
            repo_paths: vec![repo_path],
            needed_oids: Vec::new(),
            is_dormant: true,
            ..held
        };
        assert_eq!(
            serde_json::json!(held_item(&pull_request, None, 4_000)).to_string(),
            r#"{"all_sources_asked":true,"author":"npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm","dormant":true,"expires_at":3000,"id":"0303030303030303030303030303030303030303030303030303030303030303","kind":"pull_request","left_seconds":0,"names":["tool"],"needs":0,"objects":[],"repositories":["npub1qyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqszqgpqyqs8j9gdm/tool.git"],"search":null,"since":1000,"waited_seconds":3000}"#
        );
    }
}
