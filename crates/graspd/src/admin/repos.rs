//! `repos`: repositories, with what is here of them and what is missing.

use std::sync::Arc;

use grasp_core::nostr::PublicKey;
use grasp_core::repo::Site;
use grasp_core::repo::catalog::Place;
use serde_json::{Value, json};

use super::Admin;
use super::wire::{Complaint, Request, Teller};
use crate::sync::status::Standing;
use crate::writer::command::Books;

/// Repositories that are looked at at a time: the desk and sync are asked for so many at once.
const PAGE: usize = 100;

/// Repositories by owner and name: those of `owner`, those of `name`, those of which something is `missing`, or all.
pub(super) async fn list(admin: &Arc<Admin>, request: Request, tell: Teller) -> Result<Value, Complaint> {
    let arguments = request.arguments().await?;
    let missing = arguments["missing"] == true;
    let owner = arguments["owner"].as_str().map(key).transpose()?;
    let name = arguments["name"].as_str();
    let mut sites = admin.house.git.directory.announced();
    sites.retain(|site| {
        owner.is_none_or(|owner| site.repo().owner == owner) && name.is_none_or(|name| is_named(site, name))
    });
    sites.sort_unstable();
    let mut shown = 0;
    for page in sites.chunks(PAGE) {
        let books = admin.house.git.desk.books(page.to_vec()).await.ok_or_else(super::cannot)?;
        let repos = page.iter().map(|site| site.repo().clone()).collect();
        let standings = match &admin.house.git.sync {
            Some(sync) => sync.ask_all(repos).await,
            None => None,
        };
        let on_disk = on_disk(admin, page).await;
        for (nth, (site, books)) in page.iter().zip(&books).enumerate() {
            let standings = standings.as_ref().and_then(|all| all.get(nth));
            let disk = on_disk.get(nth).copied().unwrap_or_default();
            let Some(open) = admin.house.git.directory.open(site) else { continue };
            let lacks = open.place == Place::Held || books.held > 0;
            if missing && !lacks {
                continue;
            }
            shown += 1;
            tell.item(row(site, open.place, books, standings, disk)).await?;
        }
    }
    Ok(json!({ "repositories": shown }))
}

/// What is on disk of a repository.
#[derive(Clone, Copy, Default)]
struct OnDisk {
    /// Its refs, if they can be read.
    refs: Option<usize>,
    /// Bytes of its own objects.
    bytes: Option<u64>,
}

async fn on_disk(admin: &Arc<Admin>, sites: &[Site]) -> Vec<OnDisk> {
    let (git, sites) = (admin.house.git.clone(), sites.to_vec());
    let look = move || {
        let one = |site: &Site| OnDisk {
            refs: git.directory.snapshot(site).ok().map(|snapshot| snapshot.refs.iter().count()),
            bytes: git.layout.pool_bytes(site).ok(),
        };
        sites.iter().map(one).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

fn row(site: &Site, place: Place, books: &Books, standings: Option<&Vec<Standing>>, disk: OnDisk) -> Value {
    let repo = site.repo();
    let state = match (place, &books.state, books.held_states) {
        (Place::Held, _, _) => "waiting",
        (Place::Served, None, 0) => "empty",
        (Place::Served, _, 1..) => "behind",
        (Place::Served, Some(_), 0) => "current",
    };
    let relays = standings.map(|standings| {
        let others: Vec<&Standing> = standings.iter().filter(|standing| !standing.link.is_self).collect();
        let has = |standing: &&&Standing| match books.state {
            Some((id, _)) => standing.seen.values().any(|seen| seen.id == id),
            None => standing.link.covered,
        };
        let unknown = |standing: &&&Standing| !has(standing) && !standing.compared && standing.seen.is_empty();
        let count = |which: &dyn Fn(&&&Standing) -> bool| others.iter().filter(|standing| which(standing)).count();
        json!({ "named": others.len(), "complete": count(&has), "unknown": count(&unknown) })
    });
    json!({
        "owner": repo.owner.npub(),
        "name": repo.identifier.as_str(),
        "path": site.path(),
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
pub(super) fn is_named(site: &Site, name: &str) -> bool {
    let path = site.path();
    site.identifier().as_str() == name || path == name || path.strip_suffix(".git") == Some(name)
}

fn key(text: &str) -> Result<PublicKey, Complaint> {
    PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text)).ok_or_else(|| {
        Complaint::new("bad_request", format!("`{text}` is no key: give it as npub1… or as 64 hex digits"))
    })
}
