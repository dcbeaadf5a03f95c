//! Imports events from a file, one per line, into the running server.
//!
//! A checkpoint next to the file records the byte offset up to which all events are decided. Events that were rejected
//! because they depend on something that may come later in the file are written to another file and imported again at
//! the end, in further passes as long as that helps. In the last pass the server defers those that belong to events in
//! purgatory: it submits them again when these are served. After an interruption the import continues at the last
//! checkpoint; events that are sent twice are already known.

use std::collections::BTreeMap;
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use grasp_git::crash_point;
use serde_json::{Value, json};

use super::checkpoint;
use super::progress::Progress;
use super::snapshot::retry_while_busy;
use super::tree::ignore_missing;
use crate::admin::api::{ImportCounts, ImportItem, ImportRequest};
use crate::admin::client::{AdminClient, CommandError, ResponseLine};

/// Maximum number of passes. Each pass resolves one level of replies.
const MAX_PASSES: u64 = 8;

/// Maximum number of bytes that are kept for another pass.
const MAX_RETRY_BYTES: u64 = 4 << 30;

/// Reasons of rejections that depend on the server, which the operator can change, and not on the event.
const TEMPORARY_REASONS: [&str; 6] = [
    "no_new_repositories",
    "too_many_repositories",
    "too_much_held",
    "too_much_held_network",
    "purgatory_full",
    "too_many_early_requests",
];

/// An import of a file.
pub(crate) struct EventImport<'i> {
    client: &'i AdminClient,
    /// Path of the file.
    path: &'i Path,
    /// Fingerprint of the file.
    fingerprint: Value,
    /// Whether protected events are accepted, and whether the server defers events in the last pass.
    options: ImportRequest,
    checkpoint_path: PathBuf,
    /// Number of the pass; pass 0 reads the file itself.
    pass: u64,
    /// Counts of the earlier passes.
    before: ImportCounts,
    /// Counts of this pass up to the point where it was continued.
    resumed: ImportCounts,
    /// Number of bytes of this pass's input that are decided.
    offset: u64,
    /// Number of bytes that are kept for the next pass.
    retry_bytes: u64,
}

impl ImportCounts {
    /// Returns the sum of both.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.accepted += other.accepted;
        sum.held += other.held;
        sum.known += other.known;
        sum.deferred += other.deferred;
        for (why, count) in &other.rejected {
            *sum.rejected.entry(why.clone()).or_default() += count;
        }
        for (why, count) in &other.retryable {
            *sum.retryable.entry(why.clone()).or_default() += count;
        }
        sum
    }

    /// Counts events that were rejected as deferred. `kept` is their number by reason.
    pub(crate) fn mark_deferred(&mut self, kept: &BTreeMap<String, u64>) {
        for (reason, count) in kept {
            self.deferred += count;
            if let Some(rejected) = self.retryable.get_mut(reason) {
                *rejected = rejected.saturating_sub(*count);
            }
        }
        self.retryable.retain(|_, count| *count > 0);
    }

    /// Returns the reasons of rejections after which the same events may be accepted later.
    pub(crate) fn temporary_rejections(&self) -> impl Iterator<Item = &str> {
        self.rejected
            .keys()
            .chain(self.retryable.keys())
            .map(String::as_str)
            .filter(|why| TEMPORARY_REASONS.contains(why))
    }

    /// Returns the number of decided events.
    pub(crate) fn total(&self) -> u64 {
        let sum = |list: &BTreeMap<String, u64>| list.values().sum::<u64>();
        self.accepted + self.held + self.known + self.deferred + sum(&self.rejected) + sum(&self.retryable)
    }
}

impl<'i> EventImport<'i> {
    /// Starts an import, or continues an interrupted one.
    pub(crate) fn open(client: &'i AdminClient, path: &'i Path, options: ImportRequest) -> Result<Self> {
        let checkpoint_path = checkpoint::sibling_path(path, ".graspd-import");
        let fingerprint =
            checkpoint::fingerprint(path, u64::MAX).with_context(|| format!("cannot read {}", path.display()))?;
        // A file that has grown can be continued only in the first pass, which still reads it.
        let can_resume = |saved: &Value| {
            checkpoint::matches_file(saved, path) && (saved["pass"] == 0 || saved["file"] == fingerprint)
        };
        let saved = checkpoint::read(&checkpoint_path)?.filter(can_resume).unwrap_or_default();
        let number = |name: &str| saved[name].as_u64().unwrap_or(0);
        let (pass, offset, retry_bytes) = (number("pass"), number("offset"), number("kept"));
        let counts = |name: &str| serde_json::from_value(saved[name].clone()).unwrap_or_default();
        let (before, resumed) = (counts("before"), counts("so_far"));
        Ok(Self { client, path, fingerprint, options, checkpoint_path, pass, before, resumed, offset, retry_bytes })
    }

    /// Returns whether an interrupted import is continued.
    pub(crate) fn is_resumed(&self) -> bool {
        self.pass > 0 || self.offset > 0
    }

    /// Imports all events.
    pub(crate) fn run(mut self, progress: &mut Option<Progress>) -> Result<ImportCounts, CommandError> {
        let mut is_last = false;
        loop {
            let counts = self.run_pass(progress, is_last)?;
            let made_progress = self.pass == 0 || counts.accepted + counts.held > 0;
            let is_done = !made_progress || self.pass + 2 >= MAX_PASSES;
            if is_last || self.retry_bytes == 0 || (is_done && !self.options.defer) {
                // The checkpoint is removed first, because it refers to the other files.
                ignore_missing(fs::remove_file(&self.checkpoint_path))?;
                crash_point::point("import.forgotten");
                for pass in 1..=MAX_PASSES + 2 {
                    ignore_missing(fs::remove_file(self.input_path(pass)))?;
                }
                return Ok(self.before.plus(&counts));
            }
            is_last = is_done;
            // Events that are imported again are counted in the next pass.
            self.before = self.before.plus(&ImportCounts { retryable: BTreeMap::new(), ..counts });
            self.resumed = ImportCounts::default();
            (self.pass, self.offset, self.retry_bytes) = (self.pass + 1, 0, 0);
            self.save_checkpoint()?;
        }
    }

    /// Returns the path of the input of a pass.
    fn input_path(&self, pass: u64) -> PathBuf {
        if pass == 0 {
            self.path.to_owned()
        } else {
            checkpoint::sibling_path(self.path, &format!(".graspd-again-{pass}"))
        }
    }

    /// Sends the events of a pass. In the last one, the server defers those that wait for others.
    fn run_pass(&mut self, progress: &mut Option<Progress>, is_last: bool) -> Result<ImportCounts, CommandError> {
        let mut retry_file = self.open_retry_file()?;
        let (resumed, start_offset) = (self.resumed.clone(), self.offset);
        let mut counts = resumed.clone();
        let request = ImportRequest { defer: is_last, ..self.options };
        let client = self.client;
        retry_while_busy(|| {
            let (input, size) = self.input()?;
            client.import(&request, input, |line| {
                let decided = match line {
                    ResponseLine::Item(ImportItem::Progress(decided)) => decided,
                    ResponseLine::Item(ImportItem::Again { again }) => {
                        if self.retry_bytes + (again.len() as u64) < MAX_RETRY_BYTES {
                            writeln!(retry_file, "{again}")
                                .map_err(|problem| CommandError::Failed(format!("cannot write: {problem}")))?;
                            self.retry_bytes += again.len() as u64 + 1;
                        }
                        return Ok(());
                    }
                    ResponseLine::Progress(_) => return Ok(()),
                };
                counts = resumed.plus(&decided.counts);
                self.offset = start_offset + decided.done;
                self.resumed.clone_from(&counts);
                let saved = retry_file.sync_all().map_err(anyhow::Error::from).and_then(|()| self.save_checkpoint());
                saved?;
                crash_point::point("import.noted");
                let what = if self.pass == 0 { "importing bytes" } else { "importing bytes of postponed events" };
                if let Some(progress) = progress {
                    progress.show(what, self.offset, Some(size));
                }
                Ok(())
            })
        })?;
        Ok(counts)
    }

    fn input(&self) -> Result<(impl Read + Send + 'static, u64)> {
        let path = self.input_path(self.pass);
        let mut file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let size = file.metadata()?.len();
        ensure!(
            size >= self.offset,
            "{} is shorter than the part that was already imported: remove {} to start again",
            path.display(),
            self.checkpoint_path.display()
        );
        file.seek(SeekFrom::Start(self.offset))?;
        Ok((file, size))
    }

    /// Opens the file for events that are imported again, and cuts it to the length in the checkpoint.
    fn open_retry_file(&self) -> Result<File> {
        let path = self.input_path(self.pass + 1);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        file.set_len(self.retry_bytes)?;
        file.seek(SeekFrom::End(0))?;
        Ok(file)
    }

    fn save_checkpoint(&self) -> Result<()> {
        let value = json!({
            "pass": self.pass,
            "offset": self.offset,
            "kept": self.retry_bytes,
            "before": self.before,
            "so_far": self.resumed,
            "file": self.fingerprint,
        });
        checkpoint::write(&self.checkpoint_path, &value)
    }
}
