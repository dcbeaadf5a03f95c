//! What is known of a repository on other servers.

use grasp_core::fetch::{MirrorStatus, MirrorView};
use grasp_core::repo::RepoPath;
use grasp_core::sync::relay::ConnectionStatus;
use grasp_core::sync::relay_url::RelayUrl;

use super::repository_handler::RepositoryPages;
use crate::git::handlers::GitService;
use crate::sync::status::Standing;
use crate::web::replication::{Has, RelayRow, Replication, ServerRow};
use crate::writer::command::RepoView;

/// Finds out what is known.
pub(super) async fn known(pages: &RepositoryPages, repo_path: &RepoPath, view: &RepoView) -> Replication {
    let standings = match &pages.sync {
        Some(sync) => sync.ask(repo_path.repo().clone()).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let looks = match &pages.hunt {
        Some(hunt) => hunt.looks(repo_path.clone()).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let git = &pages.git;
    let event = view.announcement.as_ref().map(|(event, _)| event);
    let values = |name: &'static str| event.into_iter().flat_map(move |event| event.all_values(name));
    let named: Vec<(String, Option<RelayUrl>)> =
        values("relays").map(|text| (text.to_owned(), RelayUrl::parse(text))).collect();
    let here = RelayUrl::parse(&git.relay);
    let own = |url: &Option<RelayUrl>| {
        url.is_some() && url.as_ref().map(RelayUrl::without_scheme) == here.as_ref().map(RelayUrl::without_scheme)
    };
    let of = |url: &Option<RelayUrl>| {
        let place = url.as_ref()?.without_scheme();
        standings.iter().find(|standing| standing.link.url.without_scheme() == place)
    };
    let mut relays: Vec<RelayRow> = named
        .iter()
        .map(|(text, url)| match of(url) {
            _ if own(url) => RelayRow { state: "this service", has: here_too(view), covered: true, ..blank(text) },
            Some(standing) => relay(text, standing, view),
            None => RelayRow { state: "not followed", ..blank(text) },
        })
        .collect();
    // Those that other maintainers name.
    for standing in &standings {
        let is_named = |url: &Option<RelayUrl>| {
            url.as_ref().is_some_and(|url| url.without_scheme() == standing.link.url.without_scheme())
        };
        if !named.iter().any(|(_, url)| is_named(url)) {
            relays.push(relay(&standing.link.url.to_string(), standing, view));
        }
    }
    let servers = values("clone").map(|text| server(git, text, (&standings, &looks), view)).collect();
    let state = view.state.as_ref().map(|state| (state.id.to_string(), state.created_at.0));
    Replication { state, relays, servers }
}

fn blank(url: &str) -> RelayRow {
    RelayRow {
        url: url.to_owned(),
        state: "",
        has: Has::Unknown,
        covered: false,
        heard_at: None,
        lacks: None,
        why: None,
    }
}

/// What this service has: whatever it serves.
fn here_too(view: &RepoView) -> Has {
    if view.state.is_some() { Has::Current { since: None } } else { Has::Unseen }
}

fn relay(url: &str, standing: &Standing, view: &RepoView) -> RelayRow {
    let link = &standing.link;
    let state = match link.status {
        _ if link.is_self => "this service",
        ConnectionStatus::Disconnected => "not connected",
        ConnectionStatus::Connecting => "connecting",
        ConnectionStatus::Syncing => "catching up",
        ConnectionStatus::Connected => "connected",
        ConnectionStatus::ConnectedHistoricSyncFailures => "connected, history incomplete",
    };
    RelayRow {
        state,
        has: has(standing, view),
        covered: link.is_covered,
        heard_at: link.last_message_at.map(|at| at.0),
        lacks: standing.lacks.map(|(events, at)| (events, at.0)),
        why: standing.why.as_ref().map(|why| why.text.clone()),
        ..blank(url)
    }
}

/// Whether a relay was seen to have the state that is served here.
fn has(standing: &Standing, view: &RepoView) -> Has {
    let Some(current) = &view.state else { return Has::Unknown };
    match standing.seen.get(&current.pubkey) {
        Some(seen) if seen.id == current.id => Has::Current { since: Some(seen.since.0) },
        Some(seen) => Has::Older { created_at: seen.created_at.0 },
        // Everything that it has is here; what it was sent before this start is not remembered.
        None if standing.link.is_covered && !standing.compared => Has::Unknown,
        None => Has::Unseen,
    }
}

/// A GRASP server serves a state only when it has the git data, so that its relay speaks for it. Others are asked now and
/// then.
fn server(git: &GitService, url: &str, (standings, looks): (&[Standing], &[MirrorView]), view: &RepoView) -> ServerRow {
    let unknown = ServerRow { url: url.to_owned(), has: Has::Unknown, how: "", asked_at: None };
    let without_scheme = |url: &str| url.split_once("://").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    let (here, there) = (without_scheme(&git.url), without_scheme(url));
    if !here.is_empty() && there.strip_prefix(&here).is_some_and(|rest| rest.starts_with('/')) {
        return ServerRow { has: here_too(view), how: "this service", ..unknown };
    }
    if let Some(look) = looks.iter().find(|look| look.url == url && view.state.is_some()) {
        return seen(unknown, look);
    }
    let host = there.split('/').next().unwrap_or_default();
    let is_there = |standing: &&Standing| {
        let place = without_scheme(&standing.link.url.to_string());
        !host.is_empty() && place.split('/').next() == Some(host)
    };
    // Its relay is at the same place; other git servers have none.
    match standings.iter().find(is_there).filter(|_| there.ends_with(".git")) {
        Some(standing) => ServerRow { has: has(standing, view), how: "as its relay says", ..unknown },
        None => unknown,
    }
}

/// What a look at a server has shown.
fn seen(row: ServerRow, look: &MirrorView) -> ServerRow {
    let Some((found, at)) = look.status else { return ServerRow { has: Has::Unasked, ..row } };
    let (has, asked_at) = match found {
        MirrorStatus::NotCalled => (Has::Shunned, None),
        _ if look.is_stale => (Has::Unasked, None),
        MirrorStatus::Current(since) => (Has::Current { since: Some(since.0) }, Some(at.0)),
        MirrorStatus::Lacking(shown) => {
            (Has::Lacking { lacks: shown.missing, differs: shown.different, of: shown.served }, Some(at.0))
        }
        MirrorStatus::Absent => (Has::Absent, Some(at.0)),
        MirrorStatus::NoAnswer => (Has::Silent, Some(at.0)),
    };
    ServerRow { has, how: if asked_at.is_some() { "by asking it" } else { "" }, asked_at, ..row }
}
