//! The refs of one repository: one sorted, peeled `packed-refs` file, replaced as a whole.
//!
//! No loose refs, no reflogs, and no git process ever writes refs: the snapshot in memory and the file are the same
//! thing. A change is written beside, synced and renamed, so that a reader, git included, sees the old refs or the new.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;

use crate::{crash_point, pktline};

/// One ref.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The object it points to.
    pub oid: String,
    /// If that is a tag object, the commit (or other object) that it is a tag of in the end.
    pub peeled: Option<String>,
}

/// All refs, and where HEAD points.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Refs {
    refs: BTreeMap<String, Target>,
    /// The branch that HEAD names, whether or not it exists.
    head: Option<String>,
}

/// Where HEAD of a repository points before a state says otherwise. Not `main`: a client that clones the empty
/// repository would be given that branch and could not make it.
pub(crate) const UNBORN: &str = "refs/heads/master";

impl Refs {
    /// Reads the refs of a repository folder; one without the files has none.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let optional = |name: &str| match std::fs::read_to_string(folder.join(name)) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error),
        };
        let head = optional("HEAD")?.trim_end().strip_prefix("ref: ").map(str::to_owned);
        Ok(Self { refs: parse(&optional("packed-refs")?), head })
    }

    /// Replaces the refs of a repository folder, durably: refs first, then HEAD, which is derived from the same state.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        self.write_names(folder)?;
        self.write_head(folder)
    }

    /// The first half of [`write`](Self::write): everything but HEAD.
    pub(crate) fn write_names(&self, folder: &Path) -> io::Result<()> {
        replace(folder, "packed-refs", self.to_string().as_bytes())
    }

    /// The second half of [`write`](Self::write).
    pub(crate) fn write_head(&self, folder: &Path) -> io::Result<()> {
        replace(folder, "HEAD", format!("ref: {}\n", self.head()).as_bytes())
    }

    /// The branch that HEAD names.
    #[must_use]
    pub fn head(&self) -> &str {
        self.head.as_deref().unwrap_or(UNBORN)
    }

    /// Points HEAD to a branch.
    pub fn set_head(&mut self, branch: &str) {
        self.head = Some(branch.to_owned());
    }

    /// What HEAD resolves to, if its branch exists.
    #[must_use]
    pub fn head_oid(&self) -> Option<&str> {
        self.get(self.head()).map(|target| target.oid.as_str())
    }

    /// One ref.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Target> {
        self.refs.get(name)
    }

    /// Sets one ref.
    pub fn set(&mut self, name: &str, target: Target) {
        self.refs.insert(name.to_owned(), target);
    }

    /// Removes one ref.
    pub fn remove(&mut self, name: &str) -> Option<Target> {
        self.refs.remove(name)
    }

    /// All refs, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Target)> {
        self.refs.iter().map(|(name, target)| (name.as_str(), target))
    }

    /// Appends the ref lines of a v0 or v1 advertisement. The capabilities go behind the first; an empty repository
    /// shows them behind a line of its own.
    pub fn advertise(&self, out: &mut Vec<u8>, capabilities: &str) {
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

    /// Appends the answer to a v2 `ls-refs`.
    pub fn list(&self, out: &mut Vec<u8>, question: &LsRefs) {
        let prefixes = shortest(&question.prefixes);
        let wanted = |name: &str| {
            let before = prefixes.partition_point(|prefix| *prefix <= name);
            prefixes.is_empty() || prefixes[..before].last().is_some_and(|prefix| name.starts_with(prefix))
        };
        if wanted("HEAD") {
            let symref = if question.symrefs { format!(" symref-target:{}", self.head()) } else { String::new() };
            match self.head_oid() {
                Some(oid) => pktline::push_line(out, &format!("{oid} HEAD{symref}")),
                // Without its target the line would say nothing.
                None if question.unborn && question.symrefs => pktline::push_line(out, &format!("unborn HEAD{symref}")),
                None => {}
            }
        }
        for (name, target) in self.iter().filter(|(name, _)| wanted(name)) {
            let peeled = target.peeled.as_ref().filter(|_| question.peel).map(|peeled| format!(" peeled:{peeled}"));
            pktline::push_line(out, &format!("{} {name}{}", target.oid, peeled.unwrap_or_default()));
        }
        pktline::push_flush(out);
    }
}

/// The arguments of a v2 `ls-refs`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LsRefs {
    /// Show what tags are tags of.
    pub peel: bool,
    /// Show where HEAD points.
    pub symrefs: bool,
    /// Show where HEAD points even if that branch does not exist; only together with `symrefs`.
    pub unborn: bool,
    /// Only names that begin with one of these; none means all.
    pub prefixes: Vec<String>,
}

/// The prefixes that no other prefix makes needless, sorted. The last of them that is not after a name is then the only
/// one that the name can begin with, so that strangers may send many.
fn shortest(prefixes: &[String]) -> Vec<&str> {
    let mut sorted: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.dedup_by(|later, kept| later.starts_with(*kept));
    sorted
}

/// The text of the `packed-refs` file.
impl std::fmt::Display for Refs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("# pack-refs with: peeled fully-peeled sorted \n")?;
        for (name, Target { oid, peeled }) in &self.refs {
            writeln!(f, "{oid} {name}")?;
            if let Some(peeled) = peeled {
                writeln!(f, "^{peeled}")?;
            }
        }
        Ok(())
    }
}

/// Reads a `packed-refs` file. Lines that are none are passed over: nobody but us writes it.
fn parse(text: &str) -> BTreeMap<String, Target> {
    let mut refs: BTreeMap<String, Target> = BTreeMap::new();
    let mut last: Option<String> = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(peeled) = line.strip_prefix('^') {
            if let Some(target) = last.as_ref().and_then(|name| refs.get_mut(name)) {
                target.peeled = Some(peeled.to_owned());
            }
        } else if let Some((oid, name)) = line.split_once(' ') {
            refs.insert(name.to_owned(), Target { oid: oid.to_owned(), peeled: None });
            last = Some(name.to_owned());
        }
    }
    refs
}

/// Replaces a file: written beside, synced, renamed, and the folder synced.
pub(crate) fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let beside = folder.join(format!("{name}.new"));
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    crash_point::point("replace.written");
    std::fs::rename(&beside, folder.join(name))?;
    File::open(folder)?.sync_all()
}
