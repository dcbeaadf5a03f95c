//! The laws: some hold after every commit and every step of git, the others whenever nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Registrar;
use grasp_core::admission::git_job::Work;
use grasp_core::admission::io::{Gone, Input, Todo};
use grasp_core::admission::policy::Mode;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{Signed, Stamp, kinds};
use grasp_core::repo::catalog::Place;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoId, Site, State};
use grasp_core::state_machine::Machine;
use grasp_core::time::Timestamp;

use super::House;
use crate::git_model::{Oids, is_branch_or_tag, pull_ref};
use crate::store_contract::Shelf;

impl House {
    /// The laws that hold after every commit.
    pub(super) fn check(&self) {
        if self.lawless {
            return;
        }
        let (served, held) = self.sets();
        assert!(served.is_disjoint(&held), "both served and held: {:?}", served.intersection(&held));
        let mut coordinates = BTreeSet::new();
        for event in self.memory.served_events() {
            if let Some(at) = event.coordinate() {
                assert!(coordinates.insert(at.clone()), "two versions are served at {at}");
            }
            let gone = self.memory.whereabouts(event).1;
            let cannot_be_deleted = matches!(event.kind, kinds::DELETION | kinds::VANISH);
            assert!(
                gone.is_none() || (cannot_be_deleted && gone == Some(Gone::Deleted)) || event.kind == kinds::VANISH,
                "served although {gone:?}: {}",
                event.json()
            );
        }
        for id in &held {
            assert!(self.registrar.purgatory().get(*id).is_some(), "held but not in the books: {id}");
        }
        assert_eq!(held.len(), self.registrar.purgatory().len(), "in the books but not held");
        if self.registrar.rules().mode == Mode::Grasp {
            assert_eq!(self.remembered(), self.stored(), "the catalog (left) disagrees with the store");
            self.check_exceptions();
            self.check_lenders();
            self.check_git();
        }
        self.check_interest();
    }

    /// What sync was last told of every name is what it would be told now: no bell was missed.
    fn check_interest(&self) {
        for (identifier, told) in &self.told {
            assert_eq!(*told, self.followed(identifier), "what sync was told (left) of {identifier:?}");
        }
        for repo in self.hosted() {
            assert!(self.told.contains_key(&repo.identifier), "sync was never told of {repo}");
        }
    }

    /// An announcement of a repository that is not hosted here lives only beside one that is (F7).
    fn check_exceptions(&self) {
        for (repo, slots) in self.registrar.catalog().repositories() {
            let family = self.registrar.catalog().family(&repo.identifier);
            let lonely = slots.served.as_ref().is_some_and(|served| served.exception && !served.is_hosted())
                && !family.is_some_and(|family| family.has_host());
            assert!(!lonely, "an exception without any host: {repo}");
        }
    }

    /// A repository reads the pools of hosted members of its own set only, or there is a note to look at it.
    fn check_lenders(&self) {
        for (site, folder) in self.git.sites().filter(|(_, folder)| !folder.lenders.is_empty()) {
            let lenders = self.lenders(site);
            if !folder.lenders.is_subset(&lenders) {
                let noted = self.notes().contains(&Todo { site: site.clone(), pull: None });
                assert!(noted, "{site} reads {:?} and may read {lenders:?}", folder.lenders);
            }
        }
    }

    /// The sites whose pools a site may read.
    pub(super) fn lenders(&self, site: &Site) -> BTreeSet<Site> {
        let Site::Announced(repo) = site else { return BTreeSet::new() };
        self.registrar.hosted(repo).map(|hosted| hosted.lenders).unwrap_or_default().into_iter().collect()
    }

    /// The laws that hold after every step of git: what is shown can be read, and what nobody has signed cannot.
    pub(super) fn check_git(&self) {
        if self.lawless {
            return;
        }
        // One that goes, and was announced again meanwhile, is shown until it is gone.
        let goes = |site: &Site| self.running.iter().any(|order| order.site == *site && is_retirement(&order.work));
        let open = |site: &Site| self.registrar.is_open(site) && !goes(site);
        for (site, view) in self.shown.iter().filter(|(site, _)| open(site)) {
            let readable = if view.refs.is_empty() { Oids::new() } else { self.git.readable(site) };
            for (name, oid) in &view.refs {
                assert!(self.git.is_complete(oid, &readable), "{site}: {name} is at {oid}, which is not all there");
            }
        }
        let signed = |(event, tip, _): &&(EventId, String, Oids)| self.offered.get(event) == Some(tip);
        let mut fine = self.brought.clone();
        fine.extend(self.uploaded.iter().filter(signed).flat_map(|(_, _, oids)| oids.iter().cloned()));
        let unsigned = self.uploaded.iter().filter(|upload| !signed(upload)).flat_map(|(_, _, oids)| oids);
        let unsigned: BTreeSet<&String> = unsigned.filter(|oid| !fine.contains(*oid)).collect();
        for (site, folder) in self.git.sites() {
            let leaked: Vec<&String> = folder.pool.iter().filter(|oid| unsigned.contains(oid)).collect();
            assert!(leaked.is_empty(), "nobody has signed {leaked:?}, but it is at {site}");
        }
    }

    /// An event that waited for git data becomes visible: it must be here.
    pub(super) fn check_release(&mut self, id: EventId) {
        let Some((event, _)) = self.memory.event(id) else { panic!("{id} is released and was not here") };
        let folders: Vec<_> = self.git.sites().map(|(site, folder)| (site, folder, self.git.readable(site))).collect();
        if event.kind == kinds::STATE {
            let state = State::read(&event).expect("nothing else gets in");
            let repos = self.repos_of(&state.identifier, state.author);
            // It is followed, or a better one is that has all of its objects, too.
            let has_all = folders.iter().any(|(site, _, readable)| {
                matches!(site, Site::Announced(repo) if repos.contains(repo))
                    && state.oids().iter().all(|oid| self.git.is_complete(oid, readable))
            });
            // That a repository that was never pushed to is empty needs no folder.
            let empty = state.refs.is_empty()
                && repos.iter().any(|repo| self.git.site(&Site::Announced(repo.clone())).is_none());
            assert!(has_all || empty, "no repository has what is named by {}", event.json());
        } else if let Some(request) = PullRequest::read_if(&event) {
            let name = pull_ref(id);
            let shown = folders.iter().any(|(site, folder, readable)| {
                self.registrar.is_open(site)
                    && folder.refs.get(&name) == Some(&request.tip)
                    && self.git.is_complete(&request.tip, readable)
            });
            assert!(shown, "no repository shows the commit of {}", event.json());
            let sites = self.sites_of(&event, &request);
            // Where it is meant to be, or where it can be copied from to there.
            let lenders = sites.iter().flat_map(|site| self.lenders(site));
            let mut objects = lenders.chain(sites.iter().cloned()).map(|site| self.git.readable(&site));
            let here = objects.any(|objects| self.git.is_complete(&request.tip, &objects));
            assert!(here, "no repository that is meant has the commit of {}: {sites:?}", event.json());
        }
    }

    /// Whether a pull request's ref may come to a site: it is meant, or one that is meant reads its objects.
    fn is_taken(&self, site: &Site, event: &Signed, request: &PullRequest) -> bool {
        let sites = self.sites_of(event, request);
        sites.contains(site) || sites.iter().any(|target| self.lenders(target).contains(site))
    }

    /// The sites at which a pull request is looked for.
    fn sites_of(&self, event: &Signed, request: &PullRequest) -> Vec<Site> {
        let targets = request.targets.iter().map(|repo| Site::Announced(repo.clone()));
        let targets = targets.filter(|site| self.registrar.is_open(site));
        targets.chain(self.registrar.rules().submissions_of(event.pubkey, request)).collect()
    }

    /// The laws that hold when nothing is left to do.
    pub(super) fn check_rest(&mut self) {
        let busy = !self.running.is_empty() || !self.registrar.is_idle();
        assert!(!busy || !self.running.is_empty(), "the registrar waits for nothing");
        if self.lawless || busy || self.registrar.rules().mode != Mode::Grasp {
            return;
        }
        let unanswered: Vec<_> = self.pushes.iter().filter(|(_, push)| push.waits()).collect();
        assert!(unanswered.is_empty(), "nobody answers {unanswered:?}");
        let rows = self.staged();
        let numbers: BTreeSet<u64> = rows.iter().map(|upload| upload.parcel).collect();
        let lost: Vec<u64> = self.git.staged().difference(&numbers).copied().collect();
        assert!(lost.is_empty(), "uploads without a row: {lost:?}");
        let known: BTreeSet<_> = self.registrar.uploads().cloned().collect();
        assert_eq!(known, rows.into_iter().collect(), "the books of uploads (left) and the store");
        if self.ailing {
            return;
        }
        assert_eq!(self.notes(), BTreeSet::new(), "notes of work that nobody does");
        for (site, view) in &self.shown {
            let folder = self.git.site(site);
            let same = folder.map(|folder| &folder.refs).unwrap_or(&BTreeMap::new()) == &view.refs;
            assert!(
                same || !self.registrar.is_open(site),
                "{site}: what is shown (left) is not there: {view:?} {folder:?}"
            );
        }
        for (site, folder) in self.git.sites() {
            match site {
                Site::Announced(repo) => {
                    let family = self.registrar.catalog().family(&repo.identifier);
                    // What the operator does not archive any more is left alone.
                    let left = family.and_then(|family| family.best(repo.owner)).is_some_and(|best| !best.exception);
                    assert!(self.registrar.is_open(site) || left, "{site} is hosted no more and still there");
                }
                Site::Submitted(_) => assert!(!folder.refs.is_empty(), "{site} has nothing and is still there"),
            }
        }
        for repo in self.hosted() {
            self.check_followed(&repo);
        }
        self.check_pulls();
        self.check_uploads();
    }

    /// A repository follows the best complete state that may speak for it.
    fn check_followed(&mut self, repo: &RepoId) {
        let site = Site::Announced(repo.clone());
        let hosted = self.registrar.hosted(repo).expect("hosted");
        let objects = self.git.read(&site, &self.lenders(&site));
        let family = self.registrar.catalog().family(&repo.identifier).expect("hosted");
        let states = family.states_for(repo.owner, self.registrar.rules().strict_maintainers);
        let any_served = states.iter().any(|(_, place)| *place == Place::Served);
        let states: Vec<(State, Place)> = states
            .into_iter()
            .map(|(stamp, place)| {
                (State::read(&self.memory.event(stamp.id).expect("known").0).expect("a state"), place)
            })
            .collect();
        let refs: BTreeMap<String, String> = self.refs(&site);
        let refs: BTreeMap<&String, &String> = refs.iter().filter(|(name, _)| is_branch_or_tag(name)).collect();
        let best = states.iter().find(|(state, place)| {
            // Only for what waits is looked elsewhere again and again.
            let waits = *place == Place::Held || hosted.place == Place::Held;
            let sources = self.repos_of(&state.identifier, state.author).into_iter().map(Site::Announced);
            let elsewhere = sources.filter(|_| waits).map(|source| self.git.readable(&source));
            let mut places = elsewhere.chain([objects.clone()]);
            let oids = state.oids();
            state.is_satisfiable()
                && (hosted.place == Place::Served || !state.refs.is_empty())
                && oids.iter().all(|oid| oid.len() == 40)
                && places.any(|objects| oids.iter().all(|oid| self.git.is_complete(oid, &objects)))
        });
        // A state whose objects were lost, with a lender, and came back is followed when the site is next worked on.
        let all_served = |place: Place| place == Place::Served && hosted.place == Place::Served;
        match best {
            Some((_, place)) if all_served(*place) && self.behind.contains(&site) => {}
            Some((state, place)) => {
                assert_eq!(refs, state.refs.iter().collect(), "{site} does not follow (right) {:?}", state.stamp);
                assert_eq!(*place, Place::Served, "{site} follows {:?}", state.stamp);
                assert_eq!(hosted.place, Place::Served, "{site} follows {:?}, and waits", state.stamp);
                let head = self.git.site(&site).and_then(|folder| folder.head.clone());
                assert!(state.head.is_none() || state.head == head, "{site}: HEAD is {head:?}");
            }
            None if !any_served => assert!(refs.is_empty(), "{site}: nothing that is signed declares {refs:?}"),
            None => {}
        }
    }

    /// The refs of pull requests are those of served ones, and no pull request waits for what is here.
    fn check_pulls(&mut self) {
        for (site, view) in self.shown.clone().iter().filter(|(site, _)| self.registrar.is_open(site)) {
            for (name, oid) in view.refs.iter().filter(|(name, _)| !is_branch_or_tag(name)) {
                let id = name.strip_prefix("refs/nostr/").and_then(EventId::from_hex).expect("no other names");
                let Some((event, place)) = self.memory.event(id) else { panic!("{site}: a stray {name}") };
                let request = PullRequest::read_if(&event).expect("nothing else has a ref");
                assert_eq!((place, oid), (Place::Served, &request.tip), "{site}: {name}");
            }
        }
        let mut readable: BTreeMap<Site, Oids> = BTreeMap::new();
        for event in self.memory.held_events() {
            let Some(request) = PullRequest::read_if(event).filter(|request| request.tip.len() == 40) else { continue };
            for site in self.sites_of(event, &request) {
                let read = || self.git.read(&site, &self.lenders(&site));
                let objects = readable.entry(site.clone()).or_insert_with(read);
                let waits = !self.git.is_complete(&request.tip, objects);
                assert!(waits, "{} waits for what is at {site}", event.json());
            }
        }
    }

    /// No upload waits for an event that waits for it.
    fn check_uploads(&mut self) {
        for upload in self.staged() {
            let Some((event, Place::Held)) = self.memory.event(upload.event) else { continue };
            let request = PullRequest::read_if(&event).expect("nothing else is uploaded");
            assert_eq!(upload.tip, request.tip, "{upload:?}");
            let wanted = self.is_taken(&upload.site, &event, &request);
            // One that was taken in, and needs what has gone with a lender since, is a row without objects.
            assert!(!wanted || !self.git.staged().contains(&upload.parcel), "{upload:?} waits for what is here");
        }
    }

    /// Checks that what the catalog derives as it goes (sets, names, hosts) is what a fresh one derives from the store.
    pub fn check_derived(&self, identifiers: &[&str]) {
        let mut fresh = Registrar::new(self.registrar.rules().clone());
        for restored in self.memory.restored() {
            fresh.handle(self.now, Input::Restored(restored));
        }
        let strict = self.registrar.rules().strict_maintainers;
        for identifier in identifiers.iter().filter_map(|name| Identifier::new(name)) {
            for author in &self.authors {
                let view = |registrar: &Registrar| {
                    let family = registrar.catalog().family(&identifier);
                    family.map(|family| {
                        let hosts: Vec<_> = family.hosts_of(*author, strict).collect();
                        let maintainers = family.maintainers(*author, strict);
                        (hosts, maintainers, family.has_host(), family.is_invited(*author, strict))
                    })
                };
                assert_eq!(view(&self.registrar), view(&fresh), "derived (left) about {author} and {identifier:?}");
                let named = |registrar: &Registrar| registrar.catalog().is_named(*author);
                assert_eq!(named(&self.registrar), named(&fresh), "whether {author} is named");
            }
        }
    }

    fn remembered(&self) -> Books {
        let catalog = self.registrar.catalog();
        let mut books = Books::default();
        for (repo, slots) in catalog.repositories() {
            books.note(&repo, kinds::ANNOUNCEMENT, true, slots.served.as_ref().map(|served| served.stamp));
            books.note(&repo, kinds::ANNOUNCEMENT, false, slots.held.as_ref().map(|held| held.stamp));
        }
        for author in &self.authors {
            for identifier in catalog.identifiers_of(*author) {
                let repo = RepoId { owner: *author, identifier: identifier.clone() };
                let states = catalog.family(identifier).and_then(|family| family.states(*author));
                books.note(&repo, kinds::STATE, true, states.and_then(|states| states.served));
                books.note(&repo, kinds::STATE, false, states.into_iter().flat_map(|states| states.held.clone()));
            }
        }
        books
    }

    fn stored(&self) -> Books {
        let mut books = Books::default();
        let served = self.memory.served_events().map(|event| (event, true));
        for (event, is_served) in served.chain(self.memory.held_events().map(|event| (event, false))) {
            if matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE) {
                let repo = event.coordinate().as_ref().and_then(RepoId::of).expect("nothing else gets in");
                books.note(&repo, event.kind, is_served, Some(event.stamp()));
            }
        }
        books
    }
}

fn is_retirement(work: &Work) -> bool {
    matches!(work, Work::Retire { .. })
}

/// Announcements and states: whose, of which kind, served or held, which versions.
#[derive(PartialEq, Eq, Debug, Default)]
struct Books(BTreeMap<(RepoId, u16, bool), BTreeSet<(Timestamp, EventId)>>);

impl Books {
    fn note(&mut self, repo: &RepoId, kind: u16, served: bool, stamps: impl IntoIterator<Item = Stamp>) {
        for stamp in stamps {
            self.0.entry((repo.clone(), kind, served)).or_default().insert((stamp.created_at, stamp.id));
        }
    }
}
