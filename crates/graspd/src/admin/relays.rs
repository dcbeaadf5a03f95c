//! `relays` lists the relays; `relay_retry`, `relay_pause`, `relay_resume` and `relay_forget` act on one; `sync`
//! reconciles all repositories with one and waits for the result.

use std::time::Duration;

use grasp_core::sync::io::{RelayCommand, SyncSource};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::sync::{RelaySnapshot, relay};

use super::AdminState;
use super::api::{ErrorCode, JobProgress, RelayCount, RelayDocument, RelayRequest, RelayResult, SyncResult};
use super::wire::{AdminError, ResponseWriter};
use crate::config::nearest_name;
use crate::sync::status::{RelayPresence, RelayStatus, SyncHandle};
use crate::web::status::format::display_order;
use crate::web::status::json;

/// Interval at which the progress of a reconciliation is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Lists all relays: first configured ones and those that many repositories list.
pub(super) async fn list(admin: &AdminState, writer: ResponseWriter<RelayDocument>) -> Result<RelayCount, AdminError> {
    let Some(receiver) = &admin.status.sync else { return Err(sync_disabled()) };
    let status = receiver.borrow().clone();
    let now = admin.clock.wall().0;
    for relay_view in display_order(&status.snapshot) {
        writer.send_item(&json::relay(relay_view, status.problems.get(&relay_view.url), now)).await?;
    }
    Ok(RelayCount { relays: status.snapshot.relays.len() })
}

/// Sends a command for one relay to sync.
pub(super) async fn send_command(
    admin: &AdminState,
    request: RelayRequest,
    make_command: fn(RelayUrl) -> RelayCommand,
) -> Result<RelayResult, AdminError> {
    let url = parse_url(&request.relay)?;
    let sync = sync_handle(admin)?;
    let command = make_command(url.clone());
    let is_for_followed = matches!(command, RelayCommand::Retry(_));
    match sync.command(command).await.ok_or_else(sync_unavailable)? {
        RelayPresence::Followed(_) => {
            // The state after the command.
            let status = sync.relay_status(url.clone()).await.flatten();
            let now = admin.clock.wall().0;
            let relay = status.map(|status| json::relay(&status.relay, status.problem.as_ref(), now));
            Ok(RelayResult { url: url.to_string(), relay })
        }
        RelayPresence::StoredOnly if is_for_followed => Err(AdminError::new(
            ErrorCode::NotFollowed,
            format!("no repository here lists {url} any more, so it is not followed"),
        )),
        RelayPresence::StoredOnly => Ok(RelayResult { url: url.to_string(), relay: None }),
        RelayPresence::Unknown => Err(unknown_relay(admin, &url)),
    }
}

/// Reconciles all repositories with a relay and waits for the result. The server continues if the client disconnects.
pub(super) async fn reconcile(
    admin: &AdminState,
    request: RelayRequest,
    writer: ResponseWriter,
) -> Result<SyncResult, AdminError> {
    let url = parse_url(&request.relay)?;
    let sync = sync_handle(admin)?;
    let Some(status) = sync.relay_status(url.clone()).await.ok_or_else(sync_unavailable)? else {
        return Err(unknown_relay(admin, &url));
    };
    if status.relay.is_self {
        return Err(AdminError::new(ErrorCode::IsSelf, format!("{url} is this server under another name")));
    }
    if status.relay.is_paused {
        let text = format!("{url} is paused; `graspd relays resume {url}` resumes it");
        return Err(AdminError::new(ErrorCode::Paused, text));
    }
    let Some(RelayPresence::Followed(before)) = sync.command(RelayCommand::Reconcile(url.clone())).await else {
        return Err(sync_unavailable());
    };
    if before.relay.status == relay::ConnectionStatus::Disconnected {
        sync.command(RelayCommand::Retry(url.clone())).await.ok_or_else(sync_unavailable)?;
    }
    // A full pass that is already running started too early; the pass after it counts.
    let is_full =
        |progress: grasp_core::sync::CatchUpProgress| before.progress.is_full || progress.source == SyncSource::Daily;
    let wanted = before.progress.passes + 1 + u64::from(before.relay.progress.is_some_and(is_full));
    // A reconciliation may end before the first poll; its progress is reported at least once.
    let mut shown = progress_of(&before.relay);
    writer.send_progress(&shown).await?;
    loop {
        let Some(status) = sync.relay_status(url.clone()).await.ok_or_else(sync_unavailable)? else {
            return Err(unknown_relay(admin, &url));
        };
        if status.progress.passes >= wanted {
            return reconcile_result(&url, &status);
        }
        if status.progress.failures > before.progress.failures {
            return Err(relay_failure(&url, &status));
        }
        let progress = progress_of(&status.relay);
        if shown != progress {
            writer.send_progress(&progress).await?;
            shown = progress;
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            gone = writer.closed() => return Err(gone),
        }
    }
}

/// Returns the progress of a relay.
fn progress_of(relay_view: &RelaySnapshot) -> JobProgress {
    let requests = relay_view.queued + relay_view.subscriptions.1;
    let (what, done, total) = match (relay_view.cooldown_secs, relay_view.progress) {
        (Some(secs), _) => (format!("rate limited by the relay; waiting {secs} s"), 0, None),
        (None, Some(progress)) => {
            let what = match progress.source {
                SyncSource::Daily => "comparing repositories",
                SyncSource::CatchUp | SyncSource::Live => "catching up with repositories",
            };
            let events = if progress.events == 0 { String::new() } else { format!(", {} new events", progress.events) };
            let what = format!("{what} ({requests} requests left{events})");
            (what, progress.done as u64, Some(progress.total as u64))
        }
        (None, None) if relay_view.status == relay::ConnectionStatus::Connecting => ("connecting".to_owned(), 0, None),
        (None, None) => ("waiting for a free request slot".to_owned(), 0, None),
    };
    JobProgress { what, done, total }
}

fn reconcile_result(url: &RelayUrl, status: &RelayStatus) -> Result<SyncResult, AdminError> {
    let (events, whole) = status.progress.last_pass;
    let relay = &status.relay;
    if whole {
        return Ok(SyncResult {
            url: url.to_string(),
            events,
            repositories: relay.repositories,
            compared: relay.totals.compared,
            shared: relay.totals.shared,
        });
    }
    let why = status.problem.as_ref().map_or("the relay did not send it", |why| &why.text);
    let text = format!("sync with {url} is incomplete ({events} new events received): {why}");
    Err(AdminError::new(ErrorCode::Incomplete, text))
}

fn relay_failure(url: &RelayUrl, status: &RelayStatus) -> AdminError {
    let why = status.problem.as_ref().map_or("unknown reason", |why| &why.text);
    let text = format!("{url}: {why}; sync continues when the relay is reachable again");
    AdminError::new(ErrorCode::RelayFailed, text)
}

fn parse_url(text: &str) -> Result<RelayUrl, AdminError> {
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("wss://{text}") };
    RelayUrl::parse(&with_scheme).ok_or_else(|| {
        let text = format!("`{text}` is not the URL of a relay, such as wss://relay.example");
        AdminError::new(ErrorCode::BadRequest, text)
    })
}

fn sync_handle(admin: &AdminState) -> Result<&SyncHandle, AdminError> {
    admin.sync.as_ref().ok_or_else(sync_disabled)
}

fn unknown_relay(admin: &AdminState, url: &RelayUrl) -> AdminError {
    let status = admin.status.sync.as_ref().map(|receiver| receiver.borrow().clone());
    let known: Vec<String> =
        status.iter().flat_map(|status| &status.snapshot.relays).map(|relay_view| relay_view.url.to_string()).collect();
    let near = nearest_name(&url.to_string(), known.iter().map(String::as_str));
    let hint = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "see `graspd relays` for the known ones".to_owned(),
    };
    let text = format!("{url} is not known: no repository and no setting lists it; {hint}");
    AdminError::new(ErrorCode::NotFound, text)
}

pub(super) fn sync_disabled() -> AdminError {
    AdminError::new(ErrorCode::SyncDisabled, "sync is off: SYNC_ENABLE is false")
}

fn sync_unavailable() -> AdminError {
    let text = "sync did not respond, or the server cannot write at the moment; see `graspd status`";
    AdminError::new(ErrorCode::Busy, text)
}
