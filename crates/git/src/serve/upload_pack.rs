//! Runs `git upload-pack` for fetches.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{AGENT, ProtocolVersion, error_response};
use crate::process::{Git, GitError, ProcessInput};

/// Settings of `upload-pack`.
const UPLOAD_PACK_SETTINGS: [&str; 5] = [
    // v2 does not check whether an object is reachable. With this setting v0 does not either: every object in the pools
    // can be fetched by its id, and a fetch does not fail because a push has just moved the branch.
    "uploadpack.allowAnySHA1InWant=true",
    "uploadpack.allowFilter=true",
    // Patterns from a blob that any client can push, matched against every path. No client needs it.
    "uploadpackfilter.sparse:oid.allow=false",
    // Seconds of silence before it sends a keepalive while it counts objects: less than the timeout of proxies.
    "uploadpack.keepAlive=5",
    // Only upload-pack checks the owner of the folder. On a mounted volume the owner may be another user.
    "safe.directory=*",
];

/// Memory settings. A process uses these amounts, the mapped packs, which the kernel can reclaim, and about 500 bytes
/// per object that is sent. A clone of 220,000 objects and 366 MB uses 440 MB and fits in half a gigabyte of address
/// space; two gigabytes are enough for three million objects.
pub(crate) const MEMORY_SETTINGS: [&str; 4] = [
    // Unpacked delta bases, for walks over trees; git's default is 96 MiB.
    "core.deltaBaseCacheLimit=64m",
    // Objects that are compared with each other, per thread; git's default is no limit.
    "pack.windowMemory=64m",
    // Deltas that were found and are not written yet; git's default is 256 MiB.
    "pack.deltaCacheSize=64m",
    // A larger blob is sent as it is stored: comparing two takes several times their size in spite of the limits above.
    "core.bigFileThreshold=32m",
];

/// Limits of one fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UploadPackLimits {
    /// Threads that search for deltas.
    pub threads: u32,
    /// Longest duration, including the time that the client takes to read.
    pub timeout: Duration,
}

/// Why a fetch failed, and what the client knows about it.
#[derive(Debug, thiserror::Error)]
pub enum UploadPackError {
    /// The response is complete and contains an error message.
    #[error("{0}")]
    Reported(GitError),
    /// The response ends early.
    #[error("{0}")]
    Interrupted(GitError),
}

/// Runs git for a fetch and passes its response to `on_output` as it arrives. The body is that of a
/// [`FetchCommand`](super::FetchCommand).
///
/// # Errors
/// If git cannot be started, fails or exceeds its time limit, or if `on_output` fails, which kills git and all
/// processes that it has started. Git reports its errors to the client; if it has written nothing, this function does.
pub fn upload_pack(
    git: &Git,
    folder: &Path,
    (protocol, body): (ProtocolVersion, &[u8]),
    limits: UploadPackLimits,
    mut on_output: impl FnMut(&[u8]) -> Result<(), GitError>,
) -> Result<(), UploadPackError> {
    let mut command = command(git, folder, protocol);
    command.args(["-c", &format!("pack.threads={}", limits.threads)]);
    command.args(["upload-pack", "--stateless-rpc", "--strict"]);
    // A second timeout, in case the thread that enforces ours has ended.
    command.arg(format!("--timeout={}", limits.timeout.as_secs().max(1))).arg(".");
    let mut is_silent = true;
    let result = git.stream(&mut command, ProcessInput::Bytes(body), limits.timeout, |output| {
        is_silent = false;
        on_output(output)
    });
    let error = match result {
        Ok(()) => return Ok(()),
        Err(error) if is_silent => error,
        // A process that a signal ended, for example out of memory, has reported nothing.
        Err(error @ GitError::Failed { status, .. }) if status.signal().is_none() => {
            return Err(UploadPackError::Reported(error));
        }
        Err(error) => return Err(UploadPackError::Interrupted(error)),
    };
    // `fetch::client::negotiation` of graspd recognises the first and the last of these texts.
    let reason = match error {
        GitError::Timeout(_) => "this took too long",
        // Standard error is not passed on: it may name folders.
        GitError::Failed { status, .. } if status.signal().is_none() => "git refuses this request",
        _ => "the server cannot start git",
    };
    on_output(&error_response(reason)).map_err(UploadPackError::Interrupted)?;
    Err(UploadPackError::Reported(error))
}

/// Returns a command with our configuration, to which `upload-pack` and its arguments are added.
pub(super) fn command(git: &Git, folder: &Path, protocol: ProtocolVersion) -> Command {
    let mut command = git.command(folder);
    command.env("GIT_USER_AGENT", AGENT);
    if let Some(version) = protocol.env_value() {
        command.env("GIT_PROTOCOL", version);
    }
    for setting in UPLOAD_PACK_SETTINGS.iter().chain(&MEMORY_SETTINGS) {
        command.args(["-c", setting]);
    }
    command
}
