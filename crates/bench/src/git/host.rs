//! A git server started by this program and killed when dropped.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::cpu_time::{ControlGroup, CpuAccount};
use super::nginx;
use super::request::RepoUrl;
use crate::process::Process;

/// The domain of graspd. It is never resolved: announcements must list it, and connections use the loopback address.
pub(super) const DOMAIN: &str = "bench.example";

/// Time within which a server must accept connections.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Time within which a server must finish its background work. Repacking a large repository takes a minute.
const IDLE_DEADLINE: Duration = Duration::from_secs(300);

/// A server is idle if it used less than [`IDLE_CPU`] for this long.
const IDLE_PERIOD: Duration = Duration::from_millis(500);

/// CPU time that an idle server may use, for its timers.
const IDLE_CPU: Duration = Duration::from_millis(10);

/// Kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServerKind {
    /// graspd.
    Graspd,
    /// `git http-backend` behind nginx and fcgiwrap.
    Reference,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Graspd => "graspd",
            Self::Reference => "http-backend",
        })
    }
}

/// A running server.
#[derive(Debug)]
pub(super) struct GitServer {
    /// Kind of server.
    pub(super) kind: ServerKind,
    /// Host and port.
    pub(super) address: String,
    /// Source of its CPU time.
    pub(super) cpu_account: CpuAccount,
    /// Folder of its repositories.
    pub(super) folder: PathBuf,
    /// Its processes, each with its own process group.
    children: Vec<Child>,
}

impl GitServer {
    /// Starts graspd in `folder`. Other settings are inherited from the environment.
    pub(super) fn start_graspd(binary: &Path, folder: &Path) -> Result<Self> {
        Self::start_graspd_with(binary, folder, &[])
    }

    /// Starts graspd in `folder` with additional settings.
    pub(super) fn start_graspd_with(binary: &Path, folder: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        let git = folder.join("git");
        let mut command = Command::new(binary);
        command
            .current_dir(folder)
            .env("NGIT_BIND_ADDRESS", "127.0.0.1:0")
            .env("NGIT_DOMAIN", DOMAIN)
            .env("NGIT_RELAY_DATA_PATH", folder.join("relay"))
            .env("NGIT_GIT_DATA_PATH", &git)
            .env("NGIT_NETWORK_MAX_CONNECTIONS", "0")
            .env("NGIT_NETWORK_EVENTS_PER_MINUTE", "0")
            .env("NGIT_SYNC_ENABLE", "false")
            .envs(settings.iter().copied());
        if std::env::var_os("NGIT_LOG_LEVEL").is_none() {
            command.env("NGIT_LOG_LEVEL", "warn");
        }
        let group = ControlGroup::create("graspd");
        let mut child = start(group.as_ref(), command, Stdio::piped())?;
        let cpu_account = group.map_or(CpuAccount::ProcessTree(child.id()), CpuAccount::ControlGroup);
        let out = child.stdout.take().context("cannot read the output of graspd")?;
        let mut server =
            Self { kind: ServerKind::Graspd, address: String::new(), cpu_account, folder: git, children: vec![child] };

        let (address_sender, listening) = mpsc::channel();
        // The pipe is read until its end, because graspd would block on a full pipe.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(address) = line.trim().strip_prefix("listening") {
                    let _ = address_sender.send(address.trim().to_owned());
                }
            }
        });
        server.address = listening.recv_timeout(START_DEADLINE).context("graspd did not print its address")?;
        Ok(server)
    }

    /// Starts nginx and fcgiwrap in `folder`.
    pub(super) async fn start_reference(programs: &nginx::ReferencePrograms, folder: &Path) -> Result<Self> {
        let port = free_port()?;
        let setup = nginx::ReferenceSetup::write(programs, folder, port)?;
        let group = ControlGroup::create("reference");
        let mut server = Self {
            kind: ServerKind::Reference,
            address: format!("127.0.0.1:{port}"),
            cpu_account: group.clone().map_or(CpuAccount::WholeMachine, CpuAccount::ControlGroup),
            folder: setup.repositories,
            children: Vec::new(),
        };
        for command in [setup.fcgiwrap, setup.nginx] {
            server.children.push(start(group.as_ref(), command, Stdio::null())?);
        }
        let started = Instant::now();
        while !setup.socket.exists() || TcpStream::connect(&server.address).await.is_err() {
            server.check_started(started)?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }

    fn check_started(&mut self, started: Instant) -> Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait()? {
                bail!("a process of {} exited before it accepted connections: {status}", self.kind);
            }
        }
        if started.elapsed() > START_DEADLINE {
            bail!("{} does not accept connections after {} s", self.kind, START_DEADLINE.as_secs());
        }
        Ok(())
    }

    /// Returns the URL of a repository on this server.
    pub(super) fn url(&self, path: &str) -> RepoUrl {
        RepoUrl::new(&self.address, path)
    }

    /// Returns the process whose memory is measured. The memory of a single process of the reference is not meaningful.
    pub(super) fn process(&self) -> Option<Process> {
        let first = self.children.first().map(|child| Process::Pid(child.id()));
        first.filter(|_| self.kind == ServerKind::Graspd)
    }

    /// Waits until the server is idle.
    pub(super) async fn wait_until_idle(&self) -> Result<()> {
        if self.cpu_account == CpuAccount::WholeMachine {
            return Ok(());
        }
        let started = Instant::now();
        let mut before = self.cpu_account.cpu_time()?;
        while started.elapsed() < IDLE_DEADLINE {
            sleep(IDLE_PERIOD).await;
            let after = self.cpu_account.cpu_time()?;
            if after.saturating_sub(before) < IDLE_CPU {
                return Ok(());
            }
            before = after;
        }
        bail!("{} is still busy after {} s", self.kind, IDLE_DEADLINE.as_secs())
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The whole process group is killed, because fcgiwrap's workers outlive their parent. The processes may
            // have exited already, and `drop` cannot report errors.
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
            let _ = child.wait();
        }
        if let CpuAccount::ControlGroup(group) = &self.cpu_account {
            group.remove();
        }
    }
}

/// Starts a process in its own process group, and in a control group if there is one.
fn start(group: Option<&ControlGroup>, command: Command, out: Stdio) -> Result<Child> {
    let name = command.get_program().display().to_string();
    let mut command = match group {
        Some(group) => group.wrap_command(&command),
        None => command,
    };
    command.stdin(Stdio::null()).stdout(out).process_group(0);
    command.spawn().with_context(|| format!("cannot start {name}"))
}

/// Returns a port that is currently free.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Creates a subfolder.
pub(super) fn subfolder(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}
