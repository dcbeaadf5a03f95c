//! Who reads a pool, and what they need.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use grasp_core::repo::RepoPath;
use grasp_core::repo::state::is_oid;

use super::{Doing, MAX_WORDS, Maintainer, Problem};
use crate::apply::alternates::Readable;
use crate::objects::Pools;
use crate::process::{ChildProblem, Git, Input};
use crate::refs::Refs;

/// Children that look for objects whose history is not all there: an event that waits may name a few. One bad object
/// among ten thousand takes about thirty.
const MAX_LOOKS: usize = 256;

/// Says what some sites need beside what their refs lead to: the objects that states and pull requests name, served and
/// held. `None` if that cannot be said now.
pub type Needs<'n> = dyn FnMut(&[RepoPath]) -> Option<BTreeSet<String>> + 'n;

/// What the readers of a pool need.
#[derive(Debug)]
pub(super) struct Need {
    /// The pools that they read.
    pub(super) pools: Vec<PathBuf>,
    /// Where their refs point.
    pub(super) tips: BTreeSet<String>,
    /// What events name.
    pub(super) named: BTreeSet<String>,
}

/// A way to look at objects.
pub(super) struct Look<'l> {
    /// Git, in a hurry or not.
    pub(super) git: &'l Git,
    /// The pools that are seen.
    pub(super) pools: &'l [PathBuf],
    /// Makes a command that sees them.
    pub(super) command: &'l dyn Fn() -> io::Result<std::process::Command>,
}

impl Maintainer {
    /// What the readers of a site's pool need; `None` if it cannot be said now.
    pub(super) fn need(&self, repo_path: &RepoPath, needs: &mut Needs<'_>) -> Result<Option<Need>, Problem> {
        let readers = self.readers(repo_path).doing("find out who reads a pool")?;
        let Some(named) = needs(&readers) else { return Ok(None) };
        let mut need = Need { pools: vec![self.layout.pool(repo_path)], tips: BTreeSet::new(), named };
        need.named.retain(|oid| oid.len() == 40 && is_oid(oid));
        for folder in readers.iter().map(|reader| self.layout.repo_dir(reader)) {
            let refs = Refs::read(&folder).doing("read refs")?;
            need.tips.extend(refs.iter().map(|(_, target)| target.oid.clone()));
            need.pools.extend(Readable::read(&folder).doing("read which pools are lent")?.pools());
        }
        need.pools.sort_unstable();
        need.pools.dedup();
        Ok(Some(need))
    }

    /// The sites that read the pool of a site, itself included. What is on disk counts, hosted or not.
    fn readers(&self, repo_path: &RepoPath) -> io::Result<Vec<RepoPath>> {
        let mut readers = vec![repo_path.clone()];
        if let RepoPath::Announced(repo) = repo_path {
            for other in self.layout.namesakes(&repo.identifier)? {
                if other != *repo_path && Readable::read(&self.layout.repo_dir(&other))?.has(&self.layout, repo_path) {
                    readers.push(other);
                }
            }
        }
        Ok(readers)
    }

    /// Those of the named objects that are here with everything that they need, beyond what `known` ones need. `None` if
    /// that is too hard to find out.
    pub(super) fn complete(
        &self,
        look: &Look<'_>,
        named: &BTreeSet<String>,
        known: &BTreeSet<String>,
    ) -> Result<Option<BTreeSet<String>>, Problem> {
        let seen = Pools::open(look.pools).doing("read a pool")?;
        let mut here = Vec::new();
        for oid in named.difference(known) {
            if seen.has(oid).doing("read a pool")? {
                here.push(oid.as_str());
            }
        }
        let mut complete = BTreeSet::new();
        let mut open: Vec<&[&str]> = vec![&here];
        let mut looks = 0;
        while let Some(oids) = open.pop() {
            if oids.is_empty() {
                continue;
            }
            looks += 1;
            if looks > MAX_LOOKS {
                return Ok(None);
            }
            let mut command = (look.command)().doing("make room for a look")?;
            command.args(["-c", "core.commitGraph=false", "rev-list", "--objects", "--quiet", "--stdin"]);
            let input = question(oids.iter().copied(), known);
            match look.git.run(&mut command, Input::Bytes(input.as_bytes()), self.patience, MAX_WORDS) {
                Ok(_) => complete.extend(oids.iter().map(|oid| (*oid).to_owned())),
                Err(ChildProblem::Failed { .. }) if oids.len() > 1 => {
                    let (one, other) = oids.split_at(oids.len() / 2);
                    open.extend([one, other]);
                }
                Err(ChildProblem::Failed { .. }) => {}
                Err(problem) => return Err(problem).doing("look for what events need"),
            }
        }
        Ok(Some(complete))
    }

    /// Walks over everything that some objects need and `known` ones do not.
    pub(super) fn walk(
        &self,
        look: &Look<'_>,
        tips: &BTreeSet<String>,
        known: &BTreeSet<String>,
        mut show: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Problem> {
        let mut command = (look.command)().doing("make room for a walk")?;
        // A commit-graph would be believed.
        command.args(["-c", "core.commitGraph=false", "rev-list", "--objects", "--stdin"]);
        let input = question(tips.iter().map(String::as_str), known);
        let mut line = Line::default();
        look.git
            .stream(&mut command, Input::Bytes(input.as_bytes()), self.patience, |said| Ok(line.hear(said, &mut show)?))
            .doing("walk over what is needed")
    }
}

/// What `rev-list` is asked.
fn question<'o>(tips: impl Iterator<Item = &'o str>, known: &BTreeSet<String>) -> String {
    let mut input: String = tips.map(|tip| format!("{tip}\n")).collect();
    input.extend(known.iter().map(|known| format!("^{known}\n")));
    input
}

/// A line of `rev-list`: an object, and perhaps its path.
#[derive(Default)]
struct Line(Vec<u8>);

/// Bytes of a line that are kept: the object, and enough of its path for git to find what it is like.
const MAX_LINE: usize = 1_024;

impl Line {
    /// Takes lines in whatever pieces they come and shows each.
    fn hear(&mut self, said: &[u8], show: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        for piece in said.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = MAX_LINE.saturating_sub(self.0.len());
            self.0.extend_from_slice(&text[..text.len().min(room)]);
            if piece.len() > text.len() {
                show(&self.0)?;
                self.0.clear();
            }
        }
        Ok(())
    }
}
