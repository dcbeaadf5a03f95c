//! Compares the checks of packs without a git process with those of git, for thousands of generated packs.
//!
//! Packs are first checked with a git program that does not exist, so that only the checks in this process can accept
//! them. What they accept is then checked by git, which must accept it too, with the same result.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use grasp_git::process::{Git, ProcessLimits};
use grasp_git::receive::{
    Connectivity, InProcessLimits, PackChecker, PackError, PackSink, Quarantine, RequiredTips, VisibleObjects,
};

use super::generated::{COMMIT_FAULTS, Commit, History, Oid, TAG_FAULTS, TREE_FAULTS, hex};
use super::pack_builder::fix_checksum;
use super::support::{LARGEST_OBJECT, ReceiveFixture, run, view};

/// What is wrong with or unusual about a pack.
const PACK_FAULTS: [&str; 16] = [
    "history is sent again",
    "object is missing",
    "object is missing",
    "unneeded object",
    "unneeded old object",
    "object is sent again",
    "flipped byte",
    "flipped byte",
    "flipped byte",
    "flipped byte",
    "truncated",
    "wrong checksum",
    "wrong count",
    "junk",
    "object twice",
    "incomplete pool",
];

/// What is unusual about the refs of a push.
const TIP_FAULTS: [&str; 5] =
    ["branch is a tag", "branch is a tree", "missing tip", "missing known tip", "known tip in the pack"];

/// How many packs took which way.
#[derive(Debug, Default)]
struct Counts {
    packs: u32,
    indexed: u32,
    connected: u32,
    ordinary: u32,
    ordinary_connected: u32,
}

/// A push.
struct Push {
    pack: Vec<u8>,
    tips: RequiredTips,
    known: Vec<String>,
    fault: &'static str,
}

/// A repository that receives pushes.
struct Repository {
    fixture: ReceiveFixture,
    history: History,
    /// Commits that are in a pool, the tips last.
    old: Vec<Commit>,
    known: Vec<Oid>,
    pools: Vec<PathBuf>,
}

impl Repository {
    fn new(seed: u64, git: &str) -> Self {
        let mut fixture = ReceiveFixture::new();
        fixture.git = Git::new(Path::new(git), ProcessLimits { alloc_bytes: LARGEST_OBJECT, address_bytes: 4 << 30 });
        let mut history = History::new(seed);
        let mut old = vec![history.commit(&[], None, None)];
        for _ in 0..history.random.below(12) {
            let (first, second) = (history.random.pick(&old).clone(), history.random.pick(&old).clone());
            let last = old.last().expect("a commit").clone();
            let commit = match history.random.below(6) {
                0 => history.commit(&[&last, &second], None, None),
                1 => history.commit(&[&first], None, None),
                _ => history.commit(&[&last], None, None),
            };
            old.push(commit);
        }
        let mut known = vec![old.last().expect("a commit").oid];
        if history.random.chance(30) {
            known.push(history.random.pick(&old).oid);
        }
        if history.random.chance(30) {
            let tagged = history.random.pick(&old).oid;
            known.push(history.tag(tagged, None));
        }
        let objects: Vec<Oid> = history.reachable(&known).into_iter().collect();
        old.retain(|commit| objects.contains(&commit.oid));
        let split = if history.random.chance(30) { history.random.below(objects.len()) } else { 0 };
        let mut pools = Vec::new();
        for (nth, part) in [&objects[..split], &objects[split..]].into_iter().enumerate() {
            if !part.is_empty() {
                let pack = history.pack(part, &[]);
                pools.push(fixture.unchecked_pool(&format!("pool{nth}"), &pack));
            }
        }
        Self { fixture, history, old, known, pools }
    }

    /// Generates a push of new commits on top of old ones, possibly with a fault.
    fn push(&mut self, fault: &'static str) -> Push {
        let is = |faults: &[&'static str]| faults.contains(&fault).then_some(fault);
        let history = &mut self.history;
        let mut commits: Vec<Commit> = Vec::new();
        let count = 1 + history.random.below(3);
        for nth in 0..count {
            let last = commits.last().unwrap_or(self.old.last().expect("a commit")).clone();
            let other = history.random.pick(&self.old).clone();
            let is_last = nth == count - 1;
            let parents = match history.random.below(12) {
                0 => vec![&last, &other],
                1 | 2 if nth == 0 => vec![&other],
                3 if nth == 0 => vec![],
                _ => vec![&last],
            };
            let commit =
                history.commit(&parents, is(&TREE_FAULTS).filter(|_| is_last), is(&COMMIT_FAULTS).filter(|_| is_last));
            commits.push(commit);
        }
        let tip = commits.last().expect("a commit").oid;
        let mut tips = RequiredTips { branches: vec![("refs/heads/main".to_owned(), hex(&tip))], others: Vec::new() };
        let mut roots = vec![tip];
        if history.random.chance(15) || is(&TAG_FAULTS).is_some() {
            let tagged = if history.random.chance(70) { tip } else { history.random.pick(&self.old).oid };
            let tag = history.tag(tagged, is(&TAG_FAULTS));
            tips.others.push(("refs/tags/v1".to_owned(), hex(&tag)));
            roots.push(tag);
        }
        if history.random.chance(15) {
            let oid = history.random.pick(&self.old).oid;
            tips.branches.push(("refs/heads/old".to_owned(), hex(&oid)));
        }
        let mut known: Vec<String> = self.known.iter().map(hex).collect();
        let old = history.reachable(&self.known);
        let mut new: Vec<Oid> = history.reachable(&roots).difference(&old).copied().collect();
        let old: Vec<Oid> = old.into_iter().collect();
        match fault {
            "object is missing" => drop(new.swap_remove(history.random.below(new.len()))),
            "unneeded object" => new.push(history.add(3, format!("{}", history.random.0).into_bytes(), Vec::new())),
            "unneeded old object" | "object is sent again" => {
                let again = *history.random.pick(&old);
                new.push(again);
            }
            "history is sent again" => new.extend(old.iter().filter(|oid| !self.known.contains(oid))),
            "incomplete pool" => {
                // A commit is in a pool, but its tree is not; or one of its files is not.
                let all = history.reachable(&[tip]);
                let lost = *history.random.pick(&new);
                let leftover: Vec<Oid> = new.iter().copied().filter(|oid| *oid != lost && *oid != tip).collect();
                new.retain(|oid| *oid == tip || (!leftover.contains(oid) && *oid != lost));
                if !leftover.is_empty() && all.contains(&lost) {
                    let pack = history.pack(&leftover, &[]);
                    let name = format!("leftover{}", self.history.random.next());
                    self.pools.truncate(2);
                    self.pools.push(self.fixture.unchecked_pool(&name, &pack));
                }
            }
            "branch is a tag" => tips.branches[0].1 = hex(&self.history.tag(tip, None)),
            "branch is a tree" => {
                let tree = *self.history.random.pick(&new);
                tips.branches[0].1 = hex(&tree);
            }
            "missing tip" => tips.branches[0].1 = hex(&[3; 20]),
            "missing known tip" => known.push(hex(&[4; 20])),
            "known tip in the pack" => known.push(hex(self.history.random.pick(&new))),
            _ => {}
        }
        new.sort_unstable();
        new.dedup();
        let mut twice = new.clone();
        if fault == "object twice" {
            twice.push(*self.history.random.pick(&new));
        }
        let is_thin = self.history.random.chance(60);
        let mut pack = self.history.pack(&twice, if is_thin { &old } else { &[] });
        let random = &mut self.history.random;
        match fault {
            "flipped byte" => {
                let at = 12 + random.below(pack.len() - 32);
                pack[at] ^= 1 << random.below(8);
                fix_checksum(&mut pack);
            }
            "truncated" => {
                pack.truncate(12 + random.below(pack.len() - 12));
                if pack.len() > 40 && random.chance(50) {
                    fix_checksum(&mut pack);
                }
            }
            "wrong checksum" => *pack.last_mut().expect("a checksum") ^= 1,
            "wrong count" => {
                pack[11] = if random.chance(50) { pack[11].wrapping_add(1) } else { pack[11].wrapping_sub(1) };
                fix_checksum(&mut pack);
            }
            "junk" => pack.extend_from_slice(b"junk"),
            _ => {}
        }
        Push { pack, tips, known, fault }
    }

    fn checker<'a>(&'a self, git: &'a Git, in_process: InProcessLimits) -> PackChecker<'a> {
        PackChecker { git, layout: &self.fixture.layout, limits: self.fixture.limits, in_process }
    }

    fn index(&self, checker: PackChecker<'_>, pack: &[u8]) -> Result<Quarantine, PackError> {
        let mut quarantine = Quarantine::create(&self.fixture.layout)?;
        let mut sink = PackSink::new(&quarantine, self.fixture.limits);
        sink.write(pack)?;
        checker.index_pack(&mut quarantine, sink.finish()?, &self.pools)?;
        Ok(quarantine)
    }

    /// Checks a push both ways and compares the results.
    fn compare(&self, push: &Push, counts: &mut Counts) {
        let no_git = Git::new(
            Path::new("/nonexistent/git"),
            ProcessLimits { alloc_bytes: LARGEST_OBJECT, address_bytes: 4 << 30 },
        );
        let here = self.checker(&no_git, InProcessLimits::default());
        let by_git = self.checker(&self.fixture.git, InProcessLimits::NONE);
        counts.packs += 1;
        let is_ordinary = push.fault.is_empty();
        counts.ordinary += u32::from(is_ordinary);
        let Ok(indexed) = self.index(here, &push.pack) else {
            assert!(!is_ordinary, "an ordinary pack was left to git: {:?}", self.index(by_git, &push.pack).map(drop));
            return;
        };
        counts.indexed += 1;
        let expected =
            self.index(by_git, &push.pack).unwrap_or_else(|error| panic!("only git rejects the pack: {error}"));
        self.compare_files(&indexed, &expected);
        let connect = |checker: &PackChecker<'_>, quarantine: &Quarantine| -> Result<Connectivity, PackError> {
            checker.check_connectivity(view(quarantine, &self.pools), &push.tips, &push.known)
        };
        let Ok(connected) = connect(&here, &indexed) else { return };
        counts.connected += 1;
        counts.ordinary_connected += u32::from(is_ordinary);
        assert_eq!(Ok(connected), connect(&by_git, &expected), "connectivity");
    }

    /// Compares the files of a pack. Git may compress the objects that complete a thin pack in another way.
    fn compare_files(&self, indexed: &Quarantine, expected: &Quarantine) {
        let (files, mut expected_files) = (files(indexed), files(expected));
        let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        if names(&files).iter().all(|name| name.ends_with(".rev") || expected_files.contains_key(name)) {
            for (name, bytes) in &files {
                // Git before 2.41 writes no reverse index.
                let expected = expected_files.remove(name).unwrap_or_else(|| bytes.clone());
                assert_eq!(*bytes, expected, "{name}");
            }
            assert_eq!(names(&expected_files), Vec::<String>::new());
            return;
        }
        let objects = |quarantine: &Quarantine| self.fixture.objects(quarantine.folder());
        assert_eq!(objects(indexed), objects(expected), "objects of a completed pack");
        let pack = names(&files).into_iter().find(|name| name.ends_with(".pack")).expect("a pack");
        let pack = indexed.folder().join("pack").join(pack);
        let again = self.fixture.folder.path().join("again.idx");
        let arguments =
            ["index-pack", "--rev-index", "-o", again.to_str().expect("UTF-8"), pack.to_str().expect("UTF-8")];
        let output = run(self.fixture.folder.path(), &arguments, b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for extension in ["idx", "rev"] {
            let written = fs::read(again.with_extension(extension)).expect("read a file");
            assert_eq!(fs::read(pack.with_extension(extension)).expect("read a file"), written, "{extension}");
            fs::remove_file(again.with_extension(extension)).expect("remove a file");
        }
    }
}

fn files(quarantine: &Quarantine) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(quarantine.folder().join("pack")).expect("list a folder");
    let file = |entry: fs::DirEntry| {
        (entry.file_name().into_string().expect("UTF-8"), fs::read(entry.path()).expect("read a file"))
    };
    entries.map(|entry| file(entry.expect("list a folder"))).collect()
}

/// Compares pushes to generated repositories, and returns how many took which way.
fn compare_pushes(seeds: std::ops::Range<u64>, git: &str) -> Counts {
    let faults: Vec<&'static str> = [&TREE_FAULTS[..], &COMMIT_FAULTS, &TAG_FAULTS, &PACK_FAULTS, &TIP_FAULTS].concat();
    let mut counts = Counts::default();
    for seed in seeds {
        let mut repository = Repository::new(seed, git);
        for nth in 0..faults.len() * 3 / 2 {
            let fault = if nth % 3 == 0 { "" } else { faults[nth * 2 / 3] };
            let push = repository.push(fault);
            let guard = ContextGuard(format!("seed {seed}, push {nth}: {fault:?}, with {git}"));
            repository.compare(&push, &mut counts);
            drop(guard);
        }
    }
    eprintln!("{git}: {counts:?}");
    counts
}

/// Prints which push was compared if a comparison fails.
struct ContextGuard(String);

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at {}", self.0);
        }
    }
}

fn assert_ways(counts: &Counts) {
    assert!(counts.ordinary_connected * 100 >= counts.ordinary * 85, "ordinary pushes need no git: {counts:?}");
    assert!(counts.indexed < counts.packs * 3 / 4, "most faults are left to git: {counts:?}");
}

#[test]
fn checks_without_git_agree_with_git() {
    let counts = compare_pushes(0..6, "git");
    assert_ways(&counts);
}

#[test]
fn checks_without_git_agree_with_git_for_other_histories() {
    let counts = compare_pushes(1_000..1_006, "git");
    assert_ways(&counts);
}

/// Every byte of a pack is changed in several ways.
#[test]
fn changed_packs_are_accepted_only_if_git_accepts_them() {
    let mut counts = Counts::default();
    for seed in 2_000..2_006 {
        let mut repository = Repository::new(seed, "git");
        let push = repository.push("");
        for at in 12..push.pack.len() - 20 {
            let mut pack = push.pack.clone();
            pack[at] ^= match repository.history.random.below(4) {
                0 => 0xff,
                1 => 0x80,
                _ => 1 << repository.history.random.below(8),
            };
            fix_checksum(&mut pack);
            let (tips, known) = (push.tips.clone(), push.known.clone());
            let guard = ContextGuard(format!("seed {seed}, byte {at}"));
            repository.compare(&Push { pack, tips, known, fault: "changed byte" }, &mut counts);
            drop(guard);
        }
    }
    assert!(counts.packs > 1_000, "{counts:?}");
    eprintln!("{counts:?}");
}

#[test]
#[ignore = "takes minutes"]
fn checks_without_git_agree_with_all_installed_gits() {
    for git in ["git", "/usr/bin/git", "/usr/local/bin/git"] {
        if git == "git" || Path::new(git).exists() {
            assert_ways(&compare_pushes(10_000..10_030, git));
        }
    }
}

/// Existing refs and objects need no pack and no git.
#[test]
fn refs_to_present_commits_need_no_git() {
    let mut repository = Repository::new(77, "git");
    let no_git =
        Git::new(Path::new("/nonexistent/git"), ProcessLimits { alloc_bytes: 1 << 20, address_bytes: 4 << 30 });
    let here = repository.checker(&no_git, InProcessLimits::default());
    let known: Vec<String> = repository.known.iter().map(hex).collect();
    let visible = VisibleObjects { quarantine: None, pools: &repository.pools };
    for commit in &repository.old {
        let tips = RequiredTips { branches: vec![("refs/heads/x".to_owned(), hex(&commit.oid))], others: Vec::new() };
        let connected = here.check_connectivity(visible, &tips, &known);
        assert_eq!(connected, Ok(Connectivity { objects: 0, extra: 0 }));
    }
    repository.pools.clear();
    let visible = VisibleObjects { quarantine: None, pools: &repository.pools };
    let tips = RequiredTips { branches: vec![("refs/heads/x".to_owned(), known[0].clone())], others: Vec::new() };
    let here = repository.checker(&no_git, InProcessLimits::default());
    here.check_connectivity(visible, &tips, &known).expect_err("a missing commit is left to git");
}
