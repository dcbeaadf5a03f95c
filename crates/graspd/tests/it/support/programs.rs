//! Selects the git program that tests run: the first one in the search path, or one that a test has chosen.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use grasp_git::version::{GitVersion, MIN_GIT_VERSION};
use tempfile::TempDir;

thread_local! {
    /// The search path that [`with_git`] has set for this thread.
    static CHOSEN_PATH: RefCell<Option<OsString>> = const { RefCell::new(None) };
}

/// Returns the search path for servers, commands and git processes that this thread starts.
pub fn search_path() -> OsString {
    CHOSEN_PATH.with_borrow(Clone::clone).unwrap_or_else(|| std::env::var_os("PATH").expect("PATH is not set"))
}

/// Runs `body` with this program as `git`, for servers and for git clients. Affects only processes that the current
/// thread starts.
pub fn with_git<T>(program: &Path, body: impl FnOnce() -> T) -> T {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    symlink(program, folder.path().join("git")).expect("cannot create a symbolic link");
    let others = search_path();
    let folders = std::iter::once(folder.path().to_owned()).chain(std::env::split_paths(&others));
    let before = CHOSEN_PATH.replace(Some(std::env::join_paths(folders).expect("valid search path")));
    let result = body();
    CHOSEN_PATH.set(before);
    result
}

/// Returns the different supported git programs of this machine, from the search path and the usual system folders.
pub fn git_programs() -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let folders: Vec<PathBuf> = std::env::split_paths(&search_path()).collect();
    let usual = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    let programs =
        folders.into_iter().chain(usual).map(|folder| folder.join("git")).filter(|program| program.is_file());
    // A wrapper or a link to a program that was already found has the same version and the same exec path.
    let is_new = |program: &PathBuf| seen.insert((version(program), exec_path(program)));
    programs.filter(is_new).filter(|program| GitVersion::parse(&version(program)) >= Some(MIN_GIT_VERSION)).collect()
}

/// Returns the output of `git version`.
pub fn version(program: &Path) -> String {
    run(program, "version")
}

/// Returns the folder of a git's own commands.
pub fn exec_path(program: &Path) -> String {
    run(program, "--exec-path")
}

fn run(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).env("PATH", search_path()).output().expect("cannot run git");
    assert!(output.status.success(), "{} {argument}: {output:?}", program.display());
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
