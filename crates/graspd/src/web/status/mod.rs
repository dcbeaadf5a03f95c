//! How the service is: one picture for people and for programs. Every value that can change stands under a key, in the
//! page and in the JSON alike, so that a small script keeps the page up to date.
//!
//! - [`page`]: for people. [`json`]: for programs. [`words`]: how amounts and states are said, there and elsewhere.

pub(crate) mod format;
pub(crate) mod json;
mod page;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use grasp_core::fetch;
use grasp_core::repo::RepoPath;

use self::page::Sheet;
use crate::monitor::endpoints::Check;
use crate::monitor::health::{ExpiringEvent, HealthSnapshot};
use crate::sync::status::Picture;

/// Relays, git servers and searches that are shown: the most important first, and how many more there are.
const MOST: usize = 200;

/// Events that wait, and places of one search, that are shown.
const FEW: usize = 10;

/// What the status is made of.
pub(crate) struct Status<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    pub(crate) uptime_secs: u64,
    pub(crate) checks: &'a [Check],
    pub(crate) round: &'a HealthSnapshot,
    pub(crate) websockets: i64,
    pub(crate) sync: Option<&'a Picture>,
    pub(crate) hunt: Option<&'a fetch::FetchView>,
    /// Whether a site is served; others are nobody's business yet.
    pub(crate) is_served: &'a dyn Fn(&RepoPath) -> bool,
    pub(crate) refused_events: &'a BTreeMap<String, u64>,
    pub(crate) refused_pushes: &'a BTreeMap<&'static str, u64>,
    /// Hits and misses of the pack cache.
    pub(crate) cache: (u64, u64),
}

impl<'a> Status<'a> {
    /// The events that give up next, with the repositories that they are for, as far as those are served.
    fn soonest(&self) -> impl Iterator<Item = (&'a ExpiringEvent, &'a RepoPath)> {
        let is_served = self.is_served;
        let all = self.round.vitals.iter().flat_map(|vitals| &vitals.soonest);
        all.filter_map(move |event| Some((event, event.repo_paths.iter().find(|repo_path| is_served(repo_path))?)))
            .take(FEW)
    }
}

/// The page and the JSON.
pub(crate) fn render(status: &Status<'_>) -> (String, String) {
    let sheet = Sheet::of(status);
    let mut shape = DefaultHasher::new();
    sheet.shape.hash(&mut shape);
    let shape = format!("{:016x}", shape.finish());
    let mut json = json::status(status);
    json["shape"] = serde_json::json!(shape);
    json["shown"] = serde_json::json!(sheet.shown);
    (sheet.html(status, &shape), json.to_string() + "\n")
}

#[cfg(test)]
mod tests {
    use grasp_core::sync::relay_url::RelayUrl;
    use grasp_core::sync::{RelaySnapshot, relay};
    use grasp_core::time::Timestamp;
    use serde_json::Value;

    use super::super::Text;
    use super::super::tests::{HOSTILE, expect_tame};
    use super::format::{bytes, count, duration};
    use super::*;
    use crate::monitor::health::WriterStats;
    use crate::sync::status::Why;

    fn link(url: &str) -> RelaySnapshot {
        RelaySnapshot {
            url: RelayUrl::parse(url).expect("a relay"),
            status: relay::ConnectionStatus::Disconnected,
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

    fn rendered(name: &str, picture: &Picture, checks: &[Check]) -> (String, Value) {
        let round = HealthSnapshot {
            wall: Timestamp(1_000),
            vitals: Some(WriterStats { states: 2, ..WriterStats::default() }),
            queues: vec![("readers", 3)],
            budgets: vec![("pack_cache_bytes", 1_210_000_000, 2_000_000_000)],
            volumes: vec![("events", 5_000_000_000, 64_000_000)],
            ..HealthSnapshot::default()
        };
        let (html, json) = render(&Status {
            name,
            version: "1",
            uptime_secs: 90_061,
            checks,
            round: &round,
            websockets: 4,
            sync: Some(picture),
            hunt: None,
            is_served: &|_| true,
            refused_events: &BTreeMap::from([("not_listed".to_owned(), 1_234)]),
            refused_pushes: &BTreeMap::from([("E-STATE-MISSING", 2)]),
            cache: (1, 3),
        });
        (html, serde_json::from_str(&json).expect("JSON"))
    }

    fn tame(html: &str) {
        let script = "<script src=\"status.js\" defer></script>";
        assert_eq!(html.matches("<script").count(), 1, "one script, and it is ours: {html}");
        expect_tame(&html.replace(script, "").replace("href=\"status.json\"", "href=\"http://x/\""));
    }

    #[test]
    fn what_strangers_say_stays_text() {
        for hostile in HOSTILE {
            let mut picture = Picture::default();
            picture.view.relays.push(link("wss://a.example"));
            picture.why.insert(
                RelayUrl::parse("wss://a.example").expect("a relay"),
                Why { at: Timestamp(1), text: hostile.to_owned() },
            );
            let check = Check { name: "store", ok: false, detail: hostile.to_owned() };
            let (html, json) = rendered(hostile, &picture, &[check]);
            tame(&html);
            assert_eq!(json["relays"][0]["why"], hostile);
            assert_eq!(json["ready"], false);
        }
    }

    #[test]
    fn page_and_json_say_the_same() {
        let mut picture = Picture::default();
        picture.view.relays.push(link("wss://a.example"));
        let (html, json) = rendered("x", &picture, &[]);
        tame(&html);
        for (key, text) in json["shown"].as_object().expect("values") {
            let text = text.as_str().expect("text");
            let cell = format!("<span data-k=\"{}\">{}</span>", Text(key), Text(text));
            assert!(html.contains(&cell), "{cell} in {html}");
        }
        assert!(html.contains(&format!("data-shape=\"{}\"", json["shape"].as_str().expect("a shape"))));
        assert_eq!(json["shown"]["uptime"], "1 d 1 h");
        assert_eq!(json["shown"]["budget.pack_cache_bytes"], "1.21 GB of 2.00 GB");
        assert_eq!(json["relays"][0]["lag_seconds"], 100);
        assert_eq!(json["relays"][0]["state"], "disconnected");
        assert_eq!(json["purgatory"]["states"], 2);
        assert!(html.contains("event: not listed"), "{html}");
    }

    #[test]
    fn searches_and_catch_ups_are_told_of_what_is_served() {
        use grasp_core::fetch::{FetchView, JobView, SourceOutcome, SourceView};
        use grasp_core::nostr::PublicKey;
        use grasp_core::repo::{Identifier, RepoId};
        use grasp_core::sync::io::SyncSource;
        let repo_path = |name: &str| {
            let identifier = Identifier::new(name).expect("a name");
            RepoPath::Announced(RepoId { owner: PublicKey([1; 32]), identifier })
        };
        let stop = |outcome| SourceView {
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
            sources: vec![stop(Some(SourceOutcome::NotByOid)); 2 * FEW],
        };
        let event = |name: &str, secs| ExpiringEvent {
            left: std::time::Duration::from_secs(secs),
            kind: "state",
            repo_paths: vec![repo_path(name)],
            tried: true,
        };
        let hunt = FetchView { jobs: vec![job("hidden"), job("open")], ..FetchView::default() };
        let soonest = vec![event("hidden", 1), event("open", 60)];
        let vitals = WriterStats { soonest, tried: 2, ..WriterStats::default() };
        let mut picture = Picture::default();
        let progress =
            Some(grasp_core::sync::CatchUpProgress { source: SyncSource::Daily, done: 3, total: 7, events: 11 });
        picture.view.relays.push(RelaySnapshot { progress, ..link("wss://a.example") });
        let (html, json) = render(&Status {
            name: "x",
            version: "1",
            uptime_secs: 1,
            checks: &[],
            round: &HealthSnapshot { vitals: Some(vitals), ..HealthSnapshot::default() },
            websockets: 0,
            sync: Some(&picture),
            hunt: Some(&hunt),
            is_served: &|repo_path| repo_path.identifier().as_str() == "open",
            refused_events: &BTreeMap::new(),
            refused_pushes: &BTreeMap::new(),
            cache: (0, 0),
        });
        tame(&html);
        for private in ["hidden", "secret"] {
            assert!(!html.contains(private) && !json.contains(private), "{private} in {html} {json}");
        }
        assert!(html.contains("git.example:8080: not by oid") && html.contains("10 more places"), "{html}");
        assert!(html.contains("open.git: nobody has its git data so far, gives up in 1 min 0 s"), "{html}");
        assert!(html.contains("comparing everything: 3 of 7 repositories, 11 new events"), "{html}");
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let place = &json["hunt"]["repositories"][0]["places"][0];
        assert_eq!(*place, serde_json::json!({"host": "git.example:8080", "outcome": "not_by_oid"}));
        assert_eq!(json["purgatory"]["soonest"][0]["seconds"], 60);
        assert_eq!((&json["catch_ups"][0]["done"], &json["catch_ups"][0]["repositories"]), (&3.into(), &7.into()));
    }

    #[test]
    fn the_shape_changes_with_what_there_is_and_not_with_values() {
        let mut picture = Picture::default();
        picture.view.relays.push(link("wss://a.example"));
        let (_, before) = rendered("x", &picture, &[]);
        picture.view.relays[0].covered = 2;
        let (_, same) = rendered("x", &picture, &[]);
        assert_eq!(before["shape"], same["shape"]);
        assert_ne!(before["shown"], same["shown"]);
        picture.view.relays.push(link("wss://b.example"));
        let (_, more) = rendered("x", &picture, &[]);
        assert_ne!(before["shape"], more["shape"]);
    }

    #[test]
    fn a_crowd_of_relays_is_cut() {
        let mut picture = Picture::default();
        for nth in 0..5_000 {
            picture.view.relays.push(link(&format!("wss://r{nth}.example")));
        }
        let (html, json) = rendered("x", &picture, &[]);
        tame(&html);
        assert!(html.contains("… and 4800 more") && html.len() < 300_000, "{}", html.len());
        assert_eq!(json["relays"].as_array().map(Vec::len), Some(MOST));
        assert_eq!(json["sync"]["relays"], 5_000);
    }

    #[test]
    fn amounts_are_readable() {
        assert_eq!([0, 999, 1_000, 99_960, 1_210_000_000].map(bytes), ["0 B", "999 B", "1.00 kB", "100 kB", "1.21 GB"]);
        assert_eq!([59, 61, 600, 3_661, 90_000].map(duration), ["59 s", "1 min 1 s", "10 min", "1 h 1 min", "1 d 1 h"]);
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
