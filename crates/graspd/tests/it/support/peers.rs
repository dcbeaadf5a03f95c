//! Servers that follow each other on loopback. Each has an address of its own, because dials to one address are spaced,
//! and keeps it when it is started again.

pub mod independent_relay;
mod relay_client;
pub mod scripted_relay;

use std::fs;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::json;
use tempfile::TempDir;

use super::git::{MAIN, THEN, Work, repo_path};
use super::{Client, Server, eventually};

/// Below the ports that the system gives to whoever does not care.
const PORT: u16 = 7_077;

/// What a server needs to follow others on loopback, quickly.
const SETTINGS: [(&str, &str); 6] = [
    ("SYNC_ENABLE", "true"),
    ("SYNC_ALLOW_NON_GLOBAL_TARGETS", "true"),
    ("SYNC_BATCH_WINDOW_MS", "100"),
    ("SYNC_BASE_BACKOFF_SECS", "2"),
    ("SYNC_MAX_BACKOFF_SECS", "2"),
    ("LOG_LEVEL", "info"),
];

/// An address of loopback that nobody else has.
pub fn place() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let first = std::process::id() << 8;
    loop {
        let [low, middle, high, _] = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)).to_le_bytes();
        let place = SocketAddr::from(([127, high % 250 + 1, middle, low], PORT));
        if TcpListener::bind(place).is_ok() {
            return place;
        }
    }
}

/// The relay at a place.
pub fn relay(place: SocketAddr) -> String {
    format!("ws://{place}")
}

/// Seconds of the wall clock.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A repository that is announced for several servers and relays.
pub struct Project {
    pub owner: Author,
    pub d: String,
    pub announcement: Arc<SignedEvent>,
    pub state: Arc<SignedEvent>,
    work: Work,
    oid: String,
}

impl Project {
    /// One that is hosted at places, and talked about at these further relays.
    pub fn new(owner: u8, d: &str, hosts: &[SocketAddr], relays: &[&str]) -> Self {
        let owner = Author::new(owner);
        let path = owner.repo_id(d).path();
        let mut clone = vec!["clone".to_owned()];
        clone.extend(hosts.iter().map(|host| format!("http://{host}/{path}")));
        let mut listed = vec!["relays".to_owned()];
        listed.extend(hosts.iter().map(|host| relay(*host)));
        listed.extend(relays.iter().map(|url| (*url).to_owned()));
        let tags = vec![vec!["d".to_owned(), d.to_owned()], clone, listed];
        let announcement = owner.sign_owned(kinds::ANNOUNCEMENT, THEN, tags, "");
        let work = Work::new();
        let oid = work.commit("file", d);
        let state = owner.sign(kinds::STATE, THEN, &[&["d", d], &[MAIN, &oid], &["HEAD", &format!("ref: {MAIN}")]], "");
        Self { owner, d: d.to_owned(), announcement, state, work, oid }
    }

    /// What events refer to it by.
    pub fn coordinate(&self) -> String {
        self.owner.repo(&self.d)
    }

    /// An issue of this second.
    pub fn issue(&self, by: &Author, at: u64) -> Arc<SignedEvent> {
        by.issue(at, &self.coordinate())
    }

    /// Many issues, one a second.
    pub fn issues(&self, by: &Author, from: u64, count: u64) -> Vec<Arc<SignedEvent>> {
        (from..from + count).map(|at| self.issue(by, at)).collect()
    }
}

/// A graspd that follows others.
pub struct Neighbour {
    pub server: Server,
    pub place: SocketAddr,
    client: Option<Client>,
    folder: Arc<TempDir>,
    settings: Vec<(String, String)>,
}

impl Neighbour {
    /// A new one anywhere, with further settings.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_at(place(), settings)
    }

    /// A new one at a place.
    pub fn start_at(place: SocketAddr, settings: &[(&str, &str)]) -> Self {
        Self::start_with(place, settings, &[])
    }

    /// A new one at a place, with files in its folder.
    pub fn start_with(place: SocketAddr, settings: &[(&str, &str)], files: &[(&str, &str)]) -> Self {
        let at = place.to_string();
        let own = [("BIND_ADDRESS", at.as_str()), ("DOMAIN", at.as_str())];
        let all = [&SETTINGS[..], &own, settings].concat();
        let settings: Vec<_> = all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let folder = Arc::new(TempDir::new().expect("a folder"));
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("a file");
        }
        Self { server: spawn(&folder, &settings), place, client: None, folder, settings }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.client = None;
        self.server.kill();
    }

    /// SIGTERM; demands that it ends well.
    #[track_caller]
    pub fn stop(&mut self) {
        self.client = None;
        assert_eq!(self.server.stop(), Some(0));
    }

    /// Starts it again where it was, after it has ended.
    pub fn again(&mut self) {
        self.server = spawn(&self.folder, &self.settings);
    }

    /// Changes a setting for its next life.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Puts another text into a file of its folder and lets it read its settings again. Gives what it says about it.
    #[track_caller]
    pub fn reload(&mut self, name: &str, text: &str) -> String {
        let about = |log: &str| -> Vec<String> {
            let about = |line: &&str| line.contains("read the settings again") || line.contains("stay as they were");
            log.lines().filter(about).map(str::to_owned).collect()
        };
        let before = about(&self.log()).len();
        fs::write(self.folder.path().join(name), text).expect("a file");
        let pid = self.server.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("kill runs").success());
        eventually("the settings are read again", || {
            let now = about(&self.log());
            now.get(before).is_some().then(|| self.log())
        })
    }

    /// Its relay.
    pub fn relay(&self) -> String {
        relay(self.place)
    }

    /// A client of it.
    pub fn client(&mut self) -> &mut Client {
        self.client.get_or_insert_with(|| self.server.connect())
    }

    /// Publishes something that must be taken, now or when its data comes.
    #[track_caller]
    pub fn publish(&mut self, event: &SignedEvent) {
        let (accepted, text) = self.client().publish(event);
        assert!(accepted, "{text}: {}", event.json());
    }

    /// Announces a repository and brings its data. Both events are served then.
    #[track_caller]
    pub fn host(&mut self, project: &Project) {
        self.publish(&project.announcement);
        self.publish(&project.state);
        self.push(project);
        self.eventually_served(&[&project.announcement, &project.state]);
    }

    /// Brings the data of a repository.
    #[track_caller]
    pub fn push(&self, project: &Project) {
        let url = format!("http://{}{}", self.place, repo_path(&project.owner.key().npub(), &project.d));
        project.work.push(&url, &[&format!("+{}:{MAIN}", project.oid)]).done();
    }

    /// How many of these events are served.
    pub fn served(&mut self, events: &[&Arc<SignedEvent>]) -> usize {
        let ask = |events: &[&Arc<SignedEvent>], client: &mut Client| {
            let ids: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
            client.query(&[json!({"ids": ids})]).len()
        };
        events.chunks(100).map(|events| ask(events, self.client())).sum()
    }

    /// Waits until all of these are served.
    #[track_caller]
    pub fn eventually_served(&mut self, events: &[&Arc<SignedEvent>]) {
        let mut last = 0;
        let what = format!("{} events served by {}", events.len(), self.place);
        eventually(&what, || {
            last = self.served(events);
            (last == events.len()).then_some(())
        });
    }

    /// The value of a series, as it stands in `/metrics`; `None` if there is none.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let page = self.server.get("/metrics", "");
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line.and_then(|value| value.trim().parse().ok())
    }

    /// The value of a series about a relay.
    pub fn metric_of(&self, name: &str, relay: &str) -> Option<f64> {
        self.metric(&format!("{name}{{relay=\"{relay}\"}}"))
    }

    /// Waits until a series has a value.
    #[track_caller]
    pub fn eventually_metric(&self, series: &str, wanted: f64) {
        let what = format!("{series} {wanted} at {}", self.place);
        eventually(&what, || (self.metric(series) == Some(wanted)).then_some(()));
    }

    /// Waits until the connection to a relay is in a state: 3 is connected.
    #[track_caller]
    pub fn eventually_state(&self, relay: &str, wanted: f64) {
        self.eventually_metric(&format!("ngit_sync_relay_connected{{relay=\"{relay}\"}}"), wanted);
    }

    /// New events that came in a way: `direct`, `live`, `catchup`, `daily`.
    pub fn came(&self, source: &str) -> f64 {
        self.metric(&format!("ngit_sync_events_total{{source=\"{source}\"}}")).expect("there from the beginning")
    }

    /// Everything that it has logged in all its lives.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("it was created")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- log of {}\n{}--", self.place, self.log());
        }
    }
}

fn spawn(folder: &Arc<TempDir>, settings: &[(String, String)]) -> Server {
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut command = super::command(folder.path(), &settings);
    let log = File::options().create(true).append(true).open(folder.path().join("log")).expect("a file");
    command.stderr(log);
    let mut server = Server::spawn(command);
    server.folder = Some(folder.clone());
    server
}
