//! A server that this program started, and that ends with it. Its log is read.

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

/// How long a server may take to listen, or to end.
const START_STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Between two looks at something that is awaited.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Whom a server sync_sources.
#[derive(Debug, Clone)]
pub(super) enum SyncSources {
    /// Nobody.
    Disabled,
    /// Whoever its events name, and these.
    Relays(Vec<String>),
}

/// How a server is started.
#[derive(Debug, Clone)]
pub(super) struct ServerPlan {
    /// The program.
    pub(super) binary: PathBuf,
    /// Its data.
    pub(super) folder: PathBuf,
    /// The name under which events know it.
    pub(super) domain: String,
    /// Whom it sync_sources.
    pub(super) sync_sources: SyncSources,
    /// Further settings.
    pub(super) settings: Vec<(&'static str, String)>,
}

impl ServerPlan {
    /// Where it keeps repositories.
    pub(super) fn git_folder(&self) -> PathBuf {
        self.folder.join("git")
    }

    /// The same server, following others.
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

    /// Starts it.
    pub(super) fn start(&self) -> Result<GraspdServer> {
        GraspdServer::start(self.command(), &self.folder.join("log"))
    }
}

/// What a server has said, and when.
type ServerLog = Arc<Mutex<Vec<(Instant, String)>>>;

/// A running server.
#[derive(Debug)]
pub(super) struct GraspdServer {
    child: Child,
    log: ServerLog,
    /// Where it listens.
    pub(super) address: SocketAddr,
}

impl GraspdServer {
    /// Starts a command and waits until it says where it listens. What it logs is also added to a file.
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
                // The log_file is for people who wonder; a run does not need it.
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
            bail!("{name} does not say where it listens; {last:?}");
        };
        Ok(Self { child, log, address })
    }

    /// Its relay.
    pub(super) fn url(&self) -> Result<RelayUrl> {
        format!("ws://{}", self.address).parse()
    }

    /// Where its costs are read.
    pub(super) fn process(&self) -> Process {
        Process::Pid(self.child.id())
    }

    /// When it first said something with all of these words.
    pub(super) fn logged_at(&self, words: &[&str]) -> Option<Instant> {
        let log = self.log.lock().expect("no thread panics while holding the lock");
        log.iter().find(|(_, line)| words.iter().all(|word| line.contains(word))).map(|(at, _)| *at)
    }

    /// What it has complained about.
    pub(super) fn warnings(&self) -> Vec<String> {
        let log = self.log.lock().expect("no thread panics while holding the lock");
        let loud = |line: &&String| line.contains("WARN") || line.contains("ERROR");
        log.iter().map(|(_, line)| line).filter(loud).cloned().collect()
    }

    /// Waits until it has said something with all of these words.
    pub(super) async fn wait_for_log(&self, words: &[&str], timeout: Duration) -> Result<Instant> {
        let started = Instant::now();
        loop {
            if let Some(at) = self.logged_at(words) {
                return Ok(at);
            }
            if started.elapsed() > timeout {
                let log = self.log.lock().expect("no thread panics while holding the lock");
                let last: Vec<&str> = log.iter().rev().take(10).map(|(_, line)| line.as_str()).collect();
                bail!("the server has not said {words:?} after {} s; its last words: {last:#?}", timeout.as_secs());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Its metrics.
    pub(super) async fn metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Asks it to end, and waits until it has.
    pub(super) async fn stop(mut self) -> Result<()> {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-TERM", &pid]).status().context("cannot run kill")?;
        if !status.success() {
            bail!("cannot ask {pid} to end");
        }
        let started = Instant::now();
        while self.child.try_wait()?.is_none() {
            if started.elapsed() > START_STOP_DEADLINE {
                bail!("{pid} does not end");
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

impl Drop for GraspdServer {
    fn drop(&mut self) {
        // It may have ended already, and there is nobody left to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Hears every line to the end, in a thread of its own: a full pipe would stop the server.
fn spawn_line_reader(from: impl Read + Send + 'static, mut on_line: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            on_line(line);
        }
    });
}

/// The sum of all samples of a metric whose line has these words.
pub(super) fn metric_sum(metrics: &str, name: &str, words: &[&str]) -> Option<f64> {
    let lines = metrics.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
            && words.iter().all(|word| line.contains(word))
    });
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).reduce(|sum, value| sum + value)
}

/// Makes an empty folder inside another.
pub(super) fn create_empty_folder(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    if path.exists() {
        std::fs::remove_dir_all(&path).with_context(|| format!("cannot empty {}", path.display()))?;
    }
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_their_whole_name() {
        let metrics = "# TYPE a gauge\na 1\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\n";
        assert_eq!(metric_sum(metrics, "a", &[]), Some(1.0));
        assert_eq!(metric_sum(metrics, "a_total", &[]), Some(5.0));
        assert_eq!(metric_sum(metrics, "a_total", &["x=\"2\""]), Some(3.0));
        assert_eq!(metric_sum(metrics, "b", &[]), None);
    }
}
