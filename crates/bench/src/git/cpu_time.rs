//! CPU time of a server with several processes, including short-lived children.
//!
//! `/proc` includes the CPU time of children that a process has waited for. fcgiwrap never waits for its children, so
//! their CPU time is lost there. A control group counts everything. Where none can be created, all CPU time of the
//! machine except that of this program is counted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use crate::machine;
use crate::process::Process;
use crate::process_usage::rounded;

/// Time within which the processes of a group must disappear after they were killed.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Source of CPU time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CpuAccount {
    /// A control group.
    ControlGroup(ControlGroup),
    /// A process that waits for its children.
    ProcessTree(u32),
    /// The whole machine, without this program.
    WholeMachine,
}

impl CpuAccount {
    /// Returns the CPU time so far.
    pub(super) fn cpu_time(&self) -> Result<Duration> {
        match self {
            Self::ControlGroup(group) => group.cpu_time(),
            Self::ProcessTree(pid) => Process::Pid(*pid).cpu_time_with_children(),
            Self::WholeMachine => Ok(machine::busy_time()?.saturating_sub(Process::Own.cpu_time_with_children()?)),
        }
    }
}

/// A control group created by this program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ControlGroup {
    folder: PathBuf,
}

impl ControlGroup {
    /// Creates a subgroup of this program's own group, if permitted.
    pub(super) fn create(name: &str) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let name = format!("grasp-bench-{}-{name}", process::id());
        for parent in control_group_folders(&own, &mounts) {
            let group = Self { folder: parent.join(&name) };
            if fs::create_dir(&group.folder).is_ok() {
                if group.cpu_time().is_ok() {
                    return Some(group);
                }
                group.remove();
            }
        }
        None
    }

    /// Returns the same command, started inside the group. A shell enters the group first, so that no process starts
    /// outside.
    pub(super) fn wrap_command(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", r#"echo $$ > "$0" && exec "$@""#]);
        inside.arg(self.folder.join("cgroup.procs")).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside
    }

    fn cpu_time(&self) -> Result<Duration> {
        // Version 1 has a file with nanoseconds, version 2 a line with microseconds in another file.
        if let Ok(text) = fs::read_to_string(self.folder.join("cpuacct.usage")) {
            return Ok(Duration::from_nanos(text.trim().parse()?));
        }
        let text = fs::read_to_string(self.folder.join("cpu.stat"))
            .with_context(|| format!("{} does not account for CPU time", self.folder.display()))?;
        let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        Ok(Duration::from_micros(micros.ok_or_else(|| anyhow!("no usage_usec in {text:?}"))?))
    }

    /// Removes the group when its last process has disappeared, which takes a moment.
    pub(super) fn remove(&self) {
        let started = Instant::now();
        // A group that cannot be removed is empty and harmless.
        while fs::remove_dir(&self.folder).is_err() && started.elapsed() < REMOVAL_TIMEOUT {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the folders of this program's own control groups that count CPU time, from `/proc/self/cgroup` and
/// `/proc/self/mounts`.
fn control_group_folders(own: &str, mounts: &str) -> Vec<PathBuf> {
    let mut control_group_folders = Vec::new();
    for line in own.lines() {
        // `hierarchy:controllers:path`. Version 2 has no controllers here.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        if !controllers.is_empty() && !controllers.split(',').any(|name| name == "cpuacct") {
            continue;
        }
        for mount in mounts.lines() {
            let fields: Vec<&str> = mount.split(' ').collect();
            let [_, at, kind, options, ..] = fields[..] else { continue };
            let fits = match kind {
                "cgroup2" => controllers.is_empty(),
                "cgroup" => !controllers.is_empty() && options.split(',').any(|option| option == "cpuacct"),
                _ => false,
            };
            if fits {
                control_group_folders.push(Path::new(at).join(path.trim_start_matches('/')));
            }
        }
    }
    control_group_folders
}

/// Measures the duration and the CPU time of server, client and machine.
#[derive(Debug)]
pub(super) struct CostMeter {
    started: Instant,
    cpu_account: CpuAccount,
    server: Duration,
    client: Duration,
    machine: Duration,
}

/// Duration and CPU time of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct CostFigures {
    /// Duration.
    pub(super) seconds: f64,
    /// CPU seconds of the server and its children.
    pub(super) server_cpu: f64,
    /// CPU seconds of this program and its git processes.
    pub(super) client_cpu: f64,
    /// Cores used by other processes; zero if unknown.
    pub(super) foreign_cores: f64,
}

impl CostMeter {
    /// Starts measuring.
    pub(super) fn start(cpu_account: &CpuAccount) -> Result<Self> {
        Ok(Self {
            cpu_account: cpu_account.clone(),
            server: cpu_account.cpu_time()?,
            client: Process::Own.cpu_time_with_children()?,
            machine: machine::busy_time()?,
            started: Instant::now(),
        })
    }

    /// Stops measuring.
    pub(super) fn stop(self) -> Result<CostFigures> {
        let seconds = self.started.elapsed().as_secs_f64();
        let server = self.cpu_account.cpu_time()?.saturating_sub(self.server);
        let client = Process::Own.cpu_time_with_children()?.saturating_sub(self.client);
        let machine = machine::busy_time()?.saturating_sub(self.machine);
        let foreign = match self.cpu_account {
            CpuAccount::WholeMachine => 0.0,
            CpuAccount::ControlGroup(_) | CpuAccount::ProcessTree(_) => {
                machine.saturating_sub(server + client).as_secs_f64() / seconds.max(1e-9)
            }
        };
        Ok(CostFigures {
            seconds,
            server_cpu: server.as_secs_f64(),
            client_cpu: rounded(client.as_secs_f64()),
            foreign_cores: rounded(foreign),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_of_both_versions_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
            cgroup /sys/fs/cgroup/cpuacct cgroup rw,cpuacct 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let own = "3:memory:/box\n2:cpuacct:/\n1:cpu:/\n0::/user.slice\n";
        let expected = ["/sys/fs/cgroup/cpuacct/", "/sys/fs/cgroup/unified/user.slice"];
        assert_eq!(control_group_folders(own, mounts), expected.map(PathBuf::from));
    }

    #[test]
    fn cpu_time_includes_awaited_children() {
        let cpu_account = CpuAccount::ProcessTree(process::id());
        let before = cpu_account.cpu_time().expect("own accounting");
        let status = Command::new("sh").args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).status();
        assert!(status.expect("a shell").success());
        assert!(cpu_account.cpu_time().expect("own accounting") > before);
    }
}
