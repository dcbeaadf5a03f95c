//! How a connection comes about, or does not.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use grasp_core::limits;
use grasp_core::net::AddressPolicy;
use grasp_core::sync::io::DisconnectReason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::Patience;
use super::stage::{Document, PATIENCE, Relay, World, url, wants_websocket};
use crate::net::dialer::Dialer;
use crate::net::testing::{FakeResolver, acceptor, test_dialer, test_dialer_with_ca};

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = url(listener.local_addr().expect("an address"));
    (listener, url)
}

/// How a dial ends at a server that answers every handshake with these bytes.
async fn answered(answer: &'static str) -> DisconnectReason {
    let (listener, url) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4_096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    World::new().dial(&url).end().await
}

#[tokio::test]
async fn refusals() {
    for (answer, loss) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 301 Moved\r\nLocation: ws://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n", DisconnectReason::Unreachable),
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", DisconnectReason::Unreachable),
        ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", DisconnectReason::Unreachable),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            DisconnectReason::NotARelay,
        ),
        ("SSH-2.0-OpenSSH_9\r\n\r\n", DisconnectReason::NotARelay),
        ("", DisconnectReason::Unreachable),
    ] {
        assert_eq!(answered(answer).await, loss, "{answer}");
    }
}

#[tokio::test]
async fn nobody_there() {
    let (listener, url) = listener().await;
    drop(listener);
    assert_eq!(World::new().dial(&url).end().await, DisconnectReason::Unreachable);
    assert_eq!(World::new().dial("ws://no.such.name").end().await, DisconnectReason::Unreachable);
}

#[tokio::test]
async fn a_handshake_has_its_time() {
    let (_silent, url) = listener().await;
    let patience = Patience::new(Duration::from_millis(200));
    let world = World::with(patience, test_dialer(AddressPolicy::Any, &FakeResolver::default()));
    let began = Instant::now();
    assert_eq!(world.dial(&url).end().await, DisconnectReason::Unreachable);
    assert!(began.elapsed() >= patience.dial);
}

#[tokio::test]
async fn hanging_up_ends_an_attempt() {
    let (_silent, url) = listener().await;
    let room = World::new().dial(&url);
    room.handle().hang_up();
    assert_eq!(room.end().await, DisconnectReason::ClosedByUs);
    let mut room = World::new().dial(&url);
    room.handles.clear();
    assert_eq!(room.end().await, DisconnectReason::ClosedByUs, "who drops the handle hangs up");
}

#[tokio::test]
async fn o_01_forbidden_without_a_packet() {
    let (listener, url) = listener().await;
    let port = listener.local_addr().expect("an address").port();
    let book = FakeResolver::new(&[&["8.8.8.8", "127.0.0.1"]]);
    let world = World::with(Patience::new(PATIENCE), test_dialer(AddressPolicy::PublicOnly, &book));
    assert_eq!(world.dial(&url).end().await, DisconnectReason::Forbidden, "an address");
    assert_eq!(world.dial(&format!("ws://localhost:{port}")).end().await, DisconnectReason::Forbidden, "a name");
    assert_eq!(book.lookups(), 0);
    assert_eq!(
        world.dial(&format!("ws://relay.tld:{port}")).end().await,
        DisconnectReason::Forbidden,
        "where it leads"
    );
    assert_eq!(book.lookups(), 1);
    assert_eq!(world.dial("ws://relay.tld:25").end().await, DisconnectReason::Forbidden, "a port");
    assert!(listener.accept().now_or_never().is_none());
}

#[tokio::test]
async fn certificates_count() {
    let (listener, url) = listener().await;
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let acceptor = acceptor();
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                // The other connection asks for the document and is let go.
                if let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await {
                    while let Some(Ok(_)) = futures_util::StreamExt::next(&mut socket).await {}
                }
            });
        }
    });
    let book = FakeResolver::new(&[&["127.0.0.1"]]);
    let relay = format!("wss://relay.test:{port}");
    let world = World::with(Patience::new(PATIENCE), test_dialer_with_ca(&book));
    let mut room = world.dial(&relay);
    assert!(!room.up().await);
    room.handle().hang_up();
    assert_eq!(room.end().await, DisconnectReason::ClosedByUs);
    assert_eq!(world.dial(&format!("wss://other.test:{port}")).end().await, DisconnectReason::NotARelay);
    let world = World::with(Patience::new(PATIENCE), test_dialer(AddressPolicy::Any, &book));
    assert_eq!(world.dial(&relay).end().await, DisconnectReason::NotARelay, "signed by nobody we know");
    let world = World::with(Patience::new(PATIENCE), Dialer::new(AddressPolicy::Any).expect("a dialer").into());
    assert_eq!(world.dial(&url.replace("ws://", "wss://")).end().await, DisconnectReason::NotARelay);
}

#[tokio::test]
async fn documents_that_are_none() {
    let huge = format!("{{\"name\":\"{}\"}}", "x".repeat(limits::MAX_NIP11_BYTES));
    let lie = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}".to_vec();
    let redirect = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".to_vec();
    for document in [
        Document::none(),
        Document::text(&huge),
        Document::text("<html>"),
        Document::text("\u{0}"),
        Document::Bytes(lie),
        Document::Bytes(redirect),
        Document::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe".to_vec()),
    ] {
        let mut relay = Relay::open(document).await;
        let mut room = World::new().dial(&relay.url);
        let _server = relay.session().await;
        assert!(!room.up().await);
    }
}

#[tokio::test]
async fn a_slow_document_costs_no_connection() {
    // The websocket has less time in all than the document is waited for.
    let grace = Duration::from_millis(300);
    let patience = Patience { dial: PATIENCE, nip11: PATIENCE, nip11_grace: grace, ..Patience::new(PATIENCE) };
    let world = World::with(patience, test_dialer(AddressPolicy::Any, &FakeResolver::default()));
    let mut relay = Relay::open(Document::Silence).await;
    let mut room = world.dial(&relay.url);
    let _server = relay.session().await;
    let stands = Instant::now();
    assert!(!room.up().await);
    assert!(stands.elapsed() < PATIENCE / 2);
}

#[tokio::test]
async fn a_quick_document_waits_for_a_slow_handshake() {
    let (listener, url) = listener().await;
    let (go, mut gone) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if wants_websocket(&stream).await {
                let mut gone = gone.clone();
                tokio::spawn(async move {
                    gone.wait_for(|gone| *gone).await.expect("told");
                    let mut socket = tokio_tungstenite::accept_async(stream).await.expect("a handshake");
                    while let Some(Ok(_)) = futures_util::StreamExt::next(&mut socket).await {}
                });
            } else {
                let mut head = [0; 4_096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await;
                drop(stream);
                let _ = go.send(true);
            }
        }
        let _ = gone.borrow_and_update();
    });
    let mut room = World::new().dial(&url);
    assert!(room.up().await, "the document came first and is not lost");
}
