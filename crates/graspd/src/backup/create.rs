//! Makes a backup of a moment.
//!
//! It is written to `DIR.partial`, made durable, and renamed: a folder that has a manifest is whole. On the disk of the
//! server files are linked and not copied, which takes no room and no time, and protects against mistakes but not against
//! the loss of that disk.

use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use grasp_git::backup::{Seal, Sealer};
use grasp_git::crash_point;

use super::manifest::{FILES, KEY, MANIFEST, Manifest, ManifestEntry};
use super::{ProgressFn, tree};
use crate::admin::snapshot::SnapshotInfo;

/// A file in a folder that is being filled: what has it may be removed.
const UNFINISHED: &str = "unfinished";

/// Bytes that are copied at once.
const COPY_BUFFER_BYTES: usize = 256 * 1024;

/// What is to be made.
pub(crate) struct BackupPlan<'p> {
    /// Where.
    pub(crate) into: &'p Path,
    /// An earlier backup, whose packs need not be copied again.
    pub(crate) base: Option<&'p Path>,
    /// Whether everything is copied, also on the same disk.
    pub(crate) copy_all: bool,
    /// When, in unix seconds.
    pub(crate) now: u64,
}

/// How the files came into a backup.
#[derive(Default)]
pub(crate) struct FileCounts {
    /// Links to the server's files.
    pub(crate) linked: u64,
    /// Links to those of an earlier backup.
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
    /// Whether links can be made.
    can_link: bool,
}

/// Whether a backup could be made there; says so before anything is begun.
pub(crate) fn check_target(plan: &BackupPlan<'_>) -> Result<()> {
    let is_empty = |folder: &Path| fs::read_dir(folder).map(|mut entries| entries.next().is_none());
    match is_empty(plan.into) {
        Ok(true) => {}
        Ok(false) => bail!("{} has something in it already: name a new folder", plan.into.display()),
        Err(problem) if problem.kind() == ErrorKind::NotFound => {}
        Err(problem) => return Err(problem).with_context(|| format!("cannot use {}", plan.into.display())),
    }
    if let Some(base) = plan.base {
        Manifest::read(base)?;
    }
    Ok(())
}

/// Makes it. Nothing is left of one that could not be made.
pub(crate) fn create(
    snapshot: &SnapshotInfo,
    plan: &BackupPlan<'_>,
    on_progress: &mut ProgressFn<'_>,
) -> Result<(Manifest, FileCounts)> {
    check_target(plan)?;
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
    let (files, _) = tree::measure(&snapshot.folder)?;
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
    .context("the backup could not be written; if the server was stopped meanwhile, what it made for it is gone")?;
    ensure!(writer.files == files, "some of it went away meanwhile: {} of {files} files are there", writer.files);
    crash_point::point("backup.copied");
    if let Some(key) = &snapshot.key {
        writer.add_key(key)?;
    }
    writer.finish(snapshot)
}

impl BackupWriter<'_> {
    fn add(&mut self, root: &Path, path: &Path) -> Result<()> {
        let (from, to) = (root.join(path), self.partial.join(path));
        let seal = if self.link_from_base(&from, path, &to)? {
            self.file_counts.shared += 1;
            Seal::of(&to)?
        } else if self.can_link && self.try_link(&from, &to)? {
            self.file_counts.linked += 1;
            Seal::of(&to)?
        } else {
            self.file_counts.copied += 1;
            copy_file(&from, &to, 0o600)?
        };
        self.add_entry(seal, path, fs::metadata(&to)?.len())
    }

    /// Whether a file of git's is in the earlier backup; then that one is linked.
    fn link_from_base(&self, from: &Path, path: &Path, to: &Path) -> Result<bool> {
        let Some(base) = self.plan.base.map(|base| base.join(path)) else { return Ok(false) };
        let sizes = (fs::metadata(&base).map(|file| file.len()), fs::metadata(from)?.len());
        let (Ok(theirs), ours) = sizes else { return Ok(false) };
        if theirs != ours {
            return Ok(false);
        }
        // Others than git's files have to be read to be known, and then they may as well be copied.
        let is_same = path.starts_with("git")
            && matches!((Seal::of(&base), Seal::of(from)), (Ok(one @ Seal::Trailer(_)), Ok(other)) if one == other);
        // It is read whole: what has rotted there must not be taken for a copy.
        Ok(is_same && Seal::of(&base)?.fits(&base)? && fs::hard_link(&base, to).is_ok())
    }

    fn try_link(&mut self, from: &Path, to: &Path) -> Result<bool> {
        match fs::hard_link(from, to) {
            Ok(()) => Ok(true),
            Err(problem) if problem.kind() == ErrorKind::NotFound => Err(problem.into()),
            // Another disk, or one that has no links, or files of somebody else.
            Err(_) => {
                self.can_link = false;
                Ok(false)
            }
        }
    }

    fn add_key(&mut self, key: &Path) -> Result<()> {
        let to = self.partial.join(KEY);
        let seal = copy_file(key, &to, 0o600).context("the owner's key could not be copied")?;
        self.add_entry(seal, Path::new(KEY), fs::metadata(&to)?.len())
    }

    fn add_entry(&mut self, seal: Seal, path: &Path, bytes: u64) -> Result<()> {
        self.files += 1;
        self.bytes += bytes;
        let entry = ManifestEntry { seal, bytes, path: path.to_owned() };
        Ok(self.list.write_all(entry.to_line().as_bytes())?)
    }

    fn finish(self, snapshot: &SnapshotInfo) -> Result<(Manifest, FileCounts)> {
        let Self { plan, partial, list, file_counts, files, bytes, .. } = self;
        list.into_inner().map_err(|problem| problem.into_error())?.sync_all()?;
        let manifest = Manifest {
            made_at: plan.now,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            snapshot: SnapshotInfo { folder: PathBuf::new(), key: None, ..snapshot.clone() },
            files,
            bytes,
            has_key: snapshot.key.is_some(),
            is_linked: file_counts.linked > 0,
            list_checksum: Seal::of(&partial.join(FILES))?,
        };
        let text = format!("{:#}\n", manifest.to_json());
        File::create_new(partial.join(MANIFEST))?.write_all(text.as_bytes())?;
        fs::remove_file(partial.join(UNFINISHED))?;
        tree::sync(&partial).context("the backup could not be made durable")?;
        crash_point::point("backup.synced");
        fs::rename(&partial, plan.into)?;
        File::open(parent_dir(plan.into))?.sync_all()?;
        Ok((manifest, file_counts))
    }
}

/// Makes the folder that is being filled. One that an interrupted backup has left goes.
fn create_partial_dir(partial: &Path) -> Result<()> {
    if [UNFINISHED, MANIFEST].iter().any(|ours| partial.join(ours).exists()) {
        fs::remove_dir_all(partial).with_context(|| format!("cannot remove {}", partial.display()))?;
    }
    // It has a private key in it.
    fs::DirBuilder::new().mode(0o700).create(partial).with_context(|| format!("cannot make {}", partial.display()))?;
    File::create_new(partial.join(UNFINISHED))?;
    Ok(())
}

/// Copies a file with its time, and seals what was read.
pub(super) fn copy_file(from: &Path, to: &Path, mode: u32) -> Result<Seal> {
    let mut source = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    let mut target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(to)
        .with_context(|| format!("cannot make {}", to.display()))?;
    let mut sealer = Sealer::new(to);
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    loop {
        let read = source.read(&mut buffer).with_context(|| format!("cannot read {}", from.display()))?;
        if read == 0 {
            break;
        }
        sealer.take(&buffer[..read]);
        target.write_all(&buffer[..read]).with_context(|| format!("cannot write {}", to.display()))?;
    }
    // How long unneeded objects have been so is told by the time of their pack.
    target.set_modified(source.metadata()?.modified()?)?;
    sealer.finish().with_context(|| format!("{} is damaged", from.display()))
}

fn partial_path(into: &Path) -> Result<PathBuf> {
    let mut name = into.file_name().with_context(|| format!("{} names no folder", into.display()))?.to_owned();
    name.push(".partial");
    Ok(into.with_file_name(name))
}

fn parent_dir(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
