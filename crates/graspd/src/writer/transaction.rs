//! A transaction in which the registrar is told facts and heard out.

use std::sync::Arc;

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::GitJobOutcome;
use grasp_core::admission::io::{AdmissionInput, AdmissionOutput, EventSubmission, StoreWrite, SubmissionId};
use grasp_core::limits;
use grasp_core::state_machine::StateMachine;
use grasp_core::time::Now;
use grasp_git::crash_point;
use grasp_store::{WriteTransaction, StoreError};

use super::effects::Effects;
use super::{Arrived, ModerationScan, State, Writer};
use crate::metrics;
use crate::writer::command::{AdminCommand, Books, FetchCommand, WriterCommand};
use crate::writer::policy::PolicyChange;
use crate::writer::submission::CheckedEvent;
use crate::writer::{command, lookups};

impl Writer {
    /// Tells the registrar all that there is to tell and does what it wants done, inside one transaction.
    pub(super) fn settle(
        &self,
        state: &mut State,
        batch: &[CheckedEvent],
        settled: &mut Effects,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut txn = self.store.begin()?;
        state.stale = true;
        let mut hearing =
            WriterTransaction { desk: self, admission: &mut state.admission, txn: &mut txn, now, settled };
        if std::mem::take(&mut state.begins) {
            hearing.tell(AdmissionInput::Ready)?;
        }
        let rules = self.rules.rules();
        if !Arc::ptr_eq(&rules, &state.rules) {
            state.banned = hearing.admission.count_banned_by(&rules.lists);
            state.sweep = ModerationScan::new(&rules.lists);
            hearing.tell(AdmissionInput::PolicyChanged(rules.clone()))?;
        }
        hearing.admission.wake(now);
        hearing.drain()?;
        for input in state.sweep.next_inputs(hearing.admission, &*hearing.txn, limits::REMOVAL_SLICE_EVENTS)? {
            hearing.tell(input)?;
        }
        for summary in hearing.txn.expired_events(now.wall, limits::REMOVAL_SLICE_EVENTS)? {
            hearing.tell(AdmissionInput::EventExpired(summary))?;
        }
        // One at a time, so that those behind one that fails are not lost.
        hearing.settled.unheard.reverse();
        while let Some(note) = hearing.settled.unheard.pop() {
            let input = match note {
                WriterCommand::Ask(push, reply) => {
                    state.asked.insert(push.id, reply);
                    AdmissionInput::PushRequested(push)
                }
                WriterCommand::Arrived(arrived) => {
                    let command::Arrived { received_push, packs, reply } = *arrived;
                    state.arrived.insert(received_push.push.id, Arrived { packs, reply });
                    AdmissionInput::PushReceived(received_push)
                }
                WriterCommand::Ended(push) => AdmissionInput::PushEnded(push),
                WriterCommand::Space(mark) => {
                    state.space = mark;
                    AdmissionInput::DiskLevel(mark)
                }
                // It is answered outside of transactions.
                WriterCommand::Pulse(_) => continue,
                WriterCommand::Ordered(order, carried) => {
                    state.orders.remove(&order.id);
                    let exists = carried.outcome != GitJobOutcome::Deleted;
                    let refs = carried.refs.into_iter();
                    hearing.settled.refs.extend(refs.map(|(repo_path, refs)| {
                        let exists = exists || repo_path != order.repo_path;
                        (repo_path, refs, exists)
                    }));
                    hearing.settled.unpinned.push(order.repo_path);
                    AdmissionInput::GitJobDone(order.id, carried.outcome)
                }
                WriterCommand::View(repo_path, reply) => {
                    let view = lookups::view(hearing.admission, hearing.txn, now, &repo_path)?;
                    hearing.settled.views.push((reply, view));
                    continue;
                }
                WriterCommand::Remember(rows, keys) => {
                    for row in &rows {
                        hearing.txn.put_sync_row(row)?;
                    }
                    for key in &keys {
                        hearing.txn.delete_sync_row(key)?;
                    }
                    continue;
                }
                WriterCommand::Hunt(FetchCommand::Began(fetch, events, begin)) => {
                    hearing.settled.begun.push(begin);
                    AdmissionInput::FetchStarted(fetch, events)
                }
                WriterCommand::Hunt(FetchCommand::Arrived(fetched_pack, pack)) => {
                    state.hauls.insert(fetched_pack.fetch, pack);
                    AdmissionInput::PackFetched(fetched_pack)
                }
                WriterCommand::Hunt(FetchCommand::Came(identifier)) => AdmissionInput::GitDataAdded(identifier),
                WriterCommand::Hunt(FetchCommand::Ended(fetch)) => AdmissionInput::FetchEnded(fetch),
                WriterCommand::Hunt(FetchCommand::Tried(events)) => AdmissionInput::SourcesTried(events),
                WriterCommand::Hunt(FetchCommand::Remember(rows, gone)) => {
                    for row in &rows {
                        hearing.txn.put_git_host(row)?;
                    }
                    for authority in &gone {
                        hearing.txn.delete_git_host(authority)?;
                    }
                    continue;
                }
                WriterCommand::Operator(note) => match hearing.operator(note)? {
                    Some(input) => input,
                    None => continue,
                },
                WriterCommand::Rules(reply) => {
                    hearing.settled.ruled.push((reply, PolicyChange { banned: state.banned }));
                    continue;
                }
                WriterCommand::Needs(repo_paths, reply) => {
                    let needed = lookups::needed(hearing.admission, hearing.txn, &repo_paths)?;
                    hearing.settled.needed.push((reply, needed));
                    continue;
                }
            };
            hearing.tell(input)?;
        }
        for (nth, checked) in batch.iter().enumerate() {
            let Ok(event) = &checked.result else { continue };
            let lookups = hearing.txn.lookups(event, hearing.admission.policy().needed_lookups(event))?;
            hearing.tell(AdmissionInput::EventSubmitted(EventSubmission {
                id: SubmissionId(nth as u64),
                event: event.clone(),
                source: checked.from.source(),
                lookups,
            }))?;
        }
        hearing.settled.purging = hearing.txn.purge_slice()?;
        for summary in hearing.txn.take_removed_pull_requests() {
            hearing.tell(AdmissionInput::PullRequestPurged(summary))?;
        }
        // Bells have rung; what they mean is found out once, when all has been said.
        for identifier in std::mem::take(&mut settled.interest) {
            let followed = lookups::followed(&state.admission, &txn, &identifier)?;
            if state.admission.policy().fetches_git_data {
                settled.hunt.kept.insert(identifier.clone(), state.admission.served_repos(&identifier));
            }
            settled.followed.insert(identifier, followed);
        }
        for identifier in std::mem::take(&mut settled.quarries) {
            let sought = lookups::quarries(&state.admission, &txn, &identifier)?;
            settled.hunt.sought.insert(identifier, sought);
        }
        settled.next_expiry = txn.next_expiry()?;
        crash_point::point("desk.commit");
        txn.commit()?;
        crash_point::point("desk.committed");
        state.stale = false;
        state.rules = rules;
        Ok(())
    }
}

/// A transaction in which the registrar is told facts and heard out.
struct WriterTransaction<'h, 's> {
    desk: &'h Writer,
    admission: &'h mut Admission,
    txn: &'h mut WriteTransaction<'s>,
    now: Now,
    settled: &'h mut Effects,
}

impl WriterTransaction<'_, '_> {
    /// Answers the operator after the commit; what the registrar must hear is given back.
    fn operator(&mut self, note: AdminCommand) -> Result<Option<AdmissionInput>, StoreError> {
        match note {
            AdminCommand::Held(after, reply) => {
                let held = lookups::held(self.admission, self.txn, self.now, after)?;
                self.settled.told.push(Box::new(move || drop(reply.send(held))));
            }
            AdminCommand::Books(repo_paths, reply) => {
                let books: Vec<Books> =
                    repo_paths.iter().map(|repo_path| lookups::books(self.admission, repo_path)).collect();
                self.settled.told.push(Box::new(move || drop(reply.send(books))));
            }
            AdminCommand::Written(reply) => {
                self.settled.told.push(Box::new(move || {
                    let _ = reply.send(());
                }));
            }
            AdminCommand::Drop(id, reply) => {
                let is_there = self.admission.purgatory().get(id).is_some();
                self.settled.told.push(Box::new(move || {
                    let _ = reply.send(is_there);
                }));
                return Ok(is_there.then_some(AdmissionInput::HeldEventDropped(id)));
            }
        }
        Ok(None)
    }

    fn tell(&mut self, input: AdmissionInput) -> Result<(), StoreError> {
        self.desk.meter.house().input(metrics::server::Machine::Registrar, input.label());
        self.admission.handle(self.now, input);
        self.drain()
    }

    fn drain(&mut self) -> Result<(), StoreError> {
        while let Some(output) = self.admission.poll() {
            self.desk.meter.house().output(metrics::server::Machine::Registrar, output.label());
            let settled = &mut *self.settled;
            match output {
                AdmissionOutput::Write(write) => {
                    if let StoreWrite::Release(id) = &write {
                        settled.released.extend(self.txn.held_kind(*id)?);
                    }
                    self.txn.write(&write)?;
                }
                AdmissionOutput::Reply(SubmissionId(nth), verdict) => {
                    if let Some(slot) = settled.verdicts.get_mut(nth as usize) {
                        *slot = Some(verdict);
                    }
                }
                AdmissionOutput::Broadcast(event) => settled.passed.push(event),
                AdmissionOutput::Lookup(question) => {
                    let known = settled.refs.iter().rev().find(|(repo_path, _, _)| *repo_path == question.repo_path);
                    let known = known.map(|(_, refs, exists)| (refs, *exists));
                    let rules = self.admission.policy();
                    let told = lookups::lookup_repo(rules, self.txn, &self.desk.directory, &question, known)?;
                    self.admission.handle(self.now, AdmissionInput::LookupDone(told));
                }
                AdmissionOutput::PushDecision(push, result) => settled.permits.push((push, result)),
                AdmissionOutput::PushDone(push, result) => settled.done.push((push, result)),
                AdmissionOutput::GitJob(order) => settled.orders.push(order),
                AdmissionOutput::DiscardPack(received_pack) => settled.discards.push(received_pack),
                AdmissionOutput::HostingChanged(repo) => drop(settled.hosting.insert(repo)),
                AdmissionOutput::RepoNeedsChanged(identifier) => drop(settled.interest.insert(identifier)),
                AdmissionOutput::WantedGitDataChanged(identifier) if self.admission.policy().fetches_git_data => {
                    drop(settled.quarries.insert(identifier))
                }
                AdmissionOutput::WantedGitDataChanged(_) => {}
                AdmissionOutput::PackAdopted(fetch) => settled.adopted.push(fetch),
            }
        }
        Ok(())
    }
}
