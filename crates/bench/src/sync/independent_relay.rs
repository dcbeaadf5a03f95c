//! `foreign`: the same measurement as `cold` with an independent relay as the source.

use anyhow::Result;

use super::result_table::ResultRow;
use super::world::SyncSetup;

/// Prints a hint: the independent relay is not part of this build.
#[cfg(not(feature = "compare"))]
#[allow(clippy::unused_async, reason = "the variant with the feature is async")]
pub(super) async fn run(_: &SyncSetup) -> Result<Vec<ResultRow>> {
    super::result_table::print_progress("the independent relay is not included; build with --features compare");
    Ok(Vec::new())
}

/// Fills the independent relay unless an earlier run did, and measures the first sync of a follower and its restart.
#[cfg(feature = "compare")]
pub(super) async fn run(setup: &SyncSetup) -> Result<Vec<ResultRow>> {
    use super::counting_proxy::CountingProxy;
    use super::first_sync::SyncRun;
    use super::world::{FOLLOWER, SOURCE};

    let size = setup.corpus.size;
    let folder = setup.path(&format!("foreign-{}-{}x{}", size.seed, size.repositories, size.roots));
    let full = folder.join("full");
    if !full.exists() {
        // Removes the data of an interrupted run.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
    }
    let relay = builder::Relay::start(&folder.join("database")).await?;
    if !full.exists() {
        let lists = setup.all_events(SyncSetup::both_servers)?;
        super::publish::publish(&format!("ws://{}", relay.address).parse()?, lists).await?;
        std::fs::write(full, [])?;
    }
    let proxy = CountingProxy::start(SOURCE, relay.address).await?;
    let plan = setup.with_git_data("follower", FOLLOWER)?;
    let run = SyncRun { setup, proxy: &proxy, source: relay.process() };
    Ok(super::first_sync_and_restart(&run, &plan, "foreign").await?.0)
}

#[cfg(feature = "compare")]
mod builder {
    use std::net::{SocketAddr, TcpListener};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use anyhow::{Result, bail};
    use tokio::net::TcpStream;
    use tokio::time::sleep;

    use crate::process::Process;

    /// Time within which the relay must accept connections.
    const DEADLINE: Duration = Duration::from_secs(20);

    /// This program, running as the independent relay.
    #[derive(Debug)]
    pub(super) struct Relay {
        child: Child,
        pub(super) address: SocketAddr,
    }

    impl Relay {
        pub(super) async fn start(folder: &Path) -> Result<Self> {
            let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
            let child = Command::new(std::env::current_exe()?)
                .arg("builder-relay")
                .arg("--dir")
                .arg(folder)
                .args(["--port", &address.port().to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()?;
            let relay = Self { child, address };
            let started = Instant::now();
            while TcpStream::connect(address).await.is_err() {
                if started.elapsed() > DEADLINE {
                    bail!("the independent relay does not accept connections");
                }
                sleep(Duration::from_millis(50)).await;
            }
            Ok(relay)
        }

        pub(super) fn process(&self) -> Process {
            Process::Pid(self.child.id())
        }
    }

    impl Drop for Relay {
        fn drop(&mut self) {
            // The process may have exited already, and `drop` cannot report errors.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
