//! What a node should have of a relay, found the plain way.

use grasp_core::limits;
use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{Filter, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::io::{RepoNeeds, Seq};
use grasp_core::sync::relay_url::RelayUrl;

use super::corpus::corpus;
use super::event_set::Bits;
use super::local_events;
use super::node::Node;
use crate::test_server::House;

/// Everything that is followed.
#[must_use]
pub fn all_followed(house: &mut House) -> Vec<RepoNeeds> {
    let mut names: Vec<_> =
        house.admission().catalog().repositories().map(|(repo, _)| repo.identifier.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names.iter().flat_map(|name| house.followed(name)).collect()
}

/// The relays that a repository names, as they are dialled.
#[must_use]
pub fn relays_of(node: usize, followed: &RepoNeeds) -> Vec<&'static RelayUrl> {
    let mut urls: Vec<&RelayUrl> = Vec::new();
    let named = followed.relays.iter().filter_map(|text| corpus().named(text)).filter(|named| !named.own[node]);
    for url in named.filter_map(|named| named.url.as_ref()) {
        if urls.len() < limits::MAX_RELAYS_PER_REPOSITORY
            && !urls.iter().any(|known| known.without_scheme() == url.without_scheme())
        {
            urls.push(url);
        }
    }
    urls
}

/// Announcements and states.
#[must_use]
pub fn layer_one() -> Bits {
    corpus().matching(&Filter { kinds: Some(vec![kinds::ANNOUNCEMENT, kinds::STATE]), ..Filter::default() })
}

/// What belongs to the served repositories that name a relay; only to those, and those of their roots, that arrived up
/// to then.
#[must_use]
pub fn related(node: &mut Node, followed: &[RepoNeeds], place: &str, up_to: Seq) -> Bits {
    let mut wish = Bits::default();
    for repo in followed.iter().filter(|repo| repo.status == EventStatus::Served && repo.seq <= up_to) {
        if !relays_of(node.nth, repo).iter().any(|url| url.without_scheme() == place) {
            continue;
        }
        let d = repo.repo.identifier.as_str().to_owned();
        let at = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.repo.owner, d }.to_string();
        let roots = local_events::roots(&mut node.house, &repo.repo);
        let ids: Vec<String> = roots.iter().filter(|root| root.seq <= up_to).map(|root| root.id.to_string()).collect();
        for (letters, values) in [(b"aAq", vec![at]), (b"eEq", ids)] {
            for letter in letters {
                let tags = vec![(*letter, values.clone())];
                wish.extend(&corpus().matching(&Filter { tags, ..Filter::default() }));
            }
        }
        let (authors, kinds) = (Some(repo.authors.clone()), Some(vec![kinds::DELETION, kinds::VANISH]));
        wish.extend(&corpus().matching(&Filter { authors, kinds, ..Filter::default() }));
    }
    wish
}
