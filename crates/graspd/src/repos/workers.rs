//! The hands that carry out the registrar's orders: a few threads that mostly wait for the disk.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use grasp_core::admission::git_job::{GitJob, GitJobOutcome, GitOperation, ReceivedPack};
use grasp_core::limits;
use grasp_git::apply::{Carried, Keeper};
use grasp_git::layout::Layout;
use grasp_git::receive::Incoming;
use tracing::{debug, warn};

/// Receives the result of a job.
pub(crate) type OnDone = Arc<dyn Fn(GitJob, Carried) + Send + Sync>;

/// Something to be removed. It may take a while, and nobody waits for it.
enum CleanupTask {
    Discard(Vec<ReceivedPack>),
    Drop(Vec<Incoming>),
    /// What lies in the trash.
    Sweep,
}

/// Where the desk reaches the git room. Orders are bounded by the registrar, and what is removed was there before.
#[derive(Clone)]
pub(crate) struct GitWorkers {
    orders: Sender<GitJob>,
    errands: Sender<CleanupTask>,
}

/// One of the hands.
pub(crate) struct Hand {
    orders: Receiver<GitJob>,
    errands: Sender<CleanupTask>,
    keeper: Arc<Keeper>,
    on_done: OnDone,
}

/// The one who takes away what is not needed any more.
pub(crate) struct CleanupWorker {
    errands: Receiver<CleanupTask>,
    layout: Arc<Layout>,
}

impl GitWorkers {
    /// The room, its hands and its sweeper.
    pub(crate) fn new(
        keeper: &Arc<Keeper>,
        layout: &Arc<Layout>,
        on_done: &OnDone,
    ) -> (Self, Vec<Hand>, CleanupWorker) {
        let (orders, inbox) = crossbeam_channel::unbounded();
        let (errands, rubbish) = crossbeam_channel::unbounded();
        let hand = |_| Hand {
            orders: inbox.clone(),
            errands: errands.clone(),
            keeper: keeper.clone(),
            on_done: on_done.clone(),
        };
        let hands = (0..limits::MAX_CONCURRENT_GIT_JOBS).map(hand).collect();
        (Self { orders, errands }, hands, CleanupWorker { errands: rubbish, layout: layout.clone() })
    }

    pub(crate) fn carry_out(&self, order: GitJob) {
        let _ = self.orders.send(order);
    }

    pub(crate) fn discard(&self, received_packs: Vec<ReceivedPack>) {
        if !received_packs.is_empty() {
            let _ = self.errands.send(CleanupTask::Discard(received_packs));
        }
    }

    pub(crate) fn drop_packs(&self, packs: Vec<Incoming>) {
        if !packs.is_empty() {
            let _ = self.errands.send(CleanupTask::Drop(packs));
        }
    }
}

impl Hand {
    /// Works until the desk is gone.
    pub(crate) fn run(self) {
        for order in &self.orders {
            let carried = self.keeper.carry_out(&order);
            if let GitJobOutcome::Failed(why) = &carried.outcome {
                warn!(repo = %order.repo_path, %why, "git work failed; it will be tried again");
            } else {
                debug!(repo = %order.repo_path, outcome = ?carried.outcome, "git work is done");
            }
            if matches!(order.operation, GitOperation::Delete { .. }) {
                let _ = self.errands.send(CleanupTask::Sweep);
            }
            (self.on_done)(order, carried);
        }
    }
}

impl CleanupWorker {
    /// Works until the desk is gone.
    pub(crate) fn run(self) {
        for errand in &self.errands {
            match errand {
                CleanupTask::Discard(received_packs) => {
                    let _removal = self.layout.removal();
                    for received_pack in received_packs {
                        log("an upload", self.layout.discard(&self.layout.received_pack(&received_pack)));
                    }
                    log("the trash", self.layout.sweep());
                }
                CleanupTask::Drop(packs) => drop(packs),
                CleanupTask::Sweep => log("the trash", self.layout.sweep()),
            }
        }
    }
}

fn log(what: &str, result: std::io::Result<()>) {
    if let Err(problem) = result {
        warn!(%problem, "cannot remove {what}");
    }
}
