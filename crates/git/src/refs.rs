//! The refs of one repository: one sorted, peeled `packed-refs` file, replaced as a whole.
//!
//! There are no loose refs and no reflogs, and no git process writes refs, so a [`Refs`] in memory and the file have
//! the same content. A change is written to a temporary file, synced and renamed, so that a reader, including git, sees
//! either the old refs or the new ones.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::files::{read_text, replace_file};
use crate::pktline;

/// What a ref points to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefTarget {
    /// The object that the ref points to.
    pub oid: String,
    /// If that is a tag object, the commit (or other object) that it leads to when all tags are followed.
    pub peeled: Option<String>,
}

/// All refs of a repository, and the branch that HEAD names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Refs {
    refs: BTreeMap<String, RefTarget>,
    /// The branch that HEAD names, whether or not it exists.
    head: Option<String>,
}

/// The branch that HEAD names until a state declares another. Not `main`: a client that clones the empty repository
/// would be on that branch already and could not create it (docs/protocol.md#empty-repositories).
pub(crate) const DEFAULT_HEAD: &str = "refs/heads/master";

impl Refs {
    /// Reads the refs of a repository folder. Missing files mean no refs.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let head = read_text(&folder.join("HEAD"))?.trim_end().strip_prefix("ref: ").map(str::to_owned);
        Ok(Self { refs: parse(&read_text(&folder.join("packed-refs"))?), head })
    }

    /// Replaces the refs of a repository folder, durably: first the refs, then HEAD.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        self.write_packed_refs(folder)?;
        self.write_head(folder)
    }

    /// Replaces the refs without HEAD.
    pub(crate) fn write_packed_refs(&self, folder: &Path) -> io::Result<()> {
        replace_file(folder, "packed-refs", self.to_string().as_bytes())
    }

    /// Replaces HEAD.
    pub(crate) fn write_head(&self, folder: &Path) -> io::Result<()> {
        replace_file(folder, "HEAD", format!("ref: {}\n", self.head()).as_bytes())
    }

    /// Returns the branch that HEAD names.
    #[must_use]
    pub fn head(&self) -> &str {
        self.head.as_deref().unwrap_or(DEFAULT_HEAD)
    }

    /// Points HEAD to a branch.
    pub fn set_head(&mut self, branch: &str) {
        self.head = Some(branch.to_owned());
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

    /// Appends the ref lines of a v0 or v1 advertisement. The capabilities follow the first ref, or a placeholder line
    /// if the repository is empty.
    pub fn write_advertisement(&self, out: &mut Vec<u8>, capabilities: &str) {
        let mut capabilities = Some(match self.head_oid() {
            Some(_) => format!("symref=HEAD:{} {capabilities}", self.head()),
            None => capabilities.to_owned(),
        });
        let mut line = |oid: &str, name: &str| match capabilities.take() {
            Some(capabilities) => pktline::push(out, &[format!("{oid} {name}\0{capabilities}\n").as_bytes()]),
            None => pktline::push(out, &[format!("{oid} {name}\n").as_bytes()]),
        };
        if let Some(oid) = self.head_oid() {
            line(oid, "HEAD");
        }
        for (name, target) in self.iter() {
            line(&target.oid, name);
            if let Some(peeled) = &target.peeled {
                line(peeled, &format!("{name}^{{}}"));
            }
        }
        if self.refs.is_empty() {
            line(&"0".repeat(40), "capabilities^{}");
        }
        pktline::push_flush(out);
    }

    /// Appends the response to a v2 `ls-refs` command.
    pub fn write_ls_refs(&self, out: &mut Vec<u8>, request: &LsRefsRequest) {
        let prefixes = minimal_prefixes(&request.prefixes);
        let wanted = |name: &str| {
            let before = prefixes.partition_point(|prefix| *prefix <= name);
            prefixes.is_empty() || prefixes[..before].last().is_some_and(|prefix| name.starts_with(prefix))
        };
        if wanted("HEAD") {
            let symref = if request.symrefs { format!(" symref-target:{}", self.head()) } else { String::new() };
            match self.head_oid() {
                Some(oid) => pktline::push_line(out, &format!("{oid} HEAD{symref}")),
                // Without the target the line would have no content.
                None if request.unborn && request.symrefs => pktline::push_line(out, &format!("unborn HEAD{symref}")),
                None => {}
            }
        }
        for (name, target) in self.iter().filter(|(name, _)| wanted(name)) {
            let peeled = target.peeled.as_ref().filter(|_| request.peel).map(|peeled| format!(" peeled:{peeled}"));
            pktline::push_line(out, &format!("{} {name}{}", target.oid, peeled.unwrap_or_default()));
        }
        pktline::push_flush(out);
    }
}

/// The arguments of a v2 `ls-refs` command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LsRefsRequest {
    /// Include the peeled objects of tags.
    pub peel: bool,
    /// Include the branch that HEAD names.
    pub symrefs: bool,
    /// Include HEAD even if its branch does not exist; only together with `symrefs`.
    pub unborn: bool,
    /// Only list names that begin with one of these; empty means all.
    pub prefixes: Vec<String>,
}

/// Returns the prefixes that do not begin with another prefix, sorted. The last one that is not greater than a name is
/// then the only one that the name can begin with, so a name is matched by binary search, however many prefixes a
/// client sends.
fn minimal_prefixes(prefixes: &[String]) -> Vec<&str> {
    let mut sorted: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.dedup_by(|later, kept| later.starts_with(*kept));
    sorted
}

/// Formats the content of the `packed-refs` file.
impl std::fmt::Display for Refs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// Parses a `packed-refs` file. Malformed lines are skipped: only this module writes the file.
fn parse(text: &str) -> BTreeMap<String, RefTarget> {
    let mut refs: BTreeMap<String, RefTarget> = BTreeMap::new();
    let mut last: Option<String> = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(peeled) = line.strip_prefix('^') {
            if let Some(target) = last.as_ref().and_then(|name| refs.get_mut(name)) {
                target.peeled = Some(peeled.to_owned());
            }
        } else if let Some((oid, name)) = line.split_once(' ') {
            refs.insert(name.to_owned(), RefTarget { oid: oid.to_owned(), peeled: None });
            last = Some(name.to_owned());
        }
    }
    refs
}
