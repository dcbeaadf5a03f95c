//! Tests against `git http-backend`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grasp_core::fetch::io::{FetchOutcome, MirrorCheck, MirrorId, RefComparison, RequestForm};
use grasp_core::net::AddressPolicy;
use grasp_git::refs::{RefTarget, Refs};

use super::server::GitHttpBackend;
use super::setup::{RemoteRepo, TestSetup, repo_path};
use crate::net::testing::{FakeResolver, test_dialer};

const UNKNOWN_OID: &str = "0123456789012345678901234567890123456789";

async fn serve(backend: &GitHttpBackend) -> String {
    format!("http://127.0.0.1:{}/remote.git", backend.serve("127.0.0.1:0").await)
}

#[tokio::test]
async fn fetch_by_oid_is_one_request_and_incremental() {
    let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
    let first = remote.commit("a", &"a line\n".repeat(1_000));
    remote.git(&["checkout", "--quiet", "-b", "other"]);
    let stray = remote.commit("b", "not wanted");
    remote.git(&["checkout", "--quiet", "main"]);
    let backend = GitHttpBackend::new(remote.root.path());
    let url = serve(&backend).await;

    let answered = AtomicUsize::new(0);
    let request = setup.request(&url, RequestForm::ByOid, &[&first]);
    let on_first_bytes = || {
        answered.fetch_add(1, Ordering::SeqCst);
    };
    let fetched = setup.client.fetch(&request, on_first_bytes).await;
    assert_eq!((fetched.result.outcome, fetched.result.oids), (FetchOutcome::Sent, vec![first.clone()]));
    assert_eq!(answered.load(Ordering::SeqCst), 1);
    assert_eq!(backend.requests.lines(), ["POST /remote.git/git-upload-pack"]);
    let request = backend.requests.all().remove(0);
    assert_eq!(request.header("git-protocol"), Some("version=2"));
    assert_eq!(request.header("accept-encoding"), Some("identity"));
    assert!(request.header("user-agent").is_some_and(|agent| agent.starts_with("git/") && agent.contains("graspd/")));
    assert!(request.header("authorization").is_none());
    let pack = fetched.pack.expect("a pack");
    assert_eq!(setup.objects(&pack), remote.needs(&[&first]));
    assert!(!setup.objects(&pack).contains(&stray));
    setup.adopt(&setup.repo_path, &pack, &[("refs/heads/main", &first)]);
    drop(pack);
    setup.wait_until_clean().await;

    // The object is here: no request is sent.
    let fetched = setup.fetch(&url, RequestForm::ByOid, &[&first]).await;
    assert_eq!((fetched.result.outcome, fetched.result.oids), (FetchOutcome::Sent, vec![first.clone()]));
    assert!(fetched.pack.is_none());
    assert_eq!(backend.requests.all().len(), 1);

    // A later commit brings only new objects, as a delta to existing ones.
    let second = remote.commit("a", &format!("{}the end\n", "a line\n".repeat(1_000)));
    let fetched = setup.fetch(&url, RequestForm::ByOid, &[&second, &first]).await;
    assert_eq!(
        (fetched.result.outcome, fetched.result.oids),
        (FetchOutcome::Sent, vec![first.clone(), second.clone()])
    );
    let pack = fetched.pack.expect("a pack");
    assert_eq!(backend.requests.all().len(), 2);
    let body = String::from_utf8(backend.requests.all().remove(1).body).expect("text");
    assert!(body.contains(&format!("have {first}\n")) && !body.contains(&format!("want {first}\n")), "{body}");
    let (came, needed) = (setup.objects(&pack), remote.needs(&[&second, &format!("^{first}")]));
    assert!(needed.iter().all(|oid| came.contains(oid)), "{came:?}");
    assert!(came.len() <= needed.len() + 1, "at most one delta base more: {came:?}");
    drop(pack);
    setup.wait_until_clean().await;
}

#[tokio::test]
async fn fetch_by_ref_returns_what_the_server_has() {
    let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
    let ancestor = remote.commit("a", "a");
    let tip = remote.commit("b", "b");
    let tag = {
        remote.git(&["tag", "-a", "v1", "-m", "v1"]);
        remote.git(&["rev-parse", "refs/tags/v1"])
    };
    for supports_v2 in [true, false] {
        let backend = GitHttpBackend { supports_v2, ..GitHttpBackend::new(remote.root.path()) };
        let url = serve(&backend).await;
        let fetched = setup.fetch(&url, RequestForm::ByOid, &[&tip, UNKNOWN_OID]).await;
        assert_eq!(
            (fetched.result.outcome, fetched.result.oids.len()),
            (FetchOutcome::NotByOid, 0),
            "all objects or none"
        );
        setup.wait_until_clean().await;

        let fetched = setup.fetch(&url, RequestForm::ByRef, &[&tip, UNKNOWN_OID]).await;
        assert_eq!(
            (fetched.result.outcome, fetched.result.oids),
            (FetchOutcome::Sent, vec![tip.clone()]),
            "v2: {supports_v2}"
        );
        let found = fetched.pack.expect("a pack");
        assert_eq!(setup.objects(&found), remote.needs(&[&tip]), "without the tag");
        let get = "GET /remote.git/info/refs?service=git-upload-pack";
        let upload = "POST /remote.git/git-upload-pack";
        let lines = backend.requests.lines();
        assert_eq!(lines[1..], if supports_v2 { vec![get, upload, upload] } else { vec![get, upload] });
        assert_eq!(backend.requests.all()[1].header("git-protocol"), Some("version=2"));
        assert_eq!(backend.requests.connections(), 2, "one per fetch");

        // An object that no ref points to may be in the history of a ref.
        let fetched = setup.fetch(&url, RequestForm::ByRef, &[&ancestor]).await;
        assert_eq!((fetched.result.outcome, fetched.result.oids), (FetchOutcome::Sent, vec![ancestor.clone()]));
        let pack = fetched.pack.expect("a pack");
        assert_eq!(setup.objects(&pack), remote.needs(&[&ancestor]), "nothing else");
        drop((found, pack));

        let fetched = setup.fetch(&url, RequestForm::ByRef, &[&tag]).await;
        assert_eq!(fetched.result.oids, std::slice::from_ref(&tag));
        let pack = fetched.pack.expect("a pack");
        assert!(setup.objects(&pack).contains(&tag));

        let fetched = setup.fetch(&url, RequestForm::ByRef, &[UNKNOWN_OID]).await;
        assert_eq!((fetched.result.outcome, fetched.result.oids.len()), (FetchOutcome::Sent, 0));
        assert!(fetched.pack.is_none());
        drop(pack);
        setup.wait_until_clean().await;
    }
}

#[tokio::test]
async fn comparison_covers_branches_and_tags() {
    let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
    remote.commit("a", "a");
    remote.git(&["tag", "-a", "v1", "-m", "v1"]);
    let tip = remote.commit("b", "b");
    remote.git(&["branch", "more"]);
    let tag = remote.git(&["rev-parse", "refs/tags/v1"]);
    let pull = format!("refs/nostr/{}", "07".repeat(32));
    let serve_here = |refs: &[(&str, &str)]| {
        let mut made = Refs::default();
        for (name, oid) in refs.iter().chain([&(pull.as_str(), UNKNOWN_OID)]) {
            made.set(name, RefTarget { oid: (*oid).to_owned(), peeled: None });
        }
        setup.publish(&setup.repo_path, made)
    };
    for supports_v2 in [true, false] {
        let backend = GitHttpBackend { supports_v2, ..GitHttpBackend::new(remote.root.path()) };
        let url = serve(&backend).await;
        let look = |url: &str| {
            let request = setup.request(url, RequestForm::ByRef, &[]);
            MirrorCheck { id: MirrorId(1), repo_path: request.repo_path, target: request.target }
        };
        assert!(serve_here(&[("refs/heads/main", &tip), ("refs/tags/v1", &tag)]));
        let shown = setup.client.compare(&look(&url)).await;
        assert_eq!(shown, Ok(RefComparison { served: 2, missing: 0, different: 0 }), "v2: {supports_v2}");
        let commit = remote.git(&["rev-parse", "v1^{commit}"]);
        assert!(serve_here(&[("refs/heads/main", UNKNOWN_OID), ("refs/heads/x", &tip), ("refs/tags/v1", &commit)]));
        assert_eq!(setup.client.compare(&look(&url)).await, Ok(RefComparison { served: 3, missing: 3, different: 2 }));
        let lists = if supports_v2 { 2 } else { 1 };
        assert_eq!(backend.requests.all().len(), 2 * lists, "only lists of refs are requested");
        assert_eq!(setup.client.compare(&look(&url.replace("remote", "others"))).await, Err(FetchOutcome::Absent));
    }
}

#[tokio::test]
async fn pull_requests_are_found_by_ref() {
    let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
    remote.commit("a", "a");
    remote.git(&["checkout", "--quiet", "--detach"]);
    let tip = remote.commit("b", "b");
    remote.git(&["update-ref", &format!("refs/nostr/{}", "07".repeat(32)), &tip]);
    remote.git(&["update-ref", &format!("refs/nostr/{}", "08".repeat(32)), "refs/heads/main"]);
    remote.git(&["checkout", "--quiet", "main"]);
    let backend = GitHttpBackend::new(remote.root.path());
    let url = serve(&backend).await;
    let fetched = setup.fetch(&url, RequestForm::ByRef, &[&tip]).await;
    assert_eq!((fetched.result.outcome, fetched.result.oids), (FetchOutcome::Sent, vec![tip.clone()]));
    let request = String::from_utf8(backend.requests.all().remove(1).body).expect("text");
    assert!(request.contains(&format!("ref-prefix refs/nostr/{}", "07".repeat(32))), "{request}");
    assert!(!request.contains(&"08".repeat(32)), "states have no ref");
}

#[tokio::test]
async fn oids_are_requested_in_v2_and_refs_in_v0() {
    for allowed in ["true", "false"] {
        let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
        remote.git(&["config", "uploadpack.allowAnySHA1InWant", allowed]);
        let hidden = remote.commit("a", "a");
        remote.commit("b", "b");
        let url = serve(&GitHttpBackend::new(remote.root.path())).await;
        let fetched = setup.fetch(&url, RequestForm::ByOid, &[&hidden]).await;
        assert_eq!(
            (fetched.result.outcome, fetched.result.oids),
            (FetchOutcome::Sent, vec![hidden.clone()]),
            "{allowed}"
        );
        let url = serve(&GitHttpBackend { supports_v2: false, ..GitHttpBackend::new(remote.root.path()) }).await;
        let fetched = setup.fetch(&url, RequestForm::ByOid, &[&hidden]).await;
        assert_eq!(fetched.result.outcome, FetchOutcome::NotByOid, "the server supports v0 only");
        let fetched = setup.fetch(&url, RequestForm::ByRef, &[&hidden]).await;
        assert_eq!(
            (fetched.result.outcome, fetched.result.oids),
            (FetchOutcome::Sent, vec![hidden.clone()]),
            "{allowed}"
        );
    }
}

#[tokio::test]
async fn empty_and_missing_repositories() {
    let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
    for supports_v2 in [true, false] {
        let backend = GitHttpBackend { supports_v2, ..GitHttpBackend::new(remote.root.path()) };
        let url = serve(&backend).await;
        assert_eq!(setup.fetch(&url, RequestForm::ByOid, &[UNKNOWN_OID]).await.result.outcome, FetchOutcome::NotByOid);
        assert_eq!(setup.fetch(&url, RequestForm::ByRef, &[UNKNOWN_OID]).await.result.outcome, FetchOutcome::Sent);
        let nothing = url.replace("remote", "nothing");
        assert_eq!(
            setup.fetch(&nothing, RequestForm::ByOid, &[UNKNOWN_OID]).await.result.outcome,
            FetchOutcome::Absent
        );
        assert_eq!(
            setup.fetch(&nothing, RequestForm::ByRef, &[UNKNOWN_OID]).await.result.outcome,
            FetchOutcome::Absent
        );
    }
    setup.wait_until_clean().await;
}

#[tokio::test]
async fn objects_of_alternates_are_not_fetched() {
    let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
    let first = remote.commit("a", "a");
    let second = remote.commit("b", "b");
    let backend = GitHttpBackend::new(remote.root.path());
    let url = serve(&backend).await;
    let (alternate, far) = (repo_path(2), repo_path(3));
    setup.host(&alternate, &[]);
    let pack = setup.fetch(&url, RequestForm::ByOid, &[&first]).await.pack.expect("a pack");
    setup.adopt(&alternate, &pack, &[("refs/heads/main", &first)]);
    drop(pack);

    setup.host(&setup.repo_path, std::slice::from_ref(&alternate));
    let fetched = setup.fetch(&url, RequestForm::ByOid, &[&first]).await;
    assert_eq!((fetched.result.outcome, backend.requests.all().len()), (FetchOutcome::Sent, 1), "the alternate has it");
    let fetched = setup.fetch(&url, RequestForm::ByOid, &[&second]).await;
    let found = fetched.pack.expect("a pack");
    let came = setup.objects(&found);
    assert_eq!(came, remote.needs(&[&second, &format!("^{first}")]));
    drop(found);

    // An alternate that has alternates of its own may have refs whose objects cannot be read here.
    setup.host(&far, &[]);
    setup.host(&alternate, std::slice::from_ref(&far));
    let fetched = setup.fetch(&url, RequestForm::ByOid, &[&second]).await;
    let body = String::from_utf8(backend.requests.all().remove(2).body).expect("text");
    assert!(!body.contains("have "), "{body}");
    assert_eq!(fetched.result.oids, [second]);
    drop(fetched);
    setup.wait_until_clean().await;
}

#[tokio::test]
async fn host_name_is_resolved_once_per_fetch() {
    let remote = RemoteRepo::new();
    let tip = remote.commit("a", "a");
    // A server that closes the connection after every response, and a name that resolves to another address at the
    // second lookup.
    let backend = GitHttpBackend { keep_alive: false, ..GitHttpBackend::new(remote.root.path()) };
    let port = backend.serve("127.0.0.1:0").await;
    let elsewhere = tokio::net::TcpListener::bind(("127.0.0.2", port)).await.expect("a port");
    let resolver = FakeResolver::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let setup = TestSetup::with_dialer(test_dialer(AddressPolicy::Any, &resolver));
    let fetched = setup.fetch(&format!("http://rebinding.tld:{port}/remote.git"), RequestForm::ByRef, &[&tip]).await;
    assert_eq!((fetched.result.outcome, fetched.result.oids), (FetchOutcome::Sent, vec![tip.clone()]));
    assert_eq!((resolver.lookups(), backend.requests.connections()), (1, 3));
    assert_eq!(backend.requests.all()[0].header("host"), Some(format!("rebinding.tld:{port}").as_str()));

    // The next fetch resolves the name again and checks the address.
    let resolver = FakeResolver::new(&[&["127.0.0.1"]]);
    let setup = TestSetup::with_dialer(test_dialer(AddressPolicy::PublicOnly, &resolver));
    let fetch = {
        let mut fetch = setup.request(&format!("http://rebinding.tld:{port}/remote.git"), RequestForm::ByOid, &[&tip]);
        fetch.oids = vec![tip];
        fetch
    };
    let fetched = setup.client.fetch(&fetch, || ()).await;
    assert_eq!((fetched.result.outcome, backend.requests.connections()), (FetchOutcome::Failed, 3));
    drop(elsewhere);
    setup.wait_until_clean().await;
}

#[tokio::test]
async fn waiting_pack_check_can_be_cancelled() {
    let (setup, remote) = (Arc::new(TestSetup::new()), RemoteRepo::new());
    let tip = remote.commit("a", "a");
    let url = serve(&GitHttpBackend::new(remote.root.path())).await;
    let permits = [setup.client.check_permits.acquire(None).await, setup.client.check_permits.acquire(None).await];
    let (task_setup, oid) = (setup.clone(), tip.clone());
    let task = tokio::spawn(async move { task_setup.fetch(&url, RequestForm::ByOid, &[&oid]).await.result });
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while setup.client.check_permits.load().waiting == 0 {
        assert!(std::time::Instant::now() < until, "the check waits for a permit");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    task.abort();
    assert!(task.await.expect_err("cancelled").is_cancelled());
    setup.wait_until_clean().await;
    drop(permits);
}
