//! A git server started by this program and killed when dropped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::cpu_time::{ControlGroup, CpuAccount};
use super::nginx;
use super::request::RepoUrl;
use crate::connection::{Connection, Traffic};
use crate::process::Process;
use crate::server::{ServerProcess, free_address, graspd_command};

/// The domain of graspd. It is never resolved: announcements must list it, and connections use the loopback address.
pub(super) const DOMAIN: &str = "bench.example";

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
    processes: Vec<ServerProcess>,
}

impl GitServer {
    /// Starts graspd in `folder` with additional settings.
    pub(super) fn start_graspd(binary: &Path, folder: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        let mut command = graspd_command(binary, folder, "warn");
        command.env("NGIT_DOMAIN", DOMAIN).env("NGIT_SYNC_ENABLE", "false").envs(settings.iter().copied());
        let group = ControlGroup::create("graspd");
        let (server, address) = ServerProcess::start_graspd(wrap(group.as_ref(), command))?;
        let cpu_account = group.map_or(CpuAccount::ProcessTree(server.id()), CpuAccount::ControlGroup);
        Ok(Self {
            kind: ServerKind::Graspd,
            address: address.to_string(),
            cpu_account,
            folder: folder.join("git"),
            processes: vec![server],
        })
    }

    /// Starts nginx and fcgiwrap in `folder`.
    pub(super) async fn start_reference(programs: &nginx::ReferencePrograms, folder: &Path) -> Result<Self> {
        let address = free_address()?;
        let setup = nginx::ReferenceSetup::write(programs, folder, address.port())?;
        let group = ControlGroup::create("reference");
        let mut server = Self {
            kind: ServerKind::Reference,
            address: address.to_string(),
            cpu_account: group.clone().map_or(CpuAccount::WholeMachine, CpuAccount::ControlGroup),
            folder: setup.repositories,
            processes: Vec::new(),
        };
        for command in [setup.fcgiwrap, setup.nginx] {
            server.processes.push(ServerProcess::start(wrap(group.as_ref(), command), Stdio::null())?);
        }
        let started = Instant::now();
        while !setup.socket.exists() || TcpStream::connect(&server.address).await.is_err() {
            server.processes.iter_mut().try_for_each(|process| process.check_starting(started)).context("reference")?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }

    /// Returns the URL of a repository on this server.
    pub(super) fn url(&self, path: &str) -> RepoUrl {
        RepoUrl::new(&self.address, path)
    }

    /// Opens a websocket connection, to publish events on graspd.
    pub(super) async fn connect(&self) -> Result<Connection> {
        Connection::open(&format!("ws://{}", self.address).parse()?, Traffic::Heavy).await
    }

    /// Returns the process whose memory is measured. The memory of a single process of the reference is not meaningful.
    pub(super) fn process(&self) -> Option<Process> {
        let first = self.processes.first().map(ServerProcess::process);
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
        // A control group can only be removed when its processes are gone.
        self.processes.clear();
        if let CpuAccount::ControlGroup(group) = &self.cpu_account {
            group.remove();
        }
    }
}

/// Returns the command, started in a control group if there is one.
fn wrap(group: Option<&ControlGroup>, command: Command) -> Command {
    match group {
        Some(group) => group.wrap_command(&command),
        None => command,
    }
}

/// Creates a subfolder.
pub(super) fn subfolder(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}
