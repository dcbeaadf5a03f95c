//! A relay that stores and serves, has the manners that a test gives it, and remembers what it was asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use grasp_core::nostr::{Event, Filter, Signed, Verifier};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::place;
use crate::support::eventually;

/// How it treats those who ask.
#[derive(Clone)]
pub struct Manners {
    /// Its NIP-11 document.
    pub document: Option<Value>,
    /// Events of one answer at most, whatever `limit` says.
    pub page: usize,
    /// Open subscriptions at most.
    pub slots: usize,
    /// Refuses a `limit` up to this.
    pub refused_limit: Option<usize>,
    /// Sends a challenge to everybody.
    pub challenge: bool,
    /// Serves only those who have answered it.
    pub auth: bool,
    /// Answers this request, counted from one, with a complaint; and all that follow.
    pub tired: Option<(usize, Complaint)>,
    /// Ends every connection at once.
    pub hangs_up: bool,
    /// Says when it has sent all that it has stored.
    pub eose: bool,
}

/// How it complains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Complaint {
    Notice,
    Closed,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            document: Some(json!({"name": "fake"})),
            page: 500,
            slots: usize::MAX,
            refused_limit: None,
            challenge: false,
            auth: false,
            tired: None,
            hangs_up: false,
            eose: true,
        }
    }
}

/// Something that somebody did.
#[derive(Clone, Debug)]
pub struct Record {
    pub at: Instant,
    pub connection: usize,
    pub deed: Deed,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Deed {
    /// Opened a connection.
    Came,
    /// Said something.
    Said(Value),
    /// Was told something that is no answer.
    Scolded,
    /// Ended the connection, with this code if there was one.
    Left(Option<u16>),
}

/// Something to pass on.
enum News {
    /// An event that was stored, to whoever it is for.
    Stored(usize),
    /// The text of an event, whoever it is for.
    For(Arc<String>),
}

/// What it knows.
#[derive(Default)]
struct Book {
    events: Vec<(Event, String)>,
    records: Vec<Record>,
    /// Whoever wants to hear of new events.
    ears: Vec<mpsc::UnboundedSender<News>>,
    connections: usize,
    requests: usize,
    /// The most subscriptions that were open at once on a connection.
    most_open: usize,
    /// Events that answered a challenge, with their challenge.
    proofs: Vec<(Event, String)>,
}

impl Book {
    fn record(&mut self, connection: usize, deed: Deed) {
        self.records.push(Record { at: Instant::now(), connection, deed });
    }
}

struct Shared {
    manners: Manners,
    book: Mutex<Book>,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("nobody panics with it")
    }
}

/// The relay. Dropping it ends it.
pub struct Fake {
    pub place: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl Fake {
    pub fn start(manners: Manners) -> Self {
        let place = place();
        let shared = Arc::new(Shared { manners, book: Mutex::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads can be started");
        let listener = runtime.block_on(TcpListener::bind(place)).expect("a free address");
        runtime.spawn({
            let shared = shared.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(meet(shared.clone(), stream));
                }
            }
        });
        Self { place, shared, runtime: Some(runtime) }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        super::relay(self.place)
    }

    /// Stores an event, whatever is wrong with it, and passes it on.
    pub fn publish(&self, event: &Signed) {
        let mut book = self.shared.book();
        book.events.push((event.event().clone(), event.json().to_owned()));
        let at = book.events.len() - 1;
        book.ears.retain(|ear| ear.send(News::Stored(at)).is_ok());
    }

    /// Passes an event on to everybody who is subscribed to anything, whether it matches or not.
    pub fn thrust(&self, event: &Signed) {
        let mut book = self.shared.book();
        let text = Arc::new(event.json().to_owned());
        book.ears.retain(|ear| ear.send(News::For(text.clone())).is_ok());
    }

    /// Everything that was done so far.
    pub fn records(&self) -> Vec<Record> {
        self.shared.book().records.clone()
    }

    /// Everything that was said so far on the connections from this one on.
    pub fn said(&self, from: usize) -> Vec<Value> {
        let said = |record: Record| match record.deed {
            Deed::Said(value) if record.connection >= from => Some(value),
            _ => None,
        };
        self.records().into_iter().filter_map(said).collect()
    }

    /// All filters that were asked for on the connections from this one on, by requests and reconciliations.
    pub fn filters(&self, from: usize) -> Vec<Value> {
        let filters = |said: Value| match said[0].as_str() {
            Some("REQ") => said.as_array().map(|parts| parts[2..].to_vec()).unwrap_or_default(),
            Some("NEG-OPEN") => vec![said[2].clone()],
            _ => Vec::new(),
        };
        self.said(from).into_iter().flat_map(filters).collect()
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.shared.book().connections
    }

    /// The most subscriptions that were open at once on a connection.
    pub fn most_open(&self) -> usize {
        self.shared.book().most_open
    }

    /// Events that answered a challenge, with their challenge.
    pub fn proofs(&self) -> Vec<(Event, String)> {
        self.shared.book().proofs.clone()
    }

    /// Waits until something has been done.
    #[track_caller]
    pub fn eventually(&self, what: &str, done: impl Fn(&Deed) -> bool) {
        eventually(what, || self.records().iter().any(|record| done(&record.deed)).then_some(()));
    }

    /// Waits until filters have been asked for among which all of these are true.
    #[track_caller]
    pub fn eventually_asked(&self, what: &str, asked: impl Fn(&Value) -> bool) {
        eventually(what, || self.filters(0).iter().any(&asked).then_some(()));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for Record { at, connection, deed } in self.records() {
                let text = format!("{deed:?}");
                let text: String = text.chars().take(400).collect();
                eprintln!("-- {} {:?} {connection} {text}", self.place, at.elapsed());
            }
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Reads the head of a request without taking it, and answers it.
async fn meet(shared: Arc<Shared>, mut stream: TcpStream) {
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
}

impl Guest {
    fn new(shared: Arc<Shared>, socket: WebSocketStream<TcpStream>, connection: usize) -> Self {
        let challenge = format!("challenge {connection}");
        Self { shared, socket, connection, subscriptions: BTreeMap::new(), challenge, proved: false }
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
        loop {
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
        let right = Verifier::default().check(event.clone()).is_ok() && event.tag("challenge") == Some(&self.challenge);
        self.proved |= right;
        let id = event.id.to_string();
        self.shared.book().proofs.push((event, self.challenge.clone()));
        self.say(json!(["OK", id, right, if right { "" } else { "error: no" }])).await;
    }

    async fn scold(&mut self, id: &str, how: Complaint, text: &str) {
        self.shared.book().record(self.connection, Deed::Scolded);
        self.say(match how {
            Complaint::Notice => json!(["NOTICE", text]),
            Complaint::Closed => json!(["CLOSED", id, text]),
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
            return self.scold(&id, Complaint::Closed, "auth-required: who are you?").await;
        }
        if let Some((_, how)) = manners.tired.filter(|(first, _)| nth >= *first) {
            return self.scold(&id, how, "rate-limited: slow down please").await;
        }
        if manners.refused_limit.is_some() && filters.iter().any(is_small) {
            return self.scold(&id, Complaint::Closed, "invalid: limit must be positive").await;
        }
        if self.subscriptions.len() >= manners.slots && !self.subscriptions.contains_key(&id) {
            return self.scold(&id, Complaint::Notice, "ERROR: too many concurrent REQs").await;
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
        matching.sort_by_key(|(event, _)| (std::cmp::Reverse(event.created_at), event.id));
        let most = filter.limit.unwrap_or(most).min(most);
        for (event, text) in matching.into_iter().take(most) {
            found.insert((std::cmp::Reverse(event.created_at), event.id, event.sig), text.clone());
        }
    }
    found.into_values().collect()
}
