//! The client of the admin socket, which the commands of the `cli` and `backup` folders use, and the errors of
//! commands.

use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::config::ConfigErrors;
use crate::http::body::ResponseBody;

/// Maximum length of one line of a response. A line is an item of a list or a status.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Number of bytes that are read from a file at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Body of a request.
pub(crate) enum RequestBody {
    /// Arguments, as a JSON object.
    Arguments(Value),
    /// A stream, with its arguments as a URL query (`a=1&b=2`).
    Stream(String, Box<dyn Read + Send>),
}

impl RequestBody {
    /// A body without arguments.
    pub(crate) fn none() -> Self {
        Self::Arguments(Value::Object(serde_json::Map::new()))
    }
}

/// A line of a response, other than the last one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ResponseLine {
    /// Progress of a long operation; the total is `None` if it is not known.
    Progress { what: String, done: u64, total: Option<u64> },
    /// An item of a list.
    Item(Value),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// No server listens at the admin socket.
    #[error(
        "no server is running at {} ({why}).\n\
         Start it with `graspd serve` or `systemctl start graspd`; `systemctl status graspd` shows whether it runs.\n\
         If it runs with other settings, give its location: the same --config, --admin-socket PATH or \
         NGIT_ADMIN_SOCKET.",
        socket.display()
    )]
    NotRunning { socket: PathBuf, why: std::io::Error },
    /// The server rejected the request.
    #[error("{text}")]
    Rejected { code: String, text: String },
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
            Self::Rejected { .. } | Self::Failed(_) => 1,
            Self::Usage(_) | Self::Settings(_) => 2,
            Self::NotRunning { .. } => 3,
        })
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
    /// Path of the socket; `None` if the settings turn the socket off.
    socket: Option<PathBuf>,
}

impl AdminClient {
    /// Returns a client of the server at a socket; `None` means that the settings turn the socket off.
    pub(crate) fn new(socket: Option<PathBuf>) -> Self {
        Self { socket }
    }

    /// Sends one request, passes every line of the response but the last to `on_line`, and returns the last. An error
    /// of `on_line` closes the connection and is returned.
    pub(crate) fn call(
        &self,
        endpoint: &str,
        body: RequestBody,
        on_line: &mut dyn FnMut(ResponseLine) -> Result<(), CommandError>,
    ) -> Result<Value, CommandError> {
        let Some(socket) = &self.socket else {
            let text = "ADMIN_SOCKET is off, so commands cannot reach the server; set it to a path and restart the \
                        server";
            return Err(CommandError::Usage(text.to_owned()));
        };
        call(socket, endpoint, body, on_line)
    }
}

fn call(
    socket: &Path,
    endpoint: &str,
    body: RequestBody,
    on_line: &mut dyn FnMut(ResponseLine) -> Result<(), CommandError>,
) -> Result<Value, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|problem| CommandError::Failed(format!("cannot start the runtime: {problem}")))?;
    runtime.block_on(send_request(socket, endpoint, body, on_line))
}

async fn send_request(
    socket: &Path,
    endpoint: &str,
    body: RequestBody,
    on_line: &mut dyn FnMut(ResponseLine) -> Result<(), CommandError>,
) -> Result<Value, CommandError> {
    let stream = UnixStream::connect(socket).await.map_err(|why| connect_error(socket, why))?;
    let connection_error = |problem: hyper::Error| {
        CommandError::Failed(format!(
            "the server closed the connection: \
                                                                                 {problem}"
        ))
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(connection_error)?;
    tokio::spawn(connection);
    let (query, body) = match body {
        RequestBody::Arguments(arguments) => (String::new(), ResponseBody::from(arguments.to_string())),
        RequestBody::Stream(query, file) => (format!("?{query}"), stream_body(file)?),
    };
    let request = Request::builder().method(Method::POST).uri(format!("/{endpoint}{query}")).header("Host", "graspd");
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
            if let Some(last) = handle_line(line, on_line)? {
                return Ok(last);
            }
        }
        buffered.drain(..from);
        if buffered.len() > MAX_LINE_BYTES {
            return Err(CommandError::Failed(format!("the server sent a line of more than {MAX_LINE_BYTES} bytes")));
        }
    }
    let text = "the server closed the connection before the end of the response; see its log";
    Err(CommandError::Failed(text.to_owned()))
}

/// Handles one line; returns the result if it is the last line.
fn handle_line(
    line: &[u8],
    on_line: &mut dyn FnMut(ResponseLine) -> Result<(), CommandError>,
) -> Result<Option<Value>, CommandError> {
    let unknown_response =
        || CommandError::Failed("unknown response of the server; does it have another version?".to_owned());
    let mut line: Value = serde_json::from_slice(line).map_err(|_| unknown_response())?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let Some(progress) = line.get("progress") {
        let (done, total) = (progress["done"].as_u64().unwrap_or(0), progress["total"].as_u64());
        on_line(ResponseLine::Progress { what: text(&progress["what"]), done, total })?;
    } else if let Some(item) = line.get_mut("item") {
        on_line(ResponseLine::Item(item.take()))?;
    } else if let Some(done) = line.get_mut("done") {
        return Ok(Some(done.take()));
    } else if let Some(error) = line.get("error") {
        return Err(CommandError::Rejected { code: text(&error["code"]), text: text(&error["text"]) });
    }
    // Lines of later versions are ignored.
    Ok(None)
}

fn connect_error(socket: &Path, why: io::Error) -> CommandError {
    match why.kind() {
        io::ErrorKind::PermissionDenied => CommandError::Failed(format!(
            "no permission to open {} ({why}); run this command as the user that runs the server, for example with \
             sudo -u",
            socket.display()
        )),
        _ => CommandError::NotRunning { socket: socket.to_owned(), why },
    }
}

/// Reads a file on its own thread while it is sent.
fn stream_body(mut file: Box<dyn Read + Send>) -> Result<ResponseBody, CommandError> {
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
    use serde_json::json;

    use super::*;

    #[test]
    fn response_lines_are_parsed() {
        let mut lines_received = Vec::new();
        let mut on_line = |line| {
            lines_received.push(line);
            Ok(())
        };
        for line in [
            r#"{"progress":{"what":"reading","done":1,"total":null}}"#,
            r#"{"item":{"a":1}}"#,
            r#"{"something_new":1}"#,
        ] {
            assert_eq!(handle_line(line.as_bytes(), &mut on_line).expect("understood"), None, "{line}");
        }
        let last = handle_line(br#"{"done":{"x":2}}"#, &mut on_line).expect("understood");
        assert_eq!(last, Some(json!({"x": 2})));
        let rejected = handle_line(br#"{"error":{"code":"busy","text":"later"}}"#, &mut on_line);
        assert!(matches!(rejected, Err(CommandError::Rejected { code, text }) if code == "busy" && text == "later"));
        assert!(handle_line(b"<html>", &mut on_line).is_err());
        assert_eq!(
            lines_received,
            [
                ResponseLine::Progress { what: "reading".to_owned(), done: 1, total: None },
                ResponseLine::Item(json!({"a": 1}))
            ]
        );
    }
}
