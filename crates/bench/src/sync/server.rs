//! A graspd process started by this program and killed when dropped. Its log is read.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::process::Process;
use crate::target::RelayUrl;

/// Time within which a server must start or stop.
const START_STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Interval of polling.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Relays that a server syncs from.
#[derive(Debug, Clone)]
pub(super) enum SyncSources {
    /// None: sync is disabled.
    Disabled,
    /// The relays that its events list, and these bootstrap relays.
    Relays(Vec<String>),
}

/// Configuration of a server.
#[derive(Debug, Clone)]
pub(super) struct ServerPlan {
    /// The graspd binary.
    pub(super) binary: PathBuf,
    /// Data folder.
    pub(super) folder: PathBuf,
    /// Its domain in events.
    pub(super) domain: String,
    /// Relays that it syncs from.
    pub(super) sync_sources: SyncSources,
    /// Additional settings.
    pub(super) settings: Vec<(&'static str, String)>,
}

impl ServerPlan {
    /// Returns the folder of its repositories.
    pub(super) fn git_folder(&self) -> PathBuf {
        self.folder.join("git")
    }

    /// Returns the same configuration with other relays to sync from.
    pub(super) fn syncing_from(&self, sync_sources: SyncSources) -> Self {
        Self { sync_sources, ..self.clone() }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .current_dir(&self.folder)
            .env("NGIT_BIND_ADDRESS", "127.0.0.1:0")
            .env("NGIT_DOMAIN", &self.domain)
            .env("NGIT_RELAY_DATA_PATH", self.folder.join("relay"))
            .env("NGIT_GIT_DATA_PATH", self.git_folder())
            .env("NGIT_NETWORK_MAX_CONNECTIONS", "0")
            .env("NGIT_NETWORK_EVENTS_PER_MINUTE", "0")
            .env("NGIT_SYNC_ALLOW_NON_GLOBAL_TARGETS", "true");
        if std::env::var_os("NGIT_LOG_LEVEL").is_none() {
            command.env("NGIT_LOG_LEVEL", "info");
        }
        for (name, value) in &self.settings {
            command.env(format!("NGIT_{name}"), value);
        }
        match &self.sync_sources {
            SyncSources::Disabled => command.env("NGIT_SYNC_ENABLE", "false"),
            SyncSources::Relays(relays) if relays.is_empty() => command.env("NGIT_SYNC_ENABLE", "true"),
            SyncSources::Relays(relays) => {
                command.env("NGIT_SYNC_ENABLE", "true").env("NGIT_SYNC_BOOTSTRAP_RELAY_URL", relays.join(","))
            }
        };
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
    child: Child,
    log: ServerLog,
    /// Its address.
    pub(super) address: SocketAddr,
}

impl GraspdServer {
    /// Starts a command and waits until it prints its address. Log lines are also appended to a file.
    fn start(mut command: Command, log_file: &Path) -> Result<Self> {
        let mut log_file = OpenOptions::new().create(true).append(true).open(log_file)?;
        let name = command.get_program().display().to_string();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let log = ServerLog::default();
        let (address_sender, listening) = mpsc::channel();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        if let Some(out) = out {
            spawn_line_reader(out, move |line| {
                if let Some(address) = line.trim().strip_prefix("listening") {
                    let _ = address_sender.send(address.trim().to_owned());
                }
            });
        }
        if let Some(err) = err {
            let log = Arc::clone(&log);
            spawn_line_reader(err, move |line| {
                // The log file is only for diagnosis, so errors are ignored.
                let _ = writeln!(log_file, "{line}");
                log.lock().expect("no thread panics while holding the lock").push((Instant::now(), line));
            });
        }
        let address = listening.recv_timeout(START_STOP_DEADLINE).ok().and_then(|address| address.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            let log = log.lock().expect("no thread panics while holding the lock");
            let last: Vec<&str> = log.iter().rev().take(5).map(|(_, line)| line.as_str()).collect();
            bail!("{name} did not print its address; last log lines: {last:?}");
        };
        Ok(Self { child, log, address })
    }

    /// Returns its websocket URL.
    pub(super) fn url(&self) -> Result<RelayUrl> {
        format!("ws://{}", self.address).parse()
    }

    /// Returns its process.
    pub(super) fn process(&self) -> Process {
        Process::Pid(self.child.id())
    }

    /// Returns the time of the first log line that contains all of these words.
    pub(super) fn logged_at(&self, words: &[&str]) -> Option<Instant> {
        let log = self.log.lock().expect("no thread panics while holding the lock");
        log.iter().find(|(_, line)| words.iter().all(|word| line.contains(word))).map(|(at, _)| *at)
    }

    /// Returns all warnings and errors in its log.
    pub(super) fn warnings(&self) -> Vec<String> {
        let log = self.log.lock().expect("no thread panics while holding the lock");
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
                let log = self.log.lock().expect("no thread panics while holding the lock");
                let last: Vec<&str> = log.iter().rev().take(10).map(|(_, line)| line.as_str()).collect();
                bail!("no log line contains {words:?} after {} s; last log lines: {last:#?}", timeout.as_secs());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns its metrics.
    pub(super) async fn metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Sends SIGTERM and waits until the process has exited.
    pub(super) async fn stop(mut self) -> Result<()> {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-TERM", &pid]).status().context("cannot run kill")?;
        if !status.success() {
            bail!("cannot send SIGTERM to process {pid}");
        }
        let started = Instant::now();
        while self.child.try_wait()?.is_none() {
            if started.elapsed() > START_STOP_DEADLINE {
                bail!("process {pid} does not exit");
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

impl Drop for GraspdServer {
    fn drop(&mut self) {
        // The process may have exited already, and `drop` cannot report errors.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads all lines in a separate thread, because a full pipe would block the server.
fn spawn_line_reader(from: impl Read + Send + 'static, mut on_line: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            on_line(line);
        }
    });
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
