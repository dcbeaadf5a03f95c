//! Which path is what, by the status of its answer; pages, and what every answer has in common.

use grasp_core::nostr::PublicKey;
use grasp_sim::signer::owned;

use crate::support::git::{MAIN, THEN, Work, repo_path};
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::wire;
use crate::support::wire::{Answer, UPLOAD_REQUEST, VERSION_2, ls_refs};

fn get(stage: &Stage, path: &str) -> Answer {
    let answer = wire::ask(&stage.server, "GET", path, &[]);
    answer.expect_open_to_everybody();
    answer
}

#[test]
fn s15_2_path_parsing() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (npub, hex) = (owner.npub(), owner.author.hex());
    let advertisement = |name: &str| format!("/{npub}/{name}/info/refs?service=git-upload-pack");
    // Each name is announced after its path has been asked for: the answer is about that name and no other.
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
        assert_eq!(get(&stage, &advertisement(name)).status, 404, "{name}");
        assert_eq!(get(&stage, &format!("/{npub}/{name}")).status, 404, "{name}");
        stage.hold(&owner.announce(d, THEN, &[]));
        // G1-11: at once, although it waits.
        let answer = get(&stage, &advertisement(name));
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("application/x-git-upload-pack-advertisement")),
            "{name}"
        );
        let page = get(&stage, &format!("/{npub}/{name}"));
        assert_eq!(page.status, 200, "{name}");
        assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")), "{}", page.head);
    }
    // Other spellings of the same bytes.
    for name in ["a:b.git", "a%3ab.git", "%61%3a%62.git", "my%2Brepo.git", "t%6Fol%2Egit"] {
        assert_eq!(get(&stage, &advertisement(name)).status, 200, "{name}");
        let path = format!("/{npub}/{name}/git-upload-pack");
        let answer = wire::post(&stage.server, &path, &[UPLOAD_REQUEST, VERSION_2], ls_refs().as_bytes());
        assert_eq!(answer.status, 200, "{name}");
    }
    let shouted = npub.to_uppercase();
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
        format!("/{shouted}/tool.git"),
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
            assert_eq!(get(&stage, &format!("{path}{below}")).status, 404, "{path}{below}");
        }
        let answer = wire::post(&stage.server, &format!("{path}/git-upload-pack"), &[UPLOAD_REQUEST], b"0000");
        assert_eq!(answer.status, 404, "{path}");
        answer.expect_open_to_everybody();
    }
}

#[test]
fn s2_10_what_is_below_a_repository() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let repo = repo_path(&owner.npub(), "tool");
    // The dumb protocol is not spoken.
    for query in ["", "?service=", "?service=git-upload-archive", "?service=nonsense", "?x=git-upload-pack"] {
        let answer = get(&stage, &format!("{repo}/info/refs{query}"));
        assert!(matches!(answer.status, 400 | 403), "{query}: {}", answer.head);
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
        assert_eq!(get(&stage, &format!("{repo}/{below}")).status, 404, "{below}");
    }
    // These are asked with POST.
    for service in ["git-upload-pack", "git-receive-pack"] {
        let answer = get(&stage, &format!("{repo}/{service}"));
        assert!(matches!(answer.status, 404 | 405), "{}", answer.head);
    }
}

#[test]
fn g1_65_preflights_are_answered_for_any_path() {
    let stage = Stage::new();
    let npub = stage.person(1).npub();
    for path in [
        "/",
        "/npub1test/test.git/git-upload-pack",
        "/npub1test/test.git/info/refs",
        &format!("/{npub}/nothing.git/git-receive-pack"),
        "/prs/npub1test/test.git/info/refs",
        "/%2e%2e",
        "/robots.txt",
    ] {
        let answer = wire::ask(&stage.server, "OPTIONS", path, &["Access-Control-Request-Method: POST"]);
        assert_eq!((answer.status, answer.body.len()), (204, 0), "{path}");
        answer.expect_open_to_everybody();
    }
}

#[test]
fn g1_63_pages() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let npub = owner.npub();
    let (work, c1) = one_commit("one");
    let t1 = work.tag("v1");
    let d = "<img src=x onerror=alert(1)>";
    let evil = "\"><script>alert(2)</script>";
    let announcement = owner.announce_with(d, THEN, owned(&[&["name", evil], &["description", evil]]));
    stage.hold(&announcement);
    stage.advance(&owner, &owner, d, THEN, &work, &[(MAIN, &c1), ("refs/tags/v1", &t1)]);
    let path = repo_path(&npub, d);
    let page = get(&stage, &path);
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
    // Where nothing is, there is a page that says so.
    let nothing = get(&stage, &repo_path(&npub, "nothing"));
    assert_eq!(nothing.status, 404);
    assert!(nothing.header("content-type").is_some_and(|kind| kind.starts_with("text/html")), "{}", nothing.head);
    let landing = get(&stage, "/");
    assert_eq!(landing.status, 200);
    assert!(landing.text().contains("wss://grasp.test") || landing.text().contains("ws://grasp.test"));
}

#[test]
fn pages_need_not_be_sent_twice() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    for path in [repo_path(&owner.npub(), "tool"), "/".to_owned()] {
        let first = get(&stage, &path);
        let Some(tag) = first.header("etag").map(str::to_owned) else {
            let kept = first.header("cache-control").is_some_and(|value| value.contains("max-age"));
            assert!(kept, "{path}: {}", first.head);
            continue;
        };
        let again = wire::ask(&stage.server, "GET", &path, &[&format!("If-None-Match: {tag}")]);
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        again.expect_open_to_everybody();
    }
}

#[test]
fn robots_are_told_where_not_to_go() {
    let stage = Stage::new();
    let answer = get(&stage, "/robots.txt");
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{}", answer.head);
    assert!(answer.text().contains("User-agent:") && answer.text().contains("Disallow:"), "{}", answer.text());
}

#[test]
fn everything_lives_below_the_base_path() {
    let mut stage = Stage::with(&[("BASE_PATH", "/grasp"), ("GRASP06_ENABLE", "true")]);
    let (owner, guest) = (stage.person(1), stage.person(5));
    let (work, c1) = one_commit("one");
    let d = "my 🚀 repo";
    stage.found(&owner, d, &[], &work, &main_at(&c1));
    let url = stage.url(&owner, d);
    assert!(url.contains("/grasp/npub1"), "{url}");
    let clone = Work::clone(&url);
    assert_eq!(clone.oid("HEAD"), c1);
    let page = get(&stage, &repo_path(&owner.npub(), d));
    assert_eq!(page.status, 200);
    assert!(page.text().contains("/grasp/npub1"), "{}", page.text());

    let own = stage.public_prs_url(&guest, d);
    let c2 = work.commit("file", "two");
    let request = guest.pull_request(THEN, &[&stage.person(6).repo(d)], &c2, &[&own]);
    stage.hold(&request);
    work.push(&stage.prs_url(&guest, d), &[&format!("{c2}:refs/nostr/{}", request.id)]).done();
    stage.expect_served(&[&request]);

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
            let answer = wire::send(&stage.server, request.as_bytes());
            assert_eq!(answer.status, 404, "{path}{below}");
            answer.expect_open_to_everybody();
        }
    }
}

#[test]
fn identifiers_of_a_thousand_bytes_are_repositories_like_others() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    // Two long ones that begin alike, and two that a careless file system takes for one.
    let long = "ü".repeat(499);
    for d in [format!("{long}a"), format!("{long}b"), "case".to_owned(), "CASE".to_owned(), "x.git".to_owned()] {
        stage.found(&owner, &d, &[], &work, &main_at(&c1));
        stage.publish(&owner.state(&d, THEN + 1, &[]));
        stage.eventually_refs(&owner, &d, &[]);
        let c2 = work.commit("file", &d);
        stage.advance(&owner, &owner, &d, THEN + 2, &work, &main_at(&c2));
        assert_eq!(Work::clone(&stage.url(&owner, &d)).oid("HEAD"), c2);
    }
}
