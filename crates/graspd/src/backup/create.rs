//! Creates a backup from a snapshot.
//!
//! It is written to `DIR.partial`, synced to disk, and renamed, so a folder with a manifest is complete. On the disk of
//! the server files are hard links and not copies, which needs no space and no time, and protects against mistakes but
//! not against the loss of that disk.

use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use grasp_git::backup::{ChecksumWriter, FileChecksum};
use grasp_git::crash_point;

use super::manifest::{FILES, FORMAT_VERSION, KEY, MANIFEST, Manifest, ManifestEntry};
use super::{ProgressFn, tree};
use crate::admin::api::SnapshotInfo;

/// File in a folder that is being written. A folder that contains it may be removed.
const UNFINISHED: &str = "unfinished";

/// Size of the copy buffer.
const COPY_BUFFER_BYTES: usize = 256 * 1024;

/// What to create.
pub(crate) struct BackupPlan<'p> {
    /// Target folder.
    pub(crate) into: &'p Path,
    /// Earlier backup whose packs are linked and not copied again.
    pub(crate) base: Option<&'p Path>,
    /// Whether everything is copied even on the same disk.
    pub(crate) copy_all: bool,
    /// Time of the backup, in unix seconds.
    pub(crate) now: u64,
}

/// Number of files in a backup, by the way in which they were written.
#[derive(Default)]
pub(crate) struct FileCounts {
    /// Hard links to files of the server.
    pub(crate) linked: u64,
    /// Hard links to files of the earlier backup.
    pub(crate) shared: u64,
    /// Copies.
    pub(crate) copied: u64,
}

struct BackupWriter<'p> {
    plan: &'p BackupPlan<'p>,
    partial: PathBuf,
    list: BufWriter<File>,
    file_counts: FileCounts,
    files: u64,
    bytes: u64,
    /// Whether hard links to the snapshot work.
    can_link: bool,
}

/// Checks that a backup can be created, before any work is done.
pub(crate) fn check_target(plan: &BackupPlan<'_>) -> Result<()> {
    let is_empty = |folder: &Path| fs::read_dir(folder).map(|mut entries| entries.next().is_none());
    match is_empty(plan.into) {
        Ok(true) => {}
        Ok(false) => bail!("{} is not empty: give a new folder", plan.into.display()),
        Err(problem) if problem.kind() == ErrorKind::NotFound => {}
        Err(problem) => return Err(problem).with_context(|| format!("cannot use {}", plan.into.display())),
    }
    if let Some(base) = plan.base {
        Manifest::read(base)?;
    }
    Ok(())
}

/// Checks that a folder is not inside a data folder of the server: it would be lost together with the data, and the server
/// would take it for a part of them.
fn check_outside(into: &Path, data_folders: &[PathBuf]) -> Result<()> {
    let existing = into.ancestors().find_map(|folder| folder.canonicalize().ok()).unwrap_or_default();
    match data_folders.iter().find(|data| existing.starts_with(data)) {
        Some(data) => {
            bail!("{} is inside the data folder {}: give a folder outside of it", into.display(), data.display())
        }
        None => Ok(()),
    }
}

/// Creates a backup. If that fails, nothing is left.
pub(crate) fn create(
    snapshot: &SnapshotInfo,
    plan: &BackupPlan<'_>,
    on_progress: &mut ProgressFn<'_>,
) -> Result<(Manifest, FileCounts)> {
    check_target(plan)?;
    check_outside(plan.into, &snapshot.data_folders)?;
    let partial = partial_path(plan.into)?;
    create_partial_dir(&partial)?;
    let backup = write_backup(snapshot, plan, &partial, on_progress);
    if backup.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    backup
}

fn write_backup(
    snapshot: &SnapshotInfo,
    plan: &BackupPlan<'_>,
    partial: &Path,
    on_progress: &mut ProgressFn<'_>,
) -> Result<(Manifest, FileCounts)> {
    let list = BufWriter::new(File::create_new(partial.join(FILES))?);
    let files = tree::count_files(&snapshot.folder)?;
    let partial = partial.to_owned();
    let mut writer = BackupWriter {
        plan,
        partial,
        list,
        file_counts: FileCounts::default(),
        files: 0,
        bytes: 0,
        can_link: !plan.copy_all,
    };
    tree::walk(&snapshot.folder, |path, is_folder| {
        if is_folder {
            return Ok(fs::create_dir(writer.partial.join(path))?);
        }
        writer.add(&snapshot.folder, path)?;
        on_progress("copying files", writer.files, Some(files))
    })
    .context("cannot write the backup; if the server was stopped meanwhile, its snapshot is gone")?;
    ensure!(writer.files == files, "the snapshot has changed: {} of {files} files are left", writer.files);
    crash_point::point("backup.copied");
    if let Some(key) = &snapshot.key {
        writer.add_key(key)?;
    }
    writer.finish(snapshot)
}

impl BackupWriter<'_> {
    fn add(&mut self, root: &Path, path: &Path) -> Result<()> {
        let (from, to) = (root.join(path), self.partial.join(path));
        let checksum = if self.link_from_base(&from, path, &to)? {
            self.file_counts.shared += 1;
            FileChecksum::from_file(&to)?
        } else if self.can_link && self.try_link(&from, &to)? {
            self.file_counts.linked += 1;
            FileChecksum::from_file(&to)?
        } else {
            self.file_counts.copied += 1;
            copy_file(&from, &to, 0o600)?
        };
        self.add_entry(checksum, path, fs::metadata(&to)?.len())
    }

    /// Links a file of git from the earlier backup if that contains it. Returns whether it does.
    fn link_from_base(&self, from: &Path, path: &Path, to: &Path) -> Result<bool> {
        let Some(base) = self.plan.base.map(|base| base.join(path)) else { return Ok(false) };
        let sizes = (fs::metadata(&base).map(|file| file.len()), fs::metadata(from)?.len());
        let (Ok(theirs), ours) = sizes else { return Ok(false) };
        if theirs != ours {
            return Ok(false);
        }
        // Other files have no checksum of their own and must be read to be compared, so they can be copied as well.
        let checksums = || (FileChecksum::from_file(&base), FileChecksum::from_file(from));
        let is_same = path.starts_with("git")
            && matches!(checksums(), (Ok(one @ FileChecksum::GitTrailer(_)), Ok(other)) if one == other);
        // The file is read completely, so that damage in the earlier backup is not carried over.
        Ok(is_same && FileChecksum::from_file(&base)?.matches_file(&base)? && fs::hard_link(&base, to).is_ok())
    }

    fn try_link(&mut self, from: &Path, to: &Path) -> Result<bool> {
        match fs::hard_link(from, to) {
            Ok(()) => Ok(true),
            Err(problem) if problem.kind() == ErrorKind::NotFound => Err(problem.into()),
            // Another disk, a file system without hard links, or files of another user.
            Err(_) => {
                self.can_link = false;
                Ok(false)
            }
        }
    }

    fn add_key(&mut self, key: &Path) -> Result<()> {
        let to = self.partial.join(KEY);
        let checksum = copy_file(key, &to, 0o600).context("cannot copy the owner key")?;
        self.add_entry(checksum, Path::new(KEY), fs::metadata(&to)?.len())
    }

    fn add_entry(&mut self, checksum: FileChecksum, path: &Path, bytes: u64) -> Result<()> {
        self.files += 1;
        self.bytes += bytes;
        let entry = ManifestEntry { checksum, bytes, path: path.to_owned() };
        Ok(self.list.write_all(entry.to_line().as_bytes())?)
    }

    fn finish(self, snapshot: &SnapshotInfo) -> Result<(Manifest, FileCounts)> {
        let Self { plan, partial, list, file_counts, files, bytes, .. } = self;
        list.into_inner().map_err(|problem| problem.into_error())?.sync_all()?;
        let manifest = Manifest {
            format: FORMAT_VERSION,
            made_at: plan.now,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            content: snapshot.content.clone(),
            files,
            bytes,
            has_key: snapshot.key.is_some(),
            is_linked: file_counts.linked > 0,
            list_checksum: FileChecksum::from_file(&partial.join(FILES))?.to_string(),
        };
        let text = format!("{:#}\n", serde_json::json!(manifest));
        File::create_new(partial.join(MANIFEST))?.write_all(text.as_bytes())?;
        fs::remove_file(partial.join(UNFINISHED))?;
        tree::sync(&partial).context("cannot sync the backup to disk")?;
        crash_point::point("backup.synced");
        fs::rename(&partial, plan.into)?;
        File::open(parent_dir(plan.into))?.sync_all()?;
        Ok((manifest, file_counts))
    }
}

/// Creates the folder that is being written. A folder that an interrupted backup has left is removed.
fn create_partial_dir(partial: &Path) -> Result<()> {
    if [UNFINISHED, MANIFEST].iter().any(|ours| partial.join(ours).exists()) {
        fs::remove_dir_all(partial).with_context(|| format!("cannot remove {}", partial.display()))?;
    }
    // It will contain a private key.
    fs::DirBuilder::new()
        .mode(0o700)
        .create(partial)
        .with_context(|| format!("cannot create {}", partial.display()))?;
    File::create_new(partial.join(UNFINISHED))?;
    Ok(())
}

/// Copies a file with its modification time, and returns the checksum of what was read.
pub(super) fn copy_file(from: &Path, to: &Path, mode: u32) -> Result<FileChecksum> {
    let mut source = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    let mut target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(to)
        .with_context(|| format!("cannot create {}", to.display()))?;
    let mut checksum_writer = ChecksumWriter::new(to);
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    loop {
        let read = source.read(&mut buffer).with_context(|| format!("cannot read {}", from.display()))?;
        if read == 0 {
            break;
        }
        checksum_writer.update(&buffer[..read]);
        target.write_all(&buffer[..read]).with_context(|| format!("cannot write {}", to.display()))?;
    }
    // The modification time of a pack decides how long unreferenced objects in it are kept.
    target.set_modified(source.metadata()?.modified()?)?;
    checksum_writer.finish().with_context(|| format!("{} is damaged", from.display()))
}

fn partial_path(into: &Path) -> Result<PathBuf> {
    let mut name = into.file_name().with_context(|| format!("{} is not a folder name", into.display()))?.to_owned();
    name.push(".partial");
    Ok(into.with_file_name(name))
}

fn parent_dir(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
