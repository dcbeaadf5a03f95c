//! The status page.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use askama::Template;
use grasp_core::fetch::{FetchView, HostView, JobView};
use grasp_core::sync::io::SyncSource;
use grasp_core::sync::{CatchUpProgress, RelaySnapshot};

use super::super::filters::{NAME_CHARS, truncated};
use super::format::{
    Rating, bytes, count, display_order, duration, lag, percentage, relay_state, source_outcome, waiting_reason,
};
use super::{MAX_DETAILS, MAX_ROWS, StatusView};
use crate::monitor::health::HealthSnapshot;
use crate::sync::status::RelayProblem;

/// Maximum number of displayed reasons of rejections. The most frequent are displayed.
const MAX_REJECTIONS: usize = 12;

/// The status page.
#[derive(Template)]
#[template(path = "status.html")]
pub(super) struct StatusPage<'a> {
    title: String,
    version: &'a str,
    /// Hash of everything that determines the structure of the page: keys, ratings and numbers of rows, not the values.
    pub(super) shape: String,
    sections: Vec<Section>,
}

#[derive(Default, Hash)]
struct Section {
    heading: &'static str,
    /// Whether the service is ready.
    state: Option<(Value, Rating)>,
    /// A sentence instead of a table.
    note: &'static str,
    failing_checks: Vec<Fact>,
    facts: Vec<Fact>,
    rows: Vec<Row>,
    omitted_rows: usize,
}

/// A named value.
#[derive(Hash)]
struct Fact {
    name: String,
    value: Value,
}

/// Status of a relay, of a git server, of a fetch job or of an event.
#[derive(Hash)]
struct Row {
    /// May be empty.
    name: String,
    state: Option<(Value, Rating)>,
    about: Value,
}

/// A displayed text that can change, with its key in the JSON.
struct Value {
    key: String,
    text: String,
}

/// The text is not part of the structure of the page.
impl Hash for Value {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key.hash(hasher);
    }
}

impl<'a> StatusPage<'a> {
    pub(super) fn new(view: &StatusView<'a>) -> Self {
        let sections: Vec<Section> = [
            Some(summary(view)),
            Some(relays(view)),
            Some(purgatory(view)),
            view.fetch.map(|fetch| fetch_jobs(view, fetch)),
            view.fetch.and_then(git_servers),
            rejections(view),
            Some(disk(view.health)),
            Some(budgets_and_queues(view)),
        ]
        .into_iter()
        .flatten()
        .collect();
        let mut hasher = DefaultHasher::new();
        sections.hash(&mut hasher);
        Self {
            title: format!("Status of {}", truncated(view.name, NAME_CHARS)),
            version: view.version,
            shape: format!("{:016x}", hasher.finish()),
            sections,
        }
    }

    /// Returns the displayed values by key.
    pub(super) fn values(&self) -> BTreeMap<&str, &str> {
        let values = self.sections.iter().flat_map(|section| {
            let facts = section.failing_checks.iter().chain(&section.facts).map(|fact| &fact.value);
            let rows = section.rows.iter().flat_map(|row| row.state.iter().map(|(value, _)| value).chain([&row.about]));
            section.state.iter().map(|(value, _)| value).chain(facts).chain(rows)
        });
        values.map(|value| (value.key.as_str(), value.text.as_str())).collect()
    }
}

fn value(key: impl Into<String>, text: impl ToString) -> Value {
    Value { key: key.into(), text: text.to_string() }
}

fn fact(name: impl Into<String>, key: impl Into<String>, text: impl ToString) -> Fact {
    Fact { name: name.into(), value: value(key, text) }
}

fn summary(view: &StatusView<'_>) -> Section {
    let health = view.health;
    let failing = view.checks.iter().filter(|check| !check.is_ok);
    let failing_checks: Vec<Fact> = failing
        .map(|check| fact(check.name.replace('_', " "), format!("check.{}", check.name), &check.detail))
        .collect();
    let (text, rating) = if failing_checks.is_empty() { ("ready", Rating::Good) } else { ("not ready", Rating::Bad) };
    let facts = vec![
        fact("Uptime", "uptime", duration(view.uptime_secs)),
        fact("Repositories", "repositories", health.repositories),
        fact("Events", "events", count(health.served_events)),
        fact("Websockets", "websockets", view.websockets),
        fact("Memory", "memory", bytes(health.resident_bytes)),
    ];
    Section { state: Some((value("ready", text), rating)), failing_checks, facts, ..Section::default() }
}

fn relays(view: &StatusView<'_>) -> Section {
    let section = Section { heading: "Relays", ..Section::default() };
    let Some(sync) = view.sync else {
        return Section { note: "Sync is disabled; other relays are not followed.", ..section };
    };
    if sync.snapshot.relays.is_empty() {
        return Section { note: "No hosted repository lists another relay.", ..section };
    }
    let relays = display_order(&sync.snapshot);
    let now = view.health.wall_time.0;
    let rows = relays.iter().take(MAX_ROWS).map(|relay| relay_row(relay, sync.problems.get(&relay.url), now));
    Section { rows: rows.collect(), omitted_rows: relays.len().saturating_sub(MAX_ROWS), ..section }
}

fn relay_row(relay: &RelaySnapshot, problem: Option<&RelayProblem>, now: u64) -> Row {
    let (state, rating) = relay_state(relay);
    let ago = |at: u64| duration(now.saturating_sub(at));
    let progress = relay.progress.as_ref().map(|CatchUpProgress { source, done, total, events }| {
        let activity = if *source == SyncSource::Daily { "daily reconciliation" } else { "catching up" };
        let left = relay.queued + relay.subscriptions.1;
        format!("{activity}: {done} of {total} repositories, {events} new events, {left} requests left")
    });
    let totals = &relay.totals;
    let parts = [
        Some(format!("{} of {} repositories complete", relay.covered, relay.repositories)),
        (relay.held > 0).then(|| format!("{} repositories that are not served yet", relay.held)),
        progress,
        lag(relay, now).map(|lag| format!("behind by {}", duration(lag))),
        relay.last_message_at.map(|at| format!("last message {} ago", ago(at.0))),
        Some(format!("{} live subscriptions, {} other requests", relay.subscriptions.0, relay.subscriptions.1)),
        relay.learned.max_subscriptions.map(|limit| format!("limit of {limit} subscriptions")),
        percentage(totals.up_secs, totals.up_secs + totals.down_secs)
            .map(|share| format!("connected {share} of the time")),
        percentage(totals.shared, totals.compared).map(|share| format!("has {share} of the events here")),
        Some(format!("{} new events received", count(totals.received))),
        relay.cooldown_secs.map(|secs| format!("no requests for {}", duration(secs))),
        relay.dial_in_millis.map(|millis| format!("next connection attempt in {}", duration(millis.div_ceil(1_000)))),
        problem.map(|problem| format!("{} ago: {}", ago(problem.at.0), truncated(&problem.text, 2 * NAME_CHARS))),
    ];
    Row {
        name: truncated(&relay.url.to_string(), NAME_CHARS).into_owned(),
        state: Some((value(format!("relay.{}.state", relay.url), state), rating)),
        about: value(format!("relay.{}.about", relay.url), joined(parts)),
    }
}

fn joined(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn purgatory(view: &StatusView<'_>) -> Section {
    let section = Section { heading: "Waiting for git data", ..Section::default() };
    let Some(stats) = &view.health.writer_stats else {
        return Section { note: "Not measured yet.", ..section };
    };
    let time = |time: Option<std::time::Duration>| time.map_or("–".to_owned(), |time| duration(time.as_secs()));
    let facts = vec![
        fact("Announcements", "purgatory.announcements", stats.announcements),
        fact("States", "purgatory.states", stats.states),
        fact("Pull requests", "purgatory.pulls", stats.pull_requests),
        fact("Not found on any source", "purgatory.tried", stats.tried),
        fact("Age of the oldest", "purgatory.oldest", time(stats.oldest)),
        fact("Next expiry in", "purgatory.next", time(stats.next_deadline)),
        fact("Dormant", "purgatory.dormant", stats.dormant),
        fact("Pushed commits without an event", "purgatory.uploads", stats.uploads),
    ];
    let rows = view.next_to_expire().enumerate().map(|(nth, (event, repo_path))| {
        let (path, left) = (repo_path.path(), duration(event.time_left.as_secs()));
        let path = truncated(&path, 2 * NAME_CHARS);
        let about = format!("{} of {path}: {}, expires in {left}", event.kind, waiting_reason(event));
        Row { name: String::new(), state: None, about: value(format!("waiting.{nth}"), about) }
    });
    Section { facts, rows: rows.collect(), ..section }
}

fn fetch_jobs(view: &StatusView<'_>, fetch: &FetchView) -> Section {
    let facts = vec![
        fact("Repositories with missing data", "fetch.queue", fetch.jobs.len()),
        fact("Running fetches", "fetch.in_flight", fetch.in_flight),
        fact("Fetches", "fetch.fetches", count(fetch.stats.fetches)),
        fact("Fetched objects", "fetch.oids", count(fetch.stats.oids)),
    ];
    let jobs: Vec<_> = fetch.jobs.iter().filter(|job| (view.is_served)(&job.repo_path)).collect();
    let rows = jobs.iter().take(MAX_ROWS).map(|job| job_row(job)).collect();
    let omitted_rows = jobs.len().saturating_sub(MAX_ROWS);
    Section { heading: "Fetching of git data", facts, rows, omitted_rows, ..Section::default() }
}

fn job_row(job: &JobView) -> Row {
    let path = job.repo_path.path();
    let next = match job.next_in_millis {
        Some(millis) => format!("next round in {}", duration(millis.div_ceil(1_000))),
        None => "round in progress".to_owned(),
    };
    let mut about =
        format!("{} objects missing for {} events · {} rounds · {next}", job.missing, job.events.0, job.attempts);
    for (host, outcome) in job.sources.iter().take(MAX_DETAILS).map(source_outcome) {
        about += &format!(" · {}: {}", truncated(host, NAME_CHARS), outcome.replace('_', " "));
    }
    if job.sources.len() > MAX_DETAILS {
        about += &format!(" · {} more sources", job.sources.len() - MAX_DETAILS);
    }
    let about = value(format!("wanted.{path}"), about);
    Row { name: truncated(&path, 2 * NAME_CHARS).into_owned(), state: None, about }
}

fn git_servers(fetch: &FetchView) -> Option<Section> {
    let rows: Vec<Row> = fetch.hosts.iter().take(MAX_ROWS).map(host_row).collect();
    let omitted_rows = fetch.hosts.len().saturating_sub(MAX_ROWS);
    (!rows.is_empty()).then(|| Section { heading: "Git servers", rows, omitted_rows, ..Section::default() })
}

fn host_row(host: &HostView) -> Row {
    let quiet = host.quiet.as_ref().map(|(millis, reason)| {
        let reason = reason.label().replace('_', " ");
        format!("no requests for {} ({reason})", duration(millis.div_ceil(1_000)))
    });
    let about = joined([
        Some(format!("{} of {} concurrent fetches", host.in_flight, host.limits.concurrent)),
        Some(format!("at most {} per minute", host.limits.per_minute)),
        Some(format!("{} waiting", host.waiting)),
        Some(format!("{} in total", count(host.requests))),
        quiet,
        (host.failures > 0).then(|| format!("{} consecutive failures", host.failures)),
    ]);
    let about = value(format!("host.{}", host.authority), about);
    Row { name: truncated(&host.authority, NAME_CHARS).into_owned(), state: None, about }
}

fn rejections(view: &StatusView<'_>) -> Option<Section> {
    let events = view.rejected_events.iter().map(|(reason, times)| ("event", reason.as_str(), *times));
    let pushes = view.rejected_pushes.iter().map(|(code, times)| ("push", *code, *times));
    let mut all: Vec<_> = events.chain(pushes).collect();
    all.sort_by_key(|(kind, reason, times)| (std::cmp::Reverse(*times), format!("{kind}.{reason}")));
    let facts = all.into_iter().take(MAX_REJECTIONS).map(|(kind, reason, times)| {
        fact(format!("{kind}: {}", reason.replace('_', " ")), format!("rejected.{kind}.{reason}"), count(times))
    });
    let facts: Vec<Fact> = facts.collect();
    let heading = "Most frequent rejections since the start";
    (!facts.is_empty()).then(|| Section { heading, facts, ..Section::default() })
}

fn disk(health: &HealthSnapshot) -> Section {
    let volumes = health.volumes.iter().map(|(volume, free, reserve)| {
        let text = format!("{} free, {} reserved", bytes(*free), bytes(*reserve));
        fact(format!("Volume of {volume}"), format!("volume.{volume}"), text)
    });
    let used = health.disk_usage.iter().flat_map(|disk| &disk.bytes_by_kind);
    let used = used.map(|(kind, used)| fact(format!("Used by {kind}"), format!("disk.{kind}"), bytes(*used)));
    Section { heading: "Disk", facts: volumes.chain(used).collect(), ..Section::default() }
}

fn budgets_and_queues(view: &StatusView<'_>) -> Section {
    let mut facts = Vec::new();
    for (name, used, limit) in &view.health.budgets {
        let format = if name.ends_with("_bytes") { bytes } else { count };
        let label = match *name {
            "pack_cache_bytes" => "pack cache".to_owned(),
            "disk_bytes" => "disk".to_owned(),
            name => name.replace("_bytes", " memory").replace('_', " "),
        };
        facts.push(fact(label, format!("budget.{name}"), format!("{} of {}", format(*used), format(*limit))));
    }
    let (hits, misses) = view.pack_cache;
    facts.push(fact("pack cache hits", "cache", format!("{} of {}", count(hits), count(hits + misses))));
    let waiting = view.health.queues.iter().filter(|(_, depth)| *depth > 0);
    let waiting = joined(waiting.map(|(queue, depth)| Some(format!("{} {depth}", queue.replace('_', " ")))));
    let waiting = if waiting.is_empty() { "nothing".to_owned() } else { waiting };
    facts.push(fact("waiting in queues", "queues", waiting));
    Section { heading: "Budgets and queues", facts, ..Section::default() }
}
