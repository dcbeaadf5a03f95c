//! Requests for descendants for which no live subscription is free.

use std::collections::VecDeque;

use super::super::SyncContext;
use super::super::filters::SyncScope;
use super::super::targets::RepoKey;
use super::{DuePoll, PolledScope};
use crate::limits;
use crate::time::{MonoTime, Timestamp};

/// Descendants without a free live subscription. One filter is requested at a time, in turn.
#[derive(Debug, Default)]
pub(super) struct DescendantPolling {
    pub(super) scopes: VecDeque<PolledScope>,
    pub(super) next_at: Option<MonoTime>,
    /// The next filter of the first scope.
    next_filter: usize,
    /// When the first filter of the first scope was requested.
    started_at: Timestamp,
    /// Number of scopes that have been requested in the current round.
    done: usize,
}

impl DescendantPolling {
    pub(super) fn add(&mut self, polled: PolledScope, now: MonoTime) {
        self.scopes.push_back(polled);
        self.next_at.get_or_insert(now.plus_secs(limits::DESCENDANT_ROUND_PAUSE_SECS));
    }

    /// Takes the next filter that is due, or the whole scope if `can_follow` it live now.
    pub(super) fn next(
        &mut self,
        ctx: &SyncContext<'_>,
        max_values: usize,
        can_follow: impl Fn(&SyncScope) -> bool,
        is_followed: impl Fn(RepoKey) -> bool,
    ) -> Option<DuePoll> {
        self.next_at.filter(|at| *at <= ctx.now.mono)?;
        let Some(mut polled) = self.scopes.pop_front() else {
            *self = Self::default();
            return None;
        };
        self.next_at = Some(ctx.now.mono.plus_secs(limits::DESCENDANT_POLL_INTERVAL_SECS));
        polled.scope.retain(is_followed);
        let (scope, requested_at) = (polled.scope.clone(), polled.requested_at);
        let count = scope.filters(ctx.repo_index, max_values).len();
        if self.next_filter == 0 {
            self.started_at = ctx.now.wall;
        }
        let filter = std::mem::take(&mut self.next_filter);
        let has_free_slot = filter == 0 && can_follow(&scope);
        if count == 0 || has_free_slot {
            return Some(DuePoll { scope, requested_at, has_free_slot, filter: None });
        }
        if filter + 1 < count {
            self.next_filter = filter + 1;
            self.scopes.push_front(polled);
        } else {
            self.scopes.push_back(PolledScope { requested_at: self.started_at, ..polled });
            self.done += 1;
            if self.done >= self.scopes.len() {
                self.done = 0;
                self.next_at = Some(ctx.now.mono.plus_secs(limits::DESCENDANT_ROUND_PAUSE_SECS));
            }
        }
        Some(DuePoll { scope, requested_at, has_free_slot: false, filter: Some(filter) })
    }
}
