//! Locks of the data folders.
//!
//! There are two locks, because git processes can outlive a server that was killed. The first belongs to the server and
//! ends with it. The second is inherited by its git processes and ends with the last of them: a new server waits for it
//! before it repairs anything.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::{FdFlags, fcntl_setfd};
use tracing::warn;

/// How long the server's lock is waited for: until it runs git, a child of a killed server holds it, too, and on a busy
/// machine a child with low priority may wait for the processor.
const OWN_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long git processes of an earlier server are waited for. The kernel ends them with the server; their own children
/// end at their next output, which is soon.
const CHILD_LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between two attempts to get a lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The locks of both data folders, held until they are dropped.
pub(crate) struct DataLocks {
    _server_lock: File,
    _children_lock: File,
}

impl DataLocks {
    /// Locks both folders.
    ///
    /// # Errors
    ///
    /// Another server, or a git process of one, holds a lock after the timeout.
    pub(crate) fn acquire(relay: &Path, git: &Path) -> Result<Self> {
        let Some(server_lock) = lock_file(relay, "lock", OWN_LOCK_TIMEOUT, || {})? else {
            bail!("another graspd is using {}: stop it, or give this one its own NGIT_RELAY_DATA_PATH", relay.display())
        };
        let on_wait = || warn!(target: "store", "waiting for git processes of an earlier server to end");
        let Some(children_lock) = lock_file(git, "children.lock", CHILD_LOCK_TIMEOUT, on_wait)? else {
            bail!(
                "another graspd, or a git process of an earlier one, is using {}: stop it, or give this one its own \
                 NGIT_GIT_DATA_PATH",
                git.display()
            )
        };
        fcntl_setfd(&children_lock, FdFlags::empty()).context("cannot pass a lock to git processes")?;
        Ok(Self { _server_lock: server_lock, _children_lock: children_lock })
    }
}

/// Locks a file in a folder; `None` if another process holds the lock until the timeout.
fn lock_file(folder: &Path, name: &str, timeout: Duration, on_wait: impl FnOnce()) -> Result<Option<File>> {
    // Other users of the machine must not read the owner key, or events that are not served yet.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let name = folder.join(name);
    // Not open for writing, because that would keep an administrator from making the file system read-only.
    let create = || OpenOptions::new().create(true).truncate(false).write(true).open(&name);
    let file = File::open(&name).or_else(|_| create().and_then(|_| File::open(&name)));
    let file = file.with_context(|| format!("cannot open {}", name.display()))?;
    let deadline = Instant::now() + timeout;
    let mut on_wait = Some(on_wait);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                if let Some(on_wait) = on_wait.take() {
                    on_wait();
                }
                std::thread::sleep(RETRY_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(problem)) => {
                return Err(problem).with_context(|| format!("cannot lock {}", name.display()));
            }
        }
    }
}
