//! The walk from the requested ref targets over everything that they refer to.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::hex;

use super::pack_contents::PackContents;
use super::pack_error::PackError;
use crate::objects::RawOid;

/// The refs that a push sets, each with its name and its object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RequiredTips {
    /// Refs that must point to commits: branches and pull requests.
    pub branches: Vec<(String, String)>,
    /// Refs that may point to any object: tags.
    pub others: Vec<(String, String)>,
}

/// One ref and its requirement.
#[derive(Clone, Copy)]
pub(super) struct RequiredTip<'t> {
    pub(super) name: &'t str,
    pub(super) oid: &'t str,
    pub(super) requirement: TipRequirement,
}

/// The requirement on the object of a ref.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TipRequirement {
    Commit,
    AnyObject,
}

impl RequiredTips {
    pub(super) fn iter(&self) -> impl Iterator<Item = RequiredTip<'_>> {
        let branches =
            self.branches.iter().map(|(name, oid)| RequiredTip { name, oid, requirement: TipRequirement::Commit });
        let others =
            self.others.iter().map(|(name, oid)| RequiredTip { name, oid, requirement: TipRequirement::AnyObject });
        branches.chain(others)
    }
}

impl RequiredTip<'_> {
    pub(super) fn missing(&self) -> PackError {
        PackError::MissingTip { name: self.name.to_owned(), oid: self.oid.to_owned() }
    }

    /// Returns the revision at which git starts the walk.
    pub(super) fn revision(&self) -> String {
        match self.requirement {
            TipRequirement::Commit => format!("{}^{{commit}}", self.oid),
            TipRequirement::AnyObject => self.oid.to_owned(),
        }
    }
}

/// Reads the output of `rev-list --objects` and records what it reached.
pub(super) struct ObjectWalk<'t> {
    pub(super) objects: u64,
    pack_contents: PackContents,
    /// The tips that must be commits.
    branches: BTreeMap<RawOid, &'t str>,
    /// Those of them that the walk has shown to be commits.
    pub(super) commits: BTreeSet<&'t str>,
}

impl<'t> ObjectWalk<'t> {
    pub(super) fn new(tips: &'t RequiredTips, pack_contents: PackContents) -> Self {
        let branches = tips.branches.iter().filter_map(|(_, oid)| Some((hex::decode(oid)?, oid.as_str()))).collect();
        Self { objects: 0, pack_contents, branches, commits: BTreeSet::new() }
    }

    /// Returns how many objects of the received pack the walk has not reached.
    pub(super) fn unreached(&self) -> u64 {
        self.pack_contents.unreached()
    }

    /// Reads a line. That of a commit is its id alone; other lines have a space and a path after the id.
    pub(super) fn read_line(&mut self, line: &[u8]) {
        let Some((oid, path)) = line.split_at_checked(40) else { return };
        let Some(oid) = std::str::from_utf8(oid).ok().and_then(hex::decode) else { return };
        self.objects += 1;
        self.pack_contents.mark_reached(&oid);
        if path.is_empty()
            && let Some(tip) = self.branches.get(&oid)
        {
            self.commits.insert(tip);
        }
    }
}

/// Returns whether a text is an object id, and so nothing that git could parse as an option.
#[must_use]
pub fn is_oid(text: &str) -> bool {
    hex::decode::<20>(text).is_some()
}
