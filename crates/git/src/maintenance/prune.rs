//! Takes away what nobody needs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use grasp_core::repo::RepoPath;

use super::index::{Fate, Indexes, Tips};
use super::inspection::{Pack, Survey};
use super::needed_objects::{Look, Need, Needs};
use super::scratch_dir::Workshop;
use super::swap::{Swap, remove};
use super::{Doing, MAX_WORDS, Maintainer, Problem, TURN, Tidied};
use crate::objects::Pools;
use crate::process::{Git, Input};

/// When somebody last looked for unneeded objects: the time of this file, in the pool's `info`.
const LOOKED: &str = "looked";

/// A prune that is under way.
struct Pruning<'p> {
    repo_path: &'p RepoPath,
    pool: PathBuf,
    survey: Survey,
    workshop: Workshop,
    /// What was walked over.
    walked: BTreeSet<String>,
}

/// What a walk over everything that is needed came by.
struct Found {
    /// Needed objects in packs of needed objects.
    needed: List,
    /// Needed objects that are only among the unneeded: somebody has taken them up again.
    rescued: List,
}

/// Objects, written down for git.
struct List {
    file: BufWriter<File>,
    objects: u64,
}

impl Maintainer {
    /// Whether it is time to look for unneeded objects: the last time was long ago, and there was a change since, or
    /// something has been unneeded for the grace period. `changed` is when the refs of any reader last changed.
    #[must_use]
    pub fn is_prune_due(&self, repo_path: &RepoPath, changed: SystemTime, pause: Duration, grace: Duration) -> bool {
        let pool = self.layout.pool(repo_path);
        let now = SystemTime::now();
        let Ok(packs_changed) = modified(&pool.join("pack")) else { return false };
        let Ok(looked) = modified(&pool.join("info").join(LOOKED)) else {
            // Nobody has. A new site is given the same time.
            return modified(&self.layout.repo_dir(repo_path).join("config")).is_ok_and(|made| now >= made + pause);
        };
        let overdue = || Survey::of(&pool.join("pack")).is_ok_and(|survey| survey.overdue(now, grace).next().is_some());
        now >= looked + pause && (packs_changed > looked || changed > looked || overdue())
    }

    /// When the refs of any of some sites last changed, or which pools one reads.
    #[must_use]
    pub fn changed(&self, repo_paths: &[RepoPath]) -> SystemTime {
        let times = repo_paths.iter().map(|repo_path| self.layout.repo_dir(repo_path)).flat_map(|folder| {
            [modified(&folder.join("packed-refs")), modified(&folder.join("objects/info/alternates"))]
        });
        times.flatten().max().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Puts aside what nobody needs, and takes away what was put aside a grace period ago and is still not needed.
    pub fn prune(&self, repo_path: &RepoPath, grace: Duration, needs: &mut Needs<'_>) -> Result<Tidied, Problem> {
        if !self.has_pool(repo_path) {
            return Ok(Tidied::Fine);
        }
        let began = SystemTime::now();
        self.clear_leftovers(repo_path, grace)?;
        let Some(need) = self.need(repo_path, needs)? else { return Ok(Tidied::Later) };
        let pool = self.layout.pool(repo_path);
        let survey = Survey::of(&pool.join("pack")).doing("read a pool")?;
        let workshop = Workshop::with(&self.layout, &pool, &survey.packs).doing("make room for packs")?;
        let mut pruning = Pruning { repo_path, pool, survey, workshop, walked: need.tips.clone() };
        let gentle = self.gentle();
        let result = match self.named_here(&pruning, &need, &gentle)? {
            None => return Ok(Tidied::Later),
            Some(named) => {
                pruning.walked.extend(named);
                self.look_and_swap(&pruning, &need, grace, needs)?
            }
        };
        if result != Tidied::Later {
            stamp(&pruning.pool, began).doing("note that a pool was looked at")?;
        }
        Ok(result)
    }

    fn named_here(&self, pruning: &Pruning<'_>, need: &Need, git: &Git) -> Result<Option<BTreeSet<String>>, Problem> {
        let look = Look { git, pools: &need.pools, command: &|| pruning.workshop.see(self, &need.pools) };
        self.complete(&look, &need.named, &need.tips)
    }

    fn look_and_swap(
        &self,
        pruning: &Pruning<'_>,
        need: &Need,
        grace: Duration,
        needs: &mut Needs<'_>,
    ) -> Result<Tidied, Problem> {
        let all: u64 = pruning.survey.normal().map(|pack| pack.objects).sum();
        if need.pools.len() == 1
            && pruning.survey.cruft().next().is_none()
            && self.count(pruning)?.is_some_and(|count| count == all)
        {
            return Ok(Tidied::Fine);
        }
        let found = self.find(pruning, need)?;
        let mut swap = Swap::default();
        if found.needed.objects < all {
            swap.made = self.divide(pruning, found)?;
            swap.going.extend(pruning.survey.normal().cloned());
        } else if found.rescued.objects > 0 {
            swap.made = pruning.workshop.pack(self, &[], Input::File(found.rescued.finish().doing("list objects")?))?;
        }
        swap.going.extend(pruning.survey.overdue(SystemTime::now(), grace).cloned());
        if swap.made.is_empty() && swap.going.is_empty() {
            return Ok(Tidied::Fine);
        }
        swap.indexes = self.indexes_after(pruning, &swap)?;
        swap.sync(&pruning.workshop).doing("write packs to the disk")?;
        let _removal = self.layout.removal();
        let Some(_turn) = self.layout.turns.wait_within(pruning.repo_path.identifier(), TURN) else {
            return Ok(Tidied::Later);
        };
        if !swap.fits(&pruning.pool, &pruning.survey.packs) || self.is_missed(pruning, &swap, needs)? {
            return Ok(Tidied::Later);
        }
        let result = swap.carry_out(&pruning.workshop, &pruning.pool);
        // Also if it failed in the middle: something may be gone.
        self.layout.note_pruning();
        result.doing("put packs in their place")?;
        Ok(Tidied::Done)
    }

    /// How many objects are needed, where nobody shares anything. With bitmaps this is a matter of milliseconds.
    fn count(&self, pruning: &Pruning<'_>) -> Result<Option<u64>, Problem> {
        pruning.workshop.link_index(&pruning.pool).doing("make room for packs")?;
        let mut command = pruning.workshop.command(self);
        command.args(["-c", "core.commitGraph=false", "rev-list", "--objects", "--count", "--use-bitmap-index"]);
        command.arg("--stdin");
        let input: String = pruning.walked.iter().map(|tip| format!("{tip}\n")).collect();
        let said = self.gentle().run(&mut command, Input::Bytes(input.as_bytes()), self.patience, MAX_WORDS);
        let said = said.doing("count what is needed")?;
        Ok(String::from_utf8_lossy(&said).trim().parse().ok())
    }

    /// Walks over everything that is needed.
    fn find(&self, pruning: &Pruning<'_>, need: &Need) -> Result<Found, Problem> {
        let workshop = &pruning.workshop;
        let open = |packs: Vec<&Pack>| indexes(&workshop.packs(), packs.into_iter());
        let normal = open(pruning.survey.normal().collect()).doing("read a pool")?;
        let cruft = open(pruning.survey.cruft().collect()).doing("read a pool")?;
        let list = |name: &str| List::create(&workshop.lists.join(name)).doing("list objects");
        let mut found = Found { needed: list("needed")?, rescued: list("rescued")? };
        let others: Vec<PathBuf> = need.pools.iter().filter(|pool| **pool != pruning.pool).cloned().collect();
        let look = Look { git: &self.gentle(), pools: &[], command: &|| workshop.view(self, &others) };
        self.walk(&look, &pruning.walked, &BTreeSet::new(), |line| {
            let Some(oid) = oid_of(line) else { return Ok(()) };
            if normal.has(oid)? {
                found.needed.add(line)?;
            } else if cruft.has(oid)? {
                found.rescued.add(line)?;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Makes a pack of what is needed and one of what is not.
    fn divide(&self, pruning: &Pruning<'_>, found: Found) -> Result<Vec<Pack>, Problem> {
        let listed = found.needed.objects + found.rescued.objects;
        let list = found.needed.join(found.rescued).doing("list objects")?;
        let mut made = pruning.workshop.pack(self, &[], Input::File(list))?;
        if made.iter().map(|pack| pack.objects).sum::<u64>() != listed {
            let source = io::Error::new(ErrorKind::InvalidData, "a new pack has not what it should have");
            return Err(Problem::Disk { doing: "pack objects", source });
        }
        // What is in these is left out; what is in the others is taken.
        let mut input: String = made.iter().map(|pack| format!("{}.pack\n", pack.name)).collect();
        input.extend(pruning.survey.cruft().map(|pack| format!("{}.pack\n", pack.name)));
        let taken = pruning.survey.normal().filter(|pack| !made.iter().any(|made| made.name == pack.name));
        input.extend(taken.map(|pack| format!("-{}.pack\n", pack.name)));
        made.extend(pruning.workshop.pack(self, &["--cruft"], Input::Bytes(input.as_bytes()))?);
        Ok(made)
    }

    /// The index and the commit-graph as they should be afterwards. A graph that named what is gone would be believed.
    fn indexes_after(&self, pruning: &Pruning<'_>, swap: &Swap) -> Result<Indexes, Problem> {
        // A ref that came later may point to what goes.
        let tips = Tips::of(&self.layout.repo_dir(pruning.repo_path), Some(&pruning.walked))?;
        let staying = swap.staying(&pruning.survey.packs);
        let worth_it = pruning.survey.is_worth_an_index();
        let breaks = pruning.survey.index_breaks(&swap.going);
        let midx = match (worth_it, breaks) {
            (true, _) => {
                pruning.workshop.link_index(&pruning.pool).doing("make room for packs")?;
                self.make_midx(&pruning.workshop, &staying, &tips)?
            }
            (false, true) => Fate::Gone,
            (false, false) => Fate::Stay,
        };
        let graph = if worth_it { self.make_graph(&pruning.workshop, &tips)? } else { Fate::Gone };
        Ok(Indexes { midx, graph })
    }

    /// Whether anybody needs, by now, what is about to go. The caller has the turn, so that nobody can begin to.
    fn is_missed(&self, pruning: &Pruning<'_>, swap: &Swap, needs: &mut Needs<'_>) -> Result<bool, Problem> {
        let Some(need) = self.need(pruning.repo_path, needs)? else { return Ok(true) };
        let look = Look { git: &self.git, pools: &need.pools, command: &|| pruning.workshop.see(self, &need.pools) };
        let Some(named) = self.complete(&look, &need.named, &pruning.walked)? else { return Ok(true) };
        let fresh: BTreeSet<String> = need.tips.difference(&pruning.walked).cloned().chain(named).collect();
        if fresh.is_empty() {
            return Ok(false);
        }
        let there = Survey::of(&pruning.pool.join("pack")).doing("read a pool")?;
        let goes = |pack: &&Pack| swap.going.iter().any(|going| going.name == pack.name);
        let staying = indexes(&pruning.pool.join("pack"), there.packs.iter().filter(|pack| !goes(pack)));
        let made = indexes(&pruning.workshop.packs(), swap.made.iter());
        let going = indexes(&pruning.workshop.packs(), swap.going.iter());
        let [staying, made, going] =
            [staying.doing("read a pool")?, made.doing("read a pool")?, going.doing("read a pool")?];
        let mut missed = false;
        self.walk(&look, &fresh, &pruning.walked, |line| {
            if let Some(oid) = oid_of(line).filter(|_| !missed) {
                missed = going.has(oid)? && !made.has(oid)? && !staying.has(oid)?;
            }
            Ok(())
        })?;
        Ok(missed)
    }

    /// Removes what is no pack and not about to become one: parts that a crash or a full disk left behind.
    fn clear_leftovers(&self, repo_path: &RepoPath, grace: Duration) -> Result<(), Problem> {
        let packs = self.layout.pool(repo_path).join("pack");
        let now = SystemTime::now();
        if leftovers(&packs, now, grace).doing("read a pool")?.is_empty() {
            return Ok(());
        }
        // An order may be moving a pack into the pool, part by part.
        let Some(_turn) = self.layout.turns.wait_within(repo_path.identifier(), TURN) else { return Ok(()) };
        for path in leftovers(&packs, now, grace).doing("read a pool")? {
            remove(&path).doing("remove parts of packs")?;
        }
        Ok(())
    }
}

impl Survey {
    /// Packs of what has been unneeded for the grace period.
    fn overdue(&self, now: SystemTime, grace: Duration) -> impl Iterator<Item = &Pack> {
        self.cruft().filter(move |pack| now >= pack.modified + grace)
    }
}

/// Parts of packs that have no index or no pack, and files that are being written, if they are old.
fn leftovers(packs: &Path, now: SystemTime, grace: Duration) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(packs)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let whole = || ["pack", "idx"].iter().all(|part| path.with_extension(part).exists());
        let stray = name.starts_with("tmp_") || (name.starts_with("pack-") && !whole());
        if stray && modified(&path).is_ok_and(|modified| now >= modified + grace) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Some packs of a folder.
fn indexes<'p>(folder: &Path, packs: impl Iterator<Item = &'p Pack>) -> io::Result<Pools> {
    let paths: Vec<PathBuf> = packs.map(|pack| pack.file(folder, "idx")).collect();
    Pools::of_packs(&paths)
}

fn oid_of(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line.get(..40)?).ok()
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

/// Notes when somebody began to look. What changed since will be looked at again.
fn stamp(pool: &Path, began: SystemTime) -> io::Result<()> {
    File::create(pool.join("info").join(LOOKED))?.set_modified(began)
}

impl List {
    fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        Ok(Self { file: BufWriter::new(file), objects: 0 })
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        self.objects += 1;
        self.file.write_all(line)?;
        self.file.write_all(b"\n")
    }

    /// The file, to be read from its beginning.
    fn finish(self) -> io::Result<File> {
        let mut file = self.file.into_inner().map_err(|problem| problem.into_error())?;
        file.rewind()?;
        Ok(file)
    }

    /// The file, with what another list has behind it.
    fn join(mut self, other: Self) -> io::Result<File> {
        io::copy(&mut other.finish()?, &mut self.file)?;
        self.finish()
    }
}
