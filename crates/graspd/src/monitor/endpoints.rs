//! Health endpoints: `/healthz` (is the process alive?) and `/readyz` (can it do its work?).
//!
//! The checks are computed from the latest snapshot of the health monitor, which is about a second old.

use std::time::Duration;

use grasp_core::disk_budget::DiskLevel;
use grasp_core::time::MonoTime;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::http::body::HttpResponse;
use crate::http::response::{with_header, with_type};
use crate::monitor::disk_budget::DiskBudgetStatus;
use crate::monitor::health::HealthSnapshot;

/// Time without a sign of progress after which a thread counts as stuck. A busy disk takes seconds.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Result of one health check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HealthCheck {
    pub(crate) name: &'static str,
    pub(crate) is_ok: bool,
    /// The measured values, for people.
    pub(crate) detail: String,
}

/// Checks that the process is alive: its event loop runs tasks, and the health monitor takes snapshots.
fn liveness_checks(snapshot: &HealthSnapshot, now: MonoTime) -> Vec<HealthCheck> {
    let (last_tick, delay) = snapshot.event_loop;
    let since_tick = now.since(last_tick);
    let snapshot_age = now.since(snapshot.taken_at);
    vec![
        HealthCheck {
            name: "event_loop",
            is_ok: since_tick < STUCK_AFTER,
            detail: format!("last tick {} ms ago, {} ms late", since_tick.as_millis(), delay.as_millis()),
        },
        HealthCheck {
            name: "health_monitor",
            is_ok: snapshot_age < STUCK_AFTER,
            detail: format!("last snapshot {} ms ago", snapshot_age.as_millis()),
        },
    ]
}

/// Checks that the server can do its work. Includes the liveness checks.
pub(crate) fn readiness_checks(snapshot: &HealthSnapshot, now: MonoTime, is_shutting_down: bool) -> Vec<HealthCheck> {
    let mut checks = liveness_checks(snapshot, now);
    checks.push(match snapshot.writer_reply {
        None => HealthCheck { name: "writer", is_ok: false, detail: "no reply yet".to_owned() },
        Some((at, took)) => HealthCheck {
            name: "writer",
            is_ok: now.since(at) < STUCK_AFTER,
            detail: format!("last reply {} ms ago, took {} ms", now.since(at).as_millis(), took.as_millis()),
        },
    });
    let store_error = snapshot.writer_stats.as_ref().and_then(|stats| stats.store_error.clone());
    checks.push(HealthCheck {
        name: "store",
        is_ok: snapshot.writer_stats.is_some() && store_error.is_none(),
        detail: store_error.unwrap_or_else(|| "writable".to_owned()),
    });
    for (volume, free, reserve) in &snapshot.volumes {
        let name = if *volume == "events" { "disk_events" } else { "disk_git" };
        let detail = format!("{free} bytes free, {reserve} bytes reserved");
        checks.push(HealthCheck { name, is_ok: free >= reserve, detail });
    }
    let DiskBudgetStatus { used_bytes, budget, level } = snapshot.disk_budget;
    let detail = format!(
        "{used_bytes} of {} bytes used; new repositories are rejected from {} bytes",
        budget.hard_bytes, budget.soft_bytes
    );
    checks.push(HealthCheck { name: "disk_budget", is_ok: level != DiskLevel::Hard, detail });
    let found = if snapshot.has_git { "found" } else { "not found in PATH" };
    checks.push(HealthCheck { name: "git", is_ok: snapshot.has_git, detail: found.to_owned() });
    let problem = &snapshot.git_folder_problem;
    let detail = problem.clone().unwrap_or_else(|| "readable and writable".to_owned());
    checks.push(HealthCheck { name: "git_folder", is_ok: problem.is_none(), detail });
    // The server can do its work: a degraded repository concerns its own users only.
    let degraded =
        snapshot.writer_stats.as_ref().and_then(|stats| Some((stats.degraded, stats.degraded_example.as_ref()?)));
    let detail = match degraded {
        None => "none is degraded".to_owned(),
        Some((number, first)) => format!("{number} degraded, for example {first}; see `graspd repair`"),
    };
    checks.push(HealthCheck { name: "repositories", is_ok: true, detail });
    let serving = if is_shutting_down { "shutting down" } else { "accepting requests" };
    checks.push(HealthCheck { name: "serving", is_ok: !is_shutting_down, detail: serving.to_owned() });
    checks
}

/// `GET /healthz`.
pub(crate) fn healthz(snapshot: &HealthSnapshot, now: MonoTime) -> HttpResponse {
    response("alive", &liveness_checks(snapshot, now))
}

/// `GET /readyz`.
pub(crate) fn readyz(snapshot: &HealthSnapshot, now: MonoTime, is_shutting_down: bool) -> HttpResponse {
    response("ready", &readiness_checks(snapshot, now, is_shutting_down))
}

/// Returns a JSON document with the overall result under `key`. The status is 503 if a check failed.
fn response(key: &str, checks: &[HealthCheck]) -> HttpResponse {
    let is_ok = checks.iter().all(|check| check.is_ok);
    let status = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = Map::new();
    body.insert(key.to_owned(), json!(is_ok));
    body.insert("checks".to_owned(), to_json(checks));
    let response = with_type(status, "application/json", Value::Object(body).to_string() + "\n");
    with_header(response, hyper::header::CACHE_CONTROL, "no-store")
}

/// Returns the checks as a JSON object by name.
pub(crate) fn to_json(checks: &[HealthCheck]) -> Value {
    let entry = |check: &HealthCheck| (check.name.to_owned(), json!({"ok": check.is_ok, "detail": check.detail}));
    Value::Object(checks.iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::health::WriterStats;

    fn healthy() -> HealthSnapshot {
        HealthSnapshot {
            taken_at: MonoTime(100_000),
            writer_stats: Some(WriterStats::default()),
            writer_reply: Some((MonoTime(100_000), Duration::from_millis(1))),
            volumes: vec![("events", 100, 50), ("git", 100, 50)],
            has_git: true,
            event_loop: (MonoTime(100_000), Duration::ZERO),
            ..HealthSnapshot::default()
        }
    }

    fn failing(snapshot: &HealthSnapshot, now: u64, is_shutting_down: bool) -> Vec<&'static str> {
        readiness_checks(snapshot, MonoTime(now), is_shutting_down)
            .iter()
            .filter(|check| !check.is_ok)
            .map(|check| check.name)
            .collect()
    }

    #[test]
    fn every_problem_fails_its_own_check() {
        assert_eq!(failing(&healthy(), 100_500, false), Vec::<&str>::new());
        assert_eq!(failing(&healthy(), 100_500, true), ["serving"]);
        assert_eq!(failing(&healthy(), 120_000, false), ["event_loop", "health_monitor", "writer"]);
        let late = HealthSnapshot { writer_reply: Some((MonoTime(80_000), Duration::ZERO)), ..healthy() };
        assert_eq!(failing(&late, 100_500, false), ["writer"]);
        let full = HealthSnapshot { volumes: vec![("events", 49, 50), ("git", 100, 50)], ..healthy() };
        assert_eq!(failing(&full, 100_500, false), ["disk_events"]);
        let used_up = DiskBudgetStatus { level: DiskLevel::Hard, ..DiskBudgetStatus::default() };
        assert_eq!(failing(&HealthSnapshot { disk_budget: used_up, ..healthy() }, 100_500, false), ["disk_budget"]);
        let broken = WriterStats { store_error: Some("no".to_owned()), ..WriterStats::default() };
        assert_eq!(failing(&HealthSnapshot { writer_stats: Some(broken), ..healthy() }, 100_500, false), ["store"]);
        assert_eq!(failing(&HealthSnapshot { has_git: false, ..healthy() }, 100_500, false), ["git"]);
        let unmounted = HealthSnapshot { git_folder_problem: Some("gone".to_owned()), ..healthy() };
        assert_eq!(failing(&unmounted, 100_500, false), ["git_folder"]);
        assert_eq!(failing(&HealthSnapshot::default(), 500, false), ["writer", "store", "git"]);
    }

    #[test]
    fn status_is_503_if_a_check_fails() {
        assert_eq!(readyz(&healthy(), MonoTime(100_500), false).status(), StatusCode::OK);
        assert_eq!(readyz(&HealthSnapshot::default(), MonoTime(500), false).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(healthz(&healthy(), MonoTime(100_500)).status(), StatusCode::OK);
        assert_eq!(healthz(&healthy(), MonoTime(200_000)).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
