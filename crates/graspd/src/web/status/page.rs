//! The status page.

use std::collections::BTreeMap;

use grasp_core::fetch::HostView;
use grasp_core::sync::io::SyncSource;
use grasp_core::sync::{CatchUpProgress, RelaySnapshot};

use super::super::{Escaped, NAME_CHARS, STYLE, truncated};
use super::format::{
    Rating, bytes, count, display_order, duration, lag, percentage, relay_state, source_outcome, waiting_reason,
};
use super::{MAX_DETAILS, MAX_ROWS, StatusView};
use crate::monitor::endpoints::HealthCheck;
use crate::sync::status::RelayProblem;

/// Maximum number of displayed reasons of rejections. The most frequent are displayed.
const MAX_REJECTIONS: usize = 12;

/// Additional style sheet of the status page, with the colours of [`Rating`].
const STATUS_STYLE: &str = "\
:root{--good:#137333;--bad:#b3261e}@media(prefers-color-scheme:dark){:root{--good:#81c995;--bad:#f2b8b5}}\
.good{color:var(--good)}.fair{color:var(--note)}.bad{color:var(--bad)}.good,.fair,.bad{font-weight:600}\
dl.facts{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;gap:.2rem 1rem;margin:.5rem 0}\
dl.facts dt{font-weight:400;opacity:.8}dl.facts dd{margin:0;font-variant-numeric:tabular-nums}\
ul.rows{list-style:none;padding:0}ul.rows li{border-top:1px solid var(--soft);padding:.5rem 0}\
small{opacity:.85;font-variant-numeric:tabular-nums}";

/// The status page under construction.
#[derive(Default)]
pub(super) struct StatusPage {
    html: String,
    /// The displayed values by key.
    pub(super) values: BTreeMap<String, String>,
    /// Keys, classes and numbers of rows: everything that determines the structure of the page, without the values.
    pub(super) structure: Vec<String>,
}

impl StatusPage {
    pub(super) fn new(view: &StatusView<'_>) -> Self {
        let mut page = Self::default();
        page.add_summary(view);
        page.add_relays(view);
        page.add_purgatory(view);
        page.add_fetch(view);
        page.add_rejections(view);
        page.add_disk(view);
        page.add_budgets_and_queues(view);
        page
    }

    /// Returns the complete page.
    pub(super) fn html(&self, view: &StatusView<'_>, shape: &str) -> String {
        let title = format!("Status of {}", truncated(view.name, NAME_CHARS));
        format!(
            "<!doctype html><html lang=en><head><meta charset=utf-8>\
             <meta name=viewport content=\"width=device-width,initial-scale=1\">\
             <title>{}</title><style>{STYLE}{STATUS_STYLE}</style><script src=\"status.js\" defer></script></head>\
             <body><main data-shape=\"{shape}\"><h1>{0}</h1>{}\
             <footer><span id=\"live\">As of the time when this page was loaded.</span> \
             <a href=\"status.json\">As JSON</a>. graspd {}</footer></main></body></html>\n",
            Escaped(&title),
            self.html,
            Escaped(view.version),
        )
    }

    /// Returns a value in HTML and records it under its key.
    fn value(&mut self, key: &str, text: String) -> String {
        let html = format!("<span data-k=\"{}\">{}</span>", Escaped(key), Escaped(&text));
        self.structure.push(key.to_owned());
        self.values.insert(key.to_owned(), text);
        html
    }

    /// Returns a state in the colour of its rating.
    fn rated_value(&mut self, key: &str, text: &str, rating: Rating) -> String {
        let class = rating.class();
        self.structure.push(format!("{key} {class}"));
        format!("<b class={class}>{}</b>", self.value(key, text.to_owned()))
    }

    fn add_heading(&mut self, text: &str) {
        self.html += &format!("<h2>{text}</h2>");
    }

    /// Adds a table of names, keys and values.
    fn add_facts(&mut self, facts: &[(&str, &str, String)]) {
        let mut rows = String::new();
        for (name, key, text) in facts {
            rows += &format!("<dt>{}</dt><dd>{}</dd>", Escaped(name), self.value(key, text.clone()));
        }
        self.html += &format!("<dl class=facts>{rows}</dl>");
    }

    /// Adds a list, with the number of omitted entries.
    fn add_rows(&mut self, rows: &[String], more: usize) {
        self.html += "<ul class=rows>";
        for row in rows {
            self.html += &format!("<li>{row}</li>");
        }
        if more > 0 {
            self.structure.push(format!("{more} more"));
            self.html += &format!("<li>… and {more} more</li>");
        }
        self.html += "</ul>";
    }

    fn add_summary(&mut self, view: &StatusView<'_>) {
        let failing: Vec<&HealthCheck> = view.checks.iter().filter(|check| !check.is_ok).collect();
        let state = if failing.is_empty() {
            self.rated_value("ready", "ready", Rating::Good)
        } else {
            self.rated_value("ready", "not ready", Rating::Bad)
        };
        self.html += &format!("<p>This service is {state}.</p>");
        for check in failing {
            let detail = self.value(&format!("check.{}", check.name), check.detail.clone());
            self.html += &format!("<p class=note>{}: {detail}</p>", Escaped(&check.name.replace('_', " ")));
        }
        let health = view.health;
        self.add_facts(&[
            ("Uptime", "uptime", duration(view.uptime_secs)),
            ("Repositories", "repositories", health.repositories.to_string()),
            ("Events", "events", count(health.served_events)),
            ("Websockets", "websockets", view.websockets.to_string()),
            ("Memory", "memory", bytes(health.resident_bytes)),
        ]);
    }

    fn add_relays(&mut self, view: &StatusView<'_>) {
        self.add_heading("Relays");
        let Some(sync) = view.sync else {
            self.html += "<p>Sync is disabled; other relays are not followed.</p>";
            return;
        };
        if sync.snapshot.relays.is_empty() {
            self.html += "<p>No hosted repository lists another relay.</p>";
            return;
        }
        let relays = display_order(&sync.snapshot);
        let now = view.health.wall_time.0;
        let rows: Vec<String> = relays
            .iter()
            .take(MAX_ROWS)
            .map(|relay| self.relay_row(relay, sync.problems.get(&relay.url), now))
            .collect();
        self.add_rows(&rows, relays.len().saturating_sub(MAX_ROWS));
    }

    fn relay_row(&mut self, relay: &RelaySnapshot, problem: Option<&RelayProblem>, now: u64) -> String {
        let key = |name: &str| format!("relay.{}.{name}", relay.url);
        let (state, rating) = relay_state(relay);
        let mut out = format!(
            "<code>{}</code> {}<br><small>",
            Escaped(&truncated(&relay.url.to_string(), NAME_CHARS)),
            self.rated_value(&key("state"), state, rating)
        );
        let mut parts = vec![format!("{} of {} repositories complete", relay.covered, relay.repositories)];
        if relay.held > 0 {
            parts.push(format!("{} repositories that are not served yet", relay.held));
        }
        if let Some(progress) = &relay.progress {
            let activity = if progress.source == SyncSource::Daily { "daily reconciliation" } else { "catching up" };
            let CatchUpProgress { done, total, events, .. } = progress;
            let left = relay.queued + relay.subscriptions.1;
            parts
                .push(format!("{activity}: {done} of {total} repositories, {events} new events, {left} requests left"));
        }
        if let Some(lag) = lag(relay, now) {
            parts.push(format!("behind by {}", duration(lag)));
        }
        if let Some(at) = relay.last_message_at {
            parts.push(format!("last message {} ago", duration(now.saturating_sub(at.0))));
        }
        parts.push(format!("{} live subscriptions, {} other requests", relay.subscriptions.0, relay.subscriptions.1));
        if let Some(limit) = relay.learned.max_subscriptions {
            parts.push(format!("limit of {limit} subscriptions"));
        }
        if let Some(share) = percentage(relay.totals.up_secs, relay.totals.up_secs + relay.totals.down_secs) {
            parts.push(format!("connected {share} of the time"));
        }
        if let Some(share) = percentage(relay.totals.shared, relay.totals.compared) {
            parts.push(format!("has {share} of the events here"));
        }
        parts.push(format!("{} new events received", count(relay.totals.received)));
        if let Some(secs) = relay.cooldown_secs {
            parts.push(format!("no requests for {}", duration(secs)));
        }
        if let Some(millis) = relay.dial_in_millis {
            parts.push(format!("next connection attempt in {}", duration(millis.div_ceil(1_000))));
        }
        if let Some(problem) = problem {
            parts.push(format!(
                "{} ago: {}",
                duration(now.saturating_sub(problem.at.0)),
                truncated(&problem.text, 2 * NAME_CHARS)
            ));
        }
        out += &self.value(&key("about"), parts.join(" · "));
        out + "</small>"
    }

    fn add_purgatory(&mut self, view: &StatusView<'_>) {
        self.add_heading("Waiting for git data");
        let Some(stats) = &view.health.writer_stats else {
            self.html += "<p>Not measured yet.</p>";
            return;
        };
        let oldest = stats.oldest.map_or("–".to_owned(), |age| duration(age.as_secs()));
        let next = stats.next_deadline.map_or("–".to_owned(), |left| duration(left.as_secs()));
        self.add_facts(&[
            ("Announcements", "purgatory.announcements", stats.announcements.to_string()),
            ("States", "purgatory.states", stats.states.to_string()),
            ("Pull requests", "purgatory.pulls", stats.pull_requests.to_string()),
            ("Not found on any source", "purgatory.tried", stats.tried.to_string()),
            ("Age of the oldest", "purgatory.oldest", oldest),
            ("Next expiry in", "purgatory.next", next),
            ("Dormant", "purgatory.dormant", stats.dormant.to_string()),
            ("Pushed commits without an event", "purgatory.uploads", stats.uploads.to_string()),
        ]);
        let rows = view.next_to_expire().enumerate().map(|(nth, (event, repo_path))| {
            let path = repo_path.path();
            let left = duration(event.time_left.as_secs());
            let about = format!(
                "{} of {}: {}, expires in {left}",
                event.kind,
                truncated(&path, 2 * NAME_CHARS),
                waiting_reason(event)
            );
            format!("<small>{}</small>", self.value(&format!("waiting.{nth}"), about))
        });
        let rows: Vec<String> = rows.collect();
        if !rows.is_empty() {
            self.add_rows(&rows, 0);
        }
    }

    fn add_fetch(&mut self, view: &StatusView<'_>) {
        let Some(fetch) = view.fetch else { return };
        self.add_heading("Fetching of git data");
        self.add_facts(&[
            ("Repositories with missing data", "hunt.queue", fetch.jobs.len().to_string()),
            ("Running fetches", "hunt.in_flight", fetch.in_flight.to_string()),
            ("Fetches", "hunt.fetches", count(fetch.stats.fetches)),
            ("Fetched objects", "hunt.oids", count(fetch.stats.oids)),
        ]);
        let jobs: Vec<_> = fetch.jobs.iter().filter(|job| (view.is_served)(&job.repo_path)).collect();
        let rows: Vec<String> = jobs
            .iter()
            .take(MAX_ROWS)
            .map(|job| {
                let path = job.repo_path.path();
                let next = match job.next_in_millis {
                    Some(millis) => format!("next round in {}", duration(millis.div_ceil(1_000))),
                    None => "round in progress".to_owned(),
                };
                let mut about = format!(
                    "{} objects missing for {} events · {} rounds · {next}",
                    job.missing, job.events.0, job.attempts
                );
                for (host, outcome) in job.sources.iter().take(MAX_DETAILS).map(source_outcome) {
                    about += &format!(" · {}: {}", truncated(host, NAME_CHARS), outcome.replace('_', " "));
                }
                if job.sources.len() > MAX_DETAILS {
                    about += &format!(" · {} more sources", job.sources.len() - MAX_DETAILS);
                }
                let about = self.value(&format!("wanted.{path}"), about);
                format!("<code>{}</code><br><small>{about}</small>", Escaped(&truncated(&path, 2 * NAME_CHARS)))
            })
            .collect();
        if !rows.is_empty() {
            self.add_rows(&rows, jobs.len().saturating_sub(MAX_ROWS));
        }
        let rows: Vec<String> = fetch.hosts.iter().take(MAX_ROWS).map(|host| self.host_row(host)).collect();
        if !rows.is_empty() {
            self.add_heading("Git servers");
            self.add_rows(&rows, fetch.hosts.len().saturating_sub(MAX_ROWS));
        }
    }

    fn host_row(&mut self, host: &HostView) -> String {
        let mut parts = vec![
            format!("{} of {} concurrent fetches", host.in_flight, host.limits.concurrent),
            format!("at most {} per minute", host.limits.per_minute),
            format!("{} waiting", host.waiting),
            format!("{} in total", count(host.requests)),
        ];
        if let Some((millis, reason)) = &host.quiet {
            let reason = reason.label().replace('_', " ");
            parts.push(format!("no requests for {} ({reason})", duration(millis.div_ceil(1_000))));
        }
        if host.failures > 0 {
            parts.push(format!("{} consecutive failures", host.failures));
        }
        let about = self.value(&format!("host.{}", host.authority), parts.join(" · "));
        format!("<code>{}</code><br><small>{about}</small>", Escaped(&truncated(&host.authority, NAME_CHARS)))
    }

    fn add_rejections(&mut self, view: &StatusView<'_>) {
        let events = view.rejected_events.iter().map(|(reason, times)| (format!("event.{reason}"), *times));
        let pushes = view.rejected_pushes.iter().map(|(code, times)| (format!("push.{code}"), *times));
        let mut all: Vec<(String, u64)> = events.chain(pushes).collect();
        if all.is_empty() {
            return;
        }
        all.sort_by(|left, right| right.1.cmp(&left.1).then(left.0.cmp(&right.0)));
        all.truncate(MAX_REJECTIONS);
        self.add_heading("Most frequent rejections since the start");
        let facts: Vec<(String, String, String)> = all
            .into_iter()
            .map(|(key, times)| {
                let (kind, reason) = key.split_once('.').unwrap_or(("", &key));
                (format!("{kind}: {}", reason.replace('_', " ")), format!("refused.{key}"), count(times))
            })
            .collect();
        let facts: Vec<(&str, &str, String)> =
            facts.iter().map(|(name, key, text)| (name.as_str(), key.as_str(), text.clone())).collect();
        self.add_facts(&facts);
    }

    fn add_disk(&mut self, view: &StatusView<'_>) {
        self.add_heading("Disk");
        let health = view.health;
        let mut facts: Vec<(String, String, String)> = Vec::new();
        for (volume, free, reserve) in &health.volumes {
            let text = format!("{} free, {} reserved", bytes(*free), bytes(*reserve));
            facts.push((format!("Volume of {volume}"), format!("volume.{volume}"), text));
        }
        for (kind, used) in health.disk_usage.iter().flat_map(|disk| &disk.bytes_by_kind) {
            facts.push((format!("Used by {kind}"), format!("disk.{kind}"), bytes(*used)));
        }
        let facts: Vec<(&str, &str, String)> =
            facts.iter().map(|(name, key, text)| (name.as_str(), key.as_str(), text.clone())).collect();
        self.add_facts(&facts);
    }

    fn add_budgets_and_queues(&mut self, view: &StatusView<'_>) {
        self.add_heading("Budgets and queues");
        let health = view.health;
        let mut facts: Vec<(String, String, String)> = Vec::new();
        for (name, used, limit) in &health.budgets {
            let is_bytes = name.ends_with("_bytes");
            let text = |amount: u64| if is_bytes { bytes(amount) } else { count(amount) };
            let label = match *name {
                "pack_cache_bytes" => "pack cache".to_owned(),
                "disk_bytes" => "disk".to_owned(),
                name => name.replace("_bytes", " memory").replace('_', " "),
            };
            facts.push((label, format!("budget.{name}"), format!("{} of {}", text(*used), text(*limit))));
        }
        let (hits, misses) = view.pack_cache;
        facts.push((
            "pack cache hits".to_owned(),
            "cache".to_owned(),
            format!("{} of {}", count(hits), count(hits + misses)),
        ));
        let waiting: Vec<String> = health
            .queues
            .iter()
            .filter(|(_, depth)| *depth > 0)
            .map(|(queue, depth)| format!("{} {depth}", queue.replace('_', " ")))
            .collect();
        let waiting = if waiting.is_empty() { "nothing".to_owned() } else { waiting.join(" · ") };
        facts.push(("waiting in queues".to_owned(), "queues".to_owned(), waiting));
        let facts: Vec<(&str, &str, String)> =
            facts.iter().map(|(name, key, text)| (name.as_str(), key.as_str(), text.clone())).collect();
        self.add_facts(&facts);
    }
}
