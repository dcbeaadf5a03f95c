//! Pagination of one filter with `until`, from the newest event to the oldest. Used for historic sync from relays
//! without negentropy.
//!
//! A relay ends a page where it wants and usually does not say whether there are more events. The next page therefore
//! begins at the oldest second of the last one, including that second, until a page is too small to have been cut.
//!
//! Pure state, one per filter; driven by `historic`. See `docs/design/sync.md#pagination`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::io::EoseHint;
use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::Timestamp;

/// The largest page that a relay has sent in a session. Decides whether a page may have been cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageSizeTracker {
    largest: usize,
}

impl PageSizeTracker {
    /// Records the size of a page.
    pub fn record(&mut self, count: usize) {
        self.largest = self.largest.max(count);
    }

    /// Returns whether no page was larger than `count`. A smaller page that contains only one second may contain all
    /// events of it.
    #[must_use]
    pub fn is_largest(self, count: usize) -> bool {
        count >= self.largest
    }

    /// Returns whether a page of `count` events cannot have been cut. A tolerance of a tenth allows for events that a
    /// relay removes from a full page before it sends it.
    #[must_use]
    pub fn is_short(self, count: usize) -> bool {
        count < limits::MIN_CUT_PAGE_EVENTS || count < self.largest.saturating_mul(9).div_ceil(10)
    }
}

/// Next step after a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PageOutcome {
    /// All events have been received.
    Done,
    /// There may be more events: request the next page.
    Next,
    /// A whole page lies in one second. Pagination continues at the same point with each of these filters, which
    /// together match the same events. This pagination is over.
    Split(Vec<Filter>),
    /// A whole page lies in this second, and the filter cannot be split. Pages cannot return the other events of the
    /// second. The next page continues with older events.
    SteppedOver(Timestamp),
    /// The relay sends events outside the filter, or does not come to an end.
    GaveUp,
}

/// Pagination state of one filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PaginationState {
    /// The original filter.
    filter: Filter,
    limit: usize,
    /// Upper end of the current page, inclusive. `None` means from the newest event.
    until: Option<Timestamp>,
    /// Events of the second `until` that earlier pages contained.
    seen_at_until: BTreeSet<EventId>,
    page: CurrentPage,
    /// Number of finished pages.
    page_count: usize,
    /// The oldest second of the window was stepped over, so there are no older events.
    reached_bottom: bool,
}

/// The page that is being received.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct CurrentPage {
    /// Number of deliveries, including unrequested and invalid events and duplicates.
    received: usize,
    /// Number of deliveries within the time window.
    in_window: usize,
    /// Whether an event of the second `until` was not in an earlier page.
    has_new_in_first_second: bool,
    /// Oldest second of the page.
    oldest: Option<Timestamp>,
    /// Events of the oldest second.
    oldest_ids: BTreeSet<EventId>,
}

impl PaginationState {
    /// Creates the pagination of a filter with at most `limit` events per page. Starts at the newest event of the
    /// filter, or at the cursor `resume_at` of an earlier pagination.
    #[must_use]
    pub fn new(filter: Filter, limit: usize, resume_at: Option<Timestamp>) -> Self {
        let until = [filter.until, resume_at].into_iter().flatten().min();
        let limit = limit.max(1);
        Self {
            filter,
            limit,
            until,
            seen_at_until: BTreeSet::new(),
            page: CurrentPage::default(),
            page_count: 0,
            reached_bottom: false,
        }
    }

    /// Returns the filter of the current page.
    #[must_use]
    pub fn next_filter(&self) -> Filter {
        Filter { until: self.until, limit: Some(self.limit), ..self.filter.clone() }
    }

    /// Records an event of the current page. Every delivery counts, including unrequested ones, because it takes the
    /// place of another event in the page. But only events within the window move the cursor.
    pub fn record_event(&mut self, id: EventId, at: Timestamp) {
        let page = &mut self.page;
        page.received += 1;
        if self.until.is_some_and(|until| at > until) || self.filter.since.is_some_and(|since| at < since) {
            return;
        }
        page.in_window += 1;
        if self.until == Some(at) && !self.seen_at_until.contains(&id) {
            // Above the bound no event counts as new, otherwise a flood of events of one second would never end.
            page.has_new_in_first_second |= self.seen_at_until.len() < limits::MAX_IDS_PER_SECOND;
        }
        if page.oldest.is_none_or(|oldest| at < oldest) {
            page.oldest = Some(at);
            page.oldest_ids.clear();
        }
        if page.oldest == Some(at) && page.oldest_ids.len() < limits::MAX_IDS_PER_SECOND {
            page.oldest_ids.insert(id);
        }
    }

    /// Records a delivery of the current page that is not a valid event. It takes the place of another event.
    pub fn record_invalid_event(&mut self) {
        self.page.received += 1;
    }

    /// Handles the EOSE of the current page, with the NIP-67 hint of the relay if there is one.
    pub fn finish_page(&mut self, hint: Option<EoseHint>, page_sizes: &mut PageSizeTracker) -> PageOutcome {
        let page = std::mem::take(&mut self.page);
        self.page_count += 1;
        // Events above the requested limit say nothing about the size of a full page.
        page_sizes.record(page.received.min(self.limit));
        let short = hint.is_none() && page.received < self.limit && page_sizes.is_short(page.received);
        if hint == Some(EoseHint::Complete) || page.received == 0 || short || self.reached_bottom {
            PageOutcome::Done
        } else if self.page_count >= limits::MAX_PAGES_PER_FILTER {
            PageOutcome::GaveUp
        } else if page.has_new_in_first_second
            || page.oldest.is_some_and(|oldest| self.until.is_none_or(|until| oldest < until))
        {
            self.advance(page);
            PageOutcome::Next
        } else if page.received - page.in_window > page.in_window {
            // The relay fills its pages with unrequested or invalid events, so splitting the filter would not help.
            PageOutcome::GaveUp
        } else {
            let cut = page_sizes.is_largest(page.received);
            self.split_filter().map_or_else(|| self.step_over(cut), PageOutcome::Split)
        }
    }

    /// Returns the filter restricted to one second.
    #[must_use]
    pub fn one_second(&self, second: Timestamp) -> Filter {
        Filter { since: Some(second), until: Some(second), limit: None, ..self.filter.clone() }
    }

    /// Returns the time at which a later pagination has to resume; `None` for the newest event.
    #[must_use]
    pub fn cursor(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns whether no event of the current page has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.page.received == 0
    }

    /// Returns the number of finished pages.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.page_count
    }

    fn advance(&mut self, page: CurrentPage) {
        if page.oldest != self.until {
            self.until = page.oldest;
            self.seen_at_until.clear();
        }
        let free_ids = limits::MAX_IDS_PER_SECOND.saturating_sub(self.seen_at_until.len());
        self.seen_at_until.extend(page.oldest_ids.into_iter().take(free_ids));
    }

    fn step_over(&mut self, cut: bool) -> PageOutcome {
        let second = self.until.unwrap_or_default();
        self.reached_bottom = second <= self.filter.since.unwrap_or_default();
        if !self.reached_bottom {
            self.until = Some(Timestamp(second.0 - 1));
            self.seen_at_until.clear();
        }
        if cut { PageOutcome::SteppedOver(second) } else { PageOutcome::Next }
    }

    /// Splits the filter into two that together match the same events. Returns `None` if no list has two values.
    pub(super) fn split_filter(&self) -> Option<Vec<Filter>> {
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
            halves(&|filter, upper| halve(Arc::make_mut(&mut filter.tags[nth].1), upper))
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
