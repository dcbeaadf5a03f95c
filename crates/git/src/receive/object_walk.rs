//! A walk from where refs should point over all that they need.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::hex;

use super::pack_contents::{Carried, Oid};
use super::pack_error::PackProblem;

/// Where refs should point: each a name and an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tips {
    /// Refs that must be commits: branches and pull requests.
    pub branches: Vec<(String, String)>,
    /// Refs that may be anything: tags.
    pub others: Vec<(String, String)>,
}

/// One ref and what it must be.
#[derive(Clone, Copy)]
pub(super) struct Tip<'t> {
    pub(super) name: &'t str,
    pub(super) oid: &'t str,
    pub(super) must: Must,
}

/// What a ref must be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Must {
    BeACommit,
    Exist,
}

impl Tips {
    pub(super) fn iter(&self) -> impl Iterator<Item = Tip<'_>> {
        let branches = self.branches.iter().map(|(name, oid)| Tip { name, oid, must: Must::BeACommit });
        branches.chain(self.others.iter().map(|(name, oid)| Tip { name, oid, must: Must::Exist }))
    }
}

impl Tip<'_> {
    pub(super) fn missing(&self) -> PackProblem {
        PackProblem::MissingTip { name: self.name.to_owned(), oid: self.oid.to_owned() }
    }

    /// What git is told to begin at.
    pub(super) fn expression(&self) -> String {
        match self.must {
            Must::BeACommit => format!("{}^{{commit}}", self.oid),
            Must::Exist => self.oid.to_owned(),
        }
    }
}

/// What a walk over history came by.
pub(super) struct Walk<'t> {
    pub(super) objects: u64,
    carried: Carried,
    /// The tips that must be commits.
    branches: BTreeMap<Oid, &'t str>,
    /// Those of them that the walk has shown to be.
    pub(super) commits: BTreeSet<&'t str>,
    /// The beginning of a line.
    line: Vec<u8>,
}

impl<'t> Walk<'t> {
    pub(super) fn new(tips: &'t Tips, carried: Carried) -> Self {
        let branches = tips.branches.iter().filter_map(|(_, oid)| Some((hex::decode(oid)?, oid.as_str()))).collect();
        Self { objects: 0, carried, branches, commits: BTreeSet::new(), line: Vec::new() }
    }

    /// Reads lines in whatever pieces they come. A commit's is its id alone; others have a space and a path behind it.
    pub(super) fn hear(&mut self, said: &[u8]) {
        for piece in said.split_inclusive(|byte| *byte == b'\n') {
            // Of a path that somebody made very long, only the space counts.
            let room = 42_usize.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.object();
                self.line.clear();
            }
        }
    }

    /// Objects of the received pack that it did not come by.
    pub(super) fn extra(&self) -> u64 {
        self.carried.extra()
    }

    fn object(&mut self) {
        let Some((oid, rest)) = self.line.split_at_checked(40) else { return };
        let Some(oid) = std::str::from_utf8(oid).ok().and_then(hex::decode) else { return };
        self.objects += 1;
        self.carried.reach(&oid);
        if rest == b"\n"
            && let Some(tip) = self.branches.get(&oid)
        {
            self.commits.insert(tip);
        }
    }
}

/// Whether this is an object id, and nothing that git would take for an option.
pub(super) fn is_oid(text: &str) -> bool {
    hex::decode::<20>(text).is_some()
}
