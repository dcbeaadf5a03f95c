//! A test server with a relay client, and assertions about what it serves.

use std::path::PathBuf;
use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use serde_json::json;
use tempfile::TempDir;

use super::git::{BASE_TIME, MAIN, Maintainer, Refs, RemoteRefs, WorkTree, ls_remote, refs, repo_path};
use super::{Client, Server, eventually};

/// The signal that ends a server.
#[derive(Clone, Copy, Debug)]
pub enum StopSignal {
    /// SIGTERM: the server shuts down in order.
    Term,
    /// SIGKILL: the server cannot react.
    Kill,
}

/// A server and a client that is connected to its relay.
pub struct TestServer {
    pub process: Server,
    pub client: Client,
    pub service: ServiceAddress,
    settings: Vec<(&'static str, &'static str)>,
}

impl TestServer {
    /// Starts a server with the domain `grasp.test`, so that its address in events stays the same when its port
    /// changes.
    pub fn new() -> Self {
        Self::with_settings(&[])
    }

    /// Starts a server with the domain `grasp.test` and further settings.
    pub fn with_settings(settings: &[(&'static str, &'static str)]) -> Self {
        Self::with_only(&[&[("DOMAIN", "grasp.test")], settings].concat())
    }

    /// Starts a server with these settings only.
    pub fn with_only(settings: &[(&'static str, &'static str)]) -> Self {
        Self::from_process(Server::start(settings), settings.to_vec())
    }

    /// Starts a server in a folder, with these settings only.
    pub fn start_in(folder: &Arc<TempDir>, settings: &[(&'static str, &'static str)]) -> Self {
        Self::from_process(Server::start_in(folder, settings), settings.to_vec())
    }

    fn from_process(process: Server, settings: Vec<(&'static str, &'static str)>) -> Self {
        let relay_url = process.startup_output.iter().find_map(|line| line.trim().strip_prefix("relay"));
        let (_, address) = relay_url.and_then(|url| url.split_once("://")).expect("graspd prints its relay URL");
        let (domain, _) = address.split_once('/').unwrap_or((address, ""));
        let service = ServiceAddress::new(domain, &process.base).expect("valid service address");
        let client = process.connect();
        Self { process, client, service, settings }
    }

    /// Ends the server and starts another one in its folder, with the same settings.
    pub fn restart(self, signal: StopSignal) -> Self {
        let settings: Vec<_> = self.settings.clone();
        self.restart_as(signal, settings)
    }

    /// Ends the server and starts another one in its folder, with the same domain but these other settings.
    pub fn restart_with(self, signal: StopSignal, settings: &[(&'static str, &'static str)]) -> Self {
        self.restart_as(signal, [&[("DOMAIN", "grasp.test")], settings].concat())
    }

    fn restart_as(mut self, signal: StopSignal, settings: Vec<(&'static str, &'static str)>) -> Self {
        match signal {
            StopSignal::Term => assert_eq!(self.process.stop(), Some(0)),
            StopSignal::Kill => self.process.kill(),
        }
        Self::start_in(self.process.folder(), &settings)
    }

    /// Starts another server in the folder of this one, which has already ended.
    pub fn start_after_exit(self) -> Self {
        Self::from_process(Server::start_in(self.process.folder(), &self.settings), self.settings.clone())
    }

    /// Returns the maintainer with the `n`th test key.
    pub fn maintainer(&self, n: u8) -> Maintainer {
        Maintainer::new(n, &self.service)
    }

    /// Returns four maintainers: O, M, R and X of the examples in `docs/protocol.md#maintainer-sets`.
    pub fn maintainers(&self) -> [Maintainer; 4] {
        [1, 2, 3, 4].map(|n| self.maintainer(n))
    }

    fn http_url(&self, path: &str) -> String {
        format!("http://{}{}{path}", self.process.address, self.process.base)
    }

    /// Returns the git URL of an announced repository.
    pub fn url(&self, who: &Maintainer, d: &str) -> String {
        self.http_url(&repo_path(&who.npub(), d))
    }

    /// Returns the git URL of pull-request submissions (GRASP-06) by `who`.
    pub fn prs_url(&self, who: &Maintainer, d: &str) -> String {
        self.http_url(&format!("/prs{}", repo_path(&who.npub(), d)))
    }

    /// Returns the public URL of pull-request submissions by `who`, for `clone` tags.
    pub fn public_prs_url(&self, who: &Maintainer, d: &str) -> String {
        format!("https://{}{}/prs{}", self.service.domain(), self.service.base(), repo_path(&who.npub(), d))
    }

    /// Returns the folder of the git data.
    pub fn git_folder(&self) -> PathBuf {
        self.process.folder().path().join("data/git")
    }

    /// Publishes an event that must be accepted, either served at once or held.
    #[track_caller]
    pub fn publish(&mut self, event: &SignedEvent) {
        let (accepted, text) = self.client.publish(event);
        assert!(accepted, "{text}: {}", event.json());
    }

    /// Publishes an event that must be held in purgatory and not served.
    #[track_caller]
    pub fn publish_held(&mut self, event: &SignedEvent) {
        let (accepted, text) = self.client.publish(event);
        assert!(accepted && text.starts_with("purgatory: "), "{accepted} {text:?}: {}", event.json());
        assert!(!self.is_served(event), "served: {}", event.json());
    }

    /// Publishes an event that must be rejected with a text that begins with `reason`.
    #[track_caller]
    pub fn publish_rejected(&mut self, event: &SignedEvent, reason: &str) {
        let (accepted, text) = self.client.publish(event);
        assert!(!accepted && text.starts_with(reason), "{accepted} {text:?} instead of {reason:?}: {}", event.json());
        assert!(!self.is_served(event), "served: {}", event.json());
    }

    /// Returns whether an event is served.
    pub fn is_served(&mut self, event: &SignedEvent) -> bool {
        is_served(&mut self.client, event)
    }

    /// Asserts that events are served now.
    #[track_caller]
    pub fn expect_served(&mut self, events: &[&Arc<SignedEvent>]) {
        for event in events {
            assert!(self.is_served(event), "not served: {}", event.json());
        }
    }

    #[track_caller]
    pub fn eventually_served(&mut self, event: &SignedEvent) {
        eventually(&format!("served: {}", event.json()), || self.is_served(event).then_some(()));
    }

    #[track_caller]
    pub fn eventually_gone(&mut self, event: &SignedEvent) {
        eventually(&format!("no longer served: {}", event.json()), || (!self.is_served(event)).then_some(()));
    }

    /// Returns the refs that `git ls-remote` shows.
    #[track_caller]
    pub fn ls_remote(&self, who: &Maintainer, d: &str) -> RemoteRefs {
        ls_remote(&self.url(who, d))
    }

    /// Asserts that a repository has exactly these refs now.
    #[track_caller]
    pub fn expect_refs(&self, who: &Maintainer, d: &str, expected: &[(&str, &str)]) {
        assert_eq!(self.ls_remote(who, d).refs, refs(expected));
    }

    /// Waits until a repository has exactly these refs.
    #[track_caller]
    pub fn eventually_refs(&self, who: &Maintainer, d: &str, expected: &[(&str, &str)]) {
        let expected = refs(expected);
        let mut last = Refs::new();
        let start = std::time::Instant::now();
        while start.elapsed() < super::DEADLINE {
            last = self.ls_remote(who, d).refs;
            if last == expected {
                return;
            }
        }
        assert_eq!(last, expected);
    }

    /// Waits until HEAD of a repository points to a branch.
    #[track_caller]
    pub fn eventually_head(&self, who: &Maintainer, d: &str, branch: &str) {
        eventually(&format!("HEAD points to {branch}"), || {
            (self.ls_remote(who, d).head.as_deref() == Some(branch)).then_some(())
        });
    }

    /// Returns whether the server has a repository.
    pub fn repo_exists(&self, who: &Maintainer, d: &str) -> bool {
        let path = repo_path(&who.npub(), d);
        match super::wire::info_refs(&self.process, &path, "git-upload-pack", &[]).status {
            200 => true,
            404 => false,
            other => panic!("unexpected status {other}"),
        }
    }

    /// Announces a repository with its state and pushes the declared refs from a working tree. Returns both events,
    /// which are served.
    #[track_caller]
    pub fn create_repo(
        &mut self,
        who: &Maintainer,
        d: &str,
        others: &[&Maintainer],
        work: &WorkTree,
        declared: &[(&str, &str)],
    ) -> (Arc<SignedEvent>, Arc<SignedEvent>) {
        let announcement = who.announce(d, BASE_TIME, others);
        self.publish_held(&announcement);
        let state = self.push_state(who, who, d, BASE_TIME, work, declared);
        self.expect_served(&[&announcement]);
        (announcement, state)
    }

    /// Publishes a state signed by `signer` and pushes its refs to the repository of `who`. Returns the state, which is
    /// served.
    #[track_caller]
    pub fn push_state(
        &mut self,
        who: &Maintainer,
        signer: &Maintainer,
        d: &str,
        at: u64,
        work: &WorkTree,
        declared: &[(&str, &str)],
    ) -> Arc<SignedEvent> {
        let state = signer.state(d, at, declared);
        self.publish_held(&state);
        let current = self.ls_remote(who, d).refs;
        let mut refspecs: Vec<String> = declared
            .iter()
            .filter(|(name, oid)| current.get(*name).is_none_or(|current| current != oid))
            .map(|(name, oid)| format!("+{oid}:{name}"))
            .collect();
        let undeclared = |name: &&String| !declared.iter().any(|(other, _)| other == name);
        let listed = current.keys().filter(|name| !name.starts_with("refs/nostr/"));
        refspecs.extend(listed.filter(undeclared).map(|name| format!(":{name}")));
        let refspecs: Vec<&str> = refspecs.iter().map(String::as_str).collect();
        // If the objects were here already, the server may have applied the state before the refs were listed.
        if !refspecs.is_empty() {
            work.push(&self.url(who, d), &refspecs).expect_success();
        }
        self.expect_served(&[&state]);
        self.expect_refs_except_pull_requests(who, d, declared);
        state
    }

    #[track_caller]
    fn expect_refs_except_pull_requests(&self, who: &Maintainer, d: &str, expected: &[(&str, &str)]) {
        let mut current = self.ls_remote(who, d).refs;
        current.retain(|name, _| !name.starts_with("refs/nostr/"));
        assert_eq!(current, refs(expected));
    }
}

/// Returns whether an event is served.
pub fn is_served(client: &mut Client, event: &SignedEvent) -> bool {
    !client.query(&[json!({"ids": [event.id.to_string()]})]).is_empty()
}

/// Returns a working tree with one commit on `main`, and the commit.
pub fn one_commit(content: &str) -> (WorkTree, String) {
    let work = WorkTree::new();
    let oid = work.commit("file", content);
    (work, oid)
}

/// Returns a working tree with one commit on `main`, and the commit. It has a file that only git checks, so that the
/// server starts git for its push.
pub fn commit_for_git() -> (WorkTree, String) {
    let work = WorkTree::new();
    let oid = work.commit(".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = https://git.example/x.git\n");
    (work, oid)
}

/// Returns the ref `main` at a commit.
pub fn main_at(oid: &str) -> [(&str, &str); 1] {
    [(MAIN, oid)]
}
