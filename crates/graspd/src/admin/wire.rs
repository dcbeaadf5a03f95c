//! The protocol of the admin socket.
//!
//! HTTP/1.1: `POST /<endpoint>` with a JSON object as body, or with a stream as body and the arguments in the query.
//! The response consists of lines of JSON, each an object with one key:
//!
//! ```text
//! {"progress":{"what":"reading events","done":1000,"total":5000}}      any number of times; total can be null
//! {"item":{…}}                                                         an item of a list
//! {"done":{…}}    or    {"error":{"code":"busy","text":"…"}}           the last line
//! ```

use std::{fmt, io};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::http::body::BodySender;

/// Maximum number of bytes of the arguments.
const MAX_ARGUMENTS: usize = 1 << 20;

/// A request.
pub(crate) struct AdminRequest {
    endpoint: String,
    query: String,
    body: Incoming,
}

impl AdminRequest {
    pub(super) fn new(request: hyper::Request<Incoming>) -> Self {
        let endpoint = request.uri().path().trim_start_matches('/').to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        Self { endpoint, query, body: request.into_body() }
    }

    /// Returns the name of the endpoint.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Reads the arguments from the body. An empty body is an empty object.
    pub(crate) async fn arguments(self) -> Result<Value, AdminError> {
        let invalid = |why: String| AdminError::new("bad_request", format!("cannot read the request: {why}"));
        let body = Limited::new(self.body, MAX_ARGUMENTS).collect().await.map_err(|why| invalid(why.to_string()))?;
        let body = body.to_bytes();
        if body.is_empty() {
            return Ok(json!({}));
        }
        serde_json::from_slice(&body).map_err(|why| invalid(why.to_string()))
    }

    /// Returns an argument from the query, for a request whose body is a stream. It is not decoded, so it cannot
    /// contain `&`.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Returns the body as a stream.
    pub(crate) fn into_body(self) -> Incoming {
        self.body
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) struct AdminError {
    /// Machine-readable code: `bad_request`, `not_found`, `busy`, `failed`, `gone`, `going_down`, `unknown_verb` and
    /// others.
    pub(crate) code: &'static str,
    /// A sentence for the operator, without a full stop.
    pub(crate) text: String,
}

impl AdminError {
    /// An error with a code and a sentence.
    pub(crate) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<JobCancelled> for AdminError {
    fn from(gone: JobCancelled) -> Self {
        match gone {
            JobCancelled::ClientDisconnected => Self::new("gone", "the client has disconnected"),
            JobCancelled::ServerStopping => Self::new("going_down", "the server is shutting down"),
        }
    }
}

/// Why a job must stop at the next safe point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JobCancelled {
    /// The client has disconnected.
    ClientDisconnected,
    /// The server is shutting down.
    ServerStopping,
}

/// Sends the lines of a response. Sending waits for a slow client, and fails when the job is cancelled.
#[derive(Clone)]
pub(crate) struct ResponseWriter {
    sender: BodySender,
    shutdown: watch::Receiver<bool>,
}

impl ResponseWriter {
    pub(super) fn new(sender: BodySender, shutdown: watch::Receiver<bool>) -> Self {
        Self { sender, shutdown }
    }

    /// Sends the progress of the job; the total is `None` if it is not known.
    pub(crate) async fn send_progress(&self, what: &str, done: u64, total: Option<u64>) -> Result<(), JobCancelled> {
        self.write_line(&progress_line(what, done, total)).await
    }

    /// Sends an item of a list.
    pub(crate) async fn send_item(&self, item: Value) -> Result<(), JobCancelled> {
        self.write_line(&json!({ "item": item })).await
    }

    /// Same as [`ResponseWriter::send_progress`], for threads that may block.
    pub(crate) fn send_progress_blocking(&self, what: &str, done: u64, total: Option<u64>) -> Result<(), JobCancelled> {
        self.write_line_blocking(&progress_line(what, done, total))
    }

    /// Same as [`ResponseWriter::send_item`], for threads that may block.
    pub(crate) fn send_item_blocking(&self, item: Value) -> Result<(), JobCancelled> {
        self.write_line_blocking(&json!({ "item": item }))
    }

    /// Returns an error if the job is cancelled, for loops that send nothing.
    pub(crate) fn check_open(&self) -> Result<(), JobCancelled> {
        if *self.shutdown.borrow() {
            return Err(JobCancelled::ServerStopping);
        }
        if self.sender.is_closed() { Err(JobCancelled::ClientDisconnected) } else { Ok(()) }
    }

    /// Waits until the job is cancelled, for jobs that wait for something else at the same time.
    pub(crate) async fn closed(&self) -> JobCancelled {
        let mut shutdown = self.shutdown.clone();
        tokio::select! {
            _ = shutdown.wait_for(|shutdown| *shutdown) => JobCancelled::ServerStopping,
            () = self.sender.closed() => JobCancelled::ClientDisconnected,
        }
    }

    async fn write_line(&self, line: &Value) -> Result<(), JobCancelled> {
        self.check_open()?;
        self.sender.send(Ok(line_bytes(line))).await.map_err(|_| JobCancelled::ClientDisconnected)
    }

    fn write_line_blocking(&self, line: &Value) -> Result<(), JobCancelled> {
        self.check_open()?;
        self.sender.blocking_send(Ok(line_bytes(line))).map_err(|_| JobCancelled::ClientDisconnected)
    }

    /// Sends the last line, even during shutdown.
    pub(super) async fn finish(self, result: Result<Value, AdminError>) {
        let line = match result {
            Ok(done) => json!({ "done": done }),
            Err(AdminError { code, text }) => json!({ "error": { "code": code, "text": text } }),
        };
        let _: Result<(), _> = self.sender.send(io::Result::Ok(line_bytes(&line))).await;
    }
}

fn progress_line(what: &str, done: u64, total: Option<u64>) -> Value {
    json!({ "progress": { "what": what, "done": done, "total": total } })
}

fn line_bytes(line: &Value) -> Bytes {
    Bytes::from(format!("{line}\n"))
}
