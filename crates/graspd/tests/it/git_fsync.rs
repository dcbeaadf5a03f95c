//! The order of what makes a push durable, as the kernel sees it: no kill can show a sync that is missing, because the
//! page cache outlives the process.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use grasp_core::repo::ServiceAddress;
use tempfile::TempDir;

use crate::support::git::{MAIN, Maintainer, THEN, repo_path};
use crate::support::test_server::{main_at, one_commit};
use crate::support::{Server, command, eventually};

const CALLS: &str = "trace=fsync,fdatasync,msync,rename,renameat,renameat2,openat,pwrite64,pwritev,write,writev,sendto,\
                     sendmsg";

/// One system call: its name, what it was given and gave, and the lines where it began and ended.
#[derive(Debug)]
struct Call {
    name: String,
    text: String,
    begun: usize,
    ended: usize,
}

/// What strace wrote, in the order in which the calls began.
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
                // One that has not ended is not over at the end either.
                let ended = if text.ends_with("<unfinished ...>") { usize::MAX } else { at };
                calls.push(Call { name: name.to_owned(), text: text.to_owned(), begun: at, ended });
            }
        }
        Self(calls)
    }

    /// The first call that began when another was over.
    fn after(&self, line: usize, wanted: &Wanted) -> Option<&Call> {
        self.0.iter().find(|call| call.begun > line && wanted.fits(call))
    }

    /// Demands calls in this order, each over before the next begins; the last must not have happened before.
    #[track_caller]
    fn expect(&self, chain: &[&Wanted]) {
        let mut line = 0;
        for (nth, wanted) in chain.iter().enumerate() {
            let before = nth.checked_sub(1).map(|nth| chain[nth]);
            let call = self.after(line, wanted).unwrap_or_else(|| panic!("no {wanted:?} after {before:?}"));
            line = call.ended;
        }
        let last = chain.last().expect("some");
        let times = self.0.iter().filter(|call| last.fits(call)).count();
        assert_eq!(times, 1, "{last:?}");
    }
}

/// A call, by its name and some of its text.
#[derive(Debug)]
struct Wanted {
    names: &'static [&'static str],
    words: Vec<String>,
}

impl Wanted {
    fn fits(&self, call: &Call) -> bool {
        self.names.contains(&call.name.as_str()) && self.words.iter().all(|word| call.text.contains(word.as_str()))
    }
}

/// A file or folder is written to the disk.
fn sync(path: &str) -> Wanted {
    Wanted { names: &["fsync", "fdatasync"], words: vec![format!("<{path}>) ")] }
}

/// Something gets this name.
fn rename(to: &str) -> Wanted {
    Wanted { names: &["rename", "renameat", "renameat2"], words: vec![format!(", \"{to}\"")] }
}

/// Starts a server whose calls are written to a file. It is a child of ours, not of strace.
fn start(folder: &Path, trace: &Path) -> Server {
    let installed = Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success());
    assert!(installed, "install strace");
    let server = command(folder, &[("DOMAIN", "grasp.test")]);
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-y", "-s", "4096", "-e", CALLS, "-o"]).arg(trace).arg(server.get_program());
    strace.current_dir(folder).env_clear();
    for (name, value) in server.get_envs() {
        strace.env(name, value.expect("set"));
    }
    strace.env("PATH", std::env::var_os("PATH").expect("a search path"));
    Server::spawn(strace)
}

#[test]
#[ignore = "needs strace; .ci/run runs it"]
fn everything_is_on_disk_before_git_hears_of_it() {
    let folder = TempDir::new().expect("a folder");
    let log = folder.path().join("trace");
    let mut server = start(folder.path(), &log);
    let owner = Maintainer::new(1, &ServiceAddress::new("grasp.test", "").expect("a host name"));
    let (work, commit) = one_commit("one");
    let mut client = server.connect();
    for event in [owner.announce("tool", THEN, &[]), owner.state("tool", THEN, &main_at(&commit))] {
        assert!(client.publish(&event).0);
    }
    let url = format!("http://{}{}", server.address, repo_path(&owner.npub(), "tool"));
    work.push(&url, &[&format!("{commit}:{MAIN}")]).done();
    let pid = server.child.id().to_string();
    assert_eq!(server.stop(), Some(0));
    let text = eventually("strace ends", || {
        let text = fs::read_to_string(&log).expect("a file");
        // Short process ids are followed by further spaces.
        let ended =
            |line: &str| line.strip_prefix(&pid).is_some_and(|rest| rest.trim_start().starts_with("+++ exited"));
        text.lines().any(ended).then_some(text)
    });

    let trace = Trace::parse(&text);
    let git = folder.path().canonicalize().expect("it is there").join("data/git").display().to_string();
    let repo = format!("{git}/repos/{}/tool.git", owner.npub());
    let pool = format!("{repo}/pool/pack");
    let packs: Vec<&str> =
        trace.0.iter().filter_map(|call| call.text.split(&format!(", \"{pool}/pack-")).nth(1)).collect();
    let name = packs.first().and_then(|rest| rest.split_once('.')).expect("a pack gets into the pool").0;
    let received = |part: &str| Wanted {
        names: &["fsync", "fdatasync"],
        words: vec![format!("<{git}/incoming/"), format!("/pack-{name}.{part}>) ")],
    };
    let kept = |part: &str| rename(&format!("{pool}/pack-{name}.{part}"));
    let [pack, idx] = ["pack", "idx"].map(received);
    let [pack_kept, idx_kept] = ["pack", "idx"].map(kept);
    let refs = rename(&format!("{repo}/packed-refs"));
    // The store: its pages are synced, then the page that makes them valid is written through.
    let store = folder.path().canonicalize().expect("it is there").join("data/relay/events/data.mdb");
    let store = store.display().to_string();
    let through = trace.0.iter().find(|call| call.name == "openat" && call.text.contains("O_DSYNC"));
    let through =
        through.filter(|call| call.text.contains(&format!("<{store}>"))).expect("the store is written through");
    let number = through.text.rsplit_once("= ").and_then(|(_, fd)| fd.split_once('<')).expect("a descriptor").0;
    let pages = sync(&store);
    let meta = Wanted { names: &["pwrite64"], words: vec![format!("{number}<{store}>")] };
    let told = Wanted { names: &["write", "writev", "sendto", "sendmsg"], words: vec!["unpack ok".to_owned()] };

    // A pack is on disk before it has its name in the pool, and the index comes last.
    trace.expect(&[&pack, &pack_kept]);
    trace.expect(&[&idx, &idx_kept]);
    trace.expect(&[&pack, &pack_kept, &idx_kept]);
    // The way to the pool is durable before refs need it.
    let above = Path::new(&repo).parent().expect("an owner").display().to_string();
    trace.expect(&[&sync(&repo), &sync(&above), &sync(&format!("{git}/repos")), &refs]);
    trace.expect(&[&idx_kept, &sync(&pool), &refs]);
    let alternates = format!("{repo}/objects/info/alternates");
    trace.expect(&[
        &sync(&format!("{alternates}.new")),
        &rename(&alternates),
        &sync(&format!("{repo}/objects/info")),
        &refs,
    ]);
    // Refs and HEAD, then the store, then the answer.
    let head = rename(&format!("{repo}/HEAD"));
    trace.expect(&[&sync(&format!("{repo}/packed-refs.new")), &refs]);
    trace.expect(&[&refs, &sync(&format!("{repo}/HEAD.new")), &head, &sync(&repo), &pages, &meta, &told]);
    trace.expect(&[&refs, &sync(&repo), &pages, &meta, &told]);
}
