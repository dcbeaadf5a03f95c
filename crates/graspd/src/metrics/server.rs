//! Metrics of the server itself: queues, budgets, disk, purgatory, writer and state machines.
//!
//! The [health monitor](crate::monitor::health) sets the gauges once a second. The writer and the drivers of the state
//! machines count the rest.

use std::time::Duration;

use grasp_core::admission::io::{AdmissionInput, AdmissionOutput};
use grasp_core::fetch::io::{FetchInput, FetchOutput};
use grasp_core::sync::io::{SyncInput, SyncOutput};
use grasp_core::time::Timestamp;

use super::gauge_value;
use super::registry::{Counter, Family, Gauge, Histogram, LabelValues, MetricRegistry, any_of, label_sets, metric_set};

/// Queues, in the order of the status page.
const QUEUES: &[&str] = &[
    "ingest_clients",
    "ingest_relays",
    "writer_commands",
    "queries",
    "broadcast",
    "negentropy",
    "push_receive",
    "push_check",
    "push_check_unsigned",
    "fetch",
    "fetch_large",
    "fetch_check",
    "pages",
    "repo_queue",
    "git_jobs",
];

/// Budgets, in the order of the status page.
const BUDGETS: &[&str] = &[
    "connections",
    "filter_bytes",
    "query_filter_bytes",
    "negentropy_bytes",
    "incomplete_message_bytes",
    "pack_cache_bytes",
    "ref_bytes",
    "fetch_request_bytes",
    "push_receive",
    "push_check",
    "push_check_unsigned",
    "fetch",
    "fetch_large",
    "fetch_check",
    "disk_bytes",
];

/// Volumes whose free space is measured.
const VOLUMES: &[&str] = &["events", "git"];

/// Kinds of data whose disk usage is measured.
const DISK_KINDS: &[&str] = &["events", "repositories", "submitted", "incoming", "staged", "trash", "cache"];

/// Kinds of held events.
const HELD_KINDS: &[&str] = &["announcement", "state", "pull_request"];

/// Statuses of events in the store.
const EVENT_PLACES: [&str; 2] = ["served", "held"];

const STORED: &str = "stored";
const FAILED: &str = "failed";

label_sets! {
    struct QueueLabels { queue: &'static str = [any_of(QUEUES)] }
    struct BudgetLabels { budget: &'static str = [any_of(BUDGETS)] }
    struct DiskLabels { kind: &'static str = [any_of(DISK_KINDS)] }
    struct VolumeLabels { volume: &'static str = [any_of(VOLUMES)] }
    struct HeldLabels { kind: &'static str = [any_of(HELD_KINDS)] }
    struct StoreLabels { place: &'static str = [any_of(&EVENT_PLACES)] }
    struct CommitLabels { result: &'static str = [any_of(&[STORED, FAILED])] }
    struct InputLabels {
        machine: &'static str = [any_of(MachineKind::LABELS)],
        variant: &'static str = [
            of_machine(MachineKind::Admission, AdmissionInput::LABELS),
            of_machine(MachineKind::Sync, SyncInput::LABELS),
            of_machine(MachineKind::Fetch, FetchInput::LABELS),
        ],
    }
    struct OutputLabels {
        machine: &'static str = [any_of(MachineKind::LABELS)],
        variant: &'static str = [
            of_machine(MachineKind::Admission, AdmissionOutput::LABELS),
            of_machine(MachineKind::Sync, SyncOutput::LABELS),
            of_machine(MachineKind::Fetch, FetchOutput::LABELS),
        ],
    }
}

const fn of_machine(machine: MachineKind, values: &'static [&'static str]) -> LabelValues {
    LabelValues { with: Some(("machine", machine.label())), values }
}

/// One of the three state machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MachineKind {
    Admission,
    Sync,
    Fetch,
}

grasp_core::label_table! {
    /// Returns the `machine` label.
    MachineKind {
        Self::Admission => "admission",
        Self::Sync => "sync",
        Self::Fetch => "fetch",
    }
}

/// Content of purgatory.
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

metric_set! {
    /// Metrics of the server itself.
    pub(crate) struct ServerMetrics(registry) {
        queues: Family<QueueLabels, Gauge>, "ngit_queue_depth", "Waiting items of a queue";
        used: Family<BudgetLabels, Gauge>, "ngit_budget_used", "Used part of a budget";
        limits: Family<BudgetLabels, Gauge>, "ngit_budget_limit", "Limit of a budget";
        disk: Family<DiskLabels, Gauge>, "ngit_disk_bytes",
            "Used disk space by kind of data; measured every few minutes";
        disk_free: Family<VolumeLabels, Gauge>, "ngit_disk_free_bytes", "Free disk space of the volume";
        disk_mark: Family<VolumeLabels, Gauge>, "ngit_disk_mark_bytes",
            "Reserved disk space of the volume; with less free space, new data is rejected";
        disk_measured: Gauge, "ngit_disk_measured_timestamp_seconds",
            "Unix time of the last measurement of the used disk space";
        purgatory: Family<HeldLabels, Gauge>, "ngit_purgatory_events", "Events in purgatory, without dormant ones";
        purgatory_bytes: Gauge, "ngit_purgatory_bytes", "Bytes of all events in purgatory";
        purgatory_dormant: Gauge, "ngit_purgatory_dormant",
            "Expired events in purgatory whose git data is still fetched every hour";
        purgatory_oldest: Gauge, "ngit_purgatory_oldest_seconds",
            "Age of the oldest event in purgatory that is not dormant";
        purgatory_uploads: Gauge, "ngit_purgatory_uploads", "Pushed pull request commits whose event has not arrived";
        deferred: Gauge, "ngit_import_deferred_events",
            "Imported events that wait until a repository or pull request in purgatory is served";
        events: Family<StoreLabels, Gauge>, "ngit_store_events", "Events in the store";
        commits: Family<CommitLabels, Counter>, "ngit_commits_total", "Transactions of the writer";
        commit: Histogram = Histogram::new([0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]),
            "ngit_commit_duration_seconds", "Time from the start of a writer transaction to its commit on disk";
        turn: Histogram = Histogram::new([0.0003, 0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0]),
            "ngit_writer_turn_seconds",
            "Time that the writer works on one input, or on one update that follows from a batch, without the commit";
        batch: Histogram = Histogram::new([0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0]), "ngit_commit_events",
            "Events per writer transaction";
        lag: Histogram = Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]),
            "ngit_event_loop_lag_seconds", "Delay of a timer in the event loop";
        round_trip: Histogram = Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]),
            "ngit_writer_round_trip_seconds", "Time until the writer answers a request of the health monitor";
        inputs: Family<InputLabels, Counter>, "ngit_machine_inputs_total", "Inputs of the state machines";
        outputs: Family<OutputLabels, Counter>, "ngit_machine_outputs_total", "Outputs of the state machines";
    }
}

impl ServerMetrics {
    pub(super) fn new(registry: &mut MetricRegistry) -> Self {
        let metrics = Self::register(registry);
        for result in [STORED, FAILED] {
            metrics.commits.get_or_create(&CommitLabels { result }).inc_by(0);
        }
        for (machine, inputs, outputs) in [
            (MachineKind::Admission, AdmissionInput::LABELS, AdmissionOutput::LABELS),
            (MachineKind::Sync, SyncInput::LABELS, SyncOutput::LABELS),
            (MachineKind::Fetch, FetchInput::LABELS, FetchOutput::LABELS),
        ] {
            let machine = machine.label();
            for variant in inputs {
                metrics.inputs.get_or_create(&InputLabels { machine, variant }).inc_by(0);
            }
            for variant in outputs {
                metrics.outputs.get_or_create(&OutputLabels { machine, variant }).inc_by(0);
            }
        }
        metrics
    }

    /// Sets the depth of a queue.
    pub(crate) fn set_queue_depth(&self, queue: &'static str, depth: usize) {
        self.queues.get_or_create(&QueueLabels { queue }).set(gauge_value(depth as u64));
    }

    /// Sets the use and the limit of a budget.
    pub(crate) fn set_budget(&self, budget: &'static str, used: u64, limit: u64) {
        self.used.get_or_create(&BudgetLabels { budget }).set(gauge_value(used));
        self.limits.get_or_create(&BudgetLabels { budget }).set(gauge_value(limit));
    }

    /// Sets the free space of a volume, and the space below which nothing new is accepted.
    pub(crate) fn set_volume(&self, volume: &'static str, free: u64, reserve: u64) {
        self.disk_free.get_or_create(&VolumeLabels { volume }).set(gauge_value(free));
        self.disk_mark.get_or_create(&VolumeLabels { volume }).set(gauge_value(reserve));
    }

    /// Sets the disk usage by kind, and the time of its measurement.
    pub(crate) fn set_disk_usage(&self, kinds: &[(&'static str, u64)], measured_at: Timestamp) {
        for (kind, bytes) in kinds {
            self.disk.get_or_create(&DiskLabels { kind }).set(gauge_value(*bytes));
        }
        self.disk_measured.set(gauge_value(measured_at.0));
    }

    /// Sets the number of events in the store.
    pub(crate) fn set_stored_events(&self, served: u64, held: u64) {
        for (place, count) in EVENT_PLACES.into_iter().zip([served, held]) {
            self.events.get_or_create(&StoreLabels { place }).set(gauge_value(count));
        }
    }

    /// Sets the number of deferred events of imports.
    pub(crate) fn set_deferred_events(&self, count: u64) {
        self.deferred.set(gauge_value(count));
    }

    /// Sets the gauges of purgatory.
    pub(crate) fn set_purgatory(&self, purgatory: &PurgatoryCounts) {
        for (kind, count) in purgatory.kinds {
            self.purgatory.get_or_create(&HeldLabels { kind }).set(gauge_value(count as u64));
        }
        self.purgatory_bytes.set(gauge_value(purgatory.bytes as u64));
        self.purgatory_dormant.set(gauge_value(purgatory.dormant as u64));
        self.purgatory_oldest.set(gauge_value(purgatory.oldest.map_or(0, |oldest| oldest.as_secs())));
        self.purgatory_uploads.set(gauge_value(purgatory.uploads as u64));
    }

    /// Records a transaction of the writer: its duration, its events and whether it was committed.
    pub(crate) fn observe_commit(&self, duration: Duration, events: usize, is_stored: bool) {
        let result = if is_stored { STORED } else { FAILED };
        self.commits.get_or_create(&CommitLabels { result }).inc();
        if is_stored {
            self.commit.observe(duration.as_secs_f64());
            self.batch.observe(events as f64);
        }
    }

    /// Records how long the writer worked on one input, or on one update that follows from a batch.
    pub(crate) fn observe_writer_turn(&self, duration: Duration) {
        self.turn.observe(duration.as_secs_f64());
    }

    /// Records how late a timer of the event loop was.
    pub(crate) fn observe_event_loop_lag(&self, lag: Duration) {
        self.lag.observe(lag.as_secs_f64());
    }

    /// Records the time between a request to the writer and its answer.
    pub(crate) fn observe_writer_round_trip(&self, duration: Duration) {
        self.round_trip.observe(duration.as_secs_f64());
    }

    /// Counts an input of a state machine.
    pub(crate) fn count_input(&self, machine: MachineKind, label: &'static str) {
        self.inputs.get_or_create(&InputLabels { machine: machine.label(), variant: label }).inc();
    }

    /// Counts an output of a state machine.
    pub(crate) fn count_output(&self, machine: MachineKind, label: &'static str) {
        self.outputs.get_or_create(&OutputLabels { machine: machine.label(), variant: label }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn every_update_sets_its_metrics() {
        let metrics = Metrics::new();
        let server = metrics.server();
        server.set_queue_depth("queries", 7);
        server.set_budget("connections", 3, 10);
        server.set_volume("events", 100, 50);
        server.set_disk_usage(&[("events", 4_096)], Timestamp(9));
        server.set_stored_events(5, 0);
        server.set_deferred_events(8);
        server.set_purgatory(&PurgatoryCounts {
            kinds: [("announcement", 0), ("state", 2), ("pull_request", 0)],
            bytes: 0,
            dormant: 1,
            oldest: Some(Duration::from_secs(61)),
            uploads: 0,
        });
        server.observe_commit(Duration::from_millis(2), 3, true);
        server.observe_commit(Duration::from_millis(2), 3, false);
        server.observe_writer_turn(Duration::from_millis(40));
        server.observe_event_loop_lag(Duration::from_millis(1));
        server.count_input(MachineKind::Fetch, "wanted");
        let text = metrics.encode();
        for line in [
            "ngit_queue_depth{queue=\"queries\"} 7\n",
            "ngit_budget_used{budget=\"connections\"} 3\n",
            "ngit_budget_limit{budget=\"connections\"} 10\n",
            "ngit_disk_free_bytes{volume=\"events\"} 100\n",
            "ngit_disk_mark_bytes{volume=\"events\"} 50\n",
            "ngit_disk_bytes{kind=\"events\"} 4096\n",
            "ngit_disk_measured_timestamp_seconds 9\n",
            "ngit_store_events{place=\"served\"} 5\n",
            "ngit_purgatory_events{kind=\"state\"} 2\n",
            "ngit_purgatory_dormant 1\n",
            "ngit_import_deferred_events 8\n",
            "ngit_purgatory_oldest_seconds 61\n",
            "ngit_commits_total{result=\"failed\"} 1\n",
            "ngit_commit_duration_seconds_count 1\n",
            "ngit_writer_turn_seconds_bucket{le=\"0.03\"} 0\n",
            "ngit_writer_turn_seconds_bucket{le=\"0.05\"} 1\n",
            "ngit_machine_inputs_total{machine=\"fetch\",variant=\"wanted\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
