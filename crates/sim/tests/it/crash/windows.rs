//! Two things at once: something changes while git is at work, and then the world ends.

use std::sync::Arc;

use grasp_core::admission::push::PushRejection;
use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::fixtures::{m, main_at, o, oid, x};
use grasp_sim::git_model::pull_ref;
use grasp_sim::signer::Author;
use grasp_sim::test_server::{House, Wish, service};

use super::runner::{Act, End, Naming, house};
use super::{hosting, main_to, prs, submission, tool};

/// A house in which this has happened, and in which git now works only when it is told to.
fn lazy(acts: &[Act]) -> House {
    let mut house = house();
    for act in acts {
        match act {
            Act::Submit(event) => drop(house.submit(event)),
            Act::Push(wish) => house.push(wish).expect("a good push"),
            Act::Wait(secs) => house.advance(*secs),
            Act::Rule(lists) => house.rule(lists.clone()),
        }
    }
    house.be_lazy(true);
    house
}

/// Lets `begin` begin, git do some steps, `change` happen, git do some more steps, and then everything go on: at once, or
/// after the world has ended. Whatever the steps, it ends well and the same, with and without the end of the world.
fn interrupted(before: &[Act], begin: impl Fn(&mut House), change: impl Fn(&mut House), ends: impl Fn(&mut House)) {
    for first in 0..12 {
        for second in 0..12 {
            let _naming = Naming(format!("after {first} and {second} steps"));
            let play = |crash: bool| {
                let mut house = lazy(before);
                begin(&mut house);
                steps(&mut house, first);
                change(&mut house);
                steps(&mut house, second);
                if crash {
                    house.boot().expect("no end is planned");
                }
                house.work().expect("no end is planned");
                for id in house.ongoing() {
                    house.end(id).expect("no end is planned");
                }
                ends(&mut house);
                let end = End::of(&mut house);
                house.boot().expect("no end is planned");
                house.work().expect("no end is planned");
                assert_eq!(end, End::of(&mut house), "nothing was left to do (right: after a new start)");
            };
            play(false);
            play(true);
        }
    }
}

fn steps(house: &mut House, count: usize) {
    for _ in 0..count {
        house.step(0).expect("no end is planned");
    }
}

fn begin_push(wish: Wish) -> impl Fn(&mut House) {
    move |house: &mut House| {
        let (id, permit) = house.ask(&wish).expect("no end is planned").expect("something changes");
        permit.expect("permitted");
        assert_eq!(house.arrive(id), Ok(None));
    }
}

fn offer(event: &Arc<SignedEvent>) -> impl Fn(&mut House) {
    let event = event.clone();
    move |house: &mut House| drop(house.submit(&event))
}

fn no_ref(owner: &Author, name: &str) -> impl Fn(&mut House) {
    let (repo_path, name) = (tool(owner), name.to_owned());
    move |house: &mut House| assert_eq!(house.refs(&repo_path).get(&name), None)
}

#[test]
fn a_state_is_deleted_while_it_is_pushed() {
    let state = main_at(&m(), 200, 'b');
    let mut before = hosting(&[&m()]);
    before.push(Act::Submit(state.clone()));
    let at_a = |house: &mut House| {
        assert_eq!(house.refs(&tool(&o())).get("refs/heads/main"), Some(&oid('a')));
    };
    interrupted(&before, begin_push(main_to(&o(), 'b', "")), offer(&m().delete(300, &[&state])), at_a);
}

#[test]
fn the_first_state_is_deleted_while_it_is_pushed() {
    let state = main_at(&o(), 200, 'b');
    let before = [Act::Submit(o().listed(&service(), "tool", 100, &[])), Act::Submit(state.clone())];
    let deletion = o().delete(300, &[&state]);
    interrupted(&before, begin_push(main_to(&o(), 'b', "a")), offer(&deletion), no_ref(&o(), "refs/heads/main"));
}

#[test]
fn a_pull_request_is_deleted_while_it_is_pushed() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let mut before = hosting(&[&m()]);
    before.extend([Act::Submit(m().listed(&service(), "tool", 150, &[&o()])), Act::Submit(pull.clone())]);
    for owner in [o(), m()] {
        let wish = Wish::new(tool(&owner)).pull(pull.id, &oid('b'));
        let name = pull_ref(pull.id);
        interrupted(&before, begin_push(wish), offer(&x().delete(300, &[&pull])), no_ref(&owner, &name));
    }
}

#[test]
fn a_pull_request_is_deleted_while_its_upload_is_taken_in() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('b'));
    let mut before = hosting(&[]);
    before.push(Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('b'))));
    let name = pull_ref(pull.id);
    interrupted(&before, offer(&pull), offer(&x().delete(300, &[&pull])), no_ref(&o(), &name));
}

#[test]
fn an_author_vanishes_while_things_are_pushed() {
    let (state, pull) = (main_at(&m(), 200, 'b'), m().pull_request(200, &[&o().repo("tool")], &oid('d')));
    let mut before = hosting(&[&m()]);
    before.extend([Act::Submit(state), Act::Submit(pull.clone())]);
    let wish = main_to(&o(), 'b', "").pull(pull.id, &oid('d'));
    interrupted(&before, begin_push(wish), offer(&m().vanish(300, &["ALL_RELAYS"])), |house| {
        assert_eq!(house.refs(&tool(&o())).into_iter().collect::<Vec<_>>(), [("refs/heads/main".into(), oid('a'))]);
    });
}

#[test]
fn a_maintainer_is_one_no_more_while_its_state_is_pushed() {
    let mut before = hosting(&[&m()]);
    before.push(Act::Submit(main_at(&m(), 200, 'b')));
    let alone = o().listed(&service(), "tool", 300, &[]);
    interrupted(&before, begin_push(main_to(&o(), 'b', "")), offer(&alone), |house| {
        assert_eq!(house.refs(&tool(&o())).get("refs/heads/main"), Some(&oid('a')));
    });
}

#[test]
fn a_repository_goes_while_it_is_pushed_to() {
    let mut before = hosting(&[]);
    before.push(Act::Submit(main_at(&o(), 200, 'b')));
    for change in [o().unlisted("tool", 300, &[]), o().deletion(300, &[&["a", &o().repo("tool")]])] {
        interrupted(&before, begin_push(main_to(&o(), 'b', "")), offer(&change), |house| {
            assert_eq!(house.git().folder(&tool(&o())), None);
        });
    }
}

#[test]
fn a_repository_comes_back_while_it_goes() {
    let again = o().listed(&service(), "tool", 400, &[]);
    interrupted(&hosting(&[]), offer(&o().deletion(300, &[&["a", &o().repo("tool")]])), offer(&again), |house| {
        assert!(house.admission().hosted_repo(&o().repo_id("tool")).is_some());
    });
}

/// A lender goes while somebody begins to read its pool.
#[test]
fn a_lender_goes_while_a_follower_comes() {
    let follower = x().listed(&service(), "tool", 200, &[&o()]);
    let deletion = o().deletion(300, &[&["a", &o().repo("tool")]]);
    interrupted(&hosting(&[]), offer(&follower), offer(&deletion), |_| {});
    interrupted(&hosting(&[]), offer(&deletion), offer(&follower), |_| {});
}

/// It is pushed to M's, whose objects O's reads; then O's does so no more.
#[test]
fn a_maintainer_is_one_no_more_while_a_pull_request_is_pushed_there() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('d'));
    let mut before = hosting(&[&m()]);
    before.extend([Act::Submit(m().listed(&service(), "tool", 150, &[&o()])), Act::Submit(pull.clone())]);
    let wish = Wish::new(tool(&m())).pull(pull.id, &oid('d'));
    let alone = o().listed(&service(), "tool", 300, &[]);
    interrupted(&before, begin_push(wish), offer(&alone), |house| {
        let served = house.sets().0.contains(&pull.id);
        assert_eq!(house.refs(&tool(&m())).contains_key(&pull_ref(pull.id)), served);
    });
}

/// A better state comes while a worse one is followed that names the same objects.
#[test]
fn a_better_state_comes_while_git_is_at_work() {
    let mut before = hosting(&[&m()]);
    before.push(Act::Submit(main_at(&o(), 200, 'b')));
    let better = m().state("tool", 300, &[("refs/heads/dev", &oid('b'))]);
    interrupted(&before, begin_push(main_to(&o(), 'b', "")), offer(&better), |house| {
        let dev = house.refs(&tool(&o())).get("refs/heads/dev").cloned();
        assert_eq!(dev.is_some(), house.sets().0.contains(&better.id));
    });
    interrupted(&hosting(&[&m()]), offer(&main_at(&m(), 200, 'a')), offer(&o().state("tool", 300, &[])), |house| {
        assert!(house.refs(&tool(&o())).is_empty());
    });
}

/// The note of what is to be done stands until it is done, also if it was made while the same was being done.
#[test]
fn a_second_reason_for_the_same_work() {
    let mut before = hosting(&[&m()]);
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('d'));
    before.extend([
        Act::Submit(pull.clone()),
        Act::Push(Wish::new(tool(&o())).pull(pull.id, &oid('d'))),
        Act::Submit(main_at(&m(), 200, 'b')),
        Act::Push(main_to(&o(), 'b', "")),
    ]);
    let first = m().deletion(300, &[&["a", &m().coordinate(kinds::STATE, "tool")]]);
    let name = pull_ref(pull.id);
    interrupted(&before, offer(&first), offer(&x().delete(300, &[&pull])), no_ref(&o(), &name));
}

/// The event comes while its objects are put aside.
#[test]
fn an_event_comes_while_its_upload_is_put_aside() {
    let pull = submission(&x(), 200, &[&o().repo("tool")], 'b');
    for repo_path in [tool(&o()), prs(&x())] {
        let wish = Wish::new(repo_path.clone()).pull(pull.id, &oid('b')).bring(&[&oid('a')]);
        for first in 0..8 {
            for second in 0..12 {
                let _naming = Naming(format!("{repo_path}, after {first} and {second} steps"));
                let mut house = lazy(&hosting(&[]));
                begin_push(wish.clone())(&mut house);
                steps(&mut house, first);
                house.submit(&pull);
                steps(&mut house, second);
                let answered = house.ongoing().iter().any(|id| house.result(*id).is_some());
                house.boot().expect("no end is planned");
                house.work().expect("no end is planned");
                if !answered {
                    house.push(&wish).expect("it can be pushed again");
                }
                assert_eq!(house.refs(&repo_path).get(&pull_ref(pull.id)), Some(&oid('b')));
                assert!(house.sets().0.contains(&pull.id));
            }
        }
    }
}

/// The last pull request of a submitter goes while the next one comes.
#[test]
fn g6_a_submission_comes_while_the_last_one_goes() {
    let [one, other] = [(200, 'd'), (201, 'e')].map(|(at, digit)| submission(&x(), at, &[&m().repo("tool")], digit));
    let before =
        [Act::Submit(one.clone()), Act::Submit(other.clone()), Act::Push(Wish::new(prs(&x())).pull(one.id, &oid('d')))];
    for first in 0..8 {
        let _naming = Naming(format!("after {first} steps"));
        let mut house = lazy(&before);
        house.submit(&x().delete(300, &[&one]));
        steps(&mut house, first);
        house.push(&Wish::new(prs(&x())).pull(other.id, &oid('e'))).expect("a good push");
        house.work().expect("no end is planned");
        assert_eq!(house.refs(&prs(&x())).into_keys().collect::<Vec<_>>(), [pull_ref(other.id)]);
    }
}

/// Git fails in the middle of a push; what waits gives up before it is tried again, and then the world ends.
#[test]
fn git_fails_in_the_middle_of_a_push() {
    let pull = x().pull_request(200, &[&o().repo("tool")], &oid('d'));
    let mut before = hosting(&[&m()]);
    before.extend([Act::Submit(pull.clone()), Act::Submit(main_at(&m(), 200, 'b'))]);
    for done in 0..12 {
        for gives_up in [false, true] {
            for crash in [false, true] {
                let _naming = Naming(format!("after {done} steps; {gives_up} {crash}"));
                let mut house = lazy(&before);
                begin_push(main_to(&o(), 'b', "").pull(pull.id, &oid('d')))(&mut house);
                steps(&mut house, done);
                let Some(order) = house.running().front().map(|order| order.id) else { continue };
                let nth = house.place_of(order).expect("it is under way");
                house.fail(nth).expect("no end is planned");
                let id = house.ongoing()[0];
                if let Some(result) = house.result(id) {
                    assert!(matches!(result, Err(PushRejection::Failed(_)) | Ok(())), "{result:?}");
                    house.end(id).expect("no end is planned");
                }
                if gives_up {
                    // Everything fails until it is over.
                    for event in
                        [m().deletion(300, &[&["a", &m().coordinate(kinds::STATE, "tool")]]), x().delete(300, &[&pull])]
                    {
                        house.submit(&event);
                        while !house.running().is_empty() {
                            house.fail(0).expect("no end is planned");
                        }
                    }
                }
                if crash {
                    house.boot().expect("no end is planned");
                }
                house.heal();
                for id in house.ongoing() {
                    house.end(id).expect("no end is planned");
                }
                let end = End::of(&mut house);
                house.boot().expect("no end is planned");
                house.work().expect("no end is planned");
                assert_eq!(end, End::of(&mut house), "nothing was left to do (right: after a new start)");
            }
        }
    }
}

/// X's repository, which reads O's, goes, and O's; X's is announced again before it has gone.
#[test]
fn a_reader_comes_back_after_its_lender_has_gone() {
    let follower = x().listed(&service(), "tool", 200, &[&o()]);
    let mut before = hosting(&[]);
    before.push(Act::Submit(follower));
    let gone = [o(), x()].map(|author| author.deletion(300, &[&["a", &author.repo("tool")]]));
    for order in [[0, 1], [1, 0]] {
        let begin = |house: &mut House| order.iter().for_each(|nth| drop(house.submit(&gone[*nth])));
        let again = x().listed(&service(), "tool", 400, &[]);
        interrupted(&before, begin, offer(&again), |house| {
            assert!(house.admission().hosted_repo(&x().repo_id("tool")).is_some());
        });
    }
}
