//! CPU time and memory of a process, from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

/// Ticks per second in `/proc/<pid>/stat`. `USER_HZ` is 100 on every Linux that Rust's standard library supports. The
/// sum of user and system time is exact, rounded to this step.
const TICKS_PER_SECOND: u64 = 100;

/// A process whose CPU time and memory are read from `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// This process.
    Own,
    /// Another process: the server under test.
    Pid(u32),
}

/// Resident memory of a process, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Heap and stacks: memory that only this process uses.
    pub rss_anon_kb: u64,
    /// Mapped files: for a memory-mapped store this is page cache that the kernel can reclaim.
    pub rss_file_kb: u64,
}

impl Process {
    /// Returns the user and system time of all threads so far, including threads that have ended.
    pub fn cpu_time(self) -> Result<Duration> {
        let stat = self.read("stat")?;
        cpu_ticks(&stat, 2).map(ticks_to_time).ok_or_else(|| anyhow!("cannot parse {}", self.path("stat")))
    }

    /// Like [`cpu_time`](Self::cpu_time), including child processes that were waited for, recursively.
    pub fn cpu_time_with_children(self) -> Result<Duration> {
        let stat = self.read("stat")?;
        cpu_ticks(&stat, 4).map(ticks_to_time).ok_or_else(|| anyhow!("cannot parse {}", self.path("stat")))
    }

    /// Returns the current resident memory.
    pub fn memory(self) -> Result<Memory> {
        let status = self.read("status")?;
        let field = |name| status_field(&status, name).ok_or_else(|| anyhow!("no {name} in {}", self.path("status")));
        Ok(Memory { rss_anon_kb: field("RssAnon")?, rss_file_kb: field("RssFile")? })
    }

    /// Returns the peak resident memory including mapped files, in KiB.
    pub fn peak_kb(self) -> Result<u64> {
        let status = self.read("status")?;
        status_field(&status, "VmHWM").ok_or_else(|| anyhow!("no VmHWM in {}", self.path("status")))
    }

    fn path(self, file: &str) -> String {
        match self {
            Self::Own => format!("/proc/self/{file}"),
            Self::Pid(pid) => format!("/proc/{pid}/{file}"),
        }
    }

    fn read(self, file: &str) -> Result<String> {
        let path = self.path(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}; is the process still running?"))
    }
}

/// Converts ticks of CPU accounting to a duration.
pub fn ticks_to_time(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Returns the sum of the first `count` of `utime stime cutime cstime`. The command name may contain spaces and
/// parentheses, so fields are counted from the last closing parenthesis.
fn cpu_ticks(stat: &str, count: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields = after_name.split_ascii_whitespace().skip(11).take(count);
    let ticks = fields.map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
    (ticks.len() == count).then(|| ticks.iter().sum())
}

fn status_field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_name_with_parentheses_is_skipped() {
        let stat = "42 (a) R (b) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 7 7 20 0 9 0 1000 1 1";
        assert_eq!(cpu_ticks(stat, 2), Some(300));
        assert_eq!(cpu_ticks(stat, 4), Some(314));
        assert_eq!(cpu_ticks("garbage", 2), None);
        assert_eq!(cpu_ticks("1 (x) R", 2), None);
    }

    #[test]
    fn status_fields_match_the_whole_name() {
        let status = "Name:\tx\nVmRSS:\t    9 kB\nRssAnon:\t  1234 kB\nRssFile:\t   56 kB\n";
        assert_eq!(status_field(status, "RssAnon"), Some(1234));
        assert_eq!(status_field(status, "Rss"), None);
    }
}
