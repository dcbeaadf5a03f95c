//! Generated repositories: the same bytes for the same seed, on every machine.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::{fs, str};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use super::installed_git;
use crate::progress::Progress;
use crate::random::Random;
use crate::{report, repository, sample_text};

/// Commits between two files that do not compress (images, archives, models).
const ASSET_EVERY: u64 = 50;

/// Folders, subfolders per folder, and files per subfolder: four thousand files, like a large project.
const TREE_SHAPE: [u64; 3] = [20, 10, 20];

/// Lines of a text file. A commit changes one of them.
const LINES: usize = 40;

/// Disables delta search for large files: assets have no similarities.
const NO_DELTAS_FROM: &str = "core.bigFileThreshold=64k";

/// Seconds between two commits.
const MINUTE: u64 = 60;

/// Arguments of `git make`.
#[derive(Debug, Clone, Args)]
pub struct Make {
    /// Folder of the new bare repository; it must not exist
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Size of the repository.
    #[command(flatten)]
    pub size: RepositorySize,
}

/// Size of a repository.
#[derive(Debug, Clone, Copy, Args)]
pub struct RepositorySize {
    /// Commits on its main branch
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..))]
    pub commits: u64,
    /// Minimum size of its pack, such as 200MB; at most half a megabyte per asset
    #[arg(long, default_value = "200MB", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Seed of its content
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Result of `git make`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MadeRepository {
    /// Commits on the main branch.
    pub commits: u64,
    /// Objects in the pack.
    pub objects: u64,
    /// Bytes of the pack.
    pub pack_bytes: u64,
    /// Duration.
    pub seconds: f64,
}

impl Make {
    /// Generates the repository and prints the result.
    pub fn run(&self) -> Result<()> {
        report::print("git make", "none", &large_repository(&self.dir, self.size)?)
    }
}

/// Generates the large repository: a long history of text files, and assets that make up most of the bytes.
pub(super) fn large_repository(folder: &Path, size: RepositorySize) -> Result<MadeRepository> {
    let started = std::time::Instant::now();
    let mut random = Random::new(size.seed, 0);
    let mut files: Vec<Vec<String>> = vec![Vec::new(); TREE_SHAPE.iter().product::<u64>() as usize];
    let assets = size.commits.div_ceil(ASSET_EVERY);
    let asset = size.bytes.div_ceil(assets) as usize;
    let progress = Progress::start("making the large repository", size.commits);
    let mut import = FastImport::start(folder)?;
    for number in 0..size.commits {
        import.commit("refs/heads/main", number, &sample_text::title(&mut random, 6))?;
        let index = random.below(files.len() as u64);
        let lines = &mut files[index as usize];
        if lines.is_empty() {
            lines.extend((0..LINES).map(|_| random_line(&mut random)));
        } else {
            let at = random.below(LINES as u64) as usize;
            lines[at] = random_line(&mut random);
        }
        let [_, inner, leaves] = TREE_SHAPE;
        let (outer, middle, leaf) = (index / (inner * leaves), index / leaves % inner, index % leaves);
        import.file(&format!("src/part{outer:02}/unit{middle:02}/file{leaf:02}.txt"), lines.concat().as_bytes())?;
        if number % ASSET_EVERY == 0 {
            import.file(&format!("assets/{:02}/{number:06}.bin", number / 1000), &random_bytes(&mut random, asset))?;
        }
        // Few refs, so that the fetch request of a clone stays below one kilobyte, above which git compresses it.
        if (number + 1) % (size.commits / 8) == 0 {
            import.tag(&format!("v{}", (number + 1) / (size.commits / 8)), "refs/heads/main", number)?;
        }
        if number + 1 == size.commits - 10 {
            import.branch("refs/heads/next", "refs/heads/main")?;
        }
        progress.advance(1);
    }
    import.finish()?;
    drop(progress);
    installed_git::run(installed_git::git(folder).args(["-c", NO_DELTAS_FROM, "repack", "-a", "-d", "-f", "--quiet"]))?;
    let (objects, pack_bytes) = pack_size(folder)?;
    if pack_bytes < size.bytes {
        bail!("the pack has {pack_bytes} bytes, at least {} are required", size.bytes);
    }
    Ok(MadeRepository { commits: size.commits, objects, pack_bytes, seconds: started.elapsed().as_secs_f64().round() })
}

/// Adds an empty commit on top of another under a ref, packs everything into one pack, and returns the commit.
pub(crate) fn add_commit(folder: &Path, parent: &str, name: &str) -> Result<String> {
    let person = [("NAME", "A U Thor"), ("EMAIL", "author@example.com"), ("DATE", "1700000000 +0000")];
    let mut command = installed_git::git(folder);
    for (what, value) in person {
        command.env(format!("GIT_AUTHOR_{what}"), value).env(format!("GIT_COMMITTER_{what}"), value);
    }
    let tree = format!("{parent}^{{tree}}");
    let commit = installed_git::run(command.args(["commit-tree", &tree, "-p", parent, "-m", "offer"]))?;
    installed_git::run(installed_git::git(folder).args(["update-ref", name, &commit]))?;
    installed_git::run(installed_git::git(folder).args(["repack", "-a", "-d", "-q"]))?;
    Ok(commit)
}

/// Generates a repository with one commit and one branch.
pub(crate) fn single_commit(folder: &Path, seed: u64) -> Result<()> {
    linear_history(folder, seed, 1)
}

/// Generates a small repository with `count` refs: seven branches per three annotated tags.
pub(super) fn many_refs(folder: &Path, seed: u64, count: u64) -> Result<()> {
    let mut random = Random::new(seed, 2);
    let mut import = FastImport::start(folder)?;
    for number in 0..count {
        import.commit("refs/heads/main", number, &sample_text::title(&mut random, 6))?;
        import.file("README", random_line(&mut random).as_bytes())?;
        match number {
            // The main branch is one of them.
            0 => {}
            _ if number % 10 < 7 => import.branch(&format!("refs/heads/topic/{number:05}"), "refs/heads/main")?,
            _ => import.tag(&format!("v{number:05}"), "refs/heads/main", number)?,
        }
    }
    import.finish()
}

/// Generates a small repository with a linear history of `commits` commits.
pub(super) fn linear_history(folder: &Path, seed: u64, commits: u64) -> Result<()> {
    let mut random = Random::new(seed, 3);
    let mut import = FastImport::start(folder)?;
    for number in 0..commits {
        import.commit("refs/heads/main", number, &sample_text::title(&mut random, 6))?;
        if number == 0 {
            for name in ["README", "LICENSE", "src/main.rs", "src/lib.rs"] {
                import.file(name, sample_text::paragraphs(&mut random, 2000).as_bytes())?;
            }
        }
        let text: String = (0..LINES).map(|_| random_line(&mut random)).collect();
        import.file(&format!("src/file{:02}.rs", number % 20), text.as_bytes())?;
    }
    import.finish()
}

/// Returns a unique line.
fn random_line(random: &mut Random) -> String {
    let words = sample_text::title(random, 9);
    format!("{words} {:08x}\n", random.next_u64() as u32)
}

/// Returns bytes that do not compress.
fn random_bytes(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Returns the number of objects and the bytes of all packs of a repository.
fn pack_size(folder: &Path) -> Result<(u64, u64)> {
    let text = installed_git::run(installed_git::git(folder).args(["count-objects", "-v"]))?;
    let objects = text.lines().find_map(|line| line.strip_prefix("in-pack: ")?.parse().ok());
    let mut bytes = 0;
    for entry in fs::read_dir(folder.join("objects/pack"))? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "pack") {
            bytes += entry.metadata()?.len();
        }
    }
    Ok((objects.context("no object count in the output of git count-objects")?, bytes))
}

/// Writes a stream to `git fast-import`, which creates a repository.
struct FastImport {
    importer: std::process::Child,
    to: BufWriter<ChildStdin>,
}

impl FastImport {
    fn start(folder: &Path) -> Result<Self> {
        if folder.exists() {
            bail!("{} already exists", folder.display());
        }
        fs::create_dir_all(folder)?;
        installed_git::run(installed_git::git(folder).args(["init", "--quiet", "--bare", "--initial-branch=main"]))?;
        let mut importer = installed_git::git(folder)
            .args(["-c", "fastimport.unpackLimit=0", "fast-import", "--quiet"])
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot run git fast-import")?;
        let to = importer.stdin.take().context("cannot write to git fast-import")?;
        Ok(Self { importer, to: BufWriter::with_capacity(1 << 16, to) })
    }

    fn commit(&mut self, branch: &str, number: u64, subject: &str) -> Result<()> {
        let (author, when) = (installed_git::AUTHOR, commit_time(number));
        write!(self.to, "commit {branch}\ncommitter {author} {when} +0000\n")?;
        self.data(subject.as_bytes())
    }

    fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        writeln!(self.to, "M 100644 inline {path}")?;
        self.data(content)
    }

    fn branch(&mut self, name: &str, from: &str) -> Result<()> {
        Ok(write!(self.to, "reset {name}\nfrom {from}\n\n")?)
    }

    fn tag(&mut self, name: &str, from: &str, number: u64) -> Result<()> {
        let (author, when) = (installed_git::AUTHOR, commit_time(number));
        write!(self.to, "tag {name}\nfrom {from}\ntagger {author} {when} +0000\n")?;
        self.data(name.as_bytes())
    }

    fn data(&mut self, bytes: &[u8]) -> Result<()> {
        writeln!(self.to, "data {}", bytes.len())?;
        self.to.write_all(bytes)?;
        Ok(self.to.write_all(b"\n")?)
    }

    fn finish(self) -> Result<()> {
        let Self { mut importer, to } = self;
        drop(to.into_inner().map_err(|error| error.into_error())?);
        let status = importer.wait()?;
        if !status.success() {
            bail!("git fast-import failed: {status}");
        }
        Ok(())
    }
}

fn commit_time(number: u64) -> u64 {
    repository::YEAR_START + number * MINUTE
}

/// Parses `200MB`, `1 GB`, `4096`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|character: char| !character.is_ascii_digit());
    let unit = match text[digits.len()..].trim().to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        other => return Err(format!("{other} is not a unit; use B, KB, MB or GB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text} is not a number of bytes"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("200MB"), Ok(200_000_000));
        assert_eq!(parse_bytes("1 gb"), Ok(1_000_000_000));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert!(parse_bytes("MB").is_err());
        assert!(parse_bytes("1MiB").is_err());
    }

    #[test]
    fn same_seed_gives_same_history() {
        let folder = tempfile::tempdir().expect("a folder");
        let size = RepositorySize { commits: 200, bytes: 100_000, seed: 1 };
        let refs = |name: &str, size| {
            let path = folder.path().join(name);
            let made = large_repository(&path, size).expect("makes");
            assert!(made.pack_bytes >= size.bytes);
            assert!(large_repository(&path, size).is_err(), "an existing folder is not overwritten");
            installed_git::refs(&path).expect("refs")
        };
        let first = refs("a", size);
        assert_eq!(first.len(), 10, "{first:?}");
        assert_eq!(first, refs("b", size));
        assert_ne!(first, refs("c", RepositorySize { seed: 2, ..size }));
    }

    #[test]
    fn many_refs_creates_the_requested_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("many");
        many_refs(&path, 1, 50).expect("makes");
        let refs = installed_git::refs(&path).expect("refs");
        assert_eq!(refs.len(), 50);
        assert_eq!(refs.iter().filter(|(name, _)| name.starts_with("refs/tags/")).count(), 15);
    }
}
