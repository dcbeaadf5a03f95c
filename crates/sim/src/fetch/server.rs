//! What git servers do when they are asked.

use std::collections::BTreeMap;

use grasp_core::fetch::io::{End, Fetch, Form, Shown, Survey};
use grasp_core::net::{Forbidden, Scope};

use super::fixtures::{Cast, Temper};
use crate::random::Chance;
use crate::sync::queue::{MINUTE, SECOND, Time};

/// What will come of a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// When its first bytes come, if they do.
    pub first: Option<Time>,
    /// When it is over.
    pub last: Time,
    /// What has come.
    pub oids: Vec<String>,
    /// How it ends.
    pub end: End,
}

/// All servers: what they are like now, and what they have.
#[derive(Clone, Debug)]
pub struct Servers {
    /// What each is like.
    pub tempers: Vec<Temper>,
    /// What is where, and since when.
    has: BTreeMap<(usize, String), Time>,
    healed: bool,
}

impl Servers {
    /// As they begin.
    #[must_use]
    pub fn new(cast: &Cast) -> Self {
        let mut has = BTreeMap::new();
        for event in &cast.events {
            for (place, oid, from) in &event.held {
                has.insert((event.urls[*place], event.oids[*oid].clone()), *from);
            }
        }
        Self { tempers: cast.servers.iter().map(|server| server.temper).collect(), has, healed: false }
    }

    /// All of them are honest from now on.
    pub fn heal(&mut self) {
        self.healed = true;
        self.tempers.fill(Temper::Honest);
    }

    /// One becomes different.
    pub fn change(&mut self, server: usize, temper: Temper) {
        if !self.healed {
            self.tempers[server] = temper;
        }
    }

    /// Whether an object is at a place now.
    #[must_use]
    pub fn has(&self, url: usize, oid: &str, now: Time) -> bool {
        self.has.get(&(url, oid.to_owned())).is_some_and(|from| self.healed || *from <= now)
    }

    /// Where a server is. Also how long it takes to find out.
    pub fn survey(&self, cast: &Cast, server: usize, terms: bool, chance: &mut Chance) -> (Time, Survey) {
        let own = &cast.servers[server];
        match self.tempers[server] {
            Temper::Nowhere => (100 + chance.draw() % (5 * SECOND), Survey::Nowhere),
            Temper::Private => {
                let address = std::net::Ipv4Addr::new(10, 0, 0, own.machine).into();
                (20, Survey::Forbidden(Forbidden::Address(address, Scope::Private)))
            }
            temper => {
                let last = (server % 200) as u8;
                let addresses = vec![std::net::Ipv4Addr::new(9, 9, own.machine, last).into()];
                let silent = matches!(temper, Temper::Hangs | Temper::Broken);
                let took = if terms && silent { 5 * SECOND } else { 5 + chance.draw() % 300 };
                let terms = own.terms.filter(|_| terms && !silent);
                (took, Survey::Known { addresses, terms })
            }
        }
    }

    /// What will come of a look that begins now, and when.
    pub fn look(&self, cast: &Cast, url: usize, now: Time, chance: &mut Chance) -> (Time, Result<Shown, End>) {
        let soon = now + 30 + chance.draw() % 900;
        match self.tempers[cast.urls[url].server] {
            Temper::Absent => (soon, Err(End::Absent)),
            Temper::Hangs | Temper::Nowhere => (now + MINUTE, Err(End::Failed)),
            Temper::Private | Temper::Broken => (soon, Err(End::Failed)),
            Temper::Busy(secs) => (soon, Err(End::Busy(secs))),
            Temper::Overloaded(secs) if chance.one_in(2) => (soon, Err(End::Busy(secs))),
            Temper::Wrong => (soon, Err(End::Unsound)),
            Temper::Trickles => (soon + MINUTE, Err(End::Failed)),
            _ => (soon, Ok(Shown { of: 2, lacks: chance.draw() as usize % 2, differs: 0 })),
        }
    }

    /// What will come of a request that begins now.
    pub fn ask(&self, cast: &Cast, url: usize, fetch: &Fetch, now: Time, chance: &mut Chance) -> Answer {
        let server = cast.urls[url].server;
        let soon = now + 30 + chance.draw() % 900;
        let ends = |end: End, last: Time| Answer { first: None, last, oids: Vec::new(), end };
        match self.tempers[server] {
            Temper::Absent => ends(End::Absent, soon),
            Temper::Hangs | Temper::Nowhere => ends(End::Failed, now + MINUTE),
            Temper::Private | Temper::Broken => ends(End::Failed, soon),
            Temper::Busy(secs) => ends(End::Busy(secs), soon),
            Temper::Overloaded(secs) if chance.one_in(2) => ends(End::Busy(secs), soon),
            Temper::Wrong => Answer { first: Some(soon), ..ends(End::Unsound, soon + SECOND) },
            temper => {
                let slow = temper == Temper::Trickles;
                let last =
                    if slow { soon + MINUTE + chance.draw() % (8 * MINUTE) } else { soon + chance.draw() % 2_000 };
                let oids: Vec<String> = fetch.oids.iter().filter(|oid| self.has(url, oid, now)).cloned().collect();
                let known =
                    self.has.range((url, String::new())..(url + 1, String::new())).any(|(_, from)| *from <= now);
                if !known && !self.healed {
                    return ends(End::Absent, soon);
                }
                if fetch.form == Form::Oids && (!cast.servers[server].by_oid || oids.len() < fetch.oids.len()) {
                    return ends(End::NotByOid, soon);
                }
                // A connection may break in the middle; nothing of the pack is kept then.
                if chance.one_in(25) && !self.healed {
                    return Answer { first: Some(soon), ..ends(End::Failed, last) };
                }
                Answer { first: Some(soon), last, oids, end: End::Sent }
            }
        }
    }
}
