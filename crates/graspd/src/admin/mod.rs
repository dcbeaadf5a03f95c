//! What the operator's commands reach: a unix socket that only the operator can open, and what is done there.
//!
//! - [`socket`]: listens, and hands every request to the function of its verb.
//! - [`wire`]: what goes over it: requests, lines of an answer, complaints.
//! - One file per verb or group of verbs. A verb is an `async fn(&Arc<Admin>, Request, Teller) -> Result<Value, Complaint>`,
//!   named in [`answer`].
//!
//! To add a verb: a file with its function, a line in [`answer`], and a command in [`crate::cli`] that calls it.

mod address;
mod check;
mod export;
mod import;
pub(crate) mod proxy_probe;
mod purgatory;
mod relays;
mod reload;
mod repos;
mod snapshot;
pub(crate) mod socket;
mod status;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::sync::io::Order;
use serde_json::Value;

use self::wire::{Complaint, Request, Teller};
use crate::fetch::driver::HuntDoor;
use crate::http::router::House;
use crate::reload::Reloader;

/// Does one thing that was asked for. What it returns is the last line of the answer.
async fn answer(admin: &Arc<Admin>, request: Request, tell: Teller) -> Result<Value, Complaint> {
    match request.verb() {
        "address" => address::address(admin, request, tell).await,
        "check" => check::check(admin, request, tell).await,
        "export" => export::export(admin, request, tell).await,
        "import" => import::import(admin, request, tell).await,
        "snapshot" => snapshot::snapshot(admin, request, tell).await,
        "status" => status::status(admin, request, tell).await,
        "relays" => relays::list(admin, request, tell).await,
        "relay_retry" => relays::order(admin, request, Order::Retry).await,
        "relay_pause" => relays::order(admin, request, Order::Pause).await,
        "relay_resume" => relays::order(admin, request, Order::Resume).await,
        "relay_forget" => relays::order(admin, request, Order::Forget).await,
        "sync" => relays::reconcile(admin, request, tell).await,
        "repos" => repos::list(admin, request, tell).await,
        "purgatory" => purgatory::list(admin, request, tell).await,
        "purgatory_retry" => purgatory::retry(admin, request, tell).await,
        "reload" => reload::reload(admin, request, tell).await,
        "purgatory_drop" => purgatory::drop_one(admin, request, tell).await,
        other => {
            Err(Complaint::new("unknown_verb", format!("this server has no `{other}`; is it of another version?")))
        }
    }
}

/// The doors of a running server, for its operator.
pub(crate) struct Admin {
    /// What answers requests, with its settings, store, git house, desk and boards.
    pub(crate) house: Arc<House>,
    /// Where the search for git data is reached, if there is one.
    pub(crate) hunt: Option<HuntDoor>,
    /// Who reads settings again.
    pub(crate) reloader: Arc<Reloader>,
    /// What is being done that must be alone. The lock is held for a look.
    alone: Mutex<BTreeSet<&'static str>>,
}

impl Admin {
    /// The doors of a server.
    pub(crate) fn new(house: Arc<House>, hunt: Option<HuntDoor>, reloader: Arc<Reloader>) -> Arc<Self> {
        Arc::new(Self { house, hunt, reloader, alone: Mutex::default() })
    }

    /// Begins something that must be alone, such as a backup, or complains that it is being done. It is over when the
    /// guard is dropped.
    pub(crate) fn alone(self: &Arc<Self>, what: &'static str) -> Result<Alone, Complaint> {
        if self.lock().insert(what) {
            return Ok(Alone { what, admin: self.clone() });
        }
        Err(Complaint::new("busy", format!("{what} is running already; wait until it has ended")))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The desk did not answer.
fn cannot() -> Complaint {
    Complaint::new("failed", "the server cannot write at the moment, or goes down; `graspd status` may say why")
}

/// Something that is being done alone.
pub(crate) struct Alone {
    what: &'static str,
    admin: Arc<Admin>,
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.admin.lock().remove(self.what);
    }
}
