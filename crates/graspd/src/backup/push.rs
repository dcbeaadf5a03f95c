//! Pushes what a bare repository has to the running server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use grasp_git::process::{Bounds, Git};

/// Refs of pull requests that are pushed at once.
const PULL_REQUESTS_PER_PUSH: usize = 20;

/// Characters of what git says that are told.
const MAX_OUTPUT_CHARS: usize = 600;

/// What git may take. The operator's own data is pushed; what is too large the server refuses.
const BOUNDS: Bounds = Bounds { alloc_bytes: 1 << 40, address_bytes: 1 << 44 };

/// Codes of refusals that say nothing about what was pushed.
const TEMPORARY_CODES: [&str; 7] =
    ["E-BUSY", "E-SERVER", "E-DISK-FULL", "E-PACK-DISK-FULL", "E-PACK-SERVER", "E-QUOTA-", "E-PR-ROOM"];

/// What of a repository is pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RefGroup {
    /// Branches and tags, all at once: together they are what a state says.
    Branches,
    /// What pull requests offer.
    PullRequests,
}

/// What came of a push.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PushedRefs {
    /// Refs that are at the server now.
    pub(crate) refs: u64,
    /// What was refused, in git's words.
    pub(crate) rejected: Vec<String>,
    /// What could not be tried, or may be taken later: the same should be pushed again.
    pub(crate) failed: Vec<String>,
}

/// Pushes a part of a repository, which is only read: git works in a folder of its own in `work` that borrows its objects.
pub(crate) fn push(from: &Path, group: RefGroup, to: &str, work: &Path) -> Result<PushedRefs> {
    let mut result = PushedRefs::default();
    // What is wrong with the source will be wrong the next time.
    let (refs, objects) = match (read_refs(from, group)?, from.join("objects").canonicalize()) {
        (Ok(refs), _) if refs.is_empty() => return Ok(result),
        (Ok(refs), Ok(objects)) => (refs, objects),
        (Ok(_), Err(problem)) => {
            return Ok(PushedRefs { rejected: vec![format!("it has no objects: {problem}")], ..result });
        }
        (Err(why), _) => return Ok(PushedRefs { rejected: vec![why], ..result }),
    };
    let folder = tempfile::TempDir::with_prefix_in("push-", work)?;
    run(git(folder.path()).args(["init", "--quiet", "--bare", "."]))?.map_err(anyhow::Error::msg)?;
    fs::create_dir_all(folder.path().join("objects/info"))?;
    fs::write(folder.path().join("objects/info/alternates"), format!("{}\n", objects.display()))?;
    let specs: Vec<String> = refs.iter().map(|(name, oid)| format!("+{oid}:{name}")).collect();
    let at_once = if group == RefGroup::PullRequests { PULL_REQUESTS_PER_PUSH } else { specs.len() };
    for specs in specs.chunks(at_once) {
        let mut command = git(folder.path());
        command.args(["push", "--porcelain", to]).args(specs);
        let output = command.output().context("cannot run git")?;
        if output.status.success() {
            result.refs += specs.len() as u64;
            continue;
        }
        let output_text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let messages: Vec<&str> = output_text
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with('!') || line.starts_with("remote:") || line.starts_with("fatal:"))
            .collect();
        result.refs += output_text.lines().filter(|line| line.starts_with(['*', ' ', '+', '='])).count() as u64;
        let messages: String = messages.join("; ").chars().take(MAX_OUTPUT_CHARS).collect();
        // Without a word about a ref or the repository the server was not reached; and it may be busy or have no room for now.
        let is_unknown = |line: &str| line.starts_with("fatal: repository '") && line.ends_with("' not found");
        let was_judged = output_text.lines().any(|line| line.starts_with('!') || is_unknown(line));
        let is_final = was_judged && !TEMPORARY_CODES.iter().any(|code| output_text.contains(code));
        if is_final { result.rejected.push(messages) } else { result.failed.push(messages) }
    }
    Ok(result)
}

/// The refs of a part of a repository, or why git cannot read them.
fn read_refs(folder: &Path, group: RefGroup) -> Result<Result<BTreeMap<String, String>, String>> {
    let mut command = git(folder);
    command.args(["for-each-ref", "--format=%(objectname) %(refname)"]);
    command.args(match group {
        RefGroup::Branches => &["refs/heads", "refs/tags"][..],
        RefGroup::PullRequests => &["refs/nostr"],
    });
    let read = |said: String| {
        let pairs = said.lines().filter_map(|line| line.split_once(' '));
        pairs.map(|(oid, name)| (name.to_owned(), oid.to_owned())).collect()
    };
    Ok(run(&mut command)?.map(read))
}

/// Git as the server itself runs it, but that it may call the server.
fn git(folder: &Path) -> Command {
    let mut command = Git::new(Path::new("git"), BOUNDS).command(folder);
    command.env("GIT_OPTIONAL_LOCKS", "0").stdin(Stdio::null());
    for setting in ["protocol.http.allow=always", "http.postBuffer=1048576", "push.recurseSubmodules=no"] {
        command.args(["-c", setting]);
    }
    command
}

/// What git says, or what it says is wrong.
fn run(command: &mut Command) -> Result<Result<String, String>> {
    let output = command.output().context("cannot run git; is it installed?")?;
    Ok(if !output.status.success() {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    } else if output.stdout.len() > 256 << 20 {
        Err("it has too many refs".to_owned())
    } else {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })
}
