//! What is here, and what came of it.

use std::fs;

use grasp_core::fetch::io::{FetchOutcome, RequestForm};
use grasp_git::receive::{Incoming, PackSink, Received};

use super::server::Backend;
use super::stage::{LIMITS, Stage, Theirs, run};

/// A received pack.
fn received(stage: &Stage, pack: &[u8]) -> (Incoming, Received) {
    let incoming = Incoming::create(&stage.room.larder.layout).expect("a folder");
    let mut sink = PackSink::new(&incoming, LIMITS);
    sink.write(pack).expect("is taken");
    (incoming, sink.finish().expect("a pack"))
}

#[tokio::test]
async fn what_is_gone_when_it_is_needed_is_nobodys_fault() {
    let (stage, theirs) = (Stage::new(), Theirs::new());
    let text: String = (0..2_000).map(|n| format!("{n}\n")).collect();
    let first = theirs.commit("a", &text);
    let (incoming, pack) = received(&stage, &theirs.pack(&["HEAD"]));
    let larder = &stage.room.larder;
    let oids = [first.clone()];
    let taken = larder.take((&stage.repo_path, &oids), 0, (incoming, pack)).expect("is taken");
    assert_eq!((taken.lacking, taken.oids.as_slice()), (0, &oids[..]));
    stage.adopt(&stage.repo_path, &taken.pack.expect("a pack"), &[("refs/heads/main", &first)]);

    let second = theirs.commit("a", &format!("{text}x\n"));
    let input = format!("{second}\n^{first}\n");
    let thin = theirs.feed(&["pack-objects", "--revs", "--stdout", "--thin", "-q"], input.as_bytes());
    let oids = [second.clone()];
    let look = larder.look(&stage.repo_path, &oids).expect("a look");
    assert_eq!((look.haves.as_slice(), look.missing.as_slice()), (&[first][..], &oids[..]));
    let taken = larder.take((&stage.repo_path, &oids), look.prunings, received(&stage, &thin)).expect("is taken");
    assert_eq!(taken.oids, oids);
    drop(taken);

    // The repository is emptied while the answer comes.
    fs::remove_dir_all(larder.layout.pool(&stage.repo_path)).expect("removes");
    larder.directory.publish(&stage.repo_path, Default::default(), true);
    let sorry = larder.take((&stage.repo_path, &oids), look.prunings, received(&stage, &thin)).expect_err("gone");
    assert_eq!(sorry.end, FetchOutcome::InvalidData, "as far as anybody knows");
    larder.layout.note_pruning();
    let sorry = larder.take((&stage.repo_path, &oids), look.prunings, received(&stage, &thin)).expect_err("gone");
    assert_eq!(sorry.end, FetchOutcome::LocalError);
    stage.is_clean().await;
}

#[tokio::test]
async fn what_is_here_without_what_it_needs_is_fetched() {
    let (stage, theirs) = (Stage::new(), Theirs::new());
    let tips: Vec<String> = (0..20).map(|n| theirs.commit("a", &n.to_string())).collect();
    // All of them are here but for one file in the middle.
    let lost = theirs.git(&["rev-parse", &format!("{}:a", tips[11])]);
    let all = theirs.git(&["rev-list", "--objects", "--no-object-names", "HEAD"]);
    let most: String = all.lines().filter(|oid| *oid != lost).map(|oid| format!("{oid}\n")).collect();
    let pack = theirs.feed(&["pack-objects", "--stdout", "-q"], most.as_bytes());
    let folder = stage.room.larder.layout.pool(&stage.repo_path).join("pack");
    fs::create_dir_all(&folder).expect("is made");
    fs::write(folder.join("pack-1.pack"), pack).expect("writes");
    assert!(run(&folder, &["index-pack", "pack-1.pack"], b"").status.success());

    let oids: Vec<&str> = tips.iter().map(String::as_str).collect();
    let look = stage.room.larder.look(&stage.repo_path, &tips).expect("a look");
    let sorted = |oids: &[String]| {
        let mut oids = oids.to_vec();
        oids.sort_unstable();
        oids
    };
    assert_eq!(sorted(&look.here), sorted(&tips[..11]), "the history before it is complete");
    assert_eq!(sorted(&look.missing), sorted(&tips[11..]));

    let url = format!("http://127.0.0.1:{}/theirs.git", Backend::new(theirs.root.path()).serve("127.0.0.1:0").await);
    let fetched = stage.fetch(&url, RequestForm::ByOid, &oids).await;
    assert_eq!((fetched.catch.outcome, sorted(&fetched.catch.oids)), (FetchOutcome::Sent, sorted(&tips)));
    let pack = fetched.pack.expect("a pack");
    assert!(stage.objects(&pack).contains(&lost));
    drop(pack);
    stage.is_clean().await;
}
