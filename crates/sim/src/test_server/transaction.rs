//! One batch: inputs and outputs of the machine inside a transaction, and the effects after the commit.

use std::collections::BTreeSet;

use grasp_core::admission::git_job::{GitJob, ReceivedPack};
use grasp_core::admission::io::{
    AdmissionInput, AdmissionOutput, PushId, RepoLookup, RepoLookupResult, StoreWrite, StoredEvent,
};
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::disk_budget::GitUsage;
use grasp_core::nostr::{Decision, EventId, supersedes};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoPath};
use grasp_core::state_machine::StateMachine;

use super::{Crashed, InjectedFault, TestServer};
use crate::git_model::RepoFolder;
use crate::store_contract::StoreUnderTest;

/// Effects of a batch, applied after its commit.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) replies: Vec<Decision>,
    permits: Vec<(PushId, Result<PushPermit, PushRejection>)>,
    done: Vec<(PushId, Result<(), PushRejection>)>,
    jobs: Vec<GitJob>,
    discards: Vec<ReceivedPack>,
    /// Identifiers whose repository needs have changed.
    interest: BTreeSet<Identifier>,
    /// Events that were released.
    released: Vec<EventId>,
}

impl TestServer {
    /// Begins a batch. As in the writer, the machine first does what is due, with a new budget of work.
    pub(super) fn begin_batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        self.admission.wake(self.now);
        self.drain(&mut batch);
        self.max_work = self.max_work.max(self.admission.turn_work());
        batch
    }

    /// Handles an input inside the batch.
    pub(super) fn handle_input(&mut self, batch: &mut Batch, input: AdmissionInput) {
        let work = self.admission.turn_work();
        self.admission.handle(self.now, input);
        self.drain(batch);
        self.max_work = self.max_work.max(self.admission.turn_work().saturating_sub(work));
        for summary in self.store.removed_pulls() {
            self.admission.handle(self.now, AdmissionInput::PullRequestPurged(summary));
            self.drain(batch);
        }
    }

    /// Applies the outputs that belong into the batch and collects the others.
    pub(super) fn drain(&mut self, batch: &mut Batch) {
        while let Some(output) = self.admission.poll() {
            match output {
                AdmissionOutput::Write(write) => self.write(batch, &write),
                AdmissionOutput::Reply(decision) => batch.replies.push(decision),
                AdmissionOutput::Broadcast(event) => self.broadcasts.push(event),
                AdmissionOutput::Lookup(lookup) => {
                    let result = self.look_up(&lookup);
                    self.admission.handle(self.now, AdmissionInput::LookupDone(result));
                }
                AdmissionOutput::PushDecision(push, result) => batch.permits.push((push, result)),
                AdmissionOutput::PushDone(push, result) => batch.done.push((push, result)),
                AdmissionOutput::GitJob(job) => batch.jobs.push(job),
                AdmissionOutput::DiscardPack(received_pack) => batch.discards.push(received_pack),
                AdmissionOutput::HostingChanged(_) | AdmissionOutput::PackAdopted(_) => {}
                AdmissionOutput::RepoNeedsChanged(identifier) => {
                    self.notifications.0.insert(identifier.clone());
                    batch.interest.insert(identifier);
                }
                AdmissionOutput::WantedGitDataChanged(identifier) => drop(self.notifications.1.insert(identifier)),
            }
        }
    }

    /// Returns the size of a repository and of all repositories of its owner, one byte per object.
    fn measure_disk(&self, lookup: &RepoLookup) -> GitUsage {
        if !lookup.measure_disk {
            return GitUsage::default();
        }
        let bytes = |folder: &RepoFolder| folder.pool.len() as u64;
        let own = self.git.folders().filter(|(repo_path, _)| repo_path.repo().owner == lookup.repo_path.repo().owner);
        GitUsage {
            repository_bytes: self.git.folder(&lookup.repo_path).map_or(0, bytes),
            owner_bytes: own.map(|(_, folder)| bytes(folder)).sum(),
        }
    }

    /// Answers a lookup from the store, with the open batch, and from the refs.
    fn look_up(&mut self, lookup: &RepoLookup) -> RepoLookupResult {
        let row = self.store.repo(&lookup.repo_path);
        let has_folder = || self.git.folder(&lookup.repo_path).is_some() || self.git.is_orphaned(&lookup.repo_path);
        let mut result = RepoLookupResult {
            exists: row.is_some(),
            has_folder: lookup.find_folder && (row.is_some() || has_folder()),
            is_degraded: row.as_ref().is_some_and(|(_, degraded)| degraded.is_some()),
            refs: row.map(|(refs, _)| refs).unwrap_or_default(),
            disk_usage: self.measure_disk(lookup),
            ..RepoLookupResult::default()
        };
        if lookup.find_orphans {
            let named = result.refs.iter().filter_map(|(name, _)| name.strip_prefix("refs/nostr/"));
            let named: Vec<EventId> = named.filter_map(EventId::from_hex).collect();
            result.orphan_refs = named.into_iter().filter(|id| !self.store.is_known(*id)).collect();
        }
        if let (Some(page), RepoPath::Announced(repo)) = (lookup.pull_requests, &lookup.repo_path) {
            (result.pull_requests, result.next_pull_request) = self.store.pull_requests_for(repo, page);
        }
        for id in &lookup.events {
            if let Some((event, status)) = self.store.event(*id) {
                let lookups = self.store.lookups(&event, self.admission.policy().needed_lookups(&event));
                result.events.insert(*id, StoredEvent { event, status, lookups });
            }
        }
        result
    }

    /// Applies a write. A write that contradicts the store's tables, or releases an event without its git data, is a
    /// bug of the machine.
    fn write(&mut self, batch: &mut Batch, write: &StoreWrite) {
        if let StoreWrite::Put(event) | StoreWrite::Hold(event, _) = write {
            let lookups = self.store.lookups(event, Default::default());
            assert_eq!(lookups.stored, None, "write of a known event: {write:?}");
            let loses = lookups.current.is_some_and(|current| !supersedes(event.version(), current));
            assert!(!loses, "write of a superseded event: {write:?}");
        }
        if let StoreWrite::Hold(event, _) = write
            && let Some(request) = PullRequest::from_any_event(event)
        {
            self.pull_request_tips.insert(event.id, request.tip);
        }
        if let StoreWrite::Release(id) = write {
            batch.released.push(*id);
        }
        self.store.write(write);
    }

    /// Ends a batch: commits, shows refs, sends replies and starts git jobs. Returns false if the commit failed: then
    /// none of its effects happen and the machine is rebuilt from the store.
    pub(super) fn finish_batch(&mut self, batch: Batch) -> Result<bool, Crashed> {
        assert!(batch.replies.is_empty(), "replies without a submission: {:?}", batch.replies);
        for id in &batch.released {
            self.check_release(*id);
        }
        self.count_durable_step()?;
        if self.commit_fails() {
            self.store.abort();
            self.reject_waiting_pushes();
            self.rebuild()?;
            return Ok(false);
        }
        self.store.commit();
        self.commits += 1;
        for identifier in batch.interest {
            let followed = self.repo_needs(&identifier);
            self.published_needs.insert(identifier, followed);
        }
        self.check_after_commit();
        self.count_durable_step()?;
        for (push, result) in batch.permits {
            self.set_permit(push, result);
        }
        for (push, result) in batch.done {
            self.set_push_result(push, result);
        }
        self.started_jobs.extend(batch.jobs.iter().cloned());
        self.running.extend(batch.jobs);
        for received_pack in batch.discards {
            self.count_durable_step()?;
            self.git.discard(&received_pack);
        }
        Ok(true)
    }

    /// Counts a durable step, before or after it happens, and injects the crash if it is due.
    pub(super) fn count_durable_step(&mut self) -> Result<(), Crashed> {
        self.steps += 1;
        if let InjectedFault::CrashAfterSteps(left) = &mut self.fault {
            if *left == 0 {
                self.fault = InjectedFault::None;
                return Err(Crashed { answered: self.answered });
            }
            *left -= 1;
        }
        Ok(())
    }

    fn commit_fails(&mut self) -> bool {
        let InjectedFault::FailCommitAfter(left) = &mut self.fault else { return false };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.fault = InjectedFault::None;
        true
    }

    /// Rejects the waiting pushes after a failed commit. Running git jobs finish, and their results are ignored.
    fn reject_waiting_pushes(&mut self) {
        for job in std::mem::take(&mut self.running) {
            while self.git.step(&job, &self.store.refs(&job.repo_path)).is_none() {}
        }
        let waiting: Vec<PushId> =
            self.pushes.iter().filter(|(_, push)| push.is_waiting()).map(|(id, _)| *id).collect();
        for id in waiting {
            self.reject_push(id);
        }
    }

    pub(super) fn after_git_step(&mut self) -> Result<(), Crashed> {
        self.check_git();
        self.count_durable_step()
    }
}
