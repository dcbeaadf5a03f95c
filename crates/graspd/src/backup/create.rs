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

use super::manifest::{Entry, FILES, KEY, MANIFEST, Manifest};
use super::snapshot::Scene;
use super::{Tell, tree};

/// A file in a folder that is being filled: what has it may be removed.
const UNFINISHED: &str = "unfinished";

/// Bytes that are copied at once.
const PIECE: usize = 256 * 1024;

/// What is to be made.
pub(crate) struct Plan<'p> {
    /// Where.
    pub(crate) into: &'p Path,
    /// An earlier backup, whose packs need not be copied again.
    pub(crate) base: Option<&'p Path>,
    /// Whether everything is copied, also on the same disk.
    pub(crate) copy: bool,
    /// When, in unix seconds.
    pub(crate) now: u64,
}

/// How the files came into a backup.
#[derive(Default)]
pub(crate) struct Ways {
    /// Links to the server's files.
    pub(crate) linked: u64,
    /// Links to those of an earlier backup.
    pub(crate) shared: u64,
    /// Copies.
    pub(crate) copied: u64,
}

struct Filling<'p> {
    plan: &'p Plan<'p>,
    partial: PathBuf,
    list: BufWriter<File>,
    ways: Ways,
    files: u64,
    bytes: u64,
    /// Whether links can be made.
    links: bool,
}

/// Whether a backup could be made there; says so before anything is begun.
pub(crate) fn check_place(plan: &Plan<'_>) -> Result<()> {
    let is_empty = |folder: &Path| fs::read_dir(folder).map(|mut entries| entries.next().is_none());
    match is_empty(plan.into) {
        Ok(true) => {}
        Ok(false) => bail!("{} has something in it already: name a new folder", plan.into.display()),
        Err(problem) if problem.kind() == ErrorKind::NotFound => {}
        Err(problem) => return Err(problem).with_context(|| format!("cannot use {}", plan.into.display())),
    }
    if let Some(base) = plan.base {
        Manifest::of(base)?;
    }
    Ok(())
}

/// Makes it. Nothing is left of one that could not be made.
pub(crate) fn make(scene: &Scene, plan: &Plan<'_>, tell: &mut Tell<'_>) -> Result<(Manifest, Ways)> {
    check_place(plan)?;
    let partial = partial_of(plan.into)?;
    begin(&partial)?;
    let made = fill(scene, plan, &partial, tell);
    if made.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    made
}

fn fill(scene: &Scene, plan: &Plan<'_>, partial: &Path, tell: &mut Tell<'_>) -> Result<(Manifest, Ways)> {
    let list = BufWriter::new(File::create_new(partial.join(FILES))?);
    let (files, _) = tree::measure(&scene.folder)?;
    let partial = partial.to_owned();
    let mut filling = Filling { plan, partial, list, ways: Ways::default(), files: 0, bytes: 0, links: !plan.copy };
    tree::walk(&scene.folder, |path, is_folder| {
        if is_folder {
            return Ok(fs::create_dir(filling.partial.join(path))?);
        }
        filling.add(&scene.folder, path)?;
        tell("copying files", filling.files, Some(files))
    })
    .context("the backup could not be written; if the server was stopped meanwhile, what it made for it is gone")?;
    ensure!(filling.files == files, "some of it went away meanwhile: {} of {files} files are there", filling.files);
    crash_point::point("backup.copied");
    if let Some(key) = &scene.key {
        filling.add_key(key)?;
    }
    filling.finish(scene)
}

impl Filling<'_> {
    fn add(&mut self, root: &Path, path: &Path) -> Result<()> {
        let (from, to) = (root.join(path), self.partial.join(path));
        let seal = if self.is_shared(&from, path, &to)? {
            self.ways.shared += 1;
            Seal::of(&to)?
        } else if self.links && self.is_linked(&from, &to)? {
            self.ways.linked += 1;
            Seal::of(&to)?
        } else {
            self.ways.copied += 1;
            copy(&from, &to, 0o600)?
        };
        self.note(seal, path, fs::metadata(&to)?.len())
    }

    /// Whether a file of git's is in the earlier backup; then that one is linked.
    fn is_shared(&self, from: &Path, path: &Path, to: &Path) -> Result<bool> {
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

    fn is_linked(&mut self, from: &Path, to: &Path) -> Result<bool> {
        match fs::hard_link(from, to) {
            Ok(()) => Ok(true),
            Err(problem) if problem.kind() == ErrorKind::NotFound => Err(problem.into()),
            // Another disk, or one that has no links, or files of somebody else.
            Err(_) => {
                self.links = false;
                Ok(false)
            }
        }
    }

    fn add_key(&mut self, key: &Path) -> Result<()> {
        let to = self.partial.join(KEY);
        let seal = copy(key, &to, 0o600).context("the owner's key could not be copied")?;
        self.note(seal, Path::new(KEY), fs::metadata(&to)?.len())
    }

    fn note(&mut self, seal: Seal, path: &Path, bytes: u64) -> Result<()> {
        self.files += 1;
        self.bytes += bytes;
        let entry = Entry { seal, bytes, path: path.to_owned() };
        Ok(self.list.write_all(entry.line().as_bytes())?)
    }

    fn finish(self, scene: &Scene) -> Result<(Manifest, Ways)> {
        let Self { plan, partial, list, ways, files, bytes, .. } = self;
        list.into_inner().map_err(|problem| problem.into_error())?.sync_all()?;
        let manifest = Manifest {
            made_at: plan.now,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scene: Scene { folder: PathBuf::new(), key: None, ..scene.clone() },
            files,
            bytes,
            key: scene.key.is_some(),
            linked: ways.linked > 0,
            list: Seal::of(&partial.join(FILES))?,
        };
        let text = format!("{:#}\n", manifest.value());
        File::create_new(partial.join(MANIFEST))?.write_all(text.as_bytes())?;
        fs::remove_file(partial.join(UNFINISHED))?;
        tree::sync(&partial).context("the backup could not be made durable")?;
        crash_point::point("backup.synced");
        fs::rename(&partial, plan.into)?;
        File::open(parent_of(plan.into))?.sync_all()?;
        Ok((manifest, ways))
    }
}

/// Makes the folder that is being filled. One that an interrupted backup has left goes.
fn begin(partial: &Path) -> Result<()> {
    if [UNFINISHED, MANIFEST].iter().any(|ours| partial.join(ours).exists()) {
        fs::remove_dir_all(partial).with_context(|| format!("cannot remove {}", partial.display()))?;
    }
    // It has a private key in it.
    fs::DirBuilder::new().mode(0o700).create(partial).with_context(|| format!("cannot make {}", partial.display()))?;
    File::create_new(partial.join(UNFINISHED))?;
    Ok(())
}

/// Copies a file with its time, and seals what was read.
pub(super) fn copy(from: &Path, to: &Path, mode: u32) -> Result<Seal> {
    let mut source = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    let mut target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(to)
        .with_context(|| format!("cannot make {}", to.display()))?;
    let mut sealer = Sealer::new(to);
    let mut piece = vec![0; PIECE];
    loop {
        let read = source.read(&mut piece).with_context(|| format!("cannot read {}", from.display()))?;
        if read == 0 {
            break;
        }
        sealer.take(&piece[..read]);
        target.write_all(&piece[..read]).with_context(|| format!("cannot write {}", to.display()))?;
    }
    // How long unneeded objects have been so is told by the time of their pack.
    target.set_modified(source.metadata()?.modified()?)?;
    sealer.finish().with_context(|| format!("{} is damaged", from.display()))
}

fn partial_of(into: &Path) -> Result<PathBuf> {
    let mut name = into.file_name().with_context(|| format!("{} names no folder", into.display()))?.to_owned();
    name.push(".partial");
    Ok(into.with_file_name(name))
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
