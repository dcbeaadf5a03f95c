//! Time, the hands, and restarts.

use std::collections::BTreeMap;

use grasp_core::fetch::fault_injection::Flaw;
use grasp_core::fetch::io::{Catch, End, FetchId, HostRow, Input, Kept, LookId, Output, Shown, Survey};
use grasp_core::fetch::origin::Origin;
use grasp_core::fetch::{Hunter, Manners, Pace};
use grasp_core::net::Reach;
use grasp_core::repo::Identifier;
use grasp_core::state_machine::Machine;
use grasp_core::time::{Moment, Now, Timestamp};

use super::admission::{Registrar, event_of, site};
use super::fixtures::{Cast, Temper};
use super::invariants::Watch;
use super::server::{Answer, Servers};
use crate::random::Chance;
use crate::sync::invariants::Broken;
use crate::sync::queue::{HOUR, MINUTE, Queue, Time};
use crate::sync::trace::Trace;

/// Wall time when the world begins.
const EPOCH: u64 = 1_700_000_000;

/// What may happen next.
#[derive(Debug)]
enum Happening {
    Arrive(usize),
    Pushed(usize),
    Expire(usize),
    Mood(usize, Temper),
    Surveyed { life: u32, origin: Origin, server: usize, terms: bool, survey: Survey },
    Answering(u32, FetchId),
    Ended(u32, FetchId),
    Looked(u32, LookId, Result<Shown, End>),
    Stop(Time),
    Start,
}

/// A fetch, as the hands know it.
#[derive(Debug)]
struct Errand {
    repo: usize,
    events: Vec<usize>,
    answer: Answer,
    cancelled: bool,
}

/// One node and all the servers that it may ask.
pub struct World {
    /// What it began with.
    pub cast: Cast,
    /// The registrar's model.
    pub registrar: Registrar,
    /// The servers.
    pub servers: Servers,
    /// The first law that was broken.
    pub broken: Option<Broken>,
    /// What happened.
    pub trace: Trace,
    /// What watches.
    pub watch: Watch,
    /// The machine, while the node runs.
    pub hunter: Option<Hunter>,
    /// Milliseconds since the world began.
    pub time: Time,
    flaw: Option<Flaw>,
    seed: u64,
    boot: Time,
    life: u32,
    queue: Queue<Happening>,
    chance: Chance,
    rows: BTreeMap<String, HostRow>,
    errands: BTreeMap<FetchId, Errand>,
    authorities: BTreeMap<String, usize>,
    places: BTreeMap<String, usize>,
    sites: BTreeMap<String, usize>,
}

impl World {
    /// A world at its beginning.
    #[must_use]
    pub fn new(cast: Cast, seed: u64, flaw: Option<Flaw>, trace: Trace) -> Self {
        let mut queue = Queue::default();
        for (event, own) in cast.events.iter().enumerate() {
            for at in own.seen.iter().chain([&own.at]) {
                queue.plan(*at, Happening::Arrive(event));
            }
            if let Some(at) = own.pushed {
                queue.plan(at, Happening::Pushed(event));
            }
        }
        for (server, own) in cast.servers.iter().enumerate() {
            for (at, temper) in &own.moods {
                queue.plan(*at, Happening::Mood(server, *temper));
            }
        }
        for (at, down) in &cast.restarts {
            queue.plan(*at, Happening::Stop(*down));
        }
        let mut world = Self {
            registrar: Registrar::new(&cast),
            servers: Servers::new(&cast),
            broken: None,
            trace,
            watch: Watch::default(),
            hunter: None,
            time: 0,
            flaw,
            seed,
            boot: 0,
            life: 0,
            queue,
            chance: Chance::new(seed),
            rows: BTreeMap::new(),
            errands: BTreeMap::new(),
            authorities: cast.servers.iter().enumerate().map(|(nth, own)| (own.authority.clone(), nth)).collect(),
            places: cast.urls.iter().enumerate().map(|(nth, own)| (own.url.clone(), nth)).collect(),
            sites: (0..cast.repos.len()).map(|repo| (site(&cast, repo).path(), repo)).collect(),
            cast,
        };
        world.start();
        world
    }

    fn now(&self) -> Now {
        Now { mono: Moment(self.time - self.boot), wall: Timestamp(EPOCH + self.time / 1_000) }
    }

    /// Lives until then, or until a law is broken.
    pub fn run(&mut self, end: Time) {
        while self.broken.is_none() {
            let alarm = self
                .hunter
                .as_ref()
                .and_then(Machine::alarm)
                .map(|(at, _)| at.0.saturating_add(self.boot).max(self.time));
            let until = alarm.map_or(end, |alarm| alarm.min(end));
            if let Some((at, what)) = self.queue.next(until) {
                self.time = at;
                self.trace.say(at, || format!("{what:?}"));
                self.trace.step(at, 1);
                self.happen(what);
            } else if let Some(at) = alarm.filter(|at| *at <= end) {
                self.time = at;
                self.trace.step(at, 2);
                self.watch.wake(at);
                let now = self.now();
                if let Some(hunter) = &mut self.hunter {
                    hunter.wake(now);
                }
                self.drain();
            } else {
                self.time = end;
                break;
            }
            let broken = self.watch.broken();
            self.broken = self.broken.take().or(broken);
        }
    }

    /// Every server is honest from now on, and the node runs.
    pub fn heal(&mut self) {
        self.servers.heal();
        self.trace.say(self.time, || "healed".to_owned());
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Start => self.start(),
            Happening::Stop(down) => self.stop(down),
            Happening::Mood(server, temper) => self.servers.change(server, temper),
            // What comes while the node is down comes again later.
            Happening::Arrive(_) | Happening::Pushed(_) | Happening::Expire(_) if self.hunter.is_none() => {
                self.queue.plan(self.time + 1_000, what);
            }
            Happening::Arrive(event) => {
                let knew = self.registrar.waits(event);
                self.registrar.arrive(&self.cast, event, self.time);
                if !knew || self.registrar.events[event].since == self.time {
                    self.watch.arrived(&self.cast, event);
                    self.queue.plan(self.time + 30 * MINUTE, Happening::Expire(event));
                    self.queue.plan(self.time + 24 * HOUR, Happening::Expire(event));
                    self.ring(self.cast.events[event].repo);
                }
            }
            Happening::Pushed(event) => {
                let own = &self.cast.events[event];
                let (repo, oids) = (own.repo, own.oids.clone());
                self.registrar.adopt(&self.cast, repo, oids);
                self.ring(repo);
                self.tell(Input::Moved(site(&self.cast, repo)));
            }
            Happening::Expire(event) => self.expire(event),
            Happening::Surveyed { life, origin, server, terms, survey } if life == self.life => {
                self.surveyed(origin, server, terms, survey);
            }
            Happening::Answering(life, id) if life == self.life => {
                if self.errands.contains_key(&id) {
                    self.watch.answering(id);
                    self.tell(Input::Answering(id));
                }
            }
            Happening::Ended(life, id) if life == self.life => self.ended(id),
            Happening::Looked(life, id, result) if life == self.life => {
                self.watch.looked(&self.cast, self.time, id, result.as_ref().err().unwrap_or(&End::Sent));
                self.tell(Input::Looked(id, result));
            }
            Happening::Surveyed { .. } | Happening::Answering(..) | Happening::Ended(..) | Happening::Looked(..) => {}
        }
    }

    fn start(&mut self) {
        self.boot = self.time;
        self.life += 1;
        let manners = Manners {
            reach: Reach::Anything,
            usual: self.cast.usual,
            overrides: self.cast.chosen.iter().cloned().collect(),
            looks: Pace { first: 30, again: [60, 120, 300, 600], spread: 600 },
            seed: self.seed.wrapping_add(u64::from(self.life)),
        };
        self.hunter = Some(Hunter::flawed(manners, self.flaw));
        for row in self.rows.values().cloned().collect::<Vec<_>>() {
            self.tell(Input::Restored(row));
        }
        for held in &mut self.registrar.events {
            held.running = 0;
        }
        let mut names: Vec<String> = self.cast.repos.iter().map(|repo| repo.name.clone()).collect();
        names.sort();
        names.dedup();
        for name in names {
            self.want(&name);
            self.keep(&name);
        }
    }

    /// Whatever is hosted is served, and every place of it that is no GRASP server's should have it.
    fn keep(&mut self, name: &str) {
        let repos = (0..self.cast.repos.len()).filter(|repo| self.cast.repos[*repo].name == name);
        let plain = |url: &&usize| !self.cast.servers[self.cast.urls[**url].server].grasp;
        let kept = repos.map(|repo| {
            let events = self.cast.events.iter().filter(|event| event.repo == repo);
            let urls = events.flat_map(|event| event.urls.iter().filter(plain));
            Kept { site: site(&self.cast, repo), places: urls.map(|url| self.cast.urls[*url].url.clone()).collect() }
        });
        let kept = kept.collect();
        if let Some(name) = Identifier::new(name) {
            self.tell(Input::Kept(name, kept));
        }
    }

    fn stop(&mut self, down: Time) {
        if self.hunter.take().is_some() {
            self.life += 1;
            self.errands.clear();
            self.watch.stop();
            self.queue.plan(self.time + down, Happening::Start);
        }
    }

    fn tell(&mut self, input: Input) {
        let now = self.now();
        if let Some(hunter) = &mut self.hunter {
            hunter.handle(now, input);
        }
        self.drain();
    }

    /// The registrar says what is missing under the name of a repository.
    fn ring(&mut self, repo: usize) {
        let name = self.cast.repos[repo].name.clone();
        self.want(&name);
    }

    fn want(&mut self, name: &str) {
        let quarries = self.registrar.quarries(&self.cast, name, self.boot);
        let events = quarries.iter().flat_map(|quarry| quarry.needs.iter().map(|need| event_of(&need.event)));
        self.watch.wanted(&self.cast, name, events);
        if let Some(name) = Identifier::new(name) {
            self.tell(Input::Wanted(name, quarries));
        }
    }

    fn expire(&mut self, event: usize) {
        if self.registrar.expire(event, self.time) {
            self.trace.say(self.time, || format!("event {event} sleeps"));
            self.ring(self.cast.events[event].repo);
        }
    }

    fn surveyed(&mut self, origin: Origin, server: usize, terms: bool, survey: Survey) {
        match &survey {
            Survey::Known { terms: stated, .. } => {
                self.watch.surveyed(self.time, server, Some(*stated));
                if terms && stated.is_none() {
                    self.watch.unstated(server);
                }
            }
            Survey::Nowhere | Survey::Forbidden(_) => self.watch.surveyed(self.time, server, None),
        }
        self.tell(Input::Surveyed(origin, survey));
    }

    /// A fetch is over: first the registrar hears of it, then the hunt.
    fn ended(&mut self, id: FetchId) {
        let Some(errand) = self.errands.remove(&id) else { return };
        let (end, oids) = if errand.cancelled {
            (End::Cancelled, Vec::new())
        } else if self.cast.troubled && self.chance.one_in(30) {
            (End::Ours, Vec::new())
        } else {
            (errand.answer.end, errand.answer.oids)
        };
        self.trace.say(self.time, || format!("  {id:?} ended {end:?} with {}", oids.len()));
        for event in &errand.events {
            let held = &mut self.registrar.events[*event];
            held.running = held.running.saturating_sub(1);
        }
        let came = !oids.is_empty();
        self.registrar.adopt(&self.cast, errand.repo, oids.iter().cloned());
        // The bell may ring before or after.
        let early = came && self.chance.one_in(2);
        if early {
            self.ring(errand.repo);
        }
        self.watch.fetched(&self.cast, self.time, id, (&end, &oids));
        self.tell(Input::Fetched(id, Catch { oids, end }));
        if came && !early {
            self.ring(errand.repo);
        }
        for event in errand.events {
            self.expire(event);
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.hunter.as_mut().and_then(Machine::poll) {
            self.trace.say(self.time, || format!("  → {output:?}"));
            match output {
                Output::Survey { origin, terms } => {
                    let Some(server) = self.authorities.get(&origin.authority()).copied() else { continue };
                    self.trace.fold(server as u64);
                    self.watch.survey(self.time, server, terms);
                    let (took, survey) = self.servers.survey(&self.cast, server, terms, &mut self.chance);
                    let life = self.life;
                    self.queue.plan(self.time + took, Happening::Surveyed { life, origin, server, terms, survey });
                }
                Output::Fetch(fetch) => self.fetch(&fetch),
                Output::Look(look) => {
                    let Some(url) = self.places.get(&look.target.to_string()).copied() else { continue };
                    self.trace.fold(url as u64);
                    self.watch.look(&self.cast, self.time, url, look.id);
                    let (at, result) = self.servers.look(&self.cast, url, self.time, &mut self.chance);
                    self.queue.plan(at, Happening::Looked(self.life, look.id, result));
                }
                Output::Cancel(id) => {
                    self.watch.cancel(id);
                    if let Some(errand) = self.errands.get_mut(&id) {
                        errand.cancelled = true;
                        self.queue.plan(self.time + 1 + self.chance.draw() % 200, Happening::Ended(self.life, id));
                    }
                }
                Output::Tried(events) => {
                    for event in events.iter().map(event_of) {
                        self.watch.tried(&self.cast, &self.registrar, event);
                        self.registrar.events[event].tried = true;
                        self.queue.plan(self.time, Happening::Expire(event));
                    }
                }
                Output::Remember(row) => {
                    self.watch.counts.rows += 1;
                    self.rows.insert(row.authority.clone(), row);
                }
                Output::Forget(authority) => drop(self.rows.remove(&authority)),
                Output::Shun(..) => {}
            }
        }
    }

    fn fetch(&mut self, fetch: &grasp_core::fetch::io::Fetch) {
        let url = self.places.get(&fetch.target.to_string()).copied();
        let repo = self.sites.get(&fetch.site.path()).copied();
        let (Some(url), Some(repo)) = (url, repo) else {
            self.broken = Some(Broken::new("only known places are asked", fetch.target.to_string()));
            return;
        };
        self.trace.fold((url * 2 + fetch.form as usize) as u64);
        self.watch.fetch(&self.cast, &self.registrar, self.time, (repo, url), fetch);
        let answer = self.servers.ask(&self.cast, url, fetch, self.time, &mut self.chance);
        let events: Vec<usize> = fetch.events.iter().map(|(event, _)| event_of(event)).collect();
        for event in &events {
            self.registrar.events[*event].running += 1;
        }
        if let Some(first) = answer.first {
            self.queue.plan(first, Happening::Answering(self.life, fetch.id));
        }
        self.queue.plan(answer.last, Happening::Ended(self.life, fetch.id));
        self.errands.insert(fetch.id, Errand { repo, events, answer, cancelled: false });
    }

    /// How many sites something is missing at.
    #[must_use]
    pub fn missing_sites(&self) -> usize {
        (0..self.cast.repos.len())
            .filter(|repo| {
                (0..self.cast.events.len())
                    .any(|event| self.cast.events[event].repo == *repo && self.registrar.waits(event))
            })
            .count()
    }
}
