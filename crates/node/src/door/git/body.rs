//! Bodies of requests: as they come, unpacked if they are gzipped, and never more of them than is wanted.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::read::MultiGzDecoder as GzReader;
use flate2::write::MultiGzDecoder as GzWriter;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, header};

/// Bytes that are unpacked at a time: a gzipped zero is a thousandth of a zero, so this is four megabytes at most.
const SLICE: usize = 4 * 1024;

/// How long a body may be slower than [`MIN_RATE`].
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes a second that a body must keep on average: a modem's speed.
const MIN_RATE: u64 = 1_024;

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
    began: Instant,
    read: u64,
}

impl Body {
    pub(super) fn new(headers: &HeaderMap, incoming: Incoming) -> Result<Self, BodyProblem> {
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes().to_ascii_lowercase());
        let gzip = match encoding.as_deref() {
            None | Some(b"" | b"identity") => None,
            Some(b"gzip" | b"x-gzip") => Some(GzWriter::new(Vec::new())),
            Some(_) => return Err(BodyProblem::Encoding),
        };
        Ok(Self { incoming, gzip, packed: Bytes::new(), began: Instant::now(), read: 0 })
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
            let Some(frame) = self.incoming.frame().await else { return Ok(None) };
            let Ok(bytes) = frame.map_err(|_| BodyProblem::Broken)?.into_data() else { continue };
            self.read += bytes.len() as u64;
            let elapsed = self.began.elapsed();
            if elapsed > PATIENCE && self.read < elapsed.as_secs() * MIN_RATE {
                return Err(BodyProblem::Slow);
            }
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }

    /// Reads the rest and throws it away: a client that is still sending does not listen, and would take an answer
    /// followed by a closed connection for a broken network. Gives up where the limits do.
    pub(super) async fn drain(mut self, most: u64) {
        // Nobody wants it, so it need not be unpacked.
        while self.read <= most {
            match self.raw().await {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// All of it, in memory.
    pub(super) async fn whole(mut self, most: usize) -> Result<Vec<u8>, BodyProblem> {
        let mut packed = Vec::new();
        while let Some(bytes) = self.raw().await? {
            if packed.len() + bytes.len() > most {
                return Err(BodyProblem::TooLarge(most as u64));
            }
            packed.extend_from_slice(&bytes);
        }
        if self.gzip.is_none() || packed.is_empty() {
            return Ok(packed);
        }
        let mut bytes = Vec::new();
        GzReader::new(packed.as_slice())
            .take(most as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|_| BodyProblem::Gzip)?;
        if bytes.len() > most { Err(BodyProblem::TooLarge(most as u64)) } else { Ok(bytes) }
    }
}
