//! Fetching objects from another git server: one call, from the look at what is missing to a checked pack.
//!
//! | file | what |
//! |---|---|
//! | `call` | a connection through the guarded way out, and how long it may be silent |
//! | `speech` | how anything is asked, and lists of refs |
//! | `talk` | what is asked to get objects, and what the answers mean |
//! | `compare` | whether a server has what is served here |
//! | `spool` | the pack as it comes, in memory or on disk |
//! | `take` | what is here, and whether what came is sound and complete |
//! | `retry_after` | when a server wants to be asked again |
//! | `complaints` | failures, each told once |
//!
//! Nothing of a fetch that fails or is called off stays on the disk. The machine does not know of such an end: whoever calls
//! a fetch off tells it.

mod connection;
mod failure_log;
mod local_objects;
mod negotiation;
mod protocol;
mod ref_comparison;
mod retry_after;
mod spool;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use grasp_core::disk_budget::QuotaUser;
use grasp_core::fetch::io::{FetchOutcome, FetchRequest, FetchResult, RequestForm, WantedKind};
use grasp_core::limits;
use grasp_git::receive::{Incoming, PackLimits, PackProblem};
use tokio::time::timeout;
use tracing::debug;

use self::spool::Spooled;
use super::client::connection::Patience;
use super::client::failure_log::Complaints;
use super::client::local_objects::{LocalObjects, Look, Taken};
use super::client::negotiation::Talk;
use crate::clock::Clock;
use crate::git::handlers::GitService;
use crate::http::fair_semaphore::{FairPermit, FairSemaphore};
use crate::http::network_limits::Network;
use crate::net::dialer::Dialer;

/// The line in which fetches wait for a check: that of a network in which nobody is. Pushes come in turn with them.
const HUNT: Network = Network::V4([0, 0, 0]);

/// How long to wait before asking again for a turn where too many wait: pushes come first then.
const CROWDED: Duration = Duration::from_secs(1);

/// Where objects are fetched to, and how others are reached.
pub(crate) struct FetchClient {
    larder: LocalObjects,
    /// What one fetch may bring, as the settings are now.
    limits: Box<dyn Fn() -> PackLimits + Send + Sync>,
    checking: Arc<FairSemaphore>,
    dialer: Arc<Dialer>,
    clock: Clock,
    patience: Patience,
    complaints: Complaints,
}

/// What came of a fetch.
pub(crate) struct Fetched {
    /// What the hunt is told, once the registrar has the pack.
    pub(crate) catch: FetchResult,
    /// What the registrar is to be given: everything that the sought objects need and the site cannot read, and nothing
    /// else. Its folder goes when it is dropped, unless it was moved away. There is none if everything was here.
    pub(crate) pack: Option<Incoming>,
}

/// Why a fetch ends badly.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FetchError {
    end: FetchOutcome,
    /// For a person.
    why: String,
}

impl FetchError {
    fn new(end: FetchOutcome, why: impl ToString) -> Self {
        Self { end, why: why.to_string() }
    }

    fn ours(why: impl ToString) -> Self {
        Self::new(FetchOutcome::LocalError, why)
    }
}

impl From<PackProblem> for FetchError {
    fn from(problem: PackProblem) -> Self {
        let end = match problem {
            PackProblem::DiskFull | PackProblem::Server(_) => FetchOutcome::LocalError,
            _ => FetchOutcome::InvalidData,
        };
        Self::new(end, problem)
    }
}

impl FetchClient {
    /// One that fetches to where pushes go, checked as they are and in turn with them.
    pub(crate) fn new(git: &Arc<GitService>, dialer: Arc<Dialer>, clock: Clock) -> Self {
        let house = git.clone();
        let limits = move || house.settings().pack_limits();
        let larder = LocalObjects {
            git: git.git.clone(),
            layout: git.layout.clone(),
            directory: git.directory.clone(),
            limits: limits(),
            reserve_bytes: git.reserve_bytes,
            budget: git.budget.clone(),
        };
        Self {
            larder,
            limits: Box::new(limits),
            checking: git.checking.clone(),
            dialer,
            clock,
            patience: Patience::default(),
            complaints: Complaints::default(),
        }
    }

    /// Fetches. `answering` is called when the server begins to answer with what was asked for. Dropping the future calls
    /// the fetch off: what it has begun ends by itself and leaves nothing.
    pub(crate) async fn fetch(&self, fetch: &FetchRequest, answering: impl FnOnce() + Send) -> Fetched {
        let look = match self.look(fetch).await {
            Ok(look) => look,
            Err(sorry) => return self.sorry(fetch, Vec::new(), &sorry),
        };
        let here = look.here.clone();
        if look.missing.is_empty() {
            // What can be in no repository is not asked for.
            let end = if look.impossible { FetchOutcome::InvalidData } else { FetchOutcome::Sent };
            return Fetched { catch: FetchResult { oids: here, outcome: end }, pack: None };
        }
        if look.most_bytes == 0 {
            return self.sorry(fetch, here, &FetchError::ours("a quota of the repository or its owner is used up"));
        }
        match Box::pin(self.call(fetch, look, answering)).await {
            Ok(Some(taken)) => self.caught(fetch, taken),
            // It has nothing at all.
            Ok(None) => Fetched { catch: FetchResult { oids: here, outcome: FetchOutcome::Sent }, pack: None },
            Err(sorry) => self.sorry(fetch, here, &sorry),
        }
    }

    fn larder(&self) -> LocalObjects {
        LocalObjects { limits: (self.limits)(), ..self.larder.clone() }
    }

    /// What is here of what is sought.
    async fn look(&self, fetch: &FetchRequest) -> Result<Look, FetchError> {
        let (larder, repo_path, oids) = (self.larder(), fetch.repo_path.clone(), fetch.oids.clone());
        let is_state = fetch.events.iter().any(|(_, what)| *what == WantedKind::State);
        let whose = if is_state { QuotaUser::Maintainers } else { QuotaUser::Others };
        let look = move || {
            let mut look = larder.look(&repo_path, &oids)?;
            look.most_bytes = larder.room(&repo_path, whose);
            Ok(look)
        };
        blocking(look).await?
    }

    /// Calls the server and checks what it sends. Nothing comes of a server that has no refs at all.
    async fn call(
        &self,
        fetch: &FetchRequest,
        look: Look,
        answering: impl FnOnce() + Send,
    ) -> Result<Option<Taken>, FetchError> {
        let talk = Talk::new(self, fetch, &look);
        let spooled = timeout(self.patience.whole, talk.hold(answering)).await;
        let spooled = spooled.map_err(|_| FetchError::new(FetchOutcome::Failed, "it took too long"))??;
        let Some(spooled) = spooled else { return Ok(None) };
        let turn = self.turn().await;
        let (larder, repo_path, oids) = (self.larder(), fetch.repo_path.clone(), fetch.oids.clone());
        let taken = blocking(move || {
            let Spooled { pack, received, share } = spooled;
            // The place is taken for as long as the check works, whoever waits for it.
            let taken = larder.take((&repo_path, &oids), look.prunings, (pack, received));
            if matches!(&taken, Ok(Taken { pack: Some(_), .. })) {
                share.keep();
            }
            drop(turn);
            taken
        });
        taken.await?.map(Some)
    }

    /// A place among those who check.
    async fn turn(&self) -> FairPermit {
        loop {
            match self.checking.take(Some(HUNT)).await {
                Ok(turn) => return turn,
                Err(_) => tokio::time::sleep(CROWDED).await,
            }
        }
    }

    fn caught(&self, fetch: &FetchRequest, taken: Taken) -> Fetched {
        let Taken { oids, lacking, pack } = taken;
        debug!(url = %fetch.target, complete = oids.len(), lacking, "a git server has answered");
        // Whoever is asked for objects by their ids and does not say that it lacks one has to send them.
        let end = if lacking == 0 || fetch.form == RequestForm::ByRef {
            FetchOutcome::Sent
        } else {
            FetchOutcome::InvalidData
        };
        if end == FetchOutcome::InvalidData {
            self.complaints.tell(&fetch.target.to_string(), "what it sent lacks what it was asked for");
        }
        Fetched { catch: FetchResult { oids, outcome: end }, pack }
    }

    fn sorry(&self, fetch: &FetchRequest, here: Vec<String>, sorry: &FetchError) -> Fetched {
        match sorry.end {
            FetchOutcome::Failed | FetchOutcome::InvalidData | FetchOutcome::LocalError => {
                self.complaints.tell(&fetch.target.to_string(), &sorry.why)
            }
            _ => debug!(url = %fetch.target, outcome = sorry.end.label(), error = ?sorry.why, "nothing fetched"),
        }
        Fetched { catch: FetchResult { oids: here, outcome: sorry.end.clone() }, pack: None }
    }
}

async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, FetchError> {
    tokio::task::spawn_blocking(work).await.map_err(FetchError::ours)
}

impl Default for Patience {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            connect: secs(limits::GIT_CONNECT_TIMEOUT_SECS),
            first: secs(limits::GIT_FIRST_BYTE_TIMEOUT_SECS),
            silence: secs(limits::GIT_SILENCE_TIMEOUT_SECS),
            prepare: secs(limits::GIT_PACK_START_TIMEOUT_SECS),
            pace: secs(limits::MIN_PACK_RATE_SECS),
            whole: secs(limits::GIT_REQUEST_TIMEOUT_SECS),
        }
    }
}
