//! The refs of a repository, and the branch that HEAD names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What a ref points to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RefTarget {
    /// The object that the ref points to.
    pub oid: String,
    /// If that is a tag object, the commit (or other object) that it leads to when all tags are followed.
    pub peeled: Option<String>,
}

/// All refs of a repository, and the branch that HEAD names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Refs {
    refs: BTreeMap<String, RefTarget>,
    /// The branch that HEAD names, whether or not it exists, if it is not the default.
    head: Option<String>,
}

/// The row of a repository in the store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct RepoRow {
    /// Higher than that of every earlier row of any repository.
    pub version: u64,
    /// The refs, possibly none.
    pub refs: Arc<Refs>,
    /// Why objects that the refs need are damaged or missing; `None` if the repository is not degraded.
    pub degraded: Option<String>,
}

impl RepoRow {
    /// Returns what counts instead of a row that is damaged: the repository is degraded for this reason, and its refs are
    /// lost.
    #[must_use]
    pub fn damaged(reason: &str) -> Self {
        Self { degraded: Some(reason.to_owned()), ..Self::default() }
    }
}

/// The branch that HEAD names until a state declares another. Not `main`: a client that clones the empty repository
/// would be on that branch already and could not create it (docs/protocol.md#empty-repositories).
pub const DEFAULT_HEAD: &str = "refs/heads/master";

impl Refs {
    /// Returns the branch that HEAD names.
    #[must_use]
    pub fn head(&self) -> &str {
        self.head.as_deref().unwrap_or(DEFAULT_HEAD)
    }

    /// Returns the branch that HEAD names, if it is not the default.
    #[must_use]
    pub fn named_head(&self) -> Option<&str> {
        self.head.as_deref()
    }

    /// Points HEAD to a branch.
    pub fn set_head(&mut self, branch: &str) {
        self.head = Some(branch.to_owned()).filter(|branch| branch != DEFAULT_HEAD);
    }

    /// Returns the object that HEAD resolves to, if its branch exists.
    #[must_use]
    pub fn head_oid(&self) -> Option<&str> {
        self.get(self.head()).map(|target| target.oid.as_str())
    }

    /// Returns what a ref points to.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&RefTarget> {
        self.refs.get(name)
    }

    /// Sets a ref.
    pub fn set(&mut self, name: &str, target: RefTarget) {
        self.refs.insert(name.to_owned(), target);
    }

    /// Removes a ref and returns what it pointed to.
    pub fn remove(&mut self, name: &str) -> Option<RefTarget> {
        self.refs.remove(name)
    }

    /// Iterates over all refs, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RefTarget)> {
        self.refs.iter().map(|(name, target)| (name.as_str(), target))
    }

    /// Iterates over the refs that states declare: all except those of pull requests.
    pub fn branches_and_tags(&self) -> impl Iterator<Item = (&str, &RefTarget)> {
        self.iter().filter(|(name, _)| !name.starts_with("refs/nostr/"))
    }

    /// Returns the number of refs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.refs.len()
    }

    /// Returns whether there are no refs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.refs.is_empty()
    }
}

/// Formats the content of git's `packed-refs` file: sorted and peeled.
impl fmt::Display for Refs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# pack-refs with: peeled fully-peeled sorted \n")?;
        for (name, RefTarget { oid, peeled }) in &self.refs {
            writeln!(f, "{oid} {name}")?;
            if let Some(peeled) = peeled {
                writeln!(f, "^{peeled}")?;
            }
        }
        Ok(())
    }
}
