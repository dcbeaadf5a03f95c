//! A TCP proxy between two servers that counts bytes and messages.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::frames::{FrameCounter, MessageCounts};

/// Read buffer size.
const PIECE: usize = 64 * 1024;

/// Part of the first line of a request for git data.
const FETCH: &[u8] = b".git/git-upload-pack HTTP/1.1";

/// Traffic counters of the proxy.
#[derive(Debug, Clone, Default)]
pub(super) struct ProxyTraffic {
    /// Time of the first connection.
    pub(super) first_connection_at: Option<Instant>,
    /// Bytes that the caller sent.
    pub(super) sent: u64,
    /// Bytes that the caller received.
    pub(super) received: u64,
    /// Messages that the caller sent.
    pub(super) messages_sent: MessageCounts,
    /// Messages that the caller received.
    pub(super) messages_received: MessageCounts,
    /// Connections with a request for git data.
    pub(super) fetches: u64,
}

impl ProxyTraffic {
    /// Returns the bytes of messages with one verb that the caller sent.
    pub(super) fn bytes_sent(&self, verb: &str) -> u64 {
        self.messages_sent.get(verb).map_or(0, |verb| verb.bytes)
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    ToTarget,
    ToCaller,
}

/// A listener that forwards every connection to another address.
#[derive(Debug)]
pub(super) struct CountingProxy {
    traffic: Arc<Mutex<ProxyTraffic>>,
    listener: JoinHandle<()>,
}

impl CountingProxy {
    /// Listens on `address` and forwards to `target`.
    pub(super) async fn start(address: &str, target: SocketAddr) -> Result<Self> {
        let socket = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let traffic = Arc::new(Mutex::new(ProxyTraffic::default()));
        let shared = Arc::clone(&traffic);
        let listener = tokio::spawn(async move {
            while let Ok((caller, _)) = socket.accept().await {
                let traffic = Arc::clone(&shared);
                lock(&traffic).first_connection_at.get_or_insert_with(Instant::now);
                tokio::spawn(async move { forward(caller, target, traffic).await });
            }
        });
        Ok(Self { traffic, listener })
    }

    /// Resets the counters and returns their values.
    pub(super) fn reset(&self) -> ProxyTraffic {
        std::mem::take(&mut *lock(&self.traffic))
    }

    /// Returns the current counters.
    pub(super) fn traffic(&self) -> ProxyTraffic {
        lock(&self.traffic).clone()
    }
}

impl Drop for CountingProxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

fn lock(traffic: &Mutex<ProxyTraffic>) -> MutexGuard<'_, ProxyTraffic> {
    traffic.lock().expect("no task panics while holding the lock")
}

async fn forward(caller: TcpStream, target: SocketAddr, traffic: Arc<Mutex<ProxyTraffic>>) -> io::Result<()> {
    let called = TcpStream::connect(target).await?;
    for stream in [&caller, &called] {
        stream.set_nodelay(true)?;
    }
    let (from_caller, to_caller) = caller.into_split();
    let (from_called, to_called) = called.into_split();
    let to_target = tokio::spawn(copy_and_count(from_caller, to_called, Direction::ToTarget, Arc::clone(&traffic)));
    let to_caller_task = tokio::spawn(copy_and_count(from_called, to_caller, Direction::ToCaller, traffic));
    let _ = tokio::join!(to_target, to_caller_task);
    Ok(())
}

async fn copy_and_count(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    traffic: Arc<Mutex<ProxyTraffic>>,
) -> io::Result<()> {
    let mut frames = FrameCounter::new();
    let mut piece = vec![0; PIECE];
    let mut first = true;
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        {
            let mut traffic = lock(&traffic);
            let ProxyTraffic { sent, received, messages_sent, messages_received, fetches, .. } = &mut *traffic;
            let (bytes, verbs) = match direction {
                Direction::ToTarget => (sent, messages_sent),
                Direction::ToCaller => (received, messages_received),
            };
            *bytes += length as u64;
            let is_git = || piece[..length].windows(FETCH.len()).any(|window| window == FETCH);
            if matches!(direction, Direction::ToTarget) && std::mem::take(&mut first) && is_git() {
                *fetches += 1;
            }
            frames.feed(&piece[..length], verbs);
        }
        to.write_all(&piece[..length]).await?;
    }
}
