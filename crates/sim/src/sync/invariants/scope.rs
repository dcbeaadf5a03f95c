//! What a machine may request: for a held repository only the events that can release it. And what it must not drop: events
//! that it has requested.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::{Filter, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::io::{IncomingMessage, OutgoingMessage, RepoNeeds, SessionId, SubscriptionId};
use grasp_core::sync::relay_url::RelayUrl;

use crate::simulation::FirstViolation;
use crate::sync::corpus::corpus;

/// Followed repositories, by coordinate.
#[derive(Debug, Default)]
pub(super) struct ScopeChecker {
    repos: BTreeMap<String, EventStatus>,
    /// Relays from which everything may be requested, because a served repository lists them.
    relays: BTreeSet<String>,
    bootstrap: BTreeSet<String>,
    /// Filters of open subscriptions.
    filters: BTreeMap<(SessionId, SubscriptionId), Vec<Filter>>,
    /// The last event from a relay, if it matches a filter of the subscription that it was sent for.
    last_requested: Option<EventId>,
}

impl ScopeChecker {
    pub(super) fn on_start(&mut self) {
        self.repos.clear();
        self.relays.clear();
        self.filters.clear();
    }

    pub(super) fn on_disconnected(&mut self, session: SessionId) {
        self.filters.retain(|(open, _), _| *open != session);
    }

    pub(super) fn on_message(&mut self, session: SessionId, message: &IncomingMessage) {
        self.last_requested = None;
        if let IncomingMessage::Event(sub, event, _) = message
            && let Some(filters) = self.filters.get(&(session, *sub))
        {
            let is_requested = filters.iter().any(|filter| filter.matches(event));
            self.last_requested = is_requested.then_some(event.id);
        }
    }

    pub(super) fn on_unsolicited(&self, violations: &mut FirstViolation, relay: &RelayUrl) {
        violations.require(self.last_requested.is_none(), "requested events are not dropped", || {
            format!("{relay} {:?}", self.last_requested)
        });
    }

    pub(super) fn set_bootstrap(&mut self, urls: &[RelayUrl]) {
        self.bootstrap = urls.iter().map(|url| url.without_scheme().to_owned()).collect();
    }

    pub(super) fn on_repo_needs(&mut self, needs: &[RepoNeeds]) {
        for repo in needs {
            let d = repo.repo.identifier.as_str().to_owned();
            let at = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.repo.owner, d }.to_string();
            // Requests that have started continue after a repository is no longer served.
            let status = self.repos.entry(at).or_insert(repo.status);
            if repo.status == EventStatus::Served {
                *status = EventStatus::Served;
                let urls = repo.relays.iter().filter_map(|text| corpus().relay_reference(text)?.url.as_ref());
                self.relays.extend(urls.map(|url| url.without_scheme().to_owned()));
            }
        }
    }

    pub(super) fn on_send(
        &mut self,
        violations: &mut FirstViolation,
        session: SessionId,
        message: &OutgoingMessage,
        relay: Option<&str>,
    ) {
        match message {
            OutgoingMessage::Req(sub, filters) => drop(self.filters.insert((session, *sub), filters.clone())),
            OutgoingMessage::Close(sub) => drop(self.filters.remove(&(session, *sub))),
            _ => {}
        }
        let filters = match message {
            OutgoingMessage::Req(_, filters) => filters.as_slice(),
            OutgoingMessage::NegOpen(_, filter, _) => std::slice::from_ref(filter),
            _ => return,
        };
        let is_unrestricted = relay.is_none_or(|relay| self.relays.contains(relay) || self.bootstrap.contains(relay));
        let unscoped = filters.iter().find(|filter| !is_unrestricted && is_unscoped(filter));
        violations.require(unscoped.is_none(), "held repositories are not synced in full", || {
            format!("{relay:?} {unscoped:?}")
        });
        for value in filters.iter().flat_map(addresses) {
            let is_held = self.repos.get(value) == Some(&EventStatus::Held);
            violations.require(!is_held, "held repositories are not synced in full", || value.to_owned());
        }
    }
}

fn addresses(filter: &Filter) -> impl Iterator<Item = &str> {
    let tagged = filter.tags.iter().filter(|(letter, _)| b"aAq".contains(letter));
    tagged.flat_map(|(_, values)| values.iter()).map(String::as_str)
}

fn is_unscoped(filter: &Filter) -> bool {
    filter.tags.is_empty() && filter.ids.is_none() && filter.authors.is_none()
}
