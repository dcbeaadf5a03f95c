//! Repository states (kind 30618): the branches and tags of a repository.

use std::collections::BTreeMap;

use bitcoin_hashes::sha256;

use super::id::Identifier;
use super::ref_name;
use crate::nostr::event::{Event, EventVersion};
use crate::nostr::{PublicKey, kinds};

/// A parsed state event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepoState {
    /// The event's author.
    pub author: PublicKey,
    /// The identifier of the repositories it is about. A state names no owner: it applies to every repository with this
    /// identifier that has the author as a maintainer.
    pub identifier: Identifier,
    /// The event's timestamp and id.
    pub version: EventVersion,
    /// Branches and tags with their object ids, without peeled (`^{}`) entries and symbolic values.
    pub refs: BTreeMap<String, String>,
    /// The branch that HEAD should point to. `None` if the state names none, or one that it does not declare
    /// (docs/protocol.md#repository-state).
    pub head: Option<String>,
}

/// What push authorisation needs of a state. A state may declare thousands of refs; this is small enough to be kept in
/// memory, so that a push does not have to read all states of its repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateDigest {
    /// The hash of its branches and tags with their object ids ([`refs_hash`]).
    pub refs_hash: [u8; 32],
    /// Whether a git repository can have its refs ([`RepoState::is_satisfiable`]).
    pub is_satisfiable: bool,
    /// The branch that HEAD should point to.
    pub head: Option<String>,
}

impl StateDigest {
    /// Computes the digest of a state, or returns `None` if the event is not a valid state.
    #[must_use]
    pub fn from_event(event: &Event) -> Option<Self> {
        (event.kind == kinds::STATE).then(|| RepoState::from_event(event).map(|state| state.digest())).flatten()
    }
}

/// Returns a hash of refs with their object ids. Two sets of refs have the same hash only if they are equal.
#[must_use]
pub fn refs_hash(refs: &BTreeMap<String, String>) -> [u8; 32] {
    let mut bytes = Vec::new();
    for text in refs.iter().flat_map(|(name, oid)| [name, oid]) {
        // The lengths make sure that other texts do not give the same bytes.
        bytes.extend_from_slice(&(text.len() as u64).to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    sha256::Hash::hash(&bytes).to_byte_array()
}

impl RepoState {
    /// Parses a state, or returns `None` if its `d` tag is not a valid identifier.
    #[must_use]
    pub fn from_event(event: &Event) -> Option<Self> {
        let identifier = Identifier::new(event.tag("d")?)?;
        let mut refs = BTreeMap::new();
        let mut head = None;
        for tag in &event.tags {
            let [name, value, ..] = tag.as_slice() else { continue };
            if name == "HEAD" {
                // The specified form is `ref: refs/heads/x`; some clients write the branch without the prefix.
                head.get_or_insert_with(|| value.strip_prefix("ref: ").unwrap_or(value).to_owned());
            } else if is_branch_or_tag(name) && !name.ends_with("^{}") && !value.starts_with("ref: ") {
                refs.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        let head = head.filter(|branch| branch.starts_with("refs/heads/") && refs.contains_key(branch));
        Some(Self { author: event.pubkey, identifier, version: event.version(), refs, head })
    }

    /// Whether a git repository can have these refs. A state with an invalid ref name, with two names that exclude each
    /// other or with an invalid object id is held like any other, but its data is never searched for
    /// (docs/design/admission.md#states-that-can-never-be-satisfied).
    #[must_use]
    pub fn is_satisfiable(&self) -> bool {
        self.refs.iter().all(|(name, oid)| ref_name::is_valid(name) && is_oid(oid))
            && !ref_name::has_conflict(self.refs.keys().map(String::as_str))
    }

    /// Returns what push authorisation needs of the state.
    #[must_use]
    pub fn digest(&self) -> StateDigest {
        StateDigest { refs_hash: refs_hash(&self.refs), is_satisfiable: self.is_satisfiable(), head: self.head.clone() }
    }

    /// Returns the object ids that the repository needs, sorted and without duplicates.
    #[must_use]
    pub fn oids(&self) -> Vec<String> {
        let mut oids: Vec<String> = self.refs.values().cloned().collect();
        oids.sort_unstable();
        oids.dedup();
        oids
    }
}

fn is_branch_or_tag(name: &str) -> bool {
    ["refs/heads/", "refs/tags/"].iter().any(|space| name.strip_prefix(space).is_some_and(|rest| !rest.is_empty()))
}

/// Whether the text is an object id: 40 or 64 lower-case hexadecimal digits, and not the zero id.
#[must_use]
pub fn is_oid(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && text.bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::EventId;
    use crate::time::Timestamp;

    fn state(tags: &[&[&str]]) -> Option<RepoState> {
        RepoState::from_event(&Event {
            id: EventId([1; 32]),
            pubkey: PublicKey([2; 32]),
            created_at: Timestamp(1),
            kind: 30618,
            tags: tags.iter().map(|tag| tag.iter().map(|value| (*value).to_owned()).collect()).collect(),
            content: String::new(),
            sig: [0; 64],
        })
    }

    /// The hash depends on every name, every object id and which belong together.
    #[test]
    fn digests_are_equal_only_for_equal_refs() {
        let (one, two) = ("a".repeat(40), "b".repeat(40));
        let digest = |pairs: &[(&str, &str)]| {
            let refs = pairs.iter().map(|(name, oid)| ((*name).to_owned(), (*oid).to_owned())).collect();
            refs_hash(&refs)
        };
        let all = [
            digest(&[]),
            digest(&[("refs/heads/a", &one)]),
            digest(&[("refs/heads/a", &two)]),
            digest(&[("refs/heads/b", &one)]),
            digest(&[("refs/heads/a", &one), ("refs/heads/b", &two)]),
            digest(&[("refs/heads/a", &two), ("refs/heads/b", &one)]),
            digest(&[("refs/heads/a", ""), (&one, "refs/heads/b")]),
            digest(&[("refs/heads/a", &format!("{one}refs/heads/b{two}"))]),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        let read = state(&[&["d", "x"], &["refs/heads/a", &one], &["HEAD", "ref: refs/heads/a"]]).expect("a state");
        let head = Some("refs/heads/a".to_owned());
        assert_eq!(read.digest(), StateDigest { refs_hash: all[1], is_satisfiable: true, head });
    }

    /// A peeled entry, a symbolic value and a ref outside of `refs/heads/` and `refs/tags/` are not refs of the state.
    #[test]
    fn only_branches_tags_and_a_declared_head_are_read() {
        let oid = "a".repeat(40);
        let read = state(&[
            &["d", "x"],
            &["refs/heads/main", &oid, "ignored", "ancestors"],
            &["refs/tags/v1", &oid],
            &["refs/tags/v1^{}", "b"],
            &["refs/heads/alias", "ref: refs/heads/main"],
            &["refs/notes/x", &oid],
            &["refs/heads/"],
            &["HEAD", "refs/heads/main"],
        ])
        .expect("a state");
        assert_eq!(read.refs.keys().collect::<Vec<_>>(), ["refs/heads/main", "refs/tags/v1"]);
        assert_eq!(read.head.as_deref(), Some("refs/heads/main"));
        assert_eq!(read.oids(), std::slice::from_ref(&oid));
        assert!(read.is_satisfiable());
        let head =
            |value: &str| state(&[&["d", "x"], &["refs/heads/main", &oid], &["HEAD", value]]).expect("a state").head;
        assert_eq!(head("ref: refs/heads/main").as_deref(), Some("refs/heads/main"));
        assert_eq!(head("ref: refs/heads/other"), None, "HEAD names an undeclared branch");
        assert_eq!(state(&[&["refs/heads/main", &oid]]), None);
        assert!(state(&[&["d", "x"]]).expect("a state without refs").is_satisfiable());
        for bad in
            [("refs/heads/main", "abc123"), ("refs/heads/a..b", oid.as_str()), ("refs/heads/main", &"0".repeat(40))]
        {
            assert!(!state(&[&["d", "x"], &[bad.0, bad.1]]).expect("a state").is_satisfiable(), "{bad:?}");
        }
        assert!(
            !state(&[&["d", "x"], &["refs/heads/a", &oid], &["refs/heads/a/b", &oid]])
                .expect("a state")
                .is_satisfiable()
        );
        assert!(state(&[&["d", "x"], &["refs/heads/a", &"c".repeat(64)]]).expect("a state").is_satisfiable());
    }
}
