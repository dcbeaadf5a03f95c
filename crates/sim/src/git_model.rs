//! The model of the git room: objects are names, a repository is a set of them with refs, and an order is carried out one
//! durable step at a time, so that the world can end between any two.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJob, GitJobOutcome, GitOperation, PullRequestRef, ReceivedPack,
    RefFallback,
};
use grasp_core::nostr::EventId;
use grasp_core::repo::RepoPath;
use grasp_core::repo::state::is_oid;

/// Object names.
pub type Oids = BTreeSet<String>;

/// One repository on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Folder {
    /// Its own objects.
    pub pool: Oids,
    /// The other sites whose pools it reads.
    pub alternates: BTreeSet<RepoPath>,
    /// Its refs.
    pub refs: BTreeMap<String, String>,
    /// Where HEAD points, once a state has said so.
    pub head: Option<String>,
}

/// Everything that git has on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Git {
    repo_paths: BTreeMap<RepoPath, Folder>,
    /// What an object needs beside itself. Most need nothing.
    needs: BTreeMap<String, Oids>,
    incoming: BTreeMap<u64, Oids>,
    staged: BTreeMap<u64, Oids>,
    received: u64,
    prunings: u64,
}

/// The name of a pull request's ref.
#[must_use]
pub fn pull_ref(event: EventId) -> String {
    format!("refs/nostr/{event}")
}

/// Whether a ref is a branch or a tag.
#[must_use]
pub fn is_branch_or_tag(name: &str) -> bool {
    name.starts_with("refs/heads/") || name.starts_with("refs/tags/")
}

impl Git {
    /// Says what an object needs beside itself: a commit its parents.
    pub fn need(&mut self, oid: &str, needs: &[&str]) {
        self.needs.entry(oid.to_owned()).or_default().extend(needs.iter().map(|oid| (*oid).to_owned()));
    }

    /// The repositories that have a folder.
    pub fn folders(&self) -> impl Iterator<Item = (&RepoPath, &Folder)> {
        self.repo_paths.iter()
    }

    /// A repository, if it has a folder.
    #[must_use]
    pub fn folder(&self, repo_path: &RepoPath) -> Option<&Folder> {
        self.repo_paths.get(repo_path)
    }

    /// The numbers of the uploads that were put aside.
    #[must_use]
    pub fn staged(&self) -> BTreeSet<u64> {
        self.staged.keys().copied().collect()
    }

    /// The numbers of the packs that belong to pushes.
    #[must_use]
    pub fn incoming(&self) -> BTreeSet<u64> {
        self.incoming.keys().copied().collect()
    }

    /// Lets objects come to a repository by another way than an order. True if any of them is new.
    pub fn put(&mut self, repo_path: &RepoPath, oids: &Oids) -> bool {
        let pool = &mut self.repo_paths.entry(repo_path.clone()).or_default().pool;
        let before = pool.len();
        pool.extend(oids.iter().cloned());
        pool.len() > before
    }

    /// How often objects were taken away from pools.
    #[must_use]
    pub fn prunings(&self) -> u64 {
        self.prunings
    }

    /// Takes in a pack.
    pub fn receive(&mut self, oids: Oids) -> ReceivedPack {
        self.received += 1;
        self.incoming.insert(self.received, oids);
        ReceivedPack::Incoming(self.received)
    }

    /// Throws a parcel away.
    pub fn discard(&mut self, received_pack: &ReceivedPack) {
        match received_pack {
            ReceivedPack::Incoming(number) => self.incoming.remove(number),
            ReceivedPack::Staged(number) => self.staged.remove(number),
        };
    }

    /// What is left after the process has ended and a new one has tidied up: received packs are gone, and uploads that
    /// have no row.
    pub fn restart(&mut self, rows: &BTreeSet<u64>) {
        self.incoming.clear();
        self.keep_staged(rows);
    }

    /// Removes uploads that have no row.
    pub fn keep_staged(&mut self, rows: &BTreeSet<u64>) {
        self.staged.retain(|number, _| rows.contains(number));
    }

    /// All objects that a site reads, as its folder says.
    #[must_use]
    pub fn readable(&self, repo_path: &RepoPath) -> Oids {
        self.repo_paths.get(repo_path).map(|folder| self.read(repo_path, &folder.alternates)).unwrap_or_default()
    }

    /// All objects that a site would read with these lenders.
    #[must_use]
    pub fn read(&self, repo_path: &RepoPath, alternates: &BTreeSet<RepoPath>) -> Oids {
        let pools = alternates.iter().chain([repo_path]).filter_map(|repo_path| self.repo_paths.get(repo_path));
        pools.flat_map(|folder| folder.pool.iter().cloned()).collect()
    }

    /// Whether an object is there with everything that it needs.
    #[must_use]
    pub fn is_complete(&self, oid: &str, objects: &Oids) -> bool {
        self.closure(oid).iter().all(|oid| objects.contains(oid))
    }

    /// An object and everything that it needs.
    #[must_use]
    pub fn closure(&self, oid: &str) -> Oids {
        let mut closure = Oids::from([oid.to_owned()]);
        let mut fresh = vec![oid.to_owned()];
        while let Some(oid) = fresh.pop() {
            for needed in self.needs.get(&oid).into_iter().flatten() {
                if closure.insert(needed.clone()) {
                    fresh.push(needed.clone());
                }
            }
        }
        closure
    }

    fn received_pack(&self, received_pack: &ReceivedPack) -> Option<&Oids> {
        match received_pack {
            ReceivedPack::Incoming(number) => self.incoming.get(number),
            ReceivedPack::Staged(number) => self.staged.get(number),
        }
    }

    /// Does the next durable step of an order, or says that none is left. What an order asks for is a condition, so the
    /// next step is found by looking at what is not yet so.
    pub fn step(&mut self, order: &GitJob) -> Option<GitJobOutcome> {
        match &order.operation {
            GitOperation::Align(align) => self.align(&order.repo_path, align),
            GitOperation::StageUploads(moves) => self.stage(moves),
            GitOperation::Delete { readers } => self.retire(&order.repo_path, readers),
        }
    }

    fn align(&mut self, repo_path: &RepoPath, align: &Alignment) -> Option<GitJobOutcome> {
        if self.adopt(repo_path, &align.adopt) {
            return None;
        }
        let alternates = self.lending(repo_path, &align.alternates);
        if self.repo_paths.contains_key(repo_path) && self.lend(repo_path, &alternates) {
            return None;
        }
        let objects = self.read(repo_path, &alternates);
        // What was checked and nothing was taken away from since is believed.
        let proven = align.checked_prune_count == Some(self.prunings);
        let is_here = |oids: &Oids| {
            oids.iter().all(|oid| oid.len() == 40 && is_oid(oid) && objects.contains(oid))
                && (proven || oids.iter().all(|oid| self.is_complete(oid, &objects)))
        };
        let (mut chosen, mut pull_requests, mut copied) = (None, Vec::new(), None);
        for candidate in &align.candidates {
            let tips: Oids = candidate.refs.iter().map(|(_, oid)| oid.clone()).collect();
            chosen = is_here(&tips).then_some(candidate);
            copied = copied.or_else(|| self.take_over(repo_path, &tips, &candidate.sources, &objects));
            if chosen.is_some() || copied.is_some() {
                break;
            }
        }
        for pull in align.pull_requests.iter().filter(|pull| is_oid(&pull.tip)) {
            let tips = Oids::from([pull.tip.clone()]);
            if is_here(&tips) {
                pull_requests.push(pull);
            } else {
                copied = copied.or_else(|| self.take_over(repo_path, &tips, &pull.sources, &objects));
            }
        }
        if let Some(copied) = copied.filter(|copied| !copied.is_empty()) {
            // The folder, then which pools it reads, then the objects.
            if !self.make(repo_path) && !self.lend(repo_path, &alternates) {
                self.put(repo_path, &copied);
            }
            return None;
        }
        let folder = self.repo_paths.get(repo_path).cloned().unwrap_or_default();
        let (refs, head) = merged(&folder, chosen, &pull_requests, align);
        if (&refs, &head) != (&folder.refs, &folder.head) {
            if self.make(repo_path) || self.lend(repo_path, &alternates) {
                return None;
            }
            let here = self.repo_paths.get_mut(repo_path)?;
            // Refs, then HEAD.
            if here.refs == refs {
                here.head = head
            } else {
                here.refs = refs
            }
            return None;
        }
        let in_place = |pull: &&&PullRequestRef| refs.get(&pull_ref(pull.event)) == Some(&pull.tip);
        Some(GitJobOutcome::Aligned(AlignmentResult {
            chosen: chosen.map(|candidate| candidate.event),
            pull_requests: pull_requests.iter().filter(in_place).map(|pull| pull.event).collect(),
            is_empty: refs.is_empty(),
        }))
    }

    /// Moves packs into the pool. True if that was a step.
    fn adopt(&mut self, repo_path: &RepoPath, received_packs: &[ReceivedPack]) -> bool {
        let Some((received_pack, oids)) = received_packs
            .iter()
            .find_map(|received_pack| Some((received_pack, self.received_pack(received_pack)?.clone())))
        else {
            return false;
        };
        if !self.make(repo_path) && !self.put(repo_path, &oids) {
            self.discard(received_pack);
        }
        true
    }

    /// Makes the folder of a site. True if it had none.
    fn make(&mut self, repo_path: &RepoPath) -> bool {
        let is_new = !self.repo_paths.contains_key(repo_path);
        self.repo_paths.entry(repo_path.clone()).or_default();
        is_new
    }

    /// The lenders of a site that have something to lend.
    fn lending(&self, repo_path: &RepoPath, alternates: &[RepoPath]) -> BTreeSet<RepoPath> {
        alternates
            .iter()
            .filter(|lender| *lender != repo_path && self.repo_paths.contains_key(lender))
            .cloned()
            .collect()
    }

    /// Lets a site read these pools and no others; what its refs need of a pool that it loses is copied first. True if
    /// that was a step.
    fn lend(&mut self, repo_path: &RepoPath, alternates: &BTreeSet<RepoPath>) -> bool {
        let Some(folder) = self.repo_paths.get(repo_path) else { return false };
        if folder.alternates == *alternates {
            return false;
        }
        let (before, kept) = (self.readable(repo_path), self.read(repo_path, alternates));
        let needed = folder.refs.values().flat_map(|oid| self.closure(oid));
        let lost: Oids = needed.filter(|oid| before.contains(oid) && !kept.contains(oid)).collect();
        if !self.put(repo_path, &lost)
            && let Some(folder) = self.repo_paths.get_mut(repo_path)
        {
            folder.alternates.clone_from(alternates);
        }
        true
    }

    /// What must be copied to have some objects, if any source has all of them with everything that they need.
    fn take_over(&self, repo_path: &RepoPath, tips: &Oids, sources: &[RepoPath], objects: &Oids) -> Option<Oids> {
        sources
            .iter()
            .filter(|source| *source != repo_path)
            .map(|source| self.readable(source))
            .find(|readable| tips.iter().all(|tip| self.is_complete(tip, readable)))?;
        Some(tips.iter().flat_map(|tip| self.closure(tip)).filter(|oid| !objects.contains(oid)).collect())
    }

    fn stage(&mut self, moves: &[(ReceivedPack, ReceivedPack)]) -> Option<GitJobOutcome> {
        for (from, to) in moves {
            match (self.received_pack(from).cloned(), self.received_pack(to).is_some()) {
                (None, true) => {}
                (None, false) => return Some(GitJobOutcome::Failed(format!("the upload {from:?} is gone"))),
                (Some(_), true) => {
                    self.discard(to);
                    return None;
                }
                (Some(oids), false) => {
                    if let ReceivedPack::Staged(number) = to {
                        self.staged.insert(*number, oids);
                    }
                    self.discard(from);
                    return None;
                }
            }
        }
        Some(GitJobOutcome::Staged)
    }

    fn retire(&mut self, repo_path: &RepoPath, readers: &[(RepoPath, Vec<RepoPath>)]) -> Option<GitJobOutcome> {
        for (reader, alternates) in readers.iter().filter(|(reader, _)| reader != repo_path) {
            if self.repo_paths.get(reader).is_some_and(|folder| folder.alternates.contains(repo_path)) {
                let mut alternates = self.lending(reader, alternates);
                alternates.remove(repo_path);
                self.lend(reader, &alternates);
                return None;
            }
        }
        self.prunings += 1;
        if self.repo_paths.remove(repo_path).is_some() { None } else { Some(GitJobOutcome::Deleted) }
    }
}

/// The refs and HEAD of a site as an order wants them.
fn merged(
    folder: &Folder,
    chosen: Option<&CandidateState>,
    pull_requests: &[&PullRequestRef],
    align: &Alignment,
) -> (BTreeMap<String, String>, Option<String>) {
    let (mut refs, mut head) = (folder.refs.clone(), folder.head.clone());
    if chosen.is_some() || align.fallback == RefFallback::Clear {
        refs.retain(|name, _| !is_branch_or_tag(name));
    }
    if let Some(candidate) = chosen {
        refs.extend(candidate.refs.iter().cloned());
        head = candidate.head.clone().filter(|head| refs.contains_key(head)).or(head);
    }
    refs.extend(pull_requests.iter().map(|pull| (pull_ref(pull.event), pull.tip.clone())));
    for event in &align.drop_pull_requests {
        refs.remove(&pull_ref(*event));
    }
    (refs, head)
}
