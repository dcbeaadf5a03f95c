//! A web server that is just large enough for git's client: one request per connection.

use std::io;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use grasp_git::process::ChildProblem;
use grasp_git::serve::{Fetch, Protocol, Request, Service, advertisement, ls_refs_answer, no_such_object, upload_pack};

use super::repository::{EFFORT, Site, feed_command};

/// What a client asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    Advertisement(Protocol),
    Request(Protocol, Request),
}

/// A server that ends with this value.
pub(crate) struct Server {
    pub(crate) site: Arc<Site>,
    address: SocketAddr,
    over: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(crate) fn start(site: Site) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("an address");
        let server = Self { site: Arc::new(site), address, over: Arc::default(), asked: Arc::default() };
        let (site, over, asked) = (server.site.clone(), server.over.clone(), server.asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().take_while(|_| !over.load(Ordering::SeqCst)).flatten() {
                let (site, asked) = (site.clone(), asked.clone());
                // A client that goes away is no failure.
                std::thread::spawn(move || drop(serve(&site, &asked, stream)));
            }
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/site.git", self.address)
    }

    /// What was asked since this was last called.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().expect("no panic"))
    }

    /// The fetches among them.
    pub(crate) fn fetches(&self) -> Vec<Fetch> {
        let fetch = |asked| match asked {
            Asked::Request(_, Request::Fetch(fetch)) => Some(fetch),
            _ => None,
        };
        self.asked().into_iter().filter_map(fetch).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(site: &Site, asked: &Mutex<Vec<Asked>>, mut stream: TcpStream) -> io::Result<()> {
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
    let protocol = Protocol::read(header("git-protocol"));
    let mut answer = |kind: &str, bytes: &[u8]| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n")?;
        stream.write_all(bytes)
    };
    match first.split(' ').nth(1).unwrap_or_default() {
        "/site.git/info/refs?service=git-upload-pack" => {
            asked.lock().expect("no panic").push(Asked::Advertisement(protocol));
            let bytes = advertisement::upload(&site.refs(), &site.capabilities, protocol);
            answer(Service::Upload.advertisement_type(), &bytes)
        }
        "/site.git/git-upload-pack" => {
            answer(Service::Upload.result_type(), b"")?;
            let request = match Request::read(protocol, &body) {
                Ok(request) => request,
                Err(bad) => return stream.write_all(&bad.answer()),
            };
            asked.lock().expect("no panic").push(Asked::Request(protocol, request.clone()));
            respond(site, protocol, request, &mut stream)
        }
        other => panic!("nobody asks for {other}"),
    }
}

fn respond(site: &Site, protocol: Protocol, request: Request, stream: &mut TcpStream) -> io::Result<()> {
    match (request, &site.folder) {
        (Request::Nothing, _) => Ok(()),
        (Request::LsRefs(question), _) => stream.write_all(&ls_refs_answer(&site.refs(), &question)),
        (Request::Fetch(fetch), None) => stream.write_all(&no_such_object(&fetch.wants[0])),
        (Request::Fetch(fetch), Some(folder)) => {
            let send = |said: &[u8]| stream.write_all(said).map_err(|_| ChildProblem::Unwanted);
            match upload_pack(&site.git, folder, (protocol, &fetch.body), EFFORT, send) {
                Err(problem) => Err(io::Error::other(problem)),
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
