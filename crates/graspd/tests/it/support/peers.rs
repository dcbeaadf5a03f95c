//! Servers on loopback that sync from each other. Each has an IP address of its own, because the time between two
//! connections to one address is limited, and keeps it when it is restarted.

pub mod independent_relay;
mod relay_client;
pub mod scripted_relay;

use std::fs;
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::json;
use tempfile::TempDir;

use super::git::{BASE_TIME, MAIN, WorkTree, repo_path};
use super::{Client, Server, eventually};

/// The port of all test servers. Below the range from which the system assigns ports.
const PORT: u16 = 7_077;

/// Settings with which a server syncs from others on loopback, with short delays.
const SETTINGS: [(&str, &str); 6] = [
    ("SYNC_ENABLE", "true"),
    ("SYNC_ALLOW_NON_GLOBAL_TARGETS", "true"),
    ("SYNC_BATCH_WINDOW_MS", "100"),
    ("SYNC_BASE_BACKOFF_SECS", "2"),
    ("SYNC_MAX_BACKOFF_SECS", "2"),
    ("LOG_LEVEL", "info"),
];

/// Returns a loopback address that no other test uses.
pub fn unused_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let first = std::process::id() << 8;
    loop {
        let [low, middle, high, _] = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)).to_le_bytes();
        let address = SocketAddr::from(([127, high % 250 + 1, middle, low], PORT));
        // Binding it instead would keep it in use for as long as a process that another test starts at this moment has not
        // closed the inherited socket.
        if TcpStream::connect(address).is_err() {
            return address;
        }
    }
}

/// Returns the URL of the relay at an address.
pub fn relay_url(address: SocketAddr) -> String {
    format!("ws://{address}")
}

/// Returns the current Unix time in seconds.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_secs()
}

/// A repository that is announced on several servers and relays.
pub struct Project {
    pub owner: Author,
    pub d: String,
    pub announcement: Arc<SignedEvent>,
    pub state: Arc<SignedEvent>,
    work: WorkTree,
    oid: String,
}

impl Project {
    /// Creates a repository whose announcement lists the servers at these addresses, and further relays.
    pub fn new(owner: u8, d: &str, hosts: &[SocketAddr], relays: &[&str]) -> Self {
        let owner = Author::new(owner);
        let path = owner.repo_id(d).path();
        let mut clone = vec!["clone".to_owned()];
        clone.extend(hosts.iter().map(|host| format!("http://{host}/{path}")));
        let mut listed = vec!["relays".to_owned()];
        listed.extend(hosts.iter().map(|host| relay_url(*host)));
        listed.extend(relays.iter().map(|url| (*url).to_owned()));
        let tags = vec![vec!["d".to_owned(), d.to_owned()], clone, listed];
        let announcement = owner.sign_owned(kinds::ANNOUNCEMENT, BASE_TIME, tags, "");
        let work = WorkTree::new();
        let oid = work.commit("file", d);
        let state =
            owner.sign(kinds::STATE, BASE_TIME, &[&["d", d], &[MAIN, &oid], &["HEAD", &format!("ref: {MAIN}")]], "");
        Self { owner, d: d.to_owned(), announcement, state, work, oid }
    }

    /// Returns the coordinate of the announcement.
    pub fn coordinate(&self) -> String {
        self.owner.repo(&self.d)
    }

    /// Returns an issue with this `created_at`.
    pub fn issue(&self, by: &Author, at: u64) -> Arc<SignedEvent> {
        by.issue(at, &self.coordinate())
    }

    /// Returns `count` issues, one per second.
    pub fn issues(&self, by: &Author, from: u64, count: u64) -> Vec<Arc<SignedEvent>> {
        (from..from + count).map(|at| self.issue(by, at)).collect()
    }
}

/// A `graspd` server that syncs from other relays. Prints its log if the test fails.
pub struct SyncServer {
    pub process: Server,
    pub address: SocketAddr,
    client: Option<Client>,
    folder: Arc<TempDir>,
    settings: Vec<(String, String)>,
}

impl SyncServer {
    /// Starts a server at an unused address, with further settings.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_at(unused_address(), settings)
    }

    /// Starts a server at this address.
    pub fn start_at(address: SocketAddr, settings: &[(&str, &str)]) -> Self {
        Self::start_with(address, settings, &[])
    }

    /// Starts a server at this address, with files in its folder.
    pub fn start_with(address: SocketAddr, settings: &[(&str, &str)], files: &[(&str, &str)]) -> Self {
        let address_text = address.to_string();
        let own = [("BIND_ADDRESS", address_text.as_str()), ("DOMAIN", address_text.as_str())];
        let all = [&SETTINGS[..], &own, settings].concat();
        let settings: Vec<_> = all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("cannot write the file");
        }
        Self { process: spawn(&folder, &settings), address, client: None, folder, settings }
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.client = None;
        self.process.kill();
    }

    /// Sends SIGTERM and asserts exit code 0.
    #[track_caller]
    pub fn stop(&mut self) {
        self.client = None;
        assert_eq!(self.process.stop(), Some(0));
    }

    /// Starts the server again at the same address, after it has ended.
    pub fn start_again(&mut self) {
        self.process = spawn(&self.folder, &self.settings);
    }

    /// Changes a setting for the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Overwrites a file of the server's folder, sends SIGHUP and waits until the server has logged the result. Returns
    /// the whole log.
    #[track_caller]
    pub fn reload(&mut self, name: &str, text: &str) -> String {
        let reload_count = |log: &str| {
            let is_result = |line: &&str| line.contains("settings reloaded") || line.contains("settings unchanged");
            log.lines().filter(is_result).count()
        };
        let before = reload_count(&self.log());
        fs::write(self.folder.path().join(name), text).expect("cannot write the file");
        let pid = self.process.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("cannot run kill").success());
        eventually("the settings are reloaded", || {
            let log = self.log();
            (reload_count(&log) > before).then_some(log)
        })
    }

    pub fn relay_url(&self) -> String {
        relay_url(self.address)
    }

    /// Returns the client of this server, and connects it the first time.
    pub fn client(&mut self) -> &mut Client {
        self.client.get_or_insert_with(|| self.process.connect())
    }

    /// Publishes an event that must be accepted, either served at once or held.
    #[track_caller]
    pub fn publish(&mut self, event: &SignedEvent) {
        let (accepted, text) = self.client().publish(event);
        assert!(accepted, "{text}: {}", event.json());
    }

    /// Publishes announcement and state of a repository, pushes its data and waits until both events are served.
    #[track_caller]
    pub fn host(&mut self, project: &Project) {
        self.publish(&project.announcement);
        self.publish(&project.state);
        self.push(project);
        self.eventually_served(&[&project.announcement, &project.state]);
    }

    /// Pushes the git data of a repository.
    #[track_caller]
    pub fn push(&self, project: &Project) {
        let url = format!("http://{}{}", self.address, repo_path(&project.owner.key().npub(), &project.d));
        project.work.push(&url, &[&format!("+{}:{MAIN}", project.oid)]).expect_success();
    }

    /// Returns how many of these events are served.
    pub fn count_served(&mut self, events: &[&Arc<SignedEvent>]) -> usize {
        let count = |events: &[&Arc<SignedEvent>], client: &mut Client| {
            let ids: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
            client.query(&[json!({"ids": ids})]).len()
        };
        events.chunks(100).map(|events| count(events, self.client())).sum()
    }

    /// Waits until all of these events are served.
    #[track_caller]
    pub fn eventually_served(&mut self, events: &[&Arc<SignedEvent>]) {
        let mut last = 0;
        let what = format!("{} events served by {}", events.len(), self.address);
        eventually(&what, || {
            last = self.count_served(events);
            (last == events.len()).then_some(())
        });
    }

    /// Returns the value of a series in `/metrics`, or `None` if it is not there.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let page = self.process.get("/metrics", "");
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line.and_then(|value| value.trim().parse().ok())
    }

    /// Returns the value of a metric for one relay.
    pub fn relay_metric(&self, name: &str, relay: &str) -> Option<f64> {
        self.metric(&format!("{name}{{relay=\"{relay}\"}}"))
    }

    /// Waits until a series has this value.
    #[track_caller]
    pub fn eventually_metric(&self, series: &str, wanted: f64) {
        let what = format!("{series} {wanted} at {}", self.address);
        eventually(&what, || (self.metric(series) == Some(wanted)).then_some(()));
    }

    /// Waits until the connection to a relay has this state; 3 means connected.
    #[track_caller]
    pub fn eventually_state(&self, relay: &str, wanted: f64) {
        self.eventually_metric(&format!("ngit_sync_relay_connected{{relay=\"{relay}\"}}"), wanted);
    }

    /// Returns the number of new events from a source: `direct`, `live`, `catchup` or `daily`.
    pub fn received_count(&self, source: &str) -> f64 {
        self.metric(&format!("ngit_sync_events_total{{source=\"{source}\"}}"))
            .expect("the metric exists from the start")
    }

    /// Returns the log, including that of earlier starts.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("cannot read the log file")
    }
}

impl Drop for SyncServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- log of {}\n{}--", self.address, self.log());
        }
    }
}

fn spawn(folder: &Arc<TempDir>, settings: &[(String, String)]) -> Server {
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut command = super::command(folder.path(), &settings);
    let log = File::options().create(true).append(true).open(folder.path().join("log"));
    let log = log.expect("cannot open the log file");
    command.stderr(log);
    let mut server = Server::spawn(command);
    server.folder = Some(folder.clone());
    server
}

/// Returns a series with the label of a relay.
pub fn series_of(series: &str, relay: &scripted_relay::ScriptedRelay) -> String {
    format!("{series}{{relay=\"{}\"}}", relay.url())
}
