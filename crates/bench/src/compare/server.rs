//! A relay process started by this program and killed when dropped.

use std::env;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::process::{Memory, Process};
use crate::target::Target;

/// Time within which a relay must accept connections.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Time to wait for a relay to become idle. After that it is measured anyway: some relays are never idle.
const IDLE_DEADLINE: Duration = Duration::from_secs(20);

/// A relay is idle if it used no measurable CPU time for this long.
const IDLE_PERIOD: Duration = Duration::from_millis(400);

/// A running relay process.
#[derive(Debug)]
pub(super) struct RelayProcess {
    child: Child,
    target: Target,
    process: Process,
}

impl RelayProcess {
    /// Starts graspd with its store in `dir`, with an open policy and a high connection limit. Other settings are
    /// inherited from the environment.
    pub(super) async fn start_graspd(binary: &Path, dir: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(binary);
        command
            .env("NGIT_BIND_ADDRESS", format!("127.0.0.1:{port}"))
            .env("NGIT_RELAY_DATA_PATH", dir.join("relay"))
            .env("NGIT_GIT_DATA_PATH", dir.join("git"))
            .env("NGIT_POLICY", "open")
            .env("NGIT_SYNC_ENABLE", "false")
            .env("NGIT_LOG_LEVEL", "warn")
            .env("NGIT_MAX_CONNECTIONS", "20000");
        Self::start("graspd", command, port).await
    }

    /// Starts this program as the independent relay.
    pub(super) async fn start_builder(dir: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(env::current_exe()?);
        command.arg("builder-relay").arg("--dir").arg(dir).args(["--port", &port.to_string()]);
        Self::start("builder", command, port).await
    }

    async fn start(name: &str, mut command: Command, port: u16) -> Result<Self> {
        // Standard output is reserved for results.
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let process = Process::Pid(child.id());
        let target =
            Target { url: format!("ws://127.0.0.1:{port}").parse()?, name: name.into(), process: Some(process) };
        let mut server = Self { child, target, process };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} exited before it accepted connections: {status}");
            }
            if started.elapsed() > START_DEADLINE {
                bail!("{name} does not accept connections after {} s", START_DEADLINE.as_secs());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    /// Returns the relay as a measurement target.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Returns its current memory.
    pub(super) fn memory(&self) -> Result<Memory> {
        self.process.memory()
    }

    /// Waits until the relay is idle.
    pub(super) async fn wait_until_idle(&self) -> Result<()> {
        let started = Instant::now();
        let mut before = self.process.cpu_time()?;
        while started.elapsed() < IDLE_DEADLINE {
            sleep(IDLE_PERIOD).await;
            let after = self.process.cpu_time()?;
            if after == before {
                break;
            }
            before = after;
        }
        Ok(())
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        // The process may have exited already, and `drop` cannot report errors.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a port that is currently free.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
