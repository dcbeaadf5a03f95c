//! The same with a relay of other software as the source.

use anyhow::Result;

use super::sheet::Row;
use super::world::World;

/// Without the relay in this program there is nothing to follow.
#[cfg(not(feature = "compare"))]
#[allow(clippy::unused_async, reason = "the other one waits")]
pub(super) async fn run(_: &World) -> Result<Vec<Row>> {
    super::sheet::remark("no independent relay: build with --features compare");
    Ok(Vec::new())
}

/// Fills the independent relay unless it was filled before, and lets a follower have everything from it, twice.
#[cfg(feature = "compare")]
pub(super) async fn run(world: &World) -> Result<Vec<Row>> {
    use super::cold::Run;
    use super::wire::Wire;
    use super::world::{FOLLOWER, SOURCE};

    let extent = world.corpus.extent;
    let shelf = world.shelf(&format!("foreign-{}-{}x{}", extent.seed, extent.repositories, extent.roots));
    let full = shelf.join("full");
    if !full.exists() {
        // What was interrupted begins again.
        let _ = std::fs::remove_dir_all(&shelf);
        std::fs::create_dir_all(&shelf)?;
    }
    let relay = builder::Relay::start(&shelf.join("database")).await?;
    if !full.exists() {
        let lists = world.lists(World::both)?;
        super::publish::publish(&format!("ws://{}", relay.address).parse()?, lists).await?;
        std::fs::write(full, [])?;
    }
    let wire = Wire::lay(SOURCE, relay.address).await?;
    let plan = world.newborn("follower", FOLLOWER)?;
    let run = Run { world, wire: &wire, source: relay.process() };
    Ok(super::twice(&run, &plan, "foreign").await?.0)
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

    /// How long it may take to listen.
    const DEADLINE: Duration = Duration::from_secs(20);

    /// This program again, as the independent relay.
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
                    bail!("the independent relay does not listen");
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
            // It may have ended already, and there is nobody left to tell.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
