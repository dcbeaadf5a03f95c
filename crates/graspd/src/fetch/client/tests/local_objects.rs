//! Tests of the availability of local objects and of the check of received packs.

use std::fs;

use grasp_core::fetch::io::{FetchOutcome, RequestForm};
use grasp_git::receive::{PackData, PackSink, Quarantine};

use super::server::GitHttpBackend;
use super::setup::{LIMITS, RemoteRepo, TestSetup, run};

/// Receives a pack.
fn received(setup: &TestSetup, pack: &[u8]) -> (Quarantine, PackData) {
    let quarantine = Quarantine::create(&setup.client.local_objects.layout).expect("creates a folder");
    let mut sink = PackSink::new(&quarantine, LIMITS);
    sink.write(pack).expect("valid pack");
    (quarantine, sink.finish().expect("a pack"))
}

#[tokio::test]
async fn objects_pruned_during_a_fetch_are_a_local_error() {
    let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
    let text: String = (0..2_000).map(|n| format!("{n}\n")).collect();
    let first = remote.commit("a", &text);
    let (quarantine, pack) = received(&setup, &remote.pack(&["HEAD"]));
    let local_objects = &setup.client.local_objects;
    let oids = [first.clone()];
    let checked = local_objects.check_pack((&setup.repo_path, &oids, &[]), 0, (quarantine, pack)).expect("valid pack");
    assert_eq!((checked.missing_count, checked.oids.as_slice()), (0, &oids[..]));
    setup.adopt(&setup.repo_path, &checked.pack.expect("a pack"), &[("refs/heads/main", &first)]);

    let second = remote.commit("a", &format!("{text}x\n"));
    let input = format!("{second}\n^{first}\n");
    let thin = remote.feed(&["pack-objects", "--revs", "--stdout", "--thin", "-q"], input.as_bytes());
    let oids = [second.clone()];
    let availability = local_objects.availability(&setup.repo_path, &oids, &[]).expect("reads");
    assert_eq!((availability.haves.as_slice(), availability.missing.as_slice()), (&[first][..], &oids[..]));
    let checked = local_objects
        .check_pack((&setup.repo_path, &oids, &[]), availability.prune_count, received(&setup, &thin))
        .expect("valid pack");
    assert_eq!(checked.oids, oids);
    drop(checked);

    // The repository is emptied while the response arrives.
    fs::remove_dir_all(local_objects.layout.pool(&setup.repo_path)).expect("removes");
    setup.publish(&setup.repo_path, Default::default());
    let error = local_objects
        .check_pack((&setup.repo_path, &oids, &[]), availability.prune_count, received(&setup, &thin))
        .expect_err("objects are missing");
    assert_eq!(error.outcome, FetchOutcome::InvalidData, "no pruning is known");
    local_objects.layout.record_prune();
    let error = local_objects
        .check_pack((&setup.repo_path, &oids, &[]), availability.prune_count, received(&setup, &thin))
        .expect_err("objects are missing");
    assert_eq!(error.outcome, FetchOutcome::LocalError);
    setup.wait_until_clean().await;
}

#[tokio::test]
async fn incomplete_local_objects_are_fetched() {
    let (setup, remote) = (TestSetup::new(), RemoteRepo::new());
    let tips: Vec<String> = (0..20).map(|n| remote.commit("a", &n.to_string())).collect();
    // Everything is here except one file in the middle of the history.
    let lost = remote.git(&["rev-parse", &format!("{}:a", tips[11])]);
    let all = remote.git(&["rev-list", "--objects", "--no-object-names", "HEAD"]);
    let most: String = all.lines().filter(|oid| *oid != lost).map(|oid| format!("{oid}\n")).collect();
    let pack = remote.feed(&["pack-objects", "--stdout", "-q"], most.as_bytes());
    let folder = setup.client.local_objects.layout.pool(&setup.repo_path).join("pack");
    fs::create_dir_all(&folder).expect("creates the folder");
    fs::write(folder.join("pack-1.pack"), pack).expect("writes");
    assert!(run(&folder, &["index-pack", "pack-1.pack"], b"").status.success());

    let oids: Vec<&str> = tips.iter().map(String::as_str).collect();
    let availability = setup.client.local_objects.availability(&setup.repo_path, &tips, &[]).expect("reads");
    let sorted = |oids: &[String]| {
        let mut oids = oids.to_vec();
        oids.sort_unstable();
        oids
    };
    assert_eq!(sorted(&availability.here), sorted(&tips[..11]), "the history before the lost file is complete");
    assert_eq!(sorted(&availability.missing), sorted(&tips[11..]));

    let url =
        format!("http://127.0.0.1:{}/remote.git", GitHttpBackend::new(remote.root.path()).serve("127.0.0.1:0").await);
    let fetched = setup.fetch(&url, RequestForm::ByOid, &oids).await;
    assert_eq!((fetched.result.outcome, sorted(&fetched.result.oids)), (FetchOutcome::Sent, sorted(&tips)));
    let pack = fetched.pack.expect("a pack");
    assert!(setup.objects(&pack).contains(&lost));
    drop(pack);
    setup.wait_until_clean().await;
}
