//! Who may say what a repository's refs are.
//!
//! Two rules live side by side (G1-28, G1-29). Announcements with a plain `maintainers` tag use the recursive one: whom
//! a member lists is a member. Announcements with role tags (`M`, `m`, `o`) use the reciprocal one: whom a member lists
//! is a member once it lists a member back. The strict setting makes everything reciprocal.

use std::collections::BTreeSet;

use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::Event;

/// Whom an announcement names as keepers, by which rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Roles {
    /// One `maintainers` tag; the author is implied.
    Plain(Vec<PublicKey>),
    /// Role tags; a `maintainers` tag beside them means nothing (G1-30).
    Tagged {
        /// Active leads (`M`).
        leads: Vec<PublicKey>,
        /// Active leads and maintainers (`M`, `m`).
        members: Vec<PublicKey>,
        /// Whether the author itself is active: it is, unless it is named without an active `M` or `m`.
        author_active: bool,
    },
}

impl Roles {
    /// Reads the roles of an announcement.
    #[must_use]
    pub fn read(event: &Event) -> Self {
        let roles: Vec<Role<'_>> = event.tags.iter().filter_map(|tag| Role::read(tag)).collect();
        if roles.is_empty() {
            let first = event.tags.iter().find(|tag| tag.first().is_some_and(|name| name == "maintainers"));
            let keys = first.into_iter().flat_map(|tag| &tag[1..]).filter_map(|key| PublicKey::from_hex(key));
            return Self::Plain(distinct(keys));
        }
        let active = |names: &'static [&'static str]| {
            distinct(
                roles.iter().filter(move |role| role.active && names.contains(&role.name)).filter_map(|role| role.key),
            )
        };
        let members = active(&["M", "m"]);
        let author_active = members.contains(&event.pubkey) || roles.iter().all(|role| role.key != Some(event.pubkey));
        Self::Tagged { leads: active(&["M"]), members, author_active }
    }

    /// The keys that are named as maintainers, sorted.
    #[must_use]
    pub fn members(&self) -> &[PublicKey] {
        match self {
            Self::Plain(members) | Self::Tagged { members, .. } => members,
        }
    }

    fn lists(&self, key: PublicKey) -> bool {
        self.members().binary_search(&key).is_ok()
    }

    fn lists_any(&self, keys: &BTreeSet<PublicKey>) -> bool {
        self.members().iter().any(|key| keys.contains(key))
    }

    fn has_left(&self) -> bool {
        matches!(self, Self::Tagged { author_active: false, .. })
    }

    fn is_reciprocal(&self, strict: bool) -> bool {
        strict || matches!(self, Self::Tagged { .. })
    }
}

struct Role<'a> {
    name: &'a str,
    key: Option<PublicKey>,
    active: bool,
}

impl<'a> Role<'a> {
    fn read(tag: &'a [String]) -> Option<Self> {
        let name = tag.first().map(String::as_str).filter(|name| matches!(*name, "M" | "m" | "o"))?;
        let key = tag.get(1).and_then(|key| PublicKey::from_hex(key));
        Some(Self { name, key, active: is_active(tag.get(2..).unwrap_or_default()) })
    }
}

/// Alternating starts and ends: none, or an odd count, is active. `defer` may stand as the last end and then the role
/// never was active. Anything that is no number grants nothing.
fn is_active(boundaries: &[String]) -> bool {
    let is_number = |text: &String| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok()
    };
    boundaries.iter().all(is_number) && (boundaries.is_empty() || boundaries.len() % 2 == 1)
}

/// Each key once, sorted; no more than one announcement may name.
fn distinct(keys: impl Iterator<Item = PublicKey>) -> Vec<PublicKey> {
    let mut seen = BTreeSet::new();
    let mut keys: Vec<PublicKey> = keys.filter(|key| seen.insert(*key)).take(limits::MAX_NAMED).collect();
    keys.sort_unstable();
    keys
}

/// The maintainer set of the repository `owner` announced, where `roles` gives the roles in the best announcement that a
/// key has of the same name. Empty if the announcement's lead cannot be found (fail closed).
///
/// Every key is looked at once, those that were invited and have not listed a member back yet once more for each new
/// member: the work is bounded by the square of [`limits::MAX_MAINTAINERS`], whatever strangers announce.
#[must_use]
pub fn set<'a>(owner: PublicKey, strict: bool, roles: impl Fn(PublicKey) -> Option<&'a Roles>) -> BTreeSet<PublicKey> {
    let Some(root) = lead(owner, &roles) else { return BTreeSet::new() };
    let mut members = BTreeSet::from([root]);
    let mut fresh = vec![root];
    let mut invited: BTreeSet<PublicKey> = BTreeSet::new();
    while let Some(member) = fresh.pop() {
        let Some(list) = roles(member) else { continue };
        let mut joining = Vec::new();
        for candidate in list.members().iter().filter(|key| !members.contains(key)) {
            let own = roles(*candidate);
            if own.is_some_and(Roles::has_left) {
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
                fresh.push(key);
                invited.remove(&key);
                joining.extend(invited.iter().filter(|waiting| roles(**waiting).is_some_and(|own| own.lists(key))));
            }
        }
    }
    members
}

/// Where the walk begins: the owner, or whom its announcement names as the one lead (§2.6.3).
fn lead<'a>(owner: PublicKey, roles: &impl Fn(PublicKey) -> Option<&'a Roles>) -> Option<PublicKey> {
    let mut at = owner;
    let mut visited = BTreeSet::new();
    while visited.insert(at) && visited.len() <= limits::MAX_MAINTAINERS {
        match roles(at) {
            None | Some(Roles::Plain(_)) if at == owner => return Some(owner),
            Some(Roles::Tagged { leads, author_active, .. }) => match leads.as_slice() {
                [] if at == owner && *author_active => return Some(owner),
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

    const O: PublicKey = PublicKey([1; 32]);
    const M: PublicKey = PublicKey([2; 32]);
    const R: PublicKey = PublicKey([3; 32]);
    const X: PublicKey = PublicKey([4; 32]);

    fn roles(author: PublicKey, tags: &[(&str, &[PublicKey], &[&str])]) -> Roles {
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
        Roles::read(&Event {
            id: EventId([0; 32]),
            pubkey: author,
            created_at: Timestamp(0),
            kind: 30617,
            tags,
            content: String::new(),
            sig: [0; 64],
        })
    }

    fn sets(announcements: &[(PublicKey, Roles)], strict: bool, owner: PublicKey) -> Vec<PublicKey> {
        let map: BTreeMap<_, _> = announcements.iter().cloned().collect();
        set(owner, strict, |key| map.get(&key)).into_iter().collect()
    }

    #[test]
    fn g1_28_and_15_3_the_recursive_rule() {
        let world = [
            (O, roles(O, &[("maintainers", &[M], &[])])),
            (M, roles(M, &[("maintainers", &[R], &[])])),
            (X, roles(X, &[("maintainers", &[O], &[])])),
        ];
        assert_eq!(sets(&world, false, O), [O, M, R]);
        assert_eq!(sets(&world, false, M), [M, R]);
        assert_eq!(sets(&world, false, X), [O, M, R, X]);
        for owner in [O, M, X] {
            assert_eq!(sets(&world, true, owner), [owner], "strict: nobody lists back");
        }
    }

    #[test]
    fn g15_3_the_reciprocal_rule() {
        let mut world =
            vec![(O, roles(O, &[("maintainers", &[M], &[])])), (M, roles(M, &[("maintainers", &[R, O], &[])]))];
        assert_eq!(sets(&world, true, O), [O, M]);
        world.push((R, roles(R, &[("maintainers", &[M], &[])])));
        assert_eq!(sets(&world, true, O), [O, M, R]);
    }

    #[test]
    fn g1_29_g1_30_role_tags_are_reciprocal_and_hide_maintainers() {
        let o = roles(O, &[("m", &[M], &[]), ("maintainers", &[X], &[])]);
        assert_eq!(o.members(), [M]);
        assert_eq!(sets(&[(O, o.clone())], false, O), [O], "M has not listed back");
        assert_eq!(sets(&[(O, o), (M, roles(M, &[("maintainers", &[O], &[])]))], false, O), [O, M]);
    }

    #[test]
    fn g15_3_boundaries() {
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
            let read = roles(M, &[("m", &[R], values)]);
            assert_eq!(read.members() == [R], active, "{values:?}");
        }
        assert_eq!(roles(M, &[("m", &[R], &["1", "2"]), ("m", &[R], &[])]).members(), [R], "active if any entry is");
    }

    #[test]
    fn g15_3_leads_and_leaving() {
        let left = roles(M, &[("o", &[M], &[])]);
        assert!(left.has_left());
        assert_eq!(
            sets(&[(O, roles(O, &[("maintainers", &[M], &[])])), (M, left.clone())], false, O),
            [O],
            "leaving overrides being listed"
        );
        assert_eq!(sets(&[(M, left)], false, M), []);
        let points_to_o = roles(M, &[("M", &[O], &[])]);
        assert_eq!(sets(&[(M, points_to_o.clone())], false, M), [], "the lead has no announcement");
        assert_eq!(sets(&[(M, points_to_o.clone()), (O, roles(O, &[("M", &[O], &[])]))], false, M), [O]);
        assert_eq!(
            sets(&[(M, points_to_o.clone()), (O, roles(O, &[("M", &[O], &[]), ("m", &[M], &[])]))], false, M),
            [O, M]
        );
        assert_eq!(
            sets(&[(M, points_to_o.clone()), (O, roles(O, &[("m", &[R], &[])]))], false, M),
            [],
            "must end at a self-lead"
        );
        assert_eq!(sets(&[(M, points_to_o), (O, roles(O, &[("M", &[M], &[])]))], false, M), [], "a cycle");
        assert_eq!(sets(&[(M, roles(M, &[("M", &[O], &[]), ("M", &[R], &[])]))], false, M), [], "two leads");
        assert_eq!(sets(&[], false, O), [O], "a key without an announcement is its own set");
    }

    #[test]
    fn sets_are_bounded_and_cycles_end() {
        let many: Vec<PublicKey> = (0..=255u8).flat_map(|a| [PublicKey([a; 32]), PublicKey([a ^ 0x55; 32])]).collect();
        assert!(sets(&[(O, roles(O, &[("maintainers", &many, &[])]))], false, O).len() <= limits::MAX_MAINTAINERS);
        assert_eq!(
            sets(
                &[(O, roles(O, &[("maintainers", &[M], &[])])), (M, roles(M, &[("maintainers", &[O], &[])]))],
                false,
                O
            ),
            [O, M]
        );
        assert_eq!(roles(O, &[("maintainers", &[], &["npub1x", "zz"])]).members(), [], "§16 item 13");
    }
}
