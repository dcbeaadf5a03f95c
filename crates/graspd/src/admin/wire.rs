//! Requests and responses of the admin socket on the server's side. [`api`](super::api) describes the protocol.

use std::marker::PhantomData;
use std::{fmt, io};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

pub(crate) use super::api::AdminError;
use super::api::{Endpoint, ErrorCode, ImportRequest, JobProgress, Nothing};
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
    async fn arguments<Request: DeserializeOwned>(self) -> Result<Request, AdminError> {
        let invalid = |why: String| AdminError::new(ErrorCode::BadRequest, format!("cannot read the request: {why}"));
        let body = Limited::new(self.body, MAX_ARGUMENTS).collect().await.map_err(|why| invalid(why.to_string()))?;
        let body = body.to_bytes();
        serde_json::from_slice(if body.is_empty() { b"{}" } else { &body }).map_err(|why| invalid(why.to_string()))
    }

    /// Returns the arguments and the stream of an import.
    pub(super) fn into_import(self) -> (ImportRequest, Incoming) {
        let is_set = |name: &str| self.query.split('&').any(|pair| pair.strip_suffix("=true") == Some(name));
        (ImportRequest { protected: is_set("protected"), defer: is_set("defer") }, self.body)
    }
}

impl<Request: DeserializeOwned, Item, Response: Serialize> Endpoint<Request, Item, Response> {
    /// Reads the arguments of a request and runs the handler. Its result is the last line of the response.
    pub(super) async fn answer<F: Future<Output = Result<Response, AdminError>>>(
        self,
        request: AdminRequest,
        writer: ResponseWriter,
        handler: impl FnOnce(Request, ResponseWriter<Item>) -> F,
    ) -> Result<Value, AdminError> {
        Ok(json!(handler(request.arguments().await?, writer.with_items()).await?))
    }
}

impl AdminError {
    /// An error with a code and a sentence.
    pub(crate) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// An error of the server.
    pub(crate) fn failed(problem: impl fmt::Display) -> Self {
        Self::new(ErrorCode::Failed, format!("{problem:#}"))
    }

    /// The client of a job has disconnected. The job must stop at the next safe point.
    pub(super) fn client_disconnected() -> Self {
        Self::new(ErrorCode::ClientDisconnected, "the client has disconnected")
    }

    /// The server is shutting down. A job must stop at the next safe point.
    pub(super) fn server_stopping() -> Self {
        Self::new(ErrorCode::ServerStopping, "the server is shutting down")
    }
}

/// Sends the lines of a response. Sending waits for a slow client, and fails when the job is cancelled.
#[derive(Clone)]
pub(crate) struct ResponseWriter<Item = Nothing> {
    sender: BodySender,
    shutdown: watch::Receiver<bool>,
    items: PhantomData<fn(Item)>,
}

impl ResponseWriter {
    pub(super) fn new(sender: BodySender, shutdown: watch::Receiver<bool>) -> Self {
        Self { sender, shutdown, items: PhantomData }
    }

    /// Returns a writer for items of another type.
    pub(super) fn with_items<Item>(self) -> ResponseWriter<Item> {
        ResponseWriter { sender: self.sender, shutdown: self.shutdown, items: PhantomData }
    }

    /// Sends the last line, even during shutdown.
    pub(super) async fn finish(self, result: Result<Value, AdminError>) {
        let line = match result {
            Ok(done) => line("done", &done),
            Err(error) => line("error", &error),
        };
        let _: Result<(), _> = self.sender.send(io::Result::Ok(line)).await;
    }
}

impl<Item: Serialize> ResponseWriter<Item> {
    /// Sends the progress of the job.
    pub(crate) async fn send_progress(&self, progress: &JobProgress) -> Result<(), AdminError> {
        self.send(line("progress", progress)).await
    }

    /// Sends an item of a list.
    pub(crate) async fn send_item(&self, item: &Item) -> Result<(), AdminError> {
        self.send(line("item", item)).await
    }

    /// Same as [`ResponseWriter::send_progress`], for threads that may block.
    pub(crate) fn send_progress_blocking(&self, progress: &JobProgress) -> Result<(), AdminError> {
        self.send_blocking(line("progress", progress))
    }

    /// Same as [`ResponseWriter::send_item`], for threads that may block.
    pub(crate) fn send_item_blocking(&self, item: &Item) -> Result<(), AdminError> {
        self.send_blocking(line("item", item))
    }

    /// Returns an error if the job is cancelled, for loops that send nothing.
    pub(crate) fn check_open(&self) -> Result<(), AdminError> {
        if *self.shutdown.borrow() {
            return Err(AdminError::server_stopping());
        }
        if self.sender.is_closed() { Err(AdminError::client_disconnected()) } else { Ok(()) }
    }

    /// Waits until the job is cancelled, for jobs that wait for something else at the same time.
    pub(crate) async fn closed(&self) -> AdminError {
        let mut shutdown = self.shutdown.clone();
        tokio::select! {
            _ = shutdown.wait_for(|shutdown| *shutdown) => AdminError::server_stopping(),
            () = self.sender.closed() => AdminError::client_disconnected(),
        }
    }

    async fn send(&self, line: Bytes) -> Result<(), AdminError> {
        self.check_open()?;
        self.sender.send(Ok(line)).await.map_err(|_| AdminError::client_disconnected())
    }

    fn send_blocking(&self, line: Bytes) -> Result<(), AdminError> {
        self.check_open()?;
        self.sender.blocking_send(Ok(line)).map_err(|_| AdminError::client_disconnected())
    }
}

/// Returns a line with sorted keys.
fn line(key: &str, value: &impl Serialize) -> Bytes {
    Bytes::from(format!("{}\n", json!({ key: value })))
}

#[cfg(test)]
mod tests {
    use super::super::api::RelayCount;
    use super::*;

    /// The lines are the socket protocol.
    #[test]
    fn lines_are_stable() {
        let progress = JobProgress { what: "reading events".to_owned(), done: 1, total: Some(5) };
        assert_eq!(
            line("progress", &progress),
            "{\"progress\":{\"done\":1,\"total\":5,\"what\":\"reading events\"}}\n"
        );
        assert_eq!(line("item", &RelayCount { relays: 1 }), "{\"item\":{\"relays\":1}}\n");
        assert_eq!(line("done", &Nothing {}), "{\"done\":{}}\n");
        let error = AdminError::new(ErrorCode::ServerStopping, "x");
        assert_eq!(line("error", &error), "{\"error\":{\"code\":\"going_down\",\"text\":\"x\"}}\n");
    }
}
