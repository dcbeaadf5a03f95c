//! The status as JSON: `GET /status.json`, and the relays of `graspd relays --json`.

use grasp_core::fetch;
use grasp_core::repo::RepoPath;
use grasp_core::sync::RelaySnapshot;
use serde_json::{Value, json};

use super::format::{display_order, lag, source_outcome, waiting_reason};
use super::{MAX_DETAILS, MAX_ROWS, StatusView};
use crate::monitor::endpoints;
use crate::sync::status::RelayProblem;

/// Returns the whole status.
pub(super) fn status(view: &StatusView<'_>) -> Value {
    let health = view.health;
    let now = health.wall_time.0;
    let map = |pairs: &[(&'static str, u64)]| -> Value {
        Value::Object(pairs.iter().map(|(name, amount)| ((*name).to_owned(), json!(amount))).collect())
    };
    let budgets =
        health.budgets.iter().map(|(name, used, limit)| ((*name).to_owned(), json!({"used": used, "limit": limit})));
    let queues: Vec<(&'static str, u64)> = health.queues.iter().map(|(name, depth)| (*name, *depth as u64)).collect();
    let volumes =
        health.volumes.iter().map(|(name, free, mark)| ((*name).to_owned(), json!({"free": free, "mark": mark})));
    let stats = health.writer_stats.as_ref().map(|stats| {
        json!({
            "announcements": stats.announcements, "states": stats.states, "pull_requests": stats.pull_requests,
            "tried": stats.tried, "dormant": stats.dormant, "bytes": stats.bytes, "uploads": stats.uploads,
            "oldest_seconds": stats.oldest.map(|age| age.as_secs()),
            "next_deadline_seconds": stats.next_deadline.map(|left| left.as_secs()),
            "soonest": view.next_to_expire().map(|(event, repo_path)| json!({
                "repository": repo_path.path(), "kind": event.kind, "why": waiting_reason(event),
                "seconds": event.time_left.as_secs(),
            })).collect::<Vec<_>>(),
        })
    });
    let relays = view.sync.map(|sync| {
        let relays = display_order(&sync.snapshot);
        relays
            .iter()
            .take(MAX_ROWS)
            .map(|snapshot| relay(snapshot, sync.problems.get(&snapshot.url), now))
            .collect::<Vec<_>>()
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
    json!({
        "name": view.name,
        "version": view.version,
        "at": now,
        "uptime_seconds": view.uptime_secs,
        "ready": view.checks.iter().all(|check| check.is_ok),
        "checks": endpoints::to_json(view.checks),
        "repositories": health.repositories,
        "events": {"served": health.served_events, "held": health.held_events},
        "websockets": view.websockets,
        "sync": view.sync.map(|sync| json!({
            "relays": sync.snapshot.relays.len(), "repositories": sync.snapshot.repositories,
            "in_flight": sync.snapshot.in_flight, "refused": sync.snapshot.rejected.0,
        })),
        "relays": relays,
        "catch_ups": catch_ups,
        "purgatory": stats,
        "hunt": view.fetch.map(|fetch| fetch_json(fetch, view.is_served)),
        "refused": {"events": view.rejected_events, "pushes": view.rejected_pushes},
        "disk": {
            "volumes": Value::Object(volumes.collect()),
            "use": health.disk_usage.as_ref().map(|disk| map(&disk.bytes_by_kind)),
            "measured_at": health.disk_usage.as_ref().map(|disk| disk.measured_at.0),
            "complete": health.disk_usage.as_ref().map(|disk| disk.is_complete),
        },
        "memory": {"resident_bytes": health.resident_bytes},
        "budgets": Value::Object(budgets.collect()),
        "queues": map(&queues),
        "pack_cache": {"hits": view.pack_cache.0, "misses": view.pack_cache.1},
    })
}

/// Returns one relay; `now` is in Unix seconds.
pub(crate) fn relay(relay: &RelaySnapshot, problem: Option<&RelayProblem>, now: u64) -> Value {
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    json!({
        "url": relay.url.to_string(),
        "state": relay.status.label(),
        "health": relay.health.label(),
        "failures": relay.failures,
        "why": problem.map(|problem| &problem.text),
        "why_at": problem.map(|problem| problem.at.0),
        "retry_in_seconds": relay.dial_in_millis.map(|millis| millis.div_ceil(1_000)),
        "quiet_seconds": relay.cooldown_secs,
        "repositories": relay.repositories,
        "covered": relay.covered,
        "held": relay.held,
        "owed": relay.failed_batches,
        "lag_seconds": lag(relay, now),
        "complete_at": relay.historic_sync_completed_at.map(|at| at.0),
        "heard_at": relay.last_message_at.map(|at| at.0),
        "full_in_seconds": relay.next_full_sync_secs,
        "subscriptions": {
            "live": relay.subscriptions.0, "requests": relay.subscriptions.1, "filters": relay.filters,
            "polled": relay.polled, "queued": relay.queued, "wide": relay.is_wide,
        },
        "limits": {
            "slots": relay.learned.max_subscriptions, "filters": relay.learned.max_filters,
            "subscription_bytes": relay.learned.subscription_bytes,
        },
        "uptime_ratio": share(relay.totals.up_secs, relay.totals.up_secs + relay.totals.down_secs),
        "coverage_ratio": share(relay.totals.shared, relay.totals.compared),
        "events_received": relay.totals.received,
        "gaps": relay.totals.gaps,
        "daily": relay.is_reconciling,
        "paused": relay.is_paused,
        "is_self": relay.is_self,
        "bootstrap": relay.is_bootstrap,
    })
}

fn fetch_json(view: &fetch::FetchView, is_served: &dyn Fn(&RepoPath) -> bool) -> Value {
    let jobs = view.jobs.iter().filter(|job| is_served(&job.repo_path)).take(MAX_ROWS).map(|job| {
        json!({
            "repository": job.repo_path.path(), "events": job.events.0, "dormant": job.events.1,
            "missing": job.missing, "rounds": job.attempts,
            "places": job.sources.iter().take(MAX_DETAILS).map(source_outcome)
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
    json!({
        "queue": view.jobs.len(), "in_flight": view.in_flight, "rounds": view.stats.rounds,
        "fetches": view.stats.fetches, "objects": view.stats.oids,
        "repositories": jobs.collect::<Vec<_>>(), "hosts": hosts.collect::<Vec<_>>(),
    })
}
