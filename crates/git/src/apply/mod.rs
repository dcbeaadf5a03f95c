//! Keeps the repositories on disk as the registrar orders them to be.
//!
//! | file | what |
//! |---|---|
//! | `align` | brings a site into line: the steps of an order, each durable before the next |
//! | `closure` | whether everything that a commit needs can be read |
//! | `copy` | takes objects over from one pool into another |
//! | `lenders` | which pools a site may read |
//! | `received_packs` | moves received packs into a pool, or aside |
//! | `retire` | removes a site |
//!
//! An order is carried out by one thread from beginning to end. What it asks for is a condition, so to carry it out again
//! changes nothing, whether the first time ended well or in the middle.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::git_job::{GitJob, GitJobOutcome, GitOperation};
use grasp_core::repo::RepoPath;

use crate::layout::Layout;
use crate::process::{ChildProblem, Git};
use crate::refs::Refs;

mod adopt_packs;
pub(crate) mod alternates;
mod connectivity;
mod copy_objects;
mod delete;
mod update;

/// Carries out orders.
#[derive(Clone, Debug)]
pub struct Keeper {
    git: Git,
    layout: Arc<Layout>,
    patience: Duration,
    /// Bytes that one copy from another site may take.
    copy_bytes: u64,
}

/// A carried out order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    /// What came of it.
    pub outcome: GitJobOutcome,
    /// The refs of every site whose refs on disk may be others than those that were shown, or that has a folder now; a
    /// site that is gone has none. They are to be shown to the world when the outcome has been written down. A failed
    /// order has some only if it failed in between.
    pub refs: Vec<(RepoPath, Refs)>,
}

/// Why an order could not be carried out.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("cannot {doing}: {source}")]
    Disk { doing: &'static str, source: io::Error },
    #[error("cannot {doing}: {source}")]
    Git { doing: &'static str, source: ChildProblem },
    #[error("the upload {0} is gone")]
    Lost(String),
    #[error("cannot find out what {0} is a tag of")]
    Tag(String),
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

impl Keeper {
    /// A keeper of a git folder. No git child that it starts takes longer than its patience.
    #[must_use]
    pub fn new(git: Git, layout: Arc<Layout>, patience: Duration) -> Self {
        Self { git, layout, patience, copy_bytes: u64::MAX }
    }

    /// The same, with a bound on what is copied from one site to another at once.
    #[must_use]
    pub fn copying_at_most(self, bytes: u64) -> Self {
        Self { copy_bytes: bytes, ..self }
    }

    /// Carries out an order. At most one order per repository name may be under way.
    #[must_use]
    pub fn carry_out(&self, order: &GitJob) -> Carried {
        // Somebody may be making a copy of everything. It is waited for before the turn, which that somebody needs, too.
        let _removal = matches!(order.operation, GitOperation::Delete { .. }).then(|| self.layout.removal());
        let _turn = self.layout.turns.wait(order.repo_path.identifier());
        let folder = self.layout.repo_dir(&order.repo_path);
        let is_new = !update::is_there(&folder);
        let mut refs = Vec::new();
        let result = match &order.operation {
            GitOperation::Align(align) => self.align(&order.repo_path, align, &mut refs).map(GitJobOutcome::Aligned),
            GitOperation::StageUploads(moves) => self.stage(moves).map(|()| GitJobOutcome::Staged),
            GitOperation::Delete { readers } => {
                self.retire(&order.repo_path, readers, &mut refs).map(|()| GitJobOutcome::Deleted)
            }
        };
        if is_new && refs.is_empty() && update::is_there(&folder) {
            // Whoever removes it must know of it.
            refs.extend(Refs::read(&folder).map(|read| (order.repo_path.clone(), read)));
        }
        let outcome = result.unwrap_or_else(|problem| GitJobOutcome::Failed(format!("{}: {problem}", order.repo_path)));
        Carried { outcome, refs }
    }
}
