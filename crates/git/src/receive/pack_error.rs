//! The reasons why a pack is rejected. The code is stable; the text says what is wrong and, where that helps, what to
//! do.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::process::GitError;

/// The signal that ends a process whose file exceeds its limit.
const SIGXFSZ: i32 = 25;

/// The signal that ends a process that exceeds its processor time.
const SIGXCPU: i32 = 24;

/// The signal with which the kernel ends a process when memory is short.
const SIGKILL: i32 = 9;

/// The signal that ends a process whose pipe has no reader any more.
const SIGPIPE: i32 = 13;

/// The signal that asks a process to end.
const SIGTERM: i32 = 15;

/// Texts of system errors in messages of git, for which the pack is not to blame.
const SYSTEM_ERRORS: [&str; 4] =
    ["Too many open files", "Input/output error", "Resource temporarily unavailable", "Broken pipe"];

/// Characters of git's own message that are passed on: about two lines.
const MAX_MESSAGE_CHARS: usize = 400;

/// The reason why a pack is rejected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PackError {
    /// The pack exceeds the size limit, as it is sent or with the delta bases that git appends to a thin pack.
    #[error("the pack takes more than {0} bytes: push less history at once")]
    TooLarge(u64),
    /// The pack exceeds the limit on its number of objects.
    #[error("the pack has {claimed} objects, more than the limit of {most}: push less history at once")]
    TooManyObjects {
        /// Number of objects in its header.
        claimed: u32,
        /// The limit.
        most: u32,
    },
    /// One object, or the memory needed to build it, exceeds the limit.
    #[error("the pack has an object that is larger than this server accepts")]
    ObjectTooLarge,
    /// The objects would take too much space when they are unpacked.
    #[error("the objects of the pack have more than {most} bytes when unpacked: push less history at once")]
    TooMuchUnpacked {
        /// The limit for a pack of this size.
        most: u64,
    },
    /// The data is not a pack.
    #[error("not a valid pack: {0}")]
    Format(&'static str),
    /// The disk is full.
    #[error("the server's disk is full: try again later")]
    DiskFull,
    /// A check exceeded its time limit.
    #[error("checking the pack took longer than {0} seconds: push less history at once")]
    Time(u64),
    /// A check failed.
    #[error("git rejects the pack: {0}")]
    Check(String),
    /// An object that the pack refers to is missing.
    #[error("objects are missing: {0}: push from a complete clone, not a shallow or partial one")]
    Incomplete(String),
    /// The object that a ref should point to is missing.
    #[error("{name}: object {oid} is neither on the server nor in the pack")]
    MissingTip {
        /// The ref.
        name: String,
        /// The object.
        oid: String,
    },
    /// The object of a branch or pull request is not a commit.
    #[error("{name}: {oid} is a {found}, not a commit")]
    NotACommit {
        /// The ref.
        name: String,
        /// The object.
        oid: String,
        /// The type of the object.
        found: &'static str,
    },
    /// A failure of the server.
    #[error("the server could not receive the pack: {0}; try again later")]
    Server(String),
}

impl PackError {
    /// Returns the stable code of the reason.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "E-PACK-TOO-LARGE",
            Self::TooManyObjects { .. } => "E-PACK-OBJECTS",
            Self::ObjectTooLarge => "E-PACK-OBJECT-TOO-LARGE",
            Self::TooMuchUnpacked { .. } => "E-PACK-UNPACKED",
            Self::Format(_) => "E-PACK-FORMAT",
            Self::DiskFull => "E-PACK-DISK-FULL",
            Self::Time(_) => "E-PACK-TIME",
            Self::Check(_) => "E-PACK-CHECK",
            Self::Incomplete(_) | Self::MissingTip { .. } => "E-PACK-INCOMPLETE",
            Self::NotACommit { .. } => "E-PACK-NOT-A-COMMIT",
            Self::Server(_) => "E-PACK-SERVER",
        }
    }

    /// Returns the ref that the reason applies to; `None` if it applies to the whole push.
    #[must_use]
    pub fn ref_name(&self) -> Option<&str> {
        match self {
            Self::MissingTip { name, .. } | Self::NotACommit { name, .. } => Some(name),
            _ => None,
        }
    }
}

impl From<io::Error> for PackError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            // What `fork` returns at the limit of processes.
            io::ErrorKind::WouldBlock => Self::Server("no further process can be started".to_owned()),
            // The kind, not the error: that may name a path on the server.
            kind => Self::Server(kind.to_string()),
        }
    }
}

/// Translates errors of git processes into [`PackError`]s.
pub(super) struct GitErrorTranslator<'a> {
    /// The git data folder, whose path is not shown to clients.
    pub(super) root: &'a Path,
    /// Largest size of a written file.
    pub(super) max_bytes: u64,
    /// Limit on processor time.
    pub(super) cpu_secs: u64,
    /// Makes the error for messages that are not recognised.
    pub(super) otherwise: fn(String) -> PackError,
}

impl GitErrorTranslator<'_> {
    /// Translates the error of a git process.
    pub(super) fn translate(&self, error: GitError) -> PackError {
        match error {
            GitError::Io(error) => error.into(),
            GitError::Timeout(timeout) => PackError::Time(timeout.as_secs()),
            GitError::OutputTooLarge | GitError::Cancelled => PackError::Server(error.to_string()),
            GitError::Failed { status, .. } if status.signal() == Some(SIGXFSZ) => PackError::TooLarge(self.max_bytes),
            GitError::Failed { status, .. } if status.signal() == Some(SIGXCPU) => PackError::Time(self.cpu_secs),
            GitError::Failed { status, .. } if matches!(status.signal(), Some(SIGKILL | SIGPIPE | SIGTERM)) => {
                PackError::Server(format!("git ended with {status}"))
            }
            GitError::Failed { status, stderr } if stderr.is_empty() => {
                (self.otherwise)(format!("git ended with {status}"))
            }
            GitError::Failed { stderr, .. } => self.translate_message(&stderr),
        }
    }

    /// Classifies a message by its last line: lines above it may contain text from the pack.
    fn translate_message(&self, stderr: &str) -> PackError {
        let last = stderr.lines().last().unwrap_or_default();
        let contains = |texts: &[&str]| texts.iter().any(|text| last.contains(text));
        if contains(&["over limit", "ut of memory", "Cannot allocate memory"]) {
            PackError::ObjectTooLarge
        } else if contains(&["No space left on device", "Out of diskspace", "Disk quota exceeded"]) {
            PackError::DiskFull
        } else if contains(&["maximum allowed size", "File too large"]) {
            PackError::TooLarge(self.max_bytes)
        } else if contains(&["id not receive expected object", "unresolved delta"]) {
            PackError::Incomplete(self.summary(stderr))
        } else if contains(&SYSTEM_ERRORS) {
            PackError::Server(self.summary(stderr))
        } else {
            (self.otherwise)(self.summary(stderr))
        }
    }

    /// Returns the last line, preceded by the last error above it, which is more specific.
    fn summary(&self, stderr: &str) -> String {
        let mut lines = stderr.lines().rev();
        let last = lines.next().unwrap_or_default();
        let last = last.strip_prefix("fatal: ").unwrap_or(last).trim_start_matches("error: ");
        let message = match lines.find_map(|line| line.strip_prefix("error: ")) {
            Some(error) => format!("{error}; {last}"),
            None => last.to_owned(),
        };
        let message = message.replace(&*self.root.to_string_lossy(), "");
        message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE_CHARS).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;
    use std::time::Duration;

    use super::*;

    fn translate(raw_status: i32, stderr: &str) -> PackError {
        let root = Path::new("/srv/git");
        let translator = GitErrorTranslator { root, max_bytes: 7, cpu_secs: 8, otherwise: PackError::Check };
        let status = ExitStatus::from_raw(raw_status);
        translator.translate(GitError::Failed { status, stderr: stderr.to_owned() })
    }

    #[test]
    fn git_messages_have_stable_codes() {
        for (stderr, code) in [
            ("fatal: attempting to allocate 2147483649 over limit 67108864", "E-PACK-OBJECT-TOO-LARGE"),
            ("fatal: Out of memory, malloc failed (tried to allocate 99 bytes)", "E-PACK-OBJECT-TOO-LARGE"),
            ("fatal: write error: No space left on device", "E-PACK-DISK-FULL"),
            ("fatal: sha1 file '/incoming/2/pack/tmp_idx_x' write error. Out of diskspace", "E-PACK-DISK-FULL"),
            ("fatal: pack exceeds maximum allowed size (1.00 KiB)", "E-PACK-TOO-LARGE"),
            ("error: inflate returned -3\nfatal: pack has 2 unresolved deltas", "E-PACK-INCOMPLETE"),
            ("error: name: No space left on device\nfatal: fsck error in packed object", "E-PACK-CHECK"),
            ("", "E-PACK-CHECK"),
            ("fatal: unable to open /incoming/2: Too many open files", "E-PACK-SERVER"),
        ] {
            assert_eq!(translate(256, stderr).code(), code, "{stderr}");
        }
        assert_eq!(translate(SIGXFSZ, ""), PackError::TooLarge(7));
        assert_eq!(translate(SIGXCPU, "warning: something"), PackError::Time(8));
        assert_eq!(translate(SIGPIPE, "").code(), "E-PACK-SERVER");
        let text = "git rejects the pack: cannot read /incoming/3 here; it ends";
        assert_eq!(translate(256, "error: cannot read /srv/git/incoming/3\there\nfatal: it ends").to_string(), text);
        let root = Path::new("/");
        let translator = GitErrorTranslator { root, max_bytes: 7, cpu_secs: 8, otherwise: PackError::Check };
        assert_eq!(translator.translate(GitError::Timeout(Duration::from_secs(9))), PackError::Time(9));
    }

    #[test]
    fn full_disk_is_recognised_and_paths_are_not_shown() {
        assert_eq!(PackError::from(io::Error::from(io::ErrorKind::StorageFull)), PackError::DiskFull);
        let other = io::Error::other("/srv/git/incoming/3 is strange");
        assert!(!PackError::from(other).to_string().contains("srv"));
    }
}
