//! A connection to a git server. It goes to an address that was looked at, and when it is made anew, to the same ones.

use std::time::{Duration, Instant};

use bytes::Bytes;
use grasp_core::fetch::io::FetchOutcome;
use grasp_core::limits;
use grasp_core::net::OutboundUrl;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::FetchError;
use crate::net::dialer::{Dialer, Route};

/// How long a server may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Until a connection stands.
    pub(super) connect: Duration,
    /// Until an answer begins.
    pub(super) first: Duration,
    /// Between two bytes.
    pub(super) silence: Duration,
    /// Until a pack begins, whatever else comes.
    pub(super) prepare: Duration,
    /// For so many bytes of a pack as must come within this time.
    pub(super) pace: Duration,
    /// For all of it.
    pub(super) whole: Duration,
}

/// A way to a server. Dropping it ends the connection.
pub(super) struct Call<'a> {
    dialer: &'a Dialer,
    route: Route,
    patience: Patience,
    line: Option<Line>,
}

/// A connection.
struct Line {
    sender: SendRequest<Full<Bytes>>,
    /// What moves its bytes.
    work: AbortHandle,
    /// Whether it has been used.
    worn: bool,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl<'a> Call<'a> {
    /// Finds a server, once and for all requests of this call, and connects to it.
    pub(super) async fn open(dialer: &'a Dialer, target: &OutboundUrl, patience: Patience) -> Result<Self, FetchError> {
        let open = async {
            let route = dialer.route(target.clone()).await.map_err(failed)?;
            let line = Line::open(dialer, &route).await?;
            Ok(Self { dialer, route, patience, line: Some(line) })
        };
        timeout(patience.connect, open).await.map_err(|_| failed("no connection in time"))?
    }

    /// Sends a request and waits until its answer begins.
    pub(super) async fn send(&mut self, request: &Request<Full<Bytes>>) -> Result<Response<Incoming>, FetchError> {
        let mut line = match self.line.take().filter(|line| !line.sender.is_closed()) {
            Some(line) => line,
            None => self.again().await?,
        };
        let mut answer = line.send(request, self.patience.first).await;
        // It may have been closed because it had nothing to do.
        let is_lost =
            |problem: &hyper::Error| problem.is_canceled() || problem.is_closed() || problem.is_incomplete_message();
        if line.worn && answer.as_ref().is_err_and(|problem| problem.as_ref().is_some_and(is_lost)) {
            line = self.again().await?;
            answer = line.send(request, self.patience.first).await;
        }
        line.worn = true;
        self.line = Some(line);
        answer.map_err(|problem| match problem {
            Some(problem) => failed(problem),
            None => failed("no answer in time"),
        })
    }

    async fn again(&self) -> Result<Line, FetchError> {
        timeout(self.patience.connect, Line::open(self.dialer, &self.route))
            .await
            .map_err(|_| failed("no connection in time"))?
    }
}

impl Line {
    async fn open(dialer: &Dialer, route: &Route) -> Result<Self, FetchError> {
        let stream = dialer.connect(route).await.map_err(failed)?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(limits::MAX_HEADER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        // How it ends, whoever waits for an answer finds out.
        let work = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Self { sender, work, worn: false })
    }

    /// Nothing is the problem if no answer came in time.
    async fn send(
        &mut self,
        request: &Request<Full<Bytes>>,
        patience: Duration,
    ) -> Result<Response<Incoming>, Option<hyper::Error>> {
        let exchange = async {
            self.sender.ready().await?;
            self.sender.send_request(request.clone()).await
        };
        timeout(patience, exchange).await.map_err(|_| None)?.map_err(Some)
    }
}

/// The body of an answer, as it comes.
pub(super) struct Answer {
    body: Incoming,
    patience: Patience,
    /// Whether anything has come.
    begun: bool,
    began: Instant,
    /// Time spent waiting for bytes and the bytes of the pack that came, since the pace was last looked at.
    waited: Duration,
    came: u64,
    /// Bytes of the pack.
    packed: u64,
}

impl Answer {
    pub(super) fn new(body: Incoming, patience: Patience) -> Self {
        let began = Instant::now();
        Self { body, patience, begun: false, began, waited: Duration::ZERO, came: 0, packed: 0 }
    }

    /// Bytes that are still to come, if the server says so.
    pub(super) fn claimed(&self) -> u64 {
        self.body.size_hint().lower()
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let patience = if self.begun { self.patience.silence } else { self.patience.first };
            let began = Instant::now();
            let frame = timeout(patience, self.body.frame()).await.map_err(|_| failed("it has fallen silent"))?;
            self.waited += began.elapsed();
            let Some(frame) = frame else { return Ok(None) };
            // Trailers are nobody's business.
            let Ok(bytes) = frame.map_err(failed)?.into_data() else { continue };
            if !bytes.is_empty() {
                self.begun = true;
                return Ok(Some(bytes));
            }
        }
    }

    /// Says how many bytes of those that came were the pack's. A server that is too slow has lost.
    pub(super) fn keep_pace(&mut self, bytes: u64) -> Result<(), FetchError> {
        if self.packed == 0 && bytes > 0 {
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        self.packed += bytes;
        self.came += bytes;
        if self.packed == 0 {
            let late = self.began.elapsed() > self.patience.prepare;
            return if late { Err(failed("no pack in time")) } else { Ok(()) };
        }
        if self.waited >= self.patience.pace {
            if self.came < limits::MIN_PACK_RATE_BYTES {
                return Err(failed("it is too slow"));
            }
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        Ok(())
    }
}

fn failed(why: impl ToString) -> FetchError {
    FetchError::new(FetchOutcome::Failed, why)
}
