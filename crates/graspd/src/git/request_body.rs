//! Request bodies: read as a stream, decompressed if they are gzipped, and bounded in size, memory and rate.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::write::MultiGzDecoder as GzWriter;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Response, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::handlers::GitClient;
use super::transfer_rate::{CONTENDED_RATE, RATE_CHECK_INTERVAL, RELAXED_RATE, TransferRate};
use crate::http::body::{HttpResponse, ResponseBody};
use crate::http::fair_semaphore::FairSemaphore;
use crate::http::network_limits::ClientNetwork;

/// Compressed bytes that are decompressed at a time. Gzip compresses at most about a thousandfold, so the result has at
/// most four megabytes.
const INFLATE_CHUNK_BYTES: usize = 4 * 1024;

/// Bytes per permit of the semaphore that limits the memory of buffered bodies.
pub(super) const MEMORY_UNIT_BYTES: usize = 64 * 1024;

/// Bytes of a buffered body that are not counted: every connection has a buffer of this size anyway, and the requests
/// of most clones fit, so large requests of other clients cannot block them.
const UNCOUNTED_BYTES: usize = 8 * 1024;

/// Timeout for reading a buffered body.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to read the rest of a request before the response starts. A proxy forwards what it has buffered within this
/// time; once the response has started, a proxy forwards no more of the request.
const DRAIN_BEFORE_RESPONSE: Duration = Duration::from_millis(500);

/// How long the rest of a request may stall before the response ends: a proxy has stopped forwarding it.
const DRAIN_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Error of reading a request body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The client disconnected or violated the protocol.
    #[error("the request body ended early")]
    Incomplete,
    /// The body is longer than this limit.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(u64),
    /// The body arrives more slowly than the minimum rate.
    #[error("the request body is sent too slowly")]
    TooSlow,
    /// The body is declared as gzip and is not.
    #[error("the request body is not valid gzip")]
    InvalidGzip,
    /// The memory for buffered bodies is used up.
    #[error("too many requests are being read, try again later")]
    OutOfMemory,
    /// The content encoding is neither `identity` nor `gzip`.
    #[error("the content encoding of the request is not supported, use gzip or identity")]
    UnsupportedEncoding,
}

/// A request body that is being read.
pub(super) struct GitRequestBody {
    incoming: Incoming,
    gzip: Option<GzWriter<Vec<u8>>>,
    /// Received bytes that have not been decompressed yet.
    compressed: Bytes,
    /// Received bytes in all.
    received: u64,
    required_rate: RequiredRate,
    rate: TransferRate,
}

/// Which minimum rate applies to a body.
enum RequiredRate {
    Relaxed,
    /// [`CONTENDED_RATE`] while another request waits for the permit that this network has of this semaphore, otherwise
    /// [`RELAXED_RATE`].
    IfContended(Arc<FairSemaphore>, Option<ClientNetwork>),
    Always,
}

/// A body in memory, with the permits for that memory.
pub(super) struct BufferedBody {
    pub(super) bytes: Vec<u8>,
    pub(super) memory: Option<OwnedSemaphorePermit>,
}

impl GitRequestBody {
    pub(super) fn new(headers: &HeaderMap, incoming: Incoming) -> Result<Self, BodyError> {
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes().to_ascii_lowercase());
        let gzip = match encoding.as_deref() {
            None | Some(b"" | b"identity") => None,
            Some(b"gzip" | b"x-gzip") => Some(GzWriter::new(Vec::new())),
            Some(_) => return Err(BodyError::UnsupportedEncoding),
        };
        let (compressed, required_rate) = (Bytes::new(), RequiredRate::Relaxed);
        Ok(Self { incoming, gzip, compressed, received: 0, required_rate, rate: TransferRate::default() })
    }

    /// From now on requires the higher rate while another request waits for the permit of `semaphore` that this request
    /// of `client` has.
    pub(super) fn require_rate_if_contended(&mut self, semaphore: &Arc<FairSemaphore>, client: GitClient) {
        self.required_rate = RequiredRate::IfContended(semaphore.clone(), client.network);
    }

    /// From now on requires the higher rate.
    pub(super) fn require_rate(&mut self) {
        self.required_rate = RequiredRate::Always;
    }

    /// Returns the next decompressed bytes. `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            if self.compressed.is_empty() {
                let Some(bytes) = self.next_raw().await? else { return self.finish() };
                if self.gzip.is_none() {
                    return Ok(Some(bytes));
                }
                self.compressed = bytes;
            }
            let slice = self.compressed.split_to(self.compressed.len().min(INFLATE_CHUNK_BYTES));
            let Some(gzip) = &mut self.gzip else { return Ok(Some(slice)) };
            gzip.write_all(&slice).map_err(|_| BodyError::InvalidGzip)?;
            let bytes = std::mem::take(gzip.get_mut());
            if !bytes.is_empty() {
                return Ok(Some(bytes.into()));
            }
        }
    }

    /// Returns the decompressed bytes that remain at the end of the body.
    fn finish(&mut self) -> Result<Option<Bytes>, BodyError> {
        let Some(mut gzip) = self.gzip.take().filter(|_| self.received > 0) else { return Ok(None) };
        gzip.try_finish().map_err(|_| BodyError::InvalidGzip)?;
        let bytes = std::mem::take(gzip.get_mut());
        Ok((!bytes.is_empty()).then(|| bytes.into()))
    }

    /// Returns the next bytes as they were received. `None` at the end.
    async fn next_raw(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let began = Instant::now();
            let frame = tokio::time::timeout(RATE_CHECK_INTERVAL, self.incoming.frame()).await;
            self.rate.add_wait(began.elapsed());
            let Ok(frame) = frame else {
                self.check_rate()?;
                continue;
            };
            let Some(frame) = frame else { return Ok(None) };
            let Ok(bytes) = frame.map_err(|_| BodyError::Incomplete)?.into_data() else { continue };
            self.received += bytes.len() as u64;
            self.rate.add_bytes(bytes.len());
            self.check_rate()?;
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }

    fn check_rate(&mut self) -> Result<(), BodyError> {
        let required = match &self.required_rate {
            RequiredRate::Always => CONTENDED_RATE,
            RequiredRate::IfContended(semaphore, network) if semaphore.is_contended(*network) => CONTENDED_RATE,
            RequiredRate::IfContended(..) | RequiredRate::Relaxed => RELAXED_RATE,
        };
        if self.rate.is_below(required) { Err(BodyError::TooSlow) } else { Ok(()) }
    }

    /// Reads and discards bytes, without decompressing them, until more than `until` bytes have been received in all, the
    /// body ends, or no bytes have arrived for [`DRAIN_IDLE_TIMEOUT`].
    async fn drain(&mut self, until: u64) {
        while self.received <= until {
            match tokio::time::timeout(DRAIN_IDLE_TIMEOUT, self.next_raw()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None) | Err(_)) | Err(_) => break,
            }
        }
    }

    /// Reads the whole body into memory. Permits of `memory` are taken as bytes arrive, so that a client that only
    /// announces a large body takes nothing from others.
    pub(super) async fn read_to_end(
        &mut self,
        max_bytes: usize,
        memory: &Arc<Semaphore>,
    ) -> Result<BufferedBody, BodyError> {
        tokio::time::timeout(READ_TIMEOUT, self.read_all(max_bytes, memory)).await.unwrap_or(Err(BodyError::TooSlow))
    }

    async fn read_all(&mut self, max_bytes: usize, memory: &Arc<Semaphore>) -> Result<BufferedBody, BodyError> {
        let mut body = BufferedBody { bytes: Vec::new(), memory: None };
        while let Some(bytes) = self.next().await? {
            let length = body.bytes.len() + bytes.len();
            if length > max_bytes {
                return Err(BodyError::TooLarge(max_bytes as u64));
            }
            body.reserve(length, memory)?;
            body.bytes.extend_from_slice(&bytes);
        }
        Ok(body)
    }
}

impl BufferedBody {
    /// Takes the missing permits for `length` bytes.
    fn reserve(&mut self, length: usize, memory: &Arc<Semaphore>) -> Result<(), BodyError> {
        let units = length.saturating_sub(UNCOUNTED_BYTES).div_ceil(MEMORY_UNIT_BYTES);
        let missing = units.saturating_sub(self.memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).map_err(|_| BodyError::OutOfMemory)?;
        let permits = memory.clone().try_acquire_many_owned(missing).map_err(|_| BodyError::OutOfMemory)?;
        match &mut self.memory {
            Some(memory) => memory.merge(permits),
            None => self.memory = Some(permits),
        }
        Ok(())
    }
}

/// Sends a response immediately and ends it when the rest of the request, at most `max_bytes`, has been read and
/// discarded.
///
/// A client that is still sending does not read. If the connection were closed after the response, the client would
/// report a network error instead of the response.
pub(super) async fn respond_and_drain(
    response: HttpResponse,
    mut body: GitRequestBody,
    max_bytes: u64,
) -> HttpResponse {
    let until = body.received.saturating_add(max_bytes);
    body.required_rate = RequiredRate::Relaxed;
    if tokio::time::timeout(DRAIN_BEFORE_RESPONSE, body.drain(until)).await.is_ok() {
        return response;
    }
    let (head, response_body) = response.into_parts();
    let (sender, stream) = ResponseBody::channel();
    tokio::spawn(async move {
        if let ResponseBody::Full(full) = response_body {
            let bytes = full.collect().await.map(|collected| collected.to_bytes()).unwrap_or_default();
            if !bytes.is_empty() {
                let _ = sender.send(Ok(bytes)).await;
            }
        }
        body.drain(until).await;
    });
    Response::from_parts(head, stream)
}
