//! Response bodies: complete ones and streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body_util::Full;
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Response to an HTTP request.
pub(crate) type HttpResponse = Response<ResponseBody>;

/// Chunks that are buffered for a slow client. With chunks of 64 kB, a stream uses a quarter of a megabyte.
const MAX_QUEUED_CHUNKS: usize = 4;

/// Body of a response.
pub(crate) enum ResponseBody {
    /// A complete body.
    Full(Full<Bytes>),
    /// Chunks from a stream, which produces the next chunk only when the previous one has been sent. An error aborts the
    /// connection, so that the client does not take the body for complete.
    Lazy(Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>),
}

/// Sender of the chunks of a [`ResponseBody`].
pub(crate) type BodySender = mpsc::Sender<io::Result<Bytes>>;

impl ResponseBody {
    /// Creates a body whose chunks are sent through a channel. It ends when the sender is dropped.
    pub(crate) fn channel() -> (BodySender, Self) {
        let (sender, mut chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
        (sender, Self::lazy(stream::poll_fn(move |context| chunks.poll_recv(context))))
    }

    /// Creates a body whose chunks are produced on demand.
    pub(crate) fn lazy(chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self::Lazy(Box::pin(chunks))
    }
}

impl<T: Into<Bytes>> From<T> for ResponseBody {
    fn from(bytes: T) -> Self {
        Self::Full(Full::new(bytes.into()))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Full(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            Self::Lazy(chunks) => {
                chunks.as_mut().poll_next(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(body) => body.is_end_stream(),
            Self::Lazy(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(body) => body.size_hint(),
            Self::Lazy(_) => SizeHint::default(),
        }
    }
}
