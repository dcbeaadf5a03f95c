//! Git jobs: the work that [`Admission`](super::Admission) plans and the git workers carry out.
//!
//! A job adds objects to a repository, durably, and finds out which refs the repository should have. It changes no refs:
//! these are a row of the store, which [`Admission`](super::Admission) writes together with the events that belong to
//! them. A job describes the desired condition of a repository, not a change, so that it can be run again after a crash
//! (docs/design/admission.md#git-jobs-per-repository).

use std::sync::Arc;

use crate::nostr::event::EventId;
use crate::repo::{PackManifest, Refs, RepoPath};

/// Identifies a git job for the lifetime of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GitJobId(pub u64);

/// Work on one repository. At most one job runs at a time for all repositories with the same identifier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GitJob {
    /// Repeated in the result.
    pub id: GitJobId,
    /// The repository.
    pub repo_path: RepoPath,
    /// What to do.
    pub operation: GitOperation,
}

/// The operation of a git job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GitOperation {
    /// Brings objects and refs into line with the signed events.
    Align(Alignment),
    /// Moves uploads whose event is not known yet from `incoming/<from>` to `staged/<to>`, durably.
    StageUploads(Vec<(ReceivedPack, ReceivedPack)>),
    /// Deletes a repository that is no longer hosted. Repositories that read its pool keep the objects that their own
    /// refs need.
    Delete,
}

/// The desired condition of a repository. The steps run in the order of the fields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Alignment {
    /// Received and checked packs that are moved into the repository's own pool.
    pub adopt: Vec<ReceivedPack>,
    /// The number of prunes before the check that the adopted packs and the readable pools contain everything that
    /// candidates and pull requests need; `None` if there was no check. If the number has not changed, no object was
    /// removed since the check.
    pub checked_prune_count: Option<u64>,
    /// Objects that were found to be complete, if not everything was checked.
    pub verified: Option<VerifiedObjects>,
    /// The other repositories whose pools this one reads from now on, besides those that it has read before.
    pub alternates: Vec<RepoPath>,
    /// States, newest first. The first one whose objects are complete in the readable pools becomes the branches, the
    /// tags and HEAD. Branches and tags that it does not declare are removed.
    pub candidates: Vec<CandidateState>,
    /// What happens to branches and tags if no candidate is complete.
    pub fallback: RefFallback,
    /// Pull requests that should have their ref in this repository.
    pub pull_requests: Vec<PullRequestRef>,
    /// Events whose `refs/nostr/<id>` should not exist in this repository.
    pub drop_pull_requests: Vec<EventId>,
}

/// Objects that the adopted packs and the readable pools contain with everything that they refer to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VerifiedObjects {
    /// The number of prunes before the check. If it has not changed, no object was removed since.
    pub prune_count: u64,
    /// The repositories whose pools were read, in addition to the own one.
    pub alternates: Vec<RepoPath>,
    /// The ids of the objects.
    pub oids: Vec<String>,
}

/// A received pack that is not part of a pool yet, identified by its folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReceivedPack {
    /// `incoming/<n>`: belongs to a running push or fetch. It is deleted when the process restarts.
    Incoming(u64),
    /// `staged/<n>`: waits for its event and is recorded in the store.
    Staged(u64),
}

/// A state that a repository may be aligned with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CandidateState {
    /// The id of the state event.
    pub event: EventId,
    /// Whether it is served. A degraded repository waits for the objects of a served state instead of following an
    /// older one.
    pub is_served: bool,
    /// Branches and tags with their object ids.
    pub refs: Vec<(String, String)>,
    /// The branch that HEAD should point to; `None` leaves HEAD unchanged.
    pub head: Option<String>,
    /// Repositories whose pools are read, too, if they have objects that are not readable here. The state's author is a
    /// maintainer of these repositories, too.
    pub sources: Vec<RepoPath>,
}

/// What happens to branches and tags if no candidate is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RefFallback {
    /// They stay until a candidate is complete.
    #[default]
    Keep,
    /// They are removed, because no served state declares them.
    Clear,
}

/// A pull request that should have its ref in a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullRequestRef {
    /// The id of the pull request event.
    pub event: EventId,
    /// Its commit.
    pub tip: String,
    /// Repositories from whose pools the commit may be copied if it is not readable here.
    pub sources: Vec<RepoPath>,
}

/// The outcome of a git job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GitJobOutcome {
    /// The objects are in place, and the refs that follow from them are known.
    Aligned(AlignmentResult),
    /// The uploads were moved to `staged/`.
    Staged,
    /// The repository was deleted.
    Deleted,
    /// The job failed with this error text. Nothing that is served was changed, and the job may be repeated.
    Failed(String),
}

/// What an alignment has found out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AlignmentResult {
    /// The refs that the repository should have.
    pub refs: Arc<Refs>,
    /// The candidate that branches and tags are aligned with in these refs.
    pub chosen: Option<EventId>,
    /// The pull requests of the job that have a ref in these refs.
    pub pull_requests: Vec<EventId>,
    /// The packs that its pool has now, if the job has added any.
    pub packs: Option<Arc<PackManifest>>,
    /// Whether the repository was degraded, so that all objects that it needs were checked.
    pub was_degraded: bool,
    /// The events whose objects are damaged or missing, if it stays degraded.
    pub lost: Option<Vec<EventId>>,
    /// Pull requests that get no ref because their objects are lost, in a repository that has everything else.
    pub dropped: Vec<EventId>,
}
