//! What is measured about git clients. The names are those that operators know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::repo::RepoPath;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::heavy_hitters::Top;
use super::{MetricRegistry, Metrics, counter, gauge, histogram};

/// What a git client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Clone,
    Fetch,
    Push,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Fetch => "fetch",
            Self::Push => "push",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Ended {
    operation: &'static str,
    status: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Operations {
    operation: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Code {
    code: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Repo {
    repo: String,
}

const SUCCESS: &str = "success";
const ERROR: &str = "error";

/// What is measured about git clients.
#[derive(Debug)]
pub(crate) struct GitMetrics {
    operations: Family<Ended, Counter>,
    duration: Family<Operations, Histogram, fn() -> Histogram>,
    bytes_in: Counter,
    bytes_out: Counter,
    authorised: Counter,
    denied: Counter,
    refusals: Family<Code, Counter>,
    cache_hits: Counter,
    cache_misses: Counter,
    repositories: Gauge,
    top_repos: Family<Repo, Gauge>,
    /// How many repositories are shown.
    shown: usize,
    top: Mutex<Shown>,
    /// Refused pushes by code, for people.
    codes: Mutex<BTreeMap<&'static str, u64>>,
}

#[derive(Debug, Default)]
struct Shown {
    top: Top,
    labels: BTreeSet<String>,
}

/// From a tenth of a second to half an hour: a refs-only fetch to the clone of something huge over a slow line.
fn durations() -> Histogram {
    Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_800.0])
}

impl GitMetrics {
    pub(super) fn new(to: &mut MetricRegistry, shown: usize) -> Self {
        let bytes = counter(
            to,
            "ngit_git_bytes_total",
            "Bytes of packs that clients sent (in) and were sent (out)",
            Family::<Direction, Counter>::default(),
        );
        let way = |direction| bytes.get_or_create_owned(&Direction { direction });
        let authorisation = counter(
            to,
            "ngit_git_push_authorization_total",
            "Pushes by whether an event allows them",
            Family::<Outcome, Counter>::default(),
        );
        let outcome = |result| authorisation.get_or_create_owned(&Outcome { result });
        let meter = Self {
            operations: counter(
                to,
                "ngit_git_operations_total",
                "Clones, fetches and pushes, by how they ended",
                Family::default(),
            ),
            duration: histogram(
                to,
                "ngit_git_operation_duration_seconds",
                "How long clones, fetches and pushes took, from request to last byte",
                Family::new_with_constructor(durations as fn() -> Histogram),
            ),
            bytes_in: way("in"),
            bytes_out: way("out"),
            authorised: outcome("authorized"),
            denied: outcome("denied"),
            refusals: counter(to, "ngit_git_push_refusals_total", "Refused pushes, by code", Family::default()),
            cache_hits: counter(
                to,
                "ngit_git_pack_cache_hits_total",
                "Fetches that were answered with what was made for another",
                Counter::default(),
            ),
            cache_misses: counter(
                to,
                "ngit_git_pack_cache_misses_total",
                "Fetches whose answer had to be made",
                Counter::default(),
            ),
            repositories: gauge(
                to,
                "ngit_repositories_total",
                "Repositories that are open, served or waiting",
                Gauge::default(),
            ),
            top_repos: gauge(
                to,
                "ngit_git_top_repos_bytes",
                "Bytes sent since the start, for the METRICS_TOP_N_REPOS repositories with most",
                Family::default(),
            ),
            shown,
            top: Mutex::default(),
            codes: Mutex::default(),
        };
        for operation in [Kind::Clone, Kind::Fetch, Kind::Push].map(Kind::word) {
            for status in [SUCCESS, ERROR] {
                meter.operations.get_or_create(&Ended { operation, status }).inc_by(0);
            }
        }
        meter
    }

    /// Whether a push is allowed.
    pub(crate) fn authorised(&self, allowed: bool) {
        if allowed {
            self.authorised.inc()
        } else {
            self.denied.inc()
        };
    }

    /// A push was refused. The codes are ours.
    pub(crate) fn refused(&self, code: &'static str) {
        self.refusals.get_or_create(&Code { code }).inc();
        *self.codes.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }

    /// Refused pushes since the start, by code.
    pub(crate) fn codes(&self) -> BTreeMap<&'static str, u64> {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the answer to a fetch was there.
    pub(crate) fn cache(&self, hit: bool) {
        if hit {
            self.cache_hits.inc()
        } else {
            self.cache_misses.inc()
        };
    }

    /// How often the answer to a fetch was there, and how often not.
    pub(crate) fn cache_counts(&self) -> (u64, u64) {
        (self.cache_hits.get(), self.cache_misses.get())
    }

    /// Every now and then: what takes a look around.
    pub(crate) fn look(&self, repositories: usize) {
        self.repositories.set(i64::try_from(repositories).unwrap_or(i64::MAX));
        let mut shown = self.top.lock().unwrap_or_else(PoisonError::into_inner);
        let first = shown.top.first(self.shown);
        let labels: BTreeSet<String> = first.iter().map(|(repo, _)| repo.clone()).collect();
        for gone in shown.labels.difference(&labels) {
            self.top_repos.remove(&Repo { repo: gone.clone() });
        }
        for (repo, bytes) in first {
            self.top_repos.get_or_create(&Repo { repo }).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        shown.labels = labels;
    }

    fn ended(&self, operation: &Operation) {
        let status = if operation.succeeded { SUCCESS } else { ERROR };
        let word = operation.kind.word();
        self.operations.get_or_create(&Ended { operation: word, status }).inc();
        let took: Duration = operation.began.elapsed();
        self.duration.get_or_create(&Operations { operation: word }).observe(took.as_secs_f64());
        match operation.kind {
            Kind::Push => {
                self.bytes_in.inc_by(operation.bytes);
            }
            Kind::Clone | Kind::Fetch => {
                self.bytes_out.inc_by(operation.bytes);
                let mut shown = self.top.lock().unwrap_or_else(PoisonError::into_inner);
                shown.top.add(operation.repo.clone(), operation.bytes);
            }
        }
    }
}

/// Something that a git client does, from its request to its end. Unless it is said to have succeeded it has not.
pub(crate) struct Operation {
    meter: Metrics,
    kind: Kind,
    repo: String,
    began: Instant,
    bytes: u64,
    succeeded: bool,
}

impl Operation {
    pub(crate) fn new(meter: &Metrics, kind: Kind, repo_path: &RepoPath) -> Self {
        Self { meter: meter.clone(), kind, repo: repo_path.path(), began: Instant::now(), bytes: 0, succeeded: false }
    }

    /// Bytes of a pack have moved.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// It is over and was good.
    pub(crate) fn succeed(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.meter.git().ended(self);
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId};

    use super::*;
    use crate::config::MetricsLimits;

    fn repo_path(name: &str) -> RepoPath {
        let identifier = Identifier::new(name).expect("names a repository");
        RepoPath::Announced(RepoId { owner: PublicKey([1; 32]), identifier })
    }

    #[test]
    fn operations_are_told_by_how_they_ended() {
        let meter = Metrics::new();
        let mut good = Operation::new(&meter, Kind::Clone, &repo_path("a"));
        good.moved(10);
        good.succeed();
        drop(Operation::new(&meter, Kind::Clone, &repo_path("a")));
        let mut push = Operation::new(&meter, Kind::Push, &repo_path("a"));
        push.moved(5);
        push.succeed();
        meter.git().refused("E-STATE-MISSING");
        let text = meter.encode();
        for line in [
            "ngit_git_operations_total{operation=\"clone\",status=\"success\"} 1\n",
            "ngit_git_operations_total{operation=\"clone\",status=\"error\"} 1\n",
            "ngit_git_operations_total{operation=\"push\",status=\"success\"} 1\n",
            "ngit_git_operation_duration_seconds_count{operation=\"clone\"} 2\n",
            "ngit_git_bytes_total{direction=\"out\"} 10\n",
            "ngit_git_bytes_total{direction=\"in\"} 5\n",
            "ngit_git_push_refusals_total{code=\"E-STATE-MISSING\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn few_repositories_have_a_label() {
        let meter = Metrics::with(MetricsLimits { top_repos: 2, ..Default::default() });
        for (nth, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let mut fetch = Operation::new(&meter, Kind::Fetch, &repo_path(name));
            fetch.moved(100 * (nth + 1));
            fetch.succeed();
            meter.git().look(nth);
        }
        let text = meter.encode();
        let series: Vec<&str> = text.lines().filter(|line| line.starts_with("ngit_git_top_repos_bytes{")).collect();
        assert_eq!(series.len(), 2, "{series:?}");
        assert!(series.iter().any(|line| line.contains("/d.git") && line.ends_with(" 400")), "{series:?}");
        assert!(text.contains("ngit_repositories_total 3\n"), "{text}");
    }
}
