//! Simulated relays without events. They state limits and count messages that exceed them.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, Result};
use futures_util::{SinkExt, StreamExt};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_tungstenite::accept_async_with_config;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Maximum number of subscriptions per connection, as on most relays.
const SUBSCRIPTIONS: usize = 20;

/// Maximum number of filters per request.
const FILTERS: usize = 10;

/// Maximum message size: the default of the most common relay software.
const MESSAGE_BYTES: usize = 128 * 1024;

/// Maximum `limit` of a filter.
const LIMIT: u64 = 500;

/// Maximum length of a subscription id.
const ID_BYTES: usize = 64;

/// Counters of all stub relays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct StubFigures {
    /// Websocket connections.
    pub(super) connections: u64,
    /// `REQ` messages.
    pub(super) requests: u64,
    /// Filters of all requests.
    pub(super) filters: u64,
    /// Bytes of all messages.
    pub(super) bytes: u64,
    /// `NEG-OPEN` messages.
    pub(super) reconciliations: u64,
    /// Maximum number of subscriptions on one connection. The limit is 20.
    pub(super) most_subscriptions: u64,
    /// Maximum number of filters in one request. The limit is 10.
    pub(super) most_filters: u64,
    /// Largest message. The limit is 131,072 bytes.
    pub(super) most_bytes: u64,
    /// Messages that exceed any limit.
    pub(super) excesses: u64,
}

/// Running stub relays. Dropping this ends them.
#[derive(Debug)]
pub(super) struct StubRelays {
    /// Their addresses.
    pub(super) addresses: Vec<String>,
    counters: Arc<Mutex<StubFigures>>,
    /// Dropping this aborts the tasks.
    _tasks: JoinSet<()>,
}

/// Returns the address of stub number `number`: each on its own host, like real relays.
pub(super) fn stub_address(number: usize) -> String {
    format!("127.78.{}.{}:7700", number / 200, number % 200 + 1)
}

impl StubRelays {
    /// Starts `count` stub relays.
    pub(super) async fn start(count: usize) -> Result<Self> {
        let counters = Arc::new(Mutex::new(StubFigures::default()));
        let mut tasks = JoinSet::new();
        let addresses: Vec<String> = (0..count).map(stub_address).collect();
        for stub_address in &addresses {
            let listener =
                TcpListener::bind(stub_address).await.with_context(|| format!("cannot listen on {stub_address}"))?;
            let counters = Arc::clone(&counters);
            tasks.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let counters = Arc::clone(&counters);
                    // A client that disconnects is not an error.
                    tokio::spawn(async move { serve(stream, &counters).await });
                }
            });
        }
        Ok(Self { addresses, counters, _tasks: tasks })
    }

    /// Returns the current counters.
    pub(super) fn figures(&self) -> StubFigures {
        *lock(&self.counters)
    }
}

fn lock(counters: &Mutex<StubFigures>) -> MutexGuard<'_, StubFigures> {
    counters.lock().expect("no task panics while holding the lock")
}

async fn serve(mut stream: TcpStream, counters: &Mutex<StubFigures>) -> Result<()> {
    let mut head = [0; 4096];
    let length = stream.peek(&mut head).await?;
    if !String::from_utf8_lossy(&head[..length]).to_ascii_lowercase().contains("upgrade: websocket") {
        return Ok(send_nip11(&mut stream).await?);
    }
    lock(counters).connections += 1;
    let config = WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0);
    let mut socket = accept_async_with_config(stream, Some(config)).await?;
    let mut open = BTreeSet::new();
    while let Some(message) = socket.next().await {
        let Message::Text(text) = message? else { continue };
        let answer = respond(&text, &mut open, &mut lock(counters));
        if let Some(answer) = answer {
            socket.send(Message::text(answer)).await?;
        }
    }
    Ok(())
}

async fn send_nip11(stream: &mut TcpStream) -> io::Result<()> {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request).await?;
    let document = format!(
        r#"{{"name":"stub","supported_nips":[1,11],"limitation":{{"max_subscriptions":{SUBSCRIPTIONS},"max_filters":{FILTERS},"max_limit":{LIMIT},"max_message_length":{MESSAGE_BYTES},"max_subid_length":{ID_BYTES}}}}}"#
    );
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/nostr+json\r\nConnection: close\r\n";
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{document}", document.len()).as_bytes()).await?;
    stream.shutdown().await
}

/// Returns the response to a message.
fn respond(text: &str, open: &mut BTreeSet<String>, counters: &mut StubFigures) -> Option<String> {
    let bytes = text.len() as u64;
    counters.bytes += bytes;
    counters.most_bytes = counters.most_bytes.max(bytes);
    let mut words = text.split('"');
    let verb = words.nth(1)?;
    let id = words.nth(1)?.to_owned();
    let mut excess = text.len() > MESSAGE_BYTES || id.len() > ID_BYTES;
    let answer = match verb {
        "REQ" => {
            let (filters, limit) = measure(text);
            open.insert(id.clone());
            counters.requests += 1;
            counters.filters += filters as u64;
            counters.most_filters = counters.most_filters.max(filters as u64);
            counters.most_subscriptions = counters.most_subscriptions.max(open.len() as u64);
            excess |= filters > FILTERS || open.len() > SUBSCRIPTIONS || limit > LIMIT;
            Some(format!(r#"["EOSE","{id}"]"#))
        }
        "CLOSE" => {
            open.remove(&id);
            None
        }
        "NEG-OPEN" => {
            counters.reconciliations += 1;
            Some(format!(r#"["NEG-ERR","{id}","error: negentropy is not supported here"]"#))
        }
        _ => None,
    };
    counters.excesses += u64::from(excess);
    answer
}

/// Returns the number of filters in a request and their largest `limit`. Braces occur only around filters, because
/// values are ids, names and numbers.
fn measure(text: &str) -> (usize, u64) {
    let filters = text.bytes().filter(|byte| *byte == b'{').count();
    let limit = |rest: &str| {
        rest.split(|character: char| !character.is_ascii_digit()).next().and_then(|digits| digits.parse::<u64>().ok())
    };
    let limits = text.split(r#""limit":"#).skip(1).filter_map(limit);
    (filters, limits.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_and_limits_are_counted() {
        assert_eq!(measure(r##"["REQ","a",{"#e":["x"],"limit":0},{"limit":500,"kinds":[1]}]"##), (2, 500));
        assert_eq!(measure(r#"["REQ","a",{}]"#), (1, 0));
    }

    #[test]
    fn messages_above_the_limits_are_counted() {
        let mut counters = StubFigures::default();
        let mut open = BTreeSet::new();
        for number in 0..=SUBSCRIPTIONS {
            let request = format!(r#"["REQ","{number}",{{"limit":0}}]"#);
            assert_eq!(respond(&request, &mut open, &mut counters), Some(format!(r#"["EOSE","{number}"]"#)));
            assert_eq!(counters.excesses, u64::from(number == SUBSCRIPTIONS));
        }
        assert_eq!(respond(r#"["CLOSE","0"]"#, &mut open, &mut counters), None);
        assert_eq!(open.len(), SUBSCRIPTIONS);
        let many = format!(r#"["REQ","1",{}]"#, ["{}"; FILTERS + 1].join(","));
        respond(&many, &mut open, &mut counters);
        assert_eq!(counters.excesses, 2);
    }
}
