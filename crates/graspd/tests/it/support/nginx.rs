//! Runs the installed nginx, for tests that only `.ci/run` runs.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running nginx process. Killed when dropped.
pub struct Nginx {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Nginx {
    /// Starts nginx with these lines in its `http` block. It may not listen yet when this returns.
    pub fn start(http_block: &str) -> Self {
        let program = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/bin/nginx", "/usr/local/sbin/nginx"];
        let program = program.into_iter().find(|path| Path::new(path).exists()).expect("install nginx");
        let folder = tempfile::TempDir::new().expect("cannot create a temporary folder");
        let prefix = folder.path().display();
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {prefix}/{kind};\n"))
            .concat();
        let config = format!(
            "daemon off; master_process off; worker_processes 1; pid {prefix}/pid; error_log {prefix}/error.log;\n\
             events {{ worker_connections 100; }}\nhttp {{ access_log off;\n{paths}\n{http_block} }}\n"
        );
        fs::write(folder.path().join("nginx.conf"), config).expect("cannot write the configuration");
        let child = Command::new(program)
            .arg("-p")
            .arg(folder.path())
            .arg("-e")
            .arg(folder.path().join("error.log"))
            .arg("-c")
            .arg(folder.path().join("nginx.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("cannot start nginx");
        Self { child, _folder: folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
