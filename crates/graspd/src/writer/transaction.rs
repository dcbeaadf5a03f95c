//! A transaction in which the registrar is told facts and heard out.

use std::sync::Arc;

use grasp_core::admission::Registrar;
use grasp_core::admission::git_job::Outcome;
use grasp_core::admission::io::{Input, Output, Submission, Ticket, Write};
use grasp_core::limits;
use grasp_core::state_machine::Machine;
use grasp_core::time::Now;
use grasp_git::crash_point;
use grasp_store::{Batch, StoreError};

use super::effects::Settled;
use super::{Arrived, Desk, State, Sweep};
use crate::metrics;
use crate::writer::command::{Books, HuntNote, Note, OperatorNote};
use crate::writer::policy::RulesChanged;
use crate::writer::submission::Checked;
use crate::writer::{command, lookups};

impl Desk {
    /// Tells the registrar all that there is to tell and does what it wants done, inside one transaction.
    pub(super) fn settle(&self, state: &mut State, batch: &[Checked], settled: &mut Settled) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut txn = self.store.begin()?;
        state.stale = true;
        let mut hearing = Hearing { desk: self, registrar: &mut state.registrar, txn: &mut txn, now, settled };
        if std::mem::take(&mut state.begins) {
            hearing.tell(Input::Ready)?;
        }
        let rules = self.rules.rules();
        if !Arc::ptr_eq(&rules, &state.rules) {
            state.banned = hearing.registrar.banned_by(&rules.lists);
            state.sweep = Sweep::of(&rules.lists);
            hearing.tell(Input::Rules(rules.clone()))?;
        }
        hearing.registrar.wake(now);
        hearing.drain()?;
        for input in state.sweep.next(hearing.registrar, &*hearing.txn, limits::REMOVAL_SLICE)? {
            hearing.tell(input)?;
        }
        for summary in hearing.txn.expired(now.wall, limits::REMOVAL_SLICE)? {
            hearing.tell(Input::Expired(summary))?;
        }
        // One at a time, so that those behind one that fails are not lost.
        hearing.settled.unheard.reverse();
        while let Some(note) = hearing.settled.unheard.pop() {
            let input = match note {
                Note::Ask(push, reply) => {
                    state.asked.insert(push.id, reply);
                    Input::PushAsked(push)
                }
                Note::Arrived(arrived) => {
                    let command::Arrived { arrival, packs, reply } = *arrived;
                    state.arrived.insert(arrival.push.id, Arrived { packs, reply });
                    Input::PushArrived(arrival)
                }
                Note::Ended(push) => Input::PushEnded(push),
                Note::Space(mark) => {
                    state.space = mark;
                    Input::Space(mark)
                }
                // It is answered outside of transactions.
                Note::Pulse(_) => continue,
                Note::Ordered(order, carried) => {
                    state.orders.remove(&order.id);
                    let exists = carried.outcome != Outcome::Retired;
                    let refs = carried.refs.into_iter();
                    hearing.settled.refs.extend(refs.map(|(site, refs)| {
                        let exists = exists || site != order.site;
                        (site, refs, exists)
                    }));
                    hearing.settled.unpinned.push(order.site);
                    Input::Ordered(order.id, carried.outcome)
                }
                Note::View(site, reply) => {
                    let view = lookups::view(hearing.registrar, hearing.txn, now, &site)?;
                    hearing.settled.views.push((reply, view));
                    continue;
                }
                Note::Remember(rows, keys) => {
                    for row in &rows {
                        hearing.txn.remember(row)?;
                    }
                    for key in &keys {
                        hearing.txn.forget(key)?;
                    }
                    continue;
                }
                Note::Hunt(HuntNote::Began(fetch, events, begin)) => {
                    hearing.settled.begun.push(begin);
                    Input::FetchBegan(fetch, events)
                }
                Note::Hunt(HuntNote::Arrived(haul, pack)) => {
                    state.hauls.insert(haul.fetch, pack);
                    Input::FetchArrived(haul)
                }
                Note::Hunt(HuntNote::Came(identifier)) => Input::DataCame(identifier),
                Note::Hunt(HuntNote::Ended(fetch)) => Input::FetchEnded(fetch),
                Note::Hunt(HuntNote::Tried(events)) => Input::Tried(events),
                Note::Hunt(HuntNote::Remember(rows, gone)) => {
                    for row in &rows {
                        hearing.txn.remember_host(row)?;
                    }
                    for authority in &gone {
                        hearing.txn.forget_host(authority)?;
                    }
                    continue;
                }
                Note::Operator(note) => match hearing.operator(note)? {
                    Some(input) => input,
                    None => continue,
                },
                Note::Rules(reply) => {
                    hearing.settled.ruled.push((reply, RulesChanged { banned: state.banned }));
                    continue;
                }
                Note::Needs(sites, reply) => {
                    let needed = lookups::needed(hearing.registrar, hearing.txn, &sites)?;
                    hearing.settled.needed.push((reply, needed));
                    continue;
                }
            };
            hearing.tell(input)?;
        }
        for (nth, checked) in batch.iter().enumerate() {
            let Ok(event) = &checked.result else { continue };
            let facts = hearing.txn.facts(event, hearing.registrar.rules().questions(event))?;
            hearing.tell(Input::Submitted(Submission {
                ticket: Ticket(nth as u64),
                event: event.clone(),
                source: checked.from.source(),
                facts,
            }))?;
        }
        hearing.settled.purging = hearing.txn.purge()?;
        for summary in hearing.txn.take_removed_pulls() {
            hearing.tell(Input::Purged(summary))?;
        }
        // Bells have rung; what they mean is found out once, when all has been said.
        for identifier in std::mem::take(&mut settled.interest) {
            let followed = lookups::followed(&state.registrar, &txn, &identifier)?;
            if state.registrar.rules().hunts {
                settled.hunt.kept.insert(identifier.clone(), state.registrar.kept(&identifier));
            }
            settled.followed.insert(identifier, followed);
        }
        for identifier in std::mem::take(&mut settled.quarries) {
            let sought = lookups::quarries(&state.registrar, &txn, &identifier)?;
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
struct Hearing<'h, 's> {
    desk: &'h Desk,
    registrar: &'h mut Registrar,
    txn: &'h mut Batch<'s>,
    now: Now,
    settled: &'h mut Settled,
}

impl Hearing<'_, '_> {
    /// Answers the operator after the commit; what the registrar must hear is given back.
    fn operator(&mut self, note: OperatorNote) -> Result<Option<Input>, StoreError> {
        match note {
            OperatorNote::Held(after, reply) => {
                let held = lookups::held(self.registrar, self.txn, self.now, after)?;
                self.settled.told.push(Box::new(move || drop(reply.send(held))));
            }
            OperatorNote::Books(sites, reply) => {
                let books: Vec<Books> = sites.iter().map(|site| lookups::books(self.registrar, site)).collect();
                self.settled.told.push(Box::new(move || drop(reply.send(books))));
            }
            OperatorNote::Written(reply) => {
                self.settled.told.push(Box::new(move || {
                    let _ = reply.send(());
                }));
            }
            OperatorNote::Drop(id, reply) => {
                let is_there = self.registrar.purgatory().get(id).is_some();
                self.settled.told.push(Box::new(move || {
                    let _ = reply.send(is_there);
                }));
                return Ok(is_there.then_some(Input::Dropped(id)));
            }
        }
        Ok(None)
    }

    fn tell(&mut self, input: Input) -> Result<(), StoreError> {
        self.desk.meter.house().input(metrics::server::Machine::Registrar, &input);
        self.registrar.handle(self.now, input);
        self.drain()
    }

    fn drain(&mut self) -> Result<(), StoreError> {
        while let Some(output) = self.registrar.poll() {
            self.desk.meter.house().output(metrics::server::Machine::Registrar, &output);
            let settled = &mut *self.settled;
            match output {
                Output::Write(write) => {
                    if let Write::Release(id) = &write {
                        settled.released.extend(self.txn.held_kind(*id)?);
                    }
                    self.txn.write(&write)?;
                }
                Output::Reply(Ticket(nth), verdict) => {
                    if let Some(slot) = settled.verdicts.get_mut(nth as usize) {
                        *slot = Some(verdict);
                    }
                }
                Output::Pass(event) => settled.passed.push(event),
                Output::Ask(question) => {
                    let known = settled.refs.iter().rev().find(|(site, _, _)| *site == question.site);
                    let known = known.map(|(_, refs, exists)| (refs, *exists));
                    let rules = self.registrar.rules();
                    let told = lookups::told(rules, self.txn, &self.desk.directory, &question, known)?;
                    self.registrar.handle(self.now, Input::Told(told));
                }
                Output::Permit(push, result) => settled.permits.push((push, result)),
                Output::PushDone(push, result) => settled.done.push((push, result)),
                Output::Order(order) => settled.orders.push(order),
                Output::Discard(parcel) => settled.discards.push(parcel),
                Output::Hosting(repo) => drop(settled.hosting.insert(repo)),
                Output::Interest(identifier) => drop(settled.interest.insert(identifier)),
                Output::Quarry(identifier) if self.registrar.rules().hunts => drop(settled.quarries.insert(identifier)),
                Output::Quarry(_) => {}
                Output::Adopted(fetch) => settled.adopted.push(fetch),
            }
        }
        Ok(())
    }
}
