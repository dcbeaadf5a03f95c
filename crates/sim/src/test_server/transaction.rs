//! One batch: what the registrar is told and wants inside a transaction, and what follows after the commit.

use std::collections::BTreeSet;

use grasp_core::admission::git_job::{Order, Parcel};
use grasp_core::admission::io::{Found, Input, Output, PushId, Question, Ticket, Told, Write};
use grasp_core::admission::push::{Permit, PushRefusal};
use grasp_core::disk_budget::Weight;
use grasp_core::nostr::{EventId, Verdict, supersedes};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, Site};
use grasp_core::state_machine::Machine;

use super::{Crashed, Fate, House, View};
use crate::git_model::Folder;
use crate::store_contract::Shelf;

/// What a batch leads to once it is on disk.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) replies: Vec<(Ticket, Verdict)>,
    permits: Vec<(PushId, Result<Permit, PushRefusal>)>,
    done: Vec<(PushId, Result<(), PushRefusal>)>,
    orders: Vec<Order>,
    discards: Vec<Parcel>,
    /// Names whose bells for sync rang.
    interest: BTreeSet<Identifier>,
    /// Refs that have changed on disk and may be seen after the commit.
    pub(super) refs: Vec<(Site, View)>,
}

impl House {
    /// Tells the registrar something inside the batch.
    pub(super) fn tell(&mut self, batch: &mut Batch, input: Input) {
        self.registrar.handle(self.now, input);
        self.drain(batch);
        for summary in self.memory.removed_pulls() {
            self.registrar.handle(self.now, Input::Purged(summary));
            self.drain(batch);
        }
    }

    /// Does what the registrar wants done inside the batch and remembers the rest.
    pub(super) fn drain(&mut self, batch: &mut Batch) {
        while let Some(output) = self.registrar.poll() {
            match output {
                Output::Write(write) => self.write(&write),
                Output::Reply(ticket, verdict) => batch.replies.push((ticket, verdict)),
                Output::Pass(event) => self.passed.push(event),
                Output::Ask(question) => {
                    let told = self.answer(batch, &question);
                    self.registrar.handle(self.now, Input::Told(told));
                }
                Output::Permit(push, result) => batch.permits.push((push, result)),
                Output::PushDone(push, result) => batch.done.push((push, result)),
                Output::Order(order) => batch.orders.push(order),
                Output::Discard(parcel) => batch.discards.push(parcel),
                Output::Hosting(_) | Output::Adopted(_) => {}
                Output::Interest(identifier) => {
                    self.bells.0.insert(identifier.clone());
                    batch.interest.insert(identifier);
                }
                Output::Quarry(identifier) => drop(self.bells.1.insert(identifier)),
            }
        }
    }

    /// What a site and the others of its owner weigh, a byte for each object.
    fn weigh(&self, question: &Question) -> Weight {
        if !question.weigh {
            return Weight::default();
        }
        let bytes = |folder: &Folder| folder.pool.len() as u64;
        let own = self.git.sites().filter(|(site, _)| site.repo().owner == question.site.repo().owner);
        Weight {
            repository: self.git.site(&question.site).map_or(0, bytes),
            key: own.map(|(_, folder)| bytes(folder)).sum(),
        }
    }

    /// What the store, with the open batch, and the refs say.
    fn answer(&mut self, batch: &Batch, question: &Question) -> Told {
        let fresh = batch.refs.iter().rev().find(|(site, _)| *site == question.site).map(|(_, view)| view);
        let View { refs, exists } = fresh.or(self.shown.get(&question.site)).cloned().unwrap_or_default();
        let pulls = refs.keys().filter_map(|name| name.strip_prefix("refs/nostr/"));
        let pulls: Vec<_> = pulls.filter(|_| question.strays).filter_map(EventId::from_hex).collect();
        let strays = pulls.into_iter().filter(|id| !self.memory.is_known(*id)).collect();
        let mut told = Told { exists, refs, strays, weight: self.weigh(question), ..Told::default() };
        for id in &question.events {
            if let Some((event, place)) = self.memory.event(*id) {
                let facts = self.memory.facts(&event, self.registrar.rules().questions(&event));
                told.events.insert(*id, Found { event, place, facts });
            }
        }
        told
    }

    /// A write that contradicts the store's own tables, or serves what git does not have, is a bug of the registrar.
    fn write(&mut self, write: &Write) {
        if let Write::Put(event) | Write::Hold(event, _) = write {
            let facts = self.memory.facts(event, Default::default());
            assert_eq!(facts.known, None, "{write:?} of something known");
            let loses = facts.current.is_some_and(|current| !supersedes(event.stamp(), current));
            assert!(!loses, "{write:?} of something superseded");
        }
        if let Write::Hold(event, _) = write
            && let Some(request) = PullRequest::read_if(event)
        {
            self.offered.insert(event.id, request.tip);
        }
        if let Write::Release(id) = write {
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
        for (site, view) in batch.refs {
            self.shown.insert(site, view);
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
        for parcel in batch.discards {
            self.tick()?;
            self.git.discard(&parcel);
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
