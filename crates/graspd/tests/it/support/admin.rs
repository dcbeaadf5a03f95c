//! The operator of a server: commands against it.

use std::fs;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use super::{Server, command};

/// What a command has said.
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// It went well; gives what was printed.
    pub fn well(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// It failed with a status; gives what was said about it.
    pub fn badly(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self.err
    }

    /// It went well and printed one JSON value per line.
    pub fn json(self) -> Vec<Value> {
        self.well().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// It went well and printed one JSON value.
    pub fn object(self) -> Value {
        let mut lines = self.json();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }
}

impl Server {
    /// A server whose log is a file of its folder, and whose log level may stand in a file, too.
    pub fn start_with_log(folder: &Arc<TempDir>, settings: &[(&str, &str)]) -> Self {
        let mut command = command(folder.path(), &[&[("LOG_LEVEL", "")], settings].concat());
        command.stderr(File::create(folder.path().join("log")).expect("a file"));
        let mut server = Self::spawn(command);
        server.folder = Some(folder.clone());
        server
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder().path().join("log")).expect("it was created")
    }

    /// A command in the folder of this server.
    pub fn operator(&self, arguments: &[&str]) -> Command {
        let mut command = command(self.folder().path(), &[]);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a command in the folder of this server, to its end.
    pub fn run(&self, arguments: &[&str]) -> Said {
        Said::of(&self.operator(arguments).output().expect("graspd runs"))
    }

    /// Its admin socket, if it is where it usually is.
    pub fn admin_socket(&self) -> PathBuf {
        self.folder().path().join("data/relay/admin.sock")
    }
}
