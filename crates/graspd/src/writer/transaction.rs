//! Transaction of one batch: runs [`Admission`] on commands and events, and writes what it decides.
//!
//! Lookups are read inside the write transaction, directly before the decision that needs them
//! (`docs/design/admission.md#decisions-inside-the-write-transaction`).

use std::sync::Arc;
use std::time::Instant;

use grasp_core::admission::Admission;
use grasp_core::admission::io::{AdmissionInput, AdmissionOutput, StoreWrite};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::limits;
use grasp_core::state_machine::StateMachine;
use grasp_core::time::Now;
use grasp_git::crash_point;
use grasp_store::{StoreError, WriteTransaction};

use super::effects::Effects;
use super::{ModerationScan, Writer, WriterState};
use crate::metrics;
use crate::writer::command::WriterCommand;
use crate::writer::lookups;
use crate::writer::policy::PolicyChange;
use crate::writer::submission::CheckedEvent;

impl Writer {
    /// Handles a batch inside one transaction and commits it. Collects in `effects` what follows from it. If the disk has
    /// less free space than its reserve, for admission it is full.
    pub(super) fn run_transaction(
        &self,
        state: &mut WriterState,
        events: &[CheckedEvent],
        is_below_reserve: bool,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut txn = self.store.begin()?;
        // Until the commit, admission is ahead of the store.
        state.is_stale = true;
        let mut transaction =
            WriterTransaction { writer: self, admission: &mut state.admission, txn: &mut txn, now, effects };
        if std::mem::replace(&mut state.is_below_reserve, is_below_reserve) != is_below_reserve {
            let level = if is_below_reserve { DiskLevel::Hard } else { state.disk_level };
            transaction.handle(AdmissionInput::DiskLevel(level))?;
        }
        if std::mem::take(&mut state.is_starting) {
            transaction.handle(AdmissionInput::Ready)?;
        }
        let policy = self.policy.policy();
        if !Arc::ptr_eq(&policy, &state.policy) {
            state.banned_repos = transaction.admission.count_banned_by(&policy.lists);
            state.moderation_scan = ModerationScan::new(&policy.lists);
            transaction.handle(AdmissionInput::PolicyChanged(policy.clone()))?;
        }
        transaction.wake()?;
        let scan = &mut state.moderation_scan;
        for input in scan.next_inputs(transaction.admission, &*transaction.txn, limits::REMOVAL_SLICE_EVENTS)? {
            transaction.effects.banned_events += usize::from(matches!(input, AdmissionInput::BannedEvent(_)));
            transaction.handle(input)?;
        }
        for summary in transaction.txn.expired_events(now.wall, limits::REMOVAL_SLICE_EVENTS)? {
            transaction.handle(AdmissionInput::EventExpired(summary))?;
        }
        // One at a time: if one fails, those behind it are still in `effects.commands`.
        transaction.effects.commands.reverse();
        while let Some(command) = transaction.effects.commands.pop() {
            let input = match command {
                WriterCommand::PushRequested(push, reply) => {
                    state.push_requests.insert(push.id, reply);
                    AdmissionInput::PushRequested(push)
                }
                WriterCommand::PushReceived(received_push, pending) => {
                    state.pending_pushes.insert(received_push.push.id, pending);
                    AdmissionInput::PushReceived(*received_push)
                }
                WriterCommand::PushEnded(push) => AdmissionInput::PushEnded(push),
                WriterCommand::DiskLevelChanged(level) => {
                    state.disk_level = level;
                    AdmissionInput::DiskLevel(if state.is_below_reserve { DiskLevel::Hard } else { level })
                }
                // Answered outside of transactions.
                WriterCommand::ReportStats(_) => continue,
                WriterCommand::GitJobDone(job, outcome) => {
                    state.running_jobs.remove(&job.id);
                    transaction.effects.ended_jobs.push(job.repo_path);
                    AdmissionInput::GitJobDone(job.id, outcome)
                }
                WriterCommand::Read(read) => {
                    let started = Instant::now();
                    let send_reply = read(transaction.admission, transaction.txn, now)?;
                    self.metrics.server().observe_writer_turn(started.elapsed());
                    transaction.effects.replies.push(send_reply);
                    continue;
                }
                WriterCommand::SaveSyncRows(rows, deleted) => {
                    for row in &rows {
                        transaction.txn.put_sync_row(row)?;
                    }
                    for key in &deleted {
                        transaction.txn.delete_sync_row(key)?;
                    }
                    continue;
                }
                WriterCommand::FetchStarted(fetch, events, reply) => {
                    transaction.effects.add_reply(move || reply.send(()));
                    AdmissionInput::FetchStarted(fetch, events)
                }
                WriterCommand::PackFetched(fetched_pack, pack) => {
                    state.fetched_packs.insert(fetched_pack.fetch, pack);
                    AdmissionInput::PackFetched(fetched_pack)
                }
                WriterCommand::RepoDegraded(repo_path, reason, refs, reply) => {
                    if let Some(refs) = refs {
                        let write = StoreWrite::SetRefs(repo_path.clone(), Arc::new(refs));
                        transaction.txn.write(&write)?;
                        transaction.effects.note_repo_write(write);
                    }
                    transaction.effects.add_reply(move || reply.send(()));
                    AdmissionInput::RepoDegraded(repo_path, reason)
                }
                WriterCommand::PacksChanged(repo_path, packs, reply) => {
                    transaction.txn.write(&StoreWrite::SetPacks(repo_path, packs))?;
                    transaction.effects.add_reply(move || reply.send(()));
                    continue;
                }
                WriterCommand::GitDataAdded(identifier) => AdmissionInput::GitDataAdded(identifier),
                WriterCommand::FetchEnded(fetch) => AdmissionInput::FetchEnded(fetch),
                WriterCommand::SourcesTried(events) => AdmissionInput::SourcesTried(events),
                WriterCommand::HeldEventsSeen(ids) => AdmissionInput::HeldEventsSeen(ids),
                WriterCommand::SaveHostRows(rows, deleted) => {
                    for row in &rows {
                        transaction.txn.put_git_host(row)?;
                    }
                    for authority in &deleted {
                        transaction.txn.delete_git_host(authority)?;
                    }
                    continue;
                }
                WriterCommand::DropHeld(id, reply) => {
                    let is_held = transaction.admission.purgatory().get(id).is_some();
                    transaction.effects.add_reply(move || reply.send(is_held));
                    if !is_held {
                        continue;
                    }
                    AdmissionInput::HeldEventDropped(id)
                }
                WriterCommand::PolicyChanged(reply) => {
                    let change = PolicyChange { banned_repos: state.banned_repos };
                    transaction.effects.add_reply(move || reply.send(change));
                    continue;
                }
            };
            transaction.handle(input)?;
        }
        for checked in events {
            let Ok(event) = &checked.result else { continue };
            let lookups = transaction.txn.lookups(event, transaction.admission.policy().needed_lookups(event))?;
            let source = checked.submitter.source(event.pubkey);
            let (network, submitter) = (checked.submitter.network(), checked.submitter.held_submitter());
            let (event, digest) = (event.clone(), checked.digest.clone());
            let input = AdmissionInput::EventSubmitted { event, source, network, submitter, digest, lookups };
            transaction.handle(input)?;
        }
        transaction.effects.is_purging = transaction.txn.purge_slice()?;
        for summary in transaction.txn.take_removed_pull_requests() {
            transaction.handle(AdmissionInput::PullRequestPurged(summary))?;
        }
        // Changed needs and wanted git data are read once per identifier, after all inputs.
        for identifier in std::mem::take(&mut effects.changed_needs) {
            let started = Instant::now();
            let repo_needs = lookups::repo_needs(&state.admission, &txn, &identifier)?;
            if state.admission.policy().fetches_git_data {
                let served = state.admission.served_repos(&identifier);
                effects.fetch_update.served.insert(identifier.clone(), served);
            }
            effects.repo_needs.insert(identifier, repo_needs);
            self.metrics.server().observe_writer_turn(started.elapsed());
        }
        for identifier in std::mem::take(&mut effects.changed_wanted) {
            let started = Instant::now();
            let wanted = lookups::wanted_git_data(&state.admission, &txn, &identifier)?;
            effects.fetch_update.wanted.insert(identifier, wanted);
            self.metrics.server().observe_writer_turn(started.elapsed());
        }
        for (repo_path, row) in &mut effects.repos {
            *row = txn.repo(repo_path)?;
        }
        effects.next_expiry = txn.next_expiry()?;
        effects.released_kinds = txn.take_released_kinds();
        crash_point::point("writer.commit");
        txn.commit()?;
        crash_point::point("writer.committed");
        state.is_stale = false;
        state.policy = policy;
        Ok(())
    }
}

/// An open write transaction, with the state machine that decides what is written.
struct WriterTransaction<'h, 's> {
    writer: &'h Writer,
    admission: &'h mut Admission,
    txn: &'h mut WriteTransaction<'s>,
    now: Now,
    effects: &'h mut Effects,
}

impl WriterTransaction<'_, '_> {
    /// Passes an input to admission and handles its outputs.
    fn handle(&mut self, input: AdmissionInput) -> Result<(), StoreError> {
        self.writer.metrics.server().count_input(metrics::server::MachineKind::Admission, input.label());
        let started = Instant::now();
        self.admission.handle(self.now, input);
        self.handle_outputs()?;
        self.writer.metrics.server().observe_writer_turn(started.elapsed());
        Ok(())
    }

    /// Lets admission do what is due, and handles its outputs.
    fn wake(&mut self) -> Result<(), StoreError> {
        let started = Instant::now();
        self.admission.wake(self.now);
        self.handle_outputs()?;
        self.writer.metrics.server().observe_writer_turn(started.elapsed());
        Ok(())
    }

    fn handle_outputs(&mut self) -> Result<(), StoreError> {
        while let Some(output) = self.admission.poll() {
            self.writer.metrics.server().count_output(metrics::server::MachineKind::Admission, output.label());
            let effects = &mut *self.effects;
            match output {
                AdmissionOutput::Write(write) => {
                    self.txn.write(&write)?;
                    effects.note_repo_write(write);
                }
                AdmissionOutput::Reply(decision) => effects.decisions.push(decision),
                AdmissionOutput::Broadcast(event) => effects.ephemeral.push(event),
                AdmissionOutput::Lookup(lookup) => {
                    let policy = self.admission.policy();
                    let result = lookups::lookup_repo(policy, self.txn, &self.writer.ref_cache, &lookup)?;
                    self.admission.handle(self.now, AdmissionInput::LookupDone(result));
                }
                AdmissionOutput::PushDecision(push, decision) => effects.push_decisions.push((push, decision)),
                AdmissionOutput::PushDone(push, result) => effects.push_results.push((push, result)),
                AdmissionOutput::GitJob(job) => effects.git_jobs.push(job),
                AdmissionOutput::DiscardPack(received_pack) => effects.discarded_packs.push(received_pack),
                AdmissionOutput::HostingChanged(repo) => drop(effects.hosting_changes.insert(repo)),
                AdmissionOutput::RepoNeedsChanged(identifier) => drop(effects.changed_needs.insert(identifier)),
                AdmissionOutput::WantedGitDataChanged(identifier) if self.admission.policy().fetches_git_data => {
                    effects.changed_wanted.insert(identifier);
                }
                AdmissionOutput::WantedGitDataChanged(_) => {}
                AdmissionOutput::PackAdopted(fetch) => effects.adopted_fetches.push(fetch),
            }
        }
        Ok(())
    }
}
