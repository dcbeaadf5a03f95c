//! Effects of a batch that happen after its commit: replies, broadcast, ref cache, git jobs, updates for sync and
//! fetch.

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
use tracing::{debug, warn};

use super::{Writer, WriterState};
use crate::writer::command::{NeededEvents, RepoView, WriterCommand};
use crate::writer::fetch_feed::FetchUpdate;
use crate::writer::policy::PolicyChange;
use crate::writer::submission::{CheckedEvent, ClientReply, RejectedEvent, Submitter};
use crate::writer::sync_feed::SyncUpdate;

/// Effects of a batch, collected during its transaction and applied after the commit.
pub(super) struct Effects {
    /// The decision on each event of the batch, by its index.
    pub(super) decisions: Vec<Option<Decision>>,
    /// Ephemeral events that were accepted.
    pub(super) ephemeral: Vec<Arc<SignedEvent>>,
    /// Kinds of events that were held and are served now.
    pub(super) released_kinds: Vec<u16>,
    pub(super) next_expiry: Option<Timestamp>,
    pub(super) is_purging: bool,
    /// Commands that have not been handled yet. If the transaction fails, these are the rest.
    pub(super) commands: Vec<WriterCommand>,
    pub(super) push_decisions: Vec<(PushId, Result<PushPermit, PushRejection>)>,
    pub(super) push_results: Vec<(PushId, Result<(), PushRejection>)>,
    pub(super) git_jobs: Vec<GitJob>,
    pub(super) discarded_packs: Vec<ReceivedPack>,
    pub(super) hosting_changes: BTreeSet<RepoId>,
    /// Refs that have changed on disk and become visible after the commit: repository, refs, whether it has a folder.
    pub(super) refs: Vec<(RepoPath, Refs, bool)>,
    /// Repositories whose git job is over.
    pub(super) unpinned: Vec<RepoPath>,
    pub(super) views: Vec<(oneshot::Sender<RepoView>, RepoView)>,
    pub(super) needed_events: Vec<(crossbeam_channel::Sender<Option<NeededEvents>>, Option<NeededEvents>)>,
    /// Functions that send replies to the operator.
    pub(super) admin_replies: Vec<Box<dyn FnOnce()>>,
    pub(super) policy_changes: Vec<(crossbeam_channel::Sender<PolicyChange>, PolicyChange)>,
    /// Identifiers whose repository needs have changed. At the end of the transaction they become `repo_needs`.
    pub(super) changed_needs: BTreeSet<Identifier>,
    pub(super) repo_needs: BTreeMap<Identifier, Vec<RepoNeeds>>,
    /// Identifiers whose wanted git data has changed. At the end of the transaction it becomes part of `fetch_update`.
    pub(super) changed_wanted: BTreeSet<Identifier>,
    pub(super) fetch_update: FetchUpdate,
    /// Replies that let a fetch start.
    pub(super) started_fetches: Vec<oneshot::Sender<()>>,
    /// Fetches whose packs are adopted and can be removed.
    pub(super) adopted_fetches: Vec<FetchId>,
}

impl Effects {
    pub(super) fn new(events: usize) -> Self {
        Self {
            decisions: vec![None; events],
            ephemeral: Vec::new(),
            released_kinds: Vec::new(),
            next_expiry: None,
            is_purging: false,
            commands: Vec::new(),
            push_decisions: Vec::new(),
            push_results: Vec::new(),
            git_jobs: Vec::new(),
            discarded_packs: Vec::new(),
            hosting_changes: BTreeSet::new(),
            refs: Vec::new(),
            unpinned: Vec::new(),
            views: Vec::new(),
            needed_events: Vec::new(),
            admin_replies: Vec::new(),
            policy_changes: Vec::new(),
            changed_needs: BTreeSet::new(),
            repo_needs: BTreeMap::new(),
            changed_wanted: BTreeSet::new(),
            fetch_update: FetchUpdate::default(),
            started_fetches: Vec::new(),
            adopted_fetches: Vec::new(),
        }
    }
}

impl Writer {
    /// Applies the effects of a committed batch: first what makes it visible (refs, broadcast), then the replies, then
    /// new git jobs. A client that has its reply can therefore read what it wrote.
    pub(super) fn apply_effects(&self, state: &mut WriterState, events: Vec<CheckedEvent>, mut effects: Effects) {
        for repo in &effects.hosting_changes {
            self.update_hosting(&state.admission, repo);
        }
        for (repo_path, refs, has_folder) in effects.refs {
            let have_tips_changed = self.ref_cache.publish(&repo_path, refs, has_folder);
            if have_tips_changed && state.admission.policy().fetches_git_data {
                effects.fetch_update.changed_refs.insert(repo_path);
            }
        }
        for repo_path in &effects.unpinned {
            self.ref_cache.unpin(repo_path);
            self.maintenance.repo_changed(repo_path);
        }
        effects.released_kinds.iter().for_each(|kind| self.metrics.relay().count_released(*kind));
        self.commit_listener.on_commit();
        for event in effects.ephemeral {
            self.commit_listener.on_ephemeral(event);
        }
        crash_point::point("writer.shown");
        self.send_results(events, effects.decisions, effects.repo_needs);
        // Receivers of the following replies may be gone; errors of `send` are ignored.
        for (push, decision) in effects.push_decisions {
            let _ = state.push_requests.remove(&push).map(|reply| reply.send(decision));
        }
        for (push, result) in effects.push_results {
            if let Some(pending) = state.pending_pushes.remove(&push) {
                let _ = pending.reply.send(result);
                self.git_workers.drop_packs(pending.packs);
            }
        }
        self.fetch_feed.send(effects.fetch_update);
        for reply in effects.started_fetches {
            let _ = reply.send(());
        }
        let adopted = effects.adopted_fetches.iter().filter_map(|fetch| state.fetched_packs.remove(fetch)).collect();
        self.git_workers.drop_packs(adopted);
        for (reply, needed) in effects.needed_events {
            let _ = reply.send(needed);
        }
        for (reply, change) in effects.policy_changes {
            let _ = reply.send(change);
        }
        for (reply, view) in effects.views {
            let _ = reply.send(view);
        }
        for send_reply in effects.admin_replies {
            send_reply();
        }
        crash_point::point("writer.answered");
        for job in effects.git_jobs {
            if let Err(error) = self.ref_cache.pin(&job.repo_path) {
                warn!(target: "writer", repo = %job.repo_path, %error, "cannot read refs");
            }
            // During shutdown no job starts: it is recorded in the store and runs after the next start.
            if self.queue.is_closed() {
                continue;
            }
            state.running_jobs.insert(job.id, job.repo_path.clone());
            self.git_workers.submit(job);
        }
        self.git_workers.discard(effects.discarded_packs);
    }

    /// Rejects all events of a batch that was not stored. An event that failed verification is still reported as
    /// invalid.
    pub(super) fn reject_events(&self, events: Vec<CheckedEvent>, reason: &Rejection) {
        let decisions = events.iter().map(|_| Some(Decision::Reject(reason.clone()))).collect();
        self.send_results(events, decisions, BTreeMap::new());
    }

    /// Sends the results of events to clients, to the operator and to sync. Sync gets changed repository needs together
    /// with the results.
    fn send_results(
        &self,
        events: Vec<CheckedEvent>,
        decisions: Vec<Option<Decision>>,
        repo_needs: BTreeMap<Identifier, Vec<RepoNeeds>>,
    ) {
        let mut sync_update = SyncUpdate { repo_needs, ..SyncUpdate::default() };
        let mut permits = Vec::new();
        let mut accepted_from_clients = 0;
        for (checked, decision) in events.into_iter().zip(decisions) {
            let CheckedEvent { submitter, result, .. } = checked;
            let decision = decision.unwrap_or(Decision::Reject(Rejection::StoreFailed));
            log_decision(&submitter, &result, &decision);
            match submitter {
                Submitter::Client { reply, .. } => {
                    self.metrics.relay().count_decision(
                        result.as_ref().ok().map(|event| event.kind),
                        &match &result {
                            Ok(_) => decision.clone(),
                            Err(rejected) => Decision::Reject(rejected.reason.clone()),
                        },
                    );
                    let is_accepted = result.is_ok() && matches!(decision, Decision::Accept | Decision::Hold(_));
                    accepted_from_clients += u64::from(is_accepted);
                    reply(match result {
                        Ok(event) => ok_reply(event.id, &decision),
                        Err(rejected) => rejected.into_reply(),
                    });
                }
                Submitter::Operator { reply: (number, sender), .. } => {
                    // The import may have ended.
                    let _ = sender.send((number, result.map(|_| decision).map_err(|rejected| rejected.reason)));
                }
                Submitter::Relay { submission, permit, .. } => {
                    sync_update.results.push((submission, submit_result(result.map(|_| decision))));
                    permits.push(permit);
                }
            }
        }
        self.metrics.sync().count_direct(accepted_from_clients);
        self.sync_feed.send(sync_update, self.store.last_seq());
        // Last: an event that gets a released permit must not arrive before these results.
        drop(permits);
    }
}

/// Logs what was decided about an event, and where it came from.
fn log_decision(submitter: &Submitter, result: &Result<Arc<SignedEvent>, RejectedEvent>, decision: &Decision) {
    if !tracing::enabled!(target: "writer", tracing::Level::DEBUG) {
        return;
    }
    let (source, relay) = match submitter {
        Submitter::Client { .. } => ("client", String::new()),
        Submitter::Operator { .. } => ("import", String::new()),
        Submitter::Relay { url, sync_source, .. } => (sync_source.label(), url.to_string()),
    };
    match result {
        Ok(event) => {
            let (id, kind) = (event.id, event.kind);
            match decision {
                Decision::Reject(reason) => {
                    debug!(target: "writer", %id, kind, source, relay, reason = %reason, "event rejected");
                }
                Decision::Hold(_) => debug!(target: "writer", %id, kind, source, relay, "event held in purgatory"),
                Decision::Known(_) => debug!(target: "writer", %id, kind, source, relay, "event already known"),
                Decision::Accept | Decision::Broadcast => {
                    debug!(target: "writer", %id, kind, source, relay, "event accepted");
                }
            }
        }
        Err(rejected) => {
            let id = rejected.id.map(|id| id.to_string()).unwrap_or_default();
            debug!(target: "writer", id, source, relay, reason = %rejected.reason, "event rejected");
        }
    }
}

impl RejectedEvent {
    /// Returns an OK message, or a NOTICE if the text claims no id.
    fn into_reply(self) -> ClientReply {
        match self.id {
            Some(id) => ok_reply(id, &Decision::Reject(self.reason)),
            None => ClientReply { text: message::notice(&self.reason.to_string()), needs_challenge: false },
        }
    }
}

fn ok_reply(id: EventId, decision: &Decision) -> ClientReply {
    let (is_accepted, text) = decision.ok_reply();
    let needs_challenge = *decision == Decision::Reject(Rejection::Protected);
    ClientReply { text: message::ok(id, is_accepted, &text), needs_challenge }
}

/// Returns the result of an event as sync receives it.
fn submit_result(result: Result<Decision, RejectedEvent>) -> SubmitResult {
    match result {
        Ok(Decision::Accept | Decision::Broadcast) => SubmitResult::Stored,
        Ok(Decision::Hold(_)) => SubmitResult::Held,
        Ok(Decision::Known(_)) => SubmitResult::Known,
        Err(RejectedEvent { reason: Rejection::Forged(_), .. }) => SubmitResult::InvalidSignature,
        Ok(Decision::Reject(reason)) | Err(RejectedEvent { reason, .. }) => SubmitResult::Rejected(reason),
    }
}
