//! Finds a damaged event store before it is used.
//!
//! At an orderly stop the server records the size and the time of the last change of the database. If they are the same
//! at the next start, the database is used as it is. Otherwise the server was killed, the machine failed, or the file was
//! changed, and everything in it is read once. That is done by a process of its own, because LMDB ends a process that
//! reads certain damaged pages.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use grasp_store::StoreError;
use rustix::process::Signal;
use tracing::info;

use crate::sd_notify::{self, NotifyState};

/// Name of the record in the relay's data folder.
const FILE_NAME: &str = "clean-stop";

/// Exit status of the process that has read a damaged store.
pub(crate) const DAMAGED_STORE: i32 = 3;

/// The record of an orderly stop. It exists only while the server does not run.
pub(crate) struct StopRecord {
    folder: PathBuf,
}

impl StopRecord {
    /// Removes the record of the last stop, and checks the store if there is none or it does not match.
    ///
    /// # Errors
    /// Fails if the store is damaged, or if the record cannot be removed.
    pub(crate) fn take(relay_folder: &Path) -> Result<Self> {
        let record = Self { folder: relay_folder.to_owned() };
        record.check_changed_store()?;
        if record.path().exists() {
            fs::remove_file(record.path()).with_context(|| format!("cannot remove {}", record.path().display()))?;
            File::open(&record.folder)?.sync_all()?;
        }
        Ok(record)
    }

    /// Checks the store of a server that does not run, unless it is as the server has left it.
    ///
    /// # Errors
    /// Fails if the store is damaged.
    pub(crate) fn check(relay_folder: &Path) -> Result<()> {
        Self { folder: relay_folder.to_owned() }.check_changed_store()
    }

    fn check_changed_store(&self) -> Result<()> {
        let current = self.describe_database();
        if current.is_some() && fs::read_to_string(self.path()).ok() != current {
            check_store(&self.folder.join("events"))?;
        }
        Ok(())
    }

    /// Records an orderly stop. Nothing may change the store afterwards.
    pub(crate) fn write(&self) {
        // Without the record, the next start only takes longer.
        if let Some(text) = self.describe_database() {
            let _ = fs::write(self.path(), text);
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }

    /// Returns the size and the time of the last change of the database; `None` if there is none.
    fn describe_database(&self) -> Option<String> {
        let metadata = fs::metadata(self.folder.join("events/data.mdb")).ok()?;
        Some(format!("{} {}.{:09}\n", metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    }
}

/// Reads everything in a store that no process uses.
///
/// # Errors
/// Fails if the store is damaged.
fn check_store(events: &Path) -> Result<()> {
    info!(target: "store", "the server did not stop in order, or the event store was changed; checking it");
    let started = Instant::now();
    let program = std::env::current_exe().context("cannot find the program of the server")?;
    let mut child = Command::new(program)
        .arg("check-store")
        .arg(events)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot check the event store")?;
    let mut table = String::new();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            sd_notify::notify(NotifyState::CheckingStore);
            table = line;
        }
    }
    let output = child.wait_with_output().context("cannot check the event store")?;
    if output.status.success() {
        info!(target: "store", millis = started.elapsed().as_millis(), "the event store is intact");
        return Ok(());
    }
    let problem = String::from_utf8_lossy(&output.stderr);
    let problem = problem.lines().last().unwrap_or("").trim_start_matches("graspd check-store: ");
    // Signals by which LMDB ends a process. Any other end is a problem of the machine.
    let faults = [Signal::ABORT, Signal::BUS, Signal::SEGV].map(|signal| Some(signal.as_raw()));
    if !faults.contains(&output.status.signal()) && output.status.code() != Some(DAMAGED_STORE) {
        bail!("cannot check the event store {}: {problem}", events.display());
    }
    bail!("{}", damage_message(events, &format!("reading table {table}: {} {problem}", output.status)));
}

/// Adds what to do to the error of a store that cannot be opened.
pub(crate) fn explain(error: StoreError, events: &Path) -> anyhow::Error {
    if error.is_damage() { anyhow::anyhow!("{}", damage_message(events, &error.to_string())) } else { error.into() }
}

/// Returns the message about a damaged store.
fn damage_message(events: &Path, problem: &str) -> String {
    let relay = events.parent().unwrap_or(events).display();
    format!(
        "the event store {} is damaged ({}). The server does not start with it. To restore a \
         backup, move the relay folder {relay} and the git folder away and run `graspd restore BACKUP`. Without a backup, \
         move both away and start an empty server with NGIT_SYNC_BOOTSTRAP_RELAY_URL set to a relay that has your \
         announcements: it fetches events and git data from other servers. See \"The event store is damaged\" in \
         docs/how-to.md",
        events.display(),
        problem.trim()
    )
}
