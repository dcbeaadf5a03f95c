//! Listing refs, cloning and fetching. Refs are answered from memory; packs are made by git, once for everybody who asks
//! the same.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::repo::Site;
use grasp_git::child::ChildProblem;
use grasp_git::serve::{self, Effort, Fetch, Protocol, Request as Wish, Service, advertise};
use hyper::body::Incoming as HttpBody;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode};
use tracing::{debug, warn};

use super::body::{Body, BodyProblem};
use super::{Client, GitHouse, busy, turn, typed};
use crate::door::reply::{Answer, Feed, Reply};
use crate::door::routes::status;
use crate::hands::directory::{Advertisement, Open, Snapshot};
use crate::hands::packs::{End, Key, Maker, Reader};
use crate::hands::turns::Turn;

/// Bytes that one unit of the budget for fetch requests stands for.
pub(super) const UNIT: usize = 64 * 1024;

/// Tips of other repositories that an advertisement names, so that their objects need not be sent.
const MAX_HAVES: usize = 1_000;

/// `GET info/refs`.
pub(super) async fn refs(
    git: &Arc<GitHouse>,
    site: &Site,
    open: &Open,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Answer {
    let named = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("service="));
    let Some(service) = named.and_then(Service::named) else {
        return status(StatusCode::FORBIDDEN, "only git's smart protocol is spoken here: use a newer git\n");
    };
    let Some(snapshot) = git.snapshot(site).await else { return failed() };
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
            for lender in &open.lenders {
                lent.extend(git.snapshot(lender).await);
            }
            let haves = lent.iter().flat_map(|snapshot| snapshot.refs.iter()).map(|(_, target)| target.oid.as_str());
            let body = advertise::receive(&snapshot.refs, &git.capabilities, haves.take(MAX_HAVES));
            typed(service.advertisement_type(), Bytes::from(body))
        }
    };
    never_cache(&mut answer);
    answer
}

fn advertisement<'s>(git: &GitHouse, snapshot: &'s Snapshot, protocol: Protocol) -> &'s Advertisement {
    let slot = match protocol {
        Protocol::V0 => 0,
        Protocol::V1 => 1,
        Protocol::V2 => 2,
    };
    snapshot.upload[slot].get_or_init(|| Advertisement {
        body: Bytes::from(advertise::upload(&snapshot.refs, &git.capabilities, protocol)),
        etag: format!("\"{:x}-{:x}-{slot}\"", git.boot, snapshot.generation),
    })
}

pub(super) fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known.flat_map(|value| value.split(',')).any(|value| value.trim().trim_start_matches("W/") == etag)
}

fn tag(answer: &mut Answer, etag: &str) {
    if let Ok(value) = HeaderValue::from_str(etag) {
        answer.headers_mut().insert(header::ETAG, value);
        answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Git-Protocol"));
    }
}

/// What may be asked again must be asked again: refs move.
pub(super) fn never_cache(answer: &mut Answer) {
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
pub(super) async fn upload(git: Arc<GitHouse>, site: Site, client: Client, request: Request<HttpBody>) -> Answer {
    let (head, body) = request.into_parts();
    let protocol = protocol(&head.headers);
    let declared = head.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let gzipped = head.headers.contains_key(header::CONTENT_ENCODING);
    // What does not say how long it is may be as long as it may.
    let most = if gzipped { limits::MAX_FETCH_BYTES } else { declared.unwrap_or(limits::MAX_FETCH_BYTES) };
    let units = u32::try_from(most.min(limits::MAX_FETCH_BYTES).div_ceil(UNIT).max(1)).unwrap_or(1);
    let Ok(_bytes) = git.fetch_bytes.clone().acquire_many_owned(units).await else { return failed() };
    let body = match Body::new(&head.headers, body) {
        Ok(body) => body.whole(limits::MAX_FETCH_BYTES).await,
        Err(problem) => Err(problem),
    };
    let body = match body {
        Ok(body) => body,
        Err(problem @ BodyProblem::Encoding) => return error(StatusCode::UNSUPPORTED_MEDIA_TYPE, &problem),
        Err(problem @ BodyProblem::TooLarge(_)) => return error(StatusCode::PAYLOAD_TOO_LARGE, &problem),
        Err(problem) => return error(StatusCode::BAD_REQUEST, &problem),
    };
    let Some(snapshot) = git.snapshot(&site).await else { return failed() };
    let mut answer = match Wish::read(protocol, &body) {
        Ok(Wish::Nothing) => result(Bytes::new()),
        Ok(Wish::LsRefs(question)) => result(serve::ls_refs_answer(&snapshot.refs, &question).into()),
        Ok(Wish::Fetch(fetch)) if !snapshot.exists => {
            result(serve::no_such_object(fetch.wants.first().map_or("", String::as_str)).into())
        }
        Ok(Wish::Fetch(fetch)) => {
            let job = Job { git: git.clone(), site, client, protocol, fetch: Arc::new(fetch) };
            job.answer(snapshot.generation).await
        }
        Err(bad) => result(bad.answer().into()),
    };
    never_cache(&mut answer);
    answer
}

fn result(bytes: Bytes) -> Answer {
    typed(Service::Upload.result_type(), bytes)
}

fn error(code: StatusCode, problem: &BodyProblem) -> Answer {
    let mut answer = status(code, "");
    *answer.body_mut() = format!("{problem}\n").into();
    answer
}

pub(super) fn failed() -> Answer {
    status(StatusCode::INTERNAL_SERVER_ERROR, "the repository cannot be read\n")
}

/// A fetch that needs git.
#[derive(Clone)]
struct Job {
    git: Arc<GitHouse>,
    site: Site,
    client: Client,
    protocol: Protocol,
    fetch: Arc<Fetch>,
}

impl Job {
    async fn answer(self, generation: u64) -> Answer {
        let size = {
            let (git, site) = (self.git.clone(), self.site.clone());
            tokio::task::spawn_blocking(move || git.layout.pool_bytes(&site)).await.ok().and_then(Result::ok)
        };
        if size.unwrap_or(u64::MAX) > self.git.largest_kept {
            return self.directly().await;
        }
        let request = self.fetch.key.0;
        let key = Key { site: self.site.clone(), generation, request, version: self.protocol as u8 };
        let (reader, maker) = match self.git.packs.follow(&key) {
            Ok(following) => following,
            Err(problem) => {
                // Perhaps the disk is full; then everybody is served without it.
                warn!(%problem, "cannot keep answers to fetches");
                return self.directly().await;
            }
        };
        if let Some(maker) = maker {
            tokio::spawn(self.make(maker));
        }
        follow(reader).await
    }

    /// Makes an answer for everybody who wants it.
    async fn make(self, maker: Maker) {
        match turn(&self.git.serving, self.client).await {
            Ok(turn) => drop(tokio::task::spawn_blocking(move || self.write(maker, turn))),
            Err(why) => maker.finish(End::Busy(why)),
        }
    }

    fn write(self, mut maker: Maker, turn: Turn) {
        let result = self.run(|bytes| match maker.write(bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ChildProblem::Unwanted),
            Err(problem) => Err(ChildProblem::Start(problem)),
        });
        drop(turn);
        maker.finish(match result {
            Ok(()) => End::Complete,
            Err(ChildProblem::Failed { .. } | ChildProblem::Slow(_)) => End::Refused,
            Err(_) => End::Broken,
        });
    }

    /// Makes an answer for one client alone, as fast as it reads.
    async fn directly(self) -> Answer {
        let turn = match turn(&self.git.serving, self.client).await {
            Ok(turn) => turn,
            Err(why) => return busy(why),
        };
        let (feed, reply) = Reply::stream();
        tokio::task::spawn_blocking(move || {
            let result = self
                .run(|bytes| feed.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(|_| ChildProblem::Unwanted));
            debug!(ended = result.is_ok(), "an answer was made for one client");
            drop(turn);
        });
        let mut answer = result(Bytes::new());
        *answer.body_mut() = reply;
        answer
    }

    fn run(&self, show: impl FnMut(&[u8]) -> Result<(), ChildProblem>) -> Result<(), ChildProblem> {
        let folder = self.git.layout.site(&self.site);
        let effort = Effort { threads: self.git.threads, patience: self.git.settings.process_patience };
        let result = serve::upload_pack(&self.git.git, &folder, (self.protocol, &self.fetch.body), effort, show);
        if let Err(problem) = &result {
            debug!(site = %self.site, %problem, "a fetch was not answered to its end");
        }
        result
    }
}

/// Sends an answer as it comes to be.
async fn follow(mut reader: Reader) -> Answer {
    let first = reader.ready().await;
    match (first.bytes, first.end) {
        (0, End::Busy(why)) => return busy(why),
        (0, End::Broken) => return failed(),
        _ => {}
    }
    let (feed, reply) = Reply::stream();
    tokio::spawn(pump(reader, feed));
    let mut answer = result(Bytes::new());
    *answer.body_mut() = reply;
    answer
}

async fn pump(mut reader: Reader, feed: Feed) {
    loop {
        let part = match reader.next().await {
            Ok(part) => Ok(part),
            Err(End::Complete | End::Refused) => return,
            Err(_) => Err(io::Error::other("the answer was not made to its end")),
        };
        let over = part.is_err();
        if feed.send(part).await.is_err() || over {
            return;
        }
    }
}
