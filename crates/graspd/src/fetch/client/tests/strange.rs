//! Servers with bad habits. Whatever they do, nothing of it stays.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use grasp_core::fetch::io::{FetchOutcome, RequestForm};
use grasp_core::limits;
use grasp_git::pktline;
use grasp_git::pktline::Band;
use grasp_git::process::{Bounds, Git};
use tokio::net::TcpListener;

use super::server::{Backend, Strange};
use super::stage::{LIMITS, Stage, Theirs};
use crate::net::testing::{FakeResolver, acceptor, test_dialer};

const RESULT: &str = "application/x-git-upload-pack-result";
const NOBODY: &str = "0123456789012345678901234567890123456789";

/// The answer of a v2 server that sends this for a pack.
fn packfile(pack: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    pktline::push_line(&mut out, "packfile");
    pktline::push_band(&mut out, Band::Progress, b"Counting objects: 1, done.\n");
    pktline::push_band(&mut out, Band::Data, pack);
    pktline::push_flush(&mut out);
    out
}

/// How a fetch from a server ends, by ids or by refs. Nothing is left.
async fn end(strange: &Strange, form: RequestForm, oid: &str) -> FetchOutcome {
    let stage = Stage::new();
    ended(&stage, strange, form, oid).await
}

async fn ended(stage: &Stage, strange: &Strange, form: RequestForm, oid: &str) -> FetchOutcome {
    let fetched = stage.fetch(&strange.serve().await, form, &[oid]).await;
    assert!(fetched.pack.is_none() && fetched.catch.oids.is_empty());
    stage.is_clean().await;
    fetched.catch.outcome
}

#[tokio::test]
async fn statuses_have_meanings() {
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
        ("500 FetchError", "", FetchOutcome::Failed, FetchOutcome::Failed),
        ("502 FetchError", "Retry-After: 17\r\n", FetchOutcome::Failed, FetchOutcome::Failed),
        ("200 OK", "Content-Encoding: gzip\r\n", FetchOutcome::InvalidData, FetchOutcome::InvalidData),
        ("200 OK", "", FetchOutcome::NotByOid, FetchOutcome::Failed),
        ("204 No Content", "", FetchOutcome::Failed, FetchOutcome::Failed),
    ] {
        let strange = Strange::status(status, headers);
        assert_eq!(end(&strange, RequestForm::ByOid, NOBODY).await, by_oids, "{status} {headers}");
        assert_eq!(end(&strange, RequestForm::ByRef, NOBODY).await, by_refs, "{status} {headers}");
        assert_eq!(strange.book.asked().len(), 2);
    }
}

#[tokio::test]
async fn nobody_sends_us_on() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = elsewhere.local_addr().expect("an address").port();
    for status in ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"] {
        let strange = Strange::status(status, &format!("Location: http://127.0.0.1:{port}/x.git\r\n"));
        for form in [RequestForm::ByOid, RequestForm::ByRef] {
            assert_eq!(end(&strange, form, NOBODY).await, FetchOutcome::Absent, "{status}");
        }
    }
    assert!(elsewhere.accept().now_or_never().is_none());
}

#[tokio::test]
async fn what_is_not_git_is_absent_and_what_is_no_v2_is_asked_for_refs() {
    let page = Strange::says("text/html", b"<!DOCTYPE html><p>hello");
    assert_eq!(end(&page, RequestForm::ByOid, NOBODY).await, FetchOutcome::Absent);
    assert_eq!(end(&page, RequestForm::ByRef, NOBODY).await, FetchOutcome::Absent);
    let garbage = Strange::says(RESULT, b"garbage garbage");
    assert_eq!(end(&garbage, RequestForm::ByOid, NOBODY).await, FetchOutcome::NotByOid);
    let err = |text: &str| {
        let mut out = Vec::new();
        pktline::push_line(&mut out, text);
        Strange::says(RESULT, &out)
    };
    assert_eq!(
        end(&err(&format!("ERR upload-pack: not our ref {NOBODY}")), RequestForm::ByOid, NOBODY).await,
        FetchOutcome::NotByOid
    );
    assert_eq!(end(&err("ERR something else"), RequestForm::ByOid, NOBODY).await, FetchOutcome::NotByOid);
    assert_eq!(end(&err("ERR this took too long"), RequestForm::ByOid, NOBODY).await, FetchOutcome::Failed);
    assert_eq!(end(&err("ERR no"), RequestForm::ByRef, NOBODY).await, FetchOutcome::Absent);
    assert_eq!(end(&err("NAK"), RequestForm::ByOid, NOBODY).await, FetchOutcome::NotByOid);
}

#[tokio::test]
async fn packs_that_are_broken_wrong_or_too_large_are_unsound() {
    let theirs = Theirs::new();
    let tip = theirs.commit("a", &"a line\n".repeat(100));
    let pack = theirs.pack(&["HEAD"]);
    let cut = &pack[..pack.len() - 30];
    let mut flipped = pack.clone();
    flipped[20] ^= 0xff;
    let mut many = pack.clone();
    many[8..12].copy_from_slice(&(LIMITS.max_objects + 1).to_be_bytes());
    let bad =
        theirs.feed(&["hash-object", "-t", "tree", "-w", "--literally", "--stdin"], b"100644 ..\0aaaaaaaaaaaaaaaaaaaa");
    let bad = theirs.feed(&["pack-objects", "--stdout", "-q"], &bad);
    let large = {
        let blob = vec![0; (17 << 20) as usize];
        let blob = theirs.feed(&["hash-object", "-w", "--stdin"], &blob);
        theirs.feed(&["pack-objects", "--stdout", "-q"], &blob)
    };
    assert!((large.len() as u64) < LIMITS.max_bytes, "it is small until it is unpacked");
    let mut without = theirs.feed(&["pack-objects", "--stdout", "-q"], format!("{tip}\n").as_bytes());
    for (what, pack) in [
        ("cut", cut),
        ("flipped", &flipped),
        ("many", &many),
        ("bad", &bad),
        ("large", &large),
        ("incomplete", &without),
        ("no pack", &b"nonsense nonsense nonsense"[..]),
        ("too large", &[&b"PACK\0\0\0\x02\0\0\0\x01"[..], &vec![7; LIMITS.max_bytes as usize]].concat()),
    ] {
        let strange = Strange::says(RESULT, &packfile(pack));
        assert_eq!(end(&strange, RequestForm::ByOid, &tip).await, FetchOutcome::InvalidData, "{what}");
    }
    // Sound, and something else.
    let other = Theirs::new();
    other.commit("b", "b");
    let strange = Strange::says(RESULT, &packfile(&other.pack(&["HEAD"])));
    assert_eq!(end(&strange, RequestForm::ByOid, &tip).await, FetchOutcome::InvalidData);
    without.truncate(0);
    let nothing = Strange::says(RESULT, &packfile(&without));
    assert_eq!(end(&nothing, RequestForm::ByOid, &tip).await, FetchOutcome::InvalidData);
}

#[tokio::test]
async fn answers_have_an_end() {
    let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut begin = Vec::new();
    pktline::push_line(&mut begin, "packfile");
    let band = |band: Band, bytes: &[u8]| {
        let mut out = Vec::new();
        pktline::push_band(&mut out, band, bytes);
        out
    };
    let pack = band(Band::Data, b"PACK\0\0\0\x02\0\0\0\x01");
    let endless = |first: &[&[u8]], then: &[u8]| Strange {
        answer: [&head[..], &chunk(&first.concat())].concat(),
        then: chunk(then),
        ..Strange::default()
    };
    for strange in [
        endless(&[&begin, &pack], &band(Band::Data, &[7; 60_000])),
        endless(&[&begin], &band(Band::Progress, &[b'.'; 60_000])),
        endless(&[b"0014acknowledgments\n"], b"0008NAK\n"),
    ] {
        assert_eq!(end(&strange, RequestForm::ByOid, NOBODY).await, FetchOutcome::InvalidData);
    }
    // Ten gigabytes are claimed, and not one of them is read.
    let claim = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 10_u64 << 30);
    let strange = Strange { answer: claim.into_bytes(), then: vec![b'0'; 4_096], ..Strange::default() };
    assert_eq!(end(&strange, RequestForm::ByOid, NOBODY).await, FetchOutcome::InvalidData);
    assert_eq!(end(&strange, RequestForm::ByRef, NOBODY).await, FetchOutcome::InvalidData);
    let (mut first, mut refs) = (Vec::new(), Vec::new());
    pktline::push_line(&mut first, &format!("{NOBODY} refs/heads/main\0x"));
    (0..1_000).for_each(|_| pktline::push_line(&mut refs, &format!("{NOBODY} refs/heads/main")));
    let strange = Strange { answer: [&head[..], &chunk(&first)].concat(), then: chunk(&refs), ..Strange::default() };
    assert_eq!(
        end(&strange, RequestForm::ByRef, "1123456789012345678901234567890123456789").await,
        FetchOutcome::InvalidData
    );
    let headers = Strange {
        answer: b"HTTP/1.1 200 OK\r\n".to_vec(),
        then: b"X-Y: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".to_vec(),
        ..Strange::default()
    };
    assert_eq!(end(&headers, RequestForm::ByOid, NOBODY).await, FetchOutcome::Failed);
}

/// A stage whose patience is short in one respect.
fn impatient(change: impl FnOnce(&mut crate::fetch::client::connection::Patience)) -> Stage {
    let mut stage = Stage::new();
    change(&mut stage.room.patience);
    stage
}

#[tokio::test]
async fn whoever_is_silent_or_slow_has_lost() {
    const SHORT: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let theirs = Theirs::new();
    let tip = theirs.commit("a", "a");
    let answer = packfile(&theirs.pack(&["HEAD"]));
    let claim = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1 << 20);

    let hangs = Strange::default();
    let stage = impatient(|patience| patience.first = SHORT);
    assert_eq!(ended(&stage, &hangs, RequestForm::ByOid, &tip).await, FetchOutcome::Failed, "nothing");
    let head = Strange { answer: claim.clone().into_bytes(), ..Strange::default() };
    assert_eq!(ended(&stage, &head, RequestForm::ByOid, &tip).await, FetchOutcome::Failed, "a head and no body");
    let half = Strange { answer: [claim.as_bytes(), &answer[..60]].concat(), ..Strange::default() };
    let stage = impatient(|patience| patience.silence = SHORT);
    assert_eq!(ended(&stage, &half, RequestForm::ByOid, &tip).await, FetchOutcome::Failed, "half of it");

    // Signs of life are no pack, and some bytes are no speed.
    let alive = Strange {
        answer: [claim.as_bytes(), &answer[..13]].concat(),
        then: b"0005\x01".to_vec(),
        slow: Some(Duration::from_millis(20)),
        ..Strange::default()
    };
    let stage = impatient(|patience| patience.prepare = SHORT);
    assert_eq!(ended(&stage, &alive, RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    let mut pack = answer[..13].to_vec();
    pktline::push_band(&mut pack, Band::Data, b"PACK\0\0\0\x02\0\0\0\x01");
    let trickles = Strange {
        answer: [claim.as_bytes(), &pack].concat(),
        then: b"0006\x01x".to_vec(),
        slow: Some(Duration::from_millis(20)),
        ..Strange::default()
    };
    let stage = impatient(|patience| patience.pace = SHORT);
    assert_eq!(ended(&stage, &trickles, RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    let stage = impatient(|patience| patience.whole = SHORT);
    assert_eq!(ended(&stage, &trickles, RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn whoever_hangs_up_has_failed() {
    let theirs = Theirs::new();
    let tip = theirs.commit("a", "a");
    let answer = packfile(&theirs.pack(&["HEAD"]));
    let whole = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
    let hangs_up = |parts: &[&[u8]]| Strange { answer: parts.concat(), hangs_up: true, ..Strange::default() };
    assert_eq!(end(&hangs_up(&[]), RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    assert_eq!(
        end(&hangs_up(&[whole.as_bytes(), &answer[..100]]), RequestForm::ByOid, &tip).await,
        FetchOutcome::Failed
    );
    assert_eq!(end(&hangs_up(&[b"nonsense\r\n\r\n"]), RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    // A body that has no length ends where it ends, and git knows better.
    let open = b"HTTP/1.1 200 OK\r\n\r\n";
    assert_eq!(end(&hangs_up(&[open, &answer[..100]]), RequestForm::ByOid, &tip).await, FetchOutcome::Failed);
    let mut fatal = Vec::new();
    pktline::push_line(&mut fatal, "packfile");
    pktline::push_band(&mut fatal, Band::Fatal, b"out of memory");
    assert_eq!(end(&Strange::says(RESULT, &fatal), RequestForm::ByOid, &tip).await, FetchOutcome::Failed);

    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/x.git", nobody.local_addr().expect("an address"));
    drop(nobody);
    assert_eq!(Stage::new().fetch(&url, RequestForm::ByOid, &[&tip]).await.catch.outcome, FetchOutcome::Failed);
    assert_eq!(
        Stage::new().fetch("http://nowhere.tld/x.git", RequestForm::ByOid, &[&tip]).await.catch.outcome,
        FetchOutcome::Failed
    );
}

#[tokio::test]
async fn a_server_that_cannot_be_believed_is_not_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let heard = Arc::new(AtomicBool::new(false));
    let hears = heard.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            hears.fetch_or(acceptor().accept(stream).await.is_ok(), Ordering::SeqCst);
        }
    });
    let stage = Stage::calling(test_dialer(grasp_core::net::AddressPolicy::Any, &FakeResolver::new(&[&["127.0.0.1"]])));
    let fetched = stage.fetch(&format!("https://relay.test:{port}/x.git"), RequestForm::ByOid, &[NOBODY]).await;
    assert_eq!((fetched.catch.outcome, heard.load(Ordering::SeqCst)), (FetchOutcome::Failed, false));
}

#[tokio::test]
async fn our_own_troubles_are_nobody_elses() {
    let theirs = Theirs::new();
    let noise: String = (0..200_000_u64).map(|n| format!("{:x}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let tip = theirs.commit("a", &noise);
    assert!(theirs.pack(&["HEAD"]).len() > 512 * 1024);
    let backend = Backend::new(theirs.root.path());
    let url = format!("http://127.0.0.1:{}/theirs.git", backend.serve("127.0.0.1:0").await);

    let mut stage = Stage::new();
    stage.room.larder.reserve_bytes = u64::MAX;
    assert_eq!(stage.fetch(&url, RequestForm::ByOid, &[&tip]).await.catch.outcome, FetchOutcome::LocalError, "no room");
    stage.is_clean().await;
    stage.room.larder.reserve_bytes = 0;
    stage.room.larder.git =
        Git::new(Path::new("/nonexistent/git"), Bounds { alloc_bytes: 1 << 20, address_bytes: 1 << 30 });
    assert_eq!(stage.fetch(&url, RequestForm::ByOid, &[&tip]).await.catch.outcome, FetchOutcome::LocalError, "no git");
    stage.is_clean().await;
    let mut wish = stage.wish(&url, RequestForm::ByOid, &[&tip]);
    wish.repo_path = super::stage::repo_path(9);
    assert_eq!(stage.room.fetch(&wish, || ()).await.catch.outcome, FetchOutcome::LocalError, "nobody hosts it");
    assert_eq!(backend.book.asked().len(), 2);

    let stage = Stage::new();
    let fetched = stage.fetch(&url, RequestForm::ByOid, &[&"a".repeat(64)]).await;
    assert_eq!(
        (fetched.catch.outcome, backend.book.asked().len()),
        (FetchOutcome::InvalidData, 2),
        "it can be nowhere"
    );
    let fetched = stage.fetch(&url, RequestForm::ByOid, &[&tip]).await;
    assert_eq!(fetched.catch.outcome, FetchOutcome::Sent, "all of it comes in the end, through a file");
}

#[tokio::test]
async fn a_fetch_that_is_called_off_leaves_nothing() {
    let mut begin = Vec::new();
    pktline::push_line(&mut begin, "packfile");
    pktline::push_band(&mut begin, Band::Data, b"PACK\0\0\0\x02\0\0\0\x01");
    // Enough that some of it is on the disk.
    pktline::push_band(&mut begin, Band::Data, &vec![7; 3 << 20]);
    let claim = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", begin.len() + 1);
    let strange = Strange { answer: [claim.as_bytes(), &begin].concat(), ..Strange::default() };
    let url = strange.serve().await;
    let stage = Arc::new(Stage::new());
    let stage_of_task = stage.clone();
    let (call, called) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let wish = stage_of_task.wish(&url, RequestForm::ByOid, &[NOBODY]);
        stage_of_task.room.fetch(&wish, || call.send(()).expect("somebody listens")).await.catch
    });
    called.await.expect("it begins to answer");
    task.abort();
    assert!(task.await.expect_err("it was called off").is_cancelled());
    stage.is_clean().await;
}

#[test]
fn the_numbers_fit_together() {
    const { assert!(limits::GIT_SILENCE_TIMEOUT_SECS < limits::MIN_PACK_RATE_SECS) }
    const { assert!(limits::GIT_PACK_START_TIMEOUT_SECS < limits::GIT_REQUEST_TIMEOUT_SECS) }
}
