//! The status page and its JSON, rendered from the published status of the features at most once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grasp_core::fetch;
use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::time::MonoTime;
use hyper::{StatusCode, header};
use tokio::sync::watch;

use super::status::json::StatusDocument;
use super::status::{StatusView, render};
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::http::body::HttpResponse;
use crate::http::response::{with_header, with_type};
use crate::metrics::Metrics;
use crate::monitor::endpoints;
use crate::monitor::health::HealthSnapshot;
use crate::repos::ref_cache::RefCache;
use crate::sync::status::SyncStatus;

/// Time for which a rendered status is used.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Content security policy of the status page: scripts and requests only from and to this server.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'";

/// Status that a driver publishes. `None` if sync is disabled.
type Published<T> = Option<watch::Receiver<Arc<T>>>;

/// The sources of the status, and the latest rendered status.
pub(crate) struct StatusCache {
    /// Snapshots of the health monitor.
    pub(crate) health: watch::Receiver<Arc<HealthSnapshot>>,
    /// Status of sync. `None` if sync is disabled.
    pub(crate) sync: Published<SyncStatus>,
    /// Status of fetching. `None` if sync is disabled.
    pub(crate) fetch: Published<fetch::FetchView>,
    /// True once the server shuts down.
    pub(crate) shutdown: watch::Receiver<bool>,
    pub(crate) settings: SettingsReceiver,
    pub(crate) ref_cache: Arc<RefCache>,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    /// The latest rendered status and its time. Requests wait while it is rendered again, which takes a few
    /// milliseconds.
    pub(crate) rendered: Mutex<Option<(MonoTime, Arc<RenderedStatus>)>>,
}

/// The status as a page and as JSON.
pub(crate) struct RenderedStatus {
    html: String,
    document: StatusDocument,
    json: String,
}

impl StatusCache {
    /// Returns the latest snapshot of the health monitor.
    pub(crate) fn health(&self) -> Arc<HealthSnapshot> {
        self.health.borrow().clone()
    }

    /// Returns whether the server is shutting down.
    pub(crate) fn is_shutting_down(&self) -> bool {
        *self.shutdown.borrow()
    }

    /// Returns the document of `/status.json`, even if that is not public.
    pub(crate) fn document(&self) -> StatusDocument {
        self.rendered().document.clone()
    }

    fn rendered(&self) -> Arc<RenderedStatus> {
        let now = self.clock.mono();
        let mut latest = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, rendered)) = &*latest
            && now.since(*at) < MAX_AGE
        {
            return rendered.clone();
        }
        let rendered = Arc::new(self.render(now));
        *latest = Some((now, rendered.clone()));
        rendered
    }

    fn render(&self, now: MonoTime) -> RenderedStatus {
        let health = self.health();
        let config = self.settings.borrow().clone();
        let sync = self.sync.as_ref().map(|sync| sync.borrow().clone());
        let fetch = self.fetch.as_ref().map(|fetch| fetch.borrow().clone());
        let ref_cache = &self.ref_cache;
        let is_served = |repo_path: &RepoPath| match repo_path {
            RepoPath::Announced(_) => {
                ref_cache.open_repo(repo_path).is_some_and(|open| open.status == EventStatus::Served)
            }
            // Any key can submit pull requests; a repository of submissions exists once it has a ref.
            RepoPath::PullRequests(_) => {
                let has_refs =
                    |repo_path| ref_cache.cached(repo_path).is_some_and(|known| known.refs.iter().next().is_some());
                ref_cache.open_repo(repo_path).is_some() && has_refs(repo_path)
            }
        };
        let (html, document) = render(&StatusView {
            name: &config.relay_name,
            version: env!("CARGO_PKG_VERSION"),
            uptime_secs: now.0 / 1_000,
            checks: &endpoints::readiness_checks(&health, now, self.is_shutting_down()),
            health: &health,
            websockets: self.metrics.relay().active_connections(),
            sync: sync.as_deref(),
            fetch: fetch.as_deref(),
            is_served: &is_served,
            rejected_events: &self.metrics.relay().rejections_by_reason(),
            rejected_pushes: &self.metrics.git().refusals_by_code(),
            pack_cache: self.metrics.git().pack_cache_counts(),
        });
        let json = format!("{}\n", serde_json::json!(document));
        RenderedStatus { html, document, json }
    }

    /// Answers `GET /status`.
    pub(crate) fn page(&self) -> HttpResponse {
        let page = with_type(StatusCode::OK, "text/html; charset=utf-8", self.rendered().html.clone());
        without_caching(with_header(page, header::CONTENT_SECURITY_POLICY, CONTENT_POLICY))
    }

    /// Answers `GET /status.json`.
    pub(crate) fn json(&self) -> HttpResponse {
        without_caching(with_type(StatusCode::OK, "application/json", self.rendered().json.clone()))
    }
}

/// Answers `GET /status.js`.
pub(crate) fn script() -> HttpResponse {
    let script = with_type(StatusCode::OK, "text/javascript; charset=utf-8", include_str!("templates/status.js"));
    with_header(script, header::CACHE_CONTROL, "no-cache")
}

fn without_caching(response: HttpResponse) -> HttpResponse {
    with_header(response, header::CACHE_CONTROL, "no-store")
}
