//! `graspd --version`: version and commit of the program, and version of the installed git.

use std::io;
use std::process::{Command, ExitCode};

use clap::ArgMatches;
use clap::error::ErrorKind;

use super::{command, print_line};

/// Parses the command line of this process.
///
/// `--version` is handled here and not by clap, because clap needs the text before the arguments are parsed, and git
/// would then be started for every command. Help and wrong arguments end the process, as in
/// [`clap::Command::get_matches`].
///
/// # Errors
/// The exit status of `--version`, when that was asked for.
pub(crate) fn matches() -> Result<ArgMatches, ExitCode> {
    command().try_get_matches().map_err(|error| match error.kind() {
        ErrorKind::DisplayVersion => print(),
        _ => error.exit(),
    })
}

/// Prints the version line and returns the exit status.
fn print() -> ExitCode {
    match super::ignore_closed_output(print_line(line(&git_version("git")))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("graspd: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the version line, given the text about git.
fn line(git: &str) -> String {
    format!("graspd {} (commit {}, {git})", env!("CARGO_PKG_VERSION"), env!("NGIT_BUILD_REVISION"))
}

/// Returns `git` and the version of the given git program, or why there is none.
fn git_version(program: &str) -> String {
    let output = match Command::new(program).arg("--version").output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return "git not found".to_owned(),
        Err(error) => return format!("git cannot be started: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next().and_then(|first| first.trim().strip_prefix("git version ")) {
        Some(version) if output.status.success() => format!("git {version}"),
        _ => format!("git --version failed: {}", output.status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_line_names_program_commit_and_git() {
        let expected =
            concat!("graspd ", env!("CARGO_PKG_VERSION"), " (commit ", env!("NGIT_BUILD_REVISION"), ", git 2.47.3)");
        assert_eq!(line("git 2.47.3"), expected);
    }

    #[test]
    fn missing_and_failing_git_are_described() {
        assert_eq!(git_version("/nonexistent/git"), "git not found");
        assert_eq!(git_version("false"), "git --version failed: exit status: 1");
        let version = git_version("git");
        assert!(version.starts_with("git 2.") || version.starts_with("git 3."), "{version}");
    }
}
