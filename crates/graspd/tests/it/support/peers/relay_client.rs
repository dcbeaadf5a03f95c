//! Somebody who is connected to the relay that remembers, and how that one answers.

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

use super::scripted_relay::{Deed, News, RejectionForm, Shared};

/// Reads the head of a request without taking it, and answers it.
pub(super) async fn meet(shared: Arc<Shared>, mut stream: TcpStream) {
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
                let mut book = shared.book();
                book.connections += 1;
                let connection = book.connections;
                book.record(connection, Deed::Came);
                connection
            };
            let code = Guest::new(shared.clone(), socket, connection).serve().await;
            shared.book().record(connection, Deed::Left(code));
        }
        return;
    }
    let _ = stream.read(&mut head).await;
    let (status, body) = match &shared.manners.document {
        Some(document) => ("200 OK", document.to_string()),
        None => ("404 Not Found", String::new()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/nostr+json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// One connection.
struct Guest {
    shared: Arc<Shared>,
    socket: WebSocketStream<TcpStream>,
    connection: usize,
    subscriptions: BTreeMap<String, Vec<Filter>>,
    challenge: String,
    proved: bool,
    told: usize,
}

impl Guest {
    fn new(shared: Arc<Shared>, socket: WebSocketStream<TcpStream>, connection: usize) -> Self {
        let challenge = format!("challenge {connection}");
        Self { shared, socket, connection, subscriptions: BTreeMap::new(), challenge, proved: false, told: 0 }
    }

    /// Until it ends. With which code.
    async fn serve(mut self) -> Option<u16> {
        if self.shared.manners.hangs_up {
            let _ = self.socket.close(None).await;
            return None;
        }
        if self.shared.manners.auth || self.shared.manners.challenge {
            self.say(json!(["AUTH", self.challenge])).await;
        }
        let (ear, mut news) = mpsc::unbounded_channel();
        self.shared.book().ears.push(ear);
        while self.told < self.shared.manners.breaks_off {
            tokio::select! {
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => self.hear(&text).await,
                    Some(Ok(Message::Close(frame))) => {
                        let _ = self.socket.flush().await;
                        return frame.map(|frame| frame.code.into());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return None,
                },
                Some(news) = news.recv() => self.pass_on(news).await,
            }
        }
        None
    }

    async fn say(&mut self, value: Value) {
        let _ = self.socket.send(Message::text(value.to_string())).await;
    }

    async fn pass_on(&mut self, news: News) {
        let (event, text) = match news {
            News::Stored(at) => self.shared.book().events[at].clone(),
            News::For(text) => {
                if let Some(id) = self.subscriptions.keys().next().cloned() {
                    self.tell(&id, &text).await;
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
            self.tell(&id, &text).await;
        }
    }

    async fn tell(&mut self, id: &str, event: &str) {
        self.told += 1;
        let _ = self.socket.send(Message::text(format!("[\"EVENT\",{},{event}]", json!(id)))).await;
    }

    async fn hear(&mut self, text: &str) {
        let value: Value = serde_json::from_str(text).expect("JSON");
        self.shared.book().record(self.connection, Deed::Said(value.clone()));
        let id = value[1].as_str().unwrap_or_default().to_owned();
        match value[0].as_str() {
            Some("REQ") => {
                let parts = value.as_array().expect("it has a name");
                let filters = parts[2..].iter().map(|part| Filter::parse(&part.to_string()).expect("a filter"));
                let filters = filters.collect();
                self.request(id, filters).await;
            }
            Some("CLOSE") => drop(self.subscriptions.remove(&id)),
            Some("AUTH") => self.check(&value[1]).await,
            _ => self.say(json!(["NOTICE", "ERROR: bad msg: unknown cmd"])).await,
        }
    }

    async fn check(&mut self, event: &Value) {
        let event = Event::parse(&event.to_string()).expect("an event");
        let right =
            Verifier::default().verify(event.clone()).is_ok() && event.tag("challenge") == Some(&self.challenge);
        self.proved |= right;
        let id = event.id.to_string();
        self.shared.book().proofs.push((event, self.challenge.clone()));
        self.say(json!(["OK", id, right, if right { "" } else { "error: no" }])).await;
    }

    async fn scold(&mut self, id: &str, how: RejectionForm, text: &str) {
        self.shared.book().record(self.connection, Deed::Scolded);
        self.say(match how {
            RejectionForm::Notice => json!(["NOTICE", text]),
            RejectionForm::Closed => json!(["CLOSED", id, text]),
            RejectionForm::Restricted => json!(["CLOSED", id, "restricted: you are not a member of this relay"]),
        })
        .await;
    }

    async fn request(&mut self, id: String, filters: Vec<Filter>) {
        let manners = self.shared.manners.clone();
        let nth = {
            let mut book = self.shared.book();
            book.requests += 1;
            book.requests
        };
        let is_small = |filter: &Filter| filter.limit.is_some_and(|limit| Some(limit) <= manners.refused_limit);
        if manners.auth && !self.proved {
            return self.scold(&id, RejectionForm::Closed, "auth-required: who are you?").await;
        }
        if let Some((_, how)) = manners.tired.filter(|(first, _)| nth >= *first) {
            return self.scold(&id, how, "rate-limited: slow down please").await;
        }
        if manners.refused_limit.is_some() && filters.iter().any(is_small) {
            return self.scold(&id, RejectionForm::Closed, "invalid: limit must be positive").await;
        }
        if self.subscriptions.len() >= manners.slots && !self.subscriptions.contains_key(&id) {
            return self.scold(&id, RejectionForm::Notice, "ERROR: too many concurrent REQs").await;
        }
        let page = page(&self.shared.book().events, &filters, manners.page);
        self.subscriptions.insert(id.clone(), filters);
        let open = self.subscriptions.len();
        {
            let mut book = self.shared.book();
            book.most_open = book.most_open.max(open);
        }
        for event in page {
            self.tell(&id, &event).await;
        }
        if manners.eose {
            self.say(json!(["EOSE", id])).await;
        }
    }
}

/// What is stored, the newest first, at most so many for each filter.
fn page(events: &[(Event, String)], filters: &[Filter], most: usize) -> Vec<String> {
    let mut found = BTreeMap::new();
    for filter in filters {
        let mut matching: Vec<_> = events.iter().filter(|(event, _)| filter.matches(event)).collect();
        matching.sort_by_key(|(event, _)| (Reverse(event.created_at), event.id));
        let most = filter.limit.unwrap_or(most).min(most);
        for (event, text) in matching.into_iter().take(most) {
            found.insert((Reverse(event.created_at), event.id, event.sig), text.clone());
        }
    }
    found.into_values().collect()
}
