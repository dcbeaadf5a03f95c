//! Refs that this crate writes are read by git, and advertisements are the same as git's.

use std::path::Path;
use std::process::{Command, Stdio};

use grasp_git::pktline;
use grasp_git::refs::{LsRefsRequest, RefTarget, Refs, read_refs, write_advertisement, write_ls_refs, write_refs};
use tempfile::TempDir;

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs([
            ("GIT_AUTHOR_NAME", "a"),
            ("GIT_AUTHOR_EMAIL", "a@example"),
            ("GIT_COMMITTER_NAME", "a"),
            ("GIT_COMMITTER_EMAIL", "a@example"),
        ])
        .stderr(Stdio::inherit())
        .output()
        .expect("run git");
    assert!(output.status.success(), "git {arguments:?}");
    String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_owned()
}

/// Creates a bare repository with one commit and an annotated tag of it, and refs that are not written yet.
fn repository() -> (TempDir, Refs) {
    let folder = TempDir::new().expect("create a folder");
    git(folder.path(), &["init", "--quiet", "--bare", "."]);
    let tree = git(folder.path(), &["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let commit = git(folder.path(), &["commit-tree", &tree, "-m", "first"]);
    git(folder.path(), &["tag", "-a", "v1", "-m", "one", &commit]);
    let object = git(folder.path(), &["rev-parse", "refs/tags/v1"]);
    git(folder.path(), &["tag", "-d", "v1"]);
    let mut refs = Refs::default();
    refs.set("refs/tags/v1", RefTarget { oid: object, peeled: Some(commit.clone()) });
    refs.set("refs/heads/main", RefTarget { oid: commit.clone(), peeled: None });
    refs.set("refs/heads/a/b", RefTarget { oid: commit, peeled: None });
    refs.set_head("refs/heads/main");
    (folder, refs)
}

#[test]
fn git_reads_written_refs() {
    let (folder, refs) = repository();
    write_refs(folder.path(), &refs).expect("write refs");
    let listed = git(folder.path(), &["for-each-ref", "--format=%(objectname) %(refname) %(*objectname)"]);
    let ours: Vec<String> = refs
        .iter()
        .map(|(name, target)| format!("{} {name} {}", target.oid, target.peeled.as_deref().unwrap_or_default()))
        .collect();
    assert_eq!(listed.lines().collect::<Vec<_>>(), ours.iter().map(|line| line.as_str()).collect::<Vec<_>>());
    assert_eq!(git(folder.path(), &["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(git(folder.path(), &["fsck", "--strict"]), "");
    assert_eq!(read_refs(folder.path()).expect("read refs"), refs);
}

#[test]
fn ref_name_can_become_a_prefix_of_itself() {
    let (folder, mut refs) = repository();
    write_refs(folder.path(), &refs).expect("write refs");
    let target = refs.remove("refs/heads/a/b").expect("the ref exists");
    refs.set("refs/heads/a", target);
    write_refs(folder.path(), &refs).expect("write refs");
    assert_eq!(
        git(folder.path(), &["for-each-ref", "--format=%(refname)"]),
        "refs/heads/a\nrefs/heads/main\nrefs/tags/v1"
    );
}

/// Returns the lines of git's own v0 advertisement, without capabilities.
fn advertised_by_git(folder: &Path) -> Vec<String> {
    let text = git(folder, &["upload-pack", "--advertise-refs", "."]);
    lines(text.as_bytes())
}

fn lines(mut bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(Some((packet, length))) = pktline::read(bytes) {
        if let Some(line) = packet.line() {
            let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
            lines.push(String::from_utf8_lossy(line).into_owned());
        }
        bytes = &bytes[length..];
    }
    lines
}

#[test]
fn advertisement_equals_that_of_git() {
    let (folder, mut refs) = repository();
    for head in ["refs/heads/main", "refs/heads/unborn"] {
        refs.set_head(head);
        write_refs(folder.path(), &refs).expect("write refs");
        let mut ours = Vec::new();
        write_advertisement(&refs, &mut ours, "agent=x");
        assert_eq!(lines(&ours), advertised_by_git(folder.path()), "{head}");
        let text = String::from_utf8_lossy(&ours).into_owned();
        assert_eq!(text.contains("symref=HEAD:refs/heads/main"), head == "refs/heads/main");
    }
    let empty = TempDir::new().expect("create a folder");
    git(empty.path(), &["init", "--quiet", "--bare", "."]);
    write_refs(empty.path(), &Refs::default()).expect("write refs");
    let mut ours = Vec::new();
    write_advertisement(&Refs::default(), &mut ours, "agent=x");
    let expected = [format!("{} capabilities^{{}}", "0".repeat(40))];
    assert_eq!(lines(&ours), expected);
    // Git before 2.41 sends no line at all.
    let theirs = advertised_by_git(empty.path());
    assert!(theirs == expected || theirs.is_empty(), "{theirs:?}");
}

/// Returns the response of git's own v2 `ls-refs`.
fn listed_by_git(folder: &Path, arguments: &[&str]) -> Vec<String> {
    let mut request = Vec::new();
    pktline::push_line(&mut request, "command=ls-refs");
    pktline::push_delimiter(&mut request);
    for argument in arguments {
        pktline::push_line(&mut request, argument);
    }
    pktline::push_flush(&mut request);
    let mut child = Command::new("git")
        .args(["-c", "lsrefs.unborn=advertise", "upload-pack", "--stateless-rpc", "."])
        .current_dir(folder)
        .env("GIT_PROTOCOL", "version=2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("run git");
    std::io::Write::write_all(&mut child.stdin.take().expect("stdin is piped"), &request).expect("write to git");
    let output = child.wait_with_output().expect("wait for the process");
    assert!(output.status.success());
    lines(&output.stdout)
}

#[test]
fn ls_refs_response_equals_that_of_git() {
    let (folder, mut refs) = repository();
    for head in ["refs/heads/main", "refs/heads/unborn"] {
        refs.set_head(head);
        write_refs(folder.path(), &refs).expect("write refs");
        for (arguments, request) in [
            (&[][..], LsRefsRequest::default()),
            (&["peel", "symrefs"], LsRefsRequest { peel: true, symrefs: true, ..LsRefsRequest::default() }),
            (&["symrefs", "unborn"], LsRefsRequest { symrefs: true, unborn: true, ..LsRefsRequest::default() }),
            (
                &["peel", "ref-prefix refs/tags/", "ref-prefix HEAD"],
                LsRefsRequest {
                    peel: true,
                    prefixes: vec!["refs/tags/".to_owned(), "HEAD".to_owned()],
                    ..LsRefsRequest::default()
                },
            ),
            (
                &["ref-prefix refs/none"],
                LsRefsRequest { prefixes: vec!["refs/none".to_owned()], ..LsRefsRequest::default() },
            ),
        ] {
            let mut ours = Vec::new();
            write_ls_refs(&refs, &mut ours, &request);
            assert_eq!(lines(&ours), listed_by_git(folder.path(), arguments), "{head} {arguments:?}");
        }
    }
}

/// The unborn HEAD of an empty repository must not be `main`: docs/protocol.md#empty-repositories.
#[test]
fn head_of_a_new_repository_is_not_main() {
    assert_eq!(Refs::default().head(), "refs/heads/master");
    assert_eq!(Refs::default().head_oid(), None);
}
