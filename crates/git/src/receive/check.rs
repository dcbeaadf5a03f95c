//! The real git checks what came: that each object is sound, that nothing is missing, and what it is.
//!
//! Each check is one short-lived child that sees the received pack and the pools that the repository may read, and
//! nothing else. None of them writes anything but packs under `incoming/`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::object_walk::{Must, Tip, Tips, Walk, is_oid};
use super::pack_contents;
use super::pack_contents::Carried;
use super::pack_error::{PackProblem, Reading};
use super::quarantine::{Body, Incoming, PackLimits, Received};
use crate::layout::Layout;
use crate::process::{Git, Input};

/// Every link and every object is looked at. Three faults are forgiven, because the history of well-known projects has
/// them and nobody can mend it.
const STRICT: &str = "--strict=zeroPaddedFilemode=ignore,badTimezone=ignore,missingSpaceBeforeDate=ignore";

/// No blob is too large to be held in memory, so that the bound on an allocation is a bound on every object. Git would
/// stream larger blobs past it.
const NEVER_STREAM: &str = "core.bigFileThreshold=1024g";

/// Packs above this size get a second thread: below it, starting one costs more than it saves.
const LARGE: u64 = 32 * 1024 * 1024;

/// Bytes that an index has for each object, at most.
const INDEX_BYTES: u64 = 40;

/// Checks packs.
#[derive(Clone, Copy, Debug)]
pub struct Checker<'a> {
    /// The git program.
    pub git: &'a Git,
    /// Where things lie.
    pub layout: &'a Layout,
    /// What a check may take.
    pub limits: PackLimits,
}

/// The objects that a check sees.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// What is being received.
    pub incoming: Option<&'a Incoming>,
    /// The pools that the repository may read.
    pub pools: &'a [PathBuf],
}

/// Everything that the tips need is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connected {
    /// Objects that the tips need and the known tips do not. Some may have been here: an old file may come back.
    pub objects: u64,
    /// Objects of the received pack that the tips do not need, or that were here already. If there are any, the pack must
    /// be [narrowed](Checker::narrow) before it may become part of a pool.
    pub extra: u64,
}

/// What an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A commit.
    Commit,
    /// A folder.
    Tree,
    /// A file.
    Blob,
    /// An annotated tag.
    Tag,
}

impl Kind {
    fn read(text: &str) -> Option<Self> {
        [Self::Commit, Self::Tree, Self::Blob, Self::Tag].into_iter().find(|kind| kind.name() == text)
    }

    /// Git's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Tag => "tag",
        }
    }
}

/// An object, and what it is a tag of in the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peeled {
    /// What it is.
    pub kind: Kind,
    /// If it is a tag, the object that it is a tag of in the end.
    pub peeled: Option<String>,
}

impl Checker<'_> {
    /// Checks each object of a received pack and makes it readable in its folder. Deltas to objects of the pools are
    /// fine.
    pub fn index(&self, incoming: &mut Incoming, received: Received, pools: &[PathBuf]) -> Result<(), PackProblem> {
        let Received::Pack(pack) = received else { return Ok(()) };
        let mut command = self.command(View { incoming: Some(incoming), pools });
        command.args(["-c", NEVER_STREAM, "index-pack", "--stdin", "--fix-thin", STRICT]);
        command.arg(format!("--max-input-size={}", self.limits.max_bytes));
        command.arg(if pack.bytes > LARGE { "--threads=2" } else { "--threads=1" });
        let input = match &pack.body {
            Body::Memory(bytes) => Input::Bytes(bytes),
            Body::File(path) => Input::File(File::open(path)?),
        };
        let result = self.writer().run(&mut command, input, self.patience(), 1_024);
        if let Body::File(path) = &pack.body {
            fs::remove_file(path)?;
        }
        result.map_err(|problem| self.reading(PackProblem::Check).problem(problem))?;
        incoming.sent = u64::from(pack.objects);
        Ok(())
    }

    /// Finds out whether everything that the tips need is here. What `known` tips need is taken for granted: they must be
    /// refs of which that has been found out before. One that is not here itself is passed over.
    pub fn connect(&self, view: View<'_>, tips: &Tips, known: &[String]) -> Result<Connected, PackProblem> {
        if let Some(tip) = tips.iter().find(|tip| !is_oid(tip.oid)) {
            return Err(tip.missing());
        }
        let known: BTreeSet<&str> = known.iter().map(String::as_str).filter(|oid| is_oid(oid)).collect();
        let walk = match self.walk(view, tips, &known) {
            Err(PackProblem::Incomplete(why)) => {
                self.check_tips(view, tips.iter())?;
                let here = self.present(view, &known)?;
                if here.len() == known.len() {
                    return Err(PackProblem::Incomplete(why));
                }
                self.walk(view, tips, &here)?
            }
            result => result?,
        };
        // A tip that was not walked over is here with all that it needs, or is a known one's ancestor. A branch may still
        // be no commit but a tag of one.
        let in_doubt = |tip: &Tip<'_>| match tip.must {
            Must::BeACommit => !walk.commits.contains(tip.oid),
            Must::Exist => known.contains(tip.oid),
        };
        self.check_tips(view, tips.iter().filter(in_doubt))?;
        Ok(Connected { objects: walk.objects, extra: walk.extra() })
    }

    /// Packs what the tips need and the known tips do not, and nothing else, into a folder of its own. All of it must be
    /// in view.
    pub fn narrow(&self, view: View<'_>, tips: &[String], known: &[String]) -> Result<Incoming, PackProblem> {
        let mut narrow = Incoming::create(self.layout)?;
        let tips: BTreeSet<&str> = tips.iter().map(String::as_str).filter(|oid| is_oid(oid)).collect();
        let known: BTreeSet<&str> = known.iter().map(String::as_str).filter(|oid| is_oid(oid)).collect();
        if let Err(problem) = self.pack(view, &narrow, &tips, &known) {
            let here = self.present(view, &known)?;
            if here.len() == known.len() {
                return Err(problem);
            }
            self.pack(view, &narrow, &tips, &here)?;
        }
        narrow.sent = pack_contents::count(&narrow.packs())?;
        Ok(narrow)
    }

    /// Says what objects are, and what those that are tags are tags of. Objects that are not here are not in the answer.
    pub fn peel(&self, view: View<'_>, oids: &[String]) -> Result<BTreeMap<String, Peeled>, PackProblem> {
        let oids: BTreeSet<&String> = oids.iter().filter(|oid| is_oid(oid)).collect();
        let questions = oids.iter().flat_map(|oid| [(*oid).clone(), format!("{oid}^{{}}")]).collect::<Vec<_>>();
        let answers = self.ask(view, &questions)?;
        let mut peeled = BTreeMap::new();
        for (oid, pair) in oids.into_iter().zip(answers.as_chunks::<2>().0) {
            match pair {
                [Some((kind, _)), Some((_, end))] => {
                    let end = (*kind == Kind::Tag).then(|| end.clone());
                    peeled.insert(oid.clone(), Peeled { kind: *kind, peeled: end });
                }
                [Some(_), None] => return Err(PackProblem::Incomplete(format!("tag {oid} is a tag of nothing"))),
                [None, _] => {}
            }
        }
        Ok(peeled)
    }

    fn walk<'t>(&self, view: View<'_>, tips: &'t Tips, known: &BTreeSet<&str>) -> Result<Walk<'t>, PackProblem> {
        let carried = view.incoming.map(Carried::read).transpose()?.unwrap_or_default();
        let mut walk = Walk::new(tips, carried);
        let new = tips.iter().filter(|tip| !known.contains(tip.oid));
        let mut input: String = new.map(|tip| tip.expression() + "\n").collect();
        if input.is_empty() {
            return Ok(walk);
        }
        input.extend(known.iter().map(|oid| format!("^{oid}\n")));
        let mut command = self.command(view);
        command.args(["rev-list", "--objects", "--stdin"]);
        self.git
            .stream(&mut command, Input::Bytes(input.as_bytes()), self.patience(), |said| {
                walk.hear(said);
                Ok(())
            })
            .map_err(|problem| self.reading(PackProblem::Incomplete).problem(problem))?;
        Ok(walk)
    }

    fn pack(
        &self,
        view: View<'_>,
        narrow: &Incoming,
        tips: &BTreeSet<&str>,
        known: &BTreeSet<&str>,
    ) -> Result<(), PackProblem> {
        let mut input: String = tips.iter().map(|oid| format!("{oid}\n")).collect();
        input.extend(known.iter().map(|oid| format!("^{oid}\n")));
        let mut command = self.command(view);
        // A window of that many bytes: ten large objects side by side would be more than a child may have.
        command.args(["-c", "pack.windowMemory=64m", "pack-objects", "--revs", "--non-empty", "-q"]);
        command.args(["--no-sparse", "--delta-base-offset", "--threads=1"]).arg(narrow.packs().join("pack"));
        self.writer()
            .run(&mut command, Input::Bytes(input.as_bytes()), self.patience(), 1_024)
            .map_err(|problem| self.reading(PackProblem::Incomplete).problem(problem))?;
        Ok(())
    }

    /// Checks that tips are here, and that those which must be are commits.
    fn check_tips<'t>(&self, view: View<'_>, tips: impl Iterator<Item = Tip<'t>>) -> Result<(), PackProblem> {
        let (tips, oids): (Vec<Tip<'_>>, Vec<String>) = tips.map(|tip| (tip, tip.oid.to_owned())).unzip();
        for (tip, answer) in tips.into_iter().zip(self.ask(view, &oids)?) {
            match answer {
                None => return Err(tip.missing()),
                Some((kind, _)) if kind != Kind::Commit && tip.must == Must::BeACommit => {
                    let (name, oid) = (tip.name.to_owned(), tip.oid.to_owned());
                    return Err(PackProblem::NotACommit { name, oid, found: kind.name() });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Those of some objects that are here.
    fn present<'o>(&self, view: View<'_>, oids: &BTreeSet<&'o str>) -> Result<BTreeSet<&'o str>, PackProblem> {
        let questions: Vec<String> = oids.iter().map(|oid| (*oid).to_owned()).collect();
        let answers = self.ask(view, &questions)?;
        Ok(oids.iter().zip(answers).filter(|(_, answer)| answer.is_some()).map(|(oid, _)| *oid).collect())
    }

    /// Asks what objects are, each by an expression; in the order of the questions.
    fn ask(&self, view: View<'_>, questions: &[String]) -> Result<Vec<Option<(Kind, String)>>, PackProblem> {
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = self.command(view);
        command.args(["cat-file", "--batch-check=%(objecttype) %(objectname)", "--buffer"]);
        let input: String = questions.iter().map(|question| format!("{question}\n")).collect();
        // A line is an object id and a word.
        let most = questions.len() * 64 + 1_024;
        let said = self
            .git
            .run(&mut command, Input::Bytes(input.as_bytes()), self.patience(), most)
            .map_err(|problem| self.reading(PackProblem::Check).problem(problem))?;
        let said = String::from_utf8_lossy(&said);
        let read = |line: &str| {
            let (kind, oid) = line.split_once(' ')?;
            Some((Kind::read(kind)?, oid.to_owned()))
        };
        let answers: Vec<_> = said.lines().map(read).collect();
        if answers.len() != questions.len() {
            return Err(PackProblem::Server("git did not answer every question".to_owned()));
        }
        Ok(answers)
    }

    /// A git command that sees these objects.
    fn command(&self, view: View<'_>) -> Command {
        let template = self.layout.template();
        let mut command = self.git.command(&template);
        let objects = view.incoming.map_or_else(|| template.join("objects"), |incoming| incoming.folder().to_owned());
        command.env("GIT_OBJECT_DIRECTORY", objects).env("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates(view.pools));
        command
    }

    /// Git, with a bound on the files that it writes: a few bytes of deltas to large objects of a pool, or of deltas to
    /// each other, can become a pack of any size.
    fn writer(&self) -> Git {
        self.git.with_file_bytes(self.limits.max_bytes.max(INDEX_BYTES * u64::from(self.limits.max_objects)))
    }

    fn reading(&self, otherwise: fn(String) -> PackProblem) -> Reading<'_> {
        Reading { root: self.layout.root(), max_bytes: self.limits.max_bytes, otherwise }
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.limits.check_secs)
    }
}

/// A list of folders as git wants it: parted by colons, and in quotes if a name has one.
fn alternates(pools: &[PathBuf]) -> OsString {
    let mut list = Vec::new();
    for pool in pools {
        let name = pool.as_os_str().as_bytes();
        if !list.is_empty() {
            list.push(b':');
        }
        if !name.iter().any(|byte| b":\"\\".contains(byte) || byte.is_ascii_control()) {
            list.extend_from_slice(name);
            continue;
        }
        list.push(b'"');
        for byte in name {
            match byte {
                b'"' | b'\\' => list.extend_from_slice(&[b'\\', *byte]),
                byte if byte.is_ascii_control() => list.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
                byte => list.push(*byte),
            }
        }
        list.push(b'"');
    }
    OsString::from_vec(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_quoted_as_git_wants_it() {
        let list = |names: &[&str]| alternates(&names.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(list(&[]), "");
        assert_eq!(list(&["/a%2f", "/b c"]), "/a%2f:/b c");
        assert_eq!(list(&["/a:b", "/c"]), "\"/a:b\":/c");
        assert_eq!(list(&["/\"\\\n"]), "\"/\\\"\\\\\\012\"");
    }
}
