//! Writes served events to a file, one per line, in the order in which they came.
//!
//! A note beside the file says up to which sequence number it has all of them and how long it was then. So an export that
//! was interrupted goes on, and one that was complete goes on with what came since.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::checkpoint;
use crate::cli::call::{Body, Line};
use crate::cli::progress::Progress;
use crate::cli::{Context, Failure};

/// How often it is noted how far it is.
const NOTE: Duration = Duration::from_secs(2);

/// Where events go.
pub(crate) struct Output {
    out: Box<dyn Write>,
    /// The file, where it is, and the note beside it; nothing for standard output.
    kept: Option<(File, PathBuf, PathBuf)>,
    /// What is asked for: an export that goes on must ask for the same.
    wanted: Value,
    /// The store that the sequence numbers are of, once it is known.
    store: Option<String>,
    /// Everything up to this sequence number is written...
    seq: u64,
    /// ...in so many bytes.
    bytes: u64,
    noted: Instant,
}

impl Output {
    /// Standard output.
    pub(crate) fn standard(wanted: Value, after: u64) -> Self {
        let out = Box::new(BufWriter::new(std::io::stdout()));
        Self { out, kept: None, wanted, store: None, seq: after, bytes: 0, noted: Instant::now() }
    }

    /// A file: a new one, or one that goes on.
    pub(crate) fn file(path: &Path, wanted: Value, resume: bool) -> Result<Self> {
        let beside = checkpoint::beside(path, ".graspd-progress");
        let noted = if resume { checkpoint::read(&beside)? } else { None };
        let (seq, bytes) = match &noted {
            Some(noted) => {
                if noted["wanted"] != wanted {
                    bail!("{} was begun with other conditions: {}", path.display(), noted["wanted"]);
                }
                if !checkpoint::is_of(noted, path) {
                    bail!("{} is another file than {} speaks of: begin anew", path.display(), beside.display());
                }
                (noted["seq"].as_u64().unwrap_or(0), noted["bytes"].as_u64().unwrap_or(0))
            }
            None if resume && path.exists() => bail!("{} is not there: nothing says how far it is", beside.display()),
            None => (0, 0),
        };
        let open = if noted.is_some() {
            OpenOptions::new().write(true).open(path)
        } else {
            OpenOptions::new().write(true).create_new(true).open(path)
        };
        let mut file = open.with_context(|| format!("cannot make {} (see --resume)", path.display()))?;
        // A line that was written in part, and what is written anew, go.
        file.set_len(bytes)?;
        file.seek(SeekFrom::End(0))?;
        let out = Box::new(BufWriter::new(file.try_clone()?));
        let store = noted.and_then(|noted| Some(noted["store"].as_str()?.to_owned()));
        Ok(Self { out, kept: Some((file, path.to_owned(), beside)), wanted, store, seq, bytes, noted: Instant::now() })
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.write_all(b"\n"));
        written.map_err(|problem| match problem.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Unread,
            _ => Failure::Failed(format!("cannot write: {problem}")),
        })
    }

    /// An event with its sequence number. Held events have none, and are written anew each time.
    fn take(&mut self, item: &Value) -> Result<(), Failure> {
        if let Some(store) = item["store"].as_str() {
            self.store = Some(store.to_owned());
            return Ok(());
        }
        let text = item["event"].as_str().unwrap_or_default();
        self.write(text)?;
        if let Some(seq) = item["seq"].as_u64() {
            self.seq = seq;
            self.bytes += text.len() as u64 + 1;
            if self.noted.elapsed() >= NOTE {
                self.note().map_err(super::snapshot::failed)?;
            }
        }
        Ok(())
    }

    fn note(&mut self) -> Result<()> {
        self.out.flush()?;
        if let Some((file, path, beside)) = &self.kept {
            file.sync_all()?;
            let (seq, bytes) = (self.seq, self.bytes);
            let file = checkpoint::mark(path, bytes)?;
            let value = json!({ "seq": seq, "bytes": bytes, "wanted": self.wanted, "store": self.store, "file": file });
            checkpoint::write(beside, &value)?;
        }
        self.noted = Instant::now();
        Ok(())
    }

    /// Asks the server for everything that is missing. Gives how many events were written.
    pub(crate) fn fill(mut self, context: &Context<'_>) -> Result<Value, Failure> {
        let mut arguments = self.wanted.clone();
        arguments["after"] = json!(self.seq);
        arguments["store"] = json!(self.store);
        let mut progress = Progress::new();
        let done = context.call("export", Body::Arguments(arguments), &mut |line| match line {
            Line::Progress { what, done, total } => {
                progress.show(&what, done, total);
                Ok(())
            }
            Line::Item(item) => self.take(&item),
        });
        drop(progress);
        let done = match done {
            Ok(done) => done,
            Err(failure) => {
                // What has come is good, and the note says how far it goes.
                let _ = self.note();
                return Err(failure);
            }
        };
        self.seq = done["last_seq"].as_u64().unwrap_or(self.seq);
        self.note().map_err(super::snapshot::failed)?;
        Ok(json!({ "events": done["events"], "last_seq": self.seq }))
    }
}
