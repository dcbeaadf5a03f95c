//! May this push happen? A pure function of the refs that are here, the commands, and the states that wait for data.
//!
//! Authority comes from a signed state, not from fast-forwardness: a push is allowed if it makes branches and tags
//! *exactly* what a state declares (G1-52). Anybody may push `refs/nostr/<event id>` (G1-57), unless what is known of that
//! event contradicts it (G1-58).

use std::collections::BTreeMap;
use std::fmt;

use crate::disk_budget::Quota;
use crate::limits;
use crate::nostr::event::{EventId, Stamp};
use crate::nostr::supersedes;
use crate::repo::{Site, State, ref_name};

/// One command of a push: where a ref stood, by the client's knowledge, and where it should stand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The ref.
    pub name: String,
    /// Where it stood; `None` if it did not exist.
    pub old: Option<String>,
    /// Where it should stand; `None` deletes it.
    pub new: Option<String>,
}

/// What is known of the event that a `refs/nostr/<id>` names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Named {
    /// Nothing: it may still come.
    Unknown,
    /// A pull request for this site, served or held, with this tip.
    PullRequest(String),
    /// A pull request for other sites.
    Elsewhere,
    /// Something that is no pull request.
    Other,
}

/// What a decision about a push looks at.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    /// Where the push goes to.
    pub site: &'a Site,
    /// Branches and tags of the repository, as they are.
    pub refs: &'a BTreeMap<String, String>,
    /// States of this name that wait for their data and whose authors may speak for this repository.
    pub waiting: &'a [State],
    /// The state that the repository follows now.
    pub current: Option<&'a State>,
}

/// What a permitted push will lead to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permit {
    /// The state that it fulfils, if it is about branches and tags and changes any.
    pub state: Option<Stamp>,
    /// The refs of pull requests that it brings and whose event is here: event and tip.
    pub pulls: Vec<(EventId, String)>,
    /// The same for those whose event is not here yet: they are put aside until it comes.
    pub uploads: Vec<(EventId, String)>,
    /// How many bytes a quota leaves for it, and which.
    pub left: Option<(u64, Quota)>,
}

impl Permit {
    /// Whether the push changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.is_none() && self.pulls.is_empty() && self.uploads.is_empty()
    }
}

/// Why a push is refused. The code is stable; the text says what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PushRefusal {
    /// A ref that is neither a branch, a tag nor a pull request's.
    Namespace(String),
    /// Something else than a pull request, pushed to where only those are taken (GRASP-06).
    NotSubmitted(String),
    /// A name that git would not take.
    BadName(String),
    /// `refs/nostr/` with something else than an event id.
    EventId(String),
    /// An attempt to delete a pull request's ref.
    DeletePullRequest(String),
    /// The event is here and names another commit.
    OtherCommit {
        /// The ref.
        name: String,
        /// The commit that the event names.
        expected: String,
        /// The commit that was pushed.
        found: String,
    },
    /// The event is here and is no pull request.
    NoPullRequest(String),
    /// The event is here and names other repositories.
    Elsewhere(String),
    /// There is no room for uploads whose event is not here.
    NoRoom,
    /// More uploads without their events than one push may bring.
    TooManyUploads,
    /// The client did not know where a ref stands.
    Moved {
        /// The ref.
        name: String,
        /// Where it stands.
        expected: Option<String>,
        /// Where the client thought it stood.
        found: Option<String>,
    },
    /// No state waits for data.
    NoState,
    /// States wait, but none declares what this push would make. Says where the newest differs first.
    NoMatch {
        /// The ref that differs.
        name: String,
        /// What the state declares.
        expected: Option<String>,
        /// What the push would make.
        found: Option<String>,
    },
    /// The repository is not hosted here, or not any more.
    NotHosted,
    /// This service is an archive: nobody pushes to it.
    ReadOnly,
    /// What had been permitted is not permitted any more: something was deleted, replaced or expired meanwhile.
    Changed,
    /// The disk budget is used up.
    DiskFull,
    /// A quota is used up, or would be.
    Quota(Quota),
    /// Too many pushes to repositories of this name wait for their turn.
    Busy,
    /// The server could not carry it out; nothing that is served was changed.
    Failed(String),
}

impl PushRefusal {
    /// The stable name of the reason.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Namespace(_) | Self::NotSubmitted(_) => "E-REF-NAMESPACE",
            Self::BadName(_) => "E-REF-NAME",
            Self::EventId(_) => "E-PR-ID",
            Self::DeletePullRequest(_) => "E-PR-DELETE",
            Self::OtherCommit { .. } => "E-PR-COMMIT",
            Self::NoPullRequest(_) => "E-PR-KIND",
            Self::Elsewhere(_) => "E-PR-TARGET",
            Self::NoRoom => "E-PR-ROOM",
            Self::TooManyUploads => "E-PR-MANY",
            Self::Moved { .. } => "E-REF-MOVED",
            Self::NoState => "E-STATE-MISSING",
            Self::NoMatch { .. } => "E-STATE-MISMATCH",
            Self::NotHosted => "E-REPO-MISSING",
            Self::ReadOnly => "E-READ-ONLY",
            Self::Changed => "E-STATE-CHANGED",
            Self::DiskFull => "E-DISK-FULL",
            Self::Quota(Quota::Repository(_)) => "E-QUOTA-REPOSITORY",
            Self::Quota(Quota::Key(_)) => "E-QUOTA-KEY",
            Self::Busy => "E-BUSY",
            Self::Failed(_) => "E-SERVER",
        }
    }

    /// The ref that the reason is about, if it is about one.
    #[must_use]
    pub fn about(&self) -> Option<&str> {
        match self {
            Self::Namespace(name)
            | Self::NotSubmitted(name)
            | Self::Elsewhere(name)
            | Self::BadName(name)
            | Self::EventId(name)
            | Self::DeletePullRequest(name)
            | Self::NoPullRequest(name)
            | Self::OtherCommit { name, .. }
            | Self::Moved { name, .. }
            | Self::NoMatch { name, .. } => Some(name),
            Self::NoState
            | Self::NoRoom
            | Self::TooManyUploads
            | Self::NotHosted
            | Self::ReadOnly
            | Self::Changed
            | Self::DiskFull
            | Self::Quota(_)
            | Self::Busy
            | Self::Failed(_) => None,
        }
    }
}

impl fmt::Display for PushRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |oid: &Option<String>| oid.clone().unwrap_or_else(|| "nothing".to_owned());
        match self {
            Self::Namespace(name) => {
                write!(f, "{name}: only refs/heads/, refs/tags/ and refs/nostr/<event id> are taken")
            }
            Self::NotSubmitted(name) => write!(f, "{name}: only refs/nostr/<event id> is taken here"),
            Self::BadName(name) => write!(f, "{name}: not a name that git can keep"),
            Self::EventId(name) => {
                write!(f, "{name}: refs/nostr/ takes the 64 hex digits of a pull request's event id")
            }
            Self::DeletePullRequest(name) => {
                write!(f, "{name}: pull requests are deleted by their author, with a deletion event")
            }
            Self::OtherCommit { name, expected, found } => {
                write!(f, "{name}: the event names commit {expected}, the push brings {found}")
            }
            Self::NoPullRequest(name) => write!(f, "{name}: the event is no pull request"),
            Self::Elsewhere(name) => {
                write!(f, "{name}: the event does not name this repository: push to one that it names")
            }
            Self::NoRoom => f.write_str(
                "no room for pull requests whose event is not here yet: publish the event first, or try again later",
            ),
            Self::TooManyUploads => write!(
                f,
                "at most {} pull requests whose event is not here yet are taken in one push: publish the events first",
                limits::MAX_UPLOADS_PER_PUSH
            ),
            Self::Moved { name, expected, found } => {
                write!(f, "{name} is at {}, not at {}: fetch and try again", place(expected), place(found))
            }
            Self::NoState => f.write_str("no state waits for this push: publish a state event (kind 30618) first"),
            Self::NoMatch { name, expected, found } => write!(
                f,
                "{name}: the newest state declares {}, the push would leave {}: push exactly what the state declares",
                place(expected),
                place(found)
            ),
            Self::NotHosted => f.write_str("this repository is not hosted here: publish an announcement (kind 30617)"),
            Self::ReadOnly => f.write_str(
                "this service is a read-only archive: push to a server that the repository's announcement names",
            ),
            Self::Changed => f.write_str(
                "what this push fulfils was deleted, replaced or has expired meanwhile: fetch and try again",
            ),
            Self::DiskFull => f.write_str("the disk of this service is full: nothing is taken until there is room"),
            Self::Quota(Quota::Repository(most)) => {
                write!(f, "a repository may take {most} bytes here, and this one would take more")
            }
            Self::Quota(Quota::Key(most)) => {
                write!(f, "all repositories of one key may take {most} bytes here, and these would take more")
            }
            Self::Busy => f.write_str("too many pushes wait for their turn: try again in a moment"),
            Self::Failed(why) => write!(f, "{why}; nothing was changed, try again later"),
        }
    }
}

/// Decides about a push from its command list alone. `named` tells what is known of the event of a pull request's ref.
pub fn authorise(
    scene: &Scene<'_>,
    commands: &[Command],
    named: impl Fn(EventId) -> Named,
) -> Result<Permit, PushRefusal> {
    let mut permit = Permit { state: None, pulls: Vec::new(), uploads: Vec::new(), left: None };
    let mut after = scene.refs.clone();
    for command in commands {
        let name = &command.name;
        let is_pull = name.starts_with("refs/nostr/");
        let is_branch_or_tag = name.starts_with("refs/heads/") || name.starts_with("refs/tags/");
        if !is_pull && matches!(scene.site, Site::Submitted(_)) {
            return Err(PushRefusal::NotSubmitted(name.clone()));
        }
        if !ref_name::is_valid(name) {
            return Err(PushRefusal::BadName(name.clone()));
        }
        if is_pull {
            pull_request(&mut permit, command, &named)?;
        } else if is_branch_or_tag {
            apply(&mut after, command)?;
        } else {
            return Err(PushRefusal::Namespace(name.clone()));
        }
    }
    if permit.uploads.len() > limits::MAX_UPLOADS_PER_PUSH {
        return Err(PushRefusal::TooManyUploads);
    }
    if after != *scene.refs {
        permit.state = Some(fulfilled(scene, &after)?);
    }
    Ok(permit)
}

fn pull_request(permit: &mut Permit, command: &Command, named: impl Fn(EventId) -> Named) -> Result<(), PushRefusal> {
    let name = command.name.clone();
    let id = name.strip_prefix("refs/nostr/").and_then(EventId::from_hex);
    let Some(id) = id else { return Err(PushRefusal::EventId(name)) };
    let Some(tip) = command.new.clone() else { return Err(PushRefusal::DeletePullRequest(name)) };
    match named(id) {
        Named::PullRequest(expected) if expected != tip => {
            return Err(PushRefusal::OtherCommit { name, expected, found: tip });
        }
        Named::Other => return Err(PushRefusal::NoPullRequest(name)),
        Named::Elsewhere => return Err(PushRefusal::Elsewhere(name)),
        Named::PullRequest(_) => permit.pulls.push((id, tip)),
        Named::Unknown => permit.uploads.push((id, tip)),
    }
    Ok(())
}

/// Carries out a command in the mind. One that was carried out already, by a sync that was faster, changes nothing
/// (G1-53).
fn apply(refs: &mut BTreeMap<String, String>, command: &Command) -> Result<(), PushRefusal> {
    let here = refs.get(&command.name).cloned();
    if here == command.new {
        return Ok(());
    }
    if here != command.old {
        let (expected, found) = (here, command.old.clone());
        return Err(PushRefusal::Moved { name: command.name.clone(), expected, found });
    }
    match &command.new {
        Some(oid) => refs.insert(command.name.clone(), oid.clone()),
        None => refs.remove(&command.name),
    };
    Ok(())
}

/// The newest state that declares exactly these refs and does not roll the repository back (G1-54).
fn fulfilled(scene: &Scene<'_>, after: &BTreeMap<String, String>) -> Result<Stamp, PushRefusal> {
    let not_older = |state: &&State| scene.current.is_none_or(|current| !supersedes(current.stamp, state.stamp));
    let mut states: Vec<&State> =
        scene.waiting.iter().chain(scene.current).filter(not_older).filter(|state| state.is_satisfiable()).collect();
    states.sort_by(
        |a, b| if supersedes(a.stamp, b.stamp) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater },
    );
    if let Some(state) = states.iter().find(|state| state.refs == *after) {
        return Ok(state.stamp);
    }
    let Some(newest) = states.first().filter(|_| !scene.waiting.is_empty()) else { return Err(PushRefusal::NoState) };
    let names = newest.refs.keys().chain(after.keys());
    let different = names.into_iter().filter(|name| newest.refs.get(*name) != after.get(*name)).min();
    let name = different.cloned().unwrap_or_default();
    Err(PushRefusal::NoMatch { expected: newest.refs.get(&name).cloned(), found: after.get(&name).cloned(), name })
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

    fn site() -> Site {
        let identifier = Identifier::new("tool").expect("valid");
        Site::Announced(crate::repo::RepoId { owner: PublicKey([1; 32]), identifier })
    }

    fn refs(pairs: &[(&str, char)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, digit)| (format!("refs/{name}"), oid(*digit))).collect()
    }

    fn state(created_at: u64, id: u8, pairs: &[(&str, char)]) -> State {
        State {
            author: PublicKey([1; 32]),
            identifier: Identifier::new("tool").expect("valid"),
            stamp: Stamp { created_at: Timestamp(created_at), id: EventId([id; 32]) },
            refs: refs(pairs),
            head: None,
        }
    }

    /// `heads/main:12` moves, `heads/main:-2` makes, `heads/main:1-` deletes.
    fn commands(texts: &[&str]) -> Vec<Command> {
        let place = |digit: char| (digit != '-').then(|| oid(digit));
        let read = |text: &&str| {
            let (name, places) = text.split_once(':').expect("name:places");
            let mut places = places.chars();
            let (old, new) = (places.next().expect("old"), places.next().expect("new"));
            Command { name: format!("refs/{name}"), old: place(old), new: place(new) }
        };
        texts.iter().map(read).collect()
    }

    fn judge(
        here: &[(&str, char)],
        waiting: &[State],
        current: Option<&State>,
        texts: &[&str],
    ) -> Result<Option<u8>, &'static str> {
        let here = refs(here);
        let site = site();
        let scene = Scene { site: &site, refs: &here, waiting, current };
        match authorise(&scene, &commands(texts), |_| Named::Unknown) {
            Ok(permit) => Ok(permit.state.map(|stamp| stamp.id.0[0])),
            Err(refusal) => {
                assert!(!refusal.to_string().is_empty());
                Err(refusal.code())
            }
        }
    }

    #[test]
    fn section_15_4_push_matching() {
        let here = [("heads/main", '1'), ("heads/old", 'a')];
        let s2 = [state(50, 2, &[("heads/main", '2')])];
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
            assert_eq!(judge(&here, &s2, None, push), expected, "{push:?}");
        }
        let tag = [state(50, 3, &[("heads/main", '1'), ("tags/v1", 'f')])];
        let here = [("heads/main", '1')];
        assert_eq!(judge(&here, &tag, None, &["tags/v1:-f"]), Ok(Some(3)), "the tag object");
        assert_eq!(judge(&here, &tag, None, &["tags/v1:-1"]), Err("E-STATE-MISMATCH"), "not its commit");
    }

    #[test]
    fn g1_52_g1_55_without_a_state_nothing_moves() {
        assert_eq!(judge(&[], &[], None, &["heads/main:-1"]), Err("E-STATE-MISSING"));
        assert_eq!(judge(&[], &[], None, &[]), Ok(None));
        let current = state(50, 1, &[("heads/main", '1')]);
        let here = [("heads/main", '1')];
        assert_eq!(judge(&here, &[], Some(&current), &["heads/main:12"]), Err("E-STATE-MISSING"));
        assert_eq!(judge(&[], &[], Some(&current), &["heads/main:-1"]), Ok(Some(1)), "§16 item 2: data that was lost");
    }

    #[test]
    fn g1_53_what_was_done_already_is_no_obstacle() {
        let states = [state(50, 2, &[("heads/main", '2'), ("heads/dev", '3')])];
        let here = [("heads/main", '2')];
        assert_eq!(judge(&here, &states, None, &["heads/main:12", "heads/dev:-3"]), Ok(Some(2)));
        assert_eq!(judge(&[("heads/main", '4')], &states, None, &["heads/main:12"]), Err("E-REF-MOVED"));
    }

    #[test]
    fn g1_54_a_state_does_not_roll_back_and_ties_go_to_the_lower_id() {
        let current = state(60, 5, &[("heads/main", '1')]);
        let here = [("heads/main", '1')];
        let older = [state(50, 2, &[("heads/main", '2')])];
        assert_eq!(judge(&here, &older, Some(&current), &["heads/main:12"]), Err("E-STATE-MISMATCH"));
        let lower = [state(60, 4, &[("heads/main", '2')])];
        assert_eq!(judge(&here, &lower, Some(&current), &["heads/main:12"]), Ok(Some(4)));
        let higher = [state(60, 6, &[("heads/main", '2')])];
        assert_eq!(judge(&here, &higher, Some(&current), &["heads/main:12"]), Err("E-STATE-MISMATCH"));
        let two = [state(70, 8, &[("heads/main", '2')]), state(70, 7, &[("heads/main", '2')])];
        assert_eq!(judge(&here, &two, Some(&current), &["heads/main:12"]), Ok(Some(7)));
    }

    #[test]
    fn g1_57_to_60_pull_request_refs() {
        let id = EventId([0xab; 32]);
        let push = |text: &str, named: Named| {
            let empty = BTreeMap::new();
            let site = site();
            let scene = Scene { site: &site, refs: &empty, waiting: &[], current: None };
            authorise(&scene, &commands(&[text]), |asked| if asked == id { named.clone() } else { Named::Unknown })
                .map(|permit| (permit.pulls, permit.uploads))
                .map_err(|refusal| refusal.code())
        };
        let name = format!("nostr/{id}");
        let signed = Ok((vec![(id, oid('7'))], vec![]));
        assert_eq!(push(&format!("{name}:-7"), Named::Unknown), Ok((vec![], vec![(id, oid('7'))])));
        assert_eq!(push(&format!("{name}:-7"), Named::PullRequest(oid('7'))), signed);
        assert_eq!(push(&format!("{name}:67"), Named::PullRequest(oid('7'))), signed, "a wrong one is put right");
        assert_eq!(push(&format!("{name}:-7"), Named::Elsewhere), Err("E-PR-TARGET"));
        assert_eq!(push(&format!("{name}:-8"), Named::PullRequest(oid('7'))), Err("E-PR-COMMIT"));
        assert_eq!(push(&format!("{name}:-7"), Named::Other), Err("E-PR-KIND"));
        assert_eq!(push(&format!("{name}:7-"), Named::Unknown), Err("E-PR-DELETE"));
        assert_eq!(push("nostr/123:-7", Named::Unknown), Err("E-PR-ID"));
        assert_eq!(push(&format!("nostr/{}:-7", "AB".repeat(32)), Named::Unknown), Err("E-PR-ID"));
        assert_eq!(push("heads/a..b:-7", Named::Unknown), Err("E-REF-NAME"));
    }

    #[test]
    fn g6_03_submissions_take_nothing_but_pull_requests() {
        let Site::Announced(repo) = site() else { panic!("announced") };
        let (site, empty) = (Site::Submitted(repo), BTreeMap::new());
        let scene = Scene { site: &site, refs: &empty, waiting: &[], current: None };
        let push = |text: &str| {
            let permit = authorise(&scene, &commands(&[text]), |_| Named::Unknown);
            permit.map(|permit| permit.uploads.len()).map_err(|refusal| refusal.code())
        };
        assert_eq!(push(&format!("nostr/{}:-7", "ab".repeat(32))), Ok(1));
        assert_eq!(push("heads/main:-7"), Err("E-REF-NAMESPACE"));
        assert_eq!(push("nostr/not-a-valid-event-id:-7"), Err("E-PR-ID"));
    }

    #[test]
    fn refusals_say_what_was_expected_found_and_what_to_do() {
        let here = refs(&[("heads/main", '1')]);
        let waiting = [state(50, 2, &[("heads/main", '2')])];
        let site = site();
        let scene = Scene { site: &site, refs: &here, waiting: &waiting, current: None };
        let refusal = authorise(&scene, &commands(&["heads/main:13"]), |_| Named::Unknown).expect_err("refused");
        assert_eq!(refusal.about(), Some("refs/heads/main"));
        let text = refusal.to_string();
        assert!(text.contains(&oid('2')) && text.contains(&oid('3')) && text.contains("push exactly"), "{text}");
    }
}
