//! What goes over the admin socket.
//!
//! HTTP/1.1: `POST /<verb>` with a JSON object, or with a streamed body whose arguments stand in the query. The answer is a
//! line of JSON at a time, each an object with one key:
//!
//! ```text
//! {"progress":{"what":"reading events","done":1000,"total":5000}}      any number of times; total may be null
//! {"item":{…}}                                                         a row of a long list
//! {"done":{…}}    or    {"error":{"code":"busy","text":"…"}}           the last line
//! ```

use std::{fmt, io};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::http::body::Feed;

/// Bytes of a request's JSON: arguments of a command.
const MAX_ARGUMENTS: usize = 1 << 20;

/// What was asked for.
pub(crate) struct Request {
    verb: String,
    query: String,
    body: Incoming,
}

impl Request {
    pub(super) fn new(request: hyper::Request<Incoming>) -> Self {
        let verb = request.uri().path().trim_start_matches('/').to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        Self { verb, query, body: request.into_body() }
    }

    /// What is to be done.
    pub(crate) fn verb(&self) -> &str {
        &self.verb
    }

    /// The arguments, from the body. Nothing is an empty object.
    pub(crate) async fn arguments(self) -> Result<Value, Complaint> {
        let wrong = |why: String| Complaint::new("bad_request", format!("cannot read the request: {why}"));
        let body = Limited::new(self.body, MAX_ARGUMENTS).collect().await.map_err(|why| wrong(why.to_string()))?;
        let body = body.to_bytes();
        if body.is_empty() {
            return Ok(json!({}));
        }
        serde_json::from_slice(&body).map_err(|why| wrong(why.to_string()))
    }

    /// An argument from the query, for a request whose body is a stream. It is taken as it is, so it can have no `&`.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The body as a stream.
    pub(crate) fn into_body(self) -> Incoming {
        self.body
    }
}

/// Why something was not done.
#[derive(Debug)]
pub(crate) struct Complaint {
    /// A word for programs: `bad_request`, `not_found`, `busy`, `failed`, `gone`, `going_down`, `unknown_verb`.
    pub(crate) code: &'static str,
    /// A sentence for people, without a full stop.
    pub(crate) text: String,
}

impl Complaint {
    /// A complaint with a word and a sentence.
    pub(crate) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Gone> for Complaint {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Client => Self::new("gone", "whoever asked has hung up"),
            Gone::Server => Self::new("going_down", "the server is going down"),
        }
    }
}

/// Nobody waits for the rest: a job stops at the next safe place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// The client has hung up.
    Client,
    /// The server goes down.
    Server,
}

/// Where a job tells how it goes. Telling waits for a slow reader, and fails when nobody waits for the job any more.
#[derive(Clone)]
pub(crate) struct Teller {
    feed: Feed,
    leaving: watch::Receiver<bool>,
}

impl Teller {
    pub(super) fn new(feed: Feed, leaving: watch::Receiver<bool>) -> Self {
        Self { feed, leaving }
    }

    /// How far something is, and how much it is in all if that is known.
    pub(crate) async fn progress(&self, what: &str, done: u64, total: Option<u64>) -> Result<(), Gone> {
        self.line(&progress(what, done, total)).await
    }

    /// A row of a list.
    pub(crate) async fn item(&self, item: Value) -> Result<(), Gone> {
        self.line(&json!({ "item": item })).await
    }

    /// The same as [`Teller::progress`], for threads that may block.
    pub(crate) fn progress_blocking(&self, what: &str, done: u64, total: Option<u64>) -> Result<(), Gone> {
        self.line_blocking(&progress(what, done, total))
    }

    /// The same as [`Teller::item`], for threads that may block.
    pub(crate) fn item_blocking(&self, item: Value) -> Result<(), Gone> {
        self.line_blocking(&json!({ "item": item }))
    }

    /// Whether somebody waits for the job. For loops that have nothing to tell.
    pub(crate) fn is_wanted(&self) -> Result<(), Gone> {
        if *self.leaving.borrow() {
            return Err(Gone::Server);
        }
        if self.feed.is_closed() { Err(Gone::Client) } else { Ok(()) }
    }

    /// Resolves when nobody waits for the job any more. For jobs that wait for something themselves.
    pub(crate) async fn unwanted(&self) -> Gone {
        let mut leaving = self.leaving.clone();
        tokio::select! {
            _ = leaving.wait_for(|leaving| *leaving) => Gone::Server,
            () = self.feed.closed() => Gone::Client,
        }
    }

    async fn line(&self, line: &Value) -> Result<(), Gone> {
        self.is_wanted()?;
        self.feed.send(Ok(bytes(line))).await.map_err(|_| Gone::Client)
    }

    fn line_blocking(&self, line: &Value) -> Result<(), Gone> {
        self.is_wanted()?;
        self.feed.blocking_send(Ok(bytes(line))).map_err(|_| Gone::Client)
    }

    /// The last line. It is said to whoever still listens, also when the server goes down.
    pub(super) async fn end(self, end: Result<Value, Complaint>) {
        let line = match end {
            Ok(done) => json!({ "done": done }),
            Err(Complaint { code, text }) => json!({ "error": { "code": code, "text": text } }),
        };
        let _: Result<(), _> = self.feed.send(io::Result::Ok(bytes(&line))).await;
    }
}

fn progress(what: &str, done: u64, total: Option<u64>) -> Value {
    json!({ "progress": { "what": what, "done": done, "total": total } })
}

fn bytes(line: &Value) -> Bytes {
    Bytes::from(format!("{line}\n"))
}
