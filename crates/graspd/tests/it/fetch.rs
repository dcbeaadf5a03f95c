//! Fetching of missing git data from other servers, within their limits (`docs/design/fetch.md`).

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git::{BASE_TIME, MAIN, WorkTree, ls_remote, repo_path, try_ls_remote};
use crate::support::git_server::{GitServer, GitServerMode};
use crate::support::network_namespace::is_in_network_namespace;
use crate::support::peers::independent_relay::IndependentRelay;
use crate::support::peers::{SyncServer, now, unused_address};

/// A repository with its owner's key and working tree.
struct FetchedRepo {
    owner: Author,
    d: String,
    work: WorkTree,
}

impl FetchedRepo {
    fn new(owner: u8, d: &str) -> Self {
        let work = WorkTree::new();
        work.commit("file", d);
        Self { owner: Author::new(owner), d: d.to_owned(), work }
    }

    /// Returns an announcement that lists these graspd servers, and further git servers and relays.
    fn announce(&self, hosts: &[&SyncServer], clone: &[&str], relays: &[&str]) -> Arc<SignedEvent> {
        let path = self.owner.repo_id(&self.d).path();
        let list = |name: &str, own: Vec<String>, more: &[&str]| {
            let more = more.iter().map(|url| (*url).to_owned());
            std::iter::once(name.to_owned()).chain(own).chain(more).collect::<Vec<_>>()
        };
        let clones = hosts.iter().map(|host| format!("http://{}/{path}", host.address)).collect();
        let tags = vec![
            vec!["d".to_owned(), self.d.clone()],
            list("clone", clones, clone),
            list("relays", hosts.iter().map(|host| host.relay_url()).collect(), relays),
        ];
        self.owner.sign_owned(kinds::ANNOUNCEMENT, BASE_TIME, tags, "")
    }

    /// Returns a state with these refs of the working tree.
    fn state(&self, at: u64, refs: &[&str]) -> Arc<SignedEvent> {
        let mut tags = vec![vec!["d".to_owned(), self.d.clone()], vec!["HEAD".to_owned(), format!("ref: {MAIN}")]];
        tags.extend(refs.iter().map(|name| vec![(*name).to_owned(), self.work.oid(name)]));
        self.owner.sign_owned(kinds::STATE, at, tags, "")
    }

    fn url(&self, host: &SyncServer) -> String {
        format!("http://{}{}", host.address, repo_path(&self.owner.key().npub(), &self.d))
    }

    /// Asserts that a server has exactly these refs of the working tree, with all objects.
    #[track_caller]
    fn expect_refs_at(&self, host: &SyncServer, refs: &[&str]) {
        let remote = ls_remote(&self.url(host));
        let expected = refs.iter().map(|name| ((*name).to_owned(), self.work.oid(name))).collect();
        assert_eq!(remote.refs, expected);
        WorkTree::clone(&self.url(host)).fsck();
    }
}

/// Starts a server that syncs from an independent relay.
fn start_follower(relay: &IndependentRelay, settings: &[(&str, &str)]) -> SyncServer {
    let url = relay.url();
    SyncServer::start(&[&[("SYNC_BOOTSTRAP_RELAY_URL", url.as_str())], settings].concat())
}

fn publish(relay: &IndependentRelay, events: &[&Arc<SignedEvent>]) {
    let mut client = relay.client();
    for event in events {
        assert!(client.publish(event).0);
    }
}

#[test]
fn pushed_data_is_fetched_by_the_other_server() {
    let (mut a, mut b) = (SyncServer::start(&[]), SyncServer::start(&[]));
    let repo = FetchedRepo::new(1, "shared");
    let announcement = repo.announce(&[&a, &b], &[], &[]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    a.publish(&announcement);
    a.publish(&state);
    repo.work.push(&repo.url(&a), &[MAIN]).expect_success();
    a.eventually_served(&[&announcement, &state]);
    // B receives only the announcement from a client, and syncs everything else.
    b.publish(&announcement);
    b.eventually_served(&[&announcement, &state]);
    repo.expect_refs_at(&b, &[MAIN]);
    let (url_a, url_b) = (a.relay_url(), b.relay_url());
    b.eventually_state(&url_a, 3.0);
    a.eventually_state(&url_b, 3.0);

    // Both are connected now: a push to one server is fetched by the other.
    repo.work.commit("file", "more");
    let newer = repo.state(BASE_TIME + 1, &[MAIN]);
    a.publish(&newer);
    repo.work.push(&repo.url(&a), &[MAIN]).expect_success();
    let pushed = Instant::now();
    b.eventually_served(&[&newer]);
    eprintln!("the other server has it {:?} after the push", pushed.elapsed());
    a.kill();
    repo.expect_refs_at(&b, &[MAIN]);
    b.eventually_served(&[&announcement, &newer]);
}

/// A state that a client publishes to both servers, and whose git data reaches only one, is held by the other. That
/// server sees it on the first one's relay when it is served there, and fetches it then, not after three minutes.
#[test]
fn held_state_that_is_seen_on_a_relay_is_fetched_soon() {
    let (mut a, mut b) = (SyncServer::start(&[]), SyncServer::start(&[]));
    let repo = FetchedRepo::new(1, "shared");
    let announcement = repo.announce(&[&a, &b], &[], &[]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    for server in [&mut a, &mut b] {
        server.publish(&announcement);
        server.publish(&state);
        assert_eq!(server.count_served(&[&state]), 0);
    }
    repo.work.push(&repo.url(&a), &[MAIN]).expect_success();
    a.eventually_served(&[&announcement, &state]);
    b.eventually_served(&[&announcement, &state]);
    repo.expect_refs_at(&b, &[MAIN]);
}

/// A dormant event is fetched once an hour. When a relay delivers it again, it is fetched at once.
#[test]
fn dormant_event_that_reappears_is_fetched_at_once() {
    let server = GitServer::start();
    let (relay, second) = (IndependentRelay::start(), IndependentRelay::start());
    let mut b = start_follower(&relay, &[("PURGATORY_EXPIRY_SECS", "1")]);
    let repo = FetchedRepo::new(1, "tool");
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[&second.url()]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    publish(&relay, &[&announcement, &state]);
    let is_dormant = |b: &SyncServer| b.metric("ngit_purgatory_dormant").filter(|count| *count >= 1.0);
    eventually("the state is dormant", || is_dormant(&b));
    server.import_refs("tool", &repo.work, &[MAIN]);
    publish(&second, &[&state]);
    b.eventually_served(&[&announcement, &state]);
}

#[test]
fn push_in_time_makes_a_fetch_unnecessary() {
    let server = GitServer::start();
    let mut b = SyncServer::start(&[]);
    let repo = FetchedRepo::new(1, "tool");
    server.import_refs("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    b.publish(&announcement);
    b.publish(&state);
    repo.work.push(&repo.url(&b), &[MAIN]).expect_success();
    b.eventually_served(&[&announcement, &state]);
    assert_eq!(server.requests(), Vec::<String>::new(), "the git server was requested");
}

#[test]
fn synced_state_whose_data_is_present_is_released_at_once() {
    let independent = IndependentRelay::start();
    let server = GitServer::start();
    let mut b = start_follower(&independent, &[]);
    let repo = FetchedRepo::new(1, "tool");
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[&independent.url()]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    b.publish(&announcement);
    b.publish(&state);
    repo.work.push(&repo.url(&b), &[MAIN]).expect_success();
    // A branch at a commit that is present.
    repo.work.branch("other");
    let both = repo.state(BASE_TIME + 1, &[MAIN, "refs/heads/other"]);
    publish(&independent, &[&both]);
    b.eventually_served(&[&both]);
    repo.expect_refs_at(&b, &[MAIN, "refs/heads/other"]);
    assert_eq!(server.requests(), Vec::<String>::new(), "the git server was requested");
}

#[test]
fn missing_data_of_synced_events_is_fetched() {
    let independent = IndependentRelay::start();
    let server = GitServer::start();
    let mut b = start_follower(&independent, &[]);
    let repo = FetchedRepo::new(1, "tool");
    repo.work.tag("v1");
    server.import_refs("tool", &repo.work, &[MAIN, "refs/tags/v1"]);
    let url = server.url("tool");
    let unreachable = format!("http://{}/tool.git", unused_address());
    let announcement = repo.announce(&[&b], &[&unreachable, &server.url("no-such"), &url], &[&independent.url()]);
    let state = repo.state(BASE_TIME, &[MAIN, "refs/tags/v1"]);
    publish(&independent, &[&announcement, &state]);
    b.eventually_served(&[&announcement, &state]);
    repo.expect_refs_at(&b, &[MAIN, "refs/tags/v1"]);
    let requests: BTreeSet<String> = server.requests().into_iter().collect();
    assert!(requests.contains("POST /tool.git/git-upload-pack"), "{requests:?}");
}

#[test]
fn events_whose_data_is_not_found_expire() {
    let independent = IndependentRelay::start();
    let server = GitServer::start();
    let mut b = start_follower(&independent, &[("PURGATORY_EXPIRY_SECS", "8")]);
    let repo = FetchedRepo::new(1, "tool");
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[&independent.url()]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    publish(&independent, &[&announcement, &state]);
    eventually("the git server is requested", || (!server.requests().is_empty()).then_some(()));
    let page = format!("{}/purgatory", repo_path(&repo.owner.key().npub(), "tool"));
    eventually("the state is listed as dormant", || {
        let page = b.process.get(&page, "");
        (page.contains(&state.id.to_string()) && page.contains("\"dormant\":true")).then_some(())
    });
    assert_eq!(b.count_served(&[&announcement, &state]), 0);
    // The events are dormant now: their data is still searched for, and a push releases them.
    repo.work.push(&repo.url(&b), &[MAIN]).expect_success();
    b.eventually_served(&[&announcement, &state]);
}

#[test]
fn data_is_combined_from_two_servers() {
    let independent = IndependentRelay::start();
    let (first, second) = (GitServer::start(), GitServer::start());
    let mut b = start_follower(&independent, &[]);
    let repo = FetchedRepo::new(1, "tool");
    first.import_refs("tool", &repo.work, &[MAIN]);
    repo.work.commit_orphan("other", "nothing in common");
    second.import_refs("tool", &repo.work, &["refs/heads/other"]);
    let clone = [first.url("tool"), second.url("tool")];
    let announcement = repo.announce(&[&b], &[&clone[0], &clone[1]], &[&independent.url()]);
    let state = repo.state(BASE_TIME, &[MAIN, "refs/heads/other"]);
    publish(&independent, &[&announcement, &state]);
    b.eventually_served(&[&announcement, &state]);
    repo.expect_refs_at(&b, &[MAIN, "refs/heads/other"]);
}

/// One of the tips of a state is on no server. What was fetched for the others is not sent again, although no ref names it
/// while the state is held.
#[test]
fn data_that_waits_for_a_missing_tip_is_not_fetched_again() {
    let independent = IndependentRelay::start();
    let server = GitServer::start();
    let mut b = start_follower(&independent, &[("LOG_LEVEL", "debug")]);
    let repo = FetchedRepo::new(1, "tool");
    let mut number = 1_u64;
    let noise = std::iter::repeat_with(|| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{number:x}")
    });
    repo.work.commit("large", &noise.take(20_000).collect::<String>());
    server.import_refs("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[&independent.url()]);
    let state = |at: u64| {
        let tags = [
            vec!["d".to_owned(), "tool".to_owned()],
            vec!["HEAD".to_owned(), format!("ref: {MAIN}")],
            vec![MAIN.to_owned(), repo.work.oid(MAIN)],
            vec!["refs/heads/lost".to_owned(), "1".repeat(40)],
        ];
        repo.owner.sign_owned(kinds::STATE, at, tags.to_vec(), "")
    };
    publish(&independent, &[&announcement, &state(BASE_TIME)]);
    b.eventually_metric("purgatory_sync_oids_fetched_total", 1.0);
    let first = server.sent_bytes();
    assert!(first > 100_000, "{first}");

    repo.work.commit("small", "more");
    server.import_refs("tool", &repo.work, &[MAIN]);
    publish(&independent, &[&state(BASE_TIME + 1)]);
    b.eventually_metric("purgatory_sync_oids_fetched_total", 2.0);
    let second = server.sent_bytes() - first;
    assert!(second < 10_000, "{second} bytes were sent for one small commit");

    // After a restart the data is known too.
    b.stop();
    b.start_again();
    let before = server.requests().len();
    eventually("the git server is asked again", || (server.requests().len() > before).then_some(()));
    b.eventually_metric("purgatory_sync_attempts_total", 1.0);
    let third = server.sent_bytes() - first - second;
    assert!(third < 10_000, "{third} bytes were sent after the restart");
}

#[test]
fn limit_that_the_operator_has_set_applies_to_grasp_servers() {
    let mut a = SyncServer::start(&[]);
    let mut b = SyncServer::start(&[("SYNC_DOMAIN_CONCURRENT", "1")]);
    let repo = FetchedRepo::new(1, "shared");
    let announcement = repo.announce(&[&a, &b], &[], &[]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    a.publish(&announcement);
    a.publish(&state);
    repo.work.push(&repo.url(&a), &[MAIN]).expect_success();
    b.publish(&announcement);
    b.eventually_served(&[&announcement, &state]);
    // No server has the git data of this state, so B keeps asking A.
    repo.work.commit("file", "not pushed");
    b.publish(&repo.state(BASE_TIME + 1, &[MAIN]));
    // A states eight at once and 120 per minute in its NIP-11 document.
    eventually("the limits of the other server are shown", || {
        let page = b.process.get("/status.json", "");
        let json: Value = serde_json::from_str(page.split("\r\n\r\n").nth(1)?).ok()?;
        let host = json["fetch"]["hosts"].as_array()?.first()?.clone();
        (host["per_minute"] == 120).then(|| assert_eq!(host["concurrent"], 1))
    });
}

#[test]
fn commits_of_a_pull_request_are_fetched_from_its_clone_url() {
    let independent = IndependentRelay::start();
    let (main, fork) = (GitServer::start(), GitServer::start());
    let mut b = start_follower(&independent, &[]);
    let repo = FetchedRepo::new(1, "tool");
    main.import_refs("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&main.url("tool")], &[&independent.url()]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    repo.work.branch("feature");
    let tip = repo.work.commit("file", "better");
    fork.import_refs("fork", &repo.work, &["refs/heads/feature"]);
    let contributor = Author::new(9);
    let coordinate = repo.owner.repo("tool");
    let pull = contributor.sign(
        kinds::PULL_REQUEST,
        now(),
        &[&["a", &coordinate], &["c", &tip], &["clone", &fork.url("fork")]],
        "please merge",
    );
    publish(&independent, &[&announcement, &state, &pull]);
    b.eventually_served(&[&announcement, &state, &pull]);
    let remote = ls_remote(&repo.url(&b));
    assert_eq!(remote.refs.get(&format!("refs/nostr/{}", pull.id)), Some(&tip));
}

#[test]
fn silent_server_does_not_delay_the_fetch_until_its_timeout() {
    let independent = IndependentRelay::start();
    let (silent, working) = (GitServer::start(), GitServer::start());
    silent.set_mode(GitServerMode::Silent);
    let mut b = start_follower(&independent, &[]);
    let repo = FetchedRepo::new(1, "tool");
    working.import_refs("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&silent.url("tool"), &working.url("tool")], &[&independent.url()]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    publish(&independent, &[&announcement, &state]);
    b.eventually_served(&[&announcement, &state]);
    assert!(!silent.requests().is_empty(), "the silent server was not requested");
}

#[test]
fn retry_after_of_a_git_server_is_respected() {
    let independent = IndependentRelay::start();
    let server = GitServer::start();
    server.set_mode(GitServerMode::Failing(429, "Retry-After: 3\r\n".to_owned()));
    let mut b = start_follower(&independent, &[]);
    let repo = FetchedRepo::new(1, "tool");
    server.import_refs("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[&independent.url()]);
    let state = repo.state(BASE_TIME, &[MAIN]);
    publish(&independent, &[&announcement, &state]);
    eventually("the git server is requested", || (!server.requests().is_empty()).then_some(()));
    server.set_mode(GitServerMode::Normal);
    b.eventually_served(&[&announcement, &state]);
    let times = server.request_times();
    let waited = times[1].duration_since(times[0]);
    assert!(waited >= Duration::from_millis(2_300), "{waited:?}");
}

#[test]
fn held_events_do_not_expire_while_their_fetch_is_queued() {
    const REPOSITORIES: usize = 24;
    let independent = IndependentRelay::start();
    let server = GitServer::start();
    server.set_mode(GitServerMode::Slow(Duration::from_millis(250)));
    // Two concurrent fetches need three seconds for all repositories, and the expiry time is one second.
    let mut b = start_follower(
        &independent,
        &[("PURGATORY_EXPIRY_SECS", "1"), ("SYNC_DOMAIN_CONCURRENT", "2"), ("SYNC_DOMAIN_RATE_LIMIT", "600")],
    );
    let mut events = Vec::new();
    for n in 0..REPOSITORIES {
        let repo = FetchedRepo::new(u8::try_from(n % 5 + 1).expect("number fits in u8"), &format!("tool-{n}"));
        server.import_refs(&repo.d, &repo.work, &[MAIN]);
        events.push(repo.announce(&[&b], &[&server.url(&repo.d)], &[&independent.url()]));
        events.push(repo.state(BASE_TIME, &[MAIN]));
    }
    let events: Vec<&Arc<SignedEvent>> = events.iter().collect();
    publish(&independent, &events);
    b.eventually_served(&events);
    assert!(server.max_open_requests() <= 2, "{} concurrent requests", server.max_open_requests());
    let fetches = server.requests().iter().filter(|request| request.starts_with("POST")).count();
    assert!(fetches >= REPOSITORIES, "{fetches}");
}

#[test]
fn private_addresses_are_not_fetched_from_by_default() {
    let server = GitServer::start();
    let independent = IndependentRelay::start();
    let url = independent.url();
    let mut b = SyncServer::start(&[("SYNC_ALLOW_NON_GLOBAL_TARGETS", "false"), ("SYNC_BOOTSTRAP_RELAY_URL", &url)]);
    let repo = FetchedRepo::new(1, "tool");
    server.import_refs("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[]);
    b.publish(&announcement);
    b.publish(&repo.state(BASE_TIME, &[MAIN]));
    eventually("the forbidden URL is logged", || b.log().contains("git server URL is forbidden").then_some(()));
    assert_eq!(server.requests(), Vec::<String>::new());
    assert!(try_ls_remote(&repo.url(&b)).is_some_and(|remote| remote.refs.is_empty()));
}

/// Announcements cannot make the server connect to services on other ports of its own machine, also not through a public
/// address.
#[test]
fn public_addresses_of_this_machine_are_not_dialled() {
    // The system treats the second address of a network differently: it is not the source of packets to it.
    let (first, second) = ("9.9.9.9", "9.9.9.10");
    let addresses = [&format!("{first}/24")[..], &format!("{second}/24")];
    if !is_in_network_namespace("fetch::public_addresses_of_this_machine_are_not_dialled", &addresses) {
        return;
    }
    let listen = |address: &str| {
        let listener = TcpListener::bind((address, 0)).expect("cannot bind an address");
        listener.set_nonblocking(true).expect("cannot make the socket non-blocking");
        let address = listener.local_addr().expect("no local address");
        (listener, address)
    };
    let (relay, relay_address) = listen(first);
    let (git, git_address) = listen(second);
    let (configured, configured_address) = listen(first);
    let bootstrap = format!("ws://{configured_address}");
    let settings = [("SYNC_ALLOW_NON_GLOBAL_TARGETS", "false"), ("SYNC_BOOTSTRAP_RELAY_URL", &bootstrap)];
    let mut server = SyncServer::start(&settings);
    let repo = FetchedRepo::new(1, "tool");
    let clone_url = format!("http://{git_address}/tool.git");
    server.publish(&repo.announce(&[&server], &[&clone_url], &[&format!("ws://{relay_address}")]));
    server.publish(&repo.state(BASE_TIME, &[MAIN]));
    // The relay that the operator configured is at the same address. It shows that the address can be reached.
    eventually("the configured relay is dialled", || configured.accept().ok());
    // Without the command, the fetch would wait for the client to push.
    eventually("the fetch is scheduled", || {
        let rows = server.process.run(&["purgatory", "--json"]).json_lines();
        rows.iter().any(|row| row["search"].is_object()).then_some(())
    });
    server.process.run(&["purgatory", "retry", "tool"]).expect_success();
    eventually("the git server is rejected", || server.log().contains("git server URL is forbidden").then_some(()));
    eventually("the relay is rejected", || server.log().contains("reason=\"forbidden\"").then_some(()));
    for listener in [relay, git] {
        let error = listener.accept().expect_err("the server has connected");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
    }
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds cannot check mirrors without delays")]
fn replication_status_of_git_servers_is_checked() {
    let server = GitServer::start();
    let mut b = SyncServer::start(&[("GRASPD_TEST_NO_DELAYS", "1"), ("SYNC_DOMAIN_RATE_LIMIT", "600")]);
    let repo = FetchedRepo::new(1, "tool");
    server.import_refs("tool", &repo.work, &[MAIN]);
    repo.work.commit("file", "more");
    repo.work.tag("v1");
    let refs = [MAIN, "refs/tags/v1"];
    let unreachable = format!("http://{}/tool.git", unused_address());
    let clone = [&server.url("tool"), &server.url("no-such"), &unreachable, "ssh://git@127.0.0.1/tool"];
    let announcement = repo.announce(&[&b], &clone, &[]);
    b.publish(&announcement);
    b.publish(&repo.state(BASE_TIME, &refs));
    repo.work.push(&repo.url(&b), &refs).expect_success();
    let page = repo_path(&repo.owner.key().npub(), "tool");
    let eventually_status = |b: &SyncServer, nth: usize, expected: Value| {
        eventually(&format!("{expected} of git server {nth}"), || {
            let response = b.process.get(&format!("{page}/replication.json"), "");
            let (_, body) = response.split_once("\r\n\r\n")?;
            let status: Value = serde_json::from_str(body).ok()?;
            let server = &status["git_servers"][nth];
            let is_equal = |(name, value): (&String, &Value)| server["has"][name] == *value;
            expected.as_object().is_some_and(|expected| expected.iter().all(is_equal)).then(|| server.clone())
        })
    };
    let lacking = eventually_status(&b, 1, json!({"state": "incomplete", "lacks": 2, "differs": 1, "of": 2}));
    assert!(lacking["asked_at"].is_u64() && lacking["how"] == "checked directly", "{lacking}");
    eventually_status(&b, 2, json!({"state": "absent"}));
    eventually_status(&b, 3, json!({"state": "no_response"}));
    eventually_status(&b, 4, json!({"state": "not_contacted"}));
    server.import_refs("tool", &repo.work, &refs);
    let current = eventually_status(&b, 1, json!({"state": "current"}));
    assert!(current["has"]["since"].is_u64() && current["has"]["since"].as_u64() <= current["asked_at"].as_u64());
    let text = b.process.get(&page, "");
    assert!(text.contains("up to date, known since") && text.contains("does not respond (checked "), "{text}");
    assert_eq!(server.max_open_requests(), 1, "concurrent requests");

    // A new commit here is missing on the git server.
    repo.work.commit("file", "still more");
    b.publish(&repo.state(BASE_TIME + 1, &refs));
    repo.work.push(&repo.url(&b), &[MAIN]).expect_success();
    eventually_status(&b, 1, json!({"state": "incomplete", "lacks": 1, "differs": 1, "of": 2}));
}
