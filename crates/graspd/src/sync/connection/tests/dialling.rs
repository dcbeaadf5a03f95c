//! Tests of dialling.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use grasp_core::limits;
use grasp_core::net::AddressPolicy;
use grasp_core::sync::io::DisconnectReason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::ConnectionTimeouts;
use super::setup::{Nip11Response, TEST_TIMEOUT, TestRelay, TestSetup, url, wants_websocket};
use crate::net::dialer::Dialer;
use crate::net::testing::{FakeResolver, acceptor, test_dialer, test_dialer_with_ca};

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let url = url(listener.local_addr().expect("an address"));
    (listener, url)
}

/// Returns how a dial ends at a server that answers every handshake with these bytes.
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
    TestSetup::new().dial(&url).closed().await
}

#[tokio::test]
async fn rejected_handshakes_are_classified() {
    for (answer, reason) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 301 Moved\r\nLocation: ws://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n", DisconnectReason::NotARelay),
        ("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n", DisconnectReason::Refused),
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", DisconnectReason::Refused),
        ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", DisconnectReason::Refused),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            DisconnectReason::NotARelay,
        ),
        ("SSH-2.0-OpenSSH_9\r\n\r\n", DisconnectReason::NotARelay),
        ("", DisconnectReason::Unreachable),
    ] {
        assert_eq!(answered(answer).await, reason, "{answer}");
    }
}

#[tokio::test]
async fn unreachable_relay_is_reported() {
    let (listener, url) = listener().await;
    drop(listener);
    assert_eq!(TestSetup::new().dial(&url).closed().await, DisconnectReason::Refused);
    assert_eq!(TestSetup::new().dial("ws://no.such.name").closed().await, DisconnectReason::Unreachable);
}

#[tokio::test]
async fn handshake_times_out() {
    let (_silent, url) = listener().await;
    let timeouts = ConnectionTimeouts::new(Duration::from_millis(200));
    let setup = TestSetup::with(timeouts, test_dialer(AddressPolicy::Any, &FakeResolver::default()));
    let began = Instant::now();
    assert_eq!(setup.dial(&url).closed().await, DisconnectReason::Unreachable);
    assert!(began.elapsed() >= timeouts.dial);
}

#[tokio::test]
async fn disconnect_cancels_a_dial() {
    let (_silent, url) = listener().await;
    let driver = TestSetup::new().dial(&url);
    driver.handle().disconnect();
    assert_eq!(driver.closed().await, DisconnectReason::ClosedByUs);
    let mut driver = TestSetup::new().dial(&url);
    driver.handles.clear();
    assert_eq!(driver.closed().await, DisconnectReason::ClosedByUs, "dropping the handle disconnects");
}

#[tokio::test]
async fn forbidden_addresses_are_not_dialled() {
    let (listener, url) = listener().await;
    let port = listener.local_addr().expect("an address").port();
    let resolver = FakeResolver::new(&[&["8.8.8.8", "127.0.0.1"]]);
    let setup =
        TestSetup::with(ConnectionTimeouts::new(TEST_TIMEOUT), test_dialer(AddressPolicy::PublicOnly, &resolver));
    assert_eq!(setup.dial(&url).closed().await, DisconnectReason::Forbidden, "an address");
    assert_eq!(setup.dial(&format!("ws://localhost:{port}")).closed().await, DisconnectReason::Forbidden, "a name");
    assert_eq!(resolver.lookups(), 0);
    assert_eq!(
        setup.dial(&format!("ws://relay.tld:{port}")).closed().await,
        DisconnectReason::Forbidden,
        "where it leads"
    );
    assert_eq!(resolver.lookups(), 1);
    assert_eq!(setup.dial("ws://relay.tld:25").closed().await, DisconnectReason::Forbidden, "a port");
    assert!(listener.accept().now_or_never().is_none());
}

#[tokio::test]
async fn configured_relay_may_have_a_private_address() {
    let (listener, url) = listener().await;
    let resolver = FakeResolver::new(&[&["127.0.0.1"]]);
    let setup =
        TestSetup::with(ConnectionTimeouts::new(TEST_TIMEOUT), test_dialer(AddressPolicy::PublicOnly, &resolver));
    let port = listener.local_addr().expect("an address").port();
    for url in [url, format!("ws://relay.internal:{port}")] {
        let driver = setup.dial_configured(&url);
        listener.accept().await.expect("a connection");
        drop(driver);
    }
    assert_eq!(setup.dial_configured("ws://127.0.0.1:25").closed().await, DisconnectReason::Forbidden, "a port");
}

#[tokio::test]
async fn certificates_are_verified() {
    let (listener, url) = listener().await;
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let acceptor = acceptor();
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                // The other connection requests the NIP-11 document and is dropped.
                if let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await {
                    while let Some(Ok(_)) = futures_util::StreamExt::next(&mut socket).await {}
                }
            });
        }
    });
    let resolver = FakeResolver::new(&[&["127.0.0.1"]]);
    let relay = format!("wss://relay.test:{port}");
    let setup = TestSetup::with(ConnectionTimeouts::new(TEST_TIMEOUT), test_dialer_with_ca(&resolver));
    let mut driver = setup.dial(&relay);
    assert!(!driver.connected().await);
    driver.handle().disconnect();
    assert_eq!(driver.closed().await, DisconnectReason::ClosedByUs);
    assert_eq!(setup.dial(&format!("wss://other.test:{port}")).closed().await, DisconnectReason::NotARelay);
    let setup = TestSetup::with(ConnectionTimeouts::new(TEST_TIMEOUT), test_dialer(AddressPolicy::Any, &resolver));
    assert_eq!(setup.dial(&relay).closed().await, DisconnectReason::NotARelay, "unknown certificate authority");
    let setup =
        TestSetup::with(ConnectionTimeouts::new(TEST_TIMEOUT), Dialer::new(AddressPolicy::Any).expect("dialer").into());
    assert_eq!(setup.dial(&url.replace("ws://", "wss://")).closed().await, DisconnectReason::NotARelay);
}

#[tokio::test]
async fn unusable_nip11_documents_are_ignored() {
    let huge = format!("{{\"name\":\"{}\"}}", "x".repeat(limits::MAX_NIP11_BYTES));
    let lie = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}".to_vec();
    let redirect = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".to_vec();
    for document in [
        Nip11Response::not_found(),
        Nip11Response::ok(&huge),
        Nip11Response::ok("<html>"),
        Nip11Response::ok("\u{0}"),
        Nip11Response::Bytes(lie),
        Nip11Response::Bytes(redirect),
        Nip11Response::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe".to_vec()),
    ] {
        let mut relay = TestRelay::open(document).await;
        let mut driver = TestSetup::new().dial(&relay.url);
        let _server = relay.session().await;
        assert!(!driver.connected().await);
    }
}

#[tokio::test]
async fn slow_nip11_document_does_not_delay_the_connection() {
    // The document never arrives: the connection waits for it only for the grace period.
    let grace = Duration::from_millis(300);
    let timeouts = ConnectionTimeouts {
        dial: TEST_TIMEOUT,
        nip11: TEST_TIMEOUT,
        nip11_grace: grace,
        ..ConnectionTimeouts::new(TEST_TIMEOUT)
    };
    let setup = TestSetup::with(timeouts, test_dialer(AddressPolicy::Any, &FakeResolver::default()));
    let mut relay = TestRelay::open(Nip11Response::Never).await;
    let mut driver = setup.dial(&relay.url);
    let _server = relay.session().await;
    let stands = Instant::now();
    assert!(!driver.connected().await);
    assert!(stands.elapsed() < TEST_TIMEOUT / 2);
}

#[tokio::test]
async fn early_nip11_document_is_kept() {
    let (listener, url) = listener().await;
    let (go, mut gone) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if wants_websocket(&stream).await {
                let mut gone = gone.clone();
                tokio::spawn(async move {
                    gone.wait_for(|gone| *gone).await.expect("sender lives");
                    let mut socket = tokio_tungstenite::accept_async(stream).await.expect("handshake succeeds");
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
    let mut driver = TestSetup::new().dial(&url);
    assert!(driver.connected().await, "the document arrived before the handshake");
}
