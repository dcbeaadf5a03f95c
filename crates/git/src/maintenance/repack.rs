//! Makes few packs of many. Every object that was there is there afterwards.

use grasp_core::repo::RepoPath;

use super::index::{Fate, Indexes, Tips};
use super::inspection::{Pack, Survey};
use super::scratch_dir::Workshop;
use super::swap::Swap;
use super::{Doing, Maintainer, Problem, TURN, Tidied};
use crate::process::Input;

impl Maintainer {
    /// Whether a pool has too many packs or its index misses too much. A look at file names and a few bytes.
    #[must_use]
    pub fn is_fold_due(&self, repo_path: &RepoPath) -> bool {
        Survey::of(&self.layout.pool(repo_path).join("pack")).is_ok_and(|survey| {
            let folded = survey.foldable();
            !folded.is_empty() || survey.index_is_due(&folded)
        })
    }

    /// Makes one pack of the small ones of a pool, if it has many, and an index over all if that is worth it.
    pub fn fold(&self, repo_path: &RepoPath) -> Result<Tidied, Problem> {
        if !self.has_pool(repo_path) {
            return Ok(Tidied::Fine);
        }
        let (folder, pool) = (self.layout.repo_dir(repo_path), self.layout.pool(repo_path));
        let survey = Survey::of(&pool.join("pack")).doing("read a pool")?;
        let going = survey.foldable();
        let indexes = survey.index_is_due(&going);
        if going.is_empty() && !indexes {
            return Ok(Tidied::Fine);
        }
        let packs: Vec<Pack> = survey.normal().cloned().collect();
        let workshop = Workshop::with(&self.layout, &pool, &packs).doing("make room for packs")?;
        let mut swap = Swap { made: self.merge(&workshop, &going)?, going, ..Swap::default() };
        if indexes {
            workshop.link_index(&pool).doing("make room for packs")?;
            let tips = Tips::of(&folder, None)?;
            let midx = self.make_midx(&workshop, &swap.staying(&packs), &tips)?;
            // What the old one names is there still.
            let graph = Some(self.make_graph(&workshop, &tips)?).filter(|graph| *graph != Fate::Gone);
            swap.indexes = Indexes { midx, graph: graph.unwrap_or(Fate::Stay) };
        } else if survey.index_breaks(&swap.going) {
            swap.indexes.midx = Fate::Gone;
        }
        swap.sync(&workshop).doing("write packs to the disk")?;
        let Some(_turn) = self.layout.turns.wait_within(repo_path.identifier(), TURN) else { return Ok(Tidied::Later) };
        if !swap.fits(&pool, &packs) {
            return Ok(Tidied::Later);
        }
        swap.carry_out(&workshop, &pool).doing("put packs in their place")?;
        Ok(Tidied::Done)
    }

    /// Makes one pack of some.
    fn merge(&self, workshop: &Workshop, packs: &[Pack]) -> Result<Vec<Pack>, Problem> {
        if packs.is_empty() {
            return Ok(Vec::new());
        }
        let input: String = packs.iter().map(|pack| format!("{}.pack\n", pack.name)).collect();
        workshop.pack(self, &["--stdin-packs"], Input::Bytes(input.as_bytes()))
    }
}

impl Swap {
    /// The packs of needed objects that there are afterwards.
    pub(super) fn staying<'s>(&'s self, packs: &'s [Pack]) -> Vec<&'s Pack> {
        let goes = |pack: &&Pack| self.going.iter().any(|going| going.name == pack.name);
        let made = self.made.iter().filter(|pack| !pack.cruft);
        let kept = packs.iter().filter(|pack| !pack.cruft && !self.made.iter().any(|made| made.name == pack.name));
        kept.filter(|pack| !goes(pack)).chain(made).collect()
    }
}
