//! Repacking: fewer packs, a multi-pack index with bitmaps and a commit-graph, and no lost object.

use std::fs;
use std::time::{Duration, Instant};

use grasp_core::admission::git_job::Alignment;
use grasp_git::maintenance::MaintenanceOutcome;
use grasp_git::serve::{ProtocolVersion, UploadPackLimits, upload_pack};
use tempfile::TempDir;

use super::pool::{
    TIMEOUT, clear, deliver_history, files, import_history, installed_git, maintainer, objects, packs, point_main_to,
    prune, push, push_each,
};
use crate::git_folder::{AuthorRepo, GitFixture, announced, git};

fn texts(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("text {n}")).collect()
}

#[test]
fn packs_of_sixty_pushes_are_merged() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let maintainer = maintainer(&fixture);
    assert_eq!(
        maintainer.repack(&repo_path).expect("repack a pool"),
        MaintenanceOutcome::NothingToDo,
        "there is nothing"
    );
    push_each(&fixture, &repo_path, &author, &texts(0..8));
    assert!(!maintainer.is_repack_due(&repo_path));
    assert_eq!(maintainer.repack(&repo_path).expect("repack a pool"), MaintenanceOutcome::NothingToDo);
    push_each(&fixture, &repo_path, &author, &texts(8..60));
    assert_eq!(packs(&fixture, &repo_path).len(), 60);
    let before = objects(&fixture, &repo_path);
    assert!(maintainer.is_repack_due(&repo_path));
    assert_eq!(maintainer.repack(&repo_path).expect("repack a pool"), MaintenanceOutcome::Done);
    assert!(!maintainer.is_repack_due(&repo_path));
    assert!(packs(&fixture, &repo_path).len() <= 2, "{:?}", packs(&fixture, &repo_path));
    assert_eq!(objects(&fixture, &repo_path), before);
    fixture.check_repo(&repo_path);
    // No scratch files are left, and further pushes work.
    assert_eq!(files(&fixture.layout.root().join("incoming")), Vec::<std::path::PathBuf>::new());
    push_each(&fixture, &repo_path, &author, &texts(60..62));
    fixture.check_repo(&repo_path);
}

#[test]
fn unreachable_objects_are_repacked_too() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let first = push_each(&fixture, &repo_path, &author, &texts(0..1));
    push_each(&fixture, &repo_path, &author, &texts(1..20));
    point_main_to(&fixture, &repo_path, Alignment::default(), &first);
    let before = objects(&fixture, &repo_path);
    assert_eq!(before.len(), 4 * 20);
    assert_eq!(maintainer(&fixture).repack(&repo_path).expect("repack a pool"), MaintenanceOutcome::Done);
    assert_eq!(objects(&fixture, &repo_path), before);
}

#[test]
fn large_pools_get_an_index_with_bitmaps_and_a_commit_graph() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(&folder.path().join("git")), announced(1), AuthorRepo::new());
    push(&fixture, &repo_path, &author, &[&author.commit("folder")]);
    let bare = import_history(folder.path(), 1_000);
    let tip = deliver_history(&fixture, &repo_path, &bare, 12);
    let maintainer = maintainer(&fixture);
    let before = objects(&fixture, &repo_path);
    assert_eq!(maintainer.repack(&repo_path).expect("repack a pool"), MaintenanceOutcome::Done);
    assert_eq!(objects(&fixture, &repo_path), before);
    let pool = fixture.layout.pool(&repo_path);
    let has_bitmap =
        || files(&pool.join("pack")).iter().filter(|path| path.extension().is_some_and(|e| e == "bitmap")).count();
    assert!(pool.join("pack/multi-pack-index").exists() && pool.join("info/commit-graph").exists());
    assert_eq!(has_bitmap(), 1);
    fixture.check_repo(&repo_path);
    // Git uses the bitmaps, although the pool is an alternate of the repository.
    let repo_folder = fixture.layout.repo_dir(&repo_path);
    let counted = git(&repo_folder, &["rev-list", "--test-bitmap", &tip]);
    assert!(counted.is_empty(), "{counted}");
    // Nothing is due now.
    git(&bare, &["update-ref", "refs/heads/work", &tip]);
    assert_eq!(maintainer.repack(&repo_path).expect("repack a pool"), MaintenanceOutcome::NothingToDo);
    // When all objects are removed, no index and no commit-graph is left.
    clear(&fixture, &repo_path);
    assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::Done);
    assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::Done);
    assert_eq!(files(&pool.join("pack")), Vec::<std::path::PathBuf>::new());
    assert!(!pool.join("info/commit-graph").exists());
}

#[test]
fn pool_with_history_in_an_alternate_has_no_bitmaps_and_gets_no_copies() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, author) = (GitFixture::open(&folder.path().join("git")), AuthorRepo::new());
    let (alternate, repo_path) = (announced(1), announced(2));
    let bare = import_history(folder.path(), 900);
    let middle = git(&bare, &["rev-parse", "main~400"]);
    push(&fixture, &alternate, &author, &[&author.commit("folder")]);
    // The older half of the history is in the alternate.
    git(&bare, &["update-ref", "refs/heads/all", "main"]);
    git(&bare, &["update-ref", "refs/heads/main", &middle]);
    deliver_history(&fixture, &alternate, &bare, 10);
    git(&bare, &["update-ref", "refs/heads/main", "refs/heads/all"]);
    let pool = fixture.layout.pool(&repo_path);
    fs::create_dir_all(pool.join("pack")).expect("create a folder");
    let steps: Vec<String> = (0..10).map(|n| git(&bare, &["rev-parse", &format!("main~{}", 360 - n * 40)])).collect();
    let mut before = middle.clone();
    for step in &steps {
        let list = git(&bare, &["rev-list", "--objects", step, &format!("^{before}")]);
        let oids: Vec<&str> = list.lines().map(|line| &line[..40]).collect();
        pack_from(&bare, &pool, &oids);
        before = step.clone();
    }
    point_main_to(
        &fixture,
        &repo_path,
        Alignment { alternates: vec![alternate.clone()], ..Alignment::default() },
        steps.last().expect("a commit"),
    );
    let maintainer = maintainer(&fixture);
    let own = objects(&fixture, &repo_path);
    // The alternate is indexed first.
    assert_eq!(maintainer.repack(&alternate).expect("repack a pool"), MaintenanceOutcome::Done);
    assert_eq!(maintainer.repack(&repo_path).expect("repack a pool"), MaintenanceOutcome::Done);
    assert!(packs(&fixture, &repo_path).len() < 3);
    assert_eq!(objects(&fixture, &repo_path), own, "nothing was copied");
    assert!(!pool.join("info/commit-graph").exists());
    assert!(files(&pool.join("pack")).iter().all(|path| path.extension().is_none_or(|part| part != "bitmap")));
    fixture.check_repo(&repo_path);
    assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::NothingToDo);
    // The first commit of the alternate is unneeded.
    assert_eq!(prune(&fixture, &alternate, Duration::ZERO), MaintenanceOutcome::Done);
    assert_eq!(prune(&fixture, &alternate, Duration::ZERO), MaintenanceOutcome::Done);
    assert_eq!(prune(&fixture, &alternate, Duration::ZERO), MaintenanceOutcome::NothingToDo);
    assert_eq!(objects(&fixture, &repo_path), own, "nothing was copied");
    fixture.check_repo(&repo_path);
    fixture.check_repo(&alternate);
}

fn pack_from(bare: &std::path::Path, pool: &std::path::Path, oids: &[&str]) {
    use std::io::Write;
    let mut child = std::process::Command::new("git")
        .current_dir(bare)
        .args(["pack-objects", "--quiet", "--threads=1"])
        .arg(pool.join("pack/pack"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("start git");
    child.stdin.take().expect("stdin is piped").write_all(oids.join("\n").as_bytes()).expect("write to git");
    assert!(child.wait().expect("wait for the process").success());
}

#[test]
fn full_disk_leaves_the_old_packs() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    push_each(&fixture, &repo_path, &author, &texts(0..20));
    let before = files(&fixture.layout.pool(&repo_path).join("pack"));
    // A limit on the file size makes writes fail, as a full disk does.
    let git = installed_git().with_file_bytes(1_000);
    let (layout, rows) = (std::sync::Arc::clone(&fixture.layout), fixture.rows.clone());
    let maintainer = grasp_git::maintenance::PoolMaintainer::new(&git, layout, rows, TIMEOUT);
    assert!(maintainer.repack(&repo_path).is_err());
    assert_eq!(files(&fixture.layout.pool(&repo_path).join("pack")), before);
    assert_eq!(files(&fixture.layout.root().join("incoming")), Vec::<std::path::PathBuf>::new());
    fixture.check_repo(&repo_path);
}

/// Returns the request body of a clone.
pub(crate) fn clone_request(tip: &str) -> Vec<u8> {
    format!("0011command=fetch0001000ethin-pack\n000eofs-delta\n0010no-progress\n0032want {tip}\n0009done\n0000")
        .into_bytes()
}

/// Measures a clone of a large repository before and after maintenance.
#[test]
#[ignore = "a measurement"]
fn clone_time_before_and_after_maintenance() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(&folder.path().join("git")), announced(1), AuthorRepo::new());
    push(&fixture, &repo_path, &author, &[&author.commit("folder")]);
    let bare = import_history(folder.path(), 20_000);
    let tip = deliver_history(&fixture, &repo_path, &bare, 60);
    let clone = |what: &str| {
        let (begin, cpu) = (Instant::now(), children_cpu());
        let mut bytes = 0;
        let limits = UploadPackLimits { threads: 2, timeout: TIMEOUT };
        let protocol = ProtocolVersion::from_header(Some("version=2"));
        upload_pack(
            &installed_git(),
            &fixture.layout.repo_dir(&repo_path),
            (protocol, &clone_request(&tip)),
            limits,
            |part| {
                bytes += part.len();
                Ok(())
            },
        )
        .expect("clone");
        eprintln!(
            "{what}: {} packs, {bytes} bytes, {:?} wall, {} ms cpu",
            packs(&fixture, &repo_path).len(),
            begin.elapsed(),
            children_cpu() - cpu
        );
    };
    clone("before");
    clone("before");
    let (begin, cpu) = (Instant::now(), children_cpu());
    assert_eq!(maintainer(&fixture).repack(&repo_path).expect("repack a pool"), MaintenanceOutcome::Done);
    eprintln!("repack: {:?} wall, {} ms cpu of git", begin.elapsed(), children_cpu() - cpu);
    clone("after");
    clone("after");
    let begin = Instant::now();
    assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::Done);
    eprintln!("prune: {:?}", begin.elapsed());
    let begin = Instant::now();
    prune(&fixture, &repo_path, Duration::ZERO);
    prune(&fixture, &repo_path, Duration::ZERO);
    eprintln!("prune of a clean pool, twice: {:?}", begin.elapsed());
    clone("after prune");
    fixture.check_repo(&repo_path);
}

/// Returns the processor time of ended child processes, in milliseconds.
fn children_cpu() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("a text line");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    fields[13..15].iter().map(|ticks| ticks.parse::<u64>().expect("a number") * 10).sum()
}
