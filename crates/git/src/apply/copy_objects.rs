//! Copies objects from some pools to another.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::GitJobRunner;
use super::adopt_packs::move_packs;
use super::connectivity::GitEnvironment;
use crate::action_error::{ActionContext, ActionError};
use crate::object_list::{ObjectList, line_oid};
use crate::objects::ObjectLookup;
use crate::process::{ProcessInput, walk_input};

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
        let Some(list) = self.list_missing(request, &environment, &scratch.join("list"))? else { return Ok(()) };
        let base = scratch.join("pack/pack");
        // One thread: copies are not urgent, and each thread needs its own memory to search for deltas.
        let arguments = ["pack-objects", "--quiet", "--delta-base-offset", "--threads=1", "--window-memory=64m"];
        let mut command = environment.command(self, &arguments);
        command.arg(base);
        let git = self.git.clone().with_file_bytes((self.max_copy_bytes)());
        git.run(&mut command, ProcessInput::File(list), self.timeout, MAX_OUTPUT).context("copy objects")?;
        move_packs(&[scratch.to_owned()], into).context("move copied objects into the pool")
    }

    /// Writes a list of the objects to copy; `None` if there are none.
    fn list_missing(
        &self,
        request: &CopyRequest<'_>,
        environment: &GitEnvironment,
        path: &Path,
    ) -> Result<Option<File>, ActionError> {
        let kept = ObjectLookup::open(request.kept).context("read a pool")?;
        let input = walk_input(request.tips.iter(), request.known.iter());
        let mut list = ObjectList::create(path).context("create a scratch folder")?;
        let mut command = environment.command(self, &["rev-list", "--objects", "--stdin"]);
        self.git
            .stream_lines(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, |line| {
                match line_oid(line) {
                    Some(oid) if !kept.has(oid)? => list.add(line),
                    _ => Ok(()),
                }
            })
            .context("list objects to copy")?;
        if list.objects == 0 {
            return Ok(None);
        }
        list.into_file().map(Some).context("list objects to copy")
    }
}
