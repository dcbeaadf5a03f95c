//! A graspd process and its log.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use crate::git::client::Client;
use crate::process::Process;
use crate::server::{ServerProcess, graspd_command, spawn_line_reader};
use crate::target::RelayUrl;

/// Interval of polling.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Configuration of a server.
#[derive(Debug, Clone)]
pub(super) struct ServerPlan {
    /// The graspd binary.
    pub(super) binary: PathBuf,
    /// Data folder.
    pub(super) folder: PathBuf,
    /// Its domain in events.
    pub(super) domain: String,
    /// Bootstrap relays. It also syncs from the relays that its events list. `None` disables sync.
    pub(super) bootstrap: Option<Vec<String>>,
    /// Additional settings.
    pub(super) settings: Vec<(&'static str, String)>,
}

impl ServerPlan {
    /// Returns the folder of its repositories.
    pub(super) fn git_folder(&self) -> PathBuf {
        self.folder.join("git")
    }

    /// Returns the same configuration with sync enabled.
    pub(super) fn syncing_from(&self, bootstrap: Vec<String>) -> Self {
        Self { bootstrap: Some(bootstrap), ..self.clone() }
    }

    fn command(&self) -> Command {
        let mut command = graspd_command(&self.binary, &self.folder, "info");
        command.env("NGIT_DOMAIN", &self.domain).env("NGIT_SYNC_ALLOW_NON_GLOBAL_TARGETS", "true");
        for (name, value) in &self.settings {
            command.env(format!("NGIT_{name}"), value);
        }
        command.env("NGIT_SYNC_ENABLE", self.bootstrap.is_some().to_string());
        if let Some(relays) = self.bootstrap.as_ref().filter(|relays| !relays.is_empty()) {
            command.env("NGIT_SYNC_BOOTSTRAP_RELAY_URL", relays.join(","));
        }
        command
    }

    /// Starts the server.
    pub(super) fn start(&self) -> Result<GraspdServer> {
        GraspdServer::start(self.command(), &self.folder.join("log"))
    }
}

/// Log lines and the time at which they were read.
type ServerLog = Arc<Mutex<Vec<(Instant, String)>>>;

/// A running server.
#[derive(Debug)]
pub(super) struct GraspdServer {
    server: ServerProcess,
    log: ServerLog,
    /// Its address.
    pub(super) address: SocketAddr,
}

impl GraspdServer {
    /// Starts a command and waits until it prints its address. Log lines are also appended to a file.
    fn start(mut command: Command, log_file: &Path) -> Result<Self> {
        let mut log_file = OpenOptions::new().create(true).append(true).open(log_file)?;
        command.stderr(Stdio::piped());
        let mut server = ServerProcess::start(command, Stdio::piped())?;
        let log = ServerLog::default();
        let (lines, errors) = (Arc::clone(&log), server.take_stderr().context("cannot read the log of graspd")?);
        spawn_line_reader(errors, move |line| {
            // The log file is only for diagnosis, so errors are ignored.
            let _ = writeln!(log_file, "{line}");
            lock(&lines).push((Instant::now(), line));
        });
        let address = server.read_address().with_context(|| last_lines(&log))?;
        Ok(Self { server, log, address })
    }

    /// Returns its websocket URL.
    pub(super) fn url(&self) -> Result<RelayUrl> {
        format!("ws://{}", self.address).parse()
    }

    /// Returns its process.
    pub(super) fn process(&self) -> Process {
        self.server.process()
    }

    /// Returns the time of the first log line that contains all of these words.
    pub(super) fn logged_at(&self, words: &[&str]) -> Option<Instant> {
        let log = lock(&self.log);
        log.iter().find(|(_, line)| words.iter().all(|word| line.contains(word))).map(|(at, _)| *at)
    }

    /// Returns all warnings and errors in its log.
    pub(super) fn warnings(&self) -> Vec<String> {
        let log = lock(&self.log);
        let loud = |line: &&String| line.contains("WARN") || line.contains("ERROR");
        log.iter().map(|(_, line)| line).filter(loud).cloned().collect()
    }

    /// Waits for a log line that contains all of these words.
    pub(super) async fn wait_for_log(&self, words: &[&str], timeout: Duration) -> Result<Instant> {
        let started = Instant::now();
        loop {
            if let Some(at) = self.logged_at(words) {
                return Ok(at);
            }
            if started.elapsed() > timeout {
                bail!("no log line contains {words:?} after {} s; {}", timeout.as_secs(), last_lines(&self.log));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns its metrics.
    pub(super) async fn metrics(&self) -> Result<String> {
        Ok(Client::new(self.address).get("/metrics").await?.1)
    }

    /// Sends SIGTERM and waits until the process has exited.
    pub(super) async fn stop(self) -> Result<()> {
        self.server.stop().await
    }
}

fn lock(log: &ServerLog) -> MutexGuard<'_, Vec<(Instant, String)>> {
    log.lock().expect("no thread panics while holding the lock")
}

fn last_lines(log: &ServerLog) -> String {
    let log = lock(log);
    let last: Vec<&str> = log.iter().rev().take(10).map(|(_, line)| line.as_str()).collect();
    format!("last log lines: {last:#?}")
}

/// Returns the sum of all samples of a metric whose lines contain these words.
pub(super) fn metric_sum(metrics: &str, name: &str, words: &[&str]) -> Option<f64> {
    let lines = metrics.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
            && words.iter().all(|word| line.contains(word))
    });
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).reduce(|sum, value| sum + value)
}

/// Creates an empty folder, removing an existing one.
pub(super) fn create_empty_folder(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    if path.exists() {
        std::fs::remove_dir_all(&path).with_context(|| format!("cannot empty {}", path.display()))?;
    }
    std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_match_the_whole_name() {
        let metrics = "# TYPE a gauge\na 1\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\n";
        assert_eq!(metric_sum(metrics, "a", &[]), Some(1.0));
        assert_eq!(metric_sum(metrics, "a_total", &[]), Some(5.0));
        assert_eq!(metric_sum(metrics, "a_total", &["x=\"2\""]), Some(3.0));
        assert_eq!(metric_sum(metrics, "b", &[]), None);
    }
}
