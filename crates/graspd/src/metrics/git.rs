//! Metrics of git clients: clones, fetches and pushes. The names are those of ngit-grasp.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::repo::RepoPath;

use super::heavy_hitters::HeavyHitters;
use super::labels::DIRECTIONS;
use super::registry::{Counter, Family, Gauge, Histogram, MetricRegistry, any_of, label_sets, metric_set};
use super::{Metrics, gauge_value};

/// Kind of an operation of a git client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GitOperationKind {
    Clone,
    Fetch,
    Push,
}

grasp_core::label_table! {
    /// Returns the `operation` label.
    GitOperationKind {
        Self::Clone => "clone",
        Self::Fetch => "fetch",
        Self::Push => "push",
    }
}

const SUCCESS: &str = "success";
const ERROR: &str = "error";
const AUTHORIZED: &str = "authorized";
const DENIED: &str = "denied";

label_sets! {
    struct OperationResultLabels {
        operation: &'static str = [any_of(GitOperationKind::LABELS)],
        status: &'static str = [any_of(&[SUCCESS, ERROR])],
    }
    struct OperationLabels { operation: &'static str = [any_of(GitOperationKind::LABELS)] }
    struct PackDirectionLabels { direction: &'static str = [any_of(&DIRECTIONS)] }
    struct AuthorizationLabels { result: &'static str = [any_of(&[AUTHORIZED, DENIED])] }
    /// The code that the client receives, such as `E-STATE-MISSING`.
    struct RefusalLabels { code: &'static str = [] }
    struct RepoLabels { repo: String = [] }
}

metric_set! {
    /// Metrics of git clients.
    pub(crate) struct GitMetrics(registry, max_repos: usize) {
        operations: Family<OperationResultLabels, Counter>, "ngit_git_operations_total",
            "Clones, fetches and pushes by result";
        duration: Family<OperationLabels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(operation_durations as fn() -> Histogram), "ngit_git_operation_duration_seconds",
            "Duration of clones, fetches and pushes, from the request to the last byte";
        refusals: Family<RefusalLabels, Counter>, "ngit_git_push_refusals_total",
            "Rejected pushes by the code of the report (E-STATE-MISSING and so on)";
        cache_hits: Counter, "ngit_git_pack_cache_hits_total", "Clones and fetches answered from the pack cache";
        cache_misses: Counter, "ngit_git_pack_cache_misses_total", "Clones and fetches whose pack had to be built";
        repositories: Gauge, "ngit_repositories_total", "Hosted repositories, including those that wait for git data";
        degraded: Gauge, "ngit_repositories_degraded", "Repositories whose objects are damaged or missing";
        top_repos: Family<RepoLabels, Gauge>, "ngit_git_top_repos_bytes",
            "Bytes sent since the start, for the NGIT_METRICS_TOP_N_REPOS repositories with the most";
    }
    with {
        /// Bytes in each of [`DIRECTIONS`].
        bytes: [Counter; 2] = registry.add_series(
            "ngit_git_bytes_total", "Bytes of packs received from clients (in) and sent to clients (out)",
            DIRECTIONS, |direction| PackDirectionLabels { direction },
        );
        /// Authorised pushes and the others.
        authorizations: [Counter; 2] = registry.add_series(
            "ngit_git_push_authorization_total", "Pushes by whether a signed event authorises them",
            [AUTHORIZED, DENIED], |result| AuthorizationLabels { result },
        );
        /// Maximum number of repositories in `top_repos`.
        max_top_repos: usize = max_repos;
        sent: Mutex<SentBytes> = Mutex::default();
        /// Rejected pushes by code, for the status page.
        refusals_by_code: Mutex<BTreeMap<&'static str, u64>> = Mutex::default();
    }
}

/// Bytes sent by repository.
#[derive(Debug, Default)]
struct SentBytes {
    by_repo: HeavyHitters,
    /// The repositories that have a series.
    exported: BTreeSet<String>,
}

/// Creates a histogram from a hundredth of a second to half an hour: from a fetch without objects to the clone of a
/// huge repository over a slow line.
fn operation_durations() -> Histogram {
    Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_800.0])
}

impl GitMetrics {
    pub(super) fn new(registry: &mut MetricRegistry, max_top_repos: usize) -> Self {
        let metrics = Self::register(registry, max_top_repos);
        for operation in GitOperationKind::LABELS {
            for status in [SUCCESS, ERROR] {
                metrics.operations.get_or_create(&OperationResultLabels { operation, status }).inc_by(0);
            }
        }
        metrics
    }

    /// Counts whether a push was authorised.
    pub(crate) fn count_authorization(&self, is_authorized: bool) {
        let [authorized, denied] = &self.authorizations;
        if is_authorized { authorized } else { denied }.inc();
    }

    /// Counts a rejected push by its code.
    pub(crate) fn count_refusal(&self, code: &'static str) {
        self.refusals.get_or_create(&RefusalLabels { code }).inc();
        *self.refusals_by_code.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }

    /// Returns the number of rejected pushes by code since the start of the process.
    pub(crate) fn refusals_by_code(&self) -> BTreeMap<&'static str, u64> {
        self.refusals_by_code.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a clone or fetch by whether its pack was in the pack cache.
    pub(crate) fn count_pack_cache(&self, is_hit: bool) {
        if is_hit { &self.cache_hits } else { &self.cache_misses }.inc();
    }

    /// Returns the hits and the misses of the pack cache.
    pub(crate) fn pack_cache_counts(&self) -> (u64, u64) {
        (self.cache_hits.get(), self.cache_misses.get())
    }

    /// Sets the number of hosted repositories and of degraded ones, and updates which repositories have a series in
    /// `top_repos`.
    pub(crate) fn update_repositories(&self, repositories: usize, degraded: usize) {
        self.degraded.set(gauge_value(degraded as u64));
        self.repositories.set(gauge_value(repositories as u64));
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let top = sent.by_repo.top(self.max_top_repos);
        let exported: BTreeSet<String> = top.iter().map(|(repo, _)| repo.clone()).collect();
        for removed in sent.exported.difference(&exported) {
            self.top_repos.remove(&RepoLabels { repo: removed.clone() });
        }
        for (repo, bytes) in top {
            self.top_repos.get_or_create(&RepoLabels { repo }).set(gauge_value(bytes));
        }
        sent.exported = exported;
    }

    fn count_operation(&self, operation: &GitOperation) {
        let status = if operation.has_succeeded { SUCCESS } else { ERROR };
        let label = operation.kind.label();
        self.operations.get_or_create(&OperationResultLabels { operation: label, status }).inc();
        let duration: Duration = operation.started_at.elapsed();
        self.duration.get_or_create(&OperationLabels { operation: label }).observe(duration.as_secs_f64());
        let is_push = operation.kind == GitOperationKind::Push;
        let [bytes_in, bytes_out] = &self.bytes;
        if is_push { bytes_in } else { bytes_out }.inc_by(operation.bytes);
        if !is_push {
            let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            sent.by_repo.add(operation.repo.clone(), operation.bytes);
        }
    }
}

/// An operation of a git client, from its request to its end. It is counted when it is dropped: as failed, unless
/// [`GitOperation::succeed`] was called.
pub(crate) struct GitOperation {
    metrics: Metrics,
    kind: GitOperationKind,
    repo: String,
    started_at: Instant,
    bytes: u64,
    has_succeeded: bool,
}

impl GitOperation {
    /// Returns the bytes transferred so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn new(metrics: &Metrics, kind: GitOperationKind, repo_path: &RepoPath) -> Self {
        Self {
            metrics: metrics.clone(),
            kind,
            repo: repo_path.path(),
            started_at: Instant::now(),
            bytes: 0,
            has_succeeded: false,
        }
    }

    /// Adds bytes of a pack that were received or sent.
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Ends the operation as successful.
    pub(crate) fn succeed(mut self) {
        self.has_succeeded = true;
    }
}

impl Drop for GitOperation {
    fn drop(&mut self) {
        self.metrics.git().count_operation(self);
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId};

    use super::*;
    use crate::config::MetricsLimits;

    fn repo_path(name: &str) -> RepoPath {
        let identifier = Identifier::new(name).expect("an invalid identifier");
        RepoPath::Announced(RepoId { owner: PublicKey([1; 32]), identifier })
    }

    #[test]
    fn operations_are_counted_by_status() {
        let metrics = Metrics::new();
        let mut good = GitOperation::new(&metrics, GitOperationKind::Clone, &repo_path("a"));
        good.add_bytes(10);
        good.succeed();
        drop(GitOperation::new(&metrics, GitOperationKind::Clone, &repo_path("a")));
        let mut push = GitOperation::new(&metrics, GitOperationKind::Push, &repo_path("a"));
        push.add_bytes(5);
        push.succeed();
        metrics.git().count_refusal("E-STATE-MISSING");
        let text = metrics.encode();
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
    fn only_the_top_repositories_have_a_series() {
        let metrics = Metrics::with_limits(MetricsLimits { top_repos: 2, ..Default::default() });
        for (nth, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let mut fetch = GitOperation::new(&metrics, GitOperationKind::Fetch, &repo_path(name));
            fetch.add_bytes(100 * (nth + 1));
            fetch.succeed();
            metrics.git().update_repositories(nth, 0);
        }
        let text = metrics.encode();
        let series: Vec<&str> = text.lines().filter(|line| line.starts_with("ngit_git_top_repos_bytes{")).collect();
        assert_eq!(series.len(), 2, "{series:?}");
        assert!(series.iter().any(|line| line.contains("/d.git") && line.ends_with(" 400")), "{series:?}");
        assert!(text.contains("ngit_repositories_total 3\n"), "{text}");
    }
}
