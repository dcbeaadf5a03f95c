//! Random lives of a house: whatever is offered in whatever order, the laws hold after every step (they are checked by
//! [`House`] itself), and a restart changes nothing that can be seen.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::random::Chance;
use grasp_sim::signer::{Author, maintainers_tag};
use grasp_sim::test_server::{House, rules, service};

const NAMES: &[&str] = &["a", "b:c"];

struct Life {
    chance: Chance,
    authors: Vec<Author>,
    past: Vec<Arc<SignedEvent>>,
}

impl Life {
    fn author(&mut self) -> Author {
        self.chance.pick(&self.authors).expect("not empty").clone()
    }

    fn name(&mut self) -> &'static str {
        self.chance.pick(NAMES).expect("not empty")
    }

    fn old(&mut self) -> Option<Arc<SignedEvent>> {
        self.chance.pick(&self.past).cloned()
    }

    fn oid(&mut self) -> String {
        char::from(b'a' + self.chance.below(4) as u8).to_string().repeat(40)
    }

    /// Few times, so that ties abound.
    fn time(&mut self) -> u64 {
        9_000 + self.chance.draw() % 12
    }

    fn roles(&mut self) -> Vec<Vec<String>> {
        let mut tags = Vec::new();
        let keepers: Vec<Author> = (0..self.chance.below(3)).map(|_| self.author()).collect();
        if self.chance.one_in(4) {
            let role = *self.chance.pick(&["M", "m", "o"]).expect("not empty");
            tags.extend(keepers.iter().map(|keeper| vec![role.to_owned(), keeper.hex()]));
        } else {
            tags.push(maintainers_tag(&keepers.iter().collect::<Vec<_>>()));
        }
        if self.chance.one_in(8) {
            tags.push(vec!["expiration".to_owned(), (10_000 + self.chance.draw() % 5_000).to_string()]);
        }
        // Relays come and go, so that what sync follows changes.
        tags.push(vec!["relays".to_owned(), format!("wss://{}.example", self.past.len() % 3)]);
        tags
    }

    fn event(&mut self) -> Arc<SignedEvent> {
        let (author, name, time) = (self.author(), self.name(), self.time());
        let repo = self.author().repo(name);
        match self.chance.below(16) {
            0..=3 => author.listed_with(&service(), name, time, self.roles()),
            4..=6 => author.unlisted_with(name, time, self.roles()),
            7..=9 => author.state(name, time, &[("refs/heads/main", &self.oid())]),
            10 => author.issue(time, &repo),
            11 => author.pull_request(time, &[&repo], &self.oid()),
            12 => match self.old() {
                Some(old) => author.comment(time, &old),
                None => author.note(time, &[], ""),
            },
            13 => {
                let kind = *self.chance.pick(&[kinds::ANNOUNCEMENT, kinds::STATE]).expect("not empty");
                author.deletion(time, &[&["a", &author.coordinate(kind, name)]])
            }
            14 => match self.old() {
                Some(old) => author.delete(time, &[&old]),
                None => author.note(time, &[], ""),
            },
            _ if self.chance.one_in(3) => author.vanish(time, &["ALL_RELAYS"]),
            _ => author.sign(kinds::GRASP_LIST, time, &[], ""),
        }
    }

    fn step(&mut self, house: &mut House) {
        match self.chance.below(20) {
            0 => house.advance(self.chance.draw() % 2_000),
            1 => {
                let before = house.sets();
                house.restart();
                assert_eq!(house.sets(), before);
            }
            2..=4 => {
                let oids: BTreeSet<String> = (0..2).map(|_| self.oid()).collect();
                house.git_has(&oids);
            }
            5 => {
                let before = house.sets();
                let batch = [self.event(), self.event()];
                house.submit_batch(&batch.each_ref(), false);
                assert_eq!(house.sets(), before, "a failed batch never happened");
            }
            6..=8 => {
                if let Some(old) = self.old() {
                    house.submit(&old);
                }
            }
            _ => {
                let event = self.event();
                self.past.push(event.clone());
                house.submit(&event);
            }
        }
    }
}

#[test]
fn the_laws_hold_in_random_lives() {
    let authors: Vec<Author> = (1..=4).map(Author::new).collect();
    let mut most = (0, 0);
    for seed in 0..100 {
        let mut house = House::new(AdmissionPolicy { strict_maintainers: seed % 4 == 3, ..rules() });
        let mut life = Life { chance: Chance::new(seed), authors: authors.clone(), past: Vec::new() };
        for step in 0..80 {
            let _naming = Naming(seed, step);
            life.step(&mut house);
            house.check_derived(NAMES);
            let (served, held) = house.sets();
            most = (most.0.max(served.len()), most.1.max(held.len()));
        }
    }
    assert!(most.0 > 10 && most.1 > 3, "lives that are worth living: {most:?}");
}

struct Naming(u64, usize);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed in seed {}, step {}", self.0, self.1);
        }
    }
}
