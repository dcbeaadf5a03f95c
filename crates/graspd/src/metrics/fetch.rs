//! Metrics of fetching missing git data from other git servers.
//!
//! Repository identifiers come from untrusted events and are no labels. [`limits::MAX_DOMAIN_LABELS`] git servers,
//! those with the most requests, have a `domain` label of their own; the others share `other`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use grasp_core::fetch::io::FetchOutcome;
use grasp_core::limits;

use super::gauge_value;
use super::label_limit::{LabelLimit, OTHER};
use super::registry::{Counter, Family, Gauge, MetricRegistry, any_of, label_sets, metric_set};

label_sets! {
    struct DomainLabels { domain: String = [] }
    struct FetchLabels { outcome: &'static str = [any_of(FetchOutcome::LABELS)] }
}

/// Current values of a git server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostSample<'a> {
    /// The host, and the port if it is not the default.
    pub(crate) authority: &'a str,
    /// Running requests.
    pub(crate) in_flight: usize,
    /// Requests since the start of the process.
    pub(crate) requests: u64,
}

metric_set! {
    /// Metrics of fetching missing git data.
    pub(crate) struct FetchMetrics(registry) {
        queue: Gauge, "purgatory_sync_queue_size", "Repositories with missing git data";
        attempts: Counter, "purgatory_sync_attempts_total",
            "Rounds in which all sources of a repository were asked for its missing objects";
        oids: Counter, "purgatory_sync_oids_fetched_total", "Missing objects that were fetched";
        in_flight: Family<DomainLabels, Gauge>, "purgatory_domain_in_flight",
            "Running fetches from the git server and checks of its refs";
        requests: Family<DomainLabels, Counter>, "purgatory_domain_requests_total",
            "Fetches from the git server and checks of its refs";
        fetches: Family<FetchLabels, Counter>, "purgatory_fetches_total", "Ended fetches by outcome";
    }
    with {
        hosts: Mutex<Hosts> =
            Mutex::new(Hosts { labelled: LabelLimit::new(limits::MAX_DOMAIN_LABELS), requests: BTreeMap::new() });
    }
}

/// The known git servers.
#[derive(Debug)]
struct Hosts {
    labelled: LabelLimit<String>,
    /// Total requests of each server at the last update.
    requests: BTreeMap<String, u64>,
}

impl FetchMetrics {
    /// Registers the metrics and creates the series of all outcomes with value zero.
    pub(super) fn new(registry: &mut MetricRegistry) -> Self {
        let metrics = Self::register(registry);
        for outcome in FetchOutcome::LABELS {
            metrics.fetches.get_or_create(&FetchLabels { outcome }).inc_by(0);
        }
        metrics
    }

    /// Sets the number of repositories with missing data and the values of all git servers.
    pub(crate) fn update<'a>(&self, queue: usize, hosts: impl Iterator<Item = HostSample<'a>>) {
        self.queue.set(gauge_value(queue as u64));
        let mut samples: Vec<HostSample<'a>> = hosts.collect();
        let mut known = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        // Among servers with the same number of requests, those that have a label keep it.
        samples.sort_by_cached_key(|host| {
            (Reverse((host.requests, known.labelled.contains(&host.authority.to_owned()))), host.authority.to_owned())
        });
        let names: Vec<String> = samples.iter().map(|host| host.authority.to_owned()).collect();
        for domain in known.labelled.rank(names.iter()) {
            let labels = DomainLabels { domain };
            self.in_flight.remove(&labels);
            self.requests.remove(&labels);
        }
        let mut other_in_flight = 0;
        for (host, name) in samples.iter().zip(&names) {
            let is_labelled = known.labelled.contains(name);
            let labels = DomainLabels { domain: if is_labelled { name.clone() } else { OTHER.to_owned() } };
            let before = known.requests.get(name).copied().unwrap_or(0);
            let requests = self.requests.get_or_create_owned(&labels);
            if is_labelled {
                // A server that gets its label late starts with its total.
                requests.inc_by(host.requests.saturating_sub(requests.get()));
                self.in_flight.get_or_create(&labels).set(gauge_value(host.in_flight as u64));
            } else {
                requests.inc_by(host.requests.saturating_sub(before));
                other_in_flight += host.in_flight;
            }
        }
        if samples.len() > limits::MAX_DOMAIN_LABELS {
            let labels = DomainLabels { domain: OTHER.to_owned() };
            self.in_flight.get_or_create(&labels).set(gauge_value(other_in_flight as u64));
        }
        known.requests = samples.iter().map(|host| (host.authority.to_owned(), host.requests)).collect();
    }

    /// Raises the totals of ended rounds and of fetched objects.
    pub(crate) fn set_totals(&self, rounds: u64, oids: u64) {
        self.attempts.inc_by(rounds.saturating_sub(self.attempts.get()));
        self.oids.inc_by(oids.saturating_sub(self.oids.get()));
    }

    /// Counts an ended fetch.
    pub(crate) fn count_fetch(&self, outcome: &FetchOutcome) {
        self.fetches.get_or_create(&FetchLabels { outcome: outcome.label() }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn busiest_servers_have_series_and_the_others_share_one() {
        let metrics = Metrics::new();
        let host = |authority, in_flight, requests| HostSample { authority, in_flight, requests };
        metrics.fetch().update(3, [host("a.example", 1, 4), host("b.example", 0, 2)].into_iter());
        metrics.fetch().update(2, [host("a.example", 0, 5), host("b.example", 0, 2)].into_iter());
        metrics.fetch().set_totals(7, 90);
        metrics.fetch().set_totals(7, 91);
        metrics.fetch().count_fetch(&FetchOutcome::Busy(Some(3)));
        let text = metrics.encode();
        for line in [
            "purgatory_sync_queue_size 2\n",
            "purgatory_sync_attempts_total 7\n",
            "purgatory_sync_oids_fetched_total 91\n",
            "purgatory_domain_in_flight{domain=\"a.example\"} 0\n",
            "purgatory_domain_requests_total{domain=\"a.example\"} 5\n",
            "purgatory_domain_requests_total{domain=\"b.example\"} 2\n",
            "purgatory_fetches_total{outcome=\"busy\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let names: Vec<String> = (0..3 * limits::MAX_DOMAIN_LABELS).map(|nth| format!("h{nth}.example")).collect();
        metrics.fetch().update(1, names.iter().map(|name| host(name, 1, 1)));
        let text = metrics.encode();
        let series = text.lines().filter(|line| line.starts_with("purgatory_domain_requests_total{")).count();
        assert!(series <= limits::MAX_DOMAIN_LABELS + 1, "{series}");
        assert!(text.contains("purgatory_domain_in_flight{domain=\"other\"} "), "{text}");
    }
}
