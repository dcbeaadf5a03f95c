//! The accept loop and the connections of all listeners, and the server of the main listener.
//!
//! The loop ends at shutdown and for no other reason: errors of `accept` are logged and retried.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::limits;
use hyper::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::body::HttpResponse;
use super::connection_limit::{ConnectionLimit, ConnectionSlot};
use super::forwarded;
use super::network_limits::{ClientNetwork, NetworkLimits, NetworkSlot};
use super::stall_timeout::{ConnectionActivity, HeaderTimer, TrackedStream};
use crate::clock::Clock;

/// Delay after a failed `accept`, so that the system can recover if it has no file descriptors or memory left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// How long a connection that was accepted just before the shutdown may take to send the first byte of its request.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(2);

/// Slots of an open connection within all limits. The shutdown waits until all permits are dropped.
pub(crate) struct ConnectionPermit {
    _slot: ConnectionSlot,
    /// Slot in the network of the peer. `None` for a trusted proxy, whose clients are limited instead.
    pub(crate) network_slot: Option<NetworkSlot>,
    /// The channel is closed when the last permit is dropped.
    _alive: mpsc::Sender<()>,
    /// True from the begin of the shutdown.
    pub(crate) shutdown: watch::Receiver<bool>,
}

/// Waits until the server begins to shut down.
pub(crate) async fn wait_for_shutdown(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender is dropped, which also happens only at shutdown.
    let _ = shutdown.wait_for(|is_shutting_down| *is_shutting_down).await;
}

/// Answers the requests of accepted connections.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Answers one request of `peer`. `permit` keeps the server from stopping while the connection is open.
    fn handle(
        self: Arc<Self>,
        peer: IpAddr,
        permit: Arc<ConnectionPermit>,
        request: Request<Incoming>,
    ) -> impl Future<Output = HttpResponse> + Send;
}

/// The server of the main address: its handler, and the limits that a connection must pass.
pub(crate) struct HttpServer<H> {
    pub(crate) handler: Arc<H>,
    /// Limit of all connections together.
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    /// Limits of each network.
    pub(crate) network_limits: NetworkLimits,
    /// Peers that count as proxies: their clients are limited instead of them.
    pub(crate) trusted_proxies: Vec<IpNet>,
    pub(crate) clock: Clock,
    pub(crate) shutdown: watch::Receiver<bool>,
}

impl<H: RequestHandler> HttpServer<H> {
    /// Accepts connections until the shutdown begins, and then closes the listener. Returns a channel that is closed
    /// when the last connection has ended.
    pub(crate) async fn run(self, listener: TcpListener) -> mpsc::Receiver<()> {
        let server = Arc::new(self);
        let (alive, all_closed) = mpsc::channel(1);
        let accepted = |(stream, peer)| match server.connection_limit.acquire() {
            Some(slot) => drop(tokio::spawn(server.clone().serve(stream, peer, slot, alive.clone()))),
            None => debug!(target: "http", %peer, "connection limit reached"),
        };
        accept_connections("main", || listener.accept(), server.shutdown.clone(), accepted).await;
        all_closed
    }

    /// Claims a slot in the peer's network, unless the peer is a trusted proxy. `None` if the network has no slot left.
    fn permit(&self, peer: IpAddr, slot: ConnectionSlot, alive: mpsc::Sender<()>) -> Option<Arc<ConnectionPermit>> {
        let is_proxy = forwarded::is_in(peer, &self.trusted_proxies);
        let network_slot = if is_proxy { None } else { Some(self.network_limits.claim(ClientNetwork::from_ip(peer))?) };
        Some(Arc::new(ConnectionPermit { _slot: slot, network_slot, _alive: alive, shutdown: self.shutdown.clone() }))
    }

    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        slot: ConnectionSlot,
        alive: mpsc::Sender<()>,
    ) {
        let Some(permit) = self.permit(peer.ip(), slot, alive) else {
            debug!(target: "http", %peer, "per-network connection limit reached");
            return;
        };
        if let Err(error) = stream.set_nodelay(true) {
            debug!(target: "http", %peer, %error, "connection closed before its first request");
            return;
        }
        let shutdown = permit.shutdown.clone();
        let activity = ConnectionActivity::new(self.clock);
        let handler = self.handler.clone();
        let service = service_fn(move |request| {
            let response = handler.clone().handle(peer.ip(), permit.clone(), request);
            async move { Ok::<_, Infallible>(response.await) }
        });
        serve_connection(stream, service, shutdown, activity, HTTP_TIMEOUTS).await;
    }
}

/// Calls `accepted` for each connection until the shutdown begins. `listener` is the name of the listener in the log.
pub(crate) async fn accept_connections<C, F: Future<Output = io::Result<C>>>(
    listener: &str,
    accept: impl Fn() -> F,
    mut shutdown: watch::Receiver<bool>,
    accepted: impl Fn(C),
) {
    loop {
        let connection = tokio::select! {
            connection = accept() => connection,
            () = wait_for_shutdown(&mut shutdown) => return,
        };
        match connection {
            Ok(connection) => accepted(connection),
            Err(error) => recover(listener, &error).await,
        }
    }
}

/// Waits after a failed `accept` if the error concerns the system (no descriptors or memory left) and not only one
/// connection that is closed already.
async fn recover(listener: &str, error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if !matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        warn!(target: "http", listener, %error, "cannot accept connections");
        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
    }
}

/// Timeouts of a connection.
#[derive(Clone, Copy)]
pub(crate) struct HttpTimeouts {
    /// Time to receive the headers of a request.
    headers: Duration,
    /// Time without a byte in either direction.
    stall: Duration,
}

/// Timeouts of the TCP listeners.
pub(crate) const HTTP_TIMEOUTS: HttpTimeouts = HttpTimeouts {
    headers: Duration::from_secs(limits::HANDSHAKE_TIMEOUT_SECS),
    stall: Duration::from_secs(limits::STALL_TIMEOUT_SECS),
};

/// Timeouts of the admin socket: a job may send nothing for a long time.
pub(crate) const ADMIN_TIMEOUTS: HttpTimeouts = HttpTimeouts { stall: Duration::MAX, ..HTTP_TIMEOUTS };

/// Answers requests until the connection ends, stalls, or becomes a websocket. At shutdown, a request in progress is
/// still answered, and so is the first request of a connection that was accepted just before.
pub(crate) async fn serve_connection<IO, S, B>(
    stream: IO,
    service: S,
    mut shutdown: watch::Receiver<bool>,
    activity: Arc<ConnectionActivity>,
    timeouts: HttpTimeouts,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(HeaderTimer::new(activity.clone()))
        .header_read_timeout(timeouts.headers)
        .max_buf_size(limits::MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(TrackedStream::new(stream, activity.clone())), service)
        .with_upgrades();
    tokio::pin!(connection);
    let mut is_open = true;
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = activity.wait_until_idle(timeouts.stall) => return debug!(target: "http", "connection stalled"),
            () = wait_until_draining(&mut shutdown, &activity), if is_open => {
                is_open = false;
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = ended {
        debug!(target: "http", %error, "connection failed");
    }
}

/// Waits until the shutdown has begun and the client has had time to send its first byte.
async fn wait_until_draining(shutdown: &mut watch::Receiver<bool>, activity: &ConnectionActivity) {
    wait_for_shutdown(shutdown).await;
    if activity.received() == 0 {
        let _ = tokio::time::timeout(FIRST_REQUEST_GRACE, activity.wait_for_first_byte()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Instant;

    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use hyper::{Request, Response};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::clock::Clock;

    /// How long a step of a test may take.
    const DEADLINE: Duration = Duration::from_secs(30);
    const NEVER: Duration = Duration::from_secs(3_600);
    /// Long enough not to elapse by accident on a busy machine, short enough to wait for.
    const SHORT: Duration = Duration::from_millis(300);

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const LAST_GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    const BODY_BYTES: usize = 300_000;

    struct TestConnection {
        client: DuplexStream,
        shutdown: watch::Sender<bool>,
        task: JoinHandle<()>,
        /// Bytes of the current response body that have been read.
        body_read: usize,
    }

    impl TestConnection {
        /// Connects to a server that reads a request to its end and sends a long response in one piece. The pipe is
        /// short, so the response stays in the server until the client reads it.
        fn open(timeouts: HttpTimeouts) -> Self {
            let (client, stream) = duplex(1_024);
            let (shutdown, receiver) = watch::channel(false);
            let service = service_fn(|request: Request<Incoming>| async move {
                let _ = request.into_body().collect().await;
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![b'x'; BODY_BYTES]))))
            });
            let activity = ConnectionActivity::new(Clock::start());
            let task = tokio::spawn(serve_connection(stream, service, receiver, activity, timeouts));
            Self { client, shutdown, task, body_read: 0 }
        }

        async fn send(&mut self, bytes: &[u8]) {
            self.client.write_all(bytes).await.expect("the connection is open");
        }

        async fn read(&mut self, at_most: usize) {
            let mut buf = vec![0; at_most];
            let read = self.client.read(&mut buf).await.expect("a response");
            assert!(read > 0, "the response ended early");
            // The headers contain no `x`.
            self.body_read += buf[..read].iter().filter(|byte| **byte == b'x').count();
        }

        /// Reads the rest of the response.
        async fn read_response(&mut self) {
            while self.body_read < BODY_BYTES {
                self.read(4_096).await;
            }
            self.body_read = 0;
        }

        /// Waits until the server has closed the connection.
        async fn wait_closed(self) {
            let closed = tokio::time::timeout(DEADLINE, self.task).await;
            closed.expect("the connection was not closed").expect("the task panicked");
        }
    }

    #[tokio::test]
    async fn client_that_does_not_read_is_dropped() {
        let mut slow = TestConnection::open(HttpTimeouts { headers: NEVER, stall: SHORT });
        slow.send(GET).await;
        slow.wait_closed().await;
    }

    #[tokio::test]
    async fn client_that_does_not_send_is_dropped() {
        let mut slow = TestConnection::open(HttpTimeouts { headers: NEVER, stall: SHORT });
        slow.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf").await;
        slow.wait_closed().await;
    }

    #[tokio::test]
    async fn slow_upload_is_not_dropped() {
        let stall = 10 * SHORT;
        let mut slow = TestConnection::open(HttpTimeouts { headers: NEVER, stall });
        slow.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        let began = Instant::now();
        let mut ticks = tokio::time::interval(SHORT / 2);
        while began.elapsed() < 2 * stall {
            ticks.tick().await;
            slow.send(b"1\r\n.\r\n").await;
        }
        slow.send(b"0\r\n\r\n").await;
        slow.read_response().await;
    }

    #[tokio::test]
    async fn header_timeout_runs_from_the_first_byte_of_a_request() {
        for (name, before) in [("first request", &b""[..]), ("second request", GET)] {
            for start in ["GET /", "\r\nGET /"] {
                let mut slow = TestConnection::open(HttpTimeouts { headers: SHORT, stall: NEVER });
                if !before.is_empty() {
                    slow.send(before).await;
                    slow.read_response().await;
                }
                slow.send(start.as_bytes()).await;
                let began = Instant::now();
                let mut ticks = tokio::time::interval(SHORT / 20);
                while slow.client.write_all(b"x").await.is_ok() {
                    assert!(began.elapsed() < DEADLINE, "the {name} does not time out");
                    ticks.tick().await;
                }
                slow.wait_closed().await;
            }
        }
        // A connection without any byte times out too.
        TestConnection::open(HttpTimeouts { headers: SHORT, stall: NEVER }).wait_closed().await;
    }

    #[tokio::test]
    async fn slow_reader_gets_its_response_and_can_send_another_request() {
        let mut slow = TestConnection::open(HttpTimeouts { headers: SHORT, stall: NEVER });
        slow.send(GET).await;
        let began = Instant::now();
        let mut ticks = tokio::time::interval(SHORT / 20);
        while began.elapsed() < 3 * SHORT {
            ticks.tick().await;
            slow.read(16).await;
        }
        assert!(slow.body_read < BODY_BYTES / 2, "most of the response is still in the server");
        slow.read_response().await;
        // The header timeout does not run between two requests.
        tokio::time::sleep(2 * SHORT).await;
        slow.send(LAST_GET).await;
        slow.read_response().await;
        slow.wait_closed().await;
    }

    #[tokio::test]
    async fn idle_connection_is_closed_after_the_stall_timeout() {
        let mut idle = TestConnection::open(HttpTimeouts { headers: SHORT, stall: 5 * SHORT });
        idle.send(GET).await;
        idle.read_response().await;
        let began = Instant::now();
        idle.wait_closed().await;
        assert!(began.elapsed() > 4 * SHORT, "the connection was closed too early");
    }

    #[tokio::test]
    async fn shutdown_finishes_responses_and_closes_idle_connections() {
        let timeouts = HttpTimeouts { headers: NEVER, stall: NEVER };
        let (mut idle, mut busy) = (TestConnection::open(timeouts), TestConnection::open(timeouts));
        idle.send(GET).await;
        idle.read_response().await;
        busy.send(GET).await;
        busy.read(16).await;
        for connection in [&idle, &busy] {
            connection.shutdown.send(true).expect("the task is running");
        }
        idle.wait_closed().await;
        busy.read_response().await;
        busy.wait_closed().await;
    }
}
