//! `purgatory`: events that wait for git data; `purgatory_retry` and `purgatory_drop`.

use std::sync::Arc;

use grasp_core::fetch::{FetchView, JobView};
use grasp_core::nostr::EventId;
use grasp_core::repo::RepoPath;
use serde_json::{Value, json};

use super::repos::matches_name;
use super::wire::{AdminError, AdminRequest, ResponseWriter};
use super::{AdminState, writer_unavailable};
use crate::metrics::labels;
use crate::writer::command::HeldEventView;

/// Objects that are named of what one event needs.
const MAX_LISTED_OBJECTS: usize = 20;

/// Digits of an id that are enough to name an event, if only one begins with them.
const MIN_ID_DIGITS: usize = 6;

/// All events that wait, by id.
pub(super) async fn list(
    admin: &Arc<AdminState>,
    _: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let view = admin.status.hunt.as_ref().map(|views| views.borrow().clone());
    let now = admin.clock.wall().0;
    let (mut after, mut count) = (None, 0);
    loop {
        let page = admin.git.desk.held(after).await.ok_or_else(writer_unavailable)?;
        let Some(last) = page.last() else { return Ok(json!({ "held": count })) };
        after = Some(last.id);
        for held in &page {
            count += 1;
            writer.send_item(row(held, view.as_deref(), now)).await?;
        }
    }
}

/// Has git data looked for at once: for one event, for the repositories of a name, or for everything.
pub(super) async fn retry(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let arguments = request.arguments().await?;
    let (Some(views), Some(door)) = (&admin.status.hunt, &admin.hunt) else {
        return Err(super::relays::sync_disabled());
    };
    let view = views.borrow().clone();
    let repo_paths: Vec<RepoPath> = match arguments["what"].as_str() {
        None => view.jobs.iter().map(|job| job.repo_path.clone()).collect(),
        Some(what) => {
            let named = view.jobs.iter().filter(|job| matches_name(&job.repo_path, what));
            let mut repo_paths: Vec<RepoPath> = named.map(|job| job.repo_path.clone()).collect();
            if repo_paths.is_empty() {
                let held = find(admin, &writer, what).await?;
                repo_paths.extend(quarries(&held, &view).map(|job| job.repo_path.clone()));
            }
            repo_paths
        }
    };
    let count = repo_paths.len();
    door.hurry(repo_paths.clone())
        .await
        .ok_or_else(|| AdminError::new("busy", "the search is too busy to answer; try again"))?;
    Ok(json!({ "repositories": repo_paths.iter().map(RepoPath::path).collect::<Vec<_>>(), "count": count }))
}

/// Lets a held event go, for good as far as this server is concerned: nothing is remembered of it, and whoever has it may
/// offer it again.
pub(super) async fn drop_one(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let arguments = request.arguments().await?;
    let what = arguments["what"].as_str().unwrap_or_default();
    let held = find(admin, &writer, what).await?;
    if !admin.git.desk.drop_held(held.id).await.ok_or_else(writer_unavailable)? {
        return Err(not_found(what));
    }
    let view = admin.status.hunt.as_ref().map(|views| views.borrow().clone());
    Ok(json!({ "dropped": row(&held, view.as_deref(), admin.clock.wall().0) }))
}

/// The one held event whose id is this, or begins with it.
async fn find(admin: &Arc<AdminState>, writer: &ResponseWriter, what: &str) -> Result<HeldEventView, AdminError> {
    let is_id = what.len() >= MIN_ID_DIGITS && what.len() <= 64 && what.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_id {
        return Err(not_found(what));
    }
    let what = what.to_ascii_lowercase();
    let mut found: Option<HeldEventView> = None;
    let mut after: Option<EventId> = None;
    loop {
        writer.check_open()?;
        let page = admin.git.desk.held(after).await.ok_or_else(writer_unavailable)?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for held in page.into_iter().filter(|held| held.id.to_string().starts_with(&what)) {
            if found.replace(held).is_some() {
                let text = format!("more than one event that waits begins with {what}; give more of its digits");
                return Err(AdminError::new("ambiguous", text));
            }
        }
    }
    found.ok_or_else(|| not_found(&what))
}

fn not_found(what: &str) -> AdminError {
    let text = format!(
        "nothing that waits is called `{what}`: give the id of an event, or at least {MIN_ID_DIGITS} digits of it; `graspd \
         purgatory` lists them"
    );
    AdminError::new("not_found", text)
}

/// The searches that an event's git data belongs to.
fn quarries<'v>(held: &'v HeldEventView, view: &'v FetchView) -> impl Iterator<Item = &'v JobView> {
    view.jobs.iter().filter(|job| {
        // A state speaks for the repositories of a maintainer set; which site stands for them is the hunt's choice.
        if held.repo_paths.is_empty() {
            held.names.iter().any(|name| name == job.repo_path.identifier().as_str())
        } else {
            held.repo_paths.contains(&job.repo_path)
        }
    })
}

fn row(held: &HeldEventView, view: Option<&FetchView>, now: u64) -> Value {
    let job = view.and_then(|view| quarries(held, view).next());
    let kind = match held.kind {
        grasp_core::nostr::kinds::ANNOUNCEMENT => "announcement",
        grasp_core::nostr::kinds::STATE => "state",
        _ => "pull_request",
    };
    let search = job.map(|job| {
        let places = job.sources.iter().map(|stop| {
            json!({
                "url": stop.url, "asking": stop.is_asking, "waiting": stop.is_waiting,
                "outcome": stop.outcome.as_ref().map(labels::variant),
            })
        });
        json!({
            "repository": job.repo_path.path(), "rounds": job.attempts, "missing": job.missing,
            "examples": job.examples,
            "next_in_seconds": job.next_in_millis.map(|millis| millis.div_ceil(1_000)),
            "places": places.collect::<Vec<_>>(),
        })
    });
    json!({
        "id": held.id.to_string(),
        "kind": kind,
        "author": held.author.npub(),
        "names": held.names,
        "repositories": held.repo_paths.iter().map(RepoPath::path).collect::<Vec<_>>(),
        "since": held.since,
        "waited_seconds": now.saturating_sub(held.since),
        "expires_at": held.expires_at,
        "left_seconds": held.expires_at.saturating_sub(now),
        "dormant": held.dormant,
        "everybody_asked": held.tried,
        "needs": held.needs.len(),
        "objects": held.needs.iter().take(MAX_LISTED_OBJECTS).collect::<Vec<_>>(),
        "search": search,
    })
}
