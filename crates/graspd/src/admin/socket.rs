//! The admin socket: a unix socket that only the user of the server can open.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode, header};
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::{debug, warn};

use super::wire::{AdminRequest, ResponseWriter};
use super::{AdminState, dispatch};
use crate::http::body::{HttpResponse, ResponseBody};
use crate::http::response::{status, with_header};
use crate::http::server::{ADMIN_TIMEOUTS, accept_connections, serve_connection};
use crate::http::stall_timeout::ConnectionActivity;

/// Maximum number of simultaneous connections: enough for an operator with a few scripts.
const MAX_CONNECTIONS: usize = 16;

/// Umask that makes the socket accessible for its owner only.
const SOCKET_UMASK: Mode = Mode::from_raw_mode(0o177);

/// The bound socket. Dropping it removes the file.
pub(crate) struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Binds the socket. This process must hold the lock of the data folder, so that a socket file without a listener
    /// is known to be left over from an earlier server. Must be called before the server has threads that create files,
    /// because it changes the umask of the process for a moment.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        remove_stale_socket(path).with_context(|| format!("cannot create the admin socket {}", path.display()))?;
        let before = umask(SOCKET_UMASK);
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener.with_context(|| {
            format!(
                "cannot create the admin socket {}; set NGIT_ADMIN_SOCKET to another path, or to off",
                path.display()
            )
        })?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Accepts connections until the server shuts down, and then waits until running jobs have stopped.
    pub(crate) async fn run(self, admin: Arc<AdminState>, shutdown_signal: watch::Receiver<bool>) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let (job_guard, mut all_jobs_done) = mpsc::channel(1);
        let template = AdminConnection { admin, shutdown_signal: shutdown_signal.clone(), job_guard };
        accept_connections(
            "admin",
            || self.listener.accept(),
            shutdown_signal,
            |(stream, _)| {
                let Ok(permit) = permits.clone().try_acquire_owned() else {
                    return warn!(target: "admin", limit = MAX_CONNECTIONS, "admin connection limit reached");
                };
                let connection = template.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    connection.serve(stream).await;
                });
            },
        )
        .await;
        drop(template);
        let _: Option<()> = all_jobs_done.recv().await;
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            debug!(target: "admin", %error, "cannot remove the admin socket");
        }
    }
}

/// Removes the socket of an earlier server, and nothing else.
fn remove_stale_socket(path: &Path) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(problem) => return Err(problem.into()),
    };
    if !found.file_type().is_socket() {
        bail!("the file exists and is not a socket; set NGIT_ADMIN_SOCKET to another path, or to off");
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        bail!("another server is listening there; give this one its own NGIT_ADMIN_SOCKET");
    }
    Ok(std::fs::remove_file(path)?)
}

/// One connection.
#[derive(Clone)]
struct AdminConnection {
    admin: Arc<AdminState>,
    shutdown_signal: watch::Receiver<bool>,
    /// Dropped when the job has ended, so that shutdown can wait for the last one.
    job_guard: mpsc::Sender<()>,
}

impl AdminConnection {
    /// Serves requests until the client disconnects.
    async fn serve(self, stream: UnixStream) {
        let shutdown_signal = self.shutdown_signal.clone();
        let activity = ConnectionActivity::new(self.admin.clock);
        let service = service_fn(move |request| {
            let connection_handler = self.clone();
            async move { Ok::<_, Infallible>(connection_handler.handle(request)) }
        });
        serve_connection(stream, service, shutdown_signal, activity, ADMIN_TIMEOUTS).await;
    }

    /// Starts the job of one request. It runs as its own task, and stops when the client disconnects.
    fn handle(self, request: hyper::Request<Incoming>) -> HttpResponse {
        if *request.method() != Method::POST {
            return status(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
        }
        let request = AdminRequest::new(request);
        debug!(target: "admin", endpoint = request.endpoint(), "admin request");
        let (body_sender, body) = ResponseBody::channel();
        let writer = ResponseWriter::new(body_sender, self.shutdown_signal.clone());
        tokio::spawn(async move {
            let Self { admin, job_guard, .. } = self;
            let result = dispatch(&admin, request, writer.clone()).await;
            writer.finish(result).await;
            drop(job_guard);
        });
        let response = with_header(Response::new(body), header::CONTENT_TYPE, "application/x-ndjson");
        // There is no timeout for an idle connection, so it ends with its response.
        with_header(response, header::CONNECTION, "close")
    }
}
