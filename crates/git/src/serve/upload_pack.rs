//! The answers to fetches that need the real git.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{AGENT, Protocol, refusal};
use crate::process::{ChildProblem, Git, Input};

/// What `upload-pack` offers and allows.
const OFFERS: [&str; 5] = [
    // v2 asks nobody whether an object is reachable. With this, v0 neither: what is in the pools is public by its id,
    // and a fetch does not lose the race against a push that moved the branch.
    "uploadpack.allowAnySHA1InWant=true",
    "uploadpack.allowFilter=true",
    // Patterns from a stranger's blob, matched against every path. No client needs it.
    "uploadpackfilter.sparse:oid.allow=false",
    // Seconds of silence before it says that it still counts: less than what proxies wait for.
    "uploadpack.keepAlive=5",
    // It alone asks who owns the folder. On a volume that may be somebody else, and the folder is ours all the same.
    "safe.directory=*",
];

/// How much memory it takes: these bounds, the second of them in pages that the kernel may take back, and about 500 bytes
/// per object that is sent. A clone of 220,000 objects and 366 MB takes 440 MB and fits in half a gigabyte of address
/// space; in two it is three million objects.
pub(crate) const MEMORY: [&str; 4] = [
    // Unpacked bases of deltas, for whoever walks trees; git's default is 96.
    "core.deltaBaseCacheLimit=64m",
    // Objects that are compared with each other, per thread; git has no bound.
    "pack.windowMemory=64m",
    // Deltas that were found and are not written yet; git's default is 256.
    "pack.deltaCacheSize=64m",
    // A larger blob is sent as it lies: comparing two takes several times their size, whatever the bounds above say.
    "core.bigFileThreshold=32m",
];

/// What one fetch may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Threads that look for deltas.
    pub threads: u32,
    /// How long it may take, the client's reading included.
    pub patience: Duration,
}

/// Answers a fetch with the real git and shows the answer as it comes; an error of `show` ends git and all that it has
/// started. The body is that of a [`Fetch`](super::Fetch).
///
/// What was shown is the answer, whether or not there is a problem: git tells the client why it fails, and where it has
/// said nothing we do.
pub fn upload_pack(
    git: &Git,
    folder: &Path,
    (protocol, body): (Protocol, &[u8]),
    effort: Effort,
    mut show: impl FnMut(&[u8]) -> Result<(), ChildProblem>,
) -> Result<(), ChildProblem> {
    let mut command = command(git, folder, protocol);
    command.args(["-c", &format!("pack.threads={}", effort.threads)]);
    command.args(["upload-pack", "--stateless-rpc", "--strict"]);
    // A second clock, in case the thread that watches ours is gone.
    command.arg(format!("--timeout={}", effort.patience.as_secs().max(1))).arg(".");
    let mut silent = true;
    let result = git.stream(&mut command, Input::Bytes(body), effort.patience, |said| {
        silent = false;
        show(said)
    });
    if let (true, Err(problem)) = (silent, &result) {
        let reason = match problem {
            ChildProblem::Slow(_) => "this took too long",
            // The complaint is not repeated: it may name folders.
            ChildProblem::Failed { .. } => "git refuses this request",
            _ => "the server cannot start git",
        };
        show(&refusal(reason))?;
    }
    result
}

/// A command with our configuration, to which `upload-pack` and its arguments are added.
pub(super) fn command(git: &Git, folder: &Path, protocol: Protocol) -> Command {
    let mut command = git.command(folder);
    command.env("GIT_USER_AGENT", AGENT);
    if let Some(version) = protocol.variable() {
        command.env("GIT_PROTOCOL", version);
    }
    for setting in OFFERS.iter().chain(&MEMORY) {
        command.args(["-c", setting]);
    }
    command
}
