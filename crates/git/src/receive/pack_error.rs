//! Why a pack is not taken. The code is stable; the text says what is wrong and, where that helps, what to do.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::process::ChildProblem;

/// The signal for a file that grew beyond what it may.
const SIGXFSZ: i32 = 25;

/// Characters of git's own words that are passed on: two lines of them.
const MAX_WORDS: usize = 400;

/// Why a pack is not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PackProblem {
    /// More bytes than a push may bring, as they come or with the objects that a thin pack builds upon.
    #[error("the pack takes more than {0} bytes: push less history at once")]
    TooLarge(u64),
    /// More objects than a push may bring.
    #[error("the pack has {claimed} objects, more than {most}: push less history at once")]
    TooManyObjects {
        /// What its header says.
        claimed: u32,
        /// What is taken.
        most: u32,
    },
    /// One object, or what it takes to build it, is larger than an object may be.
    #[error("the pack has an object that is larger than this server takes")]
    ObjectTooLarge,
    /// No pack.
    #[error("not a pack: {0}")]
    Format(&'static str),
    /// The server has no room.
    #[error("the server's disk is full: try again later")]
    DiskFull,
    /// The checks took too long.
    #[error("checking the pack took longer than {0} seconds: push less history at once")]
    Time(u64),
    /// The checks found something bad.
    #[error("git does not take the pack: {0}")]
    Check(String),
    /// Something that the pack refers to is not there.
    #[error("objects are missing: {0}: push from a complete clone, not a shallow or partial one")]
    Incomplete(String),
    /// The object that a ref should point to is not there.
    #[error("{name}: object {oid} is neither here nor in the pack")]
    MissingTip {
        /// The ref.
        name: String,
        /// The object.
        oid: String,
    },
    /// A branch or a pull request that would not be a commit.
    #[error("{name}: {oid} is a {found}, not a commit")]
    NotACommit {
        /// The ref.
        name: String,
        /// The object.
        oid: String,
        /// What it is.
        found: &'static str,
    },
    /// The server could not do its part.
    #[error("the server could not take the pack: {0}")]
    Server(String),
}

impl PackProblem {
    /// The stable name of the reason.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "E-PACK-TOO-LARGE",
            Self::TooManyObjects { .. } => "E-PACK-OBJECTS",
            Self::ObjectTooLarge => "E-PACK-OBJECT-TOO-LARGE",
            Self::Format(_) => "E-PACK-FORMAT",
            Self::DiskFull => "E-PACK-DISK-FULL",
            Self::Time(_) => "E-PACK-TIME",
            Self::Check(_) => "E-PACK-CHECK",
            Self::Incomplete(_) | Self::MissingTip { .. } => "E-PACK-INCOMPLETE",
            Self::NotACommit { .. } => "E-PACK-NOT-A-COMMIT",
            Self::Server(_) => "E-PACK-SERVER",
        }
    }

    /// The ref that the reason is about, if it is about one.
    #[must_use]
    pub fn about(&self) -> Option<&str> {
        match self {
            Self::MissingTip { name, .. } | Self::NotACommit { name, .. } => Some(name),
            _ => None,
        }
    }
}

impl From<io::Error> for PackProblem {
    fn from(problem: io::Error) -> Self {
        match problem.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            // The kind, not the error: that may name a place on the server's disk.
            kind => Self::Server(kind.to_string()),
        }
    }
}

/// What a failed child means, and what its own words mean if they are none of those that we know.
pub(super) struct Reading<'a> {
    /// The git folder, which strangers need not know.
    pub(super) root: &'a Path,
    /// Bytes that a file may have.
    pub(super) max_bytes: u64,
    /// What any other failure is.
    pub(super) otherwise: fn(String) -> PackProblem,
}

impl Reading<'_> {
    /// The problem that a child had.
    pub(super) fn problem(&self, problem: ChildProblem) -> PackProblem {
        match problem {
            ChildProblem::Start(problem) => problem.into(),
            ChildProblem::Slow(patience) => PackProblem::Time(patience.as_secs()),
            ChildProblem::Verbose | ChildProblem::Unwanted => PackProblem::Server(problem.to_string()),
            ChildProblem::Failed { status, .. } if status.signal() == Some(SIGXFSZ) => {
                PackProblem::TooLarge(self.max_bytes)
            }
            ChildProblem::Failed { status, complaint } if complaint.is_empty() => {
                (self.otherwise)(format!("git ended with {status}"))
            }
            ChildProblem::Failed { complaint, .. } => self.complaint(&complaint),
        }
    }

    /// The last line decides: lines above it may have words of strangers in them.
    fn complaint(&self, complaint: &str) -> PackProblem {
        let last = complaint.lines().last().unwrap_or_default();
        let says = |words: &[&str]| words.iter().any(|words| last.contains(words));
        if says(&["over limit", "ut of memory", "Cannot allocate memory"]) {
            PackProblem::ObjectTooLarge
        } else if says(&["No space left on device", "Out of diskspace", "Disk quota exceeded"]) {
            PackProblem::DiskFull
        } else if says(&["maximum allowed size", "File too large"]) {
            PackProblem::TooLarge(self.max_bytes)
        } else if says(&["id not receive expected object", "unresolved delta"]) {
            PackProblem::Incomplete(self.words(complaint))
        } else {
            (self.otherwise)(self.words(complaint))
        }
    }

    /// The last line, and the last error above it, which says more.
    fn words(&self, complaint: &str) -> String {
        let mut lines = complaint.lines().rev();
        let last = lines.next().unwrap_or_default();
        let last = last.strip_prefix("fatal: ").unwrap_or(last).trim_start_matches("error: ");
        let words = match lines.find_map(|line| line.strip_prefix("error: ")) {
            Some(error) => format!("{error}; {last}"),
            None => last.to_owned(),
        };
        let words = words.replace(&*self.root.to_string_lossy(), "");
        words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WORDS).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;
    use std::time::Duration;

    use super::*;

    fn read(raw: i32, complaint: &str) -> PackProblem {
        let reading = Reading { root: Path::new("/srv/git"), max_bytes: 7, otherwise: PackProblem::Check };
        reading.problem(ChildProblem::Failed { status: ExitStatus::from_raw(raw), complaint: complaint.to_owned() })
    }

    #[test]
    fn what_git_says_has_a_name() {
        for (complaint, code) in [
            ("fatal: attempting to allocate 2147483649 over limit 67108864", "E-PACK-OBJECT-TOO-LARGE"),
            ("fatal: Out of memory, malloc failed (tried to allocate 99 bytes)", "E-PACK-OBJECT-TOO-LARGE"),
            ("fatal: write error: No space left on device", "E-PACK-DISK-FULL"),
            ("fatal: sha1 file '/incoming/2/pack/tmp_idx_x' write error. Out of diskspace", "E-PACK-DISK-FULL"),
            ("fatal: pack exceeds maximum allowed size (1.00 KiB)", "E-PACK-TOO-LARGE"),
            ("error: inflate returned -3\nfatal: pack has 2 unresolved deltas", "E-PACK-INCOMPLETE"),
            ("error: name: No space left on device\nfatal: fsck error in packed object", "E-PACK-CHECK"),
            ("", "E-PACK-CHECK"),
        ] {
            assert_eq!(read(256, complaint).code(), code, "{complaint}");
        }
        assert_eq!(read(SIGXFSZ, ""), PackProblem::TooLarge(7));
        let words = "git does not take the pack: cannot read /incoming/3 here; it ends";
        assert_eq!(read(256, "error: cannot read /srv/git/incoming/3\there\nfatal: it ends").to_string(), words);
        let reading = Reading { root: Path::new("/"), max_bytes: 7, otherwise: PackProblem::Check };
        assert_eq!(reading.problem(ChildProblem::Slow(Duration::from_secs(9))), PackProblem::Time(9));
    }

    #[test]
    fn a_full_disk_has_a_name() {
        assert_eq!(PackProblem::from(io::Error::from(io::ErrorKind::StorageFull)), PackProblem::DiskFull);
        let other = io::Error::other("/srv/git/incoming/3 is strange");
        assert!(!PackProblem::from(other).to_string().contains("srv"));
    }
}
