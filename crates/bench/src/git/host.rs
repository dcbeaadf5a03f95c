//! A git server that this program started, and that ends with it.

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

use super::ledger::{ControlGroup, CpuAccount};
use super::nginx;
use super::request::RepoUrl;
use crate::process::Process;

/// The name under which graspd serves. Nobody looks it up: announcements must carry it, connections go to loopback.
pub(super) const DOMAIN: &str = "bench.example";

/// How long a server may take to accept connections.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How long a server may take to finish its background work; a large repository is repacked for a minute.
const IDLE_DEADLINE: Duration = Duration::from_secs(300);

/// A server is quiet when it used less than [`IDLE_CPU`] for this long.
const IDLE_PERIOD: Duration = Duration::from_millis(500);

/// What a server may use and count as quiet: its timers.
const IDLE_CPU: Duration = Duration::from_millis(10);

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServerKind {
    /// This project's server.
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
    /// Who it is.
    pub(super) kind: ServerKind,
    /// Where it listens.
    pub(super) address: String,
    /// Where its CPU time is read.
    pub(super) cpu_account: CpuAccount,
    /// Where it keeps repositories.
    pub(super) folder: PathBuf,
    /// The processes that it consists of, each with its own in its process group.
    children: Vec<Child>,
}

impl GitServer {
    /// Starts graspd in `folder`. What is not set here it reads from the environment, which it inherits.
    pub(super) fn start_graspd(binary: &Path, folder: &Path) -> Result<Self> {
        Self::start_graspd_with(binary, folder, &[])
    }

    /// The same with further settings.
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
        let out = child.stdout.take().context("graspd says nothing")?;
        let mut server =
            Self { kind: ServerKind::Graspd, address: String::new(), cpu_account, folder: git, children: vec![child] };

        let (address_sender, listening) = mpsc::channel();
        // The pipe is read to its end, or graspd could not go on speaking.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(address) = line.trim().strip_prefix("listening") {
                    let _ = address_sender.send(address.trim().to_owned());
                }
            }
        });
        server.address = listening.recv_timeout(START_DEADLINE).context("graspd does not say where it listens")?;
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
                bail!("a process of {} ended before it listened: {status}", self.kind);
            }
        }
        if started.elapsed() > START_DEADLINE {
            bail!("{} does not listen after {} s", self.kind, START_DEADLINE.as_secs());
        }
        Ok(())
    }

    /// A repository on it.
    pub(super) fn url(&self, path: &str) -> RepoUrl {
        RepoUrl::new(&self.address, path)
    }

    /// The process whose memory counts; the other server has none that would say much.
    pub(super) fn process(&self) -> Option<Process> {
        let first = self.children.first().map(|child| Process::Pid(child.id()));
        first.filter(|_| self.kind == ServerKind::Graspd)
    }

    /// Waits until the server has finished what it was doing.
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
            // A process group is killed as a whole: fcgiwrap's workers outlive their parent. It may be gone already, and
            // there is nobody left to tell.
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
            let _ = child.wait();
        }
        if let CpuAccount::ControlGroup(group) = &self.cpu_account {
            group.remove();
        }
    }
}

/// Starts a process in a process group of its own, and in a control group if there is one.
fn start(group: Option<&ControlGroup>, command: Command, out: Stdio) -> Result<Child> {
    let name = command.get_program().display().to_string();
    let mut command = match group {
        Some(group) => group.wrap_command(&command),
        None => command,
    };
    command.stdin(Stdio::null()).stdout(out).process_group(0);
    command.spawn().with_context(|| format!("cannot start {name}"))
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Makes a folder inside another one.
pub(super) fn subfolder(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}
