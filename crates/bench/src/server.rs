//! Server processes that this program starts.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::Process;

/// Time within which a server must start or stop.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running process with its own process group. Dropping it kills the group.
#[derive(Debug)]
pub(crate) struct ServerProcess(Child);

impl ServerProcess {
    /// Starts a process.
    pub(crate) fn start(mut command: Command, out: Stdio) -> Result<Self> {
        let name = command.get_program().display().to_string();
        let child = command.stdin(Stdio::null()).stdout(out).process_group(0).spawn();
        child.map(Self).with_context(|| format!("cannot start {name}"))
    }

    /// Starts graspd and waits until it prints its address.
    pub(crate) fn start_graspd(command: Command) -> Result<(Self, SocketAddr)> {
        let mut server = Self::start(command, Stdio::piped())?;
        let address = server.read_address()?;
        Ok((server, address))
    }

    /// Starts this program as the independent relay.
    #[cfg(feature = "compare")]
    pub(crate) async fn start_builder(folder: &Path) -> Result<(Self, SocketAddr)> {
        let address = free_address()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("builder-relay").arg("--dir").arg(folder).args(["--port", &address.port().to_string()]);
        // Standard output is reserved for results.
        let mut relay = Self::start(command, Stdio::null())?;
        let started = Instant::now();
        while tokio::net::TcpStream::connect(address).await.is_err() {
            relay.check_starting(started).context("independent relay")?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok((relay, address))
    }

    /// Waits until graspd prints its address on its standard output, which must be a pipe.
    pub(crate) fn read_address(&mut self) -> Result<SocketAddr> {
        let out = self.0.stdout.take().context("cannot read the output of graspd")?;
        let (address_sender, listening) = mpsc::channel();
        spawn_line_reader(out, move |line| {
            if let Some(address) = line.trim().strip_prefix("listening") {
                let _ = address_sender.send(address.trim().to_owned());
            }
        });
        Ok(listening.recv_timeout(DEADLINE).context("graspd did not print its address")?.parse()?)
    }

    /// Returns the pipe from its standard error.
    pub(crate) fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Returns an error if the process has exited, or has taken too long to accept connections.
    pub(crate) fn check_starting(&mut self, started: Instant) -> Result<()> {
        if let Some(status) = self.0.try_wait()? {
            bail!("the process exited before it accepted connections: {status}");
        }
        if started.elapsed() > DEADLINE {
            bail!("the process does not accept connections after {} s", DEADLINE.as_secs());
        }
        Ok(())
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the process, to read its CPU time and memory.
    pub(crate) fn process(&self) -> Process {
        Process::Pid(self.0.id())
    }

    /// Sends SIGTERM and waits until the process has exited.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let pid = self.0.id().to_string();
        let status = Command::new("kill").args(["-TERM", &pid]).status().context("cannot run kill")?;
        if !status.success() {
            bail!("cannot send SIGTERM to process {pid}");
        }
        let started = Instant::now();
        while self.0.try_wait()?.is_none() {
            if started.elapsed() > DEADLINE {
                bail!("process {pid} does not exit");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The whole process group is killed, because fcgiwrap's workers outlive their parent. The processes may have
        // exited already, and `drop` cannot report errors.
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// Returns a command that starts graspd with its data in `folder`. Other settings are inherited from the environment.
pub(crate) fn graspd_command(binary: &Path, folder: &Path, log_level: &str) -> Command {
    let mut command = Command::new(binary);
    command
        .current_dir(folder)
        .env("NGIT_BIND_ADDRESS", "127.0.0.1:0")
        .env("NGIT_RELAY_DATA_PATH", folder.join("relay"))
        .env("NGIT_GIT_DATA_PATH", folder.join("git"))
        .env("NGIT_NETWORK_MAX_CONNECTIONS", "0")
        .env("NGIT_NETWORK_EVENTS_PER_MINUTE", "0");
    if std::env::var_os("NGIT_LOG_LEVEL").is_none() {
        command.env("NGIT_LOG_LEVEL", log_level);
    }
    command
}

/// Returns an address of this machine with a port that is currently free.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

/// Reads all lines in a separate thread, because a full pipe would block the server.
pub(crate) fn spawn_line_reader(from: impl Read + Send + 'static, on_line: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || BufReader::new(from).lines().map_while(Result::ok).for_each(on_line));
}
