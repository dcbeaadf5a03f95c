//! Copies objects from some pools to another, and finds the pools that have needed objects.

use std::io;
use std::path::PathBuf;

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
        let mut list = ObjectList::create(&scratch.join("list")).context("create a scratch folder")?;
        self.list_missing(request, &environment, |_, line| list.add(line))?;
        if list.objects == 0 {
            return Ok(());
        }
        let list = list.into_file().context("list objects to copy")?;
        let base = scratch.join("pack/pack");
        // One thread: copies are not urgent, and each thread needs its own memory to search for deltas.
        let arguments = ["pack-objects", "--quiet", "--delta-base-offset", "--threads=1", "--window-memory=64m"];
        let mut command = environment.command(self, &arguments);
        command.arg(base);
        let git = self.git.clone().with_file_bytes((self.max_copy_bytes)());
        git.run(&mut command, ProcessInput::File(list), self.timeout, MAX_OUTPUT).context("copy objects")?;
        move_packs(&[scratch.to_owned()], into).context("move copied objects into the pool")
    }

    /// Returns those pools from which objects would be copied.
    pub(super) fn needed_pools(&self, request: &CopyRequest<'_>) -> Result<Vec<PathBuf>, ActionError> {
        let pools = [request.kept, request.from].concat();
        let environment = GitEnvironment::for_pools(&self.layout, &pools).context("create a scratch folder")?;
        let open = |pool: &PathBuf| ObjectLookup::open(std::slice::from_ref(pool));
        let lookups: Vec<ObjectLookup> =
            request.from.iter().map(open).collect::<io::Result<_>>().context("read a pool")?;
        let mut is_needed = vec![false; request.from.len()];
        self.list_missing(request, &environment, |oid, _| {
            for (lookup, is_needed) in lookups.iter().zip(&mut is_needed) {
                if lookup.has(oid)? {
                    *is_needed = true;
                    break;
                }
            }
            Ok(())
        })?;
        Ok(request
            .from
            .iter()
            .zip(is_needed)
            .filter(|(_, is_needed)| *is_needed)
            .map(|(pool, _)| pool.clone())
            .collect())
    }

    /// Calls `on_object` with the id and the line of each needed object that the kept pools do not have.
    fn list_missing(
        &self,
        request: &CopyRequest<'_>,
        environment: &GitEnvironment,
        mut on_object: impl FnMut(&str, &[u8]) -> io::Result<()>,
    ) -> Result<(), ActionError> {
        if request.tips.is_empty() {
            return Ok(());
        }
        let kept = ObjectLookup::open(request.kept).context("read a pool")?;
        let input = walk_input(request.tips.iter(), request.known.iter());
        let mut command = environment.command(self, &["rev-list", "--objects", "--stdin"]);
        self.git
            .stream_lines(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, |line| {
                match line_oid(line) {
                    Some(oid) if !kept.has(oid)? => on_object(oid, line),
                    _ => Ok(()),
                }
            })
            .context("list missing objects")
    }
}
