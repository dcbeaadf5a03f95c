//! Bodies of requests: as they come, unpacked if they are gzipped, and never more of them than is wanted.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::write::MultiGzDecoder as GzWriter;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Response, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::body::{HttpResponse, ResponseBody};
use crate::http::fair_semaphore::FairSemaphore;

/// Bytes that are unpacked at a time: a gzipped zero is a thousandth of a zero, so this is four megabytes at most.
const SLICE: usize = 4 * 1024;

/// Bytes that one unit of a budget for bodies in memory stands for.
pub(super) const UNIT: usize = 64 * 1024;

/// Bytes of a body in memory that nobody counts: every connection has such a buffer anyway, and the requests of most
/// clones fit, so that no stranger's large ones stand in their way.
const UNCOUNTED: usize = 8 * 1024;

/// How long a body that is held in memory may take in all.
const WHOLE: Duration = Duration::from_secs(60);

/// How often a body that does not come is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The bytes that must come within a time that is spent waiting for them.
#[derive(Clone, Copy)]
struct Pace {
    bytes: u64,
    within: Duration,
}

/// A modem's speed.
const CALM: Pace = Pace { bytes: 30 * 1024, within: Duration::from_secs(30) };

/// When others wait for the place, the slow ones make room: 32 kB/s is less than the slowest line that anybody pushes
/// over while the server is full.
const CROWDED: Pace = Pace { bytes: 160 * 1024, within: Duration::from_secs(5) };

/// How long the rest of a request may take before its answer begins without it. What a proxy has gathered comes within
/// this time; and once an answer has begun, a proxy sends no more of the request.
const AT_ONCE: Duration = Duration::from_millis(500);

/// How long the rest of a request may be silent before its answer ends without it: it stands still at a proxy.
const QUIET: Duration = Duration::from_secs(5);

/// Why a body cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BodyProblem {
    /// The client went away or broke the protocol.
    #[error("the request ended too early")]
    Broken,
    /// It is longer than it may be.
    #[error("the request has more than {0} bytes")]
    TooLarge(u64),
    /// It comes too slowly.
    #[error("the request comes too slowly")]
    Slow,
    /// It says that it is gzipped and is not.
    #[error("the request is not valid gzip")]
    Gzip,
    /// There is no memory for it at the moment.
    #[error("too many requests are being read already")]
    Busy,
    /// It is packed in another way.
    #[error("the request has an encoding that is not supported")]
    Encoding,
}

/// A body that is being read.
pub(super) struct Body {
    incoming: Incoming,
    gzip: Option<GzWriter<Vec<u8>>>,
    /// Packed bytes that have not been unpacked yet.
    packed: Bytes,
    read: u64,
    haste: Haste,
    /// Time spent waiting for bytes, and the bytes that came, since the pace was last looked at.
    waited: Duration,
    came: u64,
}

/// Which pace a body must keep.
enum Haste {
    Calm,
    /// The crowded one, if anybody waits here.
    IfWaitedFor(Arc<FairSemaphore>),
    Crowded,
}

/// A body in memory, and its share of the budget.
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    pub(super) share: Option<OwnedSemaphorePermit>,
}

impl Body {
    pub(super) fn new(headers: &HeaderMap, incoming: Incoming) -> Result<Self, BodyProblem> {
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes().to_ascii_lowercase());
        let gzip = match encoding.as_deref() {
            None | Some(b"" | b"identity") => None,
            Some(b"gzip" | b"x-gzip") => Some(GzWriter::new(Vec::new())),
            Some(_) => return Err(BodyProblem::Encoding),
        };
        let (haste, waited) = (Haste::Calm, Duration::ZERO);
        Ok(Self { incoming, gzip, packed: Bytes::new(), read: 0, haste, waited, came: 0 })
    }

    /// From now on it must not be slow while somebody waits for one of these turns, of which it has one.
    pub(super) fn hurry_if_waited_for(&mut self, turns: &Arc<FairSemaphore>) {
        self.haste = Haste::IfWaitedFor(turns.clone());
    }

    /// From now on it must not be slow.
    pub(super) fn hurry(&mut self) {
        self.haste = Haste::Crowded;
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, BodyProblem> {
        loop {
            if self.packed.is_empty() {
                let Some(bytes) = self.raw().await? else { return self.finish() };
                if self.gzip.is_none() {
                    return Ok(Some(bytes));
                }
                self.packed = bytes;
            }
            let slice = self.packed.split_to(self.packed.len().min(SLICE));
            let Some(gzip) = &mut self.gzip else { return Ok(Some(slice)) };
            gzip.write_all(&slice).map_err(|_| BodyProblem::Gzip)?;
            let bytes = std::mem::take(gzip.get_mut());
            if !bytes.is_empty() {
                return Ok(Some(bytes.into()));
            }
        }
    }

    fn finish(&mut self) -> Result<Option<Bytes>, BodyProblem> {
        let Some(mut gzip) = self.gzip.take().filter(|_| self.read > 0) else { return Ok(None) };
        gzip.try_finish().map_err(|_| BodyProblem::Gzip)?;
        let bytes = std::mem::take(gzip.get_mut());
        Ok((!bytes.is_empty()).then(|| bytes.into()))
    }

    async fn raw(&mut self) -> Result<Option<Bytes>, BodyProblem> {
        loop {
            let began = Instant::now();
            let frame = tokio::time::timeout(LOOK, self.incoming.frame()).await;
            self.waited += began.elapsed();
            let Ok(frame) = frame else {
                self.keep_pace()?;
                continue;
            };
            let Some(frame) = frame else { return Ok(None) };
            let Ok(bytes) = frame.map_err(|_| BodyProblem::Broken)?.into_data() else { continue };
            self.read += bytes.len() as u64;
            self.came += bytes.len() as u64;
            self.keep_pace()?;
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }

    /// Looks at the pace when there has been time enough. What came faster before does not count: whoever sends much and
    /// then nothing is slow.
    fn keep_pace(&mut self) -> Result<(), BodyProblem> {
        let pace = match &self.haste {
            Haste::Crowded => CROWDED,
            Haste::IfWaitedFor(turns) if turns.are_waited_for() => CROWDED,
            Haste::IfWaitedFor(_) | Haste::Calm => CALM,
        };
        if self.waited < pace.within {
            return Ok(());
        }
        // Waiting may have begun long before it became crowded.
        if u128::from(self.came) * pace.within.as_millis() < u128::from(pace.bytes) * self.waited.as_millis() {
            return Err(BodyProblem::Slow);
        }
        (self.waited, self.came) = (Duration::ZERO, 0);
        Ok(())
    }

    /// Reads on and throws it away, until so many bytes have come in all, or nothing more comes. It need not be unpacked:
    /// nobody wants it.
    async fn drain(&mut self, until: u64) {
        while self.read <= until {
            match self.raw().await {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// The same, until nothing has come for a while.
    async fn drain_until_quiet(&mut self, until: u64) {
        while self.read <= until {
            match tokio::time::timeout(QUIET, self.raw()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None) | Err(_)) | Err(_) => break,
            }
        }
    }

    /// All of it, in memory, for which a share of the budget is taken as it comes: whoever only says that much will come
    /// takes nothing from others.
    pub(super) async fn whole(&mut self, most: usize, budget: &Arc<Semaphore>) -> Result<Held, BodyProblem> {
        tokio::time::timeout(WHOLE, self.gather(most, budget)).await.unwrap_or(Err(BodyProblem::Slow))
    }

    async fn gather(&mut self, most: usize, budget: &Arc<Semaphore>) -> Result<Held, BodyProblem> {
        let mut held = Held { bytes: Vec::new(), share: None };
        while let Some(bytes) = self.next().await? {
            let length = held.bytes.len() + bytes.len();
            if length > most {
                return Err(BodyProblem::TooLarge(most as u64));
            }
            held.grow(length, budget)?;
            held.bytes.extend_from_slice(&bytes);
        }
        Ok(held)
    }
}

impl Held {
    /// Takes what is lacking for so many bytes from the budget, if it has that.
    fn grow(&mut self, length: usize, budget: &Arc<Semaphore>) -> Result<(), BodyProblem> {
        let units = length.saturating_sub(UNCOUNTED).div_ceil(UNIT);
        let lacking = units.saturating_sub(self.share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if lacking == 0 {
            return Ok(());
        }
        let lacking = u32::try_from(lacking).map_err(|_| BodyProblem::Busy)?;
        let more = budget.clone().try_acquire_many_owned(lacking).map_err(|_| BodyProblem::Busy)?;
        match &mut self.share {
            Some(share) => share.merge(more),
            None => self.share = Some(more),
        }
        Ok(())
    }
}

/// Sends an answer at once and ends it when the rest of the request, up to so many bytes, has been read and thrown away:
/// a client that is still sending does not listen, and would take an answer followed by a closed connection for a broken
/// network.
pub(super) async fn drained(answer: HttpResponse, mut body: Body, most: u64) -> HttpResponse {
    let until = body.read.saturating_add(most);
    body.haste = Haste::Calm;
    if tokio::time::timeout(AT_ONCE, body.drain(until)).await.is_ok() {
        return answer;
    }
    let (head, whole) = answer.into_parts();
    let (feed, reply) = ResponseBody::stream();
    tokio::spawn(async move {
        if let ResponseBody::Whole(whole) = whole {
            let bytes = whole.collect().await.map(|collected| collected.to_bytes()).unwrap_or_default();
            if !bytes.is_empty() {
                let _ = feed.send(Ok(bytes)).await;
            }
        }
        body.drain_until_quiet(until).await;
    });
    Response::from_parts(head, reply)
}
