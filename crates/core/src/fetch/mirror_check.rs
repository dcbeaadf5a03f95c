//! Looks: whether git servers that are no GRASP servers have what is served here. For GRASP servers their relays speak.
//!
//! A look asks a server for its list of refs. It is nobody's hurry: a host is looked at when no quarry waits for it, for one
//! repository at a time, and with half of what it may be asked in a minute. Nobody outside can cause one: they follow from
//! what is served and from time alone.

use std::collections::{BTreeMap, BTreeSet};

use super::io::{End, Kept, Look, LookId, Output, Shown};
use super::network_limit::{Network, Room};
use super::origin::Origin;
use super::throttle::{Doom, Gate};
use super::{Errand, HostId, Hunter, Limits, Scout, Timer};
use crate::limits;
use crate::net::{Purpose, Target};
use crate::repo::{Identifier, Site};
use crate::time::{Moment, Timestamp};

/// When servers are looked at, in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// After what is served has changed.
    pub first: u64,
    /// While something is missing there. The last of them is for ever, and for those that miss nothing.
    pub again: [u64; 4],
    /// Within this time of a start, each at some moment.
    pub spread: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { first: limits::LOOK_SECS, again: limits::LOOK_AGAIN_SECS, spread: limits::LOOK_SPREAD_SECS }
    }
}

/// What was found at a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Every branch and tag, as is known since then.
    Current(Timestamp),
    /// Not all of them.
    Lacking(Shown),
    /// No such repository, or none that is shown to us.
    Absent,
    /// No answer that could be understood.
    Silent,
    /// It is not called: it leads to where nobody is, or wants no requests.
    Shunned,
}

/// A server that should have a repository, at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookView {
    /// Its URL, as the announcement writes it.
    pub url: String,
    /// What was found there, and when.
    pub found: Option<(Found, Timestamp)>,
    /// What is served has changed since.
    pub stale: bool,
}

/// All servers that are looked at.
#[derive(Debug, Default)]
pub(super) struct Looks {
    all: BTreeMap<LookId, Outlook>,
    /// By name. Some may be forgotten.
    names: BTreeMap<Identifier, Vec<LookId>>,
    under_way: BTreeMap<LookId, Passage>,
    /// Hosts that wait until fewer are under way.
    crowd: BTreeSet<HostId>,
}

/// A server that should have a repository.
#[derive(Debug)]
struct Outlook {
    site: Site,
    url: String,
    stage: Stage,
    /// Looks since the last change that did not find everything.
    tries: usize,
    found: Option<(Found, Timestamp)>,
    stale: bool,
    /// What is served has changed since the look that is under way began.
    moved: bool,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Until then.
    Resting(Option<Moment>),
    /// For its host, since then.
    Waiting(HostId, Moment),
    /// Until it is known where the host is.
    Surveying(HostId, Moment),
    Asking,
}

/// A look under way.
#[derive(Debug)]
struct Passage {
    host: HostId,
    networks: BTreeSet<Network>,
    since: Moment,
}

impl Hunter {
    /// What is served under a name. Places that come to a name which is known are looked at soon; those of a name that is
    /// new some time, unless its refs have just changed, because at a start all of them are.
    pub(super) fn kept(&mut self, name: Identifier, repos: Vec<Kept>) {
        let known = self.looks.names.remove(&name);
        let spread = if known.is_some() { 0 } else { self.manners.looks.spread };
        let mut before = BTreeMap::new();
        for id in known.into_iter().flatten() {
            if let Some(look) = self.looks.all.get(&id) {
                before.insert((look.site.clone(), look.url.clone()), id);
            }
        }
        let (mut ids, is_gone) = (Vec::new(), repos.is_empty());
        for Kept { site, places } in repos {
            let places: BTreeSet<String> = places.into_iter().take(limits::MAX_URLS).collect();
            for place in places {
                let key = (site.clone(), place);
                let id = before.remove(&key).unwrap_or_else(|| self.add_look(key.0, key.1, spread));
                ids.push(id);
            }
        }
        before.into_values().for_each(|id| self.overlook(id));
        if !is_gone {
            self.looks.names.insert(name, ids);
        }
        while self.looks.all.len() > limits::LOOKS {
            let Some(oldest) = self.looks.all.keys().next().copied() else { break };
            self.overlook(oldest);
        }
    }

    fn add_look(&mut self, site: Site, url: String, spread: u64) -> LookId {
        let id = LookId(self.number());
        let may_be_called = Target::parse(&url, Purpose::Git, self.manners.reach).is_ok();
        let found = (!may_be_called).then_some((Found::Shunned, self.now.wall));
        let stage = Stage::Resting(None);
        self.looks.all.insert(id, Outlook { site, url, stage, tries: 0, found, stale: false, moved: false });
        if may_be_called {
            let wait = self.manners.looks.first * 1_000 + self.chance.below(spread * 1_000);
            self.plan(id, Moment(self.now.mono.0.saturating_add(wait)));
        }
        id
    }

    /// A place is no concern of ours any more.
    fn overlook(&mut self, id: LookId) {
        match self.looks.all.remove(&id).map(|look| look.stage) {
            Some(Stage::Resting(at)) => self.ring(Timer::Look(id), at, None),
            Some(Stage::Waiting(host_id, since)) => {
                if let Some(host) = self.hosts.get_mut(host_id) {
                    host.looks.remove(&(since, id));
                }
                self.drop_host(host_id);
            }
            Some(Stage::Surveying(host, _)) => self.drop_host(host),
            Some(Stage::Asking) | None => {}
        }
    }

    /// Branches or tags of a repository have changed. Whoever pushes to several servers needs a moment for it.
    pub(super) fn moved(&mut self, site: &Site) {
        let soon = self.now.mono.plus_secs(self.manners.looks.first);
        for id in self.looks.names.get(site.identifier()).cloned().unwrap_or_default() {
            let Some(look) = self.looks.all.get_mut(&id).filter(|look| look.site == *site) else { continue };
            (look.tries, look.stale, look.moved) = (0, true, true);
            if let Stage::Resting(Some(at)) = look.stage {
                self.plan(id, at.min(soon));
            }
        }
    }

    /// Looks again at that time.
    fn plan(&mut self, id: LookId, at: Moment) {
        let Some(look) = self.looks.all.get_mut(&id) else { return };
        let stage = std::mem::replace(&mut look.stage, Stage::Resting(Some(at)));
        let before = if let Stage::Resting(before) = stage { before } else { None };
        self.ring(Timer::Look(id), before, Some(at));
    }

    /// The time for a look has come: it waits for its host.
    pub(super) fn look_due(&mut self, id: LookId) {
        let now = self.now.mono;
        let Some(origin) = self.looks.all.get(&id).and_then(|look| self.target(look)).as_ref().map(Origin::of) else {
            return;
        };
        let host = self.host(&origin.authority(), &origin.host().to_string());
        self.hold_host(host);
        self.queue(id, host, now);
    }

    fn target(&self, look: &Outlook) -> Option<Target> {
        Target::parse(&look.url, Purpose::Git, self.manners.reach).ok()
    }

    fn queue(&mut self, id: LookId, host_id: HostId, since: Moment) {
        let (Some(look), Some(host)) = (self.looks.all.get_mut(&id), self.hosts.get_mut(host_id)) else { return };
        look.stage = Stage::Waiting(host_id, since);
        host.looks.insert((since, id));
        self.rouse(host_id);
    }

    /// Somebody does not wait for a host any more: if nobody does, it may be looked at.
    pub(super) fn make_way(&mut self, id: HostId) {
        if self.hosts.get(id).is_some_and(|host| host.line.first().is_none() && !host.looks.is_empty()) {
            self.rouse(id);
        }
    }

    /// Nobody else waits for a host: whether a look could begin there. If not, the time is given when one may.
    pub(super) fn serve_look(&mut self, host_id: HostId) -> Result<(), Option<Moment>> {
        let (now, flaw) = (self.now.mono, self.flaw);
        let Some(host) = self.hosts.get_mut(host_id).filter(|host| !host.looking) else { return Err(None) };
        let Some((since, id)) = host.looks.first().copied() else { return Err(None) };
        if self.looks.under_way.len() >= limits::LOOKS_AT_ONCE {
            self.looks.crowd.insert(host_id);
            return Err(None);
        }
        let own = host.limits(flaw);
        match host.gate(now, Limits { per_minute: own.per_minute.div_ceil(2), ..own }) {
            Gate::Open(_) => {}
            Gate::Until(at) => return Err(Some(at)),
            Gate::Full => return Err(None),
            Gate::Never => {
                host.looks.remove(&(since, id));
                self.saw(id, Some(Found::Shunned));
                self.drop_host(host_id);
                return Ok(());
            }
        }
        self.begin_look(id, host_id, since)
    }

    /// Asks, or finds out first where the server is.
    fn begin_look(&mut self, id: LookId, host_id: HostId, since: Moment) -> Result<(), Option<Moment>> {
        let (now, flaw) = (self.now, self.flaw);
        let Some(target) = self.looks.all.get(&id).and_then(|look| self.target(look)) else { return Err(None) };
        let origin = Origin::of(&target);
        let (Some(look), Some(host)) = (self.looks.all.get_mut(&id), self.hosts.get_mut(host_id)) else {
            return Err(None);
        };
        if self.scouts.contains_key(&origin) {
            return Err(None);
        }
        if let Some(terms) = host.is_stale(now.mono, &origin, false) {
            if self.scouts.len() >= limits::HUNT_SURVEYS / 2 {
                self.unseen.insert(host_id);
                return Err(None);
            }
            host.looks.remove(&(since, id));
            host.looking = true;
            look.stage = Stage::Surveying(host_id, since);
            self.scouts.insert(origin.clone(), Scout { host: host_id, errand: Errand::Look(id), terms });
            self.out.push_back(Output::Survey { origin, terms });
            return Ok(());
        }
        let own = host.limits(flaw);
        let networks = host.sights.get(&origin).map(|sight| sight.networks.clone()).unwrap_or_default();
        let reserved = self.networks.reserved_until(&networks);
        if reserved > now.mono {
            return Err(Some(reserved));
        }
        match self.networks.room(now.mono, host_id, &networks, own) {
            Room::Free => {}
            Room::Until(at) => return Err(Some(at)),
            Room::Full => return Err(None),
        }
        host.looks.remove(&(since, id));
        host.looking = true;
        let row = host.begin(now, own);
        self.networks.begin(now.mono, &networks);
        (look.stage, look.moved) = (Stage::Asking, false);
        let site = look.site.clone();
        self.looks.under_way.insert(id, Passage { host: host_id, networks, since: now.mono });
        self.tally.looks += 1;
        self.out.extend(row.map(Output::Remember));
        self.out.push_back(Output::Look(Look { id, site, target }));
        Ok(())
    }

    /// It is known where a server is, or that nobody can be asked there.
    pub(super) fn look_surveyed(&mut self, id: LookId, host_id: HostId, doom: Option<Doom>) {
        if let Some(host) = self.hosts.get_mut(host_id) {
            host.looking = false;
        }
        // It may have been given up meanwhile.
        let Some(Stage::Surveying(_, since)) = self.looks.all.get(&id).map(|look| look.stage) else { return };
        match doom {
            None => self.queue(id, host_id, since),
            Some(doom) => {
                let forbidden = matches!(doom, Doom::Forbidden(_) | Doom::Never);
                self.saw(id, Some(if forbidden { Found::Shunned } else { Found::Silent }));
                self.drop_host(host_id);
            }
        }
    }

    /// A look is over.
    pub(super) fn looked(&mut self, id: LookId, result: Result<Shown, End>) {
        let Some(Passage { host: host_id, networks, since }) = self.looks.under_way.remove(&id) else { return };
        if let Some(host) = self.hosts.get_mut(host_id) {
            host.looking = false;
        }
        self.book(host_id, since, result.as_ref().err().unwrap_or(&End::Sent), None);
        self.flush(host_id);
        let waiting = std::mem::take(&mut self.looks.crowd);
        for host in self.networks.end(self.now.mono, &networks).into_iter().chain(waiting).chain([host_id]) {
            self.rouse(host);
        }
        self.drop_host(host_id);
        self.saw(
            id,
            match result {
                Ok(shown) if shown.lacks == 0 => Some(Found::Current(self.now.wall)),
                Ok(shown) => Some(Found::Lacking(shown)),
                Err(End::Absent) => Some(Found::Absent),
                // That says nothing about the repository.
                Err(End::Busy(_) | End::Ours | End::Cancelled) => None,
                Err(End::Failed | End::Unsound | End::NotByOid | End::Sent) => Some(Found::Silent),
            },
        );
    }

    /// Notes what was found, and when to look again.
    fn saw(&mut self, id: LookId, found: Option<Found>) {
        let (now, pace) = (self.now, self.manners.looks);
        let Some(look) = self.looks.all.get_mut(&id) else { return };
        let moved = std::mem::take(&mut look.moved) && matches!(look.stage, Stage::Asking);
        let since = match look.found {
            Some((Found::Current(since), _)) if !look.stale => since,
            _ => now.wall,
        };
        if let Some(found) = found {
            let found = if let Found::Current(_) = found { Found::Current(since) } else { found };
            (look.found, look.stale) = (Some((found, now.wall)), moved);
        }
        let [.., daily] = pace.again;
        let is_current = matches!(found, Some(Found::Current(_)));
        let secs = match look.tries {
            _ if moved => pace.first,
            _ if is_current => daily,
            tries => pace.again.get(tries).copied().unwrap_or(daily),
        };
        look.tries = if moved || is_current { 0 } else { look.tries + 1 };
        let at = now.mono.0.saturating_add(self.chance.about(secs * 1_000));
        self.plan(id, Moment(at));
    }

    /// What is known of the git servers of a repository.
    #[must_use]
    pub fn looks(&self, site: &Site) -> Vec<LookView> {
        let ids = self.looks.names.get(site.identifier()).into_iter().flatten();
        let looks = ids.filter_map(|id| self.looks.all.get(id)).filter(|look| look.site == *site);
        looks.map(|look| LookView { url: look.url.clone(), found: look.found, stale: look.stale }).collect()
    }

    /// How many places are looked at, and how many looks are under way.
    #[must_use]
    pub fn look_count(&self) -> (usize, usize) {
        (self.looks.all.len(), self.looks.under_way.len())
    }
}
