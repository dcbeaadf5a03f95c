//! Checks that everything that tips refer to is present.
//!
//! The rule is that of `git rev-list --objects` with the tips and without everything that the known tips lead to. The
//! received objects are walked from the tips. Objects outside the pack that they refer to must be complete; that they
//! exist is not enough, because a pool can have objects of an interrupted fetch. They are known to be complete if they
//! are
//!
//! - commits that are known tips, or ancestors of known tips;
//! - trees and blobs in the tree of a commit of this kind that is a parent of a received commit (a *boundary* commit).
//!
//! Git leaves out the same objects: those of boundary commits, and no others. If something is not found within the limits,
//! git decides.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use grasp_core::nostr::hex;

use super::object_format::{parents_of_commit, take_tree_entry, target_of_tag, tree_of_commit};
use super::{InProcessLimits, IndexedPack, NeedsGit, ReceivedObject};
use crate::objects::{ObjectKind, ObjectLookup, RawOid, ReadBudget};
use crate::receive::check::Connectivity;
use crate::receive::object_walk::{RequiredTips, TipRequirement};

/// Checks that everything that the tips refer to is present. `pack` is `None` if no objects were received.
///
/// # Errors
/// If something is missing, or if it is not known whether it is.
pub(in crate::receive) fn check_connectivity(
    pack: Option<&IndexedPack>,
    pools: &[PathBuf],
    tips: &RequiredTips,
    known: &BTreeSet<&str>,
    limits: InProcessLimits,
) -> Result<Connectivity, NeedsGit> {
    if pack.is_some_and(|pack| pack.pools != pools) {
        return Err("the pools are not those with which the pack was checked".into());
    }
    let no_objects = HashMap::new();
    let objects = pack.map_or(&no_objects, |pack| &pack.objects);
    let known: HashSet<RawOid> = known.iter().filter_map(|oid| hex::decode(oid)).collect();
    if known.iter().any(|oid| objects.contains_key(oid)) {
        return Err("the pack has a known tip".into());
    }
    let mut history = PoolHistory {
        lookup: ObjectLookup::new(pools),
        budget: ReadBudget::new(limits.max_unpacked_bytes),
        reads_left: limits.max_history_reads,
        known,
    };
    let mut walk = Walk::new(objects);
    walk.add_tips(tips, &mut history)?;
    walk.run(&history.known)?;
    history.require_ancestors(&walk.outside_commits)?;
    let present = history.find_present_objects(&walk)?;
    let reached = (walk.reached.len() - present) as u64;
    Ok(Connectivity { objects: reached, extra: objects.len() as u64 - reached })
}

/// A walk over received objects.
struct Walk<'a> {
    objects: &'a HashMap<RawOid, ReceivedObject>,
    /// Received objects that the tips need.
    reached: HashSet<RawOid>,
    stack: Vec<RawOid>,
    /// Commits outside the pack that the tips or received objects refer to.
    outside_commits: HashSet<RawOid>,
    /// Those that are parents of received commits.
    boundary: BTreeSet<RawOid>,
    /// Trees and blobs outside the pack that received objects refer to.
    outside_objects: HashSet<RawOid>,
}

impl<'a> Walk<'a> {
    fn new(objects: &'a HashMap<RawOid, ReceivedObject>) -> Self {
        Self {
            objects,
            reached: HashSet::new(),
            stack: Vec::new(),
            outside_commits: HashSet::new(),
            boundary: BTreeSet::new(),
            outside_objects: HashSet::new(),
        }
    }

    /// Starts the walk at the tips, and checks their types.
    fn add_tips(&mut self, tips: &RequiredTips, history: &mut PoolHistory) -> Result<(), NeedsGit> {
        for tip in tips.iter() {
            let oid: RawOid = hex::decode(tip.oid).ok_or("a tip is not an object id")?;
            let is_received = self.objects.get(&oid);
            let kind = match is_received {
                Some(object) => object.kind,
                None => history.kind(&oid)?.ok_or("a tip is missing")?,
            };
            if kind != ObjectKind::Commit && tip.requirement == TipRequirement::Commit {
                return Err("a branch is not a commit".into());
            }
            if is_received.is_some() {
                self.stack.push(oid);
            } else if !history.known.contains(&oid) {
                if kind != ObjectKind::Commit {
                    return Err("a tip outside the pack is not a commit".into());
                }
                self.outside_commits.insert(oid);
            }
        }
        Ok(())
    }

    fn run(&mut self, known: &HashSet<RawOid>) -> Result<(), NeedsGit> {
        while let Some(oid) = self.stack.pop() {
            if !self.reached.insert(oid) {
                continue;
            }
            let object = self.objects.get(&oid).ok_or("an object is not in the pack")?;
            if object.is_in_pool && matches!(object.kind, ObjectKind::Commit | ObjectKind::Tag) {
                // It may be an ancestor of a known tip.
                return Err("a commit or tag was sent again".into());
            }
            for link in &object.links {
                if self.objects.contains_key(&link.oid) {
                    self.stack.push(link.oid);
                    continue;
                }
                match (object.kind, link.kind) {
                    (ObjectKind::Commit, ObjectKind::Commit) => {
                        self.outside_commits.insert(link.oid);
                        self.boundary.insert(link.oid);
                    }
                    (ObjectKind::Tag, ObjectKind::Commit) => {
                        self.outside_commits.insert(link.oid);
                    }
                    (ObjectKind::Tag, _) if known.contains(&link.oid) => {}
                    (ObjectKind::Tag, _) => return Err("a tag of another object than a commit".into()),
                    _ => {
                        self.outside_objects.insert(link.oid);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The history of pools, as far as it is read.
struct PoolHistory {
    lookup: ObjectLookup,
    budget: ReadBudget,
    reads_left: usize,
    known: HashSet<RawOid>,
}

impl PoolHistory {
    fn kind(&mut self, oid: &RawOid) -> Result<Option<ObjectKind>, NeedsGit> {
        Ok(self.lookup.kind_within(oid, &mut self.budget)?)
    }

    fn read(&mut self, oid: &RawOid) -> Result<Option<(ObjectKind, Vec<u8>)>, NeedsGit> {
        self.reads_left = self.reads_left.checked_sub(1).ok_or("too much history has to be read")?;
        Ok(self.lookup.read(oid, &mut self.budget)?)
    }

    /// Checks that commits are known tips or ancestors of them.
    fn require_ancestors(&mut self, commits: &HashSet<RawOid>) -> Result<(), NeedsGit> {
        let mut missing: HashSet<RawOid> = commits.difference(&self.known).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        if self.known.len() > self.reads_left {
            return Err("too many known tips have to be read".into());
        }
        let mut seen = HashSet::new();
        // The newest commits first: a missing one is probably not far behind a tip.
        let mut queue = BinaryHeap::new();
        let mut next: Vec<RawOid> = self.known.iter().copied().collect();
        loop {
            while let Some(oid) = next.pop() {
                if !seen.insert(oid) {
                    continue;
                }
                missing.remove(&oid);
                if missing.is_empty() {
                    return Ok(());
                }
                match self.read(&oid)? {
                    Some((ObjectKind::Commit, content)) => {
                        let (parents, time) = parents_of_commit(&content).ok_or("a commit is malformed")?;
                        queue.push((time, Reverse(oid), parents));
                    }
                    Some((ObjectKind::Tag, content)) => {
                        let target = target_of_tag(&content).ok_or("a tag is malformed")?;
                        if matches!(target.kind, ObjectKind::Commit | ObjectKind::Tag) {
                            next.push(target.oid);
                        }
                    }
                    // A known tip that does not exist is ignored.
                    Some(_) | None => {}
                }
            }
            let (.., parents) = queue.pop().ok_or("a commit is not an ancestor of a known tip")?;
            next = parents;
        }
    }

    /// Checks that the trees and blobs that a walk found outside the pack belong to boundary commits. Returns how many of
    /// the received objects do too: they were sent again.
    fn find_present_objects(&mut self, walk: &Walk<'_>) -> Result<usize, NeedsGit> {
        let is_in_pool = |oid: &&RawOid| walk.objects.get(*oid).is_some_and(|object| object.is_in_pool);
        let sent_again: HashSet<RawOid> = walk.reached.iter().filter(is_in_pool).copied().collect();
        if walk.outside_objects.is_empty() && sent_again.is_empty() {
            return Ok(0);
        }
        if !sent_again.is_empty() {
            self.require_known_commits()?;
        }
        let mut search = BoundarySearch::new(&walk.outside_objects, &sent_again);
        for commit in &walk.boundary {
            let content = match self.read(commit)? {
                Some((ObjectKind::Commit, content)) => content,
                _ => return Err("a boundary commit is missing".into()),
            };
            search.add(tree_of_commit(&content).ok_or("a commit is malformed")?, true);
        }
        while !search.is_complete() {
            let Some(tree) = search.next_tree() else { break };
            let content = match self.read(&tree)? {
                Some((ObjectKind::Tree, content)) => content,
                _ => return Err("a tree of a boundary commit is missing".into()),
            };
            let mut rest = content.as_slice();
            while !rest.is_empty() {
                let entry = take_tree_entry(&mut rest).ok_or("a tree of a boundary commit is unusual")?;
                if let Some(kind) = entry.mode.kind() {
                    search.add(entry.oid, kind == ObjectKind::Tree);
                }
            }
        }
        // All trees have been searched, or everything has been found.
        if search.outside_left.is_empty() {
            Ok(sent_again.len() - search.sent_again_left.len())
        } else {
            Err("an object outside the pack does not belong to a boundary commit".into())
        }
    }

    /// Checks that the known tips are commits, or tags of commits. Git leaves out the objects of other known tips too.
    fn require_known_commits(&mut self) -> Result<(), NeedsGit> {
        for oid in self.known.clone() {
            let is_commit = match self.kind(&oid)? {
                Some(ObjectKind::Commit) | None => true,
                Some(ObjectKind::Tag) => {
                    let target = self.read(&oid)?.and_then(|(_, content)| target_of_tag(&content));
                    target.is_some_and(|target| target.kind == ObjectKind::Commit)
                }
                Some(ObjectKind::Tree | ObjectKind::Blob) => false,
            };
            if !is_commit {
                return Err("a known tip is not a commit".into());
            }
        }
        Ok(())
    }
}

/// A search for objects in the trees of boundary commits.
struct BoundarySearch<'a> {
    outside: &'a HashSet<RawOid>,
    outside_left: HashSet<RawOid>,
    sent_again_left: HashSet<RawOid>,
    seen: HashSet<RawOid>,
    /// Trees that received objects do not refer to, and so have changed: the others at the same path are near.
    changed: VecDeque<RawOid>,
    unchanged: VecDeque<RawOid>,
}

impl<'a> BoundarySearch<'a> {
    fn new(outside: &'a HashSet<RawOid>, sent_again: &HashSet<RawOid>) -> Self {
        Self {
            outside,
            outside_left: outside.clone(),
            sent_again_left: sent_again.clone(),
            seen: HashSet::new(),
            changed: VecDeque::new(),
            unchanged: VecDeque::new(),
        }
    }

    /// Adds an object of a boundary commit.
    fn add(&mut self, oid: RawOid, is_tree: bool) {
        self.outside_left.remove(&oid);
        self.sent_again_left.remove(&oid);
        if is_tree && self.seen.insert(oid) {
            if self.outside.contains(&oid) { self.unchanged.push_back(oid) } else { self.changed.push_back(oid) }
        }
    }

    fn is_complete(&self) -> bool {
        self.outside_left.is_empty() && self.sent_again_left.is_empty()
    }

    /// Returns the next tree to search.
    fn next_tree(&mut self) -> Option<RawOid> {
        self.changed.pop_front().or_else(|| self.unchanged.pop_front())
    }
}
