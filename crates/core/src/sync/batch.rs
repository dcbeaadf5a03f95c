//! A part of what is followed that is being asked for, and the requests that ask. (`PendingBatch` of earlier designs.)

use std::collections::{BTreeSet, VecDeque};

use super::filters::Scope;
use super::io::{More, SubId, Via};
use super::live::LiveKey;
use super::negentropy::Nego;
use super::pagination::Pages;
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::{Moment, Timestamp};

/// Names one batch for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct BatchId(pub(super) u64);

/// Names one job for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct JobId(pub(super) u64);

/// A part of what is followed. It is had when its last job has ended and every event that they brought has been judged.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) scope: Scope,
    pub(super) origin: Origin,
    pub(super) via: Via,
    pub(super) since: Option<Timestamp>,
    pub(super) stage: Stage,
    /// Requests that have not begun.
    pub(super) todo: VecDeque<Ask>,
    /// Filters of which nothing is here: they share a request when the others have been compared.
    pub(super) blank: Vec<Filter>,
    /// Jobs under way.
    pub(super) jobs: u32,
    /// Events that have not been judged.
    pub(super) unjudged: u32,
    /// What went wrong.
    pub(super) trouble: Option<&'static str>,
    /// Its live subscription, if that was not confirmed in time.
    pub(super) doubt: Option<LiveKey>,
    /// It belongs to the catch-up.
    pub(super) in_generation: bool,
    pub(super) began: Timestamp,
    /// Events that were new.
    pub(super) events: u64,
    /// Those that should have come live: how many, and three of them.
    pub(super) gaps: (u64, Vec<EventId>),
    /// What is here and not there, if that was compared.
    pub(super) lacking: Option<BTreeSet<EventId>>,
}

/// Why a batch came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// Layer 1.
    Announcements,
    /// Something that was never asked for here.
    New,
    /// Part of a walk over everything.
    Pass,
    /// It failed so often before.
    Again(u32),
    /// It found no place among the live subscriptions.
    Poll,
    /// Events by id.
    Ids,
}

/// How far a batch has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Its live subscription is not confirmed.
    Live(LiveKey),
    /// History is being asked for.
    History,
}

/// A request that has not begun.
#[derive(Debug)]
pub(super) enum Ask {
    /// The first page of several filters at once.
    Group(Vec<Filter>),
    /// A page of one filter.
    Page(Box<Pages>),
    /// Compare what is here with what is there.
    Compare(Filter),
    /// Events by id; how often some of them were asked for before.
    Fetch(Vec<EventId>, u8),
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) batch: BatchId,
    pub(super) sub: Option<SubId>,
    pub(super) doing: Doing,
    pub(super) began: Moment,
    /// Gives up then unless something moves.
    pub(super) deadline: Option<Moment>,
    pub(super) end: End,
}

/// Whether a request has been answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum End {
    #[default]
    Awaited,
    /// It has, by a relay that sends events behind the end: it is over when its deadline has passed.
    Said(Option<More>),
}

/// What a job does.
#[derive(Debug)]
pub(super) enum Doing {
    /// Several filters, and how many deliveries there were.
    Group(Vec<Filter>, usize),
    Page(Box<Pages>),
    /// The store is asked what is here.
    Comparing(Filter),
    Reconciling(Filter, Box<Nego>),
    /// The store is asked what is missing.
    Looking(u8),
    /// What was asked for and has not come, of how many, and the rest that is still to be asked for.
    Fetching {
        asked: BTreeSet<EventId>,
        count: usize,
        left: Vec<EventId>,
        round: u8,
    },
}

impl Batch {
    /// A filter that was compared, as it is asked for in pages: states are compared in whole also where only what is newer
    /// is asked for.
    pub(super) fn paged(&self, filter: Filter) -> Filter {
        Filter { since: filter.since.or(self.since), ..filter }
    }

    pub(super) fn new(scope: Scope, origin: Origin, via: Via, began: Timestamp) -> Self {
        Self {
            scope,
            origin,
            via,
            since: None,
            stage: Stage::History,
            todo: VecDeque::new(),
            blank: Vec::new(),
            jobs: 0,
            unjudged: 0,
            trouble: None,
            doubt: None,
            in_generation: false,
            began,
            events: 0,
            gaps: (0, Vec::new()),
            lacking: None,
        }
    }

    /// Whether it still has something to ask.
    pub(super) fn is_asking(&self) -> bool {
        !self.todo.is_empty() || !self.blank.is_empty() || self.jobs > 0 || matches!(self.stage, Stage::Live(_))
    }

    /// Whether everything that it asked for has been had and judged.
    pub(super) fn is_over(&self) -> bool {
        !self.is_asking() && self.unjudged == 0
    }

    /// Announcements are judged before the states that need them.
    pub(super) fn is_serial(&self) -> bool {
        self.scope.announcements.is_some()
    }

    /// Asks for something in another way, or later: in its turn where there is one.
    pub(super) fn ask_again(&mut self, ask: Option<Ask>) {
        if self.is_serial() {
            ask.into_iter().for_each(|ask| self.todo.push_front(ask));
        } else {
            self.todo.extend(ask);
        }
    }

    /// Notes what went wrong; the first thing counts.
    pub(super) fn trouble(&mut self, what: &'static str) {
        self.trouble.get_or_insert(what);
    }
}

impl Job {
    /// Whether it has brought nothing, although it asks for events.
    pub(super) fn is_empty(&self) -> bool {
        match &self.doing {
            Doing::Group(_, count) => *count == 0,
            Doing::Page(pages) => pages.is_empty(),
            Doing::Fetching { asked, count, .. } => asked.len() == *count,
            Doing::Comparing(_) | Doing::Reconciling(..) | Doing::Looking(_) => false,
        }
    }

    /// Whether it takes part in a reconciliation, or is about to.
    pub(super) fn is_comparing(&self) -> bool {
        matches!(self.doing, Doing::Comparing(_) | Doing::Reconciling(..))
    }
}
