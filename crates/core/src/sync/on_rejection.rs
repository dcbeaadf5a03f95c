//! What a relay refuses, and what is asked otherwise, later or never again.

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
    /// A relay ends a request. `true` if the connection must end.
    pub(super) fn on_closed(&mut self, ctx: &mut SyncContext<'_>, sub: SubscriptionId, text: &str) -> bool {
        let Some(connection) = self.connection_mut() else { return false };
        let rejection = RelayRejection::classify(text);
        let limited = rejection == RelayRejection::RateLimited;
        let Some(open) = connection.subscriptions.remove(&sub) else {
            return limited && self.apply_rejection(ctx, rejection, text);
        };
        match open.purpose {
            // Whatever it was, we had ended it; but that it was too much counts.
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

    /// A live subscription was refused, or ended by the relay. `true` if the connection must end.
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
            // Merging was a wish of ours; what it would have replaced still stands.
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
            // Another connection begins without it.
            self.learned.wide_disabled = true;
            return true;
        }
        for id in &batches {
            if let Some(batch) = connection.batches.get_mut(id) {
                batch.fail("a live subscription was refused");
            }
        }
        for id in batches {
            self.start_historic_requests(ctx, id);
        }
        self.reopen_live(ctx, scope, overlap, limits::LIVE_REOPEN_SECS);
        false
    }

    /// A request for history was refused.
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
            _ if lasting && batch.origin != BatchOrigin::Ids => batch.fail("a request was refused"),
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

    /// Something for people, which may concern a request.
    pub(super) fn on_notice(&mut self, ctx: &mut SyncContext<'_>, text: &str) -> bool {
        let rejection = RelayRejection::classify(text);
        if matches!(rejection, RelayRejection::Unclassified | RelayRejection::ConnectionClosing) {
            return false;
        }
        let Some(connection) = self.connection_mut() else { return false };
        // It belongs to the only request that waits for an answer; with several nobody can say, and their deadlines will.
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

    /// What a rejection changes for the whole connection. `true` if it must end.
    pub(super) fn apply_rejection(&mut self, ctx: &mut SyncContext<'_>, rejection: RelayRejection, text: &str) -> bool {
        self.is_unsaved = true;
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        // Some only ask for another form, which is learned once.
        let form = matches!(
            rejection,
            RelayRejection::NoNegentropy | RelayRejection::LimitZeroRejected | RelayRejection::AuthRequired
        );
        if !form && !matches!(rejection, RelayRejection::Unclassified | RelayRejection::ConnectionClosing) {
            connection.concurrency = (connection.concurrency / 2).max(1);
            // Whatever it is that it does not like, it is not asked in a circle.
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
                let was_quiet = self.health.cooldown_until().is_some_and(|until| until > ctx.now.mono);
                let until = self.health.record_rate_limit(ctx.now);
                if was_quiet {
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
                // It may count otherwise than we do: what it refuses although it is within its number is halved.
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

    /// Closes live subscriptions that are more than the relay turned out to take. What they followed is opened again, merged
    /// with others or asked for in turn, and what came meanwhile is asked for.
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

    /// Follows a scope again whose live subscription is gone.
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

    pub(super) fn disable_negentropy(&mut self, ctx: &mut SyncContext<'_>) {
        self.learned.no_negentropy_at = Some(ctx.now.wall);
        self.is_unsaved = true;
        if !std::mem::replace(&mut self.warned_no_negentropy, true) {
            ctx.note(SyncNote::NoNegentropy(self.url.clone()));
        }
    }

    pub(super) fn update_relay_limits(&mut self) {
        let learned = self.learned;
        if let Some(connection) = self.connection_mut() {
            connection.relay_limits = super::relay_limits::RelayLimits::new(connection.nip11.as_ref(), &learned);
        }
    }

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
            // It knows who we are and still does not want us.
            (AuthState::Done, _) => {
                ctx.note(SyncNote::Parked(self.url.clone(), "auth-required".to_owned()));
                self.health.park(ctx.now, ctx.rng.next_u64());
                true
            }
        }
    }

    pub(super) fn on_auth_challenge(&mut self, ctx: &mut SyncContext<'_>, challenge: String) {
        let Some(connection) = self.connection_mut() else { return };
        let states_compared = connection.nip11.as_ref().is_some_and(|nip11| nip11.auth_required == Some(true));
        connection.auth.challenge = Some(challenge.clone());
        if matches!(connection.auth.state, AuthState::Required(_))
            || (states_compared && connection.auth.state == AuthState::NotRequired)
        {
            connection.auth.state = AuthState::Sent(ctx.now.mono.plus_secs(limits::LIVE_EOSE_TIMEOUT_SECS));
            ctx.send(connection, OutgoingMessage::Auth(challenge));
        }
    }

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

/// So much of a stranger's text as is kept.
fn clip_text(text: &str) -> String {
    text.chars().take(120).collect()
}
