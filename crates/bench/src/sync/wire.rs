//! The way between two servers: everything passes through here and is counted.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::frames::{Frames, Verbs};

/// What is read at a time.
const PIECE: usize = 64 * 1024;

/// What stands in the first line of a request for git data.
const FETCH: &[u8] = b".git/git-upload-pack HTTP/1.1";

/// What has passed.
#[derive(Debug, Clone, Default)]
pub(super) struct Traffic {
    /// When the first connection came.
    pub(super) began: Option<Instant>,
    /// Bytes that the caller has sent.
    pub(super) sent: u64,
    /// Bytes that the caller has got.
    pub(super) received: u64,
    /// Messages that the caller has sent.
    pub(super) said: Verbs,
    /// Messages that the caller has got.
    pub(super) heard: Verbs,
    /// Connections on which the caller has asked for git data.
    pub(super) fetches: u64,
}

impl Traffic {
    /// Messages of one verb that the caller has sent, and their bytes.
    pub(super) fn bytes_said(&self, verb: &str) -> u64 {
        self.said.get(verb).map_or(0, |verb| verb.bytes)
    }
}

#[derive(Debug, Clone, Copy)]
enum Way {
    There,
    Back,
}

/// A listener that passes every connection on to another address.
#[derive(Debug)]
pub(super) struct Wire {
    traffic: Arc<Mutex<Traffic>>,
    listener: JoinHandle<()>,
}

impl Wire {
    /// Listens at `place` for whoever wants to speak with `target`.
    pub(super) async fn lay(place: &str, target: SocketAddr) -> Result<Self> {
        let socket = TcpListener::bind(place).await.with_context(|| format!("cannot listen at {place}"))?;
        let traffic = Arc::new(Mutex::new(Traffic::default()));
        let shared = Arc::clone(&traffic);
        let listener = tokio::spawn(async move {
            while let Ok((caller, _)) = socket.accept().await {
                let traffic = Arc::clone(&shared);
                held(&traffic).began.get_or_insert_with(Instant::now);
                tokio::spawn(async move { pass_on(caller, target, traffic).await });
            }
        });
        Ok(Self { traffic, listener })
    }

    /// What has passed since the last time.
    pub(super) fn take(&self) -> Traffic {
        std::mem::take(&mut *held(&self.traffic))
    }

    /// What has passed so far.
    pub(super) fn look(&self) -> Traffic {
        held(&self.traffic).clone()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

fn held(traffic: &Mutex<Traffic>) -> MutexGuard<'_, Traffic> {
    traffic.lock().expect("nobody panics while counting")
}

async fn pass_on(caller: TcpStream, target: SocketAddr, traffic: Arc<Mutex<Traffic>>) -> io::Result<()> {
    let called = TcpStream::connect(target).await?;
    for stream in [&caller, &called] {
        stream.set_nodelay(true)?;
    }
    let (from_caller, to_caller) = caller.into_split();
    let (from_called, to_called) = called.into_split();
    let there = tokio::spawn(one_way(from_caller, to_called, Way::There, Arc::clone(&traffic)));
    let back = tokio::spawn(one_way(from_called, to_caller, Way::Back, traffic));
    let _ = tokio::join!(there, back);
    Ok(())
}

async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Way,
    traffic: Arc<Mutex<Traffic>>,
) -> io::Result<()> {
    let mut frames = Frames::new();
    let mut piece = vec![0; PIECE];
    let mut first = true;
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        {
            let mut traffic = held(&traffic);
            let Traffic { sent, received, said, heard, fetches, .. } = &mut *traffic;
            let (bytes, verbs) = match way {
                Way::There => (sent, said),
                Way::Back => (received, heard),
            };
            *bytes += length as u64;
            let is_git = || piece[..length].windows(FETCH.len()).any(|window| window == FETCH);
            if matches!(way, Way::There) && std::mem::take(&mut first) && is_git() {
                *fetches += 1;
            }
            frames.pass(&piece[..length], verbs);
        }
        to.write_all(&piece[..length]).await?;
    }
}
