//! Invariants. Some hold after every commit and every step of git, the others whenever the server is idle.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::GitOperation;
use grasp_core::admission::io::{AdmissionInput, EarlyRequest, TombstoneKind};
use grasp_core::admission::policy::AdmissionMode;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{EventVersion, SignedEvent, kinds};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RefTarget, Refs, RepoId, RepoPath, RepoState};
use grasp_core::state_machine::StateMachine;
use grasp_core::time::Timestamp;

use super::TestServer;
use crate::git_model::{Oids, is_branch_or_tag, pull_ref};
use crate::store_contract::StoreUnderTest;

impl TestServer {
    /// Checks the invariants that hold after every commit.
    pub(super) fn check_after_commit(&self) {
        if self.skips_invariants {
            return;
        }
        let (served, held) = self.event_ids();
        assert!(served.is_disjoint(&held), "both served and held: {:?}", served.intersection(&held));
        let mut coordinates = BTreeSet::new();
        for event in self.store.served_events() {
            if let Some(at) = event.coordinate() {
                assert!(coordinates.insert(at.clone()), "two versions are served at {at}");
            }
            let gone = self.store.status_and_tombstone(event).1;
            let cannot_be_deleted = matches!(event.kind, kinds::DELETION | kinds::VANISH);
            assert!(
                gone.is_none()
                    || (cannot_be_deleted && gone == Some(TombstoneKind::Deleted))
                    || event.kind == kinds::VANISH,
                "served in spite of a tombstone ({gone:?}): {}",
                event.json()
            );
        }
        for id in &held {
            assert!(
                self.admission.purgatory().get(*id).is_some(),
                "held in the store but not in the machine's purgatory: {id}"
            );
        }
        assert_eq!(
            held.len(),
            self.admission.purgatory().len(),
            "in the machine's purgatory but not held in the store"
        );
        if self.admission.policy().mode == AdmissionMode::Grasp {
            assert_eq!(self.catalog_versions(), self.store_versions(), "the catalog (left) disagrees with the store");
            self.check_exceptions();
            self.check_served_states();
            self.check_git();
        }
        self.check_early_requests();
        self.check_repo_needs();
    }

    /// Checks that the machine has the stored requests of unknown keys, and that their keys are unknown.
    fn check_early_requests(&self) {
        let stored = self.store.early_requests();
        let in_memory: BTreeMap<EventId, EarlyRequest> =
            self.admission.early_requests().map(|request| (request.event.id, request.clone())).collect();
        assert_eq!(*stored, in_memory, "stored requests of unknown keys (left) and those of the machine");
        if self.admission.policy().ignores_deletions {
            return;
        }
        for author in stored.values().map(|request| request.event.pubkey) {
            let has_events = self.store.served_events().chain(self.store.held_events()).any(|it| it.pubkey == author);
            let is_listed = self.admission.catalog().is_listed_maintainer(author);
            assert!(!has_events && !is_listed, "requests of {author} are not served although the key is known");
        }
    }

    /// Checks that sync has received the current repository needs of every identifier: no notification was missed.
    fn check_repo_needs(&self) {
        for (identifier, needs) in &self.published_needs {
            assert_eq!(*needs, self.repo_needs(identifier), "needs that sync has (left) of {identifier:?}");
        }
        for repo in self.hosted_repos() {
            assert!(self.published_needs.contains_key(&repo.identifier), "sync has no needs of {repo}");
        }
    }

    /// Checks that an announcement accepted by the maintainer exception exists only beside a hosted repository
    /// (docs/design/admission.md#maintainer-exception-announcements).
    fn check_exceptions(&self) {
        for (repo, slots) in self.admission.catalog().repositories() {
            let group = self.admission.catalog().group(&repo.identifier);
            let is_orphan = slots.served.as_ref().is_some_and(|served| served.is_exception && !served.is_hosted())
                && !group.is_some_and(|group| group.has_hosted());
            assert!(!is_orphan, "maintainer exception without a hosted repository: {repo}");
        }
    }

    /// Checks that every served state applies to a repository whose git data is kept.
    fn check_served_states(&self) {
        let strict = self.admission.policy().strict_maintainers;
        for event in self.store.served_events().filter(|event| event.kind == kinds::STATE) {
            let identifier = event.tag("d").and_then(Identifier::new).expect("validated on admission");
            let group = self.admission.catalog().group(&identifier);
            let applies = group.is_some_and(|group| group.has_kept_repo(event.pubkey, strict));
            assert!(applies, "served although it applies to no repository: {}", event.json());
        }
    }

    /// Checks that every served pull request has its ref in a repository whose git data is kept.
    fn check_served_pulls(&self) {
        let has_ref = |event: &SignedEvent, tip: &String| {
            let target = |refs: &Refs| refs.get(&pull_ref(event.id)).map(|target| target.oid.clone());
            self.store.repos().any(|(_, refs)| target(refs).as_ref() == Some(tip))
        };
        for event in self.store.served_events() {
            let Some(request) = PullRequest::from_any_event(event) else { continue };
            assert!(has_ref(event, &request.tip), "served without a ref: {}", event.json());
        }
    }

    /// Returns the repositories whose pools a repository may read.
    pub(super) fn alternates(&self, repo_path: &RepoPath) -> BTreeSet<RepoPath> {
        let RepoPath::Announced(repo) = repo_path else { return BTreeSet::new() };
        self.admission.hosted_repo(repo).map(|hosted| hosted.alternates).unwrap_or_default().into_iter().collect()
    }

    /// Returns the objects that a repository may read, and those that it reads because it has read them before.
    pub(super) fn readable(&self, repo_path: &RepoPath) -> Oids {
        let mut objects = self.git.read(repo_path, &self.alternates(repo_path));
        objects.extend(self.git.readable(repo_path));
        objects
    }

    /// Checks the invariants that hold after every step of git: visible refs are complete, and objects of uploads
    /// without an event are in no pool.
    pub(super) fn check_git(&self) {
        if self.skips_invariants {
            return;
        }
        // A repository that is being deleted, and was announced again meanwhile, stays visible until it is deleted.
        let is_being_deleted = |repo_path: &RepoPath| {
            self.running.iter().any(|job| job.repo_path == *repo_path && is_deletion(&job.operation))
        };
        let open = |repo_path: &RepoPath| self.admission.is_available(repo_path) && !is_being_deleted(repo_path);
        for (repo_path, refs) in self.store.repos().filter(|(repo_path, _)| open(repo_path)) {
            let readable = if refs.is_empty() { Oids::new() } else { self.git.readable(repo_path) };
            for (name, RefTarget { oid, .. }) in refs.iter() {
                assert!(
                    self.git.is_complete(oid, &readable),
                    "{repo_path}: {name} points to {oid}, which is incomplete"
                );
            }
        }
        let signed = |(event, tip, _): &&(EventId, String, Oids)| self.pull_request_tips.get(event) == Some(tip);
        let mut known_objects = self.received_objects.clone();
        known_objects.extend(self.uploaded.iter().filter(signed).flat_map(|(_, _, oids)| oids.iter().cloned()));
        let unsigned = self.uploaded.iter().filter(|upload| !signed(upload)).flat_map(|(_, _, oids)| oids);
        let unsigned: BTreeSet<&String> = unsigned.filter(|oid| !known_objects.contains(*oid)).collect();
        for (repo_path, folder) in self.git.folders() {
            let leaked: Vec<&String> = folder.pool.iter().filter(|oid| unsigned.contains(oid)).collect();
            assert!(leaked.is_empty(), "objects without an event are in the pool of {repo_path}: {leaked:?}");
        }
    }

    /// Checks that the git data of an event is present when the event is released.
    pub(super) fn check_release(&mut self, id: EventId) {
        // It may have been removed again in the same batch.
        let Some((event, EventStatus::Served)) = self.store.event(id) else { return };
        let folders: Vec<_> =
            self.git.folders().map(|(repo_path, folder)| (repo_path, folder, self.git.readable(repo_path))).collect();
        if event.kind == kinds::STATE {
            let state = RepoState::from_event(&event).expect("validated on admission");
            let repos = self.repos_maintained_by(&state.identifier, state.author);
            // Either this state is applied, or a better one whose repository also has all objects of this state.
            let has_all = folders.iter().any(|(repo_path, _, readable)| {
                matches!(repo_path, RepoPath::Announced(repo) if repos.contains(repo))
                    && state.oids().iter().all(|oid| self.git.is_complete(oid, readable))
            });
            // An empty state of a repository that was never pushed to needs no folder.
            let empty = state.refs.is_empty()
                && repos.iter().any(|repo| self.git.folder(&RepoPath::Announced(repo.clone())).is_none());
            assert!(has_all || empty, "no repository has the objects of {}", event.json());
        } else if let Some(request) = PullRequest::from_any_event(&event) {
            let name = pull_ref(id);
            let (mut shown, store) = (false, &mut self.store);
            for (repo_path, _, readable) in &folders {
                let refs = store.repo(repo_path).map(|(refs, _)| refs).unwrap_or_default();
                shown |= self.admission.is_available(repo_path)
                    && refs.get(&name).is_some_and(|target| target.oid == request.tip)
                    && self.git.is_complete(&request.tip, readable);
            }
            assert!(shown, "no repository has a ref to the commit of {}", event.json());
            let repo_paths = self.repo_paths_of(&event, &request);
            // In a target repository, or where it can be copied from into one.
            let alternates = repo_paths.iter().flat_map(|repo_path| self.alternates(repo_path));
            let mut objects =
                alternates.chain(repo_paths.iter().cloned()).map(|repo_path| self.git.readable(&repo_path));
            let here = objects.any(|objects| self.git.is_complete(&request.tip, &objects));
            assert!(here, "no target repository has the commit of {}: {repo_paths:?}", event.json());
        }
    }

    /// Whether a repository may have the ref of a pull request: it is a target, or a target reads its objects.
    fn may_have_ref(&self, repo_path: &RepoPath, event: &SignedEvent, request: &PullRequest) -> bool {
        let repo_paths = self.repo_paths_of(event, request);
        repo_paths.contains(repo_path) || repo_paths.iter().any(|target| self.alternates(target).contains(repo_path))
    }

    /// Returns the repositories in which a pull request's commit is expected.
    fn repo_paths_of(&self, event: &SignedEvent, request: &PullRequest) -> Vec<RepoPath> {
        let targets = request.targets.iter().map(|repo| RepoPath::Announced(repo.clone()));
        let targets = targets.filter(|repo_path| self.admission.is_available(repo_path));
        targets.chain(self.admission.policy().submission_paths(event.pubkey, request)).collect()
    }

    /// Checks the invariants that hold when the server is idle.
    pub(super) fn check_idle(&mut self) {
        let busy = !self.running.is_empty() || !self.admission.is_idle();
        assert!(!busy || !self.running.is_empty(), "the machine is busy without a running git job");
        if self.skips_invariants || busy || self.admission.policy().mode != AdmissionMode::Grasp {
            return;
        }
        let unanswered: Vec<_> = self.pushes.iter().filter(|(_, push)| push.is_waiting()).collect();
        assert!(unanswered.is_empty(), "pushes without a result: {unanswered:?}");
        let rows = self.pending_uploads();
        let numbers: BTreeSet<u64> = rows.iter().map(|upload| upload.folder).collect();
        let lost: Vec<u64> = self.git.staged().difference(&numbers).copied().collect();
        assert!(lost.is_empty(), "uploads without a row: {lost:?}");
        let known: BTreeSet<_> = self.admission.uploads().cloned().collect();
        assert_eq!(known, rows.into_iter().collect(), "uploads of the machine (left) and of the store");
        if self.has_failed_jobs {
            return;
        }
        assert_eq!(self.todos(), BTreeSet::new(), "todo rows without a running job");
        for (repo_path, _) in self.git.folders() {
            match repo_path {
                RepoPath::Announced(repo) => {
                    let group = self.admission.catalog().group(&repo.identifier);
                    // A repository that the operator no longer archives is kept.
                    let left = group
                        .and_then(|group| group.newest_announcement(repo.owner))
                        .is_some_and(|best| !best.is_exception);
                    assert!(
                        self.admission.is_available(repo_path) || left,
                        "{repo_path} is no longer hosted but has a folder"
                    );
                }
                RepoPath::PullRequests(_) => {
                    assert!(!self.store.refs(repo_path).is_empty(), "{repo_path} has no refs but a folder")
                }
            }
        }
        for repo in self.hosted_repos() {
            self.check_followed(&repo);
        }
        self.check_pulls();
        self.check_served_pulls();
        self.check_uploads();
    }

    /// Checks that a repository follows the best complete state that is authoritative for it.
    fn check_followed(&mut self, repo: &RepoId) {
        let repo_path = RepoPath::Announced(repo.clone());
        let hosted = self.admission.hosted_repo(repo).expect("hosted");
        let objects = self.readable(&repo_path);
        let group = self.admission.catalog().group(&repo.identifier).expect("hosted");
        let states = group.states_for(repo.owner, self.admission.policy().strict_maintainers);
        let any_served = states.iter().any(|(_, status)| *status == EventStatus::Served);
        let states: Vec<(RepoState, EventStatus)> = states
            .into_iter()
            .map(|(version, status)| {
                (RepoState::from_event(&self.store.event(version.id).expect("known").0).expect("valid state"), status)
            })
            .collect();
        let refs: BTreeMap<String, String> = self.refs(&repo_path);
        let refs: BTreeMap<&String, &String> = refs.iter().filter(|(name, _)| is_branch_or_tag(name)).collect();
        let best = states.iter().find(|(state, status)| {
            // Other repositories are searched again only for held events.
            let waits = *status == EventStatus::Held || hosted.status == EventStatus::Held;
            let sources =
                self.repos_maintained_by(&state.identifier, state.author).into_iter().map(RepoPath::Announced);
            let elsewhere = sources.filter(|_| waits).map(|source| self.git.readable(&source));
            let mut places = elsewhere.chain([objects.clone()]);
            let oids = state.oids();
            state.is_satisfiable()
                && (hosted.status == EventStatus::Served || !state.refs.is_empty())
                && oids.iter().all(|oid| oid.len() == 40)
                && places.any(|objects| oids.iter().all(|oid| self.git.is_complete(oid, &objects)))
        });
        // A state whose objects were lost with an alternate, and returned, is applied by the repository's next git
        // job.
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
                assert_eq!(hosted.status, EventStatus::Served, "{repo_path} follows {:?} but is held", state.version);
                let refs = self.store.refs(&repo_path);
                let head = state.head.as_deref().filter(|head| refs.get(head).is_some());
                assert!(head.is_none_or(|head| head == refs.head()), "{repo_path}: HEAD is {}", refs.head());
            }
            None if !any_served => assert!(refs.is_empty(), "{repo_path}: no state declares {refs:?}"),
            None => {}
        }
    }

    /// Checks that pull request refs belong to served pull requests, and that no held pull request's commit is
    /// present.
    fn check_pulls(&mut self) {
        for (repo_path, refs) in
            self.visible_refs().iter().filter(|(repo_path, _)| self.admission.is_available(repo_path))
        {
            for (name, RefTarget { oid, .. }) in refs.iter().filter(|(name, _)| !is_branch_or_tag(name)) {
                let id = name.strip_prefix("refs/nostr/").and_then(EventId::from_hex).expect("only pull request refs");
                let Some((event, status)) = self.store.event(id) else { panic!("{repo_path}: {name} has no event") };
                let request = PullRequest::from_any_event(&event).expect("only pull requests have such refs");
                assert_eq!((status, oid), (EventStatus::Served, &request.tip), "{repo_path}: {name}");
            }
        }
        let mut readable: BTreeMap<RepoPath, Oids> = BTreeMap::new();
        for event in self.store.held_events() {
            let Some(request) = PullRequest::from_any_event(event).filter(|request| request.tip.len() == 40) else {
                continue;
            };
            let repo_paths = self.repo_paths_of(event, &request);
            if !self.is_any_served(&repo_paths) {
                continue;
            }
            for repo_path in repo_paths {
                let read = || self.readable(&repo_path);
                let objects = readable.entry(repo_path.clone()).or_insert_with(read);
                let waits = !self.git.is_complete(&request.tip, objects);
                assert!(waits, "held although {repo_path} has its commit: {}", event.json());
            }
        }
    }

    /// Whether one of these repositories is served. A pull request waits for that, with its upload.
    fn is_any_served(&self, repo_paths: &[RepoPath]) -> bool {
        repo_paths.iter().any(|repo_path| match repo_path {
            RepoPath::Announced(repo) => {
                self.admission.hosted_repo(repo).is_some_and(|hosted| hosted.status == EventStatus::Served)
            }
            RepoPath::PullRequests(_) => true,
        })
    }

    /// Checks that no upload is kept for a held event that needs it.
    fn check_uploads(&mut self) {
        for upload in self.pending_uploads() {
            let Some((event, EventStatus::Held)) = self.store.event(upload.event) else { continue };
            let request = PullRequest::from_any_event(&event).expect("uploads belong to pull requests");
            assert_eq!(upload.tip, request.tip, "{upload:?}");
            let wanted = self.may_have_ref(&upload.repo_path, &event, &request)
                && self.is_any_served(&self.repo_paths_of(&event, &request));
            // An upload that was adopted, and needs objects that were deleted with an alternate since, is a row
            // without objects.
            assert!(
                !wanted || !self.git.staged().contains(&upload.folder),
                "upload is staged although its event is held: {upload:?}"
            );
        }
    }

    /// Checks that the values that the catalog derives incrementally (maintainer sets, names, hosts) equal those of a
    /// catalog that is rebuilt from the store.
    pub fn check_derived(&self, identifiers: &[&str]) {
        let mut fresh = Admission::new(self.admission.policy().clone());
        for restored in self.store.restored() {
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
                        (hosts, maintainers, group.has_hosted(), group.invitation(*author, strict))
                    })
                };
                assert_eq!(view(&self.admission), view(&fresh), "derived values (left) of {author} and {identifier:?}");
                let named = |admission: &Admission| admission.catalog().is_listed_maintainer(*author);
                assert_eq!(named(&self.admission), named(&fresh), "whether {author} is listed");
            }
        }
    }

    fn catalog_versions(&self) -> VersionIndex {
        let catalog = self.admission.catalog();
        let mut index = VersionIndex::default();
        for (repo, slots) in catalog.repositories() {
            index.add(&repo, kinds::ANNOUNCEMENT, true, slots.served.as_ref().map(|served| served.version));
            index.add(&repo, kinds::ANNOUNCEMENT, false, slots.held.as_ref().map(|held| held.version));
        }
        for author in &self.authors {
            for identifier in catalog.identifiers_of(*author) {
                let repo = RepoId { owner: *author, identifier: identifier.clone() };
                let states = catalog.group(identifier).and_then(|group| group.states(*author));
                index.add(&repo, kinds::STATE, true, states.and_then(|states| states.served));
                index.add(&repo, kinds::STATE, false, states.into_iter().flat_map(|states| states.held.clone()));
            }
        }
        index
    }

    fn store_versions(&self) -> VersionIndex {
        let mut index = VersionIndex::default();
        let served = self.store.served_events().map(|event| (event, true));
        for (event, is_served) in served.chain(self.store.held_events().map(|event| (event, false))) {
            if matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE) {
                let repo =
                    event.coordinate().as_ref().and_then(RepoId::from_coordinate).expect("validated on admission");
                index.add(&repo, event.kind, is_served, Some(event.version()));
            }
        }
        index
    }
}

fn is_deletion(work: &GitOperation) -> bool {
    matches!(work, GitOperation::Delete)
}

/// Versions of announcements and states by repository, kind and whether they are served.
#[derive(PartialEq, Eq, Debug, Default)]
struct VersionIndex(BTreeMap<(RepoId, u16, bool), BTreeSet<(Timestamp, EventId)>>);

impl VersionIndex {
    fn add(&mut self, repo: &RepoId, kind: u16, served: bool, versions: impl IntoIterator<Item = EventVersion>) {
        for version in versions {
            self.0.entry((repo.clone(), kind, served)).or_default().insert((version.created_at, version.id));
        }
    }
}
