//! Listing refs, cloning and fetching. Refs are answered from memory; packs are made by git, once for everybody who asks
//! the same.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use grasp_git::process::ChildProblem;
use grasp_git::serve;
use grasp_git::serve::{Effort, Fetch, Protocol, Request as Wish, Service, advertisement};
use hyper::body::Incoming as HttpBody;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, StatusCode, header};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, warn};

use super::handlers::{Client, GitService, busy, turn, typed};
use super::request_body::{Body, BodyProblem, Held, drained};
use crate::git::pack_cache::{End, Key, Maker, Reader};
use crate::http::body::{HttpResponse, ResponseBody};
use crate::http::fair_semaphore::{Busy, FairPermit, FairSemaphore};
use crate::http::response::status;
use crate::metrics::git::{Kind, Operation};
use crate::repos::ref_cache::{Advertisement, Open, RefSnapshot};

/// Tips of other repositories that an advertisement names, so that their objects need not be sent.
const MAX_HAVES: usize = 1_000;

/// `GET info/refs`.
pub(super) async fn refs(
    git: &Arc<GitService>,
    repo_path: &RepoPath,
    open: &Open,
    query: Option<&str>,
    headers: &HeaderMap,
) -> HttpResponse {
    let named = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("service="));
    let Some(service) = named.and_then(Service::named) else {
        return status(StatusCode::FORBIDDEN, "only git's smart protocol is spoken here: use a newer git\n");
    };
    let Some(snapshot) = git.snapshot(repo_path).await else { return failed() };
    let mut answer = match service {
        Service::Upload => {
            let shown = advertisement(git, &snapshot, protocol(headers));
            if is_known(headers, &shown.etag) {
                let mut answer = status(StatusCode::NOT_MODIFIED, "");
                tag(&mut answer, &shown.etag);
                never_cache(&mut answer);
                return answer;
            }
            let mut answer = typed(service.advertisement_type(), shown.body.clone());
            tag(&mut answer, &shown.etag);
            answer
        }
        Service::Receive => {
            let mut lent = Vec::new();
            for lender in &open.alternates {
                lent.extend(git.snapshot(lender).await);
            }
            let haves = lent.iter().flat_map(|snapshot| snapshot.refs.iter()).map(|(_, target)| target.oid.as_str());
            let body = advertisement::receive(&snapshot.refs, &git.capabilities, haves.take(MAX_HAVES));
            typed(service.advertisement_type(), Bytes::from(body))
        }
    };
    never_cache(&mut answer);
    answer
}

fn advertisement<'s>(git: &GitService, snapshot: &'s RefSnapshot, protocol: Protocol) -> &'s Advertisement {
    let slot = match protocol {
        Protocol::V0 => 0,
        Protocol::V1 => 1,
        Protocol::V2 => 2,
    };
    snapshot.upload[slot].get_or_init(|| Advertisement {
        body: Bytes::from(advertisement::upload(&snapshot.refs, &git.capabilities, protocol)),
        etag: format!("\"{:x}-{:x}-{slot}\"", git.boot, snapshot.generation),
    })
}

pub(crate) fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known.flat_map(|value| value.split(',')).any(|value| value.trim().trim_start_matches("W/") == etag)
}

fn tag(answer: &mut HttpResponse, etag: &str) {
    if let Ok(value) = HeaderValue::from_str(etag) {
        answer.headers_mut().insert(header::ETAG, value);
        answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Git-Protocol"));
    }
}

/// What may be asked again must be asked again: refs move.
pub(crate) fn never_cache(answer: &mut HttpResponse) {
    for (name, value) in [
        (header::CACHE_CONTROL, "no-cache, max-age=0, must-revalidate"),
        (header::EXPIRES, "Fri, 01 Jan 1980 00:00:00 GMT"),
        (header::PRAGMA, "no-cache"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}

fn protocol(headers: &HeaderMap) -> Protocol {
    Protocol::read(headers.get("git-protocol").and_then(|value| value.to_str().ok()))
}

/// `POST git-upload-pack`.
pub(super) async fn upload(
    git: Arc<GitService>,
    repo_path: RepoPath,
    client: Client,
    request: Request<HttpBody>,
) -> HttpResponse {
    let (head, body) = request.into_parts();
    let protocol = protocol(&head.headers);
    let mut body = match Body::new(&head.headers, body) {
        Ok(body) => body,
        Err(problem) => return error(StatusCode::UNSUPPORTED_MEDIA_TYPE, &problem),
    };
    let Held { bytes: body, share } = match body.whole(limits::MAX_FETCH_REQUEST_BYTES, &git.fetch_bytes).await {
        Ok(held) => held,
        Err(problem) => {
            let answer = match problem {
                BodyProblem::TooLarge(_) => error(StatusCode::PAYLOAD_TOO_LARGE, &problem),
                BodyProblem::Busy => busy(Busy::Everybody),
                _ => error(StatusCode::BAD_REQUEST, &problem),
            };
            return drained(answer, body, limits::MAX_FETCH_REQUEST_BYTES as u64).await;
        }
    };
    let Some(snapshot) = git.snapshot(&repo_path).await else { return failed() };
    let mut answer = match Wish::read(protocol, &body) {
        Ok(Wish::Nothing) => result(Bytes::new()),
        Ok(Wish::LsRefs(question)) => result(serve::ls_refs_answer(&snapshot.refs, &question).into()),
        Ok(Wish::Fetch(fetch)) if !snapshot.exists => {
            result(serve::no_such_object(fetch.wants.first().map_or("", String::as_str)).into())
        }
        Ok(Wish::Fetch(fetch)) => {
            let job = Job { git: git.clone(), repo_path, client, protocol, fetch, _share: share };
            drop(body);
            job.answer(snapshot.generation).await
        }
        Err(bad) => result(bad.answer().into()),
    };
    never_cache(&mut answer);
    answer
}

fn result(bytes: Bytes) -> HttpResponse {
    typed(Service::Upload.result_type(), bytes)
}

fn error(code: StatusCode, problem: &BodyProblem) -> HttpResponse {
    let mut answer = status(code, "");
    *answer.body_mut() = format!("{problem}\n").into();
    answer
}

pub(crate) fn failed() -> HttpResponse {
    status(StatusCode::INTERNAL_SERVER_ERROR, "the repository cannot be read\n")
}

/// A fetch that needs git.
struct Job {
    git: Arc<GitService>,
    repo_path: RepoPath,
    client: Client,
    protocol: Protocol,
    fetch: Fetch,
    /// The memory that the request takes, for as long as it does.
    _share: Option<OwnedSemaphorePermit>,
}

impl Job {
    async fn answer(self, generation: u64) -> HttpResponse {
        let size = {
            let (git, repo_path) = (self.git.clone(), self.repo_path.clone());
            tokio::task::spawn_blocking(move || git.layout.pool_bytes(&repo_path)).await.ok().and_then(Result::ok)
        };
        // A step of a negotiation is a few lines for one client.
        if self.fetch.answer == serve::request::Answer::Negotiation {
            let turns = self.git.serving.clone();
            return self.directly(&turns, None).await;
        }
        let kind = if self.is_clone() { Kind::Clone } else { Kind::Fetch };
        let operation = Operation::new(&self.git.meter, kind, &self.repo_path);
        if size.unwrap_or(u64::MAX) > self.git.largest_kept() {
            let turns = self.git.serving_large.clone();
            return self.directly(&turns, Some(operation)).await;
        }
        let request = self.fetch.key.0;
        let key = Key { repo_path: self.repo_path.clone(), generation, request, version: self.protocol as u8 };
        let (reader, maker) = match self.git.packs.follow(&key) {
            Ok(following) => following,
            Err(problem) => {
                // Perhaps the disk is full; then everybody is served without it.
                warn!(%problem, "cannot keep answers to fetches");
                let turns = self.git.serving_large.clone();
                return self.directly(&turns, Some(operation)).await;
            }
        };
        self.git.meter.git().cache(maker.is_none());
        if let Some(maker) = maker {
            tokio::spawn(self.make(maker));
        }
        follow(reader, operation).await
    }

    /// Whether the client has nothing yet.
    fn is_clone(&self) -> bool {
        !self.fetch.body.windows(5).any(|line| line == b"have ")
    }

    /// Makes an answer for everybody who wants it.
    async fn make(self, maker: Maker) {
        let turn = tokio::select! {
            turn = turn(&self.git.serving, self.client) => turn,
            // Whoever hangs up stands in nobody's way.
            () = maker.unwanted() => return,
        };
        match turn {
            Ok(turn) => drop(tokio::task::spawn_blocking(move || self.write(maker, turn))),
            Err(why) => maker.finish(End::Busy(why)),
        }
    }

    fn write(self, mut maker: Maker, turn: FairPermit) {
        let result = self.run(|bytes| match maker.write(bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ChildProblem::Unwanted),
            Err(problem) => Err(ChildProblem::Start(problem)),
        });
        drop(turn);
        maker.finish(match result {
            Ok(()) => End::Complete,
            Err(ChildProblem::Failed { .. }) => End::Refused,
            Err(_) => End::Broken,
        });
    }

    /// Makes an answer for one client alone, as fast as it reads, but not slower than anybody would.
    async fn directly(self, turns: &Arc<FairSemaphore>, mut operation: Option<Operation>) -> HttpResponse {
        let turn = match turn(turns, self.client).await {
            Ok(turn) => turn,
            Err(why) => return busy(why),
        };
        let (feed, reply) = ResponseBody::stream();
        let runtime = tokio::runtime::Handle::current();
        let patience = Duration::from_secs(limits::STALL_TIMEOUT_SECS);
        tokio::task::spawn_blocking(move || {
            let result = self.run(|bytes| {
                if let Some(operation) = &mut operation {
                    operation.moved(bytes.len());
                }
                let send = feed.send_timeout(Ok(Bytes::copy_from_slice(bytes)), patience);
                runtime.block_on(send).map_err(|_| ChildProblem::Unwanted)
            });
            debug!(ended = result.is_ok(), "an answer was made for one client");
            if let Some(operation) = operation.take().filter(|_| result.is_ok()) {
                operation.succeed();
            }
            drop(turn);
        });
        let mut answer = result(Bytes::new());
        *answer.body_mut() = reply;
        answer
    }

    fn run(&self, show: impl FnMut(&[u8]) -> Result<(), ChildProblem>) -> Result<(), ChildProblem> {
        let folder = self.git.layout.repo_dir(&self.repo_path);
        let effort = Effort { threads: self.git.threads, patience: self.git.settings().process_timeout };
        let result = serve::upload_pack(&self.git.git, &folder, (self.protocol, &self.fetch.body), effort, show);
        if let Err(problem) = &result {
            debug!(repo = %self.repo_path, %problem, "a fetch was not answered to its end");
        }
        result
    }
}

/// Somebody who follows an answer.
type Following = (Reader, Operation);

/// Sends an answer as it comes to be.
async fn follow(mut reader: Reader, operation: Operation) -> HttpResponse {
    let first = reader.ready().await;
    match (first.bytes, first.end) {
        (0, End::Busy(why)) => return busy(why),
        (0, End::Broken) => return failed(),
        _ => {}
    }
    let mut answer = result(Bytes::new());
    *answer.body_mut() = ResponseBody::drawn(stream::unfold(Some((reader, operation)), part));
    answer
}

/// The next part of an answer, and what gives the one after it.
async fn part(following: Option<Following>) -> Option<(io::Result<Bytes>, Option<Following>)> {
    let (mut reader, mut operation) = following?;
    match reader.next().await {
        Ok(part) => {
            operation.moved(part.len());
            Some((Ok(part), Some((reader, operation))))
        }
        Err(End::Complete) => {
            operation.succeed();
            None
        }
        Err(End::Refused) => None,
        Err(_) => Some((Err(io::Error::other("the answer was not made to its end")), None)),
    }
}
