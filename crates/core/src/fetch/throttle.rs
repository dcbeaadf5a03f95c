//! A host: how much may be asked of it, and who waits for that.

use std::collections::{BTreeMap, BTreeSet};

use super::Limits;
use super::fair_queue::Line;
use super::fault_injection::{Flaw, makes};
use super::io::{HostRow, LookId};
use super::network_limit::Network;
use super::origin::Origin;
use super::random::Chance;
use super::sliding_window::Window;
use crate::limits;
use crate::net::Forbidden;
use crate::sync::relay_limits::GitTerms;
use crate::time::{Moment, Now, Timestamp};

/// Where a server is and what it allows, and since when we know.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    pub(super) networks: BTreeSet<Network>,
    pub(super) at: Moment,
    pub(super) terms: GitTerms,
    pub(super) terms_at: Option<Moment>,
}

/// Why nobody waits for a host at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doom {
    /// It has failed too often.
    Down,
    /// Its name leads nowhere.
    Nowhere,
    /// It leads to where nobody is called.
    Forbidden(Forbidden),
    /// It wants none.
    Never,
}

/// Whether a host can take one more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    /// It can take so many.
    Open(usize),
    /// Not before.
    Until(Moment),
    /// Not before one of its fetches has ended.
    Full,
    /// It wants none.
    Never,
}

/// Why a host is left alone for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quiet {
    /// It said that there were too many requests.
    Busy,
    /// It has failed.
    Failed,
    /// An earlier life of this server knew why.
    Restored,
}

/// A host.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    pub(super) authority: String,
    usual: Limits,
    /// The operator has named limits for it.
    chosen: bool,
    pub(super) window: Window,
    pub(super) in_flight: usize,
    /// It wants to be left alone until then.
    pub(super) busy: Option<(Moment, Quiet)>,
    /// It has failed and is left alone until then.
    pub(super) cool: Option<Moment>,
    failures: u32,
    failed_at: Moment,
    pub(super) sights: BTreeMap<Origin, Sight>,
    pub(super) line: Line,
    /// Looks that wait for it, and since when.
    pub(super) looks: BTreeSet<(Moment, LookId)>,
    /// A look is under way.
    pub(super) looking: bool,
    pub(super) doom: Option<Doom>,
    /// Places that lead here.
    pub(super) stops: usize,
    /// How many more requests its row counts already, and until when.
    lease: (u32, Moment),
    pub(super) hits: u32,
    pub(super) misses: u32,
    pub(super) requests: u64,
    /// Its place among those that may have something to do.
    pub(super) eager: Option<u64>,
    pub(super) alarm: Option<Moment>,
    pub(super) has_row: bool,
    pub(super) used_at: Moment,
}

impl Domain {
    pub(super) fn new(authority: String, usual: Limits, chosen: bool) -> Self {
        Self {
            authority,
            usual,
            chosen,
            window: Window::default(),
            in_flight: 0,
            busy: None,
            cool: None,
            failures: 0,
            failed_at: Moment(0),
            sights: BTreeMap::new(),
            line: Line::default(),
            looks: BTreeSet::new(),
            looking: false,
            doom: None,
            stops: 0,
            lease: (0, Moment(0)),
            hits: 0,
            misses: 0,
            requests: 0,
            eager: None,
            alarm: None,
            has_row: false,
            used_at: Moment(0),
        }
    }

    /// What may be asked: what is usual; where the server states something, that. It lowers without limit, and raises
    /// what the operator has not chosen (rule M20).
    pub(super) fn limits(&self, flaw: Option<Flaw>) -> Limits {
        let mut own = self.usual;
        if makes(flaw, Flaw::TermsIgnored) {
            return own;
        }
        for terms in self.sights.values().map(|sight| sight.terms) {
            let apply = |own: u32, usual: u32, stated: Option<u32>, most: u32| match stated {
                Some(stated) if stated < usual => own.min(stated),
                // Somebody else here may have lowered it.
                Some(stated) if !self.chosen && own >= usual => own.max(stated.min(most)),
                _ => own,
            };
            let (concurrent, per_minute) = (self.usual.concurrent, self.usual.per_minute);
            own = Limits {
                concurrent: apply(own.concurrent, concurrent, terms.concurrent, limits::MAX_STATED_GIT_CONCURRENT),
                per_minute: apply(own.per_minute, per_minute, terms.per_minute, limits::MAX_STATED_GIT_PER_MINUTE),
            };
        }
        own
    }

    /// Until when it wants none, if it does.
    pub(super) fn never_until(&self, own: Limits) -> Option<Moment> {
        if own.concurrent > 0 && own.per_minute > 0 {
            return None;
        }
        let stated = self.sights.values().filter_map(|sight| sight.terms_at).max();
        Some(stated.unwrap_or(Moment(u64::MAX)).plus_secs(limits::HUNT_TERMS_SECS))
    }

    /// Whether it can take one more.
    pub(super) fn gate(&mut self, now: Moment, own: Limits) -> Gate {
        if self.never_until(own).is_some_and(|until| now < until) {
            return Gate::Never;
        }
        if let Some((until, _)) = self.quiet(now) {
            return Gate::Until(until);
        }
        // After a failure one probe speaks for all.
        let concurrent = if self.failures > 0 { 1 } else { own.concurrent.max(1) as usize };
        let Some(hands) = concurrent.checked_sub(self.in_flight).filter(|hands| *hands > 0) else { return Gate::Full };
        self.window.prune(now);
        let per_minute = own.per_minute.max(1) as usize;
        match self.window.free_at(per_minute) {
            Some(at) => Gate::Until(at),
            None => Gate::Open(hands.min(per_minute - self.window.len())),
        }
    }

    /// Whether it must be found out anew where a server is, or what it allows: `terms`.
    pub(super) fn is_stale(&self, now: Moment, origin: &Origin, grasp: bool) -> Option<bool> {
        let Some(sight) = self.sights.get(origin) else { return Some(grasp) };
        let stated = grasp || sight.terms != GitTerms::default();
        let terms = stated && sight.terms_at.is_none_or(|at| now >= at.plus_secs(limits::HUNT_TERMS_SECS));
        (terms || now >= sight.at.plus_secs(limits::HUNT_ADDRESS_SECS)).then_some(terms)
    }

    /// A request begins. Gives its row if that has to be written first.
    pub(super) fn begin(&mut self, now: Now, own: Limits) -> Option<HostRow> {
        self.window.count(now.mono);
        self.in_flight += 1;
        self.requests += 1;
        self.used_at = now.mono;
        if self.lease.0 > 0 && now.mono < self.lease.1 {
            self.lease.0 -= 1;
            return None;
        }
        // After a restart nobody knows yet what the server states: what is usual must be enough for what was leased.
        let ahead = (own.per_minute.min(self.usual.per_minute) / limits::HUNT_LEASE_PART).max(1);
        self.lease = (ahead, now.mono.plus_secs(limits::HUNT_LEASE_SECS));
        Some(self.row(now))
    }

    /// It is busy, and wants to be left alone for so long.
    pub(super) fn busy(&mut self, now: Now, secs: Option<u64>, chance: &mut Chance) {
        let millis = match secs {
            Some(secs) => chance.at_least(secs.clamp(1, limits::HUNT_MAX_QUIET_SECS) * 1_000),
            None => chance.about(limits::HUNT_BUSY_SECS * 1_000),
        };
        self.hush(Moment(now.mono.0.saturating_add(millis)), Quiet::Busy);
    }

    /// A request that began at `since` has failed. One failure counts once, however many requests shared it.
    pub(super) fn fail(&mut self, now: Now, since: Moment, chance: &mut Chance) {
        if self.failures > 0 && since <= self.failed_at {
            let least = now.mono.0.saturating_add(chance.about(limits::HUNT_COOL_SECS * 1_000));
            self.cool = self.cool.max(Some(Moment(least)));
            return;
        }
        self.failed_at = now.mono;
        let doubled = limits::HUNT_COOL_SECS << self.failures.min(10);
        self.failures = self.failures.saturating_add(1);
        let millis = chance.about(doubled.min(limits::HUNT_MAX_COOL_SECS) * 1_000);
        self.cool = Some(Moment(now.mono.0.saturating_add(millis)));
        if self.failures >= limits::HUNT_DOWN {
            self.doom = Some(Doom::Down);
        }
    }

    fn hush(&mut self, until: Moment, why: Quiet) {
        if self.busy.is_none_or(|(before, _)| before < until) {
            self.busy = Some((until, why));
        }
    }

    /// Until when it is left alone, and why.
    pub(super) fn quiet(&self, now: Moment) -> Option<(Moment, Quiet)> {
        let cool = self.cool.map(|until| (until, Quiet::Failed));
        self.busy.into_iter().chain(cool).max_by_key(|(until, _)| *until).filter(|(until, _)| *until > now)
    }

    /// It has answered.
    pub(super) fn answered(&mut self) {
        self.failures = 0;
        self.cool = None;
    }

    /// Whether something that was sought has come.
    pub(super) fn score(&mut self, hit: bool) {
        if hit {
            self.hits += 1;
        } else {
            self.misses += 1;
        }
        if self.hits + self.misses > limits::HUNT_SCORES {
            self.hits /= 2;
            self.misses /= 2;
        }
    }

    /// How likely it is to have what is sought, in thousandths.
    pub(super) fn luck(&self) -> u32 {
        (self.hits + 1) * 1_000 / (self.hits + self.misses + 2)
    }

    /// How many failures in a row there were.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// What is kept of it, requests that may be made before it is written again included.
    pub(super) fn row(&mut self, now: Now) -> HostRow {
        self.has_row = true;
        let mut asked = self.window.asked(now);
        if now.mono < self.lease.1 {
            let last = now.wall.plus_secs(self.lease.1.since(now.mono).as_secs() + 1);
            asked.extend((0..self.lease.0).map(|_| last));
        }
        let left =
            self.quiet(now.mono).map_or(0, |(until, _)| until.since(now.mono).as_millis().div_ceil(1_000) as u64);
        let quiet_until = if left > 0 { now.wall.plus_secs(left + 1) } else { Timestamp(0) };
        HostRow { authority: self.authority.clone(), asked, quiet_until, hits: self.hits, misses: self.misses }
    }

    /// What an earlier life knew.
    pub(super) fn restore(&mut self, now: Now, row: &HostRow) {
        self.has_row = true;
        self.used_at = now.mono;
        let most = (limits::MAX_STATED_GIT_PER_MINUTE * 2).max(self.usual.per_minute.saturating_mul(2)) as usize;
        let asked = &row.asked[row.asked.len().saturating_sub(most)..];
        self.window.restore(now, asked, limits::HUNT_LEASE_SECS + 1);
        let left = row.quiet_until.secs_since(now.wall).min(limits::HUNT_MAX_QUIET_SECS * 6 / 5 + 2);
        if left > 0 {
            self.hush(now.mono.plus_secs(left), Quiet::Restored);
        }
        let most = limits::HUNT_SCORES;
        (self.hits, self.misses) = (row.hits.min(most), row.misses.min(most));
    }

    /// Whether nothing would be lost with it but its luck.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        self.stops == 0
            && self.in_flight == 0
            && self.quiet(now).is_none()
            && self.window.free_at(1).is_none_or(|_| self.used_at.plus_secs(70) <= now)
    }
}
