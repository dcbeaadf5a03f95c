//! Requests as git 2.47 sends them, byte for byte.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use clap::ValueEnum;
use grasp_git::fetch::{LsRefsParser, RefVisitor};
use grasp_git::pktline;
use serde::Serialize;

use super::client::Client;

/// User agent of the requests.
const AGENT: &str = "git/2.47.3";

/// Encodings that git's HTTP library accepts.
const ENCODINGS: &str = "deflate, gzip, br, zstd";

/// Version of git's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// All refs in one response: old clients, and every push.
    V0,
    /// Capabilities only. Refs follow on request.
    V2,
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V0 => "v0",
            Self::V2 => "v2",
        })
    }
}

/// URL of a repository without TLS, because the cost of TLS would be measured along with the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoUrl {
    /// Host and port.
    pub address: String,
    /// Path with a leading slash and no trailing slash.
    path: String,
}

impl RepoUrl {
    /// Creates the URL of a repository on a server.
    pub fn new(address: &str, path: &str) -> Self {
        Self { address: address.into(), path: path.trim_end_matches('/').into() }
    }

    /// Returns the request for the ref advertisement.
    pub fn info_refs(&self, protocol: Protocol) -> Vec<u8> {
        let Self { address, path } = self;
        let version = match protocol {
            Protocol::V0 => "",
            Protocol::V2 => "Git-Protocol: version=2\r\n",
        };
        format!(
            "GET {path}/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: {address}\r\nUser-Agent: {AGENT}\r\nAccept: \
             */*\r\nAccept-Encoding: {ENCODINGS}\r\nPragma: no-cache\r\n{version}\r\n"
        )
        .into_bytes()
    }

    /// Returns a request with a command of protocol v2. Git compresses bodies above one kilobyte; these are smaller, or
    /// sent uncompressed.
    fn command(&self, body: &[u8]) -> Vec<u8> {
        let Self { address, path } = self;
        let length = body.len();
        let mut request = format!(
            "POST {path}/git-upload-pack HTTP/1.1\r\nHost: {address}\r\nUser-Agent: {AGENT}\r\nAccept-Encoding: \
             {ENCODINGS}\r\nContent-Type: application/x-git-upload-pack-request\r\nAccept: \
             application/x-git-upload-pack-result\r\nGit-Protocol: version=2\r\nContent-Length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend_from_slice(body);
        request
    }

    /// Returns the fetch request of a full clone, for all current refs of the repository.
    pub async fn full_fetch(&self, client: &mut Client) -> Result<Vec<u8>> {
        let refs = self.refs(client).await?;
        let body = fetch_body(&refs);
        Ok(self.command(&body))
    }

    /// Returns the refs that a cloning client receives: names and object ids.
    pub async fn refs(&self, client: &mut Client) -> Result<Vec<(String, String)>> {
        let response = client
            .send_expecting_ok(&self.command(&ls_refs_body()))
            .await
            .with_context(|| format!("{self}: ls-refs"))?;
        let mut parser = LsRefsParser::new(RefList(Vec::new()));
        parser.feed(&response.collect().await?)?;
        let RefList(refs) = parser.finish()?;
        if refs.is_empty() {
            bail!("{self} has no refs");
        }
        Ok(refs)
    }
}

impl fmt::Display for RepoUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "http://{}{}", self.address, self.path)
    }
}

impl FromStr for RepoUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let rest = text.strip_prefix("http://").with_context(|| format!("{text} does not start with http://"))?;
        let (server, path) = rest.split_once('/').with_context(|| format!("{text} has no repository path"))?;
        let address = if server.contains(':') { server.to_owned() } else { format!("{server}:80") };
        Ok(Self::new(&address, &format!("/{path}")))
    }
}

/// Collects names and object ids.
struct RefList(Vec<(String, String)>);

impl RefVisitor for RefList {
    fn visit_ref(&mut self, name: &str, oid: &str, _: Option<&str>) {
        self.0.push((name.to_owned(), oid.to_owned()));
    }

    fn visit_peeled(&mut self, _: &str, _: &str) {}
}

/// Starts a request body. Git ends only some of its lines with a newline.
fn head(command: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for line in [command, &format!("agent={AGENT}"), "object-format=sha1"] {
        pktline::push(&mut body, &[line.as_bytes()]);
    }
    pktline::push_delimiter(&mut body);
    body
}

/// First request body of `git clone`.
fn ls_refs_body() -> Vec<u8> {
    let mut body = head("command=ls-refs\n");
    for line in ["peel", "symrefs", "unborn", "ref-prefix HEAD", "ref-prefix refs/heads/", "ref-prefix refs/tags/"] {
        pktline::push_line(&mut body, line);
    }
    pktline::push_flush(&mut body);
    body
}

/// Second request body of `git clone --quiet`: a `want` for every ref, including duplicates.
fn fetch_body(refs: &[(String, String)]) -> Vec<u8> {
    let mut body = head("command=fetch");
    for line in ["thin-pack", "no-progress", "ofs-delta"] {
        pktline::push(&mut body, &[line.as_bytes()]);
    }
    for (_, oid) in refs {
        pktline::push_line(&mut body, &format!("want {oid}"));
    }
    pktline::push_line(&mut body, "done");
    pktline::push_flush(&mut body);
    body
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;

    use super::*;
    use crate::git::installed_git;

    #[test]
    fn only_plain_http_urls_are_accepted() {
        let url: RepoUrl = "http://127.0.0.1:8080/npub1x/a.git/".parse().expect("plain");
        assert_eq!(url, RepoUrl::new("127.0.0.1:8080", "/npub1x/a.git"));
        assert_eq!(url.to_string(), "http://127.0.0.1:8080/npub1x/a.git");
        assert!("https://127.0.0.1/a.git".parse::<RepoUrl>().is_err());
        assert!("http://127.0.0.1".parse::<RepoUrl>().is_err());
    }

    /// Answers a clone up to its fetch and returns the request bodies.
    async fn record(listener: TcpListener, refs: &[(String, String)]) -> Vec<Vec<u8>> {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut stream = BufReader::new(stream);
        let mut posted = Vec::new();
        loop {
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).await.expect("a line");
                if let Some(value) = line.strip_prefix("Content-Length: ") {
                    length = value.trim().parse().expect("a number");
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.expect("a body");
            let mut answer = Vec::new();
            let kind = if body.is_empty() { "advertisement" } else { "result" };
            if body.is_empty() {
                for text in ["version 2", "agent=x", "ls-refs=unborn", "fetch=shallow", "object-format=sha1"] {
                    pktline::push_line(&mut answer, text);
                }
            } else {
                for (name, oid) in refs {
                    pktline::push_line(&mut answer, &format!("{oid} {name}"));
                }
                posted.push(body);
            }
            if posted.len() == 2 {
                return posted;
            }
            pktline::push_flush(&mut answer);
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-{kind}\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            stream.write_all(head.as_bytes()).await.expect("a head");
            stream.write_all(&answer).await.expect("an answer");
        }
    }

    #[tokio::test]
    async fn requests_equal_those_of_git_clone() {
        let named = |digit: &str, name: &str| (name.to_owned(), digit.repeat(40));
        let refs = [named("1", "HEAD"), named("1", "refs/heads/main"), named("2", "refs/tags/v1")];
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = RepoUrl::new(&listener.local_addr().expect("an address").to_string(), "/a.git");
        let folder = tempfile::tempdir().expect("a folder");
        let clone = folder.path().join("clone");
        let mut git = installed_git::git(folder.path());
        git.args(["clone", "--quiet", "--bare", &url.to_string()]).arg(clone);
        let git = tokio::task::spawn_blocking(move || git.output());
        let posted = record(listener, &refs).await;
        assert!(
            !git.await.expect("no panic").expect("git runs").status.success(),
            "the fetch must fail without a response"
        );

        // The user agent differs between git versions. It is in the second packet.
        let without_agent = |body: &[u8]| {
            let text = String::from_utf8_lossy(body).into_owned();
            let (command, rest) = text.split_once("agent=").expect("an agent");
            let (_, rest) = rest.split_once("0016object-format").expect("a format");
            format!("{}0016object-format{rest}", &command[..command.len() - 4])
        };
        assert_eq!(without_agent(&posted[0]), without_agent(&ls_refs_body()));
        assert_eq!(without_agent(&posted[1]), without_agent(&fetch_body(&refs)));
    }
}
