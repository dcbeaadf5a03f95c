//! Snapshots for commands: of a running server through its admin socket, or of a stopped one.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use grasp_git::layout::Layout;
use grasp_store::Store;

use super::ProgressFn;
use crate::admin::api::{ErrorCode, JobProgress, Nothing, SNAPSHOT, ServiceSettings, SnapshotInfo};
use crate::admin::client::{AdminClient, CommandError, ResponseLine};
use crate::admin::snapshot::take_snapshot;
use crate::config::Config;
use crate::data_lock::DataLocks;
use crate::store_check::{self, StopRecord};

/// How long a command waits for another one to end.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Creates a snapshot of the server with these settings, whether it runs or not, and passes it to `work`. The snapshot
/// is removed afterwards.
pub(crate) fn with_snapshot<T>(
    client: &AdminClient,
    config: &Config,
    on_progress: &mut ProgressFn<'_>,
    work: impl FnOnce(&SnapshotInfo, &mut ProgressFn<'_>) -> Result<T>,
) -> Result<T, CommandError> {
    let mut work = Some(work);
    let mut result = None;
    let called = retry_while_busy(|| {
        client.call(SNAPSHOT, &Nothing {}, |line| match line {
            ResponseLine::Progress(JobProgress { what, done, total }) => Ok(on_progress(&what, done, total)?),
            ResponseLine::Item(snapshot) => {
                result = work.take().map(|work| work(&snapshot, on_progress));
                // Closing the connection makes the server remove the snapshot.
                Err(CommandError::Failed(String::new()))
            }
        })
    });
    if let Some(result) = result {
        return Ok(result?);
    }
    let why_no_server = match called {
        // The lock of the data folder shows whether a server runs, even if there is no socket.
        Err(CommandError::NotRunning { tried }) => format!("no server is running at {tried}"),
        Err(CommandError::Usage(_)) => "the server cannot be reached, because ADMIN_SOCKET is off".to_owned(),
        Err(other) => return Err(other),
        Ok(_) => return Err(CommandError::Failed("the server returned no snapshot".to_owned())),
    };
    let work = work.take().ok_or_else(|| CommandError::Failed("the server closed the connection".to_owned()))?;
    Ok(with_stopped_server(config, &why_no_server, on_progress, work)?)
}

/// Repeats a call for a while if the server is busy: it may not have noticed yet that an earlier command has ended.
pub(super) fn retry_while_busy<T>(mut call: impl FnMut() -> Result<T, CommandError>) -> Result<T, CommandError> {
    let until = Instant::now() + BUSY_TIMEOUT;
    loop {
        match call() {
            Err(CommandError::Rejected(error)) if error.code == ErrorCode::Busy && Instant::now() < until => {
                std::thread::sleep(BUSY_TIMEOUT / 50);
            }
            result => return result,
        }
    }
}

/// Creates a snapshot of a server that does not run.
fn with_stopped_server<T>(
    config: &Config,
    why_no_server: &str,
    on_progress: &mut ProgressFn<'_>,
    work: impl FnOnce(&SnapshotInfo, &mut ProgressFn<'_>) -> Result<T>,
) -> Result<T> {
    let (_locks, store) = open_stopped_store(config, why_no_server)?;
    // The command may run as another user than the server, so it must not leave files of its own.
    let layout = Layout::open_existing(&config.git_data_path)
        .with_context(|| format!("cannot use the folder {}", config.git_data_path.display()))?;
    let service_and_reserve = (ServiceSettings::from_config(config), config.store_reserve_bytes);
    let relay_folder = &config.relay_data_path;
    let snapshot = take_snapshot(&store, &layout, relay_folder, service_and_reserve, &|| Ok(()), on_progress)?;
    work(&snapshot.info(config), on_progress)
}

/// Opens the store of a server that does not run, for reading.
pub(crate) fn open_stopped_store(config: &Config, why_no_server: &str) -> Result<(DataLocks, Store)> {
    let events = config.relay_data_path.join("events");
    if !events.join("data.mdb").exists() {
        bail!(
            "no server is running, and {} contains no events: give the settings of the server, such as --config or \
             --relay-data-path",
            config.relay_data_path.display()
        );
    }
    let locks = DataLocks::acquire(&config.relay_data_path, &config.git_data_path).with_context(|| {
        format!("{why_no_server}; if a server runs, give its socket with --admin-socket or NGIT_ADMIN_SOCKET")
    })?;
    reject_unfinished_restore(&config.relay_data_path)?;
    StopRecord::check(&config.relay_data_path)?;
    let store = Store::open_read_only(&events).map_err(|error| store_check::explain(error, &events))?;
    Ok((locks, store))
}

/// Returns an error if a restore into the data folder was not finished.
pub(crate) fn reject_unfinished_restore(relay: &Path) -> Result<()> {
    if relay.join(super::UNFINISHED).exists() {
        bail!(
            "a restore into {} was interrupted: run `graspd restore` again, or empty the data folders",
            relay.display()
        );
    }
    Ok(())
}
