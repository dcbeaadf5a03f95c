//! The admin socket: a file that only the server's own user can open.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use grasp_core::limits;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::{debug, warn};

use super::wire::{Request, Teller};
use super::{Admin, answer};
use crate::http::body::{Answer, Reply};
use crate::http::router::status;
use crate::http::server::{BREATH, departure};

/// Connections at the same time: an operator with a few scripts.
const MAX_CONNECTIONS: usize = 16;

/// What nobody but the owner may do with a socket.
const PRIVATE: Mode = Mode::from_raw_mode(0o177);

/// The socket, bound. Dropping it removes the file.
pub(crate) struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Takes the place. The data folder must be locked by this process, so that a file that nobody answers at was left
    /// behind by a server that has ended. It must be called before the server has threads that make files, because the mode
    /// of new files is the process's for a moment.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        make_room(path).with_context(|| format!("cannot make the admin socket {}", path.display()))?;
        let before = umask(PRIVATE);
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener.with_context(|| {
            format!("cannot make the admin socket {}; set NGIT_ADMIN_SOCKET to another path, or to off", path.display())
        })?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers until the server goes down, then until what was begun has come to a safe place.
    pub(crate) async fn run(self, admin: Arc<Admin>, mut leaving: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let down = leaving.clone();
        let (alive, mut all_gone) = mpsc::channel(1);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = departure(&mut leaving) => break,
            };
            match (accepted, places.clone().try_acquire_owned()) {
                (Ok((stream, _)), Ok(permit)) => {
                    let (admin, leaving, alive) = (admin.clone(), down.clone(), alive.clone());
                    tokio::spawn(async move {
                        let _permit = permit;
                        Conversation { admin, leaving, alive }.hold(stream).await;
                    });
                }
                (Ok(_), Err(_)) => warn!("turned a command away: {MAX_CONNECTIONS} are at work already"),
                (Err(problem), _) => {
                    warn!(%problem, "cannot accept commands for the moment");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
        drop(alive);
        let _: Option<()> = all_gone.recv().await;
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        if let Err(problem) = std::fs::remove_file(&self.path) {
            debug!(%problem, "the admin socket is gone already");
        }
    }
}

/// Removes what an earlier server has left, and nothing else.
fn make_room(path: &Path) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(problem) => return Err(problem.into()),
    };
    if !found.file_type().is_socket() {
        bail!("there is something else of that name; set NGIT_ADMIN_SOCKET to another path, or to off");
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        bail!("another server answers there; give this one its own NGIT_ADMIN_SOCKET");
    }
    Ok(std::fs::remove_file(path)?)
}

/// What answers at one connection.
#[derive(Clone)]
struct Conversation {
    admin: Arc<Admin>,
    leaving: watch::Receiver<bool>,
    /// Closed when the last job has ended.
    alive: mpsc::Sender<()>,
}

impl Conversation {
    /// Answers until the client hangs up. Nobody is hurried: a job may have nothing to say for a long time.
    async fn hold(self, stream: UnixStream) {
        let mut leaving = self.leaving.clone();
        let service = service_fn(move |request| {
            let conversation = self.clone();
            async move { Ok::<_, Infallible>(conversation.one(request)) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(limits::HANDSHAKE_SECS))
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let mut staying = true;
        let ended = loop {
            tokio::select! {
                ended = connection.as_mut() => break ended,
                () = departure(&mut leaving), if staying => {
                    staying = false;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(problem) = ended {
            debug!(%problem, "a command's connection ended badly");
        }
    }

    /// Begins one job. It goes on by itself, and ends when nobody wants it any more.
    fn one(self, request: hyper::Request<Incoming>) -> Answer {
        if *request.method() != Method::POST {
            return status(StatusCode::METHOD_NOT_ALLOWED, "commands are posted\n");
        }
        let request = Request::new(request);
        debug!(verb = request.verb(), "a command");
        let (feed, body) = Reply::stream();
        let tell = Teller::new(feed, self.leaving.clone());
        tokio::spawn(async move {
            let Self { admin, alive, .. } = self;
            let end = answer(&admin, request, tell.clone()).await;
            tell.end(end).await;
            drop(alive);
        });
        let mut answer = Response::new(body);
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        answer
    }
}
