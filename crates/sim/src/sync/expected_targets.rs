//! Which events a node must fetch from a relay, computed directly from the corpus.

use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{Filter, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::io::{RepoNeeds, Seq};
use grasp_core::sync::relay_url::RelayUrl;

use super::corpus::corpus;
use super::event_set::EventSet;
use super::local_events;
use super::node::Node;
use crate::test_server::TestServer;

/// Returns the needs of all followed repositories.
pub(super) fn all_repo_needs(server: &mut TestServer) -> Vec<RepoNeeds> {
    let mut names: Vec<_> =
        server.admission().catalog().repositories().map(|(repo, _)| repo.identifier.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names.iter().flat_map(|name| server.repo_needs(name)).collect()
}

/// Returns the relays of a repository that are dialled.
pub(super) fn relays_of(node: usize, needs: &RepoNeeds) -> Vec<&'static RelayUrl> {
    let mut urls: Vec<&RelayUrl> = Vec::new();
    let reference = needs
        .relays
        .iter()
        .filter_map(|text| corpus().relay_reference(text))
        .filter(|reference| !reference.is_own[node]);
    for url in reference.filter_map(|reference| reference.url.as_ref()) {
        if urls.len() < limits::MAX_RELAYS_PER_REPOSITORY
            && !urls.iter().any(|known| known.without_scheme() == url.without_scheme())
        {
            urls.push(url);
        }
    }
    urls
}

/// Returns all announcements, states and lists of GRASP servers.
pub(super) fn announcements_and_states() -> EventSet {
    let kinds = Some(vec![kinds::ANNOUNCEMENT, kinds::STATE, kinds::GRASP_LIST]);
    corpus().matching(&Filter { kinds, ..Filter::default() })
}

/// Returns the events related to the served repositories that list a relay. Only repositories and root events that
/// arrived up to `up_to` count.
pub(super) fn related_events(node: &mut Node, needs: &[RepoNeeds], relay_key: &str, up_to: Seq) -> EventSet {
    let mut related = EventSet::default();
    for repo in needs.iter().filter(|repo| repo.status == EventStatus::Served && repo.seq <= up_to) {
        if !relays_of(node.index, repo).iter().any(|url| url.without_scheme() == relay_key) {
            continue;
        }
        let d = repo.repo.identifier.as_str().to_owned();
        let at = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.repo.owner, d }.to_string();
        let roots = local_events::root_events(&mut node.server, &repo.repo);
        let below = local_events::descendants(&mut node.server, &repo.repo, &roots);
        let (mut ids, mut coordinates) = (Vec::new(), vec![at]);
        ids.extend(roots.iter().filter(|root| root.seq <= up_to).map(|root| root.id.to_string()));
        for event in below.events.iter().filter(|event| event.seq <= up_to) {
            ids.push(event.id.to_string());
            coordinates.extend(event.coordinate.as_ref().map(ToString::to_string));
        }
        let authors = below.authors.iter().filter(|author| author.seq <= up_to).map(|author| author.key);
        let (authors, kinds) = (Some(authors.collect()), Some(vec![kinds::VANISH]));
        related.extend(&corpus().matching(&Filter { authors, kinds, ..Filter::default() }));
        for (letters, values) in [(b"aAq", coordinates), (b"eEq", ids)] {
            let values = Arc::new(values);
            for letter in letters {
                let tags = vec![(*letter, Arc::clone(&values))];
                related.extend(&corpus().matching(&Filter { tags, ..Filter::default() }));
            }
        }
        let (authors, kinds) = (Some(repo.authors.clone()), Some(vec![kinds::DELETION, kinds::VANISH]));
        related.extend(&corpus().matching(&Filter { authors, kinds, ..Filter::default() }));
    }
    related
}
