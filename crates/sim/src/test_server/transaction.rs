//! One batch: what the registrar is told and wants inside a transaction, and what follows after the commit.

use std::collections::BTreeSet;

use grasp_core::admission::git_job::{GitJob, ReceivedPack};
use grasp_core::admission::io::{
    AdmissionInput, AdmissionOutput, PushId, RepoLookup, RepoLookupResult, StoreWrite, StoredEvent, SubmissionId,
};
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::disk_budget::GitUsage;
use grasp_core::nostr::{Decision, EventId, supersedes};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoPath};
use grasp_core::state_machine::StateMachine;

use super::{Crashed, Fate, House, View};
use crate::git_model::Folder;
use crate::store_contract::Shelf;

/// What a batch leads to once it is on disk.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) replies: Vec<(SubmissionId, Decision)>,
    permits: Vec<(PushId, Result<PushPermit, PushRejection>)>,
    done: Vec<(PushId, Result<(), PushRejection>)>,
    orders: Vec<GitJob>,
    discards: Vec<ReceivedPack>,
    /// Names whose bells for sync rang.
    interest: BTreeSet<Identifier>,
    /// Refs that have changed on disk and may be seen after the commit.
    pub(super) refs: Vec<(RepoPath, View)>,
}

impl House {
    /// Tells the registrar something inside the batch.
    pub(super) fn tell(&mut self, batch: &mut Batch, input: AdmissionInput) {
        self.admission.handle(self.now, input);
        self.drain(batch);
        for summary in self.memory.removed_pulls() {
            self.admission.handle(self.now, AdmissionInput::PullRequestPurged(summary));
            self.drain(batch);
        }
    }

    /// Does what the registrar wants done inside the batch and remembers the rest.
    pub(super) fn drain(&mut self, batch: &mut Batch) {
        while let Some(output) = self.admission.poll() {
            match output {
                AdmissionOutput::Write(write) => self.write(&write),
                AdmissionOutput::Reply(ticket, verdict) => batch.replies.push((ticket, verdict)),
                AdmissionOutput::Broadcast(event) => self.passed.push(event),
                AdmissionOutput::Lookup(lookup) => {
                    let result = self.answer(batch, &lookup);
                    self.admission.handle(self.now, AdmissionInput::LookupDone(result));
                }
                AdmissionOutput::PushDecision(push, result) => batch.permits.push((push, result)),
                AdmissionOutput::PushDone(push, result) => batch.done.push((push, result)),
                AdmissionOutput::GitJob(order) => batch.orders.push(order),
                AdmissionOutput::DiscardPack(received_pack) => batch.discards.push(received_pack),
                AdmissionOutput::HostingChanged(_) | AdmissionOutput::PackAdopted(_) => {}
                AdmissionOutput::RepoNeedsChanged(identifier) => {
                    self.bells.0.insert(identifier.clone());
                    batch.interest.insert(identifier);
                }
                AdmissionOutput::WantedGitDataChanged(identifier) => drop(self.bells.1.insert(identifier)),
            }
        }
    }

    /// What a site and the others of its owner weigh, a byte for each object.
    fn weigh(&self, lookup: &RepoLookup) -> GitUsage {
        if !lookup.measure_disk {
            return GitUsage::default();
        }
        let bytes = |folder: &Folder| folder.pool.len() as u64;
        let own = self.git.folders().filter(|(repo_path, _)| repo_path.repo().owner == lookup.repo_path.repo().owner);
        GitUsage {
            repository_bytes: self.git.folder(&lookup.repo_path).map_or(0, bytes),
            owner_bytes: own.map(|(_, folder)| bytes(folder)).sum(),
        }
    }

    /// What the store, with the open batch, and the refs say.
    fn answer(&mut self, batch: &Batch, lookup: &RepoLookup) -> RepoLookupResult {
        let fresh = batch.refs.iter().rev().find(|(repo_path, _)| *repo_path == lookup.repo_path).map(|(_, view)| view);
        let View { refs, exists } = fresh.or(self.shown.get(&lookup.repo_path)).cloned().unwrap_or_default();
        let pull_requests = refs.keys().filter_map(|name| name.strip_prefix("refs/nostr/"));
        let pull_requests: Vec<_> =
            pull_requests.filter(|_| lookup.find_orphans).filter_map(EventId::from_hex).collect();
        let strays = pull_requests.into_iter().filter(|id| !self.memory.is_known(*id)).collect();
        let mut result = RepoLookupResult {
            has_folder: exists,
            refs,
            orphan_refs: strays,
            disk_usage: self.weigh(lookup),
            ..RepoLookupResult::default()
        };
        for id in &lookup.events {
            if let Some((event, status)) = self.memory.event(*id) {
                let lookups = self.memory.lookups(&event, self.admission.policy().needed_lookups(&event));
                result.events.insert(*id, StoredEvent { event, status, lookups });
            }
        }
        result
    }

    /// A write that contradicts the store's own tables, or serves what git does not have, is a bug of the registrar.
    fn write(&mut self, write: &StoreWrite) {
        if let StoreWrite::Put(event) | StoreWrite::Hold(event, _) = write {
            let lookups = self.memory.lookups(event, Default::default());
            assert_eq!(lookups.stored, None, "{write:?} of something known");
            let loses = lookups.current.is_some_and(|current| !supersedes(event.version(), current));
            assert!(!loses, "{write:?} of something superseded");
        }
        if let StoreWrite::Hold(event, _) = write
            && let Some(request) = PullRequest::from_any_event(event)
        {
            self.offered.insert(event.id, request.tip);
        }
        if let StoreWrite::Release(id) = write {
            self.check_release(*id);
        }
        self.memory.write(write);
    }

    /// Ends a batch: commits, shows, answers, orders. False if the commit failed: then nothing of it ever happened and
    /// everything has been read back.
    pub(super) fn conclude(&mut self, batch: Batch) -> Result<bool, Crashed> {
        assert!(batch.replies.is_empty(), "nobody asked: {:?}", batch.replies);
        self.tick()?;
        if self.fails() {
            self.memory.abort();
            self.turn_away();
            self.rebuild()?;
            return Ok(false);
        }
        self.memory.commit();
        self.commits += 1;
        for (repo_path, view) in batch.refs {
            self.shown.insert(repo_path, view);
        }
        for identifier in batch.interest {
            let followed = self.followed(&identifier);
            self.told.insert(identifier, followed);
        }
        self.check();
        self.tick()?;
        for (push, result) in batch.permits {
            self.permit(push, result);
        }
        for (push, result) in batch.done {
            self.done(push, result);
        }
        self.orders.extend(batch.orders.iter().cloned());
        self.running.extend(batch.orders);
        for received_pack in batch.discards {
            self.tick()?;
            self.git.discard(&received_pack);
        }
        Ok(true)
    }

    /// Something durable is about to happen, or has.
    pub(super) fn tick(&mut self) -> Result<(), Crashed> {
        self.steps += 1;
        if let Fate::Crash(left) = &mut self.fate {
            if *left == 0 {
                self.fate = Fate::Kind;
                return Err(Crashed { answered: self.answered });
            }
            *left -= 1;
        }
        Ok(())
    }

    fn fails(&mut self) -> bool {
        let Fate::FailCommit(left) = &mut self.fate else { return false };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.fate = Fate::Kind;
        true
    }

    /// The store cannot write: whoever waits for a push is told so. What the git room does meanwhile is done and
    /// forgotten.
    fn turn_away(&mut self) {
        for order in std::mem::take(&mut self.running) {
            while self.git.step(&order).is_none() {}
        }
        let waiting: Vec<PushId> = self.pushes.iter().filter(|(_, push)| push.waits()).map(|(id, _)| *id).collect();
        for id in waiting {
            self.turn_away_push(id);
        }
    }

    pub(super) fn after_git_step(&mut self) -> Result<(), Crashed> {
        self.check_git();
        self.tick()
    }
}
