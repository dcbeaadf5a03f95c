//! Identifiers of repositories, in events and in URL paths.

use std::fmt;

use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::Coordinate;

/// The `d` tag of a repository: any text that can be a path segment. Compared byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identifier(String);

impl Identifier {
    /// Checks an identifier. Returns `None` if it is empty, `.` or `..`, if it contains a slash, a backslash or a
    /// control character, or if it is longer than [`limits::MAX_IDENTIFIER_BYTES`]
    /// (docs/protocol.md#identifiers-and-paths).
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_invalid = text.is_empty()
            || text == "."
            || text == ".."
            || text.len() > limits::MAX_IDENTIFIER_BYTES
            || text.contains(|ch: char| matches!(ch, '/' | '\\') || ch.is_control());
        (!is_invalid).then(|| Self(text.to_owned()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the identifier as a path segment. The unreserved characters of RFC 3986 are not encoded.
    #[must_use]
    pub fn percent_encoded(&self) -> String {
        let mut path = String::with_capacity(self.0.len());
        for byte in self.0.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02X}"));
            }
        }
        path
    }
}

/// A repository: its owner and its identifier.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RepoId {
    /// The key that announces the repository.
    pub owner: PublicKey,
    /// The `d` tag of its announcement.
    pub identifier: Identifier,
}

impl RepoId {
    /// Parses `<npub>/<percent-encoded identifier>.git` from two raw path segments. The npub must be canonical; the
    /// second segment is decoded once and loses exactly one `.git`. Returns `None` for everything else, including path
    /// traversal in any encoding (docs/protocol.md#identifiers-and-paths).
    #[must_use]
    pub fn from_segments(npub: &str, name: &str) -> Option<Self> {
        let decoded = percent_decode(name)?;
        Some(Self { owner: PublicKey::from_npub(npub)?, identifier: Identifier::new(decoded.strip_suffix(".git")?)? })
    }

    /// Returns the path below the service's base: `<npub>/<percent-encoded identifier>.git`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}.git", self.owner.npub(), self.identifier.percent_encoded())
    }

    /// Returns the repository that a coordinate refers to, or `None` if its `d` is not a valid identifier. The
    /// coordinate's kind is not checked; it is that of an announcement or a state.
    #[must_use]
    pub fn from_coordinate(coordinate: &Coordinate) -> Option<Self> {
        Some(Self { owner: coordinate.pubkey, identifier: Identifier::new(&coordinate.d)? })
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

/// Decodes `%XX` once; `+` is not decoded. Returns `None` if an escape is malformed or the result is not UTF-8.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_are_decoded_once() {
        let owner = PublicKey([0x11; 32]);
        let npub = owner.npub();
        let parse =
            |npub: &str, name: &str| RepoId::from_segments(npub, name).map(|repo| repo.identifier.as_str().to_owned());
        for (name, identifier) in [
            ("tool.git", "tool"),
            ("tool.git.git", "tool.git"),
            ("a%3Ab.git", "a:b"),
            ("a%3ab.git", "a:b"),
            ("a:b.git", "a:b"),
            ("my+repo.git", "my+repo"),
            ("%252e.git", "%2e"),
            ("my%20%F0%9F%9A%80%20repo.git", "my 🚀 repo"),
            ("HEAD.git", "HEAD"),
        ] {
            assert_eq!(parse(&npub, name).as_deref(), Some(identifier), "{name}");
        }
        for bad in [
            "a%2Fb.git",
            "a%2fb.git",
            "%2e%2e.git",
            "..git",
            "...git",
            "%2E.git",
            "..%2f...git",
            "a%5cb.git",
            "a%00.git",
            "a%0a.git",
            ".git",
            "tool",
            "tool%",
            "tool%2.git",
            "%ff.git",
        ] {
            assert_eq!(parse(&npub, bad), None, "{bad}");
        }
        assert_eq!(parse(&npub.to_uppercase(), "tool.git"), None);
        assert_eq!(parse(&owner.to_string(), "tool.git"), None);
    }

    #[test]
    fn paths_round_trip() {
        for name in ["tool", "x.git", "my 🚀 repo", "a:b@c+d%e#f?g", "UPPER.lower_-~", &"é".repeat(500)] {
            let repo = RepoId { owner: PublicKey([7; 32]), identifier: Identifier::new(name).expect("valid") };
            let path = repo.path();
            let (npub, rest) = path.split_once('/').expect("two segments");
            assert_eq!(RepoId::from_segments(npub, rest), Some(repo));
        }
        assert_eq!(Identifier::new(&"x".repeat(limits::MAX_IDENTIFIER_BYTES + 1)), None);
    }
}
