//! What is measured about the process: build, age, processor, memory, descriptors. Read from `/proc` and, where there is
//! one, from the control group; what cannot be read has no series.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::{MetricRegistry, counter, gauge};

/// Seconds with a fraction that only grow.
type Seconds = Counter<f64, AtomicU64>;

/// Kernels count processor time in ticks of which a second has a hundred, wherever Linux runs today.
const TICKS: f64 = 100.0;

/// Bytes of a page of memory, as the kernel counts them.
const PAGE: u64 = 4_096;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Build {
    version: &'static str,
    commit: &'static str,
}

/// No labels: such a family has one series or none.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Plain {}

/// What is measured about the process.
#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    uptime: Gauge,
    started: Gauge,
    cpu: Seconds,
    resident: Gauge,
    virtual_bytes: Gauge,
    threads: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    cgroup_cpu: Family<Plain, Seconds>,
    cgroup_memory: Family<Plain, Gauge>,
}

impl ProcessMetrics {
    pub(super) fn new(to: &mut MetricRegistry) -> Self {
        let build = gauge(to, "ngit_build_info", "What runs; always 1", Family::<Build, Gauge>::default());
        let commit = env!("NGIT_BUILD_REVISION");
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION"), commit }).set(1);
        Self {
            uptime: gauge(to, "ngit_uptime_seconds", "Seconds since the start", Gauge::default()),
            started: gauge(to, "process_start_time_seconds", "When the process began, in unix time", Gauge::default()),
            cpu: counter(to, "process_cpu_seconds_total", "Processor time of this process", Seconds::default()),
            resident: gauge(to, "process_resident_memory_bytes", "Memory in use", Gauge::default()),
            virtual_bytes: gauge(to, "process_virtual_memory_bytes", "Address space in use", Gauge::default()),
            threads: gauge(to, "process_threads", "Threads", Gauge::default()),
            open_fds: gauge(to, "process_open_fds", "Open files and sockets", Gauge::default()),
            max_fds: gauge(to, "process_max_fds", "Files and sockets that may be open", Gauge::default()),
            cgroup_cpu: counter(
                to,
                "ngit_cgroup_cpu_seconds_total",
                "Processor time of the control group, git processes included",
                Family::default(),
            ),
            cgroup_memory: gauge(
                to,
                "ngit_cgroup_memory_current_bytes",
                "Memory of the control group, git processes and cached files included",
                Family::default(),
            ),
        }
    }

    /// Looks at the process. `root` is `/`, but for tests.
    pub(crate) fn look(&self, root: &Path, uptime_secs: u64, wall: u64) {
        self.uptime.set(number(uptime_secs));
        self.started.set(number(wall.saturating_sub(uptime_secs)));
        let this = root.join("proc/self");
        if let Some(stat) = read(&this.join("stat")).as_deref().and_then(Stat::read) {
            raise(&self.cpu, stat.ticks as f64 / TICKS);
            self.resident.set(number(stat.resident_pages.saturating_mul(PAGE)));
            self.virtual_bytes.set(number(stat.virtual_bytes));
            self.threads.set(number(stat.threads));
        }
        if let Ok(open) = std::fs::read_dir(this.join("fd")) {
            self.open_fds.set(number(open.count() as u64));
        }
        if let Some(most) = read(&this.join("limits")).as_deref().and_then(max_fds) {
            self.max_fds.set(number(most));
        }
        let group = read(&this.join("cgroup")).as_deref().and_then(cgroup).map(str::to_owned).unwrap_or_default();
        // Inside a container the group's own files are at the root of what can be seen.
        let roots = [root.join("sys/fs/cgroup").join(group.trim_start_matches('/')), root.join("sys/fs/cgroup")];
        for folder in &roots {
            let memory = read(&folder.join("memory.current")).and_then(|text| text.trim().parse().ok());
            let cpu = read(&folder.join("cpu.stat")).as_deref().and_then(usage);
            if let Some(memory) = memory {
                self.cgroup_memory.get_or_create(&Plain {}).set(number(memory));
            }
            if let Some(micros) = cpu {
                raise(&self.cgroup_cpu.get_or_create(&Plain {}), micros as f64 / 1e6);
            }
            if memory.is_some() {
                break;
            }
        }
    }

    /// Memory in use.
    pub(crate) fn resident(&self) -> u64 {
        u64::try_from(self.resident.get()).unwrap_or(0)
    }
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Sets a counter to what somebody else has counted.
fn raise(counter: &Seconds, total: f64) {
    let more = total - counter.get();
    if more > 0.0 {
        counter.inc_by(more);
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The few fields of `/proc/self/stat` that are told.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    ticks: u64,
    threads: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn read(text: &str) -> Option<Self> {
        // The name of the program may have blanks and brackets; what follows the last bracket has none.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // The first of them is field 3 of proc(5).
        let field = |nth: usize| fields.get(nth - 3)?.parse::<u64>().ok();
        Some(Self {
            ticks: field(14)?.saturating_add(field(15)?),
            threads: field(20)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// The soft limit of open files.
fn max_fds(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The path of the control group, of version 2.
fn cgroup(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Microseconds of processor time in a `cpu.stat`.
fn usage(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Metrics;
    use super::*;

    #[test]
    fn a_process_is_read_as_the_kernel_writes_it() {
        let root = tempfile::TempDir::new().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("has one")).expect("a folder");
            fs::write(path, text).expect("writes");
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
        let meter = Metrics::new();
        meter.process().look(root.path(), 100, 1_000);
        meter.process().look(root.path(), 100, 1_000);
        let text = meter.encode();
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
        assert_eq!(meter.process().resident(), 1_228_800);
    }

    #[test]
    fn what_is_not_there_is_not_told() {
        let root = tempfile::TempDir::new().expect("a folder");
        let meter = Metrics::new();
        meter.process().look(root.path(), 1, 2);
        assert!(!meter.encode().lines().any(|line| line.starts_with("ngit_cgroup_")), "no group, no number");
        assert_eq!(Stat::read("nonsense"), None);
        assert_eq!(Stat::read("1 (x) S 1"), None);
        assert_eq!(max_fds("Max open files unlimited unlimited files"), None);
    }
}
