//! One call to the running server.

use std::io;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use super::Failure;
use crate::http::body::Reply;

/// Bytes of one line. A line is a row of a list or a status.
const MAX_LINE: usize = 64 << 20;

/// Bytes that are read from a file at a time.
const PART: usize = 64 << 10;

/// What is sent with a call.
pub(crate) enum Body {
    /// Arguments.
    Arguments(Value),
    /// A stream, with the query that holds its arguments (`a=1&b=2`).
    Stream(String, Box<dyn Read + Send>),
}

impl Body {
    /// No arguments.
    pub(crate) fn none() -> Self {
        Self::Arguments(Value::Object(serde_json::Map::new()))
    }
}

/// A line of an answer, but for the last.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Line {
    /// How far something is, and how much it is in all if that is known.
    Progress { what: String, done: u64, total: Option<u64> },
    /// A row of a list.
    Item(Value),
}

/// Asks the server at a socket to do something, hands every line of its answer to `on_line` as it comes, and gives the last.
/// When `on_line` fails the call is broken off.
pub(crate) fn call(
    socket: &Path,
    verb: &str,
    body: Body,
    on_line: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<Value, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|problem| Failure::Failed(format!("cannot begin: {problem}")))?;
    runtime.block_on(converse(socket, verb, body, on_line))
}

async fn converse(
    socket: &Path,
    verb: &str,
    body: Body,
    on_line: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<Value, Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|why| unreachable(socket, why))?;
    let broken = |problem: hyper::Error| Failure::Failed(format!("the server has broken off: {problem}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection);
    let (query, body) = match body {
        Body::Arguments(arguments) => (String::new(), Reply::from(arguments.to_string())),
        Body::Stream(query, file) => (format!("?{query}"), streamed(file)?),
    };
    let request = Request::builder().method(Method::POST).uri(format!("/{verb}{query}")).header("Host", "graspd");
    let request = request.body(body).map_err(|problem| Failure::Usage(format!("cannot be sent: {problem}")))?;
    let mut answer: Response<_> = sender.send_request(request).await.map_err(broken)?;
    if answer.status() != StatusCode::OK {
        return Err(Failure::Failed(format!("the server answers with {}", answer.status())));
    }
    let mut kept: Vec<u8> = Vec::new();
    while let Some(frame) = answer.body_mut().frame().await {
        let Ok(part) = frame.map_err(broken)?.into_data() else { continue };
        kept.extend_from_slice(&part);
        let mut from = 0;
        while let Some(length) = kept[from..].iter().position(|byte| *byte == b'\n') {
            let line = &kept[from..from + length];
            from += length + 1;
            if let Some(last) = hear(line, on_line)? {
                return Ok(last);
            }
        }
        kept.drain(..from);
        if kept.len() > MAX_LINE {
            return Err(Failure::Failed("the server says more than can be understood".to_owned()));
        }
    }
    Err(Failure::Failed("the server has broken off in the middle of its answer; its log may say why".to_owned()))
}

/// Understands one line; gives what the last one says.
fn hear(line: &[u8], on_line: &mut dyn FnMut(Line) -> Result<(), Failure>) -> Result<Option<Value>, Failure> {
    let strange = || Failure::Failed("the server says something strange; is it of another version?".to_owned());
    let mut line: Value = serde_json::from_slice(line).map_err(|_| strange())?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let Some(progress) = line.get("progress") {
        let (done, total) = (progress["done"].as_u64().unwrap_or(0), progress["total"].as_u64());
        on_line(Line::Progress { what: text(&progress["what"]), done, total })?;
    } else if let Some(item) = line.get_mut("item") {
        on_line(Line::Item(item.take()))?;
    } else if let Some(done) = line.get_mut("done") {
        return Ok(Some(done.take()));
    } else if let Some(error) = line.get("error") {
        return Err(Failure::Refused { code: text(&error["code"]), text: text(&error["text"]) });
    }
    // Whatever else a later version may say is not for us.
    Ok(None)
}

fn unreachable(socket: &Path, why: io::Error) -> Failure {
    match why.kind() {
        io::ErrorKind::PermissionDenied => Failure::Failed(format!(
            "may not open {} ({why}): run this command as the user that the server runs as, for example with sudo -u",
            socket.display()
        )),
        _ => Failure::NotRunning { socket: socket.to_owned(), why },
    }
}

/// Reads a file on a thread of its own while it is sent.
fn streamed(mut file: Box<dyn Read + Send>) -> Result<Reply, Failure> {
    let (feed, body) = Reply::stream();
    let read = move || {
        let mut buffer = vec![0; PART];
        loop {
            let part = match file.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => Ok(Bytes::copy_from_slice(&buffer[..length])),
                Err(problem) if problem.kind() == io::ErrorKind::Interrupted => continue,
                Err(problem) => Err(problem),
            };
            let is_last = part.is_err();
            if feed.blocking_send(part).is_err() || is_last {
                return;
            }
        }
    };
    match std::thread::Builder::new().name("reading".to_owned()).spawn(read) {
        Ok(_) => Ok(body),
        Err(problem) => Err(Failure::Failed(format!("cannot begin to read: {problem}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_understood() {
        let mut heard = Vec::new();
        let mut on_line = |line| {
            heard.push(line);
            Ok(())
        };
        for line in [
            r#"{"progress":{"what":"reading","done":1,"total":null}}"#,
            r#"{"item":{"a":1}}"#,
            r#"{"something_new":1}"#,
        ] {
            assert_eq!(hear(line.as_bytes(), &mut on_line).expect("understood"), None, "{line}");
        }
        let last = hear(br#"{"done":{"x":2}}"#, &mut on_line).expect("understood");
        assert_eq!(last, Some(json!({"x": 2})));
        let refused = hear(br#"{"error":{"code":"busy","text":"later"}}"#, &mut on_line);
        assert!(matches!(refused, Err(Failure::Refused { code, text }) if code == "busy" && text == "later"));
        assert!(hear(b"<html>", &mut on_line).is_err());
        assert_eq!(
            heard,
            [Line::Progress { what: "reading".to_owned(), done: 1, total: None }, Line::Item(json!({"a": 1}))]
        );
    }
}
