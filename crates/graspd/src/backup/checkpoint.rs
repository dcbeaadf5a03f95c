//! Progress of an export or import, in a file next to the exported or imported one: `FILE.graspd-progress`,
//! `FILE.graspd-import`.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, Result};
use grasp_git::backup::ChecksumWriter;
use serde_json::{Value, json};

/// Number of bytes at the beginning of a file that are part of its fingerprint.
const HEAD_BYTES: u64 = 64 << 10;

/// Returns the path with a suffix.
pub(super) fn sibling_path(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Reads a checkpoint; `None` if there is none.
pub(super) fn read(path: &Path) -> Result<Option<Value>> {
    let text = match fs::read(path) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let value = serde_json::from_slice(&text)
        .with_context(|| format!("{} is damaged: remove it to start again", path.display()))?;
    Ok(Some(value))
}

/// Returns the fingerprint of the first `bytes` bytes of a file, which stays the same when the file grows.
pub(super) fn fingerprint(file: &Path, bytes: u64) -> io::Result<Value> {
    let file = File::open(file)?;
    let bytes = bytes.min(file.metadata()?.len());
    let mut head = Vec::new();
    file.take(bytes.min(HEAD_BYTES)).read_to_end(&mut head)?;
    let mut checksum_writer = ChecksumWriter::new(Path::new(""));
    checksum_writer.update(&head);
    Ok(json!({ "bytes": bytes, "head": checksum_writer.finish()?.to_string() }))
}

/// Returns whether a checkpoint is for this file, and not for another file of the same name.
pub(super) fn matches_file(checkpoint: &Value, file: &Path) -> bool {
    let bytes = checkpoint["file"]["bytes"].as_u64().unwrap_or(0);
    fingerprint(file, bytes).is_ok_and(|fingerprint| fingerprint == checkpoint["file"])
}

/// Writes a checkpoint atomically: after a crash there is the old one or the new one.
pub(super) fn write(path: &Path, value: &Value) -> Result<()> {
    let draft = sibling_path(path, ".new");
    let mut file = File::create(&draft).with_context(|| format!("cannot write {}", draft.display()))?;
    file.write_all(value.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    Ok(())
}
