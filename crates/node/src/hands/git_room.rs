//! The hands that carry out the registrar's orders: a few threads that mostly wait for the disk.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use grasp_core::limits;
use grasp_core::registrar::order::{Order, Outcome, Parcel};
use grasp_git::keeper::Keeper;
use grasp_git::layout::Layout;
use grasp_git::receive::Incoming;
use tracing::{debug, warn};

use super::line::Line;
use super::notes::Note;

/// Something for the git room.
enum Errand {
    Carry(Order),
    /// Remove what is not needed any more.
    Discard(Vec<Parcel>),
    Drop(Vec<Incoming>),
    /// Empty the trash.
    Sweep,
}

/// Where the desk reaches the git room. Orders are bounded by the registrar; the rest follows from them.
#[derive(Clone)]
pub(crate) struct GitRoom {
    errands: Sender<Errand>,
}

/// One of the hands.
pub(crate) struct Hand {
    errands: Receiver<Errand>,
    keeper: Arc<Keeper>,
    layout: Arc<Layout>,
    line: Arc<Line>,
}

impl GitRoom {
    /// The room and its hands.
    pub(crate) fn new(keeper: &Arc<Keeper>, layout: &Arc<Layout>, line: &Arc<Line>) -> (Self, Vec<Hand>) {
        let (errands, inbox) = crossbeam_channel::unbounded();
        let hand =
            |_| Hand { errands: inbox.clone(), keeper: keeper.clone(), layout: layout.clone(), line: line.clone() };
        (Self { errands }, (0..limits::MAX_ORDERS).map(hand).collect())
    }

    pub(crate) fn carry_out(&self, order: Order) {
        let _ = self.errands.send(Errand::Carry(order));
    }

    pub(crate) fn discard(&self, parcels: Vec<Parcel>) {
        if !parcels.is_empty() {
            let _ = self.errands.send(Errand::Discard(parcels));
        }
    }

    pub(crate) fn drop_packs(&self, packs: Vec<Incoming>) {
        if !packs.is_empty() {
            let _ = self.errands.send(Errand::Drop(packs));
        }
    }

    pub(crate) fn sweep(&self) {
        let _ = self.errands.send(Errand::Sweep);
    }
}

impl Hand {
    /// Works until the desk is gone.
    pub(crate) fn run(self) {
        for errand in &self.errands {
            match errand {
                Errand::Carry(order) => {
                    let carried = self.keeper.carry_out(&order);
                    if let Outcome::Failed(why) = &carried.outcome {
                        warn!(site = %order.site, %why, "git work failed; it will be tried again");
                    } else {
                        debug!(site = %order.site, outcome = ?carried.outcome, "git work is done");
                    }
                    self.line.post(Note::Ordered(order, carried));
                }
                Errand::Discard(parcels) => {
                    for parcel in parcels {
                        self.log("an upload", self.layout.discard(&self.layout.parcel(&parcel)));
                    }
                    self.log("the trash", self.layout.sweep());
                }
                Errand::Drop(packs) => drop(packs),
                Errand::Sweep => self.log("the trash", self.layout.sweep()),
            }
        }
    }

    fn log(&self, what: &str, result: std::io::Result<()>) {
        if let Err(problem) = result {
            warn!(%problem, "cannot remove {what}");
        }
    }
}
