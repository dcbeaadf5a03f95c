//! The status as JSON: `GET /status.json`, `graspd status --json`, and the relays of `graspd relays --json`.

use std::collections::BTreeMap;

use grasp_core::fetch;
use grasp_core::repo::RepoPath;
use grasp_core::sync::RelaySnapshot;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::format::{display_order, lag, source_outcome, waiting_reason};
use super::{MAX_DETAILS, MAX_ROWS, StatusView};
use crate::monitor::endpoints::HealthCheck;
use crate::sync::status::RelayProblem;

/// The document of `/status.json`. It has a field for each key that commands read.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct StatusDocument {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) uptime_seconds: u64,
    /// Whether all checks pass.
    pub(crate) ready: bool,
    pub(crate) checks: BTreeMap<String, CheckResult>,
    pub(crate) repositories: usize,
    pub(crate) events: EventCounts,
    pub(crate) websockets: i64,
    /// `None` if sync is disabled.
    pub(crate) sync: Option<SyncCounts>,
    pub(crate) relays: Option<Vec<RelayDocument>>,
    /// `None` if sync is disabled.
    pub(crate) fetch: Option<FetchStatus>,
    pub(crate) memory: MemoryUsage,
    pub(crate) budgets: BTreeMap<String, BudgetUsage>,
    pub(crate) disk: DiskStatus,
    /// All other keys.
    #[serde(flatten)]
    pub(crate) details: Map<String, Value>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct CheckResult {
    pub(crate) ok: bool,
    /// The measured values, for people.
    pub(crate) detail: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct EventCounts {
    pub(crate) served: u64,
    pub(crate) held: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct SyncCounts {
    pub(crate) relays: usize,
    pub(crate) repositories: usize,
    pub(crate) in_flight: usize,
    pub(crate) rejected: usize,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct FetchStatus {
    /// Number of repositories whose git data is wanted.
    pub(crate) queue: usize,
    pub(crate) in_flight: usize,
    /// Number of fetched objects.
    pub(crate) objects: u64,
    /// All other keys.
    #[serde(flatten)]
    pub(crate) details: Map<String, Value>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct MemoryUsage {
    pub(crate) resident_bytes: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct BudgetUsage {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct DiskStatus {
    pub(crate) volumes: BTreeMap<String, VolumeSpace>,
    /// Bytes by kind of data, once they have been measured.
    #[serde(rename = "use")]
    pub(crate) bytes_by_kind: Option<BTreeMap<String, u64>>,
    pub(crate) measured_at: Option<u64>,
    pub(crate) complete: Option<bool>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeSpace {
    pub(crate) free: u64,
    /// Nothing new is stored if less than this is free.
    #[serde(rename = "mark")]
    pub(crate) reserve: u64,
}

/// A relay.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct RelayDocument {
    pub(crate) url: String,
    pub(crate) state: String,
    pub(crate) health: String,
    pub(crate) failures: u32,
    /// The last problem, and its time.
    pub(crate) why: Option<String>,
    pub(crate) why_at: Option<u64>,
    pub(crate) retry_in_seconds: Option<u64>,
    /// Remaining time of a rate-limit cooldown.
    pub(crate) quiet_seconds: Option<u64>,
    /// Number of repositories that list it.
    pub(crate) repositories: usize,
    /// Number of repositories that are completely synced.
    pub(crate) covered: usize,
    pub(crate) held: usize,
    /// Number of failed batches that are tried again.
    pub(crate) failed_batches: usize,
    pub(crate) lag_seconds: Option<u64>,
    pub(crate) complete_at: Option<u64>,
    pub(crate) last_message_at: Option<u64>,
    pub(crate) full_in_seconds: u64,
    pub(crate) subscriptions: SubscriptionCounts,
    pub(crate) limits: KnownLimits,
    pub(crate) uptime_ratio: Option<f64>,
    pub(crate) coverage_ratio: Option<f64>,
    pub(crate) events_received: u64,
    pub(crate) gaps: u64,
    pub(crate) daily: bool,
    pub(crate) paused: bool,
    /// Whether it is this server.
    pub(crate) is_self: bool,
    /// Whether the operator has configured it.
    pub(crate) bootstrap: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct SubscriptionCounts {
    pub(crate) live: usize,
    pub(crate) requests: usize,
    pub(crate) filters: usize,
    pub(crate) polled: usize,
    pub(crate) queued: usize,
    pub(crate) wide: bool,
}

/// Limits of a relay that were learned from rejected requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct KnownLimits {
    pub(crate) slots: Option<u32>,
    pub(crate) filters: Option<u32>,
    pub(crate) subscription_bytes: Option<u64>,
}

/// Returns the whole status.
pub(super) fn status(view: &StatusView<'_>) -> StatusDocument {
    let health = view.health;
    let now = health.wall_time.0;
    let stats = health.writer_stats.as_ref().map(|stats| {
        json!({
            "announcements": stats.announcements, "states": stats.states, "pull_requests": stats.pull_requests,
            "tried": stats.tried, "dormant": stats.dormant, "bytes": stats.bytes, "uploads": stats.uploads,
            "oldest_seconds": stats.oldest.map(|age| age.as_secs()),
            "next_deadline_seconds": stats.next_deadline.map(|left| left.as_secs()),
            "next_to_expire": view.next_to_expire().map(|(event, repo_path)| json!({
                "repository": repo_path.path(), "kind": event.kind, "why": waiting_reason(event),
                "seconds": event.time_left.as_secs(),
            })).collect::<Vec<_>>(),
        })
    });
    let catch_ups: Vec<Value> = view
        .sync
        .iter()
        .flat_map(|sync| &sync.snapshot.relays)
        .filter_map(|relay| Some((relay, relay.progress?)))
        .take(MAX_ROWS)
        .map(|(relay, progress)| {
            json!({
                "relay": relay.url.to_string(), "daily": relay.is_reconciling, "repositories": progress.total,
                "done": progress.done, "events": progress.events, "requests_left": relay.queued + relay.subscriptions.1,
            })
        })
        .collect();
    let details = object(json!({
        "at": now,
        "catch_ups": catch_ups,
        "purgatory": stats,
        "rejected": {"events": view.rejected_events, "pushes": view.rejected_pushes},
        "queues": health.queues.iter().copied().collect::<BTreeMap<_, _>>(),
        "pack_cache": {"hits": view.pack_cache.0, "misses": view.pack_cache.1},
    }));
    let check =
        |check: &HealthCheck| (check.name.to_owned(), CheckResult { ok: check.is_ok, detail: check.detail.clone() });
    let disk_usage = health.disk_usage.as_ref();
    let bytes_by_kind =
        disk_usage.map(|disk| disk.bytes_by_kind.iter().map(|(kind, bytes)| ((*kind).to_owned(), *bytes)).collect());
    StatusDocument {
        name: view.name.to_owned(),
        version: view.version.to_owned(),
        uptime_seconds: view.uptime_secs,
        ready: view.checks.iter().all(|check| check.is_ok),
        checks: view.checks.iter().map(check).collect(),
        repositories: health.repositories,
        events: EventCounts { served: health.served_events, held: health.held_events },
        websockets: view.websockets,
        sync: view.sync.map(|sync| SyncCounts {
            relays: sync.snapshot.relays.len(),
            repositories: sync.snapshot.repositories,
            in_flight: sync.snapshot.in_flight,
            rejected: sync.snapshot.rejected.0,
        }),
        relays: view.sync.map(|sync| {
            let first = display_order(&sync.snapshot).into_iter().take(MAX_ROWS);
            first.map(|snapshot| relay(snapshot, sync.problems.get(&snapshot.url), now)).collect()
        }),
        fetch: view.fetch.map(|fetch| fetch_status(fetch, view.is_served)),
        memory: MemoryUsage { resident_bytes: health.resident_bytes },
        budgets: by_name(&health.budgets, |used, limit| BudgetUsage { used, limit }),
        disk: DiskStatus {
            volumes: by_name(&health.volumes, |free, reserve| VolumeSpace { free, reserve }),
            bytes_by_kind,
            measured_at: disk_usage.map(|disk| disk.measured_at.0),
            complete: disk_usage.map(|disk| disk.is_complete),
        },
        details,
    }
}

fn by_name<T>(entries: &[(&'static str, u64, u64)], make: fn(u64, u64) -> T) -> BTreeMap<String, T> {
    entries.iter().map(|(name, first, second)| ((*name).to_owned(), make(*first, *second))).collect()
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(object) = value { object } else { Map::new() }
}

/// Returns one relay; `now` is in Unix seconds.
pub(crate) fn relay(relay: &RelaySnapshot, problem: Option<&RelayProblem>, now: u64) -> RelayDocument {
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    RelayDocument {
        url: relay.url.to_string(),
        state: relay.status.label().to_owned(),
        health: relay.health.label().to_owned(),
        failures: relay.failures,
        why: problem.map(|problem| problem.text.clone()),
        why_at: problem.map(|problem| problem.at.0),
        retry_in_seconds: relay.dial_in_millis.map(|millis| millis.div_ceil(1_000)),
        quiet_seconds: relay.cooldown_secs,
        repositories: relay.repositories,
        covered: relay.covered,
        held: relay.held,
        failed_batches: relay.failed_batches,
        lag_seconds: lag(relay, now),
        complete_at: relay.historic_sync_completed_at.map(|at| at.0),
        last_message_at: relay.last_message_at.map(|at| at.0),
        full_in_seconds: relay.next_full_sync_secs,
        subscriptions: SubscriptionCounts {
            live: relay.subscriptions.0,
            requests: relay.subscriptions.1,
            filters: relay.filters,
            polled: relay.polled,
            queued: relay.queued,
            wide: relay.is_wide,
        },
        limits: KnownLimits {
            slots: relay.learned.max_subscriptions,
            filters: relay.learned.max_filters,
            subscription_bytes: relay.learned.subscription_bytes,
        },
        uptime_ratio: share(relay.totals.up_secs, relay.totals.up_secs + relay.totals.down_secs),
        coverage_ratio: share(relay.totals.shared, relay.totals.compared),
        events_received: relay.totals.received,
        gaps: relay.totals.gaps,
        daily: relay.is_reconciling,
        paused: relay.is_paused,
        is_self: relay.is_self,
        bootstrap: relay.is_bootstrap,
    }
}

fn fetch_status(view: &fetch::FetchView, is_served: &dyn Fn(&RepoPath) -> bool) -> FetchStatus {
    let jobs = view.jobs.iter().filter(|job| is_served(&job.repo_path)).take(MAX_ROWS).map(|job| {
        json!({
            "repository": job.repo_path.path(), "events": job.events.0, "dormant": job.events.1,
            "missing": job.missing, "rounds": job.attempts,
            "sources": job.sources.iter().take(MAX_DETAILS).map(source_outcome)
                .map(|(host, outcome)| json!({"host": host, "outcome": outcome})).collect::<Vec<_>>(),
            "next_in_seconds": job.next_in_millis.map(|millis| millis.div_ceil(1_000)),
        })
    });
    let hosts = view.hosts.iter().take(MAX_ROWS).map(|host| {
        json!({
            "host": host.authority, "in_flight": host.in_flight, "waiting": host.waiting, "requests": host.requests,
            "concurrent": host.limits.concurrent, "per_minute": host.limits.per_minute, "failures": host.failures,
            "quiet_seconds": host.quiet.as_ref().map(|(millis, _)| millis.div_ceil(1_000)),
            "why": host.quiet.as_ref().map(|(_, why)| why.label()),
        })
    });
    let details = object(json!({
        "rounds": view.stats.rounds, "fetches": view.stats.fetches,
        "repositories": jobs.collect::<Vec<_>>(), "hosts": hosts.collect::<Vec<_>>(),
    }));
    FetchStatus { queue: view.jobs.len(), in_flight: view.in_flight, objects: view.stats.oids, details }
}
