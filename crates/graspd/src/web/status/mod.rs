//! The status of the service, as a page ([`page`]) and as JSON ([`json`]).
//!
//! Every displayed value that can change has a key, which is the same in the page and in the JSON, so that a small
//! script (`status.js`) can update the page. [`mod@format`] formats states.
//!
//! [`render`] is a pure function; [`status_cache`](super::status_cache) calls it.

pub(crate) mod format;
pub(crate) mod json;
mod page;

use std::collections::BTreeMap;

use grasp_core::fetch;
use grasp_core::repo::RepoPath;

use self::json::StatusDocument;
use self::page::StatusPage;
use crate::monitor::endpoints::HealthCheck;
use crate::monitor::health::{ExpiringEvent, HealthSnapshot};
use crate::sync::status::SyncStatus;

/// Maximum number of displayed relays, git servers and fetch jobs. The most important are first.
const MAX_ROWS: usize = 200;

/// Maximum number of displayed waiting events, and of displayed sources of one fetch job.
const MAX_DETAILS: usize = 10;

/// Content of the status page.
pub(crate) struct StatusView<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    pub(crate) uptime_secs: u64,
    pub(crate) checks: &'a [HealthCheck],
    pub(crate) health: &'a HealthSnapshot,
    pub(crate) websockets: i64,
    pub(crate) sync: Option<&'a SyncStatus>,
    pub(crate) fetch: Option<&'a fetch::FetchView>,
    /// Returns whether a repository is served. Others are not public and are omitted.
    pub(crate) is_served: &'a dyn Fn(&RepoPath) -> bool,
    /// Number of rejected events by reason.
    pub(crate) rejected_events: &'a BTreeMap<String, u64>,
    /// Number of rejected pushes by code.
    pub(crate) rejected_pushes: &'a BTreeMap<&'static str, u64>,
    /// Hits and misses of the pack cache.
    pub(crate) pack_cache: (u64, u64),
}

impl<'a> StatusView<'a> {
    /// Returns the events that expire next, each with a repository that it is for. Events without a served repository
    /// are omitted.
    fn next_to_expire(&self) -> impl Iterator<Item = (&'a ExpiringEvent, &'a RepoPath)> {
        let is_served = self.is_served;
        let all = self.health.writer_stats.iter().flat_map(|stats| &stats.next_to_expire);
        all.filter_map(move |event| Some((event, event.repo_paths.iter().find(|repo_path| is_served(repo_path))?)))
            .take(MAX_DETAILS)
    }
}

/// Returns the page and the JSON.
pub(crate) fn render(view: &StatusView<'_>) -> (String, StatusDocument) {
    let page = StatusPage::new(view);
    let mut document = json::status(view);
    document.details.insert("shape".to_owned(), serde_json::json!(page.shape));
    document.details.insert("shown".to_owned(), serde_json::json!(page.values()));
    (super::render(&page), document)
}

#[cfg(test)]
mod tests {
    use grasp_core::sync::RelaySnapshot;
    use grasp_core::sync::relay::ConnectionStatus;
    use grasp_core::sync::relay_url::RelayUrl;
    use grasp_core::time::Timestamp;
    use serde_json::Value;

    use super::super::tests::{HOSTILE, assert_only_known_html, escaped};
    use super::*;
    use crate::monitor::health::WriterStats;
    use crate::sync::status::RelayProblem;

    fn relay(url: &str) -> RelaySnapshot {
        RelaySnapshot {
            url: RelayUrl::parse(url).expect("an invalid relay URL"),
            status: ConnectionStatus::Disconnected,
            health: grasp_core::sync::health::HealthStatus::Degraded,
            failures: 3,
            repositories: 2,
            covered: 1,
            held: 0,
            subscriptions: (1, 2),
            filters: 3,
            polled: 0,
            is_wide: false,
            queued: 4,
            dial_in_millis: Some(30_000),
            cooldown_secs: None,
            failed_batches: 0,
            historic_sync_completed_at: Some(Timestamp(900)),
            last_message_at: Some(Timestamp(950)),
            next_full_sync_secs: 60,
            is_reconciling: false,
            progress: None,
            learned: Default::default(),
            totals: Default::default(),
            is_paused: false,
            is_self: false,
            is_bootstrap: false,
        }
    }

    fn rendered(name: &str, sync_status: &SyncStatus, checks: &[HealthCheck]) -> (String, Value) {
        let health = HealthSnapshot {
            wall_time: Timestamp(1_000),
            writer_stats: Some(WriterStats { states: 2, ..WriterStats::default() }),
            queues: vec![("queries", 3)],
            budgets: vec![("pack_cache_bytes", 1_210_000_000, 2_000_000_000)],
            volumes: vec![("events", 5_000_000_000, 64_000_000)],
            ..HealthSnapshot::default()
        };
        let (html, json) = render(&StatusView {
            name,
            version: "1",
            uptime_secs: 90_061,
            checks,
            health: &health,
            websockets: 4,
            sync: Some(sync_status),
            fetch: None,
            is_served: &|_| true,
            rejected_events: &BTreeMap::from([("not_listed".to_owned(), 1_234)]),
            rejected_pushes: &BTreeMap::from([("E-STATE-MISSING", 2)]),
            pack_cache: (1, 3),
        });
        (html, serde_json::json!(json))
    }

    fn assert_own_html(html: &str) {
        let script = "<script src=\"status.js\" defer></script>";
        assert_eq!(html.matches("<script").count(), 1, "there must be one script: {html}");
        assert_only_known_html(&html.replace(script, "").replace("href=\"status.json\"", "href=\"http://x/\""));
    }

    #[test]
    fn untrusted_text_is_escaped() {
        for hostile in HOSTILE {
            let mut sync_status = SyncStatus::default();
            sync_status.snapshot.relays.push(relay("wss://a.example"));
            sync_status.problems.insert(
                RelayUrl::parse("wss://a.example").expect("an invalid relay URL"),
                RelayProblem { at: Timestamp(1), text: hostile.to_owned() },
            );
            let check = HealthCheck { name: "store", is_ok: false, detail: hostile.to_owned() };
            let (html, json) = rendered(hostile, &sync_status, &[check]);
            assert_own_html(&html);
            assert_eq!(json["relays"][0]["why"], hostile);
            assert_eq!(json["ready"], false);
        }
    }

    #[test]
    fn page_and_json_have_the_same_values() {
        let mut sync_status = SyncStatus::default();
        sync_status.snapshot.relays.push(relay("wss://a.example"));
        let (html, json) = rendered("x", &sync_status, &[]);
        assert_own_html(&html);
        for (key, text) in json["shown"].as_object().expect("no values") {
            let text = text.as_str().expect("not a text");
            let cell = format!("<span data-k=\"{}\">{}</span>", escaped(key), escaped(text));
            assert!(html.contains(&cell), "{cell} in {html}");
        }
        assert!(html.contains(&format!("data-shape=\"{}\"", json["shape"].as_str().expect("no shape"))));
        assert_eq!(json["shown"]["uptime"], "1 d 1 h");
        assert_eq!(json["shown"]["budget.pack_cache_bytes"], "1.21 GB of 2.00 GB");
        assert_eq!(json["relays"][0]["lag_seconds"], 100);
        assert_eq!(json["relays"][0]["state"], "disconnected");
        assert_eq!(json["purgatory"]["states"], 2);
        assert!(html.contains("event: not listed"), "{html}");
    }

    #[test]
    fn only_served_repositories_are_listed() {
        use grasp_core::fetch::{FetchView, JobView, SourceOutcome, SourceView};
        use grasp_core::nostr::PublicKey;
        use grasp_core::repo::{Identifier, RepoId};
        use grasp_core::sync::io::SyncSource;
        let repo_path = |name: &str| {
            let identifier = Identifier::new(name).expect("an invalid identifier");
            RepoPath::Announced(RepoId { owner: PublicKey([1; 32]), identifier })
        };
        let source = |outcome| SourceView {
            url: "https://git.example:8080/secret/fork.git".to_owned(),
            is_asking: false,
            is_waiting: false,
            outcome,
        };
        let job = |name: &str| JobView {
            repo_path: repo_path(name),
            events: (1, 0),
            missing: 1,
            examples: Vec::new(),
            attempts: 2,
            next_in_millis: Some(20_000),
            sources: vec![source(Some(SourceOutcome::NotByOid)); 2 * MAX_DETAILS],
        };
        let event = |name: &str, secs| ExpiringEvent {
            time_left: std::time::Duration::from_secs(secs),
            kind: "state",
            repo_paths: vec![repo_path(name)],
            tried: true,
        };
        let fetch = FetchView { jobs: vec![job("hidden"), job("open")], ..FetchView::default() };
        let next_to_expire = vec![event("hidden", 1), event("open", 60)];
        let stats = WriterStats { next_to_expire, tried: 2, ..WriterStats::default() };
        let mut sync_status = SyncStatus::default();
        let progress =
            Some(grasp_core::sync::CatchUpProgress { source: SyncSource::Daily, done: 3, total: 7, events: 11 });
        sync_status.snapshot.relays.push(RelaySnapshot { progress, ..relay("wss://a.example") });
        let (html, json) = render(&StatusView {
            name: "x",
            version: "1",
            uptime_secs: 1,
            checks: &[],
            health: &HealthSnapshot { writer_stats: Some(stats), ..HealthSnapshot::default() },
            websockets: 0,
            sync: Some(&sync_status),
            fetch: Some(&fetch),
            is_served: &|repo_path| repo_path.identifier().as_str() == "open",
            rejected_events: &BTreeMap::new(),
            rejected_pushes: &BTreeMap::new(),
            pack_cache: (0, 0),
        });
        let json = serde_json::json!(json);
        assert_own_html(&html);
        for private in ["hidden", "secret"] {
            assert!(!html.contains(private) && !json.to_string().contains(private), "{private} in {html} {json}");
        }
        assert!(html.contains("git.example:8080: not by oid") && html.contains("10 more sources"), "{html}");
        assert!(html.contains("open.git: git data not found on any source yet, expires in 1 min 0 s"), "{html}");
        assert!(html.contains("daily reconciliation: 3 of 7 repositories, 11 new events"), "{html}");
        let source = &json["fetch"]["repositories"][0]["sources"][0];
        assert_eq!(*source, serde_json::json!({"host": "git.example:8080", "outcome": "not_by_oid"}));
        assert_eq!(json["purgatory"]["next_to_expire"][0]["seconds"], 60);
        assert_eq!((&json["catch_ups"][0]["done"], &json["catch_ups"][0]["repositories"]), (&3.into(), &7.into()));
    }

    #[test]
    fn shape_depends_on_structure_and_not_on_values() {
        let mut sync_status = SyncStatus::default();
        sync_status.snapshot.relays.push(relay("wss://a.example"));
        let (_, before) = rendered("x", &sync_status, &[]);
        sync_status.snapshot.relays[0].covered = 2;
        let (_, same) = rendered("x", &sync_status, &[]);
        assert_eq!(before["shape"], same["shape"]);
        assert_ne!(before["shown"], same["shown"]);
        sync_status.snapshot.relays.push(relay("wss://b.example"));
        let (_, more) = rendered("x", &sync_status, &[]);
        assert_ne!(before["shape"], more["shape"]);
    }

    #[test]
    fn long_list_of_relays_is_truncated() {
        let mut sync_status = SyncStatus::default();
        for nth in 0..5_000 {
            sync_status.snapshot.relays.push(relay(&format!("wss://r{nth}.example")));
        }
        let (html, json) = rendered("x", &sync_status, &[]);
        assert_own_html(&html);
        assert!(html.contains("… and 4800 more") && html.len() < 300_000, "{}", html.len());
        assert_eq!(json["relays"].as_array().map(Vec::len), Some(MAX_ROWS));
        assert_eq!(json["sync"]["relays"], 5_000);
    }

    /// The keys and values are part of the interface: users read `/status.json` and `graspd relays --json`.
    #[test]
    fn json_of_the_status_is_stable() {
        let mut sync_status = SyncStatus::default();
        sync_status.snapshot.relays.push(relay("wss://a.example"));
        let check = HealthCheck { name: "store", is_ok: true, detail: "writable".to_owned() };
        let (_, mut json) = rendered("x", &sync_status, &[check]);
        let (relays, details) = (json["relays"].take(), json.as_object_mut().expect("an object"));
        details.remove("shape");
        details.remove("shown");
        assert_eq!(
            serde_json::json!(details).to_string(),
            r#"{"at":1000,"budgets":{"pack_cache_bytes":{"limit":2000000000,"used":1210000000}},"catch_ups":[],"checks":{"store":{"detail":"writable","ok":true}},"disk":{"complete":null,"measured_at":null,"use":null,"volumes":{"events":{"free":5000000000,"mark":64000000}}},"events":{"held":0,"served":0},"fetch":null,"memory":{"resident_bytes":0},"name":"x","pack_cache":{"hits":1,"misses":3},"purgatory":{"announcements":0,"bytes":0,"dormant":0,"next_deadline_seconds":null,"next_to_expire":[],"oldest_seconds":null,"pull_requests":0,"states":2,"tried":0,"uploads":0},"queues":{"queries":3},"ready":true,"rejected":{"events":{"not_listed":1234},"pushes":{"E-STATE-MISSING":2}},"relays":null,"repositories":0,"sync":{"in_flight":0,"rejected":0,"relays":1,"repositories":0},"uptime_seconds":90061,"version":"1","websockets":4}"#
        );
        assert_eq!(
            relays[0].to_string(),
            r#"{"bootstrap":false,"complete_at":900,"coverage_ratio":null,"covered":1,"daily":false,"events_received":0,"failed_batches":0,"failures":3,"full_in_seconds":60,"gaps":0,"health":"degraded","held":0,"is_self":false,"lag_seconds":100,"last_message_at":950,"limits":{"filters":null,"slots":null,"subscription_bytes":null},"paused":false,"quiet_seconds":null,"repositories":2,"retry_in_seconds":30,"state":"disconnected","subscriptions":{"filters":3,"live":1,"polled":0,"queued":4,"requests":2,"wide":false},"uptime_ratio":null,"url":"wss://a.example","why":null,"why_at":null}"#
        );
    }
}
