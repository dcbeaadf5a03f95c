//! Keeps pools in good order: few packs, an index over all of them with bitmaps, a commit-graph, and nothing that nobody
//! needs.
//!
//! | file | what |
//! |---|---|
//! | `survey` | what a pool has, and what should be done about it |
//! | `workshop` | a folder aside in which git works |
//! | `fold` | makes few packs of many |
//! | `index` | one index over all packs, bitmaps, the commit-graph |
//! | `need` | who reads a pool, and what they need |
//! | `prune` | takes away what nobody needs |
//! | `swap` | the last step: files change places |
//!
//! # Nobody waits, and nothing breaks
//!
//! No git child writes to a pool. A child works in a `workshop`: a folder under `incoming/` that has links to the pool's
//! packs as they were. What it made is synced there, and then a `swap` moves it into the pool and removes what it stands
//! for: a few renames, in the same turn in which an order would work on repositories of that name, so that the two never
//! meet. Fetches meet it, as they would meet any repack: git opens packs before it relies on them, and looks again when
//! one is gone.
//!
//! A *fold* takes no object away. The new pack has all objects of the packs that it stands for, which it can see by their
//! links; packs that come meanwhile are not touched.
//!
//! A *prune* takes an object away when all of this is true: no ref of any site that reads the pool leads to it; no state
//! or pull request, served or held, that speaks for such a site leads to it; and both were already so a grace period
//! before. What is found to be unneeded moves into a pack of its own, git's *cruft pack*, and the age of that pack is how
//! long it has been so. (Git counts from when an object came. An old branch that was replaced a minute ago would go at
//! once.)
//!
//! Between the walk that finds out and the swap, orders go on. They may take up again what is about to go: a state that
//! names an old commit is complete while the commit is there. So in its turn, with all orders of that name shut out, the
//! prune asks once more what is needed and walks over what is new in that; if it comes by anything that would go, all
//! stays as it is until another day. A push whose objects were checked before the swap and which has its turn afterwards
//! is checked again, because [`Layout::note_pruning`] was called in the turn of the swap, behind its last removal.
//!
//! A commit-graph names commits that git then takes for present without a look. So it names only commits whose objects are
//! in the same pool, and a prune replaces it before it takes anything away.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::repo::RepoPath;

use crate::layout::Layout;
use crate::process::{ChildProblem, Git};

mod index;
mod inspection;
mod needed_objects;
mod prune;
mod repack;
mod scratch_dir;
mod swap;

pub use needed_objects::Needs;

/// How long something is unneeded before it goes: longer than any event waits for its data, and than any client takes
/// between reading refs and asking for what they led to. Whoever replaced a branch by mistake has that time too.
pub const GRACE: Duration = Duration::from_secs(24 * 3_600);

/// How long after a look for unneeded objects the next one comes, if there was a change at all: a look walks over all of
/// history.
pub const PAUSE: Duration = Duration::from_secs(24 * 3_600);

/// How long the last step waits for an order of that name: most take milliseconds. If it waits in vain, its work is lost.
const TURN: Duration = Duration::from_secs(60);

/// What a child may say that is not read line by line: the name of a pack.
const MAX_WORDS: usize = 4 * 1024;

/// Keeps pools in good order. One thread uses it.
#[derive(Clone, Debug)]
pub struct Maintainer {
    git: Git,
    layout: Arc<Layout>,
    patience: Duration,
}

/// Why a pool stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The disk does not do what it should.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        source: io::Error,
    },
    /// A git child failed.
    #[error("cannot {doing}: {source}")]
    Git {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        source: ChildProblem,
    },
}

/// What came of maintenance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tidied {
    /// There was nothing to do.
    Fine,
    /// Something was done.
    Done,
    /// Something came between; it should be tried again later.
    Later,
}

/// Says what was being done when something went wrong.
trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, Problem>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, Problem> {
        self.map_err(|source| Problem::Disk { doing, source })
    }
}

impl<T> Doing<T> for Result<T, ChildProblem> {
    fn doing(self, doing: &'static str) -> Result<T, Problem> {
        self.map_err(|source| Problem::Git { doing, source })
    }
}

impl Maintainer {
    /// Somebody who keeps the pools of a git folder in good order. No git child takes longer than the patience.
    #[must_use]
    pub fn new(git: &Git, layout: Arc<Layout>, patience: Duration) -> Self {
        Self { git: git.clone(), layout, patience }
    }

    /// Whether a site has a pool to look after.
    fn has_pool(&self, repo_path: &RepoPath) -> bool {
        self.layout.pool(repo_path).join("pack").is_dir()
    }
}
