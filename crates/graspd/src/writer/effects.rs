//! Effects of a batch that happen after its commit: replies, broadcast, ref cache, git jobs, updates for sync and
//! fetch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use grasp_core::admission::git_job::{GitJob, ReceivedPack};
use grasp_core::admission::io::{PushId, StoreWrite};
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::fetch::io::FetchId;
use grasp_core::nostr::rejection::{Decision, Rejection};
use grasp_core::nostr::{EventId, SignedEvent, message};
use grasp_core::repo::{Identifier, RepoId, RepoPath, RepoRow};
use grasp_core::sync::io::{RepoNeeds, SubmitResult};
use grasp_core::time::Timestamp;
use grasp_git::crash_point;
use tracing::{debug, info};

use super::{Writer, WriterState};
use crate::writer::command::{SendFn, WriterCommand};
use crate::writer::fetch_feed::FetchUpdate;
use crate::writer::submission::{CheckedEvent, Submitter};
use crate::writer::sync_feed::SyncUpdate;

/// Effects of a batch, collected during its transaction and applied after the commit.
#[derive(Default)]
pub(super) struct Effects {
    /// The decisions on the verified events of the batch, in order.
    pub(super) decisions: Vec<Decision>,
    /// Ephemeral events that were accepted.
    pub(super) ephemeral: Vec<Arc<SignedEvent>>,
    /// Kinds of events that were held and are served now.
    pub(super) released_kinds: Vec<u16>,
    /// Number of served events that were removed because the operator banned them, their author or their repository.
    pub(super) banned_events: usize,
    pub(super) next_expiry: Option<Timestamp>,
    pub(super) is_purging: bool,
    /// Commands that have not been handled yet. If the transaction fails, these are the rest.
    pub(super) commands: Vec<WriterCommand>,
    pub(super) push_decisions: Vec<(PushId, Result<PushPermit, PushRejection>)>,
    pub(super) push_results: Vec<(PushId, Result<(), PushRejection>)>,
    pub(super) git_jobs: Vec<GitJob>,
    pub(super) discarded_packs: Vec<ReceivedPack>,
    pub(super) hosting_changes: BTreeSet<RepoId>,
    /// Repositories whose rows have changed. The rows are read at the end of the transaction; a removed one is `None`.
    pub(super) repos: BTreeMap<RepoPath, Option<RepoRow>>,
    /// Repositories whose git job has ended.
    pub(super) ended_jobs: Vec<RepoPath>,
    /// Functions that send the replies to commands, in the order of the commands.
    pub(super) replies: Vec<SendFn>,
    /// Identifiers whose repository needs have changed. At the end of the transaction they become `repo_needs`.
    pub(super) changed_needs: BTreeSet<Identifier>,
    pub(super) repo_needs: BTreeMap<Identifier, Vec<RepoNeeds>>,
    /// Identifiers whose wanted git data has changed. At the end of the transaction it becomes part of `fetch_update`.
    pub(super) changed_wanted: BTreeSet<Identifier>,
    pub(super) fetch_update: FetchUpdate,
    /// Fetches whose packs are adopted and can be removed.
    pub(super) adopted_fetches: Vec<FetchId>,
}

impl Effects {
    /// Records that a write has changed the row of a repository.
    pub(super) fn note_repo_write(&mut self, write: StoreWrite) {
        if let StoreWrite::SetRefs(repo_path, _)
        | StoreWrite::RemoveRefs(repo_path)
        | StoreWrite::SetDegraded(repo_path, _) = write
        {
            self.repos.insert(repo_path, None);
        }
    }

    /// Adds a function that sends a reply after the commit. The receiver may be gone by then.
    pub(super) fn add_reply<R>(&mut self, send: impl FnOnce() -> R + 'static) {
        self.replies.push(Box::new(move || {
            let _ = send();
        }));
    }
}

impl Writer {
    /// Applies the effects of a committed batch: first what makes it visible (refs, broadcast), then the replies, then
    /// new git jobs. A client that has its reply can therefore read what it wrote.
    pub(super) fn apply_effects(&self, state: &mut WriterState, events: Vec<CheckedEvent>, mut effects: Effects) {
        let started = Instant::now();
        for repo in &effects.hosting_changes {
            self.update_hosting(&state.admission, repo);
        }
        self.metrics.server().observe_writer_turn(started.elapsed());
        if effects.banned_events > 0 {
            info!(target: "writer", events = effects.banned_events, "banned events removed");
        }
        for (repo_path, row) in effects.repos {
            let have_tips_changed = self.ref_cache.publish(&repo_path, row);
            self.ref_files.refs_changed(&repo_path);
            if have_tips_changed && state.admission.policy().fetches_git_data {
                effects.fetch_update.changed_refs.insert(repo_path);
            }
        }
        for repo_path in &effects.ended_jobs {
            self.ref_cache.job_ended(repo_path);
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
        let adopted = effects.adopted_fetches.iter().filter_map(|fetch| state.fetched_packs.remove(fetch)).collect();
        self.git_workers.drop_packs(adopted);
        for send_reply in effects.replies {
            send_reply();
        }
        crash_point::point("writer.answered");
        for job in effects.git_jobs {
            // During shutdown no job starts: what it is for is recorded in the store, and it runs after the next start.
            if self.queue.is_closed() {
                continue;
            }
            self.ref_cache.job_started(&job.repo_path);
            state.running_jobs.insert(job.id, job.repo_path.clone());
            self.git_workers.submit(job);
        }
        self.git_workers.discard(effects.discarded_packs);
    }

    /// Rejects all events of a batch that was not stored. An event that failed verification is still reported as
    /// invalid.
    pub(super) fn reject_events(&self, events: Vec<CheckedEvent>, reason: &Rejection) {
        let decisions = vec![Decision::Reject(reason.clone()); events.len()];
        self.send_results(events, decisions, BTreeMap::new());
    }

    /// Sends the results of events to clients, to the operator and to sync. `decisions` are those on the verified
    /// events, in order. Sync gets changed repository needs together with the results.
    fn send_results(
        &self,
        events: Vec<CheckedEvent>,
        decisions: Vec<Decision>,
        repo_needs: BTreeMap<Identifier, Vec<RepoNeeds>>,
    ) {
        let mut sync_update = SyncUpdate { repo_needs, ..SyncUpdate::default() };
        let mut permits = Vec::new();
        let mut accepted_from_clients = 0;
        let mut decisions = decisions.into_iter();
        for CheckedEvent { submitter, result, .. } in events {
            let (id, kind, decision) = match result {
                Ok(event) => {
                    let decision = decisions.next().unwrap_or(Decision::Reject(Rejection::StoreFailed));
                    (Some(event.id), Some(event.kind), decision)
                }
                Err((id, reason)) => (id, None, Decision::Reject(reason)),
            };
            log_decision(&submitter, id, kind, &decision);
            match submitter {
                Submitter::Client { reply, .. } => {
                    self.metrics.relay().count_decision(kind, &decision);
                    accepted_from_clients += u64::from(matches!(decision, Decision::Accept | Decision::Hold(_)));
                    let (is_accepted, text) = decision.ok_reply();
                    let text = match id {
                        Some(id) => message::ok(id, is_accepted, &text),
                        // The text claims no id.
                        None => message::notice(&text),
                    };
                    reply(text, decision == Decision::Reject(Rejection::Protected));
                }
                Submitter::Operator { reply: (number, sender), .. } => {
                    // The import may have ended.
                    let _ = sender.send((number, decision));
                }
                Submitter::Relay { submission, permit, .. } => {
                    sync_update.results.push((submission, submit_result(decision)));
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

/// Logs what was decided about an event, and where it came from. The kind is `None` if the event is not valid.
fn log_decision(submitter: &Submitter, id: Option<EventId>, kind: Option<u16>, decision: &Decision) {
    if !tracing::enabled!(target: "writer", tracing::Level::DEBUG) {
        return;
    }
    let (source, relay) = match submitter {
        Submitter::Client { .. } => ("client", String::new()),
        Submitter::Operator { .. } => ("import", String::new()),
        Submitter::Relay { url, sync_source, .. } => (sync_source.label(), url.to_string()),
    };
    let id = id.map(|id| id.to_string()).unwrap_or_default();
    match decision {
        Decision::Reject(reason) => {
            debug!(target: "writer", id, kind, source, relay, reason = %reason, "event rejected");
        }
        Decision::Hold(_) => debug!(target: "writer", id, kind, source, relay, "event held in purgatory"),
        Decision::Remember => debug!(target: "writer", id, kind, source, relay, "request of an unknown key remembered"),
        Decision::Known(_) => debug!(target: "writer", id, kind, source, relay, "event already known"),
        Decision::Accept | Decision::Broadcast => {
            debug!(target: "writer", id, kind, source, relay, "event accepted");
        }
    }
}

/// Returns the result of an event as sync receives it.
fn submit_result(decision: Decision) -> SubmitResult {
    match decision {
        Decision::Accept | Decision::Broadcast => SubmitResult::Stored,
        Decision::Hold(_) => SubmitResult::Held,
        Decision::Known(_) => SubmitResult::Known,
        // It is not served, so sync must not count it as stored. Its rejected-events index keeps it from being fetched
        // again and again.
        Decision::Remember => SubmitResult::Rejected(Rejection::Unrelated),
        Decision::Reject(Rejection::Forged(_)) => SubmitResult::InvalidSignature,
        Decision::Reject(reason) => SubmitResult::Rejected(reason),
    }
}
