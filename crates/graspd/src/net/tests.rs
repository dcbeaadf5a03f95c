//! The way out, against servers on loopback.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use grasp_core::limits;
use grasp_core::net::{Forbidden, Purpose, Reach, Scope, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::dialer::{DialProblem, Dialler, Route};
use super::http_client;
use super::http_client::GetProblem;
use super::testing::{Book, acceptor, dialler, trusting};

fn target(text: &str, reach: Reach) -> Target {
    let purpose = if text.starts_with("ws") { Purpose::Relay } else { Purpose::Git };
    Target::parse(text, purpose, reach).expect("a target")
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

async fn route(dialler: &Dialler, text: &str) -> Result<Route, DialProblem> {
    dialler.route(target(text, dialler.reach())).await
}

#[tokio::test]
async fn o_01_the_checked_address_is_the_dialled_one() {
    let (listener, port) = listener().await;
    // Whoever owns the name answers something else as soon as it has been looked at.
    let book = Book::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let dialler = dialler(Reach::Anything, &book);
    let route = route(&dialler, &format!("ws://rebinding.tld:{port}")).await.expect("a route");
    for _ in 0..3 {
        let (stream, accepted) = tokio::join!(dialler.connect(&route), listener.accept());
        stream.expect("connected");
        accepted.expect("to the first address");
    }
    assert_eq!(book.asked(), 1, "nobody looks twice");

    let book = Book::new(&[&["8.8.8.8"], &["127.0.0.1"]]);
    let dialler = self::dialler(Reach::Global, &book);
    let route = self::route(&dialler, &format!("ws://rebinding.tld:{port}")).await.expect("a route");
    assert_eq!(route.addresses(), [format!("8.8.8.8:{port}").parse().expect("an address")]);
    assert_eq!(book.asked(), 1);
}

#[tokio::test]
async fn o_01_one_forbidden_address_forbids_the_name() {
    let (listener, port) = listener().await;
    for answer in [
        &["127.0.0.1"][..],
        &["8.8.8.8", "127.0.0.1"],
        &["8.8.8.8", "2600::1", "::ffff:10.0.0.1"],
        &["64:ff9b::127.0.0.1", "8.8.8.8"],
        &["8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "4.4.4.4", "5.5.5.5", "6.6.6.6", "7.7.7.7", "::1"],
    ] {
        let dialler = dialler(Reach::Global, &Book::new(&[answer]));
        let problem = route(&dialler, &format!("ws://relay.tld:{port}")).await.expect_err("forbidden");
        assert!(matches!(problem, DialProblem::Forbidden(Forbidden::Address(..))), "{answer:?}: {problem}");
    }
    assert!(listener.accept().now_or_never().is_none(), "not a packet");

    let literal = Target::parse(&format!("ws://127.0.0.1:{port}"), Purpose::Relay, Reach::Anything).expect("a target");
    let problem = dialler(Reach::Global, &Book::default()).route(literal).await.expect_err("looked at again");
    let address = "127.0.0.1".parse().expect("an address");
    assert!(matches!(problem, DialProblem::Forbidden(why) if why == Forbidden::Address(address, Scope::Loopback)));
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_fails() {
    let (listener, port) = listener().await;
    // Nobody listens at the first two; the third is tried although they are of another family.
    let book = Book::new(&[&["127.0.0.3", "::1", "127.0.0.2", "127.0.0.1"]]);
    let dialler = dialler(Reach::Anything, &book);
    let route = route(&dialler, &format!("ws://relay.tld:{port}")).await.expect("a route");
    let order: Vec<String> = route.addresses().iter().map(|address| address.ip().to_string()).collect();
    assert_eq!(order, ["127.0.0.3", "::1", "127.0.0.2", "127.0.0.1"]);
    let (stream, accepted) = tokio::join!(dialler.connect(&route), listener.accept());
    stream.expect("connected");
    accepted.expect("accepted");

    let book = Book::new(&[&["127.0.0.1", "127.0.0.1", "127.0.0.2", "::1"]]);
    let dialler = self::dialler(Reach::Anything, &book);
    let route = self::route(&dialler, "ws://relay.tld").await.expect("a route");
    let order: Vec<String> = route.addresses().iter().map(|address| address.ip().to_string()).collect();
    assert_eq!(order, ["127.0.0.1", "::1", "127.0.0.2"], "families in turns, each address once");
}

#[tokio::test]
async fn names_that_lead_nowhere() {
    let dialler = dialler(Reach::Anything, &Book::default());
    assert!(matches!(route(&dialler, "ws://relay.tld").await, Err(DialProblem::NoSuchName(_))));
    let dialler = self::dialler(Reach::Anything, &Book::new(&[&[]]));
    assert!(matches!(route(&dialler, "ws://relay.tld").await, Err(DialProblem::NoSuchName(_))));
    let real = Dialler::new(Reach::Anything).expect("a dialler");
    let route = route(&real, "ws://localhost:8080").await.expect("the system knows this one");
    assert!(route.addresses().iter().all(|address| address.ip().is_loopback()));
}

#[tokio::test]
async fn certificates_are_believed_for_their_name_and_authority_only() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let acceptor = acceptor();
        while let Ok((stream, _)) = listener.accept().await {
            let _ = acceptor.accept(stream).await;
        }
    });
    let book = Book::new(&[&["127.0.0.1"]]);
    let ours = trusting(&book);
    let route = route(&ours, &format!("wss://relay.test:{port}")).await.expect("a route");
    ours.connect(&route).await.expect("its own name");
    let other = self::route(&ours, &format!("wss://other.test:{port}")).await.expect("a route");
    assert!(matches!(ours.connect(&other).await, Err(DialProblem::Tls(_))), "another name");
    let literal = self::route(&ours, &format!("wss://127.0.0.1:{port}")).await.expect("a route");
    assert!(matches!(ours.connect(&literal).await, Err(DialProblem::Tls(_))), "an address");
    let world = Dialler::new(Reach::Anything).expect("a dialler");
    assert!(matches!(world.connect(&route).await, Err(DialProblem::Tls(_))), "an authority that nobody knows");
}

#[tokio::test]
async fn a_plain_server_is_no_tls_server() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let ours = trusting(&Book::new(&[&["127.0.0.1"]]));
    let route = route(&ours, &format!("wss://relay.test:{port}")).await.expect("a route");
    assert!(matches!(ours.connect(&route).await, Err(DialProblem::Tls(_))));
}

/// A server that answers every request with these bytes, and again and again with `then`.
async fn server(answer: Vec<u8>, then: &'static [u8]) -> String {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut head = [0; 4_096];
                let read = stream.read(&mut head).await.expect("a request");
                let head = String::from_utf8_lossy(&head[..read]).to_ascii_lowercase();
                assert!(head.starts_with("get /x?y http/1.1\r\n") && head.contains("accept: application/nostr+json"));
                assert!(head.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{head}");
                let _ = stream.write_all(&answer).await;
                while !then.is_empty() && stream.write_all(then).await.is_ok() {}
            });
        }
    });
    format!("ws://127.0.0.1:{port}/x?y")
}

async fn get(url: &str) -> Result<Bytes, GetProblem> {
    let dialler = dialler(Reach::Anything, &Book::default());
    let route = route(&dialler, url).await.expect("a route");
    timeout(
        Duration::from_secs(20),
        http_client::get(&dialler, &route, "application/nostr+json", limits::MAX_TERMS_BYTES),
    )
    .await
    .expect("an end")
}

#[tokio::test]
async fn documents_come_whole_or_not_at_all() {
    let url = server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".to_vec(), b"").await;
    assert_eq!(get(&url).await.expect("a document"), "{}");
    let url = server(b"HTTP/1.1 200 OK\r\n\r\n{\"a\":1}".to_vec(), b"").await;
    assert_eq!(get(&url).await.expect("until the end"), "{\"a\":1}");
    let url =
        server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n".to_vec(), b"");
    assert_eq!(get(&url.await).await.expect("in chunks"), "{}");

    let url = server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}".to_vec(), b"").await;
    assert!(matches!(get(&url).await, Err(GetProblem::Http(_))), "half of it");
    let url = server(b"nonsense\r\n\r\n".to_vec(), b"").await;
    assert!(matches!(get(&url).await, Err(GetProblem::Http(_))));
    let url = server(Vec::new(), b"").await;
    assert!(matches!(get(&url).await, Err(GetProblem::Http(_))), "nothing");
}

#[tokio::test]
async fn documents_have_an_end() {
    let said = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 10_u64 << 30);
    assert!(matches!(get(&server(said.into_bytes(), b"").await).await, Err(GetProblem::TooLarge)));
    let endless = server(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), &[b' '; 4_096]).await;
    assert!(matches!(get(&endless).await, Err(GetProblem::TooLarge)));
    let chunks = server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), b"4\r\n    \r\n").await;
    assert!(matches!(get(&chunks).await, Err(GetProblem::TooLarge)));
    let headers = server(b"HTTP/1.1 200 OK\r\n".to_vec(), b"X-Y: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n").await;
    assert!(matches!(get(&headers).await, Err(GetProblem::Http(_))));
}

#[tokio::test]
async fn nobody_sends_us_on() {
    let (elsewhere, port) = listener().await;
    for status in ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"] {
        let answer = format!("HTTP/1.1 {status}\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n");
        let url = server(answer.into_bytes(), b"").await;
        assert!(matches!(get(&url).await, Err(GetProblem::Status(_))), "{status}");
    }
    assert!(elsewhere.accept().now_or_never().is_none());
}
