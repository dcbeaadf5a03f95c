//! The accept loop: it ends when it is told to and for no other reason.

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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::body::HttpResponse;
use super::connection_limit::{ConnectionLimit, ConnectionSlot};
use super::network_limits::{NetworkLimits, NetworkSlot};
use super::stall_timeout::{HeadTimer, Paced, Progress};
use crate::clock::Clock;
use crate::config::Cidr;

/// How long to let the system recover when it has no descriptors or memory left for a connection.
pub(crate) const BREATH: Duration = Duration::from_millis(50);

/// How long somebody who was let in just before the server went down may take to say something.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// A connection's presence: its place among all connections and in its network, and the reason why the server still
/// waits.
pub(crate) struct ConnectionPermit {
    _taken: ConnectionSlot,
    /// Its place in the network that it comes from; a trusted proxy has none, those behind it do.
    pub(crate) place: Option<NetworkSlot>,
    /// Closed when the last presence is gone.
    _alive: mpsc::Sender<()>,
    /// FairSemaphore true when the server goes down.
    pub(crate) leaving: watch::Receiver<bool>,
}

/// Waits until the server goes down.
pub(crate) async fn departure(leaving: &mut watch::Receiver<bool>) {
    // An error means that whoever could say so is gone, which says the same.
    let _ = leaving.wait_for(|leaving| *leaving).await;
}

/// Answers the requests of accepted connections.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Answers one request of `peer`. `presence` keeps the server from stopping while the connection is open.
    fn handle(
        self: Arc<Self>,
        peer: IpAddr,
        presence: Arc<ConnectionPermit>,
        request: Request<Incoming>,
    ) -> impl Future<Output = HttpResponse> + Send;
}

/// The listener of the main address, and the limits that a connection must pass.
pub(crate) struct HttpServer<H> {
    pub(crate) listener: TcpListener,
    pub(crate) handler: Arc<H>,
    /// Limit of all connections together.
    pub(crate) places: Arc<ConnectionLimit>,
    /// Limits of each network.
    pub(crate) networks: NetworkLimits,
    /// Peers that count as proxies: their clients are limited instead of them.
    pub(crate) trusted_proxies: Vec<Cidr>,
    pub(crate) clock: Clock,
    pub(crate) leaving: watch::Receiver<bool>,
}

impl<H: RequestHandler> HttpServer<H> {
    /// Accepts connections until the server goes down, then gives what closes when the last of them has ended.
    pub(crate) async fn run(self) -> mpsc::Receiver<()> {
        let server = Arc::new(self);
        let (alive, all_gone) = mpsc::channel(1);
        let mut leaving = server.leaving.clone();
        loop {
            let accepted = tokio::select! {
                accepted = server.listener.accept() => accepted,
                () = departure(&mut leaving) => break,
            };
            match accepted {
                Ok((stream, peer)) => match server.places.take() {
                    Some(taken) => {
                        tokio::spawn(server.clone().serve(stream, peer, taken, alive.clone()));
                    }
                    None => debug!(%peer, "connection limit reached"),
                },
                Err(problem) => recover(&problem).await,
            }
        }
        all_gone
    }

    /// Claims a slot in the peer's network, unless the peer is a trusted proxy. `None` if the network has no slot left.
    async fn presence(
        &self,
        peer: IpAddr,
        taken: ConnectionSlot,
        alive: mpsc::Sender<()>,
    ) -> Option<Arc<ConnectionPermit>> {
        let is_proxy = self.trusted_proxies.iter().any(|range| range.contains(peer));
        let place = if is_proxy { None } else { Some(self.networks.enter(peer).await?) };
        Some(Arc::new(ConnectionPermit { _taken: taken, place, _alive: alive, leaving: self.leaving.clone() }))
    }

    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        taken: ConnectionSlot,
        alive: mpsc::Sender<()>,
    ) {
        let Some(presence) = self.presence(peer.ip(), taken, alive).await else {
            debug!(%peer, "per-network connection limit reached");
            return;
        };
        if let Err(problem) = stream.set_nodelay(true) {
            debug!(%problem, "connection closed before its first request");
            return;
        }
        let leaving = presence.leaving.clone();
        let progress = Progress::new(self.clock);
        let handler = self.handler.clone();
        let service = service_fn(move |request| {
            let answer = handler.clone().handle(peer.ip(), presence.clone(), request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        converse(stream, service, leaving, progress, PATIENCE).await;
    }
}

/// Waits after a failed `accept` if the error concerns the system (no descriptors or memory left) and not only one
/// connection that is closed already.
async fn recover(problem: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if !matches!(problem.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        warn!(%problem, "cannot accept connections");
        tokio::time::sleep(BREATH).await;
    }
}

/// How long a connection is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// To finish a request's headers.
    head: Duration,
    /// Without a byte in either direction.
    stall: Duration,
}

pub(crate) const PATIENCE: Patience = Patience {
    head: Duration::from_secs(limits::HANDSHAKE_TIMEOUT_SECS),
    stall: Duration::from_secs(limits::STALL_TIMEOUT_SECS),
};

/// Answers requests until the connection ends, stands still, or becomes a websocket. When the server goes down, a
/// request that is being answered is answered, and so is the first one of somebody who was let in just before.
pub(crate) async fn converse<IO, S, B>(
    stream: IO,
    service: S,
    mut leaving: watch::Receiver<bool>,
    progress: Arc<Progress>,
    patience: Patience,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(HeadTimer::new(progress.clone()))
        .header_read_timeout(patience.head)
        .max_buf_size(limits::MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(Paced::new(stream, progress.clone())), service)
        .with_upgrades();
    tokio::pin!(connection);
    let mut staying = true;
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = progress.stalled(patience.stall) => return debug!("a connection stood still"),
            () = last_call(&mut leaving, &progress), if staying => {
                staying = false;
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(problem) = ended {
        debug!(%problem, "a connection ended badly");
    }
}

/// Waits until the server goes down and the client has had its time to begin.
async fn last_call(leaving: &mut watch::Receiver<bool>, progress: &Progress) {
    departure(leaving).await;
    if progress.received() == 0 {
        let _ = tokio::time::timeout(FIRST_WORD, progress.begun()).await;
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

    /// How long anything may take before a test gives up.
    const DEADLINE: Duration = Duration::from_secs(30);
    const NEVER: Duration = Duration::from_secs(3_600);
    /// Long enough that it is not over by accident, short enough to wait for.
    const SHORT: Duration = Duration::from_millis(300);

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const LAST_GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    const ANSWER_BYTES: usize = 300_000;

    struct Conversation {
        client: DuplexStream,
        leave: watch::Sender<bool>,
        task: JoinHandle<()>,
        /// Bytes of the answer that have been read.
        seen: usize,
    }

    impl Conversation {
        /// Talks with a server that hears a request to its end and gives a long answer in one piece. The pipe between
        /// is short, so the answer waits inside the server until the client reads it.
        fn begin(patience: Patience) -> Self {
            let (client, stream) = duplex(1_024);
            let (leave, leaving) = watch::channel(false);
            let service = service_fn(|request: Request<Incoming>| async move {
                let _ = request.into_body().collect().await;
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![b'x'; ANSWER_BYTES]))))
            });
            let task = tokio::spawn(converse(stream, service, leaving, Progress::new(Clock::start()), patience));
            Self { client, leave, task, seen: 0 }
        }

        async fn send(&mut self, bytes: &[u8]) {
            self.client.write_all(bytes).await.expect("it listens");
        }

        async fn read(&mut self, at_most: usize) {
            let mut buf = vec![0; at_most];
            let read = self.client.read(&mut buf).await.expect("an answer");
            assert!(read > 0, "the answer ends early");
            // The head of the answer has none of these.
            self.seen += buf[..read].iter().filter(|byte| **byte == b'x').count();
        }

        /// Reads an answer up to its last byte.
        async fn read_answer(&mut self) {
            while self.seen < ANSWER_BYTES {
                self.read(4_096).await;
            }
            self.seen = 0;
        }

        /// The server has let go of the connection.
        async fn end(self) {
            tokio::time::timeout(DEADLINE, self.task).await.expect("the connection does not end").expect("no panic");
        }
    }

    #[tokio::test]
    async fn whoever_does_not_read_is_dropped() {
        let mut slow = Conversation::begin(Patience { head: NEVER, stall: SHORT });
        slow.send(GET).await;
        slow.end().await;
    }

    #[tokio::test]
    async fn whoever_does_not_send_is_dropped() {
        let mut slow = Conversation::begin(Patience { head: NEVER, stall: SHORT });
        slow.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf").await;
        slow.end().await;
    }

    #[tokio::test]
    async fn whoever_moves_is_kept_however_long_it_takes() {
        let stall = 10 * SHORT;
        let mut slow = Conversation::begin(Patience { head: NEVER, stall });
        slow.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        let began = Instant::now();
        let mut ticks = tokio::time::interval(SHORT / 2);
        while began.elapsed() < 2 * stall {
            ticks.tick().await;
            slow.send(b"1\r\n.\r\n").await;
        }
        slow.send(b"0\r\n\r\n").await;
        slow.read_answer().await;
    }

    #[tokio::test]
    async fn headers_have_their_time_from_their_first_byte() {
        for (what, before) in [("the first request", &b""[..]), ("another request", GET)] {
            for beginning in ["GET /", "\r\nGET /"] {
                let mut slow = Conversation::begin(Patience { head: SHORT, stall: NEVER });
                if !before.is_empty() {
                    slow.send(before).await;
                    slow.read_answer().await;
                }
                slow.send(beginning.as_bytes()).await;
                let began = Instant::now();
                let mut ticks = tokio::time::interval(SHORT / 20);
                while slow.client.write_all(b"x").await.is_ok() {
                    assert!(began.elapsed() < DEADLINE, "{what} never ends");
                    ticks.tick().await;
                }
                slow.end().await;
            }
        }
        // Saying nothing at all is no way round it.
        Conversation::begin(Patience { head: SHORT, stall: NEVER }).end().await;
    }

    #[tokio::test]
    async fn an_answer_is_read_as_slowly_as_one_likes_and_then_the_next_is_asked_for() {
        let mut slow = Conversation::begin(Patience { head: SHORT, stall: NEVER });
        slow.send(GET).await;
        let began = Instant::now();
        let mut ticks = tokio::time::interval(SHORT / 20);
        while began.elapsed() < 3 * SHORT {
            ticks.tick().await;
            slow.read(16).await;
        }
        assert!(slow.seen < ANSWER_BYTES / 2, "the server still holds most of the answer");
        slow.read_answer().await;
        // Thinking about the next request takes as long as one likes, too.
        tokio::time::sleep(2 * SHORT).await;
        slow.send(LAST_GET).await;
        slow.read_answer().await;
        slow.end().await;
    }

    #[tokio::test]
    async fn an_idle_connection_ends_when_it_has_been_still_for_long_enough() {
        let mut idle = Conversation::begin(Patience { head: SHORT, stall: 5 * SHORT });
        idle.send(GET).await;
        idle.read_answer().await;
        let began = Instant::now();
        idle.end().await;
        assert!(began.elapsed() > 4 * SHORT, "it could have asked for something more");
    }

    #[tokio::test]
    async fn a_departing_server_finishes_answers_and_leaves_the_idle() {
        let patience = Patience { head: NEVER, stall: NEVER };
        let (mut idle, mut busy) = (Conversation::begin(patience), Conversation::begin(patience));
        idle.send(GET).await;
        idle.read_answer().await;
        busy.send(GET).await;
        busy.read(16).await;
        for conversation in [&idle, &busy] {
            conversation.leave.send(true).expect("it is there");
        }
        idle.end().await;
        busy.read_answer().await;
        busy.end().await;
    }
}
