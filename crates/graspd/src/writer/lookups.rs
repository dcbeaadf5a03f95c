//! What the registrar asks inside a transaction, answered from the store and from the refs.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Admission;
use grasp_core::admission::io::{RepoLookup, RepoLookupResult, StoredEvent};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::admission::purgatory::{HeldEvent, HeldKind, SearchStatus};
use grasp_core::fetch::io::WantedGitData;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::kinds;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoPath, RepoState};
use grasp_core::sync::io::{RepoNeeds, Seq};
use grasp_core::time::Now;
use grasp_git::refs::Refs;
use grasp_store::{WriteTransaction, StoreError};
use tracing::warn;

use super::command::{Books, HeldEventView, Needed, RepoView, WaitingEvent};
use crate::repos::ref_cache::RefCache;

/// Bytes of states that are read for one decision: a few very large ones.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Waiting events that a page shows, and bytes of them: the writer reads them between two batches.
const MAX_SHOWN: usize = 200;
const MAX_SHOWN_BYTES: usize = 2 * 1024 * 1024;

/// Held events that the operator is told at a time. They are told in whole pages, whatever their size: a page ends when
/// its events have so many bytes.
const MAX_PAGE: usize = 200;

/// States that are read for maintenance of one pool, and their bytes: a tenth of a second of the desk's time. A pool with
/// more readers than this keeps what it has.
const MAX_NEEDED: usize = 1_000;
const MAX_NEEDED_BYTES: usize = 16 * 1024 * 1024;

/// Answers a question. `known` are refs that are newer than the directory's.
pub(crate) fn lookup_repo(
    rules: &AdmissionPolicy,
    txn: &WriteTransaction<'_>,
    directory: &RefCache,
    lookup: &RepoLookup,
    known: Option<(&Refs, bool)>,
) -> Result<RepoLookupResult, StoreError> {
    let mut result = RepoLookupResult::default();
    match known {
        Some((refs, exists)) => show(&mut result, refs, exists),
        None => match directory.snapshot(&lookup.repo_path) {
            Ok(snapshot) => show(&mut result, &snapshot.refs, snapshot.exists),
            Err(problem) => {
                warn!(repo = %lookup.repo_path, %problem, "cannot read the refs of a repository");
                result.is_failed = true;
            }
        },
    }
    if lookup.find_orphans {
        let pull_requests =
            result.refs.keys().filter_map(|name| name.strip_prefix("refs/nostr/")).filter_map(EventId::from_hex);
        for id in pull_requests {
            if !txn.is_known(id)? {
                result.orphan_refs.push(id);
            }
        }
    }
    if lookup.measure_disk {
        result.disk_usage = directory.weigh(&lookup.repo_path);
    }
    let mut bytes = 0;
    for id in &lookup.events {
        // The best come first; what does not fit is not looked at.
        if bytes > MAX_BYTES {
            break;
        }
        if let Some((event, status)) = txn.event(*id)? {
            bytes += event.json().len();
            let lookups = txn.lookups(&event, rules.needed_lookups(&event))?;
            result.events.insert(*id, StoredEvent { event, status, lookups });
        }
    }
    Ok(result)
}

fn show(result: &mut RepoLookupResult, refs: &Refs, exists: bool) {
    result.has_folder = exists;
    result.refs = refs.iter().map(|(name, target)| (name.to_owned(), target.oid.clone())).collect::<BTreeMap<_, _>>();
}

/// Events that need objects at sites: all states that speak for them and the pull requests that wait there. What is served
/// has its ref, but for a state that is not followed because a newer one is. Nothing if they are too many.
pub(crate) fn needed(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    repo_paths: &[RepoPath],
) -> Result<Option<Needed>, StoreError> {
    let mut needed = Needed { events: Vec::new(), tips: Vec::new() };
    let mut states = BTreeSet::new();
    for repo_path in repo_paths {
        states.extend(admission.states_for(repo_path).into_iter().map(|(id, _)| id));
        for (id, waiting) in admission.held_at(repo_path) {
            match &waiting.kind {
                HeldKind::Announcement(_) => {}
                HeldKind::State(_) => drop(states.insert(id)),
                HeldKind::PullRequest(tip, _) => needed.tips.push(tip.clone()),
            }
        }
        if states.len() > MAX_NEEDED {
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

/// What sync should follow under a name.
pub(crate) fn followed(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    identifier: &Identifier,
) -> Result<Vec<RepoNeeds>, StoreError> {
    let mut problem = None;
    let followed = admission.repo_needs(identifier, |id| match txn.seq_of(id) {
        // One that is not there has not arrived.
        Ok(seq) => seq.unwrap_or(Seq::MAX),
        Err(found) => {
            problem = Some(found);
            Seq::MAX
        }
    });
    problem.map_or(Ok(followed), Err)
}

/// What the hunt should look for under a name.
pub(crate) fn quarries(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    identifier: &Identifier,
) -> Result<Vec<WantedGitData>, StoreError> {
    let mut problem = None;
    let mut bytes = 0;
    let quarries = admission.wanted_git_data(identifier, |id| match txn.event(id) {
        // A few very large ones are enough: the others follow when these are found.
        Ok(Some((event, _))) if bytes < MAX_BYTES => {
            bytes += event.json().len();
            Some(event)
        }
        Ok(_) => None,
        Err(found) => {
            problem = Some(found);
            None
        }
    });
    problem.map_or(Ok(quarries), Err)
}

/// Events that wait, by id, after this one: a page.
pub(crate) fn held(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    now: Now,
    after: Option<EventId>,
) -> Result<Vec<HeldEventView>, StoreError> {
    let mut page = Vec::new();
    let mut bytes = 0;
    for (id, waiting) in admission.purgatory().iter().filter(|(id, _)| after.is_none_or(|after| *id > after)) {
        if page.len() >= MAX_PAGE || bytes > MAX_SHOWN_BYTES {
            break;
        }
        bytes += waiting.bytes;
        let event = txn.event(id)?.map(|(event, _)| event);
        let (kind, names, repo_paths, needs) = match &waiting.kind {
            HeldKind::Announcement(repo) => {
                (kinds::ANNOUNCEMENT, vec![&repo.identifier], vec![RepoPath::Announced(repo.clone())], Vec::new())
            }
            HeldKind::State(name) => {
                let state = event.as_deref().and_then(|event| RepoState::from_event(event));
                (kinds::STATE, vec![name], Vec::new(), state.map(|state| state.oids()).unwrap_or_default())
            }
            HeldKind::PullRequest(tip, repo_paths) => {
                let kind = event.as_ref().map_or(kinds::PULL_REQUEST, |event| event.kind);
                (kind, repo_paths.iter().map(RepoPath::identifier).collect(), repo_paths.clone(), vec![tip.clone()])
            }
        };
        let mut names: Vec<String> = names.into_iter().map(|name| name.as_str().to_owned()).collect();
        names.dedup();
        page.push(HeldEventView {
            id,
            kind,
            author: waiting.author,
            names,
            repo_paths,
            since: now.wall.0.saturating_sub(now.mono.since(waiting.since).as_secs()),
            expires_at: now.wall.plus_secs(waiting.deadline.since(now.mono).as_secs()).0,
            dormant: waiting.is_dormant(),
            tried: matches!(waiting.search, SearchStatus::Tried(_) | SearchStatus::Dormant),
            needs,
        });
    }
    Ok(page)
}

/// What is written of a site.
pub(crate) fn books(admission: &Admission, repo_path: &RepoPath) -> Books {
    let RepoPath::Announced(repo) = repo_path else { return Books::default() };
    let strict = admission.policy().strict_maintainers;
    let Some(group) = admission.catalog().group(&repo.identifier) else { return Books::default() };
    let states = group.states_for(repo.owner, strict);
    let served = states.iter().find(|(_, status)| *status == EventStatus::Served);
    Books {
        state: served.map(|(version, _)| (version.id, version.created_at.0)),
        held_states: states.iter().filter(|(_, status)| *status == EventStatus::Held).count(),
        held: admission.held_at(repo_path).len(),
        maintainers: group.maintainers(repo.owner, strict).len(),
    }
}

/// What pages tell about a site.
pub(crate) fn view(
    admission: &Admission,
    txn: &WriteTransaction<'_>,
    now: Now,
    repo_path: &RepoPath,
) -> Result<RepoView, StoreError> {
    let mut view = RepoView::default();
    let expires_at = |waiting: &HeldEvent| now.wall.plus_secs(waiting.deadline.since(now.mono).as_secs()).0;
    if let RepoPath::Announced(repo) = repo_path {
        let group = admission.catalog().group(&repo.identifier);
        let best = group.and_then(|group| group.newest_announcement(repo.owner));
        view.announcement = best.map(|best| txn.event(best.version.id)).transpose()?.flatten();
        let strict = admission.policy().strict_maintainers;
        let members = group.map(|group| group.maintainers(repo.owner, strict)).unwrap_or_default();
        view.maintainers = members.iter().map(|key| key.npub()).collect();
    }
    let states = admission.states_for(repo_path);
    if let Some((id, _)) = states.into_iter().find(|(_, status)| *status == EventStatus::Served) {
        view.state = txn.event(id)?.map(|(event, _)| event);
    }
    let mut bytes = 0;
    for (id, waiting) in admission.held_at(repo_path).into_iter().take(MAX_SHOWN) {
        // The text of an event is needed to say what it waits for; a few very large ones are enough.
        bytes += waiting.bytes;
        if bytes > MAX_SHOWN_BYTES {
            break;
        }
        let Some((event, _)) = txn.event(id)? else { continue };
        let needs = match &waiting.kind {
            HeldKind::Announcement(_) => Vec::new(),
            HeldKind::State(_) => RepoState::from_event(&event).map(|state| state.oids()).unwrap_or_default(),
            HeldKind::PullRequest(tip, _) => vec![tip.clone()],
        };
        view.waiting.push(WaitingEvent { event, expires_at: expires_at(waiting), needs });
    }
    let uploads = admission.uploads().filter(|upload| upload.repo_path == *repo_path);
    view.uploads = uploads.map(|upload| (upload.event, upload.tip.clone(), upload.deadline.0)).collect();
    Ok(view)
}
