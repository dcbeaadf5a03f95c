//! All installed git versions work, on the server and on the client. A git that is too old or missing is reported.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use crate::support::Server;
use crate::support::admin::CommandOutput;
use crate::support::git::{MAIN, PROTOCOLS, WorkTree, can_fetch, git, ls_remote};
use crate::support::integrity::expect_intact_repos;
use crate::support::programs::{exec_path, git_programs, version, with_git};
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};
use tempfile::TempDir;

/// Publishes, pushes, restarts and clones with every protocol version, with the same git on both sides.
fn publish_push_and_clone() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, one) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&one));
    let two = work.commit("file", "two");
    let tag = work.tag("v1");
    server.push_state(
        &owner,
        &owner,
        "tool",
        crate::support::git::BASE_TIME + 1,
        &work,
        &[(MAIN, &two), ("refs/tags/v1", &tag)],
    );
    // A push that no state declares is rejected.
    let three = work.commit("file", "three");
    work.push(&server.url(&owner, "tool"), &[MAIN]).expect_failure(&["E-STATE-MISSING"]);
    let server = server.restart(StopSignal::Term);
    let url = server.url(&owner, "tool");
    assert_eq!(ls_remote(&url).head.as_deref(), Some(MAIN));
    for protocol in PROTOCOLS {
        let option = format!("protocol.version={protocol}");
        let (clone, output) = WorkTree::try_clone(&["-c", &option], &url, &[]);
        output.expect_success();
        assert_eq!((clone.oid("HEAD"), clone.oid("v1")), (two.clone(), tag.clone()));
        clone.fsck();
        let (shallow, output) = WorkTree::try_clone(&["-c", &option], &url, &["--depth=1"]);
        output.expect_success();
        assert!(shallow.has(&two) && !shallow.has(&one), "protocol {protocol}");
        let (partial, output) = WorkTree::try_clone(&["-c", &option], &url, &["--filter=blob:none", "--no-checkout"]);
        output.expect_success();
        let objects = partial.git(&["rev-list", "--objects", "--missing=print", "HEAD"]).expect_success().text();
        assert_eq!(objects.lines().filter(|line| line.starts_with('?')).count(), 2, "protocol {protocol}: {objects}");
        // An object that no ref points to can be fetched by its id.
        assert!(can_fetch(protocol, &url, &one) && !can_fetch(protocol, &url, &three), "protocol {protocol}");
    }
    expect_intact_repos(&server.git_folder());
}

#[test]
fn every_installed_git_works() {
    let programs = git_programs();
    assert!(!programs.is_empty(), "no supported git is installed");
    for program in programs {
        let (version, exec_path) = (version(&program), exec_path(&program));
        // Written to the stream itself, which the test harness does not capture.
        writeln!(std::io::stderr(), "server and clients with {} ({version})", program.display())
            .expect("standard error is closed");
        with_git(&program, || {
            // Asserts that this git runs, with its own commands and not those of another version.
            assert_eq!(git(&["version"]).expect_success().text(), version);
            assert_eq!(git(&["--exec-path"]).expect_success().text(), exec_path);
            let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
            let log = Server::start_with_log(&folder, &[("LOG_LEVEL", "info")]).log();
            let number = version.strip_prefix("git version ").expect("unexpected output of git version");
            assert!(log.contains(&format!("git={number} at ")), "{log}");
            publish_push_and_clone();
        });
    }
}

/// Writes a program `git` that only prints a version.
fn write_fake_git(folder: &Path, version: &str) {
    let program = folder.join("git");
    fs::write(&program, format!("#!/bin/sh\necho '{version}'\n")).expect("cannot write the file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("cannot set the permissions");
}

/// The server and `graspd check` report the git that was found, the version that is needed and what to do.
#[test]
fn unusable_git_is_reported() {
    let bin = TempDir::new().expect("cannot create a temporary folder");
    let program = bin.path().join("git").display().to_string();
    let run = |arguments: &[&str]| {
        let folder = TempDir::new().expect("cannot create a temporary folder");
        let mut command = crate::support::command(folder.path(), &[]);
        // The script `git` runs `/bin/sh`, which needs no search path.
        command.env("PATH", bin.path()).args(arguments).stdin(Stdio::null());
        CommandOutput::new(&command.output().expect("cannot run graspd"))
    };
    for (output, expected) in [
        (None, format!("found none in PATH ({})", bin.path().display())),
        (Some("git version 2.30.2"), format!("found 2.30.2 at {program}")),
        (Some("git version 2.38.9 (Apple Git-1)"), format!("found 2.38.9 (Apple Git-1) at {program}")),
        (Some("hub version 2.14.2"), format!("`{program} version` printed `hub version 2.14.2`")),
    ] {
        if let Some(output) = output {
            write_fake_git(bin.path(), output);
        }
        let expected = format!("graspd needs git 2.39 or newer; {expected}");
        let error = run(&[]).expect_failure(1);
        assert!(error.contains(&format!("{expected}: ")) && error.contains(" in PATH"), "{error}");
        let report = run(&["check", "--json", "--via", "http://127.0.0.1:1"]);
        assert!(report.stdout.contains(&expected), "{}{}", report.stdout, report.stderr);
    }
    // The printed version is new enough, but the program has no git commands.
    write_fake_git(bin.path(), "git version 2.39.5");
    let error = run(&[]).expect_failure(1);
    assert!(error.contains(&format!("git 2.39.5 at {program} does not offer `allow-tip-sha1-in-want`")), "{error}");
}
