//! The accept loop: it ends when it is told to and for no other reason.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::limits;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tracing::{debug, warn};

use super::networks::Place;
use super::routes::{self, House};

/// How long to let the system recover when it has no descriptors or memory left for a connection.
const BREATH: Duration = Duration::from_millis(50);

/// A connection's presence: its place among all connections and in its network, and the reason why the server still
/// waits.
pub(crate) struct Presence {
    _permit: OwnedSemaphorePermit,
    /// Its place in the network that it comes from; a trusted proxy has none, those behind it do.
    pub(crate) place: Option<Place>,
    /// Closed when the last presence is gone.
    _alive: mpsc::Sender<()>,
    /// Turns true when the server goes down.
    pub(crate) leaving: watch::Receiver<bool>,
}

/// Waits until the server goes down.
pub(crate) async fn departure(leaving: &mut watch::Receiver<bool>) {
    // An error means that whoever could say so is gone, which says the same.
    let _ = leaving.wait_for(|leaving| *leaving).await;
}

/// The open door.
pub(crate) struct Door {
    pub(crate) listener: TcpListener,
    pub(crate) house: Arc<House>,
    pub(crate) leaving: watch::Receiver<bool>,
}

impl Door {
    /// Accepts connections until the server goes down, then gives what closes when the last of them has ended.
    pub(crate) async fn run(self) -> mpsc::Receiver<()> {
        let places = Arc::new(Semaphore::new(self.house.config.max_connections));
        let (alive, all_gone) = mpsc::channel(1);
        let mut leaving = self.leaving.clone();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = departure(&mut leaving) => break,
            };
            match accepted {
                Ok((stream, peer)) => match places.clone().try_acquire_owned() {
                    Ok(permit) => {
                        let welcome = Welcome { permit, alive: alive.clone(), leaving: self.leaving.clone() };
                        tokio::spawn(serve(self.house.clone(), stream, peer, welcome));
                    }
                    Err(_) => debug!(%peer, "turned away: as many connections as are allowed"),
                },
                Err(problem) => self.recover(&problem).await,
            }
        }
        all_gone
    }

    /// An error of `accept` is either about one connection that is gone already, or about the system, which needs a
    /// moment. The server lives through both.
    async fn recover(&self, problem: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
        if !matches!(problem.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
            warn!(%problem, "cannot accept connections for the moment");
            tokio::time::sleep(BREATH).await;
        }
    }
}

/// What a new connection is given before it is known where it comes from.
struct Welcome {
    permit: OwnedSemaphorePermit,
    alive: mpsc::Sender<()>,
    leaving: watch::Receiver<bool>,
}

impl Welcome {
    /// Finds a place in the peer's network, if it needs one and there is one.
    async fn presence(self, house: &House, peer: IpAddr) -> Option<Arc<Presence>> {
        let is_proxy = house.config.trusted_proxies.iter().any(|range| range.contains(peer));
        let place = if is_proxy { None } else { Some(house.networks.enter(peer).await?) };
        Some(Arc::new(Presence { _permit: self.permit, place, _alive: self.alive, leaving: self.leaving }))
    }
}

async fn serve(house: Arc<House>, stream: TcpStream, peer: SocketAddr, welcome: Welcome) {
    let Some(presence) = welcome.presence(&house, peer.ip()).await else {
        debug!(%peer, "turned away: as many connections as its network may have");
        return;
    };
    if let Err(problem) = stream.set_nodelay(true) {
        debug!(%problem, "a connection was gone at once");
        return;
    }
    let mut leaving = presence.leaving.clone();
    let service = service_fn(move |request| routes::answer(house.clone(), peer.ip(), presence.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(limits::HANDSHAKE_SECS))
        .max_buf_size(limits::MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Whoever reads its answers more slowly than this does not want them.
        () = tokio::time::sleep(Duration::from_secs(limits::HTTP_SECS)) => return debug!("a connection took too long"),
        () = departure(&mut leaving) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(problem) = ended {
        debug!(%problem, "a connection ended badly");
    }
}
