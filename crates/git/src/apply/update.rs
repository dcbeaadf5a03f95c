//! Brings a site into line with what has been signed: objects first, then which pools it reads, then refs, then HEAD.

use std::collections::BTreeMap;
use std::io;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, PullRequestRef, ReceivedPack, RefFallback,
};
use grasp_core::nostr::EventId;
use grasp_core::repo::state::is_oid;
use grasp_core::repo::{RepoPath, ref_name};

use super::adopt_packs::adopt;
use super::alternates::Readable;
use super::connectivity::{Known, Seen, Sight};
use super::copy_objects::Copying;
use super::{Doing, Keeper, Problem};
use crate::crash_point;
use crate::layout::make_bare;
use crate::objects::{Kind, Pools};
use crate::process::Input;
use crate::refs::{Refs, Target};

const BRANCHES: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";

/// Refs that a site may follow, with a candidate's name.
struct Choice<'a> {
    candidate: &'a CandidateState,
    refs: Vec<(&'a str, Target)>,
}

/// The site that is brought into line.
struct Place<'a> {
    folder: &'a Path,
    wanted: &'a Readable,
    known: &'a Known<'a>,
}

impl Place<'_> {
    fn sight<'s>(&'s self, pools: &'s [PathBuf], opened: &'s Pools, proven: bool) -> Sight<'s> {
        let seen = if is_there(self.folder) { Seen::Site(self.folder) } else { Seen::Pools(pools) };
        Sight { seen, pools: opened, known: self.known, proven }
    }
}

impl Keeper {
    /// Carries out the steps of an order, each durable before the next.
    pub(super) fn align(
        &self,
        repo_path: &RepoPath,
        align: &Alignment,
        changed: &mut Vec<(RepoPath, Refs)>,
    ) -> Result<AlignmentResult, Problem> {
        let folder = self.layout.repo_dir(repo_path);
        let received_packs: Vec<PathBuf> =
            align.adopt.iter().map(|received_pack| self.layout.received_pack(received_pack)).collect();
        // A push's own packs are there until it is over; nobody looks for their objects again.
        let lost = |received_pack: &&ReceivedPack| {
            matches!(received_pack, ReceivedPack::Incoming(_)) && !self.layout.received_pack(received_pack).exists()
        };
        if align.checked_prune_count.is_some() && align.adopt.iter().any(|received_pack| lost(&received_pack)) {
            return Err(Problem::Lost("of this push".to_owned()));
        }
        if received_packs.iter().any(|received_pack| received_pack.exists()) {
            self.make(&folder)?;
            adopt(&received_packs, &self.layout.pool(repo_path)).doing("move packs into the pool")?;
        }
        let wanted = Readable::wanted(&self.layout, repo_path, &align.alternates);
        if is_there(&folder) {
            self.lend(&folder, &wanted)?;
        }
        let before = Refs::read(&folder).doing("read refs")?;
        let pools = wanted.pools();
        let known = Known::of(&before);
        let place = Place { folder: &folder, wanted: &wanted, known: &known };
        let choice = self.choose(&place, align)?;
        let opened = Pools::of(&pools);
        let sight = place.sight(&pools, &opened, self.is_proven(align));
        let (mut pull_requests, absent) = self.pulls_here(&sight, &align.pull_requests)?;
        for pull in absent {
            if self.take_over(&[&pull.tip], &pull.sources, &place)? {
                crash_point::point("align.pulls");
                pull_requests.push(pull);
            }
        }
        let next = merge(&before, choice.as_ref(), &pull_requests, align);
        if next != before {
            self.settle(&folder, &wanted)?;
            self.write(repo_path, &before, &next, changed)?;
        } else if is_there(&folder) {
            // Whoever was interrupted before it could show them does so now.
            changed.push((repo_path.clone(), next.clone()));
        }
        let in_place =
            |pull: &&&PullRequestRef| next.get(&pull_ref(pull.event)).is_some_and(|target| target.oid == pull.tip);
        Ok(AlignmentResult {
            chosen: choice.map(|choice| choice.candidate.event),
            pull_requests: pull_requests.iter().filter(in_place).map(|pull| pull.event).collect(),
            is_empty: next.iter().next().is_none(),
        })
    }

    /// Makes the folder of a site if it has none.
    fn make(&self, folder: &Path) -> Result<(), Problem> {
        if is_there(folder) {
            return Ok(());
        }
        let made = match make_bare(folder) {
            // The folder of its owner was empty, and the end of another repository has just removed it.
            Err(problem) if problem.kind() == ErrorKind::NotFound => make_bare(folder),
            result => result,
        };
        made.doing("make a repository")?;
        crash_point::point("align.folder");
        Ok(())
    }

    /// Makes the folder of a site, and it readable, if it has none.
    fn settle(&self, folder: &Path, wanted: &Readable) -> Result<(), Problem> {
        self.make(folder)?;
        self.lend(folder, wanted)
    }

    /// Whether everything that an order names has been seen to be complete, and nothing was taken away since.
    fn is_proven(&self, align: &Alignment) -> bool {
        align.checked_prune_count == Some(self.layout.prunings())
    }

    /// The first candidate that is complete, here or after its objects were copied from where they are.
    fn choose<'a>(&self, place: &Place<'_>, align: &'a Alignment) -> Result<Option<Choice<'a>>, Problem> {
        let pools = place.wanted.pools();
        for candidate in align.candidates.iter().filter(|candidate| is_sound(candidate)) {
            // Opened anew each time: a copy may have come.
            let opened = Pools::of(&pools);
            let sight = place.sight(&pools, &opened, self.is_proven(align));
            if let Some(refs) = self.satisfied(&sight, candidate)? {
                return Ok(Some(Choice { candidate, refs }));
            }
            let mut tips: Vec<&str> = candidate.refs.iter().map(|(_, oid)| oid.as_str()).collect();
            tips.sort_unstable();
            tips.dedup();
            if self.take_over(&tips, &candidate.sources, place)? {
                crash_point::point("align.taken");
                let opened = Pools::of(&pools);
                if let Some(refs) = self.satisfied(&place.sight(&pools, &opened, false), candidate)? {
                    return Ok(Some(Choice { candidate, refs }));
                }
            }
        }
        Ok(None)
    }

    /// The refs of a candidate, if everything that they need can be read and branches are commits.
    fn satisfied<'a>(
        &self,
        sight: &Sight<'_>,
        candidate: &'a CandidateState,
    ) -> Result<Option<Vec<(&'a str, Target)>>, Problem> {
        let mut tags = Vec::new();
        for (name, oid) in &candidate.refs {
            let is_fit = if name.starts_with(BRANCHES) {
                sight.proven || sight.is_commit(oid)?
            } else if sight.known.peeled(oid).is_some() {
                true
            } else {
                let kind = sight.kind(oid)?;
                tags.extend((kind == Some(Kind::Tag)).then_some(oid.as_str()));
                kind.is_some()
            };
            if !is_fit {
                return Ok(None);
            }
        }
        let tips: Vec<&str> = candidate.refs.iter().map(|(_, oid)| oid.as_str()).collect();
        if !self.complete(sight, &tips)? {
            return Ok(None);
        }
        let peeled = self.peel(sight, &tags)?;
        let target = |name: &str, oid: &str| {
            let known = sight.known.peeled(oid).flatten().or(peeled.get(oid).map(String::as_str));
            Target { oid: oid.to_owned(), peeled: known.filter(|_| name.starts_with(TAGS)).map(str::to_owned) }
        };
        Ok(Some(candidate.refs.iter().map(|(name, oid)| (name.as_str(), target(name, oid))).collect()))
    }

    /// What tag objects are tags of in the end.
    fn peel<'a>(&self, sight: &Sight<'_>, tags: &[&'a str]) -> Result<BTreeMap<&'a str, String>, Problem> {
        if tags.is_empty() {
            return Ok(BTreeMap::new());
        }
        let view = sight.seen.view(&self.layout)?;
        let mut command = view.command(self, &["cat-file", "--batch-check=%(objectname)"]);
        let input: String = tags.iter().map(|tag| format!("{tag}^{{}}\n")).collect();
        // A line is an object id, or the question and that there is no answer.
        let most = tags.len() * 64;
        let said =
            self.git.run(&mut command, Input::Bytes(input.as_bytes()), self.patience, most).doing("read tags")?;
        let said = String::from_utf8_lossy(&said);
        let mut lines = said.lines();
        let peeled = tags.iter().map(|tag| match lines.next() {
            Some(oid) if is_git_oid(oid) => Ok((*tag, oid.to_owned())),
            _ => Err(Problem::Tag((*tag).to_owned())),
        });
        peeled.collect()
    }

    /// Pull requests whose commits can be read with everything that they need, and the others.
    fn pulls_here<'a>(
        &self,
        sight: &Sight<'_>,
        pull_requests: &'a [PullRequestRef],
    ) -> Result<(Vec<&'a PullRequestRef>, Vec<&'a PullRequestRef>), Problem> {
        let (mut here, mut absent) = (Vec::new(), Vec::new());
        for pull in pull_requests.iter().filter(|pull| is_git_oid(&pull.tip)) {
            if sight.proven || sight.is_commit(&pull.tip)? { here.push(pull) } else { absent.push(pull) }
        }
        let tips: Vec<&str> = here.iter().map(|pull| pull.tip.as_str()).collect();
        // One look at all of them is enough where nothing is missing, and that is nearly always.
        if !self.complete(sight, &tips)? {
            for pull in std::mem::take(&mut here) {
                if self.complete(sight, &[&pull.tip])? { here.push(pull) } else { absent.push(pull) }
            }
        }
        Ok((here, absent))
    }

    /// Copies objects from the first source that has all of them with everything that they need.
    fn take_over(&self, tips: &[&str], sources: &[RepoPath], place: &Place<'_>) -> Result<bool, Problem> {
        for source in sources.iter().map(|source| self.layout.repo_dir(source)) {
            if source == place.folder || !is_there(&source) {
                continue;
            }
            let from = Readable::read(&source).doing("read which pools are lent")?.pools();
            let refs = Refs::read(&source).doing("read refs")?;
            let sight = Sight {
                seen: Seen::Site(&source),
                pools: &Pools::open(&from).doing("read a pool")?,
                known: &Known::of(&refs),
                proven: false,
            };
            let mut all = true;
            for tip in tips {
                all = all && sight.kind(tip)?.is_some();
            }
            if all && self.complete(&sight, tips)? {
                self.settle(place.folder, place.wanted)?;
                let known = &place.known.targets();
                self.copy(&Copying { tips, known, from: &from, kept: &place.wanted.pools() })?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replaces the refs of a site.
    fn write(
        &self,
        repo_path: &RepoPath,
        before: &Refs,
        next: &Refs,
        changed: &mut Vec<(RepoPath, Refs)>,
    ) -> Result<(), Problem> {
        let folder = self.layout.repo_dir(repo_path);
        let result = replace(&folder, before, next);
        // Also when it failed in the middle the world should see what is on disk.
        let now = Refs::read(&folder).doing("read refs")?;
        if now != *before {
            changed.push((repo_path.clone(), now));
        }
        result.doing("write refs")
    }
}

/// Replaces what differs: refs, then HEAD.
fn replace(folder: &Path, before: &Refs, next: &Refs) -> io::Result<()> {
    if !before.iter().eq(next.iter()) {
        next.write_names(folder)?;
        crash_point::point("align.refs");
    }
    if before.head() != next.head() {
        next.write_head(folder)?;
        crash_point::point("align.head");
    }
    Ok(())
}

/// The refs of a site as they should be.
fn merge(before: &Refs, choice: Option<&Choice<'_>>, pull_requests: &[&PullRequestRef], align: &Alignment) -> Refs {
    let mut next = before.clone();
    if choice.is_some() || align.fallback == RefFallback::Clear {
        for (name, _) in before.iter().filter(|(name, _)| name.starts_with(BRANCHES) || name.starts_with(TAGS)) {
            next.remove(name);
        }
    }
    if let Some(Choice { candidate, refs }) = choice {
        for (name, target) in refs {
            next.set(name, target.clone());
        }
        let head = candidate.head.as_deref().filter(|head| head.starts_with(BRANCHES) && next.get(head).is_some());
        if let Some(head) = head {
            next.set_head(head);
        }
    }
    for pull in pull_requests {
        next.set(&pull_ref(pull.event), Target { oid: pull.tip.clone(), peeled: None });
    }
    for event in &align.drop_pull_requests {
        next.remove(&pull_ref(*event));
    }
    next
}

/// Whether a folder is a repository: HEAD comes last when it is made.
pub(super) fn is_there(folder: &Path) -> bool {
    folder.join("HEAD").exists()
}

fn pull_ref(event: EventId) -> String {
    format!("refs/nostr/{event}")
}

/// Whether a repository of ours could have an object of this id: they all have ids of forty digits.
fn is_git_oid(text: &str) -> bool {
    text.len() == 40 && is_oid(text)
}

/// Whether git could hold these refs, whatever objects there are.
fn is_sound(candidate: &CandidateState) -> bool {
    let mut names: Vec<&str> = candidate.refs.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    candidate.refs.iter().all(|(name, oid)| {
        (name.starts_with(BRANCHES) || name.starts_with(TAGS)) && ref_name::is_valid(name) && is_git_oid(oid)
    }) && names.windows(2).all(|pair| pair[0] != pair[1])
        && !ref_name::has_conflict(names)
}
