//! The git repositories of this service, as paths name them.

use std::fmt;

use super::id::{Identifier, RepoId};

/// The first segment of a submission's path.
const SUBMITTED: &str = "prs";

/// One git repository of this service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Site {
    /// `/<npub>/<identifier>.git`: what an announcement names.
    Announced(RepoId),
    /// `/prs/<npub>/<identifier>.git`: what a contributor offers to a repository of that name, wherever it is hosted
    /// (GRASP-06).
    Submitted(RepoId),
}

impl Site {
    /// Whose, and its name.
    #[must_use]
    pub fn repo(&self) -> &RepoId {
        match self {
            Self::Announced(repo) | Self::Submitted(repo) => repo,
        }
    }

    /// Its name. All sites of one name are worked on one at a time.
    #[must_use]
    pub fn identifier(&self) -> &Identifier {
        &self.repo().identifier
    }

    /// The path below the service's base, without a leading slash.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Self::Announced(repo) => repo.path(),
            Self::Submitted(repo) => format!("{SUBMITTED}/{}", repo.path()),
        }
    }

    /// Reads the raw path below the service's base, without its leading slash, as far as it names a repository. Gives
    /// the site and what follows behind its `.git`, without a slash between.
    #[must_use]
    pub fn from_path(path: &str) -> Option<(Self, &str)> {
        let (first, rest) = path.split_once('/')?;
        if first == SUBMITTED {
            let (npub, rest) = rest.split_once('/')?;
            let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
            return Some((Self::Submitted(RepoId::from_segments(npub, name)?), below));
        }
        let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
        Some((Self::Announced(RepoId::from_segments(first, name)?), below))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::PublicKey;

    #[test]
    fn paths_name_sites_and_what_is_below_them() {
        let repo = RepoId { owner: PublicKey([0x11; 32]), identifier: Identifier::new("a:b").expect("valid") };
        let npub = repo.owner.npub();
        for (path, site, below) in [
            (format!("{npub}/a%3Ab.git"), Site::Announced(repo.clone()), ""),
            (format!("{npub}/a:b.git/info/refs"), Site::Announced(repo.clone()), "info/refs"),
            (format!("prs/{npub}/a%3ab.git/git-upload-pack"), Site::Submitted(repo.clone()), "git-upload-pack"),
        ] {
            assert_eq!(Site::from_path(&path), Some((site, below)), "{path}");
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
            assert_eq!(Site::from_path(&path), None, "{path}");
        }
        let site = Site::Submitted(repo);
        assert_eq!(Site::from_path(&site.path()), Some((site.clone(), "")));
    }
}
