//! Bodies of answers: whole ones, and streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http_body_util::Full;
use hyper::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// An answer to a request.
pub(crate) type HttpResponse = Response<ResponseBody>;

/// Parts of a stream that may wait for a slow reader. With parts of 64 kB a stream takes a quarter of a megabyte.
const PARTS: usize = 4;

/// The body of an answer.
pub(crate) enum ResponseBody {
    /// All of it.
    Whole(Full<Bytes>),
    /// As it comes. It ends when the sender is gone; an error breaks it off, so that nobody takes it for complete.
    Stream(mpsc::Receiver<io::Result<Bytes>>),
    /// As it is wanted: the next part is made when the one before it has been sent.
    Drawn(Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>),
}

/// Where a stream is fed.
pub(crate) type BodySender = mpsc::Sender<io::Result<Bytes>>;

impl ResponseBody {
    /// A stream and where it is fed.
    pub(crate) fn stream() -> (BodySender, Self) {
        let (feed, parts) = mpsc::channel(PARTS);
        (feed, Self::Stream(parts))
    }

    /// Parts that are made when they are wanted.
    pub(crate) fn drawn(parts: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self::Drawn(Box::pin(parts))
    }
}

impl<T: Into<Bytes>> From<T> for ResponseBody {
    fn from(bytes: T) -> Self {
        Self::Whole(Full::new(bytes.into()))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            Self::Stream(parts) => parts.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data))),
            Self::Drawn(parts) => parts.as_mut().poll_next(context).map(|part| part.map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Stream(_) | Self::Drawn(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Stream(_) | Self::Drawn(_) => SizeHint::default(),
        }
    }
}
