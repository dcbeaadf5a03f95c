//! Brings events from a file, one per line, into the running server.
//!
//! A note beside the file says up to which byte everything has been judged. What was refused for want of something that
//! may come later in the file is kept in another file and tried once more at the end, and again while that helps. Whatever
//! is interrupted goes on from the last note: events that come twice are known.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use grasp_git::crash_point;
use serde_json::{Value, json};

use super::checkpoint;
use super::progress::Progress;
use super::snapshot::retry_while_busy;
use crate::admin::client::{AdminClient, CommandError, RequestBody, ResponseLine};

/// How often what was refused is tried again, at most: replies to replies to replies.
const MAX_PASSES: u64 = 8;

/// Bytes that are kept to be tried again.
const MAX_RETRY_BYTES: u64 = 4 << 30;

/// Refusals that are about room here, which the operator can make, and not about the event.
const TEMPORARY_REASONS: [&str; 4] =
    ["no_new_repositories", "too_many_repositories", "too_much_held", "purgatory_full"];

/// What became of events.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ImportCounts {
    pub(crate) accepted: u64,
    pub(crate) held: u64,
    pub(crate) known: u64,
    pub(crate) rejected: BTreeMap<String, u64>,
    /// Refused for want of something, in the last pass.
    pub(crate) retryable: BTreeMap<String, u64>,
}

/// An import of a file.
pub(crate) struct EventImport<'i> {
    client: &'i AdminClient,
    /// The file.
    path: &'i Path,
    /// What tells it from others.
    fingerprint: Value,
    /// Whether protected events are taken.
    protected: bool,
    checkpoint_path: PathBuf,
    /// The pass: the file itself is the first.
    pass: u64,
    /// What earlier passes came to.
    before: ImportCounts,
    /// What this one came to, up to where it was begun anew.
    resumed: ImportCounts,
    /// Bytes of this pass's input that are done.
    offset: u64,
    /// Bytes that are kept for the next pass.
    retry_bytes: u64,
}

impl ImportCounts {
    fn from_json(value: &Value) -> Self {
        let list = |name: &str| {
            let pairs = value[name].as_object().into_iter().flatten();
            pairs.map(|(why, count)| (why.clone(), count.as_u64().unwrap_or(0))).collect()
        };
        let number = |name: &str| value[name].as_u64().unwrap_or(0);
        Self {
            accepted: number("accepted"),
            held: number("held"),
            known: number("known"),
            rejected: list("refused"),
            retryable: list("wanting"),
        }
    }

    /// For programs, and for the note.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "accepted": self.accepted,
            "held": self.held,
            "known": self.known,
            "refused": self.rejected,
            "wanting": self.retryable,
        })
    }

    /// Both together.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.accepted += other.accepted;
        sum.held += other.held;
        sum.known += other.known;
        for (why, count) in &other.rejected {
            *sum.rejected.entry(why.clone()).or_default() += count;
        }
        for (why, count) in &other.retryable {
            *sum.retryable.entry(why.clone()).or_default() += count;
        }
        sum
    }

    /// Why events were refused that may be taken later as they are.
    pub(crate) fn temporary_rejections(&self) -> impl Iterator<Item = &str> {
        self.rejected
            .keys()
            .chain(self.retryable.keys())
            .map(String::as_str)
            .filter(|why| TEMPORARY_REASONS.contains(why))
    }

    /// How many events were judged.
    pub(crate) fn total(&self) -> u64 {
        let sum = |list: &BTreeMap<String, u64>| list.values().sum::<u64>();
        self.accepted + self.held + self.known + sum(&self.rejected) + sum(&self.retryable)
    }
}

impl<'i> EventImport<'i> {
    /// Begins, or goes on where it was interrupted.
    pub(crate) fn open(client: &'i AdminClient, path: &'i Path, protected: bool) -> Result<Self> {
        let checkpoint_path = checkpoint::sibling_path(path, ".graspd-import");
        let fingerprint =
            checkpoint::fingerprint(path, u64::MAX).with_context(|| format!("cannot read {}", path.display()))?;
        // What was appended is read only by who still reads the file itself.
        let can_resume = |saved: &Value| {
            checkpoint::matches_file(saved, path) && (saved["pass"] == 0 || saved["file"] == fingerprint)
        };
        let saved = checkpoint::read(&checkpoint_path)?.filter(can_resume).unwrap_or_default();
        let number = |name: &str| saved[name].as_u64().unwrap_or(0);
        let (pass, offset, retry_bytes) = (number("pass"), number("offset"), number("kept"));
        let (before, resumed) = (ImportCounts::from_json(&saved["before"]), ImportCounts::from_json(&saved["so_far"]));
        Ok(Self { client, path, fingerprint, protected, checkpoint_path, pass, before, resumed, offset, retry_bytes })
    }

    /// Whether it goes on.
    pub(crate) fn is_resumed(&self) -> bool {
        self.pass > 0 || self.offset > 0
    }

    /// Brings everything in.
    pub(crate) fn run(mut self, progress: &mut Option<Progress>) -> Result<ImportCounts, CommandError> {
        loop {
            let counts = self.run_pass(progress)?;
            let made_progress = self.pass == 0 || counts.accepted + counts.held > 0;
            if self.retry_bytes == 0 || !made_progress || self.pass + 1 >= MAX_PASSES {
                // The note goes first: it speaks of the others.
                checkpoint::remove(&self.checkpoint_path)?;
                crash_point::point("import.forgotten");
                for pass in 1..=MAX_PASSES {
                    checkpoint::remove(&self.input_path(pass))?;
                }
                return Ok(self.before.plus(&counts));
            }
            // What is tried again is counted then.
            self.before = self.before.plus(&ImportCounts { retryable: BTreeMap::new(), ..counts });
            self.resumed = ImportCounts::default();
            (self.pass, self.offset, self.retry_bytes) = (self.pass + 1, 0, 0);
            self.save_checkpoint()?;
        }
    }

    /// What a pass reads.
    fn input_path(&self, pass: u64) -> PathBuf {
        if pass == 0 {
            self.path.to_owned()
        } else {
            checkpoint::sibling_path(self.path, &format!(".graspd-again-{pass}"))
        }
    }

    fn run_pass(&mut self, progress: &mut Option<Progress>) -> Result<ImportCounts, CommandError> {
        let mut retry_file = self.open_retry_file()?;
        let (resumed, start_offset) = (self.resumed.clone(), self.offset);
        let mut counts = resumed.clone();
        let query = format!("protected={}", self.protected);
        let client = self.client;
        retry_while_busy(|| {
            let (input, size) = self.input()?;
            client.call("import", RequestBody::Stream(query.clone(), Box::new(input)), &mut |line| {
                let ResponseLine::Item(item) = line else { return Ok(()) };
                if let Some(text) = item["again"].as_str() {
                    if self.retry_bytes + (text.len() as u64) < MAX_RETRY_BYTES {
                        writeln!(retry_file, "{text}")
                            .map_err(|problem| CommandError::Failed(format!("cannot write: {problem}")))?;
                        self.retry_bytes += text.len() as u64 + 1;
                    }
                    return Ok(());
                }
                counts = resumed.plus(&ImportCounts::from_json(&item));
                self.offset = start_offset + item["done"].as_u64().unwrap_or(0);
                self.resumed.clone_from(&counts);
                let saved = retry_file.sync_all().map_err(anyhow::Error::from).and_then(|()| self.save_checkpoint());
                saved?;
                crash_point::point("import.noted");
                let what = format!("{} of events", if self.pass == 0 { "bytes" } else { "bytes, once more," });
                if let Some(progress) = progress {
                    progress.show(&what, self.offset, Some(size));
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
            "{} is shorter than what was read of it: remove {} to begin anew",
            path.display(),
            self.checkpoint_path.display()
        );
        file.seek(SeekFrom::Start(self.offset))?;
        Ok((file, size))
    }

    /// The file for what is to be tried again, as long as it was noted to be.
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
            "before": self.before.to_json(),
            "so_far": self.resumed.to_json(),
            "file": self.fingerprint,
        });
        checkpoint::write(&self.checkpoint_path, &value)
    }
}
