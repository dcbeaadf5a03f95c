//! Handles rejections of a relay: CLOSED, NEG-ERR and NOTICE messages, and authentication.
//!
//! Depending on the class of the text ([`RelayRejection`]) a request is sent again later or in another form, a limit is
//! learned, live subscriptions are reduced, or the relay is parked. See `docs/design/sync.md#limits-per-relay`.

use super::batch::{BatchOrigin, QueuedRequest, RequestId, RequestKind};
use super::filters::SyncScope;
use super::io::{OutgoingMessage, SubscriptionId, SyncNote};
use super::live::{PendingLiveSet, close_live_set};
use super::rejection_text::RelayRejection;
use super::relay::{AuthState, ConnectionState, FailedBatch, LiveSetStatus, RelayState, SubscriptionPurpose};
use super::relay_record::LiveFilterForm;
use super::scheduler::{fallback_request, first_page};
use super::{SyncContext, limits};
use crate::time::Timestamp;

impl RelayState {
    /// Handles the CLOSED or NEG-ERR message of a relay. Returns whether the connection must end.
    pub(super) fn on_closed(&mut self, ctx: &mut SyncContext<'_>, sub: SubscriptionId, text: &str) -> bool {
        let Some(connection) = self.connection_mut() else { return false };
        let rejection = RelayRejection::classify(text);
        let limited = rejection == RelayRejection::RateLimited;
        let Some(open) = connection.subscriptions.remove(&sub) else {
            return limited && self.apply_rejection(ctx, rejection, text);
        };
        match open.purpose {
            // We have closed the subscription already. Only a rate limit still matters.
            SubscriptionPurpose::Closing(_) => return limited && self.apply_rejection(ctx, rejection, text),
            SubscriptionPurpose::Request(_) if open.is_answered => {
                return limited && self.apply_rejection(ctx, rejection, text);
            }
            SubscriptionPurpose::Request(id) => {
                self.on_request_rejected(ctx, id, rejection);
            }
            SubscriptionPurpose::Live(key) => {
                let Some(set) = connection.live.get_mut(&key) else { return false };
                set.subscriptions.remove(&sub);
                let confirmed = set.awaiting_eose.is_empty();
                if self.on_live_closed(ctx, key, rejection, confirmed) {
                    return true;
                }
            }
        }
        self.apply_rejection(ctx, rejection, text)
    }

    /// Handles a live subscription that the relay rejected or ended. Returns whether the connection must end.
    pub(super) fn on_live_closed(
        &mut self,
        ctx: &mut SyncContext<'_>,
        key: super::live::LiveSetId,
        rejection: RelayRejection,
        confirmed: bool,
    ) -> bool {
        let overlap = self.overlap_secs();
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let Some(set) = connection.live.get_mut(&key) else { return false };
        let (scope, batches) = (set.scope.clone(), std::mem::take(&mut set.batches));
        let replaces = std::mem::take(&mut set.replaces);
        let wide = connection.wide == Some(key);
        close_live_set(connection, ctx, key);
        if !replaces.is_empty() && batches.is_empty() && !wide {
            // A consolidation failed. The subscriptions that it would have replaced are still open.
            connection.cannot_merge = true;
            return false;
        }
        let again = matches!(
            rejection,
            RelayRejection::LimitZeroRejected
                | RelayRejection::TooManyFilters
                | RelayRejection::AuthRequired
                | RelayRejection::RateLimited
                | RelayRejection::TooManySubscriptions
                | RelayRejection::SubscriptionBytes(_)
        );
        if !confirmed && again {
            connection.pending_live_sets.push_front(PendingLiveSet { key, scope, batches, replaces });
            return false;
        }
        if wide {
            // The next connection starts without the wide subscription.
            self.learned.wide_disabled = true;
            return true;
        }
        for id in &batches {
            if let Some(batch) = connection.batches.get_mut(id) {
                batch.fail("live subscription rejected");
            }
        }
        for id in batches {
            self.start_historic_requests(ctx, id);
        }
        self.reopen_live(ctx, scope, overlap, limits::LIVE_REOPEN_SECS);
        false
    }

    /// Handles the rejection of a historic request: queues it again, in another form if necessary, or fails its batch.
    pub(super) fn on_request_rejected(&mut self, ctx: &mut SyncContext<'_>, id: RequestId, rejection: RelayRejection) {
        let Some(request) = self.remove_request(ctx, id) else { return };
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let limit = connection.relay_limits.page_size;
        let Some(batch) = connection.batches.get_mut(&request.batch) else { return };
        let lasting = matches!(
            rejection,
            RelayRejection::UnsupportedFilter
                | RelayRejection::NotAllowed
                | RelayRejection::Unclassified
                | RelayRejection::ConnectionClosing
        );
        match request.kind {
            RequestKind::Negentropy(filter, _) => batch.requeue(match rejection {
                RelayRejection::RateLimited | RelayRejection::TooManySubscriptions | RelayRejection::AuthRequired => {
                    Some(QueuedRequest::Compare(filter))
                }
                _ => fallback_request(batch.page_filter(filter), limit, &mut self.history_incomplete),
            }),
            _ if lasting && batch.origin != BatchOrigin::Ids => batch.fail("request rejected"),
            RequestKind::Group(filters, _)
                if rejection == RelayRejection::TooManyFilters || rejection == RelayRejection::ResultTooLarge =>
            {
                batch.queue.extend(filters.into_iter().map(|filter| first_page(filter, limit)));
            }
            RequestKind::Group(filters, _) => batch.queue.push_front(QueuedRequest::Group(filters)),
            RequestKind::Page(pages) => batch.queue.push_front(QueuedRequest::Page(pages)),
            RequestKind::FetchIds { missing, remaining, round, .. } => {
                let ids = missing.into_iter().chain(remaining).collect();
                batch.queue.push_front(QueuedRequest::FetchIds(ids, round));
            }
            RequestKind::QueryingLocalIds(filter) => batch.requeue(Some(QueuedRequest::Compare(filter))),
            RequestKind::QueryingMissingIds(_) => {}
        }
    }

    /// Handles a NOTICE, which may be the rejection of a request. Returns whether the connection must end.
    pub(super) fn on_notice(&mut self, ctx: &mut SyncContext<'_>, text: &str) -> bool {
        let rejection = RelayRejection::classify(text);
        if matches!(rejection, RelayRejection::Unclassified | RelayRejection::ConnectionClosing) {
            return false;
        }
        let Some(connection) = self.connection_mut() else { return false };
        // A notice is attributed to the only request that waits for an answer. With several waiting it cannot be
        // attributed, and their timeouts decide.
        let mut waiting = connection
            .subscriptions
            .iter()
            .filter(|(_, sub)| !sub.is_answered && !matches!(sub.purpose, SubscriptionPurpose::Closing(_)));
        let negentropy = |sub: &SubscriptionPurpose| match sub {
            SubscriptionPurpose::Request(id) => {
                connection.requests.get(id).is_some_and(|request| matches!(request.kind, RequestKind::Negentropy(..)))
            }
            _ => false,
        };
        let only = match rejection {
            RelayRejection::NoNegentropy => waiting.find(|(_, sub)| negentropy(&sub.purpose)).map(|(id, _)| *id),
            _ => waiting.next().filter(|_| waiting.next().is_none()).map(|(id, _)| *id),
        };
        match only {
            Some(sub) => self.on_closed(ctx, sub, text),
            None => {
                connection.concurrency = 1;
                self.apply_rejection(ctx, rejection, text)
            }
        }
    }

    /// Applies the consequences of a rejection for the whole connection. Returns whether the connection must end.
    pub(super) fn apply_rejection(&mut self, ctx: &mut SyncContext<'_>, rejection: RelayRejection, text: &str) -> bool {
        self.is_unsaved = true;
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        // These rejections only require another form of request, which is learned once.
        let form = matches!(
            rejection,
            RelayRejection::NoNegentropy | RelayRejection::LimitZeroRejected | RelayRejection::AuthRequired
        );
        if !form && !matches!(rejection, RelayRejection::Unclassified | RelayRejection::ConnectionClosing) {
            connection.concurrency = (connection.concurrency / 2).max(1);
            // Delay further requests, so that a rejected request is not repeated in a tight loop.
            connection.consecutive_rejections = (connection.consecutive_rejections + 1).min(6);
            connection.retry_after =
                connection.retry_after.max(ctx.now.mono.plus_secs(1 << connection.consecutive_rejections));
        }
        let open = connection
            .subscriptions
            .values()
            .filter(|sub| !matches!(sub.purpose, SubscriptionPurpose::Closing(_)))
            .count() as u32;
        match rejection {
            RelayRejection::RateLimited => {
                let was_in_cooldown = self.health.cooldown_until().is_some_and(|until| until > ctx.now.mono);
                let until = self.health.record_rate_limit(ctx.now);
                if was_in_cooldown {
                    return false;
                }
                ctx.note(SyncNote::RateLimited(self.url.clone(), clip_text(text), until.since(ctx.now.mono).as_secs()));
            }
            RelayRejection::TooManySubscriptions => {
                let fewer = open.max(1).min(connection.relay_limits.max_subscriptions.saturating_sub(1).max(1));
                self.learned.max_subscriptions =
                    Some(self.learned.max_subscriptions.map_or(fewer, |slots| slots.min(fewer)));
            }
            RelayRejection::SubscriptionBytes(bytes) => {
                // The relay may count differently. If it rejects subscriptions within its stated limit, halve the
                // limit.
                let ours = connection.live.values().map(|set| set.size.bytes as u64).sum::<u64>();
                let known = self.learned.subscription_bytes.unwrap_or(u64::MAX);
                self.learned.subscription_bytes =
                    Some(if bytes < known { bytes } else { (known.min(ours) / 2).max(1) });
            }
            RelayRejection::TooManyFilters => {
                let fewer = match connection.relay_limits.max_filters {
                    6.. => 5,
                    3.. => 2,
                    _ => 1,
                };
                self.learned.max_filters = Some(fewer);
            }
            RelayRejection::LimitZeroRejected => {
                self.learned.live_form = match self.learned.live_form {
                    LiveFilterForm::Zero => LiveFilterForm::One,
                    LiveFilterForm::One | LiveFilterForm::Since => LiveFilterForm::Since,
                };
            }
            RelayRejection::NoNegentropy => self.disable_negentropy(ctx),
            RelayRejection::AuthRequired => return self.authenticate(ctx),
            RelayRejection::NotAllowed => {
                ctx.note(SyncNote::Parked(self.url.clone(), clip_text(text)));
                self.health.park(ctx.now, ctx.rng.next_u64());
                return true;
            }
            RelayRejection::UnsupportedFilter
            | RelayRejection::ResultTooLarge
            | RelayRejection::ConnectionClosing
            | RelayRejection::Unclassified => return false,
        }
        self.update_relay_limits();
        self.shrink_live(ctx);
        false
    }

    /// Closes live subscriptions above the limits of the relay. Their scopes are opened again, merged with others, or
    /// polled, and events received in the meantime are requested.
    fn shrink_live(&mut self, ctx: &mut SyncContext<'_>) {
        let overlap = self.overlap_secs();
        loop {
            let ConnectionState::Connected(connection) = &mut self.connection else { return };
            let taken: usize = connection.live.values().map(|set| set.subscriptions.len()).sum();
            let bytes: usize = connection.live.values().map(|set| set.size.bytes).sum();
            if taken <= connection.relay_limits.max_live_subscriptions as usize
                && bytes <= connection.relay_limits.live_bytes
            {
                return;
            }
            let spare = |set: &super::live::LiveSet| {
                set.scope.announcements.is_none()
                    && !set.scope.wide
                    && set.awaiting_eose.is_empty()
                    && set.replaces.is_empty()
            };
            let smallest = connection.live.iter().filter(|(_, set)| spare(set)).min_by_key(|(_, set)| set.size.bytes);
            let Some((key, scope)) = smallest.map(|(key, set)| (*key, set.scope.clone())) else { return };
            close_live_set(connection, ctx, key);
            self.reopen_live(ctx, scope, overlap, 0);
        }
    }

    /// Schedules a scope whose live subscription has ended to be followed again.
    fn reopen_live(&mut self, ctx: &SyncContext<'_>, scope: SyncScope, overlap: u64, wait_secs: u64) {
        for repo in super::completion::scope_repos(&scope) {
            self.coverage.entry(repo).and_modify(|coverage| coverage.open_batches += 1);
        }
        let since = Some(Timestamp(ctx.now.wall.0.saturating_sub(overlap)));
        let retry_at = ctx.now.mono.plus_secs(wait_secs);
        self.failed_batches.push(FailedBatch {
            scope,
            since,
            source: super::io::SyncSource::CatchUp,
            retry_at,
            attempts: 0,
            live_set: LiveSetStatus::Closed,
        });
    }

    /// Records that the relay does not support negentropy, so that pages are used.
    pub(super) fn disable_negentropy(&mut self, ctx: &mut SyncContext<'_>) {
        self.learned.no_negentropy_at = Some(ctx.now.wall);
        self.is_unsaved = true;
        if !std::mem::replace(&mut self.warned_no_negentropy, true) {
            ctx.note(SyncNote::NoNegentropy(self.url.clone()));
        }
    }

    /// Recomputes the limits of the connection after a limit was learned.
    pub(super) fn update_relay_limits(&mut self) {
        let learned = self.learned;
        if let Some(connection) = self.connection_mut() {
            connection.relay_limits = super::relay_limits::RelayLimits::new(connection.nip11.as_ref(), &learned);
        }
    }

    /// Answers the challenge of a relay that requires authentication, or waits for the challenge. Parks the relay if it
    /// rejects us although we are authenticated. Returns whether the connection must end.
    pub(super) fn authenticate(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let until = ctx.now.mono.plus_secs(limits::LIVE_EOSE_TIMEOUT_SECS);
        match (connection.auth.state, connection.auth.challenge.clone()) {
            (AuthState::NotRequired, Some(challenge)) => {
                connection.auth.state = AuthState::Sent(until);
                ctx.send(connection, OutgoingMessage::Auth(challenge));
                false
            }
            (AuthState::NotRequired, None) => {
                connection.auth.state = AuthState::Required(until);
                false
            }
            (AuthState::Required(_) | AuthState::Sent(_), _) => false,
            // The relay rejects us although we are authenticated.
            (AuthState::Done, _) => {
                ctx.note(SyncNote::Parked(self.url.clone(), "auth-required".to_owned()));
                self.health.park(ctx.now, ctx.rng.next_u64());
                true
            }
        }
    }

    /// Handles an AUTH challenge. It is answered only if the relay has demanded authentication.
    pub(super) fn on_auth_challenge(&mut self, ctx: &mut SyncContext<'_>, challenge: String) {
        let Some(connection) = self.connection_mut() else { return };
        let auth_stated = connection.nip11.as_ref().is_some_and(|nip11| nip11.auth_required == Some(true));
        connection.auth.challenge = Some(challenge.clone());
        if matches!(connection.auth.state, AuthState::Required(_))
            || (auth_stated && connection.auth.state == AuthState::NotRequired)
        {
            connection.auth.state = AuthState::Sent(ctx.now.mono.plus_secs(limits::LIVE_EOSE_TIMEOUT_SECS));
            ctx.send(connection, OutgoingMessage::Auth(challenge));
        }
    }

    /// Handles the OK message to our authentication event. Returns whether the connection must end.
    pub(super) fn on_auth_reply(&mut self, ctx: &mut SyncContext<'_>, accepted: bool, text: &str) -> bool {
        let Some(connection) = self.connection_mut() else { return false };
        if accepted {
            connection.auth.state = AuthState::Done;
            return false;
        }
        let rejection = RelayRejection::classify(text);
        if matches!(connection.auth.state, AuthState::Sent(_)) && rejection != RelayRejection::RateLimited {
            connection.auth.state = AuthState::Done;
            return self.authenticate(ctx);
        }
        rejection == RelayRejection::RateLimited && self.apply_rejection(ctx, rejection, text)
    }
}

/// Returns the first 120 characters of a text of a relay.
fn clip_text(text: &str) -> String {
    text.chars().take(120).collect()
}
