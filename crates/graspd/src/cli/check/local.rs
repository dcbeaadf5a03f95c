//! What can be seen on this machine: git, folders, the key, the disk, descriptors.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};
use serde_json::Value;

use super::finding::Findings;
use crate::config::{Config, OWNER_FILE};
use crate::web::status::format::bytes;

/// The first git whose `upload-pack` can do what is asked of it.
const NEEDED_GIT: (u64, u64) = (2, 34);

/// So many times what is kept free should be free.
const COMFORT: u64 = 16;

/// Descriptors beside those of connections: git processes, packs, the store.
const SPARE_FILES: u64 = 512;

/// What others must not do with a key.
const OTHERS: u32 = 0o077;

pub(super) fn look(found: &mut Findings, config: &Config, server: Option<&Value>) {
    git(found);
    folders(found, config, server.is_some());
    key(found, config);
    disk(found, config);
    descriptors(found, config, server);
}

fn git(found: &mut Findings) {
    let install = "install git (Debian: apt install git), and start graspd where PATH leads to it";
    let said = match Command::new("git").arg("--version").output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(_) => return found.wrong("git", "git is there and does not work", install),
        Err(problem) => return found.wrong("git", format!("git cannot be started: {problem}"), install),
    };
    let (major, minor) = NEEDED_GIT;
    match version(&said) {
        Some(version) if version >= NEEDED_GIT => found.fine("git", said),
        Some(_) => {
            found.wrong("git", format!("{said} is too old"), format!("graspd needs git {major}.{minor} or newer"))
        }
        None => {
            found.odd("git", format!("`{said}` is no version"), format!("graspd needs git {major}.{minor} or newer"))
        }
    }
}

/// Major and minor of `git version 2.47.3 (something)`.
fn version(said: &str) -> Option<(u64, u64)> {
    let mut numbers = said.strip_prefix("git version ")?.split(['.', ' ', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn folders(found: &mut Findings, config: &Config, runs: bool) {
    for (setting, path) in [("RELAY_DATA_PATH", &config.relay_data_path), ("GIT_DATA_PATH", &config.git_data_path)] {
        let shown = path.display();
        let Some(there) = existing(path) else {
            found.wrong(
                "data",
                format!("{shown} cannot be made"),
                format!("set NGIT_{setting} to a folder on this machine"),
            );
            continue;
        };
        if access(&there, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
            let says = format!("{} cannot be written by whoever runs this", there.display());
            let fix = format!(
                "run this as the user of graspd (sudo -u), or give it the folder: chown -R USER {}",
                there.display()
            );
            if runs { found.odd("data", says, fix) } else { found.wrong("data", says, fix) }
        } else if !path.exists() {
            found.fine("data", format!("{shown} will be made at the first start"));
        } else if mode(path).is_some_and(|mode| mode & 0o007 != 0) && setting == "RELAY_DATA_PATH" {
            found.odd(
                "data",
                format!("{shown} can be entered by every user of this machine"),
                format!("chmod 0700 {shown}: it has the key and what is not served yet"),
            );
        } else {
            found.fine("data", format!("{shown} can be written"));
        }
    }
}

/// A path, or the nearest folder above it that exists.
fn existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|path| path.is_dir()).map(Path::to_owned)
}

fn mode(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().map(|metadata| metadata.permissions().mode())
}

fn key(found: &mut Findings, config: &Config) {
    if config.owner_secret.is_some() {
        return found.fine("key", "the owner's key is set");
    }
    let path = config.relay_data_path.join(OWNER_FILE);
    let shown = path.display();
    match mode(&path) {
        None => found.fine("key", "the owner's key will be made at the first start, or cannot be seen from here"),
        Some(mode) if mode & OTHERS != 0 => found.wrong(
            "key",
            format!("{shown} can be read by other users (mode {:04o}): they can speak for this server", mode & 0o7777),
            format!("chmod 0600 {shown}"),
        ),
        Some(_) => found.fine("key", format!("{shown} is its owner's alone")),
    }
}

fn disk(found: &mut Findings, config: &Config) {
    let reserve = config.store_reserve_bytes;
    for (path, kept) in [(&config.relay_data_path, reserve), (&config.git_data_path, 2 * reserve)] {
        let Some(there) = existing(path) else { continue };
        let Ok(volume) = statvfs(&there) else { continue };
        let free = volume.f_bavail.saturating_mul(volume.f_frsize);
        let says = format!("{} free at {}", bytes(free), path.display());
        if free < kept {
            let fix = format!("nothing new is stored below {}: make room, or use another disk", bytes(kept));
            found.wrong("disk", says, fix);
        } else if free < kept.saturating_mul(COMFORT) {
            found.odd("disk", says, format!("nothing new is stored below {}", bytes(kept)));
        } else {
            found.fine("disk", says);
        }
    }
}

fn descriptors(found: &mut Findings, config: &Config, server: Option<&Value>) {
    let wanted = config.max_connections as u64 + SPARE_FILES;
    // A server takes as many as it may have.
    let (whose, limit) = match server.and_then(|server| server["open_files"].as_u64()) {
        Some(limit) => ("the server may open", limit),
        None => ("a server started here may open", getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
    };
    let shown = if limit == u64::MAX { "any number of".to_owned() } else { limit.to_string() };
    let says = format!("{whose} {shown} files; {} connections are allowed", config.max_connections);
    if limit >= wanted {
        return found.fine("files", says);
    }
    found.odd(
        "files",
        says,
        format!("raise the limit to {wanted} or more (systemd: LimitNOFILE=65536; shell: ulimit -n), or lower NGIT_MAX_CONNECTIONS"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("git version 2.47.3"), Some((2, 47)));
        assert_eq!(version("git version 2.39.5 (Apple Git-154)"), Some((2, 39)));
        assert_eq!(version("git version 2.9-rc1"), Some((2, 9)));
        assert_eq!(version("hub version 1"), None);
    }
}
