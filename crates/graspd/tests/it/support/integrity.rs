//! What must be true of a server's folders and of what it serves, whatever has happened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use grasp_core::nostr::{SignedEvent, kinds};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocket;

use super::git::{Remote, git, try_ls_remote};
use super::wire::{ask, info_refs};
use super::{Client, DEADLINE, Server, eventually};

/// What everybody can see of a server, and what waits.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Ids of served events.
    pub served: BTreeSet<String>,
    /// The refs of each repository that is open, by its path.
    pub refs: BTreeMap<String, Remote>,
    /// What waits there.
    pub waiting: BTreeMap<String, BTreeSet<String>>,
    /// Repository folders, below the git folder.
    pub folders: BTreeSet<String>,
    /// Uploads that are kept apart.
    pub staged: usize,
}

impl Seen {
    pub fn waits_for_nothing(&self) -> bool {
        self.waiting.values().all(BTreeSet::is_empty)
    }

    /// Looks at a server, at repositories given by path.
    pub fn at(server: &Server, folder: &Path, paths: &[String]) -> Self {
        let mut seen = Self::glance(server, folder, paths);
        for path in seen.refs.keys() {
            let answer = ask(server, "GET", &format!("{path}/purgatory"), &[]);
            let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let waiting = document["waiting"].as_array().into_iter().flatten();
            seen.waiting.insert(path.clone(), waiting.map(|event| text(&event["event"])).collect());
        }
        seen
    }

    /// The same without asking the server's desk, which would be work for it: not what waits.
    pub fn glance(server: &Server, folder: &Path, paths: &[String]) -> Self {
        let refs = |path: &String| {
            let url = format!("http://{}{}{path}", server.address, server.base);
            try_ls_remote(&url).map(|remote| (path.clone(), remote))
        };
        let below = |path: PathBuf| path.strip_prefix(folder).expect("below it").display().to_string();
        Self {
            served: served(&mut server.connect()).iter().map(|event| text(&event["id"])).collect(),
            refs: paths.iter().filter_map(refs).collect(),
            waiting: BTreeMap::new(),
            folders: repositories(folder).into_iter().map(below).collect(),
            staged: entries(&folder.join("staged")).len(),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// Everything that is served.
pub fn served(client: &mut Client) -> Vec<Value> {
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

/// The object ids that an event must not be served without.
pub fn needs(event: &Value) -> Vec<String> {
    let tags = event["tags"].as_array().expect("tags");
    let values = |wanted: fn(&str) -> bool| {
        tags.iter().filter(move |tag| tag[0].as_str().is_some_and(wanted)).map(|tag| text(&tag[1])).collect()
    };
    match event["kind"].as_u64().and_then(|kind| u16::try_from(kind).ok()) {
        Some(kinds::STATE) => values(|name| name.starts_with("refs/heads/") || name.starts_with("refs/tags/")),
        Some(kinds::PULL_REQUEST | kinds::PULL_REQUEST_UPDATE) => values(|name| name == "c"),
        _ => Vec::new(),
    }
}

/// A connection to a server that may not be there.
fn try_connect(address: SocketAddr) -> Option<WebSocket<TcpStream>> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    tungstenite::client(format!("ws://{address}"), stream).ok().map(|(socket, _)| socket)
}

/// Publishes over a connection of its own; nothing if the server is not there to answer.
pub fn try_publish(address: SocketAddr, event: &SignedEvent) -> Option<(bool, String)> {
    let mut socket = try_connect(address)?;
    socket.send(Message::text(format!("[\"EVENT\",{}]", event.json()))).ok()?;
    loop {
        let Message::Text(text) = socket.read().ok()? else { continue };
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        if answer[0] == "OK" && answer[1] == event.id.to_string().as_str() {
            return Some((answer[2].as_bool()?, answer[3].as_str()?.to_owned()));
        }
    }
}

/// Whether an event is served; nothing if the server is not there to answer.
pub fn try_served(address: SocketAddr, event: &SignedEvent) -> Option<bool> {
    let mut socket = try_connect(address)?;
    socket.send(Message::text(json!(["REQ", "q", {"ids": [event.id.to_string()]}]).to_string())).ok()?;
    let mut served = false;
    loop {
        let Message::Text(text) = socket.read().ok()? else { continue };
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        match answer[0].as_str() {
            Some("EVENT") => served = true,
            Some("EOSE") => return Some(served),
            _ => panic!("unexpected {answer}"),
        }
    }
}

/// What is in a folder; nothing if there is none.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    entries
}

/// Every repository folder.
pub fn repositories(folder: &Path) -> Vec<PathBuf> {
    let owners = ["repos", "prs"].into_iter().flat_map(|room| entries(&folder.join(room)));
    owners.flat_map(|owner| entries(&owner)).collect()
}

/// Demands that every repository on disk is whole and that nothing half done lies about, soon.
pub fn expect_sound(folder: &Path) {
    for place in ["incoming", "trash"] {
        eventually(&format!("{place} is empty"), || entries(&folder.join(place)).is_empty().then_some(()));
    }
    for repository in repositories(folder) {
        let place = repository.display().to_string();
        assert!(repository.join("HEAD").exists(), "{place} is no repository");
        git(&["--git-dir", &place, "fsck", "--full", "--strict"]).done();
        let half: Vec<PathBuf> = ["", "objects/info", "pool/pack"]
            .iter()
            .flat_map(|part| entries(&repository.join(part)))
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                [".new", ".lock"].iter().any(|end| name.ends_with(end)) || name.starts_with("tmp_")
            })
            .collect();
        assert!(half.is_empty(), "{half:?}");
    }
}

/// Demands that everything that served events need can be had from one of these repositories, with all that it needs.
pub fn expect_objects(server: &Server, paths: &[String]) {
    let clones: Vec<tempfile::TempDir> = paths
        .iter()
        .filter(|path| info_refs(server, path, "git-upload-pack", &[]).status == 200)
        .map(|path| {
            let clone = tempfile::TempDir::new().expect("a folder");
            let url = format!("http://{}{}{path}", server.address, server.base);
            git(&["clone", "--quiet", "--mirror", &url, &clone.path().display().to_string()]).done();
            clone
        })
        .collect();
    let has = |oid: &String| {
        clones.iter().any(|clone| {
            let place = clone.path().display().to_string();
            git(&["--git-dir", &place, "rev-list", "--objects", "--quiet", oid]).success
        })
    };
    for event in served(&mut server.connect()) {
        for oid in needs(&event) {
            assert!(has(&oid), "{oid} is missing for {event}");
        }
    }
}
