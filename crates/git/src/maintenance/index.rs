//! One index over all packs of a pool, bitmaps that say what commits need, and the commit-graph.
//!
//! A clone of a pool with bitmaps is not counted object by object, and a commit-graph spares git to read commits. Both
//! are about what is in the pool itself. The history of a site that borrows may leave its pool; such a pool has neither,
//! and git uses those of the lenders.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::inspection::{MIDX, Pack};
use super::scratch_dir::Workshop;
use super::{Doing, MAX_WORDS, Maintainer, Problem};
use crate::process::{ChildProblem, Input};
use crate::refs::Refs;

/// What was made in a workshop.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Indexes {
    pub(super) midx: Fate,
    pub(super) graph: Fate,
}

/// What the refs of a site lead to, a line each. Tags are followed to what they are tags of.
#[derive(Debug)]
pub(super) struct Tips(String);

/// What becomes of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Fate {
    /// It stays as it is.
    #[default]
    Stay,
    /// It is replaced by this one. Files beside it that belong to it come first.
    Replaced(PathBuf, Vec<PathBuf>),
    /// It goes.
    Gone,
}

impl Maintainer {
    /// Makes the index over some packs, with bitmaps if the pool has everything that the tips need.
    pub(super) fn make_midx(&self, workshop: &Workshop, packs: &[&Pack], tips: &Tips) -> Result<Fate, Problem> {
        let Some(largest) = packs.iter().max_by_key(|pack| pack.objects) else { return Ok(Fate::Gone) };
        let list = workshop.lists.join("tips");
        fs::write(&list, &tips.0).doing("list refs")?;
        let input: String = packs.iter().map(|pack| format!("{}.idx\n", pack.name)).collect();
        let write = |bitmaps: bool| {
            let mut command = workshop.command(self);
            command.args(["multi-pack-index", "write", "--no-progress", "--stdin-packs"]);
            command.arg(format!("--preferred-pack={}.pack", largest.name));
            if bitmaps {
                command.arg("--bitmap").arg(format!("--refs-snapshot={}", list.display()));
            }
            self.gentle().run(&mut command, Input::Bytes(input.as_bytes()), self.patience, MAX_WORDS)
        };
        match write(true) {
            Ok(_) => {}
            // Something that is needed is in another pool, or there is too much of it for the memory that a child has.
            Err(ChildProblem::Failed { .. }) => drop(write(false).doing("index packs")?),
            Err(problem) => return Err(problem).doing("index packs"),
        }
        let midx = workshop.packs().join(MIDX);
        let bitmaps = bitmaps_of(&midx).doing("read the index of packs")?;
        Ok(Fate::Replaced(midx, bitmaps.into_iter().collect()))
    }

    /// Makes the commit-graph, if the pool has all commits that the tips lead to.
    pub(super) fn make_graph(&self, workshop: &Workshop, tips: &Tips) -> Result<Fate, Problem> {
        let mut command = workshop.command(self);
        command.args(["commit-graph", "write", "--stdin-commits", "--no-progress"]);
        match self.gentle().run(&mut command, Input::Bytes(tips.0.as_bytes()), self.patience, MAX_WORDS) {
            Err(ChildProblem::Failed { .. }) => return Ok(Fate::Gone),
            result => drop(result.doing("write a commit-graph")?),
        }
        let graph = workshop.objects().join("info/commit-graph");
        // Without a commit none is written.
        Ok(if graph.exists() { Fate::Replaced(graph, Vec::new()) } else { Fate::Gone })
    }
}

/// The file of bitmaps that belongs to an index, if there is one: its name ends in the checksum that the index ends in.
pub(super) fn bitmaps_of(midx: &Path) -> std::io::Result<Option<PathBuf>> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::open(midx)?;
    let mut checksum = [0; 20];
    file.read_exact_at(&mut checksum, file.metadata()?.len().saturating_sub(20))?;
    let name = format!("{MIDX}-{}.bitmap", grasp_core::nostr::hex::encode(&checksum));
    Ok(Some(midx.with_file_name(name)).filter(|path| path.exists()))
}

impl Tips {
    /// What the refs of a site lead to; if `among` is given, only refs that point to one of those objects.
    pub(super) fn of(folder: &Path, among: Option<&BTreeSet<String>>) -> Result<Self, Problem> {
        let refs = Refs::read(folder).doing("read refs")?;
        let targets = refs.iter().map(|(_, target)| target);
        let targets = targets.filter(|target| among.is_none_or(|among| among.contains(&target.oid)));
        let tips: BTreeSet<&String> = targets.map(|target| target.peeled.as_ref().unwrap_or(&target.oid)).collect();
        Ok(Self(tips.into_iter().map(|tip| format!("{tip}\n")).collect()))
    }
}
