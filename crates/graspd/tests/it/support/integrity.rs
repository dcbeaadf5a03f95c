//! Invariants of a server: repositories on disk are complete, no temporary file is left, and every object that a served
//! event needs can be fetched. Checked after crashes, kills and full disks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use grasp_core::nostr::{SignedEvent, kinds};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocket;

use super::git::{RemoteRefs, git, try_ls_remote};
use super::wire::{info_refs, request};
use super::{Client, DEADLINE, Server, eventually};

/// The events, refs, purgatory and folders of a server at one moment, for comparison.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct ServerSnapshot {
    /// Ids of served events.
    pub served: BTreeSet<String>,
    /// The refs of each existing repository, by its path.
    pub refs: BTreeMap<String, RemoteRefs>,
    /// The ids of the events that each repository holds in purgatory, by its path.
    pub held: BTreeMap<String, BTreeSet<String>>,
    /// Repository folders, relative to the git folder.
    pub folders: BTreeSet<String>,
    /// Number of staged uploads: pull request refs whose event is unknown.
    pub staged: usize,
}

impl ServerSnapshot {
    pub fn has_empty_purgatory(&self) -> bool {
        self.held.values().all(BTreeSet::is_empty)
    }

    /// Reads everything from a server; `paths` are the paths of its repositories.
    pub fn take(server: &Server, folder: &Path, paths: &[String]) -> Self {
        let mut snapshot = Self::take_without_purgatory(server, folder, paths);
        for path in snapshot.refs.keys() {
            let response = request(server, "GET", &format!("{path}/purgatory"), &[]);
            let document: Value = serde_json::from_slice(&response.body).unwrap_or_default();
            let held = document["waiting"].as_array().into_iter().flatten();
            snapshot.held.insert(path.clone(), held.map(|event| text(&event["event"])).collect());
        }
        snapshot
    }

    /// Reads everything but the held events, so that the writer thread has nothing to do.
    pub fn take_without_purgatory(server: &Server, folder: &Path, paths: &[String]) -> Self {
        let refs = |path: &String| {
            let url = format!("http://{}{}{path}", server.address, server.base);
            try_ls_remote(&url).map(|remote| (path.clone(), remote))
        };
        let relative =
            |path: PathBuf| path.strip_prefix(folder).expect("path is below the git folder").display().to_string();
        Self {
            served: served_events(&mut server.connect()).iter().map(|event| text(&event["id"])).collect(),
            refs: paths.iter().filter_map(refs).collect(),
            held: BTreeMap::new(),
            folders: repo_folders(folder).into_iter().map(relative).collect(),
            staged: entries(&folder.join("staged")).len(),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("value is a string").to_owned()
}

/// Returns all served events.
pub fn served_events(client: &mut Client) -> Vec<Value> {
    client.send(&json!(["REQ", "all", {"limit": 5_000}]));
    let mut events = Vec::new();
    loop {
        let message = client.receive();
        match message[0].as_str() {
            Some("EVENT") => events.push(message[2].clone()),
            Some("EOSE") => return events,
            _ => panic!("unexpected {message}"),
        }
    }
}

/// Returns the object ids that must be present for an event to be served.
pub fn needed_objects(event: &Value) -> Vec<String> {
    let tags = event["tags"].as_array().expect("event has tags");
    let values = |wanted: fn(&str) -> bool| {
        tags.iter().filter(move |tag| tag[0].as_str().is_some_and(wanted)).map(|tag| text(&tag[1])).collect()
    };
    match event["kind"].as_u64().and_then(|kind| u16::try_from(kind).ok()) {
        Some(kinds::STATE) => values(|name| name.starts_with("refs/heads/") || name.starts_with("refs/tags/")),
        Some(kinds::PULL_REQUEST | kinds::PULL_REQUEST_UPDATE) => values(|name| name == "c"),
        _ => Vec::new(),
    }
}

/// Connects to a server that may not be running.
fn try_connect(address: SocketAddr) -> Option<WebSocket<TcpStream>> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    tungstenite::client(format!("ws://{address}"), stream).ok().map(|(socket, _)| socket)
}

/// Publishes an event on a new connection; returns `None` if the server is not running or ends before it answers.
pub fn try_publish(address: SocketAddr, event: &SignedEvent) -> Option<(bool, String)> {
    let mut socket = try_connect(address)?;
    socket.send(Message::text(format!("[\"EVENT\",{}]", event.json()))).ok()?;
    loop {
        let Message::Text(text) = socket.read().ok()? else { continue };
        let message: Value = serde_json::from_str(&text).expect("message is not JSON");
        if message[0] == "OK" && message[1] == event.id.to_string().as_str() {
            return Some((message[2].as_bool()?, message[3].as_str()?.to_owned()));
        }
    }
}

/// Returns whether an event is served, or `None` if the server is not running, fails or ends before it answers.
pub fn try_served(address: SocketAddr, event: &SignedEvent) -> Option<bool> {
    let mut socket = try_connect(address)?;
    socket.send(Message::text(json!(["REQ", "q", {"ids": [event.id.to_string()]}]).to_string())).ok()?;
    let mut served = false;
    loop {
        let Message::Text(text) = socket.read().ok()? else { continue };
        let message: Value = serde_json::from_str(&text).expect("message is not JSON");
        match message[0].as_str() {
            Some("EVENT") => served = true,
            Some("EOSE") => return Some(served),
            // The store failed, and the server is about to end.
            Some("CLOSED") => return None,
            _ => panic!("unexpected {message}"),
        }
    }
}

/// Returns the entries of a folder, sorted; none if it does not exist.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("cannot read the folder").path()).collect();
    entries.sort();
    entries
}

/// Returns all repository folders below the git folder.
pub fn repo_folders(folder: &Path) -> Vec<PathBuf> {
    let owners = ["repos", "prs"].into_iter().flat_map(|name| entries(&folder.join(name)));
    owners.flat_map(|owner| entries(&owner)).collect()
}

/// Waits until `incoming` and `trash` are empty, then asserts that every repository on disk is complete and contains no
/// temporary file.
pub fn expect_intact_repos(folder: &Path) {
    for name in ["incoming", "trash"] {
        eventually(&format!("{name} is empty"), || entries(&folder.join(name)).is_empty().then_some(()));
    }
    for repo in repo_folders(folder) {
        let git_dir = repo.display().to_string();
        assert!(repo.join("HEAD").exists(), "{git_dir} is not a git repository");
        git(&["--git-dir", &git_dir, "fsck", "--full", "--strict"]).expect_success();
        let temporary: Vec<PathBuf> = ["", "objects/info", "pool/pack"]
            .iter()
            .flat_map(|folder| entries(&repo.join(folder)))
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                [".new", ".lock"].iter().any(|end| name.ends_with(end)) || name.starts_with("tmp_")
            })
            .collect();
        assert!(temporary.is_empty(), "temporary files: {temporary:?}");
    }
}

/// Asserts that every object that a served event needs is in one of these repositories, with all objects that it refers
/// to.
pub fn expect_needed_objects(server: &Server, paths: &[String]) {
    let clones: Vec<tempfile::TempDir> = paths
        .iter()
        .filter(|path| info_refs(server, path, "git-upload-pack", &[]).status == 200)
        .map(|path| {
            let clone = tempfile::TempDir::new().expect("cannot create a temporary folder");
            let url = format!("http://{}{}{path}", server.address, server.base);
            git(&["clone", "--quiet", "--mirror", &url, &clone.path().display().to_string()]).expect_success();
            clone
        })
        .collect();
    let has = |oid: &String| {
        clones.iter().any(|clone| {
            let git_dir = clone.path().display().to_string();
            git(&["--git-dir", &git_dir, "rev-list", "--objects", "--quiet", oid]).success
        })
    };
    for event in served_events(&mut server.connect()) {
        for oid in needed_objects(&event) {
            assert!(has(&oid), "object {oid} is missing for the served event {event}");
        }
    }
}
