//! What a backup says about itself: `manifest.json`, and `files`, a line for each file with its checksum.
//!
//! ```text
//! sha256:9f86… 1048576 events/data.mdb
//! git:2fd4…    52311   git/repos/npub1…/tool.git/pool/pack/pack-2fd4….pack
//! ```
//! `git:` is the checksum that git itself writes at the end of the file, over everything before it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use grasp_git::backup::Seal;
use serde_json::{Value, json};

use crate::admin::snapshot::{ServiceSettings, SnapshotInfo};

/// The file that makes a folder a backup.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The file with the checksums.
pub(crate) const FILES: &str = "files";

/// The owner's key in a backup.
pub(crate) const KEY: &str = "relay-owner.nsec";

/// The newest format.
const FORMAT_VERSION: u64 = 1;

/// Bytes of a manifest: some hundred.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Bytes of a line of the list: a path has at most 4,096.
const MAX_LINE_BYTES: usize = 8 << 10;

/// What a backup says about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Manifest {
    /// When it was made, in unix seconds.
    pub(crate) made_at: u64,
    /// The version that made it.
    pub(crate) version: String,
    /// What it is a copy of. The folder is empty, and the key has no file.
    pub(crate) snapshot: SnapshotInfo,
    /// Files and their bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Whether the owner's key is in it.
    pub(crate) has_key: bool,
    /// Whether its files are links to those of the server.
    pub(crate) is_linked: bool,
    /// The seal of the list of files.
    pub(crate) list_checksum: Seal,
}

/// A line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ManifestEntry {
    pub(crate) seal: Seal,
    pub(crate) bytes: u64,
    pub(crate) path: PathBuf,
}

impl Manifest {
    /// As it is written.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "format": FORMAT_VERSION,
            "graspd": self.version,
            "made_at": self.made_at,
            "service": self.snapshot.service.to_json(),
            "store": self.snapshot.store,
            "served": self.snapshot.served,
            "held": self.snapshot.held,
            "last_seq": self.snapshot.last_seq,
            "repositories": self.snapshot.repositories,
            "files": self.files,
            "bytes": self.bytes,
            "key": self.has_key,
            "linked": self.is_linked,
            "list": self.list_checksum.to_string(),
        })
    }

    /// Reads the manifest of a backup.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let size = std::fs::metadata(&path).map(|metadata| metadata.len()).with_context(|| {
            format!("{} is no backup, or one that was never finished: it has no {MANIFEST}", folder.display())
        })?;
        ensure!(size <= MAX_MANIFEST_BYTES, "{} is too large to be one of ours", path.display());
        let value: Value = serde_json::from_slice(&std::fs::read(&path)?)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        match value["format"].as_u64() {
            Some(FORMAT_VERSION) => {}
            Some(newer) if newer > FORMAT_VERSION => bail!("a newer graspd made this backup: use that one"),
            _ => bail!("{} is none of ours", path.display()),
        }
        Self::from_json(&value).with_context(|| format!("{} lacks something", path.display()))
    }

    fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let number = |name: &str| value[name].as_u64();
        let snapshot = SnapshotInfo {
            folder: PathBuf::new(),
            served: number("served")?,
            held: number("held")?,
            last_seq: number("last_seq")?,
            repositories: number("repositories")?,
            store: text("store")?,
            key: None,
            service: ServiceSettings::from_json(&value["service"])?,
        };
        Some(Self {
            made_at: number("made_at")?,
            version: text("graspd")?,
            snapshot,
            files: number("files")?,
            bytes: number("bytes")?,
            has_key: value["key"].as_bool()?,
            is_linked: value["linked"].as_bool()?,
            list_checksum: Seal::parse(value["list"].as_str()?)?,
        })
    }

    /// Shows the list of files, after it was found to be right.
    pub(crate) fn for_each_file(
        &self,
        folder: &Path,
        mut on_entry: impl FnMut(ManifestEntry) -> Result<()>,
    ) -> Result<()> {
        let path = folder.join(FILES);
        ensure!(
            self.list_checksum.fits(&path).with_context(|| format!("cannot read {}", path.display()))?,
            "{} is not as it was written",
            path.display()
        );
        let mut lines = BufReader::new(File::open(&path)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            if std::io::Read::take(&mut lines, MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let entry = std::str::from_utf8(&line).ok().and_then(|line| ManifestEntry::parse(line.strip_suffix('\n')?));
            on_entry(entry.with_context(|| format!("{} has a line that is none of ours", path.display()))?)?;
        }
    }
}

impl ManifestEntry {
    /// A line of the list.
    pub(crate) fn to_line(&self) -> String {
        format!("{} {} {}\n", self.seal, self.bytes, self.path.display())
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ' ');
        let (seal, bytes, path) = (parts.next()?, parts.next()?, PathBuf::from(parts.next()?));
        let is_ours = path.starts_with("events") || path.starts_with("git") || path == Path::new(KEY);
        let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        (is_ours && is_plain).then_some(Self { seal: Seal::parse(seal)?, bytes: bytes.parse().ok()?, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_cannot_leave_the_backup() {
        let seal = Seal::Whole([7; 32]);
        for path in ["events/data.mdb", "git/repos/npub1x/my%20tool.git/HEAD", KEY] {
            let entry = ManifestEntry { seal, bytes: 5, path: PathBuf::from(path) };
            assert_eq!(ManifestEntry::parse(entry.to_line().trim_end()), Some(entry));
        }
        for path in ["../x", "git/../../x", "/etc/passwd", "lock", "events/../../x", "", "git/./x/../y"] {
            assert_eq!(ManifestEntry::parse(&format!("{seal} 5 {path}")), None, "{path}");
        }
        for line in ["", "x", "sha256:00 5 git/x", &format!("{seal} -1 git/x"), &format!("{seal} git/x")] {
            assert_eq!(ManifestEntry::parse(line), None, "{line}");
        }
    }
}
