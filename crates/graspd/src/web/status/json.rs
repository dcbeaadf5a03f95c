//! The status as programs read it.

use grasp_core::fetch;
use grasp_core::repo::RepoPath;
use grasp_core::sync::RelaySnapshot;
use serde_json::{Value, json};

use super::format::{lag, ordered, place, waits};
use super::{FEW, MOST, Status};
use crate::metrics::labels;
use crate::monitor::endpoints;
use crate::sync::status::Why;

/// Everything.
pub(super) fn status(status: &Status<'_>) -> Value {
    let round = status.round;
    let now = round.wall.0;
    let map = |pairs: &[(&'static str, u64)]| -> Value {
        Value::Object(pairs.iter().map(|(name, amount)| ((*name).to_owned(), json!(amount))).collect())
    };
    let budgets =
        round.budgets.iter().map(|(name, used, limit)| ((*name).to_owned(), json!({"used": used, "limit": limit})));
    let queues: Vec<(&'static str, u64)> = round.queues.iter().map(|(name, depth)| (*name, *depth as u64)).collect();
    let volumes =
        round.volumes.iter().map(|(name, free, mark)| ((*name).to_owned(), json!({"free": free, "mark": mark})));
    let vitals = round.vitals.as_ref().map(|vitals| {
        json!({
            "announcements": vitals.announcements, "states": vitals.states, "pull_requests": vitals.pull_requests,
            "tried": vitals.tried, "dormant": vitals.dormant, "bytes": vitals.bytes, "uploads": vitals.uploads,
            "oldest_seconds": vitals.oldest.map(|age| age.as_secs()),
            "next_deadline_seconds": vitals.next_deadline.map(|left| left.as_secs()),
            "soonest": status.soonest().map(|(event, repo_path)| json!({
                "repository": repo_path.path(), "kind": event.kind, "why": waits(event), "seconds": event.left.as_secs(),
            })).collect::<Vec<_>>(),
        })
    });
    let relays = status.sync.map(|picture| {
        let links = ordered(&picture.view);
        links.iter().take(MOST).map(|link| relay(link, picture.why.get(&link.url), now)).collect::<Vec<_>>()
    });
    let catch_ups: Vec<Value> = status
        .sync
        .iter()
        .flat_map(|picture| &picture.view.relays)
        .filter_map(|link| Some((link, link.progress?)))
        .take(MOST)
        .map(|(link, progress)| {
            json!({
                "relay": link.url.to_string(), "daily": link.is_reconciling, "repositories": progress.total,
                "done": progress.done, "events": progress.events, "requests_left": link.queued + link.subscriptions.1,
            })
        })
        .collect();
    json!({
        "name": status.name,
        "version": status.version,
        "at": now,
        "uptime_seconds": status.uptime_secs,
        "ready": status.checks.iter().all(|check| check.ok),
        "checks": endpoints::to_json(status.checks),
        "repositories": round.repositories,
        "events": {"served": round.served, "held": round.held},
        "websockets": status.websockets,
        "sync": status.sync.map(|picture| json!({
            "relays": picture.view.relays.len(), "repositories": picture.view.repositories,
            "in_flight": picture.view.in_flight, "refused": picture.view.rejected.0,
        })),
        "relays": relays,
        "catch_ups": catch_ups,
        "purgatory": vitals,
        "hunt": status.hunt.map(|view| search(view, status.is_served)),
        "refused": {"events": status.refused_events, "pushes": status.refused_pushes},
        "disk": {
            "volumes": Value::Object(volumes.collect()),
            "use": round.disk.as_ref().map(|disk| map(&disk.kinds)),
            "measured_at": round.disk.as_ref().map(|disk| disk.at.0),
            "complete": round.disk.as_ref().map(|disk| disk.complete),
        },
        "memory": {"resident_bytes": round.resident},
        "budgets": Value::Object(budgets.collect()),
        "queues": map(&queues),
        "pack_cache": {"hits": status.cache.0, "misses": status.cache.1},
    })
}

/// One relay; `now` is in unix seconds.
pub(crate) fn relay(link: &RelaySnapshot, why: Option<&Why>, now: u64) -> Value {
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    json!({
        "url": link.url.to_string(),
        "state": link.status.label(),
        "health": link.health.label(),
        "failures": link.failures,
        "why": why.map(|why| &why.text),
        "why_at": why.map(|why| why.at.0),
        "retry_in_seconds": link.dial_in_millis.map(|millis| millis.div_ceil(1_000)),
        "quiet_seconds": link.cooldown_secs,
        "repositories": link.repositories,
        "covered": link.covered,
        "held": link.held,
        "owed": link.failed_batches,
        "lag_seconds": lag(link, now),
        "complete_at": link.historic_sync_completed_at.map(|at| at.0),
        "heard_at": link.last_message_at.map(|at| at.0),
        "full_in_seconds": link.next_full_sync_secs,
        "subscriptions": {
            "live": link.subscriptions.0, "requests": link.subscriptions.1, "filters": link.filters,
            "polled": link.polled, "queued": link.queued, "wide": link.is_wide,
        },
        "limits": {
            "slots": link.learned.max_subscriptions, "filters": link.learned.max_filters,
            "subscription_bytes": link.learned.subscription_bytes,
        },
        "uptime_ratio": share(link.totals.up_secs, link.totals.up_secs + link.totals.down_secs),
        "coverage_ratio": share(link.totals.shared, link.totals.compared),
        "events_received": link.totals.received,
        "gaps": link.totals.gaps,
        "daily": link.is_reconciling,
        "paused": link.is_paused,
        "is_self": link.is_self,
        "bootstrap": link.is_bootstrap,
    })
}

fn search(view: &fetch::FetchView, is_served: &dyn Fn(&RepoPath) -> bool) -> Value {
    let quarries = view.jobs.iter().filter(|job| is_served(&job.repo_path)).take(MOST).map(|job| {
        json!({
            "repository": job.repo_path.path(), "events": job.events.0, "dormant": job.events.1,
            "missing": job.missing, "rounds": job.attempts,
            "places": job.sources.iter().take(FEW).map(place)
                .map(|(host, outcome)| json!({"host": host, "outcome": outcome})).collect::<Vec<_>>(),
            "next_in_seconds": job.next_in_millis.map(|millis| millis.div_ceil(1_000)),
        })
    });
    let hosts = view.hosts.iter().take(MOST).map(|host| {
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
        "repositories": quarries.collect::<Vec<_>>(), "hosts": hosts.collect::<Vec<_>>(),
    })
}
