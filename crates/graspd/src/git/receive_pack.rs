//! A push: the commands are read, the registrar is asked, and only then is the pack. Nothing of it can be seen before the
//! registrar has taken it in, and the client hears nothing good before the event that it fulfils is served.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use grasp_git::crash_point;
use grasp_git::receive::commands::{Progress, PushLimits, PushParser, PushRequest};
use grasp_git::receive::report::Rejection;
use grasp_git::receive::{Checker, Incoming, PackLimits, PackProblem, PackSink, Received, Tips, View, report};
use hyper::body::Incoming as HttpBody;
use hyper::{Request, StatusCode};
use tracing::debug;

use super::handlers::{Client, GitService, busy, turn, typed};
use super::request_body::{Body, BodyProblem, drained};
use crate::http::body::{BodySender, HttpResponse, ResponseBody};
use crate::http::response::status;
use crate::metrics::git::{Kind, Operation};
use crate::monitor::disk_budget::Share;
use crate::writer::command::{CheckedPush, PermittedPush};

const RESULT: &str = "application/x-git-receive-pack-result";

/// Bytes that are gathered before they are written to disk.
const GATHER: usize = 512 * 1024;

/// Why a push ends badly, in the words that the client is told.
struct PushError {
    code: &'static str,
    text: String,
    about: Option<String>,
}

impl From<PushRejection> for PushError {
    fn from(refusal: PushRejection) -> Self {
        Self { code: refusal.code(), text: refusal.to_string(), about: refusal.ref_name().map(str::to_owned) }
    }
}

impl From<PackProblem> for PushError {
    fn from(problem: PackProblem) -> Self {
        Self { code: problem.code(), text: problem.to_string(), about: problem.about().map(str::to_owned) }
    }
}

impl From<BodyProblem> for PushError {
    fn from(problem: BodyProblem) -> Self {
        Self { code: "E-PUSH-BODY", text: problem.to_string(), about: None }
    }
}

/// Answers a push.
pub(super) async fn push(
    git: Arc<GitService>,
    repo_path: RepoPath,
    client: Client,
    request: Request<HttpBody>,
) -> HttpResponse {
    let (head, body) = request.into_parts();
    let body = match Body::new(&head.headers, body) {
        Ok(body) => body,
        Err(_) => return status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "only gzip is understood\n"),
    };
    let most = git.settings().max_push_bytes;
    match receive(git, repo_path, client, body).await {
        // Whoever is refused has no place any more.
        (answer, Some(body)) => drained(answer, body, most).await,
        (answer, None) => answer,
    }
}

/// The answer to a push, and what is left of its body.
async fn receive(
    git: Arc<GitService>,
    repo_path: RepoPath,
    client: Client,
    mut body: Body,
) -> (HttpResponse, Option<Body>) {
    let _place = match turn(&git.receiving, client).await {
        Ok(place) => place,
        Err(why) => return (busy(why), Some(body)),
    };
    body.hurry_if_waited_for(&git.receiving);
    let (request, rest, _large) = match commands(&git, &mut body).await {
        Ok(Some(read)) => read,
        Ok(None) => return (status(StatusCode::BAD_REQUEST, "this is no push\n"), None),
        Err((heard, sorry)) => return (refuse(&git, &repo_path, &heard, &sorry), Some(body)),
    };
    body.hurry_if_waited_for(&git.receiving);
    // The probe that git sends before a large push.
    if request.commands.is_empty() {
        return (typed(RESULT, Bytes::new()), Some(body));
    }
    let operation = Operation::new(&git.meter, Kind::Push, &repo_path);
    let permitted = git.desk.ask(repo_path.clone(), request.commands.clone(), client.network_name()).await;
    git.meter.git().authorised(permitted.is_ok());
    let permitted = match permitted {
        Ok(permitted) => permitted,
        Err(refusal) => return (refuse(&git, &repo_path, &request, &refusal.into()), Some(body)),
    };
    if permitted.permit.is_empty() {
        operation.succeed();
        return (typed(RESULT, success(&request)), Some(body));
    }
    let mut operation = operation;
    let spooled = spool(&git, &permitted.permit, &mut body, rest, &mut operation).await;
    let (pack, received, share) = match spooled {
        Ok(spooled) => spooled,
        Err(sorry) => return (refuse(&git, &repo_path, &request, &sorry), Some(body)),
    };
    let (feed, reply) = ResponseBody::stream();
    tokio::spawn(finish(git, client, permitted, (request, operation), (pack, received, share), feed));
    let mut answer = typed(RESULT, Bytes::new());
    *answer.body_mut() = reply;
    (answer, None)
}

type Commands = (PushRequest, Vec<u8>, Option<tokio::sync::OwnedSemaphorePermit>);

/// Reads the commands and nothing else. `None` if there are none at all.
async fn commands(git: &GitService, body: &mut Body) -> Result<Option<Commands>, (PushRequest, PushError)> {
    let mut parser = PushParser::new(PushLimits::for_commands(limits::MAX_PUSH_COMMANDS));
    let mut large = None;
    let mut any = false;
    loop {
        let bytes = match body.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) if !any => return Ok(None),
            Ok(None) => return Err((parser.heard().clone(), BodyProblem::Broken.into())),
            Err(problem) => return Err((parser.heard().clone(), problem.into())),
        };
        any = true;
        match parser.feed(&bytes) {
            Ok(Progress::More) => {}
            Ok(Progress::Done { request, rest }) => return Ok(Some((request, rest, large))),
            Err(bad) => {
                let sorry =
                    PushError { code: bad.code(), text: bad.to_string(), about: bad.about().map(str::to_owned) };
                return Err((parser.heard().clone(), sorry));
            }
        }
        if large.is_none() && parser.heard().commands.len() > limits::LARGE_PUSH_COMMANDS {
            match git.large_pushes.clone().try_acquire_owned() {
                Ok(permit) => {
                    large = Some(permit);
                    body.hurry();
                }
                Err(_) => return Err((parser.heard().clone(), PushRejection::Busy.into())),
            }
        }
    }
}

/// A pack that has been received, and what it takes of the budget.
type Spooled = (Incoming, Received, Share);

/// What a quota made too large is told with the quota.
fn quota_of(permit: &PushPermit, problem: PackProblem) -> PushError {
    match (&problem, permit.quota_left) {
        (PackProblem::TooLarge(most), Some((left, quota))) if *most == room_for(left) => {
            PushRejection::QuotaExceeded(quota).into()
        }
        _ => problem.into(),
    }
}

/// A push that brings no objects brings a few bytes.
fn room_for(left: u64) -> u64 {
    left.max(4_096)
}

/// Takes in the pack, in memory if it is small, else in a file.
async fn spool(
    git: &Arc<GitService>,
    permit: &PushPermit,
    body: &mut Body,
    rest: Vec<u8>,
    operation: &mut Operation,
) -> Result<Spooled, PushError> {
    let limits = git.pack_limits(permit);
    let layout = git.layout.clone();
    let create = move || Incoming::create(&layout).map(|incoming| (PackSink::new(&incoming, limits), incoming));
    let (mut sink, incoming) = blocking(create).await?.map_err(PackProblem::from)?;
    let mut gathered = rest;
    let mut share = git.budget.share();
    loop {
        let next = body.next().await?;
        let end = next.is_none();
        gathered.extend_from_slice(&next.unwrap_or_default());
        if end || gathered.len() >= GATHER {
            let bytes = std::mem::take(&mut gathered);
            operation.moved(bytes.len());
            if !share.grow(bytes.len()) {
                return Err(PushRejection::DiskFull.into());
            }
            let (layout, reserve) = (git.layout.clone(), git.reserve_bytes);
            let write = move || {
                // What is small is let through; what is large must not take the room that events need.
                if bytes.len() >= GATHER && layout.free_bytes()? < reserve {
                    return Err(PackProblem::DiskFull);
                }
                sink.write(&bytes).map(|()| sink)
            };
            sink = blocking(write).await?.map_err(|problem| quota_of(permit, problem))?;
        }
        if end {
            let received = sink.finish()?;
            crash_point::point("push.received");
            return Ok((incoming, received, share));
        }
    }
}

/// The client has said everything. From here on it hears signs of life, and in the end what became of its push.
async fn finish(
    git: Arc<GitService>,
    client: Client,
    permitted: PermittedPush,
    (request, operation): (PushRequest, Operation),
    (pack, received, share): Spooled,
    feed: BodySender,
) {
    let repo_path = permitted.push.repo_path.clone();
    let work = take_in(&git, client, &permitted, pack, received);
    tokio::pin!(work);
    let mut tick = tokio::time::interval(Duration::from_secs(limits::PUSH_KEEPALIVE_SECS));
    tick.tick().await;
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            // Whether anybody listens does not matter: what is complete is taken in.
            _ = tick.tick() => drop(feed.try_send(Ok(report::keepalive(&request.capabilities).into()))),
        }
    };
    crash_point::point("push.done");
    let last = match result {
        Ok(()) => {
            share.keep();
            operation.succeed();
            success(&request)
        }
        Err(sorry) => {
            git.meter.git().refused(sorry.code);
            debug!(repo = %repo_path, code = sorry.code, text = %sorry.text, "a push is refused");
            refusal(&git, &repo_path, &request, &sorry)
        }
    };
    let _ = feed.send(Ok(last)).await;
}

async fn take_in(
    git: &Arc<GitService>,
    client: Client,
    permitted: &PermittedPush,
    pack: Incoming,
    received: Received,
) -> Result<(), PushError> {
    let checking = if permitted.permit.uploads.is_empty() { &git.checking } else { &git.checking_unsigned };
    let turn = checking.take(client.network).await.map_err(|_| PushRejection::Busy)?;
    let open = git.directory.open(&permitted.push.repo_path).ok_or(PushRejection::NotHosted)?;
    let job = Check {
        git: git.clone(),
        repo_path: permitted.push.repo_path.clone(),
        alternates: open.alternates,
        permit: permitted.permit.clone(),
        tips: tips(permitted),
    };
    let checked = blocking(move || job.run(pack, received)).await?;
    let checked = checked.map_err(|problem| quota_of(&permitted.permit, problem))?;
    drop(turn);
    crash_point::point("push.checked");
    Ok(git.desk.arrived(permitted, checked).await?)
}

/// What a push wants to make of refs.
fn tips(permitted: &PermittedPush) -> Tips {
    let mut tips = Tips::default();
    for command in &permitted.push.commands {
        let Some(oid) = command.new.clone() else { continue };
        let into = if command.name.starts_with("refs/tags/") { &mut tips.others } else { &mut tips.branches };
        into.push((command.name.clone(), oid));
    }
    tips
}

/// The checks of one push: they wait for children, so they run on a thread of their own.
struct Check {
    git: Arc<GitService>,
    repo_path: RepoPath,
    alternates: Vec<RepoPath>,
    permit: PushPermit,
    tips: Tips,
}

impl Check {
    fn run(self, mut pack: Incoming, received: Received) -> Result<CheckedPush, PackProblem> {
        let prunings = self.git.layout.prunings();
        let limits = self.git.pack_limits(&self.permit);
        let checker = Checker { git: &self.git.git, layout: &self.git.layout, limits };
        let pools = self.pools();
        let has_pack = matches!(received, Received::Pack(_));
        checker.index(&mut pack, received, &pools)?;
        let known = self.known()?;
        let view = View { incoming: has_pack.then_some(&pack), pools: &pools };
        let connected = checker.connect(view, &self.tips, &known)?;
        let uploads = &self.permit.uploads;
        let is_upload = |name: &str| uploads.iter().any(|(event, _)| name == format!("refs/nostr/{event}"));
        let all = self.tips.branches.iter().chain(&self.tips.others);
        let signed: Vec<String> = all.filter(|(name, _)| !is_upload(name)).map(|(_, oid)| oid.clone()).collect();
        if uploads.is_empty() {
            let pack = match (has_pack, connected.extra) {
                (false, _) => None,
                (true, 0) => Some(pack),
                (true, _) => Some(checker.narrow(view, &signed, &known)?),
            };
            return Ok(CheckedPush { pack, uploads: Vec::new(), alternates: self.alternates, prunings });
        }
        if let ([(event, tip)], [], 0) = (uploads.as_slice(), signed.as_slice(), connected.extra) {
            let uploads = vec![(*event, tip.clone(), pack)];
            return Ok(CheckedPush { pack: None, uploads, alternates: self.alternates, prunings });
        }
        // What is signed and what is not must not come in one pack: the first is served, the second is not.
        let signed_pack = if signed.is_empty() { None } else { Some(checker.narrow(view, &signed, &known)?) };
        let known: Vec<String> = known.into_iter().chain(signed).collect();
        let mut split = Vec::new();
        for (event, tip) in uploads {
            split.push((*event, tip.clone(), checker.narrow(view, std::slice::from_ref(tip), &known)?));
        }
        Ok(CheckedPush { pack: signed_pack, uploads: split, alternates: self.alternates, prunings })
    }

    /// The pools that the repository may read and that exist.
    fn pools(&self) -> Vec<PathBuf> {
        let repo_paths = std::iter::once(&self.repo_path).chain(&self.alternates);
        repo_paths.map(|repo_path| self.git.layout.pool(repo_path)).filter(|pool| pool.is_dir()).collect()
    }

    /// Objects that are here with everything they need: those that refs point to.
    fn known(&self) -> Result<Vec<String>, PackProblem> {
        let snapshot = self.git.directory.snapshot(&self.repo_path)?;
        let mut oids: Vec<String> = snapshot.refs.iter().map(|(_, target)| target.oid.clone()).collect();
        oids.sort_unstable();
        oids.dedup();
        Ok(oids)
    }
}

impl GitService {
    /// What a push may bring.
    fn pack_limits(&self, permit: &PushPermit) -> PackLimits {
        let settings = self.settings();
        let limits = settings.pack_limits();
        let max_bytes = if permit.uploads.is_empty() { limits.max_bytes } else { settings.max_unsigned_push_bytes };
        let max_bytes = permit.quota_left.map_or(max_bytes, |(left, _)| room_for(left).min(max_bytes));
        PackLimits { max_bytes, ..limits }
    }
}

async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, PushError> {
    let failed = |_| PushError { code: "E-SERVER", text: "the server failed".to_owned(), about: None };
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

fn success(request: &PushRequest) -> Bytes {
    let results: Vec<_> = request.commands.iter().map(|command| (command.name.clone(), Ok(()))).collect();
    report::report(&request.capabilities, Ok(()), &results).into()
}

fn refusal(git: &GitService, repo_path: &RepoPath, request: &PushRequest, sorry: &PushError) -> Bytes {
    let hint = format!("what waits for this repository: {}/{repo_path}/purgatory", git.url);
    let refusal = Rejection { code: sorry.code, text: &sorry.text, about: sorry.about.as_deref(), hint: &hint };
    report::refusal(&request.capabilities, &request.commands, &refusal).into()
}

/// Refuses a push.
fn refuse(git: &GitService, repo_path: &RepoPath, request: &PushRequest, sorry: &PushError) -> HttpResponse {
    git.meter.git().refused(sorry.code);
    debug!(repo = %repo_path, code = sorry.code, text = %sorry.text, "a push is refused");
    typed(RESULT, refusal(git, repo_path, request, sorry))
}
