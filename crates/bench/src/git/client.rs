//! A raw HTTP/1.1 client: what it sends was written before the clock starts, and what it receives is only counted.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A server that sends nothing for this long while an answer is due is taken for broken. Counting the objects of a large
/// repository can take most of a minute on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is read at once: large enough that a fast server is not held up by our reads.
const BUFFER: usize = 256 * 1024;

/// A client of one server, with one connection that is kept as long as the server keeps it.
#[derive(Debug)]
pub struct Client {
    address: String,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
    /// What was received and not used yet.
    unread: Range<usize>,
    /// Connections made so far.
    pub connects: u64,
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// So many bytes are left.
    Length(u64),
    /// The size of the next chunk comes next.
    ChunkSize,
    /// So many bytes of a chunk are left.
    Chunk(u64),
    /// The connection ends with it.
    Close,
    /// It is over.
    Over,
}

/// An answer whose head was read.
#[derive(Debug)]
pub struct Answer<'a> {
    client: &'a mut Client,
    /// The status code.
    pub status: u16,
    extent: Extent,
    keep: bool,
}

impl Client {
    /// A client that connects when it first asks.
    pub fn new(address: &str) -> Self {
        Self { address: address.into(), stream: None, buffer: vec![0; BUFFER], unread: 0..0, connects: 0 }
    }

    /// Sends a whole request and reads the head of its answer.
    pub async fn ask(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        let fresh = self.stream.is_none();
        let head = match self.exchange(request).await {
            // A server may close a kept connection at any time, also while the next request is under way.
            Err(_) if !fresh => {
                self.stream = None;
                self.exchange(request).await?
            }
            head => head?,
        };
        let Head { status, extent, keep } = head;
        Ok(Answer { client: self, status, extent, keep })
    }

    /// Asks and demands success.
    pub async fn get(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        let answer = self.ask(request).await?;
        if answer.status != 200 {
            let status = answer.status;
            let text = answer.collect().await.unwrap_or_default();
            bail!("status {status}: {}", String::from_utf8_lossy(&text[..text.len().min(200)]).trim());
        }
        Ok(answer)
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Head> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(&self.address)
                .await
                .with_context(|| format!("cannot connect to {}", self.address))?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
            self.unread = 0..0;
            self.connects += 1;
        }
        let stream = self.stream.as_mut().context("no connection")?;
        stream.write_all(request).await?;
        let head = loop {
            if let Some(end) = find(&self.buffer[self.unread.clone()], b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&self.buffer[self.unread.start..self.unread.start + end]);
                let head = Head::read(&text)?;
                self.unread.start += end + 4;
                // The word of a proxy before the answer proper.
                if head.status != 100 {
                    break head;
                }
            } else if self.fill().await? == 0 {
                bail!("the server closed the connection before it answered");
            }
        };
        Ok(head)
    }

    /// Receives more; gives how much, zero at the end of the connection.
    async fn fill(&mut self) -> Result<usize> {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.end == self.buffer.len() {
            if self.unread.start == 0 {
                bail!("a line of the answer is longer than {BUFFER} bytes");
            }
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let stream = self.stream.as_mut().context("no connection")?;
        let read = timeout(PATIENCE, stream.read(&mut self.buffer[self.unread.end..]))
            .await
            .with_context(|| format!("the server sent nothing for {} s", PATIENCE.as_secs()))??;
        self.unread.end += read;
        Ok(read)
    }

    /// The next line, without its end.
    async fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = find(&self.buffer[self.unread.clone()], b"\r\n") {
                let line = &self.buffer[self.unread.start..self.unread.start + end];
                let line = String::from_utf8_lossy(line).into_owned();
                self.unread.start += end + 2;
                return Ok(line);
            }
            if self.fill().await? == 0 {
                bail!("the answer ends within a chunk");
            }
        }
    }

    /// Up to `most` bytes that were received, or none at the end of the connection.
    async fn piece(&mut self, most: u64) -> Result<Range<usize>> {
        if self.unread.is_empty() && self.fill().await? == 0 {
            return Ok(0..0);
        }
        let taken = self.unread.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let piece = self.unread.start..self.unread.start + taken;
        self.unread.start = piece.end;
        Ok(piece)
    }
}

impl Answer<'_> {
    /// The next piece of the body.
    pub async fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            let left = match self.extent {
                Extent::Over => return Ok(None),
                Extent::Length(0) => {
                    self.end();
                    return Ok(None);
                }
                Extent::Chunk(0) => {
                    self.client.line().await?;
                    self.extent = Extent::ChunkSize;
                    continue;
                }
                Extent::ChunkSize => {
                    self.chunk_size().await?;
                    continue;
                }
                Extent::Length(left) | Extent::Chunk(left) => left,
                Extent::Close => u64::MAX,
            };
            let piece = self.client.piece(left).await?;
            self.extent = match self.extent {
                Extent::Close if piece.is_empty() => {
                    self.end();
                    return Ok(None);
                }
                _ if piece.is_empty() => bail!("the answer ends {left} bytes too early"),
                Extent::Length(left) => Extent::Length(left - piece.len() as u64),
                Extent::Chunk(left) => Extent::Chunk(left - piece.len() as u64),
                other => other,
            };
            return Ok(Some(&self.client.buffer[piece]));
        }
    }

    async fn chunk_size(&mut self) -> Result<()> {
        let line = self.client.line().await?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(digits, 16).with_context(|| format!("{line:?} is not the size of a chunk"))?;
        self.extent = Extent::Chunk(size);
        if size == 0 {
            while !self.client.line().await?.is_empty() {}
            self.end();
        }
        Ok(())
    }

    fn end(&mut self) {
        self.extent = Extent::Over;
        if !self.keep {
            self.client.stream = None;
        }
    }

    /// Receives the rest and gives its size.
    pub async fn drain(mut self) -> Result<u64> {
        let mut size = 0;
        while let Some(piece) = self.next().await? {
            size += piece.len() as u64;
        }
        Ok(size)
    }

    /// Receives the rest and keeps it.
    pub async fn collect(mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(piece) = self.next().await? {
            body.extend_from_slice(piece);
        }
        Ok(body)
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        // What was not received would be taken for the next answer.
        if self.extent != Extent::Over {
            self.client.stream = None;
        }
    }
}

/// What the head of an answer says about its body.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    extent: Extent,
    keep: bool,
}

impl Head {
    fn read(text: &str) -> Result<Self> {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut words = first.split(' ');
        let version = words.next().unwrap_or_default();
        let status: Option<u16> = words.next().and_then(|word| word.parse().ok());
        let Some(status) = status.filter(|_| version.starts_with("HTTP/1.")) else { bail!("{first:?} is no answer") };
        let mut extent = Extent::Close;
        let mut keep = version == "HTTP/1.1";
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                extent = Extent::Length(value.parse().with_context(|| format!("{line:?} is no length"))?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                extent = Extent::ChunkSize;
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                keep = false;
            }
        }
        if matches!(status, 100 | 204 | 304) {
            extent = Extent::Length(0);
        }
        keep &= extent != Extent::Close;
        Ok(Self { status, extent, keep })
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn heads_say_how_bodies_end() {
        let head = |text: &str| Head::read(text).expect("a head");
        let length = head("HTTP/1.1 200 OK\r\nContent-Length: 5");
        assert_eq!(length, Head { status: 200, extent: Extent::Length(5), keep: true });
        let chunked = head("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nConnection: close");
        assert_eq!(chunked, Head { status: 200, extent: Extent::ChunkSize, keep: false });
        assert_eq!(head("HTTP/1.0 200 OK").extent, Extent::Close);
        assert!(Head::read("SSH-2.0").is_err());
    }

    #[tokio::test]
    async fn bodies_of_every_kind_are_received_in_turn() {
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
            let body = client.ask(b"?").await.expect("an answer").collect().await.expect("a body");
            assert_eq!(String::from_utf8_lossy(&body), expected);
        }
        assert_eq!(client.connects, 2);
        server.await.expect("no panic");
    }
}
