//! Checks received packs: that each object is valid, that nothing is missing, and which types objects have.
//!
//! Small ordinary packs are checked in this process (`in_process`). For all others, each check is one short-lived git
//! process that reads the received pack and the pools that the repository may read, and nothing else. The checks write
//! only packs below `incoming/`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use grasp_core::limits;

use super::declared_sizes::{DeclaredSizeLimits, check_declared_sizes};
use super::in_process;
use super::in_process::{InProcessLimits, IndexRequest};
use super::object_walk::{ObjectWalk, RequiredTip, RequiredTips, TipRequirement, is_oid};
use super::pack_contents;
use super::pack_contents::PackContents;
use super::pack_error::{GitErrorTranslator, PackError};
use super::quarantine::{PackData, PackLimits, Quarantine, SpooledBytes, UncheckedPack};
use crate::layout::Layout;
use crate::objects::ObjectKind;
use crate::process::{Git, ProcessInput, walk_input};

/// Checks every object and every reference between objects. Three faults are ignored, because the published history of
/// well-known projects has them and cannot be changed.
const STRICT: &str = "--strict=zeroPaddedFilemode=ignore,badTimezone=ignore,missingSpaceBeforeDate=ignore";

/// Makes git hold every blob in memory, so that the limit on an allocation limits every object. Git would stream larger
/// blobs past that limit.
const NEVER_STREAM: &str = "core.bigFileThreshold=1024g";

/// Packs above this size are indexed with a second thread: for smaller ones, starting it costs more than it saves.
const TWO_THREADS_BYTES: u64 = 32 * 1024 * 1024;

/// Bytes of a pack that are read from its file at a time.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Largest number of bytes that an index has for each object.
const INDEX_ENTRY_BYTES: u64 = 40;

/// Checks received packs.
#[derive(Clone, Copy, Debug)]
pub struct PackChecker<'a> {
    /// The git program.
    pub git: &'a Git,
    /// The git data folder.
    pub layout: &'a Layout,
    /// Limits on packs and checks.
    pub limits: PackLimits,
    /// The packs that are checked without a git process.
    pub in_process: InProcessLimits,
}

/// The objects that a check can read.
#[derive(Clone, Copy, Debug)]
pub struct VisibleObjects<'a> {
    /// The received pack.
    pub quarantine: Option<&'a Quarantine>,
    /// The pools that the repository may read.
    pub pools: &'a [PathBuf],
}

/// The result of a successful connectivity check: everything that the tips refer to is present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connectivity {
    /// Objects that the tips need and the known tips do not. Some may have been present before: a commit can bring an
    /// old file back.
    pub objects: u64,
    /// Objects of the received pack that the tips do not need, or that were present before. If there are any, the pack
    /// must be [repacked](PackChecker::repack_needed) before it is moved into a pool.
    pub extra: u64,
}

impl PackChecker<'_> {
    /// Checks each object of a received pack and indexes the pack in its folder. The pack may contain deltas against
    /// objects of the pools.
    ///
    /// # Errors
    /// If the pack is invalid, exceeds a limit or has a delta whose base is missing.
    pub fn index_pack(&self, quarantine: &mut Quarantine, data: PackData, pools: &[PathBuf]) -> Result<(), PackError> {
        let PackData::Pack(pack) = data else { return Ok(()) };
        if self.index_in_process(quarantine, &pack, pools) {
            return Ok(());
        }
        self.check_unpacked_size(&pack)?;
        let mut command = self.command(VisibleObjects { quarantine: Some(quarantine), pools });
        command.args(["-c", NEVER_STREAM, "index-pack", "--stdin", "--fix-thin", STRICT]);
        command.arg(format!("--max-input-size={}", self.limits.max_bytes));
        command.arg(if pack.bytes > TWO_THREADS_BYTES { "--threads=2" } else { "--threads=1" });
        let input = match &pack.body {
            SpooledBytes::Memory(bytes) => ProcessInput::Bytes(bytes),
            SpooledBytes::File(path) => ProcessInput::File(File::open(path)?),
        };
        let cpu_secs = self.cpu_secs(pack.bytes);
        let git = self.git_with_file_limit().with_cpu_secs(cpu_secs);
        let result = git.run(&mut command, input, self.timeout(), 1_024);
        if let SpooledBytes::File(path) = &pack.body {
            fs::remove_file(path)?;
        }
        result.map_err(|error| self.translator(PackError::Check, cpu_secs).translate(error))?;
        quarantine.sent_objects = u64::from(pack.objects);
        Ok(())
    }

    /// Checks and indexes a pack without a git process, if it is small and ordinary. Returns whether it is.
    fn index_in_process(&self, quarantine: &mut Quarantine, pack: &UncheckedPack, pools: &[PathBuf]) -> bool {
        let SpooledBytes::Memory(bytes) = &pack.body else { return false };
        let request = IndexRequest {
            pack: bytes,
            objects: pack.objects,
            pools,
            max_object_bytes: self.git.max_object_bytes(),
            max_file_bytes: self.max_file_bytes(),
            limits: self.in_process_limits(),
        };
        let Ok(indexed) = in_process::index_pack(request, quarantine) else { return false };
        quarantine.sent_objects = u64::from(pack.objects);
        quarantine.indexed = Some(indexed);
        true
    }

    /// Returns the limits of packs that are checked without a git process. If a check may take no time, git reports it.
    fn in_process_limits(&self) -> InProcessLimits {
        if self.limits.check_secs == 0 { InProcessLimits::NONE } else { self.in_process }
    }

    /// Checks how large the objects of a pack are when unpacked.
    fn check_unpacked_size(&self, pack: &UncheckedPack) -> Result<(), PackError> {
        let limits = DeclaredSizeLimits::new(pack.bytes, self.git.max_object_bytes());
        match &pack.body {
            SpooledBytes::Memory(bytes) => check_declared_sizes(bytes.as_slice(), pack.objects, limits)?,
            SpooledBytes::File(path) => {
                let file = BufReader::with_capacity(READ_BUFFER_BYTES, File::open(path)?);
                check_declared_sizes(file, pack.objects, limits)?
            }
        };
        Ok(())
    }

    /// Checks that everything that the tips refer to is present. What `known` tips refer to is assumed to be present:
    /// they must be refs that have been checked before. A known tip that does not exist is ignored.
    ///
    /// # Errors
    /// If an object is missing, or if a branch does not point to a commit.
    pub fn check_connectivity(
        &self,
        visible: VisibleObjects<'_>,
        tips: &RequiredTips,
        known: &[String],
    ) -> Result<Connectivity, PackError> {
        if let Some(tip) = tips.iter().find(|tip| !is_oid(tip.oid)) {
            return Err(tip.missing());
        }
        let known: BTreeSet<&str> = known.iter().map(String::as_str).filter(|oid| is_oid(oid)).collect();
        let received = visible.quarantine.filter(|quarantine| !quarantine.is_empty());
        let indexed = received.and_then(|quarantine| quarantine.indexed.as_ref());
        if received.is_none() || indexed.is_some() {
            let limits = self.in_process_limits();
            if let Ok(connectivity) = in_process::check_connectivity(indexed, visible.pools, tips, &known, limits) {
                return Ok(connectivity);
            }
        }
        let walk = match self.walk(visible, tips, &known) {
            Err(PackError::Incomplete(reason)) => {
                self.check_tips(visible, tips.iter())?;
                let present = self.find_present(visible, &known)?;
                if present.len() == known.len() {
                    return Err(PackError::Incomplete(reason));
                }
                self.walk(visible, tips, &present)?
            }
            result => result?,
        };
        // A tip that the walk did not reach is complete, or is an ancestor of a known tip. The object of a branch may
        // still be a tag of a commit instead of a commit.
        let is_unchecked = |tip: &RequiredTip<'_>| match tip.requirement {
            TipRequirement::Commit => !walk.commits.contains(tip.oid),
            TipRequirement::AnyObject => known.contains(tip.oid),
        };
        self.check_tips(visible, tips.iter().filter(is_unchecked))?;
        Ok(Connectivity { objects: walk.objects, extra: walk.unreached() })
    }

    /// Packs what the tips need and the known tips do not, and nothing else, into a new quarantine folder. All of it
    /// must be visible.
    ///
    /// # Errors
    /// If an object is missing, or if the pack exceeds a limit.
    pub fn repack_needed(
        &self,
        visible: VisibleObjects<'_>,
        tips: &[String],
        known: &[String],
    ) -> Result<Quarantine, PackError> {
        let mut repacked = Quarantine::create(self.layout)?;
        let tips: BTreeSet<&str> = tips.iter().map(String::as_str).filter(|oid| is_oid(oid)).collect();
        let known: BTreeSet<&str> = known.iter().map(String::as_str).filter(|oid| is_oid(oid)).collect();
        if let Err(error) = self.pack_objects(visible, &repacked, &tips, &known) {
            let present = self.find_present(visible, &known)?;
            if present.len() == known.len() {
                return Err(error);
            }
            self.pack_objects(visible, &repacked, &tips, &present)?;
        }
        repacked.sent_objects = pack_contents::open_index(&repacked.packs())?.map_or(0, |index| index.objects());
        Ok(repacked)
    }

    fn walk<'t>(
        &self,
        visible: VisibleObjects<'_>,
        tips: &'t RequiredTips,
        known: &BTreeSet<&str>,
    ) -> Result<ObjectWalk<'t>, PackError> {
        let pack_contents = visible.quarantine.map(PackContents::read).transpose()?.unwrap_or_default();
        let mut walk = ObjectWalk::new(tips, pack_contents);
        let new = tips.iter().filter(|tip| !known.contains(tip.oid));
        let mut new = new.map(|tip| tip.revision()).peekable();
        if new.peek().is_none() {
            return Ok(walk);
        }
        let input = walk_input(new, known.iter());
        let mut command = self.command(visible);
        command.args(["rev-list", "--objects", "--stdin"]);
        let cpu_secs = self.cpu_secs(visible_bytes(visible)?);
        self.git
            .with_cpu_secs(cpu_secs)
            .stream_lines(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout(), |line| {
                walk.read_line(line);
                Ok(())
            })
            .map_err(|error| self.translator(PackError::Incomplete, cpu_secs).translate(error))?;
        Ok(walk)
    }

    fn pack_objects(
        &self,
        visible: VisibleObjects<'_>,
        into: &Quarantine,
        tips: &BTreeSet<&str>,
        known: &BTreeSet<&str>,
    ) -> Result<(), PackError> {
        let input = walk_input(tips.iter(), known.iter());
        let mut command = self.command(visible);
        // The window is limited in bytes: the default of ten objects can exceed the memory limit of a process.
        command.args(["-c", "pack.windowMemory=64m", "pack-objects", "--revs", "--non-empty", "-q"]);
        command.args(["--no-sparse", "--delta-base-offset", "--threads=1"]).arg(into.packs().join("pack"));
        let cpu_secs = self.cpu_secs(visible_bytes(visible)?);
        self.git_with_file_limit()
            .with_cpu_secs(cpu_secs)
            .run(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout(), 1_024)
            .map_err(|error| self.translator(PackError::Incomplete, cpu_secs).translate(error))?;
        Ok(())
    }

    /// Checks that tips exist, and that those which must be commits are commits.
    fn check_tips<'t>(
        &self,
        visible: VisibleObjects<'_>,
        tips: impl Iterator<Item = RequiredTip<'t>>,
    ) -> Result<(), PackError> {
        let (tips, oids): (Vec<RequiredTip<'_>>, Vec<String>) = tips.map(|tip| (tip, tip.oid.to_owned())).unzip();
        for (tip, found) in tips.into_iter().zip(self.object_kinds(visible, &oids)?) {
            match found {
                None => return Err(tip.missing()),
                Some(kind) if kind != ObjectKind::Commit && tip.requirement == TipRequirement::Commit => {
                    let (name, oid) = (tip.name.to_owned(), tip.oid.to_owned());
                    return Err(PackError::NotACommit { name, oid, found: kind.name() });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Returns those of some objects that exist.
    fn find_present<'o>(
        &self,
        visible: VisibleObjects<'_>,
        oids: &BTreeSet<&'o str>,
    ) -> Result<BTreeSet<&'o str>, PackError> {
        let texts: Vec<String> = oids.iter().map(|oid| (*oid).to_owned()).collect();
        let found = self.object_kinds(visible, &texts)?;
        Ok(oids.iter().zip(found).filter(|(_, found)| found.is_some()).map(|(oid, _)| *oid).collect())
    }

    /// Returns the type of each object, or `None` where it does not exist.
    fn object_kinds(&self, visible: VisibleObjects<'_>, oids: &[String]) -> Result<Vec<Option<ObjectKind>>, PackError> {
        if oids.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = self.command(visible);
        command.args(["cat-file", "--batch-check=%(objecttype)", "--buffer"]);
        let input: String = oids.iter().map(|oid| format!("{oid}\n")).collect();
        // A line is a type, or an object id and a word.
        let max_output = oids.len() * 64 + 1_024;
        let cpu_secs = self.cpu_secs(visible_bytes(visible)?);
        let output = self
            .git
            .with_cpu_secs(cpu_secs)
            .run(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout(), max_output)
            .map_err(|error| self.translator(PackError::Check, cpu_secs).translate(error))?;
        let output = String::from_utf8_lossy(&output);
        let found: Vec<_> = output.lines().map(ObjectKind::from_name).collect();
        if found.len() != oids.len() {
            return Err(PackError::Server("git cat-file printed too few lines".to_owned()));
        }
        Ok(found)
    }

    /// Returns a git command that can read these objects.
    fn command(&self, visible: VisibleObjects<'_>) -> Command {
        let empty_repo = self.layout.empty_repo();
        let mut command = self.git.command(&empty_repo);
        let objects =
            visible.quarantine.map_or_else(|| empty_repo.join("objects"), |quarantine| quarantine.folder().to_owned());
        command
            .env("GIT_OBJECT_DIRECTORY", objects)
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates_variable(visible.pools));
        command
    }

    /// Returns git with a limit on the files that it writes: a few bytes of deltas against large objects of a pool, or
    /// against each other, can expand to a pack of any size.
    fn git_with_file_limit(&self) -> Git {
        self.git.with_file_bytes(self.max_file_bytes())
    }

    fn max_file_bytes(&self) -> u64 {
        self.limits.max_bytes.max(INDEX_ENTRY_BYTES * u64::from(self.limits.max_objects))
    }

    fn translator(&self, otherwise: fn(String) -> PackError, cpu_secs: u64) -> GitErrorTranslator<'_> {
        GitErrorTranslator { root: self.layout.root(), max_bytes: self.limits.max_bytes, cpu_secs, otherwise }
    }

    /// Returns the processor time of a process that reads packs of this size, in seconds.
    fn cpu_secs(&self, pack_bytes: u64) -> u64 {
        let secs = limits::MIN_CHECK_CPU_SECS + pack_bytes / limits::CHECKED_BYTES_PER_CPU_SEC;
        secs.min(self.limits.check_secs).max(1)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.limits.check_secs)
    }
}

/// Returns the bytes of all packs that a check can read.
fn visible_bytes(visible: VisibleObjects<'_>) -> io::Result<u64> {
    let mut total = visible.quarantine.map(Quarantine::bytes).transpose()?.unwrap_or(0);
    for pool in visible.pools {
        match fs::read_dir(pool.join("pack")) {
            Ok(entries) => {
                total += entries.flatten().filter_map(|entry| Some(entry.metadata().ok()?.len())).sum::<u64>()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

/// Returns a list of folders as git expects it in an environment variable: separated by colons, and quoted where a name
/// contains a special character.
fn alternates_variable(pools: &[PathBuf]) -> OsString {
    let mut list = Vec::new();
    for pool in pools {
        let name = pool.as_os_str().as_bytes();
        if !list.is_empty() {
            list.push(b':');
        }
        if !name.iter().any(|byte| b":\"\\".contains(byte) || byte.is_ascii_control()) {
            list.extend_from_slice(name);
            continue;
        }
        list.push(b'"');
        for byte in name {
            match byte {
                b'"' | b'\\' => list.extend_from_slice(&[b'\\', *byte]),
                byte if byte.is_ascii_control() => list.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
                byte => list.push(*byte),
            }
        }
        list.push(b'"');
    }
    OsString::from_vec(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_quoted_as_git_expects() {
        let list = |names: &[&str]| alternates_variable(&names.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(list(&[]), "");
        assert_eq!(list(&["/a%2f", "/b c"]), "/a%2f:/b c");
        assert_eq!(list(&["/a:b", "/c"]), "\"/a:b\":/c");
        assert_eq!(list(&["/\"\\\n"]), "\"/\\\"\\\\\\012\"");
    }
}
