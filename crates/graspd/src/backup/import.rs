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
use super::snapshot::{failed, patiently};
use crate::cli::call::{Body, Line};
use crate::cli::progress::Progress;
use crate::cli::{Context, Failure};

/// How often what was refused is tried again, at most: replies to replies to replies.
const MAX_PASSES: u64 = 8;

/// Bytes that are kept to be tried again.
const MAX_AGAIN: u64 = 4 << 30;

/// Refusals that are about room here, which the operator can make, and not about the event.
const FOR_NOW: [&str; 4] = ["no_new_repositories", "too_many_repositories", "too_much_held", "purgatory_full"];

/// What became of events.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) accepted: u64,
    pub(crate) held: u64,
    pub(crate) known: u64,
    pub(crate) refused: BTreeMap<String, u64>,
    /// Refused for want of something, in the last pass.
    pub(crate) wanting: BTreeMap<String, u64>,
}

/// An import of a file.
pub(crate) struct Import<'i> {
    context: &'i Context<'i>,
    /// The file.
    path: &'i Path,
    /// What tells it from others.
    mark: Value,
    /// Whether protected events are taken.
    protected: bool,
    note: PathBuf,
    /// The pass: the file itself is the first.
    pass: u64,
    /// What earlier passes came to.
    before: Tally,
    /// What this one came to, up to where it was begun anew.
    base: Tally,
    /// Bytes of this pass's input that are done.
    offset: u64,
    /// Bytes that are kept for the next pass.
    kept: u64,
}

impl Tally {
    fn read(value: &Value) -> Self {
        let list = |name: &str| {
            let pairs = value[name].as_object().into_iter().flatten();
            pairs.map(|(why, count)| (why.clone(), count.as_u64().unwrap_or(0))).collect()
        };
        let number = |name: &str| value[name].as_u64().unwrap_or(0);
        Self {
            accepted: number("accepted"),
            held: number("held"),
            known: number("known"),
            refused: list("refused"),
            wanting: list("wanting"),
        }
    }

    /// For programs, and for the note.
    pub(crate) fn value(&self) -> Value {
        json!({
            "accepted": self.accepted,
            "held": self.held,
            "known": self.known,
            "refused": self.refused,
            "wanting": self.wanting,
        })
    }

    /// Both together.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.accepted += other.accepted;
        sum.held += other.held;
        sum.known += other.known;
        for (why, count) in &other.refused {
            *sum.refused.entry(why.clone()).or_default() += count;
        }
        for (why, count) in &other.wanting {
            *sum.wanting.entry(why.clone()).or_default() += count;
        }
        sum
    }

    /// Why events were refused that may be taken later as they are.
    pub(crate) fn refused_for_now(&self) -> impl Iterator<Item = &str> {
        self.refused.keys().chain(self.wanting.keys()).map(String::as_str).filter(|why| FOR_NOW.contains(why))
    }

    /// How many events were judged.
    pub(crate) fn total(&self) -> u64 {
        let sum = |list: &BTreeMap<String, u64>| list.values().sum::<u64>();
        self.accepted + self.held + self.known + sum(&self.refused) + sum(&self.wanting)
    }
}

impl<'i> Import<'i> {
    /// Begins, or goes on where it was interrupted.
    pub(crate) fn of(context: &'i Context<'i>, path: &'i Path, protected: bool) -> Result<Self> {
        let note = checkpoint::beside(path, ".graspd-import");
        let mark = checkpoint::mark(path, u64::MAX).with_context(|| format!("cannot read {}", path.display()))?;
        // What was appended is read only by who still reads the file itself.
        let goes_on = |noted: &Value| checkpoint::is_of(noted, path) && (noted["pass"] == 0 || noted["file"] == mark);
        let noted = checkpoint::read(&note)?.filter(goes_on).unwrap_or_default();
        let number = |name: &str| noted[name].as_u64().unwrap_or(0);
        let (pass, offset, kept) = (number("pass"), number("offset"), number("kept"));
        let (before, base) = (Tally::read(&noted["before"]), Tally::read(&noted["so_far"]));
        Ok(Self { context, path, mark, protected, note, pass, before, base, offset, kept })
    }

    /// Whether it goes on.
    pub(crate) fn goes_on(&self) -> bool {
        self.pass > 0 || self.offset > 0
    }

    /// Brings everything in.
    pub(crate) fn run(mut self, progress: &mut Option<Progress>) -> Result<Tally, Failure> {
        loop {
            let tally = self.one_pass(progress)?;
            let helped = self.pass == 0 || tally.accepted + tally.held > 0;
            if self.kept == 0 || !helped || self.pass + 1 >= MAX_PASSES {
                // The note goes first: it speaks of the others.
                checkpoint::remove(&self.note).map_err(failed)?;
                crash_point::point("import.forgotten");
                for pass in 1..=MAX_PASSES {
                    checkpoint::remove(&self.again(pass)).map_err(failed)?;
                }
                return Ok(self.before.plus(&tally));
            }
            // What is tried again is counted then.
            self.before = self.before.plus(&Tally { wanting: BTreeMap::new(), ..tally });
            self.base = Tally::default();
            (self.pass, self.offset, self.kept) = (self.pass + 1, 0, 0);
            self.write_note().map_err(failed)?;
        }
    }

    /// What a pass reads.
    fn again(&self, pass: u64) -> PathBuf {
        if pass == 0 { self.path.to_owned() } else { checkpoint::beside(self.path, &format!(".graspd-again-{pass}")) }
    }

    fn one_pass(&mut self, progress: &mut Option<Progress>) -> Result<Tally, Failure> {
        let mut kept = self.keeping().map_err(failed)?;
        let (base, begun) = (self.base.clone(), self.offset);
        let mut tally = base.clone();
        let query = format!("protected={}", self.protected);
        let context = self.context;
        patiently(|| {
            let (input, size) = self.input().map_err(failed)?;
            context.call("import", Body::Stream(query.clone(), Box::new(input)), &mut |line| {
                let Line::Item(item) = line else { return Ok(()) };
                if let Some(text) = item["again"].as_str() {
                    if self.kept + (text.len() as u64) < MAX_AGAIN {
                        writeln!(kept, "{text}")
                            .map_err(|problem| Failure::Failed(format!("cannot write: {problem}")))?;
                        self.kept += text.len() as u64 + 1;
                    }
                    return Ok(());
                }
                tally = base.plus(&Tally::read(&item));
                self.offset = begun + item["done"].as_u64().unwrap_or(0);
                self.base.clone_from(&tally);
                let noted = kept.sync_all().map_err(anyhow::Error::from).and_then(|()| self.write_note());
                noted.map_err(failed)?;
                crash_point::point("import.noted");
                let what = format!("{} of events", if self.pass == 0 { "bytes" } else { "bytes, once more," });
                if let Some(progress) = progress {
                    progress.show(&what, self.offset, Some(size));
                }
                Ok(())
            })
        })?;
        Ok(tally)
    }

    fn input(&self) -> Result<(impl Read + Send + 'static, u64)> {
        let path = self.again(self.pass);
        let mut file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let size = file.metadata()?.len();
        ensure!(
            size >= self.offset,
            "{} is shorter than what was read of it: remove {} to begin anew",
            path.display(),
            self.note.display()
        );
        file.seek(SeekFrom::Start(self.offset))?;
        Ok((file, size))
    }

    /// The file for what is to be tried again, as long as it was noted to be.
    fn keeping(&self) -> Result<File> {
        let path = self.again(self.pass + 1);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        file.set_len(self.kept)?;
        file.seek(SeekFrom::End(0))?;
        Ok(file)
    }

    fn write_note(&self) -> Result<()> {
        let value = json!({
            "pass": self.pass,
            "offset": self.offset,
            "kept": self.kept,
            "before": self.before.value(),
            "so_far": self.base.value(),
            "file": self.mark,
        });
        checkpoint::write(&self.note, &value)
    }
}
