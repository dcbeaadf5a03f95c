//! Repair of damaged packs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use grasp_git::process::{Git, ProcessLimits};
use grasp_git::repair::RepoRepairer;
use tempfile::TempDir;

use crate::git_folder::{AuthorRepo, GitFixture, announced, follow_state, git, with_head};

/// One damaged byte costs the objects that it belongs to, and not those behind it in the pack.
#[test]
fn intact_objects_of_a_damaged_pack_are_kept() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let mut tip = String::new();
    for nth in 0..60 {
        tip = author.commit(&format!("{nth} {}", "text ".repeat(nth)));
    }
    let received_pack = author.received_pack(&fixture, &[&tip]);
    fixture.align(&repo_path, follow_state(&[received_pack], with_head(1, &[("refs/heads/main", &tip)])));
    let count = || {
        let objects = git(
            &fixture.layout.repo_dir(&repo_path),
            &["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"],
        );
        objects.lines().count()
    };
    let before = count();
    assert!(before >= 180, "{before} objects");
    let packs = fixture.layout.pool(&repo_path).join("pack");
    let pack = fs::read_dir(&packs).expect("list a folder").map(|entry| entry.expect("read an entry").path());
    let pack = pack.into_iter().find(|path| path.extension().is_some_and(|end| end == "pack")).expect("a pack");
    let mut bytes = fs::read(&pack).expect("read the pack");
    let at = bytes.len() / 4;
    bytes[at] ^= 0x55;
    fs::set_permissions(&pack, fs::Permissions::from_mode(0o600)).expect("change permissions");
    fs::write(&pack, bytes).expect("write the pack");

    let git = Git::new(Path::new("git"), ProcessLimits { alloc_bytes: 1 << 28, address_bytes: 1 << 32 });
    let repairer = RepoRepairer::new(&git, Arc::clone(&fixture.layout), fixture.rows.clone(), Duration::from_secs(60));
    let report = repairer.repair(&repo_path).expect("repair the repository");
    assert_eq!(report.damaged_packs.len(), 1);
    assert!(fixture.is_degraded(&repo_path));
    let kept = count();
    assert!(kept < before && kept >= before * 3 / 4, "{kept} of {before} objects");
}
