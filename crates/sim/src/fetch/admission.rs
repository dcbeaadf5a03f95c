//! A model of who holds events, releases them and lets them expire (rule B10).

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::fetch::io::{Need, Place, Quarry, Sought};
use grasp_core::nostr::PublicKey;
use grasp_core::nostr::event::EventId;
use grasp_core::repo::{Identifier, RepoId, Site};
use grasp_core::time::Moment;

use super::fixtures::Cast;
use crate::sync::queue::{HOUR, MINUTE, SECOND, Time};

/// Where an event stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stand {
    /// It has not come.
    Unknown,
    /// It waits.
    Awake,
    /// Its time is over, and it is still looked for.
    Dormant,
    /// It is served.
    Released,
    /// Something newer has replaced it.
    Replaced,
}

/// An event.
#[derive(Clone, Debug)]
pub struct Held {
    /// Where it stands.
    pub stand: Stand,
    /// Since when it waits.
    pub since: Time,
    /// Not before.
    pub due: Time,
    /// Every place was asked.
    pub tried: bool,
    /// Fetches for it that are under way.
    pub running: usize,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Registrar {
    /// All events.
    pub events: Vec<Held>,
    /// What is here, by site.
    present: BTreeMap<usize, BTreeSet<String>>,
    /// How many events have slept.
    pub slept: usize,
}

/// The name of an event.
#[must_use]
pub fn event_id(event: usize) -> EventId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&(event as u64).to_be_bytes());
    EventId(id)
}

/// Which event it is.
#[must_use]
pub fn event_of(id: &EventId) -> usize {
    let mut number = [0; 8];
    number.copy_from_slice(&id.0[..8]);
    u64::from_be_bytes(number) as usize
}

/// The site of a repository.
#[must_use]
pub fn site(cast: &Cast, repo: usize) -> Site {
    let repo = &cast.repos[repo];
    let identifier = Identifier::new(&repo.name).unwrap_or_else(|| unreachable!("names are short"));
    Site::Announced(RepoId { owner: PublicKey([repo.owner; 32]), identifier })
}

impl Registrar {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(cast: &Cast) -> Self {
        let held = Held { stand: Stand::Unknown, since: 0, due: 0, tried: false, running: 0 };
        Self { events: vec![held; cast.events.len()], present: BTreeMap::new(), slept: 0 }
    }

    /// Whether an event waits.
    #[must_use]
    pub fn waits(&self, event: usize) -> bool {
        matches!(self.events[event].stand, Stand::Awake | Stand::Dormant)
    }

    /// An event comes, or is seen again.
    pub fn arrive(&mut self, cast: &Cast, event: usize, now: Time) {
        let own = &cast.events[event];
        let held = &mut self.events[event];
        match held.stand {
            Stand::Unknown | Stand::Dormant => {
                let delay = if own.client && held.stand == Stand::Unknown { 3 * MINUTE } else { SECOND / 2 };
                *held = Held { stand: Stand::Awake, since: now, due: now + delay, tried: false, running: held.running };
            }
            Stand::Awake | Stand::Released | Stand::Replaced => return,
        }
        if own.replaces {
            for (other, cast) in cast.events.iter().enumerate().take(event) {
                if cast.repo == own.repo && self.waits(other) {
                    self.events[other].stand = Stand::Replaced;
                }
            }
        }
        self.release(cast, own.repo);
    }

    /// Objects have come.
    pub fn adopt(&mut self, cast: &Cast, repo: usize, oids: impl IntoIterator<Item = String>) {
        self.present.entry(repo).or_default().extend(oids);
        self.release(cast, repo);
    }

    fn release(&mut self, cast: &Cast, repo: usize) {
        let Some(present) = self.present.get(&repo) else { return };
        for (event, own) in cast.events.iter().enumerate() {
            if own.repo == repo && self.waits(event) && own.oids.iter().all(|oid| present.contains(oid)) {
                self.events[event].stand = Stand::Released;
            }
        }
    }

    /// Whether everything of an event is here.
    #[must_use]
    pub fn is_whole(&self, cast: &Cast, event: usize) -> bool {
        let own = &cast.events[event];
        let present = self.present.get(&own.repo);
        own.oids.iter().all(|oid| present.is_some_and(|present| present.contains(oid)))
    }

    /// Lets an event sleep if its time is over. Whether it does.
    pub fn expire(&mut self, event: usize, now: Time) -> bool {
        let held = &mut self.events[event];
        let over = now >= held.since + 30 * MINUTE && held.tried && held.running == 0;
        let sleeps = held.stand == Stand::Awake && (over || now >= held.since + 24 * HOUR);
        if sleeps {
            held.stand = Stand::Dormant;
            self.slept += 1;
        }
        sleeps
    }

    /// What is missing under a name, for a process that began at `boot`.
    #[must_use]
    pub fn quarries(&self, cast: &Cast, name: &str, boot: Time) -> Vec<Quarry> {
        let mut quarries = Vec::new();
        for (repo, _) in cast.repos.iter().enumerate().filter(|(_, repo)| repo.name == name) {
            let mut needs = Vec::new();
            for (event, own) in cast.events.iter().enumerate() {
                if own.repo != repo || !self.waits(event) {
                    continue;
                }
                let place = |url: &usize| {
                    let url = &cast.urls[*url];
                    Place { url: url.url.clone(), grasp: cast.servers[url.server].grasp }
                };
                needs.push(Need {
                    event: event_id(event),
                    what: Sought::State,
                    oids: own.oids.clone(),
                    places: own.urls.iter().map(place).collect(),
                    due: Moment(self.events[event].due.saturating_sub(boot)),
                    dormant: self.events[event].stand == Stand::Dormant,
                });
            }
            if !needs.is_empty() {
                quarries.push(Quarry { site: site(cast, repo), needs });
            }
        }
        quarries
    }
}
