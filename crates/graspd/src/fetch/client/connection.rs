//! HTTP connection to a git server. The host name is resolved and its addresses are checked once; reconnects use the
//! same addresses.

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
use crate::http::network_limits::ClientNetwork;
use crate::net::dialer::{Dialer, Route};

/// Timeouts of a fetch.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchTimeouts {
    /// For name resolution and connection.
    pub(super) connect: Duration,
    /// Until the response begins.
    pub(super) first_byte: Duration,
    /// Between two pieces of the response.
    pub(super) silence: Duration,
    /// Until the pack begins, whatever else the server sends.
    pub(super) pack_start: Duration,
    /// Interval in which a minimum number of bytes of the pack must arrive.
    pub(super) rate_interval: Duration,
    /// For the whole fetch.
    pub(super) total: Duration,
}

/// Connection to a server for the requests of one fetch. Dropping it closes the connection.
pub(super) struct ServerConnection<'a> {
    dialer: &'a Dialer,
    route: Route,
    timeouts: FetchTimeouts,
    http: Option<HttpConnection>,
}

/// One HTTP connection.
struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    /// Task that drives the connection.
    task: AbortHandle,
    /// Whether a request was sent on it.
    is_used: bool,
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<'a> ServerConnection<'a> {
    /// Resolves the server, once for all requests of this connection, and connects to it.
    pub(super) async fn open(
        dialer: &'a Dialer,
        target: &OutboundUrl,
        timeouts: FetchTimeouts,
    ) -> Result<Self, FetchError> {
        let open = async {
            let route = dialer.route(target.clone()).await.map_err(failed)?;
            let http = HttpConnection::open(dialer, &route).await?;
            Ok(Self { dialer, route, timeouts, http: Some(http) })
        };
        timeout(timeouts.connect, open).await.map_err(|_| failed("connection timed out"))?
    }

    /// Returns the network of the server: that of the first of its addresses. `None` for a server on this machine.
    pub(super) fn network(&self) -> Option<ClientNetwork> {
        self.route.addresses().first().and_then(|address| ClientNetwork::from_ip(address.ip()))
    }

    /// Sends a request and waits until the response begins.
    pub(super) async fn send(&mut self, request: &Request<Full<Bytes>>) -> Result<Response<Incoming>, FetchError> {
        let mut http = match self.http.take().filter(|http| !http.sender.is_closed()) {
            Some(http) => http,
            None => self.reconnect().await?,
        };
        let mut response = http.send(request, self.timeouts.first_byte).await;
        // The server may have closed an idle connection.
        let is_lost = |error: &hyper::Error| error.is_canceled() || error.is_closed() || error.is_incomplete_message();
        if http.is_used && response.as_ref().is_err_and(|error| error.as_ref().is_some_and(is_lost)) {
            http = self.reconnect().await?;
            response = http.send(request, self.timeouts.first_byte).await;
        }
        http.is_used = true;
        self.http = Some(http);
        response.map_err(|error| match error {
            Some(error) => failed(error),
            None => failed("no response in time"),
        })
    }

    async fn reconnect(&self) -> Result<HttpConnection, FetchError> {
        timeout(self.timeouts.connect, HttpConnection::open(self.dialer, &self.route))
            .await
            .map_err(|_| failed("connection timed out"))?
    }
}

impl HttpConnection {
    async fn open(dialer: &Dialer, route: &Route) -> Result<Self, FetchError> {
        let stream = dialer.connect(route).await.map_err(failed)?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(limits::MAX_HEADER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        // Errors of the connection are reported by the pending request.
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Self { sender, task, is_used: false })
    }

    /// Sends a request. Returns `Err(None)` if the response did not begin in time.
    async fn send(
        &mut self,
        request: &Request<Full<Bytes>>,
        time_limit: Duration,
    ) -> Result<Response<Incoming>, Option<hyper::Error>> {
        let exchange = async {
            self.sender.ready().await?;
            self.sender.send_request(request.clone()).await
        };
        timeout(time_limit, exchange).await.map_err(|_| None)?.map_err(Some)
    }
}

/// Body of a response that is read in pieces.
pub(super) struct PackBody {
    body: Incoming,
    timeouts: FetchTimeouts,
    /// Whether any bytes have arrived.
    has_begun: bool,
    started_at: Instant,
    /// Time spent waiting for bytes, and bytes of the pack received, since the last check of the rate.
    waited: Duration,
    came: u64,
    /// Bytes of the pack received so far.
    packed: u64,
}

impl PackBody {
    pub(super) fn new(body: Incoming, timeouts: FetchTimeouts) -> Self {
        let started_at = Instant::now();
        Self { body, timeouts, has_begun: false, started_at, waited: Duration::ZERO, came: 0, packed: 0 }
    }

    /// Returns the size of the body that the server announced, or 0.
    pub(super) fn announced_bytes(&self) -> u64 {
        self.body.size_hint().lower()
    }

    /// Returns the next bytes, or `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let time_limit = if self.has_begun { self.timeouts.silence } else { self.timeouts.first_byte };
            let started_at = Instant::now();
            let frame =
                timeout(time_limit, self.body.frame()).await.map_err(|_| failed("the server stopped sending"))?;
            self.waited += started_at.elapsed();
            let Some(frame) = frame else { return Ok(None) };
            // Trailers are ignored.
            let Ok(bytes) = frame.map_err(failed)?.into_data() else { continue };
            if !bytes.is_empty() {
                self.has_begun = true;
                return Ok(Some(bytes));
            }
        }
    }

    /// Counts received bytes of the pack. Fails if the server is too slow.
    pub(super) fn check_rate(&mut self, bytes: u64) -> Result<(), FetchError> {
        if self.packed == 0 && bytes > 0 {
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        self.packed += bytes;
        self.came += bytes;
        if self.packed == 0 {
            let late = self.started_at.elapsed() > self.timeouts.pack_start;
            return if late { Err(failed("the pack did not begin in time")) } else { Ok(()) };
        }
        if self.waited >= self.timeouts.rate_interval {
            if self.came < limits::MIN_PACK_RATE_BYTES {
                return Err(failed("the transfer is too slow"));
            }
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        Ok(())
    }
}

fn failed(reason: impl ToString) -> FetchError {
    FetchError::new(FetchOutcome::Failed, reason)
}
