//! A minimal HTTP/1.1 client. Requests are serialised before the measured time starts; responses are only counted.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time within which the server must send data while a response is incomplete. Counting the objects of a large
/// repository can take most of a minute on a busy machine.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Read buffer size: large enough that reading does not slow down a fast server.
const BUFFER: usize = 256 * 1024;

/// A client of one server, with one keep-alive connection.
#[derive(Debug)]
pub struct Client {
    address: String,
    stream: Option<BufReader<TcpStream>>,
    /// Number of connections opened so far.
    pub connects: u64,
}

/// How the end of a body is determined, and what remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyFraming {
    /// Remaining bytes of a body with `Content-Length`.
    Length(u64),
    /// The size of the next chunk follows.
    ChunkSize,
    /// Remaining bytes of the current chunk.
    Chunk(u64),
    /// The body ends when the connection closes.
    UntilClose,
    /// The body is complete.
    Finished,
}

/// A response whose head has been read.
#[derive(Debug)]
pub struct HttpResponse<'a> {
    client: &'a mut Client,
    head: ResponseHead,
    /// Buffered bytes that were returned and are removed from the buffer before the next ones are read.
    returned: usize,
}

impl Client {
    /// Creates a client. It connects on the first request.
    pub fn new(address: impl ToString) -> Self {
        Self { address: address.to_string(), stream: None, connects: 0 }
    }

    /// Sends a request and reads the head of the response.
    pub async fn send(&mut self, request: &[u8]) -> Result<HttpResponse<'_>> {
        let fresh = self.stream.is_none();
        let head = match self.exchange(request).await {
            // A server may close a keep-alive connection at any time, even while the next request is being sent.
            Err(_) if !fresh => {
                self.stream = None;
                self.exchange(request).await?
            }
            head => head?,
        };
        Ok(HttpResponse { client: self, head, returned: 0 })
    }

    /// Sends a request and returns an error unless the status is 200.
    pub async fn send_expecting_ok(&mut self, request: &[u8]) -> Result<HttpResponse<'_>> {
        let response = self.send(request).await?;
        let status = response.status();
        if status != 200 {
            let text = response.collect().await.unwrap_or_default();
            bail!("status {status}: {}", String::from_utf8_lossy(&text[..text.len().min(200)]).trim());
        }
        Ok(response)
    }

    /// Requests a page and returns its status and its body.
    pub async fn get(&mut self, path: &str) -> Result<(u16, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
        let response = self.send(request.as_bytes()).await?;
        let status = response.status();
        Ok((status, String::from_utf8_lossy(&response.collect().await?).into_owned()))
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<ResponseHead> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(&self.address)
                .await
                .with_context(|| format!("cannot connect to {}", self.address))?;
            stream.set_nodelay(true)?;
            self.stream = Some(BufReader::with_capacity(BUFFER, stream));
            self.connects += 1;
        }
        let stream = self.stream.as_mut().context("no connection")?;
        stream.write_all(request).await?;
        loop {
            let mut text = String::new();
            while !text.ends_with("\r\n\r\n") {
                if read_in_time(stream.read_line(&mut text)).await? == 0 {
                    bail!("the server closed the connection before it responded");
                }
            }
            let head = ResponseHead::parse(text.trim_end())?;
            // An interim response (100 Continue).
            if head.status != 100 {
                return Ok(head);
            }
        }
    }
}

impl HttpResponse<'_> {
    /// Returns the status code.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// Returns the next bytes of the body.
    pub async fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.head.framing == BodyFraming::Finished {
            return Ok(None);
        }
        let stream = self.client.stream.as_mut().context("no connection")?;
        stream.consume(std::mem::take(&mut self.returned));
        if self.head.framing == BodyFraming::Chunk(0) {
            read_chunk_line(stream).await?;
            self.head.framing = BodyFraming::ChunkSize;
        }
        if self.head.framing == BodyFraming::ChunkSize {
            let line = read_chunk_line(stream).await?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(digits, 16).with_context(|| format!("{line:?} is not a chunk size"))?;
            self.head.framing = BodyFraming::Chunk(size);
            while size == 0 && !read_chunk_line(stream).await?.is_empty() {}
        }
        let left = match self.head.framing {
            BodyFraming::Length(left) | BodyFraming::Chunk(left) => left,
            _ => u64::MAX,
        };
        let received = if left == 0 { 0 } else { read_in_time(stream.fill_buf()).await?.len() };
        if received == 0 {
            if left != 0 && self.head.framing != BodyFraming::UntilClose {
                bail!("the response ends {left} bytes too early");
            }
            self.finish();
            return Ok(None);
        }
        self.returned = received.min(usize::try_from(left).unwrap_or(usize::MAX));
        if let BodyFraming::Length(left) | BodyFraming::Chunk(left) = &mut self.head.framing {
            *left -= self.returned as u64;
        }
        let stream = self.client.stream.as_ref().context("no connection")?;
        Ok(Some(&stream.buffer()[..self.returned]))
    }

    fn finish(&mut self) {
        self.head.framing = BodyFraming::Finished;
        if !self.head.keep_alive {
            self.client.stream = None;
        }
    }

    /// Reads the rest of the body and returns its size.
    pub async fn drain(mut self) -> Result<u64> {
        let mut size = 0;
        while let Some(piece) = self.next().await? {
            size += piece.len() as u64;
        }
        Ok(size)
    }

    /// Reads the rest of the body and returns it.
    pub async fn collect(mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(piece) = self.next().await? {
            body.extend_from_slice(piece);
        }
        Ok(body)
    }
}

impl Drop for HttpResponse<'_> {
    fn drop(&mut self) {
        // Unread data would be taken for the next response.
        if self.head.framing != BodyFraming::Finished {
            self.client.stream = None;
        }
    }
}

async fn read_in_time<T>(reading: impl Future<Output = io::Result<T>>) -> Result<T> {
    let read = timeout(READ_TIMEOUT, reading).await;
    Ok(read.with_context(|| format!("the server sent nothing for {} s", READ_TIMEOUT.as_secs()))??)
}

/// Returns the next line without its line ending.
async fn read_chunk_line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    if read_in_time(stream.read_line(&mut line)).await? == 0 {
        bail!("the response ends within a chunk");
    }
    Ok(line.trim_end().to_owned())
}

/// The head of a response, as far as it concerns the body.
#[derive(Debug, PartialEq, Eq)]
struct ResponseHead {
    status: u16,
    framing: BodyFraming,
    keep_alive: bool,
}

impl ResponseHead {
    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut words = first.split(' ');
        let version = words.next().unwrap_or_default();
        let status: Option<u16> = words.next().and_then(|word| word.parse().ok());
        let Some(status) = status.filter(|_| version.starts_with("HTTP/1.")) else {
            bail!("{first:?} is not an HTTP response")
        };
        let mut framing = BodyFraming::UntilClose;
        let mut keep_alive = version == "HTTP/1.1";
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                framing =
                    BodyFraming::Length(value.parse().with_context(|| format!("{line:?} is not a valid length"))?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                framing = BodyFraming::ChunkSize;
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                keep_alive = false;
            }
        }
        if matches!(status, 100 | 204 | 304) {
            framing = BodyFraming::Length(0);
        }
        keep_alive &= framing != BodyFraming::UntilClose;
        Ok(Self { status, framing, keep_alive })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn heads_determine_body_framing() {
        let head = |text: &str| ResponseHead::parse(text).expect("a head");
        let length = head("HTTP/1.1 200 OK\r\nContent-Length: 5");
        assert_eq!(length, ResponseHead { status: 200, framing: BodyFraming::Length(5), keep_alive: true });
        let chunked = head("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nConnection: close");
        assert_eq!(chunked, ResponseHead { status: 200, framing: BodyFraming::ChunkSize, keep_alive: false });
        assert_eq!(head("HTTP/1.0 200 OK").framing, BodyFraming::UntilClose);
        assert!(ResponseHead::parse("SSH-2.0").is_err());
    }

    #[tokio::test]
    async fn all_body_framings_are_read_on_one_client() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = tokio::spawn(async move {
            let answers: [&[&[u8]]; 2] = [
                &[
                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n",
                    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                ],
                &[b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end"],
            ];
            for connection in answers {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                for answer in connection {
                    let mut request = [0; 1];
                    stream.read_exact(&mut request).await.expect("a request");
                    for byte in answer.chunks(7) {
                        stream.write_all(byte).await.expect("an answer");
                    }
                }
            }
        });
        let mut client = Client::new(&address);
        for expected in ["hello", "hello world", "", "until the end"] {
            let body = client.send(b"?").await.expect("an answer").collect().await.expect("a body");
            assert_eq!(String::from_utf8_lossy(&body), expected);
        }
        assert_eq!(client.connects, 2);
        server.await.expect("no panic");
    }
}
