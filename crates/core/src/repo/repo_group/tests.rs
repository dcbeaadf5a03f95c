//! The indexes and caches of a group, compared with a computation from the announcements alone, on random graphs.

use super::*;
use crate::nostr::EventId;
use crate::random::Rng;
use crate::repo::{Identifier, RepoId};
use crate::time::Timestamp;

const KEYS: u8 = 9;

fn key(nth: u8) -> PublicKey {
    PublicKey([nth + 1; 32])
}

fn pick(rng: &mut Rng, end: u8) -> u8 {
    (rng.next_u64() % u64::from(end)) as u8
}

/// Returns a random announcement: plain, or with role tags, hosted or not.
fn random_announcement(rng: &mut Rng, owner: PublicKey, at: u64) -> Announcement {
    let mut listed: Vec<PublicKey> = (0..pick(rng, 4)).map(|_| key(pick(rng, KEYS))).collect();
    listed.sort_unstable();
    listed.dedup();
    let roles = match pick(rng, 4) {
        0 => {
            let leads = listed.iter().copied().take(usize::from(pick(rng, 3))).collect();
            MaintainerRoles::Tagged { leads, members: listed, is_author_active: pick(rng, 5) > 0 }
        }
        _ => MaintainerRoles::Plain(listed),
    };
    let is_listed = pick(rng, 2) == 0;
    Announcement {
        repo: RepoId { owner, identifier: Identifier::new("tool").expect("valid") },
        version: EventVersion { created_at: Timestamp(at), id: EventId([pick(rng, 200); 32]) },
        is_listed,
        is_archived: false,
        is_exception: !is_listed && pick(rng, 4) > 0,
        roles,
        clone: Vec::new(),
        relays: Vec::new(),
    }
}

/// The same questions, answered without indexes and caches.
struct Naive<'a>(&'a RepoGroup, bool);

impl Naive<'_> {
    fn set(&self, owner: PublicKey) -> BTreeSet<PublicKey> {
        maintainers::maintainer_set(owner, self.1, |key| self.0.newest_announcement(key).map(|newest| &newest.roles))
    }

    fn maintained_by(&self, author: PublicKey) -> BTreeSet<PublicKey> {
        let hosted = self.0.announcements().map(|(owner, _)| *owner).filter(|owner| self.0.is_hosted(*owner));
        hosted.filter(|owner| self.set(*owner).contains(&author)).collect()
    }

    fn has_kept_repo(&self, author: PublicKey) -> bool {
        let kept = |owner: &PublicKey| self.0.keeps_git_data(*owner) && self.set(*owner).contains(&author);
        self.0.announcements().any(|(owner, _)| kept(owner))
    }

    fn invitation(&self, author: PublicKey) -> Option<EventStatus> {
        let mut best = None;
        for (lister, versions) in self.0.announcements().filter(|(lister, _)| **lister != author) {
            let lists = |announcement: &Announcement| announcement.roles.members().contains(&author);
            if !versions.newest().is_some_and(lists) {
                continue;
            }
            let mut owners = self.maintained_by(*lister);
            owners.remove(&author);
            owners.extend(Some(*lister).filter(|lister| self.0.is_hosted(*lister)));
            if owners.is_empty() {
                continue;
            }
            let is_served =
                versions.served.as_ref().is_some_and(lists) && owners.iter().any(|owner| self.0.is_served(*owner));
            let status = if is_served { EventStatus::Served } else { EventStatus::Held };
            best = Some(best.map_or(status, |best: EventStatus| best.min(status)));
        }
        best
    }

    /// Returns the owners by rank: the author, those of served repositories, the others.
    fn ranked(&self, author: PublicKey, mut owners: Vec<PublicKey>) -> Vec<PublicKey> {
        owners.sort_by_key(|owner| (*owner != author, !self.0.is_served(*owner), *owner));
        owners
    }

    fn exceptions(&self) -> BTreeSet<PublicKey> {
        let is_exception = |(_, versions): &(&PublicKey, &Versions<Announcement>)| {
            versions.served.as_ref().is_some_and(|served| served.is_exception && !served.is_hosted())
                || versions.held.as_ref().is_some_and(|held| !held.is_hosted())
        };
        self.0.announcements().filter(is_exception).map(|(author, _)| *author).collect()
    }
}

#[test]
fn indexes_and_caches_equal_a_naive_computation_on_random_graphs() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let strict = pick(&mut rng, 3) == 0;
        let mut group = RepoGroup::default();
        for at in 0..24 {
            let author = key(pick(&mut rng, KEYS));
            let new = random_announcement(&mut rng, author, at);
            let status = if pick(&mut rng, 2) == 0 { EventStatus::Served } else { EventStatus::Held };
            let before: Vec<_> = (0..KEYS).map(|nth| Naive(&group, strict).set(key(nth))).collect();
            let is_removal = pick(&mut rng, 5) == 0;
            let changed = group.update_announcements(author, |versions| match is_removal {
                true => versions.slot(status).take(),
                false => versions.slot(status).replace(new),
            });
            let naive = Naive(&group, strict);
            for nth in 0..KEYS {
                let (key, context) = (key(nth), format!("seed {seed}, step {at}, key {nth}"));
                assert_eq!(*group.maintainers(key, strict), naive.set(key), "{context}");
                let found: Vec<PublicKey> = group.maintained_by(key, strict).collect();
                assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), naive.maintained_by(key), "{context}");
                let is_served = found.iter().any(|owner| group.is_served(*owner));
                assert_eq!(group.maintains_served(key, strict), is_served, "{context}");
                assert_eq!(group.has_kept_repo(key, strict), naive.has_kept_repo(key), "{context}");
                assert_eq!(group.invitation(key, strict), naive.invitation(key), "{context}");
                let searched = group.search_owners(key, strict);
                let ranks = |owners: &[PublicKey]| {
                    owners
                        .iter()
                        .map(|owner| (*owner != key, *owner != key && !group.is_served(*owner)))
                        .collect::<Vec<_>>()
                };
                let ranked = naive.ranked(key, naive.maintained_by(key).into_iter().collect());
                assert_eq!(naive.ranked(key, searched.to_vec()), ranked, "{context}");
                assert_eq!(ranks(&searched), ranks(&ranked), "{context}: order");
                let is_dependent = changed.dependents.as_ref().is_some_and(|keys| keys.contains(&key));
                assert!(is_dependent || before[usize::from(nth)] == naive.set(key), "{context}: not a dependent");
            }
            assert_eq!(*group.exceptions(), naive.exceptions(), "seed {seed}, step {at}");
            assert_eq!(group.has_hosted(), group.hosted_owners().next().is_some());
        }
    }
}

/// Announces a hosted repository.
fn host(group: &mut RepoGroup, owner: PublicKey, roles: MaintainerRoles) {
    let mut announcement = random_announcement(&mut Rng::new(0), owner, 1);
    (announcement.is_listed, announcement.is_exception, announcement.roles) = (true, false, roles);
    group.update_announcements(owner, |versions| versions.slot(EventStatus::Served).replace(announcement));
}

/// Repositories with very large maintainer sets, which list the author of a state, do not hide one that lists it as its
/// maintainer.
#[test]
fn costly_maintainer_sets_hide_no_repository() {
    let numbered = |nth: u16| {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&nth.to_be_bytes());
        PublicKey(bytes)
    };
    let (author, owner) = (numbered(60_000), numbered(60_001));
    let mut group = RepoGroup::default();
    host(&mut group, owner, MaintainerRoles::Plain(vec![author]));
    for nth in 0..300 {
        // The author does not list them, so that their sets must be computed.
        let mut members: Vec<PublicKey> = (0..60).map(|other| numbered((nth * 7 + other * 5) % 300)).collect();
        members.push(author);
        members.sort_unstable();
        members.dedup();
        host(&mut group, numbered(nth), MaintainerRoles::Tagged { leads: Vec::new(), members, is_author_active: true });
    }
    let before = group.work.get();
    let found = group.search_owners(author, false);
    assert_eq!(*found, vec![owner]);
    assert!(group.work.get() - before > limits::MAX_SEARCH_WORK, "the search was not costly");
}
