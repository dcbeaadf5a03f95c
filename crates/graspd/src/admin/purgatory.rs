//! `purgatory`: events that wait for git data; `purgatory_retry` and `purgatory_drop`.

use std::sync::Arc;

use grasp_core::fetch::{QuarryView, View};
use grasp_core::nostr::EventId;
use grasp_core::repo::Site;
use serde_json::{Value, json};

use super::repos::is_named;
use super::wire::{Complaint, Request, Teller};
use super::{Admin, cannot};
use crate::metrics::labels;
use crate::writer::command::HeldEvent;

/// Objects that are named of what one event needs.
const OIDS: usize = 20;

/// Digits of an id that are enough to name an event, if only one begins with them.
const DIGITS: usize = 6;

/// All events that wait, by id.
pub(super) async fn list(admin: &Arc<Admin>, _: Request, tell: Teller) -> Result<Value, Complaint> {
    let view = admin.house.status.hunt.as_ref().map(|views| views.borrow().clone());
    let now = admin.house.rooms.clock.wall().0;
    let (mut after, mut count) = (None, 0);
    loop {
        let page = admin.house.git.desk.held(after).await.ok_or_else(cannot)?;
        let Some(last) = page.last() else { return Ok(json!({ "held": count })) };
        after = Some(last.id);
        for held in &page {
            count += 1;
            tell.item(row(held, view.as_deref(), now)).await?;
        }
    }
}

/// Has git data looked for at once: for one event, for the repositories of a name, or for everything.
pub(super) async fn retry(admin: &Arc<Admin>, request: Request, tell: Teller) -> Result<Value, Complaint> {
    let arguments = request.arguments().await?;
    let (Some(views), Some(door)) = (&admin.house.status.hunt, &admin.hunt) else { return Err(super::relays::off()) };
    let view = views.borrow().clone();
    let sites: Vec<Site> = match arguments["what"].as_str() {
        None => view.quarries.iter().map(|quarry| quarry.site.clone()).collect(),
        Some(what) => {
            let named = view.quarries.iter().filter(|quarry| is_named(&quarry.site, what));
            let mut sites: Vec<Site> = named.map(|quarry| quarry.site.clone()).collect();
            if sites.is_empty() {
                let held = find(admin, &tell, what).await?;
                sites.extend(quarries(&held, &view).map(|quarry| quarry.site.clone()));
            }
            sites
        }
    };
    let count = sites.len();
    door.hurry(sites.clone())
        .await
        .ok_or_else(|| Complaint::new("busy", "the search is too busy to answer; try again"))?;
    Ok(json!({ "repositories": sites.iter().map(Site::path).collect::<Vec<_>>(), "count": count }))
}

/// Lets a held event go, for good as far as this server is concerned: nothing is remembered of it, and whoever has it may
/// offer it again.
pub(super) async fn drop_one(admin: &Arc<Admin>, request: Request, tell: Teller) -> Result<Value, Complaint> {
    let arguments = request.arguments().await?;
    let what = arguments["what"].as_str().unwrap_or_default();
    let held = find(admin, &tell, what).await?;
    if !admin.house.git.desk.drop_held(held.id).await.ok_or_else(cannot)? {
        return Err(not_found(what));
    }
    let view = admin.house.status.hunt.as_ref().map(|views| views.borrow().clone());
    Ok(json!({ "dropped": row(&held, view.as_deref(), admin.house.rooms.clock.wall().0) }))
}

/// The one held event whose id is this, or begins with it.
async fn find(admin: &Arc<Admin>, tell: &Teller, what: &str) -> Result<HeldEvent, Complaint> {
    let is_id = what.len() >= DIGITS && what.len() <= 64 && what.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_id {
        return Err(not_found(what));
    }
    let what = what.to_ascii_lowercase();
    let mut found: Option<HeldEvent> = None;
    let mut after: Option<EventId> = None;
    loop {
        tell.is_wanted()?;
        let page = admin.house.git.desk.held(after).await.ok_or_else(cannot)?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for held in page.into_iter().filter(|held| held.id.to_string().starts_with(&what)) {
            if found.replace(held).is_some() {
                let text = format!("more than one event that waits begins with {what}; give more of its digits");
                return Err(Complaint::new("ambiguous", text));
            }
        }
    }
    found.ok_or_else(|| not_found(&what))
}

fn not_found(what: &str) -> Complaint {
    let text = format!(
        "nothing that waits is called `{what}`: give the id of an event, or at least {DIGITS} digits of it; `graspd \
         purgatory` lists them"
    );
    Complaint::new("not_found", text)
}

/// The searches that an event's git data belongs to.
fn quarries<'v>(held: &'v HeldEvent, view: &'v View) -> impl Iterator<Item = &'v QuarryView> {
    view.quarries.iter().filter(|quarry| {
        // A state speaks for the repositories of a maintainer set; which site stands for them is the hunt's choice.
        if held.sites.is_empty() {
            held.names.iter().any(|name| name == quarry.site.identifier().as_str())
        } else {
            held.sites.contains(&quarry.site)
        }
    })
}

fn row(held: &HeldEvent, view: Option<&View>, now: u64) -> Value {
    let quarry = view.and_then(|view| quarries(held, view).next());
    let kind = match held.kind {
        grasp_core::nostr::kinds::ANNOUNCEMENT => "announcement",
        grasp_core::nostr::kinds::STATE => "state",
        _ => "pull_request",
    };
    let search = quarry.map(|quarry| {
        let places = quarry.stops.iter().map(|stop| {
            json!({
                "url": stop.url, "asking": stop.asking, "waiting": stop.waiting,
                "outcome": stop.outcome.as_ref().map(labels::variant),
            })
        });
        json!({
            "repository": quarry.site.path(), "rounds": quarry.attempts, "missing": quarry.missing,
            "examples": quarry.examples,
            "next_in_seconds": quarry.next_in_millis.map(|millis| millis.div_ceil(1_000)),
            "places": places.collect::<Vec<_>>(),
        })
    });
    json!({
        "id": held.id.to_string(),
        "kind": kind,
        "author": held.author.npub(),
        "names": held.names,
        "repositories": held.sites.iter().map(Site::path).collect::<Vec<_>>(),
        "since": held.since,
        "waited_seconds": now.saturating_sub(held.since),
        "expires_at": held.expires_at,
        "left_seconds": held.expires_at.saturating_sub(now),
        "dormant": held.dormant,
        "everybody_asked": held.tried,
        "needs": held.needs.len(),
        "objects": held.needs.iter().take(OIDS).collect::<Vec<_>>(),
        "search": search,
    })
}
