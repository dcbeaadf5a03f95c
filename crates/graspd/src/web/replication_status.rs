//! Collects the replication status of a repository from sync and fetch.

use grasp_core::fetch::{MirrorStatus, MirrorView};
use grasp_core::repo::RepoPath;
use grasp_core::sync::relay::ConnectionStatus;
use grasp_core::sync::relay_url::RelayUrl;

use super::repository_handler::RepositoryPages;
use crate::sync::status::RepoRelayReport;
use crate::web::replication::{GitServerRow, LackingEvents, RelayRow, ReplicaStatus, Replication, ServedState};
use crate::writer::command::RepoView;

/// Returns the replication status of a repository.
pub(super) async fn replication(pages: &RepositoryPages, repo_path: &RepoPath, view: &RepoView) -> Replication {
    let reports = match &pages.sync {
        Some(sync) => sync.repo_relays(repo_path.repo().clone()).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let mirrors = match &pages.fetch {
        Some(fetch) => fetch.mirrors(repo_path.clone()).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let event = view.announcement.as_ref().map(|(event, _)| event);
    let values = |name: &'static str| event.into_iter().flat_map(move |event| event.all_values(name));
    let listed: Vec<(String, Option<RelayUrl>)> =
        values("relays").map(|text| (text.to_owned(), RelayUrl::parse(text))).collect();
    let own_url = RelayUrl::parse(&pages.relay_url);
    let is_own = |url: &Option<RelayUrl>| {
        url.is_some() && url.as_ref().map(RelayUrl::without_scheme) == own_url.as_ref().map(RelayUrl::without_scheme)
    };
    let report_for = |url: &Option<RelayUrl>| {
        let address = url.as_ref()?.without_scheme();
        reports.iter().find(|report| report.relay.url.without_scheme() == address)
    };
    let mut relays: Vec<RelayRow> = listed
        .iter()
        .map(|(text, url)| match report_for(url) {
            _ if is_own(url) => {
                RelayRow { connection: "this service", status: own_status(view), is_covered: true, ..empty_row(text) }
            }
            Some(report) => relay_row(text, report, view),
            None => RelayRow { connection: "not followed", ..empty_row(text) },
        })
        .collect();
    // Relays that only other maintainers list.
    for report in &reports {
        let is_same = |url: &Option<RelayUrl>| {
            url.as_ref().is_some_and(|url| url.without_scheme() == report.relay.url.without_scheme())
        };
        if !listed.iter().any(|(_, url)| is_same(url)) {
            relays.push(relay_row(&report.relay.url.to_string(), report, view));
        }
    }
    let git_servers = values("clone").map(|text| git_server_row(pages, text, (&reports, &mirrors), view)).collect();
    let state =
        view.state.as_ref().map(|state| ServedState { id: state.id.to_string(), created_at: state.created_at.0 });
    Replication { state, relays, git_servers }
}

fn empty_row(url: &str) -> RelayRow {
    RelayRow {
        url: url.to_owned(),
        connection: "",
        status: ReplicaStatus::Unknown,
        is_covered: false,
        last_message_at: None,
        lacks: None,
        problem: None,
    }
}

/// Returns the status of this service: it has the state that it serves.
fn own_status(view: &RepoView) -> ReplicaStatus {
    if view.state.is_some() { ReplicaStatus::Current { since: None } } else { ReplicaStatus::NotSeen }
}

fn relay_row(url: &str, report: &RepoRelayReport, view: &RepoView) -> RelayRow {
    let relay = &report.relay;
    let connection = match relay.status {
        _ if relay.is_self => "this service",
        ConnectionStatus::Disconnected => "not connected",
        ConnectionStatus::Connecting => "connecting",
        ConnectionStatus::Syncing => "catching up",
        ConnectionStatus::Connected => "connected",
        ConnectionStatus::ConnectedHistoricSyncFailures => "connected, history incomplete",
    };
    RelayRow {
        connection,
        status: relay_status(report, view),
        is_covered: relay.sync.is_complete(),
        last_message_at: relay.last_message_at.map(|at| at.0),
        lacks: report.lacking.map(|(events, at)| LackingEvents { events, at: at.0 }),
        problem: report.problem.as_ref().map(|problem| problem.text.clone()),
        ..empty_row(url)
    }
}

/// Returns whether a relay was seen with the state that is served here.
fn relay_status(report: &RepoRelayReport, view: &RepoView) -> ReplicaStatus {
    let Some(current) = &view.state else { return ReplicaStatus::Unknown };
    match report.seen_states.get(&current.pubkey) {
        Some(seen) if seen.id == current.id => ReplicaStatus::Current { since: Some(seen.since.0) },
        Some(seen) => ReplicaStatus::Older { created_at: seen.created_at.0 },
        // All events of the relay are here, but it is not remembered which events it received before this start.
        None if report.relay.sync.is_complete() && !report.is_compared => ReplicaStatus::Unknown,
        None => ReplicaStatus::NotSeen,
    }
}

/// Returns the status on a git server. A GRASP server serves a state only when it has the git data, so its relay shows
/// whether it has the state. Other git servers are checked periodically.
fn git_server_row(
    pages: &RepositoryPages,
    url: &str,
    (reports, mirrors): (&[RepoRelayReport], &[MirrorView]),
    view: &RepoView,
) -> GitServerRow {
    let unknown = GitServerRow { url: url.to_owned(), status: ReplicaStatus::Unknown, how: "", checked_at: None };
    let without_scheme = |url: &str| url.split_once("://").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    let (own_address, address) = (without_scheme(&pages.web_url), without_scheme(url));
    if !own_address.is_empty() && address.strip_prefix(&own_address).is_some_and(|rest| rest.starts_with('/')) {
        return GitServerRow { status: own_status(view), how: "this service", ..unknown };
    }
    if let Some(mirror) = mirrors.iter().find(|mirror| mirror.url == url && view.state.is_some()) {
        return mirror_row(unknown, mirror);
    }
    let host = address.split('/').next().unwrap_or_default();
    let is_same_host = |report: &&RepoRelayReport| {
        let relay_address = without_scheme(&report.relay.url.to_string());
        !host.is_empty() && relay_address.split('/').next() == Some(host)
    };
    // The relay of a GRASP server has the same host. Other git servers have no relay.
    match reports.iter().find(is_same_host).filter(|_| address.ends_with(".git")) {
        Some(report) => GitServerRow { status: relay_status(report, view), how: "from its relay", ..unknown },
        None => unknown,
    }
}

/// Adds the result of the last mirror check to a row.
fn mirror_row(row: GitServerRow, mirror: &MirrorView) -> GitServerRow {
    let Some((result, at)) = mirror.status else { return GitServerRow { status: ReplicaStatus::NotChecked, ..row } };
    let (status, checked_at) = match result {
        MirrorStatus::NotCalled => (ReplicaStatus::NotContacted, None),
        _ if mirror.is_stale => (ReplicaStatus::NotChecked, None),
        MirrorStatus::Current(since) => (ReplicaStatus::Current { since: Some(since.0) }, Some(at.0)),
        MirrorStatus::Lacking(refs) => {
            (ReplicaStatus::Incomplete { lacks: refs.missing, differs: refs.different, of: refs.served }, Some(at.0))
        }
        MirrorStatus::Absent => (ReplicaStatus::Absent, Some(at.0)),
        MirrorStatus::NoAnswer => (ReplicaStatus::NoResponse, Some(at.0)),
    };
    GitServerRow { status, how: if checked_at.is_some() { "checked directly" } else { "" }, checked_at, ..row }
}
