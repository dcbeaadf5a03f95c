//! What is measured about the search for missing git data (002). The names of identifiers are strangers': they are no
//! labels. [`limits::MAX_DOMAIN_LABELS`] git servers have a label of their own, the busiest; the rest is `other`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use grasp_core::limits;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::label_limit::{OTHER, Own};
use super::{MetricRegistry, counter, gauge};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Domain {
    domain: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Ended {
    outcome: &'static str,
}

/// A git server at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostSample<'a> {
    /// The host, and the port if it is not the usual one.
    pub(crate) authority: &'a str,
    /// Fetches under way.
    pub(crate) in_flight: usize,
    /// Fetches since the start of the process.
    pub(crate) requests: u64,
}

/// What is measured about the hunt.
#[derive(Debug)]
pub(crate) struct FetchMetrics {
    queue: Gauge,
    attempts: Counter,
    oids: Counter,
    in_flight: Family<Domain, Gauge>,
    requests: Family<Domain, Counter>,
    fetches: Family<Ended, Counter>,
    hosts: Mutex<Hosts>,
}

#[derive(Debug)]
struct Hosts {
    own: Own<String>,
    /// What each had been asked in all when it was last looked at.
    requests: BTreeMap<String, u64>,
}

impl FetchMetrics {
    pub(super) fn new(to: &mut MetricRegistry) -> Self {
        Self {
            queue: gauge(
                to,
                "purgatory_sync_queue_size",
                "Repositories for which git data is looked for",
                Gauge::default(),
            ),
            attempts: counter(
                to,
                "purgatory_sync_attempts_total",
                "Times that everybody was asked for what a repository misses",
                Counter::default(),
            ),
            oids: counter(
                to,
                "purgatory_sync_oids_fetched_total",
                "Objects that were looked for and came",
                Counter::default(),
            ),
            in_flight: gauge(
                to,
                "purgatory_domain_in_flight",
                "Fetches from a git server, and looks at it, that are under way",
                Family::default(),
            ),
            requests: counter(
                to,
                "purgatory_domain_requests_total",
                "Fetches from a git server, and looks at it",
                Family::default(),
            ),
            fetches: counter(
                to,
                "purgatory_fetches_total",
                "Fetches that are over, by how they ended",
                Family::default(),
            ),
            hosts: Mutex::new(Hosts { own: Own::new(limits::MAX_DOMAIN_LABELS), requests: BTreeMap::new() }),
        }
    }

    /// A moment of the hunt: how many repositories are looked for, and all git servers.
    pub(crate) fn view<'a>(&self, queue: usize, hosts: impl Iterator<Item = HostSample<'a>>) {
        self.queue.set(i64::try_from(queue).unwrap_or(i64::MAX));
        let mut all: Vec<HostSample<'a>> = hosts.collect();
        let mut books = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        // Among equals, whoever has a label keeps it.
        all.sort_by_cached_key(|host| {
            (Reverse((host.requests, books.own.has(&host.authority.to_owned()))), host.authority.to_owned())
        });
        let names: Vec<String> = all.iter().map(|host| host.authority.to_owned()).collect();
        for domain in books.own.rank(names.iter()) {
            let label = Domain { domain };
            self.in_flight.remove(&label);
            self.requests.remove(&label);
        }
        let mut rest = 0;
        for (host, name) in all.iter().zip(&names) {
            let own = books.own.has(name);
            let label = Domain { domain: if own { name.clone() } else { OTHER.to_owned() } };
            let before = books.requests.get(name).copied().unwrap_or(0);
            // One that gets its label late begins with what it was asked in all.
            let counted = self.requests.get_or_create_owned(&label);
            if own {
                counted.inc_by(host.requests.saturating_sub(counted.get()));
                self.in_flight.get_or_create(&label).set(i64::try_from(host.in_flight).unwrap_or(i64::MAX));
            } else {
                counted.inc_by(host.requests.saturating_sub(before));
                rest += host.in_flight;
            }
        }
        if all.len() > limits::MAX_DOMAIN_LABELS {
            let label = Domain { domain: OTHER.to_owned() };
            self.in_flight.get_or_create(&label).set(i64::try_from(rest).unwrap_or(i64::MAX));
        }
        books.requests = all.iter().map(|host| (host.authority.to_owned(), host.requests)).collect();
    }

    /// What was done in all: rounds that are over, and objects that were sought and came.
    pub(crate) fn tally(&self, rounds: u64, oids: u64) {
        self.attempts.inc_by(rounds.saturating_sub(self.attempts.get()));
        self.oids.inc_by(oids.saturating_sub(self.oids.get()));
    }

    /// A fetch is over. Outcomes are told by the name of their variant.
    pub(crate) fn fetched(&self, outcome: &'static str) {
        self.fetches.get_or_create(&Ended { outcome }).inc();
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::fetch::io::FetchOutcome;

    use super::super::Metrics;
    use super::*;

    #[test]
    fn git_servers_are_told_and_a_crowd_shares_a_label() {
        let meter = Metrics::new();
        let host = |authority, in_flight, requests| HostSample { authority, in_flight, requests };
        meter.hunt().view(3, [host("a.example", 1, 4), host("b.example", 0, 2)].into_iter());
        meter.hunt().view(2, [host("a.example", 0, 5), host("b.example", 0, 2)].into_iter());
        meter.hunt().tally(7, 90);
        meter.hunt().tally(7, 91);
        meter.hunt().fetched(FetchOutcome::Busy(Some(3)).label());
        let text = meter.encode();
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
        meter.hunt().view(1, names.iter().map(|name| host(name, 1, 1)));
        let text = meter.encode();
        let series = text.lines().filter(|line| line.starts_with("purgatory_domain_requests_total{")).count();
        assert!(series <= limits::MAX_DOMAIN_LABELS + 1, "{series}");
        assert!(text.contains("purgatory_domain_in_flight{domain=\"other\"} "), "{text}");
    }
}
