//! A minimal HTTP server for git's client: one request per connection.

use std::io;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use grasp_git::process::GitError;
use grasp_git::serve::{
    FetchCommand, PackService, ProtocolVersion, UploadPackRequest, advertisement, ls_refs_response,
    not_our_ref_response, upload_pack,
};

use super::repository::{LIMITS, ServedRepo, feed_command};

/// A request of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LoggedRequest {
    Advertisement(ProtocolVersion),
    UploadPack(ProtocolVersion, UploadPackRequest),
}

/// A server that stops when it is dropped.
pub(crate) struct TestHttpServer {
    pub(crate) repo: Arc<ServedRepo>,
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<LoggedRequest>>>,
}

impl TestHttpServer {
    pub(crate) fn start(repo: ServedRepo) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind a socket");
        let address = listener.local_addr().expect("read the address");
        let server = Self { repo: Arc::new(repo), address, is_stopped: Arc::default(), requests: Arc::default() };
        let (repo, is_stopped, requests) = (server.repo.clone(), server.is_stopped.clone(), server.requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().take_while(|_| !is_stopped.load(Ordering::SeqCst)).flatten() {
                let (repo, requests) = (repo.clone(), requests.clone());
                // A client may close the connection early.
                std::thread::spawn(move || drop(serve(&repo, &requests, stream)));
            }
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/repo.git", self.address)
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<LoggedRequest> {
        std::mem::take(&mut *self.requests.lock().expect("lock the log"))
    }

    /// Returns the fetches since the last call.
    pub(crate) fn fetches(&self) -> Vec<FetchCommand> {
        let fetch = |requests| match requests {
            LoggedRequest::UploadPack(_, UploadPackRequest::Fetch(fetch)) => Some(fetch),
            _ => None,
        };
        self.take_requests().into_iter().filter_map(fetch).collect()
    }
}

impl Drop for TestHttpServer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(repo: &ServedRepo, requests: &Mutex<Vec<LoggedRequest>>, mut stream: TcpStream) -> io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    input.read_line(&mut first)?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
            None => break,
        }
    }
    let header = |name: &str| headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    if header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = match (header("content-length"), header("transfer-encoding")) {
        (Some(length), _) => exactly(&mut input, length.parse().expect("a length"))?,
        (_, Some(_)) => chunks(&mut input)?,
        _ => Vec::new(),
    };
    if header("content-encoding").is_some() {
        body = feed_command(Command::new("gzip").arg("-dc"), &body);
    }
    let protocol = ProtocolVersion::from_header(header("git-protocol"));
    let mut answer = |kind: &str, bytes: &[u8]| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n")?;
        stream.write_all(bytes)
    };
    match first.split(' ').nth(1).unwrap_or_default() {
        "/repo.git/info/refs?service=git-upload-pack" => {
            requests.lock().expect("lock the log").push(LoggedRequest::Advertisement(protocol));
            let bytes = advertisement::upload_pack(&repo.refs(), &repo.capabilities, protocol);
            answer(PackService::UploadPack.advertisement_type(), &bytes)
        }
        "/repo.git/git-upload-pack" => {
            answer(PackService::UploadPack.result_type(), b"")?;
            let request = match UploadPackRequest::parse(protocol, &body) {
                Ok(request) => request,
                Err(error) => return stream.write_all(&error.to_response()),
            };
            requests.lock().expect("lock the log").push(LoggedRequest::UploadPack(protocol, request.clone()));
            respond(repo, protocol, request, &mut stream)
        }
        other => panic!("unexpected path {other}"),
    }
}

fn respond(
    repo: &ServedRepo,
    protocol: ProtocolVersion,
    request: UploadPackRequest,
    stream: &mut TcpStream,
) -> io::Result<()> {
    match (request, &repo.folder) {
        (UploadPackRequest::Empty, _) => Ok(()),
        (UploadPackRequest::LsRefs(request), _) => stream.write_all(&ls_refs_response(&repo.refs(), &request)),
        (UploadPackRequest::Fetch(fetch), None) => stream.write_all(&not_our_ref_response(&fetch.wants[0])),
        (UploadPackRequest::Fetch(fetch), Some(folder)) => {
            let send = |output: &[u8]| stream.write_all(output).map_err(|_| GitError::Cancelled);
            match upload_pack(&repo.git, folder, (protocol, &fetch.body), LIMITS, send) {
                Err(error) => Err(io::Error::other(error)),
                Ok(()) => Ok(()),
            }
        }
    }
}

fn exactly(input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn chunks(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
        bytes.extend(exactly(input, length)?);
        exactly(input, 2)?;
        if length == 0 {
            return Ok(bytes);
        }
    }
}
