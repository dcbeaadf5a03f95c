//! A relay that this program started, and that ends with it.

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

/// How long a relay may take to accept connections.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How long a relay may take to become quiet. After that it is measured as it is: some never do.
const SETTLE_DEADLINE: Duration = Duration::from_secs(20);

/// A relay is quiet when it used no accountable CPU time for this long.
const QUIET: Duration = Duration::from_millis(400);

/// A running relay.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    target: Target,
    process: Process,
}

impl Server {
    /// Starts graspd with its store in `dir`, open to all events and to many connections. Whatever else it needs to
    /// know it reads from the environment, which it inherits.
    pub(super) async fn graspd(binary: &Path, dir: &Path) -> Result<Self> {
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

    /// Starts this program again, as the independent relay.
    pub(super) async fn builder(dir: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(env::current_exe()?);
        command.arg("builder-relay").arg("--dir").arg(dir).args(["--port", &port.to_string()]);
        Self::start("builder", command, port).await
    }

    async fn start(name: &str, mut command: Command, port: u16) -> Result<Self> {
        // Standard output belongs to the results.
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
                bail!("{name} ended before it listened: {status}");
            }
            if started.elapsed() > START_DEADLINE {
                bail!("{name} does not listen after {} s", START_DEADLINE.as_secs());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    /// The relay, as measurements know it.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Its memory right now.
    pub(super) fn memory(&self) -> Result<Memory> {
        self.process.memory()
    }

    /// Waits until the relay has finished what it was doing.
    pub(super) async fn settle(&self) -> Result<()> {
        let started = Instant::now();
        let mut before = self.process.cpu_time()?;
        while started.elapsed() < SETTLE_DEADLINE {
            sleep(QUIET).await;
            let after = self.process.cpu_time()?;
            if after == before {
                break;
            }
            before = after;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already, and there is nobody left to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
