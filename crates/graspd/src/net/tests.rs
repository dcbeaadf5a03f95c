//! Tests of the dialer and the HTTP client with servers on loopback addresses.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use grasp_core::limits;
use grasp_core::net::{AddressPolicy, AddressScope, OutboundError, OutboundHost, OutboundUrl, UrlPurpose};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::rustls::RootCertStore;

use super::dialer::{DialError, Dialer, Route};
use super::http_client;
use super::http_client::HttpGetError;
use super::own_addresses::OwnAddresses;
use super::testing::{FakeResolver, acceptor, test_dialer, test_dialer_with_ca};

fn target(text: &str, reach: AddressPolicy) -> OutboundUrl {
    let purpose = if text.starts_with("ws") { UrlPurpose::Relay } else { UrlPurpose::Git };
    OutboundUrl::parse(text, purpose, reach).expect("a target")
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

async fn route(dialer: &Dialer, text: &str) -> Result<Route, DialError> {
    dialer.route(target(text, dialer.reach())).await
}

#[tokio::test]
async fn only_the_checked_address_is_dialed() {
    let (listener, port) = listener().await;
    // DNS rebinding: the name resolves to another address after the check.
    let resolver = FakeResolver::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let dialer = test_dialer(AddressPolicy::Any, &resolver);
    let route = route(&dialer, &format!("ws://rebinding.tld:{port}")).await.expect("a route");
    for _ in 0..3 {
        let (stream, accepted) = tokio::join!(dialer.connect(&route), listener.accept());
        stream.expect("connected");
        accepted.expect("the connection goes to the first address");
    }
    assert_eq!(resolver.lookups(), 1, "the name is resolved once");

    let resolver = FakeResolver::new(&[&["8.8.8.8"], &["127.0.0.1"]]);
    let dialer = test_dialer(AddressPolicy::PublicOnly, &resolver);
    let route = self::route(&dialer, &format!("ws://rebinding.tld:{port}")).await.expect("a route");
    assert_eq!(route.addresses(), [format!("8.8.8.8:{port}").parse().expect("an address")]);
    assert_eq!(resolver.lookups(), 1);
}

#[tokio::test]
async fn one_forbidden_address_forbids_the_name() {
    let (listener, port) = listener().await;
    for answer in [
        &["127.0.0.1"][..],
        &["8.8.8.8", "127.0.0.1"],
        &["8.8.8.8", "2600::1", "::ffff:10.0.0.1"],
        &["64:ff9b::127.0.0.1", "8.8.8.8"],
        &["8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "4.4.4.4", "5.5.5.5", "6.6.6.6", "7.7.7.7", "::1"],
    ] {
        let dialer = test_dialer(AddressPolicy::PublicOnly, &FakeResolver::new(&[answer]));
        let problem = route(&dialer, &format!("ws://relay.tld:{port}")).await.expect_err("forbidden");
        assert!(matches!(problem, DialError::Forbidden(OutboundError::Address(..))), "{answer:?}: {problem}");
    }
    assert!(listener.accept().now_or_never().is_none(), "no connection is opened");

    let literal =
        OutboundUrl::parse(&format!("ws://127.0.0.1:{port}"), UrlPurpose::Relay, AddressPolicy::Any).expect("a target");
    let problem = test_dialer(AddressPolicy::PublicOnly, &FakeResolver::default())
        .route(literal)
        .await
        .expect_err("the address is checked again");
    let address = "127.0.0.1".parse().expect("an address");
    assert!(
        matches!(problem, DialError::Forbidden(why) if why == OutboundError::Address(address, AddressScope::Loopback))
    );
}

#[tokio::test]
async fn addresses_of_this_machine_are_forbidden() {
    let own = || OwnAddresses::new(OutboundHost::Name("git.tld".to_owned()));
    let dialer = |reach, answers: &[&[&str]]| {
        let resolver = Box::new(FakeResolver::new(answers));
        Dialer::with_resolver(reach, resolver, RootCertStore::empty()).expect("a dialer").with_own_addresses(own())
    };
    // The results of the relay's name, of the own domain, and of all names after that.
    let answers: [&[&str]; 3] = [&["1.1.1.1", "8.8.8.8"], &["8.8.8.8"], &["1.1.1.1"]];
    let guarded = dialer(AddressPolicy::PublicOnly, &answers);
    let problem = route(&guarded, "ws://relay.tld:5432").await.expect_err("forbidden");
    assert_eq!(problem.to_string(), "8.8.8.8 is an address of this machine");
    assert!(matches!(route(&guarded, "http://8.8.8.8/a.git").await, Err(DialError::Forbidden(_))), "a literal address");
    route(&guarded, "ws://relay.tld:5432").await.expect("an address of another machine");
    // Relays that the operator configured, and servers of tests and intranets.
    let target = target("ws://8.8.8.8", AddressPolicy::Any);
    guarded.route_within(target, AddressPolicy::Any).await.expect("a route");
    route(&dialer(AddressPolicy::Any, &answers), "ws://8.8.8.8").await.expect("a route");
}

#[tokio::test]
async fn next_address_is_tried_when_one_fails() {
    let (listener, port) = listener().await;
    // The first three addresses refuse connections; the families alternate.
    let resolver = FakeResolver::new(&[&["127.0.0.3", "::1", "127.0.0.2", "127.0.0.1"]]);
    let dialer = test_dialer(AddressPolicy::Any, &resolver);
    let route = route(&dialer, &format!("ws://relay.tld:{port}")).await.expect("a route");
    let order: Vec<String> = route.addresses().iter().map(|address| address.ip().to_string()).collect();
    assert_eq!(order, ["127.0.0.3", "::1", "127.0.0.2", "127.0.0.1"]);
    let (stream, accepted) = tokio::join!(dialer.connect(&route), listener.accept());
    stream.expect("connected");
    accepted.expect("accepted");

    let resolver = FakeResolver::new(&[&["127.0.0.1", "127.0.0.1", "127.0.0.2", "::1"]]);
    let dialer = test_dialer(AddressPolicy::Any, &resolver);
    let route = self::route(&dialer, "ws://relay.tld").await.expect("a route");
    let order: Vec<String> = route.addresses().iter().map(|address| address.ip().to_string()).collect();
    assert_eq!(order, ["127.0.0.1", "::1", "127.0.0.2"], "the families alternate, and each address is tried once");
}

#[tokio::test]
async fn unresolvable_names_are_errors() {
    let dialer = test_dialer(AddressPolicy::Any, &FakeResolver::default());
    assert!(matches!(route(&dialer, "ws://relay.tld").await, Err(DialError::NoSuchName(_))));
    let dialer = test_dialer(AddressPolicy::Any, &FakeResolver::new(&[&[]]));
    assert!(matches!(route(&dialer, "ws://relay.tld").await, Err(DialError::NoSuchName(_))));
    let real = Dialer::new(AddressPolicy::Any).expect("a dialer");
    let route = route(&real, "ws://localhost:8080").await.expect("the system resolves localhost");
    assert!(route.addresses().iter().all(|address| address.ip().is_loopback()));
}

#[tokio::test]
async fn certificate_is_accepted_only_for_its_name_and_authority() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        let acceptor = acceptor();
        while let Ok((stream, _)) = listener.accept().await {
            let _ = acceptor.accept(stream).await;
        }
    });
    let resolver = FakeResolver::new(&[&["127.0.0.1"]]);
    let ours = test_dialer_with_ca(&resolver);
    let route = route(&ours, &format!("wss://relay.test:{port}")).await.expect("a route");
    ours.connect(&route).await.expect("the name of the certificate");
    let other = self::route(&ours, &format!("wss://other.test:{port}")).await.expect("a route");
    assert!(matches!(ours.connect(&other).await, Err(DialError::Tls(_))), "another name");
    let literal = self::route(&ours, &format!("wss://127.0.0.1:{port}")).await.expect("a route");
    assert!(matches!(ours.connect(&literal).await, Err(DialError::Tls(_))), "an address");
    let world = Dialer::new(AddressPolicy::Any).expect("a dialer");
    assert!(matches!(world.connect(&route).await, Err(DialError::Tls(_))), "an unknown authority");
}

#[tokio::test]
async fn plain_server_fails_the_tls_handshake() {
    let (listener, port) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let ours = test_dialer_with_ca(&FakeResolver::new(&[&["127.0.0.1"]]));
    let route = route(&ours, &format!("wss://relay.test:{port}")).await.expect("a route");
    assert!(matches!(ours.connect(&route).await, Err(DialError::Tls(_))));
}

/// Starts a server that responds to every request with these bytes, followed by endless repetitions of `then`.
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

async fn get(url: &str) -> Result<Bytes, HttpGetError> {
    let dialer = test_dialer(AddressPolicy::Any, &FakeResolver::default());
    let route = route(&dialer, url).await.expect("a route");
    timeout(
        Duration::from_secs(20),
        http_client::get(&dialer, &route, "application/nostr+json", limits::MAX_NIP11_BYTES),
    )
    .await
    .expect("an end")
}

#[tokio::test]
async fn incomplete_documents_are_errors() {
    let url = server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".to_vec(), b"").await;
    assert_eq!(get(&url).await.expect("a document"), "{}");
    let url = server(b"HTTP/1.1 200 OK\r\n\r\n{\"a\":1}".to_vec(), b"").await;
    assert_eq!(get(&url).await.expect("until the end"), "{\"a\":1}");
    let url =
        server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n".to_vec(), b"");
    assert_eq!(get(&url.await).await.expect("in chunks"), "{}");

    let url = server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}".to_vec(), b"").await;
    assert!(matches!(get(&url).await, Err(HttpGetError::Http(_))), "an incomplete document");
    let url = server(b"nonsense\r\n\r\n".to_vec(), b"").await;
    assert!(matches!(get(&url).await, Err(HttpGetError::Http(_))));
    let url = server(Vec::new(), b"").await;
    assert!(matches!(get(&url).await, Err(HttpGetError::Http(_))), "nothing");
}

#[tokio::test]
async fn document_size_is_limited() {
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 10_u64 << 30);
    assert!(matches!(get(&server(response.into_bytes(), b"").await).await, Err(HttpGetError::TooLarge)));
    let endless = server(b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), &[b' '; 4_096]).await;
    assert!(matches!(get(&endless).await, Err(HttpGetError::TooLarge)));
    let chunks = server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), b"4\r\n    \r\n").await;
    assert!(matches!(get(&chunks).await, Err(HttpGetError::TooLarge)));
    let headers = server(b"HTTP/1.1 200 OK\r\n".to_vec(), b"X-Y: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n").await;
    assert!(matches!(get(&headers).await, Err(HttpGetError::Http(_))));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (elsewhere, port) = listener().await;
    for status in ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"] {
        let answer = format!("HTTP/1.1 {status}\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n");
        let url = server(answer.into_bytes(), b"").await;
        assert!(matches!(get(&url).await, Err(HttpGetError::Status(_))), "{status}");
    }
    assert!(elsewhere.accept().now_or_never().is_none());
}
