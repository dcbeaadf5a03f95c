//! A foreign relay: it keeps events, answers requests, and has habits.

use std::collections::BTreeMap;

use grasp_core::nostr::Filter;
use grasp_core::nostr::negentropy::{NegentropyItem, NegentropySet, respond};
use grasp_core::sync::io::{EoseHint, OutgoingMessage, SubscriptionId};

use super::corpus::{Ix, corpus};
use super::event_set::Bits;
use super::invariants::is_dishonest;
use super::queue::{MINUTE, Time};
use super::relay_profile::{Eose, How, Negentropy, Persona, Zero};
use super::relay_store::{Book, Matcher};
use super::wire;
use super::wire::{Copy, Frame};
use crate::random::Chance;

/// Names one connection for the life of the world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub usize);

/// A relay.
#[derive(Debug)]
pub struct Relay {
    /// Its habits.
    pub persona: Persona,
    /// What it has.
    pub book: Book,
    /// The instance that its document shows: full nodes have one.
    pub instance: Option<String>,
    /// How often somebody connected.
    pub sessions: u64,
    /// Whether it ever kept events from somebody who asked for them.
    pub dishonest: bool,
    /// When events came.
    arrivals: BTreeMap<Ix, Time>,
    talks: BTreeMap<ConnId, Talk>,
}

/// One conversation.
#[derive(Debug, Default)]
struct Talk {
    subs: BTreeMap<SubscriptionId, Sub>,
    negs: BTreeMap<SubscriptionId, NegentropySet>,
    known: bool,
    /// The minute that is being counted, and requests in it.
    minute: (Time, u32),
}

#[derive(Debug)]
struct Sub {
    matchers: Vec<Matcher>,
    bytes: usize,
}

/// What comes of a message.
#[derive(Debug, Default)]
pub struct Answer {
    /// What is said, in order.
    pub frames: Vec<Frame>,
    /// The connection is ended.
    pub hangs_up: bool,
}

/// To whom a new event goes.
pub type Deliveries = Vec<(ConnId, Frame)>;

impl Relay {
    /// An empty one.
    #[must_use]
    pub fn new(persona: Persona) -> Self {
        let dishonest = is_dishonest(&persona);
        let (book, talks, arrivals) = (Book::default(), BTreeMap::new(), BTreeMap::new());
        Self { persona, book, instance: None, sessions: 0, dishonest, arrivals, talks }
    }

    /// Somebody connects.
    pub fn greet(&mut self, conn: ConnId) -> Answer {
        self.sessions += 1;
        self.talks.insert(conn, Talk::default());
        let mut answer = Answer::default();
        if self.persona.auth && !self.persona.mute {
            answer.frames.push(Frame::Auth(challenge(conn)));
        }
        answer
    }

    /// Somebody has left, or is thrown out.
    pub fn part(&mut self, conn: ConnId) {
        self.talks.remove(&conn);
    }

    /// Those who are connected.
    #[must_use]
    pub fn guests(&self) -> Vec<ConnId> {
        self.talks.keys().copied().collect()
    }

    /// What it would show to anybody who asks for everything.
    #[must_use]
    pub fn shown(&self, now: Time) -> Bits {
        let visible = self.book.visible(now, self.persona.skew);
        match &self.persona.censored {
            Some(author) => visible.without(&corpus().by(author)),
            None => visible,
        }
    }

    /// After how long a message is looked at: requests and reconciliations wait in different places.
    #[must_use]
    pub fn lag(&self, say: &OutgoingMessage) -> Time {
        match say {
            OutgoingMessage::Req(..) | OutgoingMessage::Close(_) => self.persona.lag.0,
            OutgoingMessage::NegOpen(..) | OutgoingMessage::NegMsg(..) | OutgoingMessage::NegClose(_) => {
                self.persona.lag.1
            }
            OutgoingMessage::Auth(_) => 0,
        }
    }

    /// Looks at a message.
    pub fn hear(&mut self, now: Time, conn: ConnId, say: &OutgoingMessage, chance: &mut Chance) -> Answer {
        let mut answer = Answer::default();
        if self.persona.mute || !self.talks.contains_key(&conn) {
            return answer;
        }
        if wire::bytes(say) > self.persona.message {
            answer.frames.push(Frame::Notice("ERROR: message too large".to_owned()));
            answer.hangs_up = true;
            return answer;
        }
        match say {
            OutgoingMessage::Req(sub, filters) => {
                if self.lets(now, conn, *sub, false, &mut answer) {
                    self.request(now, conn, *sub, filters, &mut answer, chance);
                }
            }
            OutgoingMessage::NegOpen(sub, filter, message) => {
                if self.lets(now, conn, *sub, true, &mut answer) {
                    self.compare(now, conn, *sub, filter, message, &mut answer);
                }
            }
            OutgoingMessage::NegMsg(sub, message) => self.compare_on(conn, *sub, message, &mut answer),
            OutgoingMessage::Close(sub) => self.close(now, conn, *sub, &mut answer),
            OutgoingMessage::NegClose(sub) => {
                if let Some(talk) = self.talks.get_mut(&conn) {
                    talk.negs.remove(sub);
                }
            }
            OutgoingMessage::Auth(given) => {
                let fine = *given == challenge(conn);
                if let Some(talk) = self.talks.get_mut(&conn) {
                    talk.known |= fine;
                }
                answer.frames.push(Frame::Ok(fine, String::new()));
            }
        }
        answer
    }

    /// Whether a request may be made at all.
    fn lets(&mut self, now: Time, conn: ConnId, sub: SubscriptionId, neg: bool, answer: &mut Answer) -> bool {
        let Some(talk) = self.talks.get_mut(&conn) else { return false };
        let mut refuse = |text: &str| {
            let text = text.to_owned();
            answer.frames.push(if neg { Frame::NegErr(sub, text, None) } else { Frame::Closed(sub, text) });
        };
        if let Some(rate) = &self.persona.rate {
            let minute = now / MINUTE;
            let count = if talk.minute.0 == minute { talk.minute.1 } else { 0 };
            talk.minute = (minute, count + 1);
            if count >= rate.per_minute {
                match rate.how {
                    How::Closed => refuse(rate.text),
                    How::Notice => answer.frames.push(Frame::Notice(rate.text.to_owned())),
                    How::Ok => answer.frames.push(Frame::Ok(false, rate.text.to_owned())),
                }
                answer.hangs_up = rate.hangs_up;
                return false;
            }
        }
        if self.persona.closed_shop {
            refuse("restricted: you are not a member of this relay");
            return false;
        }
        if self.persona.auth && !talk.known {
            refuse("auth-required: tell me who you are");
            return false;
        }
        let replaced = talk.subs.contains_key(&sub) || talk.negs.contains_key(&sub);
        if !replaced && talk.subs.len() + talk.negs.len() >= self.persona.slots {
            match (self.persona.slots_by_notice, neg) {
                (true, false) => answer.frames.push(Frame::Notice("ERROR: too many concurrent REQs".to_owned())),
                (true, true) => answer.frames.push(Frame::Notice("ERROR: too many concurrent NEG requests".to_owned())),
                (false, false) => refuse("blocked: too many subscriptions"),
                (false, true) => refuse("rate-limited: too many negentropy subscriptions"),
            }
            return false;
        }
        true
    }

    fn request(
        &mut self,
        now: Time,
        conn: ConnId,
        sub: SubscriptionId,
        filters: &[Filter],
        answer: &mut Answer,
        chance: &mut Chance,
    ) {
        if let Some(text) = self.objection(filters) {
            answer.frames.push(Frame::Closed(sub, text));
            return;
        }
        let shown = self.shown(now);
        let Some(talk) = self.talks.get_mut(&conn) else { return };
        let bytes = filters.iter().map(wire::filter_bytes).sum();
        let others = talk.subs.iter().filter(|(other, _)| **other != sub).map(|(_, other)| other.bytes);
        if let Some(most) = self.persona.subscription_bytes
            && others.sum::<usize>() + bytes > most
        {
            let text = format!("rate-limited: active subscriptions exceed max size {most} bytes");
            answer.frames.push(Frame::Closed(sub, text));
            return;
        }
        let matchers: Vec<Matcher> = filters.iter().map(Matcher::new).collect();
        let (pages, more) = pages(&matchers, &shown, &self.persona);
        talk.subs.insert(sub, Sub { matchers, bytes });
        let end =
            Frame::Eose(sub, self.persona.says_more.then_some(if more { EoseHint::More } else { EoseHint::Complete }));
        if self.persona.eose == Eose::Early {
            answer.frames.push(end.clone());
        }
        for ix in pages {
            if self.persona.forger && chance.one_in(4) {
                answer.frames.push(Frame::Event(sub, ix, Copy::Forged));
            }
            answer.frames.push(Frame::Event(sub, ix, Copy::Real));
        }
        match self.persona.eose {
            Eose::Once => answer.frames.push(end),
            Eose::Twice => answer.frames.extend([end.clone(), end]),
            Eose::Never | Eose::Early => {}
        }
        if self.persona.flood && chance.one_in(4) {
            let strays = corpus().strays();
            let own: Vec<Ix> = shown.iter().collect();
            for nth in 0..10 {
                let stray = match chance.pick(&own) {
                    Some(ix) if nth % 2 == 0 => *ix,
                    _ => strays[chance.below(strays.len())],
                };
                let to = if chance.one_in(2) { sub } else { SubscriptionId(u64::MAX) };
                answer.frames.push(Frame::Event(to, stray, Copy::Real));
            }
            answer.frames.push(Frame::Garbage);
        }
    }

    /// What is wrong with the filters of a request.
    fn objection(&self, filters: &[Filter]) -> Option<String> {
        if filters.len() > self.persona.filters {
            return Some(format!("rate-limited: REQ exceeds max filter count {}", self.persona.filters));
        }
        let least = match self.persona.zero {
            Zero::Fine => 0,
            Zero::Refused => 1,
            Zero::OneToo => 2,
        };
        let limit = filters.iter().filter_map(|filter| filter.limit).find(|limit| *limit < least)?;
        Some(format!("invalid: Filter 'limit' must be a positive integer, got {limit}"))
    }

    fn compare(
        &mut self,
        now: Time,
        conn: ConnId,
        sub: SubscriptionId,
        filter: &Filter,
        message: &[u8],
        answer: &mut Answer,
    ) {
        match self.persona.negentropy {
            Negentropy::Spoken => {}
            Negentropy::Ignored => return,
            Negentropy::Notice => {
                answer.frames.push(Frame::Notice("ERROR: bad msg: negentropy disabled".to_owned()));
                return;
            }
            Negentropy::Refused => {
                answer.frames.push(Frame::NegErr(sub, "error: negentropy not supported".to_owned(), None));
                return;
            }
        }
        let matching = corpus().matching(filter);
        let found = self.shown(now).and(&matching);
        if found.len() > self.persona.most_records {
            let most = self.persona.most_records as u64;
            let text = "blocked: this query is too big".to_owned();
            answer.frames.push(Frame::NegErr(sub, text, Some(most)));
            return;
        }
        let item = |ix: Ix| {
            let event = corpus().event(ix);
            NegentropyItem { created_at: event.created_at.0, id: event.id.0 }
        };
        let mut items: Vec<NegentropyItem> = found.iter().map(item).collect();
        if self.persona.phantoms {
            // Events that it does not have, and ids that nobody has.
            items.extend(matching.without(&found).iter().take(3).map(item));
            let since = filter.since.map_or(super::corpus::EPOCH - 1_000, |since| since.0);
            items.extend((0..2).map(|n| NegentropyItem { created_at: since, id: [n; 32] }));
        }
        let set = NegentropySet::from_items(items);
        match respond(&set, message, 60_000) {
            Ok(reply) => {
                answer.frames.push(Frame::NegMsg(sub, reply));
                if let Some(talk) = self.talks.get_mut(&conn) {
                    talk.negs.insert(sub, set);
                }
            }
            Err(why) => answer.frames.push(Frame::NegErr(sub, format!("error: {why}"), None)),
        }
    }

    fn compare_on(&mut self, conn: ConnId, sub: SubscriptionId, message: &[u8], answer: &mut Answer) {
        let set = self.talks.get(&conn).and_then(|talk| talk.negs.get(&sub));
        answer.frames.push(match set.map(|set| respond(set, message, 60_000)) {
            Some(Ok(reply)) => Frame::NegMsg(sub, reply),
            Some(Err(why)) => Frame::NegErr(sub, format!("error: {why}"), None),
            None => Frame::NegErr(sub, "closed: unknown subscription".to_owned(), None),
        });
    }

    fn close(&mut self, now: Time, conn: ConnId, sub: SubscriptionId, answer: &mut Answer) {
        let shown = self.shown(now);
        let Some(talk) = self.talks.get_mut(&conn) else { return };
        let Some(closed) = talk.subs.remove(&sub) else { return };
        if self.persona.late_event
            && let Some(ix) = closed.matchers.iter().find_map(|matcher| matcher.events.and(&shown).iter().next())
        {
            answer.frames.push(Frame::Event(sub, ix, Copy::Real));
        }
    }

    /// Somebody publishes an event here. To whom it goes.
    pub fn publish(&mut self, now: Time, ix: Ix, chance: &mut Chance) -> Deliveries {
        if !self.book.put(ix) {
            return Vec::new();
        }
        self.arrivals.insert(ix, now);
        self.show(ix, chance)
    }

    /// Changes its habits.
    pub fn change(&mut self, persona: Persona) {
        self.dishonest |= is_dishonest(&persona);
        self.persona = persona;
    }

    /// It serves what a node serves: some of that is new.
    pub fn mirror(&mut self, now: Time, served: Bits, newer: &[Ix]) {
        self.book.set(served);
        self.arrivals.extend(newer.iter().map(|ix| (*ix, now)));
    }

    /// When an event came.
    #[must_use]
    pub fn came(&self, ix: Ix) -> Time {
        self.arrivals.get(&ix).copied().unwrap_or(0)
    }

    /// To whom an event that has just become visible goes.
    pub fn show(&self, ix: Ix, chance: &mut Chance) -> Deliveries {
        let hidden = self.persona.censored.is_some_and(|author| corpus().event(ix).pubkey == author);
        if hidden || self.persona.mute {
            return Vec::new();
        }
        let mut deliveries = Vec::new();
        for (conn, talk) in &self.talks {
            let wanted = talk.subs.iter().filter(|(_, sub)| sub.matchers.iter().any(|it| it.events.contains(ix)));
            for (sub, _) in wanted {
                if self.persona.deaf == 0 || !chance.one_in(self.persona.deaf + 1) {
                    deliveries.push((*conn, Frame::Event(*sub, ix, Copy::Real)));
                }
            }
        }
        deliveries
    }

    /// The NIP-11 document that a session sees.
    #[must_use]
    pub fn document(&self) -> Option<String> {
        let stated = self.persona.stated(self.sessions)?;
        let nips = if self.persona.negentropy == Negentropy::Spoken { "1,11,77" } else { "1,11" };
        let grasps = if self.persona.grasp { r#","supported_grasps":["GRASP-01"]"# } else { "" };
        let instance = self.instance.as_ref().map(|it| format!(r#","instance":"{it}""#)).unwrap_or_default();
        Some(format!(
            r#"{{"name":"x","supported_nips":[{nips}]{grasps}{instance},"limitation":{{"max_subscriptions":{},"max_filters":{},"max_message_length":{},"max_limit":{},"auth_required":{}}}}}"#,
            stated.slots, stated.filters, stated.message, stated.page, self.persona.auth
        ))
    }
}

/// The pages of some filters, and whether any of them has more.
fn pages(matchers: &[Matcher], shown: &Bits, persona: &Persona) -> (Vec<Ix>, bool) {
    let (mut pages, mut more, mut sent) = (Vec::new(), false, Bits::default());
    for matcher in matchers {
        let found = shown.and(&matcher.events);
        let limit = matcher.limit.unwrap_or(persona.cap).min(persona.cap);
        more |= found.len() > limit && limit > 0;
        for ix in found.iter().take(limit) {
            if sent.insert(ix) || persona.repeats {
                pages.push(ix);
            }
        }
    }
    if !persona.repeats {
        pages.sort_unstable();
    }
    (pages, more)
}

fn challenge(conn: ConnId) -> String {
    format!("challenge-{}", conn.0)
}
