//! What a batch leads to once it is on disk, and who is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::git_job::{Order, Parcel};
use grasp_core::admission::io::PushId;
use grasp_core::admission::push::{Permit, PushRefusal};
use grasp_core::fetch::io::FetchId;
use grasp_core::nostr::rejection::{Refusal, Verdict};
use grasp_core::nostr::{EventId, Signed, message};
use grasp_core::repo::{Identifier, RepoId, Site};
use grasp_core::sync::io::{Followed, Judgement};
use grasp_core::time::Timestamp;
use grasp_git::crash_point;
use grasp_git::refs::Refs;
use tokio::sync::oneshot;
use tracing::warn;

use super::{Desk, State};
use crate::relay::outbox::Letter;
use crate::writer::command::{Needed, Note, SiteView};
use crate::writer::fetch_feed::HuntMail;
use crate::writer::policy::RulesChanged;
use crate::writer::submission::{Checked, Origin, Rejected};
use crate::writer::sync_feed::SyncMail;

/// What a batch leads to once it is on disk.
pub(super) struct Settled {
    pub(super) verdicts: Vec<Option<Verdict>>,
    pub(super) passed: Vec<Arc<Signed>>,
    /// Kinds of events that waited and are served now.
    pub(super) released: Vec<u16>,
    pub(super) next_expiry: Option<Timestamp>,
    pub(super) purging: bool,
    /// Notes that were not heard because something failed before.
    pub(super) unheard: Vec<Note>,
    pub(super) permits: Vec<(PushId, Result<Permit, PushRefusal>)>,
    pub(super) done: Vec<(PushId, Result<(), PushRefusal>)>,
    pub(super) orders: Vec<Order>,
    pub(super) discards: Vec<Parcel>,
    pub(super) hosting: BTreeSet<RepoId>,
    /// Refs that have changed on disk and may be seen after the commit.
    pub(super) refs: Vec<(Site, Refs, bool)>,
    pub(super) unpinned: Vec<Site>,
    pub(super) views: Vec<(oneshot::Sender<SiteView>, SiteView)>,
    pub(super) needed: Vec<(crossbeam_channel::Sender<Option<Needed>>, Option<Needed>)>,
    /// What the operator is told.
    pub(super) told: Vec<Box<dyn FnOnce()>>,
    /// Who waits for other rules.
    pub(super) ruled: Vec<(crossbeam_channel::Sender<RulesChanged>, RulesChanged)>,
    /// Names of which sync must be told, until what it must be told has been found out.
    pub(super) interest: BTreeSet<Identifier>,
    pub(super) followed: BTreeMap<Identifier, Vec<Followed>>,
    /// The same for the hunt.
    pub(super) quarries: BTreeSet<Identifier>,
    pub(super) hunt: HuntMail,
    /// Fetches that may begin.
    pub(super) begun: Vec<oneshot::Sender<()>>,
    /// Fetches whose packs are not needed any more.
    pub(super) adopted: Vec<FetchId>,
}

impl Settled {
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
            hunt: HuntMail::default(),
            begun: Vec::new(),
            adopted: Vec::new(),
        }
    }
}

impl Desk {
    /// After the commit: show, answer, ring the live bell, order.
    pub(super) fn act(&self, state: &mut State, batch: Vec<Checked>, mut settled: Settled) {
        for repo in &settled.hosting {
            self.host(&state.registrar, repo);
        }
        for (site, refs, exists) in settled.refs {
            let moved = self.directory.publish(&site, refs, exists);
            if moved && state.registrar.rules().hunts {
                settled.hunt.moved.insert(site);
            }
        }
        for site in &settled.unpinned {
            self.directory.unpin(site);
            self.maintenance.worked_on(site);
        }
        settled.released.iter().for_each(|kind| self.meter.relay().released(*kind));
        self.live.ring();
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
            if let Err(problem) = self.directory.pin(&order.site) {
                warn!(site = %order.site, %problem, "cannot read the refs of a repository");
            }
            // Going down: what is to be done is written down and will be done after the next start.
            if self.line.is_closed() {
                continue;
            }
            state.orders.insert(order.id, order.site.clone());
            self.room.carry_out(order);
        }
        self.room.discard(settled.discards);
    }

    /// Answers a batch of which nothing was stored. What was no event stays none.
    pub(super) fn refuse(&self, batch: Vec<Checked>, why: &Refusal) {
        let verdicts = batch.iter().map(|_| Some(Verdict::Refuse(why.clone()))).collect();
        self.answer(batch, verdicts, BTreeMap::new());
    }

    /// Answers clients and sync. What the batch has changed for sync is told with the verdicts.
    fn answer(
        &self,
        batch: Vec<Checked>,
        verdicts: Vec<Option<Verdict>>,
        interest: BTreeMap<Identifier, Vec<Followed>>,
    ) {
        let mut mail = SyncMail { interest, ..SyncMail::default() };
        let mut permits = Vec::new();
        let mut direct = 0;
        for (checked, verdict) in batch.into_iter().zip(verdicts) {
            let Checked { from, result, .. } = checked;
            let verdict = verdict.unwrap_or(Verdict::Refuse(Refusal::StoreFailed));
            match from {
                Origin::Client { postbox, .. } => {
                    self.meter.relay().judged(
                        result.as_ref().ok().map(|event| event.kind),
                        &match &result {
                            Ok(_) => verdict.clone(),
                            Err(rejected) => Verdict::Refuse(rejected.why.clone()),
                        },
                    );
                    direct += u64::from(result.is_ok() && matches!(verdict, Verdict::Accept | Verdict::Hold(_)));
                    postbox.send(match result {
                        Ok(event) => answer(event.id, &verdict),
                        Err(rejected) => rejected.answer(),
                    });
                }
                Origin::Operator { answer: (nth, hears), .. } => {
                    // Whoever imports may have gone.
                    let _ = hears.send((nth, result.map(|_| verdict).map_err(|rejected| rejected.why)));
                }
                Origin::Relay { ticket, permit, .. } => {
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
    fn answer(self) -> Letter {
        match self.id {
            Some(id) => answer(id, &Verdict::Refuse(self.why)),
            None => Letter::Answer { text: message::notice(&self.why.to_string()), challenge: false },
        }
    }
}

fn answer(id: EventId, verdict: &Verdict) -> Letter {
    let (accepted, text) = verdict.answer();
    let challenge = *verdict == Verdict::Refuse(Refusal::Protected);
    Letter::Answer { text: message::ok(id, accepted, &text), challenge }
}

/// What sync is told of a verdict.
fn judgement(result: Result<Verdict, Rejected>) -> Judgement {
    match result {
        Ok(Verdict::Accept | Verdict::Pass) => Judgement::Stored,
        Ok(Verdict::Hold(_)) => Judgement::Held,
        Ok(Verdict::Known(_)) => Judgement::Known,
        Err(Rejected { why: Refusal::Forged(_), .. }) => Judgement::Forged,
        Ok(Verdict::Refuse(why)) | Err(Rejected { why, .. }) => Judgement::Refused(why),
    }
}
