//! Exports served events to a file, one per line, in the order of their arrival.
//!
//! A checkpoint next to the file records the last sequence number in it and its length. So an interrupted export can be
//! continued, and a complete one can be extended by new events.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::checkpoint;
use super::progress::Progress;
use super::snapshot::open_stopped_store;
use crate::admin::api::{EXPORT, ExportFilter, ExportItem, ExportRequest, ExportResult, JobProgress};
use crate::admin::client::{AdminClient, CommandError, ResponseLine};
use crate::admin::export::export_from;
use crate::config::Config;

/// Interval between two checkpoints.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(2);

/// An export of events to a file or to standard output, with its progress.
pub(crate) struct EventExport {
    out: Box<dyn Write>,
    /// The file, its path, and the path of its checkpoint; `None` for standard output.
    file: Option<(File, PathBuf, PathBuf)>,
    /// Which events are exported. An export can be continued only with the same filter.
    filter: ExportFilter,
    /// Id of the store that the sequence numbers belong to, once it is known.
    store: Option<String>,
    /// All events up to this sequence number are written.
    seq: u64,
    /// Length of the file up to that event.
    bytes: u64,
    saved_at: Instant,
}

impl EventExport {
    /// Returns an export to standard output.
    pub(crate) fn to_stdout(filter: ExportFilter, after: u64) -> Self {
        let out = Box::new(BufWriter::new(std::io::stdout()));
        Self { out, file: None, filter, store: None, seq: after, bytes: 0, saved_at: Instant::now() }
    }

    /// Returns an export to a file: to a new one, or continued.
    pub(crate) fn to_file(path: &Path, filter: ExportFilter, resume: bool) -> Result<Self> {
        let checkpoint_path = checkpoint::sibling_path(path, ".graspd-progress");
        let saved = if resume { checkpoint::read(&checkpoint_path)? } else { None };
        let (seq, bytes) = match &saved {
            Some(saved) => {
                if saved["wanted"] != json!(filter) {
                    bail!("{} was started with other options: {}", path.display(), saved["wanted"]);
                }
                if !checkpoint::matches_file(saved, path) {
                    bail!(
                        "{} is not the file that {} was written for: start a new export",
                        path.display(),
                        checkpoint_path.display()
                    );
                }
                (saved["seq"].as_u64().unwrap_or(0), saved["bytes"].as_u64().unwrap_or(0))
            }
            None if resume && path.exists() => {
                bail!("{} does not exist, so the export cannot be continued", checkpoint_path.display())
            }
            None => (0, 0),
        };
        let open = if saved.is_some() {
            OpenOptions::new().write(true).open(path)
        } else {
            OpenOptions::new().write(true).create_new(true).open(path)
        };
        let mut file = open.with_context(|| format!("cannot create {} (see --resume)", path.display()))?;
        // Removes an incomplete line, and the held events at the end, which are written again.
        file.set_len(bytes)?;
        file.seek(SeekFrom::End(0))?;
        let out = Box::new(BufWriter::new(file.try_clone()?));
        let store = saved.and_then(|saved| Some(saved["store"].as_str()?.to_owned()));
        Ok(Self {
            out,
            file: Some((file, path.to_owned(), checkpoint_path)),
            filter,
            store,
            seq,
            bytes,
            saved_at: Instant::now(),
        })
    }

    fn write(&mut self, text: &str) -> Result<(), CommandError> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.write_all(b"\n"));
        written.map_err(|problem| match problem.kind() {
            std::io::ErrorKind::BrokenPipe => CommandError::OutputClosed,
            _ => CommandError::Failed(format!("cannot write the export: {problem}")),
        })
    }

    /// Writes an event with its sequence number. Held events have none, and are written again each time.
    fn write_item(&mut self, item: ExportItem) -> Result<(), CommandError> {
        match item {
            ExportItem::Store { store } => self.store = Some(store),
            ExportItem::Held { event } => self.write(&event)?,
            ExportItem::Served { event, seq } => {
                self.write(&event)?;
                self.seq = seq;
                self.bytes += event.len() as u64 + 1;
                if self.saved_at.elapsed() >= CHECKPOINT_INTERVAL {
                    self.save_checkpoint()?;
                }
            }
        }
        Ok(())
    }

    fn save_checkpoint(&mut self) -> Result<()> {
        self.out.flush()?;
        if let Some((file, path, checkpoint_path)) = &self.file {
            file.sync_all()?;
            let (seq, bytes) = (self.seq, self.bytes);
            let file = checkpoint::fingerprint(path, bytes)?;
            let value = json!({ "seq": seq, "bytes": bytes, "wanted": self.filter, "store": self.store, "file": file });
            checkpoint::write(checkpoint_path, &value)?;
        }
        self.saved_at = Instant::now();
        Ok(())
    }

    /// Requests the missing events from the server, or reads them from its store if it does not run, and writes them.
    /// Returns their number and the last sequence number. `settings` are needed only for a server that does not run.
    pub(crate) fn run(
        mut self,
        client: &AdminClient,
        settings: impl FnOnce() -> Result<Config, CommandError>,
    ) -> Result<ExportResult, CommandError> {
        let request = ExportRequest { filter: self.filter.clone(), after: self.seq, store: self.store.clone() };
        let mut progress = Progress::new();
        let mut on_line = |line: ResponseLine<ExportItem>| match line {
            ResponseLine::Progress(JobProgress { what, done, total }) => {
                progress.show(&what, done, total);
                Ok(())
            }
            ResponseLine::Item(item) => self.write_item(item),
        };
        let done = match client.call(EXPORT, &request, &mut on_line) {
            Err(CommandError::NotRunning { tried }) => {
                let why = format!("no server is running at {tried}");
                let stopped = settings().and_then(|config| Ok(open_stopped_store(&config, &why)?));
                stopped.and_then(|(_locks, store)| export_from(&store, request, &mut on_line))
            }
            done => done,
        };
        drop(progress);
        match &done {
            Ok(done) => {
                self.seq = done.last_seq;
                self.save_checkpoint()?;
            }
            // What was written so far is valid, and the checkpoint records it.
            Err(_) => _ = self.save_checkpoint(),
        }
        done
    }
}
