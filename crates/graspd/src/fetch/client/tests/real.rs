//! Real git servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grasp_core::fetch::io::{FetchOutcome, MirrorCheck, MirrorId, RefComparison, RequestForm};
use grasp_core::net::AddressPolicy;
use grasp_git::refs::{Refs, Target as RefTarget};

use super::server::Backend;
use super::stage::{Stage, Theirs, repo_path};
use crate::net::testing::{FakeResolver, test_dialer};

const NOBODY: &str = "0123456789012345678901234567890123456789";

async fn serve(backend: &Backend) -> String {
    format!("http://127.0.0.1:{}/theirs.git", backend.serve("127.0.0.1:0").await)
}

#[tokio::test]
async fn exact_objects_take_one_request_and_later_ones_build_upon_them() {
    let (stage, theirs) = (Stage::new(), Theirs::new());
    let first = theirs.commit("a", &"a line\n".repeat(1_000));
    theirs.git(&["checkout", "--quiet", "-b", "other"]);
    let stray = theirs.commit("b", "nobody asks for this");
    theirs.git(&["checkout", "--quiet", "main"]);
    let backend = Backend::new(theirs.root.path());
    let url = serve(&backend).await;

    let answered = AtomicUsize::new(0);
    let wish = stage.wish(&url, RequestForm::ByOid, &[&first]);
    let answering = || {
        answered.fetch_add(1, Ordering::SeqCst);
    };
    let fetched = stage.room.fetch(&wish, answering).await;
    assert_eq!((fetched.catch.outcome, fetched.catch.oids), (FetchOutcome::Sent, vec![first.clone()]));
    assert_eq!(answered.load(Ordering::SeqCst), 1);
    assert_eq!(backend.book.lines(), ["POST /theirs.git/git-upload-pack"]);
    let asked = backend.book.asked().remove(0);
    assert_eq!(asked.header("git-protocol"), Some("version=2"));
    assert_eq!(asked.header("accept-encoding"), Some("identity"));
    assert!(asked.header("user-agent").is_some_and(|agent| agent.starts_with("git/") && agent.contains("graspd/")));
    assert!(asked.header("authorization").is_none());
    let pack = fetched.pack.expect("a pack");
    assert_eq!(stage.objects(&pack), theirs.needs(&[&first]));
    assert!(!stage.objects(&pack).contains(&stray));
    stage.adopt(&stage.repo_path, &pack, &[("refs/heads/main", &first)]);
    drop(pack);
    stage.is_clean().await;

    // It is here: nobody is asked.
    let fetched = stage.fetch(&url, RequestForm::ByOid, &[&first]).await;
    assert_eq!((fetched.catch.outcome, fetched.catch.oids), (FetchOutcome::Sent, vec![first.clone()]));
    assert!(fetched.pack.is_none());
    assert_eq!(backend.book.asked().len(), 1);

    // A later one brings only what is new, as a delta to what is here.
    let second = theirs.commit("a", &format!("{}the end\n", "a line\n".repeat(1_000)));
    let fetched = stage.fetch(&url, RequestForm::ByOid, &[&second, &first]).await;
    assert_eq!((fetched.catch.outcome, fetched.catch.oids), (FetchOutcome::Sent, vec![first.clone(), second.clone()]));
    let pack = fetched.pack.expect("a pack");
    assert_eq!(backend.book.asked().len(), 2);
    let body = String::from_utf8(backend.book.asked().remove(1).body).expect("text");
    assert!(body.contains(&format!("have {first}\n")) && !body.contains(&format!("want {first}\n")), "{body}");
    let (came, needed) = (stage.objects(&pack), theirs.needs(&[&second, &format!("^{first}")]));
    assert!(needed.iter().all(|oid| came.contains(oid)), "{came:?}");
    assert!(came.len() <= needed.len() + 1, "and the base of a delta: {came:?}");
    drop(pack);
    stage.is_clean().await;
}

#[tokio::test]
async fn a_server_that_lacks_one_is_asked_for_its_refs_and_gives_a_part() {
    let (stage, theirs) = (Stage::new(), Theirs::new());
    let ancestor = theirs.commit("a", "a");
    let tip = theirs.commit("b", "b");
    let tag = {
        theirs.git(&["tag", "-a", "v1", "-m", "v1"]);
        theirs.git(&["rev-parse", "refs/tags/v1"])
    };
    for second in [true, false] {
        let backend = Backend { second, ..Backend::new(theirs.root.path()) };
        let url = serve(&backend).await;
        let fetched = stage.fetch(&url, RequestForm::ByOid, &[&tip, NOBODY]).await;
        assert_eq!((fetched.catch.outcome, fetched.catch.oids.len()), (FetchOutcome::NotByOid, 0), "all or nothing");
        stage.is_clean().await;

        let fetched = stage.fetch(&url, RequestForm::ByRef, &[&tip, NOBODY]).await;
        assert_eq!(
            (fetched.catch.outcome, fetched.catch.oids),
            (FetchOutcome::Sent, vec![tip.clone()]),
            "second: {second}"
        );
        let found = fetched.pack.expect("a pack");
        assert_eq!(stage.objects(&found), theirs.needs(&[&tip]), "without the tag");
        let get = "GET /theirs.git/info/refs?service=git-upload-pack";
        let post = "POST /theirs.git/git-upload-pack";
        let lines = backend.book.lines();
        assert_eq!(lines[1..], if second { vec![get, post, post] } else { vec![get, post] });
        assert_eq!(backend.book.asked()[1].header("git-protocol"), Some("version=2"));
        assert_eq!(backend.book.connections(), 2, "one for each fetch");

        // What no ref shows may be in the history of one.
        let fetched = stage.fetch(&url, RequestForm::ByRef, &[&ancestor]).await;
        assert_eq!((fetched.catch.outcome, fetched.catch.oids), (FetchOutcome::Sent, vec![ancestor.clone()]));
        let pack = fetched.pack.expect("a pack");
        assert_eq!(stage.objects(&pack), theirs.needs(&[&ancestor]), "and nothing else");
        drop((found, pack));

        let fetched = stage.fetch(&url, RequestForm::ByRef, &[&tag]).await;
        assert_eq!(fetched.catch.oids, std::slice::from_ref(&tag));
        let pack = fetched.pack.expect("a pack");
        assert!(stage.objects(&pack).contains(&tag));

        let fetched = stage.fetch(&url, RequestForm::ByRef, &[NOBODY]).await;
        assert_eq!((fetched.catch.outcome, fetched.catch.oids.len()), (FetchOutcome::Sent, 0));
        assert!(fetched.pack.is_none());
        drop(pack);
        stage.is_clean().await;
    }
}

#[tokio::test]
async fn a_look_compares_branches_and_tags_with_what_is_served() {
    let (stage, theirs) = (Stage::new(), Theirs::new());
    theirs.commit("a", "a");
    theirs.git(&["tag", "-a", "v1", "-m", "v1"]);
    let tip = theirs.commit("b", "b");
    theirs.git(&["branch", "more"]);
    let tag = theirs.git(&["rev-parse", "refs/tags/v1"]);
    let pull = format!("refs/nostr/{}", "07".repeat(32));
    let serve_here = |refs: &[(&str, &str)]| {
        let mut made = Refs::default();
        for (name, oid) in refs.iter().chain([&(pull.as_str(), NOBODY)]) {
            made.set(name, RefTarget { oid: (*oid).to_owned(), peeled: None });
        }
        stage.room.larder.directory.publish(&stage.repo_path, made, true)
    };
    for second in [true, false] {
        let backend = Backend { second, ..Backend::new(theirs.root.path()) };
        let url = serve(&backend).await;
        let look = |url: &str| {
            let wish = stage.wish(url, RequestForm::ByRef, &[]);
            MirrorCheck { id: MirrorId(1), repo_path: wish.repo_path, target: wish.target }
        };
        assert!(serve_here(&[("refs/heads/main", &tip), ("refs/tags/v1", &tag)]));
        let shown = stage.room.compare(&look(&url)).await;
        assert_eq!(shown, Ok(RefComparison { served: 2, missing: 0, different: 0 }), "second: {second}");
        let commit = theirs.git(&["rev-parse", "v1^{commit}"]);
        assert!(serve_here(&[("refs/heads/main", NOBODY), ("refs/heads/x", &tip), ("refs/tags/v1", &commit)]));
        assert_eq!(stage.room.compare(&look(&url)).await, Ok(RefComparison { served: 3, missing: 3, different: 2 }));
        let lists = if second { 2 } else { 1 };
        assert_eq!(backend.book.asked().len(), 2 * lists, "nothing but lists");
        assert_eq!(stage.room.compare(&look(&url.replace("theirs", "others"))).await, Err(FetchOutcome::Absent));
    }
}

#[tokio::test]
async fn pull_requests_are_found_by_their_refs() {
    let (stage, theirs) = (Stage::new(), Theirs::new());
    theirs.commit("a", "a");
    theirs.git(&["checkout", "--quiet", "--detach"]);
    let tip = theirs.commit("b", "b");
    theirs.git(&["update-ref", &format!("refs/nostr/{}", "07".repeat(32)), &tip]);
    theirs.git(&["update-ref", &format!("refs/nostr/{}", "08".repeat(32)), "refs/heads/main"]);
    theirs.git(&["checkout", "--quiet", "main"]);
    let backend = Backend::new(theirs.root.path());
    let url = serve(&backend).await;
    let fetched = stage.fetch(&url, RequestForm::ByRef, &[&tip]).await;
    assert_eq!((fetched.catch.outcome, fetched.catch.oids), (FetchOutcome::Sent, vec![tip.clone()]));
    let asked = String::from_utf8(backend.book.asked().remove(1).body).expect("text");
    assert!(asked.contains(&format!("ref-prefix refs/nostr/{}", "07".repeat(32))), "{asked}");
    assert!(!asked.contains(&"08".repeat(32)), "a state has no ref of its own");
}

#[tokio::test]
async fn whatever_a_server_allows_objects_are_asked_for_by_id_in_v2_and_by_ref_in_v0() {
    for allowed in ["true", "false"] {
        let (stage, theirs) = (Stage::new(), Theirs::new());
        theirs.git(&["config", "uploadpack.allowAnySHA1InWant", allowed]);
        let hidden = theirs.commit("a", "a");
        theirs.commit("b", "b");
        let url = serve(&Backend::new(theirs.root.path())).await;
        let fetched = stage.fetch(&url, RequestForm::ByOid, &[&hidden]).await;
        assert_eq!(
            (fetched.catch.outcome, fetched.catch.oids),
            (FetchOutcome::Sent, vec![hidden.clone()]),
            "{allowed}"
        );
        let url = serve(&Backend { second: false, ..Backend::new(theirs.root.path()) }).await;
        let fetched = stage.fetch(&url, RequestForm::ByOid, &[&hidden]).await;
        assert_eq!(fetched.catch.outcome, FetchOutcome::NotByOid, "it speaks nothing but v0");
        let fetched = stage.fetch(&url, RequestForm::ByRef, &[&hidden]).await;
        assert_eq!(
            (fetched.catch.outcome, fetched.catch.oids),
            (FetchOutcome::Sent, vec![hidden.clone()]),
            "{allowed}"
        );
    }
}

#[tokio::test]
async fn repositories_without_anything_and_none_at_all() {
    let (stage, theirs) = (Stage::new(), Theirs::new());
    for second in [true, false] {
        let backend = Backend { second, ..Backend::new(theirs.root.path()) };
        let url = serve(&backend).await;
        assert_eq!(stage.fetch(&url, RequestForm::ByOid, &[NOBODY]).await.catch.outcome, FetchOutcome::NotByOid);
        assert_eq!(stage.fetch(&url, RequestForm::ByRef, &[NOBODY]).await.catch.outcome, FetchOutcome::Sent);
        let nothing = url.replace("theirs", "nothing");
        assert_eq!(stage.fetch(&nothing, RequestForm::ByOid, &[NOBODY]).await.catch.outcome, FetchOutcome::Absent);
        assert_eq!(stage.fetch(&nothing, RequestForm::ByRef, &[NOBODY]).await.catch.outcome, FetchOutcome::Absent);
    }
    stage.is_clean().await;
}

#[tokio::test]
async fn what_lenders_have_is_neither_fetched_nor_kept_twice() {
    let (stage, theirs) = (Stage::new(), Theirs::new());
    let first = theirs.commit("a", "a");
    let second = theirs.commit("b", "b");
    let backend = Backend::new(theirs.root.path());
    let url = serve(&backend).await;
    let (lender, far) = (repo_path(2), repo_path(3));
    stage.host(&lender, &[]);
    let pack = stage.fetch(&url, RequestForm::ByOid, &[&first]).await.pack.expect("a pack");
    stage.adopt(&lender, &pack, &[("refs/heads/main", &first)]);
    drop(pack);

    stage.host(&stage.repo_path, std::slice::from_ref(&lender));
    let fetched = stage.fetch(&url, RequestForm::ByOid, &[&first]).await;
    assert_eq!((fetched.catch.outcome, backend.book.asked().len()), (FetchOutcome::Sent, 1), "it is lent");
    let fetched = stage.fetch(&url, RequestForm::ByOid, &[&second]).await;
    let found = fetched.pack.expect("a pack");
    let came = stage.objects(&found);
    assert_eq!(came, theirs.needs(&[&second, &format!("^{first}")]));
    drop(found);

    // A lender that itself borrows may have refs whose objects cannot be read here.
    stage.host(&far, &[]);
    stage.host(&lender, std::slice::from_ref(&far));
    let fetched = stage.fetch(&url, RequestForm::ByOid, &[&second]).await;
    let body = String::from_utf8(backend.book.asked().remove(2).body).expect("text");
    assert!(!body.contains("have "), "{body}");
    assert_eq!(fetched.catch.oids, [second]);
    drop(fetched);
    stage.is_clean().await;
}

#[tokio::test]
async fn a_name_is_looked_up_once_for_all_requests_of_a_fetch() {
    let theirs = Theirs::new();
    let tip = theirs.commit("a", "a");
    // A server that hangs up after every answer, and a name that leads elsewhere when it is asked for again.
    let backend = Backend { keep_alive: false, ..Backend::new(theirs.root.path()) };
    let port = backend.serve("127.0.0.1:0").await;
    let elsewhere = tokio::net::TcpListener::bind(("127.0.0.2", port)).await.expect("a port");
    let book = FakeResolver::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let stage = Stage::calling(test_dialer(AddressPolicy::Any, &book));
    let fetched = stage.fetch(&format!("http://rebinding.tld:{port}/theirs.git"), RequestForm::ByRef, &[&tip]).await;
    assert_eq!((fetched.catch.outcome, fetched.catch.oids), (FetchOutcome::Sent, vec![tip.clone()]));
    assert_eq!((book.lookups(), backend.book.connections()), (1, 3));
    assert_eq!(backend.book.asked()[0].header("host"), Some(format!("rebinding.tld:{port}").as_str()));

    // The next fetch looks again, and what it finds is looked at.
    let book = FakeResolver::new(&[&["127.0.0.1"]]);
    let stage = Stage::calling(test_dialer(AddressPolicy::PublicOnly, &book));
    let fetch = {
        let mut fetch = stage.wish(&format!("http://rebinding.tld:{port}/theirs.git"), RequestForm::ByOid, &[&tip]);
        fetch.oids = vec![tip];
        fetch
    };
    let fetched = stage.room.fetch(&fetch, || ()).await;
    assert_eq!((fetched.catch.outcome, backend.book.connections()), (FetchOutcome::Failed, 3));
    drop(elsewhere);
    stage.is_clean().await;
}

#[tokio::test]
async fn checks_wait_for_their_turn_and_end_when_nobody_waits_for_them() {
    let (stage, theirs) = (Arc::new(Stage::new()), Theirs::new());
    let tip = theirs.commit("a", "a");
    let url = serve(&Backend::new(theirs.root.path())).await;
    let places = [stage.room.checking.take(None).await, stage.room.checking.take(None).await];
    let (stage_of_task, oid) = (stage.clone(), tip.clone());
    let task = tokio::spawn(async move { stage_of_task.fetch(&url, RequestForm::ByOid, &[&oid]).await.catch });
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !stage.room.checking.are_waited_for() {
        assert!(std::time::Instant::now() < until, "it waits for a turn");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    task.abort();
    assert!(task.await.expect_err("it was called off").is_cancelled());
    stage.is_clean().await;
    drop(places);
}
