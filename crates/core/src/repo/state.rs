//! Kind 30618: what a repository's refs are.

use std::collections::BTreeMap;

use super::id::Identifier;
use super::ref_name;
use crate::nostr::PublicKey;
use crate::nostr::event::{Event, Stamp};

/// A state event, read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Who says so.
    pub author: PublicKey,
    /// Of which name; a state does not say whose repository it means.
    pub identifier: Identifier,
    /// Which version.
    pub stamp: Stamp,
    /// Branches and tags with their object ids. Peeled entries and symbolic values are not among them.
    pub refs: BTreeMap<String, String>,
    /// The branch that HEAD should point to, if it is one of the declared ones.
    pub head: Option<String>,
}

impl State {
    /// Reads a state; `None` if its `d` tag cannot name a repository.
    #[must_use]
    pub fn read(event: &Event) -> Option<Self> {
        let identifier = Identifier::new(event.tag("d")?)?;
        let mut refs = BTreeMap::new();
        let mut head = None;
        for tag in &event.tags {
            let [name, value, ..] = tag.as_slice() else { continue };
            if name == "HEAD" {
                // Written as `ref: refs/heads/x` and, in the wild, bare.
                head.get_or_insert_with(|| value.strip_prefix("ref: ").unwrap_or(value).to_owned());
            } else if is_branch_or_tag(name) && !name.ends_with("^{}") && !value.starts_with("ref: ") {
                refs.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        let head = head.filter(|branch| branch.starts_with("refs/heads/") && refs.contains_key(branch));
        Some(Self { author: event.pubkey, identifier, stamp: event.stamp(), refs, head })
    }

    /// Whether git could ever hold what is declared here. A state with an impossible ref name, two names that exclude
    /// each other or an impossible object id waits like any other but is never looked for.
    #[must_use]
    pub fn is_satisfiable(&self) -> bool {
        self.refs.iter().all(|(name, oid)| ref_name::is_valid(name) && is_oid(oid))
            && !ref_name::conflict(self.refs.keys().map(String::as_str))
    }

    /// The object ids that must be here, each once.
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

/// Whether this could be an object id: 40 or 64 lower-case hex digits, and not the zero id.
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

    fn state(tags: &[&[&str]]) -> Option<State> {
        State::read(&Event {
            id: EventId([1; 32]),
            pubkey: PublicKey([2; 32]),
            created_at: Timestamp(1),
            kind: 30618,
            tags: tags.iter().map(|tag| tag.iter().map(|value| (*value).to_owned()).collect()).collect(),
            content: String::new(),
            sig: [0; 64],
        })
    }

    #[test]
    fn section_1_2_what_counts_in_a_state() {
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
        assert_eq!(head("ref: refs/heads/other"), None, "§16 item 8");
        assert_eq!(state(&[&["refs/heads/main", &oid]]), None);
        assert!(state(&[&["d", "x"]]).expect("an empty state is legal").is_satisfiable());
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
