//! Git repositories of this service, identified by their URL path.

use std::fmt;

use super::id::{Identifier, RepoId};

/// The first path segment of pull request submissions.
const PULL_REQUESTS_SEGMENT: &str = "prs";

/// A git repository of this service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RepoPath {
    /// `/<npub>/<identifier>.git`: an announced repository.
    Announced(RepoId),
    /// `/prs/<npub>/<identifier>.git`: pull requests that a contributor submits to a repository with that identifier,
    /// wherever that repository is hosted (GRASP-06, docs/protocol.md#contributor-pull-requests).
    PullRequests(RepoId),
}

impl RepoPath {
    /// Returns the owner (or contributor) and the identifier.
    #[must_use]
    pub fn repo(&self) -> &RepoId {
        match self {
            Self::Announced(repo) | Self::PullRequests(repo) => repo,
        }
    }

    /// Returns the identifier. Git jobs of all repositories with the same identifier run one at a time.
    #[must_use]
    pub fn identifier(&self) -> &Identifier {
        &self.repo().identifier
    }

    /// Returns the path below the service's base, without a leading slash.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Self::Announced(repo) => repo.path(),
            Self::PullRequests(repo) => format!("{PULL_REQUESTS_SEGMENT}/{}", repo.path()),
        }
    }

    /// Parses a raw path below the service's base, without its leading slash. Returns the repository and the rest of
    /// the path after `.git/`, or `None` if the path does not name a repository.
    #[must_use]
    pub fn from_path(path: &str) -> Option<(Self, &str)> {
        let (first, rest) = path.split_once('/')?;
        if first == PULL_REQUESTS_SEGMENT {
            let (npub, rest) = rest.split_once('/')?;
            let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
            return Some((Self::PullRequests(RepoId::from_segments(npub, name)?), below));
        }
        let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
        Some((Self::Announced(RepoId::from_segments(first, name)?), below))
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::PublicKey;

    #[test]
    fn paths_are_parsed_with_the_part_below_the_repository() {
        let repo = RepoId { owner: PublicKey([0x11; 32]), identifier: Identifier::new("a:b").expect("valid") };
        let npub = repo.owner.npub();
        for (path, repo_path, below) in [
            (format!("{npub}/a%3Ab.git"), RepoPath::Announced(repo.clone()), ""),
            (format!("{npub}/a:b.git/info/refs"), RepoPath::Announced(repo.clone()), "info/refs"),
            (format!("prs/{npub}/a%3ab.git/git-upload-pack"), RepoPath::PullRequests(repo.clone()), "git-upload-pack"),
        ] {
            assert_eq!(RepoPath::from_path(&path), Some((repo_path, below)), "{path}");
        }
        for path in [
            String::new(),
            npub.clone(),
            format!("{npub}/a"),
            format!("prs/{npub}"),
            format!("{npub}//a.git"),
            format!("{npub}/..%2fa.git"),
            format!("prs/prs/{npub}/a.git"),
        ] {
            assert_eq!(RepoPath::from_path(&path), None, "{path}");
        }
        let repo_path = RepoPath::PullRequests(repo);
        assert_eq!(RepoPath::from_path(&repo_path.path()), Some((repo_path.clone(), "")));
    }
}
