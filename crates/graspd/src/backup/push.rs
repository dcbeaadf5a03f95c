//! Pushes the refs of a bare repository to the running server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use grasp_git::process::{Git, ProcessLimits};
use grasp_git::version::MIN_GIT_VERSION;

/// Maximum number of pull-request refs in one push.
const PULL_REQUESTS_PER_PUSH: usize = 20;

/// Maximum number of characters of git's output in an error.
const MAX_OUTPUT_CHARS: usize = 600;

/// Limits of the git process. The data is the operator's own; the server rejects what is too large.
const PROCESS_LIMITS: ProcessLimits = ProcessLimits { alloc_bytes: 1 << 40, address_bytes: 1 << 44 };

/// Error codes after which the same push may succeed later.
const TEMPORARY_CODES: [&str; 7] =
    ["E-BUSY", "E-SERVER", "E-DISK-FULL", "E-PACK-DISK-FULL", "E-PACK-SERVER", "E-QUOTA-", "E-PR-ROOM"];

/// Which refs of a repository are pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RefGroup {
    /// Branches and tags, in one push, because a state declares all of them together.
    Branches,
    /// Refs of pull requests.
    PullRequests,
}

/// Result of a push.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PushedRefs {
    /// Number of refs that the server has now.
    pub(crate) refs: u64,
    /// Rejected pushes, with git's output.
    pub(crate) rejected: Vec<String>,
    /// Pushes that failed or may succeed later; they should be repeated.
    pub(crate) failed: Vec<String>,
}

/// Pushes a group of refs of a repository. The repository is only read: git runs in its own folder in `work`, which
/// uses the repository's objects as alternates.
pub(crate) fn push(from: &Path, group: RefGroup, to: &str, work: &Path) -> Result<PushedRefs> {
    let mut result = PushedRefs::default();
    // An error in the source repository would occur again, so it counts as rejected.
    let (refs, objects) = match (read_refs(from, group)?, from.join("objects").canonicalize()) {
        (Ok(refs), _) if refs.is_empty() => return Ok(result),
        (Ok(refs), Ok(objects)) => (refs, objects),
        (Ok(_), Err(problem)) => {
            return Ok(PushedRefs { rejected: vec![format!("the repository has no objects: {problem}")], ..result });
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
        // Without a message about a ref or the repository, the server was not reached. Some codes mean that it is busy
        // or has no space at the moment.
        let is_unknown = |line: &str| line.starts_with("fatal: repository '") && line.ends_with("' not found");
        let was_judged = output_text.lines().any(|line| line.starts_with('!') || is_unknown(line));
        let is_final = was_judged && !TEMPORARY_CODES.iter().any(|code| output_text.contains(code));
        if is_final { result.rejected.push(messages) } else { result.failed.push(messages) }
    }
    Ok(result)
}

/// Returns the refs of a group, or git's error.
fn read_refs(folder: &Path, group: RefGroup) -> Result<Result<BTreeMap<String, String>, String>> {
    let mut command = git(folder);
    command.args(["for-each-ref", "--format=%(objectname) %(refname)"]);
    command.args(match group {
        RefGroup::Branches => &["refs/heads", "refs/tags"][..],
        RefGroup::PullRequests => &["refs/nostr"],
    });
    let read = |output: String| {
        let pairs = output.lines().filter_map(|line| line.split_once(' '));
        pairs.map(|(oid, name)| (name.to_owned(), oid.to_owned())).collect()
    };
    Ok(run(&mut command)?.map(read))
}

/// Returns a git command with the environment of the server's git processes, which may also connect to the server.
fn git(folder: &Path) -> Command {
    let mut command = Git::new(Path::new("git"), PROCESS_LIMITS).command(folder);
    command.env("GIT_OPTIONAL_LOCKS", "0").stdin(Stdio::null());
    for setting in ["protocol.http.allow=always", "http.postBuffer=1048576", "push.recurseSubmodules=no"] {
        command.args(["-c", setting]);
    }
    command
}

/// Runs a command and returns its output, or its error output.
fn run(command: &mut Command) -> Result<Result<String, String>> {
    let output = command.output().with_context(|| format!("cannot run git: is {MIN_GIT_VERSION} or newer in PATH?"))?;
    Ok(if !output.status.success() {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    } else if output.stdout.len() > 256 << 20 {
        Err("the repository has too many refs".to_owned())
    } else {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })
}
