//! Copies objects from some pools to another.

use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::PathBuf;

use super::GitJobRunner;
use super::adopt_packs::move_packs;
use super::connectivity::GitEnvironment;
use crate::action_error::{ActionContext, ActionError};
use crate::objects::ObjectLookup;
use crate::process::{GitError, ProcessInput};

/// Bytes kept of an object's line: its id, and enough of its path to find a delta base. Git reads a few thousand.
const MAX_LINE: usize = 1_024;

/// Largest output of `pack-objects`: the name of the pack.
const MAX_OUTPUT: usize = 4 * 1024;

/// Which objects to copy.
#[derive(Debug)]
pub(super) struct CopyRequest<'a> {
    /// Objects that are copied with everything that they refer to...
    pub(super) tips: &'a [&'a str],
    /// ...except what these refer to, which is known to be in the kept pools.
    pub(super) known: &'a [&'a str],
    /// The pools that have the objects, in addition to the kept pools.
    pub(super) from: &'a [PathBuf],
    /// Pools whose objects are not copied. Missing objects are copied into the first.
    pub(super) kept: &'a [PathBuf],
}

impl GitJobRunner {
    /// Copies the objects that the kept pools do not have, durably.
    pub(super) fn copy_objects(&self, request: &CopyRequest<'_>) -> Result<(), ActionError> {
        let Some(into) = request.kept.first().filter(|_| !request.tips.is_empty()) else { return Ok(()) };
        let pools = [request.kept, request.from].concat();
        let environment = GitEnvironment::for_pools(&self.layout, &pools).context("create a scratch folder")?;
        let Some(scratch) = environment.scratch() else { return Ok(()) };
        let path = scratch.join("list");
        let list =
            File::options().read(true).write(true).create_new(true).open(path).context("create a scratch folder")?;
        let Some(list) = self.list_missing(request, &environment, list)? else { return Ok(()) };
        let base = scratch.join("pack/pack");
        // One thread: copies are not urgent, and each thread needs its own memory to search for deltas.
        let arguments = ["pack-objects", "--quiet", "--delta-base-offset", "--threads=1", "--window-memory=64m"];
        let mut command = environment.command(self, &arguments);
        command.arg(base);
        let git = self.git.clone().with_file_bytes(self.max_copy_bytes);
        git.run(&mut command, ProcessInput::File(list), self.timeout, MAX_OUTPUT).context("copy objects")?;
        move_packs(&[scratch.to_owned()], into).context("move copied objects into the pool")
    }

    /// Writes a list of the objects to copy; `None` if there are none.
    fn list_missing(
        &self,
        request: &CopyRequest<'_>,
        environment: &GitEnvironment,
        list: File,
    ) -> Result<Option<File>, ActionError> {
        let kept = ObjectLookup::open(request.kept).context("read a pool")?;
        let mut input: String = request.tips.iter().map(|tip| format!("{tip}\n")).collect();
        input.extend(request.known.iter().map(|known| format!("^{known}\n")));
        let mut filter = MissingObjectFilter { kept, list: BufWriter::new(list), line: Vec::new(), has_objects: false };
        let mut command = environment.command(self, &["rev-list", "--objects", "--stdin"]);
        self.git
            .stream(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, |bytes| filter.read(bytes))
            .context("list objects to copy")?;
        let MissingObjectFilter { list, has_objects, .. } = filter;
        let mut list = list.into_inner().map_err(|error| error.into_error()).context("list objects to copy")?;
        list.rewind().context("list objects to copy")?;
        Ok(has_objects.then_some(list))
    }
}

/// Writes those lines of `rev-list` to a file whose object is not in the kept pools.
struct MissingObjectFilter {
    kept: ObjectLookup,
    list: BufWriter<File>,
    /// The beginning of a line that is not complete yet.
    line: Vec<u8>,
    has_objects: bool,
}

impl MissingObjectFilter {
    fn read(&mut self, bytes: &[u8]) -> Result<(), GitError> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_complete) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            let capacity = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(capacity)]);
            if is_complete {
                self.filter_line()?;
                self.line.clear();
            }
        }
        Ok(())
    }

    fn filter_line(&mut self) -> Result<(), GitError> {
        let oid = self.line.split(|byte| *byte == b' ').next().and_then(|oid| std::str::from_utf8(oid).ok());
        if let Some(oid) = oid.filter(|oid| !oid.is_empty())
            && !self.kept.has(oid)?
        {
            self.has_objects = true;
            self.list.write_all(&self.line)?;
            self.list.write_all(b"\n")?;
        }
        Ok(())
    }
}
