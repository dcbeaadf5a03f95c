//! Events on their way to a verdict, and who waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::BatchId;
use super::fault_injection::Flaw;
use super::io::{Judgement, Output, Row, RowKey, Session, Standing, SubId, Submission, Ticket, Via};
use super::recent_arrivals::Tick;
use super::rejected::{Offered, Why, Woken};
use super::relay::LinkId;
use super::relay_url::RelayUrl;
use super::{Syncer, layer};
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::nostr::rejection::Refusal;
use crate::time::Timestamp;

/// Identity is id and signature: a forgery must not hide the honest copy.
type Identity = (EventId, [u8; 64]);

/// All events on their way.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flights: BTreeMap<Ticket, Flight>,
    tickets: BTreeMap<Identity, Ticket>,
}

#[derive(Debug)]
struct Flight {
    event: Arc<Event>,
    waiters: Vec<Waiter>,
    /// Relays that had it when it was refused before, connected or not.
    offered: Vec<RelayUrl>,
    /// When it was submitted.
    at: Tick,
}

/// Somebody who brought an event. If its session has ended, nobody waits.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    link: LinkId,
    session: Session,
    batch: Option<BatchId>,
    via: Via,
    wide: bool,
    /// It was submitted again, and its catch-up waits for it.
    loose: bool,
}

impl Flights {
    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }

    /// The oldest event of each relay that came live and has not been judged: no batch waits for it, so nothing else would
    /// know of it after a crash.
    pub(super) fn unjudged(&self) -> BTreeMap<LinkId, Timestamp> {
        let mut oldest = BTreeMap::new();
        for flight in self.flights.values() {
            for waiter in flight.waiters.iter().filter(|waiter| waiter.batch.is_none()) {
                let at = flight.event.created_at;
                oldest.entry(waiter.link).and_modify(|oldest: &mut Timestamp| *oldest = at.min(*oldest)).or_insert(at);
            }
        }
        oldest
    }
}

impl Syncer {
    /// A relay sends an event.
    pub(super) fn event(&mut self, id: LinkId, session: Session, heard: (SubId, Arc<Event>, Standing)) {
        let (sub, event, standing) = heard;
        let Some((delivery, via)) = self.with(id, |link, ctx| {
            let delivery = link.deliver(ctx, sub, &event);
            let batch = delivery.batch.and_then(|id| link.up().and_then(|up| up.batches.get(&id)));
            let via = batch.map_or(Via::Live, |batch| batch.via);
            (delivery, via)
        }) else {
            return;
        };
        if delivery.late {
            self.hang_up(id);
        }
        if standing == Standing::Known {
            self.wide_delivery(id, delivery.wide, true);
            return;
        }
        let waiter = Waiter { link: id, session, batch: delivery.batch, via, wide: delivery.wide, loose: false };
        let relay = self.links.get(&id).map(|link| link.url.clone()).unwrap_or_default();
        if let Offered::Refused(row) = self.refused.offered(&event.id, &relay) {
            if let Some(row) = row {
                self.out.push_back(Output::Remember(Row::Refused(row)));
            }
            self.wide_delivery(id, delivery.wide, false);
            if self.flawed(Flaw::PermitTwice) {
                self.out.push_back(Output::Release(session));
            }
            return self.out.push_back(Output::Release(session));
        }
        let identity = self.identity(&event);
        if let Some(flight) =
            self.flights.tickets.get(&identity).and_then(|ticket| self.flights.flights.get_mut(ticket))
            && !super::fault_injection::makes(self.config.flaw, Flaw::JudgedTwice)
        {
            flight.waiters.push(waiter);
            self.await_verdict(waiter);
            return self.out.push_back(Output::Release(session));
        }
        self.submit(event, Some(session), vec![waiter], Vec::new());
        self.await_verdict(waiter);
    }

    fn identity(&self, event: &Event) -> Identity {
        let sig = if self.flawed(Flaw::PoisonedId) { [0; 64] } else { event.sig };
        (event.id, sig)
    }

    fn await_verdict(&mut self, waiter: Waiter) {
        let Some(up) = self.links.get_mut(&waiter.link).and_then(|link| link.session(waiter.session)) else { return };
        if let Some(batch) = waiter.batch.and_then(|batch| up.batches.get_mut(&batch)) {
            batch.unjudged += 1;
        }
        if waiter.loose {
            up.loose += 1;
        }
    }

    fn submit(&mut self, event: Arc<Event>, session: Option<Session>, waiters: Vec<Waiter>, offered: Vec<RelayUrl>) {
        self.next += 1;
        let ticket = Ticket(self.next);
        let via = waiters.first().map_or(Via::CatchUp, |waiter| waiter.via);
        let relay = waiters.first().and_then(|waiter| self.links.get(&waiter.link)).map(|link| link.url.clone());
        let relay = relay.or_else(|| offered.first().cloned());
        let identity = self.identity(&event);
        self.flights.tickets.insert(identity, ticket);
        self.flights.flights.insert(ticket, Flight { event: event.clone(), waiters, offered, at: self.recent.now() });
        let relay = relay.unwrap_or_default();
        self.out.push_back(Output::Submit(Submission { ticket, event, session, relay, via }));
    }

    /// A verdict has come.
    pub(super) fn judged(&mut self, ticket: Ticket, judgement: Judgement) {
        let Some(Flight { event, waiters, offered, at }) = self.flights.flights.remove(&ticket) else { return };
        let identity = self.identity(&event);
        if self.flights.tickets.get(&identity) == Some(&ticket) {
            self.flights.tickets.remove(&identity);
        }
        if let Judgement::Refused(why) = &judgement
            && Why::of(why).is_some_and(Why::waits)
            && self.recent.changes(&event, at)
        {
            // What it lacked may have come behind it; whoever waits goes on waiting.
            return self.submit(event, None, waiters, offered);
        }
        let now = self.now;
        let is_new = matches!(judgement, Judgement::Stored | Judgement::Held);
        let mut first = true;
        for waiter in &waiters {
            let late = self.flawed(Flaw::LateJudgement);
            let Some(link) = self.links.get_mut(&waiter.link) else { continue };
            if is_new && first {
                link.totals.received += 1;
            }
            let complete_at = link.complete_at;
            let lost_at = link.since;
            let session = if late { link.current_session().unwrap_or(waiter.session) } else { waiter.session };
            let Some(up) = link.session(session) else { continue };
            if waiter.loose {
                up.loose = up.loose.saturating_sub(1);
                link.stirred = true;
            }
            let Some(up) = link.session(session) else { continue };
            if judgement == Judgement::Forged {
                up.nonsense += 1;
            }
            let booked = waiter.batch.map(|batch| if late { up.waiting_batch().unwrap_or(batch) } else { batch });
            if let Some(batch) = booked.and_then(|batch| up.batches.get_mut(&batch)) {
                batch.unjudged = batch.unjudged.saturating_sub(1);
                if is_new && first {
                    batch.events += 1;
                    // It was made while everything here was followed live and complete: it should have come then.
                    let from = complete_at.map(|at| at.plus_secs(limits::SYNC_OVERLAP_SECS));
                    let live = from.is_some_and(|from| event.created_at > from)
                        && lost_at.is_none_or(|lost| event.created_at < lost);
                    if live && event.created_at < now.wall && batch.since.is_none() == (batch.via == Via::Daily) {
                        batch.gaps.0 += 1;
                        if batch.gaps.1.len() < 3 {
                            batch.gaps.1.push(event.id);
                        }
                    }
                }
                if let Judgement::Refused(why) = &judgement
                    && why.is_about_room()
                {
                    batch.trouble("there was no room for its events");
                }
            }
            first = false;
            let useful = !matches!(
                &judgement,
                Judgement::Refused(
                    Refusal::Unrelated
                        | Refusal::NotListed
                        | Refusal::NoAnnouncement
                        | Refusal::Banned
                        | Refusal::Unwelcome
                        | Refusal::NotWhitelisted
                        | Refusal::NotArchived
                )
            );
            self.wide_delivery(waiter.link, waiter.wide, useful);
            self.restless.insert(waiter.link);
        }
        if let Judgement::Refused(why) = &judgement {
            let links = waiters.iter().filter_map(|waiter| self.links.get(&waiter.link)).map(|link| link.url.clone());
            let relays: Vec<RelayUrl> = links.chain(offered).collect();
            for relay in &relays {
                if let Some(row) = self.refused.refuse(event.clone(), why, relay, layer(&event), now) {
                    self.out.push_back(Output::Remember(Row::Refused(row)));
                }
            }
        }
    }

    /// Counts what comes without tags: where little of it belongs here, tags are better.
    fn wide_delivery(&mut self, id: LinkId, wide: bool, useful: bool) {
        if !wide {
            return;
        }
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(up) = link.up_mut() else { return };
        up.wide_seen.0 += 1;
        up.wide_seen.1 += u32::from(useful);
        let (seen, useful) = up.wide_seen;
        if seen >= limits::SYNC_WIDE_SAMPLE {
            up.wide_seen = (0, 0);
            if useful * 2 < seen {
                link.learned.not_wide = true;
                link.unsaved = true;
                self.hang_up(id);
            }
        }
    }

    /// What was refused may be wanted now.
    pub(super) fn reconsider(&mut self, woken: Woken) {
        for id in woken.forgotten {
            self.out.push_back(Output::Forget(RowKey::Refused(id)));
        }
        for (event, relays) in woken.hot {
            let link = relays.iter().find_map(|relay| {
                let id = self.places.get(relay.place())?;
                let session = self.links.get(id)?.up()?.session;
                Some((*id, session))
            });
            let waiters: Vec<Waiter> = link
                .into_iter()
                .map(|(link, session)| Waiter {
                    link,
                    session,
                    batch: None,
                    via: Via::CatchUp,
                    wide: false,
                    loose: true,
                })
                .collect();
            let identity = self.identity(&event);
            if self.flights.tickets.contains_key(&identity) {
                continue;
            }
            self.submit(event, None, waiters.clone(), relays);
            for waiter in waiters {
                self.await_verdict(waiter);
            }
        }
        for (id, relays) in woken.cold {
            let links: Vec<LinkId> =
                relays.iter().filter_map(|relay| self.places.get(relay.place()).copied()).collect();
            let up = links.iter().find(|id| self.links.get(id).is_some_and(|link| link.up().is_some()));
            let Some(link) = up.or(links.first()).and_then(|id| self.links.get_mut(id)) else { continue };
            if link.fetch.len() < limits::SYNC_MAX_FETCH {
                link.fetch.insert(id);
                let id = link.id;
                self.restless.insert(id);
            }
        }
    }
}
