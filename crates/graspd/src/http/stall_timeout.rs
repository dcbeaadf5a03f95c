//! Detects connections that make no progress: counts the bytes in both directions and the time since the last one.

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

/// Interval at which a connection without a first byte is polled during shutdown.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Byte counters of a connection. Readers need no exact values, so the accesses are not ordered among each other.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    clock: Clock,
    received: AtomicU64,
    sent: AtomicU64,
    /// When the last byte was received or sent, in milliseconds of the monotonic clock.
    last_byte_at: AtomicU64,
}

impl ConnectionActivity {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        let last_byte_at = AtomicU64::new(clock.mono().0);
        Arc::new(Self { clock, received: AtomicU64::new(0), sent: AtomicU64::new(0), last_byte_at })
    }

    /// Returns the number of bytes received from the client.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that the system accepted for the client.
    #[cfg(test)]
    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until the client has sent a byte. Polls, which is good enough for the short time of a shutdown.
    pub(crate) async fn wait_for_first_byte(&self) {
        while self.received() == 0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns how long no byte has been received or sent.
    pub(crate) fn idle_for(&self, now: MonoTime) -> Duration {
        now.since(MonoTime(self.last_byte_at.load(Ordering::Relaxed)))
    }

    /// Waits until no byte has been received or sent for `timeout`.
    pub(crate) async fn wait_until_idle(&self, timeout: Duration) {
        loop {
            let idle = self.idle_for(self.clock.mono());
            if idle >= timeout {
                return;
            }
            tokio::time::sleep(timeout - idle).await;
        }
    }

    fn record(&self, counter: &AtomicU64, bytes: usize) {
        if bytes > 0 {
            counter.fetch_add(bytes as u64, Ordering::Relaxed);
            self.last_byte_at.store(self.clock.mono().0, Ordering::Relaxed);
        }
    }
}

/// A stream that records its activity.
pub(crate) struct TrackedStream<S> {
    stream: S,
    activity: Arc<ConnectionActivity>,
}

impl<S> TrackedStream<S> {
    pub(crate) fn new(stream: S, activity: Arc<ConnectionActivity>) -> Self {
        Self { stream, activity }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        self.activity.record(&self.activity.received, buf.filled().len() - before);
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> TrackedStream<S> {
    fn record_write(&self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        if let Ok(bytes) = result {
            self.activity.record(&self.activity.sent, bytes);
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.record_write(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
        self.record_write(result)
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

/// Timer that hyper uses for the timeout of request headers, which is all that it uses a timer for.
///
/// hyper begins to wait for the next request as soon as it has buffered a response, even if a slow client reads that
/// response for minutes. So the timeout runs from the first byte of a request; only for the first request it runs from
/// the start of the connection. A client that sends nothing in between is handled by
/// [`ConnectionActivity::wait_until_idle`].
pub(crate) struct HeaderTimer {
    activity: Arc<ConnectionActivity>,
}

impl HeaderTimer {
    pub(crate) fn new(activity: Arc<ConnectionActivity>) -> Self {
        Self { activity }
    }
}

impl Timer for HeaderTimer {
    fn sleep(&self, timeout: Duration) -> Pin<Box<dyn Sleep>> {
        let received = self.activity.received();
        let deadline =
            if received == 0 { HeaderDeadline::start(timeout) } else { HeaderDeadline::NotStarted { received } };
        Box::pin(HeaderSleep { activity: self.activity.clone(), timeout, deadline })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }
}

/// Timeout of the headers of one request.
enum HeaderDeadline {
    /// No byte of the request has been received. `received` bytes had been received when hyper began to wait.
    NotStarted { received: u64 },
    /// The timeout runs.
    Running(Pin<Box<tokio::time::Sleep>>),
}

impl HeaderDeadline {
    fn start(timeout: Duration) -> Self {
        Self::Running(Box::pin(tokio::time::sleep(timeout)))
    }
}

/// Future that completes when the headers of a request have timed out.
struct HeaderSleep {
    activity: Arc<ConnectionActivity>,
    timeout: Duration,
    deadline: HeaderDeadline,
}

impl Future for HeaderSleep {
    type Output = ();

    /// hyper polls this whenever it has read bytes and the headers are still incomplete, so the first byte is noticed
    /// immediately.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.deadline, HeaderDeadline::NotStarted { received } if received != self.activity.received()) {
            self.deadline = HeaderDeadline::start(self.timeout);
        }
        match &mut self.deadline {
            HeaderDeadline::NotStarted { .. } => Poll::Pending,
            HeaderDeadline::Running(sleep) => sleep.as_mut().poll(cx),
        }
    }
}

impl Sleep for HeaderSleep {}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_in_both_directions_are_counted() {
        let activity = ConnectionActivity::new(Clock::start());
        let (mut client, server) = duplex(8);
        let mut tracked = TrackedStream::new(server, activity.clone());
        let mut buf = [0; 16];
        client.write_all(b"hello").await.expect("the pipe has space");
        assert_eq!(tracked.read(&mut buf).await.expect("bytes to read"), 5);
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b"cd")];
        assert!(tracked.write_vectored(&parts).await.expect("the pipe has space") > 0);
        tracked.write_all(b"xyz").await.expect("the pipe has space");
        assert_eq!(activity.received(), 5);
        let sent = activity.sent();
        drop(tracked);
        assert_eq!(client.read_to_end(&mut Vec::new()).await.expect("end of stream") as u64, sent);
    }

    #[tokio::test]
    async fn waiting_and_end_of_stream_are_no_activity() {
        let clock = Clock::start();
        let activity = ConnectionActivity::new(clock);
        let began = MonoTime(activity.last_byte_at.load(Ordering::Relaxed));
        assert_eq!(activity.idle_for(began.plus_secs(7)), Duration::from_secs(7));
        assert_eq!(activity.idle_for(MonoTime(0)), Duration::ZERO);

        let (client, server) = duplex(4);
        let mut tracked = TrackedStream::new(server, activity.clone());
        while clock.mono() == began {
            tokio::task::yield_now().await;
        }
        let nothing = tokio::time::timeout(Duration::from_millis(1), tracked.read(&mut [0; 4])).await;
        assert!(nothing.is_err(), "there is nothing to read");
        drop(client);
        assert_eq!(tracked.read(&mut [0; 4]).await.expect("end of stream"), 0);
        assert!(tracked.write(b"x").await.is_err());
        assert_eq!(activity.idle_for(began.plus_secs(7)), Duration::from_secs(7));

        let (_client, server) = duplex(4);
        let mut tracked = TrackedStream::new(server, activity.clone());
        tracked.write_all(b"x").await.expect("the pipe has space");
        assert!(activity.idle_for(began.plus_secs(7)) < Duration::from_secs(7));
    }
}
