//! The model of the git room: objects are names, a repository is a set of them with refs, and an order is carried out one
//! durable step at a time, so that the world can end between any two.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::git_job::{Align, Aligned, Candidate, Order, Otherwise, Outcome, Parcel, Pull, Work};
use grasp_core::nostr::EventId;
use grasp_core::repo::Site;
use grasp_core::repo::state::is_oid;

/// Object names.
pub type Oids = BTreeSet<String>;

/// One repository on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Folder {
    /// Its own objects.
    pub pool: Oids,
    /// The other sites whose pools it reads.
    pub lenders: BTreeSet<Site>,
    /// Its refs.
    pub refs: BTreeMap<String, String>,
    /// Where HEAD points, once a state has said so.
    pub head: Option<String>,
}

/// Everything that git has on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Git {
    sites: BTreeMap<Site, Folder>,
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
    pub fn sites(&self) -> impl Iterator<Item = (&Site, &Folder)> {
        self.sites.iter()
    }

    /// A repository, if it has a folder.
    #[must_use]
    pub fn site(&self, site: &Site) -> Option<&Folder> {
        self.sites.get(site)
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
    pub fn put(&mut self, site: &Site, oids: &Oids) -> bool {
        let pool = &mut self.sites.entry(site.clone()).or_default().pool;
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
    pub fn receive(&mut self, oids: Oids) -> Parcel {
        self.received += 1;
        self.incoming.insert(self.received, oids);
        Parcel::Incoming(self.received)
    }

    /// Throws a parcel away.
    pub fn discard(&mut self, parcel: &Parcel) {
        match parcel {
            Parcel::Incoming(number) => self.incoming.remove(number),
            Parcel::Staged(number) => self.staged.remove(number),
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
    pub fn readable(&self, site: &Site) -> Oids {
        self.sites.get(site).map(|folder| self.read(site, &folder.lenders)).unwrap_or_default()
    }

    /// All objects that a site would read with these lenders.
    #[must_use]
    pub fn read(&self, site: &Site, lenders: &BTreeSet<Site>) -> Oids {
        let pools = lenders.iter().chain([site]).filter_map(|site| self.sites.get(site));
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

    fn parcel(&self, parcel: &Parcel) -> Option<&Oids> {
        match parcel {
            Parcel::Incoming(number) => self.incoming.get(number),
            Parcel::Staged(number) => self.staged.get(number),
        }
    }

    /// Does the next durable step of an order, or says that none is left. What an order asks for is a condition, so the
    /// next step is found by looking at what is not yet so.
    pub fn step(&mut self, order: &Order) -> Option<Outcome> {
        match &order.work {
            Work::Align(align) => self.align(&order.site, align),
            Work::Stage(moves) => self.stage(moves),
            Work::Retire { readers } => self.retire(&order.site, readers),
        }
    }

    fn align(&mut self, site: &Site, align: &Align) -> Option<Outcome> {
        if self.adopt(site, &align.adopt) {
            return None;
        }
        let lenders = self.lending(site, &align.lenders);
        if self.sites.contains_key(site) && self.lend(site, &lenders) {
            return None;
        }
        let objects = self.read(site, &lenders);
        // What was checked and nothing was taken away from since is believed.
        let proven = align.checked == Some(self.prunings);
        let is_here = |oids: &Oids| {
            oids.iter().all(|oid| oid.len() == 40 && is_oid(oid) && objects.contains(oid))
                && (proven || oids.iter().all(|oid| self.is_complete(oid, &objects)))
        };
        let (mut chosen, mut pulls, mut copied) = (None, Vec::new(), None);
        for candidate in &align.candidates {
            let tips: Oids = candidate.refs.iter().map(|(_, oid)| oid.clone()).collect();
            chosen = is_here(&tips).then_some(candidate);
            copied = copied.or_else(|| self.take_over(site, &tips, &candidate.sources, &objects));
            if chosen.is_some() || copied.is_some() {
                break;
            }
        }
        for pull in align.pulls.iter().filter(|pull| is_oid(&pull.tip)) {
            let tips = Oids::from([pull.tip.clone()]);
            if is_here(&tips) {
                pulls.push(pull);
            } else {
                copied = copied.or_else(|| self.take_over(site, &tips, &pull.sources, &objects));
            }
        }
        if let Some(copied) = copied.filter(|copied| !copied.is_empty()) {
            // The folder, then which pools it reads, then the objects.
            if !self.make(site) && !self.lend(site, &lenders) {
                self.put(site, &copied);
            }
            return None;
        }
        let folder = self.sites.get(site).cloned().unwrap_or_default();
        let (refs, head) = merged(&folder, chosen, &pulls, align);
        if (&refs, &head) != (&folder.refs, &folder.head) {
            if self.make(site) || self.lend(site, &lenders) {
                return None;
            }
            let here = self.sites.get_mut(site)?;
            // Refs, then HEAD.
            if here.refs == refs {
                here.head = head
            } else {
                here.refs = refs
            }
            return None;
        }
        let in_place = |pull: &&&Pull| refs.get(&pull_ref(pull.event)) == Some(&pull.tip);
        Some(Outcome::Aligned(Aligned {
            chosen: chosen.map(|candidate| candidate.event),
            pulls: pulls.iter().filter(in_place).map(|pull| pull.event).collect(),
            empty: refs.is_empty(),
        }))
    }

    /// Moves packs into the pool. True if that was a step.
    fn adopt(&mut self, site: &Site, parcels: &[Parcel]) -> bool {
        let Some((parcel, oids)) = parcels.iter().find_map(|parcel| Some((parcel, self.parcel(parcel)?.clone())))
        else {
            return false;
        };
        if !self.make(site) && !self.put(site, &oids) {
            self.discard(parcel);
        }
        true
    }

    /// Makes the folder of a site. True if it had none.
    fn make(&mut self, site: &Site) -> bool {
        let is_new = !self.sites.contains_key(site);
        self.sites.entry(site.clone()).or_default();
        is_new
    }

    /// The lenders of a site that have something to lend.
    fn lending(&self, site: &Site, lenders: &[Site]) -> BTreeSet<Site> {
        lenders.iter().filter(|lender| *lender != site && self.sites.contains_key(lender)).cloned().collect()
    }

    /// Lets a site read these pools and no others; what its refs need of a pool that it loses is copied first. True if
    /// that was a step.
    fn lend(&mut self, site: &Site, lenders: &BTreeSet<Site>) -> bool {
        let Some(folder) = self.sites.get(site) else { return false };
        if folder.lenders == *lenders {
            return false;
        }
        let (before, kept) = (self.readable(site), self.read(site, lenders));
        let needed = folder.refs.values().flat_map(|oid| self.closure(oid));
        let lost: Oids = needed.filter(|oid| before.contains(oid) && !kept.contains(oid)).collect();
        if !self.put(site, &lost)
            && let Some(folder) = self.sites.get_mut(site)
        {
            folder.lenders.clone_from(lenders);
        }
        true
    }

    /// What must be copied to have some objects, if any source has all of them with everything that they need.
    fn take_over(&self, site: &Site, tips: &Oids, sources: &[Site], objects: &Oids) -> Option<Oids> {
        sources
            .iter()
            .filter(|source| *source != site)
            .map(|source| self.readable(source))
            .find(|readable| tips.iter().all(|tip| self.is_complete(tip, readable)))?;
        Some(tips.iter().flat_map(|tip| self.closure(tip)).filter(|oid| !objects.contains(oid)).collect())
    }

    fn stage(&mut self, moves: &[(Parcel, Parcel)]) -> Option<Outcome> {
        for (from, to) in moves {
            match (self.parcel(from).cloned(), self.parcel(to).is_some()) {
                (None, true) => {}
                (None, false) => return Some(Outcome::Failed(format!("the upload {from:?} is gone"))),
                (Some(_), true) => {
                    self.discard(to);
                    return None;
                }
                (Some(oids), false) => {
                    if let Parcel::Staged(number) = to {
                        self.staged.insert(*number, oids);
                    }
                    self.discard(from);
                    return None;
                }
            }
        }
        Some(Outcome::Staged)
    }

    fn retire(&mut self, site: &Site, readers: &[(Site, Vec<Site>)]) -> Option<Outcome> {
        for (reader, lenders) in readers.iter().filter(|(reader, _)| reader != site) {
            if self.sites.get(reader).is_some_and(|folder| folder.lenders.contains(site)) {
                let mut lenders = self.lending(reader, lenders);
                lenders.remove(site);
                self.lend(reader, &lenders);
                return None;
            }
        }
        self.prunings += 1;
        if self.sites.remove(site).is_some() { None } else { Some(Outcome::Retired) }
    }
}

/// The refs and HEAD of a site as an order wants them.
fn merged(
    folder: &Folder,
    chosen: Option<&Candidate>,
    pulls: &[&Pull],
    align: &Align,
) -> (BTreeMap<String, String>, Option<String>) {
    let (mut refs, mut head) = (folder.refs.clone(), folder.head.clone());
    if chosen.is_some() || align.otherwise == Otherwise::Clear {
        refs.retain(|name, _| !is_branch_or_tag(name));
    }
    if let Some(candidate) = chosen {
        refs.extend(candidate.refs.iter().cloned());
        head = candidate.head.clone().filter(|head| refs.contains_key(head)).or(head);
    }
    refs.extend(pulls.iter().map(|pull| (pull_ref(pull.event), pull.tip.clone())));
    for event in &align.drop_pulls {
        refs.remove(&pull_ref(*event));
    }
    (refs, head)
}
