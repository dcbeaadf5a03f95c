//! Detects what the installed git supports, by running `upload-pack` on a repository with one ref: in protocol v0 the
//! capabilities follow the first ref, and git before 2.41 advertises nothing for a repository without refs.
//!
//! The server advertises only capabilities that [`request`](super::request) parses: a request that uses any other would
//! have the same cache key as one without it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::{AGENT, ProtocolVersion, upload_pack};
use crate::layout::Layout;
use crate::pktline;
use crate::process::{Git, GitError, ProcessInput};
use crate::version::{GitVersionError, InstalledGit, MIN_GIT_VERSION};

/// Capabilities of v0 and v1 that are advertised if the installed git has them.
const V0_CAPABILITIES: [&str; 16] = [
    "multi_ack",
    "multi_ack_detailed",
    "no-done",
    "thin-pack",
    "side-band",
    "side-band-64k",
    "ofs-delta",
    "shallow",
    "deepen-since",
    "deepen-not",
    "deepen-relative",
    "no-progress",
    "include-tag",
    "allow-tip-sha1-in-want",
    "allow-reachable-sha1-in-want",
    "filter",
];

/// Capabilities of v2 that are advertised if the installed git has them.
const V2_CAPABILITIES: [(&str, CapabilityValue); 5] = [
    ("agent", CapabilityValue::Any),
    ("ls-refs", CapabilityValue::Fixed("unborn")),
    ("fetch", CapabilityValue::Only(&["shallow", "wait-for-done", "filter"])),
    ("server-option", CapabilityValue::Only(&[])),
    ("object-format", CapabilityValue::Any),
];

/// The advertised value of a v2 capability.
enum CapabilityValue {
    /// The value of the installed git.
    Any,
    /// Those of its words that are in this list.
    Only(&'static [&'static str]),
    /// This value, because this server implements the command itself.
    Fixed(&'static str),
}

/// Capabilities of v0 that clients and GRASP-01 rely on. Every git since [`MIN_GIT_VERSION`] has them.
const REQUIRED_V0: [&str; 3] = ["allow-tip-sha1-in-want", "allow-reachable-sha1-in-want", "filter"];

/// The same for v2: names, and words of their values.
const REQUIRED_V2: [(&str, &str); 4] = [("version 2", ""), ("ls-refs", ""), ("fetch", "shallow"), ("fetch", "filter")];

/// Time limit of git on a tiny repository: it takes milliseconds, and seconds on a machine that is starting.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Largest advertisement that is read. With one ref it has a few hundred bytes.
const MAX_ADVERTISEMENT: usize = 64 * 1024;

/// The object id of the empty tree, which git has built in.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// The folder for files in memory on Linux.
const SHARED_MEMORY: &str = "/dev/shm";

/// The capabilities that this server advertises.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerCapabilities {
    /// The git that was examined.
    pub installed: InstalledGit,
    /// The capabilities of a v0 or v1 `upload-pack`, without the `symref` of HEAD.
    pub upload_pack: String,
    /// The complete advertisement of v2, as packets.
    pub v2_advertisement: Vec<u8>,
    /// The capabilities of `receive-pack`.
    pub receive_pack: String,
}

/// The reason why the installed git cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// It is missing or too old.
    #[error("{0}: {fix}", fix = .0.fix())]
    Version(GitVersionError),
    /// No folder for the test repository can be written.
    #[error(
        "cannot create a repository to detect the capabilities of git {installed}: {reasons}: free some disk space"
    )]
    ProbeRepo {
        /// The installed git.
        installed: InstalledGit,
        /// The folders that were tried, and why each failed.
        reasons: String,
    },
    /// It cannot be started, or fails.
    #[error("cannot detect the capabilities of git {installed}: {error}")]
    Git {
        /// The installed git.
        installed: InstalledGit,
        /// The reason.
        error: GitError,
    },
    /// It was built without a required capability.
    #[error(
        "git {installed} does not offer `{capability}` in protocol {protocol}, which git {MIN_GIT_VERSION} and newer do: \
         install another git, or start graspd with its folder first in PATH"
    )]
    Missing {
        /// The installed git.
        installed: InstalledGit,
        /// The missing capability.
        capability: &'static str,
        /// The protocol version in which it is missing.
        protocol: &'static str,
    },
}

/// A repository whose only ref is HEAD. Its folder is removed when this value is dropped.
struct ProbeRepo(TempDir);

impl ProbeRepo {
    /// Creates the repository in the first of some folders that can be written. If none can, the error is the reason
    /// for each.
    fn create(folders: &[PathBuf]) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for folder in folders {
            match Self::create_in(folder) {
                Ok(probe) => return Ok(probe),
                Err(error) => reasons.push(format!("{}: {error}", folder.display())),
            }
        }
        Err(reasons.join("; "))
    }

    fn create_in(folder: &Path) -> io::Result<Self> {
        let probe = tempfile::Builder::new().prefix("capabilities-").tempdir_in(folder)?;
        for part in ["objects", "refs"] {
            fs::create_dir(probe.path().join(part))?;
        }
        fs::write(probe.path().join("HEAD"), format!("{EMPTY_TREE}\n"))?;
        Ok(Self(probe))
    }
}

impl ServerCapabilities {
    /// Detects the capabilities of the installed git.
    ///
    /// The repository that git is run on is created below `incoming` and removed again. If that disk is full, the
    /// folder for temporary files or the one for shared memory is used, so that the server starts nevertheless.
    ///
    /// # Errors
    /// If git is missing, is too old or lacks a capability that clients rely on.
    pub fn detect(git: &Git, layout: &Layout) -> Result<Self, CapabilityError> {
        Self::detect_in(git, &[layout.incoming(), std::env::temp_dir(), PathBuf::from(SHARED_MEMORY)])
    }

    fn detect_in(git: &Git, folders: &[PathBuf]) -> Result<Self, CapabilityError> {
        let installed = git.installed().map_err(CapabilityError::Version)?;
        let probe = match ProbeRepo::create(folders) {
            Ok(probe) => probe,
            Err(reasons) => return Err(CapabilityError::ProbeRepo { installed, reasons }),
        };
        let advertisement = |protocol| {
            let mut command = upload_pack::command(git, probe.0.path(), protocol);
            command.args(["upload-pack", "--strict", "--http-backend-info-refs", "."]);
            git.run(&mut command, ProcessInput::Empty, TIMEOUT, MAX_ADVERTISEMENT)
        };
        let advertisements =
            advertisement(ProtocolVersion::V0).and_then(|v0| Ok((v0, advertisement(ProtocolVersion::V2)?)));
        let (v0, v2) = match advertisements {
            Ok((v0, v2)) => (text_lines(&v0), text_lines(&v2)),
            Err(error) => return Err(CapabilityError::Git { installed, error }),
        };
        let upload_pack = v0_capabilities(&v0);
        if let Some(capability) = REQUIRED_V0.into_iter().find(|name| !upload_pack.split(' ').any(|word| word == *name))
        {
            return Err(CapabilityError::Missing { installed, capability, protocol: "v0" });
        }
        let known: Vec<String> = v2.iter().filter_map(|line| v2_capability(line)).collect();
        let has = |name: &str, word: &str| {
            let mut pairs = known.iter().map(|line| line.split_once('=').unwrap_or((line, "")));
            pairs.any(|(known, words)| known == name && (word.is_empty() || words.split(' ').any(|one| one == word)))
        };
        if let Some((capability, _)) = REQUIRED_V2.into_iter().find(|(name, word)| !has(name, word)) {
            return Err(CapabilityError::Missing { installed, capability, protocol: "v2" });
        }
        let mut v2_advertisement = Vec::new();
        known.iter().for_each(|line| pktline::push_line(&mut v2_advertisement, line));
        pktline::push_flush(&mut v2_advertisement);
        // Independent of the installed git, because this server receives packs itself. Without `report-status-v2`,
        // whose additions are for hooks that rewrite refs.
        let receive_pack = format!(
            "report-status delete-refs side-band-64k quiet atomic ofs-delta push-options object-format=sha1 agent={AGENT}"
        );
        Ok(Self { installed, upload_pack, v2_advertisement, receive_pack })
    }
}

/// Returns the text lines of an advertisement.
fn text_lines(mut bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(Some((packet, length))) = pktline::read(bytes) {
        lines.extend(packet.line().map(|line| String::from_utf8_lossy(line).into_owned()));
        bytes = &bytes[length..];
    }
    lines
}

/// Returns the capabilities of a v0 advertisement that this server supports, with its own object format and agent.
fn v0_capabilities(lines: &[String]) -> String {
    let all = lines.first().and_then(|line| line.split_once('\0')).map(|(_, all)| all).unwrap_or_default();
    let mut words: Vec<&str> = all.split(' ').filter(|word| V0_CAPABILITIES.contains(word)).collect();
    let agent = format!("agent={AGENT}");
    words.extend(["object-format=sha1", &agent]);
    words.join(" ")
}

/// Returns a line of a v2 advertisement without what this server does not support.
fn v2_capability(line: &str) -> Option<String> {
    if line == "version 2" {
        return Some(line.to_owned());
    }
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    let (_, values) = V2_CAPABILITIES.iter().find(|(known, _)| *known == name)?;
    let value = match values {
        CapabilityValue::Any => value.to_owned(),
        CapabilityValue::Fixed(value) => (*value).to_owned(),
        CapabilityValue::Only(words) => {
            value.split(' ').filter(|word| words.contains(word)).collect::<Vec<_>>().join(" ")
        }
    };
    Some(if value.is_empty() { name.to_owned() } else { format!("{name}={value}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessLimits;

    #[test]
    fn probe_repository_uses_the_first_writable_folder_and_is_removed() {
        let writable = TempDir::new().expect("create a folder");
        let [missing, other] = ["missing", "other"].map(|name| writable.path().join(name));
        let entries = || fs::read_dir(writable.path()).expect("list a folder").count();
        let probe = ProbeRepo::create(&[missing.clone(), writable.path().to_owned()]).expect("one can be written");
        assert!(probe.0.path().starts_with(writable.path()));
        drop(probe);
        assert_eq!(entries(), 0);
        let reasons = ProbeRepo::create(&[missing.clone(), other.clone()]).err().expect("none can be written");
        for folder in [missing, other] {
            assert!(reasons.contains(&format!("{}: ", folder.display())), "{reasons}");
        }
        assert_eq!(entries(), 0);
    }

    #[test]
    fn capabilities_do_not_depend_on_the_folder() {
        let git = Git::new(Path::new("git"), ProcessLimits { alloc_bytes: 256 << 20, address_bytes: 2 << 30 });
        let folder = TempDir::new().expect("create a folder");
        let layout = Layout::open(folder.path()).expect("open a layout");
        let in_layout = ServerCapabilities::detect(&git, &layout).expect("git runs");
        assert_eq!(fs::read_dir(layout.incoming()).expect("list a folder").count(), 0);
        let others = [folder.path().join("missing"), std::env::temp_dir()];
        assert_eq!(ServerCapabilities::detect_in(&git, &others).expect("git runs"), in_layout);
        let error = ServerCapabilities::detect_in(&git, &others[..1]).expect_err("no folder can be written");
        assert!(error.to_string().contains("missing: "), "{error}");
    }

    #[test]
    fn missing_git_is_an_error_with_advice() {
        let git = Git::new(Path::new("no-such-git"), ProcessLimits { alloc_bytes: 256 << 20, address_bytes: 2 << 30 });
        let error = ServerCapabilities::detect_in(&git, &[]).expect_err("there is none").to_string();
        assert!(error.starts_with("graspd needs git 2.39 or newer; found none in PATH ("), "{error}");
        assert!(error.contains("): install git"), "{error}");
    }

    #[test]
    fn unsupported_capabilities_are_not_advertised() {
        for (line, advertised) in [
            ("version 2", Some("version 2")),
            ("agent=git/9", Some("agent=git/9")),
            ("ls-refs=unborn unknown", Some("ls-refs=unborn")),
            ("ls-refs", Some("ls-refs=unborn")),
            ("fetch=shallow unknown wait-for-done filter", Some("fetch=shallow wait-for-done filter")),
            ("server-option", Some("server-option")),
            ("server-option=news", Some("server-option")),
            ("object-format=sha1", Some("object-format=sha1")),
            ("object-info", None),
            ("bundle-uri", None),
            ("session-id=1", None),
        ] {
            assert_eq!(v2_capability(line).as_deref(), advertised, "{line}");
        }
        let v0 = vec!["0 x\0multi_ack unknown symref=HEAD:a session-id=1 filter agent=git/9".to_owned()];
        assert_eq!(v0_capabilities(&v0), format!("multi_ack filter object-format=sha1 agent={AGENT}"));
        assert_eq!(v0_capabilities(&[]), format!("object-format=sha1 agent={AGENT}"));
    }
}
