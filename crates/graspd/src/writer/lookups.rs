//! What the registrar asks inside a transaction, answered from the store and from the refs.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Registrar;
use grasp_core::admission::io::{Found, Question, Told};
use grasp_core::admission::policy::Rules;
use grasp_core::admission::purgatory::{Search, Waiting, What};
use grasp_core::fetch::io::Quarry;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::kinds;
use grasp_core::repo::catalog::Place;
use grasp_core::repo::{Identifier, Site, State};
use grasp_core::sync::io::{Followed, Seq};
use grasp_core::time::Now;
use grasp_git::refs::Refs;
use grasp_store::{Batch, StoreError};
use tracing::warn;

use super::command::{Books, HeldEvent, Needed, SiteView, WaitingEvent};
use crate::git::ref_cache::Directory;

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
pub(crate) fn told(
    rules: &Rules,
    txn: &Batch<'_>,
    directory: &Directory,
    question: &Question,
    known: Option<(&Refs, bool)>,
) -> Result<Told, StoreError> {
    let mut told = Told::default();
    match known {
        Some((refs, exists)) => show(&mut told, refs, exists),
        None => match directory.snapshot(&question.site) {
            Ok(snapshot) => show(&mut told, &snapshot.refs, snapshot.exists),
            Err(problem) => {
                warn!(site = %question.site, %problem, "cannot read the refs of a repository");
                told.failed = true;
            }
        },
    }
    if question.strays {
        let pulls = told.refs.keys().filter_map(|name| name.strip_prefix("refs/nostr/")).filter_map(EventId::from_hex);
        for id in pulls {
            if !txn.is_known(id)? {
                told.strays.push(id);
            }
        }
    }
    if question.weigh {
        told.weight = directory.weigh(&question.site);
    }
    let mut bytes = 0;
    for id in &question.events {
        // The best come first; what does not fit is not looked at.
        if bytes > MAX_BYTES {
            break;
        }
        if let Some((event, place)) = txn.event(*id)? {
            bytes += event.json().len();
            let facts = txn.facts(&event, rules.questions(&event))?;
            told.events.insert(*id, Found { event, place, facts });
        }
    }
    Ok(told)
}

fn show(told: &mut Told, refs: &Refs, exists: bool) {
    told.exists = exists;
    told.refs = refs.iter().map(|(name, target)| (name.to_owned(), target.oid.clone())).collect::<BTreeMap<_, _>>();
}

/// Events that need objects at sites: all states that speak for them and the pull requests that wait there. What is served
/// has its ref, but for a state that is not followed because a newer one is. Nothing if they are too many.
pub(crate) fn needed(registrar: &Registrar, txn: &Batch<'_>, sites: &[Site]) -> Result<Option<Needed>, StoreError> {
    let mut needed = Needed { events: Vec::new(), tips: Vec::new() };
    let mut states = BTreeSet::new();
    for site in sites {
        states.extend(registrar.states_for(site).into_iter().map(|(id, _)| id));
        for (id, waiting) in registrar.waiting_at(site) {
            match &waiting.what {
                What::Announcement(_) => {}
                What::State(_) => drop(states.insert(id)),
                What::PullRequest(tip, _) => needed.tips.push(tip.clone()),
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
    registrar: &Registrar,
    txn: &Batch<'_>,
    identifier: &Identifier,
) -> Result<Vec<Followed>, StoreError> {
    let mut problem = None;
    let followed = registrar.followed(identifier, |id| match txn.seq_of(id) {
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
    registrar: &Registrar,
    txn: &Batch<'_>,
    identifier: &Identifier,
) -> Result<Vec<Quarry>, StoreError> {
    let mut problem = None;
    let mut bytes = 0;
    let quarries = registrar.quarries(identifier, |id| match txn.event(id) {
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
    registrar: &Registrar,
    txn: &Batch<'_>,
    now: Now,
    after: Option<EventId>,
) -> Result<Vec<HeldEvent>, StoreError> {
    let mut page = Vec::new();
    let mut bytes = 0;
    for (id, waiting) in registrar.purgatory().iter().filter(|(id, _)| after.is_none_or(|after| *id > after)) {
        if page.len() >= MAX_PAGE || bytes > MAX_SHOWN_BYTES {
            break;
        }
        bytes += waiting.bytes;
        let event = txn.event(id)?.map(|(event, _)| event);
        let (kind, names, sites, needs) = match &waiting.what {
            What::Announcement(repo) => {
                (kinds::ANNOUNCEMENT, vec![&repo.identifier], vec![Site::Announced(repo.clone())], Vec::new())
            }
            What::State(name) => {
                let state = event.as_deref().and_then(|event| State::read(event));
                (kinds::STATE, vec![name], Vec::new(), state.map(|state| state.oids()).unwrap_or_default())
            }
            What::PullRequest(tip, sites) => {
                let kind = event.as_ref().map_or(kinds::PULL_REQUEST, |event| event.kind);
                (kind, sites.iter().map(Site::identifier).collect(), sites.clone(), vec![tip.clone()])
            }
        };
        let mut names: Vec<String> = names.into_iter().map(|name| name.as_str().to_owned()).collect();
        names.dedup();
        page.push(HeldEvent {
            id,
            kind,
            author: waiting.author,
            names,
            sites,
            since: now.wall.0.saturating_sub(now.mono.since(waiting.since).as_secs()),
            expires_at: now.wall.plus_secs(waiting.deadline.since(now.mono).as_secs()).0,
            dormant: waiting.is_dormant(),
            tried: matches!(waiting.search, Search::Tried(_) | Search::Dormant),
            needs,
        });
    }
    Ok(page)
}

/// What is written of a site.
pub(crate) fn books(registrar: &Registrar, site: &Site) -> Books {
    let Site::Announced(repo) = site else { return Books::default() };
    let strict = registrar.rules().strict_maintainers;
    let Some(family) = registrar.catalog().family(&repo.identifier) else { return Books::default() };
    let states = family.states_for(repo.owner, strict);
    let served = states.iter().find(|(_, place)| *place == Place::Served);
    Books {
        state: served.map(|(stamp, _)| (stamp.id, stamp.created_at.0)),
        held_states: states.iter().filter(|(_, place)| *place == Place::Held).count(),
        held: registrar.waiting_at(site).len(),
        maintainers: family.maintainers(repo.owner, strict).len(),
    }
}

/// What pages tell about a site.
pub(crate) fn view(registrar: &Registrar, txn: &Batch<'_>, now: Now, site: &Site) -> Result<SiteView, StoreError> {
    let mut view = SiteView::default();
    let expires_at = |waiting: &Waiting| now.wall.plus_secs(waiting.deadline.since(now.mono).as_secs()).0;
    if let Site::Announced(repo) = site {
        let family = registrar.catalog().family(&repo.identifier);
        let best = family.and_then(|family| family.best(repo.owner));
        view.announcement = best.map(|best| txn.event(best.stamp.id)).transpose()?.flatten();
        let strict = registrar.rules().strict_maintainers;
        let members = family.map(|family| family.maintainers(repo.owner, strict)).unwrap_or_default();
        view.maintainers = members.iter().map(|key| key.npub()).collect();
    }
    let states = registrar.states_for(site);
    if let Some((id, _)) = states.into_iter().find(|(_, place)| *place == Place::Served) {
        view.state = txn.event(id)?.map(|(event, _)| event);
    }
    let mut bytes = 0;
    for (id, waiting) in registrar.waiting_at(site).into_iter().take(MAX_SHOWN) {
        // The text of an event is needed to say what it waits for; a few very large ones are enough.
        bytes += waiting.bytes;
        if bytes > MAX_SHOWN_BYTES {
            break;
        }
        let Some((event, _)) = txn.event(id)? else { continue };
        let needs = match &waiting.what {
            What::Announcement(_) => Vec::new(),
            What::State(_) => State::read(&event).map(|state| state.oids()).unwrap_or_default(),
            What::PullRequest(tip, _) => vec![tip.clone()],
        };
        view.waiting.push(WaitingEvent { event, expires_at: expires_at(waiting), needs });
    }
    let uploads = registrar.uploads().filter(|upload| upload.site == *site);
    view.uploads = uploads.map(|upload| (upload.event, upload.tip.clone(), upload.deadline.0)).collect();
    Ok(view)
}
