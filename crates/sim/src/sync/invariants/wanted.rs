//! What a machine may ask for: of what waits for its git data only what can release it.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{Filter, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::io::{OutgoingMessage, RepoNeeds};
use grasp_core::sync::relay_url::RelayUrl;

use super::Verdicts;
use crate::sync::corpus::corpus;

/// What is followed, by address.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    places: BTreeMap<String, EventStatus>,
    /// Relays of which everything may be asked: served repositories name them, or the settings.
    relays: BTreeSet<String>,
    bootstrap: BTreeSet<String>,
}

impl Wanted {
    pub(super) fn began(&mut self) {
        self.places.clear();
        self.relays.clear();
    }

    pub(super) fn bootstrap(&mut self, urls: &[RelayUrl]) {
        self.bootstrap = urls.iter().map(|url| url.without_scheme().to_owned()).collect();
    }

    pub(super) fn interest(&mut self, followed: &[RepoNeeds]) {
        for repo in followed {
            let d = repo.repo.identifier.as_str().to_owned();
            let at = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.repo.owner, d }.to_string();
            // Requests that have begun go on when a repository is no longer served.
            let place = self.places.entry(at).or_insert(repo.status);
            if repo.status == EventStatus::Served {
                *place = EventStatus::Served;
                let named = repo.relays.iter().filter_map(|text| corpus().named(text)?.url.as_ref());
                self.relays.extend(named.map(|url| url.without_scheme().to_owned()));
            }
        }
    }

    pub(super) fn said(&self, verdicts: &mut Verdicts, say: &OutgoingMessage, relay: Option<&str>) {
        let filters = match say {
            OutgoingMessage::Req(_, filters) => filters.as_slice(),
            OutgoingMessage::NegOpen(_, filter, _) => std::slice::from_ref(filter),
            _ => return,
        };
        let all = relay.is_none_or(|relay| self.relays.contains(relay) || self.bootstrap.contains(relay));
        let strange = filters.iter().find(|filter| !all && names_nothing(filter));
        verdicts.hold(strange.is_none(), "of what waits only what releases it is asked for", || {
            format!("{relay:?} {strange:?}")
        });
        for value in filters.iter().flat_map(addresses) {
            let held = self.places.get(value) == Some(&EventStatus::Held);
            verdicts.hold(!held, "of what waits only what releases it is asked for", || value.to_owned());
        }
    }
}

fn addresses(filter: &Filter) -> impl Iterator<Item = &str> {
    let tagged = filter.tags.iter().filter(|(letter, _)| b"aAq".contains(letter));
    tagged.flat_map(|(_, values)| values).map(String::as_str)
}

fn names_nothing(filter: &Filter) -> bool {
    filter.tags.is_empty() && filter.ids.is_none() && filter.authors.is_none()
}
