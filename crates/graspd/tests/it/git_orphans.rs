//! Git processes that a killed server leaves behind do no harm to the next one.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{fs, thread};

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use tempfile::TempDir;

use crate::support::git::{MAIN, Maintainer, Said, THEN, Work, ls_remote, refs, repo_path};
use crate::support::integrity::{entries, expect_objects, expect_sound};
use crate::support::test_server::{main_at, one_commit};
use crate::support::{Server, command, eventually};

/// A git that begins to take a pack apart, says so, and goes on when the file `slow` is gone.
const SLOW_CHILD: &str = "while [ -e SLOW ]; do sleep 0.01; done; exec GIT \"$@\"";

/// The same, done by a process of its own that nobody ends.
const SLOW_GRANDCHILD: &str = "(while [ -e SLOW ]; do sleep 0.01; done; exec GIT \"$@\") </dev/null >/dev/null 2>&1 & echo $! >PID.new; mv PID.new PID; wait";

/// A folder with data, with a git in front of the real one.
struct Place {
    folder: TempDir,
    owner: Maintainer,
    work: Work,
    commit: String,
}

impl Place {
    /// The first push of a repository is ready to be made.
    fn new(when_slow: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        let found = Command::new("sh").args(["-c", "command -v git"]).output().expect("runs").stdout;
        let git = String::from_utf8(found).expect("a path").trim().to_owned();
        let slow = when_slow.replace("SLOW", &at("slow")).replace("PID", &at("pid")).replace("GIT", &git);
        let began = at("began");
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *' index-pack '*) if [ -e {} ]; then echo $$ >{began}.new; mv {began}.new {began}; {slow}; exit; fi;; esac\n\
             exec {git} \"$@\"\n",
            at("slow"),
        );
        fs::create_dir(at("bin")).expect("a new folder");
        fs::write(at("bin/git"), script).expect("a file");
        fs::set_permissions(at("bin/git"), fs::Permissions::from_mode(0o755)).expect("its owner may");
        let owner = Maintainer::new(1, &ServiceAddress::new("grasp.test", "").expect("a host name"));
        let (work, commit) = one_commit("one");
        Self { folder, owner, work, commit }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = command(self.folder.path(), &[("DOMAIN", "grasp.test")]);
        let path = std::env::var("PATH").expect("a search path");
        command.env("PATH", format!("{}:{path}", self.file("bin").display()));
        command.stderr(File::create(self.file("log")).expect("a file"));
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file("log")).expect("a log")
    }

    fn start(&self) -> Server {
        Server::spawn(self.command())
    }

    fn announce(&self, server: &Server) -> Arc<SignedEvent> {
        let state = self.owner.state("tool", THEN, &main_at(&self.commit));
        let mut client = server.connect();
        for event in [&self.owner.announce("tool", THEN, &[]), &state] {
            assert!(client.publish(event).0);
        }
        state
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }

    fn push(&self, server: &Server) -> Said {
        self.work.push(&format!("http://{}{}", server.address, self.path()), &[&format!("{}:{MAIN}", self.commit)])
    }

    /// Kills a server while a slow git takes a pack apart, which says so in a file; gives the state that was pushed.
    fn kill_during_a_push(&self, says: &str) -> Arc<SignedEvent> {
        let mut server = self.start();
        let state = self.announce(&server);
        fs::write(self.file("slow"), "").expect("a file");
        thread::scope(|scope| {
            let push = scope.spawn(|| self.push(&server));
            eventually("git begins", || self.file(says).exists().then_some(()));
            let pid = server.child.id().to_string();
            assert!(Command::new("kill").args(["-KILL", &pid]).status().expect("runs").success());
            assert!(!push.join().expect("it pushed").success);
        });
        server.child.wait().expect("it is gone");
        state
    }

    /// The same push again, and everything is as it should be.
    fn go_on(&self, server: &Server, state: &SignedEvent) {
        self.push(server).done();
        assert!(crate::support::test_server::served(&mut server.connect(), state));
        let remote = ls_remote(&format!("http://{}{}", server.address, self.path()));
        assert_eq!(remote.refs, refs(&main_at(&self.commit)));
        expect_objects(server, &[self.path()]);
        expect_sound(&self.file("data/git"));
    }
}

/// Whether a process works: it is there, and not only because nobody has asked how it ended.
fn works(file: &Path) -> bool {
    let pid = fs::read_to_string(file).expect("a number");
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

#[test]
fn a_git_process_ends_with_its_server() {
    let place = Place::new(SLOW_CHILD);
    let state = place.kill_during_a_push("began");
    eventually("it ends", || (!works(&place.file("began"))).then_some(()));
    let server = place.start();
    assert!(entries(&place.file("data/git/incoming")).is_empty());
    fs::remove_file(place.file("slow")).expect("it was there");
    place.go_on(&server, &state);
}

#[test]
fn a_new_server_waits_for_git_processes_that_were_left_behind() {
    let place = Place::new(SLOW_GRANDCHILD);
    let state = place.kill_during_a_push("pid");
    assert!(works(&place.file("pid")), "it is to be left behind");
    let kept = entries(&place.file("data/git/incoming"));
    assert!(!kept.is_empty());
    // Not for ever, and it says what is the matter.
    let status = place.command().status().expect("runs");
    assert_eq!(status.code(), Some(1));
    let said = place.log();
    assert!(said.contains("waiting for them") && said.contains("a git process that one has left behind"), "{said}");
    assert_eq!(entries(&place.file("data/git/incoming")), kept, "nothing is repaired beside it");

    let command = place.command();
    thread::scope(|scope| {
        let server = scope.spawn(|| Server::spawn(command));
        eventually("it waits", || place.log().contains("waiting for them").then_some(()));
        assert!(works(&place.file("pid")) && !server.is_finished());
        fs::remove_file(place.file("slow")).expect("it was there");
        let server = server.join().expect("it starts");
        assert!(!works(&place.file("pid")));
        place.go_on(&server, &state);
    });
}
