//! A server, a client of its relay, and what is expected of both.

use std::path::PathBuf;
use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use serde_json::json;

use super::git::{MAIN, Maintainer, Refs, Remote, Work, ls_remote, refs, repo_path};
use super::{Client, Server, eventually};

/// How a server ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// SIGTERM.
    Asked,
    /// `kill -9`.
    Killed,
}

/// A server with a client.
pub struct Stage {
    pub server: Server,
    pub client: Client,
    pub service: ServiceAddress,
    settings: Vec<(&'static str, &'static str)>,
}

impl Stage {
    /// A server whose name stays the same when it gets another port.
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// The same with further settings.
    pub fn with(settings: &[(&'static str, &'static str)]) -> Self {
        Self::bare(&[&[("DOMAIN", "grasp.test")], settings].concat())
    }

    /// A server with these settings only.
    pub fn bare(settings: &[(&'static str, &'static str)]) -> Self {
        Self::of(Server::start(settings), settings.to_vec())
    }

    fn of(server: Server, settings: Vec<(&'static str, &'static str)>) -> Self {
        let relay = server.welcome.iter().find_map(|line| line.trim().strip_prefix("relay"));
        let at = relay.and_then(|url| url.split_once("://")).map(|(_, at)| at).expect("graspd says where its relay is");
        let (domain, _) = at.split_once('/').unwrap_or((at, ""));
        let service = ServiceAddress::new(domain, &server.base).expect("an address");
        let client = server.connect();
        Self { server, client, service, settings }
    }

    /// Ends the server and starts another one in its folder.
    pub fn again(self, end: End) -> Self {
        let settings: Vec<_> = self.settings.clone();
        self.restart(end, settings)
    }

    /// The same with other settings beside its name.
    pub fn again_with(self, end: End, settings: &[(&'static str, &'static str)]) -> Self {
        self.restart(end, [&[("DOMAIN", "grasp.test")], settings].concat())
    }

    fn restart(mut self, end: End, settings: Vec<(&'static str, &'static str)>) -> Self {
        match end {
            End::Asked => assert_eq!(self.server.stop(), Some(0)),
            End::Killed => self.server.kill(),
        }
        Self::of(Server::start_in(self.server.folder(), &settings), settings)
    }

    /// Starts another server in the folder of one that has ended.
    pub fn again_after_its_end(self) -> Self {
        Self::of(Server::start_in(self.server.folder(), &self.settings), self.settings.clone())
    }

    pub fn person(&self, n: u8) -> Maintainer {
        Maintainer::new(n, &self.service)
    }

    /// Four people: O, M, R and X of the spec's examples.
    pub fn cast(&self) -> [Maintainer; 4] {
        [1, 2, 3, 4].map(|n| self.person(n))
    }

    fn at(&self, path: &str) -> String {
        format!("http://{}{}{path}", self.server.address, self.server.base)
    }

    /// The git URL of an announced repository.
    pub fn url(&self, who: &Maintainer, d: &str) -> String {
        self.at(&repo_path(&who.npub(), d))
    }

    /// The git URL of what somebody submits (GRASP-06).
    pub fn prs_url(&self, who: &Maintainer, d: &str) -> String {
        self.at(&format!("/prs{}", repo_path(&who.npub(), d)))
    }

    /// The URL under which the service is known, for `clone` tags.
    pub fn public_prs_url(&self, who: &Maintainer, d: &str) -> String {
        format!("https://{}{}/prs{}", self.service.domain(), self.service.base(), repo_path(&who.npub(), d))
    }

    /// The folder of the git data.
    pub fn git_folder(&self) -> PathBuf {
        self.server.folder().path().join("data/git")
    }

    /// Publishes something that must be taken, now or when its data comes.
    #[track_caller]
    pub fn publish(&mut self, event: &SignedEvent) {
        let (accepted, text) = self.client.publish(event);
        assert!(accepted, "{text}: {}", event.json());
    }

    /// Publishes something that must wait and is shown to nobody.
    #[track_caller]
    pub fn hold(&mut self, event: &SignedEvent) {
        let (accepted, text) = self.client.publish(event);
        assert!(accepted && text.starts_with("purgatory: "), "{accepted} {text:?}: {}", event.json());
        assert!(!self.served(event), "served: {}", event.json());
    }

    /// Publishes something that must be refused for this reason.
    #[track_caller]
    pub fn refuse(&mut self, event: &SignedEvent, reason: &str) {
        let (accepted, text) = self.client.publish(event);
        assert!(!accepted && text.starts_with(reason), "{accepted} {text:?} instead of {reason:?}: {}", event.json());
        assert!(!self.served(event), "served: {}", event.json());
    }

    /// Whether an event is served.
    pub fn served(&mut self, event: &SignedEvent) -> bool {
        served(&mut self.client, event)
    }

    /// Demands that events are served now.
    #[track_caller]
    pub fn expect_served(&mut self, events: &[&Arc<SignedEvent>]) {
        for event in events {
            assert!(self.served(event), "not served: {}", event.json());
        }
    }

    #[track_caller]
    pub fn eventually_served(&mut self, event: &SignedEvent) {
        eventually(&format!("served: {}", event.json()), || self.served(event).then_some(()));
    }

    #[track_caller]
    pub fn eventually_gone(&mut self, event: &SignedEvent) {
        eventually(&format!("gone: {}", event.json()), || (!self.served(event)).then_some(()));
    }

    /// What everybody can see of a repository.
    #[track_caller]
    pub fn remote(&self, who: &Maintainer, d: &str) -> Remote {
        ls_remote(&self.url(who, d))
    }

    /// Demands that a repository has exactly these refs now.
    #[track_caller]
    pub fn expect_refs(&self, who: &Maintainer, d: &str, expected: &[(&str, &str)]) {
        assert_eq!(self.remote(who, d).refs, refs(expected));
    }

    /// Waits until a repository has exactly these refs.
    #[track_caller]
    pub fn eventually_refs(&self, who: &Maintainer, d: &str, expected: &[(&str, &str)]) {
        let expected = refs(expected);
        let mut seen = Refs::new();
        let start = std::time::Instant::now();
        while start.elapsed() < super::DEADLINE {
            seen = self.remote(who, d).refs;
            if seen == expected {
                return;
            }
        }
        assert_eq!(seen, expected);
    }

    /// Waits until HEAD of a repository points there.
    #[track_caller]
    pub fn eventually_head(&self, who: &Maintainer, d: &str, branch: &str) {
        eventually(&format!("HEAD at {branch}"), || {
            (self.remote(who, d).head.as_deref() == Some(branch)).then_some(())
        });
    }

    /// Whether there is a repository.
    pub fn exists(&self, who: &Maintainer, d: &str) -> bool {
        let path = repo_path(&who.npub(), d);
        match super::wire::info_refs(&self.server, &path, "git-upload-pack", &[]).status {
            200 => true,
            404 => false,
            other => panic!("status {other}"),
        }
    }

    /// Announces a repository with its state and pushes what it declares from a working tree, whose branches and tags
    /// have the same names. Gives both events, which are served.
    #[track_caller]
    pub fn found(
        &mut self,
        who: &Maintainer,
        d: &str,
        others: &[&Maintainer],
        work: &Work,
        declared: &[(&str, &str)],
    ) -> (Arc<SignedEvent>, Arc<SignedEvent>) {
        let announcement = who.announce(d, super::git::THEN, others);
        self.hold(&announcement);
        let state = self.advance(who, who, d, super::git::THEN, work, declared);
        self.expect_served(&[&announcement]);
        (announcement, state)
    }

    /// Publishes a state of `by` and pushes it to the repository of `who`. Gives the state, which is served.
    #[track_caller]
    pub fn advance(
        &mut self,
        who: &Maintainer,
        by: &Maintainer,
        d: &str,
        at: u64,
        work: &Work,
        declared: &[(&str, &str)],
    ) -> Arc<SignedEvent> {
        let state = by.state(d, at, declared);
        self.hold(&state);
        let here = self.remote(who, d).refs;
        let mut refspecs: Vec<String> = declared
            .iter()
            .filter(|(name, oid)| here.get(*name).is_none_or(|here| here != oid))
            .map(|(name, oid)| format!("+{oid}:{name}"))
            .collect();
        let undeclared = |name: &&String| !declared.iter().any(|(other, _)| other == name);
        let listed = here.keys().filter(|name| !name.starts_with("refs/nostr/"));
        refspecs.extend(listed.filter(undeclared).map(|name| format!(":{name}")));
        let refspecs: Vec<&str> = refspecs.iter().map(String::as_str).collect();
        work.push(&self.url(who, d), &refspecs).done();
        self.expect_served(&[&state]);
        self.expect_refs_beside_pull_requests(who, d, declared);
        state
    }

    #[track_caller]
    fn expect_refs_beside_pull_requests(&self, who: &Maintainer, d: &str, expected: &[(&str, &str)]) {
        let mut here = self.remote(who, d).refs;
        here.retain(|name, _| !name.starts_with("refs/nostr/"));
        assert_eq!(here, refs(expected));
    }
}

/// Whether an event is served.
pub fn served(client: &mut Client, event: &SignedEvent) -> bool {
    !client.query(&[json!({"ids": [event.id.to_string()]})]).is_empty()
}

/// A tree with one commit on `main`.
pub fn one_commit(content: &str) -> (Work, String) {
    let work = Work::new();
    let oid = work.commit("file", content);
    (work, oid)
}

/// `main` at a commit.
pub fn main_at(oid: &str) -> [(&str, &str); 1] {
    [(MAIN, oid)]
}
