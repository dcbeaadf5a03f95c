//! How far something has come, beside the file that it is about: `FILE.graspd-progress`, `FILE.graspd-import`.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, Result};
use grasp_git::backup::Sealer;
use serde_json::{Value, json};

/// Bytes at the beginning of a file that tell it from others.
const HEAD_BYTES: u64 = 64 << 10;

/// A file with another ending behind its name.
pub(super) fn sibling_path(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// What was noted; nothing if nothing was.
pub(super) fn read(path: &Path) -> Result<Option<Value>> {
    let text = match fs::read(path) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let value = serde_json::from_slice(&text)
        .with_context(|| format!("{} is damaged: remove it to begin anew", path.display()))?;
    Ok(Some(value))
}

/// What tells a file of at most so many bytes from others, also when more has been written to it since.
pub(super) fn fingerprint(file: &Path, bytes: u64) -> io::Result<Value> {
    let file = File::open(file)?;
    let bytes = bytes.min(file.metadata()?.len());
    let mut head = Vec::new();
    file.take(bytes.min(HEAD_BYTES)).read_to_end(&mut head)?;
    let mut sealer = Sealer::new(Path::new(""));
    sealer.take(&head);
    Ok(json!({ "bytes": bytes, "head": sealer.finish()?.to_string() }))
}

/// Whether a note with a mark is about this file, and not about another one of the same name.
pub(super) fn matches_file(checkpoint: &Value, file: &Path) -> bool {
    let bytes = checkpoint["file"]["bytes"].as_u64().unwrap_or(0);
    fingerprint(file, bytes).is_ok_and(|fingerprint| fingerprint == checkpoint["file"])
}

/// Notes something: the old note or the new one is there, whatever happens.
pub(super) fn write(path: &Path, value: &Value) -> Result<()> {
    let draft = sibling_path(path, ".new");
    let mut file = File::create(&draft).with_context(|| format!("cannot write {}", draft.display()))?;
    file.write_all(value.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    Ok(())
}

/// Forgets it.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(problem) if problem.kind() != ErrorKind::NotFound => Err(problem.into()),
        _ => Ok(()),
    }
}
