//! `relays` and what the operator can want of one: `relay_retry`, `relay_pause`, `relay_resume`, `relay_forget`; and `sync`,
//! which reconciles everything with a relay and waits for it.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::sync::io::{RelayCommand, SyncSource};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::sync::{RelaySnapshot, relay};
use serde_json::{Value, json};

use super::AdminState;
use super::wire::{AdminError, AdminRequest, ResponseWriter};
use crate::config::nearest_name;
use crate::sync::status::{Known, Look, SyncHandle};
use crate::web::status::format::ordered;
use crate::web::status::json;

/// How often somebody who waits for a relay looks how it goes.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// All relays, those first that were configured or that many repositories name.
pub(super) async fn list(
    admin: &Arc<AdminState>,
    _: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let Some(pictures) = &admin.status.sync else { return Err(sync_disabled()) };
    let picture = pictures.borrow().clone();
    let now = admin.clock.wall().0;
    for link in ordered(&picture.view) {
        writer.send_item(json::relay(link, picture.why.get(&link.url), now)).await?;
    }
    Ok(json!({ "relays": picture.view.relays.len() }))
}

/// Gives an order.
pub(super) async fn order(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    make: fn(RelayUrl) -> RelayCommand,
) -> Result<Value, AdminError> {
    let url = relay_argument(&request.arguments().await?)?;
    let sync = sync_handle(admin)?;
    let order = make(url.clone());
    let is_for_followed = matches!(order, RelayCommand::Retry(_));
    let known = sync.order(order).await.ok_or_else(sync_unavailable)?;
    match known {
        Known::Followed(_) => {
            // What has become of it.
            let look = sync.look(url.clone()).await.flatten();
            let now = admin.clock.wall().0;
            let relay = look.map(|look| json::relay(&look.link, look.why.as_ref(), now));
            Ok(json!({ "url": url.to_string(), "relay": relay }))
        }
        Known::Remembered if is_for_followed => Err(AdminError::new(
            "not_followed",
            format!("no repository here names {url} any more, so that nobody listens to it"),
        )),
        Known::Remembered => Ok(json!({ "url": url.to_string(), "relay": null })),
        Known::Not => Err(unknown_relay(admin, &url)),
    }
}

/// Reconciles everything with a relay, and follows that to its end. When the client hangs up it goes on.
pub(super) async fn reconcile(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let url = relay_argument(&request.arguments().await?)?;
    let sync = sync_handle(admin)?;
    let Some(look) = sync.look(url.clone()).await.ok_or_else(sync_unavailable)? else {
        return Err(unknown_relay(admin, &url));
    };
    if look.link.is_self {
        return Err(AdminError::new("is_self", format!("{url} is this server under another name")));
    }
    if look.link.is_paused {
        return Err(AdminError::new("paused", format!("{url} is paused; `graspd relays resume {url}` ends that")));
    }
    let Some(Known::Followed(before)) = sync.order(RelayCommand::Reconcile(url.clone())).await else {
        return Err(sync_unavailable());
    };
    if before.link.status == relay::ConnectionStatus::Disconnected {
        sync.order(RelayCommand::Retry(url.clone())).await.ok_or_else(sync_unavailable)?;
    }
    // One that asks for everything and is under way began before; another follows it.
    let is_full = |way: grasp_core::sync::CatchUpProgress| before.course.full || way.source == SyncSource::Daily;
    let wanted = before.course.passes + 1 + u64::from(before.link.progress.is_some_and(is_full));
    let mut shown = None;
    loop {
        let Some(look) = sync.look(url.clone()).await.ok_or_else(sync_unavailable)? else {
            return Err(unknown_relay(admin, &url));
        };
        if look.course.passes >= wanted {
            return reconcile_result(&url, &look);
        }
        if look.course.troubles > before.course.troubles {
            return Err(relay_failure(&url, &look));
        }
        let progress = progress_of(&look.link);
        if shown.as_ref() != Some(&progress) {
            let (what, done, total) = &progress;
            writer.send_progress(what, *done, *total).await?;
            shown = Some(progress);
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            gone = writer.closed() => return Err(gone.into()),
        }
    }
}

/// How far it is, in words and numbers.
fn progress_of(link: &RelaySnapshot) -> (String, u64, Option<u64>) {
    let requests = link.queued + link.subscriptions.1;
    match (link.cooldown_secs, link.progress) {
        (Some(secs), _) => (format!("it wants less of us; left in peace for {secs} s"), 0, None),
        (None, Some(way)) => {
            let what = match way.source {
                SyncSource::Daily => "comparing repositories",
                SyncSource::CatchUp | SyncSource::Live => "catching up with repositories",
            };
            let events = if way.events == 0 { String::new() } else { format!(", {} new events", way.events) };
            let what = format!("{what} ({requests} requests to go{events})");
            (what, way.done as u64, Some(way.total as u64))
        }
        (None, None) if link.status == relay::ConnectionStatus::Connecting => ("connecting".to_owned(), 0, None),
        (None, None) => ("waiting for its turn".to_owned(), 0, None),
    }
}

fn reconcile_result(url: &RelayUrl, look: &Look) -> Result<Value, AdminError> {
    let (events, whole) = look.course.last;
    if whole {
        return Ok(json!({
            "url": url.to_string(), "events": events, "repositories": look.link.repositories,
            "compared": look.link.totals.compared, "shared": look.link.totals.shared,
        }));
    }
    let why = look.why.as_ref().map_or("the relay did not give it", |why| &why.text);
    Err(AdminError::new("incomplete", format!("{events} new events came from {url}, but not everything: {why}")))
}

fn relay_failure(url: &RelayUrl, look: &Look) -> AdminError {
    let why = look.why.as_ref().map_or("nobody knows why", |why| &why.text);
    AdminError::new("relay_failed", format!("{url}: {why}; it goes on when the relay is back"))
}

fn relay_argument(arguments: &Value) -> Result<RelayUrl, AdminError> {
    let text = arguments["relay"].as_str().unwrap_or_default();
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("wss://{text}") };
    RelayUrl::parse(&with_scheme).ok_or_else(|| {
        AdminError::new("bad_request", format!("`{text}` is not the URL of a relay, such as wss://relay.example"))
    })
}

fn sync_handle(admin: &AdminState) -> Result<&SyncHandle, AdminError> {
    admin.sync.as_ref().ok_or_else(sync_disabled)
}

fn unknown_relay(admin: &AdminState, url: &RelayUrl) -> AdminError {
    let picture = admin.status.sync.as_ref().map(|pictures| pictures.borrow().clone());
    let known: Vec<String> =
        picture.iter().flat_map(|picture| &picture.view.relays).map(|link| link.url.to_string()).collect();
    let near = nearest_name(&url.to_string(), known.iter().map(String::as_str));
    let hint = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "`graspd relays` lists those that are known".to_owned(),
    };
    AdminError::new("not_found", format!("{url} is not known here: no repository and no setting names it; {hint}"))
}

pub(super) fn sync_disabled() -> AdminError {
    AdminError::new("sync_off", "other servers are not followed: SYNC_ENABLE is false")
}

fn sync_unavailable() -> AdminError {
    AdminError::new("busy", "sync is too busy to answer, or nothing can be written; `graspd status` may say more")
}
