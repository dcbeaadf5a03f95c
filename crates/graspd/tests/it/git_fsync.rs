//! The order of the system calls that make a push durable (`docs/design/admission.md#order-of-durable-steps`), traced
//! with strace. A kill cannot show that an fsync is missing, because the page cache outlives the process.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use grasp_core::repo::ServiceAddress;
use tempfile::TempDir;

use crate::support::git::{BASE_TIME, MAIN, Maintainer, repo_path};
use crate::support::test_server::{main_at, one_commit};
use crate::support::{Server, command, eventually};

const CALLS: &str = "trace=fsync,fdatasync,msync,rename,renameat,renameat2,openat,pwrite64,pwritev,write,writev,sendto,\
                     sendmsg";

/// One system call: its name, its arguments and result as text, and the lines of the trace where it began and ended.
#[derive(Debug)]
struct Call {
    name: String,
    text: String,
    begun: usize,
    ended: usize,
}

/// The calls that strace recorded, in the order in which they began.
struct Trace(Vec<Call>);

impl Trace {
    fn parse(text: &str) -> Self {
        let mut calls: Vec<Call> = Vec::new();
        let mut open: HashMap<&str, usize> = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let Some((pid, rest)) = line.split_once(' ').map(|(pid, rest)| (pid, rest.trim_start())) else { continue };
            if rest.starts_with("<... ") {
                let Some(call) = open.remove(pid).map(|nth| &mut calls[nth]) else { continue };
                call.text.push_str(rest);
                call.ended = at;
            } else if let Some((name, text)) = rest.split_once('(') {
                if text.ends_with("<unfinished ...>") {
                    open.insert(pid, calls.len());
                }
                // Ends after everything else, unless a later line says that the call was resumed.
                let ended = if text.ends_with("<unfinished ...>") { usize::MAX } else { at };
                calls.push(Call { name: name.to_owned(), text: text.to_owned(), begun: at, ended });
            }
        }
        Self(calls)
    }

    /// Returns the first matching call that began after a line.
    fn first_after(&self, line: usize, pattern: &CallPattern) -> Option<&Call> {
        self.0.iter().find(|call| call.begun > line && pattern.matches(call))
    }

    /// Asserts that calls happened in this order, each ended before the next began, and that the last happened only
    /// once.
    #[track_caller]
    fn expect_order(&self, chain: &[&CallPattern]) {
        let mut line = 0;
        for (nth, pattern) in chain.iter().enumerate() {
            let before = nth.checked_sub(1).map(|nth| chain[nth]);
            let call = self.first_after(line, pattern).unwrap_or_else(|| panic!("no {pattern:?} after {before:?}"));
            line = call.ended;
        }
        let last = chain.last().expect("chain is not empty");
        let times = self.0.iter().filter(|call| last.matches(call)).count();
        assert_eq!(times, 1, "{last:?}");
    }
}

/// Matches system calls by their names and parts of their text.
#[derive(Debug)]
struct CallPattern {
    names: &'static [&'static str],
    words: Vec<String>,
}

impl CallPattern {
    fn matches(&self, call: &Call) -> bool {
        self.names.contains(&call.name.as_str()) && self.words.iter().all(|word| call.text.contains(word.as_str()))
    }
}

/// Matches an fsync of a file or folder.
fn sync(path: &str) -> CallPattern {
    CallPattern { names: &["fsync", "fdatasync"], words: vec![format!("<{path}>) ")] }
}

/// Matches a rename to this path.
fn rename(to: &str) -> CallPattern {
    CallPattern { names: &["rename", "renameat", "renameat2"], words: vec![format!(", \"{to}\"")] }
}

/// Starts a server whose system calls are written to a file. The server is a child of this process, not of strace.
fn start_traced(folder: &Path, trace: &Path) -> Server {
    let installed = Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success());
    assert!(installed, "install strace");
    let server = command(folder, &[("DOMAIN", "grasp.test")]);
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-y", "-s", "4096", "-e", CALLS, "-o"]).arg(trace).arg(server.get_program());
    strace.current_dir(folder).env_clear();
    for (name, value) in server.get_envs() {
        strace.env(name, value.expect("variable has a value"));
    }
    strace.env("PATH", std::env::var_os("PATH").expect("PATH is not set"));
    Server::spawn(strace)
}

#[test]
#[ignore = "needs strace; .ci/run runs it"]
fn push_is_on_disk_before_it_is_reported() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let log = folder.path().join("trace");
    let mut server = start_traced(folder.path(), &log);
    let owner = Maintainer::new(1, &ServiceAddress::new("grasp.test", "").expect("valid host name"));
    let (work, commit) = one_commit("one");
    let mut client = server.connect();
    for event in [owner.announce("tool", BASE_TIME, &[]), owner.state("tool", BASE_TIME, &main_at(&commit))] {
        assert!(client.publish(&event).0);
    }
    let url = format!("http://{}{}", server.address, repo_path(&owner.npub(), "tool"));
    work.push(&url, &[&format!("{commit}:{MAIN}")]).expect_success();
    let pid = server.child.id().to_string();
    assert_eq!(server.stop(), Some(0));
    let text = eventually("strace ends", || {
        let text = fs::read_to_string(&log).expect("cannot read the file");
        // strace pads short process ids with spaces.
        let ended =
            |line: &str| line.strip_prefix(&pid).is_some_and(|rest| rest.trim_start().starts_with("+++ exited"));
        text.lines().any(ended).then_some(text)
    });

    let trace = Trace::parse(&text);
    let git = folder.path().canonicalize().expect("cannot resolve the path").join("data/git").display().to_string();
    let repo = format!("{git}/repos/{}/tool.git", owner.npub());
    let pool = format!("{repo}/pool/pack");
    let packs: Vec<&str> =
        trace.0.iter().filter_map(|call| call.text.split(&format!(", \"{pool}/pack-")).nth(1)).collect();
    let name = packs.first().and_then(|rest| rest.split_once('.')).expect("no pack is moved into the pool").0;
    let received = |part: &str| CallPattern {
        names: &["fsync", "fdatasync"],
        words: vec![format!("<{git}/incoming/"), format!("/pack-{name}.{part}>) ")],
    };
    let moved = |part: &str| rename(&format!("{pool}/pack-{name}.{part}"));
    let [pack, idx] = ["pack", "idx"].map(received);
    let [pack_moved, idx_moved] = ["pack", "idx"].map(moved);
    // The store: its pages are synced, then the meta page that makes them valid is written to a descriptor with
    // O_DSYNC.
    let store = folder.path().canonicalize().expect("cannot resolve the path").join("data/relay/events/data.mdb");
    let store = store.display().to_string();
    let open = trace.0.iter().find(|call| call.name == "openat" && call.text.contains("O_DSYNC"));
    let open = open.filter(|call| call.text.contains(&format!("<{store}>"))).expect("the store is not opened O_DSYNC");
    let number = open.text.rsplit_once("= ").and_then(|(_, fd)| fd.split_once('<')).expect("openat has a result").0;
    let pages = sync(&store);
    let meta = CallPattern { names: &["pwrite64"], words: vec![format!("{number}<{store}>")] };
    let report = CallPattern { names: &["write", "writev", "sendto", "sendmsg"], words: vec!["unpack ok".to_owned()] };

    // A pack is on disk before it is moved into the pool, and its index is moved last.
    trace.expect_order(&[&pack, &pack_moved]);
    trace.expect_order(&[&idx, &idx_moved]);
    trace.expect_order(&[&pack, &pack_moved, &idx_moved]);
    // Everything that the refs need is durable before the transaction that sets them, and that before the report.
    let committed = |before: &[&CallPattern]| trace.expect_order(&[before, &[&pages, &meta, &report]].concat());
    let owner_folder = Path::new(&repo).parent().expect("path has a parent").display().to_string();
    committed(&[&sync(&repo), &sync(&owner_folder), &sync(&format!("{git}/repos"))]);
    committed(&[&idx_moved, &sync(&pool)]);
    let alternates = format!("{repo}/objects/info/alternates");
    committed(&[&sync(&format!("{alternates}.new")), &rename(&alternates), &sync(&format!("{repo}/objects/info"))]);
    // The ref files follow, and need not be on disk.
    trace.expect_order(&[&sync(&pool), &pages, &meta, &rename(&format!("{repo}/packed-refs"))]);
    assert!(trace.first_after(0, &sync(&format!("{repo}/packed-refs.new"))).is_none());
}
