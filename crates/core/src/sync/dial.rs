//! Relays come and go: whom to dial and when, what a new connection begins with, what is left when one ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::batch::{Ask, Doing};
use super::chunk::Size;
use super::drive::plain;
use super::flaw::Flaw;
use super::health::{Blame, Health};
use super::io::{Loss, Note, Output, Reconnect, Session, Via};
use super::link::{Auth, AuthState, Cover, Generation, Link, LinkId, Pass, Resume, State, Step, Up, What};
use super::page::PageCap;
use super::peer::{HealthRow, Learned, Totals};
use super::terms::{Budget, Terms};
use super::url::RelayUrl;
use super::wants::{RepoKey, Wants};
use super::{Syncer, earlier};
use crate::limits;
use crate::time::{Moment, Timestamp};

/// How dials are spaced.
#[derive(Debug, Default)]
pub(super) struct Dials {
    /// Attempts under way.
    open: usize,
    /// The newest attempt.
    last: Option<Moment>,
    /// The newest attempt at each host.
    hosts: BTreeMap<String, Moment>,
    /// Who is due, the longest first.
    waiting: BTreeSet<(Moment, LinkId)>,
    /// When the next dial may be possible.
    next: Option<Moment>,
    /// The two links that were heard last.
    signs: [Option<(LinkId, Moment)>; 2],
}

impl Dials {
    pub(super) fn next(&self) -> Option<Moment> {
        self.next
    }

    /// A relay was heard: the network is there.
    pub(super) fn sign(&mut self, link: LinkId, at: Moment) {
        if self.signs[0].is_none_or(|(last, _)| last != link) {
            self.signs[1] = self.signs[0];
        }
        self.signs[0] = Some((link, at));
    }

    /// Whether another relay than this was heard a short while ago.
    fn others_are_there(&self, link: LinkId, now: Moment) -> bool {
        let recent = |(_, at): &(LinkId, Moment)| now.since(*at).as_secs() <= limits::SYNC_SIGN_SECS;
        self.signs.iter().flatten().any(|sign| sign.0 != link && recent(sign))
    }
}

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
    fn may_link(&mut self, wanted: &super::wants::Wanted) -> bool {
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
            whole: Default::default(),
            announced: usable.is_some_and(|covered| covered.announcements),
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
    fn unlink(&mut self, id: LinkId) {
        let epoch = self.config.epoch;
        let Some(mut link) = self.links.remove(&id) else { return };
        link.count_time(self.now);
        self.out.push_back(Output::Remember(super::Row::Peer(Box::new(link.row(self.now, epoch, &self.wants)))));
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
        // It may come back with what is known of it.
        let peer = link.row(self.now, epoch, &self.wants);
        self.rows.insert(link.url.place().to_owned(), peer);
    }

    /// Dials whoever is due, politely spaced.
    pub(super) fn dial(&mut self) {
        self.dials.next = None;
        let now = self.now.mono;
        let waiting: Vec<(Moment, LinkId)> = self.dials.waiting.iter().copied().collect();
        for (due, id) in waiting {
            if self.dials.open >= limits::SYNC_DIALS {
                break;
            }
            let flaw = self.config.flaw;
            let Some(link) = self.links.get_mut(&id).filter(|link| link.dial_at(flaw).is_some_and(|at| at <= now))
            else {
                self.dials.waiting.remove(&(due, id));
                if let Some(link) = self.links.get_mut(&id) {
                    link.in_line = false;
                }
                self.restless.insert(id);
                continue;
            };
            let host = self.dials.hosts.get(link.url.host()).map(|at| at.plus(limits::SYNC_DIAL_HOST));
            let all = self.dials.last.map(|at| at.plus(limits::SYNC_DIAL));
            let at = host.unwrap_or_default().max(all.unwrap_or_default());
            if at > now {
                self.dials.next = Some(self.dials.next.map_or(at, |next| next.min(at)));
                if all.is_some_and(|all| all > now) {
                    break;
                }
                continue;
            }
            self.dials.waiting.remove(&(due, id));
            link.in_line = false;
            self.next += 1;
            let session = Session(self.next);
            link.count_time(self.now);
            link.state = State::Dialing(session);
            link.totals.attempts += 1;
            self.sessions.insert(session, id);
            self.dials.open += 1;
            self.dials.last = Some(now);
            self.dials.hosts.retain(|_, at| at.plus(limits::SYNC_DIAL_HOST) > now);
            self.dials.hosts.insert(link.url.host().to_owned(), now);
            self.out.push_back(Output::Dial(session, link.url.clone()));
            self.set_alarm(id);
        }
    }

    /// A connection stands.
    pub(super) fn up(&mut self, session: Session, terms: Option<Terms>) {
        let Some(id) = self.sessions.get(&session).copied() else { return };
        self.dials.sign(id, self.now.mono);
        let now = self.now;
        let own = terms.as_ref().is_some_and(|terms| terms.instance.as_deref() == Some(&self.config.instance));
        if own && !self.flawed(Flaw::DialSelf) {
            if let Some(link) = self.links.get_mut(&id) {
                link.is_self = true;
                link.unsaved = true;
                self.out.push_back(Output::Note(Note::IsSelf(link.url.clone())));
            }
            return self.hang_up(id);
        }
        self.dials.open = self.dials.open.saturating_sub(1);
        let released: Vec<LinkId> = self.links.values().filter(|link| link.blameless).map(|link| link.id).collect();
        for id in released {
            if let Some(link) = self.links.get_mut(&id) {
                link.blameless = false;
                link.health.retry_now(now);
            }
            self.restless.insert(id);
        }
        self.with(id, |link, ctx| link.connect(ctx, session, terms));
        self.restless.insert(id);
    }

    /// A connection has ended or did not come about.
    pub(super) fn down(&mut self, session: Session, loss: Loss) {
        let Some(id) = self.sessions.remove(&session) else { return };
        let now = self.now;
        let chance = self.chance.next();
        let theirs = self.dials.others_are_there(id, now.mono);
        let Some(link) = self.links.get_mut(&id) else { return };
        link.count_time(now);
        let state = std::mem::replace(&mut link.state, State::Idle);
        link.unsaved = true;
        match state {
            State::Idle => {}
            State::Dialing(_) => {
                self.dials.open = self.dials.open.saturating_sub(1);
                if loss != Loss::HungUp {
                    link.totals.failures += 1;
                    let ours = !theirs && loss == Loss::Unreachable;
                    link.blameless = ours;
                    let verdict = link.health.failed(now, if ours { Blame::Ours } else { Blame::Theirs }, chance);
                    let relay = link.url.clone();
                    let failures = link.health.failures();
                    let backoff_millis = u64::try_from(verdict.next.since(now.mono).as_millis()).unwrap_or(u64::MAX);
                    if verdict.died {
                        self.out.push_back(Output::Note(Note::Dead(relay.clone(), failures)));
                    }
                    self.out.push_back(Output::Note(Note::Failed { relay, loss, failures, backoff_millis }));
                }
            }
            State::Up(up) => {
                let comparing = up.jobs.values().filter(|job| job.is_comparing()).count();
                self.negs = self.negs.saturating_sub(comparing);
                if loss == Loss::HungUp {
                    link.health.left(now);
                } else {
                    link.health.lost(now, chance);
                }
                link.disconnect(*up, now.mono);
                self.out.push_back(Output::Note(Note::Lost(link.url.clone(), loss)));
            }
        }
        self.restless.insert(id);
        if self.links.get(&id).is_some_and(|link| {
            !link.is_wanted()
                && link.unwanted.is_some_and(|at| now.mono.since(at).as_secs() >= limits::SYNC_UNWANTED_SECS)
        }) {
            self.unlink(id);
        }
    }

    /// Ends a link's connection, or the attempt at one.
    pub(super) fn hang_up(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(session) = link.current_session() else { return };
        let leaving = link.up_mut().is_some_and(|up| std::mem::replace(&mut up.leaving, true));
        if !leaving {
            self.out.push_back(Output::HangUp(session));
        }
    }

    /// A link's alarm has rung.
    pub(super) fn due(&mut self, id: LinkId) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&id) else { return };
        if !link.is_wanted()
            && link.unwanted.is_some_and(|at| now.mono.since(at).as_secs() >= limits::SYNC_UNWANTED_SECS)
        {
            match link.current_session() {
                Some(_) => {
                    // The end of the session does the rest.
                    link.unwanted = Some(now.mono);
                    self.hang_up(id);
                }
                None => self.unlink(id),
            }
            return;
        }
        if !link.in_line && link.dial_at(self.config.flaw).is_some_and(|at| at <= now.mono) {
            link.in_line = true;
            self.dials.waiting.insert((now.mono, id));
        }
        let leave = self.with(id, |link, ctx| link.overdue(ctx)).unwrap_or(false);
        if leave {
            self.hang_up(id);
        }
    }
}

impl Link {
    /// When it is to be dialled, if it is.
    pub(super) fn dial_at(&self, flaw: Option<Flaw>) -> Option<Moment> {
        let wanted = self.is_wanted() && (!self.paused || flaw == Some(Flaw::PausedDialled));
        let own = self.is_self && flaw != Some(Flaw::DialSelf);
        if !matches!(self.state, State::Idle) || !wanted || own {
            return None;
        }
        let quiet = self.health.quiet_until().filter(|_| flaw != Some(Flaw::QuietForgotten));
        Some(self.health.next_dial().max(quiet.unwrap_or_default()))
    }

    /// Measures all that is followed here.
    pub(super) fn measure(&mut self, wants: &Wants) {
        let repos = self.covers.keys().filter_map(|key| wants.repo(*key));
        self.whole = repos.fold(Size::default(), |whole, repo| whole.plus(Size::of(repo)));
    }

    /// A new connection: what it begins with.
    fn connect(&mut self, ctx: &mut super::Ctx<'_>, session: Session, terms: Option<Terms>) {
        self.count_time(ctx.now);
        self.health.connected(ctx.now);
        let gap = self.heard.map(|heard| ctx.now.mono.since(heard.mono).as_secs());
        let how = match gap {
            Some(secs)
                if secs < limits::SYNC_QUICK_SECS
                    && (self.announced || self.covers.values().any(|cover| cover.tags)) =>
            {
                Reconnect::Quick
            }
            Some(_) => Reconnect::Long,
            None => Reconnect::Fresh,
        };
        let budget = Budget::of(terms.as_ref(), &self.learned);
        let grasp = terms.as_ref().is_some_and(|terms| terms.is_grasp);
        let usual = if grasp { limits::SYNC_OVERLAP_GRASP_SECS } else { limits::SYNC_OVERLAP_SECS };
        let overlap = if ctx.flawed(Flaw::OverlapDropped) {
            0
        } else {
            usual + self.fast_by.unwrap_or(0).min(limits::SYNC_MAX_SKEW_SECS)
        };
        if how == Reconnect::Quick {
            let lost = self.heard.map_or(ctx.now.wall, |heard| heard.wall);
            self.since = Some(earlier(self.since, Timestamp(lost.0.saturating_sub(overlap))));
        } else {
            self.since = None;
            self.announced = false;
            self.restored = None;
            self.daily = None;
            for (key, cover) in &mut self.covers {
                *cover = Cover::default();
                self.dirty.insert(*key);
            }
            self.resume.clear();
        }
        self.fast_by = None;
        self.owed.clear();
        self.complete_at = if how == Reconnect::Quick { self.complete_at } else { None };
        let full = if how == Reconnect::Quick {
            // What `since` cannot see is owed to a full pass, sooner where that is cheap.
            let soon = ctx.now.mono.plus_secs(3_600 + ctx.chance.next() % 7_200);
            let cheap = terms.as_ref().and_then(|terms| terms.negentropy) == Some(true)
                && self.learned.no_negentropy_at.is_none();
            if cheap { self.next_full.min(soon) } else { self.next_full }
        } else {
            ctx.now.mono.plus_secs(ctx.daily())
        };
        self.next_full = full.max(ctx.now.mono.plus_secs(1));
        let pass = (how == Reconnect::Quick).then(|| Pass {
            via: Via::CatchUp,
            since: self.since,
            at: self.covers.keys().next().map(|key| (*key, 0)),
            open: 0,
        });
        self.unsaved = true;
        self.heard = Some(ctx.now);
        self.state = State::Up(Box::new(Up {
            session,
            terms,
            budget,
            unsent: 0,
            said: 0,
            subs: BTreeMap::new(),
            live: BTreeMap::new(),
            wishes: VecDeque::new(),
            wide: None,
            polled: VecDeque::new(),
            poll_at: None,
            batches: BTreeMap::new(),
            jobs: BTreeMap::new(),
            generation: Some(Generation { via: Via::CatchUp, events: 0 }),
            pass,
            layer_one: Step::Todo,
            named: None,
            unmergeable: false,
            refusals: 0,
            pace: limits::SYNC_FIRST_PACE,
            hold_until: ctx.now.mono,
            cap: PageCap::default(),
            auth: Auth::default(),
            wide_seen: (0, 0),
            loose: 0,
            leaving: false,
            nonsense: 0,
        }));
        ctx.note(Note::Connected(self.url.clone(), how));
    }

    /// A connection has ended: what was under way is asked for again by the next one.
    fn disconnect(&mut self, up: Up, now: Moment) {
        for job in up.jobs.into_values() {
            let began = up.batches.get(&job.batch).map_or(Timestamp(0), |batch| batch.began);
            if let Doing::Page(pages) = &job.doing {
                self.keep_place(pages, began, now);
            }
        }
        for batch in up.batches.into_values() {
            for ask in &batch.todo {
                if let Ask::Page(pages) = ask {
                    self.keep_place(pages, batch.began, now);
                }
            }
        }
        if let Some(pass) = up.pass.filter(|pass| pass.via == Via::Daily) {
            self.daily = pass.at;
            // It goes on when there is a connection again.
            self.next_full = now;
        }
        for (key, cover) in &mut self.covers {
            cover.open = 0;
            cover.planned = cover.done;
            cover.tags_planned = cover.tags;
            self.dirty.insert(*key);
        }
    }

    fn keep_place(&mut self, pages: &super::page::Pages, began: Timestamp, now: Moment) {
        if let Some(until) = pages.cursor()
            && self.resume.len() < limits::SYNC_RESUMES
        {
            self.resume.insert(plain(&pages.request()), Resume { until, began, at: now });
        }
    }

    /// Deadlines that have passed. `true` if the connection must end.
    fn overdue(&mut self, ctx: &mut super::Ctx<'_>) -> bool {
        let now = ctx.now.mono;
        let State::Up(up) = &mut self.state else { return false };
        if up.leaving {
            return false;
        }
        if let AuthState::Wanted(at) | AuthState::Sent(at) = up.auth.state
            && at <= now
        {
            ctx.note(Note::Parked(self.url.clone(), "authentication was not answered".to_owned()));
            self.health.park(ctx.now, ctx.chance.next());
            return true;
        }
        let late: Vec<_> = up
            .live
            .iter()
            .filter(|(_, set)| !set.unconfirmed.is_empty() && set.deadline <= now)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            let Some(up) = self.up_mut() else { return false };
            let Some(set) = up.live.get_mut(&key) else { continue };
            set.unconfirmed.clear();
            for batch in set.batches.clone() {
                if let Some(batch) = up.batches.get_mut(&batch) {
                    batch.trouble("a live subscription was not confirmed");
                }
            }
            self.live_confirmed(ctx, key);
        }
        let Some(up) = self.up_mut() else { return false };
        let late: Vec<_> = up
            .jobs
            .iter()
            .filter(|(_, job)| job.deadline.is_some_and(|at| at <= now))
            .map(|(id, job)| (*id, job.sub))
            .collect();
        for (id, sub) in late {
            self.give_up(ctx, id, sub);
        }
        let State::Up(up) = &mut self.state else { return false };
        if self.next_full <= now && up.generation.is_none() {
            self.start_daily(ctx);
        }
        false
    }

    fn give_up(&mut self, ctx: &mut super::Ctx<'_>, id: super::batch::JobId, sub: Option<super::io::SubId>) {
        let Some(job) = self.end_job(ctx, id) else { return };
        let State::Up(up) = &mut self.state else { return };
        let page = up.budget.page;
        up.pace = (up.pace / 2).max(1);
        if let Some(sub) = sub {
            let negentropy = matches!(job.doing, Doing::Reconciling(..));
            up.close(ctx, sub, negentropy);
        }
        let Some(batch) = up.batches.get_mut(&job.batch) else { return };
        match job.doing {
            Doing::Reconciling(filter, nego) => {
                batch.todo.push_back(super::drive::page(filter, page));
                if nego.rounds() == 0 {
                    self.no_negentropy(ctx);
                }
            }
            Doing::Page(pages) => {
                batch.trouble("a request was not answered");
                let began = batch.began;
                self.keep_place(&pages, began, ctx.now.mono);
            }
            _ => batch.trouble("a request was not answered"),
        }
    }
}

/// Which kinds of requests are open, for the view.
pub(super) fn count(up: &Up) -> (usize, usize) {
    let live = up.subs.values().filter(|sub| matches!(sub.what, What::Live(_))).count();
    (live, up.subs.len() - live)
}
