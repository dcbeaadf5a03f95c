//! A hunter on a table: the clock is set by hand, hosts are where their first label says.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use crate::fetch::io::{
    Catch, End, Fetch, FetchId, HostRow, Input, Kept, Look, Need, Output, Place, Quarry, Sought, Survey,
};
use crate::fetch::{Hunter, Limits, Manners, Pace};
use crate::net::Reach;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::repo::{Identifier, RepoId, Site};
use crate::state_machine::Machine;
use crate::sync::relay_limits::GitTerms;
use crate::time::{Moment, Now, Timestamp};

pub(super) struct Rig {
    pub(super) hunter: Hunter,
    pub(super) now: Now,
    /// What servers state about themselves.
    pub(super) terms: BTreeMap<String, GitTerms>,
    /// What was wanted and nobody has looked at yet.
    pub(super) out: Vec<Output>,
    /// Surveys are left to the test.
    pub(super) blind: bool,
}

pub(super) fn manners() -> Manners {
    Manners {
        reach: Reach::Anything,
        usual: Limits::default(),
        overrides: BTreeMap::new(),
        looks: Pace::default(),
        seed: 1,
    }
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(manners())
    }

    pub(super) fn with(manners: Manners) -> Self {
        let now = Now { mono: Moment(0), wall: Timestamp(1_000_000) };
        Self { hunter: Hunter::new(manners), now, terms: BTreeMap::new(), out: Vec::new(), blind: false }
    }

    /// Another life of the same server, later.
    pub(super) fn reborn(&self, manners: Manners, millis: u64) -> Self {
        let wall = Timestamp(self.now.wall.0 + millis / 1_000);
        Self { now: Now { mono: Moment(0), wall }, terms: self.terms.clone(), ..Self::with(manners) }
    }

    pub(super) fn tell(&mut self, input: Input) {
        self.hunter.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.hunter.poll() {
            match output {
                Output::Survey { origin, terms } if !self.blind => {
                    let host = origin.host().to_string();
                    let number = host.bytes().fold(0_u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                    let [a, b] = number.to_be_bytes();
                    let addresses = vec![IpAddr::V4(Ipv4Addr::new(9, a, b, 1))];
                    let terms = self.terms.get(&host).copied().filter(|_| terms);
                    self.hunter.handle(self.now, Input::Surveyed(origin, Survey::Known { addresses, terms }));
                }
                output => self.out.push(output),
            }
        }
    }

    /// Lets time pass, with everything that is due in it.
    pub(super) fn pass(&mut self, millis: u64) {
        let end = self.now.mono.0 + millis;
        loop {
            let at = self.hunter.alarm().map(|(at, _)| at.0).filter(|at| *at <= end);
            let to = at.unwrap_or(end).max(self.now.mono.0);
            self.now.wall.0 = self.now.wall.0 - self.now.mono.0 / 1_000 + to / 1_000;
            self.now.mono.0 = to;
            if at.is_none() {
                break;
            }
            self.hunter.wake(self.now);
            self.drain();
        }
    }

    /// The fetches that have begun since.
    pub(super) fn fetches(&mut self) -> Vec<Fetch> {
        let (fetches, rest) =
            std::mem::take(&mut self.out).into_iter().partition(|out| matches!(out, Output::Fetch(_)));
        self.out = rest;
        let fetches: Vec<Output> = fetches;
        fetches.into_iter().filter_map(|out| if let Output::Fetch(fetch) = out { Some(fetch) } else { None }).collect()
    }

    /// The looks that have begun since.
    pub(super) fn looks(&mut self) -> Vec<Look> {
        let (looks, rest) = std::mem::take(&mut self.out).into_iter().partition(|out| matches!(out, Output::Look(_)));
        self.out = rest;
        let looks: Vec<Output> = looks;
        looks.into_iter().filter_map(|out| if let Output::Look(look) = out { Some(look) } else { None }).collect()
    }

    /// One repository is served, and these servers should have it.
    pub(super) fn keep(&mut self, owner: u8, name: &str, places: &[&str]) {
        let kept = Kept { site: site(owner, name), places: places.iter().map(|url| (*url).to_owned()).collect() };
        self.tell(Input::Kept(kept.site.identifier().clone(), vec![kept]));
    }

    /// It is served since a moment ago.
    pub(super) fn serve(&mut self, owner: u8, name: &str, places: &[&str]) {
        self.keep(owner, name, places);
        self.tell(Input::Moved(site(owner, name)));
    }

    /// The only fetch that has begun since.
    pub(super) fn fetch(&mut self) -> Fetch {
        let mut fetches = self.fetches();
        assert_eq!(fetches.len(), 1, "{fetches:?}");
        fetches.pop().expect("one")
    }

    pub(super) fn end(&mut self, id: FetchId, end: End) {
        self.tell(Input::Fetched(id, Catch { oids: Vec::new(), end }));
    }

    pub(super) fn sent(&mut self, id: FetchId, oids: &[&str]) {
        let oids = oids.iter().map(|oid| (*oid).to_owned()).collect();
        self.tell(Input::Fetched(id, Catch { oids, end: End::Sent }));
    }

    /// The events that were said to be tried.
    pub(super) fn tried(&mut self) -> Vec<u8> {
        let mut tried = Vec::new();
        self.out.retain(|out| match out {
            Output::Tried(events) => {
                tried.extend(events.iter().map(|event| event.0[0]));
                false
            }
            _ => true,
        });
        tried
    }

    pub(super) fn cancelled(&mut self) -> Vec<FetchId> {
        let ids = self.out.iter().filter_map(|out| if let Output::Cancel(id) = out { Some(*id) } else { None });
        let ids = ids.collect();
        self.out.retain(|out| !matches!(out, Output::Cancel(_)));
        ids
    }

    pub(super) fn rows(&mut self) -> Vec<HostRow> {
        let rows =
            self.out.iter().filter_map(|out| if let Output::Remember(row) = out { Some(row.clone()) } else { None });
        let rows = rows.collect();
        self.out.retain(|out| !matches!(out, Output::Remember(_)));
        rows
    }

    /// Wants exactly this at one repository.
    pub(super) fn want(&mut self, owner: u8, name: &str, needs: Vec<Need>) {
        let site = site(owner, name);
        self.tell(Input::Wanted(site.identifier().clone(), vec![Quarry { site, needs }]));
    }

    /// Wants nothing under a name any more.
    pub(super) fn unwant(&mut self, name: &str) {
        self.tell(Input::Wanted(Identifier::new(name).expect("valid"), Vec::new()));
    }

    /// An event of which everything is wanted now.
    pub(super) fn need(&self, event: u8, oids: &[&str], places: &[&str]) -> Need {
        let place = |url: &&str| Place { url: (*url).to_owned(), grasp: url.contains("grasp") };
        Need {
            event: EventId([event; 32]),
            what: Sought::State,
            oids: oids.iter().map(|oid| (*oid).to_owned()).collect(),
            places: places.iter().map(place).collect(),
            due: self.now.mono,
            dormant: false,
        }
    }
}

pub(super) fn site(owner: u8, name: &str) -> Site {
    Site::Announced(RepoId { owner: PublicKey([owner; 32]), identifier: Identifier::new(name).expect("valid") })
}

pub(super) fn urls(fetches: &[Fetch]) -> Vec<String> {
    fetches.iter().map(|fetch| fetch.target.to_string()).collect()
}
