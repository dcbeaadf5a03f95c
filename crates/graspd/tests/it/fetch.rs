//! Document 002: git data that is missing here is found elsewhere, politely.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git::{MAIN, THEN, Work, ls_remote, repo_path, try_ls_remote};
use crate::support::git_server::{GitServer, Mood};
use crate::support::peers::independent_relay::Independent;
use crate::support::peers::{Neighbour, now, place};

/// A repository whose owner signs and works.
struct Repo {
    owner: Author,
    d: String,
    work: Work,
}

impl Repo {
    fn new(owner: u8, d: &str) -> Self {
        let work = Work::new();
        work.commit("file", d);
        Self { owner: Author::new(owner), d: d.to_owned(), work }
    }

    /// An announcement for some graspd, and further git servers and relays.
    fn announce(&self, hosts: &[&Neighbour], clone: &[&str], relays: &[&str]) -> Arc<SignedEvent> {
        let path = self.owner.repo_id(&self.d).path();
        let list = |name: &str, own: Vec<String>, more: &[&str]| {
            let more = more.iter().map(|url| (*url).to_owned());
            std::iter::once(name.to_owned()).chain(own).chain(more).collect::<Vec<_>>()
        };
        let clones = hosts.iter().map(|host| format!("http://{}/{path}", host.place)).collect();
        let tags = vec![
            vec!["d".to_owned(), self.d.clone()],
            list("clone", clones, clone),
            list("relays", hosts.iter().map(|host| host.relay()).collect(), relays),
        ];
        self.owner.sign_owned(kinds::ANNOUNCEMENT, THEN, tags, "")
    }

    /// A state of these refs, as they stand in the working tree.
    fn state(&self, at: u64, refs: &[&str]) -> Arc<SignedEvent> {
        let mut tags = vec![vec!["d".to_owned(), self.d.clone()], vec!["HEAD".to_owned(), format!("ref: {MAIN}")]];
        tags.extend(refs.iter().map(|name| vec![(*name).to_owned(), self.work.oid(name)]));
        self.owner.sign_owned(kinds::STATE, at, tags, "")
    }

    fn url(&self, host: &Neighbour) -> String {
        format!("http://{}{}", host.place, repo_path(&self.owner.key().npub(), &self.d))
    }

    /// Demands that a server shows exactly these refs of the working tree, and that everything behind them is there.
    #[track_caller]
    fn expect_at(&self, host: &Neighbour, refs: &[&str]) {
        let remote = ls_remote(&self.url(host));
        let expected = refs.iter().map(|name| ((*name).to_owned(), self.work.oid(name))).collect();
        assert_eq!(remote.refs, expected);
        Work::clone(&self.url(host)).fsck();
    }
}

/// A graspd that finds its repositories on an independent relay.
fn follower(relay: &Independent, settings: &[(&str, &str)]) -> Neighbour {
    let url = relay.url();
    Neighbour::start(&[&[("SYNC_BOOTSTRAP_RELAY_URL", url.as_str())], settings].concat())
}

fn publish(relay: &Independent, events: &[&Arc<SignedEvent>]) {
    let mut client = relay.client();
    for event in events {
        assert!(client.publish(event).0);
    }
}

#[test]
fn two_servers_one_push_and_the_first_goes_away() {
    let (mut a, mut b) = (Neighbour::start(&[]), Neighbour::start(&[]));
    let repo = Repo::new(1, "shared");
    let announcement = repo.announce(&[&a, &b], &[], &[]);
    let state = repo.state(THEN, &[MAIN]);
    a.publish(&announcement);
    a.publish(&state);
    repo.work.push(&repo.url(&a), &[MAIN]).done();
    a.eventually_served(&[&announcement, &state]);
    // B hears of the repository because somebody tells it that there is one; everything else it finds out.
    b.publish(&announcement);
    b.eventually_served(&[&announcement, &state]);
    repo.expect_at(&b, &[MAIN]);
    let (of_a, of_b) = (a.relay(), b.relay());
    b.eventually_state(&of_a, 3.0);
    a.eventually_state(&of_b, 3.0);

    // Now that they know each other: a push to one.
    repo.work.commit("file", "more");
    let newer = repo.state(THEN + 1, &[MAIN]);
    a.publish(&newer);
    repo.work.push(&repo.url(&a), &[MAIN]).done();
    let pushed = Instant::now();
    b.eventually_served(&[&newer]);
    eprintln!("the other server has it {:?} after the push", pushed.elapsed());
    a.kill();
    repo.expect_at(&b, &[MAIN]);
    b.eventually_served(&[&announcement, &newer]);
}

#[test]
fn timeline_a_a_push_that_comes_is_waited_for() {
    let server = GitServer::start();
    let mut b = Neighbour::start(&[]);
    let repo = Repo::new(1, "tool");
    server.take("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[]);
    let state = repo.state(THEN, &[MAIN]);
    b.publish(&announcement);
    b.publish(&state);
    repo.work.push(&repo.url(&b), &[MAIN]).done();
    b.eventually_served(&[&announcement, &state]);
    assert_eq!(server.asked(), Vec::<String>::new(), "nobody needed it");
}

#[test]
fn timeline_b_data_that_is_here_already_releases_at_once() {
    let independent = Independent::start();
    let server = GitServer::start();
    let mut b = follower(&independent, &[]);
    let repo = Repo::new(1, "tool");
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[&independent.url()]);
    let state = repo.state(THEN, &[MAIN]);
    b.publish(&announcement);
    b.publish(&state);
    repo.work.push(&repo.url(&b), &[MAIN]).done();
    // A branch to a commit that is here.
    repo.work.branch("other");
    let both = repo.state(THEN + 1, &[MAIN, "refs/heads/other"]);
    publish(&independent, &[&both]);
    b.eventually_served(&[&both]);
    repo.expect_at(&b, &[MAIN, "refs/heads/other"]);
    assert_eq!(server.asked(), Vec::<String>::new(), "nobody needed it");
}

#[test]
fn timeline_c_synced_events_find_their_data() {
    let independent = Independent::start();
    let server = GitServer::start();
    let mut b = follower(&independent, &[]);
    let repo = Repo::new(1, "tool");
    repo.work.tag("v1");
    server.take("tool", &repo.work, &[MAIN, "refs/tags/v1"]);
    let url = server.url("tool");
    let nowhere = format!("http://{}/tool.git", place());
    let announcement = repo.announce(&[&b], &[&nowhere, &server.url("no-such"), &url], &[&independent.url()]);
    let state = repo.state(THEN, &[MAIN, "refs/tags/v1"]);
    publish(&independent, &[&announcement, &state]);
    b.eventually_served(&[&announcement, &state]);
    repo.expect_at(&b, &[MAIN, "refs/tags/v1"]);
    let asked: BTreeSet<String> = server.asked().into_iter().collect();
    assert!(asked.contains("POST /tool.git/git-upload-pack"), "{asked:?}");
}

#[test]
fn timeline_d_what_is_nowhere_expires_and_stays_unserved() {
    let independent = Independent::start();
    let server = GitServer::start();
    let mut b = follower(&independent, &[("PURGATORY_EXPIRY_SECS", "8")]);
    let repo = Repo::new(1, "tool");
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[&independent.url()]);
    let state = repo.state(THEN, &[MAIN]);
    publish(&independent, &[&announcement, &state]);
    eventually("the git server is asked", || (!server.asked().is_empty()).then_some(()));
    let page = format!("{}/purgatory", repo_path(&repo.owner.key().npub(), "tool"));
    eventually("it is not shown as waiting any more", || {
        let page = b.server.get(&page, "");
        (!page.contains(&state.id.to_string())).then_some(())
    });
    assert_eq!(b.served(&[&announcement, &state]), 0);
    // It is the last word, so it is still looked for now and then; whoever brings it is welcome.
    repo.work.push(&repo.url(&b), &[MAIN]).done();
    b.eventually_served(&[&announcement, &state]);
}

#[test]
fn parts_from_two_servers_make_a_whole() {
    let independent = Independent::start();
    let (first, second) = (GitServer::start(), GitServer::start());
    let mut b = follower(&independent, &[]);
    let repo = Repo::new(1, "tool");
    first.take("tool", &repo.work, &[MAIN]);
    repo.work.orphan("other", "nothing in common");
    second.take("tool", &repo.work, &["refs/heads/other"]);
    let clone = [first.url("tool"), second.url("tool")];
    let announcement = repo.announce(&[&b], &[&clone[0], &clone[1]], &[&independent.url()]);
    let state = repo.state(THEN, &[MAIN, "refs/heads/other"]);
    publish(&independent, &[&announcement, &state]);
    b.eventually_served(&[&announcement, &state]);
    repo.expect_at(&b, &[MAIN, "refs/heads/other"]);
}

#[test]
fn a_pull_request_whose_commits_only_its_author_has() {
    let independent = Independent::start();
    let (main, fork) = (GitServer::start(), GitServer::start());
    let mut b = follower(&independent, &[]);
    let repo = Repo::new(1, "tool");
    main.take("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&main.url("tool")], &[&independent.url()]);
    let state = repo.state(THEN, &[MAIN]);
    repo.work.branch("feature");
    let tip = repo.work.commit("file", "better");
    fork.take("fork", &repo.work, &["refs/heads/feature"]);
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
fn a_silent_server_costs_seconds_not_its_timeout() {
    let independent = Independent::start();
    let (silent, kind) = (GitServer::start(), GitServer::start());
    silent.be(Mood::Silent);
    let mut b = follower(&independent, &[]);
    let repo = Repo::new(1, "tool");
    kind.take("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&silent.url("tool"), &kind.url("tool")], &[&independent.url()]);
    let state = repo.state(THEN, &[MAIN]);
    publish(&independent, &[&announcement, &state]);
    b.eventually_served(&[&announcement, &state]);
    assert!(!silent.asked().is_empty(), "it was the first to be asked");
}

#[test]
fn whoever_says_that_it_is_too_much_is_left_alone_and_asked_again() {
    let independent = Independent::start();
    let server = GitServer::start();
    server.be(Mood::Refusing(429, "Retry-After: 3\r\n".to_owned()));
    let mut b = follower(&independent, &[]);
    let repo = Repo::new(1, "tool");
    server.take("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[&independent.url()]);
    let state = repo.state(THEN, &[MAIN]);
    publish(&independent, &[&announcement, &state]);
    eventually("it is asked", || (!server.asked().is_empty()).then_some(()));
    server.be(Mood::Kind);
    b.eventually_served(&[&announcement, &state]);
    let times = server.asked_at();
    let waited = times[1].duration_since(times[0]);
    assert!(waited >= Duration::from_millis(2_300), "{waited:?}");
}

#[test]
fn many_repositories_of_one_slow_server_outlive_their_half_hour() {
    const REPOSITORIES: usize = 24;
    let independent = Independent::start();
    let server = GitServer::start();
    server.be(Mood::Slow(Duration::from_millis(250)));
    // Two at a time need three seconds for all of them, and everything is to expire after one.
    let mut b = follower(
        &independent,
        &[("PURGATORY_EXPIRY_SECS", "1"), ("SYNC_DOMAIN_CONCURRENT", "2"), ("SYNC_DOMAIN_RATE_LIMIT", "600")],
    );
    let mut events = Vec::new();
    for n in 0..REPOSITORIES {
        let repo = Repo::new(u8::try_from(n % 5 + 1).expect("small"), &format!("tool-{n}"));
        server.take(&repo.d, &repo.work, &[MAIN]);
        events.push(repo.announce(&[&b], &[&server.url(&repo.d)], &[&independent.url()]));
        events.push(repo.state(THEN, &[MAIN]));
    }
    let events: Vec<&Arc<SignedEvent>> = events.iter().collect();
    publish(&independent, &events);
    b.eventually_served(&events);
    assert!(server.most_open() <= 2, "{} at a time", server.most_open());
    let fetches = server.asked().iter().filter(|asked| asked.starts_with("POST")).count();
    assert!(fetches >= REPOSITORIES, "{fetches}");
}

#[test]
fn nobody_is_called_at_home_unless_the_operator_says_so() {
    let server = GitServer::start();
    let independent = Independent::start();
    let url = independent.url();
    let mut b = Neighbour::start(&[("SYNC_ALLOW_NON_GLOBAL_TARGETS", "false"), ("SYNC_BOOTSTRAP_RELAY_URL", &url)]);
    let repo = Repo::new(1, "tool");
    server.take("tool", &repo.work, &[MAIN]);
    let announcement = repo.announce(&[&b], &[&server.url("tool")], &[]);
    b.publish(&announcement);
    b.publish(&repo.state(THEN, &[MAIN]));
    eventually("it is said", || b.log().contains("a git server is not called").then_some(()));
    assert_eq!(server.asked(), Vec::<String>::new());
    assert!(try_ls_remote(&repo.url(&b)).is_some_and(|remote| remote.refs.is_empty()));
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds know no haste")]
fn a_plain_git_server_is_looked_at_now_and_then() {
    let server = GitServer::start();
    let mut b = Neighbour::start(&[("GRASPD_HASTE", "1"), ("SYNC_DOMAIN_RATE_LIMIT", "600")]);
    let repo = Repo::new(1, "tool");
    server.take("tool", &repo.work, &[MAIN]);
    repo.work.commit("file", "more");
    repo.work.tag("v1");
    let refs = [MAIN, "refs/tags/v1"];
    let nowhere = format!("http://{}/tool.git", place());
    let places = [&server.url("tool"), &server.url("no-such"), &nowhere, "ssh://git@127.0.0.1/tool"];
    let announcement = repo.announce(&[&b], &places, &[]);
    b.publish(&announcement);
    b.publish(&repo.state(THEN, &refs));
    repo.work.push(&repo.url(&b), &refs).done();
    let page = repo_path(&repo.owner.key().npub(), "tool");
    let found = |b: &Neighbour, nth: usize, what: Value| {
        eventually(&format!("{what} of place {nth}"), || {
            let answer = b.server.get(&format!("{page}/replication.json"), "");
            let (_, body) = answer.split_once("\r\n\r\n")?;
            let known: Value = serde_json::from_str(body).ok()?;
            let server = &known["git_servers"][nth];
            let same = |(name, value): (&String, &Value)| server["has"][name] == *value;
            what.as_object().is_some_and(|what| what.iter().all(same)).then(|| server.clone())
        })
    };
    let lacking = found(&b, 1, json!({"state": "lacking", "lacks": 2, "differs": 1, "of": 2}));
    assert!(lacking["asked_at"].is_u64() && lacking["how"] == "by asking it", "{lacking}");
    found(&b, 2, json!({"state": "absent"}));
    found(&b, 3, json!({"state": "silent"}));
    found(&b, 4, json!({"state": "shunned"}));
    server.take("tool", &repo.work, &refs);
    let current = found(&b, 1, json!({"state": "current"}));
    assert!(current["has"]["since"].is_u64() && current["has"]["since"].as_u64() <= current["asked_at"].as_u64());
    let text = b.server.get(&page, "");
    assert!(text.contains("has it, known since") && text.contains("does not answer (asked "), "{text}");
    assert_eq!(server.most_open(), 1, "one at a time");

    // What changes here is missing there.
    repo.work.commit("file", "still more");
    b.publish(&repo.state(THEN + 1, &refs));
    repo.work.push(&repo.url(&b), &[MAIN]).done();
    found(&b, 1, json!({"state": "lacking", "lacks": 1, "differs": 1, "of": 2}));
}
