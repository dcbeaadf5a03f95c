//! The page of a repository, and what waits for it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use grasp_core::nostr::kinds;
use grasp_core::repo::Site;
use grasp_core::repo::catalog::Place;
use grasp_git::refs::Target;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode, header};

use super::replication_status;
use crate::git::handlers::{Client, GitHouse, busy, turn};
use crate::git::ref_cache::{Open, Snapshot};
use crate::git::upload_pack;
use crate::http::body::Answer;
use crate::http::router::{html, status, with_type};
use crate::web::purgatory::{Standing, WaitingView, purgatory_json};
use crate::web::replication::{Replication, replication_json};
use crate::web::repository::{RefView, RepositoryPage, repository};
use crate::writer::command::{SiteView, WaitingEvent};

/// What is shown of a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Show {
    /// The page.
    Page,
    /// What waits, for programs.
    Purgatory,
    /// Where else it is, for programs.
    Replication,
}

/// Shows a site.
pub(crate) async fn show(
    git: &Arc<GitHouse>,
    (site, open): (Site, &Open),
    show: Show,
    client: Client,
    headers: &HeaderMap,
) -> Answer {
    let view = match turn(&git.viewing, client).await {
        Ok(_turn) => git.desk.view(site.clone()).await,
        Err(why) => return busy(why),
    };
    let standing = match open.place {
        Place::Served => Standing::Served,
        Place::Held => Standing::Waiting,
    };
    match show {
        Show::Purgatory => {
            let json = purgatory_json(&site.path(), standing, &waiting(&view));
            fresh(headers, json, |json| with_type(StatusCode::OK, "application/json", json))
        }
        Show::Replication => {
            let known = replication_status::known(git, &site, &view).await;
            let json = replication_json(&site.path(), &known);
            fresh(headers, json, |json| with_type(StatusCode::OK, "application/json", json))
        }
        Show::Page => {
            let Some(snapshot) = git.snapshot(&site).await else { return upload_pack::failed() };
            let known = replication_status::known(git, &site, &view).await;
            let page = page(git, (&site, standing), &view, &snapshot, known);
            fresh(headers, page, |page| html(StatusCode::OK, page))
        }
    }
}

/// Answers with a text, or says that the client has it.
pub(crate) fn fresh(headers: &HeaderMap, text: String, render: impl FnOnce(String) -> Answer) -> Answer {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let etag = format!("\"{:016x}\"", hasher.finish());
    let mut answer =
        if upload_pack::is_known(headers, &etag) { status(StatusCode::NOT_MODIFIED, "") } else { render(text) };
    if let Ok(value) = HeaderValue::from_str(&etag) {
        answer.headers_mut().insert(header::ETAG, value);
    }
    // Whoever has it asks whether it is still true.
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer
}

fn page(
    git: &GitHouse,
    (site, standing): (&Site, Standing),
    view: &SiteView,
    snapshot: &Snapshot,
    replication: Replication,
) -> String {
    let event = view.announcement.as_ref().map(|(event, _)| event);
    let tag = |name: &str| event.and_then(|event| event.tag(name)).unwrap_or_default().to_owned();
    let values = |name: &str| event.into_iter().flat_map(|event| event.all_values(name)).map(str::to_owned).collect();
    let refs = |space: &str| -> Vec<RefView> {
        let named = snapshot.refs.iter().filter(|(name, _)| name.starts_with(space));
        let shown = |(name, target): (&str, &Target)| RefView {
            name: name.to_owned(),
            oid: target.oid.clone(),
            peeled: target.peeled.clone(),
        };
        named.map(shown).collect()
    };
    let repo = site.repo();
    repository(&RepositoryPage {
        identifier: repo.identifier.as_str().to_owned(),
        name: tag("name"),
        description: tag("description"),
        owner: repo.owner.npub(),
        git_url: format!("{}/{site}", git.url),
        relay_url: git.relay.clone(),
        standing,
        maintainers: view.maintainers.clone(),
        head: snapshot.refs.head().to_owned(),
        branches: refs("refs/heads/"),
        tags: refs("refs/tags/"),
        pull_requests: refs("refs/nostr/").len(),
        waiting: waiting(view),
        web: values("web"),
        replication,
    })
}

fn waiting(view: &SiteView) -> Vec<WaitingView> {
    let events = view.waiting.iter().map(|WaitingEvent { event, expires_at, needs }| WaitingView {
        event: event.id.to_string(),
        kind: event.kind,
        author: event.pubkey.npub(),
        created_at: event.created_at.0,
        expires_at: *expires_at,
        needs: needs.clone(),
        why: match event.kind {
            kinds::ANNOUNCEMENT => "waits for a state event (kind 30618) and a push of what it declares",
            kinds::STATE => "waits for a push that makes branches and tags exactly what it declares",
            _ => "waits for its commit to be pushed to refs/nostr/<event id>",
        }
        .to_owned(),
    });
    // Who knows the whole id could push another commit under it before the event comes.
    let uploads = view.uploads.iter().map(|(event, tip, expires_at)| WaitingView {
        event: format!("{}…", &event.to_string()[..8]),
        kind: kinds::PULL_REQUEST,
        author: String::new(),
        created_at: 0,
        expires_at: *expires_at,
        needs: Vec::new(),
        why: format!("commit {tip} was pushed and waits for this event to be published"),
    });
    events.chain(uploads).collect()
}
