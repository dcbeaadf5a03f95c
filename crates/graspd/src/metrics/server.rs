//! What is measured about the house itself: queues, budgets, disk, what waits for git data, the writer, the machines.
//! Queues, budgets and the disk are looked at by the [watchman](crate::monitor::health).

use std::time::Duration;

use grasp_core::time::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{MetricRegistry, counter, gauge, histogram};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Queue {
    queue: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Budget {
    budget: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Volume {
    volume: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Place {
    place: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Fact {
    machine: &'static str,
    variant: &'static str,
}

/// The three machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Machine {
    Registrar,
    Sync,
    Hunt,
}

impl Machine {
    fn word(self) -> &'static str {
        match self {
            Self::Registrar => "registrar",
            Self::Sync => "sync",
            Self::Hunt => "hunt",
        }
    }
}

/// What is in purgatory.
pub(crate) struct PurgatoryCounts {
    /// Events by kind, without dormant ones.
    pub(crate) kinds: [(&'static str, usize); 3],
    /// Bytes of all held events.
    pub(crate) bytes: usize,
    pub(crate) dormant: usize,
    /// Age of the oldest event that is not dormant.
    pub(crate) oldest: Option<Duration>,
    /// Pushed commits whose event has not arrived.
    pub(crate) uploads: usize,
}

/// What is measured about the house.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    queues: Family<Queue, Gauge>,
    used: Family<Budget, Gauge>,
    limits: Family<Budget, Gauge>,
    disk: Family<Kind, Gauge>,
    disk_free: Family<Volume, Gauge>,
    disk_mark: Family<Volume, Gauge>,
    disk_measured: Gauge,
    purgatory: Family<Kind, Gauge>,
    purgatory_bytes: Gauge,
    purgatory_dormant: Gauge,
    purgatory_oldest: Gauge,
    purgatory_uploads: Gauge,
    events: Family<Place, Gauge>,
    commits: Family<Outcome, Counter>,
    commit: Histogram,
    batch: Histogram,
    lag: Histogram,
    round_trip: Histogram,
    inputs: Family<Fact, Counter>,
    outputs: Family<Fact, Counter>,
}

impl ServerMetrics {
    pub(super) fn new(to: &mut MetricRegistry) -> Self {
        let meter = Self {
            queues: gauge(to, "ngit_queue_depth", "What waits, by queue", Family::default()),
            used: gauge(to, "ngit_budget_used", "What of a budget is in use", Family::default()),
            limits: gauge(to, "ngit_budget_limit", "What a budget allows", Family::default()),
            disk: gauge(
                to,
                "ngit_disk_bytes",
                "Disk space in use, by what for; measured every few minutes",
                Family::default(),
            ),
            disk_free: gauge(to, "ngit_disk_free_bytes", "Free disk space, by what it is for", Family::default()),
            disk_mark: gauge(
                to,
                "ngit_disk_mark_bytes",
                "Free disk space below which nothing new is taken, by what it is for",
                Family::default(),
            ),
            disk_measured: gauge(
                to,
                "ngit_disk_measured_timestamp_seconds",
                "When disk use was last measured, in unix time",
                Gauge::default(),
            ),
            purgatory: gauge(to, "ngit_purgatory_events", "Events that wait for git data, by kind", Family::default()),
            purgatory_bytes: gauge(to, "ngit_purgatory_bytes", "Bytes of events that wait", Gauge::default()),
            purgatory_dormant: gauge(
                to,
                "ngit_purgatory_dormant",
                "Events whose time is over and that are still looked for now and then",
                Gauge::default(),
            ),
            purgatory_oldest: gauge(
                to,
                "ngit_purgatory_oldest_seconds",
                "How long the oldest event that is not dormant has waited",
                Gauge::default(),
            ),
            purgatory_uploads: gauge(
                to,
                "ngit_purgatory_uploads",
                "Commits that were pushed and whose event is not here",
                Gauge::default(),
            ),
            events: gauge(
                to,
                "ngit_store_events",
                "Events in the store, by whether they are served",
                Family::default(),
            ),
            commits: counter(to, "ngit_commits_total", "Batches of the writer, by result", Family::default()),
            commit: histogram(
                to,
                "ngit_commit_duration_seconds",
                "From the beginning of a batch to its commit on disk",
                Histogram::new([0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]),
            ),
            batch: histogram(
                to,
                "ngit_commit_events",
                "Events of one batch",
                Histogram::new([0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0]),
            ),
            lag: histogram(
                to,
                "ngit_event_loop_lag_seconds",
                "How late the event loop is when it should do something",
                Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]),
            ),
            round_trip: histogram(
                to,
                "ngit_writer_round_trip_seconds",
                "How long the writer takes to answer a question",
                Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]),
            ),
            inputs: counter(to, "ngit_machine_inputs_total", "What machines were told", Family::default()),
            outputs: counter(to, "ngit_machine_outputs_total", "What machines wanted", Family::default()),
        };
        for result in ["stored", "failed"] {
            meter.commits.get_or_create(&Outcome { result }).inc_by(0);
        }
        meter
    }

    /// Sets the depth of a queue.
    pub(crate) fn queue(&self, queue: &'static str, depth: usize) {
        self.queues.get_or_create(&Queue { queue }).set(number(depth as u64));
    }

    /// Sets the use and the limit of a budget.
    pub(crate) fn budget(&self, budget: &'static str, used: u64, limit: u64) {
        self.used.get_or_create(&Budget { budget }).set(number(used));
        self.limits.get_or_create(&Budget { budget }).set(number(limit));
    }

    /// Sets the free space of a volume, and the space below which nothing new is accepted.
    pub(crate) fn volume(&self, volume: &'static str, free: u64, mark: u64) {
        self.disk_free.get_or_create(&Volume { volume }).set(number(free));
        self.disk_mark.get_or_create(&Volume { volume }).set(number(mark));
    }

    /// Sets the disk usage by kind, and the time of its measurement.
    pub(crate) fn disk(&self, kinds: &[(&'static str, u64)], measured_at: Timestamp) {
        for (kind, bytes) in kinds {
            self.disk.get_or_create(&Kind { kind }).set(number(*bytes));
        }
        self.disk_measured.set(number(measured_at.0));
    }

    /// Sets the number of events in the store.
    pub(crate) fn events(&self, served: u64, held: u64) {
        for (place, count) in [("served", served), ("held", held)] {
            self.events.get_or_create(&Place { place }).set(number(count));
        }
    }

    /// Sets what is in purgatory.
    pub(crate) fn purgatory(&self, purgatory: &PurgatoryCounts) {
        for (kind, count) in purgatory.kinds {
            self.purgatory.get_or_create(&Kind { kind }).set(number(count as u64));
        }
        self.purgatory_bytes.set(number(purgatory.bytes as u64));
        self.purgatory_dormant.set(number(purgatory.dormant as u64));
        self.purgatory_oldest.set(number(purgatory.oldest.map_or(0, |oldest| oldest.as_secs())));
        self.purgatory_uploads.set(number(purgatory.uploads as u64));
    }

    /// The writer has ended a batch.
    pub(crate) fn committed(&self, took: Duration, events: usize, stored: bool) {
        let result = if stored { "stored" } else { "failed" };
        self.commits.get_or_create(&Outcome { result }).inc();
        if stored {
            self.commit.observe(took.as_secs_f64());
            self.batch.observe(events as f64);
        }
    }

    /// The event loop was late.
    pub(crate) fn lag(&self, late: Duration) {
        self.lag.observe(late.as_secs_f64());
    }

    /// The writer has answered.
    pub(crate) fn round_trip(&self, took: Duration) {
        self.round_trip.observe(took.as_secs_f64());
    }

    /// A machine was told something.
    pub(crate) fn input(&self, machine: Machine, label: &'static str) {
        self.inputs.get_or_create(&Fact { machine: machine.word(), variant: label }).inc();
    }

    /// A machine wants something.
    pub(crate) fn output(&self, machine: Machine, label: &'static str) {
        self.outputs.get_or_create(&Fact { machine: machine.word(), variant: label }).inc();
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn a_round_is_told() {
        let meter = Metrics::new();
        let server = meter.house();
        server.queue("readers", 7);
        server.budget("connections", 3, 10);
        server.volume("events", 100, 50);
        server.disk(&[("events", 4_096)], Timestamp(9));
        server.events(5, 0);
        server.purgatory(&PurgatoryCounts {
            kinds: [("announcement", 0), ("state", 2), ("pull_request", 0)],
            bytes: 0,
            dormant: 1,
            oldest: Some(Duration::from_secs(61)),
            uploads: 0,
        });
        meter.house().committed(Duration::from_millis(2), 3, true);
        meter.house().committed(Duration::from_millis(2), 3, false);
        meter.house().lag(Duration::from_millis(1));
        meter.house().input(Machine::Hunt, "some");
        let text = meter.encode();
        for line in [
            "ngit_queue_depth{queue=\"readers\"} 7\n",
            "ngit_budget_used{budget=\"connections\"} 3\n",
            "ngit_budget_limit{budget=\"connections\"} 10\n",
            "ngit_disk_free_bytes{volume=\"events\"} 100\n",
            "ngit_disk_mark_bytes{volume=\"events\"} 50\n",
            "ngit_disk_bytes{kind=\"events\"} 4096\n",
            "ngit_disk_measured_timestamp_seconds 9\n",
            "ngit_store_events{place=\"served\"} 5\n",
            "ngit_purgatory_events{kind=\"state\"} 2\n",
            "ngit_purgatory_dormant 1\n",
            "ngit_purgatory_oldest_seconds 61\n",
            "ngit_commits_total{result=\"failed\"} 1\n",
            "ngit_commit_duration_seconds_count 1\n",
            "ngit_machine_inputs_total{machine=\"hunt\",variant=\"some\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
