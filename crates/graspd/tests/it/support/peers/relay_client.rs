//! One client connection of a [`ScriptedRelay`](super::scripted_relay::ScriptedRelay).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use grasp_core::nostr::{Event, Filter, Verifier};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::scripted_relay::{Broadcast, ClientAction, RejectionForm, Shared};

/// Serves one connection: a websocket, or a request for the NIP-11 document.
pub(super) async fn serve_connection(shared: Arc<Shared>, mut stream: TcpStream) {
    // The head of the request is only peeked at, because the websocket library reads it itself.
    let mut head = vec![0; 4096];
    let wants_socket = loop {
        let Ok(read @ 1..) = stream.peek(&mut head).await else { return };
        let text = String::from_utf8_lossy(&head[..read]).to_ascii_lowercase();
        if text.contains("\r\n\r\n") {
            break text.contains("upgrade: websocket");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    if wants_socket {
        if let Ok(socket) = tokio_tungstenite::accept_async(stream).await {
            let connection = {
                let mut state = shared.state();
                state.connections += 1;
                let connection = state.connections;
                state.record(connection, ClientAction::Connected);
                connection
            };
            let code = ClientConnection::new(shared.clone(), socket, connection).serve().await;
            shared.state().record(connection, ClientAction::Disconnected(code));
        }
        return;
    }
    let _ = stream.read(&mut head).await;
    let (status, body) = match &shared.script.nip11 {
        Some(document) => ("200 OK", document.to_string()),
        None => ("404 Not Found", String::new()),
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/nostr+json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// A websocket connection of a client.
struct ClientConnection {
    shared: Arc<Shared>,
    socket: WebSocketStream<TcpStream>,
    connection: usize,
    subscriptions: BTreeMap<String, Vec<Filter>>,
    challenge: String,
    is_authenticated: bool,
    events_sent: usize,
}

impl ClientConnection {
    fn new(shared: Arc<Shared>, socket: WebSocketStream<TcpStream>, connection: usize) -> Self {
        let challenge = format!("challenge {connection}");
        Self {
            shared,
            socket,
            connection,
            subscriptions: BTreeMap::new(),
            challenge,
            is_authenticated: false,
            events_sent: 0,
        }
    }

    /// Serves the connection until it ends; returns the close code of the client.
    async fn serve(mut self) -> Option<u16> {
        if self.shared.script.closes_at_once {
            let _ = self.socket.close(None).await;
            return None;
        }
        if let Some(greeting) = self.shared.script.greeting {
            self.send(json!(["NOTICE", greeting])).await;
        }
        if self.shared.script.requires_auth || self.shared.script.sends_challenge {
            self.send(json!(["AUTH", self.challenge])).await;
        }
        let (listener, mut broadcasts) = mpsc::unbounded_channel();
        self.shared.state().listeners.push(listener);
        while self.events_sent < self.shared.script.max_events_sent {
            tokio::select! {
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => self.on_message(&text).await,
                    Some(Ok(Message::Close(frame))) => {
                        let _ = self.socket.flush().await;
                        return frame.map(|frame| frame.code.into());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return None,
                },
                Some(broadcast) = broadcasts.recv() => self.on_broadcast(broadcast).await,
            }
        }
        None
    }

    async fn send(&mut self, value: Value) {
        let _ = self.socket.send(Message::text(value.to_string())).await;
    }

    async fn on_broadcast(&mut self, broadcast: Broadcast) {
        let (event, text) = match broadcast {
            Broadcast::Stored(index) => self.shared.state().events[index].clone(),
            Broadcast::Message(message) => {
                let _ = self.socket.send(message).await;
                return;
            }
            Broadcast::Unrequested(text) => {
                if let Some(id) = self.subscriptions.keys().next().cloned() {
                    self.send_event(&id, &text).await;
                }
                return;
            }
        };
        let ids: Vec<String> = self
            .subscriptions
            .iter()
            .filter(|(_, filters)| filters.iter().any(|filter| filter.matches(&event)))
            .map(|(id, _)| id.clone())
            .collect();
        for id in ids {
            self.send_event(&id, &text).await;
        }
    }

    async fn send_event(&mut self, id: &str, event: &str) {
        self.events_sent += 1;
        let _ = self.socket.send(Message::text(format!("[\"EVENT\",{},{event}]", json!(id)))).await;
    }

    async fn on_message(&mut self, text: &str) {
        let value: Value = serde_json::from_str(text).expect("message is JSON");
        self.shared.state().record(self.connection, ClientAction::Sent(value.clone()));
        let id = value[1].as_str().unwrap_or_default().to_owned();
        match value[0].as_str() {
            Some("REQ") => {
                let parts = value.as_array().expect("message is an array");
                let filters = parts[2..].iter().map(|part| Filter::parse(&part.to_string()).expect("valid filter"));
                let filters = filters.collect();
                self.on_request(id, filters).await;
            }
            Some("CLOSE") => drop(self.subscriptions.remove(&id)),
            Some("AUTH") => self.on_auth(&value[1]).await,
            _ => self.send(json!(["NOTICE", "ERROR: bad msg: unknown cmd"])).await,
        }
    }

    async fn on_auth(&mut self, event: &Value) {
        let event = Event::parse(&event.to_string()).expect("valid event");
        let is_valid =
            Verifier::default().verify(event.clone()).is_ok() && event.tag("challenge") == Some(&self.challenge);
        self.is_authenticated |= is_valid;
        let id = event.id.to_string();
        self.shared.state().auth_events.push((event, self.challenge.clone()));
        self.send(json!(["OK", id, is_valid, if is_valid { "" } else { "error: no" }])).await;
    }

    async fn reject(&mut self, id: &str, form: RejectionForm, text: &str) {
        self.shared.state().record(self.connection, ClientAction::WasRejected);
        self.send(match form {
            RejectionForm::Notice => json!(["NOTICE", text]),
            RejectionForm::Closed => json!(["CLOSED", id, text]),
            RejectionForm::Restricted => json!(["CLOSED", id, "restricted: you are not a member of this relay"]),
        })
        .await;
    }

    async fn on_request(&mut self, id: String, filters: Vec<Filter>) {
        let script = self.shared.script.clone();
        let nth = {
            let mut state = self.shared.state();
            state.requests += 1;
            state.requests
        };
        let has_small_limit =
            |filter: &Filter| filter.limit.is_some_and(|limit| Some(limit) <= script.largest_rejected_limit);
        if script.requires_auth && !self.is_authenticated {
            return self.reject(&id, RejectionForm::Closed, "auth-required: who are you?").await;
        }
        if let Some((_, form)) = script.rejects_from.filter(|(first, _)| nth >= *first) {
            return self.reject(&id, form, "rate-limited: slow down please").await;
        }
        if script.refused_text.as_ref().is_some_and(|refused| format!("{filters:?}").contains(refused)) {
            return self.reject(&id, RejectionForm::Closed, "blocked: not this repository").await;
        }
        if script.largest_rejected_limit.is_some() && filters.iter().any(has_small_limit) {
            return self.reject(&id, RejectionForm::Closed, "invalid: limit must be positive").await;
        }
        if self.subscriptions.len() >= script.max_subscriptions && !self.subscriptions.contains_key(&id) {
            return self.reject(&id, RejectionForm::Notice, "ERROR: too many concurrent REQs").await;
        }
        let page = stored_page(&self.shared.state().events, &filters, script.page_size);
        self.subscriptions.insert(id.clone(), filters);
        let open = self.subscriptions.len();
        {
            let mut state = self.shared.state();
            state.max_open = state.max_open.max(open);
        }
        for event in page {
            self.send_event(&id, &event).await;
        }
        if script.sends_eose {
            self.send(json!(["EOSE", id])).await;
        }
    }
}

/// Returns the stored events that match, newest first, at most `page_size` per filter.
fn stored_page(events: &[(Event, String)], filters: &[Filter], page_size: usize) -> Vec<String> {
    let mut found = BTreeMap::new();
    for filter in filters {
        let mut matching: Vec<_> = events.iter().filter(|(event, _)| filter.matches(event)).collect();
        matching.sort_by_key(|(event, _)| (Reverse(event.created_at), event.id));
        let count = filter.limit.unwrap_or(page_size).min(page_size);
        for (event, text) in matching.into_iter().take(count) {
            found.insert((Reverse(event.created_at), event.id, event.sig), text.clone());
        }
    }
    found.into_values().collect()
}
