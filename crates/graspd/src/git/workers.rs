//! The hands that carry out the registrar's orders: a few threads that mostly wait for the disk.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use grasp_core::admission::git_job::{Order, Outcome, Parcel, Work};
use grasp_core::limits;
use grasp_git::apply::Keeper;
use grasp_git::layout::Layout;
use grasp_git::receive::Incoming;
use tracing::{debug, warn};

use crate::writer::command::Note;
use crate::writer::queue::Line;

/// Something to be removed. It may take a while, and nobody waits for it.
enum Errand {
    Discard(Vec<Parcel>),
    Drop(Vec<Incoming>),
    /// What lies in the trash.
    Sweep,
}

/// Where the desk reaches the git room. Orders are bounded by the registrar, and what is removed was there before.
#[derive(Clone)]
pub(crate) struct GitRoom {
    orders: Sender<Order>,
    errands: Sender<Errand>,
}

/// One of the hands.
pub(crate) struct Hand {
    orders: Receiver<Order>,
    errands: Sender<Errand>,
    keeper: Arc<Keeper>,
    line: Arc<Line>,
}

/// The one who takes away what is not needed any more.
pub(crate) struct Sweeper {
    errands: Receiver<Errand>,
    layout: Arc<Layout>,
}

impl GitRoom {
    /// The room, its hands and its sweeper.
    pub(crate) fn new(keeper: &Arc<Keeper>, layout: &Arc<Layout>, line: &Arc<Line>) -> (Self, Vec<Hand>, Sweeper) {
        let (orders, inbox) = crossbeam_channel::unbounded();
        let (errands, rubbish) = crossbeam_channel::unbounded();
        let hand =
            |_| Hand { orders: inbox.clone(), errands: errands.clone(), keeper: keeper.clone(), line: line.clone() };
        let hands = (0..limits::MAX_ORDERS).map(hand).collect();
        (Self { orders, errands }, hands, Sweeper { errands: rubbish, layout: layout.clone() })
    }

    pub(crate) fn carry_out(&self, order: Order) {
        let _ = self.orders.send(order);
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
}

impl Hand {
    /// Works until the desk is gone.
    pub(crate) fn run(self) {
        for order in &self.orders {
            let carried = self.keeper.carry_out(&order);
            if let Outcome::Failed(why) = &carried.outcome {
                warn!(site = %order.site, %why, "git work failed; it will be tried again");
            } else {
                debug!(site = %order.site, outcome = ?carried.outcome, "git work is done");
            }
            if matches!(order.work, Work::Retire { .. }) {
                let _ = self.errands.send(Errand::Sweep);
            }
            self.line.post(Note::Ordered(order, carried));
        }
    }
}

impl Sweeper {
    /// Works until the desk is gone.
    pub(crate) fn run(self) {
        for errand in &self.errands {
            match errand {
                Errand::Discard(parcels) => {
                    let _removal = self.layout.removal();
                    for parcel in parcels {
                        log("an upload", self.layout.discard(&self.layout.parcel(&parcel)));
                    }
                    log("the trash", self.layout.sweep());
                }
                Errand::Drop(packs) => drop(packs),
                Errand::Sweep => log("the trash", self.layout.sweep()),
            }
        }
    }
}

fn log(what: &str, result: std::io::Result<()>) {
    if let Err(problem) = result {
        warn!(%problem, "cannot remove {what}");
    }
}
