//! The laws: some hold after every commit and every step of git, the others whenever nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::GitOperation;
use grasp_core::admission::io::{AdmissionInput, Todo, TombstoneKind};
use grasp_core::admission::policy::AdmissionMode;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{EventVersion, SignedEvent, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoId, RepoPath, RepoState};
use grasp_core::state_machine::StateMachine;
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
                gone.is_none()
                    || (cannot_be_deleted && gone == Some(TombstoneKind::Deleted))
                    || event.kind == kinds::VANISH,
                "served although {gone:?}: {}",
                event.json()
            );
        }
        for id in &held {
            assert!(self.admission.purgatory().get(*id).is_some(), "held but not in the books: {id}");
        }
        assert_eq!(held.len(), self.admission.purgatory().len(), "in the books but not held");
        if self.admission.policy().mode == AdmissionMode::Grasp {
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
        for (repo, slots) in self.admission.catalog().repositories() {
            let group = self.admission.catalog().group(&repo.identifier);
            let lonely = slots.served.as_ref().is_some_and(|served| served.is_exception && !served.is_hosted())
                && !group.is_some_and(|group| group.has_hosted());
            assert!(!lonely, "an exception without any host: {repo}");
        }
    }

    /// A repository reads the pools of hosted members of its own set only, or there is a note to look at it.
    fn check_lenders(&self) {
        for (repo_path, folder) in self.git.folders().filter(|(_, folder)| !folder.alternates.is_empty()) {
            let alternates = self.alternates(repo_path);
            if !folder.alternates.is_subset(&alternates) {
                let noted = self.notes().contains(&Todo { repo_path: repo_path.clone(), pull_request: None });
                assert!(noted, "{repo_path} reads {:?} and may read {alternates:?}", folder.alternates);
            }
        }
    }

    /// The sites whose pools a site may read.
    pub(super) fn alternates(&self, repo_path: &RepoPath) -> BTreeSet<RepoPath> {
        let RepoPath::Announced(repo) = repo_path else { return BTreeSet::new() };
        self.admission.hosted_repo(repo).map(|hosted| hosted.alternates).unwrap_or_default().into_iter().collect()
    }

    /// The laws that hold after every step of git: what is shown can be read, and what nobody has signed cannot.
    pub(super) fn check_git(&self) {
        if self.lawless {
            return;
        }
        // One that goes, and was announced again meanwhile, is shown until it is gone.
        let goes = |repo_path: &RepoPath| {
            self.running.iter().any(|order| order.repo_path == *repo_path && is_retirement(&order.operation))
        };
        let open = |repo_path: &RepoPath| self.admission.is_available(repo_path) && !goes(repo_path);
        for (repo_path, view) in self.shown.iter().filter(|(repo_path, _)| open(repo_path)) {
            let readable = if view.refs.is_empty() { Oids::new() } else { self.git.readable(repo_path) };
            for (name, oid) in &view.refs {
                assert!(
                    self.git.is_complete(oid, &readable),
                    "{repo_path}: {name} is at {oid}, which is not all there"
                );
            }
        }
        let signed = |(event, tip, _): &&(EventId, String, Oids)| self.offered.get(event) == Some(tip);
        let mut fine = self.brought.clone();
        fine.extend(self.uploaded.iter().filter(signed).flat_map(|(_, _, oids)| oids.iter().cloned()));
        let unsigned = self.uploaded.iter().filter(|upload| !signed(upload)).flat_map(|(_, _, oids)| oids);
        let unsigned: BTreeSet<&String> = unsigned.filter(|oid| !fine.contains(*oid)).collect();
        for (repo_path, folder) in self.git.folders() {
            let leaked: Vec<&String> = folder.pool.iter().filter(|oid| unsigned.contains(oid)).collect();
            assert!(leaked.is_empty(), "nobody has signed {leaked:?}, but it is at {repo_path}");
        }
    }

    /// An event that waited for git data becomes visible: it must be here.
    pub(super) fn check_release(&mut self, id: EventId) {
        let Some((event, _)) = self.memory.event(id) else { panic!("{id} is released and was not here") };
        let folders: Vec<_> =
            self.git.folders().map(|(repo_path, folder)| (repo_path, folder, self.git.readable(repo_path))).collect();
        if event.kind == kinds::STATE {
            let state = RepoState::from_event(&event).expect("nothing else gets in");
            let repos = self.repos_of(&state.identifier, state.author);
            // It is followed, or a better one is that has all of its objects, too.
            let has_all = folders.iter().any(|(repo_path, _, readable)| {
                matches!(repo_path, RepoPath::Announced(repo) if repos.contains(repo))
                    && state.oids().iter().all(|oid| self.git.is_complete(oid, readable))
            });
            // That a repository that was never pushed to is empty needs no folder.
            let empty = state.refs.is_empty()
                && repos.iter().any(|repo| self.git.folder(&RepoPath::Announced(repo.clone())).is_none());
            assert!(has_all || empty, "no repository has what is named by {}", event.json());
        } else if let Some(request) = PullRequest::from_any_event(&event) {
            let name = pull_ref(id);
            let shown = folders.iter().any(|(repo_path, folder, readable)| {
                self.admission.is_available(repo_path)
                    && folder.refs.get(&name) == Some(&request.tip)
                    && self.git.is_complete(&request.tip, readable)
            });
            assert!(shown, "no repository shows the commit of {}", event.json());
            let repo_paths = self.sites_of(&event, &request);
            // Where it is meant to be, or where it can be copied from to there.
            let alternates = repo_paths.iter().flat_map(|repo_path| self.alternates(repo_path));
            let mut objects =
                alternates.chain(repo_paths.iter().cloned()).map(|repo_path| self.git.readable(&repo_path));
            let here = objects.any(|objects| self.git.is_complete(&request.tip, &objects));
            assert!(here, "no repository that is meant has the commit of {}: {repo_paths:?}", event.json());
        }
    }

    /// Whether a pull request's ref may come to a site: it is meant, or one that is meant reads its objects.
    fn is_taken(&self, repo_path: &RepoPath, event: &SignedEvent, request: &PullRequest) -> bool {
        let repo_paths = self.sites_of(event, request);
        repo_paths.contains(repo_path) || repo_paths.iter().any(|target| self.alternates(target).contains(repo_path))
    }

    /// The sites at which a pull request is looked for.
    fn sites_of(&self, event: &SignedEvent, request: &PullRequest) -> Vec<RepoPath> {
        let targets = request.targets.iter().map(|repo| RepoPath::Announced(repo.clone()));
        let targets = targets.filter(|repo_path| self.admission.is_available(repo_path));
        targets.chain(self.admission.policy().submission_paths(event.pubkey, request)).collect()
    }

    /// The laws that hold when nothing is left to do.
    pub(super) fn check_rest(&mut self) {
        let busy = !self.running.is_empty() || !self.admission.is_idle();
        assert!(!busy || !self.running.is_empty(), "the registrar waits for nothing");
        if self.lawless || busy || self.admission.policy().mode != AdmissionMode::Grasp {
            return;
        }
        let unanswered: Vec<_> = self.pushes.iter().filter(|(_, push)| push.waits()).collect();
        assert!(unanswered.is_empty(), "nobody answers {unanswered:?}");
        let rows = self.staged();
        let numbers: BTreeSet<u64> = rows.iter().map(|upload| upload.folder).collect();
        let lost: Vec<u64> = self.git.staged().difference(&numbers).copied().collect();
        assert!(lost.is_empty(), "uploads without a row: {lost:?}");
        let known: BTreeSet<_> = self.admission.uploads().cloned().collect();
        assert_eq!(known, rows.into_iter().collect(), "the books of uploads (left) and the store");
        if self.ailing {
            return;
        }
        assert_eq!(self.notes(), BTreeSet::new(), "notes of work that nobody does");
        for (repo_path, view) in &self.shown {
            let folder = self.git.folder(repo_path);
            let same = folder.map(|folder| &folder.refs).unwrap_or(&BTreeMap::new()) == &view.refs;
            assert!(
                same || !self.admission.is_available(repo_path),
                "{repo_path}: what is shown (left) is not there: {view:?} {folder:?}"
            );
        }
        for (repo_path, folder) in self.git.folders() {
            match repo_path {
                RepoPath::Announced(repo) => {
                    let group = self.admission.catalog().group(&repo.identifier);
                    // What the operator does not archive any more is left alone.
                    let left = group
                        .and_then(|group| group.newest_announcement(repo.owner))
                        .is_some_and(|best| !best.is_exception);
                    assert!(
                        self.admission.is_available(repo_path) || left,
                        "{repo_path} is hosted no more and still there"
                    );
                }
                RepoPath::PullRequests(_) => {
                    assert!(!folder.refs.is_empty(), "{repo_path} has nothing and is still there")
                }
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
        let repo_path = RepoPath::Announced(repo.clone());
        let hosted = self.admission.hosted_repo(repo).expect("hosted");
        let objects = self.git.read(&repo_path, &self.alternates(&repo_path));
        let group = self.admission.catalog().group(&repo.identifier).expect("hosted");
        let states = group.states_for(repo.owner, self.admission.policy().strict_maintainers);
        let any_served = states.iter().any(|(_, status)| *status == EventStatus::Served);
        let states: Vec<(RepoState, EventStatus)> = states
            .into_iter()
            .map(|(version, status)| {
                (RepoState::from_event(&self.memory.event(version.id).expect("known").0).expect("a state"), status)
            })
            .collect();
        let refs: BTreeMap<String, String> = self.refs(&repo_path);
        let refs: BTreeMap<&String, &String> = refs.iter().filter(|(name, _)| is_branch_or_tag(name)).collect();
        let best = states.iter().find(|(state, status)| {
            // Only for what waits is looked elsewhere again and again.
            let waits = *status == EventStatus::Held || hosted.status == EventStatus::Held;
            let sources = self.repos_of(&state.identifier, state.author).into_iter().map(RepoPath::Announced);
            let elsewhere = sources.filter(|_| waits).map(|source| self.git.readable(&source));
            let mut places = elsewhere.chain([objects.clone()]);
            let oids = state.oids();
            state.is_satisfiable()
                && (hosted.status == EventStatus::Served || !state.refs.is_empty())
                && oids.iter().all(|oid| oid.len() == 40)
                && places.any(|objects| oids.iter().all(|oid| self.git.is_complete(oid, &objects)))
        });
        // A state whose objects were lost, with a lender, and came back is followed when the site is next worked on.
        let all_served = |status: EventStatus| status == EventStatus::Served && hosted.status == EventStatus::Served;
        match best {
            Some((_, status)) if all_served(*status) && self.behind.contains(&repo_path) => {}
            Some((state, status)) => {
                assert_eq!(
                    refs,
                    state.refs.iter().collect(),
                    "{repo_path} does not follow (right) {:?}",
                    state.version
                );
                assert_eq!(*status, EventStatus::Served, "{repo_path} follows {:?}", state.version);
                assert_eq!(hosted.status, EventStatus::Served, "{repo_path} follows {:?}, and waits", state.version);
                let head = self.git.folder(&repo_path).and_then(|folder| folder.head.clone());
                assert!(state.head.is_none() || state.head == head, "{repo_path}: HEAD is {head:?}");
            }
            None if !any_served => assert!(refs.is_empty(), "{repo_path}: nothing that is signed declares {refs:?}"),
            None => {}
        }
    }

    /// The refs of pull requests are those of served ones, and no pull request waits for what is here.
    fn check_pulls(&mut self) {
        for (repo_path, view) in
            self.shown.clone().iter().filter(|(repo_path, _)| self.admission.is_available(repo_path))
        {
            for (name, oid) in view.refs.iter().filter(|(name, _)| !is_branch_or_tag(name)) {
                let id = name.strip_prefix("refs/nostr/").and_then(EventId::from_hex).expect("no other names");
                let Some((event, status)) = self.memory.event(id) else { panic!("{repo_path}: a stray {name}") };
                let request = PullRequest::from_any_event(&event).expect("nothing else has a ref");
                assert_eq!((status, oid), (EventStatus::Served, &request.tip), "{repo_path}: {name}");
            }
        }
        let mut readable: BTreeMap<RepoPath, Oids> = BTreeMap::new();
        for event in self.memory.held_events() {
            let Some(request) = PullRequest::from_any_event(event).filter(|request| request.tip.len() == 40) else {
                continue;
            };
            for repo_path in self.sites_of(event, &request) {
                let read = || self.git.read(&repo_path, &self.alternates(&repo_path));
                let objects = readable.entry(repo_path.clone()).or_insert_with(read);
                let waits = !self.git.is_complete(&request.tip, objects);
                assert!(waits, "{} waits for what is at {repo_path}", event.json());
            }
        }
    }

    /// No upload waits for an event that waits for it.
    fn check_uploads(&mut self) {
        for upload in self.staged() {
            let Some((event, EventStatus::Held)) = self.memory.event(upload.event) else { continue };
            let request = PullRequest::from_any_event(&event).expect("nothing else is uploaded");
            assert_eq!(upload.tip, request.tip, "{upload:?}");
            let wanted = self.is_taken(&upload.repo_path, &event, &request);
            // One that was taken in, and needs what has gone with a lender since, is a row without objects.
            assert!(!wanted || !self.git.staged().contains(&upload.folder), "{upload:?} waits for what is here");
        }
    }

    /// Checks that what the catalog derives as it goes (sets, names, hosts) is what a fresh one derives from the store.
    pub fn check_derived(&self, identifiers: &[&str]) {
        let mut fresh = Admission::new(self.admission.policy().clone());
        for restored in self.memory.restored() {
            fresh.handle(self.now, AdmissionInput::Restored(restored));
        }
        let strict = self.admission.policy().strict_maintainers;
        for identifier in identifiers.iter().filter_map(|name| Identifier::new(name)) {
            for author in &self.authors {
                let view = |admission: &Admission| {
                    let group = admission.catalog().group(&identifier);
                    group.map(|group| {
                        let hosts: Vec<_> = group.maintained_by(*author, strict).collect();
                        let maintainers = group.maintainers(*author, strict);
                        (hosts, maintainers, group.has_hosted(), group.is_invited(*author, strict))
                    })
                };
                assert_eq!(view(&self.admission), view(&fresh), "derived (left) about {author} and {identifier:?}");
                let named = |admission: &Admission| admission.catalog().is_listed_maintainer(*author);
                assert_eq!(named(&self.admission), named(&fresh), "whether {author} is named");
            }
        }
    }

    fn remembered(&self) -> Books {
        let catalog = self.admission.catalog();
        let mut books = Books::default();
        for (repo, slots) in catalog.repositories() {
            books.note(&repo, kinds::ANNOUNCEMENT, true, slots.served.as_ref().map(|served| served.version));
            books.note(&repo, kinds::ANNOUNCEMENT, false, slots.held.as_ref().map(|held| held.version));
        }
        for author in &self.authors {
            for identifier in catalog.identifiers_of(*author) {
                let repo = RepoId { owner: *author, identifier: identifier.clone() };
                let states = catalog.group(identifier).and_then(|group| group.states(*author));
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
                let repo = event.coordinate().as_ref().and_then(RepoId::from_coordinate).expect("nothing else gets in");
                books.note(&repo, event.kind, is_served, Some(event.version()));
            }
        }
        books
    }
}

fn is_retirement(work: &GitOperation) -> bool {
    matches!(work, GitOperation::Delete { .. })
}

/// Announcements and states: whose, of which kind, served or held, which versions.
#[derive(PartialEq, Eq, Debug, Default)]
struct Books(BTreeMap<(RepoId, u16, bool), BTreeSet<(Timestamp, EventId)>>);

impl Books {
    fn note(&mut self, repo: &RepoId, kind: u16, served: bool, versions: impl IntoIterator<Item = EventVersion>) {
        for version in versions {
            self.0.entry((repo.clone(), kind, served)).or_default().insert((version.created_at, version.id));
        }
    }
}
