//! The page of a repository, and what waits for it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use grasp_core::nostr::kinds;
use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;
use grasp_git::refs::Target;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Request, StatusCode, header};

use super::replication_status;
use crate::fetch::driver::FetchHandle;
use crate::git::handlers::{Client, GitService, busy, turn};
use crate::git::upload_pack;
use crate::http::body::HttpResponse;
use crate::http::response::{html, method_not_allowed, status, with_type};
use crate::repos::ref_cache::{Open, RefSnapshot};
use crate::sync::status::SyncHandle;
use crate::web::purgatory::{Standing, WaitingView, purgatory_json};
use crate::web::replication::{Replication, replication_json};
use crate::web::repository::{RefView, RepositoryPage, repository};
use crate::writer::command::{RepoView, WaitingEvent};

/// Answers requests for the pages and JSON documents of repositories.
pub(crate) struct RepositoryPages {
    pub(crate) git: Arc<GitService>,
    /// What other relays have. `None` if sync is disabled.
    pub(crate) sync: Option<SyncHandle>,
    /// What other git servers have. `None` if sync is disabled.
    pub(crate) hunt: Option<FetchHandle>,
}

/// A document about a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Document {
    /// The HTML page.
    Page,
    /// `purgatory`: events and uploads in purgatory, as JSON.
    Purgatory,
    /// `replication.json`: what other servers have.
    Replication,
}

impl RepositoryPages {
    /// Answers a request below a repository's path; `None` if the path names no document of a repository.
    pub(crate) async fn route(
        &self,
        client: Client,
        repo_path: &RepoPath,
        open: &Open,
        below: &str,
        request: &Request<Incoming>,
    ) -> Option<HttpResponse> {
        let is_announced = matches!(repo_path, RepoPath::Announced(_));
        let document = match below {
            "purgatory" => Document::Purgatory,
            "replication.json" if is_announced => Document::Replication,
            "" if is_announced => Document::Page,
            _ => return None,
        };
        Some(match *request.method() {
            Method::GET | Method::HEAD => self.show(repo_path, open, document, client, request.headers()).await,
            _ => method_not_allowed("GET, HEAD, OPTIONS"),
        })
    }

    async fn show(
        &self,
        repo_path: &RepoPath,
        open: &Open,
        show: Document,
        client: Client,
        headers: &HeaderMap,
    ) -> HttpResponse {
        let git = &self.git;
        let view = match turn(&git.viewing, client).await {
            Ok(_turn) => git.desk.view(repo_path.clone()).await,
            Err(why) => return busy(why),
        };
        let standing = match open.status {
            EventStatus::Served => Standing::Served,
            EventStatus::Held => Standing::Waiting,
        };
        match show {
            Document::Purgatory => {
                let json = purgatory_json(&repo_path.path(), standing, &waiting(&view));
                fresh(headers, json, |json| with_type(StatusCode::OK, "application/json", json))
            }
            Document::Replication => {
                let known = replication_status::known(self, repo_path, &view).await;
                let json = replication_json(&repo_path.path(), &known);
                fresh(headers, json, |json| with_type(StatusCode::OK, "application/json", json))
            }
            Document::Page => {
                let Some(snapshot) = git.snapshot(repo_path).await else { return upload_pack::failed() };
                let known = replication_status::known(self, repo_path, &view).await;
                let page = page(git, (repo_path, standing), &view, &snapshot, known);
                fresh(headers, page, |page| html(StatusCode::OK, page))
            }
        }
    }
}

/// Answers with a text, or says that the client has it.
pub(crate) fn fresh(headers: &HeaderMap, text: String, render: impl FnOnce(String) -> HttpResponse) -> HttpResponse {
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
    git: &GitService,
    (repo_path, standing): (&RepoPath, Standing),
    view: &RepoView,
    snapshot: &RefSnapshot,
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
    let repo = repo_path.repo();
    repository(&RepositoryPage {
        identifier: repo.identifier.as_str().to_owned(),
        name: tag("name"),
        description: tag("description"),
        owner: repo.owner.npub(),
        git_url: format!("{}/{repo_path}", git.url),
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

fn waiting(view: &RepoView) -> Vec<WaitingView> {
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
