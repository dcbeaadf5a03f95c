//! Whether a connection still moves: bytes in both directions, and when the last of them did.

use std::future::Future;
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use grasp_core::time::MonoTime;
use hyper::rt::{Sleep, Timer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::Clock;

/// How often a departing server looks whether somebody has begun to speak.
const GLANCE: Duration = Duration::from_millis(5);

/// What a connection has moved so far. The numbers are looked at by a watcher that needs none of them exactly, so no
/// order is kept between them.
#[derive(Debug)]
pub(crate) struct Progress {
    clock: Clock,
    received: AtomicU64,
    sent: AtomicU64,
    /// When the last byte moved, in milliseconds of the clock.
    moved: AtomicU64,
}

impl Progress {
    /// Begins now.
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        let moved = AtomicU64::new(clock.mono().0);
        Arc::new(Self { clock, received: AtomicU64::new(0), sent: AtomicU64::new(0), moved })
    }

    /// Bytes that came from the client.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes that the system took for the client.
    #[cfg_attr(not(test), expect(dead_code, reason = "the git routes will tell how much they sent"))]
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until the client has said something. For the short time that a departing server listens, looking now and then
    /// is enough.
    pub(crate) async fn begun(&self) {
        while self.received() == 0 {
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// For how long no byte has moved.
    pub(crate) fn stalled_for(&self, now: MonoTime) -> Duration {
        now.since(MonoTime(self.moved.load(Ordering::Relaxed)))
    }

    /// Waits until no byte has moved for so long.
    pub(crate) async fn stalled(&self, patience: Duration) {
        loop {
            let quiet = self.stalled_for(self.clock.mono());
            if quiet >= patience {
                return;
            }
            tokio::time::sleep(patience - quiet).await;
        }
    }

    fn note(&self, counter: &AtomicU64, bytes: usize) {
        if bytes > 0 {
            counter.fetch_add(bytes as u64, Ordering::Relaxed);
            self.moved.store(self.clock.mono().0, Ordering::Relaxed);
        }
    }
}

/// A stream that notes its progress.
pub(crate) struct Paced<S> {
    stream: S,
    progress: Arc<Progress>,
}

impl<S> Paced<S> {
    /// Watches a stream from now on.
    pub(crate) fn new(stream: S, progress: Arc<Progress>) -> Self {
        Self { stream, progress }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        self.progress.note(&self.progress.received, buf.filled().len() - before);
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> Paced<S> {
    fn wrote(&self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        if let Ok(bytes) = result {
            self.progress.note(&self.progress.sent, bytes);
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The timer that hyper asks for the deadline of a request's headers, which is all that it needs a timer for.
///
/// hyper starts to wait for the next request as soon as it has taken an answer into its buffer, though a slow client may
/// still be reading that answer for minutes. So the time runs from the first byte of a request; only that of the first
/// request runs from the connection's beginning. A client that is silent before is [`Progress::stalled`].
pub(crate) struct HeadTimer {
    progress: Arc<Progress>,
}

impl HeadTimer {
    /// For the connection with this progress.
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self { progress }
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, patience: Duration) -> Pin<Box<dyn Sleep>> {
        let received = self.progress.received();
        let head = if received == 0 { Head::begun(patience) } else { Head::Expected { received } };
        Box::pin(HeadSleep { progress: self.progress.clone(), patience, head })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }
}

enum Head {
    /// Nothing of it has come: so many bytes had come when the waiting began.
    Expected { received: u64 },
    /// Its time is running.
    Begun(Pin<Box<tokio::time::Sleep>>),
}

impl Head {
    fn begun(patience: Duration) -> Self {
        Self::Begun(Box::pin(tokio::time::sleep(patience)))
    }
}

struct HeadSleep {
    progress: Arc<Progress>,
    patience: Duration,
    head: Head,
}

impl Future for HeadSleep {
    type Output = ();

    /// hyper polls this whenever it has read and is still without a whole head, so the first byte is noticed at once.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.head, Head::Expected { received } if received != self.progress.received()) {
            self.head = Head::begun(self.patience);
        }
        match &mut self.head {
            Head::Expected { .. } => Poll::Pending,
            Head::Begun(sleep) => sleep.as_mut().poll(cx),
        }
    }
}

impl Sleep for HeadSleep {}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_are_counted_and_the_end_is_none() {
        let progress = Progress::new(Clock::start());
        let (mut client, server) = duplex(8);
        let mut paced = Paced::new(server, progress.clone());
        let mut buf = [0; 16];
        client.write_all(b"hello").await.expect("room");
        assert_eq!(paced.read(&mut buf).await.expect("bytes"), 5);
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b"cd")];
        assert!(paced.write_vectored(&parts).await.expect("room") > 0);
        paced.write_all(b"xyz").await.expect("room");
        assert_eq!(progress.received(), 5);
        let sent = progress.sent();
        drop(paced);
        assert_eq!(client.read_to_end(&mut Vec::new()).await.expect("the end") as u64, sent);
    }

    #[tokio::test]
    async fn neither_waiting_nor_an_end_is_progress() {
        let clock = Clock::start();
        let progress = Progress::new(clock);
        let began = MonoTime(progress.moved.load(Ordering::Relaxed));
        assert_eq!(progress.stalled_for(began.plus_secs(7)), Duration::from_secs(7));
        assert_eq!(progress.stalled_for(MonoTime(0)), Duration::ZERO);

        let (client, server) = duplex(4);
        let mut paced = Paced::new(server, progress.clone());
        while clock.mono() == began {
            tokio::task::yield_now().await;
        }
        let nothing = tokio::time::timeout(Duration::from_millis(1), paced.read(&mut [0; 4])).await;
        assert!(nothing.is_err(), "there is nothing to read");
        drop(client);
        assert_eq!(paced.read(&mut [0; 4]).await.expect("the end"), 0);
        assert!(paced.write(b"x").await.is_err());
        assert_eq!(progress.stalled_for(began.plus_secs(7)), Duration::from_secs(7));

        let (_client, server) = duplex(4);
        let mut paced = Paced::new(server, progress.clone());
        paced.write_all(b"x").await.expect("room");
        assert!(progress.stalled_for(began.plus_secs(7)) < Duration::from_secs(7));
    }
}
