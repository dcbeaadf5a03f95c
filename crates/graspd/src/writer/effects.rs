//! What a batch leads to once it is on disk, and who is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::git_job::{GitJob, ReceivedPack};
use grasp_core::admission::io::PushId;
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::fetch::io::FetchId;
use grasp_core::nostr::rejection::{Decision, Rejection};
use grasp_core::nostr::{EventId, SignedEvent, message};
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_core::sync::io::{RepoNeeds, SubmitResult};
use grasp_core::time::Timestamp;
use grasp_git::crash_point;
use grasp_git::refs::Refs;
use tokio::sync::oneshot;
use tracing::warn;

use super::{State, Writer};
use crate::writer::command::{Needed, RepoView, WriterCommand};
use crate::writer::fetch_feed::FetchUpdate;
use crate::writer::policy::PolicyChange;
use crate::writer::submission::{CheckedEvent, ClientReply, Rejected, Submitter};
use crate::writer::sync_feed::SyncUpdate;

/// What a batch leads to once it is on disk.
pub(super) struct Effects {
    pub(super) verdicts: Vec<Option<Decision>>,
    pub(super) passed: Vec<Arc<SignedEvent>>,
    /// Kinds of events that waited and are served now.
    pub(super) released: Vec<u16>,
    pub(super) next_expiry: Option<Timestamp>,
    pub(super) purging: bool,
    /// Notes that were not heard because something failed before.
    pub(super) unheard: Vec<WriterCommand>,
    pub(super) permits: Vec<(PushId, Result<PushPermit, PushRejection>)>,
    pub(super) done: Vec<(PushId, Result<(), PushRejection>)>,
    pub(super) orders: Vec<GitJob>,
    pub(super) discards: Vec<ReceivedPack>,
    pub(super) hosting: BTreeSet<RepoId>,
    /// Refs that have changed on disk and may be seen after the commit.
    pub(super) refs: Vec<(RepoPath, Refs, bool)>,
    pub(super) unpinned: Vec<RepoPath>,
    pub(super) views: Vec<(oneshot::Sender<RepoView>, RepoView)>,
    pub(super) needed: Vec<(crossbeam_channel::Sender<Option<Needed>>, Option<Needed>)>,
    /// What the operator is told.
    pub(super) told: Vec<Box<dyn FnOnce()>>,
    /// Who waits for other rules.
    pub(super) ruled: Vec<(crossbeam_channel::Sender<PolicyChange>, PolicyChange)>,
    /// Names of which sync must be told, until what it must be told has been found out.
    pub(super) interest: BTreeSet<Identifier>,
    pub(super) followed: BTreeMap<Identifier, Vec<RepoNeeds>>,
    /// The same for the hunt.
    pub(super) quarries: BTreeSet<Identifier>,
    pub(super) hunt: FetchUpdate,
    /// Fetches that may begin.
    pub(super) begun: Vec<oneshot::Sender<()>>,
    /// Fetches whose packs are not needed any more.
    pub(super) adopted: Vec<FetchId>,
}

impl Effects {
    pub(super) fn new(events: usize) -> Self {
        Self {
            verdicts: vec![None; events],
            passed: Vec::new(),
            released: Vec::new(),
            next_expiry: None,
            purging: false,
            unheard: Vec::new(),
            permits: Vec::new(),
            done: Vec::new(),
            orders: Vec::new(),
            discards: Vec::new(),
            hosting: BTreeSet::new(),
            refs: Vec::new(),
            unpinned: Vec::new(),
            views: Vec::new(),
            needed: Vec::new(),
            told: Vec::new(),
            ruled: Vec::new(),
            interest: BTreeSet::new(),
            followed: BTreeMap::new(),
            quarries: BTreeSet::new(),
            hunt: FetchUpdate::default(),
            begun: Vec::new(),
            adopted: Vec::new(),
        }
    }
}

impl Writer {
    /// After the commit: show, answer, ring the live bell, order.
    pub(super) fn act(&self, state: &mut State, batch: Vec<CheckedEvent>, mut settled: Effects) {
        for repo in &settled.hosting {
            self.host(&state.admission, repo);
        }
        for (repo_path, refs, exists) in settled.refs {
            let moved = self.directory.publish(&repo_path, refs, exists);
            if moved && state.admission.policy().fetches_git_data {
                settled.hunt.moved.insert(repo_path);
            }
        }
        for repo_path in &settled.unpinned {
            self.directory.unpin(repo_path);
            self.maintenance.worked_on(repo_path);
        }
        settled.released.iter().for_each(|kind| self.meter.relay().released(*kind));
        self.live.committed();
        for event in settled.passed {
            self.live.pass(event);
        }
        crash_point::point("desk.shown");
        self.answer(batch, settled.verdicts, settled.followed);
        // Whoever asked may have gone; then nobody hears the answer.
        for (push, result) in settled.permits {
            let _ = state.asked.remove(&push).map(|reply| reply.send(result));
        }
        for (push, result) in settled.done {
            if let Some(arrived) = state.arrived.remove(&push) {
                let _ = arrived.reply.send(result);
                self.room.drop_packs(arrived.packs);
            }
        }
        self.hunt.send(settled.hunt);
        for begin in settled.begun {
            let _ = begin.send(());
        }
        let hauls = settled.adopted.iter().filter_map(|fetch| state.hauls.remove(fetch)).collect();
        self.room.drop_packs(hauls);
        for (reply, needed) in settled.needed {
            let _ = reply.send(needed);
        }
        for (reply, changed) in settled.ruled {
            let _ = reply.send(changed);
        }
        for (reply, view) in settled.views {
            let _ = reply.send(view);
        }
        for tell in settled.told {
            tell();
        }
        crash_point::point("desk.answered");
        for order in settled.orders {
            if let Err(problem) = self.directory.pin(&order.repo_path) {
                warn!(repo = %order.repo_path, %problem, "cannot read the refs of a repository");
            }
            // Going down: what is to be done is written down and will be done after the next start.
            if self.line.is_closed() {
                continue;
            }
            state.orders.insert(order.id, order.repo_path.clone());
            self.room.carry_out(order);
        }
        self.room.discard(settled.discards);
    }

    /// Answers a batch of which nothing was stored. What was no event stays none.
    pub(super) fn refuse(&self, batch: Vec<CheckedEvent>, why: &Rejection) {
        let verdicts = batch.iter().map(|_| Some(Decision::Reject(why.clone()))).collect();
        self.answer(batch, verdicts, BTreeMap::new());
    }

    /// Answers clients and sync. What the batch has changed for sync is told with the verdicts.
    fn answer(
        &self,
        batch: Vec<CheckedEvent>,
        verdicts: Vec<Option<Decision>>,
        interest: BTreeMap<Identifier, Vec<RepoNeeds>>,
    ) {
        let mut mail = SyncUpdate { interest, ..SyncUpdate::default() };
        let mut permits = Vec::new();
        let mut direct = 0;
        for (checked, verdict) in batch.into_iter().zip(verdicts) {
            let CheckedEvent { from, result, .. } = checked;
            let verdict = verdict.unwrap_or(Decision::Reject(Rejection::StoreFailed));
            match from {
                Submitter::Client { reply, .. } => {
                    self.meter.relay().judged(
                        result.as_ref().ok().map(|event| event.kind),
                        &match &result {
                            Ok(_) => verdict.clone(),
                            Err(rejected) => Decision::Reject(rejected.why.clone()),
                        },
                    );
                    direct += u64::from(result.is_ok() && matches!(verdict, Decision::Accept | Decision::Hold(_)));
                    reply(match result {
                        Ok(event) => answer(event.id, &verdict),
                        Err(rejected) => rejected.answer(),
                    });
                }
                Submitter::Operator { answer: (nth, hears), .. } => {
                    // Whoever imports may have gone.
                    let _ = hears.send((nth, result.map(|_| verdict).map_err(|rejected| rejected.why)));
                }
                Submitter::Relay { ticket, permit, .. } => {
                    mail.judged.push((ticket, judgement(result.map(|_| verdict))));
                    permits.push(permit);
                }
            }
        }
        self.meter.sync().direct(direct);
        self.sync.send(mail, self.store.last_seq());
        // Only now: whoever gets a place must not overtake the answers.
        drop(permits);
    }
}

impl Rejected {
    fn answer(self) -> ClientReply {
        match self.id {
            Some(id) => answer(id, &Decision::Reject(self.why)),
            None => ClientReply { text: message::notice(&self.why.to_string()), challenge: false },
        }
    }
}

fn answer(id: EventId, verdict: &Decision) -> ClientReply {
    let (accepted, text) = verdict.ok_reply();
    let challenge = *verdict == Decision::Reject(Rejection::Protected);
    ClientReply { text: message::ok(id, accepted, &text), challenge }
}

/// What sync is told of a verdict.
fn judgement(result: Result<Decision, Rejected>) -> SubmitResult {
    match result {
        Ok(Decision::Accept | Decision::Broadcast) => SubmitResult::Stored,
        Ok(Decision::Hold(_)) => SubmitResult::Held,
        Ok(Decision::Known(_)) => SubmitResult::Known,
        Err(Rejected { why: Rejection::Forged(_), .. }) => SubmitResult::InvalidSignature,
        Ok(Decision::Reject(why)) | Err(Rejected { why, .. }) => SubmitResult::Rejected(why),
    }
}
