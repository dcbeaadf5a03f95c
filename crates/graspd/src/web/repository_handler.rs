//! Answers requests for the page and the JSON documents of a repository.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::kinds;
use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;
use grasp_git::refs::RefTarget;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Request, StatusCode, header};

use super::{render, replication_status};
use crate::config::Config;
use crate::fetch::driver::FetchHandle;
use crate::git::handlers::{GitClient, NamedSemaphore, acquire, queue_full};
use crate::git::upload_pack;
use crate::http::body::HttpResponse;
use crate::http::fair_semaphore::FairSemaphore;
use crate::http::response::{html, method_not_allowed, status, with_type};
use crate::repos::ref_cache::{OpenRepo, RefCache, RefSnapshot};
use crate::sync::status::SyncHandle;
use crate::web::purgatory::{WaitingEvent, purgatory_json};
use crate::web::replication::{Replication, replication_json};
use crate::web::repository::{RefView, RepositoryPage};
use crate::writer::command::{RepoHeldEvent, RepoView};
use crate::writer::queue::EventQueue;

/// Answers requests for the pages and JSON documents of repositories.
pub(crate) struct RepositoryPages {
    ref_cache: Arc<RefCache>,
    writer: Arc<EventQueue>,
    /// Limits requests, because the writer collects their data between two batches.
    permits: Arc<FairSemaphore>,
    pub(super) web_url: String,
    pub(super) relay_url: String,
    /// Status of repositories on other relays. `None` if sync is disabled.
    pub(super) sync: Option<SyncHandle>,
    /// Status of repositories on other git servers. `None` if sync is disabled.
    pub(super) fetch: Option<FetchHandle>,
}

/// A document about a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RepositoryDocument {
    /// The HTML page.
    Page,
    /// `purgatory`: events and pushed commits in purgatory, as JSON.
    Purgatory,
    /// `replication.json`: status on other servers.
    Replication,
}

impl RepositoryPages {
    pub(crate) fn new(
        config: &Config,
        ref_cache: Arc<RefCache>,
        writer: Arc<EventQueue>,
        sync: Option<SyncHandle>,
        fetch: Option<FetchHandle>,
    ) -> Self {
        let permits = FairSemaphore::new(1, limits::MAX_WAITING_PAGES, limits::MAX_WAITING_PAGES_PER_NETWORK);
        Self { ref_cache, writer, permits, web_url: config.web_url(), relay_url: config.relay_url(), sync, fetch }
    }

    /// Returns the semaphore that limits requests, with its name in the metrics.
    pub(crate) fn semaphore(&self) -> NamedSemaphore {
        ("pages", self.permits.clone())
    }

    /// Answers a request below a repository's path; `None` if the path names no document of a repository.
    pub(crate) async fn route(
        &self,
        client: GitClient,
        repo_path: &RepoPath,
        open: &OpenRepo,
        below: &str,
        request: &Request<Incoming>,
    ) -> Option<HttpResponse> {
        let is_announced = matches!(repo_path, RepoPath::Announced(_));
        let document = match below {
            "purgatory" => RepositoryDocument::Purgatory,
            "replication.json" if is_announced => RepositoryDocument::Replication,
            "" if is_announced => RepositoryDocument::Page,
            _ => return None,
        };
        Some(match *request.method() {
            Method::GET | Method::HEAD => self.render(repo_path, open, document, client, request.headers()).await,
            _ => method_not_allowed("GET, HEAD, OPTIONS"),
        })
    }

    async fn render(
        &self,
        repo_path: &RepoPath,
        open: &OpenRepo,
        document: RepositoryDocument,
        client: GitClient,
        headers: &HeaderMap,
    ) -> HttpResponse {
        let view = match acquire(&self.permits, client).await {
            Ok(_permit) => self.writer.repo_view(repo_path.clone()).await,
            Err(error) => return queue_full(error),
        };
        match document {
            RepositoryDocument::Purgatory => {
                let json = purgatory_json(&repo_path.path(), open.status, &waiting_events(&view));
                with_etag(headers, json, |json| with_type(StatusCode::OK, "application/json", json))
            }
            RepositoryDocument::Replication => {
                let replication = replication_status::replication(self, repo_path, &view).await;
                let json = replication_json(&repo_path.path(), &replication);
                with_etag(headers, json, |json| with_type(StatusCode::OK, "application/json", json))
            }
            RepositoryDocument::Page => {
                let Some(snapshot) = self.ref_cache.load(repo_path).await else {
                    return upload_pack::cannot_read_repository();
                };
                let replication = replication_status::replication(self, repo_path, &view).await;
                let page = page(self, (repo_path, open.status), &view, &snapshot, replication);
                with_etag(headers, page, |page| html(StatusCode::OK, page))
            }
        }
    }
}

/// Returns a response with a text and its ETag, or 304 if the client already has this text.
pub(crate) fn with_etag(
    headers: &HeaderMap,
    text: String,
    render: impl FnOnce(String) -> HttpResponse,
) -> HttpResponse {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let etag = format!("\"{:016x}\"", hasher.finish());
    let mut response =
        if upload_pack::etag_matches(headers, &etag) { status(StatusCode::NOT_MODIFIED, "") } else { render(text) };
    if let Ok(value) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

fn page(
    pages: &RepositoryPages,
    (repo_path, status): (&RepoPath, EventStatus),
    view: &RepoView,
    snapshot: &RefSnapshot,
    replication: Replication,
) -> String {
    let event = view.announcement.as_ref().map(|(event, _)| event);
    let tag = |name: &str| event.and_then(|event| event.tag(name)).unwrap_or_default().to_owned();
    let values = |name: &str| event.into_iter().flat_map(|event| event.all_values(name)).map(str::to_owned).collect();
    let refs = |prefix: &str| -> Vec<RefView> {
        let named = snapshot.refs.iter().filter(|(name, _)| name.starts_with(prefix));
        let ref_view = |(name, target): (&str, &RefTarget)| RefView {
            name: name.to_owned(),
            oid: target.oid.clone(),
            peeled: target.peeled.clone(),
        };
        named.map(ref_view).collect()
    };
    let repo = repo_path.repo();
    render(&RepositoryPage {
        identifier: repo.identifier.as_str().to_owned(),
        name: tag("name"),
        description: tag("description"),
        owner: repo.owner.npub(),
        git_url: format!("{}/{repo_path}", pages.web_url),
        relay_url: pages.relay_url.clone(),
        status,
        is_degraded: snapshot.is_degraded(),
        maintainers: view.maintainers.clone(),
        head: snapshot.refs.head().to_owned(),
        branches: refs("refs/heads/"),
        tags: refs("refs/tags/"),
        pull_requests: refs("refs/nostr/").len(),
        waiting: waiting_events(view),
        web_urls: values("web"),
        replication,
    })
}

fn waiting_events(view: &RepoView) -> Vec<WaitingEvent> {
    let events = view.held_events.iter().map(|held| {
        let RepoHeldEvent { event, expires_at, is_dormant, needed_oids } = held;
        let why = match event.kind {
            kinds::ANNOUNCEMENT => "waits for a state event (kind 30618) and a push of the commits that it declares",
            kinds::STATE => "waits for a push after which branches and tags are exactly as it declares",
            _ => "waits for its commit to be pushed to refs/nostr/<event id>",
        };
        WaitingEvent {
            event: event.id.to_string(),
            kind: event.kind,
            author: event.pubkey.npub(),
            created_at: event.created_at.0,
            expires_at: *expires_at,
            is_dormant: *is_dormant,
            needs: needed_oids.clone(),
            why: if *is_dormant { format!("dormant, fetched once an hour; {why}") } else { why.to_owned() },
        }
    });
    // The id is abbreviated: with the full id, any client could push another commit for it before the event arrives.
    let uploads = view.uploads.iter().map(|(event, tip, expires_at)| WaitingEvent {
        event: format!("{}…", &event.to_string()[..8]),
        kind: kinds::PULL_REQUEST,
        author: String::new(),
        created_at: 0,
        expires_at: *expires_at,
        is_dormant: false,
        needs: Vec::new(),
        why: format!("commit {tip} was pushed, but the event is not published yet"),
    });
    events.chain(uploads).collect()
}
