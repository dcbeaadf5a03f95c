//! Authorisation of pushes: a pure function of the current refs, the commands, and the states of the repository.
//!
//! Authority comes from a signed state, not from being a fast-forward: a push is permitted if branches and tags are
//! *exactly* what a state declares after it. Any client may push `refs/nostr/<event id>`, unless the known event
//! contradicts it (docs/protocol.md#push-authorisation, docs/protocol.md#pull-request-refs).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::disk_budget::Quota;
use crate::limits;
use crate::nostr::event::{EventId, EventVersion};
use crate::nostr::supersedes;
use crate::repo::state::{StateDigest, refs_hash};
use crate::repo::{RepoPath, RepoState, ref_name};

/// One command of a push: the old value of a ref, as the client knows it, and the new value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PushCommand {
    /// The name of the ref.
    pub name: String,
    /// The old object id; `None` if the ref did not exist.
    pub old: Option<String>,
    /// The new object id; `None` deletes the ref.
    pub new: Option<String>,
}

/// What is known about the event that a `refs/nostr/<id>` names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RefEvent {
    /// It is not stored. It may arrive later.
    Unknown,
    /// A pull request for this repository, served or held, with this commit.
    PullRequest(String),
    /// A pull request for other repositories only.
    OtherRepository,
    /// An event of another kind.
    NotPullRequest,
}

/// The facts that a decision about a push depends on.
#[derive(Clone, Debug)]
pub struct PushContext<'a> {
    /// The repository that is pushed to.
    pub repo_path: &'a RepoPath,
    /// The current branches and tags of the repository.
    pub refs: &'a BTreeMap<String, String>,
    /// Held states that apply to this repository.
    pub held_states: &'a [DeclaredState],
    /// The served state that the repository follows.
    pub current: Option<&'a DeclaredState>,
}

/// A state that applies to a repository, without its refs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredState {
    /// The event's timestamp and id.
    pub version: EventVersion,
    /// What is known of its refs.
    pub digest: Arc<StateDigest>,
}

/// The effects of a permitted push.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PushPermit {
    /// The state that the push completes; `None` if it changes no branch or tag.
    pub state: Option<EventVersion>,
    /// The pushed pull requests whose event is stored: event and commit.
    pub pull_requests: Vec<(EventId, String)>,
    /// The pushed pull requests whose event is not stored: event and commit. Their objects are staged until the event
    /// arrives.
    pub uploads: Vec<(EventId, String)>,
    /// The number of bytes that a quota leaves for the push, and the quota.
    pub quota_left: Option<(u64, Quota)>,
}

impl PushPermit {
    /// Whether the push changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.changes_refs() && self.uploads.is_empty()
    }

    /// Whether the push sets refs now. Uploads get theirs when their events arrive.
    #[must_use]
    pub fn changes_refs(&self) -> bool {
        self.state.is_some() || !self.pull_requests.is_empty()
    }
}

/// Why a push is rejected. The code is stable; the text says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushRejection {
    /// The ref is neither a branch, nor a tag, nor that of a pull request.
    #[error("{0}: only refs/heads/, refs/tags/ and refs/nostr/<event id> are accepted")]
    UnsupportedNamespace(String),
    /// The ref is not that of a pull request, at a path that accepts only pull requests (GRASP-06).
    #[error("{0}: only refs/nostr/<event id> is accepted at this path")]
    OnlyPullRequests(String),
    /// The name is not a valid git ref name.
    #[error("{0}: not a valid git ref name")]
    InvalidRefName(String),
    /// `refs/nostr/` is not followed by an event id.
    #[error("{0}: refs/nostr/ must be followed by the 64 hex digits of a pull request's event id")]
    InvalidEventId(String),
    /// The push would delete the ref of a pull request.
    #[error("{0}: only the author can delete a pull request, with a deletion request (kind 5)")]
    DeletePullRequest(String),
    /// The event is stored and names another commit.
    #[error("{name}: the event names commit {expected}, but {found} was pushed")]
    CommitMismatch {
        /// The ref.
        name: String,
        /// The commit that the event names.
        expected: String,
        /// The commit that was pushed.
        found: String,
    },
    /// The event is stored and is not a pull request.
    #[error("{0}: the event is not a pull request")]
    NotPullRequest(String),
    /// The event is stored and names other repositories.
    #[error("{0}: the event does not name this repository: push to one that it names")]
    OtherRepository(String),
    /// The limits of uploads whose event is not stored are reached.
    #[error("the limit of uploads without a published event is reached: publish the event first, or try again later")]
    UploadsFull,
    /// One push contains too many uploads whose event is not stored.
    #[error(
        "at most {} pull requests without a published event are accepted in one push: publish the events first",
        limits::MAX_UPLOADS_PER_PUSH
    )]
    TooManyUploads,
    /// The old value in a command is not the current value of the ref.
    #[error(
        "{name}: the server has {}, but the push expects {}: fetch and try again",
        oid_or_no_ref(.expected), oid_or_no_ref(.found)
    )]
    RefMoved {
        /// The ref.
        name: String,
        /// The current value.
        expected: Option<String>,
        /// The old value in the command.
        found: Option<String>,
    },
    /// No state is held for the repository.
    #[error("no pending state event for this repository: publish a state (kind 30618) first")]
    NoState,
    /// States are held, but none declares the refs that would result. [`PushRejection::explain`] finds the difference,
    /// outside of the writer.
    #[error(
        "no pending state declares exactly the refs that this push would result in: push what the newest one declares"
    )]
    UnmatchedState {
        /// The newest state.
        newest: EventId,
        /// The branches and tags after the push.
        after: Box<BTreeMap<String, String>>,
    },
    /// States are held, but none declares the refs that would result. Contains the first difference to the newest one.
    #[error("{name}: {}", mismatch_text(name, .expected.as_deref(), .found.as_deref()))]
    StateMismatch {
        /// The ref that differs.
        name: String,
        /// What the state declares.
        expected: Option<String>,
        /// What the ref would be after the push.
        found: Option<String>,
    },
    /// The repository is not hosted here (or no longer hosted).
    #[error("this repository is not hosted here: publish an announcement (kind 30617) first")]
    NotHosted,
    /// This service is a read-only archive.
    #[error("this service is a read-only archive: push to a server that the repository's announcement names")]
    ReadOnly,
    /// The state or a pull request of the push was deleted, replaced or has expired since the push was permitted.
    #[error("the state or pull request of this push was deleted, replaced or has expired: fetch and try again")]
    AuthorityChanged,
    /// The disk budget is used up.
    #[error("the disk budget of this service is used up: no push is accepted for now")]
    DiskFull,
    /// The push would exceed a quota.
    #[error("{}; this push would exceed that", quota_text(*.0))]
    QuotaExceeded(Quota),
    /// Too many pushes to repositories with this identifier are waiting.
    #[error("too many pushes are waiting: try again in a moment")]
    Busy,
    /// The server failed to carry out the push. It may be completed by a restart or by another attempt.
    #[error("{0}; the push is not complete, try again later")]
    Failed(String),
}

impl PushRejection {
    /// Returns the stable code of the reason.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnsupportedNamespace(_) | Self::OnlyPullRequests(_) => "E-REF-NAMESPACE",
            Self::InvalidRefName(_) => "E-REF-NAME",
            Self::InvalidEventId(_) => "E-PR-ID",
            Self::DeletePullRequest(_) => "E-PR-DELETE",
            Self::CommitMismatch { .. } => "E-PR-COMMIT",
            Self::NotPullRequest(_) => "E-PR-KIND",
            Self::OtherRepository(_) => "E-PR-TARGET",
            Self::UploadsFull => "E-PR-ROOM",
            Self::TooManyUploads => "E-PR-MANY",
            Self::RefMoved { .. } => "E-REF-MOVED",
            Self::NoState => "E-STATE-MISSING",
            Self::UnmatchedState { .. } | Self::StateMismatch { .. } => "E-STATE-MISMATCH",
            Self::NotHosted => "E-REPO-MISSING",
            Self::ReadOnly => "E-READ-ONLY",
            Self::AuthorityChanged => "E-STATE-CHANGED",
            Self::DiskFull => "E-DISK-FULL",
            Self::QuotaExceeded(Quota::Repository(_)) => "E-QUOTA-REPOSITORY",
            Self::QuotaExceeded(Quota::Key(_)) => "E-QUOTA-KEY",
            Self::Busy => "E-BUSY",
            Self::Failed(_) => "E-SERVER",
        }
    }

    /// Replaces [`PushRejection::UnmatchedState`] by the first difference to the newest state. `read` returns that state;
    /// if it is gone meanwhile, the rejection stays as it is.
    #[must_use]
    pub fn explain(self, read: impl FnOnce(EventId) -> Option<RepoState>) -> Self {
        match &self {
            Self::UnmatchedState { newest, after } => match read(*newest) {
                Some(newest) => state_mismatch(&newest, after),
                None => self,
            },
            _ => self,
        }
    }

    /// Returns the ref that the reason is about, if it is about one.
    #[must_use]
    pub fn ref_name(&self) -> Option<&str> {
        match self {
            Self::UnsupportedNamespace(name)
            | Self::OnlyPullRequests(name)
            | Self::OtherRepository(name)
            | Self::InvalidRefName(name)
            | Self::InvalidEventId(name)
            | Self::DeletePullRequest(name)
            | Self::NotPullRequest(name)
            | Self::CommitMismatch { name, .. }
            | Self::RefMoved { name, .. }
            | Self::StateMismatch { name, .. } => Some(name),
            Self::NoState
            | Self::UnmatchedState { .. }
            | Self::UploadsFull
            | Self::TooManyUploads
            | Self::NotHosted
            | Self::ReadOnly
            | Self::AuthorityChanged
            | Self::DiskFull
            | Self::QuotaExceeded(_)
            | Self::Busy
            | Self::Failed(_) => None,
        }
    }
}

fn mismatch_text(name: &str, expected: Option<&str>, found: Option<&str>) -> String {
    match (expected, found) {
        (Some(expected), None) => format!(
            "the newest state declares this ref ({expected}), but the push does not contain it: push it with the others, \
             for example with: git push <remote> 'refs/heads/*' 'refs/tags/*'"
        ),
        (None, found) => format!(
            "the newest state does not declare this ref, but the push would leave it at {}: leave it out of the push, or \
             delete it in the same push if the server has it (:{name}), or publish a state that declares it",
            found.unwrap_or_default()
        ),
        (Some(expected), Some(found)) => format!(
            "the newest state declares {expected}, but the push would result in {found}: push exactly what the state \
             declares"
        ),
    }
}

fn quota_text(quota: Quota) -> String {
    match quota {
        Quota::Repository(max_bytes) => format!("a repository may use {max_bytes} bytes here"),
        Quota::Key(max_bytes) => format!("all repositories of one key may use {max_bytes} bytes here"),
    }
}

fn oid_or_no_ref(oid: &Option<String>) -> &str {
    oid.as_deref().unwrap_or("no such ref")
}

/// Decides about a push from its commands alone. `ref_event` returns what is known about the event of a pull request
/// ref.
///
/// # Errors
///
/// Returns the first reason to reject the push.
pub fn authorise(
    context: &PushContext<'_>,
    commands: &[PushCommand],
    ref_event: impl Fn(EventId) -> RefEvent,
) -> Result<PushPermit, PushRejection> {
    let mut permit = PushPermit { state: None, pull_requests: Vec::new(), uploads: Vec::new(), quota_left: None };
    let mut after = context.refs.clone();
    for command in commands {
        let name = &command.name;
        let is_pull_request = name.starts_with("refs/nostr/");
        let is_branch_or_tag = name.starts_with("refs/heads/") || name.starts_with("refs/tags/");
        if !is_pull_request && matches!(context.repo_path, RepoPath::PullRequests(_)) {
            return Err(PushRejection::OnlyPullRequests(name.clone()));
        }
        if !ref_name::is_valid(name) {
            return Err(PushRejection::InvalidRefName(name.clone()));
        }
        if is_pull_request {
            check_pull_request_ref(&mut permit, command, &ref_event)?;
        } else if is_branch_or_tag {
            apply_command(&mut after, command)?;
        } else {
            return Err(PushRejection::UnsupportedNamespace(name.clone()));
        }
    }
    if permit.uploads.len() > limits::MAX_UPLOADS_PER_PUSH {
        return Err(PushRejection::TooManyUploads);
    }
    if after != *context.refs {
        permit.state = Some(matching_state(context, after)?);
    }
    Ok(permit)
}

fn check_pull_request_ref(
    permit: &mut PushPermit,
    command: &PushCommand,
    ref_event: impl Fn(EventId) -> RefEvent,
) -> Result<(), PushRejection> {
    let name = command.name.clone();
    let id = name.strip_prefix("refs/nostr/").and_then(EventId::from_hex);
    let Some(id) = id else { return Err(PushRejection::InvalidEventId(name)) };
    let Some(tip) = command.new.clone() else { return Err(PushRejection::DeletePullRequest(name)) };
    match ref_event(id) {
        RefEvent::PullRequest(expected) if expected != tip => {
            return Err(PushRejection::CommitMismatch { name, expected, found: tip });
        }
        RefEvent::NotPullRequest => return Err(PushRejection::NotPullRequest(name)),
        RefEvent::OtherRepository => return Err(PushRejection::OtherRepository(name)),
        RefEvent::PullRequest(_) => permit.pull_requests.push((id, tip)),
        RefEvent::Unknown => permit.uploads.push((id, tip)),
    }
    Ok(())
}

/// Applies a command to a copy of the refs. A command whose effect is already there changes nothing, because sync may
/// have been faster than the push.
fn apply_command(refs: &mut BTreeMap<String, String>, command: &PushCommand) -> Result<(), PushRejection> {
    let current = refs.get(&command.name).cloned();
    if current == command.new {
        return Ok(());
    }
    if current != command.old {
        let (expected, found) = (current, command.old.clone());
        return Err(PushRejection::RefMoved { name: command.name.clone(), expected, found });
    }
    match &command.new {
        Some(oid) => refs.insert(command.name.clone(), oid.clone()),
        None => refs.remove(&command.name),
    };
    Ok(())
}

/// Returns the newest state that declares exactly these refs and is not older than the served one. An older state must
/// not roll the repository back.
fn matching_state(context: &PushContext<'_>, after: BTreeMap<String, String>) -> Result<EventVersion, PushRejection> {
    let not_older =
        |state: &&DeclaredState| context.current.is_none_or(|current| !supersedes(current.version, state.version));
    let mut states: Vec<&DeclaredState> = context
        .held_states
        .iter()
        .chain(context.current)
        .filter(not_older)
        .filter(|state| state.digest.is_satisfiable)
        .collect();
    states.sort_by(|left, right| {
        if supersedes(left.version, right.version) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater }
    });
    let Some(newest) = states.first() else { return Err(PushRejection::NoState) };
    let refs_hash = refs_hash(&after);
    if let Some(state) = states.iter().find(|state| state.digest.refs_hash == refs_hash) {
        return Ok(state.version);
    }
    if context.held_states.is_empty() {
        return Err(PushRejection::NoState);
    }
    Err(PushRejection::UnmatchedState { newest: newest.version.id, after: Box::new(after) })
}

/// Returns the first difference between a state and the refs after a push.
fn state_mismatch(newest: &RepoState, after: &BTreeMap<String, String>) -> PushRejection {
    let names = newest.refs.keys().chain(after.keys());
    let different = names.into_iter().filter(|name| newest.refs.get(*name) != after.get(*name)).min();
    let name = different.cloned().unwrap_or_default();
    PushRejection::StateMismatch { expected: newest.refs.get(&name).cloned(), found: after.get(&name).cloned(), name }
}

/// Returns the branches and tags after a push. `None` if a command does not apply to the current ones.
pub(super) fn refs_after(refs: BTreeMap<String, String>, commands: &[PushCommand]) -> Option<BTreeMap<String, String>> {
    let mut after = refs;
    for command in commands.iter().filter(|command| !command.name.starts_with("refs/nostr/")) {
        apply_command(&mut after, command).ok()?;
    }
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::PublicKey;
    use crate::repo::Identifier;
    use crate::time::Timestamp;

    fn oid(digit: char) -> String {
        digit.to_string().repeat(40)
    }

    fn repo_path() -> RepoPath {
        let identifier = Identifier::new("tool").expect("valid");
        RepoPath::Announced(crate::repo::RepoId { owner: PublicKey([1; 32]), identifier })
    }

    fn refs(pairs: &[(&str, char)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, digit)| (format!("refs/{name}"), oid(*digit))).collect()
    }

    fn state(created_at: u64, id: u8, pairs: &[(&str, char)]) -> RepoState {
        RepoState {
            author: PublicKey([1; 32]),
            identifier: Identifier::new("tool").expect("valid"),
            version: EventVersion { created_at: Timestamp(created_at), id: EventId([id; 32]) },
            refs: refs(pairs),
            head: None,
        }
    }

    fn declared(state: &RepoState) -> DeclaredState {
        DeclaredState { version: state.version, digest: Arc::new(state.digest()) }
    }

    /// Parses `ref:<old><new>`: `heads/main:12` updates, `heads/main:-2` creates, `heads/main:1-` deletes.
    fn commands(texts: &[&str]) -> Vec<PushCommand> {
        let optional_oid = |digit: char| (digit != '-').then(|| oid(digit));
        let parse = |text: &&str| {
            let (name, digits) = text.split_once(':').expect("name:digits");
            let mut digits = digits.chars();
            let (old, new) = (digits.next().expect("old"), digits.next().expect("new"));
            PushCommand { name: format!("refs/{name}"), old: optional_oid(old), new: optional_oid(new) }
        };
        texts.iter().map(parse).collect()
    }

    fn decide(
        current_refs: &[(&str, char)],
        held_states: &[RepoState],
        current: Option<&RepoState>,
        texts: &[&str],
    ) -> Result<Option<u8>, &'static str> {
        let current_refs = refs(current_refs);
        let repo_path = repo_path();
        let held_states: Vec<DeclaredState> = held_states.iter().map(declared).collect();
        let current = current.map(declared);
        let (refs, current) = (&current_refs, current.as_ref());
        let context = PushContext { repo_path: &repo_path, refs, held_states: &held_states, current };
        match authorise(&context, &commands(texts), |_| RefEvent::Unknown) {
            Ok(permit) => Ok(permit.state.map(|version| version.id.0[0])),
            Err(rejection) => {
                assert!(!rejection.to_string().is_empty());
                Err(rejection.code())
            }
        }
    }

    /// A push is accepted if the refs after it are exactly those that a state declares.
    #[test]
    fn push_must_result_in_exactly_the_declared_refs() {
        let current_refs = [("heads/main", '1'), ("heads/old", 'a')];
        let held = [state(50, 2, &[("heads/main", '2')])];
        let id = "ab".repeat(32);
        let with_pull_request = ["heads/main:12", "heads/old:a-", &format!("nostr/{id}:-9")];
        for (push, expected) in [
            (&["heads/main:12", "heads/old:a-"][..], Ok(Some(2))),
            (&["heads/main:12"], Err("E-STATE-MISMATCH")),
            (&["heads/main:13", "heads/old:a-"], Err("E-STATE-MISMATCH")),
            (&["heads/feature:-2"], Err("E-STATE-MISMATCH")),
            (&["heads/main:11"], Ok(None)),
            (&with_pull_request, Ok(Some(2))),
            (&["notes/x:-2"], Err("E-REF-NAMESPACE")),
        ] {
            assert_eq!(decide(&current_refs, &held, None, push), expected, "{push:?}");
        }
        let tag = [state(50, 3, &[("heads/main", '1'), ("tags/v1", 'f')])];
        let current_refs = [("heads/main", '1')];
        assert_eq!(decide(&current_refs, &tag, None, &["tags/v1:-f"]), Ok(Some(3)), "the tag object");
        assert_eq!(decide(&current_refs, &tag, None, &["tags/v1:-1"]), Err("E-STATE-MISMATCH"), "not its commit");
    }

    /// Without a held state only a push that restores the served state is accepted, because git data may have been
    /// lost.
    #[test]
    fn push_without_a_state_is_rejected() {
        assert_eq!(decide(&[], &[], None, &["heads/main:-1"]), Err("E-STATE-MISSING"));
        assert_eq!(decide(&[], &[], None, &[]), Ok(None));
        let current = state(50, 1, &[("heads/main", '1')]);
        let current_refs = [("heads/main", '1')];
        assert_eq!(decide(&current_refs, &[], Some(&current), &["heads/main:12"]), Err("E-STATE-MISSING"));
        assert_eq!(decide(&[], &[], Some(&current), &["heads/main:-1"]), Ok(Some(1)), "restores lost data");
    }

    #[test]
    fn already_applied_command_is_ignored() {
        let states = [state(50, 2, &[("heads/main", '2'), ("heads/dev", '3')])];
        let current_refs = [("heads/main", '2')];
        assert_eq!(decide(&current_refs, &states, None, &["heads/main:12", "heads/dev:-3"]), Ok(Some(2)));
        assert_eq!(decide(&[("heads/main", '4')], &states, None, &["heads/main:12"]), Err("E-REF-MOVED"));
    }

    #[test]
    fn older_state_cannot_roll_back_and_lower_id_wins_ties() {
        let current = state(60, 5, &[("heads/main", '1')]);
        let current_refs = [("heads/main", '1')];
        let older = [state(50, 2, &[("heads/main", '2')])];
        assert_eq!(decide(&current_refs, &older, Some(&current), &["heads/main:12"]), Err("E-STATE-MISMATCH"));
        let lower = [state(60, 4, &[("heads/main", '2')])];
        assert_eq!(decide(&current_refs, &lower, Some(&current), &["heads/main:12"]), Ok(Some(4)));
        let higher = [state(60, 6, &[("heads/main", '2')])];
        assert_eq!(decide(&current_refs, &higher, Some(&current), &["heads/main:12"]), Err("E-STATE-MISMATCH"));
        let two = [state(70, 8, &[("heads/main", '2')]), state(70, 7, &[("heads/main", '2')])];
        assert_eq!(decide(&current_refs, &two, Some(&current), &["heads/main:12"]), Ok(Some(7)));
    }

    #[test]
    fn pull_request_refs_must_match_the_known_event() {
        let id = EventId([0xab; 32]);
        let push = |text: &str, known: RefEvent| {
            let empty = BTreeMap::new();
            let repo_path = repo_path();
            let context = PushContext { repo_path: &repo_path, refs: &empty, held_states: &[], current: None };
            authorise(&context, &commands(&[text]), |event| if event == id { known.clone() } else { RefEvent::Unknown })
                .map(|permit| (permit.pull_requests, permit.uploads))
                .map_err(|rejection| rejection.code())
        };
        let name = format!("nostr/{id}");
        let permitted = Ok((vec![(id, oid('7'))], vec![]));
        assert_eq!(push(&format!("{name}:-7"), RefEvent::Unknown), Ok((vec![], vec![(id, oid('7'))])));
        assert_eq!(push(&format!("{name}:-7"), RefEvent::PullRequest(oid('7'))), permitted);
        assert_eq!(push(&format!("{name}:67"), RefEvent::PullRequest(oid('7'))), permitted, "corrects a wrong ref");
        assert_eq!(push(&format!("{name}:-7"), RefEvent::OtherRepository), Err("E-PR-TARGET"));
        assert_eq!(push(&format!("{name}:-8"), RefEvent::PullRequest(oid('7'))), Err("E-PR-COMMIT"));
        assert_eq!(push(&format!("{name}:-7"), RefEvent::NotPullRequest), Err("E-PR-KIND"));
        assert_eq!(push(&format!("{name}:7-"), RefEvent::Unknown), Err("E-PR-DELETE"));
        assert_eq!(push("nostr/123:-7", RefEvent::Unknown), Err("E-PR-ID"));
        assert_eq!(push(&format!("nostr/{}:-7", "AB".repeat(32)), RefEvent::Unknown), Err("E-PR-ID"));
        assert_eq!(push("heads/a..b:-7", RefEvent::Unknown), Err("E-REF-NAME"));
    }

    #[test]
    fn submission_repositories_accept_only_pull_request_refs() {
        let RepoPath::Announced(repo) = repo_path() else { panic!("announced") };
        let (repo_path, empty) = (RepoPath::PullRequests(repo), BTreeMap::new());
        let context = PushContext { repo_path: &repo_path, refs: &empty, held_states: &[], current: None };
        let push = |text: &str| {
            let permit = authorise(&context, &commands(&[text]), |_| RefEvent::Unknown);
            permit.map(|permit| permit.uploads.len()).map_err(|rejection| rejection.code())
        };
        assert_eq!(push(&format!("nostr/{}:-7", "ab".repeat(32))), Ok(1));
        assert_eq!(push("heads/main:-7"), Err("E-REF-NAMESPACE"));
        assert_eq!(push("nostr/not-a-valid-event-id:-7"), Err("E-PR-ID"));
    }

    #[test]
    fn rejection_text_says_what_was_expected_and_what_to_do() {
        let current_refs = refs(&[("heads/main", '1')]);
        let repo_path = repo_path();
        let reject = |refs: &[(&str, char)], push: &[&str]| {
            let newest = state(50, 2, refs);
            let held = [declared(&newest)];
            let context = PushContext { repo_path: &repo_path, refs: &current_refs, held_states: &held, current: None };
            let rejection = authorise(&context, &commands(push), |_| RefEvent::Unknown).expect_err("rejected");
            assert!(matches!(&rejection, PushRejection::UnmatchedState { newest: id, .. } if *id == newest.version.id));
            let gone = rejection.clone().explain(|_| None);
            assert_eq!((gone.code(), gone.ref_name()), ("E-STATE-MISMATCH", None));
            rejection.explain(|id| (id == newest.version.id).then_some(newest))
        };
        let wrong = reject(&[("heads/main", '2')], &["heads/main:13"]);
        assert_eq!(wrong.ref_name(), Some("refs/heads/main"));
        let text = wrong.to_string();
        assert!(text.contains(&oid('2')) && text.contains(&oid('3')) && text.contains("push exactly"), "{text}");

        let missing = reject(&[("heads/main", '2'), ("tags/v1", '4')], &["heads/main:12"]).to_string();
        let expected = "refs/tags/v1: the newest state declares this ref (4444444444444444444444444444444444444444), but \
                        the push does not contain it: push it with the others, for example with: git push <remote> \
                        'refs/heads/*' 'refs/tags/*'";
        assert_eq!(missing, expected);

        let undeclared = reject(&[("heads/dev", '2')], &["heads/dev:-2"]).to_string();
        assert!(
            undeclared.contains("does not declare this ref") && undeclared.contains(":refs/heads/main"),
            "{undeclared}"
        );
    }
}
