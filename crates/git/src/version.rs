//! Finds the installed git and checks its version.
//!
//! [`Git::installed`] is called when the server starts, by
//! [`ServerCapabilities::detect`](crate::serve::ServerCapabilities::detect), and by `graspd check`, so that both give
//! the same result.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{Git, GitError, ProcessInput};

/// The oldest supported git. Debian 12 has this one.
pub const MIN_GIT_VERSION: GitVersion = GitVersion { major: 2, minor: 39 };

/// Time limit of `git version`: it takes milliseconds, and seconds on a machine that is starting.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Largest output of `git version` that is read. It prints one line.
const MAX_OUTPUT: usize = 4 * 1024;

/// The first two numbers of a git version. Features are added and removed with these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GitVersion {
    major: u32,
    minor: u32,
}

/// The git program that commands run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstalledGit {
    /// Path of the program.
    pub path: PathBuf,
    /// Its version as git prints it, for example `2.39.5` or `2.39.5 (Apple Git-154)`.
    pub version: String,
}

/// The reason why the installed git cannot be used. [`fix`](Self::fix) is what to do.
#[derive(Debug, thiserror::Error)]
pub enum GitVersionError {
    /// No such program in the search path.
    #[error("graspd needs git {MIN_GIT_VERSION} or newer; found none in PATH ({0})")]
    NotFound(String),
    /// It did not run.
    #[error("graspd needs git {MIN_GIT_VERSION} or newer; `{path} version` failed: {error}", path = .path.display())]
    Failed {
        /// The program.
        path: PathBuf,
        /// The reason.
        error: GitError,
    },
    /// Its output names no version.
    #[error("graspd needs git {MIN_GIT_VERSION} or newer; `{path} version` printed `{output}`", path = .path.display())]
    Unreadable {
        /// The program.
        path: PathBuf,
        /// What it printed.
        output: String,
    },
    /// Its version is too old.
    #[error("graspd needs git {MIN_GIT_VERSION} or newer; found {0}")]
    TooOld(InstalledGit),
}

impl GitVersionError {
    /// Returns what the operator can do about it.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "install git (Debian: apt install git), or start graspd with its folder in PATH",
            Self::Failed { .. } | Self::Unreadable { .. } => {
                "install git again, or start graspd with the folder of another git first in PATH"
            }
            Self::TooOld(_) => "install a newer git, or start graspd with its folder first in PATH",
        }
    }
}

impl GitVersion {
    /// Parses the output of `git version`; `None` if it was not printed by git.
    ///
    /// ```
    /// use grasp_git::version::{GitVersion, MIN_GIT_VERSION};
    ///
    /// assert!(GitVersion::parse("git version 2.39.5 (Apple Git-154)") >= Some(MIN_GIT_VERSION));
    /// assert!(GitVersion::parse("git version 2.30.2") < Some(MIN_GIT_VERSION));
    /// assert_eq!(GitVersion::parse("hub version 2.14.2"), None);
    /// ```
    #[must_use]
    pub fn parse(output: &str) -> Option<Self> {
        let mut numbers = version_text(output)?.split(['.', ' ', '-']).map(|number| number.parse().ok());
        Some(Self { major: numbers.next()??, minor: numbers.next()?? })
    }
}

impl fmt::Display for GitVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for InstalledGit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.version, self.path.display())
    }
}

impl Git {
    /// Finds the program that commands run and checks its version.
    ///
    /// # Errors
    /// If there is none, if it does not run, or if it is older than [`MIN_GIT_VERSION`].
    pub fn installed(&self) -> Result<InstalledGit, GitVersionError> {
        let search_path = Self::search_path();
        let path = find_program(self.program(), &search_path)
            .ok_or_else(|| GitVersionError::NotFound(search_path.to_string_lossy().into_owned()))?;
        let mut command = self.command(Path::new("/"));
        let output = self.run(command.arg("version"), ProcessInput::Empty, TIMEOUT, MAX_OUTPUT);
        let output = output.map_err(|error| GitVersionError::Failed { path: path.clone(), error })?;
        check_output(path, String::from_utf8_lossy(&output).trim())
    }
}

/// Checks the output of `git version`.
fn check_output(path: PathBuf, output: &str) -> Result<InstalledGit, GitVersionError> {
    match (GitVersion::parse(output), version_text(output)) {
        (Some(version), Some(text)) => {
            let installed = InstalledGit { path, version: text.to_owned() };
            if version >= MIN_GIT_VERSION { Ok(installed) } else { Err(GitVersionError::TooOld(installed)) }
        }
        _ => Err(GitVersionError::Unreadable { path, output: output.to_owned() }),
    }
}

/// Returns the part of the output of `git version` that follows these two words.
fn version_text(output: &str) -> Option<&str> {
    output.trim().strip_prefix("git version ")
}

/// Returns the file that the system runs for a program: the program itself if it is a path, else the first executable
/// file of that name in a search path.
#[must_use]
pub fn find_program(program: &Path, search_path: &OsStr) -> Option<PathBuf> {
    let is_executable = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if program.components().count() > 1 {
        return Some(program.to_owned()).filter(is_executable);
    }
    std::env::split_paths(search_path).map(|folder| folder.join(program)).find(is_executable)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn versions_of_all_vendors_are_parsed() {
        for (output, numbers) in [
            ("git version 2.39.5", Some((2, 39))),
            ("git version 2.39.5\n", Some((2, 39))),
            ("git version 2.39.5 (Apple Git-154)", Some((2, 39))),
            ("git version 2.47.3.windows.1", Some((2, 47))),
            ("git version 2.43.0-rc1", Some((2, 43))),
            ("git version 2.9-rc1", Some((2, 9))),
            ("git version 2.51.GIT", Some((2, 51))),
            ("git version 2.52.0.71.g4ce1b7a", Some((2, 52))),
            ("git version 3.0.0", Some((3, 0))),
            ("git version 10.1", Some((10, 1))),
            ("git version 2", None),
            ("git version two", None),
            ("git version -2.39", None),
            ("git version ", None),
            ("git version", None),
            ("hub version 2.14.2", None),
            ("", None),
        ] {
            let expected = numbers.map(|(major, minor)| GitVersion { major, minor });
            assert_eq!(GitVersion::parse(output), expected, "{output:?}");
        }
    }

    #[test]
    fn versions_are_compared_by_number() {
        let at_least = |output: &str| GitVersion::parse(output) >= Some(MIN_GIT_VERSION);
        assert!(at_least("git version 2.39.0") && at_least("git version 2.100.0") && at_least("git version 3.0.0"));
        assert!(!at_least("git version 2.38.5") && !at_least("git version 2.9.9") && !at_least("git version 1.99.0"));
    }

    #[test]
    fn errors_name_the_found_git_and_the_needed_one() {
        let check = |output: &str| check_output(PathBuf::from("/usr/bin/git"), output).map_err(|err| err.to_string());
        let supported = check("git version 2.39.5 (Apple Git-154)").expect("new enough");
        assert_eq!(supported.to_string(), "2.39.5 (Apple Git-154) at /usr/bin/git");
        let old = check("git version 2.30.2").expect_err("too old");
        assert_eq!(old, "graspd needs git 2.39 or newer; found 2.30.2 at /usr/bin/git");
        let other = check("hub version 1").expect_err("not git");
        assert_eq!(other, "graspd needs git 2.39 or newer; `/usr/bin/git version` printed `hub version 1`");
    }

    #[test]
    fn programs_are_found_as_the_system_does() {
        let folder = tempfile::TempDir::new().expect("create a folder");
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        let search_path = std::env::join_paths([&first, &second]).expect("join paths");
        let located = || find_program(Path::new("git"), &search_path);
        for folder in [&first, &second] {
            fs::create_dir(folder).expect("create a folder");
            fs::write(folder.join("git"), "").expect("write a file");
        }
        assert_eq!(located(), None, "no file is executable");
        for folder in [&second, &first] {
            fs::set_permissions(folder.join("git"), Permissions::from_mode(0o755)).expect("set permissions");
            assert_eq!(located(), Some(folder.join("git")));
        }
        let named = second.join("git");
        assert_eq!(find_program(&named, OsStr::new("")), Some(named));
        assert_eq!(find_program(&folder.path().join("git"), &search_path), None);
    }
}
