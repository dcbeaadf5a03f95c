//! Which relays have a link: those that are wanted, as far as there is room.

use std::collections::BTreeMap;

use super::Syncer;
use super::fault_injection::Flaw;
use super::filters::Size;
use super::health::Health;
use super::io::Output;
use super::relay::{Cover, Link, LinkId, State};
use super::relay_record::{HealthRow, Learned, Totals};
use super::relay_url::RelayUrl;
use super::targets::{RepoKey, Wants};
use crate::limits;
use crate::time::Moment;

impl Syncer {
    /// Brings a link into line with who wants its relay.
    pub(super) fn relink(&mut self, place: &str) {
        if !self.ready {
            return;
        }
        let wanted = self.wants.wanted(place).cloned();
        let Some(id) = self.places.get(place).copied() else {
            if let Some(wanted) = wanted
                && self.may_link(&wanted)
            {
                self.link_to(&wanted.url, false);
                self.relink(place);
            }
            return;
        };
        let (served, held) = wanted.map(|wanted| (wanted.served, wanted.held)).unwrap_or_default();
        let now = self.now;
        let full = self.flawed(Flaw::HeldSyncedInFull);
        let Some(link) = self.links.get_mut(&id) else { return };
        let served = if full { served.union(&held).copied().collect() } else { served };
        let gone: Vec<RepoKey> = link.covers.keys().filter(|key| !served.contains(key)).copied().collect();
        for key in &gone {
            link.covers.remove(key);
            link.dirty.remove(key);
            if let Some(repo) = self.wants.repo_mut(*key) {
                repo.links.remove(&id);
            }
        }
        for key in served {
            let Some(repo) = self.wants.repo_mut(key) else { continue };
            repo.links.insert(id);
            let seq = repo.seq;
            if link.covers.contains_key(&key) {
                continue;
            }
            // An earlier life may have had all of it.
            let had = link.restored.filter(|up_to| seq <= *up_to);
            let cover = had.map_or(Cover::default(), |up_to| Cover {
                tags_planned: true,
                tags: true,
                planned: up_to,
                done: up_to,
                open: 0,
            });
            link.covers.insert(key, cover);
            link.dirty.insert(key);
            link.stirred = true;
            link.whole = link.whole.plus(Size::of(repo));
        }
        link.held = held;
        if !gone.is_empty() {
            link.measure(&self.wants);
        }
        link.unwanted = match (link.is_wanted(), link.unwanted) {
            (true, _) => None,
            (false, since) => since.or(Some(now.mono)),
        };
        self.restless.insert(id);
    }

    /// Whether there is room for one link more.
    pub(super) fn may_link(&mut self, wanted: &super::targets::Wanted) -> bool {
        let host = wanted.url.host().to_owned();
        let same = self.links.values().filter(|link| link.url.host() == host).count();
        if same >= limits::SYNC_LINKS_PER_HOST {
            return false;
        }
        if wanted.served.is_empty() {
            // Anybody can announce: what waits for its data may make us dial a few relays, not the world.
            let only_held = |link: &&Link| link.covers.is_empty() && !link.bootstrap && link.is_wanted();
            let all = self.links.values().filter(only_held).count();
            let of =
                |key: &RepoKey| self.links.values().filter(only_held).filter(|link| link.held.contains(key)).count();
            return all < limits::SYNC_HELD_LINKS
                && wanted.held.iter().any(|key| of(key) < limits::SYNC_LINKS_PER_HELD);
        }
        if self.links.len() < limits::SYNC_LINKS {
            return true;
        }
        let least = self.links.values().filter(|link| !link.bootstrap).min_by_key(|link| link.covers.len());
        let Some(least) = least.filter(|least| least.covers.len() < wanted.served.len()).map(|least| least.id) else {
            return false;
        };
        self.unlink(least);
        true
    }

    /// A link to a relay, made if there is none.
    pub(super) fn link_to(&mut self, url: &RelayUrl, bootstrap: bool) -> LinkId {
        if let Some(id) = self.places.get(url.place()).copied() {
            if let Some(link) = self.links.get_mut(&id) {
                link.bootstrap |= bootstrap;
            }
            return id;
        }
        self.next_link += 1;
        let id = LinkId(self.next_link);
        let now = self.now;
        let row = self.rows.remove(url.place());
        let health = row.as_ref().map_or(HealthRow::default(), |row| row.health);
        let health = if self.flawed(Flaw::BackoffForgotten) { HealthRow::default() } else { health };
        let covered = row.as_ref().and_then(|row| row.covered);
        let covered = covered.filter(|covered| covered.epoch == self.config.epoch && covered.lost_at <= now.wall);
        let age = covered.map(|covered| now.wall.secs_since(covered.lost_at));
        // The moment at which it was last heard, told on this process' clock.
        let heard = covered.zip(age).filter(|(_, age)| *age < limits::SYNC_QUICK_SECS).map(|(covered, age)| {
            crate::time::Now { mono: Moment(now.mono.0.saturating_sub(age * 1_000)), wall: covered.lost_at }
        });
        let usable = covered.filter(|_| heard.is_some());
        let next_full =
            usable.map(|covered| covered.next_full_at.secs_since(now.wall)).unwrap_or(limits::SYNC_DAILY_SECS);
        let link = Link {
            id,
            url: url.clone(),
            state: State::Idle,
            health: Health::new(self.config.backoff, &health, now),
            learned: row.as_ref().map_or(Learned::default(), |row| row.learned),
            covers: BTreeMap::new(),
            held: Default::default(),
            dirty: Default::default(),
            stirred: true,
            whole: Default::default(),
            announced: usable.is_some_and(|covered| covered.announcements),
            stated: false,
            restored: usable.map(|covered| covered.up_to),
            heard,
            since: usable.and_then(|covered| covered.since),
            fast_by: None,
            next_full: now.mono.plus_secs(next_full),
            daily: None,
            complete_at: None,
            owed: Vec::new(),
            overfull: usable.is_some_and(|covered| covered.failed),
            resume: BTreeMap::new(),
            fetch: Default::default(),
            late: Default::default(),
            totals: row.as_ref().map_or(Totals::default(), |row| row.totals),
            paused: row.as_ref().is_some_and(|row| row.paused),
            is_self: row.as_ref().is_some_and(|row| row.is_self),
            bootstrap,
            unwanted: None,
            blameless: false,
            warned: false,
            alarm: None,
            in_line: false,
            unsaved: row.is_none(),
            saved: None,
            counted: now.mono,
        };
        self.places.insert(url.place().to_owned(), id);
        self.links.insert(id, link);
        self.restless.insert(id);
        id
    }

    /// Forgets a link.
    pub(super) fn unlink(&mut self, id: LinkId) {
        let epoch = self.config.epoch;
        let Some(mut link) = self.links.remove(&id) else { return };
        link.count_time(self.now);
        // It may come back with what is known of it.
        let unjudged = self.flights.unjudged().get(&id).copied();
        let peer = link.row(self.now, epoch, &self.wants, unjudged);
        self.out.push_back(Output::Remember(super::Row::Peer(Box::new(peer.clone()))));
        self.rows.insert(link.url.place().to_owned(), peer);
        for key in link.covers.keys() {
            if let Some(repo) = self.wants.repo_mut(*key) {
                repo.links.remove(&id);
            }
        }
        if let Some(session) = link.current_session() {
            self.sessions.remove(&session);
            self.out.push_back(Output::HangUp(session));
            if matches!(link.state, State::Dialing(_)) {
                self.dials.open = self.dials.open.saturating_sub(1);
            }
        }
        if let State::Up(up) = &link.state {
            let comparing = up.jobs.values().filter(|job| job.is_comparing()).count();
            self.negs = self.negs.saturating_sub(comparing);
        }
        if let Some(alarm) = link.alarm {
            self.alarms.remove(&(alarm, id));
        }
        self.restless.remove(&id);
        self.places.remove(link.url.place());
    }
}

impl Link {
    /// Measures all that is followed here.
    pub(super) fn measure(&mut self, wants: &Wants) {
        let repos = self.covers.keys().filter_map(|key| wants.repo(*key));
        self.whole = repos.fold(Size::default(), |whole, repo| whole.plus(Size::of(repo)));
    }
}
