//! One relay: what outlives a connection, and the connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::batch::{Batch, BatchId, Job, JobId};
use super::fault_injection::Flaw;
use super::filters::{Names, Scope, Size};
use super::health::Health;
use super::io::{Seq, Session, SubId, Via};
use super::live::{LiveKey, LiveSet, Polled, Wish};
use super::pagination::PageCap;
use super::relay_limits::{Budget, Terms};
use super::relay_record::{Covered, Learned, Peer, Totals};
use super::relay_url::RelayUrl;
use super::targets::{RepoKey, Wants};
use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::{Moment, Now, Timestamp};

/// A small name for a relay, for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LinkId(pub u32);

/// A relay. What stands here survives a drop; what stands in [`Up`] does not.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: LinkId,
    pub(super) url: RelayUrl,
    pub(super) state: State,
    pub(super) health: Health,
    pub(super) learned: Learned,
    /// Served repositories that name it, and how far each has come.
    pub(super) covers: BTreeMap<RepoKey, Cover>,
    /// Waiting repositories that name it.
    pub(super) held: BTreeSet<RepoKey>,
    /// Repositories with something that was never asked for here.
    pub(super) dirty: BTreeSet<RepoKey>,
    /// Some of those may be ripe; looking for one costs as much as there are.
    pub(super) stirred: bool,
    /// The size of all that is followed here.
    pub(super) whole: Size,
    /// Announcements have been asked for in whole.
    pub(super) announced: bool,
    /// Since the process began its states have been compared with those here, or asked for.
    pub(super) stated: bool,
    /// Up to here an earlier life had everything; it counts for repositories that arrived before.
    pub(super) restored: Option<Seq>,
    /// When it was last heard.
    pub(super) heard: Option<Now>,
    /// What it got since then has not been asked for.
    pub(super) since: Option<Timestamp>,
    /// By how much our clock seems fast, from the freshest live event.
    pub(super) fast_by: Option<u64>,
    /// When everything is asked for again.
    pub(super) next_full: Moment,
    /// Where the daily pass stood when the connection ended.
    pub(super) daily: Option<(RepoKey, Seq)>,
    /// When history was last complete.
    pub(super) complete_at: Option<Timestamp>,
    /// Parts that failed and are tried again.
    pub(super) owed: Vec<Owed>,
    /// A single value has more events in one second than a page takes.
    pub(super) overfull: bool,
    /// Where pages stood when a connection ended.
    pub(super) resume: BTreeMap<Filter, Resume>,
    /// Events to fetch by id: what they need has come.
    pub(super) fetch: BTreeSet<EventId>,
    pub(super) late: Late,
    pub(super) totals: Totals,
    pub(super) paused: bool,
    pub(super) is_self: bool,
    pub(super) bootstrap: bool,
    /// Since when nobody wants it.
    pub(super) unwanted: Option<Moment>,
    /// It failed while our own network was away.
    pub(super) blameless: bool,
    /// The warning about negentropy has been given.
    pub(super) warned: bool,
    pub(super) alarm: Option<Moment>,
    /// It is due and waits for its turn to be dialled.
    pub(super) in_line: bool,
    /// Something of its row has changed.
    pub(super) unsaved: bool,
    /// When its row was last written.
    pub(super) saved: Option<Moment>,
    /// Since when the up or down seconds are not in the totals.
    pub(super) counted: Moment,
}

/// How far a repository has come on a relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cover {
    /// What refers to the repository itself: asked for.
    pub(super) tags_planned: bool,
    /// And had.
    pub(super) tags: bool,
    /// What refers to its roots up to this arrival: asked for.
    pub(super) planned: Seq,
    /// And had.
    pub(super) done: Seq,
    /// Batches under way that it is part of.
    pub(super) open: u32,
}

/// Whether a relay says that it has sent everything and then sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Late {
    #[default]
    No,
    /// It has just turned out: what was had of it must be had again.
    Found,
    /// Every answer is given a little more time.
    Known,
}

/// A request whose answer had nothing in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Empty {
    pub(super) sub: SubId,
    pub(super) asked: Timestamp,
    /// Stored events that come for it until then come late.
    pub(super) until: Moment,
    pub(super) late: u32,
}

/// Whether there is a connection.
#[derive(Debug)]
pub(super) enum State {
    Idle,
    Dialing(Session),
    Up(Box<Up>),
}

/// A connection.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) session: Session,
    pub(super) terms: Option<Terms>,
    pub(super) budget: Budget,
    /// Bytes that have not left yet, as the hand last told.
    pub(super) unsent: usize,
    /// Bytes that were said in this step, of which the hand knows nothing yet.
    pub(super) said: usize,
    pub(super) subs: BTreeMap<SubId, Sub>,
    pub(super) live: BTreeMap<LiveKey, LiveSet>,
    /// Live subscriptions that are to be opened, in order.
    pub(super) wishes: VecDeque<Wish>,
    /// The live set that has everything.
    pub(super) wide: Option<LiveKey>,
    /// What found no place among the live subscriptions.
    pub(super) polled: VecDeque<Polled>,
    pub(super) poll_at: Option<Moment>,
    pub(super) batches: BTreeMap<BatchId, Batch>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) generation: Option<Generation>,
    pub(super) pass: Option<Pass>,
    pub(super) layer_one: Step,
    /// Whose announcements were asked for.
    pub(super) named: Option<Names>,
    /// Merging live subscriptions found no place for the new one.
    pub(super) unmergeable: bool,
    /// Refusals without an answer between.
    pub(super) refusals: u32,
    /// Requests at once.
    pub(super) pace: u32,
    /// Nothing new is begun before.
    pub(super) hold_until: Moment,
    pub(super) cap: PageCap,
    /// The newest requests of which nothing came.
    pub(super) empty: VecDeque<Empty>,
    pub(super) auth: Auth,
    /// Wide deliveries, and those of them that belonged here.
    pub(super) wide_seen: (u32, u32),
    /// Unjudged events that were submitted again and belong to the catch-up.
    pub(super) loose: u32,
    /// We have hung up; nothing is said any more.
    pub(super) leaving: bool,
    /// Nonsense that was heard.
    pub(super) nonsense: u32,
}

/// An open request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sub {
    pub(super) what: What,
    /// An answer has ended it, or at least its stored part.
    pub(super) answered: bool,
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Live(LiveKey),
    Job(JobId),
    /// Ended by us; its slot is free then.
    Closing(Moment),
}

/// A catch-up: it ends when everything that its own events led to has been had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Generation {
    pub(super) via: Via,
    pub(super) events: u64,
}

/// A walk over everything that was had before.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    pub(super) via: Via,
    pub(super) since: Option<Timestamp>,
    /// Where it stands; `None` at its end.
    pub(super) at: Option<(RepoKey, Seq)>,
    /// Batches under way.
    pub(super) open: u32,
}

/// Where layer 1 stands in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Todo,
    Running,
    Done,
}

/// Where authentication stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Auth {
    pub(super) challenge: Option<String>,
    pub(super) state: AuthState,
}

/// See [`Auth`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum AuthState {
    #[default]
    Unneeded,
    /// Demanded; waits for a challenge or for the answer, until then.
    Wanted(Moment),
    Sent(Moment),
    Done,
}

/// A part that failed.
#[derive(Clone, Debug)]
pub(super) struct Owed {
    pub(super) scope: Scope,
    pub(super) since: Option<Timestamp>,
    pub(super) via: Via,
    pub(super) due: Moment,
    pub(super) tries: u32,
    pub(super) live: Listening,
}

/// What is known of the live subscription of a part that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listening {
    Stands,
    Gone,
    /// It was not confirmed; unless it is by then, it is opened again.
    Doubtful(LiveKey),
}

/// Where pages of a filter stood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Resume {
    pub(super) until: Timestamp,
    pub(super) began: Timestamp,
    pub(super) at: Moment,
}

impl Up {
    /// An event comes for a request that has ended. Whether the relay sends stored events behind the end of its answers.
    pub(super) fn came_late(&mut self, sub: SubId, event: Timestamp, now: Moment) -> bool {
        let Some(empty) = self.empty.iter_mut().find(|empty| empty.sub == sub && empty.until > now) else {
            return false;
        };
        empty.late += u32::from(event < empty.asked);
        empty.late >= limits::SYNC_LATE_EVENTS
    }

    /// The first batch that waits for a verdict.
    pub(super) fn waiting_batch(&self) -> Option<BatchId> {
        self.batches.iter().find(|(_, batch)| batch.unjudged > 0).map(|(id, _)| *id)
    }

    /// Since when something has not been asked for that is not followed live, or that is being asked for.
    pub(super) fn missed(&self, overlap: u64) -> Option<Timestamp> {
        let polled = self.polled.iter().map(|polled| Timestamp(polled.asked.0.saturating_sub(overlap)));
        polled.chain(self.batches.values().filter_map(|batch| batch.since)).min()
    }
}

impl Link {
    pub(super) fn up(&self) -> Option<&Up> {
        match &self.state {
            State::Up(up) => Some(up),
            _ => None,
        }
    }

    pub(super) fn up_mut(&mut self) -> Option<&mut Up> {
        match &mut self.state {
            State::Up(up) => Some(up),
            _ => None,
        }
    }

    /// The connection of a session, if it is still that one.
    pub(super) fn session(&mut self, session: Session) -> Option<&mut Up> {
        self.up_mut().filter(|up| up.session == session)
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.bootstrap || !self.covers.is_empty() || !self.held.is_empty()
    }

    pub(super) fn is_grasp(&self) -> bool {
        self.up().and_then(|up| up.terms.as_ref()).is_some_and(|terms| terms.is_grasp)
    }

    /// By how much `since` reaches back before the last frame: events are older than their arrival.
    pub(super) fn overlap(&self) -> u64 {
        self.overlap_with(self.is_grasp())
    }

    /// The same for a relay that is a GRASP server, or is not: those release events when their git data has come.
    pub(super) fn overlap_with(&self, grasp: bool) -> u64 {
        let usual = if grasp { limits::SYNC_OVERLAP_GRASP_SECS } else { limits::SYNC_OVERLAP_SECS };
        usual + self.fast_by.unwrap_or(0).min(limits::SYNC_MAX_SKEW_SECS)
    }

    /// Whether the relay wants to be left alone now.
    pub(super) fn is_quiet(&self, now: Now) -> bool {
        self.health.quiet_until().is_some_and(|until| until > now.mono)
    }

    /// Whether negentropy may be tried.
    pub(super) fn speaks_negentropy(&self, now: Now, allowed: bool) -> bool {
        let learned = self.learned.no_negentropy_at;
        let denied = learned.is_some_and(|at| now.wall.secs_since(at) < limits::NO_NEGENTROPY_SECS && now.wall >= at);
        let up = self.up();
        let stated = up.and_then(|up| up.terms.as_ref()).and_then(|terms| terms.negentropy);
        allowed && !denied && stated != Some(false) && up.is_some_and(|up| up.budget.frame.is_some())
    }

    /// Up to which arrival everything followed here has been had.
    pub(super) fn covered_up_to(&self, wants: &Wants) -> Seq {
        let mut up_to = wants.heard;
        for (key, cover) in &self.covers {
            let Some(repo) = wants.repo(*key) else { continue };
            if !cover.tags {
                up_to = up_to.min(repo.seq.saturating_sub(1));
            }
            let next = repo.roots.partition_point(|root| root.seq <= cover.done);
            if let Some(root) = repo.roots.get(next) {
                up_to = up_to.min(root.seq.saturating_sub(1));
            }
        }
        up_to
    }

    /// Since when something here has not been asked for: because of the last absence, or because a part that is not followed
    /// live waits for its turn.
    pub(super) fn missed(&self) -> Option<Timestamp> {
        let absent = self.since.into_iter().chain(self.owed.iter().filter_map(|owed| owed.since));
        absent.chain(self.up().and_then(|up| up.missed(self.overlap()))).min()
    }

    /// `ConnectionStatus` of the seeds, as the metric has it.
    pub(super) fn status(&self) -> Status {
        match &self.state {
            State::Idle => Status::Disconnected,
            State::Dialing(_) => Status::Connecting,
            State::Up(up) if up.generation.is_some_and(|generation| generation.via == Via::CatchUp) => Status::Syncing,
            State::Up(_) if self.has_failed() => Status::ConnectedHistoricSyncFailures,
            State::Up(_) => Status::Connected,
        }
    }

    /// Whether part of the history could not be had.
    pub(super) fn has_failed(&self) -> bool {
        self.overfull || self.owed.iter().any(|owed| owed.tries > 0)
    }

    /// Brings up and down seconds into the totals.
    pub(super) fn count_time(&mut self, now: Now) {
        let secs = now.mono.since(self.counted).as_secs();
        self.counted = self.counted.plus_secs(secs);
        match self.state {
            State::Up(_) => self.totals.up_secs += secs,
            _ if self.is_wanted() && !self.paused => self.totals.down_secs += secs,
            _ => {}
        }
    }
}

impl Link {
    pub(super) fn current_session(&self) -> Option<Session> {
        match &self.state {
            State::Idle => None,
            State::Dialing(session) => Some(*session),
            State::Up(up) => Some(up.session),
        }
    }

    /// When this link wants to be woken.
    pub(super) fn next_alarm(&self, now: Now, flaw: Option<Flaw>) -> Option<Moment> {
        let unwanted = self.unwanted.map(|at| at.plus_secs(limits::SYNC_UNWANTED_SECS));
        let State::Up(up) = &self.state else {
            return earliest([unwanted, self.dial_at(flaw).filter(|_| !self.in_line)]);
        };
        if up.leaving {
            return None;
        }
        let jobs = up.jobs.values().map(|job| job.deadline);
        let live = up.live.values().map(|set| (!set.unconfirmed.is_empty()).then_some(set.deadline));
        let closing = up.subs.values().map(|sub| match sub.what {
            What::Closing(until) => Some(until),
            _ => None,
        });
        let later = |at: Moment| (at > now.mono).then_some(at);
        let quiet = self.health.quiet_until().and_then(later);
        let auth = match up.auth.state {
            AuthState::Wanted(at) | AuthState::Sent(at) => Some(at),
            _ => None,
        };
        let owed = self.owed.iter().map(|owed| Some(owed.due)).min().flatten();
        let idle = up.generation.is_none();
        let rest = [
            quiet,
            auth,
            owed.and_then(later),
            later(up.hold_until),
            up.poll_at.and_then(later),
            idle.then_some(self.next_full),
            unwanted,
        ];
        earliest(jobs.chain(live).chain(closing).chain(rest))
    }

    /// The row that outlives this process. What has not been judged and is as old as that must be asked for again.
    pub(super) fn row(&self, now: Now, epoch: u64, wants: &Wants, unjudged: Option<Timestamp>) -> Peer {
        let left = self.next_full.since(now.mono).as_secs();
        let covered = self.heard.filter(|_| self.announced).map(|heard| Covered {
            epoch,
            announcements: self.announced,
            up_to: self.covered_up_to(wants),
            lost_at: heard.wall,
            since: self.missed().into_iter().chain(unjudged).min(),
            next_full_at: now.wall.plus_secs(left),
            failed: self.has_failed(),
        });
        Peer {
            url: self.url.clone(),
            wanted_at: now.wall,
            health: self.health.row(now),
            learned: self.learned,
            covered,
            totals: self.totals,
            paused: self.paused,
            is_self: self.is_self,
        }
    }
}

/// The earliest of several moments.
fn earliest(moments: impl IntoIterator<Item = Option<Moment>>) -> Option<Moment> {
    moments.into_iter().flatten().min()
}

/// Where a relay's connection stands. The numbers are those of the metric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Status {
    /// Not connected.
    Disconnected = 0,
    /// A connection is being made.
    Connecting = 1,
    /// Connected, and catching up.
    Syncing = 2,
    /// Connected, and everything is here.
    Connected = 3,
    /// Connected, and part of the history could not be had.
    ConnectedHistoricSyncFailures = 4,
}
