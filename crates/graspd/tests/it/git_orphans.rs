//! Git processes that outlive a killed server do not damage the data of the next one.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{fs, thread};

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::ServiceAddress;
use tempfile::TempDir;

use crate::support::git::{BASE_TIME, GitOutput, MAIN, Maintainer, WorkTree, ls_remote, refs, repo_path};
use crate::support::integrity::{entries, expect_intact_repos, expect_needed_objects};
use crate::support::test_server::{commit_for_git, main_at};
use crate::support::{Server, command, eventually};

/// Shell code of a slow `git index-pack`: it waits until the file `slow` is removed.
const SLOW_CHILD: &str = "while [ -e SLOW ]; do sleep 0.01; done; exec GIT \"$@\"";

/// The same in a process of its own, which does not end with the server; its process id is in the file `pid`.
const SLOW_GRANDCHILD: &str = "(while [ -e SLOW ]; do sleep 0.01; done; exec GIT \"$@\") </dev/null >/dev/null 2>&1 & echo $! >PID.new; mv PID.new PID; wait";

/// A server folder with a wrapper script for git, and a repository to push.
struct ServerFolder {
    folder: TempDir,
    owner: Maintainer,
    work: WorkTree,
    commit: String,
}

impl ServerFolder {
    /// Creates the folder. The wrapper writes its process id to the file `began` and runs `when_slow` for `git
    /// index-pack` if the file `slow` exists.
    fn new(when_slow: &str) -> Self {
        let folder = TempDir::new().expect("cannot create a temporary folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let found = Command::new("sh").args(["-c", "command -v git"]).output().expect("cannot run sh").stdout;
        let git = String::from_utf8(found).expect("path is UTF-8").trim().to_owned();
        let slow = when_slow.replace("SLOW", &path("slow")).replace("PID", &path("pid")).replace("GIT", &git);
        let began = path("began");
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *' index-pack '*) if [ -e {} ]; then echo $$ >{began}.new; mv {began}.new {began}; {slow}; exit; fi;; esac\n\
             exec {git} \"$@\"\n",
            path("slow"),
        );
        fs::create_dir(path("bin")).expect("cannot create the folder");
        fs::write(path("bin/git"), script).expect("cannot write the file");
        fs::set_permissions(path("bin/git"), fs::Permissions::from_mode(0o755)).expect("cannot set the permissions");
        let owner = Maintainer::new(1, &ServiceAddress::new("grasp.test", "").expect("valid host name"));
        let (work, commit) = commit_for_git();
        Self { folder, owner, work, commit }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = command(self.folder.path(), &[("DOMAIN", "grasp.test")]);
        let path = std::env::var("PATH").expect("PATH is not set");
        command.env("PATH", format!("{}:{path}", self.file("bin").display()));
        command.stderr(File::create(self.file("log")).expect("cannot create the file"));
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file("log")).expect("cannot read the file")
    }

    fn start(&self) -> Server {
        Server::spawn(self.command())
    }

    fn announce(&self, server: &Server) -> Arc<SignedEvent> {
        let state = self.owner.state("tool", BASE_TIME, &main_at(&self.commit));
        let mut client = server.connect();
        for event in [&self.owner.announce("tool", BASE_TIME, &[]), &state] {
            assert!(client.publish(event).0);
        }
        state
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }

    fn push(&self, server: &Server) -> GitOutput {
        self.work.push(&format!("http://{}{}", server.address, self.path()), &[&format!("{}:{MAIN}", self.commit)])
    }

    /// Kills a server while the slow `git index-pack` runs, as soon as the file `started` exists; returns the pushed
    /// state.
    fn kill_during_push(&self, started: &str) -> Arc<SignedEvent> {
        let mut server = self.start();
        let state = self.announce(&server);
        fs::write(self.file("slow"), "").expect("cannot write the file");
        thread::scope(|scope| {
            let push = scope.spawn(|| self.push(&server));
            eventually("git starts", || self.file(started).exists().then_some(()));
            let pid = server.child.id().to_string();
            assert!(Command::new("kill").args(["-KILL", &pid]).status().expect("cannot run kill").success());
            assert!(!push.join().expect("the pushing thread panicked").success);
        });
        server.child.wait().expect("cannot wait for the server");
        state
    }

    /// Repeats the push and asserts that it has its full effect.
    fn expect_push_succeeds(&self, server: &Server, state: &SignedEvent) {
        self.push(server).expect_success();
        assert!(crate::support::test_server::is_served(&mut server.connect(), state));
        let remote = ls_remote(&format!("http://{}{}", server.address, self.path()));
        assert_eq!(remote.refs, refs(&main_at(&self.commit)));
        expect_needed_objects(server, &[self.path()]);
        expect_intact_repos(&self.file("data/git"));
    }
}

/// Returns whether the process whose id is in a file runs, that is, it exists and is not a zombie.
fn is_running(file: &Path) -> bool {
    let pid = fs::read_to_string(file).expect("cannot read the file");
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

#[test]
fn git_process_ends_with_its_server() {
    let folder = ServerFolder::new(SLOW_CHILD);
    let state = folder.kill_during_push("began");
    eventually("the git process ends", || (!is_running(&folder.file("began"))).then_some(()));
    let server = folder.start();
    assert!(entries(&folder.file("data/git/incoming")).is_empty());
    fs::remove_file(folder.file("slow")).expect("cannot remove the file");
    folder.expect_push_succeeds(&server, &state);
}

#[test]
fn new_server_waits_for_git_processes_of_the_previous_one() {
    let folder = ServerFolder::new(SLOW_GRANDCHILD);
    let state = folder.kill_during_push("pid");
    assert!(is_running(&folder.file("pid")), "the git process has ended");
    let kept = entries(&folder.file("data/git/incoming"));
    assert!(!kept.is_empty());
    // It gives up after a while, and logs the reason.
    let status = folder.command().status().expect("cannot run graspd");
    assert_eq!(status.code(), Some(1));
    let log = folder.log();
    assert!(log.contains("waiting for git processes") && log.contains("a git process of an earlier one"), "{log}");
    assert_eq!(entries(&folder.file("data/git/incoming")), kept, "repair ran at the same time as the git process");

    let command = folder.command();
    thread::scope(|scope| {
        let server = scope.spawn(|| Server::spawn(command));
        eventually("the server waits", || folder.log().contains("waiting for git processes").then_some(()));
        assert!(is_running(&folder.file("pid")) && !server.is_finished());
        fs::remove_file(folder.file("slow")).expect("cannot remove the file");
        let server = server.join().expect("the starting thread panicked");
        assert!(!is_running(&folder.file("pid")));
        folder.expect_push_succeeds(&server, &state);
    });
}
