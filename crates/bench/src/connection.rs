//! A websocket connection to a relay.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::{FutureExt, SinkExt, StreamExt, TryStreamExt, stream};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::event::SignedEvent;
use crate::message::RelayMessage;
use crate::progress::Progress;
use crate::target::RelayUrl;

/// Time within which a relay must respond.
pub const REPLY_DEADLINE: Duration = Duration::from_secs(60);

/// Maximum number of concurrent handshakes when many connections are opened: below the usual listen backlog.
const MAX_CONCURRENT_HANDSHAKES: usize = 64;

/// Expected traffic of a connection, which determines its buffer size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Few connections with much traffic.
    Heavy,
    /// Many connections with little traffic. Buffers are allocated in advance, and thousands of large ones would not
    /// fit in memory.
    Light,
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    socket: WebSocketStream<TcpStream>,
}

impl Connection {
    /// Connects and completes the websocket handshake.
    pub async fn open(url: &RelayUrl, traffic: Traffic) -> Result<Self> {
        let buffer = match traffic {
            Traffic::Heavy => 128 * 1024,
            Traffic::Light => 4 * 1024,
        };
        let config = WebSocketConfig::default().read_buffer_size(buffer).write_buffer_size(buffer);
        let opening = async {
            let stream = TcpStream::connect(&url.address).await?;
            stream.set_nodelay(true)?;
            let (socket, _) = client_async_with_config(url.to_string(), stream, Some(config)).await?;
            anyhow::Ok(Self { socket })
        };
        timeout(REPLY_DEADLINE, opening)
            .await
            .with_context(|| format!("{url} does not complete the websocket handshake"))?
            .with_context(|| format!("cannot connect to {url}"))
    }

    /// Opens `count` connections, at most `MAX_CONCURRENT_HANDSHAKES` at a time.
    pub async fn open_many(url: &RelayUrl, traffic: Traffic, count: usize) -> Result<Vec<Self>> {
        let progress = Progress::start("connecting", count as u64);
        let opening = stream::iter(0..count).map(|_| Self::open(url, traffic));
        opening.buffer_unordered(MAX_CONCURRENT_HANDSHAKES).inspect(|_| progress.advance(1)).try_collect().await
    }

    /// Queues a message. It may not be sent before [`Connection::flush`].
    pub async fn queue(&mut self, text: impl Into<Utf8Bytes>) -> Result<()> {
        Ok(self.socket.feed(Message::Text(text.into())).await?)
    }

    /// Sends all queued messages.
    pub async fn flush(&mut self) -> Result<()> {
        Ok(self.socket.flush().await?)
    }

    /// Sends a message immediately.
    pub async fn send(&mut self, text: impl Into<Utf8Bytes>) -> Result<()> {
        self.queue(text).await?;
        self.flush().await
    }

    /// Publishes an event and waits for its `OK` response. A rejected event is an error.
    pub async fn publish(&mut self, event: SignedEvent) -> Result<()> {
        self.send(event.message).await?;
        loop {
            match RelayMessage::parse(&self.next().await?) {
                RelayMessage::Ok { id, accepted: true, .. } if id == event.id => return Ok(()),
                RelayMessage::Ok { id, reason, .. } if id == event.id => {
                    bail!("an event of kind {} was rejected: {reason}", event.kind);
                }
                _ => {}
            }
        }
    }

    /// Returns the next message, with a timeout of [`REPLY_DEADLINE`].
    pub async fn next(&mut self) -> Result<Utf8Bytes> {
        timeout(REPLY_DEADLINE, self.next_without_timeout())
            .await
            .with_context(|| format!("the relay sent nothing for {} s", REPLY_DEADLINE.as_secs()))?
    }

    /// Returns the next message, without a timeout. Cancel safe.
    pub async fn next_without_timeout(&mut self) -> Result<Utf8Bytes> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) => return Ok(text),
                // The library answers pings.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(frame))) => {
                    let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                    bail!("the relay closed the connection: {reason:?}");
                }
                Some(Err(error)) => return Err(error).context("websocket error"),
                None => bail!("the relay closed the connection"),
            }
        }
    }

    /// Returns the next message if it has already arrived.
    pub fn next_ready(&mut self) -> Option<Result<Utf8Bytes>> {
        self.next_without_timeout().now_or_never()
    }
}
