//! Metrics of the process: build, uptime, processor time, memory and file descriptors.
//!
//! They are read from `/proc` and from the control group, if there is one. A metric of the control group that cannot be
//! read has no series. [`monitor::health`](crate::monitor::health) calls [`ProcessMetrics::update`] every few seconds.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use super::gauge_value;
use super::registry::{Counter, Family, Gauge, MetricRegistry, label_sets, metric_set};

/// A counter of seconds with fractions.
type SecondsCounter = Counter<f64, AtomicU64>;

/// Ticks per second in which the kernel counts processor time: `USER_HZ`, which is 100 on all current Linux systems.
const TICKS_PER_SEC: f64 = 100.0;

/// Size of a memory page in bytes.
const PAGE_BYTES: u64 = 4_096;

label_sets! {
    struct BuildLabels { version: &'static str = [], commit: &'static str = [] }
    /// No labels. A family with them has one series, or none if there is nothing to measure.
    struct NoLabels {}
}

metric_set! {
    /// Metrics of the process.
    pub(crate) struct ProcessMetrics(registry) {
        uptime: Gauge, "ngit_uptime_seconds", "Seconds since the start of the process";
        started: Gauge, "process_start_time_seconds", "Start time of the process in Unix time";
        cpu: SecondsCounter, "process_cpu_seconds_total", "Processor time of the process, without git processes";
        resident: Gauge, "process_resident_memory_bytes", "Resident memory of the process";
        virtual_bytes: Gauge, "process_virtual_memory_bytes", "Virtual memory of the process";
        threads: Gauge, "process_threads", "Threads of the process";
        open_fds: Gauge, "process_open_fds", "Open files and sockets";
        max_fds: Gauge, "process_max_fds", "Maximum number of open files and sockets";
        cgroup_cpu: Family<NoLabels, SecondsCounter>, "ngit_cgroup_cpu_seconds_total",
            "Processor time of the control group, including git processes";
        cgroup_memory: Family<NoLabels, Gauge>, "ngit_cgroup_memory_current_bytes",
            "Memory of the control group, including git processes and cached files";
    }
}

impl ProcessMetrics {
    pub(super) fn new(registry: &mut MetricRegistry) -> Self {
        let build: Family<BuildLabels, Gauge> =
            registry.add("ngit_build_info", "Version and commit of the running program; always 1");
        let commit = env!("NGIT_BUILD_REVISION");
        build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION"), commit }).set(1);
        Self::register(registry)
    }

    /// Reads the current values. `root` is `/` except in tests.
    pub(crate) fn update(&self, root: &Path, uptime_secs: u64, wall_secs: u64) {
        self.uptime.set(gauge_value(uptime_secs));
        self.started.set(gauge_value(wall_secs.saturating_sub(uptime_secs)));
        let this = root.join("proc/self");
        if let Some(stat) = read(&this.join("stat")).as_deref().and_then(ProcessStat::parse) {
            raise_to(&self.cpu, stat.ticks as f64 / TICKS_PER_SEC);
            self.resident.set(gauge_value(stat.resident_pages.saturating_mul(PAGE_BYTES)));
            self.virtual_bytes.set(gauge_value(stat.virtual_bytes));
            self.threads.set(gauge_value(stat.threads));
        }
        if let Ok(open) = std::fs::read_dir(this.join("fd")) {
            self.open_fds.set(gauge_value(open.count() as u64));
        }
        if let Some(max_fds) = read(&this.join("limits")).as_deref().and_then(parse_max_fds) {
            self.max_fds.set(gauge_value(max_fds));
        }
        let group =
            read(&this.join("cgroup")).as_deref().and_then(parse_cgroup_path).map(str::to_owned).unwrap_or_default();
        // Inside a container the files of the control group are at the root of the mounted hierarchy.
        let roots = [root.join("sys/fs/cgroup").join(group.trim_start_matches('/')), root.join("sys/fs/cgroup")];
        for folder in &roots {
            let memory = read(&folder.join("memory.current")).and_then(|text| text.trim().parse().ok());
            let cpu = read(&folder.join("cpu.stat")).as_deref().and_then(parse_cpu_usage);
            if let Some(memory) = memory {
                self.cgroup_memory.get_or_create(&NoLabels {}).set(gauge_value(memory));
            }
            if let Some(micros) = cpu {
                raise_to(&self.cgroup_cpu.get_or_create(&NoLabels {}), micros as f64 / 1e6);
            }
            if memory.is_some() {
                break;
            }
        }
    }

    /// Returns the resident memory at the last update.
    pub(crate) fn resident_bytes(&self) -> u64 {
        u64::try_from(self.resident.get()).unwrap_or(0)
    }
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Raises a counter to a total that the kernel has counted.
fn raise_to(counter: &SecondsCounter, total: f64) {
    let increase = total - counter.get();
    if increase > 0.0 {
        counter.inc_by(increase);
    }
}

/// The exported fields of `/proc/self/stat`.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    ticks: u64,
    threads: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessStat {
    fn parse(text: &str) -> Option<Self> {
        // The program name may contain blanks and brackets; the fields after the last bracket do not.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // The first field after the name is field 3 in proc(5).
        let field = |nth: usize| fields.get(nth - 3)?.parse::<u64>().ok();
        Some(Self {
            ticks: field(14)?.saturating_add(field(15)?),
            threads: field(20)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Returns the soft limit of open files from `/proc/self/limits`.
fn parse_max_fds(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the path of the control group (version 2) from `/proc/self/cgroup`.
fn parse_cgroup_path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Returns the microseconds of processor time from `cpu.stat`.
fn parse_cpu_usage(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Metrics;
    use super::*;

    #[test]
    fn proc_and_cgroup_files_are_parsed() {
        let root = tempfile::TempDir::new().expect("cannot create a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a path without a folder")).expect("cannot create a folder");
            fs::write(path, text).expect("cannot write a file");
        };
        write(
            "proc/self/stat",
            "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 12 0 5 8192000 300 18446744073709551615 0\n",
        );
        write(
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024        4096    files\n",
        );
        write("proc/self/cgroup", "1:cpu:/x\n0::/system.slice/graspd.service\n");
        write("proc/self/fd/0", "");
        write("proc/self/fd/1", "");
        write("sys/fs/cgroup/system.slice/graspd.service/memory.current", "123456\n");
        write("sys/fs/cgroup/system.slice/graspd.service/cpu.stat", "usage_usec 2500000\nuser_usec 1\n");
        let metrics = Metrics::new();
        metrics.process().update(root.path(), 100, 1_000);
        metrics.process().update(root.path(), 100, 1_000);
        let text = metrics.encode();
        for line in [
            "ngit_uptime_seconds 100\n",
            "process_start_time_seconds 900\n",
            "process_cpu_seconds_total 2.0\n",
            "process_resident_memory_bytes 1228800\n",
            "process_virtual_memory_bytes 8192000\n",
            "process_threads 12\n",
            "process_open_fds 2\n",
            "process_max_fds 1024\n",
            "ngit_cgroup_cpu_seconds_total{} 2.5\n",
            "ngit_cgroup_memory_current_bytes{} 123456\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert_eq!(metrics.process().resident_bytes(), 1_228_800);
    }

    #[test]
    fn unreadable_files_make_no_series() {
        let root = tempfile::TempDir::new().expect("cannot create a folder");
        let metrics = Metrics::new();
        metrics.process().update(root.path(), 1, 2);
        assert!(!metrics.encode().lines().any(|line| line.starts_with("ngit_cgroup_")), "there is no control group");
        assert_eq!(ProcessStat::parse("nonsense"), None);
        assert_eq!(ProcessStat::parse("1 (x) S 1"), None);
        assert_eq!(parse_max_fds("Max open files unlimited unlimited files"), None);
    }
}
