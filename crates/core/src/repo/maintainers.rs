//! Maintainer sets: which keys may publish states for a repository.
//!
//! There are two rules (docs/protocol.md#maintainer-sets). Announcements with a plain `maintainers` tag use the
//! recursive rule: every key that a member lists is a member. Announcements with role tags (`M`, `m`, `o`) use
//! the reciprocal rule: a key that a member lists becomes a member when its own announcement lists a member back. With
//! the strict setting all announcements use the reciprocal rule.

use std::collections::BTreeSet;

use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::Event;

/// The maintainers that an announcement lists, and the rule that applies to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MaintainerRoles {
    /// One `maintainers` tag. The author is a maintainer implicitly.
    Plain(Vec<PublicKey>),
    /// Role tags. A `maintainers` tag in the same announcement is ignored.
    Tagged {
        /// Active leads (`M`).
        leads: Vec<PublicKey>,
        /// Active leads and maintainers (`M`, `m`).
        members: Vec<PublicKey>,
        /// Whether the author itself is active: true unless the author is named, but without an active `M` or `m`.
        is_author_active: bool,
    },
}

impl MaintainerRoles {
    /// Parses the roles in an announcement.
    #[must_use]
    pub fn from_event(event: &Event) -> Self {
        let roles: Vec<RoleTag<'_>> = event.tags.iter().filter_map(|tag| RoleTag::from_tag(tag)).collect();
        if roles.is_empty() {
            let first = event.tags.iter().find(|tag| tag.first().is_some_and(|name| name == "maintainers"));
            let keys = first.into_iter().flat_map(|tag| &tag[1..]).filter_map(|key| PublicKey::from_hex(key));
            return Self::Plain(distinct(keys));
        }
        let active = |names: &'static [&'static str]| {
            distinct(
                roles
                    .iter()
                    .filter(move |role| role.is_active && names.contains(&role.name))
                    .filter_map(|role| role.key),
            )
        };
        let members = active(&["M", "m"]);
        let is_author_active =
            members.contains(&event.pubkey) || roles.iter().all(|role| role.key != Some(event.pubkey));
        Self::Tagged { leads: active(&["M"]), members, is_author_active }
    }

    /// Returns the listed maintainers, sorted.
    #[must_use]
    pub fn members(&self) -> &[PublicKey] {
        match self {
            Self::Plain(members) | Self::Tagged { members, .. } => members,
        }
    }

    pub(super) fn lists(&self, key: PublicKey) -> bool {
        self.members().binary_search(&key).is_ok()
    }

    fn lists_any(&self, keys: &BTreeSet<PublicKey>) -> bool {
        self.members().iter().any(|key| keys.contains(key))
    }

    fn has_left(&self) -> bool {
        matches!(self, Self::Tagged { is_author_active: false, .. })
    }

    fn is_reciprocal(&self, strict: bool) -> bool {
        strict || matches!(self, Self::Tagged { .. })
    }
}

/// One `M`, `m` or `o` tag.
struct RoleTag<'a> {
    name: &'a str,
    key: Option<PublicKey>,
    is_active: bool,
}

impl<'a> RoleTag<'a> {
    fn from_tag(tag: &'a [String]) -> Option<Self> {
        let name = tag.first().map(String::as_str).filter(|name| matches!(*name, "M" | "m" | "o"))?;
        let key = tag.get(1).and_then(|key| PublicKey::from_hex(key));
        Some(Self { name, key, is_active: is_active(tag.get(2..).unwrap_or_default()) })
    }
}

/// Whether a role with these alternating start and end times is active: without any, or with an odd number of them.
/// `defer` as the last end means that the role was never active. A value that is not a number makes the role inactive.
fn is_active(boundaries: &[String]) -> bool {
    let is_number = |text: &String| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok()
    };
    boundaries.iter().all(is_number) && (boundaries.is_empty() || boundaries.len() % 2 == 1)
}

/// Returns the keys sorted and without duplicates, at most [`limits::MAX_NAMED_MAINTAINERS`].
fn distinct(keys: impl Iterator<Item = PublicKey>) -> Vec<PublicKey> {
    let mut seen = BTreeSet::new();
    let mut keys: Vec<PublicKey> = keys.filter(|key| seen.insert(*key)).take(limits::MAX_NAMED_MAINTAINERS).collect();
    keys.sort_unstable();
    keys
}

/// Computes the maintainer set of the repository that `owner` announced. `roles` returns the roles in the newest
/// announcement with the same identifier by a key. The set is empty if the lead that the announcement names cannot be
/// resolved (fail closed).
///
/// Every key is visited once, and every invited key that has not listed a member back once more per new member. The
/// work is bounded by the square of [`limits::MAX_MAINTAINERS`], whatever untrusted keys announce.
#[must_use]
pub fn maintainer_set<'a>(
    owner: PublicKey,
    strict: bool,
    roles: impl Fn(PublicKey) -> Option<&'a MaintainerRoles>,
) -> BTreeSet<PublicKey> {
    resolve_lead(owner, &roles).map(|lead| members_of_lead(lead, strict, roles)).unwrap_or_default()
}

/// Computes the maintainer set of the repositories that this key leads.
pub(super) fn members_of_lead<'a>(
    root: PublicKey,
    strict: bool,
    roles: impl Fn(PublicKey) -> Option<&'a MaintainerRoles>,
) -> BTreeSet<PublicKey> {
    let mut members = BTreeSet::from([root]);
    let mut unvisited = vec![root];
    let mut invited: BTreeSet<PublicKey> = BTreeSet::new();
    while let Some(member) = unvisited.pop() {
        let Some(list) = roles(member) else { continue };
        let mut joining = Vec::new();
        for candidate in list.members().iter().filter(|key| !members.contains(key)) {
            let own = roles(*candidate);
            if own.is_some_and(MaintainerRoles::has_left) {
                continue;
            }
            if !list.is_reciprocal(strict) || own.is_some_and(|own| own.lists_any(&members)) {
                joining.push(*candidate);
            } else if invited.len() < limits::MAX_MAINTAINERS {
                invited.insert(*candidate);
            }
        }
        while let Some(key) = joining.pop() {
            if members.len() == limits::MAX_MAINTAINERS {
                return members;
            }
            if members.insert(key) {
                unvisited.push(key);
                invited.remove(&key);
                joining.extend(invited.iter().filter(|other| roles(**other).is_some_and(|own| own.lists(key))));
            }
        }
    }
    members
}

/// Whether a key is a member of the set of a lead because the lead itself lists it. That needs no computation of the set.
pub(super) fn is_direct_member<'a>(
    lead: PublicKey,
    key: PublicKey,
    strict: bool,
    roles: impl Fn(PublicKey) -> Option<&'a MaintainerRoles>,
) -> bool {
    let own = roles(key);
    roles(lead).is_some_and(|list| {
        list.lists(key)
            && !own.is_some_and(MaintainerRoles::has_left)
            && (!list.is_reciprocal(strict) || own.is_some_and(|own| own.lists(lead)))
    })
}

/// Returns the key where the walk starts: the owner, or the only lead that its announcement names, followed until a key
/// that names itself (docs/protocol.md#role-tags).
pub(super) fn resolve_lead<'a>(
    owner: PublicKey,
    roles: &impl Fn(PublicKey) -> Option<&'a MaintainerRoles>,
) -> Option<PublicKey> {
    let mut at = owner;
    let mut visited = BTreeSet::new();
    while visited.insert(at) && visited.len() <= limits::MAX_MAINTAINERS {
        match roles(at) {
            None | Some(MaintainerRoles::Plain(_)) if at == owner => return Some(owner),
            Some(MaintainerRoles::Tagged { leads, is_author_active, .. }) => match leads.as_slice() {
                [] if at == owner && *is_author_active => return Some(owner),
                [only] if *only == at => return Some(at),
                [only] => at = *only,
                _ => return None,
            },
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::nostr::EventId;
    use crate::time::Timestamp;

    const OWNER: PublicKey = PublicKey([1; 32]);
    const MAINTAINER: PublicKey = PublicKey([2; 32]);
    const THIRD: PublicKey = PublicKey([3; 32]);
    const OTHER: PublicKey = PublicKey([4; 32]);

    fn roles(author: PublicKey, tags: &[(&str, &[PublicKey], &[&str])]) -> MaintainerRoles {
        let tags = tags
            .iter()
            .map(|(name, keys, rest)| {
                let keys = keys.iter().map(ToString::to_string);
                std::iter::once((*name).to_owned())
                    .chain(keys)
                    .chain(rest.iter().map(|value| (*value).to_owned()))
                    .collect()
            })
            .collect();
        MaintainerRoles::from_event(&Event {
            id: EventId([0; 32]),
            pubkey: author,
            created_at: Timestamp(0),
            kind: 30617,
            tags,
            content: String::new(),
            sig: [0; 64],
        })
    }

    fn sets(announcements: &[(PublicKey, MaintainerRoles)], strict: bool, owner: PublicKey) -> Vec<PublicKey> {
        let map: BTreeMap<_, _> = announcements.iter().cloned().collect();
        maintainer_set(owner, strict, |key| map.get(&key)).into_iter().collect()
    }

    /// Recursive rule: the set is the closure over the `maintainers` tags, starting at the owner.
    #[test]
    fn recursive_rule_follows_maintainers_tags() {
        let announcements = [
            (OWNER, roles(OWNER, &[("maintainers", &[MAINTAINER], &[])])),
            (MAINTAINER, roles(MAINTAINER, &[("maintainers", &[THIRD], &[])])),
            (OTHER, roles(OTHER, &[("maintainers", &[OWNER], &[])])),
        ];
        assert_eq!(sets(&announcements, false, OWNER), [OWNER, MAINTAINER, THIRD]);
        assert_eq!(sets(&announcements, false, MAINTAINER), [MAINTAINER, THIRD]);
        assert_eq!(sets(&announcements, false, OTHER), [OWNER, MAINTAINER, THIRD, OTHER]);
        for owner in [OWNER, MAINTAINER, OTHER] {
            assert_eq!(sets(&announcements, true, owner), [owner], "strict: no key lists another back");
        }
    }

    /// Reciprocal rule: a listed key is a member once its own announcement lists a confirmed member.
    #[test]
    fn reciprocal_rule_needs_listing_back() {
        let mut announcements = vec![
            (OWNER, roles(OWNER, &[("maintainers", &[MAINTAINER], &[])])),
            (MAINTAINER, roles(MAINTAINER, &[("maintainers", &[THIRD, OWNER], &[])])),
        ];
        assert_eq!(sets(&announcements, true, OWNER), [OWNER, MAINTAINER]);
        announcements.push((THIRD, roles(THIRD, &[("maintainers", &[MAINTAINER], &[])])));
        assert_eq!(sets(&announcements, true, OWNER), [OWNER, MAINTAINER, THIRD]);
    }

    #[test]
    fn role_tags_are_reciprocal_and_replace_maintainers_tag() {
        let owner_roles = roles(OWNER, &[("m", &[MAINTAINER], &[]), ("maintainers", &[OTHER], &[])]);
        assert_eq!(owner_roles.members(), [MAINTAINER]);
        assert_eq!(sets(&[(OWNER, owner_roles.clone())], false, OWNER), [OWNER], "the listed key has not listed back");
        assert_eq!(
            sets(
                &[(OWNER, owner_roles), (MAINTAINER, roles(MAINTAINER, &[("maintainers", &[OWNER], &[])]))],
                false,
                OWNER
            ),
            [OWNER, MAINTAINER]
        );
    }

    #[test]
    fn role_is_active_with_an_odd_number_of_boundaries() {
        for (values, active) in [
            (&[][..], true),
            (&["1700000000"], true),
            (&["1700000000", "1710000000"], false),
            (&["1", "2", "3"], true),
            (&["soon"], false),
            (&["1700000000", "defer"], false),
            (&["defer"], false),
            (&[""], false),
            (&["99999999999999999999"], false),
        ] {
            let parsed = roles(MAINTAINER, &[("m", &[THIRD], values)]);
            assert_eq!(parsed.members() == [THIRD], active, "{values:?}");
        }
        assert_eq!(
            roles(MAINTAINER, &[("m", &[THIRD], &["1", "2"]), ("m", &[THIRD], &[])]).members(),
            [THIRD],
            "one active entry is enough"
        );
    }

    #[test]
    fn lead_is_resolved_and_leaving_is_final() {
        let left = roles(MAINTAINER, &[("o", &[MAINTAINER], &[])]);
        assert!(left.has_left());
        assert_eq!(
            sets(
                &[(OWNER, roles(OWNER, &[("maintainers", &[MAINTAINER], &[])])), (MAINTAINER, left.clone())],
                false,
                OWNER
            ),
            [OWNER],
            "leaving overrides being listed"
        );
        assert_eq!(sets(&[(MAINTAINER, left)], false, MAINTAINER), []);
        let points_to_o = roles(MAINTAINER, &[("M", &[OWNER], &[])]);
        assert_eq!(sets(&[(MAINTAINER, points_to_o.clone())], false, MAINTAINER), [], "the lead has no announcement");
        assert_eq!(
            sets(
                &[(MAINTAINER, points_to_o.clone()), (OWNER, roles(OWNER, &[("M", &[OWNER], &[])]))],
                false,
                MAINTAINER
            ),
            [OWNER]
        );
        assert_eq!(
            sets(
                &[
                    (MAINTAINER, points_to_o.clone()),
                    (OWNER, roles(OWNER, &[("M", &[OWNER], &[]), ("m", &[MAINTAINER], &[])]))
                ],
                false,
                MAINTAINER
            ),
            [OWNER, MAINTAINER]
        );
        assert_eq!(
            sets(
                &[(MAINTAINER, points_to_o.clone()), (OWNER, roles(OWNER, &[("m", &[THIRD], &[])]))],
                false,
                MAINTAINER
            ),
            [],
            "the chain must end at a key that leads itself"
        );
        assert_eq!(
            sets(&[(MAINTAINER, points_to_o), (OWNER, roles(OWNER, &[("M", &[MAINTAINER], &[])]))], false, MAINTAINER),
            [],
            "a cycle"
        );
        assert_eq!(
            sets(&[(MAINTAINER, roles(MAINTAINER, &[("M", &[OWNER], &[]), ("M", &[THIRD], &[])]))], false, MAINTAINER),
            [],
            "two leads"
        );
        assert_eq!(sets(&[], false, OWNER), [OWNER], "a key without an announcement is its own set");
    }

    #[test]
    fn sets_are_bounded_and_cycles_end() {
        let many: Vec<PublicKey> =
            (0..=255u8).flat_map(|byte| [PublicKey([byte; 32]), PublicKey([byte ^ 0x55; 32])]).collect();
        assert!(
            sets(&[(OWNER, roles(OWNER, &[("maintainers", &many, &[])]))], false, OWNER).len()
                <= limits::MAX_MAINTAINERS
        );
        assert_eq!(
            sets(
                &[
                    (OWNER, roles(OWNER, &[("maintainers", &[MAINTAINER], &[])])),
                    (MAINTAINER, roles(MAINTAINER, &[("maintainers", &[OWNER], &[])]))
                ],
                false,
                OWNER
            ),
            [OWNER, MAINTAINER]
        );
        assert_eq!(roles(OWNER, &[("maintainers", &[], &["npub1x", "zz"])]).members(), [], "only hex keys are read");
    }
}
