//! The installed git as a client: default configuration, no prompts.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::spawn_blocking;

/// Author of generated commits.
pub(super) const AUTHOR: &str = "A U Thor <author@example.com>";

/// Returns a git command that runs in `folder` and ignores the configuration of this machine.
pub(crate) fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("LC_ALL", "C")
        .env_remove("GIT_DIR")
        .stdin(Stdio::null());
    command
}

/// Runs a git command and returns its output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot run git")?;
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        bail!("git {} failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a git command without blocking other tasks and returns its duration.
pub(crate) async fn run_timed(mut command: Command) -> Result<Duration> {
    let running = spawn_blocking(move || {
        let started = Instant::now();
        run(&mut command).map(|_| started.elapsed())
    });
    running.await?
}

/// Returns all refs of a repository, sorted by name.
pub(crate) fn refs(repository: &Path) -> Result<Vec<(String, String)>> {
    let text = run(git(repository).args(["for-each-ref", "--format=%(refname) %(objectname)"]))?;
    Ok(text.lines().filter_map(|line| line.split_once(' ')).map(|(name, oid)| (name.into(), oid.into())).collect())
}

/// Returns the folder of git's own programs.
pub(super) fn exec_path() -> Result<String> {
    run(Command::new("git").arg("--exec-path"))
}

/// Returns whether this program runs as root.
pub(super) fn is_root() -> Result<bool> {
    let output = Command::new("id").arg("-u").output().context("cannot run id")?;
    Ok(output.stdout.trim_ascii() == b"0")
}
