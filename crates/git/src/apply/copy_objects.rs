//! Takes objects over from some pools into another.

use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::PathBuf;

use super::adopt_packs::adopt;
use super::connectivity::View;
use super::{Doing, Keeper, Problem};
use crate::objects::Pools;
use crate::process::{ChildProblem, Input};

/// Bytes of an object's line that are kept: its id, and enough of its path to find what it is a delta of. Git takes a few
/// thousand.
const MAX_LINE: usize = 1_024;

/// What git says when a pack is done: its name.
const MAX_WORDS: usize = 4 * 1024;

/// What to copy.
#[derive(Debug)]
pub(super) struct Copying<'a> {
    /// The objects with everything that they need...
    pub(super) tips: &'a [&'a str],
    /// ...but for what these need, which is known to be in the kept pools.
    pub(super) known: &'a [&'a str],
    /// Where they are, beside the kept pools.
    pub(super) from: &'a [PathBuf],
    /// Pools that have what they have. What is missing goes into the first.
    pub(super) kept: &'a [PathBuf],
}

impl Keeper {
    /// Copies what the kept pools do not have, durably.
    pub(super) fn copy(&self, job: &Copying<'_>) -> Result<(), Problem> {
        let Some(into) = job.kept.first().filter(|_| !job.tips.is_empty()) else { return Ok(()) };
        let view = View::of_pools(&self.layout, &[job.kept, job.from].concat()).doing("make room for copies")?;
        let Some(scratch) = view.scratch() else { return Ok(()) };
        let path = scratch.join("list");
        let list = File::options().read(true).write(true).create_new(true).open(path).doing("make room for copies")?;
        let Some(list) = self.list(job, &view, list)? else { return Ok(()) };
        let base = scratch.join("pack/pack");
        // One thread: copying is nobody's first concern, and threads multiply the memory of the search for deltas.
        let arguments = ["pack-objects", "--quiet", "--delta-base-offset", "--threads=1", "--window-memory=64m"];
        let mut command = view.command(self, &arguments);
        command.arg(base);
        let git = self.git.clone().with_file_bytes(self.copy_bytes);
        git.run(&mut command, Input::File(list), self.patience, MAX_WORDS).doing("copy objects")?;
        adopt(&[scratch.to_owned()], into).doing("move copies into the pool")
    }

    /// Writes down which objects to copy; nothing if there are none.
    fn list(&self, job: &Copying<'_>, view: &View, list: File) -> Result<Option<File>, Problem> {
        let kept = Pools::open(job.kept).doing("read a pool")?;
        let mut input: String = job.tips.iter().map(|tip| format!("{tip}\n")).collect();
        input.extend(job.known.iter().map(|known| format!("^{known}\n")));
        let mut sieve = Sieve { kept, list: BufWriter::new(list), line: Vec::new(), any: false };
        let mut command = view.command(self, &["rev-list", "--objects", "--stdin"]);
        self.git
            .stream(&mut command, Input::Bytes(input.as_bytes()), self.patience, |bytes| sieve.take(bytes))
            .doing("list objects to copy")?;
        let Sieve { list, any, .. } = sieve;
        let mut list = list.into_inner().map_err(|problem| problem.into_error()).doing("list objects to copy")?;
        list.rewind().doing("list objects to copy")?;
        Ok(any.then_some(list))
    }
}

/// Lets lines through whose object is not in the kept pools.
struct Sieve {
    kept: Pools,
    list: BufWriter<File>,
    line: Vec<u8>,
    any: bool,
}

impl Sieve {
    fn take(&mut self, bytes: &[u8]) -> Result<(), ChildProblem> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ended {
                self.finish()?;
                self.line.clear();
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ChildProblem> {
        let oid = self.line.split(|byte| *byte == b' ').next().and_then(|oid| std::str::from_utf8(oid).ok());
        if let Some(oid) = oid.filter(|oid| !oid.is_empty())
            && !self.kept.has(oid)?
        {
            self.any = true;
            self.list.write_all(&self.line)?;
            self.list.write_all(b"\n")?;
        }
        Ok(())
    }
}
