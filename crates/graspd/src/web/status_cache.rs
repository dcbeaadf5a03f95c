//! The status of the service, made of what rooms have published: at most once a second, and the same for everybody.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grasp_core::fetch;
use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::time::MonoTime;
use hyper::header::HeaderValue;
use hyper::{StatusCode, header};
use tokio::sync::watch;

use super::status::{Status, render};
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::http::body::HttpResponse;
use crate::http::response::with_type;
use crate::metrics::Metrics;
use crate::monitor::endpoints;
use crate::monitor::health::HealthSnapshot;
use crate::repos::ref_cache::RefCache;
use crate::sync::status::Picture;

/// How long what was made is good.
const FRESH: Duration = Duration::from_secs(1);

/// Scripts and questions may go to this server alone.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'";

/// What the status is made of.
pub(crate) struct StatusCache {
    pub(crate) rounds: watch::Receiver<Arc<HealthSnapshot>>,
    /// What sync shows, if there is sync.
    pub(crate) sync: Option<watch::Receiver<Arc<Picture>>>,
    /// What the hunt shows, if there is one.
    pub(crate) hunt: Option<watch::Receiver<Arc<fetch::FetchView>>>,
    pub(crate) leaving: watch::Receiver<bool>,
    pub(crate) settings: SettingsReceiver,
    pub(crate) directory: Arc<RefCache>,
    pub(crate) meter: Metrics,
    pub(crate) clock: Clock,
    /// What was made last. Whoever comes while it is made anew waits for that, which takes a few milliseconds.
    pub(crate) made: Mutex<Option<(MonoTime, Arc<Made>)>>,
}

/// The status as people and as programs read it.
pub(crate) struct Made {
    html: String,
    json: String,
}

impl StatusCache {
    /// What the watchman has seen last.
    pub(crate) fn round(&self) -> Arc<HealthSnapshot> {
        self.rounds.borrow().clone()
    }

    /// Whether the server is going down.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// The status as programs read it.
    pub(crate) fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.made().json).unwrap_or_default()
    }

    fn made(&self) -> Arc<Made> {
        let now = self.clock.mono();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, made)) = &*made
            && now.since(*at) < FRESH
        {
            return made.clone();
        }
        let fresh = Arc::new(self.make(now));
        *made = Some((now, fresh.clone()));
        fresh
    }

    fn make(&self, now: MonoTime) -> Made {
        let round = self.round();
        let config = self.settings.borrow().clone();
        let sync = self.sync.as_ref().map(|sync| sync.borrow().clone());
        let hunt = self.hunt.as_ref().map(|hunt| hunt.borrow().clone());
        let directory = &self.directory;
        let is_served = |repo_path: &RepoPath| match repo_path {
            RepoPath::Announced(_) => directory.open(repo_path).is_some_and(|open| open.status == EventStatus::Served),
            // Anybody may submit; what there is of it is known once it has a ref.
            RepoPath::PullRequests(_) => {
                let has_refs =
                    |repo_path| directory.cached(repo_path).is_some_and(|known| known.refs.iter().next().is_some());
                directory.open(repo_path).is_some() && has_refs(repo_path)
            }
        };
        let (html, json) = render(&Status {
            name: &config.relay_name,
            version: env!("CARGO_PKG_VERSION"),
            uptime_secs: now.0 / 1_000,
            checks: &endpoints::checks(&round, now, self.is_leaving()),
            round: &round,
            websockets: self.meter.relay().active(),
            sync: sync.as_deref(),
            hunt: hunt.as_deref(),
            is_served: &is_served,
            refused_events: &self.meter.relay().reasons(),
            refused_pushes: &self.meter.git().codes(),
            cache: self.meter.git().cache_counts(),
        });
        Made { html, json }
    }

    /// `GET /status`.
    pub(crate) fn page(&self) -> HttpResponse {
        let mut answer = with_type(StatusCode::OK, "text/html; charset=utf-8", self.made().html.clone());
        answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        never_kept(answer)
    }

    /// `GET /status.json`.
    pub(crate) fn json(&self) -> HttpResponse {
        never_kept(with_type(StatusCode::OK, "application/json", self.made().json.clone()))
    }
}

/// `GET /status.js`.
pub(crate) fn script() -> HttpResponse {
    let mut answer =
        with_type(StatusCode::OK, "text/javascript; charset=utf-8", include_str!("status/status.js").to_owned());
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer
}

fn never_kept(mut answer: HttpResponse) -> HttpResponse {
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
