//! What nobody needs goes after a grace period, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use grasp_core::admission::git_job::Align;
use grasp_core::repo::Site;
use grasp_git::maintenance::Tidied;
use tempfile::TempDir;

use super::pool::{DAY, age, clear, files, maintainer, modified, objects, order, packs, point, prune, push, push_each};
use crate::world::{Author, World, announced, pull, submitted};

/// A site whose `main` was `old` and is `new`.
fn replaced(world: &World, site: &Site, author: &Author) -> (String, String) {
    let first = author.commit("first");
    let old = author.commit("old");
    push(world, site, author, &[&old]);
    author.git(&["checkout", "--quiet", &first]);
    let new = author.commit("new");
    push(world, site, author, &[&new, &format!("^{old}")]);
    (old, new)
}

#[test]
fn unneeded_objects_go_a_day_after_they_were_found_to_be() {
    let folder = TempDir::new().expect("a folder");
    let (world, site, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, new) = replaced(&world, &site, &author);
    // They came long ago, and are unneeded since now.
    age(&world, &site, 10 * DAY);
    let before = objects(&world, &site);
    let prunings = world.layout.prunings();
    assert_eq!(prune(&world, &site, DAY), Tidied::Done);
    assert_eq!(objects(&world, &site), before, "all is there still");
    assert!(world.layout.prunings() > prunings);
    assert_eq!(prune(&world, &site, DAY), Tidied::Fine);
    assert!(world.reads(&site, &old));
    age(&world, &site, DAY);
    assert_eq!(prune(&world, &site, DAY), Tidied::Done);
    assert!(!world.reads(&site, &old) && world.reads(&site, &new));
    assert_eq!(packs(&world, &site).len(), 1);
    world.check(&site);
    assert_eq!(prune(&world, &site, DAY), Tidied::Fine);
    assert_eq!(files(&world.layout.root().join("incoming")), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_is_taken_up_again_stays() {
    let folder = TempDir::new().expect("a folder");
    let (world, site, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, new) = replaced(&world, &site, &author);
    assert_eq!(prune(&world, &site, DAY), Tidied::Done);
    point(&world, &site, Align::default(), &old);
    age(&world, &site, 2 * DAY);
    // The old commit is needed again, the new one is not since now.
    assert_eq!(prune(&world, &site, DAY), Tidied::Done);
    assert!(world.reads(&site, &old) && world.reads(&site, &new));
    world.check(&site);
    age(&world, &site, 2 * DAY);
    assert_eq!(prune(&world, &site, DAY), Tidied::Done);
    assert!(world.reads(&site, &old) && !world.reads(&site, &new));
    world.check(&site);
}

#[test]
fn what_readers_refs_lead_to_stays() {
    let folder = TempDir::new().expect("a folder");
    let (world, author) = (World::open(folder.path()), Author::new());
    let (site, reader, stranger) = (announced(1), announced(2), announced(3));
    let old = push_each(&world, &site, &author, &["one".to_owned(), "two".to_owned()]);
    point(&world, &reader, Align { lenders: vec![site.clone()], ..Align::default() }, &old);
    // What the reader has on top of it is its own.
    let lend = || Align { lenders: vec![site.clone()], ..Align::default() };
    let top = author.commit("top");
    let parcel = author.incoming(&world, &[&top, &format!("^{old}")]);
    point(&world, &reader, Align { adopt: vec![parcel], ..lend() }, &top);
    push(&world, &stranger, &author, &[&top]);
    clear(&world, &site);
    let own = objects(&world, &reader);
    for _ in 0..3 {
        assert_eq!(prune(&world, &site, Duration::ZERO), Tidied::Fine);
    }
    world.check(&reader);
    point(&world, &reader, lend(), &old);
    for _ in 0..2 {
        prune(&world, &site, Duration::ZERO);
        prune(&world, &reader, Duration::ZERO);
        world.check(&reader);
    }
    assert!(!world.reads(&reader, &top) && own.contains_key(&top));
    // When nobody reads it any more it goes; the reader has copied what it needs.
    order(&world, &reader, Align::default());
    assert_eq!(prune(&world, &site, Duration::ZERO), Tidied::Done);
    assert_eq!(prune(&world, &site, Duration::ZERO), Tidied::Done);
    assert_eq!(objects(&world, &site).len(), 0);
    world.check(&reader);
    world.check(&stranger);
}

#[test]
fn what_events_name_stays_with_all_that_it_needs() {
    let folder = TempDir::new().expect("a folder");
    let (world, site, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, _) = replaced(&world, &site, &author);
    let asked = std::cell::RefCell::new(Vec::new());
    let mut needs = |sites: &[Site]| {
        asked.borrow_mut().push(sites.to_vec());
        // Objects that are not here are named too.
        Some(BTreeSet::from([old.clone(), "0123456789012345678901234567890123456789".to_owned(), "x".to_owned()]))
    };
    let maintainer = maintainer(&world);
    for _ in 0..2 {
        assert_eq!(maintainer.prune(&site, Duration::ZERO, &mut needs).expect("prunes"), Tidied::Fine);
    }
    assert!(asked.borrow().iter().all(|sites| *sites == [site.clone()]));
    assert!(world.reads(&site, &old));
    point(&world, &site, Align::default(), &old);
    world.check(&site);
    // If nobody can say what is needed, nothing happens.
    let later = maintainer.prune(&site, Duration::ZERO, &mut |_| None).expect("prunes");
    assert_eq!(later, Tidied::Later);
}

#[test]
fn a_named_object_whose_history_is_gone_holds_up_nobody() {
    let folder = TempDir::new().expect("a folder");
    let (world, site, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, new) = replaced(&world, &site, &author);
    // A commit without its parent and its tree.
    let top = author.commit("top");
    let torn = Author::commit(&author, "torn");
    let stray = world.layout.pool(&site);
    author.pack_objects(&stray, &[&torn]);
    let mut needs = |_: &[Site]| Some(BTreeSet::from([torn.clone(), old.clone(), top.clone()]));
    let maintainer = maintainer(&world);
    assert_eq!(maintainer.prune(&site, Duration::ZERO, &mut needs).expect("prunes"), Tidied::Done);
    assert_eq!(maintainer.prune(&site, Duration::ZERO, &mut needs).expect("prunes"), Tidied::Done);
    assert!(world.reads(&site, &old) && world.reads(&site, &new) && !world.reads(&site, &torn));
}

#[test]
fn pull_requests_go_and_submissions_are_pruned_like_others() {
    let folder = TempDir::new().expect("a folder");
    let (world, site, author) = (World::open(folder.path()), submitted(1), Author::new());
    let tip = author.commit("offer");
    let parcel = author.incoming(&world, &[&tip]);
    order(&world, &site, Align { adopt: vec![parcel], pulls: vec![pull(7, &tip, &[])], ..Align::default() });
    assert_eq!(prune(&world, &site, Duration::ZERO), Tidied::Fine);
    assert!(world.reads(&site, &tip));
    order(&world, &site, Align { drop_pulls: vec![crate::world::event(7)], ..Align::default() });
    prune(&world, &site, Duration::ZERO);
    prune(&world, &site, Duration::ZERO);
    assert!(!world.reads(&site, &tip));
    assert_eq!(world.layout.submitted().expect("reads"), [site]);
}

/// An order that comes between the walk and the end takes up what was about to go.
#[test]
fn an_order_that_comes_between_is_noticed() {
    let folder = TempDir::new().expect("a folder");
    let (world, site, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, new) = replaced(&world, &site, &author);
    prune(&world, &site, DAY);
    age(&world, &site, 2 * DAY);
    let mut times = 0;
    let mut needs = |_: &[Site]| {
        times += 1;
        if times == 2 {
            // The second time is in the turn. What an order has changed directly before that is on disk.
            let refs = fs::read_to_string(world.layout.site(&site).join("packed-refs")).expect("refs");
            fs::write(world.layout.site(&site).join("packed-refs"), refs.replace(&new, &old)).expect("writes");
        }
        Some(BTreeSet::new())
    };
    assert_eq!(maintainer(&world).prune(&site, DAY, &mut needs).expect("prunes"), Tidied::Later);
    assert_eq!(times, 2);
    world.check(&site);
    assert!(world.reads(&site, &old) && world.reads(&site, &new));
    // A state that is served but not followed counts as well.
    point(&world, &site, Align::default(), &new);
    let mut times = 0;
    let mut needs = |_: &[Site]| {
        times += 1;
        Some(if times == 2 { BTreeSet::from([old.clone()]) } else { BTreeSet::new() })
    };
    assert_eq!(maintainer(&world).prune(&site, DAY, &mut needs).expect("prunes"), Tidied::Later);
    assert!(world.reads(&site, &old));
}

#[test]
fn leftovers_of_packs_go_when_they_are_old() {
    let folder = TempDir::new().expect("a folder");
    let (world, site, author) = (World::open(folder.path()), announced(1), Author::new());
    push_each(&world, &site, &author, &["one".to_owned()]);
    let whole = files(&world.layout.pool(&site).join("pack"));
    for name in ["tmp_pack_x", "pack-0.pack", "pack-1.idx", "pack-2.rev"] {
        fs::write(world.layout.pool(&site).join("pack").join(name), "x").expect("writes");
    }
    fs::remove_file(world.layout.pool(&site).join("pack/pack-1.idx")).expect("goes");
    prune(&world, &site, DAY);
    assert_eq!(files(&world.layout.pool(&site).join("pack")).len(), whole.len() + 3, "they may be on their way");
    age(&world, &site, DAY);
    prune(&world, &site, DAY);
    assert_eq!(files(&world.layout.pool(&site).join("pack")), whole);
}

#[test]
fn a_look_is_due_after_a_change_and_a_pause() {
    let folder = TempDir::new().expect("a folder");
    let (world, site, author) = (World::open(folder.path()), announced(1), Author::new());
    let maintainer = maintainer(&world);
    let due = |pause: Duration, grace: Duration| {
        maintainer.is_prune_due(&site, maintainer.changed(std::slice::from_ref(&site)), pause, grace)
    };
    assert!(!due(Duration::ZERO, DAY), "there is nothing");
    let (_, new) = replaced(&world, &site, &author);
    assert!(due(Duration::ZERO, DAY) && !due(DAY, DAY));
    // A change that was not followed by a look yet.
    prune(&world, &site, DAY);
    let looked = modified(&world.layout.pool(&site).join("info/looked"));
    let back = |by: Duration| {
        let file = fs::File::options().write(true).open(world.layout.pool(&site).join("info/looked")).expect("a file");
        file.set_modified(SystemTime::now() + Duration::from_secs(1) - by).expect("another time");
    };
    assert!(looked <= SystemTime::now() && !due(DAY, DAY));
    back(Duration::from_secs(1));
    assert!(!due(Duration::ZERO, DAY), "nothing has changed since");
    age(&world, &site, 2 * DAY);
    assert!(due(Duration::ZERO, DAY), "what was put aside may go");
    prune(&world, &site, DAY);
    back(Duration::from_secs(1));
    assert!(!due(Duration::ZERO, DAY));
    let next = author.commit("next");
    push(&world, &site, &author, &[&next, &format!("^{new}")]);
    back(Duration::from_secs(60));
    assert!(due(Duration::from_secs(30), DAY) && !due(DAY, DAY));
}
