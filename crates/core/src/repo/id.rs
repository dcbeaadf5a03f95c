//! The names of repositories, in events and in paths.

use std::fmt;

use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::Coordinate;

/// The `d` tag of a repository: any text but the few that could not be a path segment. Compared byte for byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identifier(String);

impl Identifier {
    /// Takes an identifier that can be served (G1-20): not empty, `.` or `..`, no slash, backslash or control
    /// character, no longer than is sensible.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let bad = text.is_empty()
            || text == "."
            || text == ".."
            || text.len() > limits::MAX_IDENTIFIER_BYTES
            || text.contains(|c: char| matches!(c, '/' | '\\') || c.is_control());
        (!bad).then(|| Self(text.to_owned()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Percent-encoded for a path: RFC 3986's unreserved characters stay as they are (G1-18).
    #[must_use]
    pub fn encoded(&self) -> String {
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

/// One owner's repository.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RepoId {
    /// Whose it is.
    pub owner: PublicKey,
    /// Its name.
    pub identifier: Identifier,
}

impl RepoId {
    /// Reads `<npub>/<percent-encoded identifier>.git` from the raw segments of a path: the first must be a canonical
    /// npub, the second is decoded once and loses exactly one `.git` (G1-19, §15.2). Everything else, traversal in any
    /// encoding included, is `None`.
    #[must_use]
    pub fn from_segments(npub: &str, name: &str) -> Option<Self> {
        let decoded = percent_decode(name)?;
        Some(Self { owner: PublicKey::from_npub(npub)?, identifier: Identifier::new(decoded.strip_suffix(".git")?)? })
    }

    /// The path below the service's base: `<npub>/<encoded identifier>.git`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}.git", self.owner.npub(), self.identifier.encoded())
    }

    /// The repository that a coordinate of one of the two repository kinds speaks of.
    #[must_use]
    pub fn of(coordinate: &Coordinate) -> Option<Self> {
        Some(Self { owner: coordinate.pubkey, identifier: Identifier::new(&coordinate.d)? })
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

/// Decodes `%XX` once; `+` is itself. `None` if an escape is broken or the result is no UTF-8.
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
    fn g15_2_path_parsing() {
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
    fn g1_18_paths_round_trip() {
        for name in ["tool", "x.git", "my 🚀 repo", "a:b@c+d%e#f?g", "UPPER.lower_-~", &"é".repeat(500)] {
            let repo = RepoId { owner: PublicKey([7; 32]), identifier: Identifier::new(name).expect("valid") };
            let path = repo.path();
            let (npub, rest) = path.split_once('/').expect("two segments");
            assert_eq!(RepoId::from_segments(npub, rest), Some(repo));
        }
        assert_eq!(Identifier::new(&"x".repeat(limits::MAX_IDENTIFIER_BYTES + 1)), None);
    }
}
