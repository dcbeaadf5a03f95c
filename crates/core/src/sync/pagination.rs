//! Pages of one filter, the newest first: how the history of a relay that cannot compare sets is had (rules B9, M4).
//!
//! A page ends where its relay wants; nobody says that there is more. So the next page begins at the oldest second of the
//! last one, that second included, until a page is too small to have been cut.

use std::collections::BTreeSet;

use super::io::More;
use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::Timestamp;

/// How large the pages of a relay get, as far as one session has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCap {
    largest: usize,
    trusting: bool,
}

impl PageCap {
    /// One that takes the largest page that is asked for as the size of a full one: a deliberate mistake.
    pub(super) fn trusting(trusting: bool) -> Self {
        Self { largest: 0, trusting }
    }

    /// A page of so many events came.
    pub fn see(&mut self, count: usize) {
        self.largest = self.largest.max(count);
    }

    /// Whether no page was larger. A smaller one that is full of one second may be all there is of it.
    #[must_use]
    pub fn fills(self, count: usize) -> bool {
        count >= self.largest
    }

    /// Whether a page of so many events cannot have been cut. A tenth is allowed for what a relay takes out of a full
    /// page before it sends it.
    #[must_use]
    pub fn is_short(self, count: usize) -> bool {
        self.trusting || count < limits::PAGE_FLOOR || count < self.largest.saturating_mul(9).div_ceil(10)
    }
}

/// What follows a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PageTurn {
    /// That was all.
    Done,
    /// There may be more: ask again.
    Next,
    /// One second fills a page. These filters together ask for the same and for less each; they go on, each with pages of
    /// its own, where these stood. These are over.
    Split(Vec<Filter>),
    /// This second fills a page and nothing is left to divide: pages cannot bring what else it has. Ask again for what is
    /// older.
    SteppedOver(Timestamp),
    /// The relay does not answer what it is asked, or does not come to an end.
    GaveUp,
}

/// The pages of one filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pages {
    /// As it was given.
    filter: Filter,
    limit: usize,
    /// The current page begins here, inclusive; `None` for the newest event.
    until: Option<Timestamp>,
    /// What earlier pages brought of that second.
    known: BTreeSet<EventId>,
    page: Page,
    /// How many pages have ended.
    ended: usize,
    /// The oldest second of the window was stepped over: nothing is below.
    bottom: bool,
}

/// The page that is coming in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Page {
    /// Deliveries, whatever they are.
    raw: usize,
    /// Those that lie in the window.
    inside: usize,
    /// Whether one of them is of the first second and was not known.
    unseen: bool,
    /// The oldest second.
    oldest: Option<Timestamp>,
    /// The events of that second.
    edge: BTreeSet<EventId>,
}

impl Pages {
    /// Pages of this filter, of at most `limit` events each: from the newest event that it allows, or from where earlier
    /// pages stood.
    #[must_use]
    pub fn new(filter: Filter, limit: usize, reaching: Option<Timestamp>) -> Self {
        let until = [filter.until, reaching].into_iter().flatten().min();
        let limit = limit.max(1);
        Self { filter, limit, until, known: BTreeSet::new(), page: Page::default(), ended: 0, bottom: false }
    }

    /// What is to be asked for now.
    #[must_use]
    pub fn request(&self) -> Filter {
        Filter { until: self.until, limit: Some(self.limit), ..self.filter.clone() }
    }

    /// An event of the current page came. Each delivery counts, also one that was not asked for: it took the place of
    /// another. But only what lies in the window says how far the pages are.
    pub fn heard(&mut self, id: EventId, at: Timestamp) {
        let page = &mut self.page;
        page.raw += 1;
        if self.until.is_some_and(|until| at > until) || self.filter.since.is_some_and(|since| at < since) {
            return;
        }
        page.inside += 1;
        if self.until == Some(at) && !self.known.contains(&id) {
            // Beyond the bound nothing is news, or a flood of one second would never end.
            page.unseen |= self.known.len() < limits::MAX_SECOND_IDS;
        }
        if page.oldest.is_none_or(|oldest| at < oldest) {
            page.oldest = Some(at);
            page.edge.clear();
        }
        if page.oldest == Some(at) && page.edge.len() < limits::MAX_SECOND_IDS {
            page.edge.insert(id);
        }
    }

    /// The current page has ended, and what the relay says about it.
    pub fn ended(&mut self, more: Option<More>, cap: &mut PageCap) -> PageTurn {
        let page = std::mem::take(&mut self.page);
        self.ended += 1;
        // A relay that sends more than it is asked for says nothing about the size of its full pages.
        cap.see(page.raw.min(self.limit));
        let short = more.is_none() && page.raw < self.limit && cap.is_short(page.raw);
        if more == Some(More::Finish) || page.raw == 0 || short || self.bottom {
            PageTurn::Done
        } else if self.ended >= limits::MAX_PAGES {
            PageTurn::GaveUp
        } else if page.unseen || page.oldest.is_some_and(|oldest| self.until.is_none_or(|until| oldest < until)) {
            self.go_on(page);
            PageTurn::Next
        } else if page.raw - page.inside > page.inside {
            // It fills its pages with what was not asked for: dividing the filter would not help.
            PageTurn::GaveUp
        } else {
            let cut = cap.fills(page.raw);
            self.part().map_or_else(|| self.step_over(cut), PageTurn::Split)
        }
    }

    /// A filter for one second of what is asked for.
    #[must_use]
    pub fn one_second(&self, second: Timestamp) -> Filter {
        Filter { since: Some(second), until: Some(second), limit: None, ..self.filter.clone() }
    }

    /// Where pages that go on later have to begin; `None` if at the newest event.
    #[must_use]
    pub fn cursor(&self) -> Option<Timestamp> {
        self.until
    }

    /// Whether nothing has come of the current page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.page.raw == 0
    }

    /// How many pages have ended.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.ended
    }

    fn go_on(&mut self, page: Page) {
        if page.oldest != self.until {
            self.until = page.oldest;
            self.known.clear();
        }
        let room = limits::MAX_SECOND_IDS.saturating_sub(self.known.len());
        self.known.extend(page.edge.into_iter().take(room));
    }

    fn step_over(&mut self, cut: bool) -> PageTurn {
        let second = self.until.unwrap_or_default();
        self.bottom = second <= self.filter.since.unwrap_or_default();
        if !self.bottom {
            self.until = Some(Timestamp(second.0 - 1));
            self.known.clear();
        }
        if cut { PageTurn::SteppedOver(second) } else { PageTurn::Next }
    }

    /// Two filters that together ask for the same; `None` if no list has two values.
    fn part(&self) -> Option<Vec<Filter>> {
        let whole = Filter { until: self.until, ..self.filter.clone() };
        let halves = |change: &dyn Fn(&mut Filter, bool)| {
            let half = |upper| {
                let mut filter = whole.clone();
                change(&mut filter, upper);
                filter
            };
            Some(vec![half(false), half(true)])
        };
        if let Some(nth) = whole.tags.iter().position(|(_, values)| values.len() > 1) {
            halves(&|filter, upper| halve(&mut filter.tags[nth].1, upper))
        } else if whole.authors.as_ref().is_some_and(|authors| authors.len() > 1) {
            halves(&|filter, upper| filter.authors.iter_mut().for_each(|authors| halve(authors, upper)))
        } else if whole.kinds.as_ref().is_some_and(|kinds| kinds.len() > 1) {
            halves(&|filter, upper| filter.kinds.iter_mut().for_each(|kinds| halve(kinds, upper)))
        } else {
            None
        }
    }
}

/// Keeps one half of a list.
fn halve<T>(values: &mut Vec<T>, upper: bool) {
    let middle = values.len() / 2;
    if upper {
        values.drain(..middle);
    } else {
        values.truncate(middle);
    }
}

#[cfg(test)]
mod tests;
