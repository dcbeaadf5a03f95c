//! Lists of objects in files, which are input of git.

use std::fs::File;
use std::io;
use std::io::{BufWriter, Seek, Write};
use std::path::Path;

/// A list of objects: lines of `rev-list --objects`.
pub(crate) struct ObjectList {
    file: BufWriter<File>,
    /// Number of objects.
    pub(crate) objects: u64,
}

impl ObjectList {
    /// Creates an empty list in a new file.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        Ok(Self { file: BufWriter::new(file), objects: 0 })
    }

    /// Adds the line of an object.
    pub(crate) fn add(&mut self, line: &[u8]) -> io::Result<()> {
        self.objects += 1;
        self.file.write_all(line)?;
        self.file.write_all(b"\n")
    }

    /// Returns the file, positioned at its beginning.
    pub(crate) fn into_file(self) -> io::Result<File> {
        let mut file = self.file.into_inner().map_err(|error| error.into_error())?;
        file.rewind()?;
        Ok(file)
    }

    /// Returns a file with this list and then another one, positioned at its beginning.
    pub(crate) fn into_joined_file(mut self, other: Self) -> io::Result<File> {
        io::copy(&mut other.into_file()?, &mut self.file)?;
        self.into_file()
    }
}

/// Returns the object id at the beginning of a line.
pub(crate) fn line_oid(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line.get(..40)?).ok()
}
