//! The client of the admin socket, which the commands of the `cli` and `backup` folders use, and the errors of
//! commands.

use std::cell::OnceCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fmt, io};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use super::api::{AdminError, Endpoint, IMPORT, ImportItem, ImportProgress, ImportRequest, JobProgress};
use crate::config::{AdminSockets, ConfigErrors};
use crate::http::body::ResponseBody;

/// Maximum length of one line of a response. A line is an item of a list or a status.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Number of bytes that are read from a file at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// A line of a response, other than the last one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ResponseLine<Item> {
    Progress(JobProgress),
    Item(Item),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// No server listens at an admin socket.
    #[error(
        "no server is running at {tried}.\n\
         Start it with `graspd serve` or `systemctl start graspd`; `systemctl status graspd` shows whether it runs.\n\
         If it runs with other settings, give its location: the same --config, --admin-socket PATH or \
         NGIT_ADMIN_SOCKET."
    )]
    NotRunning { tried: TriedSockets },
    /// The server rejected the request.
    #[error("{}", .0.text)]
    Rejected(AdminError),
    /// The command failed.
    #[error("{0}")]
    Failed(String),
    /// The command was used wrongly.
    #[error("{0}")]
    Usage(String),
    /// The settings are invalid.
    #[error("{0}")]
    Settings(ConfigErrors),
    /// Standard output was closed by its reader.
    #[error("standard output is closed")]
    OutputClosed,
}

impl CommandError {
    /// Returns the exit status of a command that ends with this error.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::OutputClosed => 0,
            Self::Rejected(_) | Self::Failed(_) => 1,
            Self::Usage(_) | Self::Settings(_) => 2,
            Self::NotRunning { .. } => 3,
        })
    }
}

/// Sockets at which no server answers, with the reasons.
#[derive(Debug, Default)]
pub(crate) struct TriedSockets(Vec<(PathBuf, io::Error)>);

impl fmt::Display for TriedSockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (socket, why)) in self.0.iter().enumerate() {
            let or = if nth == 0 { "" } else { " or " };
            write!(f, "{or}{} ({why})", socket.display())?;
        }
        Ok(())
    }
}

impl From<AdminError> for CommandError {
    fn from(error: AdminError) -> Self {
        Self::Rejected(error)
    }
}

/// Keeps a [`CommandError`] that passed through `anyhow`; any other error becomes [`CommandError::Failed`].
impl From<anyhow::Error> for CommandError {
    fn from(problem: anyhow::Error) -> Self {
        match problem.downcast::<Self>() {
            Ok(failure) => failure,
            Err(problem) => Self::Failed(format!("{problem:#}")),
        }
    }
}

/// A client of the admin socket of one server.
pub(crate) struct AdminClient {
    sockets: AdminSockets,
    /// The socket at which a server has answered.
    connected: OnceCell<PathBuf>,
}

impl AdminClient {
    /// Returns a client of the server that listens at the first of these sockets.
    pub(crate) fn new(sockets: AdminSockets) -> Self {
        Self { sockets, connected: OnceCell::new() }
    }

    /// Returns the socket at which a server has answered.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.connected.get().map(PathBuf::as_path)
    }

    /// Connects to the first socket at which a server listens. If that is not the socket of the settings, its path is
    /// printed to standard error.
    async fn connect(&self) -> Result<UnixStream, CommandError> {
        if self.sockets.paths.is_empty() {
            let text = "ADMIN_SOCKET is off, so commands cannot reach the server; set it to a path and restart the \
                        server";
            return Err(CommandError::Usage(text.to_owned()));
        }
        let mut tried = TriedSockets::default();
        for path in &self.sockets.paths {
            match UnixStream::connect(path).await {
                Ok(stream) => {
                    if self.connected.set(path.clone()).is_ok() && self.sockets.own.as_ref() != Some(path) {
                        eprintln!("graspd: using the server at {}", path.display());
                    }
                    return Ok(stream);
                }
                Err(why) => tried.0.push((path.clone(), why)),
            }
        }
        // The server of another user is not meant if there is a data folder here whose server does not run.
        let has_own_folder = self.sockets.own.as_ref().and_then(|own| own.parent()).is_some_and(Path::is_dir);
        let is_denied = |(path, why): &&(PathBuf, io::Error)| {
            let is_meant = !has_own_folder || self.sockets.own.as_ref() == Some(path);
            why.kind() == io::ErrorKind::PermissionDenied && is_meant
        };
        match tried.0.iter().find(is_denied) {
            Some((socket, why)) => Err(CommandError::Failed(format!(
                "no permission to open {} ({why}); run this command as the user that runs the server, for example with \
                 sudo -u",
                socket.display()
            ))),
            None => Err(CommandError::NotRunning { tried }),
        }
    }

    /// Sends one request, passes every line of the response but the last to `on_line`, and returns the last. An error
    /// of `on_line` closes the connection and is returned.
    pub(crate) fn call<Request: Serialize, Item: DeserializeOwned, Response: DeserializeOwned>(
        &self,
        endpoint: Endpoint<Request, Item, Response>,
        request: &Request,
        on_line: impl FnMut(ResponseLine<Item>) -> Result<(), CommandError>,
    ) -> Result<Response, CommandError> {
        self.send(endpoint.name, || Ok(ResponseBody::from(json!(request).to_string())), on_line)
    }

    /// Sends events to [`IMPORT`]; see [`AdminClient::call`].
    pub(crate) fn import(
        &self,
        request: &ImportRequest,
        events: impl Read + Send + 'static,
        on_line: impl FnMut(ResponseLine<ImportItem>) -> Result<(), CommandError>,
    ) -> Result<ImportProgress, CommandError> {
        let path = format!("{}?protected={}&defer={}", IMPORT.name, request.protected, request.defer);
        self.send(&path, || stream_body(events), on_line)
    }

    fn send<Item: DeserializeOwned, Response: DeserializeOwned>(
        &self,
        path: &str,
        body: impl FnOnce() -> Result<ResponseBody, CommandError>,
        mut on_line: impl FnMut(ResponseLine<Item>) -> Result<(), CommandError>,
    ) -> Result<Response, CommandError> {
        let mut response = None;
        command_runtime()?.block_on(async {
            let stream = self.connect().await?;
            let on_line = &mut |line: &[u8]| {
                response = handle_line(line, &mut on_line)?;
                Ok(response.is_some())
            };
            send_request(stream, path, body()?, on_line).await
        })?;
        let text = "the server closed the connection before the end of the response; see its log";
        response.ok_or_else(|| CommandError::Failed(text.to_owned()))
    }
}

/// Starts the runtime of a command.
///
/// # Errors
///
/// The system does not provide what a runtime needs.
pub(crate) fn command_runtime() -> Result<Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|problem| CommandError::Failed(format!("cannot start the runtime: {problem}")))
}

/// Sends a request and passes the lines of the response to `on_line`, until it returns true for the last one.
async fn send_request(
    stream: UnixStream,
    path: &str,
    body: ResponseBody,
    on_line: &mut dyn FnMut(&[u8]) -> Result<bool, CommandError>,
) -> Result<(), CommandError> {
    let connection_error =
        |problem: hyper::Error| CommandError::Failed(format!("the server closed the connection: {problem}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(connection_error)?;
    tokio::spawn(connection);
    let request = Request::builder().method(Method::POST).uri(format!("/{path}")).header("Host", "graspd");
    let request = request.body(body).map_err(|problem| CommandError::Usage(format!("invalid request: {problem}")))?;
    let mut response: Response<_> = sender.send_request(request).await.map_err(connection_error)?;
    if response.status() != StatusCode::OK {
        return Err(CommandError::Failed(format!("the server responded with {}", response.status())));
    }
    let mut buffered: Vec<u8> = Vec::new();
    while let Some(frame) = response.body_mut().frame().await {
        let Ok(part) = frame.map_err(connection_error)?.into_data() else { continue };
        buffered.extend_from_slice(&part);
        let mut from = 0;
        while let Some(length) = buffered[from..].iter().position(|byte| *byte == b'\n') {
            let line = &buffered[from..from + length];
            from += length + 1;
            if on_line(line)? {
                return Ok(());
            }
        }
        buffered.drain(..from);
        if buffered.len() > MAX_LINE_BYTES {
            return Err(CommandError::Failed(format!("the server sent a line of more than {MAX_LINE_BYTES} bytes")));
        }
    }
    Ok(())
}

/// A line of a response: one of these. Lines of later versions have none of them and are ignored.
#[derive(Deserialize)]
struct WireLine<Item, Response> {
    progress: Option<JobProgress>,
    item: Option<Item>,
    done: Option<Response>,
    error: Option<AdminError>,
}

/// Handles one line; returns the response if it is the last line.
fn handle_line<Item: DeserializeOwned, Response: DeserializeOwned>(
    line: &[u8],
    on_line: &mut impl FnMut(ResponseLine<Item>) -> Result<(), CommandError>,
) -> Result<Option<Response>, CommandError> {
    let line: WireLine<Item, Response> = serde_json::from_slice(line).map_err(|_| {
        CommandError::Failed("unknown response of the server; does it have another version?".to_owned())
    })?;
    if let Some(progress) = line.progress {
        on_line(ResponseLine::Progress(progress))?;
    }
    if let Some(item) = line.item {
        on_line(ResponseLine::Item(item))?;
    }
    match line.error {
        Some(error) => Err(CommandError::Rejected(error)),
        None => Ok(line.done),
    }
}

/// Reads a file on its own thread while it is sent.
fn stream_body(mut file: impl Read + Send + 'static) -> Result<ResponseBody, CommandError> {
    let (body_sender, body) = ResponseBody::channel();
    let read = move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let part = match file.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => Ok(Bytes::copy_from_slice(&buffer[..length])),
                Err(problem) if problem.kind() == io::ErrorKind::Interrupted => continue,
                Err(problem) => Err(problem),
            };
            let is_last = part.is_err();
            if body_sender.blocking_send(part).is_err() || is_last {
                return;
            }
        }
    };
    match std::thread::Builder::new().name("reading".to_owned()).spawn(read) {
        Ok(_) => Ok(body),
        Err(problem) => Err(CommandError::Failed(format!("cannot start a thread to read the file: {problem}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::api::{ErrorCode, RelayCount};
    use super::*;

    #[test]
    fn response_lines_are_parsed() {
        let mut lines_received = Vec::new();
        let mut on_line = |line: ResponseLine<u64>| {
            lines_received.push(line);
            Ok(())
        };
        let mut handle = |line: &str| handle_line::<u64, RelayCount>(line.as_bytes(), &mut on_line);
        for line in
            [r#"{"progress":{"what":"reading","done":1,"total":null}}"#, r#"{"item":5}"#, r#"{"something_new":1}"#]
        {
            assert!(handle(line).expect("understood").is_none(), "{line}");
        }
        let last = handle(r#"{"done":{"relays":2,"something_new":1}}"#).expect("understood");
        assert_eq!(last.map(|last| last.relays), Some(2));
        let rejected = handle(r#"{"error":{"code":"busy","text":"later"}}"#);
        assert!(matches!(
            rejected,
            Err(CommandError::Rejected(error)) if error.code == ErrorCode::Busy && error.text == "later"
        ));
        for line in ["<html>", r#"{"item":{"other":1}}"#, r#"{"done":{}}"#] {
            assert!(handle(line).is_err(), "{line}");
        }
        let progress = JobProgress { what: "reading".to_owned(), done: 1, total: None };
        assert_eq!(lines_received, [ResponseLine::Progress(progress), ResponseLine::Item(5)]);
    }
}
