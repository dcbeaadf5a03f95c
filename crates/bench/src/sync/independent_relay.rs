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
    use crate::server::ServerProcess;

    let size = setup.corpus.size;
    let folder = setup.path(&format!("foreign-{}-{}x{}", size.seed, size.repositories, size.roots));
    let full = folder.join("full");
    if !full.exists() {
        // Removes the data of an interrupted run.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
    }
    let (relay, address) = ServerProcess::start_builder(&folder.join("database")).await?;
    if !full.exists() {
        let lists = setup.all_events(SyncSetup::both_servers)?;
        super::publish::publish(address, &lists).await?;
        std::fs::write(full, [])?;
    }
    let proxy = CountingProxy::start(SOURCE, address).await?;
    let plan = setup.with_git_data("follower", FOLLOWER).await?;
    let run = SyncRun { setup, proxy: &proxy, source: relay.process() };
    Ok(super::first_sync_and_restart(&run, &plan, "foreign").await?.0)
}
