//! How far something has come, beside the file that it is about: `FILE.graspd-progress`.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// A file with another ending behind its name.
pub(super) fn beside(file: &Path, ending: &str) -> PathBuf {
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

/// Notes something: the old note or the new one is there, whatever happens.
pub(super) fn write(path: &Path, value: &Value) -> Result<()> {
    let draft = beside(path, ".new");
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
