//! Whether the service is alive and ready, for whoever watches over it. All of it was seen by the watchman within the last
//! second or so.

use std::time::Duration;

use grasp_core::disk_budget::DiskLevel;
use grasp_core::time::MonoTime;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::http::body::HttpResponse;
use crate::http::response::with_type;
use crate::monitor::disk_budget::Standing;
use crate::monitor::health::HealthSnapshot;

/// How long something may be silent before it counts as stuck: a busy disk takes seconds.
const STUCK: Duration = Duration::from_secs(10);

/// Something that must be so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) ok: bool,
    /// How it is, in words.
    pub(crate) detail: String,
}

/// Whether the process lives: its event loop turns, and the watchman goes round.
fn alive(round: &HealthSnapshot, now: MonoTime) -> Vec<Check> {
    let (turned, late) = round.turned;
    let quiet = now.since(turned);
    let round_age = now.since(round.at);
    vec![
        Check {
            name: "loop",
            ok: quiet < STUCK,
            detail: format!("turned {} ms ago, {} ms late", quiet.as_millis(), late.as_millis()),
        },
        Check {
            name: "watchman",
            ok: round_age < STUCK,
            detail: format!("looked around {} ms ago", round_age.as_millis()),
        },
    ]
}

/// Whether it can do its work.
pub(crate) fn checks(round: &HealthSnapshot, now: MonoTime, leaving: bool) -> Vec<Check> {
    let mut checks = alive(round, now);
    checks.push(match round.writer {
        None => Check { name: "writer", ok: false, detail: "has not answered yet".to_owned() },
        Some((at, took)) => Check {
            name: "writer",
            ok: now.since(at) < STUCK,
            detail: format!("answered {} ms ago within {} ms", now.since(at).as_millis(), took.as_millis()),
        },
    });
    let problem = round.vitals.as_ref().and_then(|vitals| vitals.problem.clone());
    checks.push(Check {
        name: "store",
        ok: round.vitals.is_some() && problem.is_none(),
        detail: problem.unwrap_or_else(|| "can be written".to_owned()),
    });
    for (volume, free, mark) in &round.volumes {
        let name = if *volume == "events" { "disk_events" } else { "disk_git" };
        let detail = format!("{free} bytes are free, {mark} are kept");
        checks.push(Check { name, ok: free >= mark, detail });
    }
    let Standing { used, budget, mark } = round.budget;
    let detail =
        format!("{used} of {} bytes are used, no new repositories from {} on", budget.hard_bytes, budget.soft_bytes);
    checks.push(Check { name: "disk_budget", ok: mark != DiskLevel::Hard, detail });
    let found = if round.git { "found" } else { "cannot be found" };
    checks.push(Check { name: "git", ok: round.git, detail: found.to_owned() });
    let serving = if leaving { "going down" } else { "taking requests" };
    checks.push(Check { name: "serving", ok: !leaving, detail: serving.to_owned() });
    checks
}

/// `GET /healthz`.
pub(crate) fn healthz(round: &HealthSnapshot, now: MonoTime) -> HttpResponse {
    answer("alive", &alive(round, now))
}

/// `GET /readyz`.
pub(crate) fn readyz(round: &HealthSnapshot, now: MonoTime, leaving: bool) -> HttpResponse {
    answer("ready", &checks(round, now, leaving))
}

fn answer(word: &str, checks: &[Check]) -> HttpResponse {
    let all = checks.iter().all(|check| check.ok);
    let status = if all { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = Map::new();
    body.insert(word.to_owned(), json!(all));
    body.insert("checks".to_owned(), to_json(checks));
    let mut answer = with_type(status, "application/json", Value::Object(body).to_string() + "\n");
    answer.headers_mut().insert(hyper::header::CACHE_CONTROL, hyper::header::HeaderValue::from_static("no-store"));
    answer
}

/// Checks as programs read them.
pub(crate) fn to_json(checks: &[Check]) -> Value {
    let one = |check: &Check| (check.name.to_owned(), json!({"ok": check.ok, "detail": check.detail}));
    Value::Object(checks.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::health::WriterStats;

    fn well() -> HealthSnapshot {
        HealthSnapshot {
            at: MonoTime(100_000),
            vitals: Some(WriterStats::default()),
            writer: Some((MonoTime(100_000), Duration::from_millis(1))),
            volumes: vec![("events", 100, 50), ("git", 100, 50)],
            git: true,
            turned: (MonoTime(100_000), Duration::ZERO),
            ..HealthSnapshot::default()
        }
    }

    fn failing(round: &HealthSnapshot, now: u64, leaving: bool) -> Vec<&'static str> {
        checks(round, MonoTime(now), leaving).iter().filter(|check| !check.ok).map(|check| check.name).collect()
    }

    #[test]
    fn every_trouble_is_named() {
        assert_eq!(failing(&well(), 100_500, false), Vec::<&str>::new());
        assert_eq!(failing(&well(), 100_500, true), ["serving"]);
        assert_eq!(failing(&well(), 120_000, false), ["loop", "watchman", "writer"]);
        let late = HealthSnapshot { writer: Some((MonoTime(80_000), Duration::ZERO)), ..well() };
        assert_eq!(failing(&late, 100_500, false), ["writer"]);
        let full = HealthSnapshot { volumes: vec![("events", 49, 50), ("git", 100, 50)], ..well() };
        assert_eq!(failing(&full, 100_500, false), ["disk_events"]);
        let used_up = Standing { mark: DiskLevel::Hard, ..Standing::default() };
        assert_eq!(failing(&HealthSnapshot { budget: used_up, ..well() }, 100_500, false), ["disk_budget"]);
        let broken = WriterStats { problem: Some("no".to_owned()), ..WriterStats::default() };
        assert_eq!(failing(&HealthSnapshot { vitals: Some(broken), ..well() }, 100_500, false), ["store"]);
        assert_eq!(failing(&HealthSnapshot { git: false, ..well() }, 100_500, false), ["git"]);
        assert_eq!(failing(&HealthSnapshot::default(), 500, false), ["writer", "store", "git"]);
    }

    #[test]
    fn the_answer_says_so() {
        assert_eq!(readyz(&well(), MonoTime(100_500), false).status(), StatusCode::OK);
        assert_eq!(readyz(&HealthSnapshot::default(), MonoTime(500), false).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(healthz(&well(), MonoTime(100_500)).status(), StatusCode::OK);
        assert_eq!(healthz(&well(), MonoTime(200_000)).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
