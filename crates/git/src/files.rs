//! File operations of the git data folder: durable ones, and those for which a missing file is not an error.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::{fs, io};

use crate::crash_point;

/// Returns `None` for the error that a file or folder does not exist.
pub(crate) fn if_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the content of a file; nothing if it does not exist.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    Ok(if_found(fs::read_to_string(path))?.unwrap_or_default())
}

/// Returns the names of what is in a folder.
pub(crate) fn file_names(folder: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Renames a file if it exists.
pub(crate) fn rename_if_exists(from: &Path, to: &Path) -> io::Result<()> {
    if_found(fs::rename(from, to)).map(drop)
}

/// Removes a file if it exists.
pub(crate) fn remove_if_exists(path: &Path) -> io::Result<()> {
    if_found(fs::remove_file(path)).map(drop)
}

/// Removes a folder with its content if it exists.
pub(crate) fn remove_folder(folder: &Path) -> io::Result<()> {
    if_found(fs::remove_dir_all(folder)).map(drop)
}

/// Links a file if it exists.
pub(crate) fn link_if_exists(from: &Path, to: &Path) -> io::Result<()> {
    if_found(fs::hard_link(from, to)).map(drop)
}

/// Makes a file durable, if it exists.
pub(crate) fn sync_file(path: &Path) -> io::Result<()> {
    if_found(File::open(path))?.map_or(Ok(()), |file| file.sync_all())
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Replaces a file without syncing it to disk.
pub(crate) fn replace_file_unsynced(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = folder.join(format!("{name}.new"));
    let replaced = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, folder.join(name)));
    if replaced.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    replaced
}

/// Replaces a file durably: writes a temporary file, syncs and renames it, and syncs the folder.
pub(crate) fn replace_file(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = folder.join(format!("{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    crash_point::point("replace.written");
    fs::rename(&temporary, folder.join(name))?;
    sync_folder(folder)
}
