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

use super::snapshot::{Scene, Served};

/// The file that makes a folder a backup.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The file with the checksums.
pub(crate) const FILES: &str = "files";

/// The owner's key in a backup.
pub(crate) const KEY: &str = "relay-owner.nsec";

/// The newest format.
const FORMAT: u64 = 1;

/// Bytes of a manifest: some hundred.
const MAX_MANIFEST: u64 = 1 << 20;

/// Bytes of a line of the list: a path has at most 4,096.
const MAX_LINE: usize = 8 << 10;

/// What a backup says about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Manifest {
    /// When it was made, in unix seconds.
    pub(crate) made_at: u64,
    /// The version that made it.
    pub(crate) version: String,
    /// What it is a copy of. The folder is empty, and the key has no file.
    pub(crate) scene: Scene,
    /// Files and their bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Whether the owner's key is in it.
    pub(crate) key: bool,
    /// Whether its files are links to those of the server.
    pub(crate) linked: bool,
    /// The seal of the list of files.
    pub(crate) list: Seal,
}

/// A line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) seal: Seal,
    pub(crate) bytes: u64,
    pub(crate) path: PathBuf,
}

impl Manifest {
    /// As it is written.
    pub(crate) fn value(&self) -> Value {
        json!({
            "format": FORMAT,
            "graspd": self.version,
            "made_at": self.made_at,
            "service": self.scene.service.value(),
            "store": self.scene.store,
            "served": self.scene.served,
            "held": self.scene.held,
            "last_seq": self.scene.last_seq,
            "repositories": self.scene.repositories,
            "files": self.files,
            "bytes": self.bytes,
            "key": self.key,
            "linked": self.linked,
            "list": self.list.to_string(),
        })
    }

    /// Reads the manifest of a backup.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let size = std::fs::metadata(&path).map(|metadata| metadata.len()).with_context(|| {
            format!("{} is no backup, or one that was never finished: it has no {MANIFEST}", folder.display())
        })?;
        ensure!(size <= MAX_MANIFEST, "{} is too large to be one of ours", path.display());
        let value: Value = serde_json::from_slice(&std::fs::read(&path)?)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        match value["format"].as_u64() {
            Some(FORMAT) => {}
            Some(newer) if newer > FORMAT => bail!("a newer graspd made this backup: use that one"),
            _ => bail!("{} is none of ours", path.display()),
        }
        Self::read(&value).with_context(|| format!("{} lacks something", path.display()))
    }

    fn read(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let number = |name: &str| value[name].as_u64();
        let scene = Scene {
            folder: PathBuf::new(),
            served: number("served")?,
            held: number("held")?,
            last_seq: number("last_seq")?,
            repositories: number("repositories")?,
            store: text("store")?,
            key: None,
            service: Served::read(&value["service"])?,
        };
        Some(Self {
            made_at: number("made_at")?,
            version: text("graspd")?,
            scene,
            files: number("files")?,
            bytes: number("bytes")?,
            key: value["key"].as_bool()?,
            linked: value["linked"].as_bool()?,
            list: Seal::parse(value["list"].as_str()?)?,
        })
    }

    /// Shows the list of files, after it was found to be right.
    pub(crate) fn each(&self, folder: &Path, mut show: impl FnMut(Entry) -> Result<()>) -> Result<()> {
        let path = folder.join(FILES);
        ensure!(
            self.list.fits(&path).with_context(|| format!("cannot read {}", path.display()))?,
            "{} is not as it was written",
            path.display()
        );
        let mut lines = BufReader::new(File::open(&path)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            if std::io::Read::take(&mut lines, MAX_LINE as u64).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let entry = std::str::from_utf8(&line).ok().and_then(|line| Entry::read(line.strip_suffix('\n')?));
            show(entry.with_context(|| format!("{} has a line that is none of ours", path.display()))?)?;
        }
    }
}

impl Entry {
    /// A line of the list.
    pub(crate) fn line(&self) -> String {
        format!("{} {} {}\n", self.seal, self.bytes, self.path.display())
    }

    fn read(line: &str) -> Option<Self> {
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
    fn lines_are_read_as_they_were_written_and_lead_nowhere_else() {
        let seal = Seal::Whole([7; 32]);
        for path in ["events/data.mdb", "git/repos/npub1x/my%20tool.git/HEAD", KEY] {
            let entry = Entry { seal, bytes: 5, path: PathBuf::from(path) };
            assert_eq!(Entry::read(entry.line().trim_end()), Some(entry));
        }
        for path in ["../x", "git/../../x", "/etc/passwd", "lock", "events/../../x", "", "git/./x/../y"] {
            assert_eq!(Entry::read(&format!("{seal} 5 {path}")), None, "{path}");
        }
        for line in ["", "x", "sha256:00 5 git/x", &format!("{seal} -1 git/x"), &format!("{seal} git/x")] {
            assert_eq!(Entry::read(line), None, "{line}");
        }
    }
}
