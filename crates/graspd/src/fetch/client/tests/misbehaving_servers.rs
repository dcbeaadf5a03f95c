//! Tests against misbehaving servers. A failed fetch leaves no files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use grasp_core::fetch::io::{FetchOutcome, RequestForm};
use grasp_core::limits;
use grasp_git::pktline;
use grasp_git::pktline::SideBand;
use grasp_git::process::{Git, ProcessLimits};
use tokio::net::TcpListener;

use super::server::{GitHttpBackend, ScriptedServer};
use super::setup::{LIMITS, RemoteRepo, TestSetup};
use crate::git::pack_receiver::PackReceiver;
use crate::monitor::disk_budget::DiskBudgetTracker;
use crate::net::testing::{FakeResolver, acceptor, test_dialer};

const RESULT_TYPE: &str = "application/x-git-upload-pack-result";
const UNKNOWN_OID: &str = "0123456789012345678901234567890123456789";

/// Returns the response of a v2 server with this pack.
fn packfile(pack: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    pktline::push_line(&mut out, "packfile");
    pktline::push_band(&mut out, SideBand::Progress, b"Counting objects: 1, done.\n");
    pktline::push_band(&mut out, SideBand::Data, pack);
    pktline::push_flush(&mut out);
    out
}

/// Returns the outcome of a fetch from a server, and checks that no files are left.
async fn outcome(server: &ScriptedServer, form: RequestForm, oid: &str) -> FetchOutcome {
    let setup = TestSetup::new();
    outcome_with(&setup, server, form, oid).await
}

async fn outcome_with(setup: &TestSetup, server: &ScriptedServer, form: RequestForm, oid: &str) -> FetchOutcome {
    let fetched = setup.fetch(&server.serve().await, form, &[oid]).await;
    assert!(fetched.pack.is_none() && fetched.result.oids.is_empty());
    setup.wait_until_clean().await;
    fetched.result.outcome
}

#[tokio::test]
async fn http_statuses_are_classified() {
    for (status, headers, by_oids, by_refs) in [
        ("404 Not Found", "", FetchOutcome::Absent, FetchOutcome::Absent),
        ("401 Unauthorized", "WWW-Authenticate: Basic\r\n", FetchOutcome::Absent, FetchOutcome::Absent),
        ("403 Forbidden", "", FetchOutcome::Absent, FetchOutcome::Absent),
        ("410 Gone", "", FetchOutcome::Absent, FetchOutcome::Absent),
        ("400 Bad Request", "", FetchOutcome::NotByOid, FetchOutcome::Absent),
        ("415 Unsupported", "", FetchOutcome::NotByOid, FetchOutcome::Absent),
        ("408 Request Timeout", "", FetchOutcome::Failed, FetchOutcome::Failed),
        ("429 Too Many Requests", "Retry-After: 17\r\n", FetchOutcome::Busy(Some(17)), FetchOutcome::Busy(Some(17))),
        ("429 Too Many Requests", "", FetchOutcome::Busy(None), FetchOutcome::Busy(None)),
        ("503 Unavailable", "Retry-After: soon\r\n", FetchOutcome::Busy(None), FetchOutcome::Busy(None)),
        (
            "503 Unavailable",
            "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
            FetchOutcome::Busy(Some(0)),
            FetchOutcome::Busy(Some(0)),
        ),
        ("500 Internal Server Error", "", FetchOutcome::Failed, FetchOutcome::Failed),
        ("502 Bad Gateway", "Retry-After: 17\r\n", FetchOutcome::Failed, FetchOutcome::Failed),
        ("200 OK", "Content-Encoding: gzip\r\n", FetchOutcome::InvalidData, FetchOutcome::InvalidData),
        ("200 OK", "", FetchOutcome::NotByOid, FetchOutcome::Failed),
        ("204 No Content", "", FetchOutcome::Failed, FetchOutcome::Failed),
    ] {
        let server = ScriptedServer::status(status, headers);
        assert_eq!(outcome(&server, RequestForm::ByOid, UNKNOWN_OID).await, by_oids, "{status} {headers}");
        assert_eq!(outcome(&server, RequestForm::ByRef, UNKNOWN_OID).await, by_refs, "{status} {headers}");
        assert_eq!(server.requests.all().len(), 2);
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = elsewhere.local_addr().expect("an address").port();
    for status in ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"] {
        let server = ScriptedServer::status(status, &format!("Location: http://127.0.0.1:{port}/x.git\r\n"));
        for form in [RequestForm::ByOid, RequestForm::ByRef] {
            assert_eq!(outcome(&server, form, UNKNOWN_OID).await, FetchOutcome::Absent, "{status}");
        }
    }
    assert!(elsewhere.accept().now_or_never().is_none());
}

#[tokio::test]
async fn non_git_responses_are_classified() {
    let page = ScriptedServer::body("text/html", b"<!DOCTYPE html><p>hello");
    assert_eq!(outcome(&page, RequestForm::ByOid, UNKNOWN_OID).await, FetchOutcome::Absent);
    assert_eq!(outcome(&page, RequestForm::ByRef, UNKNOWN_OID).await, FetchOutcome::Absent);
    let garbage = ScriptedServer::body(RESULT_TYPE, b"garbage garbage");
    assert_eq!(outcome(&garbage, RequestForm::ByOid, UNKNOWN_OID).await, FetchOutcome::NotByOid);
    let err = |text: &str| {
        let mut out = Vec::new();
        pktline::push_line(&mut out, text);
        ScriptedServer::body(RESULT_TYPE, &out)
    };
    assert_eq!(
        outcome(&err(&format!("ERR upload-pack: not our ref {UNKNOWN_OID}")), RequestForm::ByOid, UNKNOWN_OID).await,
        FetchOutcome::NotByOid
    );
    assert_eq!(outcome(&err("ERR something else"), RequestForm::ByOid, UNKNOWN_OID).await, FetchOutcome::NotByOid);
    assert_eq!(outcome(&err("ERR this took too long"), RequestForm::ByOid, UNKNOWN_OID).await, FetchOutcome::Failed);
    assert_eq!(outcome(&err("ERR no"), RequestForm::ByRef, UNKNOWN_OID).await, FetchOutcome::Absent);
    assert_eq!(outcome(&err("NAK"), RequestForm::ByOid, UNKNOWN_OID).await, FetchOutcome::NotByOid);
}

#[tokio::test]
async fn invalid_packs_are_rejected() {
    let remote = RemoteRepo::new();
    let tip = remote.commit("a", &"a line\n".repeat(100));
    let pack = remote.pack(&["HEAD"]);
    let cut = &pack[..pack.len() - 30];
    let mut flipped = pack.clone();
    flipped[20] ^= 0xff;
    let mut many = pack.clone();
    many[8..12].copy_from_slice(&(LIMITS.max_objects + 1).to_be_bytes());
    let bad =
        remote.feed(&["hash-object", "-t", "tree", "-w", "--literally", "--stdin"], b"100644 ..\0aaaaaaaaaaaaaaaaaaaa");
    let bad = remote.feed(&["pack-objects", "--stdout", "-q"], &bad);
    let large = {
        let blob = vec![0; (17 << 20) as usize];
        let blob = remote.feed(&["hash-object", "-w", "--stdin"], &blob);
        remote.feed(&["pack-objects", "--stdout", "-q"], &blob)
    };
    assert!((large.len() as u64) < LIMITS.max_bytes, "compressed, it is small");
    let mut without = remote.feed(&["pack-objects", "--stdout", "-q"], format!("{tip}\n").as_bytes());
    for (case, pack) in [
        ("cut", cut),
        ("flipped", &flipped),
        ("many", &many),
        ("bad", &bad),
        ("large", &large),
        ("incomplete", &without),
        ("no pack", &b"nonsense nonsense nonsense"[..]),
        ("too large", &[&b"PACK\0\0\0\x02\0\0\0\x01"[..], &vec![7; LIMITS.max_bytes as usize]].concat()),
    ] {
        let server = ScriptedServer::body(RESULT_TYPE, &packfile(pack));
        assert_eq!(outcome(&server, RequestForm::ByOid, &tip).await, FetchOutcome::InvalidData, "{case}");
    }
    // A valid pack with other objects.
    let other = RemoteRepo::new();
    other.commit("b", "b");
    let server = ScriptedServer::body(RESULT_TYPE, &packfile(&other.pack(&["HEAD"])));
    assert_eq!(outcome(&server, RequestForm::ByOid, &tip).await, FetchOutcome::InvalidData);
    without.truncate(0);
    let nothing = ScriptedServer::body(RESULT_TYPE, &packfile(&without));
    assert_eq!(outcome(&nothing, RequestForm::ByOid, &tip).await, FetchOutcome::InvalidData);
}

#[tokio::test]
async fn endless_responses_are_bounded() {
    let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut begin = Vec::new();
    pktline::push_line(&mut begin, "packfile");
    let band = |band: SideBand, bytes: &[u8]| {
        let mut out = Vec::new();
        pktline::push_band(&mut out, band, bytes);
        out
    };
    let pack = band(SideBand::Data, b"PACK\0\0\0\x02\0\0\0\x01");
    let endless = |first: &[&[u8]], then: &[u8]| ScriptedServer {
        answer: [&head[..], &chunk(&first.concat())].concat(),
        then: chunk(then),
        ..ScriptedServer::default()
    };
    for server in [
        endless(&[&begin, &pack], &band(SideBand::Data, &[7; 60_000])),
        endless(&[&begin], &band(SideBand::Progress, &[b'.'; 60_000])),
        endless(&[b"0014acknowledgments\n"], b"0008NAK\n"),
    ] {
        assert_eq!(outcome(&server, RequestForm::ByOid, UNKNOWN_OID).await, FetchOutcome::InvalidData);
    }
    // The server announces 10 GiB; the body is not read.
    let claim = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 10_u64 << 30);
    let server = ScriptedServer { answer: claim.into_bytes(), then: vec![b'0'; 4_096], ..ScriptedServer::default() };
    assert_eq!(outcome(&server, RequestForm::ByOid, UNKNOWN_OID).await, FetchOutcome::InvalidData);
    assert_eq!(outcome(&server, RequestForm::ByRef, UNKNOWN_OID).await, FetchOutcome::InvalidData);
    let (mut first, mut refs) = (Vec::new(), Vec::new());
    pktline::push_line(&mut first, &format!("{UNKNOWN_OID} refs/heads/main\0x"));
    (0..1_000).for_each(|_| pktline::push_line(&mut refs, &format!("{UNKNOWN_OID} refs/heads/main")));
    let server = ScriptedServer {
        answer: [&head[..], &chunk(&first)].concat(),
        then: chunk(&refs),
        ..ScriptedServer::default()
    };
    assert_eq!(
        outcome(&server, RequestForm::ByRef, "1123456789012345678901234567890123456789").await,
        FetchOutcome::InvalidData
    );
    let headers = ScriptedServer {
        answer: b"HTTP/1.1 200 OK\r\n".to_vec(),
        then: b"X-Y: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".to_vec(),
        ..ScriptedServer::default()
    };
    assert_eq!(outcome(&headers, RequestForm::ByOid, UNKNOWN_OID).await, FetchOutcome::Failed);
}

/// Returns a setup with one changed timeout.
fn setup_with_timeouts(change: impl FnOnce(&mut crate::fetch::client::connection::FetchTimeouts)) -> TestSetup {
    let mut setup = TestSetup::new();
    change(&mut setup.client.timeouts);
    setup
}

#[tokio::test]
async fn silent_and_slow_servers_time_out() {
    const SHORT: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let remote = RemoteRepo::new();
    let tip = remote.commit("a", "a");
    let answer = packfile(&remote.pack(&["HEAD"]));
    let claim = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1 << 20);

    let hangs = ScriptedServer::default();
    let setup = setup_with_timeouts(|timeouts| timeouts.first_byte = SHORT);
    assert_eq!(outcome_with(&setup, &hangs, RequestForm::ByOid, &tip).await, FetchOutcome::Failed, "no response");
    let head = ScriptedServer { answer: claim.clone().into_bytes(), ..ScriptedServer::default() };
    assert_eq!(outcome_with(&setup, &head, RequestForm::ByOid, &tip).await, FetchOutcome::Failed, "no body");
    let half = ScriptedServer { answer: [claim.as_bytes(), &answer[..60]].concat(), ..ScriptedServer::default() };
    let setup = setup_with_timeouts(|timeouts| timeouts.silence = SHORT);
    assert_eq!(outcome_with(&setup, &half, RequestForm::ByOid, &tip).await, FetchOutcome::Failed, "half of the body");

    // Keepalive packets are not a pack, and single bytes are too slow.
    let alive = ScriptedServer {
        answer: [claim.as_bytes(), &answer[..13]].concat(),
        then: b"0005\x01".to_vec(),
        slow: Some(Duration::from_millis(20)),
        ..ScriptedServer::default()
    };
    let setup = setup_with_timeouts(|timeouts| timeouts.pack_start = SHORT);
    assert_eq!(outcome_with(&setup, &alive, RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    let mut pack = answer[..13].to_vec();
    pktline::push_band(&mut pack, SideBand::Data, b"PACK\0\0\0\x02\0\0\0\x01");
    let trickles = ScriptedServer {
        answer: [claim.as_bytes(), &pack].concat(),
        then: b"0006\x01x".to_vec(),
        slow: Some(Duration::from_millis(20)),
        ..ScriptedServer::default()
    };
    let setup = setup_with_timeouts(|timeouts| timeouts.rate_interval = SHORT);
    assert_eq!(outcome_with(&setup, &trickles, RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    let setup = setup_with_timeouts(|timeouts| timeouts.total = SHORT);
    assert_eq!(outcome_with(&setup, &trickles, RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn closed_connections_are_failures() {
    let remote = RemoteRepo::new();
    let tip = remote.commit("a", "a");
    let answer = packfile(&remote.pack(&["HEAD"]));
    let whole = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
    let closes = |parts: &[&[u8]]| ScriptedServer { answer: parts.concat(), closes: true, ..ScriptedServer::default() };
    assert_eq!(outcome(&closes(&[]), RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    assert_eq!(
        outcome(&closes(&[whole.as_bytes(), &answer[..100]]), RequestForm::ByOid, &tip).await,
        FetchOutcome::Failed
    );
    assert_eq!(outcome(&closes(&[b"nonsense\r\n\r\n"]), RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    // A body without a length ends with the connection; git packets show that it is truncated.
    let open = b"HTTP/1.1 200 OK\r\n\r\n";
    assert_eq!(outcome(&closes(&[open, &answer[..100]]), RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    let mut fatal = Vec::new();
    pktline::push_line(&mut fatal, "packfile");
    pktline::push_band(&mut fatal, SideBand::Error, b"out of memory");
    assert_eq!(
        outcome(&ScriptedServer::body(RESULT_TYPE, &fatal), RequestForm::ByOid, &tip).await,
        FetchOutcome::Failed
    );

    let closed = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let url = format!("http://{}/x.git", closed.local_addr().expect("an address"));
    drop(closed);
    assert_eq!(TestSetup::new().fetch(&url, RequestForm::ByOid, &[&tip]).await.result.outcome, FetchOutcome::Failed);
    assert_eq!(
        TestSetup::new().fetch("http://nowhere.tld/x.git", RequestForm::ByOid, &[&tip]).await.result.outcome,
        FetchOutcome::Failed
    );
}

#[tokio::test]
async fn untrusted_certificate_is_rejected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("an address").port();
    let accepted = Arc::new(AtomicBool::new(false));
    let set_accepted = accepted.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            set_accepted.fetch_or(acceptor().accept(stream).await.is_ok(), Ordering::SeqCst);
        }
    });
    let setup =
        TestSetup::with_dialer(test_dialer(grasp_core::net::AddressPolicy::Any, &FakeResolver::new(&[&["127.0.0.1"]])));
    let fetched = setup.fetch(&format!("https://relay.test:{port}/x.git"), RequestForm::ByOid, &[UNKNOWN_OID]).await;
    assert_eq!((fetched.result.outcome, accepted.load(Ordering::SeqCst)), (FetchOutcome::Failed, false));
}

#[tokio::test]
async fn local_errors_are_not_blamed_on_the_server() {
    let remote = RemoteRepo::new();
    let noise: String = (0..200_000_u64).map(|n| format!("{:x}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let tip = remote.commit("a", &noise);
    assert!(remote.pack(&["HEAD"]).len() > 512 * 1024);
    let backend = GitHttpBackend::new(remote.root.path());
    let url = format!("http://127.0.0.1:{}/remote.git", backend.serve("127.0.0.1:0").await);

    let mut setup = TestSetup::new();
    let packs = |setup: &TestSetup, reserve_bytes| {
        PackReceiver::new(setup.client.local_objects.layout.clone(), DiskBudgetTracker::new(0), reserve_bytes)
    };
    setup.client.packs = packs(&setup, u64::MAX);
    assert_eq!(
        setup.fetch(&url, RequestForm::ByOid, &[&tip]).await.result.outcome,
        FetchOutcome::LocalError,
        "no disk space"
    );
    setup.wait_until_clean().await;
    setup.client.packs = packs(&setup, 0);
    setup.client.local_objects.git =
        Git::new(Path::new("/nonexistent/git"), ProcessLimits { alloc_bytes: 1 << 24, address_bytes: 1 << 30 });
    assert_eq!(setup.fetch(&url, RequestForm::ByOid, &[&tip]).await.result.outcome, FetchOutcome::LocalError, "no git");
    setup.wait_until_clean().await;
    let mut request = setup.request(&url, RequestForm::ByOid, &[&tip]);
    request.repo_path = super::setup::repo_path(9);
    assert_eq!(setup.client.fetch(&request, || ()).await.result.outcome, FetchOutcome::LocalError, "not hosted");
    assert_eq!(backend.requests.all().len(), 2);

    let setup = TestSetup::new();
    let fetched = setup.fetch(&url, RequestForm::ByOid, &[&"a".repeat(64)]).await;
    assert_eq!(
        (fetched.result.outcome, backend.requests.all().len()),
        (FetchOutcome::InvalidData, 2),
        "invalid object ids are not requested"
    );
    let fetched = setup.fetch(&url, RequestForm::ByOid, &[&tip]).await;
    assert_eq!(fetched.result.outcome, FetchOutcome::Sent, "the pack is received through a file");
}

#[tokio::test]
async fn cancelled_fetch_leaves_no_files() {
    let mut begin = Vec::new();
    pktline::push_line(&mut begin, "packfile");
    pktline::push_band(&mut begin, SideBand::Data, b"PACK\0\0\0\x02\0\0\0\x01");
    // Enough data that some of it is on disk.
    pktline::push_band(&mut begin, SideBand::Data, &vec![7; 3 << 20]);
    let claim = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", begin.len() + 1);
    let server = ScriptedServer { answer: [claim.as_bytes(), &begin].concat(), ..ScriptedServer::default() };
    let url = server.serve().await;
    let setup = Arc::new(TestSetup::new());
    let task_setup = setup.clone();
    let (first_bytes, received) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let request = task_setup.request(&url, RequestForm::ByOid, &[UNKNOWN_OID]);
        task_setup.client.fetch(&request, || first_bytes.send(()).expect("receiver lives")).await.result
    });
    received.await.expect("first bytes arrive");
    task.abort();
    assert!(task.await.expect_err("cancelled").is_cancelled());
    setup.wait_until_clean().await;
}

#[test]
fn timeouts_are_consistent() {
    const { assert!(limits::GIT_SILENCE_TIMEOUT_SECS < limits::MIN_PACK_RATE_SECS) }
    const { assert!(limits::GIT_PACK_START_TIMEOUT_SECS < limits::GIT_REQUEST_TIMEOUT_SECS) }
}
