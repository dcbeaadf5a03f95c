//! Lets single system calls of a server, and of the git processes that it starts, fail. The calls are counted and failed by
//! a library that is loaded into these processes (`fault_injection.c`).

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::programs;

const LIBRARY_SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/fault_injection.c");

/// A kind of system call. The numbers are those of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemCall {
    /// Writes to files and pipes.
    Write = 1,
    Fsync = 2,
    /// Renames and hard links.
    Rename = 3,
    /// Writes to internet sockets.
    Send = 4,
    Open = 5,
    Fork = 6,
}

impl SystemCall {
    pub const ALL: [Self; 6] = [Self::Write, Self::Fsync, Self::Rename, Self::Send, Self::Open, Self::Fork];
}

impl fmt::Display for SystemCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The library, and the file through which it is controlled.
pub struct FaultInjection {
    folder: TempDir,
    control: File,
}

impl FaultInjection {
    /// Compiles the library.
    pub fn new() -> Self {
        let folder = TempDir::new().expect("cannot create a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(path("faults.so"))
            .arg(LIBRARY_SOURCE)
            .arg("-ldl")
            .output()
            .expect("cannot run the C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(path("control"), [0; 12]).expect("cannot write the file");
        let control = File::options().read(true).write(true).open(path("control")).expect("cannot open the file");
        // The server starts git with an empty environment. A program of that name loads the library.
        let text = format!(
            "#!/bin/sh\nLD_PRELOAD={} FAULT_CONTROL={} exec {} \"$@\"\n",
            path("faults.so").display(),
            path("control").display(),
            find_git().display()
        );
        fs::create_dir(path("bin")).expect("cannot create a folder");
        fs::write(path("bin/git"), text).expect("cannot write the file");
        fs::set_permissions(path("bin/git"), fs::Permissions::from_mode(0o755)).expect("cannot set the mode");
        Self { folder, control }
    }

    /// Has a server load the library.
    pub fn apply(&self, command: &mut Command) {
        let others = programs::search_path();
        let folders = std::iter::once(self.folder.path().join("bin")).chain(std::env::split_paths(&others));
        command
            .env("LD_PRELOAD", self.folder.path().join("faults.so"))
            .env("FAULT_CONTROL", self.folder.path().join("control"))
            .env("PATH", std::env::join_paths(folders).expect("valid search path"));
    }

    /// Counts the calls while `body` runs, and lets the nth one fail; none if `nth` is 0.
    pub fn with_failing<T>(&self, call: SystemCall, nth: u32, body: impl FnOnce() -> T) -> (T, u32) {
        self.write([0, nth, 0]).expect("cannot write to the file");
        self.write([call as u32, nth, 0]).expect("cannot write to the file");
        let result = body();
        let mut count = [0; 4];
        self.control.read_exact_at(&mut count, 8).expect("cannot read the file");
        self.write([0; 3]).expect("cannot write to the file");
        (result, u32::from_ne_bytes(count))
    }

    fn write(&self, [kind, target, count]: [u32; 3]) -> io::Result<()> {
        let values = [kind.to_ne_bytes(), target.to_ne_bytes(), count.to_ne_bytes()];
        self.control.write_all_at(values.as_flattened(), 0)
    }
}

/// Returns the path of the git program that tests use.
fn find_git() -> PathBuf {
    let folders = programs::search_path();
    std::env::split_paths(&folders)
        .map(|folder| folder.join("git"))
        .find(|program| Path::is_file(program))
        .expect("git is in the search path")
}
