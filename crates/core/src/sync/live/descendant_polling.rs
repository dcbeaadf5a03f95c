//! Requests for descendants for which no live subscription is free.

use std::collections::VecDeque;

use super::super::SyncContext;
use super::super::filters::SyncScope;
use super::super::targets::RepoKey;
use super::{DuePoll, PolledScope};
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
    /// Adds a scope, together with the last one if the filters of both have at most `max_bytes`: descendants arrive one
    /// by one, and a request for each would take hours.
    pub(super) fn add(&mut self, ctx: &SyncContext<'_>, polled: PolledScope, max_bytes: usize) {
        self.next_at.get_or_insert(ctx.now.mono.plus_secs(ctx.config.limits.descendant_round_pause_secs));
        // The scope whose filters are being requested must not change.
        let is_last_free = self.scopes.len() > 1 || self.next_filter == 0;
        let bytes = polled.scope.size(ctx.repo_index).bytes;
        match self.scopes.back_mut().filter(|_| is_last_free) {
            Some(last) if last.scope.size(ctx.repo_index).bytes + bytes <= max_bytes => {
                last.scope.merge(&polled.scope);
                last.requested_at = last.requested_at.min(polled.requested_at);
            }
            _ => self.scopes.push_back(polled),
        }
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
        self.next_at = Some(ctx.now.mono.plus_secs(ctx.config.limits.descendant_poll_secs));
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
                self.next_at = Some(ctx.now.mono.plus_secs(ctx.config.limits.descendant_round_pause_secs));
            }
        }
        Some(DuePoll { scope, requested_at, has_free_slot: false, filter: Some(filter) })
    }
}
