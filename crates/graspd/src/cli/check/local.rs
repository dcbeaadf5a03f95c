//! Checks of this machine: git, data folders, owner key, disk space and the limit of open files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use grasp_git::process::{Git, ProcessLimits};
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};

use super::finding::Findings;
use crate::admin::api::{CheckedSettings, ServerFacts};
use crate::config::OWNER_FILE;
use crate::text_format::bytes;

/// Factor of the reserve below which free disk space causes a warning.
const COMFORTABLE_FACTOR: u64 = 16;

/// Open files that are needed besides connections: git processes, packs, the store.
const SPARE_FILES: u64 = 512;

/// Permissions of other users.
const OTHERS_MASK: u32 = 0o077;

pub(super) fn check(findings: &mut Findings, settings: &CheckedSettings, server: Option<&ServerFacts>) {
    check_git(findings, settings);
    check_folders(findings, settings, server.is_some());
    check_key(findings, settings);
    check_disk(findings, settings);
    check_file_limit(findings, settings, server);
}

/// Checks the git that the server would run.
fn check_git(findings: &mut Findings, settings: &CheckedSettings) {
    let bounds =
        ProcessLimits { alloc_bytes: settings.git_max_object_bytes, address_bytes: settings.git_process_memory_bytes };
    match Git::new(Path::new("git"), bounds).installed() {
        Ok(installed) => findings.ok("git", format!("git {installed}")),
        Err(problem) => findings.error("git", problem.to_string(), problem.fix()),
    }
}

fn check_folders(findings: &mut Findings, settings: &CheckedSettings, runs: bool) {
    for (setting, path) in [("RELAY_DATA_PATH", &settings.relay_data_path), ("GIT_DATA_PATH", &settings.git_data_path)]
    {
        let shown = path.display();
        let Some(there) = existing(path) else {
            findings.error(
                "data",
                format!("{shown} cannot be created"),
                format!("set NGIT_{setting} to a folder on this machine"),
            );
            continue;
        };
        if access(&there, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
            let text = format!("{} is not writable for the current user", there.display());
            let fix = format!(
                "run this command as the user of graspd (sudo -u), or change the owner of the folder: chown -R USER {}",
                there.display()
            );
            if runs { findings.warning("data", text, fix) } else { findings.error("data", text, fix) }
        } else if !path.exists() {
            findings.ok("data", format!("{shown} will be created at the first start"));
        } else if mode(path).is_some_and(|mode| mode & 0o007 != 0) && setting == "RELAY_DATA_PATH" {
            findings.warning(
                "data",
                format!("{shown} is accessible for every user of this machine"),
                format!("chmod 0700 {shown}: it contains the owner key and events that are not served yet"),
            );
        } else {
            findings.ok("data", format!("{shown} is writable"));
        }
    }
}

/// Returns the path itself, or the nearest existing folder above it.
fn existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|path| path.is_dir()).map(Path::to_owned)
}

fn mode(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().map(|metadata| metadata.permissions().mode())
}

fn check_key(findings: &mut Findings, settings: &CheckedSettings) {
    if settings.has_owner_secret {
        return findings.ok("key", "the owner key is configured");
    }
    let path = settings.relay_data_path.join(OWNER_FILE);
    let shown = path.display();
    match mode(&path) {
        None => findings.ok("key", "the owner key will be generated at the first start, or is not readable from here"),
        Some(mode) if mode & OTHERS_MASK != 0 => findings.error(
            "key",
            format!("{shown} is readable for other users (mode {:04o}): they can sign as this server", mode & 0o7777),
            format!("chmod 0600 {shown}"),
        ),
        Some(_) => findings.ok("key", format!("{shown} is readable for its owner only")),
    }
}

fn check_disk(findings: &mut Findings, settings: &CheckedSettings) {
    let reserve = settings.store_reserve_bytes;
    for (path, kept) in [(&settings.relay_data_path, reserve), (&settings.git_data_path, 2 * reserve)] {
        let Some(there) = existing(path) else { continue };
        let Ok(volume) = statvfs(&there) else { continue };
        let free = volume.f_bavail.saturating_mul(volume.f_frsize);
        let text = format!("{} free at {}", bytes(free), path.display());
        if free < kept {
            let fix = format!("nothing new is stored below {}: free some space, or use another disk", bytes(kept));
            findings.error("disk", text, fix);
        } else if free < kept.saturating_mul(COMFORTABLE_FACTOR) {
            findings.warning("disk", text, format!("nothing new is stored below {}", bytes(kept)));
        } else {
            findings.ok("disk", text);
        }
    }
}

fn check_file_limit(findings: &mut Findings, settings: &CheckedSettings, server: Option<&ServerFacts>) {
    let wanted = settings.max_connections as u64 + SPARE_FILES;
    // The server raises its limit to the maximum.
    let (whose, limit) = match server.and_then(|server| server.open_files) {
        Some(limit) => ("the server can open", limit),
        None => ("a server started here can open", getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
    };
    let shown = if limit == u64::MAX { "any number of".to_owned() } else { limit.to_string() };
    let text = format!("{whose} {shown} files; {} connections are allowed", settings.max_connections);
    if limit >= wanted {
        return findings.ok("files", text);
    }
    findings.warning(
        "files",
        text,
        format!(
            "raise the limit to {wanted} or more (systemd: LimitNOFILE=65536; shell: ulimit -n), or lower \
                 NGIT_MAX_CONNECTIONS"
        ),
    );
}
