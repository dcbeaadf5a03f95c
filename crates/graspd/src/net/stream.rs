//! An outgoing connection, with or without TLS.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// Connection to another server.
pub(crate) trait OutboundStream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Returns the certificates of the server. `None` for a connection without TLS.
    fn certificates(&self) -> Option<&[CertificateDer<'static>]>;
}

impl OutboundStream for TcpStream {
    fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        None
    }
}

impl OutboundStream for TlsStream<TcpStream> {
    fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        Some(self.get_ref().1.peer_certificates().unwrap_or_default())
    }
}
