//! Configuration of `git http-backend` behind nginx and fcgiwrap as in Debian, in a separate folder.
//!
//! Defaults of Debian that would slow down the reference are changed: fcgiwrap has a worker per connection instead of
//! one, the size of request bodies is unlimited, and there is no access log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use super::host::subfolder;
use super::installed_git;

/// Programs of the reference server.
#[derive(Debug, Clone, Args)]
pub struct ReferencePrograms {
    /// The nginx binary
    #[arg(long, value_name = "FILE", default_value = "/usr/sbin/nginx")]
    pub nginx: PathBuf,
    /// The fcgiwrap binary
    #[arg(long, value_name = "FILE", default_value = "/usr/sbin/fcgiwrap")]
    pub fcgiwrap: PathBuf,
    /// Workers of fcgiwrap, which is the number of concurrent requests. Debian's default is one
    #[arg(long, default_value_t = 8)]
    pub workers: u32,
}

/// Commands and paths of the reference server.
#[derive(Debug)]
pub(super) struct ReferenceSetup {
    /// Starts fcgiwrap, which runs `git http-backend`.
    pub(super) fcgiwrap: Command,
    /// Starts nginx.
    pub(super) nginx: Command,
    /// Socket of fcgiwrap. Exists when fcgiwrap is ready.
    pub(super) socket: PathBuf,
    /// Folder of the repositories.
    pub(super) repositories: PathBuf,
}

impl ReferenceSetup {
    /// Writes the configuration into `folder`.
    pub(super) fn write(programs: &ReferencePrograms, folder: &Path, port: u16) -> Result<Self> {
        let repositories = subfolder(folder, "git")?;
        let socket = folder.join("fcgiwrap.socket");
        let settings = folder.join("nginx.conf");
        fs::write(&settings, configuration(folder, &repositories, &socket, port)?)?;

        let program = |path: &Path| path.canonicalize().with_context(|| format!("cannot find {}", path.display()));
        let mut fcgiwrap = Command::new(program(&programs.fcgiwrap)?);
        fcgiwrap
            .args(["-f", "-c", &programs.workers.to_string(), "-s", &format!("unix:{}", socket.display())])
            .current_dir(folder)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        let mut nginx = Command::new(program(&programs.nginx)?);
        nginx.arg("-p").arg(folder).arg("-e").arg(folder.join("nginx.log")).arg("-c").arg(&settings);
        Ok(Self { fcgiwrap, nginx, socket, repositories })
    }
}

/// Returns the relevant parts of Debian's `nginx.conf` and `fastcgi_params`.
fn configuration(folder: &Path, repositories: &Path, socket: &Path, port: u16) -> Result<String> {
    let (here, root, socket) = (folder.display(), repositories.display(), socket.display());
    let backend = format!("{}/git-http-backend", installed_git::exec_path()?);
    // As root, nginx would drop its privileges and could not read the folder.
    let user = if installed_git::is_root()? { "user root;" } else { "" };
    Ok(format!(
        r#"daemon off;
{user}
worker_processes auto;
pid {here}/nginx.pid;
events {{ worker_connections 768; }}
http {{
    sendfile on;
    tcp_nopush on;
    types_hash_max_size 2048;
    default_type application/octet-stream;
    gzip on;
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {here}/body;
    fastcgi_temp_path {here}/fastcgi;
    proxy_temp_path {here}/proxy;
    uwsgi_temp_path {here}/uwsgi;
    scgi_temp_path {here}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            fastcgi_pass unix:{socket};
            fastcgi_read_timeout 600s;
            fastcgi_param QUERY_STRING $query_string;
            fastcgi_param REQUEST_METHOD $request_method;
            fastcgi_param CONTENT_TYPE $content_type;
            fastcgi_param CONTENT_LENGTH $content_length;
            fastcgi_param SCRIPT_NAME $fastcgi_script_name;
            fastcgi_param REQUEST_URI $request_uri;
            fastcgi_param DOCUMENT_URI $document_uri;
            fastcgi_param DOCUMENT_ROOT $document_root;
            fastcgi_param SERVER_PROTOCOL $server_protocol;
            fastcgi_param REQUEST_SCHEME $scheme;
            fastcgi_param GATEWAY_INTERFACE CGI/1.1;
            fastcgi_param SERVER_SOFTWARE nginx/$nginx_version;
            fastcgi_param REMOTE_ADDR $remote_addr;
            fastcgi_param REMOTE_PORT $remote_port;
            fastcgi_param SERVER_ADDR $server_addr;
            fastcgi_param SERVER_PORT $server_port;
            fastcgi_param SERVER_NAME $server_name;
            fastcgi_param SCRIPT_FILENAME {backend};
            fastcgi_param GIT_PROJECT_ROOT {root};
            fastcgi_param GIT_HTTP_EXPORT_ALL "";
            fastcgi_param PATH_INFO $uri;
        }}
    }}
}}
"#
    ))
}
