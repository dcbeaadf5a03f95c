//! Reads inside the write transaction: lookups of admission, and views for the operator, pages, sync, fetch and
//! maintenance.
//!
//! Runs on the writer thread, so every read is bounded.

use std::collections::BTreeSet;

use grasp_core::admission::Admission;
use grasp_core::admission::io::{RepoLookup, RepoLookupResult, StoredEvent};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::admission::purgatory::{HeldEvent, HeldKind, SearchStatus};
use grasp_core::fetch::io::WantedGitData;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::kinds;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoPath, RepoRow, RepoState};
use grasp_core::sync::io::{RepoNeeds, Seq};
use grasp_core::time::Now;
use grasp_store::{StoreError, WriteTransaction};
use tracing::error;

use super::command::{HeldEventView, NeededEvents, RepoHeldEvent, RepoSummary, RepoView};
use crate::repos::ref_cache::RefCache;

/// Bytes of states that are read for one decision: a few very large ones, which take about thirty milliseconds.
const MAX_DECISION_BYTES: usize = 3 * 1024 * 1024;

/// Held events that a repository page shows, and their bytes.
const MAX_VIEW_EVENTS: usize = 200;
const MAX_VIEW_BYTES: usize = 2 * 1024 * 1024;

/// Held events in one page of the operator's list. The page also ends when its events exceed [`MAX_VIEW_BYTES`].
const MAX_PAGE_EVENTS: usize = 200;

/// States that are read for the maintenance of one pool, and their bytes: some tens of milliseconds of the writer's time. A
/// pool that is read by repositories with more states than this is not pruned.
const MAX_NEEDED_STATES: usize = 1_000;
const MAX_NEEDED_BYTES: usize = 4 * 1024 * 1024;

/// Answers a lookup of admission.
pub(crate) fn lookup_repo(
    policy: &AdmissionPolicy,
    txn: &WriteTransaction<'_>,
    ref_cache: &RefCache,
    lookup: &RepoLookup,
) -> Result<RepoLookupResult, StoreError> {
    let row = match txn.repo(&lookup.repo_path) {
        // Its refs are lost. They are set again from the signed state.
        Err(StoreError::Damaged(reason)) => {
            error!(target: "writer", repo = %lookup.repo_path, reason, "row of a repository is damaged");
            Some(RepoRow::damaged(reason))
        }
        row => row?,
    };
    let mut result = RepoLookupResult { exists: row.is_some(), ..RepoLookupResult::default() };
    result.has_folder = lookup.find_folder && (result.exists || ref_cache.has_folder(&lookup.repo_path));
    if let Some(row) = row {
        result.is_degraded = row.degraded.is_some();
        result.refs = row.refs;
    }
    if lookup.find_orphans {
        let named = result.refs.iter().filter_map(|(name, _)| name.strip_prefix("refs/nostr/"));
        for id in named.filter_map(EventId::from_hex) {
            if !txn.is_known(id)? {
                result.orphan_refs.push(id);
            }
        }
    }
    if lookup.measure_disk {
        result.disk_usage = ref_cache.disk_usage(&lookup.repo_path);
    }
    if let (Some(page), RepoPath::Announced(repo)) = (lookup.pull_requests, &lookup.repo_path) {
        (result.pull_requests, result.next_pull_request) = txn.pull_requests_for(repo, page)?;
    }
    let mut bytes = 0;
    for id in &lookup.events {
        // The best candidates come first; those beyond the limit are not read.
        if bytes > MAX_DECISION_BYTES {
            break;
        }
        if let Some((event, status)) = txn.event(*id)? {
            bytes += event.json().len();
            let lookups = txn.lookups(&event, policy.needed_lookups(&event))?;
            result.events.insert(*id, StoredEvent { event, status, lookups });
        }
    }
    Ok(result)
}

/// Returns the events that need objects in these repositories: all states that apply to them, and the pull requests
/// that are held for them. Served pull requests are not needed here because they have a ref; states are, because a
/// state that a newer one supersedes has none. Returns `None` if there are too many.
pub(crate) fn needed_events(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    repo_paths: &[RepoPath],
) -> Result<Option<NeededEvents>, StoreError> {
    let mut needed = NeededEvents { events: Vec::new(), tips: Vec::new() };
    let mut states = BTreeSet::new();
    for repo_path in repo_paths {
        states.extend(admission.states_for(repo_path).into_iter().map(|(id, _)| id));
        for (id, held) in admission.held_at(repo_path).into_iter().filter(|(_, held)| !held.is_dormant()) {
            match &held.kind {
                HeldKind::Announcement(_) => {}
                HeldKind::State(_) => drop(states.insert(id)),
                HeldKind::PullRequest(tip, _) => needed.tips.push(tip.clone()),
            }
        }
        if states.len() > MAX_NEEDED_STATES {
            return Ok(None);
        }
    }
    let mut bytes = 0;
    for id in states {
        if let Some((event, _)) = txn.event(id)? {
            bytes += event.json().len();
            needed.events.push(event);
        }
        if bytes > MAX_NEEDED_BYTES {
            return Ok(None);
        }
    }
    Ok(Some(needed))
}

/// Returns what sync needs to follow for an identifier.
pub(crate) fn repo_needs(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    identifier: &Identifier,
) -> Result<Vec<RepoNeeds>, StoreError> {
    let mut first_error = None;
    let needs = admission.repo_needs(identifier, |id| match txn.seq_of(id) {
        // An event without a sequence number is not served yet.
        Ok(seq) => seq.unwrap_or(Seq::MAX),
        Err(error) => {
            first_error = Some(error);
            Seq::MAX
        }
    });
    first_error.map_or(Ok(needs), Err)
}

/// Returns the git data that fetch should search for an identifier.
pub(crate) fn wanted_git_data(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    identifier: &Identifier,
) -> Result<Vec<WantedGitData>, StoreError> {
    let mut first_error = None;
    let mut bytes = 0;
    let wanted = admission.wanted_git_data(identifier, |id| match txn.event(id) {
        // A few very large ones are enough: the others follow when these are complete.
        Ok(Some((event, _))) if bytes < MAX_DECISION_BYTES => {
            bytes += event.json().len();
            Some(event)
        }
        Ok(_) => None,
        Err(error) => {
            first_error = Some(error);
            None
        }
    });
    first_error.map_or(Ok(wanted), Err)
}

/// Returns a page of held events in order of their ids, starting after `after`.
pub(crate) fn held_events(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    now: Now,
    after: Option<EventId>,
) -> Result<Vec<HeldEventView>, StoreError> {
    let mut page = Vec::new();
    let mut bytes = 0;
    for (id, held) in admission.purgatory().iter().filter(|(id, _)| after.is_none_or(|after| *id > after)) {
        if page.len() >= MAX_PAGE_EVENTS || bytes > MAX_VIEW_BYTES {
            break;
        }
        bytes += held.bytes;
        let event = txn.event(id)?.map(|(event, _)| event);
        let (kind, identifiers, repo_paths, needed_oids) = match &held.kind {
            HeldKind::Announcement(repo) => {
                (kinds::ANNOUNCEMENT, vec![&repo.identifier], vec![RepoPath::Announced(repo.clone())], Vec::new())
            }
            HeldKind::State(identifier) => {
                let state = event.as_deref().and_then(|event| RepoState::from_event(event));
                (kinds::STATE, vec![identifier], Vec::new(), state.map(|state| state.oids()).unwrap_or_default())
            }
            HeldKind::PullRequest(tip, repo_paths) => {
                let kind = event.as_ref().map_or(kinds::PULL_REQUEST, |event| event.kind);
                (kind, repo_paths.iter().map(RepoPath::identifier).collect(), repo_paths.clone(), vec![tip.clone()])
            }
        };
        let mut identifiers: Vec<String> =
            identifiers.into_iter().map(|identifier| identifier.as_str().to_owned()).collect();
        identifiers.dedup();
        page.push(HeldEventView {
            id,
            kind,
            author: held.author,
            identifiers,
            repo_paths,
            held_since: now.wall.0.saturating_sub(now.mono.since(held.since).as_secs()),
            expires_at: expires_at(held, now),
            is_dormant: held.is_dormant(),
            all_sources_tried: matches!(held.search, SearchStatus::Tried(_) | SearchStatus::Dormant),
            needed_oids,
        });
    }
    Ok(page)
}

/// Returns when a held event expires, in unix seconds.
fn expires_at(held: &HeldEvent, now: Now) -> u64 {
    now.wall.plus_secs(held.deadline.since(now.mono).as_secs()).0
}

/// Returns the operator's summary of a repository.
pub(crate) fn repo_summary(admission: &Admission, repo_path: &RepoPath) -> RepoSummary {
    let RepoPath::Announced(repo) = repo_path else { return RepoSummary::default() };
    let strict = admission.policy().strict_maintainers;
    let Some(group) = admission.catalog().group(&repo.identifier) else { return RepoSummary::default() };
    let states = group.states_for(repo.owner, strict);
    let served = states.iter().find(|(_, status)| *status == EventStatus::Served);
    RepoSummary {
        state: served.map(|(version, _)| (version.id, version.created_at.0)),
        held_states: states.iter().filter(|(_, status)| *status == EventStatus::Held).count(),
        held: admission.held_at(repo_path).into_iter().filter(|(_, held)| !held.is_dormant()).count(),
        maintainers: group.maintainers(repo.owner, strict).len(),
    }
}

/// Returns what the page of a repository shows.
pub(crate) fn repo_view(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    now: Now,
    repo_path: &RepoPath,
) -> Result<RepoView, StoreError> {
    let mut view = RepoView::default();
    if let RepoPath::Announced(repo) = repo_path {
        let group = admission.catalog().group(&repo.identifier);
        let newest = group.and_then(|group| group.newest_announcement(repo.owner));
        view.announcement = newest.map(|newest| txn.event(newest.version.id)).transpose()?.flatten();
        let strict = admission.policy().strict_maintainers;
        let maintainers = group.map(|group| group.maintainers(repo.owner, strict)).unwrap_or_default();
        view.maintainers = maintainers.iter().map(|key| key.npub()).collect();
    }
    let states = admission.states_for(repo_path);
    if let Some((id, _)) = states.into_iter().find(|(_, status)| *status == EventStatus::Served) {
        view.state = txn.event(id)?.map(|(event, _)| event);
    }
    let mut bytes = 0;
    for (id, held) in admission.held_at(repo_path).into_iter().take(MAX_VIEW_EVENTS) {
        // The event must be read to list the objects that it needs.
        bytes += held.bytes;
        if bytes > MAX_VIEW_BYTES {
            break;
        }
        let Some((event, _)) = txn.event(id)? else { continue };
        let needed_oids = match &held.kind {
            HeldKind::Announcement(_) => Vec::new(),
            HeldKind::State(_) => RepoState::from_event(&event).map(|state| state.oids()).unwrap_or_default(),
            HeldKind::PullRequest(tip, _) => vec![tip.clone()],
        };
        let (expires_at, is_dormant) = (expires_at(held, now), held.is_dormant());
        view.held_events.push(RepoHeldEvent { event, expires_at, is_dormant, needed_oids });
    }
    let uploads = admission.uploads().filter(|upload| upload.repo_path == *repo_path);
    view.uploads = uploads.map(|upload| (upload.event, upload.tip.clone(), upload.deadline.0)).collect();
    Ok(view)
}
