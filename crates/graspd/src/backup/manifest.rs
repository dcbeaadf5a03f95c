//! The manifest of a backup: `manifest.json`, and `files`, which has a line with the checksum of each file.
//!
//! ```text
//! sha256:9f86… 1048576 events/data.mdb
//! git:2fd4…    52311   git/repos/npub1…/tool.git/pool/pack/pack-2fd4….pack
//! ```
//! `git:` is the checksum that git writes at the end of the file, over everything before it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use grasp_git::backup::FileChecksum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::api::SnapshotContent;
use crate::admin::deferred_events;

/// File that marks a folder as a complete backup.
pub(crate) const MANIFEST: &str = "manifest.json";

/// File with the checksums.
pub(crate) const FILES: &str = "files";

/// File of the owner key in a backup.
pub(crate) const KEY: &str = "relay-owner.nsec";

/// Newest format version.
pub(super) const FORMAT_VERSION: u64 = 1;

/// Maximum number of bytes of a manifest; a normal one has a few hundred.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Maximum number of bytes of a line; a path has at most 4,096.
const MAX_LINE_BYTES: usize = 8 << 10;

/// The manifest of a backup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Version of the format: [`FORMAT_VERSION`].
    pub(super) format: u64,
    /// Time of the backup, in unix seconds.
    pub(crate) made_at: u64,
    /// Version of graspd that created it.
    #[serde(rename = "graspd")]
    pub(crate) version: String,
    #[serde(flatten)]
    pub(crate) content: SnapshotContent,
    /// Number of files, and their size.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Whether the backup contains the owner key.
    #[serde(rename = "key")]
    pub(crate) has_key: bool,
    /// Whether its files are hard links to those of the server.
    #[serde(rename = "linked")]
    pub(crate) is_linked: bool,
    /// Checksum of the list of files.
    #[serde(rename = "list")]
    pub(crate) list_checksum: String,
}

/// A line of the list of files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ManifestEntry {
    pub(crate) checksum: FileChecksum,
    pub(crate) bytes: u64,
    pub(crate) path: PathBuf,
}

impl Manifest {
    /// Reads the manifest of a backup.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let size = std::fs::metadata(&path)
            .map(|metadata| metadata.len())
            .with_context(|| format!("{} is not a complete backup: it has no {MANIFEST}", folder.display()))?;
        ensure!(size <= MAX_MANIFEST_BYTES, "{} is too large to be a manifest", path.display());
        let value: Value = serde_json::from_slice(&std::fs::read(&path)?)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        match value["format"].as_u64() {
            Some(FORMAT_VERSION) => {}
            Some(newer) if newer > FORMAT_VERSION => {
                bail!("a newer version of graspd created this backup: use that one")
            }
            _ => bail!("{} is not a manifest of graspd", path.display()),
        }
        serde_json::from_value(value).with_context(|| format!("{} is incomplete", path.display()))
    }

    /// Checks the list of files, and passes every entry to `on_entry`.
    pub(crate) fn for_each_file(
        &self,
        folder: &Path,
        mut on_entry: impl FnMut(ManifestEntry) -> Result<()>,
    ) -> Result<()> {
        let path = folder.join(FILES);
        let checksum = FileChecksum::parse(&self.list_checksum).context("the checksum in the manifest is invalid")?;
        ensure!(
            checksum.matches_file(&path).with_context(|| format!("cannot read {}", path.display()))?,
            "the checksum of {} is wrong",
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
            on_entry(entry.with_context(|| format!("{} has an invalid line", path.display()))?)?;
        }
    }
}

impl ManifestEntry {
    /// Returns the line of the entry.
    pub(crate) fn to_line(&self) -> String {
        format!("{} {} {}\n", self.checksum, self.bytes, self.path.display())
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ' ');
        let (checksum, bytes, path) = (parts.next()?, parts.next()?, PathBuf::from(parts.next()?));
        let is_file = [KEY, deferred_events::FILE_NAME].iter().any(|name| path == Path::new(name));
        let is_ours = path.starts_with("events") || path.starts_with("git") || is_file;
        let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        (is_ours && is_plain).then_some(Self {
            checksum: FileChecksum::parse(checksum)?,
            bytes: bytes.parse().ok()?,
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_cannot_leave_the_backup() {
        let checksum = FileChecksum::Sha256([7; 32]);
        for path in ["events/data.mdb", "git/repos/npub1x/my%20tool.git/HEAD", KEY, deferred_events::FILE_NAME] {
            let entry = ManifestEntry { checksum, bytes: 5, path: PathBuf::from(path) };
            assert_eq!(ManifestEntry::parse(entry.to_line().trim_end()), Some(entry));
        }
        for path in ["../x", "git/../../x", "/etc/passwd", "lock", "events/../../x", "", "git/./x/../y"] {
            assert_eq!(ManifestEntry::parse(&format!("{checksum} 5 {path}")), None, "{path}");
        }
        for line in ["", "x", "sha256:00 5 git/x", &format!("{checksum} -1 git/x"), &format!("{checksum} git/x")] {
            assert_eq!(ManifestEntry::parse(line), None, "{line}");
        }
    }

    /// Backups are read by other versions.
    #[test]
    fn json_is_stable() {
        let text = r#"{"bytes":6,"files":5,"format":1,"graspd":"0.1.0","held":2,"key":true,"last_seq":3,"linked":false,"list":"sha256:00","made_at":1700,"repositories":4,"served":1,"service":{"base_path":"","domain":"code.example","open":false,"strict_maintainers":true,"submissions":false},"store":"ab"}"#;
        let manifest: Manifest = serde_json::from_str(text).expect("a manifest");
        assert_eq!(
            (manifest.has_key, manifest.is_linked, manifest.content.service.strict_maintainers),
            (true, false, true)
        );
        assert_eq!(serde_json::json!(manifest).to_string(), text);
    }
}
