//! `relays` and what the operator can want of one: `relay_retry`, `relay_pause`, `relay_resume`, `relay_forget`; and `sync`,
//! which reconciles everything with a relay and waits for it.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::sync::io::{Order, Via};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::sync::{LinkView, relay};
use serde_json::{Value, json};

use super::Admin;
use super::wire::{Complaint, Request, Teller};
use crate::config::nearest_of;
use crate::sync::status::{Known, Look, SyncDoor};
use crate::web::status::format::ordered;
use crate::web::status::json;

/// How often somebody who waits for a relay looks how it goes.
const LOOK: Duration = Duration::from_millis(200);

/// All relays, those first that were configured or that many repositories name.
pub(super) async fn list(admin: &Arc<Admin>, _: Request, tell: Teller) -> Result<Value, Complaint> {
    let Some(pictures) = &admin.house.status.sync else { return Err(off()) };
    let picture = pictures.borrow().clone();
    let now = admin.house.rooms.clock.wall().0;
    for link in ordered(&picture.view) {
        tell.item(json::relay(link, picture.why.get(&link.url), now)).await?;
    }
    Ok(json!({ "relays": picture.view.links.len() }))
}

/// Gives an order.
pub(super) async fn order(
    admin: &Arc<Admin>,
    request: Request,
    make: fn(RelayUrl) -> Order,
) -> Result<Value, Complaint> {
    let url = relay(&request.arguments().await?)?;
    let sync = door(admin)?;
    let order = make(url.clone());
    let is_for_followed = matches!(order, Order::Retry(_));
    let known = sync.order(order).await.ok_or_else(busy)?;
    match known {
        Known::Followed(_) => {
            // What has become of it.
            let look = sync.look(url.clone()).await.flatten();
            let now = admin.house.rooms.clock.wall().0;
            let relay = look.map(|look| json::relay(&look.link, look.why.as_ref(), now));
            Ok(json!({ "url": url.to_string(), "relay": relay }))
        }
        Known::Remembered if is_for_followed => Err(Complaint::new(
            "not_followed",
            format!("no repository here names {url} any more, so that nobody listens to it"),
        )),
        Known::Remembered => Ok(json!({ "url": url.to_string(), "relay": null })),
        Known::Not => Err(unknown(admin, &url)),
    }
}

/// Reconciles everything with a relay, and follows that to its end. When the client hangs up it goes on.
pub(super) async fn reconcile(admin: &Arc<Admin>, request: Request, tell: Teller) -> Result<Value, Complaint> {
    let url = relay(&request.arguments().await?)?;
    let sync = door(admin)?;
    let Some(look) = sync.look(url.clone()).await.ok_or_else(busy)? else { return Err(unknown(admin, &url)) };
    if look.link.is_self {
        return Err(Complaint::new("is_self", format!("{url} is this server under another name")));
    }
    if look.link.paused {
        return Err(Complaint::new("paused", format!("{url} is paused; `graspd relays resume {url}` ends that")));
    }
    let Some(Known::Followed(before)) = sync.order(Order::Reconcile(url.clone())).await else { return Err(busy()) };
    if before.link.status == relay::Status::Disconnected {
        sync.order(Order::Retry(url.clone())).await.ok_or_else(busy)?;
    }
    // One that asks for everything and is under way began before; another follows it.
    let is_full = |way: grasp_core::sync::Progress| before.course.full || way.via == Via::Daily;
    let wanted = before.course.passes + 1 + u64::from(before.link.under_way.is_some_and(is_full));
    let mut shown = None;
    loop {
        let Some(look) = sync.look(url.clone()).await.ok_or_else(busy)? else { return Err(unknown(admin, &url)) };
        if look.course.passes >= wanted {
            return ended(&url, &look);
        }
        if look.course.troubles > before.course.troubles {
            return Err(failed(&url, &look));
        }
        let step = step(&look.link);
        if shown.as_ref() != Some(&step) {
            let (what, done, total) = &step;
            tell.progress(what, *done, *total).await?;
            shown = Some(step);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            gone = tell.unwanted() => return Err(gone.into()),
        }
    }
}

/// How far it is, in words and numbers.
fn step(link: &LinkView) -> (String, u64, Option<u64>) {
    let requests = link.queued + link.subscriptions.1;
    match (link.quiet_secs, link.under_way) {
        (Some(secs), _) => (format!("it wants less of us; left in peace for {secs} s"), 0, None),
        (None, Some(way)) => {
            let what = match way.via {
                Via::Daily => "comparing repositories",
                Via::CatchUp | Via::Live => "catching up with repositories",
            };
            let events = if way.events == 0 { String::new() } else { format!(", {} new events", way.events) };
            let what = format!("{what} ({requests} requests to go{events})");
            (what, way.done as u64, Some(way.total as u64))
        }
        (None, None) if link.status == relay::Status::Connecting => ("connecting".to_owned(), 0, None),
        (None, None) => ("waiting for its turn".to_owned(), 0, None),
    }
}

fn ended(url: &RelayUrl, look: &Look) -> Result<Value, Complaint> {
    let (events, whole) = look.course.last;
    if whole {
        return Ok(json!({
            "url": url.to_string(), "events": events, "repositories": look.link.repositories,
            "compared": look.link.totals.compared, "shared": look.link.totals.shared,
        }));
    }
    let why = look.why.as_ref().map_or("the relay did not give it", |why| &why.text);
    Err(Complaint::new("incomplete", format!("{events} new events came from {url}, but not everything: {why}")))
}

fn failed(url: &RelayUrl, look: &Look) -> Complaint {
    let why = look.why.as_ref().map_or("nobody knows why", |why| &why.text);
    Complaint::new("relay_failed", format!("{url}: {why}; it goes on when the relay is back"))
}

fn relay(arguments: &Value) -> Result<RelayUrl, Complaint> {
    let text = arguments["relay"].as_str().unwrap_or_default();
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("wss://{text}") };
    RelayUrl::parse(&with_scheme).ok_or_else(|| {
        Complaint::new("bad_request", format!("`{text}` is not the URL of a relay, such as wss://relay.example"))
    })
}

fn door(admin: &Admin) -> Result<&SyncDoor, Complaint> {
    admin.house.git.sync.as_ref().ok_or_else(off)
}

fn unknown(admin: &Admin, url: &RelayUrl) -> Complaint {
    let picture = admin.house.status.sync.as_ref().map(|pictures| pictures.borrow().clone());
    let known: Vec<String> =
        picture.iter().flat_map(|picture| &picture.view.links).map(|link| link.url.to_string()).collect();
    let near = nearest_of(&url.to_string(), known.iter().map(String::as_str));
    let hint = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "`graspd relays` lists those that are known".to_owned(),
    };
    Complaint::new("not_found", format!("{url} is not known here: no repository and no setting names it; {hint}"))
}

pub(super) fn off() -> Complaint {
    Complaint::new("sync_off", "other servers are not followed: SYNC_ENABLE is false")
}

fn busy() -> Complaint {
    Complaint::new("busy", "sync is too busy to answer, or nothing can be written; `graspd status` may say more")
}
