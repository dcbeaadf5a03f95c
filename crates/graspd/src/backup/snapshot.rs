//! Events and git data at one moment.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use grasp_git::layout::Layout;
use grasp_store::Store;

use super::ProgressFn;
use crate::admin::client::{AdminClient, CommandError, RequestBody, ResponseLine};
use crate::admin::snapshot::{ServiceSettings, SnapshotInfo, take_snapshot};
use crate::config::Config;
use crate::data_lock::DataLocks;

/// How long somebody else is waited for.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a moment of the server that these settings describe, whether it runs or not, and does something with it. `tell`
/// hears how far the server is.
pub(crate) fn with_snapshot<T>(
    client: &AdminClient,
    config: &Config,
    on_progress: &mut ProgressFn<'_>,
    work: impl FnOnce(&SnapshotInfo, &mut ProgressFn<'_>) -> Result<T>,
) -> Result<T, CommandError> {
    let mut work = Some(work);
    let mut result = None;
    let called = retry_while_busy(|| {
        client.call("snapshot", RequestBody::none(), &mut |line| {
            match line {
                ResponseLine::Progress { what, done, total } => on_progress(&what, done, total)?,
                ResponseLine::Item(item) => {
                    let snapshot = SnapshotInfo::from_json(&item).ok_or_else(|| {
                        CommandError::Failed("the server says what this version does not understand".to_owned())
                    })?;
                    result = work.take().map(|work| work(&snapshot, on_progress));
                    // Hanging up tells the server that it is not needed any more.
                    return Err(CommandError::Failed(String::new()));
                }
            }
            Ok(())
        })
    });
    if let Some(result) = result {
        return Ok(result?);
    }
    let why_no_server = match called {
        // Also if there is no socket at all: the lock tells whether a server runs.
        Err(CommandError::NotRunning { socket, .. }) => format!("no server answers at {}", socket.display()),
        Err(CommandError::Usage(_)) => "no server can be asked, because ADMIN_SOCKET is off".to_owned(),
        Err(other) => return Err(other),
        Ok(_) => return Err(CommandError::Failed("the server has made no moment".to_owned())),
    };
    let work = work.take().ok_or_else(|| CommandError::Failed("the server has broken off".to_owned()))?;
    Ok(with_stopped_server(config, &why_no_server, on_progress, work)?)
}

/// Tries again for a while what must be alone: the server may not have noticed yet that an earlier command is gone.
pub(super) fn retry_while_busy<T>(mut call: impl FnMut() -> Result<T, CommandError>) -> Result<T, CommandError> {
    let until = Instant::now() + BUSY_TIMEOUT;
    loop {
        match call() {
            Err(CommandError::Rejected { code, .. }) if code == "busy" && Instant::now() < until => {
                std::thread::sleep(BUSY_TIMEOUT / 50);
            }
            result => return result,
        }
    }
}

/// The same for a server that does not run.
fn with_stopped_server<T>(
    config: &Config,
    why_no_server: &str,
    on_progress: &mut ProgressFn<'_>,
    work: impl FnOnce(&SnapshotInfo, &mut ProgressFn<'_>) -> Result<T>,
) -> Result<T> {
    let events = config.relay_data_path.join("events");
    if !events.join("data.mdb").exists() {
        bail!(
            "no server answers, and {} has no events: give the settings of the server, such as --config or \
             --relay-data-path",
            config.relay_data_path.display()
        );
    }
    let _locks = DataLocks::acquire(&config.relay_data_path, &config.git_data_path).with_context(|| {
        format!("{why_no_server}; if one runs, say where its socket is with --admin-socket or NGIT_ADMIN_SOCKET")
    })?;
    reject_unfinished_restore(&config.relay_data_path)?;
    // Whoever runs this may be another user than the server is: nothing is made that stays.
    let layout = Layout::look(&config.git_data_path)
        .with_context(|| format!("cannot use the folder {}", config.git_data_path.display()))?;
    let store = Store::open_read_only(&events)?;
    let service_and_reserve = (ServiceSettings::from_config(config), config.store_reserve_bytes);
    let snapshot = take_snapshot(&store, &layout, service_and_reserve, &|| Ok(()), on_progress)?;
    work(&snapshot.info(config), on_progress)
}

/// A folder into which a restore has not come to its end is nobody's server.
pub(crate) fn reject_unfinished_restore(relay: &Path) -> Result<()> {
    if relay.join(super::UNFINISHED).exists() {
        bail!(
            "a restore into {} was interrupted: run `graspd restore` again, which begins anew, or empty the data folders",
            relay.display()
        );
    }
    Ok(())
}
