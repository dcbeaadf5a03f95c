//! Takes the data folders for this process alone.
//!
//! Two locks, because a server that was killed may leave git processes behind. The first is the server's own and ends with
//! it. The second is inherited by its git processes and ends with the last of them: a new server waits for it before it
//! repairs anything.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::{FdFlags, fcntl_setfd};
use tracing::warn;

/// How long the server's own lock is waited for: between fork and exec a child of a killed server holds it, too.
const MOMENT: Duration = Duration::from_millis(500);

/// How long git processes that were left behind are waited for. The kernel ends them with the server; what those have
/// started in turn ends when it wants to say something, and that is soon.
const ORPHANS: Duration = Duration::from_secs(10);

/// How often a lock is tried.
const PAUSE: Duration = Duration::from_millis(10);

/// The locks, held until they are dropped.
pub(crate) struct Locks {
    _own: File,
    _inherited: File,
}

impl Locks {
    /// Takes both folders, or says who has them.
    pub(crate) fn take(relay: &Path, git: &Path) -> Result<Self> {
        let Some(own) = wait(relay, "lock", MOMENT, || {})? else {
            bail!("another graspd is using {}: stop it, or give this one its own NGIT_RELAY_DATA_PATH", relay.display())
        };
        let tell = || warn!("git processes of a server that has ended are still at work; waiting for them");
        let Some(inherited) = wait(git, "children.lock", ORPHANS, tell)? else {
            bail!(
                "another graspd, or a git process that one has left behind, is using {}: stop it, or give this one its \
                 own NGIT_GIT_DATA_PATH",
                git.display()
            )
        };
        fcntl_setfd(&inherited, FdFlags::empty()).context("cannot share a lock with git processes")?;
        Ok(Self { _own: own, _inherited: inherited })
    }
}

/// Locks a file in a folder; nothing if somebody else has it for all that time.
fn wait(folder: &Path, name: &str, patience: Duration, tell: impl FnOnce()) -> Result<Option<File>> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let name = folder.join(name);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&name)
        .with_context(|| format!("cannot open {}", name.display()))?;
    let until = Instant::now() + patience;
    let mut tell = Some(tell);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                if let Some(tell) = tell.take() {
                    tell();
                }
                std::thread::sleep(PAUSE);
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(problem)) => {
                return Err(problem).with_context(|| format!("cannot lock {}", name.display()));
            }
        }
    }
}
