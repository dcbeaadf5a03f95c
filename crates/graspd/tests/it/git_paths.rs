//! HTTP paths: which are repositories, which statuses and headers responses have, and the HTML pages.

use grasp_core::nostr::PublicKey;
use grasp_sim::signer::owned_tags;

use crate::support::git::{BASE_TIME, MAIN, WorkTree, repo_path};
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::wire;
use crate::support::wire::{HttpResponse, UPLOAD_REQUEST, VERSION_2, ls_refs};

fn get(server: &TestServer, path: &str) -> HttpResponse {
    let response = wire::request(&server.process, "GET", path, &[]);
    response.expect_cors_headers();
    response
}

/// See `docs/protocol.md#identifiers-and-paths`.
#[test]
fn paths_name_repositories_exactly() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (npub, hex) = (owner.npub(), owner.author.hex());
    let advertisement = |name: &str| format!("/{npub}/{name}/info/refs?service=git-upload-pack");
    // Each path is requested before and after its identifier is announced, so that no other identifier can explain the
    // result.
    for (name, d) in [
        ("tool.git", "tool"),
        ("tool.git.git", "tool.git"),
        ("a%3Ab.git", "a:b"),
        ("my+repo.git", "my+repo"),
        ("%252e.git", "%2e"),
        ("HEAD.git", "HEAD"),
        ("Tool.git", "Tool"),
        ("my%20%F0%9F%9A%80%20repo.git", "my 🚀 repo"),
        ("%3Cb%3E.git", "<b>"),
    ] {
        assert_eq!(get(&server, &advertisement(name)).status, 404, "{name}");
        assert_eq!(get(&server, &format!("/{npub}/{name}")).status, 404, "{name}");
        server.publish_held(&owner.announce(d, BASE_TIME, &[]));
        // The empty repository can be cloned at once, although the announcement is held.
        let response = get(&server, &advertisement(name));
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, Some("application/x-git-upload-pack-advertisement")),
            "{name}"
        );
        let page = get(&server, &format!("/{npub}/{name}"));
        assert_eq!(page.status, 200, "{name}");
        assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")), "{}", page.head);
    }
    // Other percent-encodings of the same bytes.
    for name in ["a:b.git", "a%3ab.git", "%61%3a%62.git", "my%2Brepo.git", "t%6Fol%2Egit"] {
        assert_eq!(get(&server, &advertisement(name)).status, 200, "{name}");
        let path = format!("/{npub}/{name}/git-upload-pack");
        let response =
            wire::request_with_body(&server.process, &path, &[UPLOAD_REQUEST, VERSION_2], ls_refs().as_bytes());
        assert_eq!(response.status, 200, "{name}");
    }
    let upper_case = npub.to_uppercase();
    for path in [
        format!("/{npub}/a%2Fb.git"),
        format!("/{npub}/a/b.git"),
        format!("/{npub}/%2e%2e.git"),
        format!("/{npub}/%2e.git"),
        format!("/{npub}/..%2f..%2fetc.git"),
        format!("/{npub}/a%5Cb.git"),
        format!("/{npub}/a%00b.git"),
        format!("/{npub}/.git"),
        format!("/{npub}/%ff.git"),
        format!("/{npub}/tool%2.git"),
        format!("/{upper_case}/tool.git"),
        format!("/{hex}/tool.git"),
        format!("/{npub}/tool"),
        format!("/{npub}/TOOL.git"),
        format!("/{npub}/my%20repo.git"),
        format!("/{npub}/%2e%2e/{npub}/tool.git"),
        format!("/{npub}/../{npub}/tool.git"),
        format!("/x/{npub}/tool.git"),
        format!("//{npub}/tool.git"),
        format!("/{}/tool.git", PublicKey([9; 32]).npub()),
        "/npub1test/tool.git".to_owned(),
        format!("/{npub}x/tool.git"),
        "/invalid/path".to_owned(),
    ] {
        for below in ["", "/info/refs?service=git-upload-pack", "/info/refs?service=git-receive-pack", "/purgatory"] {
            assert_eq!(get(&server, &format!("{path}{below}")).status, 404, "{path}{below}");
        }
        let response =
            wire::request_with_body(&server.process, &format!("{path}/git-upload-pack"), &[UPLOAD_REQUEST], b"0000");
        assert_eq!(response.status, 404, "{path}");
        response.expect_cors_headers();
    }
}

#[test]
fn only_smart_http_is_served_below_a_repository() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let repo = repo_path(&owner.npub(), "tool");
    // The dumb protocol is not supported.
    for query in ["", "?service=", "?service=git-upload-archive", "?service=nonsense", "?x=git-upload-pack"] {
        let response = get(&server, &format!("{repo}/info/refs{query}"));
        assert!(matches!(response.status, 400 | 403), "{query}: {}", response.head);
    }
    for below in [
        "HEAD",
        "config",
        "packed-refs",
        "objects/info/packs",
        "objects/info/alternates",
        "pool/pack",
        "info",
        "info/refs/x",
        "git-upload-archive",
        "git-upload-pack/x",
        "../tool.git/HEAD",
        "%2e%2e/config",
    ] {
        assert_eq!(get(&server, &format!("{repo}/{below}")).status, 404, "{below}");
    }
    // These need POST.
    for service in ["git-upload-pack", "git-receive-pack"] {
        let response = get(&server, &format!("{repo}/{service}"));
        assert!(matches!(response.status, 404 | 405), "{}", response.head);
    }
}

/// OPTIONS is answered 204 for any path (`docs/protocol.md#cors`).
#[test]
fn preflight_is_answered_for_any_path() {
    let server = TestServer::new();
    let npub = server.maintainer(1).npub();
    for path in [
        "/",
        "/npub1test/test.git/git-upload-pack",
        "/npub1test/test.git/info/refs",
        &format!("/{npub}/nothing.git/git-receive-pack"),
        "/prs/npub1test/test.git/info/refs",
        "/%2e%2e",
        "/robots.txt",
    ] {
        let response = wire::request(&server.process, "OPTIONS", path, &["Access-Control-Request-Method: POST"]);
        assert_eq!((response.status, response.body.len()), (204, 0), "{path}");
        response.expect_cors_headers();
    }
}

/// See `docs/protocol.md#web-pages`.
#[test]
fn repository_page_escapes_tags_and_shows_refs() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let npub = owner.npub();
    let (work, c1) = one_commit("one");
    let t1 = work.tag("v1");
    let d = "<img src=x onerror=alert(1)>";
    let evil = "\"><script>alert(2)</script>";
    let announcement = owner.announce_with(d, BASE_TIME, owned_tags(&[&["name", evil], &["description", evil]]));
    server.publish_held(&announcement);
    server.push_state(&owner, &owner, d, BASE_TIME, &work, &[(MAIN, &c1), ("refs/tags/v1", &t1)]);
    let path = repo_path(&npub, d);
    let page = get(&server, &path);
    let text = page.text();
    assert_eq!(page.status, 200);
    assert!(page.header("content-security-policy").is_some_and(|policy| policy.contains("default-src 'none'")));
    assert!(!text.contains("<img") && !text.contains("<script"), "{text}");
    for word in [
        "&lt;img",
        "git clone",
        "nostr://",
        "https://gitworkshop.dev/",
        npub.as_str(),
        "main",
        "v1",
        &c1[..7],
        "viewport",
    ] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    // An unknown repository has an HTML page, too.
    let unknown = get(&server, &repo_path(&npub, "nothing"));
    assert_eq!(unknown.status, 404);
    assert!(unknown.header("content-type").is_some_and(|kind| kind.starts_with("text/html")), "{}", unknown.head);
    let landing = get(&server, "/");
    assert_eq!(landing.status, 200);
    assert!(landing.text().contains("wss://grasp.test") || landing.text().contains("ws://grasp.test"));
}

#[test]
fn pages_can_be_cached() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    for path in [repo_path(&owner.npub(), "tool"), "/".to_owned()] {
        let first = get(&server, &path);
        let Some(tag) = first.header("etag").map(str::to_owned) else {
            let has_max_age = first.header("cache-control").is_some_and(|value| value.contains("max-age"));
            assert!(has_max_age, "{path}: {}", first.head);
            continue;
        };
        let again = wire::request(&server.process, "GET", &path, &[&format!("If-None-Match: {tag}")]);
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        again.expect_cors_headers();
    }
}

#[test]
fn robots_txt_is_served() {
    let server = TestServer::new();
    let response = get(&server, "/robots.txt");
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{}", response.head);
    assert!(response.text().contains("User-agent:") && response.text().contains("Disallow:"), "{}", response.text());
}

#[test]
fn all_paths_are_below_the_base_path() {
    let mut server = TestServer::with_settings(&[("BASE_PATH", "/grasp"), ("GRASP06_ENABLE", "true")]);
    let (owner, contributor) = (server.maintainer(1), server.maintainer(5));
    let (work, c1) = one_commit("one");
    let d = "my 🚀 repo";
    server.create_repo(&owner, d, &[], &work, &main_at(&c1));
    let url = server.url(&owner, d);
    assert!(url.contains("/grasp/npub1"), "{url}");
    let clone = WorkTree::clone(&url);
    assert_eq!(clone.oid("HEAD"), c1);
    let page = get(&server, &repo_path(&owner.npub(), d));
    assert_eq!(page.status, 200);
    assert!(page.text().contains("/grasp/npub1"), "{}", page.text());

    let own = server.public_prs_url(&contributor, d);
    let c2 = work.commit("file", "two");
    let request = contributor.pull_request(BASE_TIME, &[&server.maintainer(6).repo(d)], &c2, &[&own]);
    server.publish_held(&request);
    work.push(&server.prs_url(&contributor, d), &[&format!("{c2}:refs/nostr/{}", request.id)]).expect_success();
    server.expect_served(&[&request]);

    let repo = repo_path(&owner.npub(), d);
    for path in [
        repo.clone(),
        format!("/graspy{repo}"),
        format!("/GRASP{repo}"),
        format!("/grasp/grasp{repo}"),
        format!("/prs{repo}"),
    ] {
        for below in ["", "/info/refs?service=git-upload-pack"] {
            let request = format!("GET {path}{below} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let response = wire::send(&server.process, request.as_bytes());
            assert_eq!(response.status, 404, "{path}{below}");
            response.expect_cors_headers();
        }
    }
}

#[test]
fn long_and_similar_identifiers_are_separate_repositories() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    // Two long identifiers with the same prefix, and two that differ only in case.
    let long = "ü".repeat(499);
    for d in [format!("{long}a"), format!("{long}b"), "case".to_owned(), "CASE".to_owned(), "x.git".to_owned()] {
        server.create_repo(&owner, &d, &[], &work, &main_at(&c1));
        server.publish(&owner.state(&d, BASE_TIME + 1, &[]));
        server.eventually_refs(&owner, &d, &[]);
        let c2 = work.commit("file", &d);
        server.push_state(&owner, &owner, &d, BASE_TIME + 2, &work, &main_at(&c2));
        assert_eq!(WorkTree::clone(&server.url(&owner, &d)).oid("HEAD"), c2);
    }
}
