//! Runs `graspd` commands against a test server, as its operator does.

use std::fs;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use super::{Server, command};

/// Exit code and output of a command that has ended.
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    pub fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Asserts exit code 0 and returns standard output.
    pub fn expect_success(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Asserts this exit code and returns standard error.
    pub fn expect_failure(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        self.stderr
    }

    /// Asserts exit code 0 and parses standard output as one JSON value per line.
    pub fn json_lines(self) -> Vec<Value> {
        self.expect_success().lines().map(|line| serde_json::from_str(line).expect("line is not JSON")).collect()
    }

    /// Asserts exit code 0 and parses standard output as exactly one JSON value.
    pub fn json_object(self) -> Value {
        let mut lines = self.json_lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }
}

impl Server {
    /// Starts a server that logs to the file `log` of its folder. Its log level can be set in a settings file too,
    /// because the environment has none.
    pub fn start_with_log(folder: &Arc<TempDir>, settings: &[(&str, &str)]) -> Self {
        let mut command = command(folder.path(), &[&[("LOG_LEVEL", "")], settings].concat());
        command.stderr(File::create(folder.path().join("log")).expect("cannot create the log file"));
        let mut server = Self::spawn(command);
        server.folder = Some(folder.clone());
        server
    }

    /// Returns the log of a server that was started by [`start_with_log`](Self::start_with_log).
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder().path().join("log")).expect("cannot read the log file")
    }

    /// Returns a `graspd` command that will run in the folder of this server.
    pub fn cli_command(&self, arguments: &[&str]) -> Command {
        let mut command = command(self.folder().path(), &[]);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a `graspd` command in the folder of this server until it ends.
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::new(&self.cli_command(arguments).output().expect("cannot run graspd"))
    }

    /// Returns the default path of the admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.folder().path().join("data/relay/admin.sock")
    }
}
